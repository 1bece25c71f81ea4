"""
All that is shown of a replay.

:class:`ReplayDocument` is what ``penstock replay -o json`` prints. The functions ``of_…`` yield what readers have to
know, in sentences; :func:`unknown` lists what the log cannot tell. :func:`sections` puts each policy beside what really
happened, as sections of the page. :func:`changes` and :func:`job_rows` return the same as cells of text, for terminals
and pages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Final

import msgspec

from penstock_log import Job
from penstock_simulator import CONFIGURED
from penstock_simulator.outcome import OutcomeSummary
from penstock_simulator.replay.history import ClusterHistory
from penstock_simulator.replay.past_outcome import STATES
from penstock_simulator.replay.replay import Replay
from penstock_simulator.replay.score import CensoredTimes, JobChange, ReplayCheck, ReplayScore
from penstock_simulator.report.intervals import CompletionTimeChange


class ReplayUnknowns(msgspec.Struct, frozen=True, kw_only=True):
    """
    What the log cannot tell.

    Attributes
    ----------
    cancelled, failed, running : tuple of str
        Jobs without a true length: they were killed, failed in the end, or had not ended when the log did. They run
        as long as they did, and figures leave them out.
    never_ran : tuple of str
        Jobs that held no device: nothing is known of their length. They wait in the replay as well.
    """

    cancelled: tuple[str, ...]
    failed: tuple[str, ...]
    running: tuple[str, ...]
    never_ran: tuple[str, ...]

    @property
    def censored(self) -> int:
        """Jobs that ran and have no true length."""
        return len(self.cancelled) + len(self.failed) + len(self.running)


class ReplayDocument(msgspec.Struct, frozen=True, kw_only=True):
    """
    What ``penstock replay -o json`` prints.

    Attributes
    ----------
    log : str
        The file's name; ``cluster`` for the live log.
    cluster : str
        The nodes that it was replayed on, in words.
    from_s, to_s : float or None
        The window of submissions, on the log's clock; None where it is open.
    jobs, completed : int
        Jobs of the window that ran, and those of them that completed.
    policies : dict of str to OutcomeSummary
        ``as it was`` first; jobs without a true length count as not finished.
    changes : dict of str to ReplayScore
        Each policy against what really happened; without intervals where ``check`` does not hold.
    check : ReplayCheck or None
        How far the replay of what was recorded is off; None where it was interrupted.
    """

    log: str
    cluster: str
    from_s: float | None
    to_s: float | None
    jobs: int
    completed: int
    unknown: ReplayUnknowns
    seed: int
    policies: dict[str, OutcomeSummary]
    changes: dict[str, ReplayScore]
    check: ReplayCheck | None


def unknown(replay: Replay) -> ReplayUnknowns:
    """Return what a replay cannot know."""
    trace = replay.measured.trace
    by_state: dict[str, list[str]] = {"completed": [], "failed": [], "cancelled": [], "running": []}
    for job_id, state in zip(trace.job_ids, trace.states, strict=True):
        by_state[state].append(job_id)
    return ReplayUnknowns(
        cancelled=tuple(by_state["cancelled"]),
        failed=tuple(by_state["failed"]),
        running=tuple(by_state["running"]),
        never_ran=tuple(job.id for job in replay.never_ran),
    )


def fates(jobs: Sequence[Job]) -> dict[str, int]:
    """Return how many jobs that never ran became what."""
    named = {"running": "still waiting"}
    states = (STATES.get(job.state, "running") for job in jobs)
    return dict(Counter(named.get(state, state) for state in states))


_NAMED: Final = 5


def of_log(history: ClusterHistory) -> Iterator[str]:
    """Yield what is missing in the log itself."""
    if history.seqs and history.seqs[0] > 1:
        yield (
            f"the log begins at sequence {history.seqs[0]:,}: jobs and nodes that are told of before it are unknown; "
            "save all of one with `penstock events --after 0 -f -o json`"
        )


def of_sharing(history: ClusterHistory) -> Iterator[str]:
    """Yield what a replay makes of jobs that shared devices."""
    yield from _of_jobs(
        history,
        lambda job: job.spec.sharing != "exclusive",
        ("shared devices", "shared devices"),
        "each runs as long as it did, whoever is beside it in the replay, and in utilisation it counts with whole "
        "devices, so that may be more than 100%",
    )


def of_sizes(history: ClusterHistory) -> Iterator[str]:
    """Yield what a replay makes of elastic jobs."""
    yield from _of_jobs(
        history,
        lambda job: job.spec.elastic and job.sample is None,
        ("is elastic", "are elastic"),
        "the autoscaler sizes them in the replay, and with a size that one never had it is as fast as its profile says",
    )


def of_trials(history: ClusterHistory) -> Iterator[str]:
    """Yield what a replay makes of the trials of sweeps."""
    yield from _of_jobs(
        history,
        lambda job: bool(job.spec.parent) and job.sample is None,
        ("is a trial of a sweep", "are trials of a sweep"),
        "they are submitted when they were, also where those before them end at other times",
    )


def _of_jobs(
    history: ClusterHistory, concerned: Callable[[Job], bool], verbs: tuple[str, str], consequence: str
) -> Iterator[str]:
    """Yield a sentence about some of the jobs that ran, if there are any; ``verbs`` are of one and of several."""
    ran = [job.id for job in history.jobs if concerned(job) and history.runs.get(job.id)]
    if ran:
        number = f"{len(ran):,} jobs {verbs[1]}" if len(ran) > 1 else f"1 job {verbs[0]}"
        yield f"{number}: {_names(ran)}; {consequence}"


def of_replay(replay: Replay) -> Iterator[str]:
    """Yield what cannot be known of the jobs."""
    found = unknown(replay)
    if found.censored:
        ends = {"cancelled": len(found.cancelled), "failed": len(found.failed), "still running": len(found.running)}
        yield (
            f"{found.censored:,} of {len(replay.censored):,} jobs have no true length ({_counts(ends)}): they run as "
            "long as they did, and JCTs leave them out"
        )
    if replay.never_ran:
        names, ends = _names(found.never_ran), fates(replay.never_ran)
        yield (
            f"{len(replay.never_ran):,} jobs never ran ({_counts(ends)}): {names}; nothing is known of their length; "
            "they wait in the replay as well, and are cancelled when they were, or with the log's end"
        )


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)


def of_scores(scores: Mapping[str, ReplayScore], seed: int, check: ReplayCheck | None = None) -> Iterator[str]:
    """Yield how the figures were found."""
    first = next(iter(scores.values()))
    if check is None or check.holds:
        yield (
            f"intervals: {first.level:.0%}, percentiles of {first.resamples:,} resamples of the jobs, paired, "
            f"seed {seed}; they do not cover what a replay itself gets wrong"
        )
    for policy, score in scores.items():
        if score.unfinished:
            yield f"{policy}: {len(score.unfinished):,} jobs that completed do not here: {_names(score.unfinished)}"
    if CONFIGURED not in scores and check is None:
        yield f"how far a replay is off shows --policy {CONFIGURED}: the settings of the services once more"


def _names(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - _NAMED:,} more" if len(ids) > _NAMED else ""
    return ", ".join(ids[:_NAMED]) + more


def sections(scores: Mapping[str, ReplayScore], span: Span, check: ReplayCheck | None = None) -> list[str]:
    """Return HTML: a heading and three tables for each policy."""
    return [line for policy, score in scores.items() for line in _section(policy, score, span, check)]


CHANGES: Final = ("WHO", "JOBS", "JCT", "WAS", "NOW", "CHANGE", "INTERVAL")

_LARGEST: Final = 10


def changes(score: ReplayScore, span: Span, most: int | None = _LARGEST, *, verdict: bool = True) -> Iterator[Row]:
    """
    Yield two rows for all jobs, and for each team and user: averages and 95th percentiles.

    Parameters
    ----------
    most : int or None
        Of the teams, and of the users; None for all of them.
    verdict : bool
        Whether it may be said how sure a difference is.
    """
    for who, one in groups(score, most):
        yield from _change(who, one, span, "too few jobs" if verdict else "no verdict")


def everybody(found: CensoredTimes, span: Span) -> str:
    """Return what is known with jobs that have no true length, in a sentence."""
    was, now = found.was, found.now
    median = ""
    if was.median_s is not None and now.median_s is not None:
        median = f"; median was {span(was.median_s)}, now {span(now.median_s)}"
    return (
        f"with the {found.censored:,} that have no true length (Kaplan-Meier, up to {span(found.horizon_s)}): "
        f"average was {span(was.mean_s)}, now {span(now.mean_s)}{median}"
    )


def _section(policy: str, score: ReplayScore, span: Span, check: ReplayCheck | None) -> Iterator[str]:
    yield f"<h2>{escape(policy)} against what really happened</h2>"
    yield f"<p>{escape(finding(policy, score, span, check))}</p>"
    if score.all.jobs:
        rows = changes(score, span, most=None, verdict=check is None or check.holds)
        yield from _table(CHANGES, rows, text_columns=1)
    if score.everybody.censored:
        sentence = everybody(score.everybody, span)
        yield f'<p class="faint">{escape(sentence[0].upper() + sentence[1:])}.</p>'
    yield '<div class="pair">'
    yield from _jobs("gain", score.gained, span)
    yield from _jobs("lose", score.lost, span)
    yield "</div>"


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


def finding(policy: str, score: ReplayScore, span: Span, check: ReplayCheck | None = None) -> str:
    """Return in a sentence whether jobs complete earlier, and how sure that is."""
    found = score.all
    if not found.jobs:
        return f"No job completed both really and under {policy}: there is nothing to compare."
    over = f"over {found.jobs:,} job{'s' if found.jobs > 1 else ''}"
    if span(found.avg_s) == span(found.was_avg_s):
        figures = f"average JCT {span(found.avg_s)}, no difference, {over}"
    else:
        ratio = f" ({_ratio(found.ratio)} of what it was)" if found.ratio is not None else ""
        figures = f"average JCT {span(found.avg_s)} instead of {span(found.was_avg_s)}{ratio} {over}"
    if check is not None and not check.holds:
        return f"{policy}: {figures}; no verdict, for the replay itself is off."
    if found.avg_interval_s is None:
        return f"{policy}: {figures}, too few to say how sure that is."
    if span(found.avg_s) == span(found.was_avg_s):
        low, high = (signed(bound, span) for bound in (found.avg_interval_s.low, found.avg_interval_s.high))
        return f"{policy}: {figures}" + (f"; the interval is from {low} to {high}." if low != high else ".")
    sure = (
        "the interval of the difference does not contain 0"
        if found.certain
        else "the interval of the difference contains 0, so neither is shown to be better"
    )
    return f"{policy}: {figures}; {sure}."


def off(check: ReplayCheck, span: Span) -> str:
    """Return in a sentence how far the replay of what was recorded is off, and what follows from it."""
    if check.off is None:
        return (
            f"no verdict: no job completed both really and in the replay under {check.policy}, so nobody knows how far "
            "replays of this log are off"
        )
    figures = (
        f"replayed under {check.policy}, as it was recorded, the log has an average JCT of {span(check.avg_s)}; it was "
        f"{span(check.was_avg_s)}, so replays are off by {check.off:+.1%}"
    )
    if check.holds:
        return f"{figures}; up to {check.tolerance:.0%} there are verdicts"
    most = ", ".join(f"{job.id} ({job.name}) {signed(job.change_s, span)}" for job in check.differ[:_NAMED])
    return (
        f"no verdict: {figures}, more than the {check.tolerance:.0%} up to which it is said how sure a difference is"
        + (f". These jobs differ most: {most}" if most else "")
        + ". If the cluster had other settings than this, name its file (--config) or its policy (--recorded)"
    )


def _ratio(ratio: float) -> str:
    """Return a ratio in as many digits as tell it from 1."""
    return next((text for digits in (2, 3, 4) if float(text := f"{ratio:.{digits}f}") != 1.0), "about 1.00")


JOBS: Final = ("JOB", "NAME", "GPUS", "USER", "WAS", "NOW", "CHANGE")


def job_rows(found: tuple[JobChange, ...], span: Span) -> Iterator[Row]:
    """Yield a row for each job, under :data:`JOBS`."""
    for job in found:
        who = (job.team and job.user and f"{job.team}/{job.user}") or job.team or job.user
        yield (job.id, job.name, str(job.gpus), who, span(job.was_s), span(job.jct_s), signed(job.change_s, span))


def _jobs(what: str, jobs: tuple[JobChange, ...], span: Span) -> Iterator[str]:
    if jobs:
        count = f"The {len(jobs)} jobs that" if len(jobs) > 1 else "The one job that"
        ending = f"{what} most" if len(jobs) > 1 else f"{what}s"
        yield f"<div><h3>{count} {ending}</h3>"
        yield from _table(JOBS, job_rows(jobs, span), text_columns=2)
        yield "</div>"


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int) -> Iterator[str]:
    """Yield a table whose first columns are text."""

    def cells(tag: str, row: Sequence[str]) -> str:
        left = ' style="text-align:left"'
        return "".join(
            f"<{tag}{left if at < text_columns else ''}>{escape(cell)}</{tag}>" for at, cell in enumerate(row)
        )

    yield '<div class="scroll"><table><thead><tr>' + cells("th", [name.lower() for name in headers]) + "</tr></thead>"
    yield "<tbody>" + "".join(f"<tr>{cells('td', row)}</tr>" for row in rows) + "</tbody></table></div>"


Span = Callable[[float], str]
"""Says how lengths of time read."""
Row = tuple[str, ...]


def groups(score: ReplayScore, most: int | None = _LARGEST) -> Iterator[tuple[str, CompletionTimeChange]]:
    """Yield all jobs, then teams and users where there are several, those with the most jobs first."""
    yield "all jobs", score.all
    for what, found in (("team", score.teams), ("user", score.users)):
        if len(found) > 1:
            largest = sorted(found.items(), key=lambda pair: (-pair[1].jobs, pair[0]))
            yield from ((f"{what} {name}" if name else f"no {what}", one) for name, one in largest[:most])


def _change(who: str, one: CompletionTimeChange, span: Span, unsaid: str) -> Iterator[Row]:
    average = (one.was_avg_s, one.avg_s, one.avg_change_s, one.avg_interval_s)
    p95 = (one.was_p95_s, one.p95_s, one.p95_change_s, one.p95_interval_s)
    for what, (was_s, now_s, change_s, bounds) in (("avg", average), ("p95", p95)):
        interval = f"{signed(bounds.low, span)} to {signed(bounds.high, span)}" if bounds is not None else unsaid
        yield (who, str(one.jobs), what, span(was_s), span(now_s), signed(change_s, span), interval)
