"""
Notifications: of what people are told, what is still to be told them, and in which words.

A person's rules are in the log. :class:`Notifications` is their fold: each rule has what has happened since its last
message, so that whoever sends next, after a restart or in another replica, knows what is left. A message may be sent
twice where the one who sent it died before the log had that; it is never left out. :func:`next_send_s` says when a
rule's next message is due, and :func:`message` writes it: many things at a time are one message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from penstock_log import (
    TERMINAL,
    Event,
    Job,
    JobFinished,
    NotificationRuleRemoved,
    NotificationRuleSet,
    NotificationSent,
    RunEnded,
    RunStarted,
    SweepFinished,
    SweepSpec,
    UserRemoved,
)
from penstock_log.job_state import JobState
from penstock_log.spec import NotifyKind
from penstock_log.text import count, duration, escaped, listed

KEPT: Final = 50
"""Things of which a message tells in full; of more it says how many there are."""
MOST_COUNTED: Final = 20_000
MOST_RULES: Final = 50
"""Of one person."""
BACK_OFF_S: Final = 10.0
LONGEST_BACK_OFF_S: Final = 3600.0
_TOLD_IN_FULL: Final = 20
_ENDED: Final = {"completed": "completed", "failed": "failed", "timed_out": "ran out of time", "cancelled": "cancelled"}
_WORDS: Final = {**_ENDED, "started": "started", "preempted": "preempted", "waiting": "waiting for long"}


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """
    One thing that is to be told.

    Attributes
    ----------
    seq : int
        Sequence of the commit by which it is so.
    at_s : float
        When it happened, seconds since the epoch.
    span_s : float
        How long the job has run, or waited, in seconds.
    reason : str
        With the last line of its standard error, where its program failed.
    """

    seq: int
    at_s: float
    kind: str
    job_id: str
    name: str
    span_s: float = 0.0
    reason: str = ""


class NotificationRule(msgspec.Struct, kw_only=True):
    """
    A rule, and how far its messages have come.

    Attributes
    ----------
    user, target, on, waiting_s, about
        As in :class:`penstock_log.NotificationRuleSet`.
    kept_as : str
        The name under which the gateway keeps its address.
    notices : list of Notice
        What is still to be told.
    more : list of (int, str)
        Sequence and kind of what is to be told beyond :data:`KEPT`.
    first_s : float
        Since when something is to be told, seconds since the epoch.
    told : dict of str to None
        Jobs of which it was told that they wait for long; they have waited since.
    messages : int
        Messages that were sent.
    tried_s : float
        When a message was last sent, or tried, seconds since the epoch; 0: never.
    failures : int
        Tries in vain since the last message.
    error : str
        Of the last try.
    """

    id: str
    user: str
    target: str
    on: tuple[NotifyKind, ...] = ()
    waiting_s: float = 0.0
    about: str = ""
    kept_as: str = ""
    notices: list[Notice] = []
    more: list[tuple[int, str]] = []
    first_s: float = 0.0
    told: dict[str, None] = {}
    messages: int = 0
    tried_s: float = 0.0
    failures: int = 0
    error: str = ""

    @property
    def left(self) -> int:
        """Of how many things is still to be told."""
        return len(self.notices) + len(self.more)

    def is_about(self, job: Job) -> bool:
        """Return whether it tells of a job."""
        return self.about in {job.id, job.spec.parent} if self.about else job.spec.user == self.user

    def add(self, notice: Notice) -> None:
        """Note something that is to be told."""
        if not self.left:
            self.first_s = notice.at_s
        if len(self.notices) < KEPT:
            self.notices.append(notice)
        elif len(self.more) < MOST_COUNTED:
            self.more.append((notice.seq, notice.kind))

    def note_sent(self, event: NotificationSent) -> None:
        """Note a message, or that it could not be sent."""
        self.tried_s = event.at_s
        if event.error:
            self.failures, self.error = self.failures + 1, event.error
            return
        self.failures, self.error, self.messages = 0, "", self.messages + 1
        self.notices = [one for one in self.notices if one.seq > event.until_seq]
        self.more = [one for one in self.more if one[0] > event.until_seq]
        self.first_s = event.at_s if self.left else 0.0
        self.told.update(dict.fromkeys(event.waiting))


class Notifications(msgspec.Struct):
    """
    The rules of all people.

    Attributes
    ----------
    rules : dict of str to NotificationRule
        By their ids.
    of_user : dict of str to list of str
        Person → ids of their rules, in the order in which they were made.
    of_about : dict of str to list of str
        Job or sweep → ids of the rules that are about it alone, whose ever they are.
    """

    rules: dict[str, NotificationRule] = msgspec.field(default_factory=dict)
    of_user: dict[str, list[str]] = msgspec.field(default_factory=dict)
    of_about: dict[str, list[str]] = msgspec.field(default_factory=dict)

    def apply(self, event: Event) -> None:
        """Take in a fact about rules."""
        match event:
            case NotificationRuleSet() if event.rule in self.rules:
                pass  # the first one has the id, whose ever it is
            case NotificationRuleSet():
                self.of_user.setdefault(event.user, []).append(event.rule)
                if event.about:
                    self.of_about.setdefault(event.about, []).append(event.rule)
                self.rules[event.rule] = NotificationRule(
                    id=event.rule,
                    user=event.user,
                    target=event.target,
                    on=event.on,
                    waiting_s=event.waiting_s,
                    about=event.about,
                    kept_as=event.kept_as or event.rule,
                )
            case NotificationRuleRemoved():
                self._remove(event.rule)
            case NotificationSent():
                if (rule := self.rules.get(event.rule)) is not None:
                    rule.note_sent(event)
            case UserRemoved():
                for rule_id in list(self.of_user.get(event.user, ())):
                    self._remove(rule_id)
            case _:
                pass

    def _remove(self, rule_id: str) -> None:
        if (rule := self.rules.pop(rule_id, None)) is None:
            return
        for index, name in ((self.of_user, rule.user), *([(self.of_about, rule.about)] if rule.about else [])):
            index[name].remove(rule_id)
            if not index[name]:
                del index[name]

    def forget_waits(self, rule_id: str, jobs: Iterable[str]) -> None:
        """Forget that it was told of jobs that they wait, as they had their turn while the message was under way."""
        if (rule := self.rules.get(rule_id)) is not None:
            for job_id in jobs:
                rule.told.pop(job_id, None)

    def note(self, job: Job, event: Event, seq: int) -> None:
        """Note what has become of a job by a fact, for the rules that tell of it."""
        if not self.rules or job.sample is not None:
            return
        of_one = (*self.of_about.get(job.id, ()), *(self.of_about.get(job.spec.parent, ()) if job.spec.parent else ()))
        rules = (*self.of_user.get(job.spec.user, ()), *of_one)
        kind = _kind(job, event) if rules else None
        for rule in (self.rules[rule_id] for rule_id in dict.fromkeys(rules)):
            if job.state is not JobState.PENDING:
                rule.told.pop(job.id, None)
            wanted = (*rule.on, *(() if rule.about else job.spec.notify))
            if kind and kind in wanted and rule.is_about(job):
                rule.add(_notice(job, kind, event.at_s, seq))

    def note_sweep(self, spec: SweepSpec, event: SweepFinished, seq: int) -> None:
        """Note the end of a sweep, for the rules of its user and those that are about it."""
        own = (rule for rule in self.of_user.get(spec.job.user, ()) if not self.rules[rule].about)
        best = f"best {event.best_value:g}, by {event.best_job_id}" if event.best_value is not None else ""
        notice = Notice(
            seq=seq,
            at_s=event.at_s,
            kind=event.state,
            job_id=event.sweep_id,
            name=f"sweep {spec.name}",
            reason=event.reason or best,
        )
        for rule_id in dict.fromkeys((*own, *self.of_about.get(event.sweep_id, ()))):
            if event.state in self.rules[rule_id].on:
                self.rules[rule_id].add(notice)

    def is_told(self, user: str) -> bool:
        """Return whether a person has a rule by which a job's own ``notify`` is told."""
        return any(not self.rules[rule_id].about for rule_id in self.of_user.get(user, ()))


def _kind(job: Job, event: Event) -> NotifyKind | None:
    """Return what a fact makes of a job that people may want to be told; None where it is nothing."""
    match event:
        case RunStarted() if job.first_started_s == event.at_s:
            return "started"
        case RunEnded() if event.refuses_user:
            return None
        case RunEnded() if event.outcome == "preempted" and job.state is JobState.PENDING and not job.open_nodes:
            return "preempted"
        case JobFinished() if job.state in TERMINAL:
            if job.state is JobState.FAILED:
                return "timed_out" if job.timed_out else "failed"
            return "completed" if job.state is JobState.COMPLETED else "cancelled"
        case _:
            return None


def _notice(job: Job, kind: str, at_s: float, seq: int) -> Notice:
    ran_s = job.executed_by(at_s)
    return Notice(
        seq=seq, at_s=at_s, kind=kind, job_id=job.id, name=job.spec.name, span_s=ran_s, reason=job.reason[:500]
    )


def waiting(rule: NotificationRule, jobs: Iterable[Job], now_s: float) -> list[Notice]:
    """Return the jobs that wait for longer than a rule has it, and of which it was not told, longest first."""
    found = []
    for job in jobs if rule.waiting_s else ():
        waits = job.state is JobState.PENDING and not (job.held or job.blocked) and job.sample is None
        if not waits or job.id in rule.told or not rule.is_about(job):
            continue
        waited_s = now_s - max(job.pending_since_s, job.not_before_s)
        if waited_s > rule.waiting_s:
            found.append(Notice(seq=0, at_s=now_s, kind="waiting", job_id=job.id, name=job.spec.name, span_s=waited_s))
    return sorted(found, key=lambda notice: -notice.span_s)


class Pace(NamedTuple):
    """
    How often messages go out.

    Attributes
    ----------
    gather_s : float
        Seconds from the first thing that is to be told to its message, which tells of all that has come meanwhile.
    every_s : float
        Least seconds between two messages of a rule.
    """

    gather_s: float
    every_s: float


def next_send_s(rule: NotificationRule, pace: Pace) -> float | None:
    """Return when a rule's next message is due, seconds since the epoch; None where nothing is to be told."""
    if not rule.left:
        return None
    return max(rule.first_s + pace.gather_s, may_send_s(rule, pace))


def may_send_s(rule: NotificationRule, pace: Pace) -> float:
    """Return from when on a rule may send, seconds since the epoch; after failures it waits for longer each time."""
    if not rule.tried_s:
        return 0.0
    if rule.failures:
        return rule.tried_s + min(LONGEST_BACK_OFF_S, max(pace.every_s, BACK_OFF_S) * 2.0 ** min(rule.failures - 1, 12))
    return rule.tried_s + pace.every_s


class Message(NamedTuple):
    """A message: its title, its text, of how many things it tells, and of which jobs that wait."""

    title: str
    body: str
    jobs: int
    waiting: tuple[str, ...] = ()


def message(rule: NotificationRule, waits: Iterable[Notice] = ()) -> Message:
    """
    Write the message of a rule about all that is to be told.

    Parameters
    ----------
    waits : iterable of Notice
        Of jobs that wait for long.
    """
    long = list(waits)[:KEPT]
    notices = [*rule.notices, *long]
    counts = Counter([*(notice.kind for notice in notices), *(kind for _, kind in rule.more)])
    total = sum(counts.values())
    lines = [_line(notice) for notice in notices[:_TOLD_IN_FULL]]
    if total > len(lines):
        lines.append(f"… and {total - len(lines):,} more")
    first = notices[0]
    if total == 1:
        title = f"Penstock: {escaped(first.name)} ({first.job_id}) {_said(first)}"
        more = f"penstock show {first.job_id}; penstock logs {first.job_id}"
    else:
        title = f"Penstock: {_counted(counts)}"
        more = f"penstock show {first.job_id}; penstock ps -a --user {rule.user}"
    footer = f"More: {more}. Not any more: penstock notify remove {rule.id}."
    return Message(title, "\n".join([*lines, "", footer]), total, tuple(notice.job_id for notice in long))


def _counted(counts: Mapping[str, int]) -> str:
    (first, jobs), *others = sorted(counts.items(), key=lambda item: -item[1])
    return listed([f"{count(jobs, 'job')} {_WORDS[first]}", *(f"{n:,} {_WORDS[kind]}" for kind, n in others)])


def _said(notice: Notice) -> str:
    if notice.kind == "waiting":
        return f"has been waiting for {duration(notice.span_s)}"
    return _WORDS[notice.kind]


def _line(notice: Notice) -> str:
    about = f"{escaped(notice.name)} ({notice.job_id})"
    ran = f" after {duration(notice.span_s)}" if notice.kind != "waiting" and notice.span_s > 0 else ""
    why = f": {escaped(notice.reason)}" if notice.reason else ""
    return f"{about} {_said(notice)}{ran}{why}"
