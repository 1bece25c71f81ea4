"""Sweeps, their trials and how those fare, with what a test does not care about filled in."""

from __future__ import annotations

from typing import Any

from penstock_log import (
    Choice,
    Device,
    JobSpec,
    JobSubmitted,
    NodeJoined,
    Placement,
    RoundDecided,
    RunEnded,
    Slot,
    SweepSpec,
    SweepSubmitted,
    Trial,
    TrialFinished,
    TrialGroupOpened,
    Uniform,
)

TWO = {"lr": Choice(values=(0.1, 0.2))}


def sweep_spec(**fields: Any) -> SweepSpec:
    job = JobSpec(name="train", command=("python", "train.py"), params={"epochs": 3, "lr": 9.0}, user="ada")
    return SweepSpec(**{"name": "digits", "job": job, "space": TWO, "metric": "acc", "search": "grid", **fields})


def random_spec(trials: int, **fields: Any) -> SweepSpec:
    space = {"lr": Uniform(low=1e-3, high=1.0, log=True)}
    return sweep_spec(**{"search": "random", "trials": trials, "space": space, **fields})


def swept(sweep_id: str = "s1", at_s: float = 1.0, **fields: Any) -> SweepSubmitted:
    return SweepSubmitted(at_s=at_s, sweep_id=sweep_id, spec=sweep_spec(**fields))


def node(node_id: str = "n1", *kinds: str) -> NodeJoined:
    devices = tuple(Device(index=i, kind=kind, memory_bytes=8, backend="emulated") for i, kind in enumerate(kinds))
    return NodeJoined(at_s=0.0, node_id=node_id, devices=devices)


def opened(sweep_id: str = "s1", at_s: float = 1.0, gpus: int = 1, packed: int = 1) -> TrialGroupOpened:
    trials = tuple(
        Trial(job_id=f"{sweep_id}-t00{i}", number=i, params={"lr": lr}, gpus=gpus, packed=packed)
        for i, lr in enumerate((0.1, 0.2))
    )
    return TrialGroupOpened(at_s=at_s, sweep_id=sweep_id, group=0, trials=trials)


def accepted(job_id: str, parent: str = "s1", **fields: Any) -> JobSubmitted:
    spec = JobSpec(**{"name": "t", "command": ("true",), "id": job_id, "parent": parent, **fields})
    return JobSubmitted(at_s=2.0, job_id=job_id, spec=spec)


def ended(job_id: str, outcome: Any = "completed", at_s: float = 4.0, **metrics: float) -> list[Any]:
    placement = Placement(job_id=job_id, epoch=1, kind="fast", slots=(Slot(node_id="n1", devices=(0,)),))
    return [
        RoundDecided(at_s=3.0, pool="default", placements=(placement,)),
        RunEnded(at_s=at_s, job_id=job_id, epoch=1, node_id="n1", outcome=outcome, metrics=metrics),
    ]


def ran(job_id: str, outcome: Any = "completed", **metrics: float) -> list[Any]:
    return [accepted(job_id), *ended(job_id, outcome, **metrics)]


def reported(
    job_id: str, state: Any = "completed", value: float | None = None, problem: Any = "", **fields: Any
) -> TrialFinished:
    about = {"at_s": 5.0, "sweep_id": "s1", "job_id": job_id, "state": state, "value": value, "problem": problem}
    return TrialFinished(**{**about, **fields})
