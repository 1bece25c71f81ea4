"""
A shadow on a bus.

It reads the log with a consumer of its own, acknowledges nothing, and writes to ``penstock.shadow.>`` only. Its clock
is the log's: it moves on to a time only when all that the log stored before that time has been read, so that another
reading of the same log finds the same decisions. A shadow that is started again reads the log from its beginning, works
out what it had decided, and goes on behind what it had published.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from typing import Final

import msgspec

from penstock_bus.follower import background, until_available
from penstock_bus.replica import RENEW_S, LeaderElection
from penstock_bus.shell import Shell
from penstock_log import codec, subjects
from penstock_scheduler.kernel_warmup import MatchingKernels
from penstock_simulator.shadow.plan import ShadowedLog, ShadowPlan, ShadowSettings, actor_of, status_of
from penstock_simulator.shadow.shadow_follower import ShadowFollower

_BREATH: Final = 500
"""Commits between two turns of the event loop."""


class ShadowNameTaken(RuntimeError):
    """A shadow of this name follows other rules."""


class _Message(msgspec.Struct, frozen=True):
    """What is to be published; ``seq`` is the shadow's own sequence, 0 where it has none."""

    seq: int
    subject: str
    body: bytes
    msg_id: str = ""


async def run(shell: Shell, settings: ShadowSettings) -> None:
    """
    Follow the log until the shell is stopping; of several processes of one name, one works and the others wait.

    Raises
    ------
    ShadowNameTaken
        If a shadow of this name has begun with another policy or other settings.
    """
    async with MatchingKernels(shell) as kernels:
        await kernels.usable()
        await _follow(shell, settings)


async def _follow(shell: Shell, settings: ShadowSettings) -> None:
    changed = asyncio.Event()
    lead = LeaderElection(shell.bus, f"{shell.service}.{settings.called}", shell.replica_id, changed.set)
    shell.vitals.ready = True
    async with lead.kept():
        working = asyncio.ensure_future(_work(shell, settings, lead, changed))
        stopping = asyncio.ensure_future(shell.stopping.wait())
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working


async def planned(bus: ShadowedLog, settings: ShadowSettings, now_s: float) -> ShadowPlan:
    """
    Return the plan of a shadow: as it began, or one that begins now.

    Raises
    ------
    ShadowNameTaken
        If a shadow of this name has begun with another policy or other settings.
    """
    seq, known = await bus.last_seq(), await status_of(bus, settings.called)
    new = ShadowPlan(
        name=settings.called,
        policy=settings.policy,
        settings=settings.rules(),
        pool=settings.pool,
        from_seq=seq,
        from_s=now_s,
    )
    if settings.anew or known is None or known.plan.from_seq > seq:  # a log that is shorter is another log
        return new
    if not known.plan.same_rules(new):
        raise ShadowNameTaken(
            f"the shadow {new.name} follows {known.plan.policy} with {known.plan.settings or 'no settings'}, not "
            f"{new.policy} with {new.settings or 'no settings'}; take another --name, or begin --anew"
        )
    return known.plan


async def _work(shell: Shell, settings: ShadowSettings, lead: LeaderElection, changed: asyncio.Event) -> None:
    await _led(lead, changed)
    plan = await until_available(lambda: planned(shell.bus, settings, shell.now_s()), "the shadow's plan")
    await ShadowRunner(shell, settings, plan, lead, changed).run()


async def _led(lead: LeaderElection, changed: asyncio.Event) -> None:
    """Wait until this process leads, among those of its name."""
    while not lead.held:
        changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(RENEW_S):
                await changed.wait()


class ShadowRunner:
    """One shadow at work; it publishes while its process leads, and ``changed`` is set when that changes."""

    def __init__(
        self, shell: Shell, settings: ShadowSettings, plan: ShadowPlan, lead: LeaderElection, changed: asyncio.Event
    ) -> None:
        self._shell, self._settings, self._plan, self._lead, self._changed = shell, settings, plan, lead, changed
        self._log = shell.log.bind(shadow=plan.name, policy=plan.policy)
        self._follower = ShadowFollower(plan, forgets=True)
        self._unsent: asyncio.Queue[_Message] = asyncio.Queue()

    async def run(self) -> None:
        """Follow the log until it is cancelled; then publish how far it was."""
        self._log.info("shadow_begins", from_seq=self._plan.from_seq)
        try:
            async with background(self._follow(), self._keep_time()):
                await self._publish()
        finally:
            await self._publish_status()

    async def _follow(self) -> None:
        since_breath = 0
        async for delivery in self._shell.bus.follow():
            self._follower.feed(delivery)
            self._shell.vitals.last_seq = delivery.seq
            since_breath += 1
            if since_breath >= _BREATH or not delivery.pending:
                since_breath = 0
                self._collect()
                await asyncio.sleep(0)

    async def _keep_time(self) -> None:
        reported_s = -math.inf
        while True:
            now_s = self._shell.now_s() - self._settings.lag_s
            last_seq = await until_available(self._shell.bus.last_seq, "last_seq")
            if self._follower.seq >= last_seq:
                self._follower.begin()
                self._follower.advance(now_s)
                self._collect()
                if now_s - reported_s >= self._settings.status_s:
                    reported_s = now_s
                    await self._publish_status()
            await asyncio.sleep(self._settings.tick_s)

    def _collect(self) -> None:
        actor = actor_of(self._plan)
        for made in self._follower.take():
            commit = msgspec.structs.replace(made.commit, actor=actor)
            subject = subjects.shadowed(self._plan.name, made.subject)
            self._unsent.put_nowait(_Message(made.seq, subject, codec.encode(commit), f"{actor}/{commit.id}"))

    async def _publish(self) -> None:
        """Publish what comes after the shadow's last publication, whichever of its processes made that."""
        published = await self._last_published()
        while True:
            message = await self._unsent.get()
            if not self._lead.held:
                await _led(self._lead, self._changed)
                published = await self._last_published()
            if message.seq > published:
                await self._send(message)

    async def _last_published(self) -> int:
        pattern = subjects.shadowed(self._plan.name, subjects.STREAM_SUBJECTS[subjects.EVT])
        found = await until_available(lambda: self._shell.bus.last_shadow(pattern), "last_shadow")
        if found is None:
            return 0
        commit = codec.decode(found.body)
        return int(commit.id, 16) if commit.actor == actor_of(self._plan) else 0

    async def _publish_status(self) -> None:
        if self._lead.held and self._follower.live:
            body = msgspec.json.encode(self._follower.status())
            await self._send(_Message(0, subjects.shadow(self._plan.name), body))

    async def _send(self, one: _Message) -> None:
        bus, stopping = self._shell.bus, self._shell.stopping
        what = f"publish {one.subject}"
        await until_available(lambda: bus.write_shadow(one.subject, one.body, one.msg_id), what, stopping)
