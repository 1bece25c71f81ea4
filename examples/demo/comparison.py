"""
The demo's workload under virtual time: the production deciders as they are set here, and the same ones under FIFO.

Arrivals and lengths are those that the workload declares, so the figures are the same on every host, however busy it
is. Left out are the two jobs at the end, the one that is refused, and the crash of ``crash-once``.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

import numpy as np

from demo import workload
from demo.workload import Arrival
from penstock_simulator.engine.cluster_script import RunCosts
from penstock_simulator.engine.simulation import simulate
from penstock_simulator.outcome import Outcome
from penstock_simulator.trace import Trace
from penstock_simulator.virtual_cluster import parse

CONFIG: Final = Path(__file__).with_name("penstock.toml")
COSTS: Final = RunCosts(start_s=0.7, stop_s=0.2, iteration_s=workload.FAST_STEP_S["mlp"])
"""What a run of an example takes beside its steps, on an idle host."""


def average_jct_s(policy: str) -> float:
    """Return the average completion time under ``configured`` or another policy by name, in seconds."""
    found = outcome(policy)
    return float(np.mean(found.end_s - found.trace.submit_s))


def outcome(policy: str, costs: RunCosts = COSTS, times: float = 1.0) -> Outcome:
    """Return what becomes of the workload under a policy, where each job takes so many times as long as declared."""
    cluster = parse("+".join(f"1x{count}@{kind}" for kind, count in workload.DEVICES.items()))
    return simulate(
        trace(times),
        cluster,
        policy,
        costs=costs,
        settings=_settings(),
        profile=True,
        speedups={"*": workload.SPEEDS},
    )


def trace(times: float = 1.0) -> Trace:
    """Return the jobs that run to their end, ``long`` first, with their declared lengths on the fastest kind."""
    jobs = sorted([workload.first(), *filter(_counts, workload.crowd()), *workload.trials()], key=lambda job: job.at_s)
    fastest = max(workload.SPEEDS.values())
    return Trace(
        name="demo",
        job_ids=[job.spec.name for job in jobs],
        submit_s=np.array([job.at_s for job in jobs]),
        num_gpus=np.array([job.spec.gpus for job in jobs]),
        duration_s=np.array([times * job.work_s / fastest for job in jobs]),
        models=[job.spec.model for job in jobs],
        kinds=["".join(job.spec.kinds) for job in jobs],
    )


def _counts(job: Arrival) -> bool:
    return job.end == "CD"


def _settings() -> dict[str, Any]:
    """Return what the demo sets of the ranker and the matcher."""
    tables = tomllib.loads(CONFIG.read_text())
    return {**tables["ranker"], **tables["matcher"]}
