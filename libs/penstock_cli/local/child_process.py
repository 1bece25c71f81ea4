"""
Processes of ``penstock up``, kept running.

:class:`Readiness` waits until every process has said over the bus that it is ready. :class:`Child` is one process: it
is started again when it dies, more slowly each time (:class:`Backoff`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import IO, Final

import structlog

from penstock_bus import health
from penstock_bus.follower import background
from penstock_bus.port import TelemetryPort
from penstock_bus.servers.server import Process, end
from penstock_bus.shell import EX_CONFIG, EX_DATAERR, REFUSED
from penstock_cli.local.data_folder import UpError
from penstock_log import subjects

_log = structlog.get_logger("penstock.up")

FIRST_S: Final = 0.2
MOST_S: Final = 10.0
STEADY_S: Final = 10.0
_HOPELESS: Final = {
    EX_CONFIG: "its settings are wrong",
    EX_DATAERR: "the log is of a later version",
    REFUSED: "the bus refuses its credentials",
}

Start = Callable[[IO[bytes] | None], Awaitable[Process]]
"""Starts a process whose output goes to the file; without one it goes where the supervisor's goes."""


class Readiness:
    """The process ids that have said that they are ready."""

    def __init__(self) -> None:
        self._ready: set[int] = set()
        self._heard = asyncio.Event()
        self.notes: dict[str, str] = {}
        """Service → what people should know of it, as it was heard last."""

    def hear(self, body: bytes) -> None:
        """Take a heartbeat of a replica; anything else is passed over."""
        vitals = health.parse_vitals(body)
        if vitals is not None and vitals.ready:
            self._ready.add(vitals.pid)
            self.notes |= {vitals.service: vitals.note} if vitals.note else {}
            self._heard.set()

    async def all_of(
        self, bus: TelemetryPort, services: Iterable[str], missing: Callable[[set[int]], list[str]], most_s: float
    ) -> None:
        """
        Wait until ``missing`` names nobody among those that are not ready.

        Raises
        ------
        UpError
            If somebody is still missing after ``most_s`` seconds.
        """
        async with background(*(self._listen(bus, service) for service in set(services))):
            try:
                async with asyncio.timeout(most_s):
                    while missing(self._ready):
                        self._heard.clear()
                        await self._heard.wait()
            except TimeoutError as error:
                names = ", ".join(missing(self._ready))
                raise UpError(f"not ready after {most_s:.0f} s: {names}; their logs say why") from error

    async def _listen(self, bus: TelemetryPort, service: str) -> None:
        async for _, body in bus.subscribe(subjects.replicas(service)):
            self.hear(body)


class Backoff:
    """The wait before a process is started again, which grows with each early death."""

    def __init__(self) -> None:
        self._next_s = FIRST_S

    def after(self, lived_s: float) -> float:
        """Return the wait in seconds after a life of ``lived_s``; a long life makes the next wait short again."""
        wait_s = FIRST_S if lived_s >= STEADY_S else self._next_s
        self._next_s = min(wait_s * 2, MOST_S)
        return wait_s


class Child:
    """
    One process of a service.

    Parameters
    ----------
    name : str
        Such as ``matcher-1``.
    start : callable
        Starts the process; see :data:`Start`.
    log_file : Path or None
        Where its standard error goes; None leaves it on the supervisor's.
    on_start : callable
        Called with the child after each start.
    """

    def __init__(
        self,
        name: str,
        start: Start,
        log_file: Path | None,
        on_start: Callable[[Child], None],
    ) -> None:
        self.name = name
        self.pid = 0
        self.starts = 0
        self._start, self._log_file, self._on_start = start, log_file, on_start
        self._process: Process | None = None
        self._ending = False

    async def keep(self) -> None:
        """
        Run the process until :meth:`end`, starting it again whenever it dies.

        Raises
        ------
        UpError
            If starting it again cannot help.
        """
        await keep_running(self.name, self._once, lambda: self._ending)

    async def end(self, grace_s: float) -> None:
        """Stop the process in good order, or kill it after ``grace_s``."""
        self._ending = True
        if self._process is not None:
            await end(self._process, grace_s)

    async def _once(self) -> int:
        log = private_log(self._log_file) if self._log_file is not None else None
        try:
            self._process = await self._start(log)
        finally:
            if log is not None:
                log.close()
        self.pid = self._process.pid
        self.starts += 1
        self._on_start(self)
        status = await self._process.wait()
        if status in _HOPELESS and not self._ending:
            where = self._log_file or "its log above"
            raise UpError(f"{self.name} cannot run: {_HOPELESS[status]}; see {where}")
        return status


def private_log(path: Path) -> IO[bytes]:
    """Open a log file to append to it; the owner alone may read it, since names and commands of jobs are in it."""
    file = path.open("ab")
    os.fchmod(file.fileno(), 0o600)
    return file


async def keep_running(name: str, once: Callable[[], Awaitable[int]], ending: Callable[[], bool]) -> None:
    """Run something again and again until ``ending``; its return value is the exit status for the log."""
    backoff, clock = Backoff(), asyncio.get_running_loop().time
    while not ending():
        started = clock()
        try:
            status = await once()
        except OSError as error:  # no room for its log, no memory for a process: that may pass
            status, reason = None, str(error)
        else:
            reason = ""
        if ending():
            return
        wait_s = backoff.after(clock() - started)
        if status is None:
            _log.error("process_not_started", name=name, error=reason, again_in_s=wait_s)
        else:
            _log.warning("process_died", name=name, status=status, restart_in_s=wait_s)
        await asyncio.sleep(wait_s)
