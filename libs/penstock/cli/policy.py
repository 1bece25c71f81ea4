"""Commands about what the pools are run by."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import render
from penstock.cli.session import AnswerOut, At, Out, call
from penstock.cli.times import moment

if TYPE_CHECKING:
    from penstock_events import Setting, views

policy_app = typer.Typer(help="See and change what the pools are run by, while they run.", no_args_is_help=True)
Pool = Annotated[str, typer.Option("--pool", help="Which pool.")]
Why = Annotated[str, typer.Option("--reason", help="Kept in the log.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    policy_app.command()(show)
    policy_app.command("set")(set_)
    policy_app.command()(reset)
    app.add_typer(policy_app, name="policy")


def show(ctx: typer.Context, output: Out = "table", at: At = None) -> None:
    """List what is set live for each pool; with -o wide every setting. Built-in holds where no file says otherwise."""
    found = call(ctx, lambda client: client.policies(moment(at)))
    if output == "json":
        render.show_json(found)
        return
    rows = [row for one in found.pools for row in _rows(one, found.defaults, everything=output == "wide")]
    if rows:
        render.show_table(("POOL", "SETTING", "LIVE", "BUILT-IN"), rows, wide=output == "wide")
    else:
        render.say("nothing is set live; every pool is run as its services are set (-o wide lists what can be set)")


def set_(
    ctx: typer.Context,
    settings: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...", help="Such as order=fifo; off for none.")],
    pool: Pool = "default",
    reason: Why = "",
    output: AnswerOut = "text",
) -> None:
    """Run a pool by other settings from now on: order=2d-gittins, thresholds_gpu_s=3600,36000, promote_knob=off."""
    chosen = dict(parsed(text) for text in settings)
    _answer(call(ctx, lambda client: client.set_policy(pool, chosen, reason=reason)), output)


def reset(
    ctx: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME...]", help="All where none is named.")] = None,
    pool: Pool = "default",
    reason: Why = "",
    output: AnswerOut = "text",
) -> None:
    """Go back to what the services' own settings say."""
    unset = names or []
    _answer(call(ctx, lambda client: client.set_policy(pool, unset=unset, reset=not unset, reason=reason)), output)


def parsed(text: str) -> tuple[str, Setting]:
    """
    Return the name and the value of ``name=value``; numbers with commas are a list, ``off`` is none.

    Examples
    --------
    >>> parsed("order=2d-las"), parsed("thresholds_gpu_s=60,600"), parsed("promote_knob=off"), parsed("window=64")
    (('order', '2d-las'), ('thresholds_gpu_s', [60, 600]), ('promote_knob', None), ('window', 64))
    >>> parsed("thresholds_gpu_s=[]"), parsed("topology=zone,rack"), parsed("thresholds_gpu_s=60,")
    (('thresholds_gpu_s', []), ('topology', ['zone', 'rack']), ('thresholds_gpu_s', [60]))
    """
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise typer.BadParameter(f"{text!r} is no setting; expected NAME=VALUE, such as order=fifo")
    if "," in value and not value.startswith("["):
        items = [_one(item) for item in value.split(",") if item.strip()]
        return name, [item for item in items if isinstance(item, str | int | float)]
    return name, _one(value)


def _one(value: str) -> Setting:
    word = value.strip()
    if word in {"off", "none"}:
        return None
    try:
        found: Setting = tomllib.loads(f"it = {word}")["it"]
    except tomllib.TOMLDecodeError:
        return word
    return found if isinstance(found, bool | int | float | list) else word


def _answer(answer: views.ActAnswer, output: str) -> None:
    if output == "json":
        render.show_json_line(answer)
    else:
        render.say(answer.message)


def _rows(one: views.PolicyView, defaults: dict[str, Setting], *, everything: bool) -> list[tuple[str, str, str, str]]:
    from penstock_events.policy import worded

    names = sorted({*one.settings, *(defaults if everything else ())})
    return [
        (one.pool, name, worded(one.settings[name]) if name in one.settings else "", worded(defaults.get(name)))
        for name in names
    ]
