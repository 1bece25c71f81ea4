"""
Our own form, plain CSV, Tiresias, Gavel.

Our own form is JSON lines, versioned. The first line is ``{"penstock_trace": 1, "name": …}``, each further one a job::

    {"id": "j1", "submit_s": 0.0, "num_gpus": 4, "duration_s": 60.5, "vc": "nlp", "user": "ann", "model": "bert"}

Fields that a job does not need are left out. Readers refuse versions that they do not know; fields are only added.

Plain CSV has ``job_id,submit_s,num_gpus,duration_s``, and any of ``vc,user,model,kind,…`` that are known. The form of
the public Tiresias simulator is CSV with other names. In Gavel's form a job is a number of training steps of a known
model.
"""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import IO, Annotated, Any, Final

import msgspec
import numpy as np
from msgspec import Meta

from penstock_simulator.trace import Floats, Ints, Trace, TraceError, broken_row
from penstock_simulator.traces.columns import BROKEN, NO_GPUS, DelimitedTable, TraceBuilder, TraceSource

VERSION: Final = 1
MARK: Final = "penstock_trace"
_LINES: Final = 65_536


class TraceHead(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first line of a trace in JSON lines: version, name, and rows that were dropped."""

    penstock_trace: int
    name: str = ""
    dropped: dict[str, int] = {}


class TraceJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    A job's line of a trace in JSON lines.

    Attributes
    ----------
    submit_s, duration_s : float
        Seconds; see :class:`penstock_simulator.trace.Trace`, as for all else.
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


def read_json_lines(source: TraceSource) -> Trace:
    """
    Read JSON lines of ours.

    Raises
    ------
    TraceError
        If the version is another, or a line is no job.
    """
    with source.text() as text:
        head = _head(source, next(text, ""))
        trace = TraceBuilder(head.name or source.name)
        trace.dropped.update(head.dropped)
        first = 2
        while lines := list(islice(text, _LINES)):
            _add(trace, _jobs(source, lines, first, trace))
            first += len(lines)
    return trace.trace()


def _head(source: TraceSource, line: str) -> TraceHead:
    try:
        head = msgspec.json.decode(line, type=TraceHead)
    except msgspec.DecodeError as error:
        raise TraceError(f'{source.path}:1: {error}; expected {{"{MARK}": {VERSION}}}') from error
    if head.penstock_trace != VERSION:
        raise TraceError(
            f"{source.path} has version {head.penstock_trace} of the form; this Penstock reads {VERSION}: update it"
        )
    return head


def _jobs(source: TraceSource, lines: list[str], first: int, trace: TraceBuilder) -> list[TraceJob]:
    try:
        return msgspec.json.decode("[" + ",".join(line for line in lines if line.strip()) + "]", type=list[TraceJob])
    except msgspec.DecodeError:
        return list(_one_by_one(source, lines, first, trace))


def _one_by_one(source: TraceSource, lines: list[str], first: int, trace: TraceBuilder) -> Iterator[TraceJob]:
    decoder = msgspec.json.Decoder(TraceJob)
    for number, line in enumerate(lines, first):
        if line.strip():
            try:
                yield decoder.decode(line)
            except msgspec.DecodeError as error:
                if not source.lenient:
                    raise broken_row(str(source.path), number, str(error), _EXPECTED) from error
                trace.drop(BROKEN)


def _add(trace: TraceBuilder, jobs: list[TraceJob]) -> None:
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
    """Write a trace as JSON lines."""
    head = TraceHead(penstock_trace=VERSION, name=trace.name, dropped=dict(trace.dropped))
    text.write(msgspec.json.encode(head).decode() + "\n")
    encode = msgspec.json.Encoder().encode
    for row in rows(trace):
        text.write(encode(TraceJob(**row)).decode() + "\n")


def rows(trace: Trace) -> Iterator[Mapping[str, Any]]:
    """Yield each job's fields under the names of :class:`TraceJob`; those that the trace does not have are left out."""
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


PLAIN_REQUIRED: Final = ("job_id", "submit_s", "num_gpus", "duration_s")


def read_plain(source: TraceSource) -> Trace:
    """
    Read plain CSV; columns of other names are passed over.

    The jobs of Philly's twelve virtual clusters come in this form too.
    """
    jobs = TraceBuilder(source.name)
    for block in DelimitedTable(source, PLAIN_REQUIRED).blocks():
        submit_s, num_gpus = block.numbers("submit_s"), block.whole("num_gpus")
        duration_s = block.numbers("duration_s")
        shares = block.numbers("gpu_share", empty=1.0) if block.has("gpu_share") else None
        if shares is not None:
            block.refuse(~block.broken & ((shares <= 0) | (shares > 1)), "gpu_share", "above 0 and at most 1")
        batches = block.whole("batch_size", empty=0.0) if block.has("batch_size") else None
        if batches is not None:
            block.refuse(~block.broken & (batches < 0), "batch_size", "at least 0")
        jobs.add(
            block.texts("job_id"),
            submit_s,
            num_gpus,
            duration_s,
            broken=block.broken,
            shares=shares,
            batches=batches,
            vcs=block.texts("vc"),
            users=block.texts("user"),
            models=block.texts("model"),
            kinds=block.texts("kind"),
            states=block.texts("state"),
        )
    return jobs.trace()


TIRESIAS_REQUIRED: Final = ("job_id", "num_gpu", "submit_time", "duration")


def read_tiresias(source: TraceSource) -> Trace:
    """
    Read ``job_id,num_gpu,submit_time,iterations,model_name,duration,interval``, times in seconds.

    ``iterations`` and ``interval`` are not used: ``duration`` is the exclusive run time on ``num_gpu`` devices.

    References
    ----------
    Gu et al., Tiresias, NSDI 2019; https://github.com/SymbioticLab/Tiresias (Apache-2.0).
    """
    jobs = TraceBuilder(source.name)
    for block in DelimitedTable(source, TIRESIAS_REQUIRED).blocks():
        submit_s, num_gpus = block.numbers("submit_time"), block.whole("num_gpu")
        duration_s, ids = block.numbers("duration"), block.texts("job_id")
        jobs.add(ids, submit_s, num_gpus, duration_s, broken=block.broken, models=block.texts("model_name"))
    return jobs.trace()


_NEW: Final = (
    "job_type",
    "command",
    "working_directory",
    "num_steps_arg",
    "needs_data_dir",
    "total_steps",
    "scale_factor",
    "priority_weight",
    "SLO",
    "arrival_time",
)
_OLD: Final = ("job_type", "command", "num_steps_arg", "needs_data_dir", "total_steps", "arrival_time", "scale_factor")
FORMS: Final = {len(form): form for form in (_NEW, _OLD)}
UNMEASURED: Final = "no measured speed"
Speeds = dict[tuple[str, int], float]


def read_gavel(source: TraceSource) -> Trace:
    """
    Read a tab-separated trace of ten fields, or the older form of seven.

    A row gives steps, not seconds: the length is steps over the model's measured steps per second on
    ``source.kind``, from ``source.beside``, the JSON file of throughputs that is published with the traces. A job is
    called by its row; the first is 0. Jobs of a model and number of devices that nobody measured are dropped.

    Raises
    ------
    TraceError
        If there is no file of throughputs, or the rows have neither ten fields nor seven.

    References
    ----------
    Narayanan et al., Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads, OSDI 2020;
    https://github.com/stanford-futuredata/gavel (MIT).
    """
    header = FORMS.get(len(source.head().partition("\n")[0].split("\t")))
    if header is None:
        raise TraceError(f"{source.path}:1: no row of a Gavel trace; expected ten fields between tabs, or seven")
    if source.beside is None:
        raise TraceError(
            f"{source.path} counts steps, not seconds; give the measured steps per second, as published with Gavel "
            "in simulation_throughputs.json (--with FILE of `penstock trace`)"
        )
    speeds = throughputs(source.beside, source.kind)
    jobs = TraceBuilder(source.name)
    for block in DelimitedTable(source, delimiter="\t", header=header, quoting=False).blocks():
        gpus, steps = block.whole("scale_factor"), block.whole("total_steps")
        steps_per_s = _speeds(block.texts("job_type"), gpus, speeds)
        jobs.add(
            [str(block.first + i) for i in range(len(block))],
            block.numbers("arrival_time"),
            gpus,
            steps / steps_per_s,
            broken=block.broken,
            unfit={NO_GPUS: gpus < 1, UNMEASURED: np.isnan(steps_per_s)},
            models=block.texts("job_type"),
        )
    return jobs.trace()


@lru_cache(maxsize=8)
def throughputs(path: Path, kind: str) -> Speeds:
    """
    Return steps per second of each model and number of devices on one kind, running alone.

    Raises
    ------
    TraceError
        If the file is none of throughputs, or knows no such kind.
    """
    try:
        table: dict[str, Any] = msgspec.json.decode(TraceSource(path).body(), type=dict[str, Any])
        if kind not in table:
            raise TraceError(f"{path} knows no device kind {kind!r}; expected one of {', '.join(table)}")
        found = {literal_eval(key): float(row["null"]) for key, row in table[kind].items()}
    except (msgspec.DecodeError, ValueError, SyntaxError, KeyError, TypeError) as error:
        if isinstance(error, TraceError):
            raise
        raise TraceError(
            f"{path} holds no throughputs: {error!r}; expected {{kind: {{\"('model', gpus)\": {{'null': steps/s}}}}}}"
        ) from error
    return {key: speed for key, speed in found.items() if speed > 0}


def _speeds(models: Sequence[str], gpus: Ints, speeds: Speeds) -> Floats:
    wanted = zip(models, gpus.tolist(), strict=True)
    return np.array([speeds.get(key, np.nan) for key in wanted], np.float64)
