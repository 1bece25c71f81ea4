"""Being the one replica that decides: a lease, kept as long as the bus confirms it in time."""

from __future__ import annotations

import asyncio
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

    async def keep(self) -> None:
        """Keep or seek the lead, for ever."""

    async def resign(self) -> None:
        """Let another replica lead at once."""


class Everybody:
    """All replicas decide; conflicts sort it out."""

    held = True

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
    on_change : callable
        Called when the lead was won or lost.
    """

    def __init__(
        self,
        bus: Bus,
        name: str,
        owner: str,
        on_change: Callable[[], None],
        *,
        ttl_s: float = TTL_S,
        renew_s: float = RENEW_S,
    ) -> None:
        self._bus, self._name, self._owner, self._on_change = bus, name, owner, on_change
        self._ttl_s, self._renew_s = ttl_s, renew_s
        self._lease: Lease | None = None
        self._until = 0.0
        self._told = False

    @property
    def held(self) -> bool:
        """Whether the lease is ours, by our own clock."""
        return self._lease is not None and self._now() < self._until

    async def keep(self) -> None:
        """Renew the lease every ``renew_s``, or try to get it twice as often, for ever."""
        while True:
            asked_at = self._now()
            try:
                async with asyncio.timeout(self._ttl_s):
                    await self._ask()
            except (BusError, TimeoutError) as error:
                _log.warning("lease_not_confirmed", lease=self._name, error=str(error) or "no answer")
            else:
                self._until = asked_at + self._ttl_s if self._lease is not None else 0.0
            self._tell()
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

    def _tell(self) -> None:
        if self.held != self._told:
            self._told = self.held
            _log.info("lead_won" if self._told else "lead_lost", lease=self._name, owner=self._owner)
            self._on_change()

    async def _ask(self) -> None:
        if self._lease is not None and not await self._bus.renew(self._lease):
            self._lease = None
        if self._lease is None:
            self._lease = await self._bus.acquire(self._name, self._owner, self._ttl_s)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
