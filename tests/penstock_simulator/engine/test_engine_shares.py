"""Max-min fairness between users, as the production deciders run it."""

from __future__ import annotations

import numpy as np
import pytest

from penstock_simulator.engine.simulation import simulate
from penstock_simulator.outcome import Outcome
from penstock_simulator.trace import Trace
from penstock_simulator.virtual_cluster import parse

GREEDY, MODEST = 40, 12


def crowd() -> Trace:
    """One user submits forty jobs at once, and another twelve a moment later, all of 10 s."""
    jobs = GREEDY + MODEST
    return Trace(
        name="crowd",
        job_ids=[f"j{row:02d}" for row in range(jobs)],
        submit_s=np.array([0.0] * GREEDY + [1.0] * MODEST),
        num_gpus=np.ones(jobs, dtype=np.int64),
        duration_s=np.full(jobs, 10.0),
        users=("greedy",) * GREEDY + ("modest",) * MODEST,
        models=("mlp",) * jobs,
    )


def done_by(found: Outcome, at_s: float) -> tuple[int, int]:
    """How many jobs of each user have ended by a time."""
    ended = found.end_s <= at_s
    return int(ended[:GREEDY].sum()), int(ended[GREEDY:].sum())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cluster", "speeds"), [("1x2", {}), ("1x2@fast+1x4@slow", {"mlp": {"fast": 1.0, "slow": 0.25}})]
)
def test_two_users_get_the_same_work_done_on_whatever_kinds_of_device(
    cluster: str, speeds: dict[str, dict[str, float]]
) -> None:
    found = simulate(crowd(), parse(cluster), "max-min", speedups=speeds or None)
    last_s = float(found.end_s[GREEDY:].max())
    for at_s in np.linspace(20.0, last_s, 5):
        greedy, modest = done_by(found, float(at_s))
        assert abs(greedy - modest) <= 3, at_s


def test_without_it_who_comes_first_is_served_first() -> None:
    found = simulate(crowd(), parse("1x2"), "fifo-backfill")
    assert done_by(found, 200.0) == (GREEDY, 0)
