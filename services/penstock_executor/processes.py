"""
Processes that outlive the executor: started through a shim of a few lines of shell, found again by pid and start time.

The shim leads a session and process group of its own. It notes its ``/proc`` line before it runs the program, which it
does not where TERM came first; it survives TERM, and notes the program's exit status. Only KILL of the whole group
leaves no status, and that is always our own doing (see ``stop.json``), or the machine's. A program that leaves the
session escapes the group's end; cgroups would lift that.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

SHIM: Final = """\
ended=
trap ended=143 TERM INT HUP
read -r stat </proc/$$/stat && echo "$stat" >"$0/pid"
cd "$1" && shift && if [ "$ended" ]; then (exit 143); else "$@"; fi
code=$?
echo $code >"$0/exit"
exit $code
"""
_RESET: Final = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Process(msgspec.Struct, frozen=True):
    """A shim: its pid, which is also its group and session, and when the kernel started it (in clock ticks)."""

    pid: int
    ticks: int


def spawn(folder: Path, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> Process:
    """
    Start a program in its own session; its output is appended to files in ``folder``.

    Raises
    ------
    OSError
        If the host cannot start a process or write to the folder.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    pid = os.posix_spawn(
        "/bin/sh",
        ["/bin/sh", "-c", SHIM, str(folder), cwd, *argv],
        env,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(folder / "stdout"), flags, 0o600),
            (os.POSIX_SPAWN_OPEN, 2, str(folder / "stderr"), flags, 0o600),
        ],
        setsid=True,
        setsigmask=(),
        setsigdef=_RESET,
    )
    return Process(pid, _ticks(_stat(pid)))


def find(folder: Path) -> Process | None:
    """Return the process that a run folder tells of, if it still lives; None if it has ended."""
    try:
        noted = (folder / "pid").read_text()
        pid = int(noted.split(" ", 1)[0])
    except (OSError, ValueError):
        return None
    process = Process(pid, _ticks(noted))
    return process if is_alive(process) else None


def is_alive(process: Process) -> bool:
    """Say whether this very process is still there and not a zombie."""
    stat = _stat(process.pid)
    return bool(stat) and _ticks(stat) == process.ticks and _state(stat) not in "ZX"


def exit_code(folder: Path) -> int | None:
    """Return the status that the shim noted; None if it could not."""
    try:
        return int((folder / "exit").read_text())
    except (OSError, ValueError):
        return None


def signal_group(process: Process, signum: signal.Signals) -> None:
    """Signal everything in the process's group, unless the pid is somebody else's by now."""
    if _ticks(_stat(process.pid)) == process.ticks:
        _killpg(process.pid, signum)


def bury(process: Process, folder: Path) -> int | None:
    """
    Reap a shim that has ended, end what it left behind in its group, and return the program's exit status.

    None where there is no status: the shim itself was killed.
    """
    _killpg(process.pid, signal.SIGKILL)  # before the reaping: until then, the number cannot be given anew
    try:
        _, status = os.waitpid(process.pid, os.WNOHANG)
    except ChildProcessError:
        return exit_code(folder)  # adopted: it was never our child
    code = exit_code(folder)
    return os.WEXITSTATUS(status) if code is None and os.WIFEXITED(status) else code


def end_orphans(folder: Path) -> None:
    """End the program of a shim that was killed alone: its group has no leader, but may have members."""
    try:
        pid = int((folder / "pid").read_text().split(" ", 1)[0])
    except (OSError, ValueError):
        return
    if not _stat(pid):
        _killpg(pid, signal.SIGKILL)


def gone(pid: int) -> bool:
    """Say whether a process has ended; a zombie has."""
    stat = _stat(pid)
    return not stat or _state(stat) in "ZX"


def belongs_to(pid: int, process: Process) -> bool:
    """
    Say whether a pid is of the process's session, or descends from it.

    One that has ended meanwhile is believed: short jobs say all that they have to say and are gone.
    """
    try:
        if os.getsid(pid) == process.pid:
            return True
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    while pid > 1 and pid != process.pid:
        pid = _parent(_stat(pid))
    return pid == process.pid


def _killpg(pid: int, signum: signal.Signals) -> None:
    try:
        os.killpg(pid, signum)
    except (ProcessLookupError, PermissionError):
        return  # nobody is left in it, or only somebody else's processes


def _stat(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""


def _after_name(stat: str) -> list[str]:
    """Return the fields after the command's name, which may itself hold spaces and parentheses."""
    return stat[stat.rfind(")") + 2 :].split() or ["X", "0", *["0"] * 20]


def _state(stat: str) -> str:
    return _after_name(stat)[0]


def _parent(stat: str) -> int:
    return int(_after_name(stat)[1])


def _ticks(stat: str) -> int:
    return int(_after_name(stat)[19])
