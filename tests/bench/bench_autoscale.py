"""
What sizing batches with devices is worth: elastic jobs on an overloaded cluster and on others, counted.

Jobs come over a window of some hours, independently of each other or in bursts, ask for 1 to 8 devices with a batch
that their users chose, and are simulated until all are over under

* ``fixed``: each on as many devices as it asks for, with its user's batch, in order of submission;
* ``elastic-user-batch``, ``-min-batch``, ``-max-batch``: on 1 to 8, with one batch;
* ``elastic``: on 1 to 8, with any batch of its range.

Jobs of one seed are the same for all. Two sets of models: Gavel's measurements of four models on one kind of device,
and the four profiles of a published formulation. Load 1 is as much device time, as submitted, as the devices have.

References
----------
Saxena et al., Effective elastic scaling of deep learning workloads, MASCOTS 2020. Narayanan et al.,
Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads, OSDI 2020: the measurements.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import ceil
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from penstock_policies.elastic import ThroughputProfile
from penstock_simulator import fast
from penstock_simulator.outcome import OutcomeSummary, summary
from penstock_simulator.trace import Trace
from penstock_simulator.traces.generator import Bursty, GangSizeMix, Lognormal, Poisson, Recipe, RecipeModel, generate
from penstock_simulator.traces.plain_formats import throughputs
from penstock_simulator.virtual_cluster import parse

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from gavel_profiles import profiles as measured  # beside the tests, which check it

REFERENCE = Path(__file__).parents[1] / "data" / "reference"
POLICIES = ("fixed", "elastic-user-batch", "elastic-min-batch", "elastic-max-batch", "elastic")
CLUSTER, DEVICES, MOST_GPUS = "2x8", 16, 8
WINDOW_H = 12.0
OVERHEAD_S = 30.0
MEDIAN_GPU_S, SIGMA = 3600.0, 1.5
LOADS: Mapping[str, float] = {"low": 0.5, "medium": 1.0, "high": 2.0, "overload": 4.0}
CALM_S, BURST_S, CALM = 5400.0, 600.0, 0.4
"""A burst of ten minutes after an hour and a half, on average; in between jobs come at this part of the mean rate."""


class Case(NamedTuple):
    """One simulation."""

    models: str
    arrivals: str
    load: str
    drop: bool
    policy: str
    seed: int


class Setup(NamedTuple):
    """What does not change from case to case."""

    kind: str
    horizon_s: float


def model_sets(kind: str) -> Mapping[str, dict[str, ThroughputProfile]]:
    """Return the two sets of models."""
    raw: Any = msgspec.json.decode((REFERENCE / "elastic.json").read_bytes())
    given = {name: _profile(entry) for name, entry in raw["elastic_dp"]["profile"].items()}
    return {"measured": measured(throughputs(REFERENCE / "gavel_throughputs.json", kind)), "published": given}


def _profile(entry: Mapping[str, Any]) -> ThroughputProfile:
    """Return a profile whose times are written as fractions."""
    times = {name: entry[name] for name in ("t_proc_s", "t_comm_s")}
    seconds = {name: {int(at): float(Fraction(text)) for at, text in each.items()} for name, each in times.items()}
    return ThroughputProfile(**{**entry, **seconds})


def workload(profiles: Mapping[str, ThroughputProfile], arrivals: str, load: float, seed: int) -> Trace:
    """Return the jobs of one seed; users choose a measured batch for each device, within the model's range."""
    mean_gpu_s = MEDIAN_GPU_S * float(np.exp(SIGMA**2 / 2))
    rate_per_h = load * DEVICES * 3600 / mean_gpu_s
    burst_rate_per_h = rate_per_h * (1 + (1 - CALM) * CALM_S / BURST_S)
    recipe = Recipe(
        jobs=round(rate_per_h * WINDOW_H),
        seed=seed,
        arrivals=Poisson(rate_per_h=rate_per_h)
        if arrivals == "Poisson"
        else Bursty(rate_per_h=CALM * rate_per_h, burst_rate_per_h=burst_rate_per_h, calm_s=CALM_S, burst_s=BURST_S),
        gpu_time=Lognormal(median_s=MEDIAN_GPU_S, sigma=SIGMA),
        gpus=GangSizeMix(counts=(1, 2, 4, 8), weights=(5, 2, 2, 1)),
        models=tuple(RecipeModel(name=name, batches=tuple(profile.t_proc_s)) for name, profile in profiles.items()),
    )
    trace = generate(recipe)
    least = [ceil(profiles[str(model)].b_min / profiles[str(model)].per_gpu_cap) for model in trace.models]
    gpus = np.maximum(trace.num_gpus, least)  # whoever has a batch that one device does not hold asks for more
    return replace(trace, num_gpus=gpus, duration_s=trace.duration_s * trace.num_gpus / gpus)


def simulate(case: Case, setup: Setup) -> OutcomeSummary:
    """Return the figures of one case."""
    profiles = model_sets(setup.kind)[case.models]
    outcome = fast.simulate(
        workload(profiles, case.arrivals, LOADS[case.load], case.seed),
        parse(CLUSTER),
        case.policy,
        settings={"most_gpus": MOST_GPUS, "drop": case.drop, "horizon_s": setup.horizon_s},
        profiles=profiles,
        overhead_s=OVERHEAD_S,
    )
    return summary(outcome, window_s=WINDOW_H * 3600)


def table(
    models: str, arrivals: str, load: str, drop: bool, found: Mapping[str, list[OutcomeSummary]]
) -> Iterator[str]:
    """Yield the lines of one comparison: means over seeds, and their standard deviation; ratios seed by seed."""
    jobs = statistics.fmean(one.jobs for one in found["elastic"])
    what = "who finds no room is dropped" if drop else "who finds no room waits"
    yield f"{models} models, {arrivals} arrivals, {load} load ({LOADS[load]:g}): {jobs:.0f} jobs; {what}"
    yield ""
    yield (
        f"| policy | done in {WINDOW_H:g} h | dropped | mean JCT, s | p95 JCT, s | done, to user's "
        "| mean JCT, to user's |"
    )
    yield "|---|---|---|---|---|---|---|"
    base = found["elastic-user-batch"]
    for policy, each in found.items():
        done = statistics.fmean(a.in_window / max(b.in_window, 1) for a, b in zip(each, base, strict=True))
        jct = statistics.fmean(a.avg_jct_s / b.avg_jct_s for a, b in zip(each, base, strict=True))
        yield (
            f"| `{policy}` | {_spread([one.in_window for one in each])} | {_spread([one.dropped for one in each])} | "
            f"{_spread([one.avg_jct_s for one in each])} | {_spread([one.p95_jct_s for one in each])} | "
            f"{done:.2f} | {jct:.2f} |"
        )
    yield ""


def _spread(values: list[float] | list[int]) -> str:
    sd = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):,.0f} ± {sd:,.0f}"


def options() -> argparse.Namespace:
    """Return what was asked for on the command line."""
    parser = argparse.ArgumentParser(description="Compare ways to size elastic jobs.")
    parser.add_argument("--models", nargs="+", default=["measured", "published"])
    parser.add_argument("--arrivals", nargs="+", default=["Poisson", "bursty"])
    parser.add_argument("--loads", nargs="+", default=list(LOADS), choices=list(LOADS))
    parser.add_argument("--drop", nargs="*", default=["high"], choices=list(LOADS), help="loads at which to drop, too")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--kind", default="p100", help="of device, for the measured models")
    parser.add_argument("--horizon-s", type=float, default=3600.0)
    parser.add_argument("--jobs", "-j", type=int, default=1, help="processes")
    return parser.parse_args()


def main() -> int:
    """Print a table for each set of models, arrivals, load, and rule for who finds no room."""
    asked = options()
    setup = Setup(asked.kind, asked.horizon_s)
    waiting = [(*group, False) for group in product(asked.models, asked.arrivals, asked.loads)]
    dropping = [(*group, True) for group in product(asked.models, asked.arrivals, asked.drop)]
    simulations, cpu_s = 0, 0.0
    with ProcessPoolExecutor(asked.jobs, mp_context=get_context("spawn")) as pool:
        for group in (*waiting, *dropping):
            cases = [Case(*group, policy, seed) for policy in POLICIES for seed in range(asked.seeds)]
            figures = list(pool.map(simulate, cases, [setup] * len(cases)))
            found = {policy: figures[at * asked.seeds :][: asked.seeds] for at, policy in enumerate(POLICIES)}
            print("\n".join(table(*group, found)), flush=True)
            simulations, cpu_s = simulations + len(cases), cpu_s + sum(one.wall_s for one in figures)
    print(f"{simulations} simulations, {cpu_s:.0f} CPU s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
