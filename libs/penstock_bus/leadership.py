"""Being the one replica that decides: a lease, kept as long as the bus confirms it in time."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Final, Protocol

from penstock_bus.logger import get_logger
from penstock_bus.port import Bus, BusError, Lease

TTL_S: Final = 3.0
RENEW_S: Final = 1.0
_log = get_logger("penstock.leadership")


class Leadership(Protocol):
    """Says whether this replica may decide, and whether it may still be trusted to."""

    @property
    def held(self) -> bool:
        """Whether this replica may decide right now."""

    @property
    def term_s(self) -> float:
        """For how long this replica has led without a gap; 0 while it does not lead."""

    @property
    def confirmed_ago_s(self) -> float | None:
        """How long ago the lease was asked for that was last confirmed; None where there is no lease."""

    async def keep(self) -> None:
        """Keep or seek the lead, for ever."""

    async def resign(self) -> None:
        """Let another replica lead at once."""


class Everybody:
    """All replicas decide; conflicts sort it out."""

    held = True
    term_s = 0.0
    confirmed_ago_s = None

    async def keep(self) -> None:
        """Nothing is to be kept."""

    async def resign(self) -> None:
        """Nothing is to be given back."""


class Elected:
    """
    One replica leads: the owner of a lease.

    The leader counts its time from before each request for the lease, by its own clock, so that it stops deciding
    before the bus gives the lease away, even if it cannot reach the bus any more.

    Parameters
    ----------
    bus, name, owner
        Lease and replica.
    on_answer : callable
        Called after each question about the lease, whether or not the answer changed anything. A process that was
        paused may lose the lead and have it back before anybody looks, so a change is nothing to rely on: whoever may
        have been refused compares ``held`` with what he found then.
    clock : callable
        Seconds that never jump. Not the loop's own time, which stands still while a callback runs.
    """

    def __init__(
        self,
        bus: Bus,
        name: str,
        owner: str,
        on_answer: Callable[[], None],
        *,
        ttl_s: float = TTL_S,
        renew_s: float = RENEW_S,
        clock: Callable[[], float] = time.monotonic,  # noqa: TID251 - a lease is kept by a clock
    ) -> None:
        self._bus, self._name, self._owner, self._on_answer = bus, name, owner, on_answer
        self._ttl_s, self._renew_s, self._now = ttl_s, renew_s, clock
        self._lease: Lease | None = None
        self._until = self._since = -math.inf
        self._noted = False

    @property
    def held(self) -> bool:
        """Whether the lease is ours, by our own clock."""
        return self._lease is not None and self._now() < self._until

    @property
    def term_s(self) -> float:
        """For how long the lease has been ours without a gap; 0 while it is not."""
        return self._now() - self._since if self.held else 0.0

    @property
    def confirmed_ago_s(self) -> float | None:
        """How long ago the lease was asked for that was last confirmed; None before the first one."""
        asked_at = self._until - self._ttl_s
        return self._now() - asked_at if self._lease is not None else None

    async def keep(self) -> None:
        """Renew the lease every ``renew_s``, or try to get it twice as often, for ever."""
        while True:
            self._note()  # the process may have been paused for longer than the lease lasts
            asked_at = self._now()
            try:
                async with asyncio.timeout(self._ttl_s):
                    await self._ask()
            except (BusError, TimeoutError) as error:
                _log.warning("lease_not_confirmed", lease=self._name, error=str(error) or "no answer")
            else:
                self._note()  # and so may the answer have been
                self._until = asked_at + self._ttl_s if self._lease is not None else -math.inf
            self._note()
            self._on_answer()
            pause_s = self._renew_s if self.held else self._renew_s / 2
            await asyncio.sleep(max(0.0, asked_at + pause_s - self._now()))

    async def resign(self) -> None:
        """Give the lease back; if that cannot be said, it runs out by itself."""
        lease, self._lease = self._lease, None
        if lease is None:
            return
        try:
            async with asyncio.timeout(self._renew_s):
                await self._bus.release(lease)
        except (BusError, TimeoutError) as error:
            _log.warning("lease_not_released", lease=self._name, error=str(error) or "no answer")

    def _note(self) -> None:
        """Note that the lead was won or lost; with a gap in it, it is another term, be it under the same lease."""
        if self.held != self._noted:
            self._noted = self.held
            self._since = self._now()
            _log.info("lead_won" if self._noted else "lead_lost", lease=self._name, owner=self._owner)

    async def _ask(self) -> None:
        if self._lease is not None and not await self._bus.renew(self._lease):
            self._lease = None
            self._note()
        if self._lease is None:
            self._lease = await self._bus.acquire(self._name, self._owner, self._ttl_s)
