"""
Port of launchers: what starts, adopts, signals and reaps the processes of a run.

``tests/penstock_executor/launchers/test_launcher.py`` holds every launcher to it. A new launcher is a module or an
object with these functions, a name in :data:`penstock_executor.settings.LauncherName`, and a row of
:data:`penstock_executor.launchers.LAUNCHERS`, which makes it from the executor's settings.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeVar

import msgspec

from penstock_cluster.device_backend import MemoryCaps
from penstock_executor.launchers.confinement import Confinement

OUTPUT_BYTES: Final = 1 << 30
ROOM_S: Final = 60.0


class OutputLimits(msgspec.Struct, frozen=True):
    """
    Where a process's output is kept, and how.

    Attributes
    ----------
    limit_bytes : int
        The most of each of its two files.
    room_s : float
        So long a process that has ended waits for a disk that has no room for the end of its output, in seconds.
    """

    folder: Path
    limit_bytes: int = OUTPUT_BYTES
    room_s: float = ROOM_S


class RunFence(msgspec.Struct, frozen=True, kw_only=True):
    """
    For how long a run's processes may go on after the last heartbeat that was answered.

    What it is for is told in :mod:`penstock_executor.fence`.

    Attributes
    ----------
    page : Path
        Where the time of that heartbeat is read.
    hold_s : float
        After this long they are stopped, until the next one is answered.
    end_s : float
        After this long none of them may run, whatever has become of who should stop them.
    keep_s : float
        After being stopped for so long they are ended.
    """

    page: Path
    hold_s: float
    end_s: float
    keep_s: float


class WarmRequest(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a process may have imported before it starts, where its launcher can do that.

    Attributes
    ----------
    modules : tuple of str
        What its job asks for, besides what the launcher knows of earlier runs.
    code : str
        What the files of its folder are, where the folder is the run's own; empty: the folder says that.
    private : frozenset of str
        Variables that nothing else than the process may have, such as secrets.
    """

    modules: tuple[str, ...] = ()
    code: str = ""
    private: frozenset[str] = frozenset()


class OutputFate(msgspec.Struct, frozen=True):
    """What became of one of a process's output files; see :class:`penstock_executor.launchers.shim.OutputSink`."""

    over_bytes: int = 0
    lost_bytes: int = 0
    refused: int = 0


class EntryRequest(msgspec.Struct, frozen=True, kw_only=True):
    """
    What is to be beside a process that runs, with all that the process has: user, folder, environment, limits.

    Attributes
    ----------
    argv : tuple of str
        A command; empty: none.
    port : int
        A port of the process's host to connect to; 0: none. With neither, the end of the process is all that is told.
    terminal : bool
        Whether the command's standard streams are one terminal, which becomes its own.
    env, drop : mapping of str to str, tuple of str
        Variables of the command's alone, and those of the process that it does not get.
    ends_run : bool
        Whether the process is there for this command alone: it gets USR1 once it listens, and TERM when this ends.
    """

    argv: tuple[str, ...] = ()
    port: int = 0
    terminal: bool = False
    env: dict[str, str] = {}
    drop: tuple[str, ...] = ()
    ends_run: bool = False


class LaunchedProcess(Protocol):
    """A process that a launcher has started or adopted; launchers keep in it what they find it again by."""

    @property
    def pid(self) -> int:
        """Its process on this host; 0 where it runs elsewhere."""

    @property
    def session(self) -> int:
        """Its session on this host, by which its memory is counted; 0 where it runs elsewhere."""


ProcessT = TypeVar("ProcessT", bound=LaunchedProcess)


class Launcher(Protocol[ProcessT]):
    """
    One way of running a program for a rank.

    ``folder`` belongs to one process and to no other. It outlives the executor: what a launcher has to know of a
    process after a restart is there.
    """

    def base_environment(self, pass_env: Iterable[str] = (), /) -> dict[str, str]:
        """Return what a process has before the job's and Penstock's own; ``pass_env`` names more of the executor's."""

    def problem(self, argv: Sequence[str], cwd: str, path: str, /) -> str:
        """Return why a program cannot start there, and what to do; empty where nothing is known against it."""

    def memory_caps(self, cgroup: Path | None, /) -> MemoryCaps:
        """Return what holds processes to their part of the host's memory; ``cgroup`` is the operator's."""

    def confine(self, folder: Path, confinement: Confinement, /) -> None:
        """
        Have the process that is to start in a folder confined, before its program's first instruction.

        Where that cannot be done, the program does not run: its status is
        :data:`~penstock_executor.launchers.shim.NOT_CONFINED`, and the reason is on its standard error.
        """

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
    ) -> ProcessT:
        """
        Start a program, with its output in ``keep``'s folder, or else in ``folder``, and within its ``fence``, if any.

        ``warm`` is what may be imported before it starts; None: nothing. A launcher need not be able to do that.

        Raises
        ------
        OSError
            If there is no room for it, or it cannot be started.
        """

    def how(self, folder: Path, /) -> str:
        """Return how a program was started: ``warm``, or ``cold: `` with the reason; empty where nobody knows."""

    def kept(self) -> tuple[int, int]:
        """Return how many servers for warm starts there are, and the bytes of memory that they hold."""

    def close(self) -> None:
        """End what the launcher keeps for further starts; processes go on."""

    def adopt(self, folder: Path, /) -> ProcessT | None:
        """Return the process that an earlier executor started in a folder, if it still lives; None if it has ended."""

    def exit_fd(self, process: ProcessT, /) -> int:
        """Return a descriptor that becomes readable when the process ends; the caller closes it."""

    def belongs_to(self, pid: int, process: ProcessT, /) -> bool:
        """Return whether a pid of this host is of the process, or descends from it."""

    def enter(self, folder: Path, asked: EntryRequest, fds: Sequence[int], /) -> socket.socket:
        """
        Have a command run beside a process, or a connection made, and return a socket about it, which never blocks.

        Each byte that is sent is the number of a signal. What is received is the command's exit status in digits and a
        line end; before it, if the command leads a session of the kernel's, ``@`` with its pid and a line end. Or it is
        ``+`` with the connection's descriptor, or ``-`` and why there is none. Its end without any of them means that
        the process has ended. Once it is closed, the command is ended, with all that it has started.

        Parameters
        ----------
        fds : sequence of int
            The command's standard streams, or its terminal; they stay the caller's to close.

        Raises
        ------
        OSError
            If the process does not listen: it has ended, or has not begun to, or an earlier version has started it.
        ValueError
            If the command line is too long.
        """

    def park(self, folder: Path, /) -> socket.socket:
        """
        Return a connection by which the process of a folder is parked, which never blocks.

        It takes and answers lines. ``park PID`` stops the program, if that is its pid, and all that it has started; it
        is answered by ``parked`` once they have stopped and their output is in the files. ``go FOLDER`` lets them go
        on, with their output in the files of that folder, and is answered by ``going``. Any other answer says why not.
        Once the connection is closed, a process that is parked by it goes on to leave, is ended some seconds later, and
        has the status of one that was asked to leave.

        Raises
        ------
        OSError
            If the process does not listen: it has ended, or an earlier version has started it.
        """

    def signal_group(self, process: ProcessT, signum: signal.Signals, /) -> None:
        """Signal the process and what it has started; nothing where it has ended."""

    def kill(self, process: ProcessT, /) -> None:
        """End the process and all that it has started; nothing where it has ended."""

    def reap(self, process: ProcessT, folder: Path, /) -> int | None:
        """End what an ended process left behind, and return its exit status; None where it left none."""

    def exit_code(self, folder: Path, /) -> int | None:
        """Return the exit status that was noted in a folder; None where none was."""

    def fates(self, folder: Path, /) -> tuple[OutputFate, OutputFate]:
        """Return what became of a process's standard output and standard error."""

    def clean_up(self, folder: Path, /) -> None:
        """End what is left of a process that ended while no executor was there to see it."""
