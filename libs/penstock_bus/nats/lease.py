"""Leases on a key-value bucket: the server's clock ends them, and compare-and-set decides who is next."""

from __future__ import annotations

import math
import re
from typing import Any, Final

import msgspec

from penstock_bus.clock import ticks
from penstock_bus.logger import get_logger
from penstock_bus.nats import get
from penstock_bus.nats.append import EXPECTED
from penstock_bus.nats.client import NatsClient
from penstock_bus.nats.faults import WRONG_LAST_SEQUENCE, fault
from penstock_bus.nats.link import Ack, Link
from penstock_bus.nats.streams import BUCKET, KEY
from penstock_bus.port import Lease

_MARKERS: Final = ("KV-Operation", "Nats-Marker-Reason")
_TRIES: Final = 3
_TTL: Final = "Nats-TTL"
_SECONDS: Final = re.compile(r"[0-9]{1,4}s")
_LONGEST_S: Final = 3600
_MARGIN_S: Final = 1.0
_log = get_logger("penstock.bus")


class Held(msgspec.Struct, frozen=True):
    """What the bucket says of a lease: its owner, and the revision that the owner began with (0: this one)."""

    owner: str
    token: int = 0


class Entry(msgspec.Struct, frozen=True):
    """The bucket's last word on a name; ``held`` is None where nobody owns it, else it holds for ``ttl_s``."""

    revision: int = 0
    held: Held | None = None
    ttl_s: float = 0.0


class LeaseClient(NatsClient):
    """
    The part of the port that says who leads.

    The server counts whole seconds: a lease of 1.5 s lives for 2 s, and of no more than an hour. An entry without an
    end, whoever wrote it, is not a lease and keeps nobody from leading. On a cluster of three its time should be longer
    than a fail-over (10 s), or its holder must stop by its own clock.
    """

    def __init__(self, link: Link, **options: Any) -> None:
        super().__init__(link, **options)
        self._looked: dict[str, tuple[int, float]] = {}

    async def acquire(self, name: str, owner: str, ttl_s: float) -> Lease | None:
        """Become the owner of a name, if nobody is."""
        for _ in range(_TRIES):
            entry = await self._entry(name)
            held = None if self._outlived(name, entry) else entry.held
            if held is not None and held.owner != owner:
                return None
            token = held.token if held else 0
            ack = await self._put(name, Held(owner, token), entry.revision, ttl_s)
            if ack.error is None:
                return Lease(name=name, owner=owner, token=token or ack.seq, ttl_s=ttl_s)
        return None

    def _outlived(self, name: str, entry: Entry) -> bool:
        """
        Say whether a lease has not been renewed for longer than it lasts, by our own clock.

        The server ends leases by the time of day. Where that was set back, one whose owner is gone would last on.
        """
        revision, since = self._looked.get(name, (0, 0.0))
        if revision != entry.revision:
            self._looked[name] = entry.revision, ticks()
            return False
        return entry.held is not None and ticks() - since > entry.ttl_s + _MARGIN_S

    async def renew(self, lease: Lease) -> bool:
        """Stay the owner for another ``ttl_s``; False if the lease is gone."""
        for _ in range(_TRIES):
            entry = await self._entry(lease.name)
            if entry.held is None or entry.held.token != lease.token:
                return False
            ack = await self._put(lease.name, Held(lease.owner, lease.token), entry.revision, lease.ttl_s)
            if ack.error is None:
                return True
        return False

    async def release(self, lease: Lease) -> None:
        """Stop being the owner at once."""
        entry = await self._entry(lease.name)
        if entry.held is not None and entry.held.token == lease.token:
            headers = {EXPECTED: str(entry.revision), "KV-Operation": "DEL"}
            await self.link.store(KEY + lease.name, b"", headers)

    async def _entry(self, name: str) -> Entry:
        stored = await get.from_leader(self.link, BUCKET, {"last_by_subj": KEY + name})
        if stored is None:
            return Entry()
        if any(marker in stored.headers for marker in _MARKERS):
            return Entry(stored.seq)
        held = _held(stored)
        if held is None:
            _log.warning("lease_ignored", lease=name, advice=f"it has no owner or no end within {_LONGEST_S} s")
        return Entry(stored.seq, held, float(stored.headers[_TTL][:-1]) if held else 0.0)

    async def _put(self, name: str, held: Held, revision: int, ttl_s: float) -> Ack:
        """Write if nobody wrote since; the caller looks again after a refusal."""
        headers = {EXPECTED: str(revision), _TTL: f"{min(max(math.ceil(ttl_s), 1), _LONGEST_S)}s"}
        ack = await self.link.store(KEY + name, msgspec.json.encode(held), headers)
        if ack.error is not None and ack.error.err_code not in WRONG_LAST_SEQUENCE:
            raise fault(f"lease {name}", ack.error)
        return ack


def _held(stored: get.Stored) -> Held | None:
    """Return who holds a lease; None for an entry that would never end, or that is no lease: nobody can renew it."""
    ttl = stored.headers.get(_TTL, "")
    if not _SECONDS.fullmatch(ttl) or not 0 < int(ttl[:-1]) <= _LONGEST_S:
        return None
    try:
        held = msgspec.json.decode(stored.body, type=Held)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if not 0 <= held.token <= stored.seq:  # the revision that its owner began with
        return None
    return Held(held.owner, held.token or stored.seq)
