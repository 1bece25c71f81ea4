"""The page and the plots: files that stand on their own."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from outcome_rows import outcome_of, random_trace, trace_of

from penstock_simulator.report import page, picture
from penstock_simulator.report.picture import Picture
from penstock_simulator.report.policy_comparison import Comparison

pytestmark = pytest.mark.slow

TRACE = random_trace(30, seed=2)
KEYS = {
    "fifo": TRACE.submit_s,
    "srtf": TRACE.duration_s,
    "<b>&mine": TRACE.num_gpus,
    "allox+2d-gittins": -TRACE.submit_s,
}


def compared(count: int = 3) -> Comparison:
    outcomes = [outcome_of(TRACE, 8, name, key=KEYS[name].__getitem__) for name in list(KEYS)[:count]]
    return Comparison(
        TRACE,
        "2x4",
        outcomes,
        settings={"thresholds_gpu_s": "3250,7200"},
        command=["penstock", "sim", "my jobs.csv"],
        versions={"penstock": "1.2.3"},
    )


@pytest.fixture(scope="module")
def drawn() -> Sequence[Picture]:
    return page.drawn(compared())[0]


def test_every_plot_is_drawn_and_is_svg(drawn: Sequence[Picture]) -> None:
    names = [one.name for one in drawn]
    assert names[:4] == ["jct-cdf", "speedups", "over-time", "jct-by-gpus"]
    assert names[4:] == ["gantt-fifo", "gantt-srtf", "gantt-<b>&mine"]
    for one in drawn:
        assert ET.fromstring(one.svg).tag.endswith("svg")  # noqa: S314 - our own


def test_one_policy_alone_is_no_comparison_and_what_is_not_known_is_not_drawn() -> None:
    alone = compared(1)
    bare = replace(alone, outcomes=[replace(alone.outcomes[0], timeline=None, spells=None)])
    assert [one.name for one in page.drawn(bare)[0]] == ["jct-cdf", "jct-by-gpus"]


def test_nothing_is_drawn_of_jobs_that_never_ended() -> None:
    outcome = outcome_of(TRACE, 8)
    never = replace(outcome, end_s=np.full(len(TRACE), np.nan), timeline=None, spells=None)
    assert page.drawn(Comparison(TRACE, "2x4", [never])) == ([], "")


def test_the_same_comparison_gives_the_same_bytes(drawn: Sequence[Picture]) -> None:
    again = page.drawn(compared())[0]
    assert [one.svg for one in again] == [one.svg for one in drawn]


def test_the_page_is_well_formed_and_asks_for_nothing_else(drawn: Sequence[Picture]) -> None:
    html = page.html(compared(), drawn)
    ET.fromstring(html.removeprefix("<!DOCTYPE html>"))  # noqa: S314 - our own
    wanted = re.findall(r'(?:\b(?:src|href)="|@import|url\()([^"\')]*)', html)
    assert wanted
    assert all(link.startswith(("#", "data:")) for link in wanted), set(wanted)
    assert "<script" not in html


def test_no_two_things_on_the_page_have_one_name(drawn: Sequence[Picture]) -> None:
    names = re.findall(r'\bid="([^"]*)"', page.html(compared(), drawn))
    assert len(names) == len(set(names))


def test_plots_take_the_colours_of_the_page(drawn: Sequence[Picture]) -> None:
    inlined = picture.inline(drawn[0])
    assert "var(--ink)" in inlined
    assert picture.INK in drawn[0].svg
    assert picture.INK not in inlined


def test_hostile_words_of_a_trace_are_text_in_page_and_plots() -> None:
    hostile = "a<script>\x1b[2J\x00\x9b\u202e\u2066\u2028"
    policies = [outcome_of(TRACE, 8, name, key=KEYS["fifo"].__getitem__) for name in ("fifo", hostile)]
    there = compared()
    told = replace(
        there, cluster=hostile, outcomes=policies, settings={hostile: hostile}, command=["penstock", hostile]
    )
    pictures, _ = page.drawn(told)
    html = page.html(told, pictures)
    ET.fromstring(html.removeprefix("<!DOCTYPE html>"))  # noqa: S314 - our own
    assert "a&lt;script&gt;\\x1b[2J\\x00\\x9b\\u202e" in html
    for text in (html, *(one.svg for one in pictures)):
        assert "<script" not in text
        assert [c for c in text if c != "\n" and unicodedata.category(c) in {"Cc", "Cf", "Zl"}] == []
        ET.fromstring(text.removeprefix("<!DOCTYPE html>"))  # noqa: S314 - our own


def test_the_page_tells_facts_rows_settings_and_the_command() -> None:
    html = page.html(compared(), [])
    for told in ("without an end time", "thresholds_gpu_s", "3250,7200", "penstock 1.2.3", "&lt;b&gt;&amp;mine"):
        assert told in html, told
    assert "penstock sim &#x27;my jobs.csv&#x27;" in html
    assert "pip install 'penstock[plot]'" in html


def test_the_shortest_average_is_the_first_sentence() -> None:
    trace = trace_of([(0.0, 1, 100.0), (0.0, 1, 10.0)])
    best = outcome_of(trace, 1, "srtf", key=lambda job: float(trace.duration_s[job]))
    fifo = outcome_of(trace, 1)
    assert page.findings(Comparison(trace, "1x1", [fifo, best])) == [
        "Shortest average JCT: srtf, 1 min on 1 GPUs, 0.57 of that of fifo (1.75 times as fast)."
    ]
    assert page.findings(Comparison(trace, "1x1", [fifo, replace(fifo, policy="las")])) == [
        "No policy has an average JCT noticeably shorter than fifo on 1 GPUs."
    ]
    assert page.findings(Comparison(trace, "1x1", [fifo])) == []


def test_a_folder_has_page_figures_jobs_and_plots(tmp_path: Path) -> None:
    assert page.write_folder(compared(1), tmp_path / "new" / "report", "Simulation") == ""
    found = {path.name for path in (tmp_path / "new" / "report").iterdir()}
    assert {"report.html", "summary.json", "jobs-fifo.csv", "jct-cdf.svg", "over-time.svg", "gantt-fifo.svg"} <= found


def test_without_matplotlib_all_but_the_plots_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "find_spec", lambda _name: None)
    assert "pip install 'penstock[plot]'" in page.write_folder(compared(1), tmp_path, "Simulation")
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "summary.json", "jobs-fifo.csv"}


def test_up_to_eight_policies_have_eight_colours_and_more_differ_in_their_dashes() -> None:
    names = ["fifo", "fifo-backfill", "srtf", "srsf", "las", "2d-las", "2d-gittins", "allox+2d-gittins"]
    assert len({look.colour for look in picture.looks(names).values()}) == 8
    more = picture.looks([*names, "elastic", "max-min", "allox", "fewest-gpus"])
    assert len({(look.colour, str(look.dashes)) for look in more.values()}) == 12
    assert picture.looks(["x", "fifo"])["fifo"].colour == picture.looks(["fifo", "y", "z"])["fifo"].colour
