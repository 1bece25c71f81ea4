"""
Commands that submit: ``penstock submit`` and ``penstock run``, from a file and flags, or a command, to jobs.

The first half makes specifications from what was typed. The second half submits them, shows their output, and exits as
they did.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import typer
from typer.core import TyperCommand

from penstock.client import Client
from penstock_cli import render, value_formats, view_lines
from penstock_cli.commands.jobs import stream
from penstock_cli.invocation import AnswerOut, Exit, bad_input, call, require_script, tell
from penstock_log import JobSpec, JobState, views
from penstock_log.workload import ARRAY_INDEX

COMMAND = "penstock.command"
Files = Annotated[
    list[str] | None, typer.Argument(metavar="[FILE] [-- COMMAND...]", help="Job in TOML, YAML or JSON; - for stdin.")
]


class DashedCommand(TyperCommand):
    """A command that leaves everything behind ``--`` to the user's program."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Cut the arguments at ``--``."""
        if "--" in args:
            at = args.index("--")
            ctx.meta[COMMAND], args = tuple(args[at + 1 :]), args[:at]
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    """Add both commands."""
    app.command("submit", cls=DashedCommand)(submit)
    app.command("run", cls=DashedCommand)(run)


Name = Annotated[str, typer.Option("--name", "-n", help="Instead of the script's name.")]
Gpus = Annotated[
    str, typer.Option("--gpus", "-g", metavar="N|MIN..MAX", help="Devices, all of one kind and all at once; or 1..8.")
]
Batch = Annotated[
    str,
    typer.Option("--batch", metavar="N|MIN..MAX", help="Examples of a step over all devices: 256, or between 64..512."),
]
BatchStep = Annotated[int | None, typer.Option("--batch-step", min=1, help="Between two batch sizes that are tried.")]
BatchBase = Annotated[
    int | None, typer.Option("--batch-base", min=1, help="For which the script's learning rate is meant.")
]
PerGpuMax = Annotated[int | None, typer.Option("--per-gpu-max", min=1, help="Most examples that one device holds.")]
LrRule = Annotated[
    Literal["keep", "linear", "sqrt", "callback"] | None,
    typer.Option("--lr-rule", help="What becomes of the learning rate at another batch size."),
]
Kinds = Annotated[list[str] | None, typer.Option("--kind", "-k", help="Accepted device kind; repeatable.")]
Memory = Annotated[str, typer.Option("--memory", help="Least memory of each device, such as 8GiB.")]
Cpus = Annotated[
    float | None, typer.Option("--cpus", min=0.0, help="Processors of the host for each device; else its share.")
]
HostMemory = Annotated[
    str, typer.Option("--host-memory", help="The host's memory for each device, such as 32GiB; else its share.")
]
Pool = Annotated[str, typer.Option("--pool", help="Set of nodes.")]
Retries = Annotated[int | None, typer.Option("--retries", min=0, max=100, help="How often a failed run is repeated.")]
Params = Annotated[list[str] | None, typer.Option("--param", "-p", help="NAME=VALUE hyper-parameter; repeatable.")]
Env = Annotated[
    list[str] | None, typer.Option("--env", "-e", help="NAME=VALUE, or NAME with its value here; repeatable.")
]
Id = Annotated[str, typer.Option("--id", help="Wished id: the same job under the same id is submitted once.")]
Team = Annotated[str, typer.Option("--team", help="Whom the work is for.")]
Model = Annotated[str, typer.Option("--model", help="Names the workload, whatever the other arguments are.")]
Profile = Annotated[
    Literal["auto", "on", "off"] | None,
    typer.Option("--profile", help="on or off: sample its workload first, or never; auto: if it has a --model."),
]
Sharing = Annotated[
    Literal["exclusive", "lane", "fraction"] | None,
    typer.Option("--sharing", help="lane: take turns with others on its devices; fraction: have a part of one."),
]
Fraction = Annotated[
    float | None, typer.Option("--fraction", min=0.0, max=1.0, help="Such as 0.5; implies --sharing fraction.")
]
LaneMemory = Annotated[
    str,
    typer.Option("--lane-memory", help="P,F,E: kept, of the framework, and in an iteration; implies --sharing lane."),
]
ShareWith = Annotated[
    Literal["user", "team", "anyone"] | None, typer.Option("--share-with", help="Whose jobs may be beside it.")
]
Priority = Annotated[
    int | None, typer.Option("--priority", min=-1000, max=1000, help="For devices whose turns go by priority.")
]
Cwd = Annotated[str, typer.Option("--cwd", "-D", help="Working directory; by default this one.")]
Strict = Annotated[bool, typer.Option("--strict", help="Refuse a job that could never start at present.")]
Check = Annotated[bool, typer.Option("--check/--no-check", help="Refuse if the script is not there.")]


def submit(
    ctx: typer.Context,
    files: Files = None,
    *,
    name: Name = "",
    gpus: Gpus = "",
    batch: Batch = "",
    batch_step: BatchStep = None,
    batch_base: BatchBase = None,
    per_gpu_max: PerGpuMax = None,
    lr_rule: LrRule = None,
    kind: Kinds = None,
    memory: Memory = "",
    cpus: Cpus = None,
    host_memory: HostMemory = "",
    pool: Pool = "",
    retries: Retries = None,
    param: Params = None,
    env: Env = None,
    job_id: Id = "",
    team: Team = "",
    model: Model = "",
    profile: Profile = None,
    sharing: Sharing = None,
    fraction: Fraction = None,
    lane_memory: LaneMemory = "",
    share_with: ShareWith = None,
    priority: Priority = None,
    cwd: Cwd = "",
    strict: Strict = False,
    check: Check = True,
    hold: Annotated[bool, typer.Option("--hold", help="Accept it, start it on `penstock release`.")] = False,
    array: Annotated[str, typer.Option("--array", help="One job for each index, such as 0-9.")] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say where and when it would start, or why not.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Until it ends; the exit code is the job's.")] = False,
    output: AnswerOut = "text",
) -> None:
    """
    Submit a job: a file, or the command behind --.

    Flags win over the file. Prints the job's id. With --wait the exit code is the job's own; 1 where it has none, 130
    where it was cancelled.
    """

    spec = _spec(ctx, files, _fields(locals()), check=check)
    if dry_run:
        show_dry_run(ctx, spec, output)
    else:
        indices = value_formats.array(array) if array else []
        submit_jobs(ctx, expand(spec, indices), strict=strict, wait=wait, output=output)


def run(
    ctx: typer.Context,
    files: Files = None,
    *,
    name: Name = "",
    gpus: Gpus = "",
    batch: Batch = "",
    batch_step: BatchStep = None,
    batch_base: BatchBase = None,
    per_gpu_max: PerGpuMax = None,
    lr_rule: LrRule = None,
    kind: Kinds = None,
    memory: Memory = "",
    cpus: Cpus = None,
    host_memory: HostMemory = "",
    pool: Pool = "",
    retries: Retries = None,
    param: Params = None,
    env: Env = None,
    job_id: Id = "",
    team: Team = "",
    model: Model = "",
    profile: Profile = None,
    sharing: Sharing = None,
    fraction: Fraction = None,
    lane_memory: LaneMemory = "",
    share_with: ShareWith = None,
    priority: Priority = None,
    cwd: Cwd = "",
    strict: Strict = False,
    check: Check = True,
) -> None:
    """
    Submit a job and show its output until it ends.

    Ctrl-C cancels it. The exit code is the job's own; 1 where it has none, 130 where it was cancelled.
    """

    submit_and_watch(ctx, _spec(ctx, files, _fields(locals()), check=check), strict=strict)


def _fields(typed_in: dict[str, Any]) -> dict[str, Any]:
    """Return the flags that were given, as fields of the specification."""
    memory = typed_in["memory"]
    found = {
        **_sharing(typed_in),
        "command": typed_in["ctx"].meta.get(COMMAND, ()),
        "name": typed_in["name"],
        "id": typed_in["job_id"],
        "team": typed_in["team"],
        "model": typed_in["model"],
        "profile": typed_in["profile"],
        "pool": typed_in["pool"],
        "cwd": typed_in["cwd"],
        "retries": typed_in["retries"],
        "kinds": value_formats.words(typed_in["kind"] or []),
        "memory_bytes": value_formats.size(memory) if memory else None,
        "cpus": typed_in["cpus"],
        "host_memory_bytes": value_formats.size(typed_in["host_memory"]) if typed_in["host_memory"] else None,
        "params": value_formats.parameters(typed_in["param"] or []),
        "env": value_formats.environment(typed_in["env"] or []),
        "hold": typed_in.get("hold") or None,
    }
    return {field: value for field, value in found.items() if value not in (None, "", (), {})} | _sizes(typed_in)


def _sizes(typed_in: dict[str, Any]) -> dict[str, Any]:
    """Return how many devices the job has and with which batch, or between which both may be chosen."""
    told = {
        "step": typed_in["batch_step"],
        "base": typed_in["batch_base"],
        "per_gpu_max": typed_in["per_gpu_max"],
        "lr": typed_in["lr_rule"],
    }
    table = {name: value for name, value in told.items() if value is not None}
    widths = value_formats.widths(typed_in["gpus"]) if typed_in["gpus"] else {}
    return {**widths, **value_formats.batch(typed_in["batch"], table)}


def _sharing(typed_in: dict[str, Any]) -> dict[str, Any]:
    """Return how the job shares devices; a fraction or the memory of a lane says which way it is."""
    lane_memory, fraction = typed_in["lane_memory"], typed_in["fraction"]
    implied = "lane" if lane_memory else "fraction" if fraction is not None else None
    return {
        "sharing": typed_in["sharing"] or implied,
        "fraction": fraction,
        "memory": value_formats.need(lane_memory) if lane_memory else None,
        "share_with": typed_in["share_with"],
        "priority": typed_in["priority"],
    }


def _spec(ctx: typer.Context, files: list[str] | None, fields: dict[str, Any], *, check: bool) -> Any:
    from penstock import submission
    from penstock_cli import spec_file

    verb = "run" if ctx.command.name == "run" else "submit"
    _require_job_file(files or [], verb)
    if not files and not fields.get("command"):
        bad_input(f"there is no job; give a file, or a command behind --: penstock {verb} -- python train.py")
    if "cwd" in fields:
        fields["cwd"] = submission.absolute(fields["cwd"])
    if not files and "name" not in fields:
        fields["name"] = submission.name_from(fields["command"])
    source = spec_file.read(files[0], sys.stdin.read) if files else spec_file.EMPTY
    spec = spec_file.job(source, fields)
    if check:
        require_script(spec, verb)
    return spec


def _require_job_file(words: list[str], verb: str) -> None:
    """End with a message where what was typed is rather a command; it says how that is submitted."""
    from penstock_cli import spec_file
    from penstock_log import workload

    if not words or (len(words) == 1 and spec_file.is_format(words[0])):
        return
    first = Path(words[0])
    is_program = shutil.which(words[0]) is not None
    as_file = workload.run_by(words, is_executable=first.is_file() and os.access(first, os.X_OK))
    said = shlex.join(words if is_program or not as_file else as_file)
    if len(words) > 1:
        bad_input(f"{shlex.join(words)!r}: expected one file; put -- before a command: penstock {verb} -- {said}")
    if not is_program and not first.exists():
        form = f"a job file ends in {', '.join(spec_file.SUFFIXES)}, and a command stands behind --"
        bad_input(f"there is no file {words[0]}; check the path ({form}: penstock {verb} -- python train.py)")
    found = f"{words[0]} has the suffix {first.suffix or 'nothing'!r}; expected {', '.join(spec_file.SUFFIXES)}"
    bad_input(f"{found}; for a plain command put -- before it: penstock {verb} -- {said}")


_AT_ONCE: Final = 32
"""Submissions under way at a time: the gateway answers one request after the other anyway."""


def expand(spec: JobSpec, indices: Sequence[int]) -> list[JobSpec]:
    """Return the job, or one for each index with the index in its environment and behind its wished id."""
    if not indices:
        return [spec]
    return [
        msgspec.structs.replace(
            spec, id=f"{spec.id}-{index}" if spec.id else "", env={**spec.env, ARRAY_INDEX: str(index)}
        )
        for index in indices
    ]


def exit_code(job: views.JobView) -> int:
    """Return the exit code that stands for how a job ended; 128 + n for one ended by signal n, as shells do."""
    match JobState(job.state):
        case JobState.COMPLETED:
            return Exit.OK
        case JobState.CANCELLED:
            return Exit.INTERRUPTED
        case _ if job.exit_code is None:
            return Exit.FAILED
        case _:
            return job.exit_code or Exit.FAILED if job.exit_code >= 0 else 128 - job.exit_code


def show_dry_run(ctx: typer.Context, spec: JobSpec, output: str) -> None:
    """Say where the job would start, or why it would wait."""
    found = call(ctx, lambda client: client.dry_run(spec))
    if output == "json":
        render.show_json(found)
    else:
        render.say_lines(render.wrapped(view_lines.dry_run_lines(found)))


def submit_jobs(ctx: typer.Context, specs: Sequence[JobSpec], *, strict: bool, wait: bool, output: str) -> None:
    """Submit all, print their ids, and with ``wait`` exit as they did: with the largest of their codes."""

    async def all_of_them(client: Client) -> list[views.JobView]:
        answers = []
        async for answer in _submit_all(client, specs, strict=strict):
            _announce(answer, output)
            answers.append(answer)
        return await _wait_all(client, answers) if wait else []

    ended = call(ctx, all_of_them)
    for job in ended:
        _tell_end(job)
    if code := max(map(exit_code, ended), default=0):
        raise typer.Exit(code)


async def _submit_all(client: Client, specs: Sequence[JobSpec], *, strict: bool) -> AsyncIterator[views.SubmitAnswer]:
    """Yield the answers in order; the first error is raised once all that were accepted beside it have been told."""
    for first in range(0, len(specs), _AT_ONCE):
        some = (client.submit(spec, strict=strict) for spec in specs[first : first + _AT_ONCE])
        found = await asyncio.gather(*some, return_exceptions=True)
        for answer in found:
            if isinstance(answer, views.SubmitAnswer):
                yield answer
        for error in found:
            if isinstance(error, BaseException):
                raise error


async def _wait_all(client: Client, answers: Sequence[views.SubmitAnswer]) -> list[views.JobView]:
    try:
        return list(await asyncio.gather(*(client.wait(answer.id) for answer in answers)))
    except asyncio.CancelledError:
        ids = " ".join(answer.id for answer in answers[:5])
        tell(f"no longer waiting; the job goes on (end it with `penstock cancel {ids}`)")
        raise


def _announce(answer: views.SubmitAnswer, output: str) -> None:
    for warning in answer.warnings:
        tell(warning)
    if not answer.created:
        tell(f"{answer.id} was submitted before, with equal content; it is the same job")
    if output == "json":
        render.show_json_line(answer)
    else:
        render.say(answer.id)


def _tell_end(job: views.JobView) -> None:
    words = {JobState.COMPLETED: "completed", JobState.FAILED: "failed", JobState.CANCELLED: "was cancelled"}
    reason = f": {job.reason}" if job.reason and job.state != JobState.COMPLETED else ""
    tell(f"{job.id} {words.get(JobState(job.state), job.state)}{reason}")


def submit_and_watch(ctx: typer.Context, spec: JobSpec, *, strict: bool) -> None:
    """Submit, show the output, and exit as the job did."""

    async def follow(client: Client) -> views.JobView:
        with _Interrupts(client) as interrupts:
            answer = await client.submit(spec, strict=strict)
            for warning in answer.warnings:
                tell(warning)
            tell(f"{answer.id} submitted")
            interrupts.submitted(answer.id)
            await stream(client, answer.id, follow=True)
            return await client.wait(answer.id)

    job = call(ctx, follow)
    if job.state != JobState.COMPLETED:
        _tell_end(job)
    if code := exit_code(job):
        raise typer.Exit(code)


class _Interrupts:
    """While open, the first Ctrl-C asks the gateway to cancel the job, and the second one leaves."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._job_id = ""
        self._count = 0
        self._asked: asyncio.Task[views.ActAnswer] | None = None
        self._loop, self._main = asyncio.get_running_loop(), asyncio.current_task()

    def __enter__(self) -> _Interrupts:
        self._loop.add_signal_handler(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.remove_signal_handler(signal.SIGINT)

    def submitted(self, job_id: str) -> None:
        """Say which job is meant; one that was interrupted while it was being submitted is cancelled now."""
        self._job_id = job_id
        if self._count:
            self._cancel()

    def _interrupt(self) -> None:
        self._count += 1
        if self._count > 1 and self._main is not None:
            self._main.cancel()
        elif self._job_id:
            self._cancel()

    def _cancel(self) -> None:
        tell(f"cancelling {self._job_id}; Ctrl-C again leaves at once")
        self._asked = self._loop.create_task(self._client.cancel(self._job_id, "interrupted"))
