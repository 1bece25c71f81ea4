"""Answers about accounts: device time by user, team, pool, model, kind or job."""

from __future__ import annotations

from typing import Optional

from penstock_log.usage import Usage
from penstock_log.views.answers import View


class WaitsView(View, frozen=True, kw_only=True):
    """
    How long jobs waited for their first devices, of those that got them within the window.

    Attributes
    ----------
    jobs : int
        How many; archived jobs are not among them.
    median_s, p90_s : float or None
        From submission to the grant; None where there is no such job.
    """

    jobs: int = 0
    median_s: Optional[float] = None
    p90_s: Optional[float] = None


class UsageRowView(View, frozen=True, kw_only=True):
    """
    The usage of one group.

    Attributes
    ----------
    name : str
        Of the user, team, pool, model or kind, or the id of the job; empty where jobs name none.
    title, user : str
        The job's name and user, where rows are jobs.
    others : bool
        Whether the row is the sum of what has no row: of users, models or jobs that the caller may not see, of archived
        jobs where rows are jobs, and of what is beyond the limit.
    usage : Usage
    waits : WaitsView
    """

    name: str = ""
    title: str = ""
    user: str = ""
    others: bool = False
    usage: Usage
    waits: WaitsView = WaitsView()


class UsageView(View, frozen=True, kw_only=True):
    """
    Device time within a window; the rows add up to the total.

    Attributes
    ----------
    by : str
        What a row is.
    since_s, until_s : float
        The window: from the first fact, and up to the moment of the answer, unless it was asked otherwise.
    rows : tuple of UsageRowView
        In the order that was asked for; the row of the others is the last.
    total : UsageRowView
    whole_days : tuple of str
        UTC days that are counted whole, though the window cuts them: of archived jobs, only sums by day are left.
    """

    by: str
    since_s: float
    until_s: float
    rows: tuple[UsageRowView, ...]
    total: UsageRowView
    seq: int
    whole_days: tuple[str, ...] = ()
