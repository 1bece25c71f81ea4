"""
Our own form: JSON lines, versioned.

The first line is ``{"penstock_trace": 1, "name": …}``, each further one a job::

    {"id": "j1", "submit_s": 0.0, "num_gpus": 4, "duration_s": 60.5, "vc": "nlp", "user": "ann", "model": "bert"}

Fields that a job does not need are left out. Readers refuse versions that they do not know; fields are only added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import IO, Annotated, Any, Final

import msgspec
import numpy as np
from msgspec import Meta

from penstock_sim.trace import Trace
from penstock_sim.traces.errors import TraceError, broken_row
from penstock_sim.traces.gathering import Gathering
from penstock_sim.traces.source import Source
from penstock_sim.traces.table import BROKEN

VERSION: Final = 1
MARK: Final = "penstock_trace"
_LINES: Final = 65_536


class Head(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first line."""

    penstock_trace: int
    name: str = ""
    dropped: dict[str, int] = {}


class Job(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    A line for one job.

    Attributes
    ----------
    submit_s, duration_s : float
        Seconds; see :class:`penstock_sim.trace.Trace`, as for all else.
    """

    id: str
    submit_s: float
    num_gpus: Annotated[int, Meta(ge=1, le=2**53)]
    duration_s: Annotated[float, Meta(gt=0)]
    gpu_share: Annotated[float, Meta(gt=0, le=1)] = 1.0
    batch_size: Annotated[int, Meta(ge=0, le=2**53)] = 0
    vc: str = ""
    user: str = ""
    model: str = ""
    kind: str = ""
    state: str = ""


_EXPECTED: Final = "a job: id, submit_s, num_gpus (1 or more), duration_s (above 0)"


def read(source: Source) -> Trace:
    """
    Read JSON lines of ours.

    Raises
    ------
    TraceError
        If the version is another, or a line is no job.
    """
    with source.text() as text:
        head = _head(source, next(text, ""))
        trace = Gathering(head.name or source.name)
        trace.dropped.update(head.dropped)
        first = 2
        while lines := list(islice(text, _LINES)):
            _add(trace, _jobs(source, lines, first, trace))
            first += len(lines)
    return trace.trace()


def _head(source: Source, line: str) -> Head:
    try:
        head = msgspec.json.decode(line, type=Head)
    except msgspec.DecodeError as error:
        raise TraceError(f'{source.path}:1: {error}; expected {{"{MARK}": {VERSION}}}') from error
    if head.penstock_trace != VERSION:
        raise TraceError(
            f"{source.path} has version {head.penstock_trace} of the form; this Penstock reads {VERSION}: update it"
        )
    return head


def _jobs(source: Source, lines: list[str], first: int, trace: Gathering) -> list[Job]:
    try:
        return msgspec.json.decode("[" + ",".join(line for line in lines if line.strip()) + "]", type=list[Job])
    except msgspec.DecodeError:
        return list(_one_by_one(source, lines, first, trace))


def _one_by_one(source: Source, lines: list[str], first: int, trace: Gathering) -> Iterator[Job]:
    decoder = msgspec.json.Decoder(Job)
    for number, line in enumerate(lines, first):
        if line.strip():
            try:
                yield decoder.decode(line)
            except msgspec.DecodeError as error:
                if not source.lenient:
                    raise broken_row(str(source.path), number, str(error), _EXPECTED) from error
                trace.drop(BROKEN)


def _add(trace: Gathering, jobs: list[Job]) -> None:
    trace.add(
        [job.id for job in jobs],
        np.array([job.submit_s for job in jobs], np.float64),
        np.array([job.num_gpus for job in jobs], np.int64),
        np.array([job.duration_s for job in jobs], np.float64),
        shares=np.array([job.gpu_share for job in jobs], np.float64),
        batches=np.array([job.batch_size for job in jobs], np.int64),
        vcs=[job.vc for job in jobs],
        users=[job.user for job in jobs],
        models=[job.model for job in jobs],
        kinds=[job.kind for job in jobs],
        states=[job.state for job in jobs],
    )


def write(trace: Trace, text: IO[str]) -> None:
    """Write a trace in this form."""
    head = Head(penstock_trace=VERSION, name=trace.name, dropped=dict(trace.dropped))
    text.write(msgspec.json.encode(head).decode() + "\n")
    encode = msgspec.json.Encoder().encode
    for row in rows(trace):
        text.write(encode(Job(**row)).decode() + "\n")


def rows(trace: Trace) -> Iterator[Mapping[str, Any]]:
    """Yield each job's fields under the names of :class:`Job`; those that the trace does not have are left out."""
    columns = {
        "id": trace.job_ids,
        "submit_s": trace.submit_s.tolist(),
        "num_gpus": trace.num_gpus.tolist(),
        "duration_s": trace.duration_s.tolist(),
        "gpu_share": () if trace.gpu_share is None else trace.gpu_share.tolist(),
        "batch_size": () if trace.batch_sizes is None else trace.batch_sizes.tolist(),
        "vc": trace.vcs,
        "user": trace.users,
        "model": trace.models,
        "kind": trace.kinds,
        "state": trace.states,
    }
    present = {name: column for name, column in columns.items() if len(column)}
    for cells in zip(*present.values(), strict=True) if present else ():
        yield dict(zip(present, cells, strict=True))
