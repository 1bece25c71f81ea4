"""The log of a cluster, real or simulated, as a trace: who asked for what, and how long it really ran."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import IO, Final

import msgspec
import numpy as np

from penstock_bus import Delivery
from penstock_events import State, lifecycle
from penstock_sim.trace import Trace
from penstock_sim.traces.errors import TraceError
from penstock_sim.traces.gathering import Gathering
from penstock_sim.traces.source import Source
from penstock_sim.virtual import lines

_SAMPLE: Final = "sample of the profiler"
_NEVER: Final = "never started"
_STATES: Final = {State.COMPLETED: "completed", State.FAILED: "failed", State.CANCELLED: "cancelled"}


class _Page(msgspec.Struct):
    events: list[msgspec.Raw]


class History:
    """
    Folds commits, in the log's order, to jobs with their executed time.

    A job's length is the time that it held its devices, all runs together, lost work included, on the kind of device
    that it ran on. One that still ran at the log's end counts with what it had run by then, as state ``running``.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._jobs = lifecycle.Jobs()
        self._now_s = 0.0

    def add(self, delivery: Delivery) -> None:
        """Fold one commit in."""
        for fact in delivery.commit.facts:
            self._now_s = max(self._now_s, fact.at_s)
            self._jobs.apply(fact)

    def trace(self) -> Trace:
        """Return the jobs so far; the profiler's samples, and jobs that never started, are none."""
        jobs = list(self._jobs)
        executed_s = np.array([job.executed_by(self._now_s) for job in jobs], np.float64)
        gathering = Gathering(self.name)
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


def read(source: Source) -> Trace:
    """
    Read a log: a fact a line, as ``penstock events -f -o json`` prints and simulations write it, or one page of
    ``penstock events -o json``.

    Raises
    ------
    TraceError
        If a line is no fact.
    """
    history = History(source.name)
    with source.text() as text:
        try:
            for delivery in lines.decode(facts(text)):
                history.add(delivery)
        except ValueError as error:
            raise TraceError(f"{source.path}: {error}") from error
    return history.trace()


def facts(text: IO[str]) -> Iterable[str | bytes]:
    """Return the facts of a log in a file, each as JSON, whether they stand on lines or on a page."""
    first = text.readline()
    if first.strip() == "{" or first.startswith('{"events"'):  # a page, indented or not
        return _page(first + text.read())
    return _again(first, text)


def _page(body: str) -> list[bytes]:
    return [bytes(event) for event in msgspec.json.decode(body, type=_Page).events]


def _again(first: str, rest: Iterable[str]) -> Iterator[str]:
    yield first
    yield from rest
