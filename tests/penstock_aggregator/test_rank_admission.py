"""Who is admitted by an agent's socket, and who is sent away by which name."""

from __future__ import annotations

import asyncio
import os
import pwd
from typing import Any

import msgspec
import pytest
from aggregation_agents import LAYOUT, Nodes, Rank, on

from penstock_log import AggregationAsked, AggregationLeft, subjects
from penstock_log.aggregation_messages import (
    AggregationPending,
    AggregatorLoads,
    LeaveAggregation,
    UpdateRule,
    VectorLayout,
    run_token,
)
from penstock_testing import eventually

pytestmark = pytest.mark.slow
OTHER = run_token(b"another secret", "j1", 1)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        pytest.param({"version": 9}, "version: this agent speaks version 1, and the process 9", id="another_version"),
        pytest.param({"rank": 1}, "rank: there is no rank 1 of 1", id="no_such_rank"),
        pytest.param({"token": OTHER}, "token: it is not that of run 1 of job j1", id="another_nodes_token"),
        pytest.param({"token": "x"}, "message: a line that is no message", id="no_token"),
        pytest.param({"epoch": 2}, "over: run 2 of job j1 is over; the last one is 1", id="another_run"),
        pytest.param({"job_id": "j9"}, "over: there is no job j9, or it is over", id="no_such_job"),
    ],
)
async def test_a_process_that_is_not_of_a_run_is_sent_away_by_name(
    nodes: Nodes, asked: dict[str, Any], reason: str
) -> None:
    n1 = await nodes.agent()
    await nodes.job()
    loads = asyncio.ensure_future(anext(nodes.bus.subscribe(subjects.aggregator_load("n1"))))  # type: ignore[call-overload]
    await asyncio.sleep(0)
    assert (await (await Rank.ask(n1, **asked)).denied()).startswith(reason)
    said = msgspec.json.decode((await asyncio.wait_for(loads, 30))[1], type=AggregatorLoads)
    assert said.denied == {reason.partition(":")[0]: 1}
    assert await nodes.all_said() == []


async def test_a_run_whose_vectors_would_fill_the_node_is_sent_away(nodes: Nodes) -> None:
    n1 = await nodes.agent(run_bytes=1000)
    await nodes.job()
    large = VectorLayout(dtype="f4", parts=(100,))
    said = await (await Rank.ask(n1, layout=large)).denied()
    assert said.startswith(
        "memory: aggregators would hold 1,200 bytes of this run, and may hold 1,000; aggregate fewer"
    )


async def test_a_token_of_one_run_is_none_of_the_next_and_none_of_another_job(nodes: Nodes) -> None:
    n1 = await nodes.agent()
    await nodes.job("j1")
    await nodes.job("j2")
    for about in ({"token": n1.token("j1", 2)}, {"token": n1.token("j2", 1)}):
        assert (await (await Rank.ask(n1, **about)).denied()).startswith("token: ")


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"layout": VectorLayout(dtype="f8", parts=LAYOUT.parts)}, "dtype: f4, and this one f8"),
        ({"layout": VectorLayout(dtype="f4", parts=(16, 9))}, "parts: 2 parts, 24 elements, and this one 2 parts, 25"),
        ({"layout": msgspec.structs.replace(LAYOUT, values="other")}, "names or shapes of values"),
        ({"rule": UpdateRule(name="sgd")}, "rule: mean, and this one sgd"),
        ({"rule": UpdateRule(lr=0.5)}, "rule: mean lr 0.01, and this one mean lr 0.5"),
        ({"world_size": 3}, "world size: 2, and this one 3"),
        ({"servers": 4}, "wishes: 1 shared servers, and this one 4 shared"),
    ],
)
@pytest.mark.parametrize("node_id", ["n1", "n2"])
async def test_a_rank_that_aggregates_something_else_is_sent_away_on_whatever_node_it_is(
    nodes: Nodes, other: dict[str, Any], reason: str, node_id: str
) -> None:
    await nodes.agent("n1")
    await nodes.agent("n2")
    await nodes.job("j1", "n1", "n2")
    first = await Rank.ask(nodes.agents["n1"], world_size=2)
    await nodes.said(AggregationAsked)
    second = await Rank.ask(nodes.agents[node_id], rank=1, **{"world_size": 2, **other})
    assert reason in await second.denied()
    await nodes.allocate("n1/0")
    await nodes.assign(1, on("n1/0"))
    assert (await first.parts()).generation == 1  # whom it does not concern


async def test_a_rank_that_connects_anew_takes_the_place_of_its_former_connection(nodes: Nodes) -> None:
    n1 = await nodes.agent()
    await nodes.job()
    before = await Rank.ask(n1)
    await before.hear(AggregationPending)
    after = await Rank.ask(n1)
    assert await before.denied() == "replaced: rank 0 of run 1 has connected anew"
    await nodes.allocate("n1/0")
    await nodes.assign(1, on("n1/0"))
    assert (await after.parts()).generation == 1
    assert (await nodes.all_said()).count("AggregationAsked") == 1


async def test_a_run_leaves_when_its_first_rank_says_so_and_not_when_another_one_does(nodes: Nodes) -> None:
    n1 = await nodes.agent()
    await nodes.job()
    first, second = [await Rank.ask(n1, rank=rank, world_size=2) for rank in range(2)]
    await nodes.said(AggregationAsked)
    second.say(LeaveAggregation())
    await second.close()
    first.say(LeaveAggregation())
    await nodes.said(AggregationLeft)
    await first.close()
    await eventually(lambda: not n1.running())
    assert await nodes.all_said() == ["AggregationAsked", "AggregationLeft"]


async def test_a_run_leaves_once_its_other_ranks_of_the_node_have_gone_too(nodes: Nodes) -> None:
    n1 = await nodes.agent()
    for job_id in ("j1", "j2"):
        await nodes.job(job_id)
    first, second = [await Rank.ask(n1, rank=rank, world_size=2) for rank in range(2)]
    other = await Rank.ask(n1, "j2")
    for job_id in ("j1", "j2"):
        await nodes.said(AggregationAsked, lambda fact, job_id=job_id: fact.job_id == job_id)
    first.say(LeaveAggregation())
    other.say(LeaveAggregation())  # behind the first one, and with nobody left
    assert (await nodes.said(AggregationLeft)).job_id == "j2"
    await second.close()
    await nodes.said(AggregationLeft, lambda fact: fact.job_id == "j1")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"nonsense\n", "message: a line that is no message"),
        (b'{"type":"parts"}\n', "message: a line that is no message"),
    ],
)
async def test_a_rank_that_says_what_cannot_be_is_hung_up_on(nodes: Nodes, line: bytes, reason: str) -> None:
    n1 = await nodes.agent()
    await nodes.job()
    rank = await Rank.ask(n1)
    await rank.hear(AggregationPending)
    rank.say(line)
    assert (await rank.denied()).startswith(reason)


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root becomes another user")
async def test_another_account_comes_to_the_socket_and_not_to_the_secret(nodes: Nodes) -> None:
    n1 = await nodes.agent()
    await nodes.job()
    for folder in (n1.data, *n1.data.parents):
        if not os.stat(folder).st_mode & 0o001:
            folder.chmod(0o711)
    code = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); "
        "s.sendall(sys.argv[2].encode()); print(s.makefile().readline())\n"
        "try: open(sys.argv[3])\nexcept PermissionError: print('closed')"
    )
    asked = msgspec.json.encode({"type": "ask", "version": 1, "token": "0" * 64, "job_id": "j1", "epoch": 1, "rank": 0})
    asked = asked[:-1] + b',"pid":1,"world_size":1,"layout":{"dtype":"f4","parts":[1]}}\n'
    process = await asyncio.create_subprocess_exec(
        *("/usr/bin/python3", "-c", code, str(n1.socket), asked.decode(), str(n1.data / "secret")),
        stdout=asyncio.subprocess.PIPE,
        user=pwd.getpwnam("nobody").pw_uid,
        cwd="/",
    )
    said, _ = await process.communicate()
    assert b"token: it is not that of run 1" in said
    assert said.endswith(b"closed\n")
