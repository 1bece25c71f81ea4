"""Jobs through pilots on a real Slurm, of which one thing after the other is taken away."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clusters import Cluster, running
from slurm import SlurmCluster, missing, running_slurm

import penstock
from penstock_log import AllocationSpec, views

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(480),  # so many pilots of a minute: 2 min, and twice that on a busy machine
    pytest.mark.skipif(bool(missing()), reason=f"Slurm is not installed here: there is no {missing()}"),
]
JOBS = Path(__file__).parents[1] / "chaos" / "jobs"
STEPS = 45
STEP_S = 0.2
SUM = sum(step * step for step in range(1, STEPS + 1))
MOST_S = 420.0
Waits = list[asyncio.Future[views.JobView]]


@pytest.fixture
def slurm() -> Iterator[SlurmCluster]:
    with running_slurm(nodes=4) as found:
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


def spec(notes: Path, name: str, **more: object) -> dict[str, Any]:
    return {
        "name": name,
        "command": (sys.executable, str(JOBS / "session_job.py"), str(STEPS), str(STEP_S)),
        "env": {"CHAOS_NOTES": str(notes), "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        "profile": "off",
        **more,
    }


async def test_every_job_and_every_trial_ends_once_with_all_its_steps(
    cluster: Cluster, slurm: SlurmCluster, tmp_path: Path
) -> None:
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
    search = {
        "space": {"lr": {"kind": "uniform", "low": 0.1, "high": 1.0}},
        "metric": "loss",
        "search": "random",
        "trials": 4,
    }
    async with cluster.client() as client:
        await client.add_allocation("lab", allocation)
        sweep_id = (await client.tune(name="search", job=spec(notes, "trial"), **search)).id
        ids = [(await client.submit(**spec(notes, "digits", id=f"job-{number}"))).id for number in range(30)]
        waits = [asyncio.ensure_future(client.wait(job_id)) for job_id in ids]
        async with asyncio.timeout(MOST_S):
            faults = _faults(client, slurm, waits)
            _, sweep, *jobs = await asyncio.gather(faults, client.wait_sweep(sweep_id), *waits)
            found = (await client.allocations()).allocations[0]
        assert [(job.id, job.reason) for job in jobs if job.state != "CD"] == []
        assert (sweep.state, sweep.done, sweep.failed) == ("completed", 4, 0), sweep
        for job_id in (*ids, *(trial.job_id for trial in sweep.trials)):
            lines = [json.loads(line) for line in (notes / f"{job_id}.jsonl").read_text().splitlines()]
            assert [(one["sum"], one["step"]) for one in lines if one["what"] == "end"] == [(SUM, STEPS)], job_id
        assert found.state == "active", found
        await client.remove_allocation("lab")
        async with asyncio.timeout(60):
            while (await client.allocations()).allocations:  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.2)
    assert slurm.jobs() == []
    assert "service_failed" not in (cluster.data / "logs" / "allocator-1.log").read_text()


async def _faults(client: penstock.Client, slurm: SlurmCluster, waits: Waits) -> None:
    """Take a pilot, a machine, another machine's future and the controller away, each while most pilots are running."""
    gone = set[str]()
    number, _ = await _one_of_running(client, slurm, waits, 4, gone)
    await asyncio.to_thread(slurm.command, "scancel", number)
    _, killed = await _one_of_running(client, slurm, waits, 3, gone)
    await asyncio.to_thread(slurm.kill_node, killed)
    _, drained = await _one_of_running(client, slurm, waits, 3, gone)
    await asyncio.to_thread(slurm.command, "scontrol", "update", f"nodename={drained}", "state=drain", "reason=test")
    await asyncio.to_thread(slurm.restart_controller)
    await asyncio.to_thread(slurm.start_node, killed)


async def _one_of_running(
    client: penstock.Client, slurm: SlurmCluster, waits: Waits, count: int, gone: set[str]
) -> tuple[str, str]:
    """Return Slurm's number and the machine of a pilot, once so many run by the view and by Slurm; it is gone then."""
    while not all(wait.done() for wait in waits):
        pilots = (await client.allocations()).allocations[0].pilots
        running_now = {pilot.provider_id for pilot in pilots if pilot.state == "running"} - gone
        there = [(number, at) for number, _, at in await asyncio.to_thread(slurm.jobs) if number in running_now]
        if len(there) >= count:
            gone.add(there[0][0])
            return there[0]
        await asyncio.sleep(0.2)
    raise AssertionError(f"all jobs had ended before {count} pilots were running")
