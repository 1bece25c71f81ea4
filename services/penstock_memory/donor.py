"""
What this node lends, to whom, and what it takes back.

The donor follows the node's free memory each second, and at once when a job is placed on it. It offers what is beyond
the head-room and promised to no job. When it offers less than it has lent, it first frees the slabs that are only
ready, then evicts in a batch: it asks after the activity of some more slabs than it needs, tells the agents of the
least active ones, and takes these back once they have answered, or after :data:`WITHIN_S` if they have not. Copies of
checkpoints, which nobody renews (:mod:`penstock_memory.kept_copies`), are the last that go.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Final, Protocol, TypeVar

import msgspec
import numpy as np
import structlog

from penstock_bus.port import BusError
from penstock_log.memory_messages import (
    LEASE_S,
    AgentRequest,
    CheckActivity,
    CopyFound,
    EvictSlabs,
    FindKept,
    KeepSlabs,
    LeasesGone,
    MapSlab,
    QuerySlabs,
    RenewSlabs,
    SlabActivity,
    SlabAddress,
    SlabOffer,
    SlabsFree,
    UnmapSlabs,
)
from penstock_memory.fact_batch import FactBatch, SlabUser
from penstock_memory.kept_copies import FindJob, KeepingRefused, KeptCopies, KeptCopy
from penstock_memory.machine import MemorySettings
from penstock_memory.pressure import FreeMemory, HostMemory, headroom
from penstock_memory.slab_pool import PAGE_BYTES, NoMemory, Slab, SlabPool
from penstock_policies.slabs import eviction_sample, least_active, slabs_to_offer

WITHIN_S: Final = 0.5
ACTIVITY_S: Final = 0.3
"""How long answers about activity are waited for; a slab of which nothing is heard counts as idle."""
EXTRA: Final = 5
"""So many more slabs are asked after than are evicted (E')."""
MOST_TOLD: Final = 100
"""So many borrowers are named in an offer, which has to fit a message: a job's name is the client's own choice."""
_log = structlog.get_logger("penstock.memory")
T = TypeVar("T")


class Refused(Exception):
    """A request that is not granted, with the reason."""


class AskAgent(Protocol):
    """Asking another agent, or this one."""

    async def __call__(self, node_id: str, request: AgentRequest, answer: type[T], timeout_s: float) -> T:
        """Return the answer; raises BusError."""


class Lending(msgspec.Struct):
    """A slab that is lent; ``renewed_s`` is when its lease was last renewed, in seconds that never jump."""

    slab: Slab
    user: SlabUser
    renewed_s: float


class DonorPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where clients find the data port, and on which machine it is; see :class:`SlabAddress`."""

    node_id: str
    host: str
    port: int
    socket: str
    boot_id: str


class Donor:
    """
    The lender of one node's memory.

    Parameters
    ----------
    find_job : FindJob
        Whose copies of checkpoints are kept; without it, nobody's.

    Attributes
    ----------
    offered : int
        Slabs that it would have lent at most by now.
    evicted : int
        Slabs taken back since the start.
    """

    def __init__(
        self,
        pool: SlabPool,
        place: DonorPlace,
        settings: MemorySettings,
        *,
        ask: AskAgent,
        facts: FactBatch,
        ticking: Callable[[], float],
        rng: np.random.Generator,
        find_job: FindJob = lambda _: None,
    ) -> None:
        self._kept = KeptCopies(find_job)
        self._pool, self._place, self._settings = pool, place, settings
        self._ask, self._facts, self._ticking, self._rng = ask, facts, ticking, rng
        self._free = FreeMemory()
        self._lent: dict[str, Lending] = {}
        self._mapping = 0
        self._headroom_bytes = 0
        self._promised_bytes = 0
        self._settling = asyncio.Lock()
        self.offered = 0
        self.evicted = 0

    # --- what agents ask
    async def answer(
        self, request: QuerySlabs | MapSlab | RenewSlabs | UnmapSlabs | KeepSlabs | FindKept
    ) -> SlabsFree | SlabAddress | LeasesGone | CopyFound:
        """
        Answer an agent.

        Raises
        ------
        Refused
            If no slab is lent, or a copy is not kept or not here.
        """
        match request:
            case QuerySlabs():
                return SlabsFree(slabs=self._slabs_free(request.slab_bytes), free_bytes=self._beyond_headroom_bytes())
            case MapSlab():
                return await self._lend(request)
            case RenewSlabs():
                return LeasesGone(leases=tuple(self._renew(request.leases)))
            case UnmapSlabs():
                return LeasesGone(leases=tuple(await self._unmap(request.leases)))
            case KeepSlabs():
                return self._keep(request)
            case FindKept():
                return self._find(request)

    async def _lend(self, request: MapSlab) -> SlabAddress:
        if not self._slabs_free(request.slab_bytes):
            raise Refused(self._why_none(request.slab_bytes))
        self._mapping += 1
        lending = asyncio.ensure_future(asyncio.to_thread(self._pool.lend))
        try:
            slab = await asyncio.shield(lending)
        except NoMemory as error:
            raise Refused(str(error)) from error
        except asyncio.CancelledError:  # a client of this node that has left; the thread goes on all the same
            lending.add_done_callback(self._take_unclaimed)
            raise
        finally:
            self._mapping -= 1
        user = SlabUser(request.borrower, request.user, request.job_id)
        self._lent[slab.lease.hex()] = Lending(slab, user, self._ticking())
        self._facts.lent(user)
        return self._address_of(slab)

    def _address_of(self, slab: Slab) -> SlabAddress:
        return SlabAddress(
            donor=self._place.node_id,
            lease=slab.lease.hex(),
            token=slab.token.hex(),
            slab=slab.number,
            generation=slab.generation,
            slab_bytes=slab.slab_bytes,
            host=self._place.host,
            port=self._place.port,
            boot_id=self._place.boot_id,
            socket=self._place.socket,
        )

    def _take_unclaimed(self, lending: asyncio.Future[Slab]) -> None:
        """Take back a slab whose borrower left before it was lent: nobody else knows of it."""
        if not lending.cancelled() and lending.exception() is None:
            self._pool.take_back([lending.result().lease])

    def _slabs_free(self, slab_bytes: int) -> int:
        if slab_bytes != self._settings.slab_bytes:
            return 0
        return max(0, self.offered - len(self._lent) - self._mapping)

    def _why_none(self, slab_bytes: int) -> str:
        own = self._settings.slab_bytes
        if slab_bytes != own:
            return f"slabs of node {self._place.node_id} have {own} bytes, and {slab_bytes} are asked for"
        return f"node {self._place.node_id} lends {len(self._lent)} slabs, and has no more to lend"

    def _renew(self, leases: Iterable[str]) -> Iterable[str]:
        for lease in leases:
            lending = self._lent.get(lease)
            if lending is None or not lending.slab.counts:
                yield lease
            else:
                lending.renewed_s = self._ticking()

    async def _unmap(self, leases: Iterable[str]) -> list[str]:
        gone = [lease for lease in leases if lease not in self._lent]
        for lending in await self._take_back(set(leases) - set(gone)):
            self._facts.returned(lending.user, "returned")
        return gone

    def _keep(self, request: KeepSlabs) -> LeasesGone:
        """Have slabs outlive their client, as a copy of a checkpoint."""
        lendings = [self._lent.get(lease) for lease in request.leases]
        if any(each is None or not each.slab.counts or each.user.user != request.user for each in lendings):
            raise Refused("some of these slabs are lent no more, or to another account")
        if any(lease in self._kept for lease in request.leases) or len(set(request.leases)) < len(request.leases):
            raise Refused("a slab is in one copy only")
        if request.size > len(lendings) * self._settings.slab_bytes:
            raise Refused(f"{request.size} bytes do not fit into {len(lendings)} slabs")
        copy = KeptCopy(
            job_id=request.job_id,
            user=request.user,
            generation=request.generation,
            step=request.step,
            digest=request.digest,
            size=request.size,
            leases=request.leases,
        )
        try:
            self._kept.add_copy(copy)
        except KeepingRefused as error:
            raise Refused(str(error)) from error
        return LeasesGone(leases=())

    def _find(self, request: FindKept) -> CopyFound:
        try:
            copy = self._kept.find_copy(request.job_id, request.step, request.digest, request.user)
        except KeepingRefused as error:
            raise Refused(str(error)) from error
        return CopyFound(slabs=tuple(self._address_of(self._lent[lease].slab) for lease in copy.leases), size=copy.size)

    async def expire(self) -> None:
        """Take back what was not renewed in time, slabs that a wrong checksum has spoilt, and what is kept for none."""
        now_s = self._ticking()
        for lending in await self._take_back(self._kept.over()):
            self._facts.returned(lending.user, "returned")
        spoilt = {lease for lease, lending in self._lent.items() if not lending.slab.counts}
        over = {lease for lease, lending in self._lent.items() if now_s >= lending.renewed_s + LEASE_S}
        over = {lease for lease in over - spoilt if lease not in self._kept}
        for lending in await self._take_back(spoilt):
            self._facts.returned(lending.user, "damaged")
        for lending in await self._take_back(over):
            _log.warning("slab_lease_expired", slab=lending.slab.number, borrower=lending.user.borrower)
            self._facts.returned(lending.user, "expired")

    async def _take_back(self, leases: Iterable[str]) -> list[Lending]:
        """Take slabs back, and with one slab of a copy all of it."""
        whole = self._kept.drop(leases)
        found = [lending for lease in whole if (lending := self._lent.pop(lease, None)) is not None]
        if found:
            await asyncio.to_thread(self._pool.take_back, [lending.slab.lease for lending in found])
        return found

    # --- what the node can spare
    def measure(self, memory: HostMemory) -> None:
        """Take in what the node has free; once a second."""
        self._headroom_bytes = headroom(self._settings.headroom_bytes, memory.total_bytes)
        self._free.note(memory.available_bytes + self._pool.held_bytes)

    async def settle(self, promised_bytes: int) -> None:
        """
        Make what is lent and ready fit what the node can spare.

        Parameters
        ----------
        promised_bytes : int
            What jobs on this node have declared and not taken yet.
        """
        async with self._settling:
            self._promised_bytes = promised_bytes
            before, self.offered = self.offered, self._slabs_to_offer()
            if self.offered != before:
                held = self._held_free_bytes()
                self._facts.offered(self.offered, self._settings.slab_bytes, held, self._headroom_bytes)
            ready = min(self._settings.ready_slabs, max(0, self.offered - len(self._lent)))
            try:
                await asyncio.to_thread(self._pool.prepare, ready)
            except NoMemory as error:
                _log.warning("slabs_not_prepared", error=str(error))
            over = len(self._lent) - self.offered
            if over > 0:
                why = "a job on the donor's node needs it" if promised_bytes else "the donor's node needs it"
                await self.evict(over, why)

    def _slabs_to_offer(self) -> int:
        settings = self._settings
        if not settings.lend:
            return 0
        each = settings.slab_bytes + PAGE_BYTES
        wanted = slabs_to_offer(self._held_free_bytes(), self._headroom_bytes, each, self.offered)
        return min(wanted, settings.most_lent_bytes // settings.slab_bytes) if settings.most_lent_bytes else wanted

    def _held_free_bytes(self) -> int:
        """Return what the node would have free without any slab, less what is promised to jobs."""
        return max(0, self._free.free_bytes(self._headroom_bytes) - self._promised_bytes)

    def _beyond_headroom_bytes(self) -> int:
        lent_bytes = len(self._lent) * (self._settings.slab_bytes + PAGE_BYTES)
        return max(0, self._held_free_bytes() - lent_bytes - self._headroom_bytes)

    async def evict(self, count: int, reason: str) -> None:
        """Take back so many slabs that are in use: the least active ones of a sample, and copies if need be."""
        borrowed = [lease for lease in self._lent if lease not in self._kept]
        copies = self._kept.least_needed(count - len(borrowed))
        if copies:
            self._tell_of_copies(copies, reason)
            for lending in await self._take_back(copies):
                self.evicted += 1
                self._facts.evicted(lending.user, f"{reason}; it was a part of a copy of a checkpoint")
        asked = eviction_sample(borrowed, count, EXTRA, self._rng) if borrowed else []
        activity = dict.fromkeys(asked, 0.0) | await self._activity(asked)
        chosen = least_active({lease: activity[lease] for lease in asked}, count)
        by_borrower = self._by_borrower(chosen)
        _log.info("slabs_evicted", count=len(chosen), asked=len(asked), reason=reason, borrowers=list(by_borrower))
        await asyncio.gather(*(self._tell(node_id, leases, reason) for node_id, leases in by_borrower.items()))
        for lending in await self._take_back(chosen):
            self.evicted += 1
            self._facts.evicted(lending.user, reason)

    def _tell_of_copies(self, leases: Iterable[str], reason: str) -> None:
        for copy in self._kept.on_memory_only(leases):
            about = {"job_id": copy.job_id, "step": copy.step, "reason": reason}
            _log.warning("checkpoint_copy_evicted_before_the_disk_had_it", **about)

    async def _activity(self, leases: Iterable[str]) -> dict[str, float]:
        found: dict[str, float] = {}

        async def ask(node_id: str, own: tuple[str, ...]) -> None:
            try:
                answer = await self._ask(node_id, CheckActivity(leases=own), SlabActivity, ACTIVITY_S)
            except BusError as error:
                _log.info("slab_activity_unknown", borrower=node_id, error=str(error))
                return
            found.update((lease, answer.activity[lease]) for lease in own if lease in answer.activity)

        await asyncio.gather(*(ask(node_id, own) for node_id, own in self._by_borrower(leases).items()))
        return found

    async def _tell(self, node_id: str, leases: tuple[str, ...], reason: str) -> None:
        request = EvictSlabs(leases=leases, reason=reason, within_s=WITHIN_S)
        try:
            await self._ask(node_id, request, LeasesGone, WITHIN_S)
        except BusError as error:  # they are taken all the same; clients see it in the slab itself
            _log.info("slab_eviction_unanswered", borrower=node_id, error=str(error))

    def _by_borrower(self, leases: Iterable[str]) -> dict[str, tuple[str, ...]]:
        found: defaultdict[str, list[str]] = defaultdict(list)
        for lease in leases:
            if (lending := self._lent.get(lease)) is not None:
                found[lending.user.borrower].append(lease)
        return {node_id: tuple(own) for node_id, own in found.items()}

    # --- what is said of it
    def offer(self) -> SlabOffer:
        """Return what is told of this node; the runner adds what the data port has counted."""
        lent_to = Counter(lending.user.job_id or lending.user.user for lending in self._lent.values())
        return SlabOffer(
            slab_bytes=self._settings.slab_bytes,
            offered=self.offered,
            lent=len(self._lent) + self._mapping,
            free_bytes=self._held_free_bytes(),
            headroom_bytes=self._headroom_bytes,
            boot_id=self._place.boot_id,
            lent_to=dict(lent_to.most_common(MOST_TOLD)),
            evicted=self.evicted,
            host=self._place.host,
        )

    async def close(self) -> None:
        """Take everything back, for the agent ends."""
        if self._lent:
            await self.evict(len(self._lent), "the donor's agent ends")
        await asyncio.to_thread(self._pool.close)
