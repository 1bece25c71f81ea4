"""What is said of a sweep while it runs, and what is shown of what its devices were used for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_gateway import FakeGateway, sweep_view

from penstock_cli.commands import sweeps
from penstock_log import JobSpec, SweepSpec, views

Run = Callable[..., tuple[int, str, str]]
SWEEP = """\
name: search
metric: accuracy
target: 0.95
trials: 8
job: {name: trial, command: ["true"]}
space:
  lr: {kind: choice, values: [0.1, 0.01]}
"""
GOODPUT = views.GoodputView(
    useful_gpu_s=40.0,
    stopped_gpu_s=30.0,
    failed_gpu_s=5.0,
    overhead_gpu_s=15.0,
    rescale_gpu_s=4.0,
    profile_gpu_s=6.0,
    allocated_gpu_s=100.0,
    running_gpu_s=12.5,
)
SO_FAR: dict[str, Any] = {
    "goodput": GOODPUT,
    "utilisation": 0.9,
    "eta_s": 61.0,
    "done": 5,
    "best_job_id": "s1-3",
    "best_value": 0.5,
}


@pytest.fixture
def sweep_file(tmp_path: Path) -> str:
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    return str(tmp_path / "sweep.yaml")


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "EVERY_S", 0.0)


def test_a_sweep_shows_its_goodput_what_the_rest_went_into_and_whether_the_target_was_reached(
    penstock: Run, gateway: FakeGateway, sweep_file: str
) -> None:
    gateway.sweep_end = {**SO_FAR, "target_s": 75.0}
    penstock("tune", sweep_file)
    out = penstock("sweep", "show", "s1")[1]
    assert "target:       accuracy 0.95 reached after 1m15s\n" in out
    assert "left:         about 1m01s, at the pace so far\n" in out
    assert "utilisation:  90 % of the devices that it could use\n" in out
    assert "goodput:      40 % of 100.0 device-seconds, and 12.5 of runs on their way\n" in out
    assert (
        "spent:        40 % promoted and best, 30 % to tell the others apart, 15 % starting and saving, "
        "6 % profiling, 5 % killed, or without a value, 4 % moving and resuming\n"
    ) in out


def test_before_a_run_is_over_there_is_no_goodput_to_be_shown(
    penstock: Run, gateway: FakeGateway, sweep_file: str
) -> None:
    nothing = dict.fromkeys(GOODPUT.__struct_fields__, 0.0)
    gateway.sweep_end = {"goodput": views.GoodputView(**{**nothing, "running_gpu_s": 4.0})}
    penstock("tune", sweep_file)
    out = penstock("sweep", "show", "s1")[1]
    assert "no run is over; 4.0 device-seconds of those on their way\n" in out
    assert "spent:" not in out


def test_the_json_of_a_sweep_has_these_keys(penstock: Run, gateway: FakeGateway, sweep_file: str) -> None:
    gateway.sweep_end = SO_FAR
    penstock("tune", sweep_file)
    shown = json.loads(penstock("sweep", "show", "s1", "-o", "json")[1])
    assert shown["goodput"] == msgspec.to_builtins(GOODPUT)
    assert {"makespan_s", "target_s", "utilisation", "eta_s", "best_value", "best_job_id", "done", "wanted"} <= set(
        shown
    )
    assert shown["spec"]["target"] == 0.95


def test_progress_says_how_far_the_best_the_goodput_and_how_long_still() -> None:
    spec = SweepSpec(name="s", job=JobSpec(name="j", command=("x",)), space={}, metric="accuracy", trials=8)
    fresh = sweep_view(spec)
    assert sweeps.sweep_progress(fresh) == "s1: 0/8 runs, 1 running"
    assert sweeps.sweep_progress(msgspec.structs.replace(fresh, **SO_FAR)) == (
        "s1: 5/8 runs, 1 running, best accuracy 0.5, goodput 40 %, used 90 %, about 1m01s left"
    )


def test_who_follows_a_sweep_is_told_when_something_has_come_of_it_and_shown_it_at_the_end(
    penstock: Run, gateway: FakeGateway, sweep_file: str, at_once: None
) -> None:
    penstock("tune", sweep_file)
    asked = 0

    def by_then(sweep: views.SweepView) -> views.SweepView:
        nonlocal asked
        asked += 1
        done = min(asked // 3, 3)
        changes: dict[str, Any] = {"done": done}
        if asked > 11:
            changes |= {"state": "completed", "finished_s": 9.0, "best_job_id": "s1-3", "best_value": 0.97}
        return msgspec.structs.replace(sweep, **changes)

    gateway.on_sweep = by_then
    code, out, err = penstock("sweep", "show", "s1", "-f")
    assert code == 0
    assert err.splitlines() == [f"s1: {done}/8 runs, 1 running" for done in range(4)]
    assert "state:      completed\n" in out
    asked = 0
    lines = penstock("sweep", "show", "s1", "-f", "-o", "json")[1].splitlines()
    assert [json.loads(line)["done"] for line in lines] == [0, 1, 2, 3, 3]


def test_a_moment_of_the_past_is_not_followed(penstock: Run, sweep_file: str) -> None:
    penstock("tune", sweep_file)
    code, _, err = penstock("sweep", "show", "s1", "-f", "--at", "10m")
    assert (code, "--follow and --at were given" in err) == (2, True)
