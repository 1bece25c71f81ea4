"""Submitting jobs that share devices, and looking at them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from fake_gateway import FakeGateway, job_view, node_view, why_view

from penstock_cli import job_text
from penstock_cli.commands.cluster import node_table
from penstock_cli.job_text import dry_run_lines, job_lines, job_table
from penstock_log import JobSpec, MemoryNeed, views
from penstock_log.job_state import Parked

Run = Callable[..., tuple[int, str, str]]


def submitted(penstock: Run, gateway: FakeGateway, *flags: str) -> dict[str, object]:
    code, _, err = penstock("submit", *flags, "--", "true")
    assert (code, err) == (0, "")
    (spec,) = gateway.specs.values()
    return {name: getattr(spec, name) for name in ("sharing", "fraction", "memory", "share_with", "priority")}


def test_a_jobs_memory_says_that_it_takes_turns(penstock: Run, gateway: FakeGateway) -> None:
    flags = ("--lane-memory", "1GiB,512MiB,2GiB", "--share-with", "anyone", "--priority", "5")
    need = MemoryNeed(2**30, 2**29, 2**31)
    expected = {"sharing": "lane", "fraction": 1.0, "memory": need, "share_with": "anyone", "priority": 5}
    assert submitted(penstock, gateway, *flags) == expected


def test_a_fraction_says_that_it_has_a_part(penstock: Run, gateway: FakeGateway) -> None:
    found = submitted(penstock, gateway, "--fraction", "0.25")
    assert (found["sharing"], found["fraction"]) == ("fraction", 0.25)


def test_a_job_may_take_turns_without_knowing_what_it_needs(penstock: Run, gateway: FakeGateway) -> None:
    found = submitted(penstock, gateway, "--sharing", "lane")
    assert (found["sharing"], found["memory"], found["share_with"]) == ("lane", None, "team")


def test_what_is_no_need_is_refused(penstock: Run) -> None:
    code, _, err = penstock("submit", "--lane-memory", "1GiB,2GiB", "--", "true")
    assert code == 2
    assert "expected three amounts of memory" in err
    assert penstock("submit", "--fraction", "1.5", "--", "true")[0] == 2


def test_a_shared_device_shows_its_jobs_and_what_they_hold() -> None:
    node = node_view()
    shared = msgspec.structs.replace(node.devices[0], shared_by=("j1", "j2"), taken="2 jobs hold 3 of 16 GiB")
    _, rows = node_table([msgspec.structs.replace(node, devices=(shared, node.devices[1]))], 0.0, wide=True)
    assert [row[8] for row in rows] == ["j1,j2 (2 jobs hold 3 of 16 GiB)", ""]


def test_a_job_shows_how_it_shares() -> None:
    job = job_view("j1", state="R", placed_on=("n1/fast0",), sharing="lane", share=0.25)
    spec = JobSpec(name="train", command=("true",), sharing="lane")
    detail = views.JobDetail(job=job, spec=spec, why=why_view(job), workload="w", speeds=(), seq=1)
    assert [line.split(maxsplit=1)[1] for line in job_lines(detail) if line.startswith("shares:")] == [
        "its device, by turns, with 25% of the time"
    ]


@pytest.mark.parametrize(
    ("starts", "shown"),
    [
        ((), []),
        (("",), []),
        (("warm",), ["yes"]),
        (("warm", "cold: its interpreter has the option -X"), ["no (its interpreter has the option -X)"]),
        (("warm", "parked"), []),
    ],
)
def test_a_job_shows_whether_its_last_run_began_warm(starts: tuple[str, ...], shown: list[str]) -> None:
    job, spec = job_view("j1"), JobSpec(name="train", command=("true",))
    runs = tuple(views.RunView(pending_s=0.0, epoch=n, started_s=1.0, start=start) for n, start in enumerate(starts, 1))
    runs += (views.RunView(pending_s=2.0),)  # which it waits for
    detail = views.JobDetail(job=job, spec=spec, why=why_view(job), workload="w", speeds=(), seq=1, runs=runs)
    assert [line.split(maxsplit=1)[1] for line in job_lines(detail) if line.startswith("warm:")] == shown


def test_a_dry_run_names_those_beside_it() -> None:
    view = views.DryRunView(starts=True, kind="fast", devices=("n1/fast0",), beside=("a", "b"))
    assert dry_run_lines(view)[0] == "would start at once on n1/fast0 (fast), beside a, b"


@pytest.mark.parametrize(
    ("start", "parked", "shown"),
    [
        ("warm", None, []),
        ("parked", None, ["went on without a load"]),
        ("", Parked(node_id="n1", epoch=1, held_bytes=3 * 2**29), ["on n1 (1.5GiB), to go on there without a load"]),
    ],
)
def test_a_job_shows_where_it_is_parked(start: str, parked: Parked | None, shown: list[str]) -> None:
    job, spec = job_view("j1"), JobSpec(name="train", command=("true",))
    runs = (views.RunView(pending_s=0.0, epoch=1, started_s=1.0, start=start),)
    about = {"workload": "w", "speeds": (), "seq": 1, "runs": runs, "parked": parked}
    detail = views.JobDetail(job=job, spec=spec, why=why_view(job), **about)
    assert [line.split(maxsplit=1)[1] for line in job_lines(detail) if line.startswith("parked:")] == shown


def line_of(label: str, **fields: Any) -> str:
    spec = JobSpec(**{"name": "train", "command": ("true",), **fields})
    detail = views.JobDetail(
        job=job_view("j1"), spec=spec, why=why_view(job_view("j1")), workload="w", speeds=(), seq=1
    )
    (line,) = [line for line in job_lines(detail) if line.startswith(f"{label}:")]
    return line.split(maxsplit=1)[1]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "no, its own runs are measured (--profile on: sampled first)"),
        ({"model": "mlp"}, "where its workload is new: its model is named (--profile off: never)"),
        ({"model": "mlp", "opaque": True}, "no, no file of its command line mentions penstock; its runs are measured"),
        ({"model": "mlp", "profile": "off"}, "no, its profile is off"),
    ],
)
def test_a_job_shows_whether_it_is_sampled_and_why(fields: dict[str, Any], words: str) -> None:
    assert line_of("sampled", **fields) == words


def test_a_job_shows_what_it_asks_of_its_host_and_a_node_what_its_host_has() -> None:
    asked = {"cpus": 2.0, "host_memory_bytes": 20 << 30}
    assert line_of("wants", **asked) == "1 x any kind but a bare CPU, each with 2 cpus, 20GiB of its host"
    jobs = [job_view("j1", **asked), job_view("j2")]
    headers, rows = job_table(jobs, wide=True)
    assert [row[headers.index("HOST")] for row in rows] == ["2 cpus, 20GiB", "-"]
    assert "HOST" not in job_table(jobs[1:], wide=True)[0]
    node = msgspec.structs.replace(node_view(), cpus=8.0, host_memory_bytes=30 << 30, held_by="cgroup")
    assert {row[9] for row in node_table([node], 0.0, wide=True)[1]} == {"8 cpus, 30GiB by cgroup"}


def test_a_job_shows_how_it_aggregates_where_it_says_so() -> None:
    assert line_of("aggregation", aggregation="own", servers=2) == "own, 2 aggregators"
    assert line_of("aggregation", aggregation="none") == "none"


def test_a_job_shows_what_it_borrows() -> None:
    assert line_of("wants", local_memory_bytes=2 << 30, spill_bytes=16 << 30) == (
        "1 x any kind but a bare CPU; each with 16GiB of borrowed memory, 2GiB of it kept on the host"
    )


def test_an_array_is_a_line_with_what_its_jobs_do_where_several_are_listed() -> None:
    def row(job_id: str, state: str, array: str = "", **fields: Any) -> views.JobRow:
        about = {"name": "n", "user": "u", "gpus": 2, "submitted_s": 0.0, "wait_s": 1.0, "run_s": 2.0}
        return views.JobRow(id=job_id, state=state, array=array, array_count=4 if array else 0, **{**about, **fields})

    rows = [row("a", "R"), row("x-0", "CD", "x"), row("x-1", "R", "x"), row("b", "PD"), row("x-2", "PD", "x")]
    a, x, b = job_text.folded([*rows, row("x-3", "PD", "x", cause="array")])
    assert (a.id, b.id) == ("a", "b")
    assert (x.id, x.state, x.gpus, x.run_s) == ("x", "R", 2, 8.0)
    assert job_text.place_or_reason(x) == "array: 2 PD, 1 R, 1 CD of 4"
    waits = job_text.folded([row("y-0", "PD", "y"), row("y-1", "PD", "y")])
    assert [job_text.place_or_reason(one) for one in waits] == ["(2 PD of 4)"]
    assert job_text.folded([row("z-0", "R", "z")])[0].id == "z-0"
