"""``penstock lanes estimate``: what a script's job will need of a device's memory, before it runs anywhere."""

from __future__ import annotations

import sys
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import render, typed
from penstock.cli.errors import Exit, Failure
from penstock.cli.session import Out

if TYPE_CHECKING:
    from penstock_events import MemoryNeed

Target = Annotated[
    str, typer.Argument(metavar="SCRIPT.py:FUNCTION", help="The function builds the job, and returns one iteration.")
]
Framework = Annotated[
    str, typer.Option("--framework", help="F, which no model tells: such as 500MiB; default: of torch on this host.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(estimate)


def estimate(target: Target, framework: Framework = "", output: Out = "table") -> None:
    """Tell a torch job's memory before it runs: its iterations are tried on tensors that have no content."""
    from penstock.estimate import EstimateError, insist_on_torch, need_of

    framework_bytes = typed.size(framework) if framework else None
    try:
        insist_on_torch()
        need = need_of(loaded(target), framework_bytes=framework_bytes)
    except EstimateError as error:
        raise Failure(str(error)) from error
    if output == "json":
        render.show_json(need)
        return
    render.show_table(("", "MEMORY", "WHAT"), _rows(need))
    render.say()
    render.say("in a job file:  memory = " + _toml(need))


def _rows(need: MemoryNeed) -> list[tuple[str, str, str]]:
    return [
        (
            "P",
            render.size(need.persistent_bytes),
            "kept between iterations: model, optimizer, gradients unless dropped",
        ),
        ("F", render.size(need.framework_bytes), "of the framework itself; on a GPU it is the node's to measure"),
        ("E", render.size(need.ephemeral_bytes), "the most that an iteration takes beside, and gives back"),
        ("all", render.size(need.alone_bytes), "to run at all"),
    ]


def _toml(need: MemoryNeed) -> str:
    fields = ((name, getattr(need, name)) for name in need.__struct_fields__)
    return "{ " + ", ".join(f"{name} = {size}" for name, size in fields) + " }"


def loaded(target: str) -> Any:
    """
    Return a script's function; its neighbours can be imported, as when the script is run.

    Raises
    ------
    Failure
        If there is no such script, it cannot be loaded, or has no such function.
    """
    file, _, name = target.rpartition(":")
    path = Path(file)
    if not file or not name.isidentifier():
        raise Failure(f"{target!r} names no function; expected such as train.py:make", Exit.USAGE)
    if not path.is_file():
        raise Failure(f"there is no file {path}; check the path", Exit.USAGE)
    spec = util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise Failure(f"{path} is no Python script; expected such as train.py:make", Exit.USAGE)
    module = util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise Failure(f"{path} cannot be loaded: {type(error).__name__}: {error}; does it run by itself?") from error
    if not callable(found := getattr(module, name, None)):
        functions = sorted(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
        raise Failure(f"{path} has no function {name}; it has {', '.join(functions) or 'none'}", Exit.USAGE)
    return found
