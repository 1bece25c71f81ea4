"""Elastic jobs in `ps`, `show`, `why` and dry runs: exact text, in wide and in narrow terminals."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from fake_gateway import FakeGateway, job_view, why_view

from penstock_cli import render, size_chart
from penstock_log import JobSpec, views
from penstock_log.job_state import Size

Run = Callable[..., tuple[int, str, str]]

ELASTIC = job_view(
    "a1", name="digits", state="R", gpus=2, min_gpus=1, max_gpus=8, batch_size=128, batches=(64, 512), steps=760,
    samples=168_960, run_s=58.0, cause="", placed_on=("n1/fast0", "n1/fast1"), attempts=2, preemptions=1,
)  # fmt: skip


def run(start_s: float, end_s: float | None, gpus: int, batch_size: int, **fields: Any) -> views.SizedRunView:
    default: dict[str, Any] = {"kind": "fast", "steps": 100, "loop_s": 10.0, "samples_per_s": 10.0 * batch_size}
    outcome = "" if end_s is None else "resized"
    made = {"start_s": start_s, "end_s": end_s, "gpus": gpus, "batch_size": batch_size, "outcome": outcome}
    return views.SizedRunView(**{**default, **made, **fields})


RUNS = (
    run(1002.0, 1032.0, 4, 256, steps=560, loop_s=28.0, samples_per_s=5120.0),
    run(1034.0, None, 2, 128, steps=200, loop_s=20.0, samples_per_s=1280.0),
)
RESIZED = views.ResizeView(
    at_s=1030.0, because="arrival", before=Size(4, 256), after=Size(2, 128), kinds=("fast",), gives={"b2": 2},
    takes={}, done_s=1034.0, reason="shrinks from 4 to 2 devices (fast) with a batch of 128, and gives 2 to b2",
)  # fmt: skip


def sizing(**fields: Any) -> views.SizingView:
    default: dict[str, Any] = {
        "widths": (1, 8), "batches": (64, 512), "size": Size(2, 128), "lr_rule": "sqrt", "lr_factor": 1.4142135,
        "samples_per_s": 1280.0, "runs": RUNS, "left_out": 0, "resizes": (RESIZED,), "unfit": (Size(8, 512), Size(7)),
    }  # fmt: skip
    return views.SizingView(**{**default, **fields})


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> FakeGateway:
    monkeypatch.setattr("penstock_cli.commands.jobs.now_s", lambda: 1064.0)
    made = FakeGateway(ELASTIC, job_view("b2", gpus=1))
    made.sizings["a1"] = sizing()
    made.specs["a1"] = JobSpec(name="digits", command=("true",), gpus=2, min_gpus=1, max_gpus=8)
    made.whys["a1"] = msgspec.structs.replace(
        why_view(ELASTIC), cause="running", evidence="it has been running on n1/fast0 for 30.0 s", not_causes=(),
        remedy="", rank=None, size="2 devices (of 1 to 8) with a batch of 128 (of 64 to 512)",
        resized=RESIZED, since_s=1034.0,
    )  # fmt: skip
    return made


def test_ps_shows_width_with_its_range_and_the_batch(penstock: Run) -> None:
    assert (
        penstock("ps")[1]
        == """\
ID  NAME    USER  ST  GPUS      BATCH   WAIT    RUN  STEPS  NODES/REASON
a1  digits  ann   R   2 (1..8)    128  12.0s  58.0s    760  n1/fast0,fast1
b2  train   ann   PD  1             -  12.0s   0.0s      0  (capacity)
"""
    )


def test_ps_has_no_column_of_batches_where_no_job_has_one(penstock: Run, gateway: FakeGateway) -> None:
    del gateway.jobs["a1"]
    assert "BATCH" not in penstock("ps")[1]
    assert "BATCH" not in penstock("ps", "-o", "wide")[1]


def test_ps_wide_has_both_too_and_json_has_all_fields(penstock: Run) -> None:
    head, elastic, _ = penstock("ps", "-o", "wide")[1].splitlines()
    assert head.split()[4:6] == ["GPUS", "BATCH"]
    assert elastic.split()[4:7] == ["2", "(1..8)", "128"]
    job = json.loads(penstock("ps", "-o", "json")[1])["jobs"][0]
    assert [job[name] for name in ("gpus", "min_gpus", "max_gpus", "batch_size", "batches", "samples")] == [
        2, 1, 8, 128, [64, 512], 168_960,
    ]  # fmt: skip


def test_show_tells_what_the_job_may_have_has_and_makes_of_its_learning_rate(penstock: Run) -> None:
    lines = penstock("show", "a1")[1].splitlines()
    told = {line.partition(":")[0]: line.partition(":")[2].strip() for line in lines if ":" in line}
    assert told["wants"] == "1 to 8 x any kind but a bare CPU"
    assert told["size"] == "2 devices with a batch of 128"
    assert told["of"] == "1 to 8 devices, a batch of 64 to 512"
    assert told["rate"] == "1.414 times the script's learning rate (sqrt)"
    assert (told["examples"], told["pace"], told["resized"]) == ("168960", "1280 examples/s", "once")
    assert told["unfit"] == "8 devices with a batch of 512; 7 devices, whatever the batch"


def test_show_draws_width_and_throughput_over_time_with_their_figures(penstock: Run) -> None:
    out = penstock("show", "a1")[1]
    assert out.endswith(
        """\
devices
    4    ██████████████████████████████████
    3    ██████████████████████████████████
    2    ██████████████████████████████████   ██████████████████████████████████
    1    ██████████████████████████████████   ██████████████████████████████████
batch    256                                  128
examples/s
 5120    ██████████████████████████████████
         ██████████████████████████████████
         ██████████████████████████████████
         ██████████████████████████████████   ▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂
         ██████████████████████████████████   ██████████████████████████████████
         5120                                 1280
       +0.0s                               +32.0s                         +1m04s

  FROM    FOR  GPUS  KIND  BATCH  STEPS  EXAMPLES/S  ENDED
 +2.0s  30.0s     4  fast    256    560        5120  resized
+34.0s  30.0s     2  fast    128    200        1280  goes on
"""
    )
    assert max(map(len, out[out.index("devices\n") :].splitlines())) <= 80


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 200])
def test_the_chart_fits_the_terminal(
    penstock: Run, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setattr(render, "terminal_width", lambda: columns)
    gateway.sizings["a1"] = sizing(runs=(run(1000.0, 1001.0, 120, 2**20, samples_per_s=1.5e6), *RUNS))
    out = penstock("show", "a1")[1]
    lines = out[out.index("devices\n") :].splitlines()
    assert max(map(len, lines)) <= min(columns, 100)
    assert lines[1].startswith("    120")


def test_a_fast_job_has_no_exponents_in_its_figures(penstock: Run, gateway: FakeGateway) -> None:
    gateway.sizings["a1"] = sizing(runs=(run(1000.0, None, 1, 512, samples_per_s=34_881.0),), samples_per_s=34_881.0)
    out = penstock("show", "a1")[1]
    assert "34881 examples/s" in out
    assert out.count("34881") == 4
    assert "e+0" not in out


def test_a_run_of_which_nobody_knows_its_pace_has_a_question_mark() -> None:
    runs = (run(0.0, 50.0, 1, 64), run(50.0, None, 1, 64, samples_per_s=None))
    lines = size_chart.lines(runs, (0.0, 100.0), 60, zero_s=0.0)
    figures = lines[-2].split()
    assert figures == ["640", "?"]
    assert lines[-2].index("?") > 30


def test_without_any_pace_there_are_the_devices_alone() -> None:
    lines = size_chart.lines((run(0.0, None, 2, 64, samples_per_s=None),), (0.0, 100.0), 60, zero_s=0.0)
    assert "examples/s" not in lines
    assert [line.split()[0] for line in lines] == ["devices", "2", "1", "batch", "+0.0s"]


def test_many_runs_are_counted_and_the_last_are_listed(penstock: Run, gateway: FakeGateway) -> None:
    runs = tuple(run(1000.0 + i, 1001.0 + i, 1 + i % 2, 64) for i in range(20))
    gateway.sizings["a1"] = sizing(runs=runs, left_out=80)
    lines = penstock("show", "a1")[1].splitlines()
    assert "the last 12 of 100 runs" in lines
    assert len(lines) - lines.index("the last 12 of 100 runs") == 14


def test_a_job_that_never_ran_has_no_chart(penstock: Run, gateway: FakeGateway) -> None:
    gateway.sizings["a1"] = sizing(runs=(), samples_per_s=None, resizes=(), unfit=())
    out = penstock("show", "a1")[1]
    assert "\ndevices\n" not in out
    assert "unfit:" not in out


def test_why_says_when_and_why_it_was_shrunk_and_what_it_gave_to_whom(penstock: Run) -> None:
    assert (
        penstock("why", "a1")[1]
        == """\
a1 (digits) is R for 30.0s: running
  because:  it has been running on n1/fast0 for 30.0 s
  size:     2 devices (of 1 to 8) with a batch of 128 (of 64 to 512)
  sized:    34.0s ago, a job has come: shrinks from 4 to 2 devices (fast) with a batch of 128, and gives 2 to b2
  gave:     2 devices to b2
"""
    )


def test_why_says_from_whom_a_grown_job_has_it_and_that_it_does_not_run_so_yet(
    penstock: Run, gateway: FakeGateway
) -> None:
    grown = msgspec.structs.replace(
        RESIZED, gives={}, takes={"b2": 1, "c3": 2}, reason="", because="completion", done_s=None
    )
    gateway.whys["a1"] = msgspec.structs.replace(gateway.whys["a1"], resized=grown)
    lines = [line.strip() for line in penstock("why", "a1")[1].splitlines()]
    assert lines[-2:] == [
        "sized:    34.0s ago, a job is over: from 4 devices with a batch of 256 to 2 devices with a batch of 128; "
        "it does not run so yet",
        "took:     1 device from b2, 2 devices from c3",
    ]


def test_a_waiting_job_need_not_be_told_that_it_does_not_run_so_yet(penstock: Run, gateway: FakeGateway) -> None:
    waits = msgspec.structs.replace(RESIZED, done_s=None, gives={})
    gateway.whys["b2"] = msgspec.structs.replace(why_view(gateway.jobs["b2"]), resized=waits)
    out = penstock("why", "b2")[1]
    assert "  sized:    34.0s ago, a job has come: shrinks from 4 to 2 devices" in out
    assert "yet" not in out


def test_why_says_who_makes_way_for_a_waiting_job(penstock: Run, gateway: FakeGateway) -> None:
    gateway.whys["b2"] = msgspec.structs.replace(why_view(gateway.jobs["b2"]), freed={"a1": 2})
    assert "  coming:   2 devices from a1, which is stopping\n" in penstock("why", "b2")[1]


def test_a_dry_run_says_which_size_it_tried(penstock: Run, gateway: FakeGateway) -> None:
    gateway.dry = msgspec.structs.replace(gateway.dry, size="1 device with a batch of 64, the smallest of 1 to 8")
    assert penstock("submit", "--dry-run", "--gpus", "1..8", "--batch", "64..512", "--", "true")[1] == (
        "would start at once on n1/fast0,fast1 (fast)\n  size:  1 device with a batch of 64, the smallest of 1 to 8\n"
    )
