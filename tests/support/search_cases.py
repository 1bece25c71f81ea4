"""Sweeps played to their end against an objective, without a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock_log import JobSpec, SweepSpec, Uniform
from penstock_log.spec import Budget
from penstock_policies.search import RunHistory, next_runs

Objective = Callable[[dict[str, Any], int], float | None]
LR = Uniform(low=1e-4, high=1.0, log=True)
MOMENTUM = Uniform(low=0.0, high=1.0)


def sweep(search: str, **fields: Any) -> SweepSpec:
    job = JobSpec(name="train", command=("python", "train.py"))
    space = {"lr": LR, "momentum": MOMENTUM}
    return SweepSpec(**{"name": "s", "job": job, "space": space, "metric": "acc", "search": search, **fields})


def budget(least: int = 1, most: int = 9, eta: int = 3) -> Budget:
    return Budget(least=least, most=most, eta=eta)


def hill(params: dict[str, Any], budget: int) -> float:
    """Best at lr = 0.01, momentum = 0.9; better the longer it trains."""
    away = (np.log10(params["lr"]) + 2) ** 2 + (params["momentum"] - 0.9) ** 2
    return float(-away - 1 / (1 + budget))


def play(spec: SweepSpec, objective: Objective = hill, devices: int = 4, chance: int | None = None) -> RunHistory:
    """Return the past of a sweep that ended; its runs end one by one, the oldest first or as chance has it."""
    past = RunHistory()
    rng = np.random.default_rng(chance)
    while True:
        open_runs(past, spec, devices)
        running = [i for i, run in enumerate(past.runs) if not run.over]
        if not running:
            return past
        number = running[int(rng.integers(len(running))) if chance is not None else 0]
        run = past.runs[number]
        past.end(number, objective(run.params, run.budget))


def open_runs(past: RunHistory, spec: SweepSpec, devices: int = 4) -> None:
    """Make true what the search wants, until it wants nothing more."""
    while wanted := next_runs(spec, past, devices):
        for one in wanted:
            past.open(one)


def rungs(past: RunHistory, bracket: int = 0) -> list[tuple[int, int]]:
    """Return, for each rung of a bracket, how many trials ran in it and up to which budget."""
    runs = [run for run in past.runs if run.bracket == bracket]
    numbers = sorted({run.rung for run in runs})
    levels = [[run for run in runs if run.rung == number] for number in numbers]
    return [(len(level), level[0].budget) for level in levels]
