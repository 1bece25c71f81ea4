"""
Philly, Microsoft's jobs of late 2017, in its three forms.

:func:`read_philly` takes any of them: the job log itself, which is one JSON list (:func:`read_philly_log`), the
filtered form that was published with Sia (:func:`read_philly_sia`), or the plain one. The machines that wrote the log
kept local times; :func:`epoch_s` converts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from penstock_simulator.trace import Floats, Trace, broken_row
from penstock_simulator.traces import plain_formats
from penstock_simulator.traces.columns import BROKEN, DelimitedTable, TraceBuilder, TraceSource


def epoch_s(times: Sequence[str]) -> Floats:
    """
    Return seconds since 1970 (UTC) of Pacific local times such as ``2017-10-09 07:01:55``; nan for what is none.

    The logs run from August 2017 to January 2018; on 2017-11-05 at 02:00 the clocks go back to 01:00, so the hour from
    01:00 to 02:00 is there twice and a time in it says not which. It is taken for the first of the two: in the
    published log one job comes every ten minutes without a break up to 01:52, and none an hour later.

    Parameters
    ----------
    times : sequence of str, (N,)

    Returns
    -------
    (N,) float array, seconds

    Examples
    --------
    >>> epoch_s(["2017-11-05 01:52:10", "2017-11-05 02:02:11", "None"]).tolist()
    [1509871930.0, 1509876131.0, nan]
    """
    try:
        local = np.array(times, "datetime64[s]")
    except ValueError:
        local = np.array([_local(time) for time in times], "datetime64[s]")
    behind_s = np.where(local < _SUMMER_ENDS, _SUMMER_S, _WINTER_S)
    return np.where(np.isnat(local), np.nan, local.astype(np.int64) + behind_s)


def read_philly_log(source: TraceSource) -> Trace:
    """
    Read the job log: the length of a job is the sum of its attempts, its devices are those of its largest attempt.

    Attempts whose start or end was not recorded are passed over; a job whose last attempt has no end was still
    running and is dropped. Times are Pacific local time: see :func:`penstock_simulator.traces.philly.epoch_s`.

    References
    ----------
    Jeon et al., Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads, USENIX ATC 2019;
    https://github.com/msr-fiddle/philly-traces (CC-BY-4.0).
    """
    trace = TraceBuilder(source.name)
    jobs = _jobs(source, trace)
    submit_s = epoch_s([job.submitted_time or "" for job in jobs])
    unfit = {
        "no attempt": np.array([not job.attempts for job in jobs], bool),
        "no submission time": np.isnan(submit_s),
    }
    trace.add(
        [job.jobid for job in jobs],
        submit_s,
        np.array([job.gpus for job in jobs], np.int64),
        _lengths(jobs),
        unfit=unfit,
        vcs=[job.vc for job in jobs],
        users=[job.user or "" for job in jobs],
        states=[_STATES.get(job.status, "") for job in jobs],
    )
    return trace.trace()


def read_philly_sia(source: TraceSource) -> Trace:
    """
    Read ``timestamp,duration,num_gpus,gpu_time,cluster``; times of submission come out in seconds since 1970.

    The rows stand in no order and have no ids: a job is called by its row, the first is 0. Local time jumps back one
    hour at the end of summer time: see :func:`penstock_simulator.traces.philly.epoch_s`.

    References
    ----------
    Jayaram Subramanya et al., Sia, SOSP 2023; the data are Philly's (CC-BY-4.0).
    """
    jobs = TraceBuilder(source.name)
    for block in DelimitedTable(source, REQUIRED).blocks():
        submit_s = epoch_s(block.texts("timestamp"))
        block.refuse(np.isnan(submit_s), "timestamp", "a time such as 2017-10-09 07:01:55")
        num_gpus, duration_s = block.whole("num_gpus"), block.numbers("duration")
        ids = [str(block.first + i) for i in range(len(block))]
        jobs.add(ids, submit_s, num_gpus, duration_s, broken=block.broken, vcs=block.texts("cluster"))
    return jobs.trace()


def read_philly(source: TraceSource) -> Trace:
    """
    Read the job log itself (JSON), the form with time stamps that was published with Sia, or the plain one.

    References
    ----------
    Jeon et al., Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads, USENIX ATC 2019.
    """
    head = source.head(256)
    if head.lstrip().startswith("["):
        return read_philly_log(source)
    return read_philly_sia(source) if head.startswith("timestamp,") else plain_formats.read_plain(source)


_STATES: Final = {"Pass": "completed", "Failed": "failed", "Killed": "cancelled"}
_EXPECTED: Final = "an entry of Philly's cluster_job_log: jobid, vc, user, status, submitted_time, attempts"


class PhillyDevices(msgspec.Struct, gc=False):
    """The devices of one machine that an attempt had, as the job log names them."""

    ip: str | None = None
    gpus: list[str] = []


class PhillyAttempt(msgspec.Struct, gc=False):
    """One run of a job, as the job log has it."""

    start_time: str | None = None
    end_time: str | None = None
    detail: list[PhillyDevices] = []


class PhillyJob(msgspec.Struct, gc=False):
    """
    One job, as the job log has it.

    Attributes
    ----------
    gpus : int
        Devices of the largest attempt; counted here, so that their names need no room.
    """

    jobid: str
    submitted_time: str | None
    attempts: list[PhillyAttempt]
    status: str = ""
    vc: str = ""
    user: str | None = ""
    gpus: int = 0


def _jobs(source: TraceSource, trace: TraceBuilder) -> list[PhillyJob]:
    body = source.body()
    try:
        entries = msgspec.json.decode(body, type=list[msgspec.Raw])
    except msgspec.DecodeError as error:
        raise broken_row(str(source.path), _line(body, error), f"no JSON list: {error}", _EXPECTED) from error
    decoder, jobs, at = msgspec.json.Decoder(PhillyJob), [], 0
    for entry in entries:
        raw = bytes(entry)
        at = body.index(raw, at)
        try:
            jobs.append(_counted(decoder.decode(raw)))
        except msgspec.DecodeError as error:
            if not source.lenient:
                line = body.count(b"\n", 0, at) + 1
                raise broken_row(str(source.path), line, f"the entry begins here: {error}", _EXPECTED) from error
            trace.drop(BROKEN)
        at += len(raw)
    return jobs


def _line(body: bytes, error: msgspec.DecodeError) -> int:
    """Return the line of the byte that an error names; the last one where it names none."""
    *_, place = str(error).rpartition("(byte ")
    at = place.rstrip(")")
    return body.count(b"\n", 0, int(at) if at.isdigit() else len(body)) + 1


def _counted(job: PhillyJob) -> PhillyJob:
    job.gpus = max((sum(len(share.gpus) for share in attempt.detail) for attempt in job.attempts), default=0)
    for attempt in job.attempts:
        attempt.detail = []
    return job


def _lengths(jobs: list[PhillyJob]) -> np.ndarray:
    """Return each job's seconds on its devices, (J,); nan where it has not ended."""
    attempts = [(i, attempt) for i, job in enumerate(jobs) for attempt in job.attempts]
    of = np.array([i for i, _ in attempts], np.int64)
    start_s = epoch_s([attempt.start_time or "" for _, attempt in attempts])
    end_s = epoch_s([attempt.end_time or "" for _, attempt in attempts])
    length_s = np.bincount(of, np.nan_to_num(end_s - start_s), minlength=len(jobs))
    if attempts:
        last = np.flatnonzero(np.append(np.diff(of) > 0, True))
        length_s[of[last][np.isnan(end_s[last])]] = np.nan
    return length_s


REQUIRED: Final = ("timestamp", "duration", "num_gpus", "gpu_time", "cluster")

_SUMMER_ENDS: Final = np.datetime64("2017-11-05T02:00:00")
_SUMMER_S: Final = 7 * 3600.0
_WINTER_S: Final = 8 * 3600.0


def _local(time: str) -> np.datetime64:
    try:
        return np.datetime64(time, "s")
    except ValueError:
        return np.datetime64("NaT")
