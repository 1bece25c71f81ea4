"""
A log in which every free text is hostile, asked by every command: nothing reaches a terminal that it would obey.

The log has a fact of every kind. Whatever the codec lets pass has been changed: names of nodes, who did what and why,
arguments, variables, hyper-parameters, metrics, kinds of devices.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from cli_fixtures import Result
from gateway_cases import gateway
from log_state import read_wire
from typer.testing import CliRunner

from penstock.client import Client
from penstock_bus import Append, Delivery
from penstock_bus.memory import MemoryBus
from penstock_cli import hoisted, render
from penstock_cli.app import app
from penstock_log import CodecError, Commit, codec, fields_of, subjects
from penstock_testing import eventually

LOG: Final = Path(__file__).parents[1] / "data" / "logs" / "35a4014-every-fact.log.gz"
FORGED: Final = "penstock: all jobs completed"
HOSTILE: Final = f"\x1b]0;mine\x07\x9b2J\x1b[8m\u202e\u2066\u2028\u0085\r\n{FORGED}\n"
NODE: Final = "n2\x1b[2J\u202e"
"""A node's id is one token of a subject: it has no spaces and no dots."""
OURS: Final = frozenset(
    {"type", "job_id", "sweep_id", "key", "pool", "state", "outcome", "parent", "id", "best_job_id"}
)
"""Names by which one fact finds another, and words of which there are a few."""


def is_harmless(text: str) -> bool:
    return all(c == "\n" or unicodedata.category(c) not in {"Cc", "Cf", "Cs", "Zl", "Zp"} for c in text)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Yield the place and the text of every text in a fact; keys of tables come after what is under them."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
            yield (*path, key, None), key
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from leaves(item, (*path, i))
    elif isinstance(value, str):
        yield path, value


def changed(value: Any, path: tuple[Any, ...], text: str) -> Any:
    """Return a copy of a fact with another text, or another key, at a place."""
    at, *rest = path
    if rest == [None]:
        return {text if key == at else key: item for key, item in value.items()}
    new = changed(value[at], tuple(rest), text) if rest else text
    if isinstance(value, list):
        return [*value[:at], new, *value[at + 1 :]]
    return {**value, at: new}


def hostile(delivery: Delivery) -> tuple[str, Commit]:
    """Return a commit with as much hostile text as the codec takes on its subject."""
    subject = delivery.subject.replace(".n2", f".{NODE}")
    facts = json.loads(
        json.dumps([fields_of(fact) for fact in delivery.commit.facts]).replace('"n2"', json.dumps(NODE))
    )

    def commit(facts: Any) -> Commit:
        body = json.dumps({"id": delivery.commit.id, "actor": f"test{HOSTILE}", "facts": facts}).encode()
        return codec.decode_at(subject, body)

    for path, text in list(leaves(facts)):
        if text == NODE or OURS & set(path) or text in {"fast", "slow"}:
            continue
        tried = changed(facts, path, text + HOSTILE)
        try:
            taken = json.loads(json.dumps([fields_of(fact) for fact in commit(tried).facts]))
        except CodecError:
            continue
        facts = tried if taken == tried else facts  # a field of another name would only be passed over
    return subject, commit(facts)


@cache
def hostile_log() -> list[tuple[str, Commit]]:
    return [hostile(delivery) for delivery in read_wire(LOG)]


@asynccontextmanager
async def served(_url: str = "") -> AsyncIterator[Client]:
    """Give a client of a real gateway that has folded the log."""
    async with MemoryBus() as bus:
        for subject, commit in hostile_log():
            await bus.append(Append(subject=subject, commit=commit, expected=None))
        await bus.write_output("j1", 0, f"loss 0.1{HOSTILE}".encode())
        async with gateway(bus), Client(bus=bus) as client:

            async def bus_rejects() -> bool:
                return bool(await bus.rejections())

            await client.bus.submit(subjects.INBOX_JOBS, json.dumps({"name": HOSTILE, HOSTILE: 1}).encode())
            await eventually(bus_rejects)
            yield client


@pytest.fixture
def penstock(plain_output: None) -> Callable[..., Result]:
    def run(*args: str) -> Result:
        result = CliRunner().invoke(app, hoisted(args), prog_name="penstock", obj={"client": served})
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.stdout, result.stderr

    return run


def test_every_kind_of_fact_holds_hostile_text_that_the_codec_takes() -> None:
    texts = {
        (fact["type"], *(part for part in path if isinstance(part, str)))
        for _, commit in hostile_log()
        for fact in json.loads(msgspec.json.encode(commit))["facts"]
        for path, text in leaves(fact)
        if text.endswith(HOSTILE)
    }
    assert len(texts) >= 50
    assert {kind for kind, *_ in texts} >= {"job.submitted.v1", "node.joined.v2", "run.ended.v1", "round.decided.v1"}


COMMANDS: Final = [
    *(("ps", "-a", "-o", form) for form in ("table", "wide", "json")),
    *((verb, job, "-o", form) for verb in ("show", "why") for job in ("j1", "e1", "x0") for form in ("table", "json")),
    *((verb, job, "-o", "wide") for verb in ("story", "events") for job in ("j1", "g1", "w1", "t1")),
    *(("events", "-o", form) for form in ("table", "wide", "json")),
    *(("nodes", "-o", form) for form in ("table", "wide", "json")),
    *(("sweep", verb, "w1") for verb in ("show", "best", "export")),
    *(("sweep", "show", sweep, "-o", "json") for sweep in ("w1", "w2")),
    *(("policy", "show", "-o", form) for form in ("table", "wide", "json")),
    *(("profile", "j1", "-o", form) for form in ("table", "wide", "json")),
    ("sweep", "ls"),
    ("status",),
    ("rejected",),
    ("rejected", "-o", "json"),
    ("doctor",),
    ("cancel", "j1", "e1", "nothing"),
    ("hold", "j1", f"x{HOSTILE}"),
    ("release", "l1"),
    ("node", "drain", "n2", "--reason", HOSTILE),
    ("node", "resume", NODE, "n"),
    ("node", "remove", "n2"),
    ("show", "n2"),
    ("show", f"no{HOSTILE}"),
    ("ps", f"--no{HOSTILE}"),
    (f"no{HOSTILE}",),
    ("ps", "-o", f"no{HOSTILE}"),
    ("submit", "--dry-run", "--no-check", "--name", f"no{HOSTILE}", "--", "x"),
    ("submit", "--dry-run", "--no-check", "--kind", f"no{HOSTILE}", "--", f"x{HOSTILE}"),
    ("submit", f"no{HOSTILE}.toml"),
    ("trace", "info", f"no{HOSTILE}"),
    ("why", "j1", "--log", f"no{HOSTILE}"),
    ("policy", "set", "default", f"no{HOSTILE}=1"),
    ("policy", "set", f"no{HOSTILE}", "order=las"),
    ("tune", f"no{HOSTILE}.toml"),
    ("sim", "--trace", f"no{HOSTILE}"),
    ("shadow", "ls"),
    ("replay", "--policy", f"no{HOSTILE}"),
]


@pytest.mark.parametrize(
    "command", COMMANDS, ids=lambda command: " ".join(command).replace(HOSTILE, "!").replace(NODE, "N")
)
@pytest.mark.parametrize("is_terminal", [False, True], ids=["piped", "terminal"])
def test_no_command_passes_hostile_words_on(
    penstock: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], is_terminal: bool
) -> None:
    monkeypatch.setattr(render, "_is_terminal", lambda: is_terminal)
    _, out, err = penstock(*command)
    shown_raw = command[:2] == ("sweep", "export") and not is_terminal  # a file has every character
    assert out + err
    assert is_harmless(err), err
    assert is_harmless(out) or shown_raw, out
    assert not [line for line in (out * (not shown_raw) + err).splitlines() if line.lstrip().startswith(FORGED)]
