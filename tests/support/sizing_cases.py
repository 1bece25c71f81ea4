"""Elastic jobs to size at random, and what is best of everything that can be tried; for tests and the bench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np

from penstock_policies.elastic import Floats, ThroughputProfile, added
from penstock_scheduler.sizing.kind_search import SizeRow
from penstock_scheduler.sizing.problem import SizeRequest

Curves = Mapping[str, Floats]
"""Kind → scaling on widths from 1."""


def some_curves(seed: int, jobs: int, kinds: int, widest: int) -> list[Curves]:
    """Return jobs with speeds on each kind by a lognormal, and efficiencies of 0.2 to 1; some need two devices."""
    rng = np.random.default_rng(seed)
    found: list[Curves] = []
    for _ in range(jobs):
        exponent, least = rng.uniform(0.2, 1.0), int(rng.choice([1, 1, 1, 2]))
        most = int(rng.integers(least, widest + 1))
        accepted = [kind for kind in range(kinds) if rng.random() < 0.85] or [int(rng.integers(kinds))]
        curves = {}
        for kind in accepted:
            power = np.clip(exponent + rng.normal(0, 0.1), 0.05, 1.05)
            curve = rng.lognormal(0, 0.6) * np.arange(1.0, most + 1) ** power * rng.lognormal(0, 0.02, most)
            curve[: least - 1] = np.nan
            curves["xyz"[kind]] = curve
        unit = max(curve[least - 1] for curve in curves.values())
        found.append({kind: curve / unit for kind, curve in curves.items()})
    return found


def table_of(jobs: Sequence[Curves]) -> dict[str, dict[str, SizeRow]]:
    """Return the rows of jobs that nothing has sized yet."""
    return {
        f"j{at}": {kind: SizeRow(np.ones(len(curve), dtype=np.int64), curve, curve) for kind, curve in curves.items()}
        for at, curves in enumerate(jobs)
    }


def score(jobs: Sequence[Curves], kinds: Sequence[str], capacity: Mapping[str, int]) -> float:
    """Return the greatest sum of scaling once kinds are chosen; -inf where the smallest widths do not fit."""
    total = 0.0
    for kind, count in capacity.items():
        sums = np.zeros(count + 1)
        for curves, own in zip(jobs, kinds, strict=True):
            sums = added(sums, curves[kind]) if own == kind else sums
        total += float(sums[-1])
    return total


def best_kinds(jobs: Sequence[Curves], capacity: Mapping[str, int]) -> tuple[float, list[str], list[str]]:
    """Return the best sum of all choices of kinds, that choice, and the first one that fits."""
    best, found, first = -np.inf, list[str](), list[str]()
    for kinds in product(*jobs):
        total = score(jobs, kinds, capacity)
        if total > -np.inf and not first:
            first = list(kinds)
        if total > best:
            best, found = total, list(kinds)
    return best, found, first


def some_requests(seed: int, jobs: int, workloads: int = 100, kinds: Sequence[str] = ("x",)) -> list[SizeRequest]:
    """Return jobs of so many workloads, up to 64 devices wide, some of them with a fixed batch."""
    rng = np.random.default_rng(seed)
    profiles = [some_profile(rng) for _ in range(workloads)]
    found = []
    for at in range(jobs):
        one = profiles[int(rng.integers(workloads))]
        found.append(
            SizeRequest(
                job_id=f"j{at}",
                profiles={kind: _paced(one, 1.0 + number) for number, kind in enumerate(kinds)},
                widths=range(1, int(rng.choice([4, 8, 16, 64])) + 1),
                cost_s=float(rng.lognormal(np.log(10), 1)),
            )
        )
    return found


def some_profile(rng: np.random.Generator) -> ThroughputProfile:
    """Return a workload whose communication takes 2 to 100 % of an iteration on one device."""
    local, cap = np.array([16, 32, 64]), int(rng.choice([64, 128]))
    proc_s = 0.05 + local * rng.uniform(0.001, 0.005)
    comm_s = proc_s[-1] * rng.uniform(0.02, 1.0)
    least = 32
    return ThroughputProfile(
        b_min=least,
        b_max=int(rng.choice([32, 512, 2048])),
        per_gpu_cap=cap,
        batch_step=int(rng.choice([1, 16])),
        t_proc_s=dict(zip(local.tolist(), proc_s.tolist(), strict=True)),
        t_comm_s={width: float(comm_s * 2 * (1 - 1 / width)) for width in (2, 4, 8)},
    )


def _paced(one: ThroughputProfile, slower: float) -> ThroughputProfile:
    return ThroughputProfile(
        b_min=one.b_min,
        b_max=one.b_max,
        per_gpu_cap=one.per_gpu_cap,
        batch_step=one.batch_step,
        t_proc_s={at: slower * time_s for at, time_s in one.t_proc_s.items()},
        t_comm_s=one.t_comm_s,
    )
