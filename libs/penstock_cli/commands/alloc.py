"""
Commands about allocations: ``alloc add``, ``ls``, ``show``, ``pause``, ``resume``, ``rm`` and ``dry-run``.

An allocation is what Penstock may take of another cluster, such as Slurm's: where jobs wait, it submits pilots there,
whose nodes run them.
"""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from penstock_cli import render
from penstock_cli.invocation import AnswerOut, At, Exit, Failure, Out, bad_input, call
from penstock_cli.value_formats import clock, environment, moment, span, time_limit_s, words
from penstock_log.text import count

if TYPE_CHECKING:
    from penstock_log import AllocationSpec, views

alloc_app = typer.Typer(
    help="Take nodes of another cluster, such as Slurm's, for a while, where jobs wait for them.",
    short_help="Take nodes of another cluster, where jobs wait.",
    no_args_is_help=True,
)
Provider = Annotated[
    Literal["slurm", "kubernetes", "local", "ssh"],
    typer.Argument(metavar="PROVIDER", help="slurm, kubernetes, ssh, or local (this machine)."),
]
Name = Annotated[str, typer.Option("--name", help="Of the allocation; its nodes' names begin with it.")]
Named = Annotated[str, typer.Argument(metavar="NAME", help="As `penstock alloc ls` lists it.")]
Most = Annotated[int, typer.Option("--max-pilots", min=1, help="The most pilots at once.")]
Backlog = Annotated[int, typer.Option("--backlog", min=1, help="The most pilots that wait for their start.")]
Least = Annotated[int, typer.Option("--min-pilots", min=0, help="So many are kept though no job waits.")]
Walltime = Annotated[str, typer.Option("--walltime", help="Of a pilot: 60 (minutes), 90s, 4h, as for `submit --time`.")]
Idle = Annotated[str, typer.Option("--idle", help="A pilot without a run ends after so long; 0: it stays.")]
Nodes = Annotated[int, typer.Option("--nodes", min=1, help="Nodes of one pilot.")]
Pool = Annotated[str, typer.Option("--pool", help="Which pool its nodes join.")]
Devices = Annotated[str, typer.Option("--devices", help="As for `penstock up`; auto unless told otherwise.")]
Kinds = Annotated[
    list[str] | None, typer.Option("--kind", help="Kinds of its devices, if jobs name kinds before any has joined.")
]
Gpus = Annotated[int, typer.Option("--gpus", min=1, help="Devices of a node, until the first has joined.")]
Hosts = Annotated[list[str] | None, typer.Option("--host", help="A host for pilots over SSH; several: repeat it.")]
Setup = Annotated[str, typer.Option("--setup", help="Lines of shell before a node begins, or @FILE.")]
Teardown = Annotated[str, typer.Option("--teardown", help="Lines of shell after it has ended, or @FILE.")]
Env = Annotated[list[str] | None, typer.Option("--env", help="NAME=VALUE for the pilots' executors.")]
Agents = Annotated[bool, typer.Option("--agents", help="Run memory and aggregation agents beside the executors.")]
Options = Annotated[
    list[str] | None, typer.Argument(metavar="[-- OPTION...]", help="For sbatch, such as --partition=gpu.")
]
Limit = Annotated[int, typer.Option("--limit", min=0, help="So many pilots at most; 0: all.")]
OneRun = Annotated[bool, typer.Option("--one-run", help="A pilot's node leaves when its first run has ended.")]
Image = Annotated[str, typer.Option("--image", help="Of Pods: has penstock and bash, and what jobs need.")]
Namespace = Annotated[str, typer.Option("--namespace", help="Of Pods; that of the login unless told otherwise.")]
Claim = Annotated[str, typer.Option("--claim", help="PersistentVolumeClaim for the checkpoints of jobs in Pods.")]
GpuResource = Annotated[str, typer.Option("--gpu-resource", help="Which resource --gpus of Pods counts; '': none.")]
PodTemplate = Annotated[str, typer.Option("--pod-template", help="FILE in YAML that is laid over each Pod.")]
Why = Annotated[str, typer.Option("--reason", help="Kept in the log.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    alloc_app.command()(add)
    alloc_app.command("ls")(list_)
    alloc_app.command()(show)
    alloc_app.command()(pause)
    alloc_app.command()(resume)
    alloc_app.command("rm")(remove)
    alloc_app.command("dry-run")(dry_run)
    app.add_typer(alloc_app, name="alloc")


def add(
    ctx: typer.Context,
    provider: Provider,
    options: Options = None,
    *,
    name: Name,
    max_pilots: Most = 1,
    backlog: Backlog = 2,
    min_pilots: Least = 0,
    walltime: Walltime = "60",
    idle: Idle = "5m",
    nodes: Nodes = 1,
    pool: Pool = "default",
    devices: Devices = "",
    kinds: Kinds = None,
    gpus: Gpus = 1,
    hosts: Hosts = None,
    setup: Setup = "",
    teardown: Teardown = "",
    env: Env = None,
    agents: Agents = False,
    one_run: OneRun = False,
    image: Image = "",
    namespace: Namespace = "",
    claim: Claim = "",
    gpu_resource: GpuResource = "nvidia.com/gpu",
    pod_template: PodTemplate = "",
    output: AnswerOut = "text",
) -> None:
    """
    Add an allocation: pilots are submitted where jobs wait that would run on them.

    What follows -- goes to sbatch: penstock alloc add slurm --name lab --max-pilots 4 -- --partition=gpu
    """
    spec = _spec(**{key: value for key, value in locals().items() if key not in {"ctx", "name", "output"}})
    answer = call(ctx, lambda client: client.add_allocation(name, spec))
    render.show_answer(answer, answer.message, output)


def dry_run(
    ctx: typer.Context,
    provider: Provider,
    options: Options = None,
    *,
    name: Name = "try",
    max_pilots: Most = 1,
    backlog: Backlog = 2,
    min_pilots: Least = 0,
    walltime: Walltime = "60",
    idle: Idle = "5m",
    nodes: Nodes = 1,
    pool: Pool = "default",
    devices: Devices = "",
    kinds: Kinds = None,
    gpus: Gpus = 1,
    hosts: Hosts = None,
    setup: Setup = "",
    teardown: Teardown = "",
    env: Env = None,
    agents: Agents = False,
    one_run: OneRun = False,
    image: Image = "",
    namespace: Namespace = "",
    claim: Claim = "",
    gpu_resource: GpuResource = "nvidia.com/gpu",
    pod_template: PodTemplate = "",
    output: AnswerOut = "text",
) -> None:
    """
    Show what a pilot would be, and what its provider says of it; nothing is submitted.

    Slurm is asked by `sbatch --test-only`.
    """
    spec = _spec(**{key: value for key, value in locals().items() if key not in {"ctx", "name", "output"}})
    found = call(ctx, lambda client: client.try_pilot(name, spec))
    lines = [
        f"now: {found.pilots} would be submitted" + (f" ({found.reason})" if found.reason else ""),
        f"provider: {found.said}",
        *([f"command: {shlex.join(found.command)}"] if found.command else []),
        "",
        "script:",
        *(f"  {line}" for line in found.script.splitlines()),
        "",
        "on each machine:",
        *(f"  {line}" for line in found.node_script.splitlines()),
    ]
    if output == "text":
        render.say_lines(lines)
    else:
        render.show_answer(found, "", output)
    if not found.accepted:
        raise Failure("the provider would refuse this pilot")


def list_(ctx: typer.Context, output: Out = "table", at: At = None) -> None:
    """List the allocations."""
    found = call(ctx, lambda client: client.allocations(moment(at)))
    if render.as_json(found.allocations, output):
        return
    rows = [
        (
            one.name,
            one.spec.provider,
            one.state,
            f"{sum(pilot.ended_s is None for pilot in one.pilots)} of {one.spec.max_pilots}",
            str(sum(pilot.state == "running" for pilot in one.pilots)),
            span(one.spec.walltime_s),
            one.devices or "unknown yet",
            one.spec.pool,
            one.reason or one.failure,
        )
        for one in found.allocations
    ]
    if rows:
        headers = ("NAME", "PROVIDER", "STATE", "PILOTS", "RUNNING", "WALLTIME", "DEVICES", "POOL", "REASON")
        render.show_table(headers, rows, wide=output == "wide")
    else:
        render.say("there is no allocation; `penstock alloc add slurm --name NAME` adds one")


def show(ctx: typer.Context, name: Named, limit: Limit = 50, output: Out = "table", at: At = None) -> None:
    """Show an allocation and its pilots: those on their way, those that run, and the last that have ended."""
    found = call(ctx, lambda client: client.allocations(moment(at)))
    one = next((one for one in found.allocations if one.name == name), None)
    if one is None:
        known = ", ".join(other.name for other in found.allocations) or "none"
        raise Failure(f"no allocation is called {name!r}; known: {known}", Exit.NOT_FOUND)
    if render.as_json(one, output):
        return
    _show_head(one)
    pilots = sorted(one.pilots, key=lambda pilot: (pilot.ended_s is not None, pilot.joined_s is not None))
    left = len(pilots) - limit if limit else 0
    rows = [
        (
            pilot.id,
            pilot.state,
            pilot.provider_id,
            ", ".join(pilot.nodes),
            clock(pilot.submitted_s),
            clock(pilot.joined_s),
            clock(pilot.ended_s),
            _reason(pilot),
        )
        for pilot in (pilots[:limit] if limit else pilots)
    ]
    if rows:
        render.say("")
        headers = ("PILOT", "STATE", "ID", "NODES", "SUBMITTED", "JOINED", "ENDED", "REASON")
        render.show_table(headers, rows, wide=output == "wide")
    if left > 0:
        render.say(f"{left} more; `--limit 0` lists all")


def pause(ctx: typer.Context, name: Named, reason: Why = "", output: AnswerOut = "text") -> None:
    """Submit no more pilots; those that there are go on."""
    answer = call(ctx, lambda client: client.pause_allocation(name, reason=reason))
    render.show_answer(answer, answer.message, output)


def resume(ctx: typer.Context, name: Named, reason: Why = "", output: AnswerOut = "text") -> None:
    """Submit pilots again, whether somebody paused it or too many pilots failed."""
    answer = call(ctx, lambda client: client.resume_allocation(name, reason=reason))
    render.show_answer(answer, answer.message, output)


def remove(ctx: typer.Context, name: Named, reason: Why = "", output: AnswerOut = "text") -> None:
    """Remove an allocation: its pilots are cancelled, and their runs go on elsewhere."""
    answer = call(ctx, lambda client: client.remove_allocation(name, reason=reason))
    render.show_answer(answer, answer.message, output)


def _reason(pilot: views.PilotView) -> str:
    """Return why a pilot waits or ended, and for what it was planned."""
    if pilot.ended_s is not None:
        return pilot.reason
    withdrawn = "withdrawn: no job would run on it" if pilot.withdrawn_s else ""
    return "; ".join(filter(None, (withdrawn, pilot.waits and f"waits: {pilot.waits}", pilot.reason)))


def _show_head(one: views.AllocationView) -> None:
    spec = one.spec
    render.say(f"{one.name}: {one.state}" + (f", {one.reason or one.failure}" if one.reason or one.failure else ""))
    waiting = min(spec.backlog, spec.max_pilots)
    what = f"at most {count(spec.max_pilots, 'pilot')}, {waiting} of them waiting"
    each = f"{spec.nodes} nodes each, " if spec.nodes > 1 else ""
    each += "for one run, " if spec.runs == 1 else ""
    idle = f", idle for {span(spec.idle_s)} at most" if spec.idle_s else ""
    render.say(f"{spec.provider}, {what}; {each}for {span(spec.walltime_s)}{idle}; {one.made} so far")
    if spec.pod is not None:
        render.say(f"image {spec.pod.image}" + (f", namespace {spec.pod.namespace}" if spec.pod.namespace else ""))
    if spec.options:
        render.say(f"sbatch {shlex.join(spec.options)}")
    render.say(f"devices of a node: {one.devices or 'not known before the first one joins'}")
    states = Counter(pilot.state for pilot in one.pilots if pilot.ended_s is None)
    render.say(f"pilots: {', '.join(f'{number} {state}' for state, number in states.items()) or 'none now'}")
    for user, why in one.refused.items():
        because = f": {why}" if why else ""
        render.say(f"refused: jobs of {user or 'nobody'}{because}; `penstock alloc resume {one.name}` tries again")


def _spec(
    *,
    provider: Literal["slurm", "kubernetes", "local", "ssh"],
    options: list[str] | None,
    max_pilots: int,
    backlog: int,
    min_pilots: int,
    walltime: str,
    idle: str,
    nodes: int,
    pool: str,
    devices: str,
    kinds: list[str] | None,
    gpus: int,
    hosts: list[str] | None,
    setup: str,
    teardown: str,
    env: list[str] | None,
    agents: bool,
    one_run: bool,
    image: str,
    namespace: str,
    claim: str,
    gpu_resource: str,
    pod_template: str,
) -> AllocationSpec:
    import msgspec

    from penstock_log import AllocationSpec
    from penstock_log.allocation_spec import PodOptions

    pod = None
    if provider == "kubernetes":
        template = _template(pod_template)
        pod = PodOptions(image=image, namespace=namespace, claim=claim, gpu_resource=gpu_resource, template=template)
    elif image or namespace or claim or pod_template:
        bad_input(f"{provider} has no Pods; leave --image, --namespace, --claim and --pod-template out")
    spec = AllocationSpec(
        provider=provider,
        pool=pool,
        max_pilots=max_pilots,
        backlog=backlog,
        min_pilots=min_pilots,
        walltime_s=time_limit_s(walltime, "--walltime"),
        idle_s=0.0 if idle == "0" else time_limit_s(idle, "--idle"),
        nodes=nodes,
        devices=devices,
        kinds=words(kinds or []),
        gpus=gpus,
        options=tuple(options or ()),
        hosts=words(hosts or []),
        setup=_script(setup, "--setup"),
        teardown=_script(teardown, "--teardown"),
        environment=environment(env or []),
        agents=agents,
        runs=int(one_run),
        pod=pod,
    )
    try:
        return msgspec.convert(msgspec.to_builtins(spec), AllocationSpec)
    except msgspec.ValidationError as error:
        bad_input(f"no such allocation can be: {error}")


def _script(text: str, option: str) -> str:
    """Return lines of shell: as given, or of a file."""
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        bad_input(f"{option} {text}: {error}; expected lines of shell, or @ and a file that holds them")


def _template(file: str) -> dict[str, Any]:
    """Return what a file says of Pods."""
    if not file:
        return {}
    import yaml

    try:
        found = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        bad_input(f"--pod-template {file}: {error}; expected a part of a Pod in YAML")
    if not isinstance(found, dict):
        bad_input(
            f"--pod-template {file}: it holds no mapping; expected a part of a Pod, such as spec: nodeSelector: ..."
        )
    return found
