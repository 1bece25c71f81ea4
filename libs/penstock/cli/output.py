"""The output of jobs: `penstock logs`, and what `penstock run` shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.errors import tell
from penstock.cli.session import JobId, call
from penstock.output import Output
from penstock_events.output import Place

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock_bus.port import LogLine


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
    >>> printer, one, other = Printer(ranks=True), (0, "stdout"), (1, "stdout")
    >>> printer.feed(one, b"a\\nb"), printer.feed(other, b"x\\n"), printer.feed(one, b"c\\n"), printer.rest()
    (b'[0] a\\n', b'[1] x\\n', b'[0] bc\\n', b'')
    """

    def __init__(self, *, ranks: bool) -> None:
        self._ranks = ranks
        self._open: dict[tuple[int, str], list[bytes]] = {}

    def feed(self, source: tuple[int, str], data: bytes) -> bytes:
        """Return what to write after one more piece of a rank's stream."""
        if not self._ranks:
            return data
        *whole, rest = data.split(b"\n")
        if whole:
            whole[0] = b"".join((*self._open.pop(source, ()), whole[0]))
        if rest:
            self._open.setdefault(source, []).append(rest)
        return b"".join(self._line(source[0], line) for line in whole)

    def rest(self) -> bytes:
        """Return the lines that never ended."""
        return b"".join(self._line(rank, b"".join(parts)) for (rank, _), parts in sorted(self._open.items()))

    def _line(self, rank: int, line: bytes) -> bytes:
        return b"[%d] %s\n" % (rank, line)


async def stream(
    client: Client, job_id: str, *, follow: bool, rank: int | None = None, tail: int | None = None
) -> None:
    """Write a job's output to standard output, with ``follow`` until the job has ended."""
    detail = await client.job(job_id)
    reader, printer = Output(client.bus, detail.job.id), Printer(ranks=detail.spec.gpus > 1 and rank is None)
    if tail is not None:
        last = await reader.last(tail, rank)
        _write(last_lines(b"".join(_shown(printer, line) for line in last), tail))
    if follow or tail is None:
        async for line in client.follow_output(detail, reader) if follow else reader.stored():
            if rank in {None, line.rank}:
                _write(_shown(printer, line))
    _write(printer.rest())


def _shown(printer: Printer, line: LogLine) -> bytes:
    if line.missing:
        tell(line.missing)
    source = line.place.channel.stream if isinstance(line.place, Place) else ""
    return printer.feed((line.rank, source), line.data)


def last_lines(data: bytes, count: int) -> bytes:
    """
    Return the last lines of some text.

    Examples
    --------
    >>> last_lines(b"a\\nb\\nc\\n", 2), last_lines(b"a\\nb", 1), last_lines(b"a", 0)
    (b'b\\nc\\n', b'b', b'')
    >>> last_lines(b"10 %\\r20 %\\ndone\\n", 2)
    b'10 %\\r20 %\\ndone\\n'
    """
    lines = [line + b"\n" for line in data.split(b"\n")]  # and not where a progress bar returns to its line's beginning
    lines[-1] = lines[-1].removesuffix(b"\n")
    return b"".join(list(filter(None, lines))[-count:]) if count else b""


def _write(data: bytes) -> None:
    if data:
        typer.echo(data, nl=False)
