"""Leases as columns say what each run says of itself, whatever came and went before."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from run_rows import columns_of

from penstock_log import Device, Job, JobSpec, JobState
from penstock_policies.workload_stats import PreemptionCost
from penstock_scheduler.pool.run_columns import GrantTerms, PoolGrants, shape_of
from penstock_scheduler.round_types import PreemptibleRun, RankedJob, RoundContext, RoundRules

NOW_S = 100.0


def run(number: int, gpus: int, started_s: float) -> PreemptibleRun:
    name = f"j{number}"
    job = Job(id=name, spec=JobSpec(name=name, command=("true",), gpus=gpus), submitted_s=0.0, state=JobState.RUNNING)
    job.started_s, job.executed_s = started_s, 3.0 * number
    devices = [Device(index=i, kind="fast", memory_bytes=8, backend="emulated") for i in range(gpus)]
    return PreemptibleRun(
        RankedJob(number % 3, float(number), name, job), "fast", tuple(("n1", device) for device in devices)
    )


def terms() -> GrantTerms:
    keys = {f"j{number}": f"w{number % 2}" for number in range(100)}
    costs = {"w0": PreemptionCost(stop_s=1.0, resume_s=2.0), "w1": PreemptionCost(redo_s=4.0, saves=True)}
    return GrantTerms(NOW_S, keys, lambda *_: 1.0, costs.__getitem__, [50.0, 200.0], 60.0)


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(1, 4), st.floats(1.0, 99.0)), max_size=90))
def test_columns_that_followed_are_those_of_the_runs_that_are_left(steps: list[tuple[int, int, float]]) -> None:
    grants, left = PoolGrants(), dict[str, PreemptibleRun]()
    for number, gpus, started_s in steps:
        one = run(number, gpus, started_s)
        if left.pop(one.ranked.job_id, None) is not None and gpus % 2:
            grants.drop(one.ranked.job_id)
        else:
            left[one.ranked.job_id] = one
            grants.put(one, shape_of(one), 0.0)
    found, stoppable = grants.runs(terms())
    cost = {name: terms().cost(terms().keys[name]) for name in left}
    context = RoundContext(
        NOW_S, lambda *_: 1.0, lambda jobs: [1.0] * len(jobs), RoundRules(), cost=lambda job: cost[job.id]
    )
    expected = columns_of([left[found.name(at)] for at in range(len(found))], context)
    assert len(found) == len(left) == stoppable.sum()
    for name in ("queue", "position", "started_s", "saved_s", "devices", "overhead_s", "switch_s", "saves"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name
    assert [found.shapes[at] for at in found.group] == [expected.shapes[at] for at in expected.group]
