"""
A cluster's log as text and as a trace.

As text a log has one fact a line, in the form that ``penstock events -f -o json`` prints. Simulations write the same
form, and so does the archive of old jobs, so the same readers take all. :func:`encode` writes lines and :func:`decode`
reads them.

```json
{"seq":1,"stored_s":1.0,"subject":"penstock.evt.job.j1","actor":"gateway/sim","cause":0,"type":"job.cancelled.v1",
 "at_s":1.0,"fact":{"job_id":"j1"}}
```

:class:`LogTrace` folds a log, real or simulated, to a trace: who asked for what, and how long it really ran.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from typing import IO, Any, Final

import msgspec
import numpy as np

from penstock_bus import Delivery
from penstock_bus.log_text import LogTextLine, encode
from penstock_bus.logger import get_logger
from penstock_log import Commit, JobState, LoggedFact, UnknownFact, belongs, codec, lifecycle, tag_of
from penstock_simulator.trace import Trace, TraceError
from penstock_simulator.traces.columns import TraceBuilder, TraceSource

_SAMPLE: Final = "sample of the profiler"
_NEVER: Final = "never started"
_STATES: Final = {JobState.COMPLETED: "completed", JobState.FAILED: "failed", JobState.CANCELLED: "cancelled"}


class _Page(msgspec.Struct):
    events: list[msgspec.Raw]


__all__ = ["LogTrace", "decode", "encode", "facts", "read"]


class LogTrace:
    """
    Fold of a log to a trace: jobs with the time that they really ran.

    A job's length is the time that it held its devices, all runs together, lost work included, on the kind of device
    that it ran on. One that still ran at the log's end counts with what it had run by then, as state ``running``.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._jobs = lifecycle.JobTable()
        self._now_s = 0.0

    def add(self, delivery: Delivery) -> None:
        """Fold a commit of the log into the jobs."""
        for fact in delivery.commit.facts:
            if isinstance(fact, UnknownFact):  # its time may be any time
                continue
            self._now_s = max(self._now_s, fact.at_s)
            self._jobs.apply(fact)

    def trace(self) -> Trace:
        """Return the jobs so far; the profiler's samples, and jobs that never started, are none."""
        jobs = list(self._jobs)
        executed_s = np.array([job.executed_by(self._now_s) for job in jobs], np.float64)
        gathering = TraceBuilder(self.name)
        gathering.add(
            [job.id for job in jobs],
            np.array([job.submitted_s for job in jobs], np.float64),
            np.array([job.spec.gpus for job in jobs], np.int64),
            executed_s,
            unfit={
                _SAMPLE: np.array([job.sample is not None for job in jobs], bool),
                _NEVER: np.array([not job.first_started_s for job in jobs], bool),
            },
            vcs=[job.spec.team for job in jobs],
            users=[job.spec.user for job in jobs],
            models=[job.spec.model for job in jobs],
            kinds=["|".join(job.spec.kinds) for job in jobs],
            states=[_STATES.get(job.state, "running") for job in jobs],
        )
        return gathering.trace()


def decode(lines: Iterable[bytes | str]) -> Iterator[Delivery]:
    """
    Yield the commits of a log, in its order; facts of older tags are upcast, blank lines are skipped.

    A commit with a fact that does not belong on its subject is left out, as every reader of the log leaves it out.

    Raises
    ------
    ValueError
        If a line is not one of a log; it says which.
    """
    numbered = ((number, _parsed(line, number)) for number, line in enumerate(lines, start=1) if line.strip())
    for seq, group in groupby(numbered, key=lambda pair: pair[1].seq):
        found = list(group)
        first = found[0][1]
        facts = tuple(_fact(line, number) for number, line in found)
        if not all(belongs(fact, first.subject) for fact in facts):
            _log.warning("commit_dropped", seq=seq, subject=first.subject, types=[tag_of(fact) for fact in facts])
            continue
        commit = Commit(id=str(seq), actor=first.actor, facts=facts, cause=first.cause)
        yield Delivery(seq=seq, subject=first.subject, stored_s=first.stored_s, pending=0, commit=commit)


def read(source: TraceSource) -> Trace:
    """
    Read a log: a fact a line, as ``penstock events -f -o json`` prints and simulations write it, or one page of
    ``penstock events -o json``.

    Raises
    ------
    TraceError
        If a line is no fact.
    """
    history = LogTrace(source.name)
    with source.text() as text:
        try:
            for delivery in decode(facts(text)):
                history.add(delivery)
        except ValueError as error:
            raise TraceError(f"{source.path}: {error}") from error
    return history.trace()


def facts(text: IO[str]) -> Iterable[str | bytes]:
    """Return the facts of a log in a file, each as JSON, whether they stand on lines or on a page."""
    first = text.readline()
    if first.strip() == "{" or first.startswith('{"events"'):  # a page, indented or not
        return [bytes(event) for event in msgspec.json.decode(first + text.read(), type=_Page).events]
    return chain([first], text)


_log = get_logger("penstock.sim")
_decoder: Final = msgspec.json.Decoder(LogTextLine)


def _parsed(line: bytes | str, number: int) -> LogTextLine:
    try:
        return _decoder.decode(line)
    except msgspec.MsgspecError as error:
        raise ValueError(
            f"line {number} is no fact of a log: {error}; expected lines as `penstock events -f -o json` prints them"
        ) from error


def _fact(line: LogTextLine, number: int) -> LoggedFact:
    try:
        rest = msgspec.json.decode(line.fact)
        fact: dict[str, Any] = {"type": line.type, "at_s": line.at_s, **rest}
        (found,) = codec.decode(msgspec.json.encode({"id": "", "actor": "", "facts": [fact]})).facts
    except (codec.CodecError, msgspec.MsgspecError, TypeError) as error:
        raise ValueError(f"line {number}: {error}; was it written by a later version?") from error
    if isinstance(found, UnknownFact) and not line.at_s and "at_s" not in rest:  # it had none
        del found.raw["at_s"]
    return found
