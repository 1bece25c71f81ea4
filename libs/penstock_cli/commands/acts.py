"""
Commands about jobs that are named, or all that match: ``cancel``, ``hold``, ``release``, ``retry``, ``extend``.

Many jobs are one request. What a filter chooses is counted first, and a person at a terminal is asked.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from penstock_cli import render
from penstock_cli.invocation import (
    AnswerOut,
    CommandOptions,
    Exit,
    Failure,
    act,
    ask,
    bad_input,
    explain,
    flattened,
    tell,
)
from penstock_cli.parameters import Argument, Context, Option, PlainCommand
from penstock_cli.value_formats import array, job_states, time_limit_s

if TYPE_CHECKING:
    import typer

    from penstock.gateway_client import GatewayClient
    from penstock_log import views
    from penstock_log.request_bodies import JobFilter, Verb

Jobs = Annotated[list[str] | None, Argument(metavar="JOB...", help="Job ids, or unique beginnings of them.")]
_DONE: Final[dict[Verb, str]] = {
    "cancel": "cancelled",
    "hold": "held",
    "release": "released",
    "extend": "extended",
    "retry": "retried",
}
_NOTHING: Final[dict[Verb, str]] = {
    "cancel": "all jobs are over",
    "hold": "no job is left that can be held",
    "release": "no job is held",
}
"""What is true of an array in which a command changes nothing."""
_OTHERS: Final = "or --user, --state, --name, --group, --sweep, --pool, --team or --all for all that match"
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_MEMBERS: Final = re.compile(r"(.+)-\[([0-9,:-]+)\]")
_CUT_INDICES: Final = re.compile(r"(.+)-(\d+)\[(\d+)-(\d+)\]")
"""A pattern of a shell, with the first digits of the indices before the brackets."""


class JobSelection(CommandOptions, frozen=True):
    """Which jobs, where no ids were typed: those that match all of these options."""

    user: Annotated[str, Option("--user", "-u", help="All jobs of this user; `me` is you.")] = ""
    state: Annotated[list[str] | None, Option("--state", "-s", help="Those in this state, such as PD or running.")] = (
        None
    )
    name: Annotated[str, Option("--name", "-n", help="Those with this name, or this beginning: 'train*'.")] = ""
    sweep: Annotated[
        str, Option("--sweep", "--parent", help="Trials of this sweep; not the sweep: `sweep cancel`.")
    ] = ""
    group: Annotated[str, Option("--group", help="Those of this group, or of the array of this id.")] = ""
    pool: Annotated[str, Option("--pool", help="Those of this pool.")] = ""
    team: Annotated[str, Option("--team", help="Those of this team.")] = ""
    mine: Annotated[bool, Option("--all", "-a", help="All jobs of yours.")] = False
    everybody: Annotated[bool, Option("--everybody", help="Others' jobs too, not yours alone; for operators.")] = False
    yes: Annotated[bool, Option("--yes", "-y", help="Do not ask.")] = False
    dry_run: Annotated[bool, Option("--dry-run", help="Only list what would be changed.")] = False

    def where(self, jobs: list[str]) -> JobFilter | None:
        """
        Return which jobs match, of ``me`` where no user was typed; None where ids were typed.

        Raises
        ------
        Failure
            Where neither or both were typed.
        """
        from penstock_log.request_bodies import JobFilter

        states = job_states(self.state or [])
        narrows = bool(states or self.name or self.sweep or self.group or self.pool or self.team)
        if self.everybody and (self.user or self.mine or not narrows):
            bad_input(
                "--everybody says whose jobs; expected --state, --name, --group, --sweep, --pool or --team with it"
            )
        if bool(jobs) == (narrows or bool(self.user) or self.mine):
            bad_input(f"expected the ids of jobs, {_OTHERS}")
        if jobs:
            return None
        user = self.user or ("" if self.everybody else "me")
        where = JobFilter(state=states, user=user, name=self.name, parent=self.sweep, pool=self.pool, team=self.team)
        return msgspec.structs.replace(where, group=self.group)


def register(app: typer.Typer) -> None:
    """Add the commands, in the order of the help."""
    for command in PLAIN.values():
        app.command()(command.function)


@flattened
def cancel(
    ctx: Context,
    chosen: JobSelection,
    jobs: Jobs = None,
    *,
    reason: Annotated[str, Option("--reason", takes_empty=True, help="Kept in the log.")] = "",
    output: AnswerOut = "text",
) -> None:
    """End jobs; running ones are stopped first."""
    _act(ctx, "cancel", jobs or [], chosen, output, reason=reason)


@flattened
def hold(ctx: Context, chosen: JobSelection, jobs: Jobs = None, output: AnswerOut = "text") -> None:
    """Keep waiting jobs from being started."""
    _act(ctx, "hold", jobs or [], chosen, output)


@flattened
def release(ctx: Context, chosen: JobSelection, jobs: Jobs = None, output: AnswerOut = "text") -> None:
    """Let held jobs be started again."""
    _act(ctx, "release", jobs or [], chosen, output)


@flattened
def retry(
    ctx: Context,
    chosen: JobSelection,
    jobs: Jobs = None,
    *,
    failed: Annotated[
        bool, Option("--failed", help="Only those that failed; so it is of a filter without --cancelled.")
    ] = False,
    cancelled: Annotated[bool, Option("--cancelled", help="Those too that were cancelled.")] = False,
    output: AnswerOut = "text",
) -> None:
    """
    Run jobs again that failed, each as a new job in its place.

    It has the same specification and groups, and goes on from the last checkpoint of the one before. What was retried
    before is not retried again, but the retry of it is, if it failed. Of an array, those are retried that
    failed or were cancelled, or with --failed those that failed.
    """
    states = ["F", "CA"] if cancelled else ["F"] if failed else []
    if states and not jobs:
        chosen = msgspec.structs.replace(chosen, state=[*(chosen.state or []), *states])
    _act(ctx, "retry", jobs or [], chosen, output, state=states if jobs else ())


@flattened
def extend(
    ctx: Context,
    chosen: JobSelection,
    job: Annotated[str, Argument(metavar="[JOB]", help="Job id, or a unique beginning of one.")] = "",
    more: Annotated[
        str, Argument(metavar="[TIME]", help="So much more than it may run so far, such as 30m or 2h.")
    ] = "",
    *,
    to: Annotated[str, Option("--to", help="In place of that: so long in all, such as 12h; `none`: no limit.")] = "",
    output: AnswerOut = "text",
) -> None:
    """Let a job run for longer than its --time."""
    if bool(more) == bool(to):
        bad_input("expected either how much more (penstock extend JOB 2h) or how much in all (--to 12h, --to none)")
    limit_s = time_limit_s(to, "--to") if to else None
    if chosen != JobSelection() or not job:
        if limit_s is None:
            bad_input("of many jobs, expected how much in all: --to 12h, or --to none")
        _act(ctx, "extend", [job] if job else [], chosen, output, limit_s=limit_s)
        return
    add_s = time_limit_s(more, "TIME") if more else 0.0
    if more and not add_s:
        bad_input(f"TIME {more!r} is no time to add; expected such as 30m or 2h, or --to none for no limit")
    act(ctx, [job], lambda client, one: client.extend(one, add_s, limit_s=limit_s), output)


PLAIN: Final = {command.__name__: PlainCommand(command) for command in (cancel, hold, release, retry, extend)}


def _act(
    ctx: Context,
    verb: Verb,
    jobs: list[str],
    chosen: JobSelection,
    output: str,
    *,
    state: Sequence[str] = (),
    reason: str = "",
    limit_s: float | None = None,
) -> None:
    if not all(job.strip() for job in jobs):
        bad_input(f"an empty id names no job; is a variable of the shell unset? Expected the ids of jobs, {_OTHERS}")
    jobs = [one for job in jobs for one in _members(job)]
    where, dry_run = chosen.where(jobs), chosen.dry_run
    if len(jobs) == 1 and not dry_run and verb in {"cancel", "hold", "release"}:
        asks = not chosen.yes and _is_person()
        return act(ctx, jobs, lambda client, job: _one(client, verb, job, reason, asks=asks), output)
    asks = where is not None and not chosen.yes and not dry_run and _is_person()

    async def act_on_them(client: GatewayClient) -> views.BulkView | None:
        resolved = _resolved(where, client)
        if asks:
            found = await client.act_on_all(verb, where=resolved, dry_run=True, limit_s=limit_s)
            if found.changed > 1 and not _agreed(verb, found.changed, resolved):
                return None
        return await client.act_on_all(
            verb, jobs, where=resolved, state=state, reason=reason, dry_run=dry_run, limit_s=limit_s
        )

    done = ask(ctx, act_on_them)
    if done is None:
        tell(f"nothing was {_DONE[verb]}")
        raise SystemExit(Exit.FAILED)
    _show(verb, done, output, is_counted=where is not None, dry_run=dry_run)
    return _end(done, ctx.obj["url"])


def _members(job: str) -> list[str]:
    """
    Return the jobs of an array that ``ARRAY-[3-7]`` names; any other word as it is.

    Examples
    --------
    >>> _members("exp-[3-5,9]"), _members("exp")
    (['exp-3', 'exp-4', 'exp-5', 'exp-9'], ['exp'])
    """
    if (cut := _CUT_INDICES.fullmatch(job)) is not None:
        array_id, tens, first, last = cut.groups()
        bad_input(f"{job!r} is no job; indices stand whole in the brackets: '{array_id}-[{tens}{first}-{tens}{last}]'")
    found = _MEMBERS.fullmatch(job)
    return [f"{found[1]}-{index}" for index in array(found[2]).indices] if found is not None else [job]


def _is_person() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout is not None and sys.stdout.isatty()


async def _one(client: GatewayClient, verb: Verb, job: str, reason: str, *, asks: bool = False) -> views.ActAnswer:
    """Act on one job by its own command, which says more where the id is none; or on an array, after a question."""
    from penstock_bus.errors import ServiceError
    from penstock_log import views
    from penstock_log.request_bodies import JobFilter, JobsRequest

    try:
        if verb == "cancel":
            return await client.cancel(job, reason)
        return await (client.hold(job) if verb == "hold" else client.release(job))
    except ServiceError as error:
        if error.code not in {_NOT_FOUND, _CONFLICT}:
            raise
        where = JobFilter(array=job)
        if asks:
            found = await client.act_on_all(verb, where=where, dry_run=True)
            if found.changed > 1 and not _agreed(verb, found.changed, where):
                raise Failure(f"nothing was {_DONE[verb]}") from error
        done = await client.act_on_all(verb, where=where, reason=reason)
        if not done.matched:
            if not (await client.jobs_page(JobsRequest(array=job, limit=1))).total:
                raise
            return views.ActAnswer(id=job, changed=False, state="", message=f"of array {job} {_NOTHING[verb]}")
    message = f"{render.count(done.changed, 'job')} of array {job} {_DONE[verb]}"
    if done.refused:
        message += f"; {render.count(done.refused, 'job')} could not be"
    return views.ActAnswer(id=job, changed=done.changed > 0, state="", message=message)


def _resolved(where: JobFilter | None, client: GatewayClient) -> JobFilter | None:
    """Return a filter with the name of who asks, as the server knows it, for ``me``."""
    if where is None or where.user != "me":
        return where
    from penstock.submission import user_name

    return msgspec.structs.replace(where, user=client.user or user_name())


def _agreed(verb: Verb, count: int, where: JobFilter | None) -> bool:
    whose = f" of {where.user}" if where is not None and where.user else " of everybody"
    if where is not None and where.array:
        whose = f" of array {where.array}"
    sys.stderr.write(render.seen(f"{verb} {render.count(count, 'job')}{whose}? [y/N] "))
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _show(verb: Verb, done: views.BulkView, output: str, *, is_counted: bool, dry_run: bool) -> None:
    """Say what became of each job, or of those that a filter chose how many they were."""
    from penstock_log import views

    for answer in done.answers:
        if answer.code:
            tell(answer.error)
        elif output == "json":
            render.show_json_line(views.ActAnswer.of(answer))
        elif dry_run and answer.changed:
            render.say(f"{answer.id} would be {_DONE[verb]}")
        elif not is_counted:
            render.say(answer.message)
    if not done.answers and not is_counted and output != "json":
        tell(f"none of these jobs is to be {_DONE[verb]}")
    if output != "json" and is_counted:
        would = "would be " if dry_run else ""
        what = render.count(done.changed, "job") if done.changed else "no job"
        render.say(f"{what} {would}{_DONE[verb]}" if done.answers else "no job matches")


def _end(done: views.BulkView, url: str) -> None:
    """Exit as the first refusal says."""
    from penstock_bus.errors import ServiceError

    refused = next((answer for answer in done.answers if answer.code), None)
    if refused is not None:
        failure = explain(ServiceError(refused.code, refused.error), url)
        raise SystemExit(failure.code if failure is not None else Exit.FAILED)
