"""Device time as ``usage`` lists it, and as ``report`` writes it."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fake_gateway import FakeGateway

from penstock_cli import render
from penstock_log.request_bodies import UsageRequest
from penstock_log.usage import Usage
from penstock_log.views import UsageRowView, UsageView, WaitsView

Run = Callable[..., tuple[int, str, str]]
RECORDED = Path(__file__).parents[2] / "data" / "recorded" / "drains-and-lanes.log.gz"
HOSTILE = "<script>alert(1)</script>\n'\"&\x1b[2J"
DAY_S = 86_400.0


def used(name: str, gpu_h: float = 1.0, **more: object) -> UsageRowView:
    held = 3600.0 * gpu_h
    usage = Usage(
        requested_gpu_s=2 * held,
        waited_gpu_s=held,
        held_gpu_s=held,
        used_gpu_s=held / 2,
        idle_gpu_s=held / 4,
        lost_gpu_s=held / 4,
        lost_to_preemption_gpu_s=held / 8,
        jobs=3,
        runs=4,
        preemptions=1,
    )
    return UsageRowView(name=name, usage=usage, waits=WaitsView(jobs=3, median_s=60.0, p90_s=90.0), **more)  # type: ignore[arg-type]


def answers(*rows: UsageRowView, whole_days: tuple[str, ...] = ()) -> Callable[[UsageRequest], UsageView]:
    def answer(ask: UsageRequest) -> UsageView:
        total = used("", sum(row.usage.held_gpu_s for row in rows) / 3600.0)
        return UsageView(
            by=ask.by, since_s=0.0, until_s=7 * DAY_S, rows=rows, total=total, seq=9, whole_days=whole_days
        )

    return answer


def test_device_time_is_listed_in_gpu_hours(penstock: Run, gateway: FakeGateway) -> None:
    gateway.usage = answers(used("ada", 2.0), used("", 0.5), used("", 1234.0, others=True))
    code, text, _ = penstock("usage", "--by", "team", "--since", "30d", "--sort", "lost", "--limit", "5")
    assert code == 0
    lines = [line.split() for line in text.splitlines()]
    assert lines[0] == ["TEAM", "REQUESTED", "WAITED", "HELD", "USED", "IDLE", "UNMEASURED", "LOST", "USED%", "JOBS"]
    assert lines[1] == ["ada", "4", "2", "2", "1", "0.5", "0", "0.5", "50%", "3"]
    assert [line[0] for line in lines[2:5]] == ["(none)", "(others)", "total"]
    assert text.splitlines()[5:] == ["GPU-hours from 1970-01-01 00:00 to 1970-01-08 00:00 UTC"]
    assert gateway.asked == [UsageRequest(by="team", since="30d", order="lost", limit=5)]


@pytest.mark.parametrize(
    "seen",
    [
        ("team", 60, ["TEAM", "HELD", "USED", "IDLE", "LOST", "USED%", "JOBS"]),
        ("user", 60, ["USER", "HELD", "USED", "IDLE", "LOST", "USED%", "JOBS"]),
        ("job", 60, ["JOB", "NAME", "USER", "HELD", "USED", "USED%"]),
        ("user", 42, ["USER", "HELD", "USED", "USED%"]),
    ],
)
def test_a_narrow_terminal_goes_without_the_less_important_columns_and_says_so(
    penstock: Run, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch, seen: tuple[str, int, list[str]]
) -> None:
    by, columns, headers = seen
    monkeypatch.setattr(render, "terminal_width", lambda: columns)
    gateway.usage = answers(used("ann-of-the-vision-team", 2.0, title="a-long-name-of-a-job", user="ann"))
    text = penstock("usage", "--by", by)[1]
    shown = text.splitlines()[0].split()
    assert "left out for want of room: REQUESTED, WAITED, " in text
    assert (shown, "left out" in penstock("usage", "--by", by, "-o", "wide")[1]) == (headers, False)


def test_days_that_are_counted_whole_are_named(penstock: Run, gateway: FakeGateway) -> None:
    gateway.usage = answers(used("ada"), whole_days=("1970-01-01", "1970-01-08"))
    assert "archived jobs are counted by whole days: 1970-01-01, 1970-01-08 are whole" in penstock("usage")[1]


def test_wide_has_runs_and_waits_and_json_is_the_answer(penstock: Run, gateway: FakeGateway) -> None:
    gateway.usage = answers(used("ada"))
    wide = penstock("usage", "-o", "wide")[1].splitlines()
    assert wide[0].endswith("JOBS  LOST TO PREEMPTION  RUNS  PREEMPTED  MEDIAN WAIT  P90 WAIT")
    assert wide[1].split()[-5:] == ["0.125", "4", "1", "1m00s", "1m30s"]
    assert json.loads(penstock("usage", "-o", "json")[1])["rows"][0]["usage"]["held_gpu_s"] == 3600.0


def test_csv_is_for_spreadsheets_and_no_name_is_a_formula_there(penstock: Run, gateway: FakeGateway) -> None:
    gateway.usage = answers(used("=HYPERLINK(0)"), used('a,"b"'), used("", others=True))
    rows = list(csv.DictReader(io.StringIO(penstock("usage", "--by", "model", "-o", "csv")[1])))
    assert [row["model"] for row in rows] == ["'=HYPERLINK(0)", 'a,"b"', ""]
    assert [row["others"] for row in rows] == ["0", "0", "1"]
    assert (rows[0]["held_gpu_h"], rows[0]["preemptions"], rows[0]["median_wait_s"]) == ("1.000000", "1", "60.000")


@pytest.mark.parametrize(
    ("typed", "asked"),
    [
        (("--since", "all"), UsageRequest()),
        ((), UsageRequest(since="7d")),
        (("--since", "2026-01-31", "--until", "2w"), UsageRequest(since="2026-01-31", until="2w")),
        (("--since", "2026-01-31T09:30"), UsageRequest(since="2026-01-31T09:30:00+00:00")),
        (("--since", "1.7e9", "--at", "12"), UsageRequest(since=1.7e9, at=12)),
    ],
)
def test_bounds_are_typed_as_people_say_them(
    penstock: Run, gateway: FakeGateway, typed: tuple[str, ...], asked: UsageRequest
) -> None:
    gateway.usage = answers()
    assert penstock("usage", *typed)[0] == 0
    assert gateway.asked == [asked]


def test_a_bound_that_is_none_is_refused(penstock: Run, gateway: FakeGateway) -> None:
    code, _, said = penstock("usage", "--until", "tomorrow")
    assert (code, "--until 'tomorrow' is no time; expected a span ago such as 7d" in said) == (2, True)
    assert gateway.asked == []


def test_a_log_in_a_file_is_asked_as_a_cluster_is(penstock: Run, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(gzip.decompress(RECORDED.read_bytes()))
    code, text, _ = penstock("usage", "--log", str(log), "--by", "kind", "--since", "all")
    assert (code, [line.split()[0] for line in text.splitlines()[:4]]) == (0, ["KIND", "fast", "slow", "total"])
    assert penstock("usage", "--log", str(log), "--since", "1h", "--until", "2h")[0] == 2
    code, page, _ = penstock("report", "--log", str(log), "--out", "-")
    assert (code, "ada" in page, "elastic" in page) == (0, True, True)


class Page(HTMLParser):
    """What a page loads, runs and shows."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.loads: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loads += [f"{name}={value}" for name, value in attrs if name in {"src", "href"} or name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_report_loads_nothing_and_shows_hostile_names_as_text(
    penstock: Run, gateway: FakeGateway, tmp_path: Path
) -> None:
    gateway.usage = answers(
        used(HOSTILE, title=HOSTILE, user=HOSTILE), used("j2", others=True), whole_days=("1970-01-01",)
    )
    out = tmp_path / "week.html"
    code, _, said = penstock("report", "--out", str(out))
    assert (code, said) == (0, f"penstock: wrote {out}: open it in a browser\n")
    page = Page(out.read_text())
    assert page.loads == []
    assert not page.tags & {"script", "link", "img", "iframe", "object"}
    assert "url(" not in page.text
    assert page.text.count("<script>alert(1)</script>\\n'\"&\\x1b[2J") == 4 + 2 * 3, "rows, and jobs with name and user"
    assert "1970-01-01\nis counted whole" in page.text
    assert "Of all that was lost, 50% was lost to\npreemption." in page.text
    assert [ask.by for ask in gateway.asked if isinstance(ask, UsageRequest)] == [
        "team", "user", "pool", "kind", "job", "job", "pool",
    ]  # fmt: skip


def test_a_report_of_an_empty_cluster_says_so(penstock: Run, gateway: FakeGateway) -> None:
    gateway.usage = answers()
    code, text, _ = penstock("report", "--out", "-")
    assert (code, "nothing was asked for" in text, "no device was held" in text) == (0, True, True)
    assert re.search(r"nan|inf\b|None", Page(text).text) is None
