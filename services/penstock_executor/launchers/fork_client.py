"""
The executor's side of a fork server: starts it, has it fork shims, and ends it.

The server itself is a program of its own, :mod:`penstock_executor.launchers.fork_server`.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import select
import signal
import socket
import sys
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from penstock_executor.launchers import fork_server, server_keeper, shim
from penstock_executor.launchers import user_server as user_server_program
from penstock_executor.launchers.confinement import Confinement
from penstock_executor.launchers.fork_server import COLD
from penstock_executor.launchers.warm_command import WarmCommand, shared_environment

ROOM: Final = 16 * 1024
"""Bytes for the command line of a program, where ``/proc`` shows a server's own."""
FORK_S: Final = 0.5
"""
For how long a server may take to fork; then it is ended, and no shim of it begins.

The executor does nothing else meanwhile, so this is less than lies between two of its heartbeats.
"""
ENVIRONMENT_ROOM: Final = 48 * 1024
MOST_SAID: Final = 200
"""Characters of what a server says that become known: it goes into the log, and an import may say anything."""
CHANGED: Final = "files of its modules have changed since they were imported"
_ROOM_NAME: Final = "PENSTOCK_ROOM"
_MOST_BYTES: Final = 1 << 20
_MOST_ORDER_BYTES: Final = 1 << 18
_MOST_ASKED_BYTES: Final = 1 << 16
"""Of a question: more may be too long for one message."""
_ending: Final[set[int]] = set()
"""Servers that were killed, and that the kernel has not done away with yet: one with much memory takes a while."""


class ServerLimits(NamedTuple):
    """
    To what a server of another user is held.

    Attributes
    ----------
    import_s : float
        For so long it may import, in seconds.
    most_bytes : int
        So much memory it may hold, in bytes.
    idle_s : float
        It ends when it was not used for so long, in seconds.
    """

    import_s: float
    most_bytes: int
    idle_s: float


class ForkError(Exception):
    """A fork server cannot serve; the message says why."""


class ForkReply(NamedTuple):
    """What a server has done about a program: the pid of its shim, 0 for none, and how it starts, or why not."""

    pid: int
    how: str


class ForkServer:
    """
    A fork server of this executor; it ends with this object.

    Parameters
    ----------
    command : sequence of str
        The interpreter and its options.
    modules : sequence of str
        What it imports.
    env : mapping, optional
        Its environment; by default, an empty one.
    executable : str
        The interpreter's file, where the command does not begin with it.
    program : str
        What the interpreter runs.

    Attributes
    ----------
    memory_pid : int
        The process that has imported the modules.

    Raises
    ------
    OSError
        If it cannot be started.
    """

    busy = False
    """Whether it can fork no program now, since it has one that runs."""

    def __init__(
        self,
        command: Sequence[str],
        modules: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        *,
        executable: str = "",
        program: str = fork_server.__file__,
    ) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.said: Any = None
        self.refusal = ""
        _reap_ended()
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            argv = [*command, program, ",".join(modules), "x" * ROOM]
            self.pid = os.posix_spawn(
                executable or command[0],
                argv,
                {} if env is None else env,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, theirs.fileno(), fork_server.CONTROL),
                    (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, writer, 1),
                    (os.POSIX_SPAWN_DUP2, writer, 2),
                ],
                setsid=True,
                setsigmask=fork_server.BLOCKED,
                setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
            )
        except BaseException:
            self._control.close()
            os.close(reader)
            raise
        finally:
            theirs.close()
            os.close(writer)
        self._printed = reader
        self.memory_pid = self.pid
        self._end = weakref.finalize(self, self._ended_by, self.pid, self._control, reader)

    @staticmethod
    def _ended_by(pid: int, control: socket.socket, printed: int) -> None:
        _end(pid, control, printed, signal.SIGKILL)

    @property
    def alive(self) -> bool:
        """Whether it has not been ended."""
        return self._end.alive

    def is_ready(self, wait_s: float = 0.0) -> bool:
        """
        Return whether it serves; False where it is still importing.

        Raises
        ------
        ForkError
            If it never will.
        """
        if self.refusal or not self.alive:
            raise ForkError(self.refusal or "it has ended")
        if self.said is None and self._readable(wait_s):
            can, said = self._received()
            if printed := self._read_printed():
                can, said = False, f"its imports print: {printed[:MOST_SAID]!r}"
            if not can:
                self._refuse(said)
            self.said = said
        return self.said is not None

    def fork(self, order: shim.Order) -> ForkReply:
        """
        Fork the shim of a program, and let it begin; its pid is 0 where the program cannot start warm now.

        Raises
        ------
        ForkError
            If it cannot; then nothing was started.
        """
        question = marshal.dumps(tuple(fork_server.Question.about(order)))
        if len(question) > _MOST_ASKED_BYTES:
            return ForkReply(0, f"{COLD}its folder, script and PYTHONPATH are too long for one message")
        try:
            told = fork_server.write_order(order, _MOST_ORDER_BYTES)
        except ValueError as error:
            return ForkReply(0, f"{COLD}{error}")
        except OSError as error:  # a kernel whose memory files are restricted (vm.memfd_noexec), or no room for one
            raise ForkError(f"its order cannot be written: {error}") from error
        try:
            return self._fork(question, told)
        finally:
            os.close(told)

    def _fork(self, question: bytes, told: int) -> ForkReply:
        begins, begin = os.pipe2(os.O_CLOEXEC)
        try:
            try:
                socket.send_fds(self._control, [question], [told, begins])
            except OSError as error:
                self._refuse(f"it has ended: {error}")
            pid, how = self._answer()
            if not pid and how.startswith(COLD):
                return ForkReply(0, how[:MOST_SAID])
            if not pid:
                raise ForkError(how)
            os.write(begin, b"!")
            return ForkReply(pid, how[:MOST_SAID])
        finally:
            os.close(begins)
            os.close(begin)

    def reap(self, pid: int) -> int | None:
        """Return the exit status of a shim that it has forked; None where there is none."""
        try:
            self._control.send(marshal.dumps(pid))
            code = self._answer()
        except (ForkError, OSError):
            return None
        return code if code >= 0 else None

    def ended(self) -> str:
        """Return why it has ended by itself since it was last asked for something; empty where that is not known."""
        return ""

    def close(self) -> None:
        """End it; the shims that it has forked go on."""
        self._end()

    def _answer(self) -> Any:
        if not self._readable(FORK_S):
            self._refuse(f"it did not answer within {FORK_S:g} s")
        return self._received()

    def _received(self) -> Any:
        try:
            body = self._control.recv(_MOST_BYTES)
        except OSError:
            body = b""
        if not body:
            self._refuse(f"it has ended; the end of what it printed: {self._read_printed()[-MOST_SAID:]!r}")
        return marshal.loads(body)  # noqa: S302 - from a process of this user

    def _readable(self, wait_s: float) -> bool:
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        return bool(poll.poll(1000 * wait_s))

    def _read_printed(self) -> str:
        with contextlib.suppress(BlockingIOError):
            return os.read(self._printed, _MOST_BYTES).decode(errors="replace")
        return ""

    def _refuse(self, why: str) -> None:
        self.refusal = why[:MOST_SAID]
        self.close()
        raise ForkError(self.refusal)


class KeptServer(ForkServer):
    """
    A server of another user than this executor's, with the keeper that forks its shims.

    Its keeper is root's and ends by itself: at once where no program runs, or else with the program.

    Parameters
    ----------
    told : ServerOrder
        What the keeper starts.
    """

    def __init__(self, told: server_keeper.ServerOrder) -> None:
        super().__init__([sys.executable, "-I", "-S"], program=server_keeper.__file__)
        try:
            self._control.send(marshal.dumps(tuple(told)))
        except OSError:
            self.close()
            raise

    @staticmethod
    def _ended_by(pid: int, control: socket.socket, printed: int) -> None:
        _end(pid, control, printed, 0)

    def is_ready(self, wait_s: float = 0.0) -> bool:
        """Return whether it serves; see :meth:`ForkServer.is_ready`."""
        ready = super().is_ready(wait_s)
        if ready:
            self.memory_pid = int(self.said)
        return ready

    def fork(self, order: shim.Order) -> ForkReply:
        """Fork the shim of a program; see :meth:`ForkServer.fork`. Until that is reaped, it forks no other."""
        forked = super().fork(order)
        self.busy = bool(forked.pid)
        return forked

    def reap(self, pid: int) -> int | None:
        """Return the exit status of its shim; see :meth:`ForkServer.reap`."""
        self.busy = False
        return super().reap(pid)

    def ended(self) -> str:
        """Return why it has ended by itself; see :meth:`ForkServer.ended`."""
        if not self.alive:
            return self.refusal or "it was ended"
        try:
            return str(self._received()[1]) if self._readable(0) else ""
        except ForkError as error:
            return str(error)


def template() -> ForkServer:
    """Return a server that forks shims for programs that start by exec."""
    return ForkServer([sys.executable, "-I", "-S"])


def warm_server(command: WarmCommand, modules: Sequence[str], env: Mapping[str, str]) -> ForkServer:
    """Return a server for programs of an interpreter in an environment, with modules; it may take long to be ready."""
    own = {**shared_environment(env), _ROOM_NAME: "x" * ENVIRONMENT_ROOM}
    return ForkServer(command.interpreter, modules, own, executable=command.executable)


def user_server(
    command: WarmCommand,
    modules: Sequence[str],
    env: Mapping[str, str],
    confined: Confinement,
    limits: ServerLimits,
) -> KeptServer:
    """Return a server as :func:`warm_server` does, which runs as the user that its programs are confined to."""
    own = {**shared_environment(env), _ROOM_NAME: "x" * ENVIRONMENT_ROOM}
    argv = (*command.interpreter, user_server_program.__file__, ",".join(modules), "x" * ROOM)
    told = server_keeper.ServerOrder(command.executable, argv, own, tuple(confined), *limits)
    return KeptServer(told)


def _end(pid: int, control: socket.socket, printed: int, signum: int) -> None:
    control.close()
    os.close(printed)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)
    _ending.add(pid)
    _reap_ended()


def _reap_ended() -> None:
    """Reap the servers that have ended by now; the others at the next call."""
    for pid in [*_ending]:
        try:
            ended, _ = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            ended = pid
        if ended:
            _ending.discard(pid)
