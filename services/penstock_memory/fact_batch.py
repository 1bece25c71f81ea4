"""
Facts on their way to the log: what happened to slabs is summed up, and becomes one commit a second at most.

While the log is away the sums grow, and their number does not: of each kind there are :data:`MOST_USERS`, and what
comes beyond is summed up without the job, whose name is the client's own choice.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from penstock_bus.follower import until_available
from penstock_bus.logger import get_logger
from penstock_bus.port import Append, BusError, LogPort
from penstock_log import AnyEvent, Commit, MemoryOffered, SlabsEvicted, SlabsLent, SlabsReturned, subjects

FLUSH_S: Final = 1.0
OFFERED_S: Final = 10.0
"""An offer that changes again and again is told so often at most."""
OFFERED_PART: Final = 8
MOST_USERS: Final = 32
_log = get_logger("penstock.memory")


class SlabUser(NamedTuple):
    """For whom a slab is lent: a node, an account there, and a job that it says it is of."""

    borrower: str
    user: str
    job_id: str


class FactBatch:
    """
    What happened on a node since the last commit.

    Parameters
    ----------
    now_s, ticking : callable
        The cluster's time, and seconds that never jump.
    """

    def __init__(self, bus: LogPort, node_id: str, now_s: Callable[[], float], ticking: Callable[[], float]) -> None:
        self._bus, self._node_id, self._now_s, self._ticking = bus, node_id, now_s, ticking
        self._lent: Counter[SlabUser] = Counter()
        self._returned: Counter[tuple[SlabUser, Literal["returned", "expired", "damaged"]]] = Counter()
        self._evicted: Counter[tuple[SlabUser, str]] = Counter()
        self._offer: MemoryOffered | None = None
        self._told_slabs, self._told_s = -1, -OFFERED_S

    def __len__(self) -> int:
        """Return how many facts are to be written, each a sum of what happened."""
        return len(self._lent) + len(self._returned) + len(self._evicted) + (self._offer is not None)

    def lent(self, user: SlabUser) -> None:
        """Note that a slab was lent."""
        self._lent[_counted_as(user, user in self._lent, len(self._lent))] += 1

    def returned(self, user: SlabUser, why: Literal["returned", "expired", "damaged"]) -> None:
        """Note that a slab came back without being asked for."""
        known = (user, why) in self._returned
        self._returned[_counted_as(user, known, len(self._returned)), why] += 1

    def evicted(self, user: SlabUser, reason: str) -> None:
        """Note that a slab was taken back."""
        known = (user, reason) in self._evicted
        self._evicted[_counted_as(user, known, len(self._evicted)), reason] += 1

    def offered(self, slabs: int, slab_bytes: int, free_bytes: int, headroom_bytes: int) -> None:
        """Note what the node offers now."""
        self._offer = MemoryOffered(
            at_s=self._now_s(),
            node_id=self._node_id,
            slabs=slabs,
            slab_bytes=slab_bytes,
            free_bytes=free_bytes,
            headroom_bytes=headroom_bytes,
        )

    async def write(self, stopping: asyncio.Event) -> None:
        """Append what has happened, for ever."""
        while True:
            await asyncio.sleep(FLUSH_S)
            try:
                await self.flush(stopping)
            except BusError as error:  # the next one has other sums: people miss these
                _log.warning("memory_facts_not_written", error=str(error))

    async def flush(self, stopping: asyncio.Event | None = None) -> None:
        """Append what has happened since the last time, if anything has."""
        facts = tuple(self._facts())
        if not facts:
            return
        commit = Commit(id=uuid.uuid4().hex, actor=f"memory/{self._node_id}", facts=facts)
        item = Append(subject=subjects.memory(self._node_id), commit=commit, expected=None)
        await until_available(lambda: self._bus.append(item), f"append to {item.subject}", stopping)

    def _facts(self) -> list[AnyEvent]:
        at_s, node_id = self._now_s(), self._node_id
        facts: list[AnyEvent] = []
        offer, now_s = self._offer, self._ticking()
        if offer is not None and self._is_news(offer.slabs) and now_s >= self._told_s + OFFERED_S:
            self._told_slabs, self._told_s = offer.slabs, now_s
            facts.append(offer)
        for user, slabs in self._lent.items():
            facts.append(SlabsLent(at_s=at_s, node_id=node_id, slabs=slabs, **user._asdict()))
        for (user, why), slabs in self._returned.items():
            facts.append(SlabsReturned(at_s=at_s, node_id=node_id, slabs=slabs, why=why, **user._asdict()))
        for (user, reason), slabs in self._evicted.items():
            facts.append(SlabsEvicted(at_s=at_s, node_id=node_id, slabs=slabs, reason=reason, **user._asdict()))
        self._lent.clear()
        self._returned.clear()
        self._evicted.clear()
        return facts

    def _is_news(self, slabs: int) -> bool:
        """Return whether an offer differs by more than comes and goes: by an eighth, or in whether there is any."""
        told = self._told_slabs
        return told < 0 or (slabs > 0) != (told > 0) or abs(slabs - told) > told // OFFERED_PART


def _counted_as(user: SlabUser, known: bool, users: int) -> SlabUser:
    return user if known or users < MOST_USERS else user._replace(job_id="")
