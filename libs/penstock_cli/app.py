"""
The application ``penstock``: all commands put together, and the small ones.

:class:`LazyCommandGroup` loads only the commands that are asked for. The small commands are ``schema``, ``completion``
and ``new service``, which writes the skeleton of a service that stands beside Penstock.
"""

from __future__ import annotations

import os
import re
from functools import cache
from importlib import import_module
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from penstock_cli import render
from penstock_cli.invocation import LOCAL, bad_input, named_url, server_url, tell
from penstock_cli.quick_start import MODULE_OF
from penstock_cli.typer_commands import CommandGroup, adapt


class LazyCommandGroup(CommandGroup):
    """
    All commands, of which only those are loaded that are asked for.

    Typer takes 60 ms to look at the parameters of all of them: more than most of them take to run.
    """

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; None if there is none of that name."""
        if cmd_name in MODULE_OF:
            return load_commands(MODULE_OF[cmd_name])[cmd_name]
        self.list_commands(ctx)  # the error suggests one of those that have been loaded
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, in the order of the help."""
        self.commands.update({name: load_commands(module)[name] for name, module in MODULE_OF.items()})
        return super().list_commands(ctx)


@cache
def load_commands(module: str) -> dict[str, Any]:
    """Return the commands that a module of this package registers, by name."""
    part = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    import_module(f"penstock_cli.{module}").register(part)
    adapt(part)
    return dict(typer.main.get_group(part).commands)


app = typer.Typer(
    cls=LazyCommandGroup,
    help="Keep every GPU of a shared cluster doing useful work.",
    epilog="Exit codes: 1 it failed, 2 bad input, 3 server unreachable, 4 not found, 5 conflict; "
    "with --wait and run, the job's own.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(asked: bool) -> None:
    """Answer before a command is missed."""
    if asked:
        from importlib.metadata import version as installed

        typer.echo(f"penstock {installed('penstock')}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    url: Annotated[
        str,
        typer.Option(
            "--url", help="NATS server; PENSTOCK_URL, penstock.toml, else nats://127.0.0.1:4222.", show_default=False
        ),
    ] = "",
    _version: Annotated[
        bool,
        typer.Option("--version", "-V", help="Show the version and exit.", is_eager=True, callback=_show_version),
    ] = False,
) -> None:
    """Keep every GPU of a shared cluster doing useful work."""
    try:
        found = {"url": server_url(url), "named_url": named_url(url)}
    except ValueError:
        if ctx.invoked_subcommand != "up":  # which tells of everything that is wrong with the settings
            raise
        found = {"url": url or LOCAL, "named_url": url}
    ctx.obj = {**(ctx.obj or {}), **found}


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
    """Print the JSON Schema of job or sweep files."""
    from penstock_log.spec import job_schema, sweep_schema

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
    try:
        written = write_service(name, into)
    except (ValueError, OSError) as error:
        bad_input(str(error))
    for path in written:
        render.say(str(path))
    tell(f"next: cd {into / name} && pip install -e '.[test]' && pytest")


_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,40}")


def write_service(name: str, into: Path) -> list[Path]:
    """
    Write a working service and its test into the folder ``into / name``.

    Parameters
    ----------
    name : str
        Lower-case letters, digits and hyphens; the package becomes ``penstock_<name>`` with underscores.
    into : Path
        An existing folder.

    Returns
    -------
    list of Path
        The files written.

    Raises
    ------
    ValueError
        If the name is of another form.
    FileExistsError
        If the folder exists and holds something: nothing is overwritten.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} cannot name a service; expected lower-case letters, digits and -, such as my-notifier"
        )
    target = into / name
    if target.exists() and any(target.iterdir()):
        raise FileExistsError(f"{target} exists and is not empty; choose another name or folder")
    module = name.replace("-", "_")
    values = {"@name@": name, "@module@": module, "@MODULE@": module.upper()}
    names = {"package": f"penstock_{module}", "test_service.py": f"test_{module}.py"}
    texts: dict[Path, str] = {}
    with as_file(files("penstock_cli") / "templates" / "service") as root:
        for source in root.rglob("*.txt"):
            parts = source.relative_to(root).with_suffix("").parts
            text = source.read_text(encoding="utf-8")
            for placeholder, value in values.items():
                text = text.replace(placeholder, value)
            texts[target.joinpath(*(names.get(part, part) for part in parts))] = text
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return sorted(texts)
