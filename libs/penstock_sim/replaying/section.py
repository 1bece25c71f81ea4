"""Each policy against what really happened, as sections of the page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape

from penstock_sim.replaying import tables
from penstock_sim.replaying.score import JobChange, Score
from penstock_sim.replaying.tables import Span


def sections(scores: Mapping[str, Score], span: Span) -> list[str]:
    """Return HTML: a heading and three tables for each policy."""
    return [line for policy, score in scores.items() for line in _section(policy, score, span)]


def _section(policy: str, score: Score, span: Span) -> Iterator[str]:
    yield f"<h2>{escape(policy)} against what really happened</h2>"
    yield f"<p>{escape(finding(policy, score, span))}</p>"
    if score.all.jobs:
        yield from _table(tables.CHANGES, tables.changes(score, span, most=None), words=1)
    if score.everybody.censored:
        sentence = tables.everybody(score.everybody, span)
        yield f'<p class="faint">{escape(sentence[0].upper() + sentence[1:])}.</p>'
    yield '<div class="pair">'
    yield from _jobs("gain", score.gained, span)
    yield from _jobs("lose", score.lost, span)
    yield "</div>"


def finding(policy: str, score: Score, span: Span) -> str:
    """Return in a sentence whether jobs complete earlier, and how sure that is."""
    found = score.all
    if not found.jobs:
        return f"No job completed both really and under {policy}: there is nothing to compare."
    ratio = f" ({found.ratio:.2f} of what it was)" if found.ratio is not None else ""
    figures = f"average JCT {span(found.avg_s)} instead of {span(found.was_avg_s)}{ratio}"
    if found.avg_interval_s is None:
        return f"{policy}: {figures} over {found.jobs} jobs, too few to say how sure that is."
    sure = (
        "the interval of the difference does not contain 0"
        if found.certain
        else "the interval of the difference contains 0, so neither is shown to be better"
    )
    return f"{policy}: {figures} over {found.jobs:,} jobs; {sure}."


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
