"""``penstock lanes estimate``: which function it finds, and what it says of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import util
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from penstock_cli.commands import lanes
from penstock_cli.commands.lanes import loaded
from penstock_cli.invocation import Failure
from penstock_log import MemoryNeed

SCRIPT = """\
from neighbour import SIZE
import torch

def make():
    kept = torch.empty(SIZE)
    return lambda: kept * 2
"""


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """Forget the scripts' folders and modules afterwards."""
    path, modules = [*sys.path], {*sys.modules}
    yield
    sys.path[:] = path
    for name in {"neighbour", "estimated_script"} & (sys.modules.keys() - modules):
        del sys.modules[name]


def write(folder: Path, text: str) -> Path:
    (folder / "neighbour.py").write_text("SIZE = 1 << 20\n")
    script = folder / "estimated_script.py"
    script.write_text(text)
    return script


def test_a_function_is_found_in_a_script_whose_neighbours_can_be_imported(tmp_path: Path) -> None:
    script = write(tmp_path, SCRIPT.replace("import torch\n", ""))
    assert loaded(f"{script}:make").__name__ == "make"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("{script}", "names no function; expected such as train.py:make"),
        ("{script}:", "names no function"),
        ("{script}:no such", "names no function"),
        ("{script}x:make", "there is no file"),
        ("{script}:mak", "has no function mak; it has make"),
        ("{folder}/neighbour.py:make", "has no function make; it has none"),
        ("{folder}/notes.txt:make", "is no Python script"),
    ],
)
def test_a_target_that_cannot_be_found_says_what_there_is(tmp_path: Path, target: str, message: str) -> None:
    script = write(tmp_path, "def make():\n    return make\n")
    (tmp_path / "notes.txt").write_text("make")
    with pytest.raises(Failure, match=message):
        loaded(target.format(script=script, folder=tmp_path))


def test_a_script_that_fails_when_it_is_loaded_says_how(tmp_path: Path) -> None:
    script = write(tmp_path, "import no_such_package\n")
    with pytest.raises(Failure, match="cannot be loaded: ModuleNotFoundError: No module named 'no_such_package'"):
        loaded(f"{script}:make")


def test_without_torch_the_command_says_where_to_run_it(tmp_path: Path) -> None:
    if util.find_spec("torch"):
        pytest.skip("torch is installed")
    app = typer.Typer()
    lanes.register_estimate(app)
    failed = CliRunner().invoke(app, [f"{write(tmp_path, SCRIPT)}:make"])
    assert "run it where the job's own packages are" in str(failed.exception)


def test_an_estimate_is_told_as_a_table_and_as_json(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: the dry estimate was not tried")
    app = typer.Typer()
    lanes.register_estimate(app)
    words = [f"{write(tmp_path, SCRIPT)}:make", "--framework", "100MiB"]
    told = CliRunner().invoke(app, [*words, "-o", "json"])
    need = MemoryNeed(4 << 20, 100 << 20, 4 << 20)
    assert json.loads(told.stdout) == {
        "persistent_bytes": need.persistent_bytes,
        "framework_bytes": need.framework_bytes,
        "ephemeral_bytes": need.ephemeral_bytes,
    }
    shown = CliRunner().invoke(app, words).stdout
    assert "P      4MiB  kept between iterations" in shown
    assert "memory = { persistent_bytes = 4194304, framework_bytes = 104857600, ephemeral_bytes = 4194304 }" in shown
