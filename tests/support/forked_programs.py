"""
Programs of which tests start very many processes, forked from one that has imported them.

A process of its own imports what its program needs, which takes a third of a second of CPU; a fork has it at once.
``python forked_programs.py FD MODULE`` is the process that forks, and :class:`ProgramTemplate` is who asks it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module

_MOST_BYTES = 1 << 16


class ForkedProcess:
    """A process that runs a program's ``main``, with what tests use of :class:`subprocess.Popen`."""

    def __init__(self, said: int) -> None:
        self._said = os.fdopen(said, "rb", buffering=0)
        self.returncode: int | None = None
        self.pid = int(self._said.readline())

    def send_signal(self, signum: int) -> None:
        """Send it a signal, unless its end was waited for."""
        if self.returncode is None:
            os.kill(self.pid, signum)

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait until it has ended; return its exit status, negative for a signal."""
        if self.returncode is None:
            if not select.select([self._said], [], [], timeout_s)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout_s or 0.0)
            self.returncode = os.waitstatus_to_exitcode(int(self._said.readline()))
            self._said.close()
        return self.returncode


class ProgramTemplate:
    """
    A process that has imported a module, and forks processes that run its ``main``; it is started with the first.

    Parameters
    ----------
    module : str
        Its ``main`` takes the words of a command line.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, descriptor: int, *arguments: str) -> ForkedProcess:
        """Run the program; ``{}`` in an argument becomes the number that the descriptor has there."""
        said, tell = os.pipe()
        try:
            with self._lock:
                self._control = self._control or self._started()
                socket.send_fds(self._control, [json.dumps(arguments).encode()], [tell, descriptor, 1, 2])
        finally:
            os.close(tell)
        return ForkedProcess(said)

    def _started(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno()), self._module]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])  # ends when our end closes
        return ours


def serve(control: socket.socket, main: Callable[[Sequence[str]], object]) -> None:
    """Fork whatever is asked for, until nobody can ask any more."""
    while True:
        body, descriptors, *_ = socket.recv_fds(control, _MOST_BYTES, 4)
        if not body:
            return
        between = os.fork()
        if between == 0:
            control.close()
            watch(main, json.loads(body), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        os.waitpid(between, 0)


def watch(main: Callable[[Sequence[str]], object], arguments: Sequence[str], tell: int, *given: int) -> None:
    """Fork who runs the program, and tell its process id and in the end its status; the template waits for neither."""
    if os.fork():
        os._exit(0)
    pid = os.fork()
    if pid == 0:
        os.close(tell)
        run(main, arguments, *given)
    for descriptor in given:
        os.close(descriptor)
    os.write(tell, b"%d\n" % pid)
    os.write(tell, b"%d\n" % os.waitpid(pid, 0)[1])
    os._exit(0)


def run(main: Callable[[Sequence[str]], object], arguments: Sequence[str], descriptor: int, out: int, err: int) -> None:
    """Run the program with its own output, and end."""
    status = 1
    try:
        for file, number in ((out, 1), (err, 2)):
            os.dup2(file, number)
            os.close(file)
        main([argument.format(descriptor) for argument in arguments])
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:  # its last word, as an interpreter's
        traceback.print_exc()
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the tests, who end it by hanging up
    serve(socket.socket(fileno=int(sys.argv[1])), import_module(sys.argv[2]).main)
