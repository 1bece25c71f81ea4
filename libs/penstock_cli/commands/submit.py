"""
Commands that submit: ``penstock submit`` and ``penstock run``, from a file and flags, or a command, to jobs.

The first half makes specifications from what was typed. The second half submits them, shows their output, and exits as
they did.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec

from penstock import submission
from penstock_cli import render, spec_file, value_formats
from penstock_cli.invocation import (
    AnswerOut,
    CommandOptions,
    Exit,
    Failure,
    ask,
    bad_input,
    call,
    flattened,
    require_script,
    tell,
)
from penstock_cli.parameters import COMMAND, Argument, Context, Option, PlainCommand
from penstock_log import JobSpec, views, workload
from penstock_log.spec import ArrayMember

if TYPE_CHECKING:
    import asyncio

    import typer

    from penstock.client import Client
    from penstock.gateway_client import GatewayClient
    from penstock_bus.errors import ServiceError
    from penstock_cli.sbatch.submission import BatchSubmission

Files = Annotated[
    list[str] | None,
    Argument(metavar="[FILE] [-- COMMAND...]", help="Job in TOML, YAML or JSON, or script of sbatch; - for stdin."),
]
ManyFiles = Annotated[
    list[str] | None,
    Argument(
        metavar="[FILE...] [-- COMMAND...]",
        help="Job in TOML, YAML or JSON, or script of sbatch; - for stdin. Many are one request.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add both commands."""
    from penstock_cli.typer_commands import DashedCommand

    for name, command in PLAIN.items():
        app.command(name, cls=DashedCommand)(command.function)


class JobOptions(CommandOptions, frozen=True):
    """What can be typed of a job beside its file."""

    name: Annotated[str, Option("--name", "-n", help="Instead of the script's name.")] = ""
    gpus: Annotated[
        str,
        Option("--gpus", "-g", metavar="N|MIN..MAX", help="Devices, all of one kind and all at once; or 1..8."),
    ] = ""
    gpus_per_node: Annotated[
        int | None, Option("--gpus-per-node", min=1, help="Of a node a multiple of so many; as --gpus: all on one.")
    ] = None
    node: Annotated[list[str] | None, Option("--node", help="A node on which alone it may run; repeatable.")] = None
    exclude: Annotated[list[str] | None, Option("--exclude", help="A node on which it may not run; repeatable.")] = None
    batch: Annotated[
        str,
        Option("--batch", metavar="N|MIN..MAX", help="Examples of a step over all devices: 256, or between 64..512."),
    ] = ""
    batch_step: Annotated[int | None, Option("--batch-step", min=1, help="Between two batch sizes that are tried.")] = (
        None
    )
    batch_base: Annotated[
        int | None, Option("--batch-base", min=1, help="For which the script's learning rate is meant.")
    ] = None
    per_gpu_max: Annotated[int | None, Option("--per-gpu-max", min=1, help="Most examples that one device holds.")] = (
        None
    )
    lr_rule: Annotated[
        Literal["keep", "linear", "sqrt", "callback"] | None,
        Option("--lr-rule", help="What becomes of the learning rate at another batch size."),
    ] = None
    kind: Annotated[list[str] | None, Option("--kind", "-k", help="Accepted device kind; repeatable.")] = None
    memory: Annotated[str, Option("--memory", help="Least memory of each device, such as 8GiB.")] = ""
    cpus: Annotated[
        float | None, Option("--cpus", min=0.0, help="Processors of the host for each device; else its share.")
    ] = None
    host_memory: Annotated[
        str, Option("--host-memory", help="The host's memory for each device, such as 32GiB; else its share.")
    ] = ""
    local_memory: Annotated[
        str, Option("--local-memory", help="What borrowed memory's files keep on the host, for each device.")
    ] = ""
    spill: Annotated[
        str, Option("--spill", help="How large a file in borrowed memory is, for each device, such as 16GiB.")
    ] = ""
    aggregation: Annotated[
        Literal["shared", "own", "none"] | None,
        Option("--aggregation", help="own: aggregators that no other job shares; none: its script gets none."),
    ] = None
    servers: Annotated[int | None, Option("--servers", min=1, max=64, help="Aggregators that it has as its own.")] = (
        None
    )
    checkpoint_tier: Annotated[
        Literal["disk", "memory"] | None,
        Option("--checkpoint-tier", help="memory: checkpoints count once two other nodes have them in memory."),
    ] = None
    pool: Annotated[str, Option("--pool", help="Set of nodes.")] = ""
    retries: Annotated[int | None, Option("--retries", min=0, max=100, help="How often a failed run is repeated.")] = (
        None
    )
    param: Annotated[list[str] | None, Option("--param", "-p", help="NAME=VALUE hyper-parameter; repeatable.")] = None
    env: Annotated[
        list[str] | None, Option("--env", "-e", help="NAME=VALUE, or NAME with its value here; repeatable.")
    ] = None
    secret: Annotated[
        list[str] | None,
        Option("--secret", metavar="[VARIABLE=]NAME", help="A secret of the node, never in the log; repeatable."),
    ] = None
    secret_file: Annotated[
        list[str] | None,
        Option("--secret-file", metavar="VARIABLE=NAME", help="The path of a file that holds a secret; repeatable."),
    ] = None
    job_id: Annotated[str, Option("--id", help="Wished id: the same job under the same id is submitted once.")] = ""
    team: Annotated[str, Option("--team", help="Whom the work is for.")] = ""
    group: Annotated[str, Option("--group", help="A name for jobs that are cancelled, held, retried … together.")] = ""
    model: Annotated[str, Option("--model", help="Names the workload, whatever the other arguments are.")] = ""
    profile: Annotated[
        Literal["auto", "on", "off"] | None,
        Option("--profile", help="on or off: sample its workload first, or never; auto: if it has a --model."),
    ] = None
    sharing: Annotated[
        Literal["exclusive", "lane", "fraction"] | None,
        Option("--sharing", help="lane: take turns with others on its devices; fraction: have a part of one."),
    ] = None
    fraction: Annotated[
        float | None, Option("--fraction", min=0.0, max=1.0, help="Such as 0.5; implies --sharing fraction.")
    ] = None
    lane_memory: Annotated[
        str,
        Option("--lane-memory", help="P,F,E: kept, of the framework, and in an iteration; implies --sharing lane."),
    ] = ""
    share_with: Annotated[
        Literal["user", "team", "anyone"] | None, Option("--share-with", help="Whose jobs may be beside it.")
    ] = None
    priority: Annotated[
        int | None, Option("--priority", min=-1000, max=1000, help="For devices whose turns go by priority.")
    ] = None
    priority_class: Annotated[
        str, Option("--class", metavar="NAME", help="A class of the pool: `penstock class ls` lists them.")
    ] = ""
    idle: Annotated[
        Literal["rule", "allow"] | None,
        Option("--idle", help="allow: whatever its pool's rule, leave it its devices while it does nothing."),
    ] = None
    time: Annotated[
        str,
        Option(
            "--time",
            "-t",
            help="How long it may run, in all: 90m, 12h, or Slurm's 90 (minutes), 1-06:00:00, UNLIMITED.",
        ),
    ] = ""
    warn: Annotated[
        str, Option("--warn", help="So long before its --time is over it is told, and saves: 5m; 0: not at all.")
    ] = ""
    signal: Annotated[
        str, Option("--signal", metavar="NAME[@SECONDS]", help="A signal with that warning, such as USR1@60.")
    ] = ""
    after: Annotated[
        list[str] | None,
        Option(
            "--after",
            "-d",
            metavar="[KIND:]ID",
            help="Start once job or sweep ID has completed; or after:, afterany:, afternotok:ID. Repeatable.",
        ),
    ] = None
    begin: Annotated[
        str, Option("--begin", help="Not before: 2h (from now), 18:00, tomorrow, or 2026-01-31T18:00.")
    ] = ""
    notify: Annotated[
        list[str] | None,
        Option("--notify", metavar="KIND", help="Be told when it has started, completed, failed …; repeatable."),
    ] = None
    processes: Annotated[
        Literal["device", "node"] | None,
        Option("--processes", help="device: one for each device; node: one for all of a node's."),
    ] = None
    grace: Annotated[str, Option("--grace", help="Between asking a run to stop and TERM, and then KILL: 30s.")] = ""
    backoff: Annotated[str, Option("--backoff", help="Before the first retry; doubles with each further one.")] = ""
    checkpoint_every: Annotated[
        str, Option("--checkpoint-every", help="Least time between two checkpoints, such as 10m; 0: only to make way.")
    ] = ""
    begins_from: Annotated[
        str, Option("--begins-from", metavar="ID", help="Begin with the last checkpoint of this job.")
    ] = ""
    keep_checkpoint: Annotated[
        bool, Option("--keep-checkpoint", help="Save a checkpoint at its end too, and keep it.")
    ] = False
    sharers: Annotated[int | None, Option("--sharers", min=0, max=1000, help="Most jobs on its device, of a lane.")] = (
        None
    )
    image: Annotated[
        str,
        Option(
            "--image", help="Run in this image: a name such as pytorch/pytorch:2.4.0, or the path of a folder or .sif."
        ),
    ] = ""
    preload: Annotated[
        list[str] | None,
        Option("--preload", metavar="MODULES", help="Python modules that nodes keep imported for it: torch,numpy."),
    ] = None
    cwd: Annotated[str, Option("--cwd", "-D", help="Working directory; by default this one.")] = ""
    workdir: Annotated[
        str,
        Option("--workdir", "-w", metavar="FOLDER", help="Upload it, by content, and run there; --cwd is within it."),
    ] = ""
    no_upload: Annotated[
        bool, Option("--no-upload", help="Run in the --workdir where it is: every node sees it under its path.")
    ] = False

    def given(self, command: Sequence[str]) -> dict[str, Any]:
        """Return what was typed as fields of the specification, with the command behind ``--``."""
        found = {
            **self._sharing(),
            "command": command,
            "name": self.name,
            "id": self.job_id,
            "team": self.team,
            "model": self.model,
            "profile": self.profile,
            "pool": self.pool,
            "image": value_formats.image(self.image) if self.image else "",
            "cwd": submission.absolute(self.cwd) if self.cwd and not self.workdir else self.cwd,
            "workdir": submission.absolute(self.workdir) if self.workdir else "",
            "retries": self.retries,
            "gpus_per_node": self.gpus_per_node,
            "nodes": value_formats.words(self.node or []),
            "exclude": value_formats.words(self.exclude or []),
            "kinds": value_formats.words(self.kind or []),
            "memory_bytes": value_formats.size(self.memory) if self.memory else None,
            "cpus": self.cpus,
            "host_memory_bytes": value_formats.size(self.host_memory) if self.host_memory else None,
            "local_memory_bytes": value_formats.size(self.local_memory) if self.local_memory else None,
            "spill_bytes": value_formats.size(self.spill) if self.spill else None,
            "aggregation": self.aggregation,
            "servers": self.servers,
            "checkpoint_tier": self.checkpoint_tier,
            "priority_class": self.priority_class,
            "idle": self.idle,
            "processes": self.processes,
            "grace_s": value_formats.duration_s(self.grace, "--grace") if self.grace else None,
            "backoff_s": value_formats.duration_s(self.backoff, "--backoff") if self.backoff else None,
            "checkpoint_s": self._checkpoint_s(),
            "begins_from": self.begins_from,
            "keep_checkpoint": self.keep_checkpoint or None,
            "sharers": self.sharers,
            "group": self.group,
            "preload": value_formats.words(self.preload or []),
            "notify": value_formats.words(self.notify or []),
            "after": value_formats.dependencies(self.after or []),
            "time_limit_s": value_formats.time_limit_s(self.time) if self.time else None,
            **value_formats.warning(self.warn, self.signal),
            "begin_s": value_formats.begin_s(self.begin) if self.begin else None,
            "params": value_formats.parameters(self.param or []),
            "env": value_formats.environment(self.env or []),
            "secrets": value_formats.secrets(self.secret or []),
            "secret_files": value_formats.pairs(self.secret_file or [], "--secret-file"),
        }
        return {field: value for field, value in found.items() if value not in (None, "", (), {})} | self._sizes()

    def _checkpoint_s(self) -> float | None:
        if self.checkpoint_every in {"", "0"}:
            return 0.0 if self.checkpoint_every else None
        return value_formats.duration_s(self.checkpoint_every, "--checkpoint-every")

    def _sizes(self) -> dict[str, Any]:
        """Return how many devices the job has and with which batch, or between which both may be chosen."""
        of_batch = {
            "step": self.batch_step,
            "base": self.batch_base,
            "per_gpu_max": self.per_gpu_max,
            "lr": self.lr_rule,
        }
        table = {name: value for name, value in of_batch.items() if value is not None}
        return {**(value_formats.widths(self.gpus) if self.gpus else {}), **value_formats.batch(self.batch, table)}

    def _sharing(self) -> dict[str, Any]:
        """Return how the job shares devices; a fraction or the memory of a lane says which way it is."""
        implied = "lane" if self.lane_memory else "fraction" if self.fraction is not None else None
        return {
            "sharing": self.sharing or implied,
            "fraction": self.fraction,
            "memory": value_formats.need(self.lane_memory) if self.lane_memory else None,
            "share_with": self.share_with,
            "priority": self.priority,
        }


Strict = Annotated[bool, Option("--strict", help="Refuse a job that could never start at present.")]
Check = Annotated[bool, Option("--check/--no-check", help="Refuse if the script is not there.")]


@flattened
def submit(
    ctx: Context,
    job: JobOptions,
    files: ManyFiles = None,
    *,
    strict: Strict = False,
    check: Check = True,
    hold: Annotated[bool, Option("--hold", help="Accept it, start it on `penstock release`.")] = False,
    array: Annotated[
        str, Option("--array", help="One job for each index: 0-9, 1,3,7, 0-100:10; 0-199%8: 8 at a time.")
    ] = "",
    dry_run: Annotated[bool, Option("--dry-run", help="Only say where and when it would start, or why not.")] = False,
    wait: Annotated[bool, Option("--wait", help="Until it ends; the exit code is the job's.")] = False,
    without: Annotated[
        str, Option("--without", metavar="NAMES", help="Options of a script's #SBATCH lines that are left out.")
    ] = "",
    output: AnswerOut = "text",
) -> None:
    """
    Submit a job: files, a script of sbatch, or a command.

    Flags win over the file. Prints the job's id. Of many files, one that is refused does not keep the others. With
    --wait the exit code is the job's own; 1 where it has none, 130 where it was cancelled.
    """
    given = job.given(ctx.meta.get(COMMAND, ())) | ({"hold": True} if hold else {})
    if files and is_batch_script(files[0]):
        from penstock_cli.commands.sbatch import show_submission

        found = _of_batch_script(files, given, array=array, without=without)
        show_submission(ctx, found, strict=strict, output=output, wait=wait, dry_run=dry_run)
        return
    named = _each_file(files or [], given)
    if dry_run and len(named) > 1:
        bad_input(f"--dry-run tells about one job, and there are {len(named)} files; give one")
    indices = value_formats.array(array) if array else None
    specs, unusable = _specs(named, given, check=check)
    if job.no_upload:
        specs = [submission.in_place(spec) for spec in specs]
    if dry_run:
        show_dry_run(ctx, specs[0], output)
        return
    all_of_them = [one for spec in specs for one in expand(spec, indices)]
    submit_jobs(ctx, all_of_them, strict=strict, wait=wait, output=output, unusable=unusable)


def is_batch_script(path: str) -> bool:
    """Say whether a path is that of a script of sbatch, and no job file."""
    if path == spec_file.STDIN:
        return _begins_as_script(sys.stdin.buffer)
    if spec_file.is_format(path):
        return False
    from penstock_cli.sbatch.script import is_script

    return is_script(path)


def _begins_as_script(file: Any) -> bool:
    """Say whether a file that was not read yet begins with ``#!``, and leave it unread."""
    if hasattr(file, "peek"):
        return bytes(file.peek(2)[:2]) == b"#!"
    beginning = file.read(2)
    file.seek(-len(beginning), os.SEEK_CUR)
    return bool(beginning == b"#!")


def _of_batch_script(files: list[str], given: dict[str, Any], *, array: str, without: str) -> BatchSubmission:
    """Return the job of a script; its arguments stand behind it, or behind ``--``."""
    from penstock_cli.sbatch import script, submission
    from penstock_cli.sbatch.options import read_environment

    if more := [name for name in files[1:] if is_batch_script(name)]:
        bad_input(
            f"{more[0]} is a script of sbatch too, and one is submitted at a time: for script in *.sbatch; do "
            f'penstock submit "$script"; done; as an argument of {files[0]} it stands behind --'
        )
    words = (*files[1:], *given.get("command", ()))
    found = script.read(files[0])
    return submission.prepare(found, words, read_environment(os.environ), overrides=given, array=array, without=without)


def _specs(files: list[str], given: dict[str, Any], *, check: bool) -> tuple[list[JobSpec], Failure | None]:
    """
    Return the jobs of the files that can be used, and what is wrong with the others, of which each was told.

    Raises
    ------
    Failure, SpecError
        Where there is one file, and it cannot be used, or where no file can.
    """
    if len(files) == 1:
        return [_spec([files[0]] if files[0] else [], dict(given), "submit", check=check)], None
    specs: list[JobSpec] = []
    problems: dict[str, str] = {}
    for file in files:
        try:
            specs.append(_spec([file], dict(given), "submit", check=check))
        except spec_file.SpecError as error:
            problems[file] = str(error)
        except Failure as error:
            problems[file] = f"{file}: {error}"
    if not problems:
        return specs, None
    for line in problem_lines(problems):
        tell(line)
    if not specs:
        bad_input(f"none of {len(files)} files can be used; nothing was submitted")
    return specs, Failure(f"{len(problems)} of {len(files)} files cannot be used, as said above", Exit.USAGE)


def problem_lines(problems: Mapping[str, str]) -> list[str]:
    """
    Return what is wrong with files, once for all that have the same mistake, and no more than a screen of it.

    Parameters
    ----------
    problems : mapping of str to str
        File → what is wrong with it, which names the file.

    Examples
    --------
    >>> problem_lines({"a.toml": "a.toml:2: no", "b.toml": "b.toml:2: no", "c.toml": "c.toml: what?"})
    ['a.toml:2: no (and so in b.toml)', 'c.toml: what?']
    """
    alike: dict[str, list[str]] = {}
    for file, text in problems.items():
        alike.setdefault(text.replace(file, "\0"), []).append(file)
    lines = []
    for first, *others in list(alike.values())[:_MOST_PROBLEMS]:
        names = ", ".join(others[:_NAMED])
        more = f" and {len(others) - _NAMED:,} more" if len(others) > _NAMED else ""
        lines.append(f"{problems[first]} (and so in {names}{more})" if others else problems[first])
    if left := sum(map(len, list(alike.values())[_MOST_PROBLEMS:])):
        lines.append(f"{left:,} more {'file has' if left == 1 else 'files have'} other mistakes; correct these first")
    return lines


_MOST_PROBLEMS: Final = 10
_NAMED: Final = 3


def tell_once_each(texts: Iterable[str]) -> None:
    """Say each of some texts once, and for how many more jobs it holds."""
    for text, times in Counter(texts).items():
        tell(f"{text} (and for {times - 1:,} more)" if times > 1 else text)


def _each_file(files: list[str], given: dict[str, Any]) -> list[str]:
    """Return the files to read; one that is empty where the job is given by flags alone."""
    if len(files) > 1 and all(map(spec_file.is_format, files)):
        if "id" in given:
            bad_input(f"--id names one job, and there are {len(files)} files; put the ids into the files")
        if files.count(spec_file.STDIN) > 1:
            bad_input("standard input is one file; name the others")
        return files
    _require_job_file(files, "submit")
    return files or [""]


@flattened
def run(ctx: Context, job: JobOptions, files: Files = None, *, strict: Strict = False, check: Check = True) -> None:
    """
    Submit a job and show its output until it ends.

    Ctrl-C cancels it, and so do TERM and HUP (a closed terminal; not under nohup), after which the command leaves with
    143 or 129. The exit code is the job's own; 1 where it has none, 130 where it was cancelled.
    """
    given = job.given(ctx.meta.get(COMMAND, ()))
    if files and is_batch_script(files[0]):
        _run_batch_script(ctx, files, given, strict=strict)
        return
    spec = _spec(files or [], given, "run", check=check)
    if job.no_upload:
        spec = submission.in_place(spec)
    submit_and_watch(ctx, spec, strict=strict)


def _run_batch_script(ctx: Context, files: list[str], given: dict[str, Any], *, strict: bool) -> None:
    """Submit a script of sbatch and show its output until it ends."""
    from penstock_cli.sbatch import submission as scripts

    found = _of_batch_script(files, given, array="", without="")
    if found.indices is not None:
        bad_input(f"{files[0]} is an array, and `run` shows one job's output; submit it: penstock submit {files[0]}")
    for line in () if found.job.quiet else found.job.notes:
        tell(line)

    async def submitted(client: Client) -> views.SubmitAnswer:
        (answer,) = await scripts.submit(client, found, strict=strict)
        return answer

    submit_and_watch(ctx, found.spec, strict=strict, submitted=submitted)


def _spec(files: list[str], given: dict[str, Any], verb: str, *, check: bool) -> JobSpec:
    _require_job_file(files, verb)
    if not files and not given.get("command"):
        bad_input(f"there is no job; give a file, or a command behind --: penstock {verb} -- python train.py")
    if not files and "name" not in given:
        given["name"] = submission.name_from(given["command"])
    source = spec_file.read(files[0], sys.stdin.read) if files else spec_file.EMPTY
    spec = spec_file.job(source, given)
    if check:
        require_script(spec, verb)
    return spec


def _require_job_file(words: list[str], verb: str) -> None:
    """End with a message where what was typed is rather a command; it says how that is submitted."""
    if not words or (len(words) == 1 and spec_file.is_format(words[0])):
        return
    import shlex
    import shutil

    first = Path(words[0])
    is_program = shutil.which(words[0]) is not None
    as_file = workload.run_by(words, is_executable=first.is_file() and os.access(first, os.X_OK))
    suggested = shlex.join(words if is_program or not as_file else as_file)
    if len(words) > 1:
        bad_input(f"{shlex.join(words)!r}: expected one file; put -- before a command: penstock {verb} -- {suggested}")
    if not is_program and not first.exists():
        form = f"a job file ends in {', '.join(spec_file.SUFFIXES)}, and a command stands behind --"
        bad_input(f"there is no file {words[0]}; check the path ({form}: penstock {verb} -- python train.py)")
    found = f"{words[0]} has the suffix {first.suffix or 'nothing'!r}; expected {', '.join(spec_file.SUFFIXES)}"
    bad_input(f"{found}; for a plain command put -- before it: penstock {verb} -- {suggested}")


def expand(spec: JobSpec, given: value_formats.ArrayText | None) -> list[JobSpec]:
    """Return the job, or one for each index of an array, with the index behind the array's id."""
    if given is None:
        return [spec]
    _warn_of_variables(spec.command)
    array_id, indices = spec.id or _array_id(), given.indices
    if len(array_id) > _LONGEST_ARRAY_ID:
        bad_input(f"--id {array_id!r} is too long for an array; expected {_LONGEST_ARRAY_ID} characters at most")
    member = ArrayMember(
        id=array_id,
        index=0,
        count=len(indices),
        min=min(indices),
        max=max(indices),
        step=given.step,
        most=given.most,
    )
    return [
        msgspec.structs.replace(
            spec, id=f"{array_id}-{index}", array=msgspec.structs.replace(member, index=index), env=dict(spec.env)
        )
        for index in indices
    ]


def _warn_of_variables(command: Sequence[str]) -> None:
    """Say that a program without a shell gets a variable's name, and not its value, where that is in its command."""
    if not re.search(r"(^|/)(\w*sh|env|busybox)$", command[0]) and any(_OF_ARRAYS.search(word) for word in command[1:]):
        advice = "have a shell do it: sh -c 'exec python train.py --seed $PENSTOCK_ARRAY_INDEX'"
        tell(f"{command[0]} gets the word $PENSTOCK_ARRAY_… as it stands, since no shell expands it; {advice}")


_OF_ARRAYS: Final = re.compile(r"\$\{?(PENSTOCK_ARRAY|SLURM_ARRAY)_")
_LONGEST_ARRAY_ID: Final = 53


def _array_id() -> str:
    """Return a fresh id for an array that was given none."""
    import base64
    import secrets

    return base64.b32encode(secrets.token_bytes(5)).decode().lower()


def exit_code(job: views.JobView) -> int:
    """Return the exit code that stands for how a job ended; 128 + n for one ended by signal n, as shells do."""
    from penstock_log import JobState

    match JobState(job.state):
        case JobState.COMPLETED:
            return Exit.OK
        case JobState.CANCELLED:
            return Exit.INTERRUPTED
        case _ if job.exit_code is None:
            return Exit.FAILED
        case _:
            return job.exit_code or Exit.FAILED if job.exit_code >= 0 else 128 - job.exit_code


def show_dry_run(ctx: Context, spec: JobSpec, output: str) -> None:
    """Say where the job would start, or why it would wait."""
    from penstock_cli import job_text

    found = ask(ctx, lambda client: client.dry_run(spec))
    if not render.as_json(found, output):
        render.say_lines(render.wrapped(job_text.dry_run_lines(found)))


def submit_jobs(
    ctx: Context,
    specs: Sequence[JobSpec],
    *,
    strict: bool,
    wait: bool,
    output: str,
    unusable: Failure | None = None,
) -> None:
    """
    Submit all, print their ids, and with ``wait`` exit as they did: with the largest of their codes.

    Where a job was refused, or files were ``unusable``, that is said at the end, and the exit code stands for it.
    """

    asked, answered = list[str](), list[str]()

    async def submitted(client: GatewayClient) -> tuple[list[views.SubmitAnswer], ServiceError | None]:
        client.on_upload = lambda code: tell(code.text)
        client.on_submit = asked.extend
        if len(specs) == 1:
            answers, refused = [await client.submit(specs[0], strict=strict)], None
        else:
            answers, refused = sorted_answers(specs, await client.submit_all(specs, strict=strict))
        answered.extend(asked)
        tell_once_each(warning for answer in answers for warning in answer.warnings)
        for answer in answers:
            _announce(answer, output)
        return answers, refused

    async def waited_for(client: Client) -> tuple[list[views.JobView], ServiceError | None]:
        answers, refused = await submitted(client)
        return await wait_all(client, answers), refused

    try:
        if not wait:
            _, refused = ask(ctx, submitted)
            _raise_first(unusable, refused)
            return
        ended, refused = call(ctx, waited_for)
    except KeyboardInterrupt:
        if not answered:
            tell(_interrupted(ctx, asked))
        raise
    exit_as(ended, lambda: _raise_first(unusable, refused))


def exit_as(ended: Sequence[views.JobView], before: Callable[[], None] = lambda: None) -> None:
    """Say how jobs ended, and exit with the largest of their codes; ``before`` is called in between."""
    for job in ended:
        _tell_end(job)
    before()
    if code := max(map(exit_code, ended), default=0):
        raise SystemExit(code)


def _interrupted(ctx: Context, ids: Sequence[str]) -> str:
    """
    Return what has become of a submission that was interrupted, as the gateway says it.

    Parameters
    ----------
    ids : sequence of str
        The jobs that it was asked to take; what was uploaded for others it removes by itself.
    """
    from penstock_bus.errors import BusError

    some, found = ids[:_LOOKED_FOR], list[str]()
    try:
        for pause_s in _LOOKS_S if ids else ():
            time.sleep(pause_s)  # nothing else is done any more
            found = ask(ctx, lambda client: _those_there(client, some))
            if len(found) == len(some):
                break
    except BusError as error:
        return f"interrupted: whether {' '.join(some)} was submitted is not known: {error}"
    if not found:
        return "interrupted: nothing was submitted"
    end = f"with `penstock cancel {' '.join(found)}`"
    if len(ids) == 1:
        return f"interrupted: {found[0]} was submitted and goes on; end it {end}"
    jobs = f"{len(found):,} of {render.count(len(ids), 'job')} that were asked for were submitted and go on"
    if len(some) < len(ids):
        return f"interrupted: at least {jobs}: `penstock ps` lists them"
    return f"interrupted: {jobs}; end them {end}"


_LOOKED_FOR: Final = 20
_LOOKS_S: Final = (0.2, 0.3, 0.5)
"""Between looks for what may be under way, in seconds."""


async def _those_there(client: GatewayClient, ids: Sequence[str]) -> list[str]:
    from penstock_bus.errors import ServiceError

    found = []
    for job_id in ids:
        try:
            found += [job_id] if (await client.job(job_id)).job.id == job_id else []
        except ServiceError as error:
            if error.code != _NOT_FOUND:
                raise
    return found


_NOT_FOUND: Final = 404


def sorted_answers(
    specs: Sequence[JobSpec], answers: Sequence[views.SubmittedJob]
) -> tuple[list[views.SubmitAnswer], ServiceError | None]:
    """Return the answers of the jobs that were accepted, and what all others met as one error: the first one's."""
    from penstock_bus.errors import ServiceError
    from penstock_log import views

    accepted = [views.SubmitAnswer.of(answer) for answer in answers if not answer.code]
    refused = [(spec, answer) for spec, answer in zip(specs, answers, strict=True) if answer.code]
    if not refused:
        return accepted, None
    spec, first = refused[0]
    more = f" ({render.count(len(refused), 'job')} of {len(specs)} were refused)" if len(specs) > 1 else ""
    return accepted, ServiceError(first.code, f"{spec.name}: {first.error}{more}")


def _raise_first(unusable: Failure | None, refused: ServiceError | None) -> None:
    """Raise what keeps a submission from having gone well: files that cannot be used come before refused jobs."""
    if unusable is not None:
        if refused is not None:
            tell(str(refused))
        raise unusable
    if refused is not None:
        raise refused


async def wait_all(client: Client, answers: Sequence[views.SubmitAnswer]) -> list[views.JobView]:
    """Return the jobs of some answers once all have ended."""
    import asyncio

    try:
        return list(await asyncio.gather(*(client.wait(answer.id) for answer in answers)))
    except asyncio.CancelledError:
        ids = " ".join(answer.id for answer in answers[:5])
        tell(f"no longer waiting; the job goes on (end it with `penstock cancel {ids}`)")
        raise


def _announce(answer: views.SubmitAnswer, output: str) -> None:
    if not answer.created:
        tell(f"{answer.id} was submitted before, with equal content; it is the same job")
    render.show_answer(answer, answer.id, output)


def _tell_end(job: views.JobView) -> None:
    from penstock_log import JobState

    words = {JobState.COMPLETED: "completed", JobState.FAILED: "failed", JobState.CANCELLED: "was cancelled"}
    reason = f": {job.reason}" if job.reason and job.state != JobState.COMPLETED else ""
    tell(f"{job.id} {words.get(JobState(job.state), job.state)}{reason}")


def submit_and_watch(
    ctx: Context,
    spec: JobSpec,
    *,
    strict: bool,
    submitted: Callable[[Client], Awaitable[views.SubmitAnswer]] | None = None,
) -> None:
    """Submit, or have ``submitted`` do it, show the output, and exit as the job did."""
    from penstock_cli.commands.jobs import stream
    from penstock_log import JobState

    async def follow(client: Client) -> views.JobView:
        client.on_upload = lambda code: tell(code.text)
        async with _Interrupts(client) as interrupts:
            client.on_submit = interrupts.asked
            answer = await (submitted(client) if submitted is not None else client.submit(spec, strict=strict))
            for warning in answer.warnings:
                tell(warning)
            tell(f"{answer.id} submitted")
            interrupts.submitted(answer.id)
            async with explained_waiting(client, answer.id):
                await stream(client, answer.id, follow=True)
                return await client.wait(answer.id)

    job = call(ctx, follow)
    if job.state != JobState.COMPLETED:
        _tell_end(job)
    if code := exit_code(job):
        raise SystemExit(code)


FIRST_LOOK_S = 3.0
"""So long a job of ``penstock run`` may wait before it is said why."""
NEXT_LOOK_S = 30.0
"""Between two looks at why it waits, once that has been said."""


@asynccontextmanager
async def explained_waiting(client: Client, job_id: str) -> AsyncIterator[None]:
    """While open, say on standard error why the job waits, if it does."""
    import asyncio

    telling = asyncio.create_task(_tell_why_it_waits(client, job_id))
    try:
        yield
    finally:
        telling.cancel()
        with suppress(asyncio.CancelledError):
            await telling


async def _tell_why_it_waits(client: Client, job_id: str) -> None:
    """Say why a job waits after some seconds, and whenever a later look shows another cause; until cancelled."""
    import asyncio

    from penstock_bus.errors import BusError
    from penstock_log import JobState

    told, wait_s = "", FIRST_LOOK_S
    while True:
        await asyncio.sleep(wait_s)
        try:
            why = await client.why(job_id)
        except BusError:
            continue  # the command waits for the same server, and says what is the matter with it
        is_waiting = why.state == JobState.PENDING
        if is_waiting and why.cause not in {told, "undecided"}:
            more = f"`penstock why {job_id}` says more"
            tell(f"{job_id} waits ({why.cause.replace('_', ' ')}): {why.evidence}; {more}")
        told = "" if not is_waiting else told if why.cause == "undecided" else why.cause
        wait_s = FIRST_LOOK_S if is_waiting and not told else NEXT_LOOK_S


class _Interrupts:
    """
    While open, a signal has the gateway cancel the job.

    After Ctrl-C the output is shown until the job ends; the second one leaves at once. A TERM or HUP leaves once the
    gateway has answered, however often it comes: a shell that ends repeats the HUP of its terminal. A HUP that is
    ignored, as by ``nohup``, stays so.
    """

    def __init__(self, client: Client) -> None:
        import asyncio

        self._client = client
        self._job_id = ""
        self._is_asked = False
        self._interrupts = 0
        self._ended_by: signal.Signals | None = None
        self._asked: asyncio.Task[views.ActAnswer] | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._loop, self._main = asyncio.get_running_loop(), asyncio.current_task()

    async def __aenter__(self) -> _Interrupts:
        self._loop.add_signal_handler(signal.SIGINT, self._interrupt)
        for signum in self._ending():
            self._loop.add_signal_handler(signum, self._end, signum)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        import asyncio

        if self._leaving is not None:
            self._leaving.cancel()  # else it cancels, where the answer comes only now, what leaves already
        if isinstance(error, OSError):  # such as of a terminal that was hung up: its signal came before the error
            for _turn in range(3):
                await asyncio.sleep(0)
        if self._asked is not None and self._interrupts < _LEAVES:
            await self._answered(self._asked)
        for signum in (signal.SIGINT, *self._ending()):
            self._loop.remove_signal_handler(signum)
        if self._ended_by is not None and self._interrupts < _LEAVES:
            raise SystemExit(_OF_SIGNALS + self._ended_by) from None

    @staticmethod
    def _ending() -> list[signal.Signals]:
        return [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) != signal.SIG_IGN]

    def asked(self, _ids: Sequence[str]) -> None:
        """Say that the gateway is asked now; an interrupt before that leaves at once."""
        self._is_asked = True

    def submitted(self, job_id: str) -> None:
        """Say which job is meant; one that was interrupted while it was being submitted is cancelled now."""
        self._job_id = job_id
        if self._interrupts or self._ended_by is not None:
            self._cancel()

    def _interrupt(self) -> None:
        self._interrupts += 1
        if not self._is_asked:
            tell("interrupted: nothing was submitted")
        if (self._interrupts >= _LEAVES or not self._is_asked) and self._main is not None:
            self._main.cancel()
        elif self._job_id:
            self._cancel()

    def _end(self, signum: signal.Signals) -> None:
        if self._ended_by is None:
            self._ended_by = signum
            if self._job_id:
                self._cancel()

    def _cancel(self) -> None:
        """Ask for it once, and leave after the answer where that is wanted."""
        if self._asked is None:
            by = "interrupted" if self._ended_by is None else f"penstock run was ended by {self._ended_by.name}"
            more = "; Ctrl-C again leaves at once" if self._ended_by is None else ""
            with suppress(OSError):  # the terminal may be gone
                tell(f"cancelling {self._job_id}{more}")
            self._asked = self._loop.create_task(self._client.cancel(self._job_id, by))
        if self._ended_by is not None and self._leaving is None:
            self._leaving = self._loop.create_task(self._leave(self._asked))

    async def _leave(self, asked: asyncio.Task[views.ActAnswer]) -> None:
        await self._answered(asked)
        if self._main is not None:
            self._main.cancel()

    async def _answered(self, asked: asyncio.Task[views.ActAnswer]) -> None:
        """Wait until the gateway has answered, and say why the job was not cancelled where it was not."""
        import asyncio

        from penstock_bus.errors import BusError

        try:
            await asyncio.shield(asked)
        except BusError as error:
            with suppress(OSError):
                tell(f"{self._job_id} may go on: {error}")


_LEAVES: Final = 2
"""So many Ctrl-C leave at once."""
_OF_SIGNALS: Final = 128
"""Exit codes of what a signal has ended begin here."""


PLAIN: Final = {
    "submit": PlainCommand(submit, is_dashed=True),
    "run": PlainCommand(run, is_dashed=True),
}
