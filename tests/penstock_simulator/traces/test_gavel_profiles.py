"""Profiles from published measurements of several batches and widths."""

from __future__ import annotations

import pytest
from gavel_profiles import LEAST_S, profiles
from published import REFERENCE

from penstock_policies.elastic import best_batch
from penstock_simulator.traces.plain_formats import throughputs


@pytest.fixture(scope="module")
def p100() -> dict[tuple[str, int], float]:
    return throughputs(REFERENCE / "gavel_throughputs.json", "p100")


def test_models_with_several_batches_on_several_devices_have_a_profile(p100: dict[tuple[str, int], float]) -> None:
    found = profiles(p100)
    assert set(found) == {"ResNet-18", "ResNet-50", "Transformer", "LM"}  # not A3C, CycleGAN; nor Recommendation
    lm = found["LM"]
    assert (lm.b_min, lm.b_max, lm.per_gpu_cap, lm.batch_step) == (5, 320, 80, 5)
    assert sorted(lm.t_comm_s) == [2, 4, 8]


def test_one_device_is_as_fast_as_it_was_measured(p100: dict[tuple[str, int], float]) -> None:
    for model, profile in profiles(p100).items():
        for batch in profile.t_proc_s:
            steps_per_s = p100[f"{model} (batch size {batch})", 1]
            assert float(profile.throughput(batch, 1)) == pytest.approx(batch * steps_per_s)


def test_several_devices_are_about_as_fast_as_they_were_measured(p100: dict[tuple[str, int], float]) -> None:
    # One communication time for all batches of a width: off by the spread between them.
    found = profiles(p100)
    errors = [
        float(found[model].throughput(gpus * batch, gpus)) / (batch * steps_per_s) - 1
        for (name, gpus), steps_per_s in p100.items()
        if gpus > 1 and (model := name.partition(" (")[0]) in found
        for batch in [int(name.partition("size ")[2].rstrip(")"))]
    ]
    within = sorted(map(abs, errors))
    assert len(within) == 3 * 19
    assert within[len(within) // 2] < 0.06
    assert within[-1] < 0.7


def test_the_most_samples_a_second_come_with_full_devices(p100: dict[tuple[str, int], float]) -> None:
    for profile in profiles(p100).values():
        assert best_batch(profile, 4) == profile.b_max == 4 * profile.per_gpu_cap


def test_devices_that_were_measured_to_be_faster_together_than_alone_communicate_for_nothing() -> None:
    steps = {("a (batch size 4)", 1): 2.0, ("a (batch size 8)", 1): 1.0, ("a (batch size 8)", 2): 2.5}
    assert profiles(steps)["a"].t_comm_s == {2: LEAST_S}


@pytest.mark.parametrize(
    "steps",
    [
        {("a (batch size 4)", 1): 2.0, ("a (batch size 4)", 2): 3.0},
        {("a (batch size 4)", 1): 2.0, ("a (batch size 8)", 1): 3.0},
        {("a", 1): 2.0, ("a", 2): 3.0},
        {("a (batch size 4)", 2): 2.0, ("a (batch size 8)", 2): 3.0},
    ],
)
def test_one_batch_or_one_width_is_no_profile(steps: dict[tuple[str, int], float]) -> None:
    assert profiles(steps) == {}
