"""What every command shares: the server's address, the connection, the event loop, and options of many commands."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from penstock.cli import render
from penstock.cli.errors import Exit, Failure, explain, tell

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock_events import views

T = TypeVar("T")
Output = Literal["table", "wide", "json"]
Out = Annotated[Output, typer.Option("-o", "--output", help="table, wide (all columns, nothing cut) or json.")]
AnswerOutput = Literal["text", "json"]
AnswerOut = Annotated[AnswerOutput, typer.Option("-o", "--output", help="text, or json: the answers, one a line.")]
At = Annotated[
    str | None,
    typer.Option("--at", help="As of a stream sequence, a span ago (10m), or a time (2026-01-31T09:30:00Z)."),
]
LogFile = Annotated[
    Path | None,
    typer.Option("--log", help="Ask a log in a file, as `events -f -o json` or `sim --log` write it, not the server."),
]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="Job id, or a unique beginning of it.")]
JobIds = Annotated[list[str], typer.Argument(metavar="JOB...", help="Job ids, or unique beginnings of them.")]


def call(ctx: typer.Context, use: Callable[[Client], Awaitable[T]]) -> T:
    """
    Connect, run ``use`` with the client, and disconnect; its errors are explained by the root of all commands.

    ``ctx.obj["client"]``, a function of the address, may stand in for the client: tests give one on another bus.
    """
    options: dict[str, Any] = ctx.obj
    make = options.get("client") or _client

    async def connected() -> T:
        async with make(options["url"]) as client:
            return await use(client)

    try:
        return asyncio.run(connected())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _client(url: str) -> Client:
    from penstock.client import Client

    return Client(url)


def act(
    ctx: typer.Context,
    ids: Sequence[str],
    command: Callable[[Client, str], Awaitable[views.ActAnswer]],
    output: AnswerOutput,
) -> None:
    """Give a command about each id and say what became of it; all are tried, and the first error ends it badly."""

    async def each(client: Client) -> Failure | None:
        first = None
        for entity_id in ids:
            try:
                answer = await command(client, entity_id)
            except Exception as error:
                failure = explain(error, ctx.obj["url"])
                if failure is None or failure.code is Exit.UNREACHABLE:
                    raise
                tell(str(failure))
                first = first or failure
                continue
            if output == "json":
                render.show_json_line(answer)
            else:
                render.say(answer.message)
        return first

    failed = call(ctx, each)
    if failed:
        raise typer.Exit(failed.code)
