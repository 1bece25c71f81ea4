"""The production deciders under virtual time, against the engine that counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock_simulator import fast
from penstock_simulator.engine.simulation import simulate
from penstock_simulator.outcome import Outcome
from penstock_simulator.trace import Trace
from penstock_simulator.virtual_cluster import parse
from sweeps import sampled

LIMITS = {"thresholds_gpu_s": [100.0, 1000.0]}
UNBOUND = {"min_run_s": 0.0, "overhead_share": 1.0}
"""The counting engine preempts whenever it helps; production bounds it."""


def load(seed: int, jobs: int = 150) -> Trace:
    """Return a trace that keeps 12 devices more than busy, with gangs of up to 8 and heavy-tailed lengths."""
    rng = np.random.default_rng(seed)
    return Trace(
        name=f"seed {seed}",
        job_ids=[f"j{row:03d}" for row in range(jobs)],
        submit_s=np.cumsum(rng.exponential(20.0, jobs)),
        num_gpus=rng.choice([1, 1, 1, 2, 4, 8], jobs).astype(np.int64),
        duration_s=rng.lognormal(4.0, 1.0, jobs),
    )


def both(
    trace: Trace, policy: str, settings: dict[str, Any], counted_settings: dict[str, Any]
) -> tuple[Outcome, Outcome]:
    """Return what the production deciders and the counting engine make of a trace on 3 nodes of 4 devices."""
    cluster = parse("3x4")
    return (
        simulate(trace, cluster, policy, settings=settings),
        fast.simulate(trace, cluster, policy, settings=counted_settings),
    )


@pytest.mark.parametrize("policy", ["fifo", "fifo-backfill"])
@pytest.mark.parametrize("seed", range(3))
def test_without_preemption_every_job_starts_and_ends_at_the_same_time(policy: str, seed: int) -> None:
    ours, theirs = both(load(seed), policy, UNBOUND, {})
    assert np.allclose(ours.start_s, theirs.start_s, atol=1e-6)
    assert np.allclose(ours.end_s, theirs.end_s, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("policy", sampled(["2d-las", "fewest-gpus", "srtf", "srsf", "las", "2d-gittins"], every=6))
def test_with_preemption_average_completion_times_are_about_the_same(policy: str) -> None:
    """
    They differ in whom they preempt.

    The counting engine takes devices from whoever is not among the first that fit; the matcher takes them from the
    fewest and lightest runs, only once they make up a whole gang, and never from a run that is about to end anyway.
    """
    ratios = []
    for seed in range(4):
        ours, theirs = both(load(seed), policy, {**LIMITS, **UNBOUND}, {**LIMITS, "within": "entry", "tick_s": 0})
        assert ours.preemptions.sum() > 0
        ratios.append(ours.jct_s.mean() / theirs.jct_s.mean())
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.12)
