"""What `penstock top` draws: odd words, narrow and wide terminals, terminals without UTF-8 or colours."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from typing import Any

import pytest
from fake_gateway import job_view
from gateway_cases import joined, placed, started, waits
from rich.cells import cell_len
from top_screens import job, top_screen

from penstock_bus.port import LogLine
from penstock_cli.top.device_cells import device_map
from penstock_cli.top.job_columns import COLUMNS, SORTED_BY, JobTableLayout, QueueFilter, QueueOrder
from penstock_cli.top.job_page import event_page, why_page
from penstock_cli.top.metric_plot import MetricHistory, plot_lines
from penstock_cli.top.output_lines import OutputLines
from penstock_cli.top.terminal_style import ASCII, UNICODE, Glyphs, text_of
from penstock_log import Wait, views

HOSTILE = "[red]x[/red]\x1b]0;mine\x07\n\u202e名前<script>"
FACTS = (
    joined(fast=2),
    job("runs", name="train"),
    placed("runs", 0),
    started("runs"),
    job("waits", gpus=4),
    waits(Wait(job_id="waits", cause="capacity", evidence="all are held")),
)


def holder(job_id: str = "j1", **fields: Any) -> views.HolderView:
    default: dict[str, Any] = {"user": "ann", "team": "", "state": "R", "gpus": 1, "sharing": "exclusive"}
    return views.HolderView(id=job_id, **{**default, **fields})


def devices_of(node_id: str = "n1", *jobs: tuple[str, ...], **fields: Any) -> views.NodeDevicesView:
    """Return a node; each device has the jobs that are named for it."""
    own = tuple(views.DeviceOccupation(i, "fast", 16 << 30, ids) for i, ids in enumerate(jobs or (("j1",), ())))
    return views.NodeDevicesView(**{"id": node_id, "pool": "default", "state": "up", "devices": own, **fields})


def row_of(view: views.JobView) -> views.JobRow:
    return views.JobRow.of(view)


def is_harmless(text: str) -> bool:
    return all(unicodedata.category(c) not in {"Cc", "Cf", "Cs"} for c in text)


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
@pytest.mark.parametrize("width", [20, 80, 200])
def test_a_row_is_as_wide_as_the_terminal_whatever_its_words(glyphs: Glyphs, width: int) -> None:
    view = job_view(HOSTILE, name=HOSTILE, user=HOSTILE, team=HOSTILE, pool=HOSTILE, reason=HOSTILE, state="F")
    layout = JobTableLayout(glyphs, width)
    layout.fit([view])
    text = text_of(layout.row(view, is_marked=True))
    assert is_harmless(text)
    assert text.isascii() or not glyphs.is_ascii
    if width >= 80:
        assert cell_len(text) == width


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
def test_why_events_devices_and_output_are_harmless_too(glyphs: Glyphs) -> None:
    why = views.WhyView(
        id=HOSTILE, name=HOSTILE, state="PD", cause="capacity", evidence=HOSTILE, remedy=HOSTILE, not_causes=(HOSTILE,),
        since_s=0.0, rank=None,
    )  # fmt: skip
    event = views.EventView(
        seq=1, stored_s=1.0, subject="penstock.evt.job.j1", actor=HOSTILE, cause=0, type="t", at_s=1.0,
        fact={"reason": HOSTILE},
    )  # fmt: skip
    holders = {HOSTILE: holder(HOSTILE, user=HOSTILE, team=HOSTILE, gives_to=(HOSTILE,))}
    cells = device_map([devices_of(HOSTILE, (HOSTILE,), (), reason=HOSTILE)], holders, "user", 80, glyphs)
    output = OutputLines(ranks=True)
    output.add_piece(LogLine(seq=1, job_id="j", rank=3, stored_s=0.0, data=HOSTILE.encode(), missing=HOSTILE))
    shown = [text_of(line) for line in (*why_page(why, 80, 9.0, glyphs), *event_page([event], 80, glyphs))]
    shown += [text_of(cells.row(0, 0)), text_of(cells.legend()), glyphs.plain(cells.about(0, 0, 1.0))]
    shown += [glyphs.plain(output.line(number)) for number in range(len(output))]
    assert all(map(is_harmless, shown)), shown
    assert all(text.isascii() for text in shown) or not glyphs.is_ascii


@pytest.mark.slow
async def test_a_terminal_without_utf_8_is_given_ascii_only() -> None:
    async with top_screen(*FACTS, glyphs=ASCII) as screen:
        for keys in (("j",), ("c",), ("n", "enter"), ("w",), ("escape", "1"), ("question_mark",), ("escape", "4")):
            await screen.press(*keys)
            await screen.refreshed()
            assert screen.text.isascii(), screen.text


@pytest.mark.slow
@pytest.mark.parametrize("size", [(20, 6), (80, 24), (200, 60)], ids=str)
async def test_every_pane_fits_into_every_terminal(size: tuple[int, int]) -> None:
    async with top_screen(*FACTS, size=size) as screen:
        for keys in (("1",), ("2",), ("enter",), ("4",), ("question_mark",), ("escape", "2", "c"), ("n", "w")):
            await screen.press(*keys)
            await screen.refreshed()
            assert len(screen.lines) == size[1]
            assert max(map(len, screen.lines)) <= size[0]


@pytest.mark.slow
async def test_a_wide_terminal_has_more_columns_and_a_job_beside_its_course() -> None:
    async with top_screen(*FACTS, size=(200, 60)) as screen:
        await screen.sees("PREEMPTED", "POOL")
        await screen.chooses("waits")
        await screen.press("enter")
        await screen.sees("Story")
        titles = next(line for line in screen.lines if line.startswith("Job"))
        assert "Why" in screen.text
        assert titles


@pytest.mark.slow
async def test_colours_are_of_the_terminals_own_palette(monkeypatch: pytest.MonkeyPatch) -> None:
    async with top_screen(*FACTS) as screen:
        await screen.sees("runs")
        segments = [segment for strip in screen.app.screen._compositor.render_strips() for segment in strip]
        colours = [segment.style.color for segment in segments if segment.style and segment.style.color]
        grounds = [segment.style.bgcolor for segment in segments if segment.style and segment.style.bgcolor]
        assert all(colour.triplet is None for colour in (*colours, *grounds)), "a theme of ours would hide a light one"


@pytest.mark.slow
async def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with top_screen(*FACTS) as screen:
        await screen.sees("runs")
        assert screen.app.no_color


def test_devices_can_be_told_apart_without_colours() -> None:
    nodes = [devices_of("n1", state="draining"), devices_of("n2", state="lost")]
    cells = device_map(nodes, {"j1": holder()}, "user", 80, UNICODE)
    assert text_of(cells.row(0)).split() == ["n1", "draining", "fast", "an", "--"]
    assert text_of(cells.row(1)).split() == ["n2", "lost", "fast", "an", "xx"]


def test_a_shared_device_says_how_many_share_it_and_what_they_hold() -> None:
    shared = views.DeviceOccupation(0, "fast", 16 << 30, ("j1", "j2", "j3"), "3 jobs hold 11 of 16 GiB")
    node = devices_of(devices=(shared,), heard_s=5.0)
    cells = device_map([node], {"j1": holder(started_s=1.0)}, "user", 80, UNICODE)
    assert text_of(cells.row(0)).split()[-1] == "a3"
    assert cells.about(0, 0, 7.0) == (
        "n1/fast0 (fast, 16GiB), pool default; "
        "shared by 3: j1, j2, j3 of ann for 6.0s (3 jobs hold 11 of 16 GiB); heard 2.0s ago"
    )


def test_a_device_says_for_whom_it_is_given_up_and_why_its_node_is_drained() -> None:
    node = devices_of("n1", ("j1",), (), state="draining", reason="new driver")
    cells = device_map([node], {"j1": holder(gives_to=("j7",), state="PR")}, "user", 80, UNICODE)
    assert "j1 of ann (PR), gives it up for j7" in cells.about(0, 0, 1.0)
    assert "idle, draining (new driver)" in cells.about(0, 1, 1.0)


def test_a_node_of_a_pilot_is_marked_and_says_for_how_long_it_stays() -> None:
    nodes = [devices_of("n1", pilot="lab-1", until_s=61.0), devices_of("n2", state="leaving", pilot="lab-2")]
    cells = device_map(nodes, {"j1": holder()}, "user", 80, UNICODE)
    assert text_of(cells.row(0)).split()[:2] == ["n1", "pilot"]
    assert text_of(cells.row(1)).split()[:2] == ["n2", "leaving"]
    assert "pilot lab-1, for 1m00s more" in cells.about(0, 1, 1.0)
    assert cells.about(1, 1, 1.0).endswith("pilot lab-2")


def test_a_node_with_many_devices_takes_several_lines() -> None:
    cells = device_map([devices_of("n1", *[()] * 80)], {}, "user", 80, UNICODE)
    assert len(cells.lines) == 5
    assert sum(len(line.devices) for line in cells.lines) == 80
    assert all(len(text_of(cells.row(number))) <= 80 for number in range(5))


def test_a_pool_shows_its_nodes_only() -> None:
    cells = device_map([devices_of("n1"), devices_of("n2", pool="b")], {}, "user", 80, UNICODE, pool="b")
    assert [line.node.id for line in cells.lines] == ["n2"]


@pytest.mark.parametrize("title", SORTED_BY)
def test_every_order_sorts_and_breaks_ties_by_the_newest(title: str) -> None:
    jobs = [row_of(job_view(f"j{i}", submitted_s=float(i), state=state)) for i, state in enumerate(("CD", "PD", "R"))]
    found = QueueOrder(title).sorted(jobs)
    assert len(found) == 3
    assert {job.id for job in found} == {"j0", "j1", "j2"}


def test_columns_that_cannot_be_sorted_are_left_out_by_s() -> None:
    order, seen = QueueOrder(), []
    for _ in COLUMNS:
        order = order.following()
        seen.append(order.title)
    assert "METRICS" not in seen
    assert "NODES/REASON" in seen


def test_a_filter_takes_every_word_anywhere() -> None:
    view = row_of(job_view("abc", name="Train", user="ann", team="vision", state="R"))
    assert QueueFilter(text="VIS tra").matches(view)
    assert not QueueFilter(text="vis bob").matches(view)
    assert not replace(QueueFilter(text="vis"), group="ended").matches(view)


def test_a_metric_that_is_no_number_leaves_a_gap_and_breaks_nothing() -> None:
    points = [(1, 1.0), (2, float("nan")), (3, float("inf")), (4, 2.0)]
    assert plot_lines("loss", points, 40, UNICODE)[-1].strip() == "step 1 to 4"
    assert plot_lines("loss", [(1, float("nan"))], 40, UNICODE) == ["loss: nan at step 1"]


def test_a_long_history_is_thinned_and_keeps_its_ends() -> None:
    history = MetricHistory()
    for step in range(10_000):
        history.add_report(step, {"loss": float(step)})
    points = history.series["loss"]
    assert len(points) <= 2_001
    assert (points[0][0], points[-1][0]) == (0, 9_999)


def test_a_log_without_an_end_takes_no_more_than_its_bound() -> None:
    output = OutputLines(ranks=False, most=100)
    for number in range(1_000):
        output.add_piece(LogLine(seq=number, job_id="j", rank=0, stored_s=0.0, data=b"line %d\n" % number))
    assert 100 <= len(output) <= 110
    assert output.line(len(output) - 1) == "line 999"
    assert output.dropped + len(output) == 1_000
    for _ in range(1_000):
        output.add_piece(LogLine(seq=1, job_id="j", rank=0, stored_s=0.0, data=b"50 % of a bar \r" * 10))
    assert output.line(len(output) - 1) == "50 % of a bar "
