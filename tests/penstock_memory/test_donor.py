"""What a donor lends and takes back, by a clock of the test's own and agents that are asked in its place."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import numpy as np
import pytest
import pytest_asyncio

from penstock_bus.memory import MemoryBus
from penstock_bus.port import NoResponders
from penstock_log import Job, JobSpec, MemoryOffered, SlabsEvicted, SlabsLent, SlabsReturned, subjects
from penstock_log.memory_messages import (
    LEASE_S,
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
    SlabsFree,
    UnmapSlabs,
)
from penstock_memory.donor import MOST_TOLD, Donor, DonorPlace, Refused
from penstock_memory.fact_batch import MOST_USERS, OFFERED_S, FactBatch
from penstock_memory.machine import MemorySettings
from penstock_memory.pressure import HostMemory
from penstock_memory.slab_pool import PAGE_BYTES, Slab, SlabPool
from penstock_testing import eventually

MIB = 1 << 20
EACH = MIB + PAGE_BYTES


class Borrowers:
    """The agents of borrowers: how active their slabs are, what they were asked, and who does not answer."""

    def __init__(self) -> None:
        self.activity: dict[str, float] = {}
        self.silent: set[str] = set()
        self.asked: list[tuple[str, Any]] = []

    async def __call__(self, node_id: str, request: Any, answer: type[Any], timeout_s: float) -> Any:
        del answer, timeout_s
        self.asked.append((node_id, request))
        if node_id in self.silent:
            raise NoResponders(f"nobody serves {node_id}")
        match request:
            case CheckActivity():
                known = {lease: self.activity[lease] for lease in request.leases if lease in self.activity}
                return SlabActivity(activity=known)
            case EvictSlabs():
                return LeasesGone(leases=request.leases)
        raise AssertionError(request)

    def evictions(self) -> dict[str, tuple[str, ...]]:
        return {node: asked.leases for node, asked in self.asked if isinstance(asked, EvictSlabs)}


class Node:
    """A donor with so many slabs' room, and its clock."""

    def __init__(self, bus: MemoryBus, **settings: Any) -> None:
        self.now_s, self.bus, self.others = 0.0, bus, Borrowers()
        self.jobs: dict[str, Job] = {}
        self.settings = MemorySettings(slab_bytes=MIB, headroom_bytes=100 * EACH, **settings)
        self.pool = SlabPool(MIB)
        self.facts = FactBatch(bus, "n1", lambda: self.now_s, lambda: self.now_s)
        place = DonorPlace(node_id="n1", host="10.0.0.1", port=7, socket="", boot_id="")
        self.donor = Donor(
            self.pool,
            place,
            self.settings,
            ask=self.others,
            facts=self.facts,
            ticking=lambda: self.now_s,
            rng=np.random.default_rng(4),
            find_job=self.jobs.get,
        )

    async def has_room_for(self, slabs: int, *, promised: int = 0, seconds: int = 1) -> None:
        """Let the node have room for so many slabs, some of it promised to jobs, for a while."""
        for _ in range(seconds):
            free_bytes = (100 + slabs) * EACH - self.pool.held_bytes
            self.donor.measure(HostMemory(1000 * EACH, max(0, free_bytes)))
            await self.donor.settle(promised * EACH)

    async def lend(self, borrower: str = "n2", job_id: str = "j1") -> SlabAddress:
        found = await self.donor.answer(MapSlab(slab_bytes=MIB, borrower=borrower, user="ada", job_id=job_id))
        assert isinstance(found, SlabAddress)
        return found

    async def keep(self, slabs: int, step: int = 10, user: str = "ada") -> tuple[str, ...]:
        """Have so many slabs kept as a copy of a checkpoint of job j1."""
        spec = JobSpec(name="j1", command=("train",), checkpoint_tier="memory")
        self.jobs.setdefault("j1", Job(id="j1", spec=spec, submitted_s=0.0))
        leases = tuple([(await self.lend()).lease for _ in range(slabs)])
        await self.donor.answer(
            KeepSlabs(
                leases=leases, size=slabs * MIB, user=user, job_id="j1", generation=1, step=step, digest=f"{step:064}"
            )
        )
        return leases

    async def facts_told(self) -> list[Any]:
        await self.facts.flush()
        deliveries = await self.bus.read(subjects.memory("n1"))
        return [fact for delivery in deliveries for fact in delivery.commit.known]


@pytest_asyncio.fixture
async def node(memory_bus: MemoryBus) -> AsyncIterator[Node]:
    node = Node(memory_bus)
    yield node
    node.pool.close()


async def test_it_lends_what_is_free_beyond_the_headroom_and_no_more(node: Node) -> None:
    await node.has_room_for(2)
    assert await node.donor.answer(QuerySlabs(slab_bytes=MIB)) == SlabsFree(slabs=2, free_bytes=2 * EACH)
    await node.lend()
    await node.lend()
    with pytest.raises(Refused, match="lends 2 slabs, and has no more"):
        await node.lend()
    assert await node.donor.answer(QuerySlabs(slab_bytes=MIB)) == SlabsFree(slabs=0, free_bytes=0)


async def test_slabs_of_another_size_are_not_lent(node: Node) -> None:
    await node.has_room_for(2)
    assert await node.donor.answer(QuerySlabs(slab_bytes=2 * MIB)) == SlabsFree(slabs=0, free_bytes=2 * EACH)
    with pytest.raises(Refused, match=f"have {MIB} bytes, and {2 * MIB} are asked for"):
        await node.donor.answer(MapSlab(slab_bytes=2 * MIB, borrower="n2", user="ada"))


async def test_a_hundred_that_ask_at_once_get_what_there_is(node: Node) -> None:
    await node.has_room_for(5)
    found = await asyncio.gather(*(node.lend() for _ in range(100)), return_exceptions=True)
    lent = [one for one in found if isinstance(one, SlabAddress)]
    assert len(lent) == 5
    assert len({one.lease for one in lent}) == len({one.slab for one in lent}) == 5
    assert all(isinstance(one, SlabAddress | Refused) for one in found)


async def test_a_slab_whose_borrower_leaves_before_it_is_lent_is_not_kept(node: Node) -> None:
    await node.has_room_for(2)
    entered, may_go_on, lend = threading.Event(), threading.Event(), node.pool.lend

    def slow() -> Slab:
        entered.set()
        may_go_on.wait()
        return lend()

    node.pool.lend = slow  # type: ignore[method-assign]
    asking = asyncio.ensure_future(node.lend())
    await asyncio.to_thread(entered.wait)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    may_go_on.set()
    await eventually(lambda: not (node.pool.ready or node.pool.lent), why="the one that was ready was lent for nothing")
    assert await node.donor.answer(QuerySlabs(slab_bytes=MIB)) == SlabsFree(slabs=2, free_bytes=2 * EACH)


async def test_a_node_that_does_not_lend_offers_nothing(memory_bus: MemoryBus) -> None:
    node = Node(memory_bus, lend=False)
    await node.has_room_for(10)
    assert node.donor.offer().offered == 0


async def test_a_node_lends_no_more_than_it_is_set_to(memory_bus: MemoryBus) -> None:
    node = Node(memory_bus, most_lent_bytes=3 * MIB)
    await node.has_room_for(10)
    assert node.donor.offer().offered == 3
    node.pool.close()


async def test_a_lease_that_is_renewed_stays_and_one_that_is_not_goes(node: Node) -> None:
    await node.has_room_for(2)
    kept, left = await node.lend(), await node.lend(borrower="n3", job_id="")
    for _ in range(4):
        node.now_s += LEASE_S * 0.3
        assert await node.donor.answer(RenewSlabs(leases=(kept.lease,))) == LeasesGone(leases=())
    await node.donor.expire()
    assert await node.donor.answer(RenewSlabs(leases=(kept.lease, left.lease))) == LeasesGone(leases=(left.lease,))
    assert [fact for fact in await node.facts_told() if isinstance(fact, SlabsReturned)] == [
        SlabsReturned(at_s=node.now_s, node_id="n1", borrower="n3", user="ada", slabs=1, why="expired")
    ]


async def test_a_slab_that_a_wrong_checksum_has_spoilt_is_gone_and_told(node: Node) -> None:
    await node.has_room_for(2)
    lent = await node.lend()
    slab = node.pool.find(bytes.fromhex(lent.lease))
    assert slab is not None
    slab.end()
    assert await node.donor.answer(RenewSlabs(leases=(lent.lease,))) == LeasesGone(leases=(lent.lease,))
    await node.donor.expire()
    assert node.pool.lent == 0
    assert (await node.facts_told())[-1].why == "damaged"


async def test_what_was_given_back_can_be_lent_again_under_a_later_generation(node: Node) -> None:
    await node.has_room_for(2)
    first = await node.lend()
    assert await node.donor.answer(UnmapSlabs(leases=(first.lease, "0" * 32))) == LeasesGone(leases=("0" * 32,))
    second = await node.lend()
    assert (second.slab, second.generation) == (first.slab, first.generation + 1)
    assert second.lease != first.lease


async def test_memory_that_is_only_ready_is_freed_before_anybody_is_evicted(node: Node) -> None:
    await node.has_room_for(10)
    await node.lend()
    await node.has_room_for(10)
    assert (node.pool.lent, node.pool.ready) == (1, 1)
    await node.has_room_for(1, seconds=30)
    assert (node.pool.lent, node.pool.ready) == (1, 0)
    assert node.others.asked == []


async def test_under_pressure_the_least_active_slabs_go(node: Node) -> None:
    await node.has_room_for(6)
    lent = [await node.lend(borrower=f"n{2 + i % 2}") for i in range(6)]
    node.others.activity = {slab.lease: float(10 * i) for i, slab in enumerate(lent)}
    await node.has_room_for(4, seconds=40)
    told = node.others.evictions()
    assert {lease for leases in told.values() for lease in leases} == {lent[0].lease, lent[1].lease}
    assert node.pool.lent == 4
    assert node.donor.evicted == 2
    evicted = [fact for fact in await node.facts_told() if isinstance(fact, SlabsEvicted)]
    assert {(fact.borrower, fact.slabs, fact.reason) for fact in evicted} == {
        ("n2", 1, "the donor's node needs it"),
        ("n3", 1, "the donor's node needs it"),
    }


async def test_a_borrower_that_does_not_answer_keeps_nobody_from_taking_the_memory(node: Node) -> None:
    await node.has_room_for(2)
    await node.lend()
    await node.lend()
    node.others.silent = {"n2"}
    await node.has_room_for(0, seconds=60)
    assert node.pool.held_bytes == 0


async def test_a_job_that_is_placed_here_gets_its_memory_at_once(node: Node) -> None:
    await node.has_room_for(8)
    for _ in range(8):
        await node.lend()
    await node.donor.settle(6 * EACH)
    assert node.pool.lent == 2
    evicted = [fact for fact in await node.facts_told() if isinstance(fact, SlabsEvicted)]
    assert [(fact.slabs, fact.reason) for fact in evicted] == [(6, "a job on the donor's node needs it")]


async def test_an_offer_that_wavers_is_not_told_again_and_one_that_falls_is(node: Node) -> None:
    for slabs in (40, 38, 40, 37, 40, 10):
        node.donor.offered = 0
        await node.has_room_for(slabs, seconds=40)
        node.now_s += OFFERED_S
        told = [fact for fact in await node.facts_told() if isinstance(fact, MemoryOffered)]
    assert [told[0].slabs, told[-1].slabs, len(told)] == [40, 10, 2]


async def test_what_is_lent_is_summed_up_by_whom_it_is_for(node: Node) -> None:
    await node.has_room_for(5)
    for job_id in ("j1", "j1", "j2"):
        await node.lend(job_id=job_id)
    lent = [fact for fact in await node.facts_told() if isinstance(fact, SlabsLent)]
    assert sorted((fact.job_id, fact.slabs) for fact in lent) == [("j1", 2), ("j2", 1)]
    assert node.donor.offer().lent_to == {"j1": 2, "j2": 1}
    assert msgspec.json.decode(msgspec.json.encode(node.donor.offer())) is not None


async def test_jobs_of_many_names_fill_neither_an_offer_nor_the_log(node: Node) -> None:
    await node.has_room_for(MOST_TOLD + 20)
    for number in range(MOST_TOLD + 10):
        await node.lend(job_id=f"name-{number}")
    assert len(node.donor.offer().lent_to) == MOST_TOLD
    lent = [fact for fact in await node.facts_told() if isinstance(fact, SlabsLent)]
    assert len(lent) == MOST_USERS + 1
    assert sum(fact.slabs for fact in lent) == MOST_TOLD + 10


async def test_an_agent_that_ends_takes_everything_back(node: Node) -> None:
    await node.has_room_for(3)
    lent = [await node.lend() for _ in range(3)]
    await node.donor.close()
    assert set(node.others.evictions()["n2"]) == {slab.lease for slab in lent}
    assert node.pool.held_bytes == 0


async def test_what_is_kept_for_a_job_outlives_its_client_and_is_found_by_its_account(node: Node) -> None:
    await node.has_room_for(4)
    leases = await node.keep(2)
    node.now_s += 10 * LEASE_S
    await node.donor.expire()
    found = await node.donor.answer(FindKept(job_id="j1", step=10, digest=f"{10:064}", user="ada"))
    assert isinstance(found, CopyFound)
    assert (tuple(slab.lease for slab in found.slabs), found.size) == (leases, 2 * MIB)
    for user, step in (("eve", 10), ("ada", 11)):
        with pytest.raises(Refused, match="no copy of the checkpoint"):
            await node.donor.answer(FindKept(job_id="j1", step=step, digest=f"{10:064}", user=user))


async def test_slabs_of_another_account_or_of_nobody_are_not_kept(node: Node) -> None:
    await node.has_room_for(4)
    with pytest.raises(Refused, match="lent no more, or to another account"):
        await node.keep(1, user="eve")
    leases = await node.keep(1)
    await node.donor.answer(UnmapSlabs(leases=leases))
    assert node.pool.lent == 1
    with pytest.raises(Refused, match="no copy"):
        await node.donor.answer(FindKept(job_id="j1", step=10, digest=f"{10:064}"))


async def test_copies_of_checkpoints_go_last_and_whole(node: Node) -> None:
    await node.has_room_for(6)
    copy = await node.keep(3)
    lent = [(await node.lend(borrower="n2", job_id="")).lease for _ in range(3)]
    node.others.activity = dict.fromkeys(lent, 1e6)
    await node.has_room_for(3, seconds=40)
    assert node.pool.lent == 3
    assert set(node.others.evictions()["n2"]) <= set(lent)
    assert await node.donor.answer(FindKept(job_id="j1", step=10, digest=f"{10:064}"))
    await node.has_room_for(2, seconds=40)
    assert node.pool.lent == 0
    assert set(node.others.evictions().get("n2", ())).isdisjoint(copy)
    (evicted,) = [fact for fact in await node.facts_told() if "checkpoint" in getattr(fact, "reason", "")]
    assert (evicted.slabs, evicted.job_id) == (3, "j1")


async def test_a_copy_of_which_a_slab_is_spoilt_goes_whole(node: Node) -> None:
    await node.has_room_for(4)
    leases = await node.keep(3)
    slab = node.pool.find(bytes.fromhex(leases[1]))
    assert slab is not None
    slab.end()
    await node.donor.expire()
    assert node.pool.lent == 0


async def test_a_job_that_is_over_gives_its_copies_back(node: Node) -> None:
    await node.has_room_for(4)
    await node.keep(2)
    del node.jobs["j1"]
    await node.donor.expire()
    assert node.pool.lent == 0
    assert (await node.facts_told())[-1].why == "returned"
