"""
Commands that show jobs: ``ps``, ``show``, ``why``, ``story``, ``events``, ``logs``.

``story`` and ``why`` also answer from a log in a file, without a server. :class:`Printer` and :func:`stream` show the
output of jobs, for ``penstock logs`` and ``penstock run``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Final, TypeVar

from penstock_cli import job_text, render, size_chart
from penstock_cli.invocation import At, Exit, Failure, JobId, LogFile, Out, ask, bad_input, call, tell
from penstock_cli.parameters import Argument, Context, Option, PlainCommand
from penstock_cli.value_formats import job_states, moment, now_s, since_s
from penstock_log.request_bodies import OutputOffset
from penstock_log.text import listed

if TYPE_CHECKING:
    import typer

    from penstock.client import Client
    from penstock.gateway_client import GatewayClient
    from penstock_bus.port import LogLine
    from penstock_cli.terminal_output import TerminalOutput
    from penstock_log import views
    from penstock_simulator.log_query import Moment


T = TypeVar("T")
J = TypeVar("J", "views.JobView", "views.JobRow")
Archive = Annotated[
    bool, Option("--archive", help="Of jobs that ended long ago: read the gateway's archive on this machine.")
]
ENDED_SHOWN = 20
"""How many of the jobs that have ended `penstock ps` shows without --all."""


def register(app: typer.Typer) -> None:
    """Add the commands, in the order of the help."""
    for command in PLAIN.values():
        app.command()(command.function)


def ps(
    ctx: Context,
    *,
    everything: Annotated[bool, Option("-a", "--all", help="Ended jobs too, however old.")] = False,
    state: Annotated[
        list[str] | None, Option("--state", "-s", help="PD R PR CG CD F CA, or running and so on; repeatable.")
    ] = None,
    user: Annotated[str, Option("--user", "-u", help="Of this user; `me` is you.")] = "",
    name: Annotated[str, Option("--name", "-n", help="With this name, or this beginning: 'train*'.")] = "",
    sweep: Annotated[str, Option("--sweep", help="Trials of this sweep.")] = "",
    group: Annotated[str, Option("--group", help="Of this group, or of the array of this id.")] = "",
    team: Annotated[str, Option("--team", help="Of this team.")] = "",
    pool: Annotated[str, Option("--pool", help="Of this pool.")] = "",
    model: Annotated[str, Option("--model", help="Of this workload, as --model of submit names it.")] = "",
    text: Annotated[str, Option("--text", "-t", help="With this in the id or the name.")] = "",
    ids: Annotated[list[str] | None, Option("--id", help="These alone: whole ids, of arrays too; repeatable.")] = None,
    since: Annotated[str, Option("--since", help="Open, or ended since then: 2h (ago), a time.")] = "",
    samples: Annotated[bool, Option("--samples", help="The profiler's samples too.")] = False,
    limit: Annotated[int, Option("--limit", min=1, max=100_000, help="At most so many, the newest.")] = 500,
    output: Out = "table",
    at: At = None,
    archive: Archive = False,
) -> None:
    """List jobs: the open ones, and the last twenty that ended."""
    mine = user == "me"
    if mine:
        from penstock.submission import user_name

        user = user_name()  # where the server does not know who asks
    asked, from_s = job_states(state or []), since_s(since) if since else 0.0

    async def listed(client: GatewayClient) -> views.JobsView:
        async def jobs(states: tuple[str, ...], most: int, **which: Any) -> views.JobsView:
            return await client.jobs(
                state=states,
                user=client.user or user if mine else user,
                name=name,
                parent=sweep,
                team=team,
                pool=pool,
                model=model,
                text=text,
                samples=samples,
                since_s=from_s,
                limit=most,
                rows=output == "table",
                at=moment(at),
                **{"group": group, **which},
            )

        if ids:
            found = await jobs(asked, limit, ids=ids)
            there = {job.id for job in found.jobs} | {row.id for row in found.rows}
            for array in dict.fromkeys(one for one in ids if one not in there):
                found = _merged(await jobs(asked, limit, group=array), found)
            return found

        if everything or asked or sweep or group or since:
            return await jobs(asked, limit)
        return _merged(await jobs(_ENDED, min(ENDED_SHOWN, limit)), await jobs(_OPEN, limit))

    if ids and (archive or group):
        bad_input("--id says which jobs; leave out " + ("--group" if group else "--archive"))
    if archive:
        from penstock_log.request_bodies import MOST_ROWS, JobsRequest
        from penstock_simulator import archive_query

        request = JobsRequest(
            state=asked,
            user=user,
            name=name,
            parent=sweep,
            group=group,
            team=team,
            pool=pool,
            model=model,
            text=text,
            samples=samples,
            since_s=from_s,
            limit=min(limit, MOST_ROWS),
            rows=output == "table",
        )
        found = _of_archive(lambda folder: archive_query.jobs(folder, request))
    else:
        found = ask(ctx, listed)
    if not render.as_json(found, output):
        rows = found.rows if group else job_text.folded(found.rows)
        render.show_table(*job_text.job_table(rows or found.jobs, wide=output == "wide"), wide=output == "wide")


_OPEN = ("PD", "R", "PR", "CG")
_ENDED = ("CD", "F", "CA")


def _merged(ended: views.JobsView, open_: views.JobsView) -> views.JobsView:
    """Return both lists as one, each job once (one may have ended between the two answers)."""
    from penstock_log import views

    return views.JobsView(
        jobs=_by_submission((*open_.jobs, *ended.jobs)),
        rows=_by_submission((*open_.rows, *ended.rows)),
        total=ended.total + open_.total,
        seq=open_.seq,
    )


def _by_submission(jobs: Iterable[J]) -> tuple[J, ...]:
    by_id = {job.id: job for job in reversed(tuple(jobs))}
    return tuple(sorted(by_id.values(), key=lambda job: (job.submitted_s, job.id)))


def show(
    ctx: Context,
    job: JobId,
    metrics: Annotated[
        list[str] | None, Argument(metavar="METRIC...", help="With --plot, what to draw; by default all.")
    ] = None,
    *,
    plot: Annotated[bool, Option("--plot", help="Draw its metrics over its steps: show JOB --plot loss.")] = False,
    follow: Annotated[bool, Option("--follow", "-f", help="With --plot, draw anew until the job has ended.")] = False,
    output: Out = "table",
    at: At = None,
) -> None:
    """
    Show all that is known of a job, or --plot its metrics.

    Of an elastic one, its devices and its throughput over time are drawn.
    """
    if metrics and not plot:
        bad_input(f"{metrics[0]} is a second word behind the job; metrics are drawn with --plot")
    if follow and (at or not plot):
        bad_input("--follow goes with --plot and without --at: what is drawn is to change")
    if plot:
        from penstock_cli.commands.metrics import draw

        draw(ctx, job, metrics or [], output, at, follow=follow)
        return
    detail = ask(ctx, lambda client: client.job(job, moment(at)))
    if render.as_json(detail, output):
        return
    lines, as_of_s = job_text.job_lines(detail), now_s()
    if detail.sizing is not None and (chart := size_chart.chart(detail.job, detail.sizing, as_of_s)):
        lines += ["", *chart]
    if detail.job.state == "PD":
        lines += ["", *render.wrapped(job_text.why_lines(detail.why, as_of_s))]
    render.say_lines(lines)


def why(ctx: Context, job: JobId, output: Out = "table", at: At = None, log: LogFile = None) -> None:
    """
    Say why a job waits, and what would change that.

    The one dominant cause comes first; then what shows it, and what was checked and is not the cause. Of an elastic
    job, a running one too: how it came to its size, and who gave what to whom.
    """
    as_of_s = now_s()
    if log is not None:
        from penstock_simulator import log_query

        found, as_of_s = _of_file(log, lambda text, moment_: log_query.explain(text, job, moment_), moment(at))
    else:
        found = ask(ctx, lambda client: client.why(job, moment(at)))
    if not render.as_json(found, output):
        render.say_lines(render.wrapped(job_text.why_lines(found, as_of_s)))


def story(
    ctx: Context,
    job: JobId,
    output: Out = "table",
    *,
    at: At = None,
    log: LogFile = None,
    archive: Archive = False,
) -> None:
    """Tell a job's life, a sentence for each fact."""
    if archive:
        from penstock_simulator import archive_query

        found = _of_archive(lambda folder: archive_query.story(folder, job))
    elif log is not None:
        from penstock_simulator import log_query

        found = _of_file(log, lambda text, moment_: log_query.tell(text, job, moment_), moment(at))
    else:
        found = ask(ctx, lambda client: client.story(job, moment(at)))
    if not render.as_json(found, output):
        wide = output == "wide"
        render.show_table(*job_text.story_table(found, wide=wide), wide=wide, wrap=not wide)


def events(
    ctx: Context,
    entity: Annotated[str, Argument(metavar="[ID]", help="Job, sweep, node, pool or workload.")] = "",
    *,
    follow: Annotated[bool, Option("-f", "--follow", help="Go on with new facts until Ctrl-C.")] = False,
    after: Annotated[int | None, Option("--after", min=0, help="Only behind this stream sequence.")] = None,
    limit: Annotated[int, Option("--limit", min=1, max=1000, help="At most so many.")] = 100,
    output: Out = "table",
    at: At = None,
) -> None:
    """Show the raw facts of the log; the newest, without --after."""

    async def once(client: GatewayClient) -> views.EventsView:
        found = await client.events(entity, after=after, limit=limit, at=moment(at))
        if output == "json" and not follow:
            render.show_json(found)
        elif output == "json":
            for event in found.events:
                render.show_json_line(event)
        else:
            wide = output == "wide"
            render.show_table(*job_text.event_table(found.events, wide=wide), wide=wide)
        return found

    async def on(client: Client) -> None:
        found = await once(client)
        async for event in client.follow_events(_whole_id(found, entity), after=found.seq):
            cells = job_text.event_row(event, wide=output == "wide")
            render.show_answer(event, "  ".join(cells), output)

    if follow:
        call(ctx, on)
    else:
        ask(ctx, once)


def _whole_id(found: views.EventsView, entity: str) -> str:
    """Return the id that the gateway took a beginning for, as its facts show; the log knows whole ids only."""
    from penstock_log import subjects

    return next((subjects.entity_of(event.subject)[1] for event in found.events), entity) if entity else ""


def _of_archive(ask: Callable[[Path], T]) -> T:
    """Return what the archive on this machine answers."""
    from penstock_bus.settings import load
    from penstock_gateway.machine import GatewaySettings

    folder = load(GatewaySettings, "gateway").archive_dir
    try:
        return ask(Path(folder) if folder else Path("penstock-data", "archive"))
    except (ValueError, OSError) as error:
        bad_input(str(error))


def _of_file(log: Path, ask: Callable[[IO[bytes], Moment], T], at: int | float | str | None) -> T:
    """Return what a log in a file answers as of a moment; dates are those of its own clock."""
    from penstock_simulator.traces.columns import TraceSource

    if isinstance(at, str):
        at = datetime.fromisoformat(at).timestamp()
    with TraceSource(log).raw() as text:
        try:
            return ask(text, at)
        except ValueError as error:
            bad_input(f"{log}: {error}")


def logs(
    ctx: Context,
    job: JobId,
    *,
    follow: Annotated[bool, Option("-f", "--follow", help="Go on until the job has ended.")] = False,
    rank: Annotated[int | None, Option("--rank", min=0, help="Only this process of a gang.")] = None,
    tail: Annotated[int | None, Option("--tail", min=0, help="Only the last so many lines.")] = None,
    raw: Annotated[bool, Option("--raw", help="Let a job's output do with this terminal what it likes.")] = False,
) -> None:
    """
    Show a job's output; lines of a gang begin with the rank.

    A terminal is given colours and progress bars, and what else it would obey by its codes. A file or a pipe is given
    every byte.
    """

    async def show(client: Client) -> None:
        await stream(client, job, follow=follow, rank=rank, tail=tail, raw=raw)

    call(ctx, show)


class Printer:
    """
    Turns pieces of output into what is written: as they are or as a terminal may have them, or as whole lines with the
    rank before them.

    Examples
    --------
    >>> printer, one, other = Printer(ranks=True), (0, "stdout"), (1, "stdout")
    >>> printer.feed(one, b"a\\nb"), printer.feed(other, b"x\\n"), printer.feed(one, b"c\\n"), printer.rest()
    (b'[0] a\\n', b'[1] x\\n', b'[0] bc\\n', b'')
    """

    def __init__(self, *, ranks: bool, terminal: TerminalOutput | None = None) -> None:
        self._ranks = ranks
        self._terminal = terminal
        self._open: dict[tuple[int, str], list[bytes]] = {}

    def feed(self, source: tuple[int, str], data: bytes) -> bytes:
        """Return what to write after one more piece of a rank's stream."""
        return self._joined(source, data if self._terminal is None else self._terminal.feed(source, data))

    def _joined(self, source: tuple[int, str], data: bytes) -> bytes:
        if not self._ranks:
            return data
        *whole, rest = data.split(b"\n")
        if whole:
            whole[0] = b"".join((*self._open.pop(source, ()), whole[0]))
        if rest:
            self._open.setdefault(source, []).append(rest)
        return b"".join(self._line(source[0], line) for line in whole)

    def rest(self) -> bytes:
        """Return what is left at the end: lines without a line end, each with its rank."""
        last = self._terminal.rest() if self._terminal is not None else ()
        return b"".join(self._joined(source, data) for source, data in last) + self._unfinished()

    def _unfinished(self) -> bytes:
        return b"".join(self._line(rank, b"".join(parts)) for (rank, _), parts in sorted(self._open.items()))

    def _line(self, rank: int, line: bytes) -> bytes:
        return b"[%d] %s\n" % (rank, line)


async def stream(
    client: Client, job_id: str, *, follow: bool, rank: int | None = None, tail: int | None = None, raw: bool = True
) -> None:
    """Write a job's output to standard output, ``raw`` or as a terminal may have it, with ``follow`` to its end."""
    from penstock.output_reader import OutputReader

    detail = await client.job(job_id)
    reader = OutputReader(client.bus, detail.job.id)
    ranks, guarded = detail.spec.gpus > 1 and rank is None, not raw and render.terminal_width() is not None
    printer = Printer(ranks=ranks, terminal=_terminal_output() if guarded else None)
    heard: set[int] = set()
    if rank is not None:
        _check_rank(detail, rank)
    if tail is not None:
        last = await reader.last(tail, rank)
        _write(last_lines(b"".join(_shown(printer, line) for line in last), tail))
    if follow or tail is None:
        async for line in client.follow_output(detail, reader) if follow else reader.stored():
            heard.add(line.rank)
            if rank in {None, line.rank}:
                _write(_shown(printer, line))
    _write(printer.rest())
    if heard and rank is not None and rank not in heard:
        others = listed([str(one) for one in sorted(heard)[:_RANKS_NAMED]])
        have = f"rank {others} has" if len(heard) == 1 else f"ranks {others} have"
        tell(f"rank {rank} of {detail.job.id} has printed nothing; {have}")


_RANKS_NAMED: Final = 20


def _check_rank(detail: views.JobDetail, rank: int) -> None:
    """End with a message where a job never has a process of a rank, however many devices it is given."""
    spec = detail.spec
    most = max(spec.gpus, spec.max_gpus)
    if rank >= most:
        has = f"{most} processes at most, ranks 0 to {most - 1}" if most > 1 else "one process, rank 0"
        raise Failure(f"job {detail.job.id} has {has}; there is no rank {rank}", Exit.NOT_FOUND)


def _terminal_output() -> TerminalOutput:
    from penstock_cli.terminal_output import TerminalOutput

    return TerminalOutput()


def _shown(printer: Printer, line: LogLine) -> bytes:
    if line.missing:
        tell(line.missing)
    source = line.place.channel.stream if isinstance(line.place, OutputOffset) else ""
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
        render.echo(data)


PLAIN: Final = {command.__name__: PlainCommand(command) for command in (ps, show, why, story, events, logs)}
