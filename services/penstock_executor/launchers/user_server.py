"""
The program of a warm server that runs as a job's user: forks programs, which another process keeps.

Where jobs run as other users than the executor's, nothing that has run a user's code may be a shim, which is root's. So
this server, which the user's interpreter runs with the user's rights, forks the programs alone. The rest is done by its
parent (:mod:`server_keeper`), which trusts it in nothing: it stops the server but for the moments of a fork, takes the
process that appears among its own children for the program, and sees to what becomes of it.

A program is forked twice, so that its parent is gone and it becomes a child of the keeper. It then waits until it has
been put into its group, and is told what it is to be: the server itself never has its environment, with its secrets.

Messages to the server are marshalled questions (:class:`fork_server.Question`) and come from the keeper: one without
descriptors asks how a program would start; one with them (for the output, for what is left open, and the socket by
which the program gets its order) has it forked. Those from the server are plain text, ``+`` or ``-`` and the reason.
"""

# ruff: noqa: E402 - what an interpreter has imported by itself is noted first

from __future__ import annotations

import sys

STARTUP = frozenset(sys.modules)
"""What an interpreter of this kind has imported when a program begins."""
if sys.path and __file__.startswith(sys.path[0] + "/"):
    del sys.path[0]  # what is beside this file is not to be found by name

import contextlib
import ctypes
import importlib.util
import marshal
import os
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Any

REPORT = ".penstock-modules"
"""In the run's temporary folder, which is its user's: the one that belongs to the process is not."""
_DUMPABLE = 4
_MOST_FDS = 4
_MOST_SAID = 16
_beside = importlib.util.spec_from_file_location(
    "fork_server", os.path.join(os.path.dirname(os.path.abspath(__file__)), "fork_server.py")
)
fork_server: Any = importlib.util.module_from_spec(_beside)  # type: ignore[arg-type] # it lies beside this file
_beside.loader.exec_module(fork_server)  # type: ignore[union-attr]


class ProgramForker(fork_server.Forker):  # type: ignore[misc] # loaded by its path
    """
    The server at work: as :class:`fork_server.Forker`, but without shims.

    Parameters
    ----------
    control : socket
        The keeper's.
    """

    report = REPORT

    def __init__(self, control: socket.socket, shim: Any) -> None:
        super().__init__(control, shim)
        self._descriptors: Sequence[int] = ()

    def say(self, can: bool, why: str = "") -> None:
        """Tell the keeper whether something can be done, and why not; who hears it stops this process."""
        ctypes.CDLL(None).prctl(_DUMPABLE, 0, 0, 0, 0)  # another job of this user is not to write into its memory
        self._control.send(b"+" if can else b"-" + why.encode(errors="replace"))

    def serve(self, start: Callable[..., int], doubt: Callable[[Any], str]) -> None:
        """Answer, and fork a program for each order, until the keeper is gone."""
        while True:
            body, fds, _, _ = socket.recv_fds(self._control, fork_server.MOST_BYTES, _MOST_FDS)
            if not body:
                return
            left_open, *told = marshal.loads(body)  # noqa: S302 - from the keeper, which is root's
            question = fork_server.Question(*told)
            if not fds:
                may_enter = os.access(question.cwd, os.X_OK)
                how = doubt(question) if may_enter else "its user cannot enter its working directory"
                self.say(how == "warm", how.removeprefix(fork_server.COLD))
                continue
            between = os.fork()
            if not between:
                self._descriptors = fds
                start(None, fds[:2], left_open)
                os._exit(0)
            os.waitpid(between, 0)
            for fd in fds:
                os.close(fd)
            self.say(True)

    def leave(self, order: Any, left_open: int) -> Any:
        """Have nothing more of the server, in a program; wait until it may begin, and return its order."""
        self._control.detach()
        *streams, told = self._descriptors
        if len(streams) > 2:
            os.dup2(streams[2], left_open)
        with socket.socket(fileno=told) as keeper:
            _, fds, _, _ = socket.recv_fds(keeper, _MOST_SAID, 1)
        if not fds:
            os._exit(1)  # the keeper is gone, or does not take this process for the program
        del order
        return self.shim.Order(*fork_server.read_order(fds[0]))

    def confine(self, order: Any, env: dict[bytes, bytes]) -> None:
        """Do what the server has not done for all programs: the rest of it holds for the server itself."""
        del order, env
        self.shim.load_beside("confinement").leave_keyring()


def main(modules: Sequence[str]) -> None:
    """Import the modules, and serve the keeper."""
    signal.pthread_sigmask(signal.SIG_BLOCK, fork_server.BLOCKED)
    os.set_inheritable(fork_server.CONTROL, False)
    control = socket.socket(fileno=fork_server.CONTROL)
    if sys.version_info < fork_server.OLDEST or sys.implementation.name != "cpython":
        needed = ".".join(map(str, fork_server.OLDEST))
        control.send(f"-warm starts need CPython {needed} or later".encode())
        return
    shim = fork_server.load_beside("shim")
    shim.load_beside("confinement")
    forker = ProgramForker(control, shim)
    fork_server.load_beside("warm_program").serve(forker, modules, STARTUP, fork_server.WarmStart)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        main([name for name in sys.argv[1].split(",") if name])
