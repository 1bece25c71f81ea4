"""
A fork server: forks the shims of processes, and has those start warm whose interpreter and modules it has.

It is a program of its own and imports nothing of Penstock. The executor talks to it over a Unix socket, descriptor 3,
and it ends with the executor. There are two kinds:

* The **template**, run by the executor's Python with ``-I -S``: it forks shims, which start their programs by exec.
* A **warm server**, run by a job's interpreter with the job's options and environment: it imports modules, and forks
  shims whose child becomes the program instead of executing it (:mod:`warm_program`).

Messages are marshalled tuples. To the server: an order with a pipe, or the pid of a shim that is to be reaped. From it:
once whether it can serve, and why not; for each order the shim's pid and how its program starts (``exec``, ``warm``, or
``cold: `` with the reason); and for each pid the exit status, or -1. A shim begins when a byte comes through the pipe,
and ends where none can come.
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
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

CONTROL = 3
MOST_BYTES = 1 << 20
OLDEST = (3, 10)
BLOCKED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGRTMIN + 7)
"""As a shim has them when it begins: what comes early waits until it can be answered."""
FOLDER = os.path.dirname(os.path.abspath(__file__))


def load_beside(name: str) -> ModuleType:
    """Load a module that lies beside this file."""
    spec = importlib.util.spec_from_file_location(name, os.path.join(FOLDER, f"{name}.py"))
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


class ShownMemory:
    """
    What ``/proc`` shows of this process's command line and environment, which a fork has from its server.

    Only room that the server was given for that is written over: its last argument, and its last variable.
    """

    def __init__(self) -> None:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        arguments, end, environment, last = (int(field) for field in fields[45:49])
        self._arguments = _room(arguments, end)
        self._environment = _room(environment, last)

    def show_arguments(self, words: Sequence[bytes], kept: int) -> bool:
        """Show these words after the first ones, which stay; return whether there is room for them."""
        begin, _, end = self._arguments
        shown = ctypes.string_at(begin, end - begin).split(b"\0")[:kept]
        begin += sum(len(word) + 1 for word in shown)
        return _overwrite(begin, end, b"".join(word + b"\0" for word in words))

    def show_environment(self, env: Mapping[bytes, bytes]) -> bool:
        """Show the variables that the server's environment has not; return whether there is room for them."""
        begin, room, end = self._environment
        shown = set(ctypes.string_at(begin, room - begin).split(b"\0"))
        more = [line for name, value in env.items() if (line := name + b"=" + value) not in shown]
        return _overwrite(room, end, b"".join(line + b"\0" for line in more))


def _room(begin: int, end: int) -> tuple[int, int, int]:
    """Return where an area of strings begins, where its last string does, and its end."""
    text = ctypes.string_at(begin, end - begin) if 0 < begin < end else b""
    return begin, begin + text.rstrip(b"\0").rfind(b"\0") + 1, begin + len(text)


def _overwrite(begin: int, end: int, text: bytes) -> bool:
    if len(text) > end - begin:
        return False
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, text, len(text))
    return True


class Forker:
    """
    The server at work.

    Parameters
    ----------
    control : socket
        The executor's.
    shim : module
        :mod:`shim`.
    """

    def __init__(self, control: socket.socket, shim: ModuleType) -> None:
        self._control, self._shim, self._shown = control, shim, ShownMemory()

    def serve(
        self,
        start: Callable[..., int] | None = None,
        doubt: Callable[[Any], str] = lambda order: "exec",  # noqa: ARG005 - that of a warm server looks at it
    ) -> None:
        """
        Fork a shim for each order, until the executor is gone.

        Parameters
        ----------
        start : callable, optional
            What starts programs; by default they are executed.
        doubt : callable
            ``doubt(order)``: how a program is to start, as the executor is told.
        """
        while True:
            body, pipes, _, _ = socket.recv_fds(self._control, MOST_BYTES, 1)
            if not body:
                return
            message = marshal.loads(body)  # noqa: S302 - from the executor
            if isinstance(message, int):
                self._control.send(marshal.dumps(_reaped(message)))
                continue
            order = self._shim.Order(*message)
            how = doubt(order)
            try:
                pid = os.fork()
            except OSError as error:
                self._control.send(marshal.dumps((0, str(error.strerror))))
                pid = -1
            if not pid:
                self._be_shim(order, pipes[0], how, start if how == "warm" else None)
            for pipe in pipes:
                os.close(pipe)

    def _be_shim(self, order: Any, pipe: int, how: str, start: Callable[..., int] | None) -> None:
        """Be a shim, in a child; only a program that begins warm comes back from here, by an exception."""
        code = 1
        try:
            os.setsid()
            self._control.send(marshal.dumps((os.getpid(), how)))
            _redirect(order.folder, pipe)
            self._shown.show_arguments([*map(os.fsencode, (*order[:5], *order.argv))], kept=len(sys.orig_argv) - 2)
            if os.read(pipe, 1):
                os.close(pipe)
                code = self._shim.run(order, start)
        except Exception:
            sys.excepthook(*sys.exc_info())
        except BaseException as raised:
            if start is not None and isinstance(raised, WarmStart):
                raise
        os._exit(code)


class WarmStart(BaseException):
    """In the child that is to become a program: leave all that the shim was about to do."""


def _reaped(pid: int) -> int:
    """Return the exit status of a shim that has ended; -1 where it left none."""
    try:
        _, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return -1
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -1


def _redirect(folder: str, pipe: int) -> None:
    """Take a shim's input and output, and keep no other descriptor but the pipe."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    log = os.open(os.path.join(folder, "shim.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1), os.dup2(log, 2)
    os.closerange(3, pipe)
    os.closerange(pipe + 1, os.sysconf("SC_OPEN_MAX"))


def main(modules: Sequence[str]) -> None:
    """Serve the executor: as the template, or warm with these modules."""
    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    os.closerange(CONTROL + 1, os.sysconf("SC_OPEN_MAX"))
    os.set_inheritable(CONTROL, False)
    control = socket.socket(fileno=CONTROL)
    shim = load_beside("shim")
    for part in ("confinement", "fence_keeper"):
        shim.load_beside(part)
    if sys.flags.isolated and sys.flags.no_site and not modules:
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # not dumpable, as a shim
        control.send(marshal.dumps((True, "")))
        Forker(control, shim).serve()
    elif sys.version_info < OLDEST or sys.implementation.name != "cpython":
        needed = ".".join(map(str, OLDEST))
        control.send(marshal.dumps((False, f"warm starts need CPython {needed} or later")))
    else:
        program = load_beside("warm_program")
        program.serve(Forker(control, shim), control, modules, STARTUP, WarmStart)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        main([name for name in sys.argv[1].split(",") if name])
