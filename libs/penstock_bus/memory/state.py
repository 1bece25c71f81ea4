"""Snapshots and leases in memory."""

from __future__ import annotations

from penstock_bus.chunks import Damaged, join, split
from penstock_bus.logger import get_logger
from penstock_bus.memory.client import Client
from penstock_bus.port import Lease, Snapshot

_log = get_logger("penstock.bus")


class StateClient(Client):
    """The part of the port that keeps what only makes starting fast, and who leads."""

    async def save_snapshot(self, name: str, snapshot: Snapshot) -> None:
        """Store the snapshot, replacing the one before."""
        await self.ready()
        self.server.snapshots[name] = split(snapshot, self.max_body_bytes // 2)

    async def load_snapshot(self, name: str) -> Snapshot | None:
        """Return the snapshot; None where there is none or where it is damaged."""
        await self.ready()
        try:
            return join(self.server.snapshots[name]) if name in self.server.snapshots else None
        except Damaged as error:
            _log.warning("snapshot_damaged", name=name, error=str(error))
            return None

    async def delete_snapshots(self) -> None:
        """Delete all snapshots of all services."""
        await self.ready()
        self.server.snapshots.clear()

    async def acquire(self, name: str, owner: str, ttl_s: float) -> Lease | None:
        """Become the owner of a name, if nobody is."""
        await self.ready()
        return self.server.acquire(name, owner, ttl_s)

    async def renew(self, lease: Lease) -> bool:
        """Stay the owner for another ``ttl_s``; False if the lease is gone."""
        await self.ready()
        return self.server.renew(lease)

    async def release(self, lease: Lease) -> None:
        """Stop being the owner at once."""
        await self.ready()
        self.server.release(lease)
