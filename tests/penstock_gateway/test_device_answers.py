"""What the gateway says of all devices, and of the queue."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TypeVar

import msgspec
import pytest_asyncio
from gateway_cases import NOW_S, Gateway, ended, gateway, joined, placed, ranked, started, submitted, waits

from penstock_bus.memory import MemoryBus
from penstock_log import (
    Demand,
    Device,
    JobHeld,
    JobSubmitted,
    NodeDrained,
    NodeJoined,
    ScaleDecided,
    UserSet,
    Wait,
    request_bodies,
    subjects,
)
from penstock_log.views import DevicesView, QueueView, View

V = TypeVar("V", bound=View)


@pytest_asyncio.fixture
async def served(memory_bus: MemoryBus) -> AsyncIterator[Gateway]:
    async with gateway(memory_bus, joined("n1", fast=2)) as running:
        yield running


async def devices(served: Gateway, user: str = "", at: int | None = None) -> DevicesView:
    subject = subjects.query("devices")
    body = request_bodies.AllRequest(at=at)
    return await _asked(served, subject, body, DevicesView, user)


async def queue(served: Gateway, user: str = "", **asked: object) -> QueueView:
    return await _asked(served, subjects.query("queue"), request_bodies.QueueRequest(**asked), QueueView, user)


async def _asked(served: Gateway, subject: str, body: msgspec.Struct, view: type[V], user: str) -> V:
    to = subjects.by_person(user, subject) if user else subject
    return msgspec.json.decode(await served.bus.request(to, msgspec.json.encode(body)), type=view)


async def test_an_empty_cluster_has_no_devices_and_no_queue(memory_bus: MemoryBus) -> None:
    async with gateway(memory_bus) as empty:
        assert (await devices(empty)).nodes == ()
        found = await queue(empty)
        assert (found.jobs, found.total, found.gpus, found.by_user) == ((), 0, 0, {})


async def test_each_device_names_its_jobs_and_each_job_stands_there_once(served: Gateway) -> None:
    await served.told(submitted("j1", gpus=2), placed("j1", 0, 1), started("j1"))
    view = await devices(served)
    assert [device.job_ids for node in view.nodes for device in node.devices] == [("j1",), ("j1",)]
    assert [(job.id, job.state, job.gpus) for job in view.jobs] == [("j1", "R", 2)]


async def test_a_device_is_free_again_once_its_run_has_ended(served: Gateway) -> None:
    seq = await served.told(submitted("j1"), placed("j1"), started("j1"))
    await served.told(ended("j1"))
    assert (await devices(served)).jobs == ()
    assert [job.id for job in (await devices(served, at=seq)).jobs] == ["j1"]


async def test_who_may_not_see_a_job_learns_whose_it_is_and_not_what(served: Gateway) -> None:
    await served.told(
        UserSet(at_s=0.0, user="bob"),
        submitted("j1", user="alice", model="bert"),
        placed("j1"),
        submitted("j2", user="alice"),
    )
    for user, names in (("", ["job", "bert"]), ("bob", ["", ""]), ("anonymous", ["", ""])):
        (holder,) = (await devices(served, user)).jobs
        assert [holder.user, holder.name, holder.model] == ["alice", *names]
        (waiting,) = (await queue(served, user)).jobs
        assert (waiting.name, waiting.user, waiting.own) == (names[0], "alice", not user)


async def test_nodes_say_their_rack_and_why_they_are_drained(served: Gateway) -> None:
    device = Device(index=0, kind="fast", memory_bytes=1, backend="emulated")
    away = NodeJoined(at_s=1.0, node_id="n2", devices=(device,), labels={"topology.rack": "r7"})
    await served.told(away, NodeDrained(at_s=2.0, node_id="n2", reason="fan is loud"))
    node = next(node for node in (await devices(served)).nodes if node.id == "n2")
    assert (node.rack, node.state, node.reason) == ("r7", "drained", "fan is loud")
    await served.told(away)  # its executor was started again, and it is drained as before
    node = next(node for node in (await devices(served)).nodes if node.id == "n2")
    assert (node.state, node.reason) == ("drained", "fan is loud")


async def test_a_running_job_says_to_which_size_it_goes(served: Gateway) -> None:
    elastic = {"gpus": 1, "min_gpus": 1, "max_gpus": 2, "batch_size": 8}
    grows = ScaleDecided(at_s=9.0, pool="default", demands=(Demand(job_id="j1", epoch=1, gpus=2),))
    await served.told(submitted("j1", **elastic), placed("j1"), started("j1"), grows)
    (holder,) = (await devices(served)).jobs
    assert (holder.gpus, holder.grows_to) == (1, 2)


async def test_the_queue_is_in_rank_order_with_held_jobs_last(served: Gateway) -> None:
    await served.told(*(submitted(f"j{number}") for number in range(4)))
    await served.told(ranked("j0", queue=1, position=1.0), ranked("j1", position=5.0), ranked("j2", position=2.0))
    await served.told(JobHeld(at_s=1.0, job_id="j2"))
    found = await queue(served)
    assert [(job.place, job.id, job.queue) for job in found.jobs] == [
        (1, "j1", 0),
        (2, "j0", 1),
        (3, "j3", None),
        (4, "j2", 0),
    ]


async def test_jobs_that_may_not_start_come_last_in_the_queue_whatever_their_rank(served: Gateway) -> None:
    later_s = NOW_S + 1e9
    await served.told(
        submitted("later", begin_s=later_s),
        submitted("blocked", after=("afterok:later",)),
        submitted("begins", begin_s=NOW_S - 5.0),
        submitted("free"),
    )
    await served.told(*(ranked(job_id, position=n) for n, job_id in enumerate(["later", "blocked", "begins", "free"])))
    found = await queue(served)
    assert [(job.place, job.id) for job in found.jobs] == [(1, "begins"), (2, "free"), (3, "later"), (4, "blocked")]


async def test_places_count_by_pool_and_parts_go_on_where_the_last_ended(served: Gateway) -> None:
    await served.told(*(submitted(f"j{n}", pool=["default", "b"][n % 2]) for n in range(6)))
    await served.told(*(ranked(f"j{n}", position=float(n)) for n in range(6)))
    first, rest = await queue(served, limit=4), await queue(served, limit=4, offset=4)
    assert [(job.id, job.place) for job in (*first.jobs, *rest.jobs)] == [
        ("j0", 1), ("j1", 1), ("j2", 2), ("j3", 2), ("j4", 3), ("j5", 3)
    ]  # fmt: skip
    assert (first.total, rest.total) == (6, 6)
    assert (await queue(served, pool="b")).total == 3


async def test_counts_are_of_all_that_match_and_not_of_the_part(served: Gateway) -> None:
    jobs = [submitted(f"j{n}", user=["alice", "bob", "bob"][n % 3], team="vision", gpus=2) for n in range(9)]
    cause = Wait(job_id="j0", cause="gang", evidence="1 of 2 is free", remedy="ask for 1")
    await served.told(*jobs, waits(cause))
    found = await queue(served, limit=1)
    assert (found.total, found.gpus, found.by_user) == (9, 18, {"bob": 6, "alice": 3})
    assert found.by_cause == {"undecided": 8, "gang": 1}
    (gang,) = (await queue(served, cause="gang")).jobs
    assert (gang.id, gang.evidence, gang.remedy) == ("j0", "1 of 2 is free", "ask for 1")


async def test_ten_thousand_waiting_jobs_are_one_small_answer(memory_bus: MemoryBus) -> None:
    def many() -> list[JobSubmitted]:
        return [submitted(f"j{number:05d}", user=f"u{number % 50}") for number in range(10_000)]

    async with gateway(memory_bus, joined()) as large:
        await large.told(*many())
        found = await queue(large, offset=9_900, limit=1000)
        assert (found.total, len(found.jobs), len(found.by_user)) == (10_000, 100, 50)
