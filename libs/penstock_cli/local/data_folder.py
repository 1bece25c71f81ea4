"""
The data folder of ``penstock up``: its lock, its record of what runs, its options, and the services' environment.

:func:`locked` lets one supervisor at a time use the folder. :class:`SupervisorRecord` says what it runs.
:class:`UpOptions` is what ``penstock up`` can be told, and :func:`environment` what it tells the services in turn.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from penstock_bus.addresses import is_address, is_loopback
from penstock_bus.identity import logins
from penstock_bus.identity.certificates import EVERYWHERE
from penstock_bus.identity.token_verifier import OidcSettings
from penstock_bus.settings import CONFIG_VARIABLE, origin, written
from penstock_log.services import CORE

_HOST_NAME: Final = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?"
)
_START_TICKS: Final = 19  # field 22 of /proc/PID/stat, counted after the command's closing parenthesis
_GONE_S: Final = 10.0
_OWNER_ONLY: Final = 0o700
_PASSABLE: Final = 0o711
_OURS: Final = (
    "penstock",
    "nats",
    "executor",
    "memory",
    "aggregator",
    "logs",
    "checkpoints",
    "client.json",
    "extension",
    "archive",
    "history",
    "oidc.json",
)
"""What the names begin with of all that is in a data folder."""
AGENTS: Final = ("memory", "aggregator")
"""The services of which one runs beside each executor."""
UNKNOWN: Final = 0
"""In place of the process id of a supervisor that has the folder and has not yet said who it is."""
_LOOK_S: Final = 0.01


class SupervisedProcess(msgspec.Struct, frozen=True):
    """A process that cannot be mistaken for a later one with the same id."""

    pid: int
    start_ticks: int


class SupervisorRecord(msgspec.Struct, kw_only=True):
    """
    ``penstock.json``: where the bus is and what runs.

    Attributes
    ----------
    url : str
        Of the NATS server, or of several, with commas between them.
    pid : int
        Of the supervisor.
    ready : bool
        All services have said that they are ready.
    waiting_for : tuple of str
        Processes that have not said so yet.
    notes : dict of str to str
        Service → what people should know of it at first.
    owner : str
        The person who may do everything; empty where an earlier version wrote this.
    """

    url: str
    pid: int
    started_s: float
    version: str
    ready: bool = False
    processes: dict[str, SupervisedProcess] = {}
    waiting_for: tuple[str, ...] = ()
    notes: dict[str, str] = {}
    owner: str = ""

    def save(self, folder: Path) -> None:
        """Write the record into the data folder, readable by its owner only."""
        logins.write_private(path(folder), msgspec.json.format(msgspec.json.encode(self)))


def path(folder: Path) -> Path:
    """Return the path of the record in a data folder."""
    return folder / "penstock.json"


def read(folder: Path) -> SupervisorRecord | None:
    """Return the record of a data folder; None where there is none or it cannot be read."""
    try:
        return msgspec.json.decode(path(folder).read_bytes(), type=SupervisorRecord)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def login(folder: Path, user: str) -> dict[str, str] | None:
    """Return the environment of a user of a data folder's server; None where there is no such user or server."""
    record, file = read(folder), login_file(folder, user)
    if record is None or not file.exists():
        return None
    env = {"PENSTOCK_URL": record.url, logins.VARIABLE: str(file)}
    own = {"gateway": lambda: _of_gateway(folder, record.owner), "dashboard": lambda: _of_dashboard(folder)}
    return env | own.get(user, dict)()


def _of_dashboard(folder: Path) -> dict[str, str]:
    """Return what signs the sessions of all dashboards beside this folder."""
    if written("dashboard", "secret_file", environ=os.environ):
        return {}
    return {"PENSTOCK_DASHBOARD_SECRET_FILE": str(folder.absolute() / logins.SERVICE_LOGINS / "dashboard.secret")}


def _of_gateway(folder: Path, owner: str) -> dict[str, str]:
    """Return who owns the cluster and where its files are, on which all of its gateways have to agree."""
    return ({"PENSTOCK_GATEWAY_OWNER": owner} if owner else {}) | _gateway_folders(folder.absolute(), os.environ)


def _gateway_folders(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return where the archive and the index of the past are, unless the settings say it."""
    found = {"archive_dir": folder / "archive", "history_dir": folder / "history", "notify_dir": folder / "notify"}
    unset = {name: path for name, path in found.items() if not origin("gateway", name, environ=environ)}
    return {f"PENSTOCK_GATEWAY_{name.upper()}": str(path) for name, path in unset.items()}


def login_file(folder: Path, user: str) -> Path:
    """Return the file with the login of a service, or of the admin, of a data folder's server."""
    return folder.absolute() / logins.SERVICE_LOGINS / logins.file_name(user)


def public_login_file(folder: Path) -> Path:
    """Return the file with what people need for logging in at the identity provider, where there is one."""
    return folder / "oidc.json"


def write_public_login(options: UpOptions, url: str, ca: str) -> None:
    """
    Write ``oidc.json``: what people need for logging in at the identity provider, in which nothing is secret.

    Raises
    ------
    UpError
        If it cannot be written.
    """
    file = public_login_file(options.folder)
    found = logins.Login(url=url, user="", ca=ca, provider=options.oidc.provider())
    try:
        file.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
        file.chmod(0o644)
    except OSError as error:
        raise UpError(f"{file} cannot be written: {error.strerror}; make room there") from error


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """
    Hold the data folder's lock, as its only supervisor; the kernel gives it back whatever becomes of this process.

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


def process(pid: int) -> SupervisedProcess:
    """Return a running process's identity; start ticks 0 if it is gone."""
    return SupervisedProcess(pid, _start_ticks(pid))


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


def _is_running(old: SupervisedProcess) -> bool:
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


FIRST: Final = 1


class UpError(Exception):
    """Penstock cannot be started or stopped; the message says why and what to do."""


class UpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """
    How to run everything on one machine.

    Attributes
    ----------
    data_dir : str
        Holds all that must survive; made if it is not there.
    port : int
        Of the NATS server on loopback, and of the first of several, the others having the next ones; -1 takes free
        ones.
    servers : int
        How many NATS servers keep the log; 0: as many as keep it already, one in a new folder.
    devices : str
        Of the executor, such as ``fast:2@1.0:16GiB,cpu``; empty leaves it to its settings.
    replicas : dict of str to int
        Processes of each service; one where not named, and as many memory agents as executors.
    config : str
        Settings file for the services; empty takes ``PENSTOCK_CONFIG`` or ``./penstock.toml``.
    quiet : bool
        The services' logs go to files in the data folder and not to standard error.
    extensions : tuple of str
        Who besides Penstock's services may write facts, each its own.
    oidc : OidcSettings
        The identity provider by whose tokens people may log in, if there is one.
    owner : str
        Name of the person who may do everything; empty takes the user who runs it.
    host : str
        Address on which NATS listens; beyond this machine only with TLS.
    name : str
        Host name of this machine for people elsewhere; empty takes what the machine calls itself.
    tls_cert, tls_key, tls_ca : str
        Files of a certificate, its key and the authority that clients are to trust; empty makes an authority of one's
        own where ``host`` is not this machine alone.
    max_payload : int
        Largest message, in bytes.
    max_store_bytes : int
        Most bytes of the log and of all output together; 0 takes three quarters of what the disk has free.
    ready_s : float
        How long to wait for all services to be ready, in seconds.
    drain_s : float
        How long a service may take to stop in good order, in seconds.
    """

    data_dir: str = "penstock-data"
    port: int = 4222
    servers: Annotated[int, Meta(ge=0)] = 0
    devices: str = ""
    replicas: dict[str, Annotated[int, Meta(ge=0)]] = {}
    config: str = ""
    quiet: bool = False
    extensions: tuple[str, ...] = ()
    oidc: OidcSettings = OidcSettings()
    owner: str = ""
    host: str = "127.0.0.1"
    name: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    max_payload: int = 1 << 20
    max_store_bytes: Annotated[int, Meta(ge=0)] = 0
    ready_s: float = 60.0
    drain_s: float = 30.0

    @property
    def folder(self) -> Path:
        """The data folder, absolute."""
        return Path(self.data_dir).absolute()

    @property
    def owner_name(self) -> str:
        """The person who may do everything: whoever starts this, unless another is named."""
        return self.owner or logins.user_name()

    def check_name(self) -> None:
        """
        Refuse a name that no address can have: logins and tokens would carry it.

        Raises
        ------
        UpError
            If ``name`` is neither a host name nor an address.
        """
        if self.name and not _HOST_NAME.fullmatch(self.name) and not is_address(self.name):
            raise UpError(
                f"--name {self.name!r} is no host name; expected one such as cluster.example.org, or an address"
            )

    def check_servers(self) -> None:
        """
        Refuse a number of servers that cannot keep a log together.

        Raises
        ------
        UpError
            If ``servers`` is none that is known.
        """
        from penstock_bus.servers.server_group import COUNTS  # which other commands need not load

        if self.servers and self.servers not in COUNTS:
            counts = " or ".join(map(str, COUNTS))
            raise UpError(f"--servers {self.servers}: so many cannot keep a log together; expected {counts}")

    def processes(self) -> list[tuple[str, int]]:
        """
        Return ``(service, number)`` of each process, numbers from 1.

        Raises
        ------
        UpError
            If ``replicas`` names a service that does not exist.
        """
        for service in self.replicas:
            if service not in CORE:
                raise UpError(f"there is no service {service!r}; expected one of {', '.join(CORE)}")
        beside = dict.fromkeys(AGENTS, self.replicas.get("executor", 1))  # an agent of each kind beside each executor
        counts = {**beside, **self.replicas}
        return [(name, number) for name in CORE for number in range(FIRST, FIRST + counts.get(name, 1))]


def environment(options: UpOptions, service: str, number: int, *, url: str) -> dict[str, str]:
    """Return the variables that one service process gets beside the supervisor's environment."""
    env = {"PENSTOCK_URL": url, logins.VARIABLE: str(login_file(options.folder, service))}
    env["PENSTOCK_DRAIN_S"] = str(options.drain_s)
    if options.config:
        env["PENSTOCK_CONFIG"] = str(Path(options.config).absolute())
    if service == "gateway":
        env["PENSTOCK_GATEWAY_OWNER"] = options.owner_name
    if service == "executor":
        env |= _of_executor(options, number)
    if service in AGENTS:
        env |= _of_agent(options, service, number)
    if service == "allocator":
        env |= _of_allocator(options)
    if service == "gateway":
        env |= _gateway_folders(options.folder, {**os.environ, **env})
    if service == "dashboard" and not _set_in("dashboard", options, "secret_file"):
        env |= _of_dashboard(options.folder)
    if service == "dashboard" and not (_set_in("dashboard", options, "port") or _set_in(service, options, "port_file")):
        own = "penstock-dashboard.port" if number == FIRST else f"penstock-dashboard-{number}.port"
        env["PENSTOCK_DASHBOARD_PORT_FILE"] = str(options.folder.absolute() / own)
    return env


def _of_allocator(options: UpOptions) -> dict[str, str]:
    """Give pilots a folder of their own, and the checkpoints that this machine's executors have."""
    folders = {"data_dir": options.folder / "allocator", "checkpoint_dir": options.folder / "checkpoints"}
    missing = {name: folder for name, folder in folders.items() if not _set_in("allocator", options, name)}
    return {f"PENSTOCK_ALLOCATOR_{name.upper()}": str(folder.absolute()) for name, folder in missing.items()}


def _of_executor(options: UpOptions, number: int) -> dict[str, str]:
    """Give each executor of this machine a folder of its own; all share the checkpoints, to move jobs among them."""
    name = "executor" if number == FIRST else f"executor-{number}"
    env = {
        "PENSTOCK_EXECUTOR_DATA_DIR": str(options.folder / name),
        "PENSTOCK_EXECUTOR_CHECKPOINT_DIR": str(options.folder / "checkpoints"),
    }
    if number != FIRST:
        env["PENSTOCK_EXECUTOR_NODE_ID"] = _further_node(number)
    for agent in AGENTS:
        if not _set_in("executor", options, f"{agent}_dir"):
            env[f"PENSTOCK_EXECUTOR_{agent.upper()}_DIR"] = _agent_dir(options, agent, number)
    if not (is_loopback(options.host) or options.host in EVERYWHERE or _set_in("executor", options, "address")):
        env["PENSTOCK_EXECUTOR_ADDRESS"] = options.host  # by which the other nodes reach the server
    if options.devices:
        env["PENSTOCK_EXECUTOR_DEVICES"] = options.devices
    if trusts_all_submitters(options):
        env["PENSTOCK_EXECUTOR_RUN_AS"] = "executor"
    return env


def _of_agent(options: UpOptions, service: str, number: int) -> dict[str, str]:
    """Make each agent that of the executor of its number: with the node's name, and where jobs look for it."""
    prefix = f"PENSTOCK_{service.upper()}"
    env = {f"{prefix}_DATA_DIR": _agent_dir(options, service, number)}
    node_id = _further_node(number) if number != FIRST else _set_in("executor", options, "node_id")
    if node_id and not (number == FIRST and _set_in(service, options, "node_id")):
        env[f"{prefix}_NODE_ID"] = node_id
    if is_loopback(options.host) and not _set_in(service, options, "host"):
        env[f"{prefix}_HOST"] = options.host
        env[f"{prefix}_ADDRESS"] = options.host
    elif not _set_in(service, options, "address"):
        address = _set_in("executor", options, "address") or ("" if options.host in EVERYWHERE else options.host)
        env |= {f"{prefix}_ADDRESS": address} if address else {}
    pool = _set_in("executor", options, "pool")
    if service == "aggregator" and pool and not _set_in(service, options, "pool"):
        env[f"{prefix}_POOL"] = pool
    return env


def _agent_dir(options: UpOptions, service: str, number: int) -> str:
    return str(options.folder / (service if number == FIRST else f"{service}-{number}"))


def _further_node(number: int) -> str:
    """Return the name of this machine's node of a number that is not the first."""
    return f"{socket.gethostname().split('.')[0].lower()}-{number}"


def let_users_through(options: UpOptions) -> None:
    """Open the data folder for passing where jobs run as their users; what is in it is closed each by itself."""
    if os.geteuid() == 0 and jobs_run_as_users(options) and options.folder.stat().st_uid == 0:
        options.folder.chmod(_PASSABLE)


def trusts_all_submitters(options: UpOptions) -> bool:
    """
    Return whether jobs run as who started this: on the machine of one person, which others do not reach.

    Settings that say as whom win.
    """
    return is_loopback(options.host) and not _set_in("executor", options, "run_as")


def jobs_run_as_users(options: UpOptions) -> bool:
    """Return whether jobs run as who submits them, by the settings or because others reach this machine."""
    return not trusts_all_submitters(options) and _set_in("executor", options, "run_as") != "executor"


def _set_in(section: str, options: UpOptions, name: str) -> str:
    """Return what the environment or the settings file say under a section; empty where they say nothing."""
    own = {CONFIG_VARIABLE: str(options.config)} if options.config else {}
    return written(section, name, environ={**os.environ, **own})
