"""The command ``dashboard``: an address that signs a browser in."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from penstock_cli import render
from penstock_cli.invocation import AnswerOut, Exit, Failure, call

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock_log import views


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(dashboard)


def dashboard(
    ctx: typer.Context,
    browser: Annotated[
        bool | None,
        typer.Option("--browser/--no-browser", help="Open it; by default where there is a desktop."),
    ] = None,
    output: AnswerOut = "text",
) -> None:
    """
    Print an address that signs a browser in at the dashboard.

    It does so once, within a minute, as whom your commands are.
    """

    async def use(client: Client) -> views.SignInView:
        from penstock_bus.port import NoResponders

        try:
            return await client.sign_in()
        except NoResponders as error:
            raise Failure(
                "no dashboard runs; `penstock up` starts one, elsewhere `penstock service dashboard`", Exit.UNREACHABLE
            ) from error

    answer = call(ctx, use)
    render.show_answer(answer, answer.url, output)
    if browser or (browser is None and output == "text" and _has_desktop()):
        import webbrowser

        webbrowser.open(answer.url)


def _has_desktop() -> bool:
    return sys.stdout.isatty() and (
        sys.platform == "darwin" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    )
