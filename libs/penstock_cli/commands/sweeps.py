"""
Commands about sweeps: ``tune``, and ``sweep`` with ``ls``, ``show``, ``best``, ``export``, ``plot``, ``cancel`` and
``sim``.

:class:`SweepProgressLine` says how far a sweep is while somebody waits for it: one line that changes on a terminal,
else a line for each change.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer
from msgspec import structs

from penstock_cli import render
from penstock_cli.commands import simulate
from penstock_cli.invocation import AnswerOut, At, Exit, Failure, Out, act, bad_input, call, require_script, tell
from penstock_cli.render import Table, seen
from penstock_cli.value_formats import clock, moment, span

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.gateway_client import GatewayClient
    from penstock_log import views


sweep_app = typer.Typer(help="List, show, plot, export, cancel and simulate sweeps.", no_args_is_help=True)
_COLUMNS: Final = [
    "job_id",
    "number",
    "bracket",
    "rung",
    "budget",
    "group",
    "gpus",
    "state",
    "value",
    "problem",
    "promoted",
]
SweepId = Annotated[str, typer.Argument(metavar="SWEEP", help="Sweep id, or a unique beginning of it.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(tune)
    sweep_app.command("ls")(ls)
    sweep_app.command("show")(show)
    sweep_app.command("best")(best)
    sweep_app.command("export")(export)
    sweep_app.command("plot")(plot)
    sweep_app.command("cancel")(cancel)
    sweep_app.command("sim")(simulate.simulate_sweep)
    app.add_typer(sweep_app, name="sweep")


def tune(
    ctx: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Sweep in TOML, YAML or JSON; - for standard input.")],
    *,
    name: Annotated[str, typer.Option("--name", help="Instead of the file's.")] = "",
    sweep_id: Annotated[str, typer.Option("--id", help="Wished id.")] = "",
    trials: Annotated[int | None, typer.Option("--trials", min=0, help="How many points are tried.")] = None,
    max_gpus: Annotated[int | None, typer.Option("--max-gpus", min=1, help="Most devices for one trial.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Of the random search.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse a sweep that could not start at present.")] = False,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Refuse if the script is not there.")] = True,
    no_upload: Annotated[
        bool, typer.Option("--no-upload", help="Run in the job's workdir where it is, instead of uploading it.")
    ] = False,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait",
            "-f",
            "--follow",
            help="Say how far it is until it ends; exit code 0 if it completed and none of its runs failed.",
        ),
    ] = False,
    output: AnswerOut = "text",
) -> None:
    """Submit a sweep over hyper-parameters."""
    from penstock_cli import spec_file

    typed: dict[str, Any] = {"name": name, "id": sweep_id, "trials": trials, "max_gpus": max_gpus, "seed": seed}
    overrides = {key: value for key, value in typed.items() if value not in {"", None}}
    spec = spec_file.sweep(spec_file.read(file, sys.stdin.read), overrides)
    if check:
        require_script(spec.job)
    if no_upload:
        from penstock.submission import in_place

        spec = structs.replace(spec, job=in_place(spec.job))

    async def submit(client: Client) -> views.SweepView | None:
        client.on_upload = lambda code: tell(code.text)
        answer = await client.tune(spec, strict=strict)
        for warning in answer.warnings:
            tell(warning)
        render.show_answer(answer, answer.id, output)
        return await followed(client, answer.id) if wait else None

    _conclude(call(ctx, submit))


def _conclude(sweep: views.SweepView | None) -> None:
    if sweep is None:
        return
    best = (
        f": best {sweep.metric} {render.number(sweep.best_value)} by {sweep.best_job_id}" if sweep.best_job_id else ""
    )
    why = f": {sweep.reason}" if sweep.reason else ""
    tell(f"sweep {sweep.id} {sweep.state}{why or best}")
    if failures := sweep_failures(sweep):
        tell(failures)
    if sweep.state != "completed" or sweep.failed:
        raise typer.Exit(Exit.INTERRUPTED if sweep.state == "cancelled" else Exit.FAILED)


def ls(
    ctx: typer.Context,
    *,
    state: Annotated[
        list[str] | None, typer.Option("--state", "-s", help="running, completed and so on; repeatable.")
    ] = None,
    user: Annotated[str, typer.Option("--user", "-u", help="Of this user; `me` is you.")] = "",
    team: Annotated[str, typer.Option("--team", help="Of this team.")] = "",
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=100_000, help="At most so many: the open ones, then the newest.")
    ] = 50,
    output: Out = "table",
    at: At = None,
) -> None:
    """List sweeps: the open ones, and the newest."""
    mine = user == "me"
    if mine:
        from penstock.submission import user_name

        user = user_name()  # where the server does not know who asks

    def whose(client: GatewayClient) -> str:
        return client.user or user if mine else user

    found = call(
        ctx, lambda client: client.sweeps(moment(at), user=whose(client), team=team, state=state or (), limit=limit)
    )
    if render.as_json(found, output):
        return
    render.show_table(*sweep_table(found.sweeps), wide=output == "wide")
    if found.total > len(found.sweeps):
        render.say(f"…and {found.total - len(found.sweeps)} more: --limit {found.total}")


def show(
    ctx: typer.Context,
    sweep: SweepId,
    *,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Say how far it is until it ends, then show it.")
    ] = False,
    output: Out = "table",
    at: At = None,
) -> None:
    """Show a sweep, its trials, and what its devices were used for; with -f -o json, a line for each change."""
    if follow:
        if at is not None:
            bad_input("--follow and --at were given; expected one of them: what was does not change")
        found = call(ctx, lambda client: _followed(client, sweep, output))
        if output == "json":
            return
    else:
        found = call(ctx, lambda client: client.sweep(sweep, moment(at)))
    if not render.as_json(found, output):
        _show(found, output)


async def _followed(client: Client, sweep_id: str, output: str) -> views.SweepView:

    if output != "json":
        return await followed(client, sweep_id)
    line = SweepProgressLine()
    async for sweep in client.follow_sweep(sweep_id, EVERY_S):
        if line.has_changed(sweep):
            render.show_json_line(sweep)
    return sweep


def _show(found: views.SweepView, output: str) -> None:
    render.say_lines(render.wrapped(sweep_lines(found)))
    render.say()
    if found.rungs:
        render.show_table(*rung_table(found.rungs), wide=output == "wide")
        render.say()
    render.show_table(*trial_table(found), wide=output == "wide")


def best(ctx: typer.Context, sweep: SweepId, output: AnswerOut = "text", at: At = None) -> None:
    """Show the best trial so far: its job, its value and its hyper-parameters, one a line."""
    found = call(ctx, lambda client: client.sweep(sweep, moment(at)))
    trial = next((trial for trial in found.trials if trial.job_id == found.best_job_id), None)
    if trial is None:
        raise Failure(f"no trial of sweep {found.id} has given a value yet")
    if output == "json":
        render.show_json_line(trial)
        return
    pairs = [("job", trial.job_id), (found.metric, render.number(trial.value))]
    pairs += [(name, str(value)) for name, value in sorted(trial.params.items())]
    render.say_lines(render.labelled(pairs))


def export(
    ctx: typer.Context,
    sweep: SweepId,
    *,
    optuna: Annotated[
        str,
        typer.Option("--optuna", metavar="STORAGE", help="As an Optuna study, to sqlite:///FILE or another storage."),
    ] = "",
    at: At = None,
) -> None:
    """Write a sweep's runs as CSV: where each stands, what it gave, and its hyper-parameters; or as an Optuna study."""
    found = call(ctx, lambda client: client.sweep(sweep, moment(at)))
    if optuna:
        _export_study(found, optuna)
    else:
        _export_csv(found)


def _export_csv(found: views.SweepView) -> None:
    import csv

    names = sorted({name for trial in found.trials for name in trial.params})
    writer = csv.writer(sys.stdout, lineterminator="\n")
    shown = render.seen if render.terminal_width() else str  # a file is given every character
    writer.writerow([*_COLUMNS, *map(shown, names)])
    for trial in found.trials:
        cells = ["" if (value := getattr(trial, name)) is None else value for name in _COLUMNS]
        row = [*cells, *(trial.params.get(name, "") for name in names)]
        writer.writerow([shown(cell) if isinstance(cell, str) else cell for cell in row])


def _export_study(found: views.SweepView, storage: str) -> None:
    from penstock import results

    with _extras("an Optuna study", "penstock[optuna]"):
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            kept_in = optuna.storages.get_storage(storage)
        except Exception as error:  # of whatever is behind that storage
            reason = str(error).partition("\n")[0]
            raise Failure(f"--optuna {storage}: {reason}; expected a storage such as sqlite:///studies.db") from error
        try:
            made = results.study(found, storage=kept_in)
        except optuna.exceptions.DuplicatedStudyError as error:
            raise Failure(f"{storage} has a study {found.name}-{found.id} already; name another storage") from error
    render.say(f"{made.study_name}: {render.count(len(made.trials), 'trial')} in {storage}")


def plot(
    ctx: typer.Context,
    sweep: SweepId,
    *,
    out: Annotated[Path, typer.Option("--out", help="Folder; it is made if it is not there.")],
    picture: Annotated[Literal["png", "svg"], typer.Option("--format", help="png or svg.")] = "png",
    at: At = None,
) -> None:
    """Draw a sweep's history, its points side by side, and its values at each budget, by Optuna."""
    found = call(ctx, lambda client: client.sweep(sweep, moment(at)))
    with _extras("pictures of a sweep", "penstock[optuna,plot]"):
        from penstock.results import draw

        try:
            written = draw(found, out, picture)
        except ValueError as error:
            raise Failure(str(error)) from error
        except OSError as error:
            raise Failure(f"--out {out}: {error}") from error
    for path in written:
        render.say(str(path))


@contextmanager
def _extras(what: str, extras: str) -> Iterator[None]:
    """Say what has to be installed, where it is not."""
    try:
        yield
    except ImportError as error:
        raise Failure(f"{what} needs {error.name or error}; install it: pip install '{extras}'") from error


def cancel(
    ctx: typer.Context,
    sweeps: Annotated[list[str], typer.Argument(metavar="SWEEP...", help="Sweep ids, or beginnings of them.")],
    output: AnswerOut = "text",
) -> None:
    """End sweeps and their trials."""
    act(ctx, sweeps, lambda client, sweep: client.cancel_sweep(sweep), output)


EVERY_S: Final = 1.0
"""How often the gateway is asked."""


async def followed(client: Client, sweep_id: str) -> views.SweepView:
    """Say on standard error how far a sweep is until it has ended; return it then."""
    line = SweepProgressLine()
    try:
        async for sweep in client.follow_sweep(sweep_id, EVERY_S):
            if sweep.finished_s is None:
                line.say_progress(sweep)
        return sweep
    finally:
        line.clear()


class SweepProgressLine:
    """What was said last: on a terminal it is written over, elsewhere said again only when something has come of it."""

    def __init__(self) -> None:
        self._over_itself = sys.stderr.isatty()
        self._last: object = None

    def say_progress(self, sweep: views.SweepView) -> None:
        """Say how far it is."""
        line = seen(sweep_progress(sweep))
        if self._over_itself:
            sys.stderr.write(f"\r\x1b[K{line}")
            sys.stderr.flush()
        elif self.has_changed(sweep):
            typer.echo(line, err=True)

    def has_changed(self, sweep: views.SweepView) -> bool:
        """Say whether something has come of the sweep since this was asked last."""
        now = (sweep.done, sweep.best_job_id, sweep.state)
        changed, self._last = now != self._last, now
        return changed

    def clear(self) -> None:
        """Leave a terminal's line to what follows."""
        if self._over_itself:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def sweep_table(sweeps: Sequence[views.SweepView]) -> Table:
    """Return the list of sweeps; it tells of failures only where there are any."""
    columns: dict[str, Callable[[views.SweepView], str]] = {
        "ID": lambda sweep: sweep.id,
        "NAME": lambda sweep: sweep.name,
        "ST": lambda sweep: sweep.state,
        "DONE": _progress,
        "METRIC": lambda sweep: f"{sweep.metric} ({sweep.mode})",
        "BEST": lambda sweep: render.number(sweep.best_value),
        "BEST-JOB": lambda sweep: sweep.best_job_id,
    }
    if any(sweep.failed for sweep in sweeps):
        columns["FAILED"] = lambda sweep: str(sweep.failed or "")
        columns["FIRST-ERROR"] = lambda sweep: sweep.first_error
    return tuple(columns), [tuple(cell(sweep) for cell in columns.values()) for sweep in sweeps]


def sweep_failures(sweep: views.SweepView) -> str:
    """Return how many of a sweep's runs have failed, and the first error; empty where none has."""
    if not sweep.failed:
        return ""
    promotions = f", {sweep.failed_promotions} of them promoted" if sweep.failed_promotions else ""
    of = f"{sweep.failed} of {render.count(sweep.done, 'run')} failed{promotions}"
    return f"{of}; the first, {sweep.first_failed}: {sweep.first_error}"


def sweep_lines(sweep: views.SweepView) -> list[str]:
    """Return what is known of a sweep as a whole, a line each."""
    params = next((trial.params for trial in sweep.trials if trial.job_id == sweep.best_job_id), {})
    best = f"{render.number(sweep.best_value)} by {sweep.best_job_id} ({render.mapping(params)})"
    took = span(sweep.finished_s - sweep.submitted_s) if sweep.finished_s is not None else ""
    used = sweep.utilisation
    return render.labelled(
        [
            ("id", sweep.id),
            ("name", sweep.name),
            ("state", sweep.state),
            ("reason", sweep.reason),
            ("trials", _trials(sweep)),
            ("failed", sweep_failures(sweep)),
            ("metric", f"{sweep.metric} ({sweep.mode})"),
            ("best", best if sweep.best_job_id else ""),
            ("submitted", clock(sweep.submitted_s)),
            ("took", took),
            ("target", _target(sweep)),
            ("left", f"about {span(sweep.eta_s)}, at the pace so far" if sweep.eta_s is not None else ""),
            ("utilisation", f"{_percent(used)} of the devices that it could use" if used is not None else ""),
            ("goodput", _goodput(sweep.goodput)),
            ("spent", _spent(sweep.goodput)),
        ]
    )


def _trials(sweep: views.SweepView) -> str:
    if not sweep.rungs:
        return f"{_progress(sweep)} done"
    return f"{sweep.opened}, in {_progress(sweep)} runs that are over"


def _target(sweep: views.SweepView) -> str:
    if sweep.spec.target is None:
        return ""
    when = f"reached after {span(sweep.target_s)}" if sweep.target_s is not None else "not reached"
    return f"{sweep.metric} {render.number(sweep.spec.target)} {when}"


def _goodput(view: views.GoodputView | None) -> str:
    if view is None or not view.allocated_gpu_s + view.running_gpu_s:
        return ""
    if not view.allocated_gpu_s:
        return f"no run is over; {view.running_gpu_s:.1f} device-seconds of those on their way"
    running = f", and {view.running_gpu_s:.1f} of runs on their way" if view.running_gpu_s else ""
    return f"{_percent(view.share)} of {view.allocated_gpu_s:.1f} device-seconds{running}"


def _spent(view: views.GoodputView | None) -> str:
    """Return what the rest of the device-seconds went into, the most first."""
    if view is None or not view.allocated_gpu_s:
        return ""
    parts = (
        (view.useful_gpu_s, "promoted and best"),
        (view.stopped_gpu_s, "to tell the others apart"),
        (view.overhead_gpu_s, "starting and saving"),
        (view.rescale_gpu_s, "moving and resuming"),
        (view.failed_gpu_s, "killed, or without a value"),
        (view.profile_gpu_s, "profiling"),
    )
    shares = sorted(((part / view.allocated_gpu_s, name) for part, name in parts if part), reverse=True)
    return ", ".join(f"{_percent(share)} {name}" for share, name in shares)


def sweep_progress(sweep: views.SweepView) -> str:
    """
    Return how far a sweep is, in one line.

    With the best so far, the time left at the pace so far, and goodput and utilisation as far as there are any.
    """
    goodput, used = sweep.goodput, sweep.utilisation
    running = sum(trial.state == "R" for trial in sweep.trials)
    words = [
        f"{sweep.id}: {_progress(sweep)} runs, {running} running",
        f"{sweep.failed} failed" if sweep.failed else "",
        f"best {sweep.metric} {render.number(sweep.best_value)}" if sweep.best_job_id else "",
        f"goodput {_percent(goodput.share)}" if goodput is not None and goodput.allocated_gpu_s else "",
        f"used {_percent(used)}" if used is not None else "",
        f"about {span(sweep.eta_s)} left" if sweep.eta_s is not None else "",
    ]
    return ", ".join(filter(None, words))


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def rung_table(rungs: Iterable[views.RungView]) -> Table:
    """Return the groups of a search that stops early."""
    return ("BRACKET", "RUNG", "BUDGET", "TRIALS", "OVER", "PROMOTED", "BEST"), [
        (
            *map(str, (rung.bracket, rung.rung, rung.budget, rung.opened, rung.over, rung.promoted)),
            render.number(rung.best_value),
        )
        for rung in rungs
    ]


def trial_table(sweep: views.SweepView) -> Table:
    """Return the runs of a sweep; with rung, budget and promotion where the search stops early."""
    if not sweep.rungs:
        return ("JOB", "ST", "GROUP", "GPUS", "VALUE", "PARAMS"), [
            (
                *(trial.job_id, trial.state, str(trial.group), _width(trial)),
                trial.problem.replace("_", " ") or render.number(trial.value),
                render.mapping(trial.params),
            )
            for trial in sweep.trials
        ]
    return ("JOB", "ST", "RUNG", "BUDGET", "GPUS", "VALUE", "", "PARAMS"), [
        (
            *(trial.job_id, trial.state, f"{trial.bracket}.{trial.rung}", str(trial.budget), _width(trial)),
            render.number(trial.value),
            "promoted" if trial.promoted else trial.problem.replace("_", " "),
            render.mapping(trial.params),
        )
        for trial in sweep.trials
    ]


def _width(trial: views.TrialView) -> str:
    return f"1/{trial.packed}" if trial.packed > 1 else str(trial.gpus)


def _progress(sweep: views.SweepView) -> str:
    return f"{sweep.done}/{sweep.wanted or '?'}"
