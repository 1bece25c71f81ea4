"""What others wrote reaches a terminal as text: it is not obeyed, and no line of it looks like one of ours."""

from __future__ import annotations

import json
import re
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
from penstock_cli.terminal_output import TerminalOutput
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


async def _hostile_output(fake: FakeGateway, job_id: str) -> None:
    pieces = [  # cut within characters and within what a terminal obeys
        b"\x1b[1mbold\x1b[0m 10 %\r20 %\x1b[K\n\x1b]0;mi",
        b"ne\x07\x1b[2",
        b"J\xc2",
        b"\x9b1A\x1b[8mhid\xe2\x80",
        b"\xaeexe\xff",
    ]
    for piece in pieces:
        await fake.bus.write_output(job_id, 0, piece)
    await fake.finish(job_id)


@pytest.mark.parametrize("options", [(), ("-f",), ("--tail", "5")])
def test_logs_give_a_terminal_colours_and_progress_and_nothing_else_that_it_obeys(
    penstock: Run, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    monkeypatch.setattr(render, "_is_terminal", lambda: True)
    gateway.jobs["j3"] = job_view("j3", state="CD")
    gateway.before.append(lambda _: _hostile_output(gateway, "j3"))
    code, out, _ = penstock("logs", "j3", *options)
    assert (code, out) == (
        0,
        "\x1b[1mbold\x1b[0m 10 %\r20 %\x1b[K\n\\x1b]0;mine\\x07\\x1b[2J\\x9b1A\\x1b[8mhid\\u202eexe\\xff\x1b[0m",
    )


@pytest.mark.parametrize(("options", "is_terminal"), [((), False), (("--raw",), True)])
def test_logs_give_a_pipe_and_who_asks_for_it_every_byte(
    penstock: Run, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], is_terminal: bool
) -> None:
    monkeypatch.setattr(render, "_is_terminal", lambda: is_terminal)
    gateway.jobs["j3"] = job_view("j3", state="CD")
    gateway.before.append(lambda _: _hostile_output(gateway, "j3"))
    _, out, err = penstock("logs", "j3", *options)
    assert not err
    assert "\x1b]0;mine\x07\x1b[2J\x9b1A\x1b[8mhid\u202eexe" in out


@given(st.lists(st.binary() | st.sampled_from([b"\x1b", b"\x1b[", b"1;31", b"m", b"K", b"8", b"\xe2\x80", b"\xae"])))
def test_what_a_terminal_is_given_of_a_jobs_output_is_the_same_however_it_is_cut(pieces: list[bytes]) -> None:
    cut, whole = TerminalOutput(), TerminalOutput()
    shown = b"".join(cut.feed((0, "stdout"), piece) for piece in pieces) + b"".join(data for _, data in cut.rest())
    same = whole.feed((0, "stdout"), b"".join(pieces)) + b"".join(data for _, data in whole.rest())
    assert shown == same
    text = re.sub(r"\x1b\[([0-9;]*m|[0-2]?K)|[\r\t\b]", "", shown.decode())
    assert is_harmless(text)


@pytest.mark.parametrize(
    ("given_", "shown"),
    [
        (b"\x1b[38;5;8mgrey", b"\x1b[38;5;8mgrey\x1b[0m"),
        (b"\x1b[08mhidden", b"\\x1b[08mhidden"),
        (b"\x1b[38;2;1;8;8;8m", b"\\x1b[38;2;1;8;8;8m"),
        (b"\x1b[38;2;1;8;8m", b"\x1b[38;2;1;8;8m\x1b[0m"),
        (b"\x1b[" + b"1" * 40 + b"A", b"\\x1b[" + b"1" * 40 + b"A"),
        (b"\x1b", b"\\x1b"),
    ],
)
def test_text_is_not_hidden_and_all_colours_are_shown(given_: bytes, shown: bytes) -> None:
    terminal = TerminalOutput()
    assert terminal.feed((0, "stdout"), given_) + b"".join(data for _, data in terminal.rest()) == shown


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
