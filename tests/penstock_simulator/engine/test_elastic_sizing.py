"""Elastic jobs in the counting simulator: worked examples, what must always hold, and files of curves."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from outcome_rows import random_trace, trace_of

from penstock_log import Size
from penstock_simulator import fast
from penstock_simulator.fast import fast_settings
from penstock_simulator.fast.fast_settings import EXPONENT, Curves, FastSizingSettings, shapes
from penstock_simulator.outcome import Outcome, summary
from penstock_simulator.trace import Trace
from penstock_simulator.virtual_cluster import parse
from sweeps import examples

EVEN: Curves = {"*": {1: 1.0, 2: 2.0, 3: 2.9, 4: 4.0, 64: 64.0}}
"""As fast as it is wide, but on 3: so 4 devices are best shared as 2 and 2."""

FLAT: Curves = {"*": {1: 1.0, 64: 1.0 + 1e-6}}


def run(trace: Trace, gpus: int, curves: Curves | None = EVEN, overhead_s: float = 0.0, **more: object) -> Outcome:
    return fast.simulate(
        trace, parse(f"1x{gpus}"), "elastic", settings=more, scaling=curves, overhead_s=overhead_s, timeline=True
    )


def test_a_job_alone_gets_what_it_asked_for_and_another_shares_it() -> None:
    found = run(trace_of([(0, 4, 100), (50, 4, 100)]), 4)
    # From 50 on each has 2 of 4: the first has 50 s left, the second starts at once.
    assert found.start_s.tolist() == [0, 50]
    assert found.end_s.tolist() == [150, 200]
    assert found.held_gpu_s is not None
    assert found.held_gpu_s.tolist() == [400, 400]
    assert found.preemptions.tolist() == [1, 1]
    assert summary(found).utilisation == 1.0


def test_a_resize_costs_time_on_the_devices() -> None:
    found = run(trace_of([(0, 4, 100), (50, 4, 100)]), 4, overhead_s=10)
    # The first goes on from 60 at half speed; the second grows at 160, is still for 10 s, and has 45 s of work left.
    assert found.end_s.tolist() == [160, 215]


def test_nobody_is_resized_for_less_than_it_costs() -> None:
    trace, flattening = trace_of([(0, 4, 100), (50, 4, 100)]), {"*": {1: 1.0, 2: 2.0, 3: 2.05, 4: 2.1}}
    # Both have 2 from 50 on. What is left when the first ends could go on 5 % faster.
    assert run(trace, 4, flattening, overhead_s=10).preemptions.tolist() == [1, 1]
    assert run(trace, 4, flattening, overhead_s=10, horizon_s=100).preemptions.tolist() == [1, 0]
    assert run(trace, 4, flattening, overhead_s=10, least_gain=0.1).preemptions.tolist() == [1, 0]


def test_jobs_may_grow_beyond_what_they_asked_for_where_that_is_allowed() -> None:
    trace = trace_of([(0, 1, 100)])
    assert run(trace, 8).end_s.tolist() == [100]
    assert run(trace, 8, most_gpus="4").end_s.tolist() == [25]


def test_who_comes_last_waits_where_one_device_each_is_too_much() -> None:
    found = run(trace_of([(0, 2, 10), (0, 2, 10), (0, 2, 10)]), 2)
    assert found.start_s.tolist() == [0, 0, 20]


def test_with_queues_who_has_had_much_makes_way() -> None:
    found = run(trace_of([(0, 1, 100), (50, 1, 30)]), 1, admit="2d-las", thresholds_gpu_s="20,1000")
    # At 50 the first is in queue 1; the second leaves queue 0 after 20 s and is then behind it.
    assert found.start_s.tolist() == [0, 50]
    assert found.end_s.tolist() == [120, 130]


def test_where_more_devices_bring_nothing_everybody_has_one() -> None:
    found = run(trace_of([(0, 4, 10), (0, 4, 10)]), 8, FLAT)
    assert found.held_gpu_s is not None
    assert found.end_s == pytest.approx([10, 10], rel=1e-5)


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 50), st.sampled_from([1, 2, 4]), st.integers(1, 60)), min_size=1, max_size=8),
    st.integers(1, 6),
    st.sampled_from([0.0, 3.0]),
    st.sampled_from(["fifo", "2d-las"]),
)
def test_work_and_devices_are_conserved(
    jobs: list[tuple[int, int, int]], gpus: int, overhead_s: float, order: str
) -> None:
    trace = trace_of(sorted(jobs))
    found = run(trace, gpus, None, overhead_s, admit=order, thresholds_gpu_s="10,40")
    assert np.isfinite(found.end_s).all()
    assert (found.start_s >= trace.submit_s).all()
    assert found.timeline is not None
    assert found.held_gpu_s is not None
    assert found.timeline.busy_gpus.max() <= gpus
    assert (np.diff(found.timeline.at_s) >= 0).all()
    steps_s = np.diff(found.timeline.at_s, append=found.timeline.at_s[-1])
    assert found.held_gpu_s.sum() == pytest.approx(float((steps_s * found.timeline.busy_gpus).sum()))
    # Nobody is faster than on all that it may have, nor holds less than its work takes on one device at best.
    assert (found.end_s - found.start_s >= trace.duration_s - 1e-6).all()
    least_gpu_s = trace.duration_s * trace.num_gpus**EXPONENT
    assert (found.held_gpu_s >= least_gpu_s * (1 - 1e-9)).all()


def test_on_a_crowded_cluster_less_device_time_goes_into_the_same_work() -> None:
    trace = random_trace(200, seed=5)
    found, fixed = run(trace, 16, None), fast.simulate(trace, parse("1x16"), "fifo-backfill")
    assert found.held_gpu_s is not None
    assert found.held_gpu_s.sum() < 0.9 * float((fixed.executed_s * trace.num_gpus).sum())


def test_a_simulation_that_is_told_to_stop_gives_what_it_has() -> None:
    trace = random_trace(200, seed=5)
    found = fast.simulate(trace, parse("1x16"), "elastic", go_on=lambda over, _: over < 20)
    assert 20 <= np.isfinite(found.end_s).sum() < 200


# --- curves and settings


def test_a_curve_goes_straight_between_what_is_known_and_ends_with_it(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text('["cnn"]\n1 = 2.0\n3 = 4.0\n')
    curves = fast_settings.read_curves(tmp_path / "s.toml")
    trace = replace(trace_of([(0, 2, 10), (0, 1, 10)]), models=("cnn", "mlp"))
    cnn, mlp = shapes(trace, "elastic", FastSizingSettings(most_gpus=4), curves)
    assert [cnn.progress(Size(gpus, cnn.profile.b_min)) for gpus in cnn.widths] == pytest.approx([2 / 3, 1.0, 4 / 3])
    assert [mlp.progress(Size(gpus, mlp.profile.b_min)) for gpus in mlp.widths] == pytest.approx(
        [gpus**EXPONENT for gpus in (1, 2, 3, 4)]
    )


def test_curves_are_read_from_json_too(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps({"*": {"1": 1, "2": 1.5}}))
    assert fast_settings.read_curves(tmp_path / "s.json") == {"*": {1: 1.0, 2: 1.5}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[cnn]\n1 = 0.0\n", "cnn on 1 devices is 0.0; expected numbers above 0"),
        ("[cnn]\n0 = 1.0\n", "cnn on 0 devices"),
        ("[cnn]\n", "cnn has no width"),
        ("[cnn]\none = 1.0\n", "expected a table for each model"),
    ],
)
def test_what_is_no_file_of_curves_is_said(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(ValueError, match=r"scaling .*s\.toml") as caught:
        fast_settings.read_curves(tmp_path / "s.toml")
    assert said in str(caught.value)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read: No such file or directory"):
        fast_settings.read_curves(tmp_path / "none.toml")


def test_a_job_that_asks_for_a_width_of_which_nothing_is_known_is_refused() -> None:
    with pytest.raises(ValueError, match="given for 1 to 2 devices, and it asks for 4"):
        run(trace_of([(0, 4, 10)]), 4, {"*": {1: 1.0, 2: 1.5}})


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"most_gpus": "0"}, ">= 1"),
        ({"admit": "srtf"}, "Invalid enum value 'srtf'"),
        ({"thresholds_gpu_s": "9,3"}, "expected rising"),
        ({"knob": "1"}, "settings of elastic are admit, thresholds_gpu_s, most_gpus, horizon_s"),
    ],
)
def test_what_cannot_be_set_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        FastSizingSettings.of(values)


def test_elastic_is_no_part_of_what_was_published() -> None:
    with pytest.raises(ValueError, match="leave compat, placement out"):
        fast.simulate(trace_of([(0, 1, 1)]), parse("1x4"), "elastic", compat="tiresias-2019")
