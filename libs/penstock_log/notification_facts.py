"""
Facts about notifications: of what each person is told, and what they were told.

The gateway writes them on ``evt.notify.PERSON``. No fact has the address to which messages go: such a URL holds tokens,
and stays in a file of the gateway's (:mod:`penstock_gateway.notification_targets`).
"""

from __future__ import annotations

from penstock_log.facts import Event
from penstock_log.spec import NotifyKind


class NotificationRuleSet(Event, frozen=True, kw_only=True, tag="notify.rule_set.v1"):
    """
    A person is told of what becomes of their jobs.

    Attributes
    ----------
    rule : str
        Its id.
    target : str
        What the address is called, for people: the service that it leads to, or the name that the person gave it.
    on : tuple of NotifyKind
        Of what. None of them: of what a job's own ``notify`` says.
    waiting_s : float
        Also of jobs that wait for longer, in seconds; 0: of none.
    about : str
        Of this job, or of the trials of this sweep; empty: of all jobs of the person.
    kept_as : str
        The name under which the gateway keeps its address; empty: the rule's id.
    """

    user: str
    rule: str
    target: str
    on: tuple[NotifyKind, ...] = ()
    waiting_s: float = 0.0
    about: str = ""
    kept_as: str = ""
    by: str = ""


class NotificationRuleRemoved(Event, frozen=True, kw_only=True, tag="notify.rule_removed.v1"):
    """A person is not told any more what a rule says."""

    user: str
    rule: str
    by: str = ""


class NotificationSent(Event, frozen=True, kw_only=True, tag="notify.sent.v1"):
    """
    A message was sent by a rule, or could not be.

    Attributes
    ----------
    until_seq : int
        It told of what the log had up to this sequence.
    jobs : int
        Of how many things it told.
    waiting : tuple of str
        Jobs of which it told that they wait for long.
    error : str
        Why it could not be sent, and is tried again; empty: it was.
    """

    user: str
    rule: str
    until_seq: int
    jobs: int
    waiting: tuple[str, ...] = ()
    error: str = ""
