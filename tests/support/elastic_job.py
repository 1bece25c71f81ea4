"""
Train a regression on the digits until it has been told that it is enough, at the end of an epoch; for tests.

``elastic_job.py NOTES ENOUGH``: each process notes in the folder NOTES which samples it has done, and all end once the
file ENOUGH is there. Parameters: ``epochs`` to end after in any case, ``least`` not to end before; ``refuses``, a
number of processes with which no checkpoint can be loaded.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from digits import Momentum, accuracy, jitter, load  # isort: skip  # before numpy

import numpy as np

import penstock
from allreduce import AllReduce
from digits_softmax import build

NOTES, ENOUGH = map(Path, sys.argv[1:])
WORK_S = 1e-4
"""For each sample, in which the host is busy for its device: more than what does not become less on more of them."""


def work(rows: int) -> None:
    """Take the time that the emulated device is to take."""
    until_s = time.process_time() + WORK_S * rows
    while time.process_time() < until_s:
        pass


with penstock.session() as session, AllReduce.of(session) as peers, (NOTES / str(session.rank)).open("a") as notes:
    training, held_out = load()
    sampler = session.sampler(len(training.y), batch_size=64)
    model = build(session)
    momentum = Momentum(model, lr=session.lr(0.02))

    def restore(folder: Path) -> None:
        if session.world_size == session.params.get("refuses"):
            raise ValueError(f"no checkpoint is for {session.world_size} processes")
        momentum.load(folder)

    session.on_checkpoint(momentum.save, restore)
    over = False
    while not over:
        worked = False  # else it is an epoch that was over before
        for rows in session.iterations(sampler):
            work(len(rows))
            noise = jitter(momentum.rng, sampler.batch_size)[session.rank :: session.world_size]
            loss, gradients = model.gradients(training.x[rows] + noise[: len(rows)], training.y[rows])
            momentum.step(peers.mean(loss, gradients, rows=len(rows))[1])
            worked = True
            if not session.sampling:
                print(sampler.epoch, *rows, file=notes, flush=True)
        if worked:
            told = peers.sum(np.array([ENOUGH.exists()], np.float32))[0] > 0
            epochs = sampler.epoch + 1
            over = (told and epochs >= int(session.params.get("least", 0))) or epochs == session.params.get("epochs")
    session.report(accuracy=accuracy(model, held_out), epochs=sampler.epoch + 1)
    sys.stdout.write(f"accuracy {accuracy(model, held_out)}\n")
