"""
The notifier: one gateway at a time sends the messages that rules call for.

What is to be told, and what was, is in the log (:mod:`penstock_gateway.notifications`): the notifier keeps nothing but
which rules it is sending for. A rule's messages go out one after the other, those of different rules beside each other,
so that a server that does not answer keeps nobody else's waiting.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final, Protocol

import structlog

from penstock_bus import Append, BusError, LeasePort, LogPort
from penstock_bus.follower import FoldFollower, until_available
from penstock_bus.replica import LeaderElection
from penstock_bus.shell import Shell
from penstock_gateway import notifications
from penstock_gateway.machine import GatewaySettings, GatewayState
from penstock_gateway.notification_sender import Errand
from penstock_gateway.notification_targets import NOT_HERE, Send, TargetFolder
from penstock_gateway.notifications import NotificationRule, Pace
from penstock_log import Commit, Job, NotificationSent, subjects

LEASE: Final = "gateway.notify"
_LOOK_S: Final = 1.0
_WAITS_S: Final = 30.0
"""How often it is looked for jobs that wait for long."""
_TIDY_S: Final = 600.0
_AT_ONCE: Final = 8
_LONGEST_ERROR: Final = 500
_log = structlog.get_logger("penstock.notify")


class NotifierBus(LogPort, LeasePort, Protocol):
    """What the notifier uses."""


class Notifier:
    """
    Sends messages while it has the lease.

    Parameters
    ----------
    live : FoldFollower
        The gateway's read model.
    targets : TargetFolder
        Addresses of the rules.
    sending : Send
        Sends one message.
    """

    def __init__(
        self,
        shell: Shell,
        bus: NotifierBus,
        live: FoldFollower[GatewayState],
        settings: GatewaySettings,
        *,
        targets: TargetFolder,
        sending: Send,
    ) -> None:
        self._shell, self._bus, self._live = shell, bus, live
        self._targets, self._sending = targets, sending
        self.pace = Pace(settings.notify_gather_s, settings.notify_every_s)
        self.election = LeaderElection(bus, LEASE, shell.replica_id, lambda: None, clock=shell.monotonic)
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._told_seq: dict[str, int] = {}
        """Rule → sequence of the last message's fact: the read model must have it before the next one."""
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._waits_looked_s = 0.0
        self._tidied_s = 0.0

    async def run(self) -> None:
        """Send what is due until the service is to stop."""
        look_s = min(_LOOK_S, max(0.05, self.pace.gather_s))
        async with self.election.kept():
            try:
                await self.election.repeat(look_s, self._shell.stopping, self._look)
            finally:  # while the lease is held: who leads next would send them as well
                for task in self._under_way.values():
                    task.cancel()
                await asyncio.gather(*self._under_way.values(), return_exceptions=True)

    async def _look(self) -> None:
        now_s = self._shell.now_s()
        await self.tidy(now_s)
        waits = await self.waiting(now_s)
        if self.election.held and not self._shell.stopping.is_set():
            self.start_due(now_s, waits)

    async def tidy(self, now_s: float) -> None:
        """Forget addresses that no rule has any more, where that was not done of late."""
        if now_s - self._tidied_s < _TIDY_S:
            return
        self._tidied_s = now_s
        known = frozenset(rule.kept_as for rule in self._live.state.notifications.rules.values())
        await asyncio.to_thread(self._targets.tidy, known, now_s)

    def start_due(self, now_s: float, waits: Mapping[str, list[notifications.Notice]]) -> None:
        """Begin to send the messages that are due by now, with the jobs that wait for long by rule."""
        rules = self._live.state.notifications.rules
        for rule in list(rules.values()):
            if rule.id in self._under_way or self._live.last_seq < self._told_seq.get(rule.id, 0):
                continue
            due_s = notifications.next_send_s(rule, self.pace)
            long = waits.get(rule.id, [])
            if (due_s is None or due_s > now_s) and not (long and notifications.may_send_s(rule, self.pace) <= now_s):
                continue
            task = asyncio.create_task(self._send(rule, notifications.message(rule, long), self._live.last_seq))
            self._under_way[rule.id] = task
            task.add_done_callback(partial(self._forget, rule.id))

    def _forget(self, rule_id: str, task: asyncio.Task[None]) -> None:
        """Forget a message that is over; one that failed as none should is tried again, and the log has why."""
        del self._under_way[rule_id]
        if not task.cancelled() and (problem := task.exception()) is not None:
            _log.error("notification_broke_off", rule=rule_id, exc_info=problem)

    async def waiting(self, now_s: float) -> dict[str, list[notifications.Notice]]:
        """
        Return the jobs that wait for long, by rule; they are looked for now and then only.

        Only the open jobs of those are looked at who want to know, and other things are done between two rules.
        """
        watching = [rule for rule in self._live.state.notifications.rules.values() if rule.waiting_s]
        every_s = min(_WAITS_S, min((rule.waiting_s for rule in watching), default=_WAITS_S))
        if not watching or now_s - self._waits_looked_s < every_s / 2:
            return {}
        self._waits_looked_s = now_s
        found = {}
        for rule in watching:
            if notices := notifications.waiting(rule, self._open_jobs(rule), now_s):
                found[rule.id] = notices
            await asyncio.sleep(0)
        return found

    def _open_jobs(self, rule: NotificationRule) -> Iterator[Job]:
        """Yield the jobs that a rule may be about; of all jobs of its person, those that are not over."""
        state = self._live.state
        about = (rule.about, *state.children.get(rule.about, ()))
        ids = about if rule.about else state.open_jobs.of(rule.user)
        return (job for job_id in ids if (job := state.jobs.get(job_id)) is not None)

    async def _send(self, rule: NotificationRule, text: notifications.Message, until_seq: int) -> None:
        url = await asyncio.to_thread(self._targets.read, rule.kept_as)
        async with self._slots:
            errand = Errand(url=url, title=text.title, body=text.body)
            try:
                error = await self._sending(errand) if url else NOT_HERE
            except OSError as problem:  # no process could be started
                error = f"the sending program could not be started: {problem.strerror}"
        fact = NotificationSent(
            at_s=self._shell.now_s(),
            user=rule.user,
            rule=rule.id,
            until_seq=until_seq,
            jobs=text.jobs,
            waiting=text.waiting,
            error=error[:_LONGEST_ERROR],
        )
        commit = Commit(id=uuid.uuid4().hex, actor=f"{self._shell.service}/{self._shell.replica_id}", facts=(fact,))
        item = Append(subject=subjects.notify(rule.user), commit=commit, expected=None)
        try:
            seq = await until_available(lambda: self._bus.append(item), "a message was sent", self._shell.stopping)
        except BusError as problem:  # it is sent again by who leads next
            _log.warning("notification_not_noted", rule=rule.id, reason=str(problem))
            return
        self._told_seq[rule.id] = seq
        if error:
            _log.warning("notification_failed", rule=rule.id, target=rule.target, reason=error)
        else:
            _log.info("notification_sent", rule=rule.id, target=rule.target, jobs=text.jobs)
