"""Snapshots: compressed pieces in one atomic batch, so that readers see the old one or the new one."""

from __future__ import annotations

import asyncio
from typing import Final

from penstock_bus.chunks import Damaged, join, open_chunk, split
from penstock_bus.logger import get_logger
from penstock_bus.nats import get
from penstock_bus.nats.append import MSG_ID
from penstock_bus.nats.client import NatsClient
from penstock_bus.nats.faults import Lost, fault
from penstock_bus.nats.link import Ack, decode_ack
from penstock_bus.port import Snapshot, Timeout, Unavailable
from penstock_events import subjects as names

_CHUNK_BYTES: Final = 512 * 1024
_MOST_CHUNKS: Final = 1000  # the server's limit for one batch
_ROLLUP: Final = {"Nats-Rollup": "sub"}  # the first message of the new one takes the place of the old one
_LOOKS: Final = 3

_log = get_logger("penstock.bus")


class StateClient(NatsClient):
    """The part of the port that keeps what only makes starting fast."""

    async def save_snapshot(self, name: str, snapshot: Snapshot) -> None:
        """Store the snapshot, replacing the one before."""
        chunks = split(snapshot, min(_CHUNK_BYTES, self.max_body_bytes // 2))
        if len(chunks) == 1:
            ack = await self.link.store(names.state(name), chunks[0], _ROLLUP | {MSG_ID: self.new_id()})
        elif len(chunks) <= _MOST_CHUNKS:
            ack = await self._store_batch(names.state(name), chunks)
        else:
            raise Unavailable(f"the snapshot of {name} has {len(chunks)} pieces and a batch takes {_MOST_CHUNKS}")
        if ack.error is not None:
            raise fault(f"snapshot of {name}", ack.error)

    async def load_snapshot(self, name: str) -> Snapshot | None:
        """Return the snapshot; None where there is none or where it is damaged."""
        reason = ""
        for _ in range(_LOOKS):  # it may be replaced while we read
            last = await get.newest(self.link, names.STATE, names.state(name))
            if last is None:
                return None
            try:
                return join(await self._bodies(last))
            except Damaged as error:
                reason = str(error)
        _log.warning("snapshot_damaged", name=name, error=reason)
        return None

    async def delete_snapshots(self) -> None:
        """Delete all snapshots of all services."""
        await self.link.api(f"STREAM.PURGE.{names.STATE}", {})

    async def _bodies(self, last: get.Stored) -> list[bytes]:
        count = open_chunk(last.body).count
        if count == 1:
            return [last.body]
        stored = get.stored(self.link, names.STATE, last.subject, max(last.seq - count, 0))
        return [message.body async for message in stored if message.seq <= last.seq]

    async def _store_batch(self, subject: str, chunks: list[bytes]) -> Ack:
        """Send the batch; whole again, as a new one, if the connection breaks in the middle."""
        clock = asyncio.get_running_loop().time
        end_s = clock() + self.link.timeout_s
        while True:
            try:
                await self.link.online(max(end_s - clock(), 0.0))
                return await self._try_batch(subject, chunks)
            except (Lost, Timeout):
                if clock() >= end_s:
                    raise

    async def _try_batch(self, subject: str, chunks: list[bytes]) -> Ack:
        batch = self.new_id()
        for i, chunk in enumerate(chunks, 1):
            headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(i)}
            if i == 1:
                opened = await self.link.ask(subject, chunk, headers | _ROLLUP)
                if opened.data and (ack := decode_ack(opened)).error is not None:
                    return ack
            elif i < len(chunks):
                await self.link.tell(subject, chunk, headers)
        return decode_ack(await self.link.ask(subject, chunks[-1], headers | {"Nats-Batch-Commit": "1"}))
