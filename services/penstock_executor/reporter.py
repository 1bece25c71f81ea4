"""Which facts still have to reach the log, and under which commit: the bookkeeping of the runner's appends. Pure."""

from __future__ import annotations

import hashlib
from collections import deque

from penstock_events import (
    AnyEvent,
    Commit,
    LaneChanged,
    NodeJoined,
    NodeLeft,
    RunCheckpointed,
    RunEnded,
    RunMeasured,
    RunRewound,
    RunStarted,
    RunWarned,
    tag_of,
)

RunFact = RunStarted | RunCheckpointed | RunRewound | RunEnded | RunWarned | RunMeasured | LaneChanged


class Outbox:
    """
    Facts about one job on their way to its run subject, in order.

    All that wait go as one commit. Its id is made from what it says, not from when: an executor that was killed between
    appending and knowing it appends the same again under the same id, and the log keeps one.
    """

    def __init__(self, actor: str) -> None:
        self._actor = actor
        self._waiting: deque[RunFact] = deque()
        self._cause = 0

    def put(self, fact: RunFact, cause: int) -> None:
        """Add a fact; ``cause`` is the sequence of the commit that gave the lease."""
        self._waiting.append(fact)
        self._cause = cause or self._cause

    def next(self) -> Commit | None:
        """Return everything that waits as one commit; None where nothing does. The same until :meth:`done`."""
        if not self._waiting:
            return None
        epoch = self._waiting[0].epoch
        facts = tuple(fact for fact in self._waiting if fact.epoch == epoch)
        return commit(self._actor, facts, self._cause)

    def done(self, sent: Commit) -> None:
        """The commit is in the log, or will never be."""
        self._waiting = deque(fact for fact in self._waiting if all(fact is not each for each in sent.facts))


def commit(actor: str, facts: tuple[AnyEvent, ...], cause: int = 0) -> Commit:
    """Return the facts under an id that tells what they are, and nothing of when they were written."""
    digest = hashlib.sha256("\n".join([actor, *map(_gist, facts)]).encode()).hexdigest()[:32]
    return Commit(id=digest, actor=actor, facts=facts, cause=cause)


def _gist(fact: AnyEvent) -> str:
    match fact:
        case RunStarted() | RunEnded():
            return f"{tag_of(fact)} {fact.job_id} {fact.epoch}"
        case RunCheckpointed():
            return f"{tag_of(fact)} {fact.job_id} {fact.epoch} {fact.step}"
        case RunRewound():
            return f"{tag_of(fact)} {fact.job_id} {fact.epoch} {fact.lost_generation} {fact.lost_step} {fact.step}"
        case RunWarned():
            return f"{tag_of(fact)} {fact.job_id} {fact.epoch} {fact.warning}"
        case RunMeasured() | LaneChanged():  # the same may come again, and none is told by a later executor
            return f"{tag_of(fact)} {fact.job_id} {fact.epoch} {fact.at_s}"
        case _:
            return _gist_of_node(fact)


def _gist_of_node(fact: AnyEvent) -> str:
    match fact:
        case NodeJoined():
            return f"{tag_of(fact)} {fact.incarnation}"
        case NodeLeft():
            return f"{tag_of(fact)} {fact.at_s}"
        case _:
            raise TypeError(f"an executor does not write {tag_of(fact)}; it writes run and node facts")
