"""All of a comparison in one folder: the page, the plots, the figures, and the jobs under each policy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec

from penstock_sim.report import jobs_csv, page
from penstock_sim.report.addition import Addition
from penstock_sim.report.comparison import Comparison
from penstock_sim.report.picture import NoPlots, Picture, require

PAGE: Final = "report.html"
SUMMARY: Final = "summary.json"


def write(comparison: Comparison, folder: Path, title: str, addition: Addition | None = None) -> str:
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
        jobs_csv.write(outcome, folder / f"jobs-{file_name(outcome.policy)}.csv")
    pictures, missing = drawn(comparison, addition)
    for picture in pictures:
        (folder / f"{file_name(picture.name)}.svg").write_text(picture.svg, encoding="utf-8")
    sections = addition.sections if addition is not None else ()
    (folder / PAGE).write_text(page.html(comparison, pictures, title, sections), encoding="utf-8")
    return missing


def drawn(comparison: Comparison, addition: Addition | None = None) -> tuple[list[Picture], str]:
    """Return all pictures, or none and why."""
    try:
        require()
    except NoPlots as error:
        return [], str(error)
    from penstock_sim.report.plots import pictures  # noqa: PLC0415 - it needs matplotlib, which may not be there

    first = addition.pictures() if addition is not None else ()
    return [*first, *pictures(comparison)], ""


def file_name(text: str) -> str:
    """
    Return a name for a file.

    Examples
    --------
    >>> file_name("allox+2d-gittins"), file_name("as it was")
    ('allox+2d-gittins', 'as-it-was')
    """
    return re.sub(r"[^\w.+-]+", "-", text)
