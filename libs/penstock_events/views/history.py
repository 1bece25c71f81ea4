"""What happened: stories of jobs, raw facts, and what was rejected."""

from __future__ import annotations

from typing import Any

from penstock_events.views.base import View


class StoryLine(View, frozen=True, kw_only=True):
    """
    One sentence of a job's life.

    Attributes
    ----------
    after_s : float
        Seconds since the job's submission.
    seq, cause : int
        Stream sequence of the commit, and of the commit that led to it (0: a person did).
    """

    at_s: float
    after_s: float
    text: str
    seq: int
    cause: int
    actor: str


class StoryView(View, frozen=True, kw_only=True):
    """One job's life."""

    id: str
    name: str
    lines: tuple[StoryLine, ...]


class EventView(View, frozen=True, kw_only=True):
    """One fact as the log holds it; ``fact`` is its JSON object without ``type`` and ``at_s``."""

    seq: int
    stored_s: float
    subject: str
    actor: str
    cause: int
    type: str
    at_s: float
    fact: dict[str, Any]


class EventsView(View, frozen=True, kw_only=True):
    """Facts in the order of the log; ask again with ``after`` = ``seq`` for those behind them."""

    events: tuple[EventView, ...]
    seq: int


class RejectedView(View, frozen=True, kw_only=True):
    """One thing that could not be accepted; ``body`` is its beginning, as text."""

    reason: str
    origin: str
    body: str
    stored_s: float


class RejectedListView(View, frozen=True, kw_only=True):
    """What was rejected, oldest first."""

    rejected: tuple[RejectedView, ...]
