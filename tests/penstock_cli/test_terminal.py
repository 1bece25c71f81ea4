"""What others wrote reaches a terminal as text: it is not obeyed, and no line of it looks like one of ours."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from fake_gateway import FakeGateway, job_view, node_view, sweep_view, why_view
from hypothesis import given
from hypothesis import strategies as st

from penstock_bus import Reply
from penstock_cli import render
from penstock_cli.commands import cluster
from penstock_cli.commands.sweeps import SweepProgressLine
from penstock_log import Alternative, Choice, JobSpec, SweepSpec, views
from penstock_log.text import escaped, escaped_json

Run = Callable[..., tuple[int, str, str]]

FORGED = "penstock: j1 completed"
HOSTILE = f"\x1b]0;mine\x07\x9b2J\x7f\u202e\u2066\u2028\r\n{FORGED}\n"
KEPT = {"starts", "state", "mode", "cause", "id", "job_id", "type", "subject", "best_job_id", "metric", "service"}
"""Words of ours, or names that nobody chooses freely."""


def hostile(value: Any, name: str = "") -> Any:
    """Return a view in which every text that others may have written does its worst."""
    match value:
        case msgspec.Struct():
            fields = value.__struct_fields__
            return msgspec.structs.replace(value, **{field: hostile(getattr(value, field), field) for field in fields})
        case str() if name not in KEPT and name:
            return value + HOSTILE
        case tuple() | list():
            return type(value)(hostile(one, name) for one in value)
        case dict():
            return {key + HOSTILE: hostile(one, name) for key, one in value.items()}
        case _:
            return value


@pytest.fixture
def gateway() -> FakeGateway:
    waiting = job_view("j1", reason="r", metrics={"loss": 1.0}, warnings=("w",))
    ended = job_view("j2", state="F", reason="its last words", exit_code=1)
    found = FakeGateway(hostile(waiting), hostile(ended))
    told = why_view(waiting)
    alternative = Alternative(change={}, kind="slow", text="accept slow")
    found.whys["j1"] = hostile(msgspec.structs.replace(told, alternative=alternative, basis="b"))
    spec = JobSpec(name="n", command=("x", "y"), cwd="/c", env={"E": "e"}, params={"p": "q"})
    found.specs["j1"] = hostile(spec)
    found.nodes = [hostile(node_view())]
    found.dry = hostile(views.DryRunView(starts=False, cause="capacity", evidence="e", basis="b", warnings=("w",)))
    found.warnings = (HOSTILE,)
    found.rejected = (hostile(views.RejectedView(reason="r", origin="o", body="b", stored_s=1.0)),)
    fact = {"reason": HOSTILE}
    found.events = (
        views.EventView(
            seq=1, stored_s=1.0, subject="penstock.evt.job.j1", actor=HOSTILE, cause=0, type="t", at_s=1.0, fact=fact
        ),
    )
    sweep = sweep_view(SweepSpec(name="s", job=spec, space={"lr": Choice(values=(1,))}, metric="m", trials=1))
    found.sweeps["s1"] = hostile(msgspec.structs.replace(sweep, reason="r", best_job_id="s1-3", best_value=1.0))
    return found


def is_harmless(text: str) -> bool:
    return all(c == "\n" or c in "\u200c\u200d" or unicodedata.category(c) not in {"Cc", "Cf", "Cs"} for c in text)


COMMANDS = [
    ("ps", "-a"),
    ("ps", "-a", "-o", "wide"),
    ("ps", "-a", "-o", "json"),
    ("show", "j1"),
    ("show", "j1", "-o", "json"),
    ("why", "j1"),
    ("why", "j1", "-o", "json"),
    ("story", "j1"),
    ("story", "j1", "-o", "wide"),
    ("events", "j1"),
    ("events", "j1", "-o", "wide"),
    ("events", "j1", "-o", "json"),
    ("nodes",),
    ("nodes", "-o", "wide"),
    ("status",),
    ("rejected",),
    ("rejected", "-o", "json"),
    ("sweep", "ls"),
    ("sweep", "show", "s1"),
    ("sweep", "best", "s1"),
    ("sweep", "show", "s1", "-o", "json"),
    ("submit", "--dry-run", "--no-check", "--", "x"),
    ("submit", "--no-check", "--", "x"),
    ("cancel", "j1"),
    ("doctor",),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("is_terminal", [False, True], ids=["piped", "terminal"])
def test_no_command_passes_on_what_a_terminal_obeys(
    penstock: Run, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], is_terminal: bool
) -> None:
    monkeypatch.setattr(render, "_is_terminal", lambda: is_terminal)
    _, out, err = penstock(*command)
    assert is_harmless(out), out
    assert is_harmless(err), err
    assert not [line for line in (out + err).splitlines() if line.lstrip().startswith(FORGED)]


def test_an_error_of_the_gateway_is_one_line_of_text(penstock: Run, gateway: FakeGateway) -> None:
    gateway.refusal = Reply(code=409, error=f"no job{HOSTILE}")
    code, _, err = penstock("show", "j1")
    assert code == 5
    assert is_harmless(err)
    assert err.startswith("penstock: no job\\x1b]0;mine")
    assert err.count("\n") == 1


def test_json_keeps_every_character_and_shows_none_that_acts(penstock: Run) -> None:
    _, out, _ = penstock("why", "j1", "-o", "json")
    assert json.loads(out)["evidence"].endswith(HOSTILE)
    assert is_harmless(out)


def test_the_doctor_paints_its_own_words_only() -> None:
    line = cluster.line_of(cluster.Finding("warn", "log", f"rejected{HOSTILE}", "look"), colour=True)
    assert line.startswith("\x1b[33mwarn\x1b[0m")
    assert is_harmless(line.removeprefix("\x1b[33mwarn\x1b[0m"))


def test_a_table_paints_states_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    (_, line) = render.table(("ST", "NAME"), [("R", f"x{HOSTILE}")], colour=True)
    assert line.count("\x1b") == 2
    assert "x\\x1b]0;mine" in line


def test_how_far_a_sweep_is_is_told_in_text(capsys: pytest.CaptureFixture[str], gateway: FakeGateway) -> None:
    SweepProgressLine().say_progress(gateway.sweeps["s1"])
    assert is_harmless(capsys.readouterr().err)


def test_a_jobs_output_is_its_own(penstock: Run, gateway: FakeGateway) -> None:
    async def speak(fake: FakeGateway, job_id: str) -> None:
        await fake.bus.write_output(job_id, 0, b"\x1b[1mbold\x1b[0m\n")
        await fake.finish(job_id)

    gateway.on_submit = speak
    code, out, _ = penstock("run", "--no-check", "--", "x")
    assert (code, out) == (0, "\x1b[1mbold\x1b[0m\n")


@given(st.text())
def test_what_is_shown_is_one_line_that_says_the_same(text: str) -> None:
    shown = escaped(text)
    assert is_harmless(shown)
    assert len(shown.splitlines()) <= 1
    if text.isprintable():
        assert shown == text


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_escaped_json_means_the_same(text: str) -> None:
    assert json.loads(escaped_json(json.dumps({"a": text}, ensure_ascii=False))) == {"a": text}
