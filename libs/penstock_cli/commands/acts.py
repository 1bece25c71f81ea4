"""
Commands that act on jobs: ``cancel``, ``hold``, ``release``, on those that are named or on all that match; ``extend``.

Many jobs are one request. What a filter chooses is counted first, and a person at a terminal is asked.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Final

from penstock_cli import render
from penstock_cli.invocation import (
    AnswerOut,
    CommandOptions,
    Exit,
    JobId,
    act,
    ask,
    bad_input,
    explain,
    flattened,
    tell,
)
from penstock_cli.parameters import Argument, Context, Option, PlainCommand
from penstock_cli.value_formats import job_states, time_limit_s

if TYPE_CHECKING:
    import typer

    from penstock.gateway_client import GatewayClient
    from penstock_log import views
    from penstock_log.request_bodies import JobFilter, Verb

Jobs = Annotated[list[str] | None, Argument(metavar="JOB...", help="Job ids, or unique beginnings of them.")]
_DONE: Final[dict[Verb, str]] = {"cancel": "cancelled", "hold": "held", "release": "released"}
_OTHERS: Final = "or --user, --state, --name, --sweep, --pool, --team or --all for all that match"


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
        narrows = bool(states or self.name or self.sweep or self.pool or self.team)
        if self.everybody and (self.user or self.mine or not narrows):
            bad_input("--everybody says whose jobs; expected --state, --name, --sweep, --pool or --team with it")
        if bool(jobs) == (narrows or bool(self.user) or self.mine):
            bad_input(f"expected the ids of jobs, {_OTHERS}")
        if jobs:
            return None
        user = self.user or ("" if self.everybody else "me")
        return JobFilter(state=states, user=user, name=self.name, parent=self.sweep, pool=self.pool, team=self.team)


def register(app: typer.Typer) -> None:
    """Add the commands, in the order of the help."""
    for command in PLAIN.values():
        app.command()(command.function)
    app.command()(extend)


@flattened
def cancel(
    ctx: Context,
    chosen: JobSelection,
    jobs: Jobs = None,
    *,
    reason: Annotated[str, Option("--reason", help="Kept in the log.")] = "",
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


def extend(
    ctx: Context,
    job: JobId,
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
    add_s = time_limit_s(more, "TIME") if more else 0.0
    if more and not add_s:
        bad_input(f"TIME {more!r} is no time to add; expected such as 30m or 2h, or --to none for no limit")
    act(ctx, [job], lambda client, one: client.extend(one, add_s, limit_s=limit_s), output)


PLAIN: Final = {command.__name__: PlainCommand(command) for command in (cancel, hold, release)}


def _act(ctx: Context, verb: Verb, jobs: list[str], chosen: JobSelection, output: str, *, reason: str = "") -> None:
    where, dry_run = chosen.where(jobs), chosen.dry_run
    if len(jobs) == 1 and not dry_run:
        return act(ctx, jobs, lambda client, job: _one(client, verb, job, reason), output)
    asks = where is not None and not chosen.yes and not dry_run and _is_person()

    async def act_on_them(client: GatewayClient) -> views.BulkView | None:
        resolved = _resolved(where, client)
        if asks:
            found = await client.act_on_all(verb, where=resolved, dry_run=True)
            if found.changed > 1 and not _agreed(verb, found.changed, resolved):
                return None
        return await client.act_on_all(verb, jobs, where=resolved, reason=reason, dry_run=dry_run)

    done = ask(ctx, act_on_them)
    if done is None:
        tell(f"nothing was {_DONE[verb]}")
        raise SystemExit(Exit.FAILED)
    _show(verb, done, output, is_counted=where is not None, dry_run=dry_run)
    return _end(done, ctx.obj["url"])


def _is_person() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout is not None and sys.stdout.isatty()


async def _one(client: GatewayClient, verb: Verb, job: str, reason: str) -> views.ActAnswer:
    """Act on one job by its own command, which says more where the id is none."""
    if verb == "cancel":
        return await client.cancel(job, reason)
    return await (client.hold(job) if verb == "hold" else client.release(job))


def _resolved(where: JobFilter | None, client: GatewayClient) -> JobFilter | None:
    """Return a filter with the name of who asks, as the server knows it, for ``me``."""
    if where is None or where.user != "me":
        return where
    import msgspec

    from penstock.submission import user_name

    return msgspec.structs.replace(where, user=client.user or user_name())


def _agreed(verb: Verb, count: int, where: JobFilter | None) -> bool:
    whose = f" of {where.user}" if where is not None and where.user else " of everybody"
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
