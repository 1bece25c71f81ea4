"""`penstock shadow`: another policy beside the live cluster, and what it would have been worth."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import render
from penstock.cli.session import Out, call

if TYPE_CHECKING:
    from penstock_bus.port import Bus
    from penstock_shadow.scoring import Score
    from penstock_shadow.settings import Settings

shadow_app = typer.Typer(help="Score another policy that follows the live cluster.", no_args_is_help=True)
Name = Annotated[str, typer.Option("--name", help="Which shadow; may be left out where there is only one.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (run, report, ls):
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

    from penstock.cli.errors import bad_input
    from penstock.cli.typed import pairs
    from penstock.cli.up import become
    from penstock_shadow.settings import Settings

    chosen: dict[str, Any] = pairs(sets or [], "--set")
    try:
        settings = Settings(policy=policy, set=chosen, pool=pool, name=name, anew=anew)
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
    if output == "json":
        render.show_json(found)
        return
    from penstock.cli.scored import HEADERS, lines, rows

    render.show_table(HEADERS, rows(found), wide=output == "wide")
    for line in render.wrapped(lines(found)):
        render.say(line)


def ls(ctx: typer.Context, output: Out = "table") -> None:
    """List the shadows, and how far they are."""
    from penstock.cli.scored import SHADOW_HEADERS, shadow_row
    from penstock.cli.times import now_s
    from penstock_shadow.plan import statuses

    found = call(ctx, lambda client: statuses(client.bus))
    if output == "json":
        render.show_json(found)
    elif found:
        render.show_table(SHADOW_HEADERS, [shadow_row(one, now_s()) for one in found], wide=output == "wide")
    else:
        render.say("no shadow has followed this cluster; start one with `penstock shadow run --policy NAME`")


def _login(data: Path, url: str) -> dict[str, str]:
    """Return the shadow's own login, unless another one is set or the folder is none of a running Penstock."""
    from penstock.cli.up import environment_of
    from penstock_bus import credentials

    if os.environ.get("PENSTOCK_USER") or os.environ.get(credentials.VARIABLE):
        return {"PENSTOCK_URL": url}
    if "shadow" not in credentials.read(data / "nats" / "passwords.json"):
        return {"PENSTOCK_URL": url}
    return environment_of("shadow", data)


async def _check(bus: Bus, settings: Settings) -> None:
    """Say now what the shadow would only say to its log."""
    from penstock.cli.errors import Exit, Failure
    from penstock.cli.times import now_s
    from penstock_shadow.runner import Taken, planned

    try:
        await planned(bus, settings, now_s())
    except Taken as error:
        raise Failure(str(error), Exit.CONFLICT) from error


async def _score(bus: Bus, name: str) -> Score:
    from penstock.cli.errors import Exit, Failure
    from penstock.cli.times import now_s
    from penstock_shadow.plan import statuses
    from penstock_shadow.scoring import score_of

    found = {one.plan.name: one for one in await statuses(bus)}
    if not name and len(found) == 1:
        (name,) = found
    if name in found:
        return await score_of(bus, found[name], now_s())
    known = f"there are {', '.join(sorted(found))}" if found else "start one with `penstock shadow run --policy NAME`"
    raise Failure(
        f"there is no shadow {name!r}; {known}" if name else f"name a shadow by --name; {known}", Exit.NOT_FOUND
    )
