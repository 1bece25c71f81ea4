"""
The loop of an extension: follow the log, fold it, react, publish facts of its own, and remember how far.

An extension is a service of somebody else (docs/extend.md). It gives its pure part and its reaction; the loop is here.
Each commit is dealt with before the next one, and the position is stored after that: what was not dealt with when the
extension stopped comes again at the next start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, cast

import msgspec

from penstock_bus.decider import read_extended
from penstock_bus.follower import pause, until_available
from penstock_bus.port import Append, Delivery, Snapshot, Unavailable
from penstock_bus.shell import Shell
from penstock_log import Commit, Event, LoggedFact, UnknownFact, subjects, tag_of

S = TypeVar("S")
Statements = Sequence[tuple[str, Event]]
"""Facts that an extension wants to publish, each with the id of its entity; each becomes a commit."""


@dataclass(frozen=True)
class Extension(Generic[S]):
    """
    What makes an extension.

    Attributes
    ----------
    name : str
        As ``[extensions]`` of penstock.toml names it; also the name of its snapshot.
    state : type
        A ``msgspec.Struct`` whose ``state()`` is the empty state.
    schema : str
        Changes when the state has another form. The state then begins anew where it was: nothing is reacted to twice.
    apply : callable
        ``apply(state, event)`` folds one fact in, and returns what is to be reacted to.
    react : callable
        ``await react(event)`` does something in the world, and returns facts of its own to publish, or None. After a
        crash it may be called again with the same event. An ``OSError`` means "not now": it is called again.
    facts : tuple of type
        Facts of extensions that ``apply`` is to see beside Penstock's: its own, and those of others.
    """

    name: str
    state: type[S]
    schema: str
    apply: Callable[[S, Event], Sequence[Event]]
    react: Callable[[Any], Awaitable[Statements | None]]
    facts: tuple[type[Event], ...] = ()


async def run_extension(
    shell: Shell, extension: Extension[S], *, begin: Literal["now", "start"] = "now", retry_s: float = 2.0
) -> None:
    """
    Deal with every commit behind the last position, and then with every new one, until the shell is stopping.

    Parameters
    ----------
    begin : {"now", "start"}
        Where to begin the very first time: with what happens from then on, or at the start of the log.
    retry_s : float
        Wait before a reaction that failed is tried again, in seconds.
    """
    run = _ExtensionRun(shell, extension, retry_s)
    await run.load(begin)
    deliveries = shell.bus.follow(after_seq=run.position)
    shell.vitals.ready = True
    stop = asyncio.ensure_future(shell.stopping.wait())
    try:
        while not shell.stopping.is_set():
            coming = asyncio.ensure_future(anext(deliveries))
            try:
                await asyncio.wait({coming, stop}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not coming.done():
                    coming.cancel()
            if coming.done():  # what was begun is finished first
                await run.take(coming.result())
    finally:
        stop.cancel()


class _ExtensionRun(Generic[S]):
    """The state and the position of an extension that runs."""

    def __init__(self, shell: Shell, extension: Extension[S], retry_s: float) -> None:
        self._shell, self._extension, self._retry_s = shell, extension, retry_s
        self._reads = {tag_of(kind): kind for kind in extension.facts}
        self._state = extension.state()
        self.position = 0
        self._may_repeat = True
        """Whether the next statements may stand in the log already: the last process may have died after them."""

    async def load(self, begin: Literal["now", "start"]) -> None:
        """Go on from the snapshot; begin anew where there is none."""
        bus, extension = self._shell.bus, self._extension
        snapshot = await until_available(lambda: bus.load_snapshot(extension.name), "load_snapshot")
        if snapshot is not None:
            self.position = snapshot.last_seq
            if snapshot.schema == extension.schema:
                self._state = msgspec.msgpack.decode(snapshot.state, type=extension.state)
            return
        if begin == "now":
            self.position = await until_available(bus.last_seq, "last_seq")
        await self._save()  # from here on nothing is missed, even if it is stopped before it has seen anything

    async def take(self, delivery: Delivery) -> None:
        """Fold one commit in, react to it, and remember it."""
        reactions: list[Event] = []
        for fact in delivery.commit.facts:
            found = read_extended(fact, self._reads) if isinstance(fact, UnknownFact) else fact
            if found is not None:
                reactions += self._extension.apply(self._state, found)
        for number, event in enumerate(reactions):
            statements = await self._reaction(event)
            if statements is None:
                return
            for at, (entity_id, own) in enumerate(statements):
                commit_id = f"{self._extension.name}-{delivery.seq}-{number}-{at}"
                await self._publish(commit_id, entity_id, own, delivery.seq)
        self.position, self._may_repeat = delivery.seq, False
        if reactions or not delivery.pending:
            await self._save()

    async def _reaction(self, event: Event) -> Statements | None:
        """React until it has worked; None if the shell is stopping before that: it is left to the next start."""
        while True:
            try:
                return await self._extension.react(event) or ()
            except (OSError, Unavailable) as error:
                if self._shell.stopping.is_set():
                    return None
                self._shell.log.warning("reaction_failed", fact=tag_of(event), error=str(error), retry_s=self._retry_s)
            await pause(self._retry_s, self._shell.stopping)

    async def _publish(self, commit_id: str, entity_id: str, fact: Event, cause: int) -> None:
        """Append a fact once, also where the process that reacted before this one had done so already."""
        bus, subject = self._shell.bus, subjects.extension(self._extension.name, entity_id)
        if self._may_repeat:
            there = await until_available(lambda: bus.read(subject, cause), "read", self._shell.stopping)
            if any(one.commit.id == commit_id for one in there):
                return
        actor = f"{self._shell.service}/{self._shell.replica_id}"
        facts = cast("tuple[LoggedFact, ...]", (fact,))  # which is a type of its own, with a tag that no other has
        commit = Commit(id=commit_id, actor=actor, facts=facts, cause=cause)
        item = Append(subject=subject, commit=commit, expected=None)
        await until_available(lambda: bus.append(item), f"append to {subject}", self._shell.stopping)

    async def _save(self) -> None:
        body = msgspec.msgpack.encode(self._state)
        snapshot = Snapshot(schema=self._extension.schema, last_seq=self.position, state=body)
        name = self._extension.name
        await until_available(
            lambda: self._shell.bus.save_snapshot(name, snapshot), "save_snapshot", self._shell.stopping
        )
