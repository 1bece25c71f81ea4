"""
One process of a job of the aggregation bench: ``python -m penstock_cli.local.aggregation_worker TASK``.

It finds its job, rank and agent in its environment, as processes of real jobs do, and says what it found as one JSON
object a line. Nothing here waits for a processor on purpose but by ``device_s``, which stands for the time that a step
spends on a device while the processor is idle.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np

import penstock
from penstock.sessions.session import Session
from penstock.sessions.setup import ProcessSetup

_ONE: Final = np.float32(1)


class WorkerTask(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a worker is to do.

    Attributes
    ----------
    what : {"mean", "update", "count", "train"}
        Compare means with plain sums; compare an optimizer with a local one; count steps in the parameters; train
        until the standard input ends.
    elements, steps, seed : int
    device_s : float
        Seconds that a step waits for its device.
    """

    what: Literal["mean", "update", "count", "train"]
    elements: int
    steps: int = 0
    seed: int = 1
    device_s: float = 0.0


def main() -> None:
    """Do the task, and say what came of it."""
    task = msgspec.json.decode(sys.argv[1], type=WorkerTask)
    with penstock.session() as session:
        {"mean": _compare_means, "update": _compare_updates, "count": _count, "train": _train}[task.what](session, task)


def _say(**found: Any) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def _values(task: WorkerTask, rank: int, step: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng((task.seed, rank, step)).standard_normal(task.elements, dtype=np.float32)


def _plain_mean(task: WorkerTask, world_size: int, step: int) -> np.ndarray[Any, Any]:
    """Return the sum in the order of the ranks, divided by their number."""
    total = _values(task, 0, step)
    for rank in range(1, world_size):
        total += _values(task, rank, step)
    total /= np.float32(world_size)
    return total


def _compare_means(session: Session, task: WorkerTask) -> None:
    shared = session.aggregate(np.zeros(task.elements, np.float32))
    equal = 0
    for step in range(task.steps):
        values = _values(task, session.rank, step)
        shared.mean(values)
        equal += values.tobytes() == _plain_mean(task, session.world_size, step).tobytes()
    _say(equal=equal, steps=task.steps)


def _compare_updates(session: Session, task: WorkerTask) -> None:
    about: dict[str, Any] = {"rule": "adamw", "lr": 0.01, "weight_decay": 0.1}
    ours, theirs = np.ones(task.elements, np.float32), np.ones(task.elements, np.float32)
    shared = session.aggregate(theirs, **about)
    local = Session(ProcessSetup()).aggregate(ours, **about)
    equal = 0
    for step in range(task.steps):
        local.push(_plain_mean(task, session.world_size, step))
        local.pull()
        shared.push(_values(task, session.rank, step))
        shared.pull()
        equal += ours.tobytes() == theirs.tobytes()
    _say(equal=equal, steps=task.steps)


def _count(session: Session, task: WorkerTask) -> None:
    """Have each step add one to each parameter; whatever they are at the end, so many steps were counted."""
    counted = np.zeros(task.elements, np.float32)
    shared = session.aggregate(counted, "sgd", lr=1.0)
    against = np.full(task.elements, -_ONE)
    for step in range(task.steps):
        shared.push(against)
        shared.pull()
        _wait(task.device_s)
        if step % 20 == 0:
            _say(step=step)
    _say(least=float(counted.min()), most=float(counted.max()), steps=task.steps)


def _train(session: Session, task: WorkerTask) -> None:
    """Take steps, and say how long each took, until the standard input ends."""
    values = np.zeros(task.elements, np.float32)
    shared = session.aggregate(values)
    stop = Path(os.environ["PENSTOCK_BENCH_STOP"])
    taken: list[float] = []
    stopping = np.zeros(task.elements, np.float32)
    for step in range(1 << 30):
        begun = time.perf_counter()
        _wait(task.device_s)
        stopping[0] = float(stop.exists())  # all processes have to stop after the same step
        np.copyto(values, stopping)
        shared.mean()
        taken.append(time.perf_counter() - begun)
        if step % 20 == 19:
            _say(step=step + 1, taken=taken)
            taken = []
        if values[0] > 0:
            return


def _wait(seconds: float) -> None:
    if seconds:
        select.select([], [], [], seconds)


if __name__ == "__main__":
    main()
