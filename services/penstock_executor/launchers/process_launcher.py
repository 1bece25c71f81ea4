"""
The process launcher: processes that outlive the executor, started through a shim, adopted by pid and start time.

This module is one :class:`penstock_executor.launchers.launcher.Launcher`.

The shim (:mod:`penstock_executor.launchers.shim`) leads a session and process group of its own, keeps what the program
prints, and is the parent of whatever the program leaves behind, which ends with it. Where the shim itself was killed,
by a user or for want of memory, that parent is gone: then the program's processes are found by their
session, by ``PENSTOCK_PROCESS`` in their environment, and by descent from one that has it. One that has left the
session, has cleared its environment, and whose parents had all ended before the shim was killed is not found.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import re
import shlex
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

from penstock.submission import beginning_of
from penstock_cluster.host_limits import MemoryCaps, limits_of, strongest_caps
from penstock_executor.launchers import session_keeper, shim
from penstock_executor.launchers.confinement import Confinement
from penstock_executor.launchers.launcher import EntryRequest, OutputFate, OutputLimits, RunFence, WarmRequest
from penstock_log import workload
from penstock_log.agent_protocol import AgentEnv

INHERITED: Final = (
    *("HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV"),
    *("CUDA_*", "NVIDIA_*", "NCCL_*", "GLOO_*", "SSL_CERT_*", "REQUESTS_CA_BUNDLE"),
    *("http_proxy", "https_proxy", "no_proxy"),
)
"""What a job gets of the executor's own environment: what a machine is like, never what its operator holds."""
WITHHELD: Final = ("PENSTOCK_*", "NATS_*", "CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET", "LISTEN_*", "SSH_AUTH_SOCK")
"""What no pattern lets through: the executor's settings and passwords, and what systemd and its login have given it."""
PUBLIC: Final = ("PENSTOCK_URL",)
_WITH_LOGIN: Final = re.compile(r"://[^/@\s]+@")
"""An address with a name, and perhaps a password, before its host: a proxy's, for example."""
_SHIM: Final = shim.__file__
_KEEPER: Final = "keeper"
_SHAPES_THE_SHIM: Final = ("LD_", "LC_", "LANG", "GLIBC_", "MALLOC_")
_BLOCKED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, shim.KILL)
_MOST_ENTRY_BYTES: Final = 100_000
"""So much fits into a socket that nobody reads yet."""
_SWEEPS: Final = 50
_SWEEP_S: Final = 0.002


class ShimProcess(msgspec.Struct, frozen=True):
    """
    A shim.

    Attributes
    ----------
    pid : int
        Its process, and its group.
    ticks : int
        When the kernel started it, in clock ticks.
    keeper, server : int
        Where another process keeps the program (:mod:`server_keeper`): that process, from which the program descends,
        and a child of it that is not of the program; 0: the program descends from the shim.
    """

    pid: int
    ticks: int
    keeper: int = 0
    server: int = 0

    @property
    def session(self) -> int:
        """The session of the shim and its program."""
        return self.keeper or self.pid

    def members(self) -> list[int]:
        """Return what descends from it, and all of its program's processes."""
        found = shim.descendants(self.pid)
        if self.keeper:
            found += [pid for pid in shim.descendants(self.keeper, without=(self.pid,)) if pid != self.server]
        return found


def confine(folder: Path, confined: Confinement) -> None:
    """Leave in the folder what the shim's child is to give up; see :meth:`Launcher.confine`."""
    confined.write(os.fspath(folder))


def start(
    folder: Path,
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    keep: OutputLimits | None = None,
    *,
    fence: RunFence | None = None,
    warm: WarmRequest | None = None,
) -> ShimProcess:
    """Start a program in its own session; see :meth:`Launcher.start`. It never starts warm."""
    del warm
    told = order(folder, argv, env, cwd, keep, fence=fence)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", _SHIM, *told[:5], *told.argv],
        {_hidden(os.fsdecode(name)): os.fsdecode(value) for name, value in told.env.items()},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(folder / "shim.log"), flags, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigmask=_BLOCKED,
    )
    return noted(folder, pid)


def order(
    folder: Path,
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    keep: OutputLimits | None = None,
    *,
    fence: RunFence | None = None,
) -> shim.Order:
    """Return what a shim is told, and make the files for the output; the arguments are :meth:`Launcher.start`'s."""
    keep = keep or OutputLimits(folder)
    for name in ("stdout", "stderr"):
        os.close(os.open(keep.folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))
    limits = "" if fence is None else f"{fence.hold_s}:{fence.end_s}:{fence.keep_s}:{fence.page}"
    own = {os.fsencode(name): os.fsencode(value) for name, value in {**env, AgentEnv.PROCESS: str(folder)}.items()}
    limit = f"{keep.limit_bytes}:{keep.room_s}"
    program, data_bytes = limits_of(argv)
    limited = (len(argv) - len(program), *data_bytes) if data_bytes else ()
    return shim.Order(str(folder), str(keep.folder), limit, limits, cwd, tuple(argv), own, limited=limited)


def noted(folder: Path, pid: int, keeper: int = 0, server: int = 0) -> ShimProcess:
    """Note a shim that has just been started in its folder, and return it."""
    stat = _stat(pid)
    with contextlib.suppress(OSError), (folder / "pid").open("x") as file:
        file.write(stat)
    with contextlib.suppress(OSError):
        if keeper:
            (folder / _KEEPER).write_text(f"{keeper} {_ticks(_stat(keeper))} {server}")
    return ShimProcess(pid, _ticks(stat), keeper, server)


def _hidden(name: str) -> str:
    return f"{shim.HIDDEN}{name}" if name.startswith(_SHAPES_THE_SHIM) else name


def how(folder: Path) -> str:
    """Return nothing: no program starts warm here."""
    del folder
    return ""


def kept() -> tuple[int, int]:
    """Return that there is no server."""
    return 0, 0


def close() -> None:
    """Nothing is kept for further starts."""


def memory_caps(cgroup: Path | None) -> MemoryCaps:
    """Return the strongest way of holding processes of this host to their memory."""
    return strongest_caps(cgroup)


def adopt(folder: Path) -> ShimProcess | None:
    """Return the process that a run folder names, if it still lives; None if it has ended."""
    try:
        noted = (folder / "pid").read_text()
        pid = int(noted.split(" ", 1)[0])
    except (OSError, ValueError):
        return None
    process = ShimProcess(pid, _ticks(noted), *_keeper(folder))
    return process if is_alive(process) else None


def _keeper(folder: Path) -> tuple[int, int]:
    """Return the process that keeps a program, and its server, as they were noted; zeros where there is none."""
    try:
        keeper, ticks, server = map(int, (folder / _KEEPER).read_text().split())
    except (OSError, ValueError):
        return 0, 0
    return (keeper, server) if _ticks(_stat(keeper)) == ticks else (0, 0)


def is_alive(process: ShimProcess) -> bool:
    """Return whether this very process is still there and not a zombie."""
    stat = _stat(process.pid)
    return bool(stat) and _ticks(stat) == process.ticks and _state(stat) not in "ZX"


def exit_fd(process: ShimProcess) -> int:
    """Return a descriptor that becomes readable when the process ends; the caller closes it."""
    return os.pidfd_open(process.pid)


def exit_code(folder: Path) -> int | None:
    """Return the status that the shim noted; None if it could not."""
    try:
        return int((folder / "exit").read_text())
    except (OSError, ValueError):
        return None


def fates(folder: Path) -> tuple[OutputFate, OutputFate]:
    """Return what became of a process's standard output and standard error."""
    try:
        numbers = [int(word) for word in (folder / "kept").read_bytes().split()]
        return OutputFate(*numbers[:3]), OutputFate(*numbers[3:])
    except (OSError, ValueError, TypeError):
        return OutputFate(), OutputFate()


def enter(folder: Path, asked: EntryRequest, fds: Sequence[int]) -> socket.socket:
    """Have the shim run a command beside the program, or make a connection; see :meth:`Launcher.enter`."""
    body = marshal.dumps(msgspec.structs.asdict(asked))
    if len(body) > _MOST_ENTRY_BYTES:
        raise ValueError(f"the command line has more than {_MOST_ENTRY_BYTES:,} bytes; put it into a script")
    made = _connected(folder, shim.ENTRANCE)
    try:
        socket.send_fds(made, [session_keeper.LENGTH.pack(len(body))], fds)
        made.sendall(body)
    except BaseException:
        made.close()
        raise
    return made


def park(folder: Path) -> socket.socket:
    """Return a connection by which a program is parked; see :meth:`Launcher.park`."""
    return _connected(folder, shim.PARKING)


def _connected(folder: Path, name: str) -> socket.socket:
    """Connect to a socket of the shim's in a folder; it never blocks."""
    at = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.connect(f"/proc/self/fd/{at}/{name}")  # the folder's own name may be too long for a socket
    except BaseException:
        made.close()
        raise
    finally:
        os.close(at)
    return made


def signal_group(process: ShimProcess, signum: signal.Signals) -> None:
    """Signal everything in the process's group, unless the pid has been given to another process."""
    if _ticks(_stat(process.pid)) == process.ticks:
        _killpg(process.pid, signum)


def kill(process: ShimProcess) -> None:
    """Have the shim end all that it has started, also what has left the group; it notes the exit status and ends."""
    if _ticks(_stat(process.pid)) != process.ticks:
        return
    for signum in (shim.KILL, signal.SIGCONT):
        _kill(process.pid, signum)
    for pid in process.members():
        _kill(pid, signal.SIGKILL)  # the shim may have been stopped


def reap(process: ShimProcess, folder: Path) -> int | None:
    """
    Reap a shim that has ended, end what it left behind, and return the program's exit status.

    None where there is no status: the shim itself was killed.
    """
    _killpg(process.pid, signal.SIGKILL)  # before the reaping: until then, the number cannot be given anew
    code = exit_code(folder)
    if code is None:
        _sweep(process.pid, folder)
    try:
        _, status = os.waitpid(process.pid, os.WNOHANG)
    except ChildProcessError:
        return code  # adopted: it was never our child
    return os.WEXITSTATUS(status) if code is None and os.WIFEXITED(status) else code


def clean_up(folder: Path) -> None:
    """End the program of a shim that was killed alone, while no executor was there to see it."""
    try:
        pid = int((folder / "pid").read_text().split(" ", 1)[0])
    except (OSError, ValueError):
        pid = 0
    if pid and not _stat(pid):
        _killpg(pid, signal.SIGKILL)
    if exit_code(folder) is None:
        _sweep(pid, folder)


def _sweep(leader: int, folder: Path) -> None:
    """End all processes that have a dead shim's mark, and theirs; again until there are none, as they may fork."""
    mark = f"{AgentEnv.PROCESS}={folder}".encode()
    for _ in range(_SWEEPS):
        marked = {pid for pid in _all() if pid != leader and mark in _environment(pid)}
        found = marked.union(*(shim.descendants(pid) for pid in marked)) - {os.getpid()}
        for pid in found:
            _kill(pid, signal.SIGKILL)
        if all(gone(pid) for pid in found):
            return
        time.sleep(_SWEEP_S)


def _all() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []  # it has ended, or is another user's


def gone(pid: int) -> bool:
    """Return whether a process has ended; a zombie has."""
    stat = _stat(pid)
    return not stat or _state(stat) in "ZX"


def belongs_to(pid: int, process: ShimProcess) -> bool:
    """
    Return whether a pid is of the process's session, or descends from it.

    A pid that has ended meanwhile is accepted: short jobs send all of their messages and end.
    """
    try:
        if os.getsid(pid) == process.pid:
            return True
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    while pid > 1 and pid not in (process.pid, process.keeper, process.server):
        pid = _parent(_stat(pid))
    return pid > 1 and pid != process.server


def _kill(pid: int, signum: int) -> None:
    try:
        os.kill(pid, signum)
    except (ProcessLookupError, PermissionError):
        return  # it has ended, or is another user's


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


def base_environment(pass_env: Iterable[str] = ()) -> dict[str, str]:
    """
    Return what a job gets of the executor's own environment: :data:`INHERITED`, and what the operator lets through.

    Whoever starts an executor may have tokens in the shell; jobs are other people's programs. :data:`WITHHELD` stays
    here whatever the operator says, and so does an address that holds a login, unless its variable is named in full.

    The executor's Python comes first on ``PATH``, so that ``python`` is one that has Penstock; a job that wants
    another sets ``PATH`` or names it in full.
    """
    passed = _passed(tuple(pass_env), tuple(os.environ.items()))
    return {**passed, "PATH": f"{os.path.dirname(sys.executable)}:{os.environ.get('PATH', os.defpath)}"}


@lru_cache(maxsize=4)  # asked at every start, and always the same
def _passed(named: tuple[str, ...], environ: tuple[tuple[str, str], ...]) -> dict[str, str]:
    return {name: value for name, value in environ if _is_passed(name, value, named)}


def _is_passed(name: str, value: str, named: tuple[str, ...]) -> bool:
    def matches(patterns: Iterable[str]) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in patterns)

    if matches(WITHHELD) and name not in PUBLIC:
        return False
    return matches((*INHERITED, *named)) and (name in named or not _WITH_LOGIN.search(value))


_INTERPRETERS: Final = {"python": ".py", "python3": ".py", "sh": ".sh", "bash": ".sh"}
_TAKES_VALUE: Final = {"-W", "-X", "--check-hash-based-pycs", "-o", "-O"}


def problem(command: Sequence[str], cwd: str, path: str) -> str:
    """Return why a command cannot start in a folder under a ``PATH``; empty where nothing is known against it."""
    if not os.path.isdir(cwd):
        return f"the working directory {cwd} does not exist on this node; create it or set cwd to one that does"
    program = _program(command[0], cwd, path)
    if not program:
        if os.path.isfile(os.path.join(cwd, command[0])):
            return _not_started(command, cwd, path)
        where = cwd if "/" in command[0] else f"PATH ({path})"
        return f"program {command[0]!r} was not found; looked in {where}; install it on this node or give its full path"
    head = beginning_of(Path(program), _FIRST_LINE_BYTES)  # nothing where it may be started and not read
    if bad := workload.first_line_problem(f"program {command[0]!r}", head, os.path.exists):
        return bad
    script = _script(command)
    if script and not os.path.isfile(os.path.join(cwd, script)):
        return (
            f"script {script!r} was not found; looked in {cwd}; "
            "submit from the folder that holds it, set cwd, or give its full path"
        )
    return ""


_FIRST_LINE_BYTES: Final = 256
"""So much of a script's first line the kernel looks at."""


def _not_started(command: Sequence[str], cwd: str, path: str) -> str:
    """Return why an existing file cannot be started as a program, and what would start it."""
    name = command[0]
    is_executable = os.access(os.path.join(cwd, name), os.X_OK)
    wrong = "is not executable" if "/" in name else f"is a file in {cwd}, and was not found on PATH ({path})"
    command_line = workload.run_by(command, is_executable=is_executable)
    other = f"chmod +x it in {cwd}" if "/" in name else "give its path, such as ./program"
    advice = f"submit it with what runs it: penstock submit -- {shlex.join(command_line)}" if command_line else other
    return f"program {name!r} {wrong}; {advice}"


def _program(name: str, cwd: str, path: str) -> str | None:
    return shutil.which(os.path.join(cwd, name) if "/" in name else name, path=path)


def _script(command: Sequence[str]) -> str:
    """Return the script that an interpreter is to run; empty if there is none, or if it is not certain."""
    name = os.path.basename(command[0])
    suffix = _INTERPRETERS.get("python" if name.startswith("python") else name)
    if suffix is None:
        return ""
    arguments = iter(command[1:])
    for argument in arguments:
        if not argument.startswith("-"):
            return argument if argument.endswith(suffix) else ""
        if argument in {"-", "-c", "-m"} or (suffix == ".sh" and "c" in argument):
            return ""
        if argument in _TAKES_VALUE and suffix == ".py":
            next(arguments, "")
    return ""
