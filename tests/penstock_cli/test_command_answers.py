"""What scripts read: every command that prints an answer prints it as JSON too, one line for each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_gateway import FakeGateway, job_view

from penstock_bus import Reply
from penstock_log import views

Run = Callable[..., tuple[int, str, str]]

SWEEP = """
name: sweep
metric: accuracy
trials: 2
job: {name: train, command: ["true"]}
space:
  lr: {kind: uniform, low: 0.1, high: 1.0}
"""


@pytest.fixture
def gateway() -> FakeGateway:
    return FakeGateway(job_view("a1"), job_view("b2"))


def answers(out: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.splitlines()]


def test_a_submitted_sweep_is_answered_as_a_job_is(penstock: Run, tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    code, out, err = penstock("tune", str(tmp_path / "sweep.yaml"), "-o", "json")
    assert (code, err) == (0, "")
    assert answers(out) == [{"id": "s1", "seq": 1, "created": True, "warnings": []}]


@pytest.mark.parametrize(
    "command",
    [
        ("cancel",),
        ("hold",),
        ("release",),
        ("node", "drain"),
        ("node", "resume"),
        ("node", "remove"),
        ("sweep", "cancel"),
    ],
)
def test_commands_answer_one_line_for_each_id(penstock: Run, command: tuple[str, ...]) -> None:
    code, out, err = penstock(*command, "a1", "b2", "-o", "json")
    assert (code, err) == (0, "")
    assert [(answer["id"], set(answer)) for answer in answers(out)] == [
        (entity_id, {"id", "changed", "state", "message", "seq"}) for entity_id in ("a1", "b2")
    ]


def test_what_is_refused_stays_on_standard_error(penstock: Run, gateway: FakeGateway) -> None:
    gateway.refusal = Reply(code=409, error="job a1 has completed already; there is nothing to cancel")
    assert penstock("cancel", "a1", "-o", "json") == (
        5,
        "",
        "penstock: job a1 has completed already; there is nothing to cancel\n",
    )


@pytest.mark.parametrize("command", [("submit", "-o", "wide", "--", "true"), ("cancel", "a1", "-o", "table")])
def test_another_form_is_refused_with_those_that_there_are(penstock: Run, command: tuple[str, ...]) -> None:
    code, out, err = penstock(*command)
    assert (code, out) == (2, "")
    assert "'text', 'json'" in err


def test_what_was_rejected_is_listed_with_the_reason(penstock: Run, gateway: FakeGateway) -> None:
    assert penstock("rejected")[1].split() == ["TIME", "FROM", "REASON", "BODY"]
    gateway.rejected = (
        views.RejectedView(
            reason="$.gpus: expected a whole number from 1 to 65536, got 0",
            origin="INBOX penstock.inbox.jobs",
            body='{"name": "a", "gpus": 0}',
            stored_s=0.0,
        ),
    )
    line = penstock("rejected")[1].splitlines()[1]
    assert line == (
        "1970-01-01 00:00:00  INBOX penstock.inbox.jobs  $.gpus: expected a whole number from 1 to 65536, got 0  "
        '{"name": "a", "gpus": 0}'
    )
    assert json.loads(penstock("rejected", "-o", "json")[1])["rejected"][0]["origin"] == "INBOX penstock.inbox.jobs"
