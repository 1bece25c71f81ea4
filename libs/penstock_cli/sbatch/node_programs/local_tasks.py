"""
Tasks on this machine: processes of a step, with their output, their ends and signals to them.

What becomes of them is put into a queue as events: ``("output", task, stream, bytes)`` with the stream 1 or 2, and
``("exit", task, code)``, 128 + n where signal n has ended it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from queue import SimpleQueue
from typing import Any, Mapping, NamedTuple, Optional, Sequence

_CHUNK = 1 << 16
NOT_FOUND, NOT_RUN = 127, 126


class TaskOrder(NamedTuple):
    """
    One task that is to be started: its number in its step, and all that it gets.

    ``stdin`` is the path of a file that it reads; empty: what :meth:`LocalTasks.start` is given.
    """

    number: int
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    stdin: str = ""


class LocalTasks:
    """
    The tasks of a step on this machine.

    Parameters
    ----------
    events : SimpleQueue
        Where their output and their ends go.
    reads_output : bool
        False: their output goes where this process's own goes.
    """

    def __init__(self, events: SimpleQueue[Any], *, reads_output: bool) -> None:
        self._events, self._reads = events, reads_output
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, order: TaskOrder, stdin: int = subprocess.DEVNULL) -> None:
        """Start a task; one that cannot be started ends at once with 126 or 127, and says why on its standard error."""
        stream = subprocess.PIPE if self._reads else None
        opened: Optional[int] = None
        try:
            if order.stdin:
                stdin = opened = os.open(order.stdin, os.O_RDONLY | os.O_CLOEXEC)
            process = subprocess.Popen(
                list(order.argv),
                stdin=stdin,
                stdout=stream,
                stderr=stream,
                cwd=order.cwd or None,
                env=dict(order.env),
                start_new_session=True,
            )
        except OSError as error:
            name = order.cwd if order.cwd and not os.path.isdir(order.cwd) else order.argv[0]
            if order.stdin and opened is None:
                name = order.stdin
            said = f"srun: error: task {order.number}: {name}: {error.strerror}\n"
            self._events.put(("output", order.number, 2, said.encode(errors="replace")))
            self._events.put(("exit", order.number, NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_RUN))
            return
        finally:
            if opened is not None:
                os.close(opened)
        self._running[order.number] = process
        threading.Thread(target=self._follow, args=(order.number, process), daemon=True).start()

    def _follow(self, number: int, process: subprocess.Popen[bytes]) -> None:
        """Report a task's output, and then its end."""
        readers = [
            threading.Thread(target=self._read, args=(number, stream, pipe.fileno()), daemon=True)
            for stream, pipe in ((1, process.stdout), (2, process.stderr))
            if pipe is not None
        ]
        for reader in readers:
            reader.start()
        code = process.wait()
        for reader in readers:
            reader.join(1.0)  # what a task has left behind may hold its output open
        self._running.pop(number, None)
        self._events.put(("exit", number, 128 - code if code < 0 else code))

    def _read(self, number: int, stream: int, fd: int) -> None:
        while True:
            try:
                data = os.read(fd, _CHUNK)
            except OSError:
                return
            if not data:
                return
            self._events.put(("output", number, stream, data))

    def signal(self, signum: int) -> None:
        """Send a signal to every task and what it has started."""
        for process in list(self._running.values()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signum)

    def kill(self) -> None:
        """End all tasks at once."""
        self.signal(signal.SIGKILL)

    @property
    def numbers(self) -> list[int]:
        """The tasks that have not ended."""
        return list(self._running)
