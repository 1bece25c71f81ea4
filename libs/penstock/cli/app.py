"""All commands of ``penstock``, put together."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import (
    cluster,
    doctor,
    extras,
    jobs,
    lanes,
    output,
    policy,
    profile,
    purge,
    replay,
    shadow,
    simulate,
    submit,
    sweeps,
    trace,
    up,
)
from penstock.cli.errors import Group

LOCAL = "nats://127.0.0.1:4222"

app = typer.Typer(
    cls=Group,
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
    ctx.obj = {**(ctx.obj or {}), "url": url or os.environ.get("PENSTOCK_URL") or _configured() or LOCAL}


def _configured() -> str:
    """Return the address in the settings file; empty where there is no file."""
    if not (
        os.environ.get("PENSTOCK_CONFIG") or os.environ.get("PENSTOCK_CREDENTIALS") or Path("penstock.toml").exists()
    ):
        return ""
    from penstock_bus.settings import Connection, load

    return load(Connection, "").server()


for topic in (
    submit,
    jobs,
    output,
    profile,
    sweeps,
    cluster,
    lanes,
    policy,
    replay,
    simulate,
    shadow,
    trace,
    up,
    purge,
    doctor,
    extras,
):
    topic.register(app)
