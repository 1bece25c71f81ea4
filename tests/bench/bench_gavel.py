"""
What knowing speeds is worth: jobs that come over time, by ``allox`` and by others, most of them blind to speed.

The jobs are of 26 models with their measured speeds on three kinds of device, one device each; arrivals are Poisson and
lengths heavy-tailed. The production ranker and matcher decide under virtual time. Jobs of one seed are the same for
all. Load 1 is the most that the devices could keep up with if each model ran where the whole gains most by it (a linear
programme). ``first-fit`` goes by the names of kinds, so it is run with names by which the kind that is fastest for most
models comes first, and with names by which it comes last. ``allox`` with a window of one job knows speeds, but
matches no job with any other: each, in turn, goes to the device on which it ends first, or waits for it. That tells the
worth of matching from the worth of knowing. Where many wait it is slow, a matching for each of them in each round, so
it is run at low loads unless ``--one-by-one`` says up to which.

References
----------
Narayanan et al., Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads, OSDI 2020: the speeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import linprog

from penstock_policies import matching
from penstock_simulator.engine.policies import SIMULATED_POLICIES
from penstock_simulator.engine.simulation import simulate
from penstock_simulator.trace import Trace
from penstock_simulator.traces.plain_formats import throughputs
from penstock_simulator.virtual_cluster import parse

MEASURED = Path(__file__).parents[1] / "data" / "reference" / "gavel_throughputs.json"
KINDS = ("v100", "p100", "k80")
"""From the kind that is fastest for most models to the one that is slowest."""

EACH = 12
BLIND: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "load-balance": ({"assign": "load-balance"}, "abc"),
    "first-fit, fastest first": ({"assign": "first-fit"}, "abc"),
    "first-fit, slowest first": ({"assign": "first-fit"}, "cba"),
}
"""Name → settings, and with what the names of the kinds begin."""

ONE_BY_ONE: Mapping[str, tuple[Mapping[str, Any], str]] = {"allox, one by one": ({"window": 1}, "abc")}

LOADS = (0.1, 0.5, 0.9, 1.3)
MEAN_S, SIGMA = 3_600.0, 1.5
"""Length on a job's fastest kind: log-normal with this mean; a percent of the jobs is a fifth of the work."""

Speeds = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Case:
    """Something that a cluster may know or want: a policy, with settings beside it."""

    what: str
    policy: str
    settings: Mapping[str, Any]


CASES = (
    Case("lengths declared, one queue, endless patience", "allox", {}),
    Case("lengths unknown, one queue, endless patience", "configured", SIMULATED_POLICIES["allox"].settings),
    Case("the services' defaults: lengths unknown, preemption, patience 30 s", "configured", {}),
)


def measured() -> Speeds:
    """Return model → kind → steps per second, of the models that run on one device of each kind."""
    tables = {kind: throughputs(MEASURED, kind) for kind in KINDS}
    models = sorted(set.intersection(*({model for model, gpus in table if gpus == 1} for table in tables.values())))
    return {model: {kind: table[model, 1] for kind, table in tables.items()} for model in models}


def most_per_s(speeds: Speeds) -> float:
    """Return the most jobs a second that the devices could keep up with, all models being equally frequent."""
    need_s = np.array([[MEAN_S * max(of.values()) / of[kind] for kind in KINDS] for of in speeds.values()])
    models = len(need_s)
    shares = np.kron(np.eye(models), np.ones(len(KINDS)))  # each model's shares of the kinds add up to its arrivals
    balance = np.hstack([shares, np.full((models, 1), -1.0 / models)])
    held = np.hstack([(need_s[:, :, None] * np.eye(len(KINDS))).reshape(-1, len(KINDS)).T, np.zeros((len(KINDS), 1))])
    aim = np.append(np.zeros(models * len(KINDS)), -1.0)
    found = linprog(aim, A_ub=held, b_ub=[EACH] * len(KINDS), A_eq=balance, b_eq=np.zeros(models))
    if found.x is None:
        raise RuntimeError(f"no rate found: {found.message}")
    return float(found.x[-1])


def arrivals(speeds: Speeds, jobs: int, load: float, seed: int) -> Trace:
    """Return jobs that come at so much of the highest rate."""
    rng = np.random.default_rng(seed)
    lengths_s = rng.lognormal(np.log(MEAN_S) - SIGMA**2 / 2, SIGMA, jobs)
    models = [str(model) for model in rng.choice(sorted(speeds), jobs)]
    gaps_s = rng.exponential(1.0 / (load * most_per_s(speeds)), jobs)
    ids = [str(row) for row in range(jobs)]
    return Trace("gavel", ids, np.cumsum(gaps_s), np.ones(jobs, np.int64), lengths_s, models=models)


def mean_s(case: Case, own: Mapping[str, Any], letters: str, speeds: Speeds, trace: Trace) -> float:
    """Return the mean completion time of the jobs, seconds, on kinds whose names begin with some letters."""
    names = {kind: f"{letter}-{kind}" for letter, kind in zip(letters, KINDS, strict=True)}
    cluster = parse("+".join(f"1x{EACH}@{name}" for name in names.values()))
    known = {model: {names[kind]: speed for kind, speed in of.items()} for model, of in speeds.items()}
    outcome = simulate(trace, cluster, case.policy, settings={**case.settings, **own}, speedups=known)
    if not outcome.finished.all():
        raise RuntimeError(f"{(~outcome.finished).sum()} jobs did not finish with {own}; their times are missing")
    return float(outcome.jct_s.mean())


def report(case: Case, speeds: Speeds, load: float, options: argparse.Namespace) -> None:
    """Print a line: the mean completion time by ``allox``, and how many times as long the others take."""
    traces = [arrivals(speeds, options.jobs, load, seed) for seed in range(1, options.seeds + 1)]
    best_s = np.array([mean_s(case, {}, "abc", speeds, trace) for trace in traces])
    cells = [f"allox {best_s.mean():,.0f} s ({best_s.min():,.0f} to {best_s.max():,.0f})"]
    rivals = {**BLIND, **(ONE_BY_ONE if load <= options.one_by_one else {})}
    for name, (own, letters) in rivals.items():
        times = np.array([mean_s(case, own, letters, speeds, trace) for trace in traces]) / best_s
        cells.append(f"{name} {times.mean():.2f} ({times.min():.2f} to {times.max():.2f})")
    print(f"  load {load}: {'; '.join(cells)}", flush=True)


def main() -> None:
    """Print all cases at all loads."""
    parser = argparse.ArgumentParser(description="Mean completion times on measured speeds.")
    parser.add_argument("--jobs", type=int, default=800)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--one-by-one", type=float, default=0.5, metavar="LOAD")
    options = parser.parse_args()
    matching.warm()
    speeds = measured()
    print(f"{len(speeds)} models; {EACH} each of {', '.join(KINDS)}; {options.jobs} jobs, {options.seeds} seeds")
    print("mean completion time by allox, and how many times as long the others take: mean (least to most)")
    for case in CASES:
        print(case.what)
        for load in LOADS:
            report(case, speeds, load, options)


if __name__ == "__main__":
    main()
