"""
The time by which services decide: one for the whole cluster, which never jumps.

What is decided are durations: how long a job waits, when a failed run is tried again, who has been silent for too long.
The facts that begin them come from other machines and earlier processes, so a clock of one's own that only ticks is not
enough, and the wall clock of a machine may be wrong, or be set while a job waits.

A service takes the time over from those that run already, or else from the server of the log, but never a time before
that of the newest facts; from then on its own clock ticks, whatever becomes of the wall clocks. What the server's clock
says later moves it by half a percent at most: enough for every drift, and too little for a jump to stall or to hurry
anything. So after a server's clock was set, the times of new facts are off by that much until the difference is made
up, or all services have been restarted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from statistics import median
from typing import Final, Protocol

import msgspec

from penstock_bus.logger import get_logger
from penstock_bus.port import BusError, LogReader, RequestPort
from penstock_log import subjects

LOOK_S: Final = 30.0
RATE: Final = 0.005
"""By how much the clock may go faster or slower to follow the server's."""
NEWEST: Final = 64
"""Commits of the log whose times are looked at: a service that was ahead wrote some of them."""
MOST_AHEAD_S: Final = 24 * 3600.0
"""Facts from further ahead of the moment at which they were stored are no reason to follow them."""
_ASK_S: Final = 1.0
_log = get_logger("penstock.clock")


def ticks() -> float:
    """Return seconds that no setting of a clock changes, and that a suspended machine counts too, where it can."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()  # noqa: TID251 - here is where it comes from


class Clock:
    """
    Seconds since the epoch that only ever go on.

    Parameters
    ----------
    wall, ticking : callable
        Where it starts, and what it goes by.

    Examples
    --------
    >>> walls, ticked = [1000.0], [5.0]
    >>> clock = Clock(wall=lambda: walls[0], ticking=lambda: ticked[0])
    >>> walls[0], ticked[0] = -2600.0, 7.5
    >>> clock()
    1002.5
    """

    def __init__(
        self,
        *,
        wall: Callable[[], float] = time.time,  # noqa: TID251 - the one place where a service's clock comes from
        ticking: Callable[[], float] = ticks,
    ) -> None:
        self._ticking = ticking
        self._now_s, self._ticked, self._steered = wall(), ticking(), ticking()

    def __call__(self) -> float:
        """Return the time."""
        ticked = self._ticking()
        self._now_s += max(0.0, ticked - self._ticked)
        self._ticked = ticked
        return self._now_s

    def start(self, at_s: float) -> None:
        """Begin anew with the cluster's time, before anything was decided by this one."""
        self._now_s, self._ticked, self._steered = at_s, self._ticking(), self._ticking()

    def steer(self, server_s: float) -> None:
        """Follow the server's clock by what the rate allows since the last time; never backwards."""
        now_s, most_s = self(), RATE * (self._ticked - self._steered)
        self._steered = self._ticked
        self._now_s = now_s + min(max(server_s - now_s, -most_s), most_s)


class TimeSource(LogReader, RequestPort, Protocol):
    """Where the cluster's time is asked for: the services that decide by it, and the log."""


async def cluster_time(bus: TimeSource, services: Iterable[str]) -> float:
    """
    Return the time that the services of a cluster decide by, or that of its log if none of them answers.

    Raises
    ------
    BusError
        If the log cannot be asked.
    """
    answers = await asyncio.gather(*(_time_of(bus, service) for service in services))
    known = [at_s for at_s in answers if at_s]
    return median(known) if known else max(await bus.now_s(), await newest(bus))


async def newest(bus: LogReader) -> float:
    """Return the latest time among the newest facts of the log; 0 where there are none."""
    last_seq = await bus.last_seq()
    everything = subjects.STREAM_SUBJECTS[subjects.EVT]
    found = 0.0
    for delivery in await bus.read(everything, max(0, last_seq - NEWEST), last_seq):
        times = [delivery.stored_s, *(fact.at_s for fact in delivery.commit.facts)]
        found = max([found, *(at_s for at_s in times if at_s <= delivery.stored_s + MOST_AHEAD_S)])
    return found


async def keep(bus: LogReader, clock: Clock) -> None:
    """Steer a clock by the server's, for ever."""
    while True:
        await asyncio.sleep(LOOK_S)
        before_s = clock()
        try:
            server_s = await bus.now_s()
        except BusError as error:
            _log.debug("server_time_unknown", error=str(error))
            continue
        after_s = clock()
        clock.steer(server_s + (after_s - before_s) / 2)


class _Vitals(msgspec.Struct):
    """What is looked at of what a service says of itself; releases before this one do not say the time."""

    now_s: float = 0.0


async def _time_of(bus: RequestPort, service: str) -> float:
    try:
        body = await bus.request(subjects.query("live", service), b"", _ASK_S)
        return msgspec.json.decode(body, type=_Vitals).now_s
    except (BusError, ValueError, RecursionError):  # it does not run, is too busy, or is no service of ours
        return 0.0
