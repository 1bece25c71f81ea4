"""What an agent borrows for the clients of its node, by a clock of the test's own, from donors that it makes up."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import numpy as np
import pytest

from penstock_bus.port import NoResponders, ServiceError
from penstock_log.memory_messages import (
    LEASE_S,
    BorrowSlab,
    CheckActivity,
    EvictSlab,
    EvictSlabs,
    LeasesGone,
    MapSlab,
    QuerySlabs,
    RenewSlabs,
    SlabActivity,
    SlabAddress,
    SlabLent,
    SlabOffer,
    SlabRefused,
    SlabsFree,
    SlabUse,
    UnmapSlabs,
)
from penstock_memory.borrower import HEARD_S, Borrower
from penstock_memory.machine import MemorySettings

MIB = 1 << 20


class AskedDonors:
    """Donors: how much each has free, which leases it has, who does not answer, and what they were asked."""

    def __init__(self) -> None:
        self.free: dict[str, int] = {}
        self.leases: dict[str, str] = {}
        self.silent: set[str] = set()
        self.refusing: set[str] = set()
        self.asked: list[tuple[str, Any]] = []
        self.may_map = asyncio.Event()
        self.may_map.set()
        self.mapping = asyncio.Event()

    async def __call__(self, node_id: str, request: Any, answer: type[Any], timeout_s: float) -> Any:
        del answer, timeout_s
        self.asked.append((node_id, request))
        if node_id in self.silent:
            raise NoResponders(f"nobody serves {node_id}")
        match request:
            case QuerySlabs():
                return SlabsFree(slabs=self.free[node_id], free_bytes=self.free[node_id] * MIB)
            case MapSlab():
                self.mapping.set()
                await self.may_map.wait()
                if node_id in self.refusing:
                    raise ServiceError(409, f"node {node_id} has no more to lend")
                return self._lend(node_id)
            case RenewSlabs():
                return LeasesGone(leases=tuple(lease for lease in request.leases if lease not in self.leases))
            case UnmapSlabs():
                for lease in request.leases:
                    self.leases.pop(lease, None)
                return LeasesGone(leases=())
        raise AssertionError(request)

    def _lend(self, node_id: str) -> SlabAddress:
        lease = f"{len(self.asked):032x}"
        self.leases[lease] = node_id
        about = {"slab": 0, "generation": 1, "slab_bytes": MIB, "host": "10.0.0.1", "port": 7}
        return SlabAddress(donor=node_id, lease=lease, token="0" * 64, **about)

    def were_asked(self, kind: type[Any]) -> list[str]:
        return [node_id for node_id, request in self.asked if isinstance(request, kind)]


class HeardClient:
    """A client, and what it was sent."""

    def __init__(self, uid: int = 1000, user: str = "ada") -> None:
        self.uid, self.user, self.pid, self.hello, self.gone = uid, user, 1, None, False
        self.heard: list[Any] = []

    def send(self, message: Any) -> None:
        self.heard.append(message)


class BorrowingNode:
    """A borrower on node n1 that has heard of donors."""

    def __init__(self, **settings: Any) -> None:
        self.now_s, self.donors = 100.0, AskedDonors()
        self.spawned: list[asyncio.Task[None]] = []
        self.borrower = Borrower(
            "n1",
            MemorySettings(slab_bytes=MIB, **settings),
            ask=self.donors,
            spawn=self._spawn,
            ticking=lambda: self.now_s,
            rng=np.random.default_rng(3),
        )

    def _spawn(self, task: Coroutine[Any, Any, None]) -> None:
        self.spawned.append(asyncio.ensure_future(task))

    def hears(self, slab_bytes: int = MIB, **free: int) -> None:
        for node_id, slabs in free.items():
            self.donors.free[node_id] = slabs
            offer = SlabOffer(slab_bytes=slab_bytes, offered=slabs, lent=0, free_bytes=slabs * MIB, headroom_bytes=0)
            self.borrower.hear(node_id, offer)

    async def lends(self, client: Any, slab: int = 0, **more: Any) -> SlabAddress:
        answer = await self.borrower.borrow(client, BorrowSlab(slab=slab, **more))
        assert isinstance(answer, SlabLent), answer
        return answer.address

    async def refuses(self, client: Any, slab: int = 0, **more: Any) -> str:
        answer = await self.borrower.borrow(client, BorrowSlab(slab=slab, **more))
        assert isinstance(answer, SlabRefused), answer
        return answer.reason

    async def settle(self) -> None:
        await asyncio.gather(*self.spawned)


@pytest.fixture
def node() -> BorrowingNode:
    return BorrowingNode()


@pytest.fixture
def client() -> Any:
    return HeardClient()


async def test_of_two_donors_the_one_with_more_free_memory_lends(node: BorrowingNode, client: Any) -> None:
    node.hears(n2=3, n3=9)
    assert (await node.lends(client)).donor == "n3"
    assert sorted(node.donors.were_asked(QuerySlabs)) == ["n2", "n3"]


async def test_a_donor_that_lends_to_the_client_already_is_asked_only_where_there_are_no_others(
    node: BorrowingNode, client: Any
) -> None:
    node.hears(n2=90, n3=1)
    assert (await node.lends(client)).donor == "n2"
    node.hears(n4=1)
    node.donors.asked.clear()
    await node.lends(client, 1)
    assert sorted(node.donors.were_asked(QuerySlabs)) == ["n3", "n4"]


async def test_where_one_donor_refuses_the_next_one_lends(node: BorrowingNode, client: Any) -> None:
    node.hears(n2=9, n3=3)
    node.donors.refusing.add("n2")
    assert (await node.lends(client)).donor == "n3"


async def test_where_nobody_lends_the_reasons_of_all_are_told(node: BorrowingNode, client: Any) -> None:
    node.hears(n2=9, n3=3, n4=1)
    node.donors.refusing |= {"n2", "n4"}
    node.donors.silent.add("n3")
    why = await node.refuses(client)
    assert "n2: " in why
    assert "n3: nobody serves n3" in why
    assert "n4: " in why


async def test_a_donor_not_heard_of_for_long_or_with_slabs_of_another_size_is_not_asked(
    node: BorrowingNode, client: Any
) -> None:
    node.hears(n2=9)
    node.now_s += HEARD_S + 0.1
    node.hears(slab_bytes=2 * MIB, n3=9)
    assert await node.refuses(client) == "no node has memory to lend"
    assert node.donors.asked == []


async def test_a_slab_that_is_to_outlive_the_node_is_not_its_own(node: BorrowingNode, client: Any) -> None:
    node.hears(n1=99, n2=1)
    assert (await node.lends(client, elsewhere=True)).donor == "n2"
    assert await node.refuses(client, 1, elsewhere=True, avoid=("n2",)) == "no node has memory to lend"


async def test_a_node_that_does_not_lend_to_itself_borrows_from_others(client: Any) -> None:
    node = BorrowingNode(lend_to_own_node=False)
    node.hears(n1=99)
    assert await node.refuses(client) == "no node has memory to lend"


async def test_one_account_has_no_more_than_it_may_over_all_its_clients(client: Any) -> None:
    node = BorrowingNode(user_bytes=2 * MIB + 5)
    node.hears(n2=9, n3=9)
    second, other = HeardClient(), HeardClient(uid=1001, user="bob")
    await node.lends(client)
    await node.lends(second)
    why = await node.refuses(second, 1)
    assert why == f"ada has borrowed 2 slabs on node n1, and may have {2 * MIB + 5} bytes: user_bytes under [memory]"
    await node.lends(other)
    node.borrower.give_back(client, 0)
    await node.lends(second, 1)


async def test_slabs_that_an_account_waits_for_count_against_its_limit(client: Any) -> None:
    node = BorrowingNode(user_bytes=2 * MIB)
    node.hears(n2=9, n3=9)
    answers = await asyncio.gather(*(node.borrower.borrow(client, BorrowSlab(slab=slab)) for slab in range(20)))
    assert sum(isinstance(answer, SlabLent) for answer in answers) == 2


async def test_a_refusal_gives_the_accounts_room_back(client: Any) -> None:
    node = BorrowingNode(user_bytes=MIB)
    await node.refuses(client)
    node.hears(n2=9)
    await node.lends(client)


async def test_a_slab_of_a_number_that_is_borrowed_is_refused(node: BorrowingNode, client: Any) -> None:
    node.hears(n2=9)
    await node.lends(client)
    assert await node.refuses(client) == "slab 0 is borrowed already; return it first"


async def test_a_slab_that_was_returned_before_it_was_lent_goes_back_to_its_donor(
    node: BorrowingNode, client: Any
) -> None:
    node.hears(n2=9)
    node.donors.may_map.clear()
    asking = asyncio.ensure_future(node.borrower.borrow(client, BorrowSlab(slab=0)))
    await node.donors.mapping.wait()
    node.borrower.give_back(client, 0)
    node.donors.may_map.set()
    assert isinstance(await asking, SlabRefused)
    await node.settle()
    assert node.donors.leases == {}


async def test_a_client_that_leaves_while_it_borrows_has_nothing(node: BorrowingNode, client: Any) -> None:
    node.hears(n2=9)
    await node.lends(client)
    node.donors.may_map.clear()
    node.donors.mapping.clear()
    asking = asyncio.ensure_future(node.borrower.borrow(client, BorrowSlab(slab=1)))
    await node.donors.mapping.wait()
    client.gone = True
    node.borrower.give_back_all(client)
    node.donors.may_map.set()
    await asking
    await node.settle()
    assert node.donors.leases == {}
    assert await node.borrower.answer(CheckActivity(leases=("0" * 32,))) == SlabActivity(activity={})


async def test_a_lease_that_the_donor_has_no_more_costs_the_client_the_slab(node: BorrowingNode, client: Any) -> None:
    node.hears(n2=9)
    await node.lends(client)
    await node.borrower.renew()
    assert client.heard == []
    node.donors.leases.clear()
    await node.borrower.renew()
    assert client.heard == [EvictSlab(slab=0, reason="node n2 has it no more")]


async def test_a_donor_that_does_not_answer_is_given_up_when_its_leases_are_over(
    node: BorrowingNode, client: Any
) -> None:
    node.hears(n2=9)
    await node.lends(client)
    node.donors.silent.add("n2")
    node.now_s += LEASE_S
    await node.borrower.renew()
    assert client.heard == []
    node.now_s += 0.1
    await node.borrower.renew()
    assert client.heard == [EvictSlab(slab=0, reason="node n2 does not answer")]


async def test_a_donor_is_told_how_active_its_slabs_are(node: BorrowingNode, client: Any) -> None:
    node.hears(n2=9)
    address = await node.lends(client)
    node.borrower.note_use(client, SlabUse(activity={0: 7.5, 5: 1.0}))
    node.borrower.note_use(client, SlabUse(activity={0: -1.0}))
    asked = CheckActivity(leases=(address.lease, "f" * 32))
    assert await node.borrower.answer(asked) == SlabActivity(activity={address.lease: 7.5})


async def test_an_eviction_is_answered_once_the_client_has_left_the_slab(node: BorrowingNode, client: Any) -> None:
    node.hears(n2=9)
    address = await node.lends(client)
    request = EvictSlabs(leases=(address.lease, "f" * 32), reason="a job needs it", within_s=30.0)
    answering = asyncio.ensure_future(node.borrower.answer(request))
    await asyncio.sleep(0)
    assert client.heard == [EvictSlab(slab=0, reason="a job needs it")]
    assert not answering.done()
    node.borrower.give_back(client, 0)
    assert await answering == LeasesGone(leases=(address.lease, "f" * 32))
    assert node.donors.were_asked(UnmapSlabs) == [], "the donor takes it by itself"


async def test_an_eviction_is_answered_in_time_whether_the_client_has_left_or_not(
    node: BorrowingNode, client: Any
) -> None:
    node.hears(n2=9)
    address = await node.lends(client)
    request = EvictSlabs(leases=(address.lease,), reason="a job needs it", within_s=0.0)
    assert await node.borrower.answer(request) == LeasesGone(leases=())


async def test_a_donor_that_does_not_take_a_slab_back_costs_nothing_but_a_line_in_the_log(
    node: BorrowingNode, client: Any
) -> None:
    node.hears(n2=9)
    await node.lends(client)
    node.donors.silent.add("n2")
    node.borrower.give_back(client, 0)
    await node.settle()
    assert node.donors.were_asked(UnmapSlabs) == ["n2"]
