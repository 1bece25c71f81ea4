"""
The command ``top``: the cluster on one terminal, as it changes.

Only this command loads Textual, and only once it runs; the extra ``top`` installs it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock_cli.invocation import At, Failure, bad_input, call
from penstock_cli.value_formats import moment

if TYPE_CHECKING:
    from penstock.client import Client

TIMEOUT_S = 5.0
"""An answer that takes longer is shown as missing; it is asked for again at the next refresh."""
NOBODY_S = 1.0


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(top)


def top(
    ctx: typer.Context,
    *,
    refresh: Annotated[float, typer.Option("--refresh", min=0.1, max=3600.0, help="Seconds between two looks.")] = 1.0,
    user: Annotated[str, typer.Option("--user", "-u", help="Begin with this user's jobs; `me` is you.")] = "",
    pool: Annotated[str, typer.Option("--pool", help="Only nodes and jobs of this pool.")] = "",
    at: At = None,
) -> None:
    """
    Watch devices, queue, jobs and logs on this terminal.

    Keys: 1 to 4 panes, arrows, Enter a job, / filter, c cancel, w why, l log, ? all keys, q back.
    """
    try:
        from penstock_cli.top.screen_app import TopApp, TopOptions
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        raise Failure("`penstock top` needs Textual, which is not installed: pip install 'penstock[top]'") from None
    from penstock_cli.top.terminal_style import glyphs_of

    if not has_terminal():
        bad_input("`penstock top` needs a terminal; for scripts there are `penstock ps` and `penstock nodes` (-o json)")
    if user == "me":
        from penstock.submission import user_name

        user = user_name()
    options = TopOptions(
        glyphs=glyphs_of(first_environment()), refresh_s=refresh, user=user, pool=pool, at=moment(at), at_words=at or ""
    )

    async def show(client: Client) -> None:
        await TopApp(client, options).run_async()

    ctx.obj.setdefault("client", _client)
    call(ctx, show)


def has_terminal() -> bool:
    """Say whether this process can draw on a terminal: Textual reads standard input and draws on standard error."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


def _client(url: str) -> Client:
    from penstock.client import Client

    return Client(url, timeout_s=TIMEOUT_S, nobody_s=NOBODY_S)


def first_environment() -> Mapping[str, str]:
    """Return the environment with which this process began: Python itself sets ``LC_CTYPE`` where ``LANG`` is C."""
    with suppress(OSError):
        words = Path("/proc/self/environ").read_bytes().split(b"\0")
        return dict(os.fsdecode(word).partition("=")[::2] for word in words if b"=" in word)
    return os.environ
