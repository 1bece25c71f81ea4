"""Small commands: schema, completion, new service."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from penstock.cli import render
from penstock.cli.errors import bad_input, tell

new_app = typer.Typer(help="Write a skeleton to start from.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(schema)
    app.command()(completion)
    new_app.command("service")(new_service)
    app.add_typer(new_app, name="new")


@new_app.callback()
def _new() -> None:
    """Write a skeleton to start from."""


def schema(what: Annotated[Literal["job", "sweep"], typer.Argument(help="Of a job or a sweep file.")] = "job") -> None:
    """Print the JSON Schema of job or sweep files; needs no server."""
    from penstock_events.schema import job_schema, sweep_schema

    render.show_json(job_schema() if what == "job" else sweep_schema())


def completion(
    shell: Annotated[
        Literal["bash", "zsh", "fish"] | None, typer.Argument(help="By default the one in $SHELL.")
    ] = None,
) -> None:
    """
    Print the completion script of a shell.

    For example: penstock completion bash >> ~/.bash_completion
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined] # there, if not in __all__

    name = shell or Path(os.environ.get("SHELL", "bash")).name
    if name not in {"bash", "zsh", "fish"}:
        bad_input(f"there is no completion for {name}; expected bash, zsh or fish")
    script = get_completion_script(prog_name="penstock", complete_var="_PENSTOCK_COMPLETE", shell=name)
    typer.echo(script)


def new_service(
    name: Annotated[str, typer.Argument(help="Lower-case letters, digits and -.")],
    into: Annotated[Path, typer.Option("--into", help="Folder in which the service's own folder is made.")] = Path(),
) -> None:
    """Write a working service with its test."""
    from penstock import scaffold

    try:
        written = scaffold.write_service(name, into)
    except (ValueError, OSError) as error:
        bad_input(str(error))
    for path in written:
        render.say(str(path))
    tell(f"next: cd {into / name} && pip install -e '.[test]' && pytest")
