"""
What the gateway is asked: the bodies of its commands and queries, as JSON. A query's empty body is one with all
defaults; a command always says what it is about.

``submit``, ``dryrun`` and ``tune`` also take a bare specification; :class:`SubmitAsk` and :class:`TuneAsk` wrap it
where something is to be said beside it. Every query takes ``at``: a stream sequence (a whole number below a thousand
million), a time in seconds since the epoch, or an RFC 3339 text; it is then answered as of that moment.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from penstock_events.policy import Setting
from penstock_events.spec import JobSpec, Name, SweepSpec

At = int | float | str | None
Limit = Annotated[int, Meta(ge=1, le=1000)]
Who = Annotated[str, Meta(max_length=128)]
Reason = Annotated[str, Meta(max_length=1000)]
"""It is shown wherever the job is."""


class Ask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Root of all requests."""


# --- commands


class SubmitAsk(Ask, frozen=True, kw_only=True):
    """A job; ``strict`` refuses one that could not start on the present cluster, instead of having it wait."""

    spec: JobSpec
    strict: bool = False


class TuneAsk(Ask, frozen=True, kw_only=True):
    """A sweep; ``strict`` as for a job."""

    spec: SweepSpec
    strict: bool = False


class ActAsk(Ask, frozen=True, kw_only=True):
    """What is acted on, by its id or a unique beginning: of all commands that need no more than that."""

    id: str
    by: Who = ""
    reason: Reason = ""


class DrainAsk(Ask, frozen=True, kw_only=True):
    """Take a node out of service; with ``preempt`` its running jobs are checkpointed and moved."""

    id: str
    by: Who = ""
    reason: Reason = ""
    preempt: bool = False


class PolicyAsk(Ask, frozen=True, kw_only=True):
    """
    Run a pool by other settings.

    Attributes
    ----------
    set : dict of str to Setting
        Names and values as in ``[ranker.pools.NAME]`` and ``[matcher.pools.NAME]``; what is not named stays.
    unset : tuple of str
        Settings that go back to what the services' own settings say.
    reset : bool
        All go back, but for those in ``set``.
    """

    pool: Name = "default"
    set: dict[str, Setting] = {}
    unset: tuple[str, ...] = ()
    reset: bool = False
    by: Who = ""
    reason: Reason = ""


# --- queries


class OneAsk(Ask, frozen=True, kw_only=True):
    """Of ``job``, ``why``, ``story`` and ``sweep``: an id or its unique beginning."""

    id: str
    at: At = None


class JobsAsk(Ask, frozen=True, kw_only=True):
    """
    Which jobs; all given filters must match.

    Attributes
    ----------
    state : tuple of str
        Two-letter states; empty means all.
    name : str
        Equal to it, or beginning with it where it ends in ``*``.
    ids : tuple of str
        Whole ids.
    samples : bool
        Show the profiler's samples too.
    limit : int
        At most this many, the newest.
    """

    state: tuple[str, ...] = ()
    user: str = ""
    name: str = ""
    parent: str = ""
    ids: tuple[str, ...] = ()
    samples: bool = False
    limit: Limit = 500
    at: At = None


class AllAsk(Ask, frozen=True, kw_only=True):
    """Of ``nodes``, ``sweeps``, ``policies`` and ``status``."""

    at: At = None


class EventsAsk(Ask, frozen=True, kw_only=True):
    """
    Raw facts.

    Attributes
    ----------
    id : str
        Facts about this job, sweep, node, pool or workload; empty means all.
    after : int or None
        Only behind this stream sequence; None means the newest ``limit``.
    """

    id: str = ""
    after: Annotated[int, Meta(ge=0)] | None = None
    limit: Limit = 100
    at: At = None


class NothingAsk(Ask, frozen=True, kw_only=True):
    """Of ``rejected`` and ``schema``."""
