"""
The page of a comparison, and the folder around it.

:func:`html` returns one file that loads nothing else, for light and dark screens. :func:`write_folder` writes a folder
with the page, the plots, the figures, and the jobs under each policy. :func:`write_jobs` writes one policy's jobs as
CSV, one a line, for readers who want to compute figures of their own.
"""

from __future__ import annotations

import csv
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Final

import msgspec

from penstock_log.text import escaped_lines
from penstock_simulator.outcome import Outcome, OutcomeSummary
from penstock_simulator.report import policy_comparison
from penstock_simulator.report.picture import NoPlots, Picture, ReportAddition, inline, looks, require
from penstock_simulator.report.policy_comparison import Comparison, length
from penstock_simulator.trace import Floats

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
        HTML that comes behind the figures, such as of :mod:`penstock_simulator.replay.report`.
    """
    heading = f"{title}: {comparison.trace.name} on {comparison.cluster}"
    style = files("penstock_simulator.report").joinpath("page.css").read_text(encoding="utf-8")
    return escaped_lines("\n".join(_page(comparison, pictures, heading, style, sections)))


def _page(
    comparison: Comparison, pictures: Sequence[Picture], heading: str, style: str, sections: Sequence[str]
) -> list[str]:
    return [
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


def findings(comparison: Comparison) -> list[str]:
    """Return a sentence on which policy has the shortest average JCT, and by how much."""
    first = next(iter(comparison.summaries), "")
    gpus = policy_comparison.gpu_count(comparison)
    ratios = {policy: comparison.ratio(policy) for policy in comparison.summaries if policy != first}
    known = {policy: ratio for policy, ratio in ratios.items() if ratio}
    if not known:
        return []
    best = min(known, key=lambda policy: known[policy])
    average_s = length(comparison.summaries[best].avg_jct_s)
    if known[best] > _EVEN:
        return [f"No policy has an average JCT noticeably shorter than {first} on {gpus} GPUs."]
    return [
        f"Shortest average JCT: {best}, {average_s} on {gpus} GPUs, {policy_comparison.ratio(known[best])} of "
        f"that of {first} "
        f"({policy_comparison.ratio(1 / known[best])} times as fast)."
    ]


def _cards(comparison: Comparison) -> Iterable[str]:
    yield '<div class="cards">'
    yield from _card("Trace", policy_comparison.of_trace(comparison))
    yield from _card("Cluster and settings", [*policy_comparison.of_cluster(comparison), *comparison.settings.items()])
    if dropped := policy_comparison.dropped(comparison):
        yield from _card("Rows that are no jobs", dropped)
    yield "</div>"


def _card(title: str, pairs: policy_comparison.Pairs) -> Iterable[str]:
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
        yield f"<td>{policy_comparison.ratio(comparison.ratio(policy))}</td>"
        for name, _, _ in columns:
            emphasis = ' class="best"' if getattr(one, name) == best[name] else ""
            yield f"<td{emphasis}>{_cell(one, name)}</td>"
        yield "</tr>"
    yield '</tbody></table></div><ul class="notes">'
    yield from (f"<li>{escape(note)}</li>" for note in policy_comparison.notes(comparison))
    yield "</ul>"


def _best(summaries: Iterable[OutcomeSummary], name: str, least: bool | None) -> float | None:
    values: list[float] = [getattr(one, name) for one in summaries]
    if least is None or len(set(values)) < 2:
        return None
    return min(values) if least else max(values)


def _cell(one: OutcomeSummary, name: str) -> str:
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


PAGE: Final = "report.html"
SUMMARY: Final = "summary.json"


def write_jobs(outcome: Outcome, path: Path) -> None:
    """
    Write a line for each job, in the trace's order; a cell is empty where there was nothing, such as no end.

    The first four columns are a trace in the plain form: what one simulation wrote, another can read.
    """
    trace = outcome.trace
    named = {"vc": trace.vcs, "user": trace.users, "model": trace.models, "kind": trace.kinds}
    columns: dict[str, Iterable[object]] = {
        "job_id": trace.job_ids,
        "submit_s": _seconds(trace.submit_s),
        "num_gpus": trace.num_gpus.tolist(),
        "duration_s": _seconds(trace.duration_s),
        "start_s": _seconds(outcome.start_s),
        "end_s": _seconds(outcome.end_s),
        "jct_s": _seconds(outcome.end_s - trace.submit_s),
        "executed_s": _seconds(outcome.executed_s),
        "preemptions": outcome.preemptions.tolist(),
        "promotions": outcome.promotions.tolist(),
        **{name: names for name, names in named.items() if names},
    }
    if trace.batch_sizes is not None:
        columns["batch_size"] = trace.batch_sizes.tolist()
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def write_folder(comparison: Comparison, folder: Path, title: str, addition: ReportAddition | None = None) -> str:
    """
    Write ``report.html``, ``summary.json``, ``jobs-POLICY.csv`` and the plots as SVG; make the folder if there is none.

    Returns
    -------
    str
        What could not be written and what to do about it: the plots, where matplotlib is not installed; else empty.
    """
    folder.mkdir(parents=True, exist_ok=True)
    document = comparison.document if addition is None else addition.document
    body = msgspec.json.format(msgspec.json.encode(document), indent=2)
    (folder / SUMMARY).write_bytes(body + b"\n")
    for outcome in comparison.outcomes:
        write_jobs(outcome, folder / f"jobs-{file_name(outcome.policy)}.csv")
    pictures, missing = drawn(comparison, addition)
    for picture in pictures:
        (folder / f"{file_name(picture.name)}.svg").write_text(picture.svg, encoding="utf-8")
    sections = addition.sections if addition is not None else ()
    (folder / PAGE).write_text(html(comparison, pictures, title, sections), encoding="utf-8")
    return missing


def drawn(comparison: Comparison, addition: ReportAddition | None = None) -> tuple[list[Picture], str]:
    """Draw all pictures of a comparison; return them, or none and the reason."""
    try:
        require()
    except NoPlots as error:
        return [], str(error)
    from penstock_simulator.report.plots import pictures  # noqa: PLC0415 - it needs matplotlib, which may not be there

    first = addition.pictures() if addition is not None else ()
    return [*first, *pictures(comparison)], ""


def file_name(text: str) -> str:
    """
    Return a text as the name of a file: letters, digits, _, +, . and - stay, what lies between becomes a hyphen.

    Examples
    --------
    >>> file_name("allox+2d-gittins"), file_name("as it was")
    ('allox+2d-gittins', 'as-it-was')
    """
    return re.sub(r"[^\w.+-]+", "-", text)


def _seconds(values: Floats) -> Iterator[str]:
    """Return numbers that read back as the same: whole ones without a fraction, none as nothing."""
    for value in values.tolist():
        if math.isfinite(value):
            yield str(int(value)) if value.is_integer() else repr(value)
        else:
            yield ""
