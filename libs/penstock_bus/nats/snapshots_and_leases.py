"""
Snapshots and leases over NATS.

A snapshot is compressed pieces in one atomic batch, so that readers see the old snapshot or the new one
(:class:`NatsStateClient`). Leases are entries of a key-value bucket: the server's clock ends them, and compare-and-set
decides who is next (:class:`NatsLeaseClient`).
"""

from __future__ import annotations

import asyncio
import math
import re
from typing import Final, Optional

import msgspec

from penstock_bus.clock import ticks
from penstock_bus.logger import get_logger
from penstock_bus.nats import direct_get
from penstock_bus.nats.atomic_batch import send_batch
from penstock_bus.nats.link import (
    WRONG_LAST_SEQUENCE,
    Ack,
    ClientOptions,
    ConnectionLost,
    Link,
    NatsClient,
    fault,
)
from penstock_bus.nats.log import EXPECTED, MSG_ID
from penstock_bus.nats.streams import BUCKET, KEY
from penstock_bus.port import Lease, LeasePort, Snapshot, SnapshotPort, Timeout, TooLarge
from penstock_bus.stored_messages import SnapshotDamaged, join, open_chunk, split
from penstock_log import subjects as names

_CHUNK_BYTES: Final = 512 * 1024
_MOST_CHUNKS: Final = 1000  # the server's limit for one batch
_ROLLUP: Final = {"Nats-Rollup": "sub"}  # the first message of the new one takes the place of the old one
_LOOKS: Final = 3

_log = get_logger("penstock.bus")


class NatsStateClient(NatsClient, SnapshotPort):
    """Snapshots, which make starting fast and nothing else."""

    async def save_snapshot(self, name: str, snapshot: Snapshot) -> None:
        chunks = await asyncio.to_thread(split, snapshot, min(_CHUNK_BYTES, self.max_body_bytes // 2))
        if len(chunks) == 1:
            ack = await self.link.store(names.state(name), chunks[0], _ROLLUP | {MSG_ID: self.new_id()})
        elif len(chunks) <= _MOST_CHUNKS:
            ack = await self._store_batch(names.state(name), chunks)
        else:
            raise TooLarge(f"the snapshot of {name} has {len(chunks)} pieces and a batch takes {_MOST_CHUNKS}")
        if ack.error is not None:
            raise fault(f"snapshot of {name}", ack.error)

    async def load_snapshot(self, name: str) -> Snapshot | None:
        reason = ""
        for _ in range(_LOOKS):  # it may be replaced while we read
            last = await direct_get.newest(self.link, names.stream_of_state(name), names.state(name))
            if last is None:
                return None
            try:
                return join(await self._bodies(names.stream_of_state(name), last))
            except SnapshotDamaged as error:
                reason = str(error)
        _log.warning("snapshot_damaged", name=name, error=reason)
        return None

    async def delete_snapshots(self) -> None:
        for stream in (names.STATE, names.NODES):
            await self.link.api(f"STREAM.PURGE.{stream}", {})

    async def _bodies(self, stream: str, last: direct_get.StreamMessage) -> list[bytes]:
        count = open_chunk(last.body).count
        if count == 1:
            return [last.body]
        stored = direct_get.stored(self.link, stream, last.subject, max(last.seq - count, 0))
        return [message.body async for message in stored if message.seq <= last.seq]

    async def _store_batch(self, subject: str, chunks: list[bytes]) -> Ack:
        """Send the batch; whole again, as a new one, if the connection breaks in the middle."""
        clock = asyncio.get_running_loop().time
        end_s = clock() + self.link.timeout_s
        while True:
            try:
                await self.link.online(max(end_s - clock(), 0.0))
                return await self._try_batch(subject, chunks)
            except (ConnectionLost, Timeout):
                if clock() >= end_s:
                    raise

    async def _try_batch(self, subject: str, chunks: list[bytes]) -> Ack:
        messages = [(subject, chunk, {} if i else _ROLLUP) for i, chunk in enumerate(chunks)]
        return await send_batch(self.link, self.new_id(), messages)


_MARKERS: Final = ("KV-Operation", "Nats-Marker-Reason")
_TRIES: Final = 3
_TTL: Final = "Nats-TTL"
_SECONDS: Final = re.compile(r"[0-9]{1,4}s")
_LONGEST_S: Final = 3600
_MARGIN_S: Final = 1.0


FAILOVER_S: Final = 15.0
"""
Longer than servers take to elect a leader: they begin after 4 to 9 s without the old one (4.4 to 9.0 s were measured).
"""


class _Config(msgspec.Struct, frozen=True):
    """A stream's configuration, as far as it is looked at."""

    num_replicas: int = 1


class _Info(msgspec.Struct, frozen=True):
    """The server's answer about a stream, as far as it is looked at."""

    config: _Config


class LeaseRecord(msgspec.Struct, frozen=True):
    """The bucket's record of a lease: its owner, and the revision at which the owner began (0: this one)."""

    owner: str
    token: int = 0


class LeaseEntry(msgspec.Struct, frozen=True):
    """The bucket's newest entry of a name; ``held`` is None where nobody owns it, else it holds for ``ttl_s``."""

    revision: int = 0
    held: Optional[LeaseRecord] = None
    ttl_s: float = 0.0


class NatsLeaseClient(NatsClient, LeasePort):
    """
    Leases, which say who leads.

    The server counts whole seconds: a lease of 1.5 s lives for 2 s, and of no more than an hour. An entry without an
    end, whoever wrote it, is not a lease and keeps nobody from leading. On several servers a lease lasts for
    :data:`FAILOVER_S` at least: none is taken or renewed while the bucket's servers elect a leader.
    """

    def __init__(self, link: Link, options: ClientOptions) -> None:
        super().__init__(link, options)
        self._looked: dict[str, tuple[int, float]] = {}

    async def acquire(self, name: str, owner: str, ttl_s: float) -> Lease | None:
        for _ in range(_TRIES):
            entry = await self._entry(name)
            held = None if self._outlived(name, entry) else entry.held
            if held is not None and held.owner != owner:
                return None
            token = held.token if held else 0
            ttl_s = max(ttl_s, await self._least_ttl_s())
            ack = await self._put(name, LeaseRecord(owner, token), entry.revision, ttl_s)
            if ack.error is None:
                return Lease(name=name, owner=owner, token=token or ack.seq, ttl_s=ttl_s)
        return None

    async def _least_ttl_s(self) -> float:
        config = (await self.link.api(f"STREAM.INFO.{BUCKET}", answer=_Info)).config
        return FAILOVER_S if config.num_replicas > 1 else 0.0

    def _outlived(self, name: str, entry: LeaseEntry) -> bool:
        """
        Say whether a lease has not been renewed for longer than it lasts, by our own clock.

        The server ends leases by the time of day. If that is set back, the lease of an owner that is gone would last.
        """
        revision, since = self._looked.get(name, (0, 0.0))
        if revision != entry.revision:
            self._looked[name] = entry.revision, ticks()
            return False
        return entry.held is not None and ticks() - since > entry.ttl_s + _MARGIN_S

    async def renew(self, lease: Lease) -> bool:
        for _ in range(_TRIES):
            entry = await self._entry(lease.name)
            if entry.held is None or entry.held.token != lease.token:
                return False
            ack = await self._put(lease.name, LeaseRecord(lease.owner, lease.token), entry.revision, lease.ttl_s)
            if ack.error is None:
                return True
        return False

    async def release(self, lease: Lease) -> None:
        entry = await self._entry(lease.name)
        if entry.held is not None and entry.held.token == lease.token:
            headers = {EXPECTED: str(entry.revision), "KV-Operation": "DEL"}
            await self.link.store(KEY + lease.name, b"", headers)

    async def _entry(self, name: str) -> LeaseEntry:
        stored = await direct_get.from_leader(self.link, BUCKET, {"last_by_subj": KEY + name})
        if stored is None:
            return LeaseEntry()
        if any(marker in stored.headers for marker in _MARKERS):
            return LeaseEntry(stored.seq)
        held = _held(stored)
        if held is None:
            _log.warning("lease_ignored", lease=name, advice=f"it has no owner or no end within {_LONGEST_S} s")
        return LeaseEntry(stored.seq, held, float(stored.headers[_TTL][:-1]) if held else 0.0)

    async def _put(self, name: str, held: LeaseRecord, revision: int, ttl_s: float) -> Ack:
        """Write if nobody has written since the revision; the caller looks again after a refusal."""
        headers = {EXPECTED: str(revision), _TTL: f"{min(max(math.ceil(ttl_s), 1), _LONGEST_S)}s"}
        ack = await self.link.store(KEY + name, msgspec.json.encode(held), headers)
        if ack.error is not None and ack.error.err_code not in WRONG_LAST_SEQUENCE:
            raise fault(f"lease {name}", ack.error)
        return ack


def _held(stored: direct_get.StreamMessage) -> LeaseRecord | None:
    """Return who holds a lease; None for an entry that would never end or that is no lease: it cannot be renewed."""
    ttl = stored.headers.get(_TTL, "")
    if not _SECONDS.fullmatch(ttl) or not 0 < int(ttl[:-1]) <= _LONGEST_S:
        return None
    try:
        held = msgspec.json.decode(stored.body, type=LeaseRecord)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if not 0 <= held.token <= stored.seq:  # the revision that its owner began with
        return None
    return LeaseRecord(held.owner, held.token or stored.seq)
