"""
A fork server: forks the shims of processes, and has those start warm whose interpreter and modules it has.

It is a program of its own and imports nothing of Penstock. The executor talks to it over a Unix socket, descriptor 3,
and it ends with the executor. There are two kinds:

* The **template**, run by the executor's Python with ``-I -S``: it forks shims, which start their programs by exec.
* A **warm server**, run by a job's interpreter with the job's options and environment: it imports modules, and forks
  shims whose child becomes the program instead of executing it (:mod:`warm_program`).

Messages are marshalled tuples. To the server: a question with two descriptors, or the pid of a shim that is to be
reaped. From it: once whether it can serve, and why not; for each question the shim's pid and how its program starts
(``exec``, ``warm``, or ``cold: `` with the reason), or 0 where no shim was forked; and for each pid the exit status, or
-1. The first descriptor holds the order, which the shim alone reads: the environment of a program, with its secrets, is
never in the memory of a server, from which the next program is forked. A shim begins when a byte comes through the
second, a pipe, and ends where none can come.
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
import gc
import importlib.util
import marshal
import os
import signal
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

CONTROL = 3
_ARGUMENTS = 44
"""Where the addresses of the arguments are among the numbers of ``/proc/self/stat``, after the state."""
_OOM_SCORE = "/proc/self/oom_score_adj"
_OOM_MORE, _OOM_MOST = 500, 1000
_SET_MM = 35
_SET_MM_MAP = 14
_OWN_WORDS = 3
"""Words of a server's command line behind the interpreter and its options: this file, the modules, and the room."""
MOST_BYTES = 1 << 20
OLDEST = (3, 10)
COLD = "cold: "
"""Before the reason why a program does not start warm."""
BLOCKED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGRTMIN + 7)
"""As a shim has them when it begins: what comes early waits until it can be answered."""
FOLDER = os.path.dirname(os.path.abspath(__file__))


def load_beside(name: str) -> ModuleType:
    """Load a module that lies beside this file."""
    spec = importlib.util.spec_from_file_location(name, os.path.join(FOLDER, f"{name}.py"))
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


class Question(NamedTuple):
    """
    What a server is told of a program that it is to fork.

    Attributes
    ----------
    cwd : str
        The folder that the program runs in.
    kind, target : str
        What its interpreter runs (:class:`penstock_executor.launchers.warm_command.WarmCommand`), but for a text; empty
        for a program that starts by exec.
    python_path : str
        Its ``PYTHONPATH``.
    environment_bytes : int
        The size of its environment.
    """

    cwd: str
    kind: str
    target: str
    python_path: str
    environment_bytes: int

    @classmethod
    def about(cls, order: Any) -> Question:
        """Return what a server is told of an order."""
        kind, target = order.warm[:2] or ("", "")
        python_path = os.fsdecode(order.env.get(b"PYTHONPATH", b""))
        size = sum(len(name) + len(value) + 2 for name, value in order.env.items())
        return cls(order.cwd, kind, "" if kind == "command" else target, python_path, size)


def write_order(order: Sequence[Any], most_bytes: int = 0) -> int:
    """
    Return a descriptor from which an order can be read, by whoever has it.

    Raises
    ------
    ValueError
        If it has more than ``most_bytes``; 0: it may have any number.
    """
    body = marshal.dumps(tuple(order))
    if most_bytes and len(body) > most_bytes:
        raise ValueError(f"its command line and environment have {len(body):,} bytes, more than {most_bytes:,}")
    fd = os.memfd_create("order")
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(body)
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_order(fd: int) -> Any:
    """Return the values of an order that is in a descriptor."""
    with open(os.dup(fd), "rb") as file:
        file.seek(0)
        return marshal.loads(file.read())  # noqa: S302 - from the executor, or a process of root's


class ShownMemory:
    """
    What ``/proc`` shows of this process's command line and environment, which a fork has from its server.

    Only room that the server was given for that is written over: its last argument, and its last variable.
    """

    def __init__(self) -> None:
        with open("/proc/self/stat", "rb") as file:
            self._fields = [*map(int, file.read().rpartition(b")")[2].split()[1:])]
        arguments, end, environment, last = self._fields[_ARGUMENTS:][:4]
        own = ctypes.string_at(arguments, end - arguments).rstrip(b"\0").split(b"\0")[:-_OWN_WORDS]
        self._options = arguments + sum(len(word) + 1 for word in own), end
        text = ctypes.string_at(environment, last - environment)
        self._environment = environment, environment + text.rstrip(b"\0").rfind(b"\0") + 1, last
        self._libc = ctypes.CDLL(None)
        self._libc.sbrk.restype = ctypes.c_void_p

    def has_room(self, environment_bytes: int) -> bool:
        """Return whether there is room for an environment."""
        _, room, end = self._environment
        return environment_bytes <= end - room

    def show(self, words: Sequence[bytes], env: Mapping[bytes, bytes]) -> None:
        """Show these words behind the interpreter and its options, and the variables that the server has not."""
        (begin, end), (first, room, last) = self._options, self._environment
        shown = set(ctypes.string_at(first, room - first).split(b"\0"))
        more = [line for name, value in env.items() if (line := name + b"=" + value) not in shown]
        shown_end, shown_last = _overwrite(begin, end, words), _overwrite(room, last, more)
        self._fields[_ARGUMENTS + 1], self._fields[_ARGUMENTS + 3] = shown_end, shown_last
        code_data_heap = [self._fields[i] for i in (22, 23, 41, 42, 43)]
        area = [*code_data_heap, self._libc.sbrk(0), self._fields[24], *self._fields[_ARGUMENTS:][:4], 0]
        whole = struct.pack("@12QIi", *area, 0, -1)  # struct prctl_mm_map
        self._libc.prctl(
            _SET_MM, _SET_MM_MAP, whole, ctypes.c_ulong(len(whole)), 0
        )  # or empty strings are shown at the end


def _overwrite(begin: int, end: int, texts: Sequence[bytes]) -> int:
    """Write strings over an area; return their end, which is the area's where there is no room for them."""
    text = b"".join(text + b"\0" for text in texts)
    if len(text) > end - begin:
        return end
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, text, len(text))
    return begin + len(text)


class Forker:
    """
    The server at work.

    Parameters
    ----------
    control : socket
        The executor's.
    shim : module
        :mod:`shim`.

    Attributes
    ----------
    report : str
        Name of the file in a program's folder that tells which modules it has imported.
    """

    report = "modules"

    def __init__(self, control: socket.socket, shim: ModuleType) -> None:
        self._control, self.shim, self.shown, self.oom_score = control, shim, ShownMemory(), b""

    def say(self, can: bool, why: str = "") -> None:
        """Tell the executor whether the server can serve, and why not."""
        self._control.send(marshal.dumps((can, why)))

    def confine(self, order: Any, env: dict[bytes, bytes]) -> None:
        """Give up, in a program's process, what the program is not to have."""
        if (confined := self.shim.load_beside("confinement").read(order.folder)) is not None:
            confined.enter(env)

    def serve(
        self,
        start: Callable[..., int] | None = None,
        doubt: Callable[[Question], str] = lambda question: "exec",  # noqa: ARG005 - that of a warm server looks at it
    ) -> None:
        """
        Fork a shim for each order, until the executor is gone.

        Parameters
        ----------
        start : callable, optional
            What starts programs; by default they are executed.
        doubt : callable
            ``doubt(question)``: how a program is to start, as the executor is told.
        """
        while True:
            body, fds, _, _ = socket.recv_fds(self._control, MOST_BYTES, 2)
            if not body:
                return
            message = marshal.loads(body)  # noqa: S302 - from the executor
            if isinstance(message, int):
                self._control.send(marshal.dumps(reaped(message)))
                continue
            how = doubt(Question(*message))
            try:
                pid = os.fork()
            except OSError as error:
                self._control.send(marshal.dumps((0, f"{COLD}its server can have no process: {error.strerror}")))
                pid = -1
            if not pid:
                self._be_shim(fds[0], fds[1], how, start if how == "warm" else None)
            for fd in fds:
                os.close(fd)

    def _go_as_late_as_before(self) -> None:
        if self.oom_score:
            with open(_OOM_SCORE, "wb") as file:
                file.write(self.oom_score)

    def leave(self, order: Any, left_open: int) -> Any:
        """Have nothing more of the server, in a program that was forked from it; return the program's order."""
        del left_open
        self._control.detach()
        return order

    def _be_shim(self, told: int, pipe: int, how: str, start: Callable[..., int] | None) -> None:
        """Be a shim, in a child; only a program that begins warm comes back from here, by an exception."""
        code = 1
        try:
            os.setsid()
            self._go_as_late_as_before()
            self._control.send(marshal.dumps((os.getpid(), how)))
            order = self.shim.Order(*read_order(told))
            redirect(order.folder, pipe)
            self.shown.show([*map(os.fsencode, (*order[:5], *order.argv))], order.env)
            if os.read(pipe, 1):
                os.close(pipe)
                code = self.shim.run(order, start)
        except Exception:
            sys.excepthook(*sys.exc_info())
        except BaseException as raised:
            if start is not None and isinstance(raised, WarmStart):
                raise
        os._exit(code)


class WarmStart(BaseException):
    """In the child that is to become a program: leave all that the shim was about to do."""


def reaped(pid: int) -> int:
    """Return the exit status of a shim that has ended; -1 where it left none."""
    try:
        _, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return -1
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -1


def redirect(folder: str, *kept: int) -> None:
    """Take a shim's input and output, and keep no other descriptors than some."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    log = os.open(os.path.join(folder, "shim.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1), os.dup2(log, 2)
    first = 3
    for fd in sorted(kept):
        os.closerange(first, fd)
        first = fd + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


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
        forker = Forker(control, shim)
        gc.freeze()  # or each shim would copy what its collector only looks at
        forker.serve()
    elif sys.version_info < OLDEST or sys.implementation.name != "cpython":
        needed = ".".join(map(str, OLDEST))
        control.send(marshal.dumps((False, f"warm starts need CPython {needed} or later")))
    else:
        forker = Forker(control, shim)
        forker.oom_score = _be_first_to_go()
        load_beside("warm_program").serve(forker, modules, STARTUP, WarmStart)


def _be_first_to_go() -> bytes:
    """Have the kernel end a server before any job where memory runs out; return what is to be a shim's again."""
    try:
        with open(_OOM_SCORE, "rb") as file:
            before = file.read().strip()
        with open(_OOM_SCORE, "wb") as file:
            file.write(b"%d" % min(int(before) + _OOM_MORE, _OOM_MOST))
    except OSError:
        return b""
    return before


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        main([name for name in sys.argv[1].split(",") if name])
