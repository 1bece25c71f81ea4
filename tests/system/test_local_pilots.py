"""Pilots on this machine: what their nodes say, and what jobs find there that aggregate or lose their node."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from clusters import Cluster, running, until

import penstock
from penstock_log import AllocationSpec
from penstock_testing import eventually

pytestmark = pytest.mark.thorough
SUPPORT = Path(__file__).parents[1] / "support"
SLOW_S = 90.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_ALLOCATOR_POLL_S", "0.5")
        patch.setenv("PENSTOCK_DASHBOARD_PORT", "0")
        patch.setenv("PENSTOCK_EXECUTOR_DEVICES", "cpu")
        with running(tmp_path_factory.mktemp("d")) as found:
            yield found


@pytest_asyncio.fixture
async def client(cluster: Cluster) -> AsyncIterator[penstock.Client]:
    async with cluster.client() as found:
        yield found


def pilots(pool: str, **fields: Any) -> AllocationSpec:
    environment = {"PENSTOCK_EXECUTOR_RUN_AS": "executor"}
    return AllocationSpec(
        provider="local", pool=pool, devices="fast:2@1.0:4GiB", environment=environment, idle_s=0, **fields
    )


def job(pool: str, *command: str, **fields: Any) -> dict[str, Any]:
    path = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    return {"name": "j", "command": (sys.executable, *command), "pool": pool, "env": path, "profile": "off", **fields}


async def test_a_gang_that_aggregates_runs_on_pilots_with_agents_and_is_told_of_them_without(
    client: penstock.Client,
) -> None:
    gang = {"gpus": 2, "kinds": ("fast",)}
    for name, agents in (("with", True), ("without", False)):
        await client.add_allocation(name, pilots(name, agents=agents))
        await client.submit(**job(name, str(SUPPORT / "push_pull_job.py"), id=f"gang-{name}", **gang))
    assert (await client.wait("gang-with")).state == "CD"
    assert (await client.wait("gang-without")).state == "F"
    output = b"".join([line.data async for line in client.logs("gang-without")])
    assert b"pilots have one where their allocation was added with --agents" in output
    for name in ("with", "without"):
        await client.remove_allocation(name)


async def test_a_node_of_a_pilot_says_so_and_the_job_that_it_leaves_is_told_when(
    cluster: Cluster, client: penstock.Client
) -> None:
    await client.add_allocation("here", pilots("own"))
    one = await client.submit(**job("own", "-c", "import time; time.sleep(600)", kinds=("fast",)))
    await until(client, one.id, "run.started.v1")
    [node] = [node for node in (await client.nodes()).nodes if node.pilot == "here-1"]
    assert node.until_s > node.joined_s
    assert "here-1" in cluster.run("nodes").stdout
    await client.remove_allocation("here")

    async def is_told() -> bool:
        lines = [line.text for line in (await client.story(one.id)).lines]
        return f"its node {node.id} begins to leave: shutdown" in lines and (await client.why(one.id)).state == "PD"

    await eventually(is_told, within_s=SLOW_S)
    await client.cancel(one.id)
