"""
Commands that enter a running job: ``exec``, ``shell`` and ``attach``.

All of it goes through the server: no node needs to be reachable. ``exec`` and ``shell`` exit as their command did, and
with 255 where the session ended before it did.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from penstock_cli.commands.submit import Files, JobOptions, Strict
from penstock_cli.invocation import Exit, JobId, bad_input, call, flattened, tell
from penstock_cli.parameters import COMMAND, Context, Option

if TYPE_CHECKING:
    import typer

    from penstock.client import Client
    from penstock_log import JobSpec
    from penstock_log.session_messages import Purpose

E = TypeVar("E")
Rank = Annotated[int, Option("--rank", min=0, help="Which process of the job, if it has several.")]
Tty = Annotated[
    bool | None,
    Option("--tty/--no-tty", "-t/-T", help="A terminal for the command, or pipes; by default as standard input is."),
]
ENTER_S: Final = 120
"""So long a shell's job waits for the shell before it ends."""
_HOLDER: Final = f"""\
trap 'entered=1' USR1
trap '[ "$PENSTOCK_WORLD_SIZE" = 1 ] && exit 0; exit 143' TERM
[ "$PENSTOCK_RANK" = 0 ] || entered=1
[ "$entered" ] || {{ sleep {ENTER_S} & wait $!; }}
[ "$entered" ] || {{ echo "nobody has come within {ENTER_S} s" >&2; exit 1; }}
while :; do sleep 3600 & wait $!; done
"""
"""
The program of a shell's job: it is there until the shell is not.

Where there are several, as of a shell on two nodes, the first one ends badly, so that all of them do.
"""
_LOGIN_SHELL: Final = """\
case "$SHELL" in
"" | */nologin | */false) SHELL=$(command -v bash || echo /bin/sh) ;;
esac
export SHELL
exec "$SHELL"
"""


def register(app: typer.Typer) -> None:
    """Add the commands, in the order of the help."""
    from penstock_cli.typer_commands import DashedCommand, ExecCommand

    app.command("exec", cls=ExecCommand)(exec_)
    app.command("shell", cls=DashedCommand)(shell)
    app.command("attach")(attach)


def exec_(ctx: Context, job: JobId, *, rank: Rank = 0, tty: Tty = None) -> None:
    """
    Run the command behind -- in a running job.

    It runs beside the job's program, with all that this has. For example: penstock exec JOB -- nvidia-smi; or, with a
    terminal: penstock exec JOB -- bash. The exit code is the command's. The command ends with the job's run, and when
    nothing is heard of this program any more.
    """
    from penstock_cli import session_terminal

    argv = tuple(ctx.meta.get(COMMAND, ()))
    if not argv:
        bad_input("there is no command; put it behind --: penstock exec JOB -- nvidia-smi")
    has_terminal = _is_terminal() if tty is None else tty
    code = call(ctx, lambda client: visit(client, job, argv, rank=rank, has_terminal=has_terminal))
    if said := session_terminal.signal_text(code):
        tell(said)
    if code:
        raise SystemExit(code)


@flattened
def shell(ctx: Context, job: JobOptions, files: Files = None, *, strict: Strict = False, tty: Tty = None) -> None:
    """
    Open a shell on devices of its own.

    For example: penstock shell --gpus 1 --time 1h. Submits a job, waits until it has started, and opens the login shell
    of its user there, or runs the command behind --. The job ends with the shell. Ctrl-C while it waits cancels it.
    """
    from penstock_cli import spec_file

    if files:
        bad_input(f"{files[0]!r}: a shell takes no job file; give flags, such as --gpus 1 --time 1h")
    command = tuple(ctx.meta.get(COMMAND, ()))
    own = {"name": "shell", "idle": "allow", "retries": 0, "processes": "node"}  # one, which has all of its devices
    given = {**own, **job.given(("/bin/sh", "-c", _HOLDER))}
    spec = spec_file.job(spec_file.EMPTY, given)
    has_terminal = _is_terminal() if tty is None else tty
    argv = command or ("/bin/sh", "-c", _LOGIN_SHELL)
    code = call(ctx, lambda client: _shell(client, spec, argv, strict=strict, has_terminal=has_terminal))
    if code:
        raise SystemExit(code)


def attach(
    ctx: Context,
    job: JobId,
    *,
    lines: Annotated[int, Option("--lines", "-n", min=0, help="How many of its last lines are shown first.")] = 10,
    rank: Annotated[int | None, Option("--rank", min=0, help="Only this process; by default all.")] = None,
) -> None:
    """
    Follow a job's output from its last lines on.

    Ctrl-C detaches, and the job goes on. A job's standard input is empty, so what is typed goes nowhere: penstock exec
    runs a command in the job. The exit code is the job's own once it has ended.
    """
    from penstock_cli.commands.jobs import stream
    from penstock_cli.commands.submit import exit_code

    async def follow(client: Client) -> int:
        found = (await client.job(job)).job
        tell(f"attached to {found.id} ({found.name}); Ctrl-C detaches, and the job goes on")
        try:
            await stream(client, found.id, follow=True, rank=rank, tail=lines, raw=False)
            return exit_code(await client.wait(found.id))
        except BaseException as error:
            if type(error).__name__ == "CancelledError":
                tell(f"detached; {found.id} goes on (`penstock attach {found.id}` comes back)")
                return Exit.OK
            raise

    if code := call(ctx, follow):
        raise SystemExit(code)


def _is_terminal() -> bool:
    return sys.stdin is not None and os.isatty(0) and os.isatty(1)


async def visit(
    client: Client,
    job_id: str,
    argv: Sequence[str],
    *,
    rank: int = 0,
    has_terminal: bool,
    purpose: Purpose = "exec",
    ends_run: bool = False,
) -> int:
    """Run a command in a job with this program's streams; return its exit code, or 255 if it was lost."""
    from penstock.job_session import JobSession, SessionLost
    from penstock_cli import session_terminal

    how: dict[str, Any] = {}
    if has_terminal:
        how = {"terminal": session_terminal.terminal_size(), "term": os.environ.get("TERM", "")}
    try:
        async with JobSession(client, job_id, argv, rank=rank, purpose=purpose, ends_run=ends_run, **how) as session:
            return session_terminal.exit_code(await session_terminal.converse(session, has_terminal=has_terminal))
    except session_terminal.Left:
        tell("left the session; what it has started is ended")
    except SessionLost as error:
        tell(str(error))
    return session_terminal.LOST


async def _shell(client: Client, spec: JobSpec, argv: Sequence[str], *, strict: bool, has_terminal: bool) -> int:
    """Submit the job of a shell, enter it once it runs, and see to it that it ends."""
    from penstock_cli import session_terminal

    answer = await client.submit(spec, strict=strict)
    for warning in answer.warnings:
        tell(warning)
    tell(f"{answer.id} submitted")
    is_over = False
    try:
        with session_terminal.ended_in_order():
            has_started = await _started(client, answer.id, answer.seq)
        if not has_started:
            is_over = True
            job = (await client.job(answer.id)).job
            tell(f"{answer.id} has ended before the shell could be opened: {job.reason or job.state}")
            return Exit.FAILED
        code = await visit(client, answer.id, argv, has_terminal=has_terminal, purpose="shell", ends_run=True)
        is_over = code != 255
        return code
    finally:
        if not is_over:
            await _cancel(client, answer.id)


async def _cancel(client: Client, job_id: str) -> None:
    import asyncio

    from penstock_bus.errors import BusError

    try:
        await asyncio.shield(client.cancel(job_id, "its shell has ended"))
    except BusError as error:
        tell(f"{job_id} could not be cancelled: {error}; do it with `penstock cancel {job_id}`")


async def _started(client: Client, job_id: str, seq: int) -> bool:
    """Wait until a job has started, saying meanwhile what it waits for; return false if it has ended instead."""
    import asyncio

    from penstock_cli.commands.submit import explained_waiting
    from penstock_log import JobFinished, RunStarted, subjects

    async with explained_waiting(client, job_id):  # whoever sees the job alone may read one subject at a time
        start = asyncio.ensure_future(_first(client, subjects.run(job_id), RunStarted, seq))
        end = asyncio.ensure_future(_first(client, subjects.job(job_id), JobFinished, seq))
        try:
            await asyncio.wait([start, end], return_when=asyncio.FIRST_COMPLETED)
            if end.done():
                end.result()
                return False
            tell(f"{job_id} runs on {start.result().node_id}")
            return True
        finally:
            for waiting in (start, end):
                waiting.cancel()
            await asyncio.gather(start, end, return_exceptions=True)


async def _first(client: Client, subject: str, kind: type[E], seq: int) -> E:
    """Return the first fact of a kind on a subject, from a sequence on."""
    async with aclosing(client.bus.follow(after_seq=seq - 1, subjects=[subject])) as deliveries:
        async for delivery in deliveries:
            for fact in delivery.commit.facts:
                if isinstance(fact, kind):
                    return fact
    raise AssertionError("a followed log does not end")
