"""Jobs through pilots on a real Slurm, of which one thing after the other is taken away."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import Cluster, running
from slurm import SlurmCluster, missing, running_slurm

import penstock
from penstock_log import AllocationSpec, views

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(bool(missing()), reason=f"Slurm is not installed here: there is no {missing()}"),
]
JOBS = Path(__file__).parents[1] / "chaos" / "jobs"
STEPS = 60
STEP_S = 0.2
SUM = sum(step * step for step in range(1, STEPS + 1))
MOST_S = 420.0


@pytest.fixture
def slurm() -> Iterator[SlurmCluster]:
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, running_slurm(Path(folder), nodes=4) as found:
        yield found


@pytest.fixture
def cluster(tmp_path: Path, slurm: SlurmCluster) -> Iterator[Cluster]:
    (tmp_path / "notes").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in slurm.environment.items():
            patch.setenv(name, value)
        patch.setenv("PENSTOCK_ALLOCATOR_POLL_S", "1")
        patch.setenv("PENSTOCK_DASHBOARD_PORT", "0")
        patch.setenv("PENSTOCK_EXECUTOR_DEVICES", "cpu")
        with running(tmp_path / "data") as found:
            yield found


def spec(notes: Path, number: int) -> dict[str, object]:
    return {
        "id": f"job-{number}",
        "name": "digits",
        "command": (sys.executable, str(JOBS / "session_job.py"), str(STEPS), str(STEP_S)),
        "env": {"CHAOS_NOTES": str(notes), "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        "profile": "off",
    }


async def test_every_job_ends_once_with_all_its_steps(cluster: Cluster, slurm: SlurmCluster, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    allocation = AllocationSpec(
        provider="slurm",
        max_pilots=4,
        backlog=4,
        walltime_s=60,
        idle_s=5,
        devices="fast:1@1.0:4GiB",
        options=("--partition=main", "--gres=gpu:1"),
        environment={"PENSTOCK_EXECUTOR_RUN_AS": "executor"},
    )
    async with cluster.client() as client:
        await client.add_allocation("lab", allocation)
        ids = [(await client.submit(**spec(notes, number))).id for number in range(30)]
        faults = asyncio.ensure_future(_faults(client, slurm))
        async with asyncio.timeout(MOST_S):
            jobs = [await client.wait(job_id) for job_id in ids]
            await faults
            found = (await client.allocations()).allocations[0]
        assert {job.state for job in jobs} == {"CD"}
        for job_id in ids:
            lines = [json.loads(line) for line in (notes / f"{job_id}.jsonl").read_text().splitlines()]
            assert [(one["sum"], one["step"]) for one in lines if one["what"] == "end"] == [(SUM, STEPS)], job_id
        assert found.state == "active", found
        await client.remove_allocation("lab")
        async with asyncio.timeout(60):
            while (await client.allocations()).allocations:  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.2)
    assert slurm.jobs() == []


async def _faults(client: penstock.Client, slurm: SlurmCluster) -> None:
    """Take a machine, a pilot, and the controller away, each once all pilots that may be are running."""
    pilots = await _until_running(client, 4)
    await asyncio.to_thread(slurm.command, "scancel", pilots[0].provider_id)
    pilots = await _until_running(client, 3, but=pilots[:1])
    killed = next(at for number, _, at in slurm.jobs() if number == pilots[0].provider_id)
    await asyncio.to_thread(slurm.kill_node, killed)
    pilots = await _until_running(client, 3, but=pilots[:1])
    node = next(at for number, _, at in slurm.jobs() if number == pilots[0].provider_id)
    await asyncio.to_thread(slurm.command, "scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    await asyncio.to_thread(slurm.restart_controller)
    await asyncio.to_thread(slurm.start_node, killed)


async def _until_running(
    client: penstock.Client, count: int, but: list[views.PilotView] | None = None
) -> list[views.PilotView]:
    gone = {pilot.id for pilot in but or ()}
    while True:
        found = (await client.allocations()).allocations[0].pilots
        running_now = [pilot for pilot in found if pilot.state == "running" and pilot.id not in gone]
        if len(running_now) >= count:
            return running_now
        await asyncio.sleep(0.2)
