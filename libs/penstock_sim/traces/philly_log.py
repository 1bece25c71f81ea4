"""Philly's own job log: one JSON list."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from penstock_sim.trace import Trace
from penstock_sim.traces import pacific
from penstock_sim.traces.errors import broken_row
from penstock_sim.traces.gathering import Gathering
from penstock_sim.traces.source import Source
from penstock_sim.traces.table import BROKEN

_STATES: Final = {"Pass": "completed", "Failed": "failed", "Killed": "cancelled"}
_EXPECTED: Final = "an entry of Philly's cluster_job_log: jobid, vc, user, status, submitted_time, attempts"


class Share(msgspec.Struct, gc=False):
    """Devices of one machine."""

    ip: str | None = None
    gpus: list[str] = []


class Attempt(msgspec.Struct, gc=False):
    """One run of a job."""

    start_time: str | None = None
    end_time: str | None = None
    detail: list[Share] = []


class Job(msgspec.Struct, gc=False):
    """
    One entry of the log.

    Attributes
    ----------
    gpus : int
        Devices of the largest attempt; counted here, so that their names need no room.
    """

    jobid: str
    submitted_time: str | None
    attempts: list[Attempt]
    status: str = ""
    vc: str = ""
    user: str | None = ""
    gpus: int = 0


def read(source: Source) -> Trace:
    """
    Read the job log: the length of a job is the sum of its attempts, its devices are those of its largest attempt.

    Attempts whose start or end was not recorded are passed over; a job whose last attempt has no end was still
    running and is dropped. Times are Pacific local time: see :func:`penstock_sim.traces.pacific.epoch_s`.

    References
    ----------
    Jeon et al., Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads, USENIX ATC 2019;
    https://github.com/msr-fiddle/philly-traces (CC-BY-4.0).
    """
    trace = Gathering(source.name)
    jobs = _jobs(source, trace)
    submit_s = pacific.epoch_s([job.submitted_time or "" for job in jobs])
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


def _jobs(source: Source, trace: Gathering) -> list[Job]:
    body = source.body()
    try:
        entries = msgspec.json.decode(body, type=list[msgspec.Raw])
    except msgspec.DecodeError as error:
        raise broken_row(str(source.path), _line(body, error), f"no JSON list: {error}", _EXPECTED) from error
    decoder, jobs, at = msgspec.json.Decoder(Job), [], 0
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


def _counted(job: Job) -> Job:
    job.gpus = max((sum(len(share.gpus) for share in attempt.detail) for attempt in job.attempts), default=0)
    for attempt in job.attempts:
        attempt.detail = []
    return job


def _lengths(jobs: list[Job]) -> np.ndarray:
    """Return each job's seconds on its devices, (J,); nan where it has not ended."""
    attempts = [(i, attempt) for i, job in enumerate(jobs) for attempt in job.attempts]
    of = np.array([i for i, _ in attempts], np.int64)
    start_s = pacific.epoch_s([attempt.start_time or "" for _, attempt in attempts])
    end_s = pacific.epoch_s([attempt.end_time or "" for _, attempt in attempts])
    length_s = np.bincount(of, np.nan_to_num(end_s - start_s), minlength=len(jobs))
    if attempts:
        last = np.flatnonzero(np.append(np.diff(of) > 0, True))
        length_s[of[last][np.isnan(end_s[last])]] = np.nan
    return length_s
