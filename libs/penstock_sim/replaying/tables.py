"""A policy against what really happened, as cells of text: for terminals and pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from penstock_sim.replaying.score import Everybody, JobChange, Score
from penstock_sim.report.intervals import Change

Span = Callable[[float], str]
"""Says how lengths of time read."""
Row = tuple[str, ...]

CHANGES: Final = ("WHO", "JOBS", "JCT", "WAS", "NOW", "CHANGE", "INTERVAL")
JOBS: Final = ("JOB", "NAME", "GPUS", "USER", "WAS", "NOW", "CHANGE")
_LARGEST: Final = 10


def changes(score: Score, span: Span, most: int | None = _LARGEST, *, verdict: bool = True) -> Iterator[Row]:
    """
    Yield two rows for all jobs, and for each team and user: averages and 95th percentiles.

    Parameters
    ----------
    most : int or None
        Of the teams, and of the users; None for all of them.
    verdict : bool
        Whether it may be said how sure a difference is.
    """
    for who, one in parties(score, most):
        yield from _change(who, one, span, "too few jobs" if verdict else "no verdict")


def parties(score: Score, most: int | None = _LARGEST) -> Iterator[tuple[str, Change]]:
    """Yield all jobs, then teams and users where there are several, those with the most jobs first."""
    yield "all jobs", score.all
    for what, found in (("team", score.teams), ("user", score.users)):
        if len(found) > 1:
            largest = sorted(found.items(), key=lambda pair: (-pair[1].jobs, pair[0]))
            yield from ((f"{what} {name}" if name else f"no {what}", one) for name, one in largest[:most])


def jobs(found: tuple[JobChange, ...], span: Span) -> Iterator[Row]:
    """Yield a row for each job, under :data:`JOBS`."""
    for job in found:
        who = (job.team and job.user and f"{job.team}/{job.user}") or job.team or job.user
        yield (job.id, job.name, str(job.gpus), who, span(job.was_s), span(job.jct_s), signed(job.change_s, span))


def everybody(found: Everybody, span: Span) -> str:
    """Return what is known with jobs that have no true length, in a sentence."""
    was, now = found.was, found.now
    median = ""
    if was.median_s is not None and now.median_s is not None:
        median = f"; median was {span(was.median_s)}, now {span(now.median_s)}"
    return (
        f"with the {found.censored:,} that have no true length (Kaplan-Meier, up to {span(found.horizon_s)}): "
        f"average was {span(was.mean_s)}, now {span(now.mean_s)}{median}"
    )


def signed(seconds: float, span: Span) -> str:
    """
    Return a difference with its sign.

    Examples
    --------
    >>> signed(-1.25, "{:.1f}s".format), signed(2.0, "{:.1f}s".format), signed(-0.01, "{:.1f}s".format)
    ('-1.2s', '+2.0s', '0.0s')
    """
    if span(abs(seconds)) == span(0.0):
        return span(0.0)
    return ("-" if seconds < 0 else "+") + span(abs(seconds))


def _change(who: str, one: Change, span: Span, unsaid: str) -> Iterator[Row]:
    average = (one.was_avg_s, one.avg_s, one.avg_change_s, one.avg_interval_s)
    p95 = (one.was_p95_s, one.p95_s, one.p95_change_s, one.p95_interval_s)
    for what, (was_s, now_s, change_s, bounds) in (("avg", average), ("p95", p95)):
        words = f"{signed(bounds.low, span)} to {signed(bounds.high, span)}" if bounds is not None else unsaid
        yield (who, str(one.jobs), what, span(was_s), span(now_s), signed(change_s, span), words)
