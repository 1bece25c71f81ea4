"""What an agent answers to others that ask it for a lease, and to lines that nobody should send."""

from __future__ import annotations

import asyncio

import msgspec
import numpy as np
import pytest
from aggregation_agents import Agent, Nodes, Rank, on

from penstock_aggregator import runner
from penstock_bus import ServiceError
from penstock_log import AggregationAsked, AggregationLeft, subjects
from penstock_log.aggregation_messages import COPY_RANK, AggregatorAddress, OpenLease

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "LEASE_S", 0.5)


def lease(**more: object) -> OpenLease:
    about = {"aggregator": "n1/0", "job_id": "j1", "epoch": 1, "rank": 0, "generation": 1}
    return OpenLease(**{**about, **more})  # type: ignore[arg-type]


async def ask(nodes: Nodes, request: OpenLease | bytes) -> AggregatorAddress:
    body = request if isinstance(request, bytes) else msgspec.json.encode(request)
    answer = await nodes.bus.request(subjects.aggregators("n1"), body, 10.0)
    return msgspec.json.decode(answer, type=AggregatorAddress)


async def assigned(nodes: Nodes) -> Agent:
    """A run whose parts are on the first of two aggregators."""
    n1 = await nodes.agent()
    await nodes.job()
    await Rank.ask(n1)
    await nodes.said(AggregationAsked)
    await nodes.allocate("n1/0", "n1/1")
    await nodes.assign(1, on("n1/0"), on("n1/0", 1))
    await n1.ranks[0].parts()
    return n1


@pytest.mark.parametrize(
    ("request_", "code", "reason"),
    [
        pytest.param(b"nonsense", 400, "expected a request for a lease", id="no_request"),
        pytest.param(lease(aggregator=""), 404, "names an aggregator", id="of_nothing"),
        pytest.param(lease(aggregator="n1/1"), 409, "has no part of job j1", id="without_a_part"),
        pytest.param(lease(rank=1), 409, "rank 1 is none of 1", id="of_no_rank"),
        pytest.param(lease(generation=2), 504, "is not ready for run 1 of job j1 yet", id="of_a_later_assignment"),
        pytest.param(lease(epoch=2), 504, "is not ready for run 2 of job j1 yet", id="of_a_later_run"),
    ],
)
async def test_a_request_that_cannot_be_granted_is_refused_with_the_reason(
    nodes: Nodes, request_: OpenLease | bytes, code: int, reason: str
) -> None:
    await assigned(nodes)
    with pytest.raises(ServiceError, match=reason) as refused:
        await ask(nodes, request_)
    assert refused.value.code == code


async def test_each_rank_has_a_lease_of_its_own_and_the_same_one_whenever_it_asks(nodes: Nodes) -> None:
    await assigned(nodes)
    first, again, copying = [await ask(nodes, lease(rank=rank)) for rank in (0, 0, COPY_RANK)]
    assert first == again
    assert first.lease != copying.lease
    assert first.token != copying.token
    assert (first.port, first.socket) == (copying.port, copying.socket)


async def test_a_request_waits_for_an_aggregator_that_is_about_to_start(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "LEASE_S", 30.0)
    await nodes.agent()
    waiting = asyncio.ensure_future(ask(nodes, lease()))
    await nodes.job()
    await Rank.ask(nodes.agents["n1"])
    await nodes.said(AggregationAsked)
    await nodes.write_allocated("n1/0")
    await nodes.assign(1, on("n1/0"))
    assert (await waiting).aggregator == "n1/0"


async def test_an_agent_that_is_killed_while_an_aggregator_starts_leaves_nothing_behind(nodes: Nodes) -> None:
    n1 = await nodes.agent()
    for number in range(4):
        await nodes.write_allocated(f"n1/{number}")
    await asyncio.sleep(0)
    await n1.kill()
    assert n1.running() == set()


async def test_a_run_that_is_over_gets_no_lease_and_is_told_why(nodes: Nodes) -> None:
    n1 = await assigned(nodes)
    await n1.ranks[0].close()
    await nodes.said(AggregationLeft)
    with pytest.raises(ServiceError, match="run 1 of job j1 needs no aggregation any more"):
        await ask(nodes, lease())


async def test_lines_by_chance_end_their_connection_and_nobody_elses(nodes: Nodes) -> None:
    n1 = await assigned(nodes)
    rng = np.random.default_rng(17)
    known = [
        b'{"type":"ask"',
        b'"version":1',
        b"[",
        b"]",
        b"}",
        b",",
        b'"rank":-1',
        b'"lost"',
        b"\x00",
        b"\xff",
        b"1e999",
    ]
    for _ in range(60):
        rank = Rank(*await asyncio.open_unix_connection(str(n1.socket)))
        rank.say(b"".join(known[at] for at in rng.integers(len(known), size=rng.integers(1, 12))) + b"\n")
        assert (await rank.denied()).startswith("message: ")
    await nodes.assign(2, on("n1/1", generation=2), on("n1/0", 1))
    assert (await n1.ranks[0].parts()).generation == 2
