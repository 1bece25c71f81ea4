"""Aggregation agents on one bus, with processes in the place of aggregators."""

from __future__ import annotations

import asyncio
import signal

import msgspec
import pytest
from aggregation_agents import Nodes, Rank, on

from penstock_aggregator import local_runs
from penstock_aggregator.runner import run
from penstock_bus.memory import MemoryBus
from penstock_bus.settings import SettingsError
from penstock_bus.shell import Shell
from penstock_log import (
    AggregationAsked,
    AggregationLeft,
    AggregationMeasured,
    AggregationRefused,
    AggregatorEnded,
    AggregatorsOffered,
    AggregatorUnreachable,
    PartMoved,
    RunEnded,
    subjects,
)
from penstock_log.aggregation_messages import (
    AggregationPending,
    AggregatorLoads,
    CloseRun,
    DropPart,
    GrantLease,
    LostAggregator,
    OpenPart,
    PartAt,
    PartsAt,
    RunSlots,
    SendPart,
    UpdateRule,
)
from penstock_testing import eventually

pytestmark = pytest.mark.slow


async def test_a_rank_is_told_where_its_parts_are_once_they_are_assigned(nodes: Nodes) -> None:
    n1 = await nodes.agent()
    await nodes.job()
    rank = await Rank.ask(n1, rule=UpdateRule(name="sgd", lr=0.25), servers=2)
    asked = await nodes.said(AggregationAsked)
    assert (asked.pool, asked.world_size, asked.parts, asked.servers) == ("default", 1, (64, 32), 2)
    assert (asked.rule, asked.rule_values["lr"], asked.dtype, asked.nodes) == ("sgd", 0.25, "f4", ("n1",))
    assert (await rank.hear(AggregationPending)).reason == "the run waits for aggregators"
    await nodes.allocate("n1/0")
    await nodes.assign(1, on("n1/0"), on("n1/0", 1))
    parts: PartsAt = await rank.hear(PartsAt)
    assert parts.parts == tuple(PartAt(part=part, aggregator="n1/0", generation=1) for part in range(2))
    (address,) = parts.aggregators
    assert (address.aggregator, address.host) == ("n1/0", "127.0.0.1")
    first, second, lease = n1.orders("n1/0")
    assert isinstance(lease, GrantLease)
    assert (lease.lease, lease.token, lease.rank) == (address.lease, address.token, 0)
    assert isinstance(first, OpenPart)
    assert isinstance(second, OpenPart)
    assert (first.elements, second.elements, first.rule, first.how) == (16, 8, UpdateRule(name="sgd", lr=0.25), "join")
    measured = await nodes.said(AggregationMeasured)
    assert (measured.aggregator, measured.steps, measured.costs_s) == ("n1/0", 20, {0: 0.1})
    await rank.close()
    await nodes.said(AggregationLeft)
    await eventually(lambda: isinstance(n1.orders("n1/0")[-1], CloseRun))


async def test_nothing_runs_before_something_is_allocated_and_what_is_recycled_ends(nodes: Nodes) -> None:
    n1 = await nodes.agent(most=3)
    offered = await nodes.said(AggregatorsOffered)
    assert (offered.most, offered.pool) == (3, "default")
    assert n1.running() == set()
    await nodes.allocate("n1/0", "n1/1")
    await nodes.recycle("n1/0")
    ended = await nodes.said(AggregatorEnded)
    assert (ended.aggregator, ended.why) == ("n1/0", "recycled")
    await nodes.allocate("n1/0")
    assert await nodes.all_said() == [*["AggregatorStarted"] * 2, "AggregatorEnded", "AggregatorStarted"]


@pytest.mark.parametrize(("signum", "why"), [(signal.SIGKILL, "killed"), (signal.SIGSTOP, "hung")])
async def test_an_aggregator_that_is_killed_or_hangs_has_ended_and_stays_so(
    nodes: Nodes, signum: signal.Signals, why: str
) -> None:
    n1 = await nodes.agent()
    await nodes.allocate("n1/0")
    n1.signal("n1/0", signum)
    ended = await nodes.said(AggregatorEnded)
    assert (ended.aggregator, ended.why) == ("n1/0", why)
    await nodes.allocate("n1/1")  # behind which it would have come again
    assert await nodes.all_said() == ["AggregatorStarted", "AggregatorEnded", "AggregatorStarted"]


async def test_a_program_that_fails_at_once_has_failed(nodes: Nodes) -> None:
    nodes.program = ("/bin/sh", "-c", "echo it is broken; exit 3")
    await nodes.agent()
    await nodes.write_allocated("n1/0")
    assert (await nodes.said(AggregatorEnded)).why == "failed"


async def test_an_agent_that_starts_again_has_none_of_the_aggregators_of_before(nodes: Nodes) -> None:
    n1 = await nodes.agent()
    await nodes.job()
    rank = await Rank.ask(n1)
    await nodes.said(AggregationAsked)
    await nodes.allocate("n1/0")
    await nodes.assign(1, on("n1/0"))
    old = (await rank.parts()).aggregators[0]
    await n1.kill()
    assert await rank.reader.read() == b""
    await n1.start()
    rank = await Rank.ask(n1)
    assert "waits" not in str(await nodes.all_said())
    await nodes.allocate("n1/1")
    await nodes.assign(2, on("n1/1", generation=2))
    (address,) = (await rank.parts()).aggregators
    assert address.aggregator == "n1/1"
    assert address.lease != old.lease
    assert (await nodes.all_said()).count("AggregationAsked") == 1
    offers = [fact for each in await nodes.bus.read(subjects.aggregator("n1")) for fact in each.commit.facts]
    lives = {fact.incarnation for fact in offers if isinstance(fact, AggregatorsOffered)}
    assert len(lives) == 2


async def test_a_run_whose_first_rank_does_not_come_again_after_an_agents_restart_has_left(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_runs, "REJOIN_S", 0.2)
    n1 = await nodes.agent()
    for job_id in ("j1", "j2"):
        await nodes.job(job_id)
        await Rank.ask(n1, job_id)
        await nodes.said(AggregationAsked, lambda fact, job_id=job_id: fact.job_id == job_id)
    await n1.kill()
    await n1.start()
    again = await Rank.ask(n1, "j2")
    assert (await nodes.said(AggregationLeft)).job_id == "j1"
    await nodes.allocate("n1/0")
    await nodes.assign(1, on("n1/0"), job_id="j2")
    assert (await again.parts()).generation == 1


async def test_an_agent_that_ends_in_good_order_offers_nothing_any_more(nodes: Nodes) -> None:
    n1 = await nodes.agent()
    await nodes.allocate("n1/0")
    assert n1.running() == {"n1/0"}
    await n1.stop()
    assert (await nodes.said(AggregatorsOffered, lambda fact: fact.most == 0)).node_id == "n1"
    assert n1.running() == set()


async def test_a_second_agent_of_a_nodes_name_is_refused(nodes: Nodes) -> None:
    n1 = await nodes.agent()
    settings = msgspec.structs.replace(n1.settings, data_dir=str(nodes.folder / "elsewhere"))
    with pytest.raises(SettingsError, match="another aggregation agent runs as node n1"):
        await run(Shell(nodes.bus, "aggregator"), settings)


async def test_a_gang_over_two_nodes_is_served_by_the_agents_of_both(nodes: Nodes) -> None:
    n1, n2 = await nodes.agent("n1"), await nodes.agent("n2")
    await nodes.job("j1", "n1", "n2")
    second = await Rank.ask(n2, rank=1, world_size=2)
    assert (await second.hear(AggregationPending)).reason == "the run's rank 0 has not asked yet"
    first = await Rank.ask(n1, rank=0, world_size=2)
    assert (await nodes.said(AggregationAsked)).nodes == ("n1", "n2")
    await nodes.allocate("n1/0", "n2/0")
    await nodes.assign(1, on("n1/0"), on("n2/0", 1))
    told = [await rank.parts() for rank in (first, second)]
    assert told[0].parts == told[1].parts
    leases = {address.lease for parts in told for address in parts.aggregators}
    assert len(leases) == 4
    for agent in (n1, n2):
        ranks = {order.rank for order in agent.orders(f"{agent.node_id}/0") if isinstance(order, GrantLease)}
        assert ranks == {0, 1}


async def test_a_part_moves_to_another_node_by_a_copy(nodes: Nodes) -> None:
    n1, n2 = await nodes.agent("n1"), await nodes.agent("n2")
    await nodes.job()
    rank = await Rank.ask(n1)
    await nodes.said(AggregationAsked)
    await nodes.allocate("n1/0", "n2/0")
    await nodes.assign(1, on("n1/0"), on("n1/0", 1))
    await rank.parts()
    await nodes.assign(2, on("n2/0", generation=2, how="copy", before="n1/0"), on("n1/0", 1))
    moved = await nodes.said(PartMoved)
    assert (moved.aggregator, moved.before, moved.part, moved.pause_s) == ("n2/0", "n1/0", 0, 0.25)
    parts = await rank.parts()
    assert [(part.aggregator, part.generation, part.how) for part in parts.parts] == [
        ("n2/0", 2, "copy"),
        ("n1/0", 1, "join"),
    ]
    await eventually(lambda: isinstance(n1.orders("n1/0")[-1], SendPart))
    sent = n1.orders("n1/0")[-1]
    assert isinstance(sent, SendPart)
    (copying,) = [order for order in n2.orders("n2/0") if isinstance(order, GrantLease) and order.rank == -1]
    assert (sent.part, sent.generation, sent.to.lease) == (0, 2, copying.lease)
    await nodes.assign(3, on("n1/0", generation=3), on("n1/0", 1))
    await rank.parts()
    *_, opened = [order for order in n1.orders("n1/0") if not isinstance(order, GrantLease)]
    await eventually(lambda: isinstance(n2.orders("n2/0")[-1], DropPart))
    assert isinstance(opened, OpenPart)
    assert (opened.generation, opened.how) == (3, "join")


async def test_a_copy_that_fails_makes_the_new_aggregator_one_that_cannot_be_reached(nodes: Nodes) -> None:
    n1 = await nodes.agent()
    await nodes.job()
    await Rank.ask(n1)
    await nodes.said(AggregationAsked)
    await nodes.allocate("n1/0", "n1/1")
    await nodes.assign(1, on("n1/0"), on("n1/0", 1))
    await nodes.said(AggregationMeasured)
    await nodes.assign(2, on("n1/0"), on("n1/1", 1, generation=2, how="copy", before="n1/0"))
    lost = await nodes.said(AggregatorUnreachable)
    assert (lost.aggregator, lost.job_id, lost.generation) == ("n1/1", "j1", 2)
    assert lost.reason == "part 1 was not copied: it fails with every second part"


async def test_a_part_that_is_to_be_copied_from_where_it_is_not_is_said_to_be_missing(nodes: Nodes) -> None:
    n1 = await nodes.agent()
    await nodes.job()
    await Rank.ask(n1)
    await nodes.said(AggregationAsked)
    await nodes.allocate("n1/0", "n1/1")
    await nodes.assign(1, on("n1/1", generation=1, how="copy", before="n1/0"))
    assert "n1/0 does not hold the part" in (await nodes.said(AggregatorUnreachable)).reason


async def test_what_is_measured_is_of_the_present_assignment_where_all_of_the_steps_were_under_it(nodes: Nodes) -> None:
    n1 = await nodes.agent()
    await nodes.job()
    ranks = [await Rank.ask(n1, world_size=3)]
    await nodes.said(AggregationAsked)
    await nodes.allocate("n1/0", "n1/1", "n1/2")
    await nodes.assign(1, on("n1/0"), on("n1/1", 1))
    await ranks[0].parts()
    await nodes.assign(2, on("n1/0"), on("n1/2", 1, generation=2))
    found = []
    for rank, steps_s in ((1, 0.0), (2, 1000.0)):
        ranks.append(await Rank.ask(n1, rank=rank, world_size=3))
        await ranks[-1].parts()
        found.append(
            await nodes.said(
                AggregationMeasured,
                lambda fact, steps_s=steps_s: (fact.aggregator, fact.iteration_s) == ("n1/0", steps_s),
            )
        )
    assert [fact.generation for fact in found] == [2, 1]  # the second has lasted longer than the assignment is known


async def test_runs_that_share_an_aggregator_are_given_slots_and_one_alone_is_not(nodes: Nodes) -> None:
    n1 = await nodes.agent()
    await nodes.allocate("n1/0")
    for job_id in ("j1", "j2"):
        await nodes.job(job_id)
        await Rank.ask(n1, job_id)
        await nodes.said(AggregationAsked, lambda fact, job_id=job_id: fact.job_id == job_id)
        await nodes.assign(1, on("n1/0"), job_id=job_id, phase="packed", iteration_s=0.5)
        await nodes.said(AggregationMeasured, lambda fact, job_id=job_id: fact.job_id == job_id)
    both = RunSlots(iteration_s={"j1/1": 0.5, "j2/1": 0.5}, cost_s={"j1/1": 0.1, "j2/1": 0.1})
    await eventually(lambda: n1.orders("n1/0")[-1] == both)
    assert [order for order in n1.orders("n1/0") if isinstance(order, RunSlots)] == [both]
    await nodes.cancel("j2")
    await nodes.write(RunEnded(job_id="j2", epoch=1, node_id="n1", outcome="cancelled", at_s=nodes.now_s()))
    await eventually(lambda: n1.orders("n1/0")[-1] == RunSlots(iteration_s={}, cost_s={}))
    closed = n1.orders("n1/0")[-2]
    assert isinstance(closed, CloseRun)
    assert (closed.job_id, closed.reason) == ("j2", "job j2 has ended: it is cancelled")


async def test_a_preempted_run_goes_on_until_it_has_ended_and_then_its_ranks_are_told(nodes: Nodes) -> None:
    n1 = await nodes.agent()
    await nodes.job()
    rank = await Rank.ask(n1)
    await nodes.said(AggregationAsked)
    await nodes.allocate("n1/0")
    await nodes.assign(1, on("n1/0"))
    await rank.parts()
    await nodes.preempt("j1")
    await nodes.assign(2, on("n1/0", generation=2))
    assert (await rank.parts()).generation == 2
    await nodes.write(RunEnded(job_id="j1", epoch=1, node_id="n1", outcome="preempted", at_s=nodes.now_s()))
    assert await rank.denied() == "over: run 1 of job j1 is over; the last one is 1"
    await eventually(lambda: isinstance(n1.orders("n1/0")[-1], CloseRun))
    await nodes.job("j1", "n1", epoch=2)
    again = await Rank.ask(n1, epoch=2)
    assert (await nodes.said(AggregationAsked, lambda fact: fact.epoch == 2)).job_id == "j1"
    await nodes.assign(1, on("n1/0"), epoch=2)
    assert (await again.parts()).generation == 1


async def test_a_run_that_loses_a_process_elsewhere_is_closed(nodes: Nodes) -> None:
    n1 = await nodes.agent()
    await nodes.job("j1", "n1", "n2")
    rank = await Rank.ask(n1, world_size=2)
    await nodes.said(AggregationAsked)
    await nodes.lose("n2")
    assert await rank.denied() == "over: a process of run 1 of job j1 was lost, and with it the run ends"


async def test_a_run_that_is_refused_is_told_why_whenever_it_asks(nodes: Nodes) -> None:
    n1 = await nodes.agent()
    await nodes.job()
    rank = await Rank.ask(n1)
    await nodes.said(AggregationAsked)
    refused = AggregationRefused(
        at_s=nodes.now_s(), pool="default", job_id="j1", epoch=1, reason="no aggregator is free"
    )
    await nodes.write(refused)
    assert await rank.denied() == "refused: no aggregator is free"
    assert await (await Rank.ask(n1)).denied() == "refused: no aggregator is free"


async def test_a_rank_that_cannot_reach_a_living_aggregator_has_the_log_know_it_once(nodes: Nodes) -> None:
    n1 = await nodes.agent()
    await nodes.job()
    ranks = [await Rank.ask(n1, rank=rank, world_size=2) for rank in range(2)]
    await nodes.said(AggregationAsked)
    await nodes.allocate("n1/0", "n1/1")
    await nodes.assign(1, on("n1/0"))
    for rank in ranks:
        await rank.parts()
        rank.say(LostAggregator(aggregator="n1/0", generation=1, reason="connection refused"))
    lost = await nodes.said(AggregatorUnreachable)
    assert (lost.aggregator, lost.epoch, lost.generation, lost.reason) == ("n1/0", 1, 1, "connection refused")
    await nodes.assign(2, on("n1/1", generation=2))
    for rank in ranks:
        assert (await rank.parts()).parts[0].aggregator == "n1/1"
    assert (await nodes.all_said()).count("AggregatorUnreachable") == 1


async def test_a_rank_that_loses_an_aggregator_that_has_ended_waits_for_the_next_assignment(nodes: Nodes) -> None:
    n1 = await nodes.agent()
    await nodes.job()
    rank = await Rank.ask(n1)
    await nodes.said(AggregationAsked)
    await nodes.allocate("n1/0", "n1/1")
    await nodes.assign(1, on("n1/0"))
    await rank.parts()
    n1.signal("n1/0", signal.SIGKILL)
    await nodes.said(AggregatorEnded)
    rank.say(LostAggregator(aggregator="n1/0", generation=1))
    await nodes.assign(2, on("n1/1", generation=2))
    assert (await rank.parts()).parts[0].aggregator == "n1/1"
    assert "AggregatorUnreachable" not in await nodes.all_said()


async def test_what_a_rank_has_lost_in_an_assignment_that_is_not_the_present_one_is_nothing_new(nodes: Nodes) -> None:
    n1 = await nodes.agent()
    await nodes.job()
    rank = await Rank.ask(n1)
    await nodes.said(AggregationAsked)
    rank.say(LostAggregator(aggregator="n1/0", generation=7))  # as one does whose agent has begun anew
    await nodes.allocate("n1/0")
    await nodes.assign(8, on("n1/0"))
    await rank.parts()
    for generation, name in ((7, "n1/0"), (12, "n1/0"), (8, "n9/0")):
        rank.say(LostAggregator(aggregator=name, generation=generation))
    await nodes.assign(9, on("n1/0", generation=9))
    await rank.parts()
    assert "AggregatorUnreachable" not in await nodes.all_said()


async def test_facts_wait_in_order_while_the_bus_is_away(nodes: Nodes, memory_bus: MemoryBus) -> None:
    n1 = await nodes.agent()
    await nodes.allocate("n1/0", "n1/1")
    memory_bus.disconnect()
    for name in ("n1/1", "n1/0"):
        n1.signal(name, signal.SIGKILL)
        await eventually(lambda name=name: name not in n1.running())
    memory_bus.reconnect()
    await nodes.said(AggregatorEnded, lambda fact: fact.aggregator == "n1/0")
    assert await nodes.all_said() == [*["AggregatorStarted"] * 2, *["AggregatorEnded"] * 2]


async def test_the_node_says_each_second_how_busy_its_aggregators_are(nodes: Nodes) -> None:
    await nodes.agent()
    heard = nodes.bus.subscribe(subjects.aggregator_load("n1"))
    first = asyncio.ensure_future(anext(heard))  # type: ignore[call-overload]
    await asyncio.sleep(0)
    await nodes.allocate("n1/0")
    _, body = await asyncio.wait_for(first, 30)
    loads = msgspec.json.decode(body, type=AggregatorLoads)
    while not loads.loads or not loads.loads[0].busy_s:
        loads = msgspec.json.decode((await asyncio.wait_for(anext(heard), 30))[1], type=AggregatorLoads)  # type: ignore[call-overload]
    (load,) = loads.loads
    assert (load.aggregator, load.busy_s, load.refused, load.received_bytes) == ("n1/0", 0.5, {"COUNTED": 1}, 7)
    assert loads.most == 2
