"""Elastic jobs whose batch may change too: worked examples, baselines, files of profiles, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from outcome_rows import random_trace, trace_of

from penstock_log import Size
from penstock_policies.elastic import ThroughputProfile
from penstock_simulator import fast
from penstock_simulator.engine.elastic_sizing import SizedJobs
from penstock_simulator.fast import fast_path, fast_settings
from penstock_simulator.fast.fast_settings import FastSizingSettings, Policy, shapes
from penstock_simulator.outcome import Outcome, summary
from penstock_simulator.trace import Trace
from penstock_simulator.virtual_cluster import parse
from sweeps import examples

NET = ThroughputProfile(
    b_min=8, b_max=64, per_gpu_cap=16, batch_step=8, t_proc_s={8: 1.0, 16: 1.6}, t_comm_s={2: 0.4, 4: 0.4}
)
"""Samples a second: with 8 in all 8, 7.3 and 8.4 on 1, 2 and 4 devices; at best 10, 16 and 32, with 16 on each."""


def of(jobs: list[tuple[float, int, float]], *batches: int) -> Trace:
    return trace_of(jobs, batch_sizes=np.array(batches or [0] * len(jobs)))


def run(trace: Trace, gpus: int, policy: str = "elastic", overhead_s: float = 0.0, **more: object) -> Outcome:
    profiles = {"*": NET}
    return fast.simulate(
        trace, parse(f"1x{gpus}"), policy, settings=more, profiles=profiles, overhead_s=overhead_s, timeline=True
    )


def test_work_is_samples_and_a_better_batch_does_it_sooner() -> None:
    # 80 s with a batch of 8 are 640 samples: 64 s with 16 on the one device.
    assert run(of([(0, 1, 80)]), 1).end_s.tolist() == [64]
    # Four devices do 64 in 2 s.
    assert run(of([(0, 1, 80)]), 4, most_gpus=4).end_s.tolist() == [20]


@pytest.mark.parametrize(
    ("policy", "end_s"),
    [
        ("fixed", 64),
        ("elastic-min-batch", 76),  # 8 on four devices: 0.55 s, and 0.4 s to agree
        ("elastic-user-batch", 44),  # 16 on four: 1.1 s
        ("elastic-max-batch", 20),
        ("elastic", 20),
    ],
)
def test_baselines_keep_what_they_are_named_after(policy: str, end_s: float) -> None:
    found = run(of([(0, 1, 64)], 16), 4, policy, most_gpus=4)  # 640 samples, with 16 on one device as it was submitted
    assert found.policy == policy
    assert found.end_s.tolist() == pytest.approx([end_s])


def test_a_batch_that_is_not_said_is_the_smallest_and_others_are_brought_into_the_range() -> None:
    for batch, speed in ((0, 8.0), (4, 8.0), (16, 10.0), (1000, 32.0)):
        (shape,) = shapes(
            of([(0, 1 if batch < 100 else 4, 1)], batch), "fixed", FastSizingSettings(), profiles={"*": NET}
        )
        assert shape.submitted == pytest.approx(speed)


def test_crowded_out_of_four_devices_jobs_with_a_largest_batch_wait_and_elastic_ones_shrink() -> None:
    jobs = of([(0, 1, 80), (0, 1, 80), (0, 1, 80)])
    assert run(jobs, 4, "elastic-max-batch", most_gpus=4).start_s.tolist() == [0, 20, 40]
    assert run(jobs, 4, "elastic", most_gpus=4).start_s.tolist() == [0, 0, 0]


def test_who_finds_no_room_is_dropped_where_nobody_is_to_wait() -> None:
    found = run(of([(0, 2, 10), (1, 1, 10), (20, 2, 10)]), 2, "fixed", drop="true")
    assert found.dropped is not None
    assert found.dropped.tolist() == [False, True, False]
    assert np.isnan(found.start_s).tolist() == [False, True, False]
    figures = summary(found, window_s=10)
    assert (figures.jobs, figures.finished, figures.in_window, figures.dropped) == (3, 2, 1, 1)


def test_more_than_there_are_devices_for_are_dropped_at_once() -> None:
    found = run(of([(0, 1, 10)] * 5), 2, drop="true")
    assert found.dropped is not None
    assert found.dropped.tolist() == [False, False, True, True, True]
    assert found.end_s[:2].tolist() == [8, 8]


def test_a_resize_to_another_batch_costs_as_one_to_other_devices_does() -> None:
    # Alone it has 64 on four devices; 16 on one of two from 10 on, when it is half done and another comes: 320 at 10/s.
    found = run(of([(0, 1, 80), (10, 1, 80), (10, 1, 80), (10, 1, 80)]), 4, most_gpus=4, overhead_s=5)
    assert found.end_s[0] == 10 + 5 + 32
    assert found.preemptions[0] == 1


def test_fixed_everything_is_fifo() -> None:
    trace = random_trace(60, seed=3)
    found = fast.simulate(trace, parse("1x8"), "fixed")
    fifo = fast.simulate(trace, parse("1x8"), "fifo")
    assert found.end_s == pytest.approx(fifo.end_s)
    assert found.preemptions.sum() == 0


JOBS = st.lists(
    st.tuples(st.integers(0, 60), st.sampled_from([1, 2, 4]), st.integers(1, 90), st.sampled_from([0, 8, 16])),
    min_size=1,
    max_size=7,
)


@settings(max_examples=examples(30), deadline=None)
@given(JOBS, st.integers(4, 7), st.sampled_from(fast_settings.SIZED_POLICIES), st.sampled_from([0.0, 4.0]))
def test_every_job_does_its_samples_on_the_devices_there_are(
    jobs: list[tuple[int, int, int, int]], gpus: int, policy: Policy, overhead_s: float
) -> None:
    jobs.sort()
    trace = of([job[:3] for job in jobs], *(job[3] for job in jobs))
    found = run(trace, gpus, policy, overhead_s, most_gpus=4)
    assert np.isfinite(found.end_s).all()
    assert found.timeline is not None
    assert found.timeline.busy_gpus.max() <= gpus
    assert found.held_gpu_s is not None
    how = shapes(trace, policy, FastSizingSettings(most_gpus=4), profiles={"*": NET})
    samples = trace.duration_s * [shape.submitted for shape in how]
    assert (found.executed_s >= samples / 32 * (1 - 1e-9)).all()  # nobody is faster than at the best size
    # The devices that it held were busy with nothing else: at best each does 10 samples a second.
    assert (found.held_gpu_s >= samples / 10 * (1 - 1e-9)).all()


class Thorough(SizedJobs):
    """Has everybody decided about at each event, also those who cannot be admitted."""

    def first(self) -> list[int]:
        self.decided = [-1]
        return list(self.order)


@settings(max_examples=examples(15), deadline=None)
@given(JOBS, st.integers(4, 7), st.sampled_from(fast_settings.SIZED_POLICIES), st.sampled_from(["fifo", "2d-las"]))
def test_asking_about_less_and_less_often_decides_the_same(
    jobs: list[tuple[int, int, int, int]], gpus: int, policy: Policy, order: str
) -> None:
    jobs.sort()
    trace = of([job[:3] for job in jobs], *(job[3] for job in jobs))
    more = {"most_gpus": 4, "admit": order, "thresholds_gpu_s": "20,90"}
    found = run(trace, gpus, policy, 4.0, **more)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast_path, "SizedJobs", Thorough)
        always = run(trace, gpus, policy, 4.0, **more)
    assert found.end_s.tolist() == always.end_s.tolist()
    assert found.preemptions.tolist() == always.preemptions.tolist()


# --- files, and what is refused


def test_profiles_are_read_from_toml_and_json(tmp_path: Path) -> None:
    text = "b_min = 8\nb_max = 64\nper_gpu_cap = 16\nbatch_step = 8\n"
    text += "t_proc_s = { 8 = 1.0, 16 = 1.6 }\nt_comm_s = { 2 = 0.4, 4 = 0.4 }\n"
    (tmp_path / "p.toml").write_text(f'["*"]\n{text}')
    (tmp_path / "p.json").write_text(json.dumps({"*": msgspec.to_builtins(NET, str_keys=True)}))
    assert (
        fast_settings.read_profiles(tmp_path / "p.toml")
        == fast_settings.read_profiles(tmp_path / "p.json")
        == {"*": NET}
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"t_proc_s": {"8": 0.0}}, "t_proc_s at 8 is 0.0; expected seconds above 0"),
        ({"b_min": 65}, "batch 65 to 64 by 8"),
        ({"t_com_s": {}}, "* has an unknown field 't_com_s'"),
        ({"t_proc_s": {"one": 1.0}}, "expected a table for each model: b_min"),
    ],
)
def test_what_is_no_profile_is_said(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    entry = {**msgspec.to_builtins(NET, str_keys=True), **change}
    (tmp_path / "p.json").write_text(json.dumps({"*": entry}))
    with pytest.raises(ValueError, match=r"profiles .*p\.json") as caught:
        fast_settings.read_profiles(tmp_path / "p.json")
    assert said in str(caught.value)


def test_a_file_of_profiles_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read: No such file or directory"):
        fast_settings.read_profiles(tmp_path / "none.toml")


def test_a_model_without_a_profile_is_refused() -> None:
    trace = replace(of([(0, 1, 10)]), models=("mlp",))
    with pytest.raises(ValueError, match="job j0: model 'mlp' has no profile"):
        shapes(trace, "elastic", FastSizingSettings(), profiles={"cnn": NET})


def test_a_batch_that_its_devices_do_not_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="a batch of 32 cannot be divided among the 1 devices that it asks for, of at"):
        shapes(of([(0, 1, 10)], 32), "elastic", FastSizingSettings(), profiles={"*": NET})


def test_a_largest_batch_that_no_width_holds_is_refused() -> None:
    with pytest.raises(ValueError, match="needs 4 devices and may have 2; expected most_gpus to be 4 or more"):
        shapes(of([(0, 1, 10)]), "elastic-max-batch", FastSizingSettings(most_gpus=2), profiles={"*": NET})


def test_a_curve_is_the_profile_of_a_job_whose_batch_cannot_change() -> None:
    (shape,) = shapes(of([(0, 3, 10)]), "elastic", FastSizingSettings(most_gpus=9), {"*": {2: 3.0, 3: 6.0, 8: 9.0}})
    speeds = [shape.progress(Size(gpus, shape.profile.b_min)) for gpus in range(1, 9)]
    assert np.isnan(speeds[0])
    assert speeds[1:] == pytest.approx([0.5, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5])
    assert shape.widths == range(1, 9)  # nothing is known of 9
