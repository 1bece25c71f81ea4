"""
The shell: the process around a service, with its settings, logs, signals, connection, health and an orderly end.

:func:`main` runs a service in this process. :class:`Shell` is what the service finds around it while it runs.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import msgspec
import structlog
import uvloop

from penstock_bus import clock, health, logs
from penstock_bus.clock import Clock, ticks
from penstock_bus.follower import background, pause
from penstock_bus.health import Metrics
from penstock_bus.identity import access, logins
from penstock_bus.port import Bus, BusError, LogFromFuture, LogReader, Timeout, Unauthorized, Unavailable
from penstock_bus.settings import BusAddress, SettingsError, came_as, load
from penstock_log.services import CORE, LOGINS
from penstock_log.text import escaped

__all__ = ["Run", "Shell", "main"]


T = TypeVar("T", bound=msgspec.Struct)

EX_UNAVAILABLE: Final = 69
EX_SOFTWARE: Final = 70
REFUSED: Final = 3
"""As the command line has it: nothing can be done at the server in this way."""
EX_CONFIG: Final = 78
EX_DATAERR: Final = 65
CONNECT_RETRY_S: Final = 0.5
LOST_S: Final = 2.0
"""A bus that does not answer a stopping service for so long is not waited for."""


@dataclass
class Shell:
    """
    What a service finds around it.

    Attributes
    ----------
    bus : Bus
    service, replica_id : str
    stopping : asyncio.Event
        Set when the service is to end: finish what is under way and return.
    vitals : Vitals
        What health and heartbeats say; a service without a :class:`~penstock_bus.replica.Replica` sets ``ready``.
    clock : callable
        Seconds since the epoch, which only ever go on: the cluster's time, see :mod:`penstock_bus.clock`.
    url : str
        Where the bus is; empty where it has no address.
    monotonic : callable
        Seconds that never jump: for leases and for who is alive.
    ready_file : Path or None
        Its age tells health checks whether the service is ready; see :func:`penstock_bus.health.mark`.
    live_file : Path or None
        Its age tells health checks whether the process hangs.
    examine : callable
        Called with the vitals before they are reported: brings up to date what nobody else does.
    busy : callable
        Whether a stopping service still has to finish something that needs no bus, such as the executor's processes;
        otherwise it ends at once if the bus does not answer.
    """

    bus: Bus
    service: str
    replica_id: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    clock: Callable[[], float] = field(default_factory=Clock)
    url: str = ""
    monotonic: Callable[[], float] = ticks
    ready_file: Path | None = None
    live_file: Path | None = None
    busy: Callable[[], bool] = lambda: False
    examine: Callable[[health.Vitals], None] = lambda vitals: None  # noqa: ARG005

    def __post_init__(self) -> None:
        self.log: structlog.stdlib.BoundLogger = structlog.get_logger(f"penstock.{self.service}")
        self.metrics = Metrics(service=self.service, replica=self.replica_id)
        self.vitals = health.Vitals(service=self.service, replica=self.replica_id)
        self.progress = health.DecisionLag(self.vitals, self.monotonic)
        self._peers = health.Peers(self.monotonic)

    def now_s(self) -> float:
        """Return the time, in seconds since the epoch."""
        return self.clock()

    async def take_time(self, services: Iterable[str]) -> None:
        """Take over the time that these services decide by, or the log's; this machine's, where nobody can be asked."""
        if not isinstance(self.clock, Clock):
            return
        try:
            self.clock.start(await clock.cluster_time(self.bus, services))
        except BusError as error:
            self.log.warning("cluster_time_unknown", error=str(error), advice="this machine's clock is used")

    def peers(self) -> list[str]:
        """Return the ids of this service's live replicas, sorted, this one included."""
        return sorted({self.replica_id, *(vitals.replica for vitals in self._peers.alive())})

    def report(self) -> health.Vitals:
        """Return what this replica says of itself by now."""
        self.vitals.now_s = self.now_s()
        self.examine(self.vitals)
        return self.vitals

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Answer health requests, send and receive heartbeats while the context is open."""
        metadata = {"replica": self.replica_id, "pid": str(self.vitals.pid), "host": self.vitals.host}
        served = health.endpoints(self.report, self.metrics)
        async with (
            self.bus.serve(f"penstock-{self.service}", health.VERSION, served, metadata),
            background(health.beat(self.bus, self.report), self._hear_replicas(), self._keep_time(), self._show_life()),
        ):
            yield

    async def _hear_replicas(self) -> None:
        async for vitals in self._peers.listen(self.bus, self.service):
            if self.ready_file is not None and vitals.replica == self.replica_id:
                health.mark(self.ready_file, vitals)

    async def _show_life(self) -> None:
        while self.live_file is not None:
            with suppress(OSError):  # a file that grows old says enough
                self.live_file.touch()
            await asyncio.sleep(health.HEARTBEAT_S)

    async def _keep_time(self) -> None:
        if isinstance(self.clock, Clock):
            await clock.keep(self.bus, self.clock)


Run = Callable[[Shell, T], Awaitable[None]]
E = TypeVar("E", bound=Exception)


def main(
    service: str, settings_type: type[T], run: Run[T], *, refused: Callable[[T], None] = lambda _: None
) -> NoReturn:
    """
    Be a service: the whole of its ``__main__.py``.

    ``refused`` is what is left to do, with the settings, where the bus has refused the credentials.

    Exits with 0 after an orderly end, even if the bus is away at that moment; with 69 if the bus cannot be reached, 70
    after an error in the service, 3 if the bus refuses the credentials and 78 if a setting is wrong.
    """
    try:
        connection = load(BusAddress, "")
        connection.secret(), connection.server()  # files that cannot be read are better known now
        files = connection.fresh_ready_file(), connection.fresh_live_file()
        settings = load(settings_type, service)
        logs.configure(load(logs.Logging, "log"))
    except SettingsError as error:
        sys.stderr.write(f"penstock {service}: {escaped(str(error))}\n")
        raise SystemExit(EX_CONFIG) from error
    code = uvloop.run(_main(service, connection, files, settings, run))
    if code == REFUSED:
        refused(settings)
    raise SystemExit(code)


async def _main(
    service: str, connection: BusAddress, files: tuple[Path | None, Path | None], settings: T, run: Run[T]
) -> int:
    replica_id = connection.replica_id or uuid.uuid4().hex[:8]
    structlog.contextvars.bind_contextvars(service=service, replica=replica_id)
    log = structlog.get_logger("penstock.shell")
    stopping = asyncio.Event()
    handle_signals(stopping)
    async with AsyncExitStack() as stack:
        try:
            bus = await _connect(stack, connection, f"{service}/{replica_id}", stopping)
        except Unauthorized as error:
            log.error("credentials_refused", error=refusal(service, connection, str(error)))
            return REFUSED
        except BusError as error:
            return _unconnected(error, connection.url)
        if bus is None:
            return 0
        ready, live = files
        shell = Shell(bus, service, replica_id, stopping, url=connection.url, ready_file=ready, live_file=live)
        await shell.take_time(CORE)
        log.info("started", url=connection.url, version=health.VERSION)
        try:
            async with shell.serving():
                work = run(shell, settings)
                finished = await run_until_drained(work, stopping, connection.drain_s, partial(lost, bus, shell.busy))
        except Exception as error:
            if stopping.is_set() and (cause := _unavailable(error)):
                log.warning("stopped_without_the_bus", error=str(cause))
                return 0
            return _failed(error, partial(refusal, service, connection))
        log.info("stopped" if finished else "drain_timed_out", drain_s=connection.drain_s)
        return 0 if finished else EX_SOFTWARE


def _unconnected(error: BusError, url: str) -> int:
    """Log why a service has no bus, and return the exit code."""
    log = structlog.get_logger("penstock.shell")
    if isinstance(error, LogFromFuture):
        log.error("log_of_a_later_version", error=str(error))
        return EX_DATAERR
    log.error("bus_unreachable", url=url, error=str(error), advice="is NATS there? set PENSTOCK_URL")
    return EX_UNAVAILABLE


def _failed(error: Exception, refused: Callable[[str], str]) -> int:
    """Log why a service ended, and return the exit code."""
    log = structlog.get_logger("penstock.shell")
    if denied := _first(Unauthorized, error):
        log.error("credentials_refused", error=refused(str(denied)))
        return REFUSED
    if wrong := _first(SettingsError, error):
        log.error("setting_refused", error=str(wrong))
        return EX_CONFIG
    log.error("service_failed", exc_info=error)
    return EX_SOFTWARE


def refusal(service: str, connection: BusAddress, reason: str) -> str:
    """Return what is said where the bus does not take a service for what it is: who came, by what, and what to do."""
    if service not in LOGINS:
        return f"{reason}; it came as {came_as(connection)}"
    if connection.credentials and Path(connection.credentials).parent.name != logins.SERVICE_LOGINS.name:
        again = "if this machine joined as a node, join again with what `penstock node token` prints"
        return f"{reason}; it came as {came_as(connection)}: {again}"
    return (
        f"{reason}; it came as {came_as(connection)}, expected the login of {service!r}: set {logins.VARIABLE} to a "
        f"copy of nats/logins/{service}.json in the data folder of `penstock up`, or on that machine give --data "
        f"FOLDER to `penstock service {service}`"
    )


def handle_signals(stopping: asyncio.Event) -> None:
    """Set ``stopping`` at the first SIGTERM or SIGINT, and exit at once at the second."""

    def on_signal(signum: signal.Signals) -> None:
        if stopping.is_set():
            sys.stderr.write(f"second {signum.name}: exiting at once\n")
            os._exit(128 + signum)
        structlog.get_logger("penstock.shell").info("stopping", signal=signum.name)
        stopping.set()

    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, on_signal, signum)


async def run_until_drained(
    work: Awaitable[None],
    stopping: asyncio.Event,
    drain_s: float,
    beside: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> bool:
    """
    Run until the work ends by itself, giving it ``drain_s`` after ``stopping``; False if it had to be cut off.

    Raises
    ------
    Exception
        What the work raises, or what runs ``beside`` it after ``stopping``.
    """
    task = asyncio.ensure_future(work)
    tasks = {task, asyncio.ensure_future(stopping.wait())}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        ends = {task}
        if beside is not None and not task.done():
            ends.add(asyncio.ensure_future(beside()))
            tasks |= ends
        done, _ = await asyncio.wait(ends, timeout=drain_s, return_when=asyncio.FIRST_COMPLETED)
        for ended in {task} & done or done:
            ended.result()
        return task in done
    finally:
        for one in tasks:
            one.cancel()


async def lost(bus: LogReader, busy: Callable[[], bool]) -> None:
    """
    Watch the bus for a service that is to end.

    Raises
    ------
    Unavailable
        As soon as it does not answer and the service is not ``busy`` without it.
    """
    while True:
        error = await _trouble(bus)
        if error is not None and not busy():
            raise error
        await asyncio.sleep(CONNECT_RETRY_S)


async def _trouble(bus: LogReader) -> Unavailable | None:
    try:
        async with asyncio.timeout(LOST_S):
            await bus.last_seq()
    except TimeoutError:
        return Timeout(f"the bus did not answer within {LOST_S} s")
    except Unavailable as error:
        return error
    except BusError:  # an answer, if not the one that was hoped for
        return None
    return None


def _unavailable(error: BaseException) -> Unavailable | None:
    """Return the error of the bus that it is, or that all errors of the group are; None where there is another."""
    while isinstance(error, BaseExceptionGroup) and error.split(Unavailable)[1] is None:
        error = error.exceptions[0]
    return error if isinstance(error, Unavailable) else None


def _first(kind: type[E], error: BaseException) -> E | None:
    """Return the error of a kind that an error is, or that stands first in a group of errors; None where none is."""
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, (_first(kind, one) for one in error.exceptions)), None)
    return error if isinstance(error, kind) else None


async def _connect(stack: AsyncExitStack, connection: BusAddress, name: str, stopping: asyncio.Event) -> Bus | None:
    """Return the bus; None if the service is stopped meanwhile."""
    from penstock_bus.nats import connect  # noqa: PLC0415 - machines and tests need not load an adapter

    async def enter(login: logins.Login | None) -> Bus:
        return await stack.enter_async_context(connect(connection.server(), login=login, name=name))

    found = connection.logins("extension", connection.server())
    if found.looked and (own := connection.logins(access.role_of(name.partition("/")[0]), connection.server())).logins:
        found = own
    if found.looked and name.partition("/")[0] in LOGINS:  # whom nothing but its own login helps
        found = logins.LoginSearch(logins=(), looked=())
    log = structlog.get_logger("penstock.shell")
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + connection.connect_s
    while not stopping.is_set():
        try:
            return await logins.first_accepted(enter, found, "extension")
        except Unavailable as error:
            if loop.time() >= give_up_at:
                raise
            log.warning("bus_not_reached_yet", url=connection.url, error=str(error))
        await pause(CONNECT_RETRY_S, stopping)
    return None
