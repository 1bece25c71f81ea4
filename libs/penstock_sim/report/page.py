"""A comparison on one page: a single file that asks for nothing else, for light and dark screens."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import Final

from penstock_sim.outcome import Summary
from penstock_sim.report import facts, table
from penstock_sim.report.comparison import Comparison
from penstock_sim.report.lengths import length
from penstock_sim.report.palette import looks
from penstock_sim.report.picture import Picture, inline

_COLUMNS: Final = (
    ("avg_jct_s", "average JCT, s", True),
    ("median_jct_s", "median JCT, s", True),
    ("p95_jct_s", "p95 JCT, s", True),
    ("p99_jct_s", "p99 JCT, s", True),
    ("avg_queue_s", "average queueing, s", True),
    ("makespan_s", "makespan, s", True),
    ("utilisation", "GPUs in use", False),
    ("preemptions", "pre-emptions", None),
    ("finished", "finished", None),
)
"""Figures, their headers, and whether the least is best; None where neither is."""
_COUNTS: Final = (("in_window", "finished in the window", False), ("dropped", "dropped", True))
"""Beside them where :attr:`Comparison.counts_jobs`."""
_EVEN: Final = 0.995
"""From this ratio on, two averages are called the same."""


def html(
    comparison: Comparison, pictures: Sequence[Picture], title: str = "Simulation", sections: Sequence[str] = ()
) -> str:
    """
    Return the page.

    Parameters
    ----------
    pictures : sequence of Picture
        None where they could not be drawn; the page then says so.
    title : str
        What was done: simulated or replayed.
    sections : sequence of str
        HTML that comes behind the figures, such as of :mod:`penstock_sim.replaying.section`.
    """
    heading = f"{title}: {comparison.trace.name} on {comparison.cluster}"
    style = files("penstock_sim.report").joinpath("page.css").read_text(encoding="utf-8")
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            f'<head><meta charset="utf-8"/><title>{escape(heading)}</title>',
            '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
            f"<style>\n{style}</style></head>",
            f"<body><h1>{escape(heading)}</h1>",
            *(f'<p class="lead">{escape(sentence)}</p>' for sentence in findings(comparison)),
            *_cards(comparison),
            *_figures_table(comparison),
            *sections,
            *_drawn(pictures),
            *_reproduce(comparison),
            "</body></html>",
            "",
        ]
    )


def findings(comparison: Comparison) -> list[str]:
    """Return what the figures say, in a sentence or two."""
    first = next(iter(comparison.summaries), "")
    gpus = table.gpus(comparison)
    ratios = {policy: comparison.ratio(policy) for policy in comparison.summaries if policy != first}
    known = {policy: ratio for policy, ratio in ratios.items() if ratio}
    if not known:
        return []
    best = min(known, key=lambda policy: known[policy])
    average_s = length(comparison.summaries[best].avg_jct_s)
    if known[best] > _EVEN:
        return [f"No policy has an average JCT noticeably shorter than {first} on {gpus} GPUs."]
    return [
        f"Shortest average JCT: {best}, {average_s} on {gpus} GPUs, {table.ratio(known[best])} of that of {first} "
        f"({table.ratio(1 / known[best])} times as fast)."
    ]


def _cards(comparison: Comparison) -> Iterable[str]:
    yield '<div class="cards">'
    yield from _card("Trace", facts.of_trace(comparison))
    yield from _card("Cluster and settings", [*facts.of_cluster(comparison), *comparison.settings.items()])
    if dropped := facts.dropped(comparison):
        yield from _card("Rows that are no jobs", dropped)
    yield "</div>"


def _card(title: str, pairs: facts.Pairs) -> Iterable[str]:
    yield f'<div class="card"><h3>{escape(title)}</h3><dl>'
    yield from (f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in pairs)
    yield "</dl></div>"


def _figures_table(comparison: Comparison) -> Iterable[str]:
    summaries, look = comparison.summaries, looks(list(comparison.summaries))
    columns = (*_COLUMNS, *(_COUNTS if comparison.counts_jobs else ()))
    yield '<h2>Figures</h2><div class="scroll"><table><thead><tr><th>policy</th><th>ratio</th>'
    yield "".join(f"<th>{escape(header)}</th>" for _, header, _ in columns) + "</tr></thead><tbody>"
    best = {name: _best(summaries.values(), name, least) for name, _, least in columns}
    for policy, one in summaries.items():
        yield f'<tr><td><span class="swatch" style="background:{look[policy].colour}"></span>{escape(policy)}</td>'
        yield f"<td>{table.ratio(comparison.ratio(policy))}</td>"
        for name, _, _ in columns:
            emphasis = ' class="best"' if getattr(one, name) == best[name] else ""
            yield f"<td{emphasis}>{_cell(one, name)}</td>"
        yield "</tr>"
    yield '</tbody></table></div><ul class="notes">'
    yield from (f"<li>{escape(note)}</li>" for note in table.notes(comparison))
    yield "</ul>"


def _best(summaries: Iterable[Summary], name: str, least: bool | None) -> float | None:
    values: list[float] = [getattr(one, name) for one in summaries]
    if least is None or len(set(values)) < 2:
        return None
    return min(values) if least else max(values)


def _cell(one: Summary, name: str) -> str:
    value = getattr(one, name)
    if name == "utilisation":
        return f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if value >= 1000 else f"{value:,.1f}"


def _drawn(pictures: Sequence[Picture]) -> Iterable[str]:
    if not pictures:
        yield "<h2>Plots</h2><p>None were drawn: that needs matplotlib, <code>pip install 'penstock[plot]'</code>.</p>"
    gantts = [picture for picture in pictures if picture.name.startswith("gantt-")]
    for picture in pictures:
        if picture not in gantts:
            yield f"<h2>{escape(picture.title)}</h2>"
            yield from _figure(picture)
    if gantts:
        yield "<h2>GPUs over time</h2>"
    for at, picture in enumerate(gantts):
        opened = "" if at else ' open="open"'
        yield f"<details{opened}><summary>{escape(picture.title)}</summary>"
        yield from _figure(picture)
        yield "</details>"


def _figure(picture: Picture) -> Iterable[str]:
    drawn = inline(picture).replace("<svg ", f'<svg role="img" aria-label="{escape(picture.title)}" ', 1)
    yield f"<figure>{drawn}<figcaption>{escape(picture.caption)}</figcaption></figure>"


def _reproduce(comparison: Comparison) -> Iterable[str]:
    yield "<h2>How to get this again</h2>"
    if comparison.command:
        yield f"<pre>{escape(shlex.join(comparison.command))}</pre>"
    versions = ", ".join(f"{name} {version}" for name, version in comparison.versions.items())
    made_by = escape(versions or "penstock")
    yield f'<p class="faint">Made by {made_by}. The same trace, settings and seed give the same figures.</p>'
