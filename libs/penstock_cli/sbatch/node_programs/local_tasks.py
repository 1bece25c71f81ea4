"""
Tasks on this machine: processes of a step, with their output, their ends and signals to them.

What becomes of them is put into a queue as events: ``("output", task, stream, bytes)`` with the stream 1 or 2, and
``("exit", task, code)``, 128 + n where signal n has ended it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
from queue import SimpleQueue
from typing import Any, Mapping, NamedTuple, Optional, Sequence, Set

_CHUNK = 1 << 16
_MOST_OUTPUTS = 64
"""Pieces of output that wait to be written: 4 MiB at most."""
_LAST_OUTPUT_S = 1.0
_MOST_LAST_BYTES = 1 << 20
"""What a pipe may hold when its task has ended; what is more comes from what the task has left behind."""
NOT_FOUND, NOT_RUN = 127, 126


class TaskEvents:
    """
    A queue of what becomes of tasks, and of signals: it takes so much output, and whoever brings more waits.

    Its :meth:`put` may be called by handlers of signals, which may not wait.

    Parameters
    ----------
    room : int
        How many pieces of output it takes.
    """

    def __init__(self, room: int = _MOST_OUTPUTS) -> None:
        self._events: SimpleQueue[Any] = SimpleQueue()
        self._room = threading.Semaphore(room)

    def put(self, event: Sequence[Any]) -> None:
        """Add an event."""
        self._events.put(event)

    def put_output(self, number: int, stream: int, data: bytes) -> None:
        """Add a task's output, once there is room for it."""
        self._room.acquire()
        self._events.put(("output", number, stream, data))

    def get(self) -> Any:
        """Return the next event, once there is one."""
        event = self._events.get()
        if event[0] == "output":
            self._room.release()
        return event


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
    events : TaskEvents
        Where their output and their ends go.
    reads_output : bool
        False: their output goes where this process's own goes.
    """

    def __init__(self, events: TaskEvents, *, reads_output: bool) -> None:
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
            self._events.put_output(order.number, 2, said.encode(errors="replace"))
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
            _OutputReader(self._events, number, stream, pipe.fileno())
            for stream, pipe in ((1, process.stdout), (2, process.stderr))
            if pipe is not None
        ]
        code = process.wait()
        for reader in readers:
            reader.finish()
        self._running.pop(number, None)
        self._events.put(("exit", number, 128 - code if code < 0 else code))

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


class _OutputReader:
    """What reads one of a task's streams, and reports it, until its end or until the task has ended."""

    def __init__(self, events: TaskEvents, number: int, stream: int, fd: int) -> None:
        self._events, self._number, self._stream, self._fd = events, number, stream, fd
        self._wake, self._end = os.pipe()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Report what the task has written to its end, however long that waits to be written."""
        os.close(self._end)
        self._thread.join()
        os.close(self._wake)

    def _read(self) -> None:
        left: Optional[int] = None  # of what may be read behind the task's end, since others may hold the stream open
        while left is None or left > 0:
            watched = [self._fd] if left is not None else [self._fd, self._wake]
            ready = _readable(watched, None if left is None else _LAST_OUTPUT_S)
            if not ready:
                return
            if self._wake in ready and left is None:
                left = _MOST_LAST_BYTES
            if self._fd not in ready:
                continue
            data = os.read(self._fd, _CHUNK)
            if not data:
                return
            self._events.put_output(self._number, self._stream, data)
            left = None if left is None else left - len(data)


def _readable(fds: Sequence[int], wait_s: Optional[float]) -> Set[int]:
    """Return those of some files that can be read from, or have ended, once there is one."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return {fd for fd, _ in poll.poll(None if wait_s is None else wait_s * 1000)}
