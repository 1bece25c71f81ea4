"""
One replica of a decider, and its leadership.

A :class:`Replica` follows the log, applies, decides and appends. Where only one replica may decide,
:class:`LeaderElection` makes it the leader by a lease, which it has as long as the bus confirms it in time.
"""

from __future__ import annotations

import asyncio
import gc
import math
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, Generic, TypeVar

import msgspec

from penstock_bus.decider import Decider, Proposal
from penstock_bus.follower import FoldFollower, background, pause, until_available
from penstock_bus.health import Vitals
from penstock_bus.logger import get_logger
from penstock_bus.port import Append, BatchRefused, BusError, Conflict, Delivery, Lease, LeasePort
from penstock_bus.shell import Shell
from penstock_log import Commit

S = TypeVar("S")

TTL_S: Final = 3.0
RENEW_S: Final = 1.0
_LONG: Final = 50_000
_FEW: Final = 8
"""From so many commits on it is faster to append them as one: that takes the time of about six."""
_MANY: Final = 500
"""So many commits are appended as one at most: they wait for each other."""
_PART: Final = 200
"""A snapshot is taken no more often than so many times as long as it takes to encode, while nothing else is done."""


class ReplicaPace(msgspec.Struct, frozen=True, kw_only=True):
    """
    How fast a replica goes about its work; all in seconds but for ``snapshot_events``.

    Attributes
    ----------
    debounce_s : float
        Wait this long after a change for further ones before deciding.
    least_wait_s : float
        Least time to the next decision when the decider asks for one at a time that has passed.
    lease_ttl_s, renew_s : float
        A lost leader is replaced after at most their sum; on several servers a lease lasts longer, see
        :meth:`penstock_bus.port.LeasePort.acquire`.
    snapshot_s, snapshot_events, check_s
        A snapshot is taken after so many events or so many seconds with any event; looked at every ``check_s``.
    """

    debounce_s: float = 0.0
    least_wait_s: float = 0.01
    lease_ttl_s: float = TTL_S
    renew_s: float = RENEW_S
    snapshot_s: float = 60.0
    snapshot_events: int = 5000
    check_s: float = 5.0


class LeaderElection:
    """
    One replica leads: the owner of a lease.

    The leader counts its time from before each request for the lease, by its own clock, so that it stops deciding
    before the bus gives the lease away, even if it cannot reach the bus any more.

    Parameters
    ----------
    bus, name, owner
        Lease and replica.
    on_answer : callable
        Called after each question about the lease, whether or not the answer changed anything. A process that was
        paused may lose the lead and have it back before anybody looks, so a change is nothing to rely on: whoever may
        have been refused compares ``held`` with what he found then.
    clock : callable
        Seconds that never jump. Not the loop's own time, which stands still while a callback runs.
    """

    def __init__(
        self,
        bus: LeasePort,
        name: str,
        owner: str,
        on_answer: Callable[[], None],
        *,
        ttl_s: float = TTL_S,
        renew_s: float = RENEW_S,
        clock: Callable[[], float] = time.monotonic,  # noqa: TID251 - a lease is kept by a clock
    ) -> None:
        self._bus, self._name, self._owner, self._on_answer = bus, name, owner, on_answer
        self._ttl_s, self._renew_s, self._now = ttl_s, renew_s, clock
        self._lease: Lease | None = None
        self._until = self._since = -math.inf
        self._noted = False

    @property
    def held(self) -> bool:
        """Whether the lease is ours, by our own clock."""
        return self._lease is not None and self._now() < self._until

    @property
    def term_s(self) -> float:
        """For how long the lease has been ours without a gap; 0 while it is not."""
        return self._now() - self._since if self.held else 0.0

    @property
    def since(self) -> float:
        """When the present term began, by this election's clock; it names the term."""
        return self._since

    @property
    def confirmed_ago_s(self) -> float | None:
        """How long ago the lease was asked for that was last confirmed; None before the first one."""
        return self._now() - (self._until - self._lease.ttl_s) if self._lease is not None else None

    async def keep(self) -> None:
        """Renew the lease every ``renew_s``, or try to get it twice as often, for ever."""
        while True:
            self._note()  # the process may have been paused for longer than the lease lasts
            asked_at = self._now()
            try:
                async with asyncio.timeout(self._ttl_s):
                    await self._ask()
            except (BusError, TimeoutError) as error:
                _log.warning("lease_not_confirmed", lease=self._name, error=str(error) or "no answer")
            else:
                self._note()  # and so may the answer have been
                self._until = asked_at + self._lease.ttl_s if self._lease is not None else -math.inf
            self._note()
            self._on_answer()
            pause_s = self._renew_s if self.held else self._renew_s / 2
            await asyncio.sleep(max(0.0, asked_at + pause_s - self._now()))

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Keep the lease, or try to get it, while the body runs; resign after it."""
        try:
            async with background(self.keep()):
                yield
        finally:
            await self.resign()

    async def repeat(self, every_s: float, stopping: asyncio.Event, work: Callable[[], Awaitable[object]]) -> None:
        """Do some work every ``every_s`` while the lease is held, until the service is to stop."""
        while not stopping.is_set():
            await pause(every_s, stopping)
            if self.held and not stopping.is_set():
                await work()

    async def resign(self) -> None:
        """Give the lease back; if that cannot be said, it runs out by itself."""
        lease, self._lease = self._lease, None
        if lease is None:
            return
        try:
            async with asyncio.timeout(self._renew_s):
                await self._bus.release(lease)
        except (BusError, TimeoutError) as error:
            _log.warning("lease_not_released", lease=self._name, error=str(error) or "no answer")

    def _note(self) -> None:
        """Note that the lead was won or lost; with a gap in it, it is another term, be it under the same lease."""
        if self.held != self._noted:
            self._noted = self.held
            self._since = self._now()
            _log.info("lead_won" if self._noted else "lead_lost", lease=self._name, owner=self._owner)

    async def _ask(self) -> None:
        if self._lease is not None and not await self._bus.renew(self._lease):
            self._lease = None
            self._note()
        if self._lease is None:
            self._lease = await self._bus.acquire(self._name, self._owner, self._ttl_s)


class Replica(Generic[S]):
    """
    Runs a decider on a bus.

    Its own facts reach its state only through the log, and it decides again only after they have: a decision that
    looked past them would be made twice.

    Parameters
    ----------
    shell, decider
    name : str, optional
        Of snapshot and lease; the decider's name where not given.
    pace : ReplicaPace
    on_delivery : callable, optional
        Called with each delivery after it was folded in; must not block.
    says_ready : bool
        Whether a replica that has caught up is ready; False where the service has more to prepare and says so itself.
    """

    def __init__(
        self,
        shell: Shell,
        decider: Decider[S],
        *,
        name: str = "",
        pace: ReplicaPace = ReplicaPace(),  # noqa: B008 - frozen
        on_delivery: Callable[[Delivery], None] | None = None,
        says_ready: bool = True,
    ) -> None:
        self.live = FoldFollower(shell.bus, decider, name=name, on_delivery=self._delivered)
        self._shell, self._decider, self._pace, self._on_delivery = shell, decider, pace, on_delivery
        self._log = shell.log.bind(decider=self.live.name)
        self._wake = asyncio.Event()
        self._wake_at_s: float | None = None
        self._says_ready = says_ready
        self._election: LeaderElection | None = None
        """None where all replicas decide, and conflicts sort it out."""
        if decider.leads:
            self._election = LeaderElection(
                shell.bus,
                self.live.name,
                shell.replica_id,
                self._on_lease,
                ttl_s=pace.lease_ttl_s,
                renew_s=pace.renew_s,
                clock=shell.monotonic,
            )
        self._led = False
        """Whether it led when it last came to decide; what came while it did not has yet to be decided on."""
        self._term = -math.inf
        """The term in which its fold has caught up with what other leaders wrote before."""
        shell.examine = self._examine
        self._decide_s = shell.metrics.histogram("penstock_decide_seconds", "Time to work out a decision.")
        self._append_s = shell.metrics.histogram("penstock_append_seconds", "Time to append a commit.")
        self._conflicts = shell.metrics.counter("penstock_conflicts_total", "Commits refused for being out of date.")
        self._last_seq = shell.metrics.gauge("penstock_last_seq", "Sequence of the last commit folded in.")
        self._too_large = shell.metrics.gauge(
            "penstock_snapshot_too_large", "1 while the state is too large for a snapshot: a start reads the whole log."
        )

    @property
    def leading(self) -> bool:
        """Whether this replica may decide now."""
        return self._election is None or self._election.held

    @property
    def term_s(self) -> float:
        """For how long it has led without a gap; 0 while it does not lead."""
        return math.inf if self._election is None else self._election.term_s

    @property
    def settled(self) -> bool:
        """Whether it leads, and its state has all that was written before it began to lead."""
        return self.leading and (self._election is None or self._term == self._election.since)

    def wake(self) -> None:
        """Have it decide again soon, although the log has not changed."""
        self._wake.set()

    async def run(self) -> None:
        """Decide until the shell is stopping; then save a snapshot and give the lead away."""
        async with self.live, background(self._watch_stopping()):
            await self.live.caught_up()
            if self.live.last_seq > _LONG:
                gc.freeze()  # or collections would go through the whole state, in which there are no cycles
            self._shell.vitals.ready = self._says_ready or self._shell.vitals.ready
            self._log.info("caught_up", last_seq=self.live.last_seq)
            election = [] if self._election is None else [self._election.keep()]
            try:
                async with background(*election, self._keep_snapshots()):
                    await self._decide_until_stopping()
                if self.leading:
                    await self._save_snapshot()
            finally:
                if self._election is not None:
                    await self._election.resign()

    async def _decide_until_stopping(self) -> None:
        self._wake.set()
        while True:
            await self._pause()
            if self._shell.stopping.is_set():
                return
            if self.leading and (self.live.pending or not (self._led and self.settled)):
                await self._settle()
            self._wake_at_s = None
            self._led = self._shell.vitals.leading = self.leading
            if self._led:
                await self._decide()

    async def _settle(self) -> None:
        term = self._election.since if self._election is not None else 0.0
        await self.live.caught_up()
        self._term = term

    def _on_lease(self) -> None:
        """Come to decide if the lead is not what it was then: nothing else may happen for a long time."""
        self._shell.vitals.leading = self.leading
        if self.leading != self._led or (self.leading and not self.settled):
            self._wake.set()

    def _examine(self, vitals: Vitals) -> None:
        vitals.leading, vitals.elected = self.leading, self._decider.leads
        if self._election is not None:
            vitals.term_s, vitals.lease_s = self._election.term_s, self._election.confirmed_ago_s
        vitals.undecided_s = self._shell.progress.undecided_s() if self.leading else 0.0

    async def _pause(self) -> None:
        wait_s = None
        if self._wake_at_s is not None:
            wait_s = max(self._pace.least_wait_s, self._wake_at_s - self._shell.now_s())
        await pause(wait_s, self._wake)
        if self._pace.debounce_s:
            await asyncio.sleep(self._pace.debounce_s)
        self._wake.clear()

    async def _decide(self) -> None:
        started = self._shell.monotonic()
        self._shell.progress.decided(self.live.last_seq)
        decision = self._decider.decide(self.live.state, self._shell.now_s())
        self._decide_s.observe(self._shell.monotonic() - started)
        self._wake_at_s = decision.wake_at_s
        await self.live.reached(await self._append_proposals(decision.proposals))

    async def _append_proposals(self, proposals: Sequence[Proposal]) -> int:
        """
        Append what was decided, in order, and return the last sequence.

        What follows a refused proposal must not become true. So they are appended one by one, or many as one.
        """
        heads = {proposal.subject: self.live.heads.get(proposal.subject, 0) for proposal in proposals}
        todo = deque(_parts([self._item(proposal) for proposal in proposals]))
        seq = 0
        while todo:
            part = [msgspec.structs.replace(item, expected=heads[item.subject]) for item in todo.popleft()]
            if not self.leading:  # paused in between: another may have decided since, on more than this one knew
                self._log.info("decision_given_up", subject=part[0].subject)
                self._led = False
                break
            try:
                seqs = await self._append(part)
            except BatchRefused as refused:
                self._log.info("batch_refused", commits=len(part), reason=str(refused))
                todo.extendleft([item] for item in reversed(part))
            except Conflict as conflict:
                self._conflicts.inc()
                self._log.info("decision_overtaken", subject=conflict.subject, expected=conflict.expected)
                await self.live.caught_up()
                self._wake.set()
                break
            else:
                seq = seqs[-1]
                heads.update(zip((item.subject for item in part), seqs, strict=True))
        return seq

    def _item(self, proposal: Proposal) -> Append:
        commit = Commit(
            id=uuid.uuid4().hex,
            actor=f"{self._shell.service}/{self._shell.replica_id}",
            facts=proposal.facts,
            cause=proposal.cause,
        )
        return Append(subject=proposal.subject, commit=commit, expected=None)

    async def _append(self, part: Sequence[Append]) -> list[int]:
        started = self._shell.monotonic()

        async def append() -> list[int]:
            if len(part) == 1:
                return [await self._shell.bus.append(part[0])]
            return await self._shell.bus.append_all(part)

        seqs = await until_available(append, f"append to {part[0].subject}", self._shell.stopping)
        self._append_s.observe(self._shell.monotonic() - started)
        return seqs

    def _delivered(self, delivery: Delivery) -> None:
        heeds = self._decider.heeds(delivery.commit)
        self._shell.progress.read(delivery.seq, matters=heeds)
        self._last_seq.set(delivery.seq)
        if self._on_delivery is not None:
            self._on_delivery(delivery)
        if heeds:
            self._wake.set()

    async def _watch_stopping(self) -> None:
        await self._shell.stopping.wait()
        self._wake.set()

    async def _keep_snapshots(self) -> None:
        waited_s = 0.0
        while True:
            await asyncio.sleep(self._pace.check_s)
            waited_s += self._pace.check_s
            due = self.live.unsaved >= self._pace.snapshot_events or waited_s >= self._pace.snapshot_s
            if due and self.leading and waited_s >= _PART * self.live.encode_s:
                waited_s = 0.0
                await self._save_snapshot()

    async def _save_snapshot(self) -> None:
        try:
            await self.live.save_snapshot()
        except BusError as error:
            self._log.warning("snapshot_not_saved", error=str(error))
        self._too_large.set(self.live.is_too_large)


def _parts(items: Sequence[Append]) -> Iterator[list[Append]]:
    """Yield commits in order, in parts that are appended as one: of different subjects, and not just a few."""
    part: dict[str, Append] = {}
    for item in items:
        if item.subject in part or len(part) == _MANY:
            yield from _worth_a_batch(part)
            part = {}
        part[item.subject] = item
    yield from _worth_a_batch(part)


def _worth_a_batch(part: dict[str, Append]) -> Iterable[list[Append]]:
    items = list(part.values())
    return [items] if len(items) >= _FEW else [[item] for item in items]


async def run_decider(
    shell: Shell,
    decider: Decider[S],
    *,
    name: str = "",
    pace: ReplicaPace = ReplicaPace(),  # noqa: B008 - frozen
    on_delivery: Callable[[Delivery], None] | None = None,
) -> None:
    """Run a decider until the shell is stopping: :meth:`Replica.run`, for services that need nothing else."""
    await Replica(shell, decider, name=name, pace=pace, on_delivery=on_delivery).run()


_log = get_logger("penstock.leadership")
