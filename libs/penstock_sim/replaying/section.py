"""Each policy against what really happened, as sections of the page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Final

from penstock_sim.replaying import tables
from penstock_sim.replaying.score import Check, JobChange, Score
from penstock_sim.replaying.tables import Span

_NAMED: Final = 5


def sections(scores: Mapping[str, Score], span: Span, check: Check | None = None) -> list[str]:
    """Return HTML: a heading and three tables for each policy."""
    return [line for policy, score in scores.items() for line in _section(policy, score, span, check)]


def _section(policy: str, score: Score, span: Span, check: Check | None) -> Iterator[str]:
    yield f"<h2>{escape(policy)} against what really happened</h2>"
    yield f"<p>{escape(finding(policy, score, span, check))}</p>"
    if score.all.jobs:
        rows = tables.changes(score, span, most=None, verdict=check is None or check.holds)
        yield from _table(tables.CHANGES, rows, words=1)
    if score.everybody.censored:
        sentence = tables.everybody(score.everybody, span)
        yield f'<p class="faint">{escape(sentence[0].upper() + sentence[1:])}.</p>'
    yield '<div class="pair">'
    yield from _jobs("gain", score.gained, span)
    yield from _jobs("lose", score.lost, span)
    yield "</div>"


def finding(policy: str, score: Score, span: Span, check: Check | None = None) -> str:
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
        low, high = (tables.signed(bound, span) for bound in (found.avg_interval_s.low, found.avg_interval_s.high))
        return f"{policy}: {figures}" + (f"; the interval is from {low} to {high}." if low != high else ".")
    sure = (
        "the interval of the difference does not contain 0"
        if found.certain
        else "the interval of the difference contains 0, so neither is shown to be better"
    )
    return f"{policy}: {figures}; {sure}."


def off(check: Check, span: Span) -> str:
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
    most = ", ".join(f"{job.id} ({job.name}) {tables.signed(job.change_s, span)}" for job in check.differ[:_NAMED])
    return (
        f"no verdict: {figures}, more than the {check.tolerance:.0%} up to which it is said how sure a difference is"
        + (f". These jobs differ most: {most}" if most else "")
        + ". If the cluster had other settings than this, name its file (--config) or its policy (--recorded)"
    )


def _ratio(ratio: float) -> str:
    """Return a ratio in as many digits as tell it from 1."""
    return next((text for digits in (2, 3, 4) if float(text := f"{ratio:.{digits}f}") != 1.0), "about 1.00")


def _jobs(what: str, jobs: tuple[JobChange, ...], span: Span) -> Iterator[str]:
    if jobs:
        count = f"The {len(jobs)} jobs that" if len(jobs) > 1 else "The one job that"
        ending = f"{what} most" if len(jobs) > 1 else f"{what}s"
        yield f"<div><h3>{count} {ending}</h3>"
        yield from _table(tables.JOBS, tables.jobs(jobs, span), words=2)
        yield "</div>"


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]], words: int) -> Iterator[str]:
    """Yield a table whose first columns are words."""

    def cells(tag: str, row: Sequence[str]) -> str:
        left = ' style="text-align:left"'
        return "".join(f"<{tag}{left if at < words else ''}>{escape(cell)}</{tag}>" for at, cell in enumerate(row))

    yield '<div class="scroll"><table><thead><tr>' + cells("th", [name.lower() for name in headers]) + "</tr></thead>"
    yield "<tbody>" + "".join(f"<tr>{cells('td', row)}</tr>" for row in rows) + "</tbody></table></div>"
