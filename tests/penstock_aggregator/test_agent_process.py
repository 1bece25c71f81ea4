"""The agent as a process of its own, on a real server: nothing outlives it, and it idles at no cost."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock_bus import Append, Bus
from penstock_log import AggregatorsAllocated, AggregatorsOffered, AggregatorStarted, AnyEvent, Commit, subjects
from penstock_testing import eventually
from penstock_testing.fixtures import NatsAccount

pytestmark = pytest.mark.slow


@asynccontextmanager
async def agent(account: NatsAccount, data: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    own = {"DATA_DIR": str(data), "NODE_ID": "n1", "ADDRESS": "127.0.0.1", "HOST": "127.0.0.1", "MOST": "2"}
    settings = {f"PENSTOCK_AGGREGATOR_{name}": value for name, value in own.items()}
    env = {**os.environ, **account.environment, **settings}
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "penstock_aggregator", env=env)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def said(bus: Bus, kind: type[AnyEvent], count: int = 1) -> list[AnyEvent]:
    """Return so many facts of a kind that the agent has written, waiting for them."""
    found = []
    async with asyncio.timeout(30):
        async for delivery in bus.follow(subjects=[subjects.aggregator("n1")]):
            found += [fact for fact in delivery.commit.facts if isinstance(fact, kind)]
            if len(found) >= count:
                return found
    raise AssertionError("a follower ended")


def children(pid: int) -> list[int]:
    return [
        int(word) for task in Path(f"/proc/{pid}/task").iterdir() for word in (task / "children").read_text().split()
    ]


async def test_aggregators_are_processes_that_end_with_an_agent_that_is_killed(
    nats_account: NatsAccount, tmp_path: Path
) -> None:
    async with nats_account.connect() as bus:
        async with agent(nats_account, tmp_path / "n1") as process:
            (offered,) = await said(bus, AggregatorsOffered)
            assert children(process.pid) == []
            fact = AggregatorsAllocated(at_s=1.0, pool="default", aggregators=("n1/0", "n1/1"))
            commit = Commit(id="a", actor="test", facts=(fact,))
            await bus.append(Append(subject=subjects.aggregation("default"), commit=commit, expected=None))
            await said(bus, AggregatorStarted, 2)
            running = children(process.pid)
            assert len(running) == 2
            for pid in running:
                assert b"PENSTOCK_" not in Path(f"/proc/{pid}/environ").read_bytes()
            process.send_signal(signal.SIGKILL)
            await process.wait()
            await eventually(lambda: not any(is_running(pid) for pid in running))
        async with agent(nats_account, tmp_path / "n1") as process:
            again = (await said(bus, AggregatorsOffered, 2))[1]
            assert isinstance(offered, AggregatorsOffered)
            assert isinstance(again, AggregatorsOffered)
            assert again.incarnation != offered.incarnation
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
        last = (await said(bus, AggregatorsOffered, 3))[2]
        assert isinstance(last, AggregatorsOffered)
        assert last.most == 0
        assert (
            len(await said(bus, AggregatorStarted, 2)) == 2
        )  # what was allocated to the first is none of the second's


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
