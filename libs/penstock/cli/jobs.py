"""Commands about jobs that are there: ps, show, why, story, events, cancel, hold, release."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import render
from penstock.cli.session import AnswerOut, At, JobId, JobIds, LogFile, Out, act, call
from penstock.cli.times import moment, now_s

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock_events import views

ENDED_SHOWN = 20
"""How many of the jobs that have ended `penstock ps` shows without --all."""


def register(app: typer.Typer) -> None:
    """Add the commands, in the order of the help."""
    for command in (ps, show, why, story, events, cancel, hold, release):
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

    _show_jobs(call(ctx, ask), output)


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
    from penstock.cli.errors import bad_input

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
    from penstock_events import views

    by_id = {job.id: job for job in (*open_.jobs, *ended.jobs)}
    jobs = sorted(by_id.values(), key=lambda job: (job.submitted_s, job.id))
    return views.JobsView(jobs=tuple(jobs), total=ended.total + open_.total, seq=open_.seq)


def _show_jobs(found: views.JobsView, output: str) -> None:
    from penstock.cli import show as text

    if output == "json":
        render.show_json(found)
        return
    headers = text.job_headers(found.jobs, wide=output == "wide")
    if output == "wide":
        render.show_table(headers, [text.wide_job_row(job, headers) for job in found.jobs], wide=True)
    else:
        render.show_table(headers, [text.job_row(job, headers) for job in found.jobs])


def show(ctx: typer.Context, job: JobId, output: Out = "table", at: At = None) -> None:
    """
    Show all that is known of a job.

    Of an elastic one, its devices and its throughput over time are drawn.
    """
    from penstock.cli import show as text
    from penstock.cli import sizes

    detail = call(ctx, lambda client: client.job(job, moment(at)))
    if output == "json":
        render.show_json(detail)
        return
    lines, as_of_s = text.job_lines(detail), now_s()
    if detail.sizing is not None and (chart := sizes.chart(detail.job, detail.sizing, as_of_s)):
        lines += ["", *chart]
    if detail.job.state == "PD":
        lines += ["", *render.wrapped(text.why_lines(detail.why, as_of_s))]
    render.say_lines(lines)


def why(ctx: typer.Context, job: JobId, output: Out = "table", at: At = None, log: LogFile = None) -> None:
    """
    Say why a job waits, and what would change that.

    The one dominant cause comes first; then what shows it, and what was checked and is not the cause. Of an elastic
    job, a running one too: how it came to its size, and who gave what to whom.
    """
    from penstock.cli import show as text

    as_of_s = now_s()
    if log is not None:
        from penstock.cli import logfile

        found, as_of_s = logfile.why(log, job, moment(at))
    else:
        found = call(ctx, lambda client: client.why(job, moment(at)))
    if output == "json":
        render.show_json(found)
    else:
        render.say_lines(render.wrapped(text.why_lines(found, as_of_s)))


def story(ctx: typer.Context, job: JobId, output: Out = "table", at: At = None, log: LogFile = None) -> None:
    """Tell a job's life, a sentence for each fact."""
    from penstock.cli import show as text

    if log is not None:
        from penstock.cli import logfile

        found = logfile.story(log, job, moment(at))
    else:
        found = call(ctx, lambda client: client.story(job, moment(at)))
    if output == "json":
        render.show_json(found)
    elif output == "wide":
        render.show_table(text.STORY_WIDE, text.wide_story_rows(found), wide=True)
    else:
        render.show_table(text.STORY_HEADERS, text.story_rows(found), wrap=True)


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
    from penstock.cli import show as text

    async def ask(client: Client) -> None:
        found = await client.events(entity, after=after, limit=limit, at=moment(at))
        if output == "json" and not follow:
            render.show_json(found)
            return
        if output == "json":
            _json_lines(found)
        elif output == "wide":
            render.show_table(text.EVENT_WIDE, [text.wide_event_row(e) for e in found.events], wide=True)
        else:
            render.show_table(text.EVENT_HEADERS, [text.event_row(e) for e in found.events])
        if follow:
            async for event in client.follow_events(_whole_id(found, entity), after=found.seq):
                _show_event(event, output)

    call(ctx, ask)


def _whole_id(found: views.EventsView, entity: str) -> str:
    """Return the id that the gateway took a beginning for, as its facts show; the log knows whole ids only."""
    from penstock_events import subjects

    return next((subjects.entity_of(event.subject)[1] for event in found.events), entity) if entity else ""


def _json_lines(found: views.EventsView) -> None:
    for event in found.events:
        render.show_json_line(event)


def _show_event(event: views.EventView, output: str) -> None:
    from penstock.cli import show as text

    if output == "json":
        render.show_json_line(event)
    else:
        render.say("  ".join(text.wide_event_row(event) if output == "wide" else text.event_row(event)))


def cancel(
    ctx: typer.Context,
    jobs: JobIds,
    reason: Annotated[str, typer.Option("--reason", help="Kept in the log.")] = "",
    output: AnswerOut = "text",
) -> None:
    """End jobs; running ones are stopped first."""
    act(ctx, jobs, lambda client, job: client.cancel(job, reason), output)


def hold(ctx: typer.Context, jobs: JobIds, output: AnswerOut = "text") -> None:
    """Keep waiting jobs from being started."""
    act(ctx, jobs, lambda client, job: client.hold(job), output)


def release(ctx: typer.Context, jobs: JobIds, output: AnswerOut = "text") -> None:
    """Let held jobs be started again."""
    act(ctx, jobs, lambda client, job: client.release(job), output)
