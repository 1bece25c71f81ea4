"""Facts on their way to the log: in order, once each, whoever else writes the subject. Part of the runner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from penstock_bus import Append, Bus, Conflict
from penstock_bus.live import LiveFold
from penstock_bus.retry import until_available
from penstock_events import AnyEvent, Commit, NodeJoined, NodeLeft, RunEnded, subjects
from penstock_executor import reporter
from penstock_executor.machine import State

PACE_S: Final = 0.5
"""How long the next commit waits about a run that has said the same a thousand times."""


class Appender:
    """
    Writes this node's facts.

    Parameters
    ----------
    bus, live
    actor : str
        As whom.
    spawn : callable
        Runs a coroutine beside the caller.
    giving_up : asyncio.Event
        From then on a fact that the log cannot take is left to the next start, which finds it in the run folders.
    """

    def __init__(
        self,
        bus: Bus,
        live: LiveFold[State],
        actor: str,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        giving_up: asyncio.Event,
    ) -> None:
        self._bus, self._live, self._actor, self._spawn = bus, live, actor, spawn
        self._giving_up = giving_up
        self._outboxes: dict[str, reporter.Outbox] = {}
        self._delivered: set[str] = set()
        """Jobs of which nothing waits; their outboxes know how much they have said, until a run ends."""
        self._heads: dict[str, int] = {}

    def report(self, fact: AnyEvent) -> None:
        """Send a fact about a run; facts of one job arrive in the order in which they were reported."""
        if not isinstance(fact, reporter.RunFact):
            raise TypeError(f"{fact!r} is no fact about a run")
        outbox = self._outboxes.get(fact.job_id)
        if outbox is None:
            most_bytes = min(reporter.MOST_BYTES, self._bus.max_body_bytes // 2)
            outbox = self._outboxes[fact.job_id] = reporter.Outbox(self._actor, most_bytes)
            self._delivered.add(fact.job_id)
        outbox.put(fact, self._live.state.leased.get(fact.job_id, 0))
        if fact.job_id in self._delivered:
            self._delivered.discard(fact.job_id)
            self._spawn(self._deliver(fact.job_id, outbox))

    def forget(self, job_id: str) -> None:
        """Forget how much a job has said whose run is over, unless more of it is on its way."""
        if job_id in self._delivered:
            self._delivered.remove(job_id)
            del self._outboxes[job_id]

    async def append_node(self, fact: NodeJoined | NodeLeft) -> None:
        """Append a fact about this node, and wait until the fold has it."""
        subject = subjects.node(fact.node_id)
        await self._append(subject, reporter.commit(self._actor, (fact,)))
        await self._live.reached(self._heads[subject])

    async def _deliver(self, job_id: str, outbox: reporter.Outbox) -> None:
        ended = False
        while (commit := outbox.next()) is not None:
            await self._append(subjects.run(job_id), commit)
            outbox.done()
            ended = ended or any(isinstance(fact, RunEnded) for fact in commit.facts)
            if outbox.has_time and not self._giving_up.is_set():
                await asyncio.sleep(PACE_S)
        self._delivered.add(job_id)
        if ended:
            self.forget(job_id)

    async def _append(self, subject: str, commit: Commit) -> None:
        """Append; where somebody was faster, read what they wrote first. Facts that it overtook, folds ignore."""
        while True:
            expected = max(self._live.heads.get(subject, 0), self._heads.get(subject, 0))
            append = partial(self._bus.append, Append(subject=subject, commit=commit, expected=expected))
            try:
                self._heads[subject] = await until_available(append, "append", self._giving_up)
                return
            except Conflict:
                last = await until_available(partial(self._bus.last, subject), "last", self._giving_up)
            if last is not None:
                await self._live.reached(last.seq)
                self._heads[subject] = last.seq
                if last.commit.id == commit.id:
                    return
