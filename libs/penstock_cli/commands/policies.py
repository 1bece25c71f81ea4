"""
Commands about settings and workloads: ``policy``, ``quota``, ``class`` and ``profile``.

``policy`` shows and sets by what the pools are run, ``quota`` what of them is each team's own, and ``class`` which jobs
come before others. ``profile`` shows what
is known of a workload, and of an elastic one how it scales with batch size and devices, as a table.
"""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock_cli import job_text, render
from penstock_cli.invocation import AnswerOut, At, Out, bad_input, call
from penstock_cli.typer_commands import PolicyCommand
from penstock_cli.value_formats import moment, words

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock_log import MemoryNeed, Scalability, Setting, Timing, TrialsMeasured, views


policy_app = typer.Typer(help="See and change what the pools are run by, while they run.", no_args_is_help=True)
_QUOTA_HELP: Final = """
See and change the quotas of teams, while the pools run.

A quota is a guarantee and not a cap: so many devices come to the team's jobs first, and what nobody else needs, its
jobs may borrow beyond that. Who borrows is preempted first. To cap a team, give it a pool of its own; to cap what
each person holds, a priority class: penstock class set NAME --weight 0 --most-gpus N.
"""
quota_app = typer.Typer(help=_QUOTA_HELP, short_help="See and change the quotas of teams.", no_args_is_help=True)
class_app = typer.Typer(help="See and change priority classes, while the pools run.", no_args_is_help=True)
Pool = Annotated[str, typer.Option("--pool", help="Which pool.")]
Why = Annotated[str, typer.Option("--reason", help="Kept in the log.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    policy_app.command()(show)
    policy_app.command("set", cls=PolicyCommand)(set_)
    policy_app.command()(reset)
    app.add_typer(policy_app, name="policy")
    quota_app.command("ls")(quotas)
    quota_app.command("set")(set_quotas)
    quota_app.command("rm")(remove_quotas)
    app.add_typer(quota_app, name="quota")
    class_app.command("ls")(classes)
    class_app.command("set")(set_class)
    class_app.command("rm")(remove_classes)
    app.add_typer(class_app, name="class")
    app.command()(profile)


def show(ctx: typer.Context, output: Out = "table", at: At = None) -> None:
    """List what is set live for each pool; with -o wide every setting. Built-in holds where no file says otherwise."""
    found = call(ctx, lambda client: client.policies(moment(at)))
    if render.as_json(found, output):
        return
    rows = [row for one in found.pools for row in _policy_rows(one, found.defaults, everything=output == "wide")]
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
    answer = call(ctx, lambda client: client.set_policy(pool, chosen, reason=reason))
    render.show_answer(answer, answer.message, output)


def reset(
    ctx: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME...]", help="All where none is named.")] = None,
    pool: Pool = "default",
    reason: Why = "",
    output: AnswerOut = "text",
) -> None:
    """Go back to what the services' own settings say."""
    unset = names or []
    answer = call(ctx, lambda client: client.set_policy(pool, unset=unset, reset=not unset, reason=reason))
    render.show_answer(answer, answer.message, output)


def quotas(ctx: typer.Context, output: Out = "table") -> None:
    """List the quotas in force, and how many devices the jobs of each team hold."""

    async def looked_up(client: Client) -> tuple[views.PoliciesView, views.JobsView]:
        return await client.policies(), await client.jobs(state=("R", "PR", "CG"), limit=_MOST_HELD, rows=True)

    found, running = call(ctx, looked_up)
    if render.as_json(found, output):
        return
    held: Counter[tuple[str, str]] = Counter()
    for job in running.rows:
        held[job.pool, job.team] += job.gpus
    rows = [
        (one.pool, team, str(devices), "yes" if f"{_QUOTA}{team}" in one.settings else "", str(held[one.pool, team]))
        for one in found.pools
        for team, devices in sorted(one.quotas.items())
    ]
    if rows:
        render.show_table(("POOL", "TEAM", "DEVICES", "LIVE", "HELD"), rows, wide=output == "wide")
    else:
        render.say("no team has a quota; `penstock quota set TEAM=DEVICES` gives it one")


def set_quotas(
    ctx: typer.Context,
    given: Annotated[list[str], typer.Argument(metavar="TEAM=DEVICES...", help="Such as vision=16.")],
    pool: Pool = "default",
    reason: Why = "",
    output: AnswerOut = "text",
) -> None:
    """Give teams other quotas of a pool from now on."""
    chosen: dict[str, Setting] = {}
    for word in given:
        team, sign, devices = word.partition("=")
        if not team or not sign or not devices.isdecimal():
            bad_input(f"{word!r} is no quota; expected TEAM=DEVICES, such as vision=16")
        chosen[f"{_QUOTA}{team}"] = int(devices)
    answer = call(ctx, lambda client: client.set_policy(pool, chosen, reason=reason))
    render.show_answer(answer, answer.message, output)


def remove_quotas(
    ctx: typer.Context,
    teams: Annotated[list[str], typer.Argument(metavar="TEAM...", help="Whose.")],
    pool: Pool = "default",
    reason: Why = "",
    output: AnswerOut = "text",
) -> None:
    """Go back to the quotas that the settings file has for these teams, if any."""
    unset = [f"{_QUOTA}{team}" for team in teams]
    answer = call(ctx, lambda client: client.set_policy(pool, unset=unset, reason=reason))
    render.show_answer(answer, answer.message, output)


def classes(ctx: typer.Context, output: Out = "table") -> None:
    """List the priority classes in force, those that come first before others, and what their jobs hold."""

    async def looked_up(client: Client) -> tuple[views.PoliciesView, views.JobsView]:
        return await client.policies(), await client.jobs(state=("R", "PR", "CG"), limit=_MOST_HELD, rows=True)

    found, running = call(ctx, looked_up)
    if render.as_json(found, output):
        return
    held: Counter[tuple[str, str]] = Counter()
    for job in running.rows:
        held[job.pool, job.priority_class] += job.gpus
    rows = [
        (
            one.pool,
            name,
            str(rules.weight),
            "yes" if rules.preempts else "",
            str(rules.most_gpus or "any"),
            ", ".join(rules.teams) or "all",
            "yes" if any(setting.startswith(f"{_CLASS}{name}.") for setting in one.settings) else "",
            str(held[one.pool, name]),
        )
        for one in found.pools
        for name, rules in sorted(one.classes.items(), key=lambda item: (-item[1].weight, item[0]))
    ]
    if rows:
        headers = ("POOL", "CLASS", "WEIGHT", "PREEMPTS", "MOST/USER", "TEAMS", "LIVE", "HELD")
        render.show_table(headers, rows, wide=output == "wide")
    else:
        render.say("no pool has a priority class; `penstock class set NAME --weight 10` makes one")


def set_class(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Such as urgent.")],
    *,
    weight: Annotated[int, typer.Option("--weight", help="Higher comes first; jobs without a class have 0.")],
    preempts: Annotated[bool, typer.Option("--preempts", help="Runs of a lower weight make way for its jobs.")] = False,
    most_gpus: Annotated[
        int, typer.Option("--most-gpus", min=0, help="Devices that a user's jobs of it hold at once; 0: any.")
    ] = 0,
    teams: Annotated[list[str] | None, typer.Option("--teams", help="Who may use it: vision,nlp; else all.")] = None,
    pool: Pool = "default",
    reason: Why = "",
    output: AnswerOut = "text",
) -> None:
    """Give a pool a priority class, or change it, from now on; what is left out has its default."""
    named = words(teams or [])
    answer = call(
        ctx,
        lambda client: client.set_class(
            name, weight, preempts=preempts, most_gpus=most_gpus, teams=named, pool=pool, reason=reason
        ),
    )
    render.show_answer(answer, f"pool {pool}: class {name} is set", output)


def remove_classes(
    ctx: typer.Context,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Which ones.")],
    pool: Pool = "default",
    reason: Why = "",
    output: AnswerOut = "text",
) -> None:
    """Go back to what the settings file says of these classes, or to none; no job may name them."""

    async def removed(client: Client) -> list[views.ActAnswer]:
        known = next((one.classes for one in (await client.policies()).pools if one.pool == pool), {})
        for name in names:
            if name not in known:
                bad_input(f"pool {pool} has no class {name!r}; expected one of {', '.join(sorted(known)) or 'none'}")
        return [await client.remove_class(name, pool=pool, reason=reason) for name in names]

    for name, answer in zip(names, call(ctx, removed), strict=True):
        what = "has no class of its own" if answer.state == "unchanged" else "has dropped what was set live for class"
        render.show_answer(answer, f"pool {pool} {what} {name}", output)


_QUOTA: Final = "quota."
_THRESHOLDS: Final = "thresholds_gpu_s"
"""A list, of which one number may be typed alone."""
_CLASS: Final = "class."
_MOST_HELD: Final = 100_000


def parsed(text: str) -> tuple[str, Setting]:
    """
    Return the name and the value of ``name=value``; numbers with commas are a list, ``off`` is none.

    Examples
    --------
    >>> parsed("order=2d-las"), parsed("thresholds_gpu_s=60,600"), parsed("promote_knob=off"), parsed("window=64")
    (('order', '2d-las'), ('thresholds_gpu_s', [60, 600]), ('promote_knob', None), ('window', 64))
    >>> parsed("thresholds_gpu_s=15")
    ('thresholds_gpu_s', [15])
    >>> parsed("thresholds_gpu_s=[]"), parsed("topology=zone,rack"), parsed("thresholds_gpu_s=60,")
    (('thresholds_gpu_s', []), ('topology', ['zone', 'rack']), ('thresholds_gpu_s', [60]))
    """
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise typer.BadParameter(f"{text!r} is no setting; expected NAME=VALUE, such as order=fifo")
    if "," in value and not value.startswith("["):
        items = [_one(item) for item in value.split(",") if item.strip()]
        return name, [item for item in items if isinstance(item, str | int | float)]
    found = _one(value)
    if name == _THRESHOLDS and isinstance(found, int | float) and not isinstance(found, bool):
        return name, [found]
    return name, found


def _one(value: str) -> Setting:
    text = value.strip()
    if text in {"off", "none"}:
        return None
    try:
        found: Setting = tomllib.loads(f"it = {text}")["it"]
    except (ValueError, RecursionError):  # a word; a number of too many digits
        return text
    return found if isinstance(found, bool | int | float | list) else text


def _policy_rows(
    one: views.PolicyView, defaults: dict[str, Setting], *, everything: bool
) -> list[tuple[str, str, str, str]]:
    from penstock_log.facts import worded

    def said(value: Setting) -> str:
        return f"learnt: {worded([*one.learnt_gpu_s]) or 'one queue'}" if value == "learnt" else worded(value)

    names = sorted({*one.settings, *(defaults if everything else ())})
    return [
        (one.pool, name, said(one.settings[name]) if name in one.settings else "", said(defaults.get(name)))
        for name in names
    ]


Workload = Annotated[
    str,
    typer.Argument(
        metavar="WORKLOAD", help="Its key or a unique beginning of it, or the id or name of a job or sweep."
    ),
]


def curve_lines(kinds: Sequence[Scalability], width: int | None = None) -> list[str]:
    """
    Return what is known, kind by kind: a table of the measured sizes, what a device holds, and what is missing.

    ``EACH`` is the batch on each device, and ``EFFICIENCY`` the throughput as a part of what so many single devices
    with this batch would have.

    Parameters
    ----------
    width : int or None
        Columns of the terminal, where bars for the throughput are drawn as well; None elsewhere.
    """
    if not kinds:
        return []
    rows = [row for kind in kinds for row in _curve_rows(kind)]
    fastest = max((speed for _, speed in rows), default=0.0)
    headers = HEADERS if width is None else (*HEADERS, "")
    cells = [cell if width is None else (*cell, _bar(speed, fastest)) for cell, speed in rows]
    return [*(render.table(headers, cells, width=width) if rows else []), *render.labelled(map(_note, kinds))]


def profile(ctx: typer.Context, workload: Workload, output: Out = "table", at: At = None) -> None:
    """
    Show what is known of a workload: speeds, scaling, memory.

    How an elastic one goes with batch size and devices, with errors; and what trials have shown of sharing devices and
    of scaling out.
    """
    found = call(ctx, lambda client: client.profile(workload, moment(at)))
    if render.as_json(found, output):
        return
    curve = curve_lines(found.scaling, render.terminal_width())
    render.say_lines(render.wrapped([*profile_lines(found), *(["", *curve] if curve else [])]))


def profile_lines(found: views.ProfileView) -> list[str]:
    """Return a workload in lines."""
    names = ", ".join(found.names)
    pairs = [
        ("workload", found.workload),
        ("jobs", f"{found.jobs}{f': {names}' if names else ''}"),
        ("speeds", job_text.speeds(found.speeds) or "not measured"),
        ("note", found.note),
        ("memory", memory(found.need)),
        *(trials(found.trials) if found.trials is not None else ()),
    ]
    return render.labelled((label, value) for label, value in pairs if value)


def memory(need: MemoryNeed | None) -> str:
    """Return what a run needs of a device's memory, in words."""
    if need is None:
        return "not measured"
    more = f", {render.size(need.ephemeral_bytes)} more within an iteration" if need.ephemeral_bytes else ""
    return f"{render.size(need.resident_bytes)} kept{more}"


def trials(seen: TrialsMeasured) -> list[tuple[str, str]]:
    """Return what trials have shown, in words."""
    unseen = "not measured"
    packing = (
        f"alpha {seen.alpha:.3g}, at most {render.count(seen.packing, 'trial')} on a device" if seen.alpha else unseen
    )
    most = f", at most {render.count(seen.widest, 'device')} for a trial" if seen.widest else ""
    guessed = "" if seen.moves else " (nobody has been moved yet: starting, and a guess for stopping)"
    never = "" if seen.saves else "; its script saves no checkpoints, so that trials are never moved"
    return [
        ("side by side", packing),
        ("scaling out", f"beta {seen.beta:.3g}{most}" if seen.beta else unseen),
        ("moving", f"{seen.overhead_s:.2g} s{guessed}{never}" if seen.overhead_s else unseen),
    ]


HEADERS: Final = ("KIND", "GPUS", "EACH", "MS/STEP", "ERROR", "EXAMPLES/S", "EFFICIENCY", "RUNS")
_BAR: Final = 24
_MOST_ROWS: Final = 16
"""Sizes that are shown of a kind: real runs may have added many."""


def _curve_rows(known: Scalability) -> list[tuple[tuple[str, ...], float]]:
    """Return a row for each size, the most measured ones where there are many, and its samples a second."""
    most = sorted(known.timings, key=lambda timing: -timing.runs)[:_MOST_ROWS]
    shown = sorted(most, key=lambda timing: (timing.gpus, timing.local_batch))
    return [(_row(known, timing), timing.gpus * timing.local_batch / timing.iteration_s) for timing in shown]


def _row(known: Scalability, timing: Timing) -> tuple[str, ...]:
    alone_s = _alone_s(known, timing.local_batch)
    efficiency = "-" if math.isnan(alone_s) else f"{100 * alone_s / timing.iteration_s:.0f}%"
    return (
        known.kind,
        str(timing.gpus),
        str(timing.local_batch),
        f"{1000 * timing.iteration_s:.4g}",
        f"{1000 * timing.error_s:.2g}" if timing.error_s else "-",
        render.rate(timing.gpus * timing.local_batch / timing.iteration_s),
        efficiency if timing.gpus > 1 else "-",
        str(timing.runs),
    )


def _alone_s(known: Scalability, local_batch: int) -> float:
    """Return the seconds of an iteration with so many samples on one device; nan beyond those that were timed."""
    alone = [timing for timing in known.timings if timing.gpus == 1]
    below = [timing for timing in alone if timing.local_batch <= local_batch]
    above = [timing for timing in alone if timing.local_batch >= local_batch]
    if not below or not above:
        return math.nan
    low, high = max(below, key=lambda t: t.local_batch), min(above, key=lambda t: t.local_batch)
    apart = high.local_batch - low.local_batch
    part = (local_batch - low.local_batch) / apart if apart else 0.0
    return low.iteration_s + part * (high.iteration_s - low.iteration_s)


def _note(known: Scalability) -> tuple[str, str]:
    cap = f"at most {render.count(known.per_gpu_cap, 'example')} on a device" if known.per_gpu_cap else ""
    return f"on {known.kind}", "; ".join(filter(None, (cap, known.note)))


def _bar(speed: float, fastest: float) -> str:
    return "█" * max(1, round(_BAR * speed / fastest))
