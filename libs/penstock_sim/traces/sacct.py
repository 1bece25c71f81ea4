"""Slurm's accounting: ``sacct -P``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock_sim.trace import Floats, Trace
from penstock_sim.traces import clock
from penstock_sim.traces.gathering import Gathering
from penstock_sim.traces.source import Source
from penstock_sim.traces.table import Block, Table

REQUIRED: Final = ("JobID", "AllocTRES", "Submit", "Start", "End", "State")
_STEP: Final = "job step"
_WHOLE: Final = re.compile(r"(?:^|,)gres/gpu=(\d+)")
_TYPED: Final = re.compile(r"(?:^|,)gres/gpu:([^=,]+)=(\d+)")
_STATES: Final = {"COMPLETED": "completed", "CANCELLED": "cancelled", "RUNNING": "running", "PENDING": ""}


def read(source: Source) -> Trace:
    """
    Read the output of ``sacct -P -o JobID,User,Account,State,Submit,Start,End,Elapsed,AllocTRES``, or more columns.

    Steps (``123.batch``) are passed over. Devices are those allocated (``gres/gpu=N``, else the typed ones added up);
    the length is ``Elapsed``, which leaves out what a job spent suspended, else End less Start. Times are read as if
    they were UTC: set ``TZ=UTC`` for sacct where the clocks were changed meanwhile.

    References
    ----------
    https://slurm.schedmd.com/sacct.html
    """
    jobs = Gathering(source.name)
    for block in Table(source, REQUIRED, delimiter="|", quoting=False).blocks():
        ids, tres = block.texts("JobID"), block.texts("AllocTRES")
        steps = np.array(["." in job_id for job_id in ids], bool)
        submit_s = clock.epoch_s(block.texts("Submit"))
        block.refuse(~steps & np.isnan(submit_s), "Submit", "a time such as 2026-01-31T09:30:00")
        duration_s = _length_s(block, steps)
        jobs.add(
            ids,
            submit_s,
            np.array([_gpus(text) for text in tres], np.int64),
            duration_s,
            broken=block.broken & ~steps,
            unfit={_STEP: steps},
            vcs=block.texts("Account"),
            users=block.texts("User"),
            kinds=["|".join(kind for kind, _ in _TYPED.findall(text)) for text in tres],
            states=[_state(text) for text in block.texts("State")],
        )
    return jobs.trace()


def _length_s(block: Block, steps: np.ndarray) -> Floats:
    start_s, end_s = clock.epoch_s(block.texts("Start")), clock.epoch_s(block.texts("End"))
    ended = ~np.isnan(end_s) & ~np.isnan(start_s)
    if not block.has("Elapsed"):
        return end_s - start_s
    spans: Sequence[str] = block.texts("Elapsed")
    elapsed_s = np.array([clock.span_s(text) for text in spans], np.float64)
    block.refuse(ended & ~steps & np.isnan(elapsed_s), "Elapsed", "a span such as 1-02:03:04")
    return np.where(ended, elapsed_s, np.nan)


def _gpus(tres: str) -> int:
    """
    Return the devices of a list of trackable resources.

    Examples
    --------
    >>> _gpus("billing=8,cpu=8,gres/gpu:a100=4,gres/gpu=4"), _gpus("gres/gpu:t4=1,gres/gpu:v100=2"), _gpus("cpu=2")
    (4, 3, 0)
    """
    if whole := _WHOLE.search(tres):
        return int(whole[1])
    return sum(int(count) for _, count in _TYPED.findall(tres))


def _state(text: str) -> str:
    return _STATES.get(text.partition(" ")[0], "failed")
