"""The executor's side of the agent protocol, just enough of it to test the job's side: a Unix server on threads."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from penstock_log.agent_protocol import (
    STOP_MARGIN,
    AgentEnv,
    CheckpointSaved,
    FromJob,
    Hello,
    StepReached,
    StopAtStep,
    StopRequest,
)

M = TypeVar("M", bound=FromJob)
WAIT_LIMIT_S = 60.0


class ExecutorStub:
    """Listens on a Unix socket, keeps what it hears, and says what it is told to say."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.received: list[tuple[int, FromJob]] = []
        self._hung_up: set[int] = set()
        self._connections: dict[int, socket.socket] = {}
        self._changed = threading.Condition()
        self._listener: socket.socket | None = None
        self.start()

    def start(self) -> None:
        """Listen, also again after :meth:`die`."""
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen()
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def die(self) -> None:
        """Vanish as a killed executor does: no listener, no connections."""
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        self.path.unlink(missing_ok=True)
        with self._changed:
            for connection in self._connections.values():
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            self._connections.clear()

    def env(self, **more: str) -> dict[str, str]:
        """Return the variables that point a job here; ``more`` are names of :class:`AgentEnv`."""
        given = {"JOB_ID": "j1", "EPOCH": "1", "SOCKET": str(self.path), **more}
        return {getattr(AgentEnv, name): value for name, value in given.items()}

    def say(self, message: msgspec.Struct, rank: int = 0) -> None:
        """Send to one process, once it has said hello."""
        with self._changed:
            if not self._changed.wait_for(lambda: rank in self._connections, WAIT_LIMIT_S):
                raise TimeoutError(f"rank {rank} has not said hello; heard {self.received[-5:]}")
            self._connections[rank].sendall(msgspec.json.encode(message) + b"\n")

    def of(self, kind: type[M], rank: int | None = None) -> list[M]:
        """Return what was heard of a kind."""
        with self._changed:
            return [m for r, m in self.received if isinstance(m, kind) and rank in (None, r)]

    def wait(self, kind: type[M], rank: int = 0, when: Callable[[M], bool] = lambda _: True, count: int = 1) -> M:
        """Return the first message of a kind for which ``when`` holds (or the ``count``-th), waiting for it."""

        def found() -> list[M]:
            return [m for m in self.of(kind, rank) if when(m)]

        with self._changed:
            if not self._changed.wait_for(lambda: len(found()) >= count, WAIT_LIMIT_S):
                raise TimeoutError(f"no {kind.__name__} from rank {rank}; heard {self.received[-5:]}")
            return found()[count - 1]

    def preempt(self, ranks: int = 1, *, park: bool = False, count: int = 1) -> int:
        """Ask all ranks to stop, for the ``count``-th time, and perhaps to park; return the step that was agreed."""
        for rank in range(ranks):
            self.say(StopRequest(), rank)
        answers = [self.wait(StepReached, rank, count=count) for rank in range(ranks)]
        step = max(answer.step + (0 if answer.held else STOP_MARGIN) for answer in answers)
        for rank in range(ranks):
            self.say(StopAtStep(step=step, park=park), rank)
        return step

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._listen, args=(connection,), daemon=True).start()

    def _listen(self, connection: socket.socket) -> None:
        rank = -1
        with suppress(ConnectionResetError), connection, connection.makefile("rb") as lines:
            for line in lines:
                message = msgspec.json.decode(line, type=FromJob)
                with self._changed:
                    if isinstance(message, Hello):
                        rank = message.rank
                        self._connections[rank] = connection
                    self.received.append((rank, message))
                    self._changed.notify_all()
        with self._changed:
            self._hung_up.add(rank)
            if self._connections.get(rank) is connection:
                del self._connections[rank]
            self._changed.notify_all()

    def wait_hung_up(self, rank: int = 0) -> None:
        """Wait until a process has closed its connection."""
        with self._changed:
            if not self._changed.wait_for(lambda: rank in self._hung_up, WAIT_LIMIT_S):
                raise TimeoutError(f"rank {rank} still holds its connection")


@contextmanager
def small_executor(folder: Path) -> Iterator[ExecutorStub]:
    """Run a small executor in a folder (whose path must be short: a socket's path has 107 bytes)."""
    executor = ExecutorStub(folder / "agent.sock")
    try:
        yield executor
    finally:
        executor.die()


def overlay(environ: Mapping[str, str], **more: str) -> dict[str, str]:
    """Return an environment with nothing of Penstock but ``more``, by names of :class:`AgentEnv`."""
    plain = {name: value for name, value in environ.items() if not name.startswith("PENSTOCK_")}
    return plain | {getattr(AgentEnv, name): value for name, value in more.items()}


def without_digest(saved: CheckpointSaved) -> CheckpointSaved:
    """Return what a process said of a checkpoint, without the digest, which is another each time."""
    return msgspec.structs.replace(saved, digest="")
