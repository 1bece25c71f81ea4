"""Every command that a message, a help text or a document suggests is one that the command line takes."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
from fake_gateway import FakeGateway

from penstock_cli import hoisted
from penstock_cli.app import app
from penstock_executor.launchers import process_launcher

Run = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parents[2]
COMMAND = typer.main.get_command(app)
HOLE = "1"
"""In place of what is put into a message: it does for names and for numbers."""

_QUOTED = re.compile(r"`(penstock [^`]+)`|'(penstock [^']+)'|: (penstock (?:run|submit) -- [^;()]+)")
_NAMED = re.compile(r"[`']penstock\b|: penstock\b")
"""What a source has in which :data:`_QUOTED` finds anything: all are read, and few are parsed."""
_ANY_OF = {"NAME": HOLE, "…": HOLE, "...": HOLE, "ID": HOLE, "N": HOLE, "COMMAND": "ps"}


class Suggestion(NamedTuple):
    """A command line, as it stands in a file; a message's is complete, a document may speak of a command's option."""

    place: str
    text: str
    complete: bool


def suggestions() -> Iterator[Suggestion]:
    """Yield all that stand in quotes in the sources, and all that documents show behind a prompt or in quotes."""
    for path in sorted([*ROOT.glob("libs/**/*.py"), *ROOT.glob("services/**/*.py")]):
        source = path.read_text()
        if not _NAMED.search(source):
            continue
        tree = ast.parse(source)
        documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if text := _text(node):
                yield from _quoted(path, text, complete=id(node) not in documented)
    for path in sorted([*ROOT.glob("docs/*.md"), ROOT / "README.md", *ROOT.glob("examples/**/*.md")]):
        text = path.read_text()
        yield from _quoted(path, re.sub(r"```.*?```", "", text, flags=re.DOTALL), complete=False)
        for line in re.findall(r"^\s*\$ (?:[A-Z_]+=\S+ )*(penstock .*?)(?:  #.*)?$", text, re.MULTILINE):
            if not line.endswith("\\"):
                yield Suggestion(path.name, re.split(r" (?:[|<>&]|2>)", line)[0], complete=True)


def _text(node: ast.AST) -> str:
    """Return a string of the source; what a format puts into it is a hole, and words that stand in one are not."""
    match node:
        case ast.JoinedStr(values=parts):
            whole = "".join(part.value if isinstance(part, ast.Constant) else "\0" for part in parts)
            return re.sub(r"(?<=\w)\0", "", whole).replace("\0", HOLE)
        case ast.Constant(value=str(text)):
            return text
        case _:
            return ""


def _quoted(path: Path, text: str, *, complete: bool) -> Iterator[Suggestion]:
    for found in _QUOTED.finditer(" ".join(text.split())):
        yield Suggestion(path.name, next(filter(None, found.groups())), complete)


def problem(text: str, *, complete: bool = True) -> str:
    """Return why the command line does not take it; empty where it does."""
    plain = re.sub(r"(?<=\w)\|[\w|]+", "", text.translate({ord("["): None, ord("]"): None}))  # a|b: a
    words = [_ANY_OF.get(word, word) for word in shlex.split(plain)[1:]]
    complete = complete and "…" not in text
    taken: list[str] = []
    try:
        _parse(hoisted(words), taken)
    except (typer.Exit, Exception) as error:
        match type(error).__name__:  # by name: typer has a copy of click, in some versions
            case "NoArgsIsHelpError" | "Exit":
                return ""
            case "MissingParameter" if words == taken or not complete:
                return ""  # the command is spoken of, and not how it is called
            case "BadOptionUsage" if words[-1].startswith("-"):
                return ""  # so is an option of it
            case name:
                return f"{name}: {error}"
    return ""


def _parse(args: list[str], taken: list[str]) -> None:
    """Parse a command line as far as its command is called, and do not call it."""
    command: Any = COMMAND
    parent = None
    while True:
        context = command.make_context(command.name, list(args), parent=parent)
        rest = [*context._protected_args, *context.args]
        if not hasattr(command, "resolve_command") or not rest:
            return
        name, found, args = command.resolve_command(context, rest)
        taken.append(name)
        command, parent = found, context


ACTS = {"penstock --install-completion"}
"""What typer does as soon as it has read it."""


def test_each_suggested_command_is_one_that_there_is() -> None:
    """All at once: to read them takes two seconds, which a parametrized test would cost each worker's collection."""
    found = sorted(one for one in set(suggestions()) if one.text not in ACTS)
    assert {"invocation.py", "cluster.py", "acceptance.py", "extend.md", "README.md"} <= {one.place for one in found}
    assert len(found) > 100
    problems = {one: problem(one.text, complete=one.complete) for one in found}
    assert {one: said for one, said in problems.items() if said} == {}


@pytest.mark.parametrize("text", ["penstock frobnicate", "penstock node drian n1", "penstock ps --al"])
def test_a_command_that_there_is_not_would_be_noticed(text: str) -> None:
    assert problem(text)


def advised(message: str) -> list[str]:
    (found,) = re.findall(r"penstock (?:submit|run) -- (.*?)(?: \(or give .*)?$", message.strip())
    return shlex.split(found)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("hello.sh", "go"):
        (tmp_path / name).write_text("#!/bin/sh\necho hello $1\n")
    (tmp_path / "hello.py").write_text("import sys\nprint('hello', *sys.argv[1:])\n")
    (tmp_path / "go").chmod(0o755)
    return tmp_path


TYPED = ["hello.sh", "hello.py", "go", "hello.sh you", "-- hello.sh", "-- hello.py you", "-- ./hello.sh you", "-- go"]


@pytest.mark.parametrize("verb", ["submit", "run"])
@pytest.mark.parametrize("typed", TYPED)
def test_what_is_advised_instead_of_a_script_that_does_not_start_is_accepted_and_runs(
    penstock: Run, gateway: FakeGateway, here: Path, verb: str, typed: str
) -> None:
    async def finish(fake: FakeGateway, job_id: str) -> None:
        await fake.finish(job_id)

    gateway.on_submit = finish
    code, out, err = penstock(verb, *typed.split())
    assert (code, out, gateway.asked) == (2, "", [])
    assert f"penstock {verb} -- " in err
    command = advised(err)
    assert penstock(verb, "--", *command)[0] == 0
    assert [spec.command for spec in gateway.specs.values()] == [tuple(command)]
    said = subprocess.run(command, cwd=here, capture_output=True, text=True, check=True).stdout
    assert said.split() == ["hello", *typed.split()[2 if typed.startswith("--") else 1 :]]


@pytest.mark.parametrize("command", [("./hello.sh", "you"), ("hello.sh", "you"), ("go", "you")])
def test_a_node_says_of_a_file_that_is_there_what_starts_it(here: Path, command: tuple[str, ...]) -> None:
    path = os.defpath
    said = process_launcher.problem(command, str(here), path)
    assert "was not found; looked" not in said
    assert not process_launcher.problem(advised(said), str(here), path)


def test_a_file_that_nothing_is_known_to_run_may_be_made_a_program(penstock: Run, here: Path) -> None:
    (here / "tool").write_text("#!/bin/sh\n")
    code, _, err = penstock("submit", "--", "./tool")
    assert code == 2
    assert err.startswith(f"penstock: ./tool is not executable; make it so: chmod +x {here / 'tool'}")
    assert "is not executable; chmod +x it in " in process_launcher.problem(["./tool"], str(here), os.defpath)
    assert penstock("submit", "--no-check", "--", "./tool")[0] == 0


def test_lines_that_end_as_on_windows_are_named_where_they_keep_a_program_from_starting(
    penstock: Run, here: Path
) -> None:
    tool = here / "tool.sh"
    tool.write_bytes(b"#!/bin/sh -e\r\necho hello\r\n")
    tool.chmod(0o755)
    said = "end as on Windows (CRLF), so its first line names /bin/sh -e^M (bad interpreter), and not /bin/sh -e; "
    code, out, err = penstock("submit", "--", "./tool.sh")
    assert (code, out) == (2, "")
    assert err == f"penstock: the lines of ./tool.sh {said}convert it: sed -i 's/\\r$//' ./tool.sh\n"
    assert said in process_launcher.problem(["./tool.sh"], str(here), os.defpath)
    code, out, err = penstock("submit", "--", "sh", "tool.sh")
    assert (code, out) == (0, "j1\n")
    assert "the lines of tool.sh end as on Windows (CRLF), and sh takes the CR for a part of each line; convert" in err
    subprocess.run(["sed", "-i", "s/\\r$//", str(tool)], check=True)
    assert penstock("submit", "--", "./tool.sh")[::2] == penstock("submit", "--", "sh", "tool.sh")[::2] == (0, "")
    assert not process_launcher.problem(["./tool.sh"], str(here), os.defpath)


def test_python_reads_lines_as_on_windows_and_needs_no_advice(penstock: Run, here: Path) -> None:
    (here / "win.py").write_bytes(b"print(1)\r\nprint(2)\r\n")
    assert penstock("submit", "--", "python", "win.py")[::2] == (0, "")


def test_a_script_whose_interpreter_a_node_does_not_have_is_told_its_name(here: Path) -> None:
    (here / "odd").write_text("#!/opt/no/such/fish -c\n")
    (here / "odd").chmod(0o755)
    said = process_launcher.problem(["./odd"], str(here), os.defpath)
    assert said.startswith("the first line of program './odd' names /opt/no/such/fish to run it, which is not there")
