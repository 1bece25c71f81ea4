"""What the demo claims of its workload holds under virtual time, however long jobs take to run and to start."""

from __future__ import annotations

import doctest

import pytest

from demo import comparison, emulation, workload
from penstock_simulator.engine.cluster_script import RunCosts

STEP_S = workload.FAST_STEP_S["mlp"]


def test_the_demo_beats_fifo_by_a_fifth_at_least():
    assert 1.2 * comparison.average_jct_s("configured") < comparison.average_jct_s("fifo")


def test_the_comparison_is_of_every_job_that_trains_to_its_end_beside_others():
    arrivals = workload.arrivals()
    wanted = {arrival.spec.name for arrival in arrivals if arrival.end == "CD" and not arrival.grows}
    found = comparison.trace()
    assert {name for name in found.job_ids if not name.startswith("digits-t")} == wanted
    assert len(found) == len(wanted) + workload.TRIALS
    assert found.job_ids[0] == workload.LONG


@pytest.mark.parametrize("start_s", [0.1, 0.7, 4.0])
@pytest.mark.parametrize("times", [0.7, 1.0, 3.0])
def test_the_long_job_is_preempted_however_busy_the_host_is(start_s: float, times: float):
    found = comparison.outcome("configured", RunCosts(start_s, start_s / 3, iteration_s=times * STEP_S), times)
    preemptions = dict(zip(found.trace.job_ids, found.preemptions.tolist(), strict=True))
    assert found.finished.all()
    assert preemptions[workload.LONG] >= 1


def test_devices_are_emulated_for_the_declared_time_of_a_step():
    assert doctest.testmod(emulation).failed == 0
