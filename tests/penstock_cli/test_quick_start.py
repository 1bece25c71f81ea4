"""Plain command lines: read as Typer reads them, and run with little loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_server import plain_server

from penstock_bus.identity.claims import SigningKey
from penstock_bus.identity.logins import Login, keep_login
from penstock_cli.commands import acts, cluster, jobs, metrics, submit
from penstock_cli.parameters import Argument, NotPlain, PlainCommand, PlainContext, declared, read_plainly
from penstock_cli.quick_start import run_quickly
from penstock_cli.typer_commands import DashedCommand, typed
from penstock_log import views
from sweeps import examples

PLAIN: dict[str, PlainCommand] = {**acts.PLAIN, **cluster.PLAIN, **jobs.PLAIN, **metrics.PLAIN, **submit.PLAIN}
USUAL = """
ps
ps -a
ps --all -o wide
ps -s R,PD --state CD -u me
ps --name=tr* --limit 20 --team t --pool p --model m --text x
ps --at 10m --samples
show j1
show j1 --plot loss acc
metrics j1 -o csv --name loss -n acc --most 50
show j1 -o json
why j1
story j1 --at 17
events
events j1 --after 3 --limit 5
logs j1 -f
logs j1 --tail 5 --rank 0
cancel j1
cancel j1 j2 --reason late
cancel --all --yes
hold --user ann -s PD
release j1 -o json
nodes -o wide
status
rejected
submit job.toml
submit a.toml b.toml --strict
submit --gpus 2 -- python train.py --lr 0.1 -- -x
submit -n x -k fast -k slow --memory 8GiB -- true
submit --priority 3 --fraction 0.5 --no-check --hold -- true
submit --lr-rule linear --batch 64..512 -p lr=0.1 -e A=b --retries 2 -
submit --after j1 -d afterany:j2,after:j3 --begin 2h -t 1-00:00:00 -- true
submit --grace 30s --checkpoint-every 10m --begins-from j1 --keep-checkpoint --processes node --sharers 3 -- true
run --gpus 1..4 -- python -u train.py
""".strip().splitlines()
FOR_TYPER = """
ps --help
ps -h
ps --sta R
ps --limit 0
ps --limit x
ps -o yaml
ps -aowide
ps x
ps --all=yes
show
why a b
logs j1 --rank -1
logs j1 --log-nothing
cancel --reason
submit --cpus 1e3 -- x
""".strip().splitlines()


def by_typer(command: PlainCommand, words: list[str]) -> dict[str, Any] | None:
    """Return what Typer calls a command with; None where it refuses, or shows help."""
    seen: list[dict[str, Any]] = []

    def record(ctx: Any, **values: Any) -> None:
        seen.append({**values, "meta": dict(ctx.meta)})

    parts = {name: (annotation, default) for name, annotation, default in declared(command.function)}
    record.flat_parameters = parts  # type: ignore[attr-defined]
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command(cls=DashedCommand if command.is_dashed else None)(typed(record))
    try:
        app(args=words, standalone_mode=False)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
    return seen[0] if seen else None


def plainly(command: PlainCommand, words: list[str]) -> dict[str, Any] | None:
    """Return what a command is called with that is read plainly, with its defaults; None where it is for Typer."""
    context = PlainContext({})
    try:
        found = read_plainly(command, words, context)
    except NotPlain:
        return None
    parts = list(declared(command.function))
    return {**{name: default for name, _, default in parts if name != "ctx"}, **found, "meta": context.meta}


def without_own(read: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return it without what Typer itself leaves in the meta data."""
    if read is None:
        return None
    return {**read, "meta": {key: value for key, value in read["meta"].items() if key == "penstock.command"}}


@pytest.mark.parametrize("line", USUAL)
def test_usual_command_lines_are_read_plainly_and_as_typer_reads_them(line: str) -> None:
    name, *words = line.split()
    found = plainly(PLAIN[name], words)
    assert found is not None
    assert found == without_own(by_typer(PLAIN[name], words))


@pytest.mark.parametrize("line", FOR_TYPER)
def test_what_is_not_plain_is_for_typer(line: str) -> None:
    name, *words = line.split()
    assert plainly(PLAIN[name], words) is None
    assert run_quickly([name, *words]) is None


@st.composite
def command_lines(draw: st.DrawFn) -> tuple[PlainCommand, list[str]]:
    """Give a command with some of its options, some of their values, and words that stand loose."""
    command = PLAIN[draw(st.sampled_from(sorted(PLAIN)))]
    values = st.sampled_from(
        ["j1", "1", "0", "2.5", "-3", "R", "wide", "json", "a=b", "", "--", "-", "on", "é", "1_0", " 7"]
    )
    names = [name for _, annotation, _ in declared(command.function) for name in names_of(annotation)]
    words: list[str] = []
    for _ in range(draw(st.integers(0, 5))):
        name, value = draw(st.sampled_from([*names, ""])), draw(values)
        words += draw(st.sampled_from([[name], [name, value], [f"{name}={value}"], [value]]))
    return command, [word for word in words if word or draw(st.booleans())]


def names_of(annotation: Any) -> list[str]:
    found = getattr(annotation, "__metadata__", ())
    return [part for one in found if not isinstance(one, Argument) for name in one.names for part in name.split("/")]


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None)
@given(command_lines())
def test_what_is_read_plainly_is_what_typer_reads(asked: tuple[PlainCommand, list[str]]) -> None:
    command, words = asked
    found = plainly(command, words)
    if found is not None:
        assert found == without_own(by_typer(command, words))


# --- what is loaded
HEAVY = {
    "asyncio", "click", "cryptography", "dataclasses", "difflib", "hashlib", "inspect", "json", "logging",
    "nacl.bindings", "nats", "networkx", "nkeys", "numba", "numpy", "rich", "scipy", "shutil", "ssl", "structlog",
    "subprocess", "threading", "typer", "typing_extensions", "uvloop", "yaml", "penstock_bus.port",
    "penstock_cli.app", "penstock.client", "penstock_log.codec", "penstock_log.facts", "penstock_log.lifecycle",
}  # fmt: skip
MOST_MODULES = 145
"""Two thirds of them are what Python starts with, and what msgspec and a socket take."""
JOB = views.JobRow(id="j1", name="a", user="u", state="PD", gpus=1, submitted_s=1.0, wait_s=2.0, run_s=0.0)
ANSWERS: dict[str, msgspec.Struct] = {
    "jobs": views.JobsView(jobs=(), rows=(JOB,), total=1, seq=7),
    "submit": views.SubmitAnswer(id="j1", seq=7, created=True),
    "cancel": views.ActAnswer(id="j1", changed=True, state="CA", message="j1 is cancelled"),
    "bulk": views.BulkView(answers=(), matched=0, changed=0, refused=0),
    "status": views.StatusView(
        jobs={"R": 2}, devices={}, nodes={}, sweeps={}, services=(), last_seq=7, backlog=0, version="0"
    ),
    "nodes": views.NodesView(nodes=(), seq=7),
    "events": views.EventsView(events=(), seq=7),
    "rejected": views.RejectedListView(rejected=()),
    "story": views.StoryView(id="j1", name="a", lines=()),
}


def answer(subject: str, _: bytes) -> bytes:
    return msgspec.json.encode(ANSWERS[subject.rpartition(".")[2]])


@pytest.fixture
def loaded(tmp_path: Path) -> Callable[..., tuple[int, set[str]]]:
    """Run a command in a process; return its exit code and the modules that it has loaded."""

    def run(*words: str) -> tuple[int, set[str]]:
        code = (
            "import sys\nfrom penstock_cli.quick_start import run_quickly\n"
            f"code = run_quickly({list(words)!r})\nloaded = sorted(sys.modules)\n"
            "import json\nprint(json.dumps([code, loaded]))"
        )
        environment = {**os.environ, "PENSTOCK_URL": server.url, "XDG_CONFIG_HOME": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-S", "-c", f"import sys; sys.path = {sys.path!r}; {code}"],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        exit_code, modules = json.loads(done.stdout.splitlines()[-1])
        return exit_code, set(modules)

    with plain_server(answer) as server:
        key = SigningKey.derived("user", bytes(32), "ann")
        login = Login(url=server.url, user="ann", user_jwt="claim", user_seed=key.seed)
        keep_login("client", login, {"XDG_CONFIG_HOME": str(tmp_path)})
        yield run  # type: ignore[misc]
        assert server.logins[-1]["sig"] == key.answer("n").decode()


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        *("ps", "ps -a", "submit -- true", "cancel j1", "cancel --all", "hold --state PD", "status", "nodes", "events"),
        *("story j1", "rejected"),
    ],
)
def test_an_everyday_command_loads_nothing_heavy(loaded: Callable[..., tuple[int, set[str]]], line: str) -> None:
    code, modules = loaded(*line.split())
    assert (code, sorted(HEAVY & modules)) == (0, [])
    assert len(modules) < MOST_MODULES


# --- the end
def ended(code: str, **streams: Any) -> subprocess.CompletedProcess[str]:
    code = f"import sys\nfrom penstock_cli.quick_start import end_process\n{code}\nend_process(3)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run([sys.executable, "-c", code], text=True, check=False, env=environment, **streams)


def test_a_process_ends_at_once_with_its_code_and_all_that_it_has_written() -> None:
    code = "print('out', end='')\nprint('err', end='', file=sys.stderr)\nsys.modules['x'] = type('X', (), "
    left = "{'__del__': lambda self: print('taken apart')})()"
    done = ended(f"{code}{left}", capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (3, "out", "err")


def test_what_is_to_be_done_at_the_exit_is_done() -> None:
    done = ended("import atexit\natexit.register(print, 'done')", capture_output=True)
    assert (done.returncode, done.stdout) == (3, "done\n")
    work = "import threading\nthreading.Timer(0.2, print, ['worked']).start()"
    assert ended(work, capture_output=True).stdout == "worked\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_a_stream_that_takes_nothing_is_not_passed_over() -> None:
    with Path("/dev/full").open("w") as full:
        done = ended("print('lost')", stdout=full, stderr=subprocess.PIPE)
    assert done.returncode not in {0, 3}
    assert "No space left on device" in done.stderr


def test_a_stream_that_a_shell_has_closed_is_no_error() -> None:
    assert ended("sys.stdout = None", capture_output=True).returncode == 3


def test_what_loads_msgspec_leaves_typing_extensions_to_others() -> None:
    code = "from penstock_cli import quick_start as q; q._load_msgspec(); import sys\n"
    check = "print('typing_extensions' in sys.modules); import typing_extensions; print(typing_extensions.__name__)"
    done = subprocess.run([sys.executable, "-c", code + check], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "typing_extensions"]
