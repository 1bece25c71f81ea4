"""
The launcher of executors: processes as the process launcher starts them, by forks of servers that are there already.

A shim is forked from a template instead of being an interpreter of its own, which takes some twenty milliseconds. A
program that may start warm is forked from a server that has imported its modules (:mod:`warm_pool`). All else is
:mod:`penstock_executor.launchers.process_launcher`'s, whose start is what remains where no server can fork.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import structlog

from penstock_cluster.host_limits import MemoryCaps
from penstock_executor.launchers import fork_client, process_launcher, shim, user_server
from penstock_executor.launchers.confinement import Confinement
from penstock_executor.launchers.fork_client import ForkError, ForkServer, KeptServer
from penstock_executor.launchers.fork_server import COLD
from penstock_executor.launchers.launcher import EntryRequest, OutputFate, OutputLimits, RunFence, WarmRequest
from penstock_executor.launchers.process_launcher import ShimProcess
from penstock_executor.launchers.server_groups import ServerGroups
from penstock_executor.launchers.warm_command import StartsCold, warm_command
from penstock_executor.launchers.warm_pool import (
    MODULES_FILE,
    STILL_IMPORTING,
    WarmKey,
    WarmPool,
    WarmRules,
    read_modules,
)

_HOW: Final = "how"
_log = structlog.get_logger("penstock.executor")


class ForkLauncher:
    """
    One :class:`~penstock_executor.launchers.launcher.Launcher`.

    Its servers end with it; the processes that they have forked go on.

    Parameters
    ----------
    rules : WarmRules
        Which programs start warm.
    """

    def __init__(self, rules: WarmRules | None = None) -> None:
        self._template: ForkServer | None = None
        self._forked: dict[int, ForkServer] = {}
        rules = rules or WarmRules(servers=0)
        self._pool, self._groups = WarmPool(rules, _now_s), ServerGroups(rules.most_bytes)
        self._confined: dict[Path, Confinement] = {}
        self._keys: dict[Path, tuple[WarmKey, Path]] = {}
        """Folder of a process → its key, and the file in which it tells what it has imported."""

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
    ) -> ShimProcess:
        """Start a program in its own session; see :meth:`Launcher.start`."""
        order = process_launcher.order(folder, argv, env, cwd, keep, fence=fence)
        confined = self._confined.pop(folder, Confinement())
        try:
            if not self._pool.is_open:
                raise StartsCold("no program starts warm on this node")
            if warm is None:
                raise StartsCold("it shares its devices, and its part of their memory is counted exactly")
            self._check_confinement(confined)
            command = warm_command(argv, env, cwd, warm.private)
            common = {name: value for name, value in env.items() if name not in warm.private}
            key = self._pool.place(WarmKey.of(command, common, warm.code or cwd, warm.modules, confined))
            told = folder / MODULES_FILE if confined.uid < 0 else Path(confined.tmp or folder, user_server.REPORT)
            self._keys[folder] = key, told
            server = self._pool.server(key, common, self._groups.confine(confined))
            forked = self._fork_warm(key, server, order._replace(warm=command.order()))
        except StartsCold as reason:
            _note_how(folder, f"{COLD}{reason}")
            return self._start_cold(folder, order, fence, keep)
        _note_how(folder, forked.how)
        if isinstance(server, KeptServer):
            return process_launcher.noted(folder, forked.pid, server.pid, server.memory_pid)
        return process_launcher.noted(folder, forked.pid)

    def _fork_warm(self, key: WarmKey, server: ForkServer, order: shim.Order) -> fork_client.ForkReply:
        """Fork a program from a server that has its modules."""
        try:
            forked = server.fork(order)
        except ForkError as error:
            self._pool.drop(key, str(error))
            raise StartsCold(str(error)) from error
        self._pool.note_answer(key, forked.how)
        if not forked.pid:
            raise StartsCold(forked.how.removeprefix(COLD))
        self._forked[forked.pid] = server
        return forked

    def _check_confinement(self, confined: Confinement) -> None:
        """Refuse what a process gives up that keeps it from starting warm."""
        if confined.uid >= 0 and not self._pool.serves_users:
            raise StartsCold("it runs as another user than the executor, whose programs start cold on this node")
        if confined.wrapper:
            raise StartsCold("it runs in a sandbox")
        if confined.namespace:
            raise StartsCold("it runs in a container, which has other files than its server")

    def _start_cold(
        self, folder: Path, order: shim.Order, fence: RunFence | None, keep: OutputLimits | None
    ) -> ShimProcess:
        try:
            server = self._template_of_shims()
            forked = server.fork(order)
            if not forked.pid:
                raise ForkError(forked.how.removeprefix(COLD))
        except ForkError as error:
            _log.warning("shim_not_forked", error=str(error))
            env = {os.fsdecode(name): os.fsdecode(value) for name, value in order.env.items()}
            return process_launcher.start(folder, order.argv, env, order.cwd, keep, fence=fence)
        self._forked[forked.pid] = server
        return process_launcher.noted(folder, forked.pid)

    def _template_of_shims(self) -> ForkServer:
        if self._template is None or not self._template.alive:
            self._template = fork_client.template()
        if not self._template.is_ready(fork_client.FORK_S):
            raise ForkError("the template of shims is not ready")
        return self._template

    def reap(self, process: ShimProcess, folder: Path) -> int | None:
        """End what an ended process left behind, and return its exit status; see :meth:`Launcher.reap`."""
        code = process_launcher.reap(process, folder)
        if (known := self._keys.pop(folder, None)) is not None:
            self._pool.learn(known[0], read_modules(known[1]))
            if refused := self._pool.refusal(known[0]):
                _note_refusal(folder, refused)
        server = self._forked.pop(process.pid, None)
        if server is None or not server.alive:
            return code
        status = server.reap(process.pid)
        return status if code is None else code

    def how(self, folder: Path) -> str:
        """Return how a program was started: ``warm``, or ``cold: `` with the reason; empty where nobody knows."""
        with contextlib.suppress(OSError):
            return (folder / _HOW).read_text()
        return ""

    def has_settled(self) -> bool:
        """Return whether no server is being made, and every command has one."""
        return self._pool.has_settled()

    def kept(self) -> tuple[int, int]:
        """Return how many servers are kept, and the bytes that they hold."""
        return self._pool.kept()

    def close(self) -> None:
        """End the servers."""
        self._pool.close()
        self._groups.close()
        if self._template is not None:
            self._template.close()

    # --- the process launcher's own
    def base_environment(self, pass_env: Iterable[str] = ()) -> dict[str, str]:
        """Return what a process has before the job's and Penstock's own."""
        return process_launcher.base_environment(pass_env)

    def problem(self, argv: Sequence[str], cwd: str, path: str) -> str:
        """Return why a program cannot start there, and what to do; empty where nothing is known against it."""
        return process_launcher.problem(argv, cwd, path)

    def memory_caps(self, cgroup: Path | None) -> MemoryCaps:
        """Return what holds processes to their part of the host's memory."""
        self._groups.caps = process_launcher.memory_caps(cgroup)
        return self._groups.caps

    def confine(self, folder: Path, confinement: Confinement) -> None:
        """Have the process that is to start in a folder confined, before its program's first instruction."""
        process_launcher.confine(folder, confinement)
        self._confined[folder] = confinement

    def adopt(self, folder: Path) -> ShimProcess | None:
        """Return the process that an earlier executor started in a folder, if it still lives."""
        return process_launcher.adopt(folder)

    def exit_fd(self, process: ShimProcess) -> int:
        """Return a descriptor that becomes readable when the process ends."""
        return process_launcher.exit_fd(process)

    def belongs_to(self, pid: int, process: ShimProcess) -> bool:
        """Return whether a pid of this host is of the process, or descends from it."""
        return process_launcher.belongs_to(pid, process)

    def enter(self, folder: Path, asked: EntryRequest, fds: Sequence[int]) -> socket.socket:
        """Have a command run beside a process, or a connection made, and return a socket about it."""
        return process_launcher.enter(folder, asked, fds)

    def park(self, folder: Path) -> socket.socket:
        """Return a connection by which a program is parked."""
        return process_launcher.park(folder)

    def signal_group(self, process: ShimProcess, signum: signal.Signals) -> None:
        """Signal the process and what it has started."""
        process_launcher.signal_group(process, signum)

    def kill(self, process: ShimProcess) -> None:
        """End the process and all that it has started."""
        process_launcher.kill(process)

    def exit_code(self, folder: Path) -> int | None:
        """Return the exit status that was noted in a folder."""
        return process_launcher.exit_code(folder)

    def fates(self, folder: Path) -> tuple[OutputFate, OutputFate]:
        """Return what became of a process's standard output and standard error."""
        return process_launcher.fates(folder)

    def clean_up(self, folder: Path) -> None:
        """End what is left of a process that ended while no executor was there to see it."""
        process_launcher.clean_up(folder)


def _now_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _note_refusal(folder: Path, why: str) -> None:
    """Note for a program for which there was no server yet that there can be none."""
    with contextlib.suppress(OSError):
        if (folder / _HOW).read_text() == f"{COLD}{STILL_IMPORTING}":
            _note_how(folder, f"{COLD}{why}")


def _note_how(folder: Path, how: str) -> None:
    with contextlib.suppress(OSError):  # of a full disk, on which the run goes on
        (folder / _HOW).write_text(how)
