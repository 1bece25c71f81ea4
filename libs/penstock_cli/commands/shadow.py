"""Commands about shadows: another policy beside the live cluster, and its score against what really happened."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock_cli import render
from penstock_cli.invocation import Exit, Failure, Out, bad_input, become, call
from penstock_cli.typer_commands import PolicyCommand
from penstock_cli.value_formats import clock, now_s, pairs, span

if TYPE_CHECKING:
    from penstock_simulator.report.intervals import CompletionTimeChange, Interval
    from penstock_simulator.shadow.plan import ShadowedLog, ShadowSettings, ShadowStatus
    from penstock_simulator.shadow.shadow_score import RoundAgreement, ShadowScore, UnscoredJobs


shadow_app = typer.Typer(help="Score another policy that follows the live cluster.", no_args_is_help=True)
Name = Annotated[str, typer.Option("--name", help="Which shadow; may be left out where there is only one.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    shadow_app.command(cls=PolicyCommand)(run)
    for command in (report, ls):
        shadow_app.command()(command)
    app.add_typer(shadow_app, name="shadow")


def run(
    ctx: typer.Context,
    *,
    policy: Annotated[str, typer.Option("--policy", "-p", help="As `penstock sim --policy`, or configured.")],
    sets: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE of ranker or matcher, such as min_run_s=60.")
    ] = None,
    pool: Annotated[str, typer.Option("--pool", help="Follow this pool only.")] = "",
    name: Annotated[str, typer.Option("--name", help="Of the shadow; else the policy's.")] = "",
    anew: Annotated[bool, typer.Option("--anew", help="Begin with the cluster as it is now.")] = False,
    data: Annotated[
        str, typer.Option("--data", help="Take the login from this data folder of `penstock up`, if it is one.")
    ] = "penstock-data",
) -> None:
    """
    Run a shadow until Ctrl-C.

    It begins with the cluster as it is, and when it is run again goes on where it was. For example:
    penstock shadow run --policy 2d-gittins --set thresholds_gpu_s=3600,36000
    """
    import msgspec

    from penstock_simulator.shadow.plan import ShadowSettings

    chosen: dict[str, Any] = pairs(sets or [], "--set")
    try:
        settings = ShadowSettings(policy=policy, set=chosen, pool=pool, name=name, anew=anew)
    except ValueError as error:
        bad_input(str(error))
    login = _login(Path(data), ctx.obj["url"])
    ctx.obj["url"] = login["PENSTOCK_URL"]
    call(ctx, lambda client: _check(client.bus, settings))
    environment = {
        "PENSTOCK_SHADOW_POLICY": settings.policy,
        "PENSTOCK_SHADOW_SET": msgspec.json.encode(settings.set).decode(),
        "PENSTOCK_SHADOW_POOL": settings.pool,
        "PENSTOCK_SHADOW_NAME": settings.called,
        "PENSTOCK_SHADOW_ANEW": str(settings.anew).lower(),
    }
    become("shadow", {**login, **environment})


def report(ctx: typer.Context, name: Name = "", output: Out = "table") -> None:
    """Score a shadow against what really happened since it began."""
    found = call(ctx, lambda client: _score(client.bus, name))
    if render.as_json(found, output):
        return

    render.show_table(HEADERS, rows(found), wide=output == "wide")
    for line in render.wrapped(lines(found)):
        render.say(line)


def ls(ctx: typer.Context, output: Out = "table") -> None:
    """List the shadows, and how far they are."""
    from penstock_simulator.shadow.plan import statuses

    found = call(ctx, lambda client: statuses(client.bus))
    if render.as_json(found, output):
        return
    if found:
        render.show_table(SHADOW_HEADERS, [shadow_row(one, now_s()) for one in found], wide=output == "wide")
    else:
        render.say("no shadow has followed this cluster; start one with `penstock shadow run --policy NAME`")


def _login(data: Path, url: str) -> dict[str, str]:
    """Return the shadow's own login, unless another one is set or the folder is none of a running Penstock."""
    from penstock_bus.identity import logins
    from penstock_cli.commands.up import environment_of
    from penstock_cli.local import data_folder

    if os.environ.get("PENSTOCK_USER") or os.environ.get(logins.VARIABLE):
        return {"PENSTOCK_URL": url}
    if not data_folder.login_file(data, "shadow").exists():
        return {"PENSTOCK_URL": url}
    return environment_of("shadow", data)


async def _check(bus: ShadowedLog, settings: ShadowSettings) -> None:
    """Say now what the shadow would only say to its log."""
    from penstock_simulator.shadow.runner import ShadowNameTaken, planned

    try:
        await planned(bus, settings, now_s())
    except ShadowNameTaken as error:
        raise Failure(str(error), Exit.CONFLICT) from error


async def _score(bus: ShadowedLog, name: str) -> ShadowScore:
    from penstock_simulator.shadow.plan import statuses
    from penstock_simulator.shadow.shadow_score import score_of

    found = {one.plan.name: one for one in await statuses(bus)}
    if not name and len(found) == 1:
        (name,) = found
    if name in found:
        return await score_of(bus, found[name], now_s())
    known = f"there are {', '.join(sorted(found))}" if found else "start one with `penstock shadow run --policy NAME`"
    raise Failure(
        f"there is no shadow {name!r}; {known}" if name else f"name a shadow by --name; {known}", Exit.NOT_FOUND
    )


HEADERS: Final = ("TEAM", "JOBS", "MEASURED", "SHADOW", "CHANGE", "95% OF RESAMPLES", "P95", "SHADOW_P95")
SHADOW_HEADERS: Final = ("NAME", "POOL", "BEGAN", "TOLD", "SEQ", "WAITING", "RUNNING", "AHEAD", "POLICY")


def rows(score: ShadowScore) -> list[tuple[str, ...]]:
    """Return the table's rows: all jobs, and each team's."""
    return [_row("(all)", score.all), *(_row(team or "(none)", found) for team, found in score.teams.items())]


def lines(score: ShadowScore) -> list[str]:
    """Return what else there is to say."""
    plan = score.status.plan
    found = [
        f"shadow {plan.name}: {plan.policy}{_settings(plan.settings)} since {clock(plan.from_s)}, "
        f"{span(score.until_s - plan.from_s)} of the log",
        f"preemptions of these jobs: {score.preemptions} measured, {score.shadow_preemptions} in the shadow",
        _agreed(score.agreement),
    ]
    if score.behind:
        found.append(
            f"{score.behind} of these jobs are not done in the shadow; they count as old as they are, at least"
        )
    if score.status.ahead:
        ahead = render.count(score.status.ahead, "run")
        found.append(
            f"live, {ahead} held devices after their end, {span(score.status.ahead_gpu_s)} of "
            "GPU-time: their length was not known yet; the times above know it"
        )
    return [*found, _left_out(score.unscored), "it cannot know:", *(f"  - {what}" for what in score.cannot_know)]


def shadow_row(status: ShadowStatus, now_s: float) -> tuple[str, ...]:
    """Return a shadow's row in the list of all."""
    plan = status.plan
    return (
        plan.name,
        plan.pool or "(all)",
        clock(plan.from_s),
        f"{span(max(0.0, now_s - status.at_s))} ago",
        str(status.seq),
        str(status.waiting),
        str(status.running),
        str(status.ahead),
        plan.policy + _settings(plan.settings),
    )


def _row(name: str, found: CompletionTimeChange) -> tuple[str, ...]:
    return (
        name,
        str(found.jobs),
        span(found.was_avg_s),
        span(found.avg_s),
        f"{(found.ratio - 1) * 100:+.1f}%" if found.ratio is not None else "-",
        _interval(found.ratio_interval),
        span(found.was_p95_s),
        span(found.p95_s),
    )


def _interval(found: Interval | None) -> str:
    return f"{(found.low - 1) * 100:+.1f}% to {(found.high - 1) * 100:+.1f}%" if found is not None else "too few jobs"


def _settings(settings: dict[str, object]) -> str:
    return "".join(f" {name}={value}" for name, value in settings.items())


def _agreed(found: RoundAgreement) -> str:
    within = f"within {found.within_s:.0f} s"
    rounds = f"{render.count(found.rounds, 'round')} {'starts' if found.rounds == 1 else 'start'}"
    jobs = f"{render.count(found.starts, 'job')} first {'starts' if found.starts == 1 else 'start'}"
    return (
        f"published live: {found.same} of {rounds} the same jobs {within}, "
        f"{found.same_starts} of {jobs} {within} on the same kind; "
        f"{render.count(found.preemptions, 'preemption')} measured, {found.shadow_preemptions} published"
    )


def _left_out(found: UnscoredJobs) -> str:
    counts = {
        "running": found.running,
        "waiting": found.waiting,
        "cancelled": found.cancelled,
        "failed": found.failed,
    }
    counted = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return f"without a true length, not scored: {counted or 'none'}"
