"""The output of jobs: `penstock logs`, and what `penstock run` shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli.session import JobId, call

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock_bus.port import LogLine

_MARGIN: Final = 256
"""Pieces read beyond the tail, for those written between reading the tail and following."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(logs)


def logs(
    ctx: typer.Context,
    job: JobId,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the job has ended.")] = False,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Only this process of a gang.")] = None,
    tail: Annotated[int | None, typer.Option("--tail", min=0, help="Only the last so many lines.")] = None,
) -> None:
    """Show a job's output; lines of a gang begin with the rank."""

    async def show(client: Client) -> None:
        await stream(client, job, follow=follow, rank=rank, tail=tail)

    call(ctx, show)


class Printer:
    """
    Turns pieces of output into what is written: as they are, or as whole lines with the rank before them.

    Examples
    --------
    >>> printer = Printer(ranks=True)
    >>> printer.feed(0, b"a\\nb"), printer.feed(1, b"x\\n"), printer.feed(0, b"c\\n"), printer.rest()
    (b'[0] a\\n', b'[1] x\\n', b'[0] bc\\n', b'')
    """

    def __init__(self, *, ranks: bool) -> None:
        self._ranks = ranks
        self._open: dict[int, bytes] = {}

    def feed(self, rank: int, data: bytes) -> bytes:
        """Return what to write after one more piece."""
        if not self._ranks:
            return data
        *whole, self._open[rank] = (self._open.get(rank, b"") + data).split(b"\n")
        return b"".join(self._line(rank, line) for line in whole)

    def rest(self) -> bytes:
        """Return the lines that never ended."""
        return b"".join(self._line(rank, line) for rank, line in sorted(self._open.items()) if line)

    def _line(self, rank: int, line: bytes) -> bytes:
        return b"[%d] %s\n" % (rank, line)


async def stream(
    client: Client, job_id: str, *, follow: bool, rank: int | None = None, tail: int | None = None
) -> None:
    """Write a job's output to standard output, with ``follow`` until the job has ended."""
    detail = await client.job(job_id)
    job_id, printer, seen = detail.job.id, Printer(ranks=detail.spec.gpus > 1 and rank is None), 0
    pieces = tail if rank is None else None
    if tail is not None:
        stored = [line async for line in client.logs(job_id, tail=pieces)]
        seen = stored[-1].seq if stored else 0
        _write(last_lines(_written(printer, stored, rank), tail))
    if tail is None or follow:
        margin = None if pieces is None else pieces + _MARGIN
        async for line in client.logs(job_id, follow=follow, tail=margin):
            if line.seq > seen and rank in {None, line.rank}:
                _write(printer.feed(line.rank, line.data))
    _write(printer.rest())


def _written(printer: Printer, lines: list[LogLine], rank: int | None) -> bytes:
    return b"".join(printer.feed(line.rank, line.data) for line in lines if rank in {None, line.rank})


def last_lines(data: bytes, count: int) -> bytes:
    """
    Return the last lines of some text.

    Examples
    --------
    >>> last_lines(b"a\\nb\\nc\\n", 2), last_lines(b"a\\nb", 1), last_lines(b"a", 0)
    (b'b\\nc\\n', b'b', b'')
    """
    return b"".join(data.splitlines(keepends=True)[-count:]) if count else b""


def _write(data: bytes) -> None:
    if data:
        typer.echo(data, nl=False)
