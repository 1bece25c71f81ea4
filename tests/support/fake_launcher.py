"""A launcher without processes: programs are taken at their word, and end when they are signalled."""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock_cluster.device_backend import MemoryCaps
from penstock_cluster.host_limits import Rlimit
from penstock_executor.launchers.confinement import Confinement
from penstock_executor.launchers.launcher import EntryRequest, OutputFate, OutputLimits, RunFence, WarmRequest


@dataclass(eq=False)
class FakeProcess:
    """
    What stands for a process: it leads no session of this host.

    Attributes
    ----------
    code : int or None
        Its exit status; None while it lives.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    pid: int = 0
    session: int = 0
    code: int | None = None
    ended: int = field(default_factory=lambda: os.eventfd(0))

    def end(self, code: int) -> None:
        """Let it end, unless it has."""
        if self.code is None:
            self.code = code
            os.eventfd_write(self.ended, 1)

    def __del__(self) -> None:
        os.close(self.ended)


class FakeLauncher:
    """``true`` and ``sh -c "exit N"`` end at once, everything else when it is signalled."""

    def __init__(self) -> None:
        self.processes: dict[Path, FakeProcess] = {}

    def base_environment(self, pass_env: Iterable[str] = (), /) -> dict[str, str]:
        del pass_env
        return {"PATH": "/nowhere"}

    def problem(self, argv: Sequence[str], cwd: str, path: str, /) -> str:
        del cwd
        return "" if path == "/nowhere" else f"{argv[0]!r} is looked for in {path}"

    def how(self, folder: Path, /) -> str:
        del folder
        return ""

    def kept(self) -> tuple[int, int]:
        return 0, 0

    def close(self) -> None:
        """Nothing is kept."""

    def memory_caps(self, cgroup: Path | None, /) -> MemoryCaps:
        del cgroup
        return Rlimit(reason="there are no processes")

    def confine(self, folder: Path, confinement: Confinement, /) -> None:
        """There is nothing to confine."""

    def start(
        self,
        folder: Path,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        keep: OutputLimits | None = None,
        /,
        *,
        fence: RunFence | None = None,
        warm: WarmRequest | None = None,
    ) -> FakeProcess:
        del cwd, fence, warm
        for name in ("stdout", "stderr"):
            (keep.folder if keep else folder).joinpath(name).touch()
        process = self.processes[folder] = FakeProcess(tuple(argv), dict(env))
        match process.argv:  # behind what holds it to its memory
            case (*_, "true"):
                process.end(0)
            case (*_, "sh", "-c", code) if code.startswith("exit "):
                process.end(int(code.removeprefix("exit ")))
        return process

    def adopt(self, folder: Path, /) -> FakeProcess | None:
        process = self.processes.get(folder)
        return process if process is not None and process.code is None else None

    def exit_fd(self, process: FakeProcess, /) -> int:
        return os.dup(process.ended)

    def belongs_to(self, pid: int, process: FakeProcess, /) -> bool:
        return pid == process.pid

    def enter(self, folder: Path, asked: EntryRequest, fds: Sequence[int], /) -> socket.socket:
        """A command ends at once with exit status 0; no port listens; a folder without a process cannot be entered."""
        del fds
        process = self.processes.get(folder)
        if process is None or process.code is not None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            theirs.sendall(b"-nobody listens" if asked.port else b"0\n")
        return ours

    def park(self, folder: Path, /) -> socket.socket:
        """No process can be stopped and kept."""
        raise ConnectionRefusedError(errno.ECONNREFUSED, f"nothing is parked in {folder}")

    def signal_group(self, process: FakeProcess, signum: signal.Signals, /) -> None:
        process.end(128 + signum)

    def kill(self, process: FakeProcess, /) -> None:
        process.end(128 + signal.SIGKILL)

    def reap(self, process: FakeProcess, folder: Path, /) -> int | None:
        assert self.processes[folder] is process
        return process.code

    def exit_code(self, folder: Path, /) -> int | None:
        process = self.processes.get(folder)
        return None if process is None else process.code

    def fates(self, folder: Path, /) -> tuple[OutputFate, OutputFate]:
        del folder
        return OutputFate(), OutputFate()

    def clean_up(self, folder: Path, /) -> None:
        if (process := self.adopt(folder)) is not None:
            self.kill(process)
