"""
Commands about jobs: ``ps``, ``show``, ``why``, ``story``, ``events``, ``logs``, ``cancel``, ``hold``, ``release``.

``story`` and ``why`` also answer from a log in a file, without a server. :class:`Printer` and :func:`stream` show the
output of jobs, for ``penstock logs`` and ``penstock run``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from penstock.output_reader import OutputReader
from penstock_cli import job_text, render, size_chart
from penstock_cli.invocation import AnswerOut, At, JobId, JobIds, LogFile, Out, act, bad_input, call, tell
from penstock_cli.value_formats import moment, now_s
from penstock_log.request_bodies import OutputOffset

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock_bus.port import LogLine
    from penstock_cli.terminal_output import TerminalOutput
    from penstock_log import views
    from penstock_simulator.log_query import Moment


T = TypeVar("T")
Archive = Annotated[
    bool, typer.Option("--archive", help="Of jobs that ended long ago: read the gateway's archive on this machine.")
]
ENDED_SHOWN = 20
"""How many of the jobs that have ended `penstock ps` shows without --all."""
_STOPPABLE: Final = ("PD", "R", "PR")
_MOST_LISTED: Final = 1000
_AT_ONCE: Final = 50


def register(app: typer.Typer) -> None:
    """Add the commands, in the order of the help."""
    for command in (ps, show, why, story, events, cancel, hold, release, logs):
        app.command()(command)


def ps(
    ctx: typer.Context,
    *,
    everything: Annotated[bool, typer.Option("-a", "--all", help="Ended jobs too, however old.")] = False,
    state: Annotated[
        list[str] | None, typer.Option("--state", "-s", help="PD R PR CG CD F CA, or running and so on; repeatable.")
    ] = None,
    user: Annotated[str, typer.Option("--user", "-u", help="Of this user; `me` is you.")] = "",
    name: Annotated[str, typer.Option("--name", "-n", help="With this name, or this beginning: 'train*'.")] = "",
    sweep: Annotated[str, typer.Option("--sweep", help="Trials of this sweep.")] = "",
    samples: Annotated[bool, typer.Option("--samples", help="The profiler's samples too.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="At most so many, the newest.")] = 500,
    output: Out = "table",
    at: At = None,
    archive: Archive = False,
) -> None:
    """List jobs: the open ones, and the last twenty that ended."""
    if user == "me":
        from penstock.submission import user_name

        user = user_name()
    asked = _states(state or [])

    async def ask(client: Client) -> views.JobsView:
        async def jobs(states: tuple[str, ...], most: int) -> views.JobsView:
            return await client.jobs(
                state=states, user=user, name=name, parent=sweep, samples=samples, limit=most, at=moment(at)
            )

        if everything or asked or sweep:
            return await jobs(asked, limit)
        return _merged(await jobs(_ENDED, min(ENDED_SHOWN, limit)), await jobs(_OPEN, limit))

    if archive:
        from penstock_log.request_bodies import JobsRequest
        from penstock_simulator import archive_query

        request = JobsRequest(state=asked, user=user, name=name, parent=sweep, samples=samples, limit=limit)
        found = _of_archive(lambda folder: archive_query.jobs(folder, request))
    else:
        found = call(ctx, ask)
    if not render.as_json(found, output):
        render.show_table(*job_text.job_table(found.jobs, wide=output == "wide"), wide=output == "wide")


_OPEN = ("PD", "R", "PR", "CG")
_ENDED = ("CD", "F", "CA")
_NAMES = {
    "PD": ("waiting", "pending", "queued"),
    "R": ("running",),
    "PR": ("preempting",),
    "CG": ("stopping", "completing"),
    "CD": ("completed", "done"),
    "F": ("failed",),
    "CA": ("cancelled", "canceled"),
}
"""Of each state: how it may be typed, what the error names first."""


def _states(typed: list[str]) -> tuple[str, ...]:
    states: dict[str, None] = {}
    for word in (word.strip() for entry in typed for word in entry.split(",") if word.strip()):
        found = next((state for state, names in _NAMES.items() if word.lower() in {state.lower(), *names}), None)
        if found is None:
            names = f"{', '.join(_NAMES)}, or {', '.join(names[0] for names in _NAMES.values())}"
            bad_input(f"--state {word!r} is no state; expected some of {names}")
        states[found] = None
    return tuple(states)


def _merged(ended: views.JobsView, open_: views.JobsView) -> views.JobsView:
    """Return both lists as one, each job once (one may have ended between the two answers)."""
    from penstock_log import views

    by_id = {job.id: job for job in (*open_.jobs, *ended.jobs)}
    jobs = sorted(by_id.values(), key=lambda job: (job.submitted_s, job.id))
    return views.JobsView(jobs=tuple(jobs), total=ended.total + open_.total, seq=open_.seq)


def show(ctx: typer.Context, job: JobId, output: Out = "table", at: At = None) -> None:
    """
    Show all that is known of a job.

    Of an elastic one, its devices and its throughput over time are drawn.
    """
    detail = call(ctx, lambda client: client.job(job, moment(at)))
    if render.as_json(detail, output):
        return
    lines, as_of_s = job_text.job_lines(detail), now_s()
    if detail.sizing is not None and (chart := size_chart.chart(detail.job, detail.sizing, as_of_s)):
        lines += ["", *chart]
    if detail.job.state == "PD":
        lines += ["", *render.wrapped(job_text.why_lines(detail.why, as_of_s))]
    render.say_lines(lines)


def why(ctx: typer.Context, job: JobId, output: Out = "table", at: At = None, log: LogFile = None) -> None:
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
        found = call(ctx, lambda client: client.why(job, moment(at)))
    if not render.as_json(found, output):
        render.say_lines(render.wrapped(job_text.why_lines(found, as_of_s)))


def story(
    ctx: typer.Context,
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
        found = call(ctx, lambda client: client.story(job, moment(at)))
    if not render.as_json(found, output):
        wide = output == "wide"
        render.show_table(*job_text.story_table(found, wide=wide), wide=wide, wrap=not wide)


def events(
    ctx: typer.Context,
    entity: Annotated[str, typer.Argument(metavar="[ID]", help="Job, sweep, node, pool or workload.")] = "",
    *,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with new facts until Ctrl-C.")] = False,
    after: Annotated[int | None, typer.Option("--after", min=0, help="Only behind this stream sequence.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="At most so many.")] = 100,
    output: Out = "table",
    at: At = None,
) -> None:
    """Show the raw facts of the log; the newest, without --after."""

    async def ask(client: Client) -> None:
        found = await client.events(entity, after=after, limit=limit, at=moment(at))
        if output == "json" and not follow:
            render.show_json(found)
            return
        if output == "json":
            for event in found.events:
                render.show_json_line(event)
        else:
            wide = output == "wide"
            render.show_table(*job_text.event_table(found.events, wide=wide), wide=wide)
        if follow:
            async for event in client.follow_events(_whole_id(found, entity), after=found.seq):
                cells = job_text.event_row(event, wide=output == "wide")
                render.show_answer(event, "  ".join(cells), output)

    call(ctx, ask)


def _whole_id(found: views.EventsView, entity: str) -> str:
    """Return the id that the gateway took a beginning for, as its facts show; the log knows whole ids only."""
    from penstock_log import subjects

    return next((subjects.entity_of(event.subject)[1] for event in found.events), entity) if entity else ""


def cancel(
    ctx: typer.Context,
    *,
    jobs: Annotated[list[str] | None, typer.Argument(metavar="JOB...", help="Job ids, or beginnings of them.")] = None,
    user: Annotated[
        str, typer.Option("--user", help="All jobs of this user that wait or run; not their sweeps: `sweep cancel`.")
    ] = "",
    reason: Annotated[str, typer.Option("--reason", help="Kept in the log.")] = "",
    output: AnswerOut = "text",
) -> None:
    """End jobs; running ones are stopped first."""
    if bool(jobs) == bool(user):
        bad_input("expected the ids of jobs, or --user NAME for all of one user")
    if jobs:
        return act(ctx, jobs, lambda client, job: client.cancel(job, reason), output)
    answers = call(ctx, lambda client: _cancelled(client, user, reason))
    if output == "json":
        for answer in answers:
            render.show_answer(answer, answer.message, output)
        return None
    ended = sum(answer.changed for answer in answers)
    return render.say(f"{render.count(ended, 'job')} of {user} cancelled" if answers else f"{user} has no open job")


async def _cancelled(client: Client, user: str, reason: str) -> list[views.ActAnswer]:
    """Cancel all open jobs of a user, the newest first."""
    answers: list[views.ActAnswer] = []
    seen: set[str] = set()
    while True:
        found = (await client.jobs(user=user, state=_STOPPABLE, limit=_MOST_LISTED)).jobs
        if not (new := [job.id for job in found if job.id not in seen]):
            return answers
        seen.update(new)
        for batch in _batches(new):
            answers += await asyncio.gather(*(client.cancel(job_id, reason) for job_id in batch))


def _batches(ids: list[str]) -> Iterator[list[str]]:
    return (ids[at : at + _AT_ONCE] for at in range(0, len(ids), _AT_ONCE))


def hold(ctx: typer.Context, jobs: JobIds, output: AnswerOut = "text") -> None:
    """Keep waiting jobs from being started."""
    act(ctx, jobs, lambda client, job: client.hold(job), output)


def release(ctx: typer.Context, jobs: JobIds, output: AnswerOut = "text") -> None:
    """Let held jobs be started again."""
    act(ctx, jobs, lambda client, job: client.release(job), output)


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
    ctx: typer.Context,
    job: JobId,
    *,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the job has ended.")] = False,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Only this process of a gang.")] = None,
    tail: Annotated[int | None, typer.Option("--tail", min=0, help="Only the last so many lines.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Let a job's output do with this terminal what it likes.")] = False,
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
    detail = await client.job(job_id)
    reader = OutputReader(client.bus, detail.job.id)
    ranks, guarded = detail.spec.gpus > 1 and rank is None, not raw and render.terminal_width() is not None
    printer = Printer(ranks=ranks, terminal=_terminal_output() if guarded else None)
    if tail is not None:
        last = await reader.last(tail, rank)
        _write(last_lines(b"".join(_shown(printer, line) for line in last), tail))
    if follow or tail is None:
        async for line in client.follow_output(detail, reader) if follow else reader.stored():
            if rank in {None, line.rank}:
                _write(_shown(printer, line))
    _write(printer.rest())


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
        typer.echo(data, nl=False)
