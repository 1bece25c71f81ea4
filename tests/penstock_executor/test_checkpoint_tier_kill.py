"""A node that is lost in earnest: executor, agent and job are killed as processes of their own, on a real server."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from checkpoint_clusters import MIB, TRAINING, cluster_on
from executor_cases import end_processes, python
from memory_agents import agents

from penstock_log import RunCheckpointed
from penstock_testing import eventually
from penstock_testing.fixtures import NatsAccount

pytestmark = pytest.mark.slow


async def test_a_job_goes_on_from_a_peers_copy_when_its_node_is_killed_with_its_disk(
    nats_account: NatsAccount, tmp_path: Path
) -> None:
    async with (
        nats_account.connect() as bus,
        cluster_on(bus, tmp_path) as cluster,
        agents(nats_account, tmp_path / "agents", "n1", "n2", "n3", slab_bytes=MIB) as (dying, n2, _),
    ):
        where = tmp_path / "n1"
        executor = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "penstock_executor",
            env={
                **os.environ,
                **nats_account.environment,
                "PENSTOCK_EXECUTOR_NODE_ID": "n1",
                "PENSTOCK_EXECUTOR_RUN_AS": "executor",
                "PENSTOCK_EXECUTOR_DEVICES": "fast:2@1.0:1GiB",
                "PENSTOCK_EXECUTOR_DATA_DIR": str(where),
                "PENSTOCK_EXECUTOR_CHECKPOINT_MEMORY_DIR": str(where / "shm"),
                "PENSTOCK_EXECUTOR_MEMORY_DIR": str(dying.data),
                "PENSTOCK_EXECUTOR_PASS_ENV": "PYTHONPATH",
            },
        )

        async def joined() -> bool:
            return bool(await cluster.joined("n1"))

        await eventually(joined)
        await cluster.machine("n2", agent=False, memory_dir=str(n2.data))
        await cluster.run("j1", *python(TRAINING), checkpoint_tier="memory", checkpoint_s=0.3)
        saved = await cluster.fact(RunCheckpointed, "j1", lambda fact: fact.tier == "memory")
        assert sorted(saved.peers) == ["n2", "n3"]
        executor.send_signal(signal.SIGKILL)
        await dying.end(signal.SIGKILL)
        end_processes(tmp_path)
        await executor.wait()
        shutil.rmtree(where)
        await cluster.lose("n1")
        await cluster.place("j1", epoch=2, node_id="n2")
        begun = await cluster.started("j1", 2, "n2")
        assert begun.resumed_step >= saved.step
        assert begun.copied_from in {"n2", "n3"}
        await cluster.says("j1", f"begins at {begun.resumed_step} with {begun.resumed_step}")
        assert "RunRewound" not in await cluster.facts("j1")
