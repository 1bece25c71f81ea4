"""`penstock service NAME`."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(service)


def service(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="gateway, profiler, ranker, matcher, tuner or executor.")],
) -> None:
    """Run one service in the foreground."""
    from penstock.cli.errors import bad_input
    from penstock_events import subjects

    known = sorted(set(subjects.WRITERS.values()))
    if name not in known:
        bad_input(f"there is no service {name!r}; expected one of {', '.join(known)}")
    os.environ["PENSTOCK_URL"] = ctx.obj["url"]
    os.execv(sys.executable, [sys.executable, "-m", f"penstock_{name}"])  # noqa: S606 - it becomes the service
