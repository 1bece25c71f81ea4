"""
Slurm's accounting, in two forms: Helios and sacct.

:func:`read_helios` reads SenseTime's Slurm jobs of 2020, :func:`read_sacct` the output of ``sacct -P``. :func:`epoch_s`
and :func:`span_s` turn the dates and spans of both into seconds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock_simulator.trace import Floats, Trace
from penstock_simulator.traces.columns import DelimitedTable, TableBlock, TraceBuilder, TraceSource

HELIOS_REQUIRED: Final = ("job_id", "user", "vc", "gpu_num", "state", "submit_time", "duration")
HELIOS_SLICE: Final = ("job_id", "user", "tenant", "submit_time", "num_chips", "duration_s", "final_status")
_AHEAD_S: Final = 8 * 3600.0
_HELIOS_STATES: Final = {"COMPLETED": "completed", "CANCELLED": "cancelled", "CANCELED": "cancelled"}


def read_helios(source: TraceSource) -> Trace:
    """
    Read ``cluster_log.csv`` as published, or slices of it with ``num_chips`` and submission in microseconds.

    Dates are China Standard Time and come out in seconds since 1970; a slice keeps its own origin. Jobs that failed,
    were cancelled or lost their node are jobs too: they held their devices.

    References
    ----------
    Hu et al., Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU Datacenters, SC 2021;
    https://github.com/S-Lab-System-Group/HeliosData (CC-BY-4.0).
    """
    jobs = TraceBuilder(source.name)
    sliced = any(line.startswith("job_id,user,tenant,") for line in source.head().splitlines())
    for block in DelimitedTable(source, HELIOS_SLICE if sliced else HELIOS_REQUIRED).blocks():
        (_add_slice if sliced else _add)(jobs, block)
    return jobs.trace()


def epoch_s(times: Sequence[str], *, ahead_s: float = 0.0) -> Floats:
    """
    Return seconds since 1970 of local times, ``2020-06-09 18:41:01`` or with a ``T``, or of seconds already.

    Parameters
    ----------
    times : sequence of str, (N,)
    ahead_s : float
        How far local time is ahead of UTC.

    Returns
    -------
    (N,) float array, seconds
        nan for what is no time: ``None``, ``Unknown``, nothing.

    Examples
    --------
    >>> epoch_s(["1970-01-01T00:01:00", "1970-01-01 08:00:01", "60", "Unknown", ""]).tolist()
    [60.0, 28801.0, 60.0, nan, nan]
    """
    try:
        if any(map(str.isdigit, times)):  # for numpy these are years
            raise ValueError
        local = np.array(times, "datetime64[ms]")
    except ValueError:
        return np.array([_one_s(time, ahead_s) for time in times], np.float64)
    return np.where(np.isnat(local), np.nan, local.astype(np.int64) / 1e3 - ahead_s)


def _add(jobs: TraceBuilder, block: TableBlock) -> None:
    submit_s = epoch_s(block.texts("submit_time"), ahead_s=_AHEAD_S)
    block.refuse(np.isnan(submit_s), "submit_time", "a time such as 2020-06-09 18:41:01")
    num_gpus, duration_s = block.whole("gpu_num"), block.numbers("duration", empty=np.nan)
    jobs.add(
        block.texts("job_id"),
        submit_s,
        num_gpus,
        duration_s,
        broken=block.broken,
        vcs=block.texts("vc"),
        users=block.texts("user"),
        states=_states(block, "state"),
    )


def _add_slice(jobs: TraceBuilder, block: TableBlock) -> None:
    submit_s, num_gpus = block.numbers("submit_time") / 1e6, block.whole("num_chips")
    duration_s = block.numbers("duration_s", empty=np.nan)
    jobs.add(
        block.texts("job_id"),
        submit_s,
        num_gpus,
        duration_s,
        broken=block.broken,
        vcs=block.texts("tenant"),
        users=block.texts("user"),
        kinds=block.texts("chip_type"),
        states=_states(block, "final_status"),
    )


def _states(block: TableBlock, column: str) -> list[str]:
    return [_HELIOS_STATES.get(state, "failed") for state in block.texts(column)]


SACCT_REQUIRED: Final = ("JobID", "AllocTRES", "Submit", "Start", "End", "State")
_STEP: Final = "job step"
_WHOLE: Final = re.compile(r"(?:^|,)gres/gpu=(\d+)")
_TYPED: Final = re.compile(r"(?:^|,)gres/gpu:([^=,]+)=(\d+)")
_SACCT_STATES: Final = {"COMPLETED": "completed", "CANCELLED": "cancelled", "RUNNING": "running", "PENDING": ""}


def read_sacct(source: TraceSource) -> Trace:
    """
    Read the output of ``sacct -P -o JobID,User,Account,State,Submit,Start,End,Elapsed,AllocTRES``, or more columns.

    Steps (``123.batch``) are passed over. Devices are those allocated (``gres/gpu=N``, else the typed ones added up);
    the length is ``Elapsed``, which leaves out what a job spent suspended, else End less Start. Times are read as if
    they were UTC: set ``TZ=UTC`` for sacct where the clocks were changed meanwhile.

    References
    ----------
    https://slurm.schedmd.com/sacct.html
    """
    jobs = TraceBuilder(source.name)
    for block in DelimitedTable(source, SACCT_REQUIRED, delimiter="|", quoting=False).blocks():
        ids, tres = block.texts("JobID"), block.texts("AllocTRES")
        steps = np.array(["." in job_id for job_id in ids], bool)
        submit_s = epoch_s(block.texts("Submit"))
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
            states=[_SACCT_STATES.get(text.partition(" ")[0], "failed") for text in block.texts("State")],
        )
    return jobs.trace()


def span_s(text: str) -> float:
    """
    Return the seconds of ``[D-][HH:]MM:SS``; nan for what is no span.

    Examples
    --------
    >>> span_s("1-02:03:04"), span_s("02:03"), span_s("0:00:01.5"), span_s("soon")
    (93784.0, 123.0, 1.5, nan)
    """
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        return float("nan")
    days, hours, minutes, seconds = found.groups()
    return int(days or 0) * 86400 + int(hours or 0) * 3600 + int(minutes) * 60 + float(seconds)


def _length_s(block: TableBlock, steps: np.ndarray) -> Floats:
    start_s, end_s = epoch_s(block.texts("Start")), epoch_s(block.texts("End"))
    ended = ~np.isnan(end_s) & ~np.isnan(start_s)
    if not block.has("Elapsed"):
        return end_s - start_s
    spans: Sequence[str] = block.texts("Elapsed")
    elapsed_s = np.array([span_s(text) for text in spans], np.float64)
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


_SPAN: Final = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")


def _one_s(time: str, ahead_s: float) -> float:
    if time.isdigit():
        return float(time)
    try:
        moment = np.datetime64(time or "NaT", "ms")
    except ValueError:
        return float("nan")
    return float("nan") if np.isnat(moment) else float(moment.astype(np.int64)) / 1e3 - ahead_s
