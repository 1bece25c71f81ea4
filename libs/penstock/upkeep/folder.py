"""The data folder: one supervisor at a time, and a record of what it runs."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from penstock.upkeep.options import UpError
from penstock_bus.credentials import write_private

_START_TICKS: Final = 19  # field 22 of /proc/PID/stat, counted after the command's closing parenthesis
_GONE_S: Final = 10.0
_OWNER_ONLY: Final = 0o700
_OURS: Final = ("penstock", "nats", "executor", "logs", "checkpoints", "client.json", "extension.json")
"""What the names begin with of all that is in a data folder."""
UNKNOWN: Final = 0
"""In place of the process id of a supervisor that has the folder and has not yet said who it is."""
_LOOK_S: Final = 0.01


class Process(msgspec.Struct, frozen=True):
    """A process that cannot be mistaken for a later one with the same id."""

    pid: int
    start_ticks: int


class Record(msgspec.Struct, kw_only=True):
    """
    ``penstock.json``: where the bus is and what runs.

    Attributes
    ----------
    url : str
        Of the NATS server.
    pid : int
        Of the supervisor.
    ready : bool
        All services have said that they are ready.
    waiting_for : tuple of str
        Processes that have not said so yet.
    notes : dict of str to str
        Service → what people should know of it at first.
    """

    url: str
    pid: int
    started_s: float
    version: str
    ready: bool = False
    processes: dict[str, Process] = {}
    waiting_for: tuple[str, ...] = ()
    notes: dict[str, str] = {}

    def save(self, folder: Path) -> None:
        """Write it down."""
        write_private(path(folder), msgspec.json.format(msgspec.json.encode(self)))


def path(folder: Path) -> Path:
    """Return the path of the record."""
    return folder / "penstock.json"


def read(folder: Path) -> Record | None:
    """Return the record; None where there is none or it cannot be read."""
    try:
        return msgspec.json.decode(path(folder).read_bytes(), type=Record)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """
    Be the folder's only supervisor; the kernel gives the lock back whatever becomes of this process.

    Raises
    ------
    UpError
        If another one is, or the folder cannot be used.
    """
    try:
        folder.mkdir(mode=_OWNER_ONLY, parents=True, exist_ok=True)
        if folder.stat().st_uid == os.getuid() and all(path.name.startswith(_OURS) for path in folder.iterdir()):
            folder.chmod(_OWNER_ONLY)  # one of an earlier version was open to all; with others' things in it, it stays
        lock = os.open(folder / "penstock.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise UpError(
            f"the data folder {folder} cannot be used: {error.strerror}; choose another with --data"
        ) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UpError(_taken(folder, lock)) from error
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        try:
            yield
        finally:
            os.ftruncate(lock, 0)  # or the next holder would be taken for this one, until it has written its own id
    finally:
        os.close(lock)


def holder(folder: Path) -> int | None:
    """Return the process id of the folder's supervisor, :data:`UNKNOWN` for a moment at first; None if none runs."""
    try:
        lock = os.open(folder / "penstock.lock", os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return int(os.pread(lock, 32, 0) or UNKNOWN)
    finally:
        os.close(lock)
    return None


def process(pid: int) -> Process:
    """Return a running process's identity; start ticks 0 if it is gone."""
    return Process(pid, _start_ticks(pid))


async def kill_stale(folder: Path) -> list[str]:
    """
    Kill what an earlier supervisor that was killed itself has left, wait until it is gone, and return the names.

    Raises
    ------
    UpError
        If one of them does not go.
    """
    record = read(folder)
    stale = {} if record is None else {name: old for name, old in record.processes.items() if _is_running(old)}
    for old in stale.values():
        with suppress(ProcessLookupError):
            os.kill(old.pid, signal.SIGKILL)
    try:
        async with asyncio.timeout(_GONE_S):
            while any(_is_running(old) for old in stale.values()):  # noqa: ASYNC110 - only a parent is told
                await asyncio.sleep(_LOOK_S)
    except TimeoutError as error:
        left = ", ".join(f"{name} ({old.pid})" for name, old in stale.items() if _is_running(old))
        raise UpError(f"an earlier run left {left}, which kill -9 does not end; is the disk stuck?") from error
    return list(stale)


def _is_running(old: Process) -> bool:
    return old.start_ticks != 0 and _start_ticks(old.pid) == old.start_ticks


def _start_ticks(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    fields = stat.rpartition(")")[2].split()
    return 0 if fields[0] in "ZX" else int(fields[_START_TICKS])  # dead, whether or not its parent has looked


def _taken(folder: Path, lock: int) -> str:
    pid = os.pread(lock, 32, 0).decode() or "unknown"
    return (
        f"the data folder {folder} is in use by the supervisor with process id {pid}; stop it with "
        f"'penstock down --data {folder}', or choose another folder with --data"
    )
