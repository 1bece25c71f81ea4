"""One replica of a deciding service: follow, apply, decide, append."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from penstock_bus import leadership
from penstock_bus.context import Shell
from penstock_bus.decider import Decider, Proposal
from penstock_bus.health import Vitals
from penstock_bus.live import LiveFold
from penstock_bus.port import Append, BusError, Conflict, Delivery
from penstock_bus.retry import until_available
from penstock_bus.tasks import background
from penstock_events import Commit

S = TypeVar("S")


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """
    How fast a replica goes about its work; all in seconds but for ``snapshot_events``.

    Attributes
    ----------
    debounce_s : float
        Wait this long after a change for further ones before deciding.
    least_wait_s : float
        Least time to the next decision when the decider asks for one at a time that has passed.
    lease_ttl_s, renew_s : float
        A lost leader is replaced after at most their sum.
    snapshot_s, snapshot_events, check_s
        A snapshot is taken after so many events or so many seconds with any event; looked at every ``check_s``.
    """

    debounce_s: float = 0.0
    least_wait_s: float = 0.01
    lease_ttl_s: float = leadership.TTL_S
    renew_s: float = leadership.RENEW_S
    snapshot_s: float = 60.0
    snapshot_events: int = 5000
    check_s: float = 5.0


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
    pace : Pace
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
        pace: Pace = Pace(),  # noqa: B008 - frozen
        on_delivery: Callable[[Delivery], None] | None = None,
        says_ready: bool = True,
    ) -> None:
        self.live = LiveFold(shell.bus, decider, name=name, on_delivery=self._delivered)
        self._shell, self._decider, self._pace, self._on_delivery = shell, decider, pace, on_delivery
        self._log = shell.log.bind(decider=self.live.name)
        self._wake = asyncio.Event()
        self._wake_at_s: float | None = None
        self._says_ready = says_ready
        self._lead: leadership.Leadership = leadership.Everybody()
        if decider.leads:
            self._lead = leadership.Elected(
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
        shell.examine = self._examine
        self._decide_s = shell.metrics.histogram("penstock_decide_seconds", "Time to work out a decision.")
        self._append_s = shell.metrics.histogram("penstock_append_seconds", "Time to append a commit.")
        self._conflicts = shell.metrics.counter("penstock_conflicts_total", "Commits refused for being out of date.")
        self._last_seq = shell.metrics.gauge("penstock_last_seq", "Sequence of the last commit folded in.")

    @property
    def leading(self) -> bool:
        """Whether this replica may decide now."""
        return self._lead.held

    def wake(self) -> None:
        """Have it decide again soon, although the log has not changed."""
        self._wake.set()

    async def run(self) -> None:
        """Decide until the shell is stopping; then save a snapshot and give the lead away."""
        async with self.live, background(self._watch_stopping()):
            await self.live.caught_up()
            self._shell.vitals.ready = self._says_ready or self._shell.vitals.ready
            self._log.info("caught_up", last_seq=self.live.last_seq)
            try:
                async with background(self._lead.keep(), self._keep_snapshots()):
                    await self._decide_until_stopping()
                if self.leading:
                    await self._save_snapshot()
            finally:
                await self._lead.resign()

    async def _decide_until_stopping(self) -> None:
        self._wake.set()
        while True:
            await self._pause()
            if self._shell.stopping.is_set():
                return
            if self.leading and (not self._led or self.live.pending):
                await self.live.caught_up()
            self._wake_at_s = None
            self._led = self._shell.vitals.leading = self.leading
            if self._led:
                await self._decide()

    def _on_lease(self) -> None:
        """Come to decide if the lead is not what it was then: nothing else may happen for a long time."""
        self._shell.vitals.leading = self.leading
        if self.leading != self._led:
            self._wake.set()

    def _examine(self, vitals: Vitals) -> None:
        vitals.leading, vitals.elected = self.leading, self._decider.leads
        vitals.term_s, vitals.lease_s = self._lead.term_s, self._lead.confirmed_ago_s
        vitals.undecided_s = self._shell.progress.undecided_s() if self.leading else 0.0

    async def _pause(self) -> None:
        wait_s = None
        if self._wake_at_s is not None:
            wait_s = max(self._pace.least_wait_s, self._wake_at_s - self._shell.now_s())
        try:
            async with asyncio.timeout(wait_s):
                await self._wake.wait()
        except TimeoutError:
            pass
        if self._pace.debounce_s:
            await asyncio.sleep(self._pace.debounce_s)
        self._wake.clear()

    async def _decide(self) -> None:
        started = _loop_s()
        self._shell.progress.decided(self.live.last_seq)
        decision = self._decider.decide(self.live.state, self._shell.now_s())
        self._decide_s.observe(_loop_s() - started)
        self._wake_at_s = decision.wake_at_s
        expected = {p.subject: self.live.heads.get(p.subject, 0) for p in decision.proposals}
        seq = 0
        for proposal in decision.proposals:  # one by one: what follows a refused proposal must not become true
            if not self.leading:  # paused in between: another may have decided since, on more than this one knew
                self._log.info("decision_given_up", subject=proposal.subject)
                self._led = False
                break
            try:
                seq = expected[proposal.subject] = await self._append(proposal, expected[proposal.subject])
            except Conflict as conflict:
                self._conflicts.inc()
                self._log.info("decision_overtaken", subject=conflict.subject, expected=conflict.expected)
                await self.live.caught_up()
                self._wake.set()
                break
        await self.live.reached(seq)

    async def _append(self, proposal: Proposal, expected: int) -> int:
        commit = Commit(
            id=uuid.uuid4().hex,
            actor=f"{self._shell.service}/{self._shell.replica_id}",
            facts=proposal.facts,
            cause=proposal.cause,
        )
        item = Append(subject=proposal.subject, commit=commit, expected=expected)
        started = _loop_s()
        what = f"append to {proposal.subject}"
        seq = await until_available(lambda: self._shell.bus.append(item), what, self._shell.stopping)
        self._append_s.observe(_loop_s() - started)
        return seq

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
            if due and self.leading:
                waited_s = 0.0
                await self._save_snapshot()

    async def _save_snapshot(self) -> None:
        try:
            await self.live.save_snapshot()
        except BusError as error:
            self._log.warning("snapshot_not_saved", error=str(error))


async def run_decider(
    shell: Shell,
    decider: Decider[S],
    *,
    name: str = "",
    pace: Pace = Pace(),  # noqa: B008 - frozen
    on_delivery: Callable[[Delivery], None] | None = None,
) -> None:
    """Run a decider until the shell is stopping: :meth:`Replica.run`, for services that need nothing else."""
    await Replica(shell, decider, name=name, pace=pace, on_delivery=on_delivery).run()


def _loop_s() -> float:
    return asyncio.get_running_loop().time()
