"""Pilots that wait in the queue of a real Slurm: what their jobs are told, and that they are taken back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import Cluster, running
from slurm import SlurmCluster, missing, running_slurm

from penstock_log import AllocationSpec
from penstock_testing import eventually

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(bool(missing()), reason=f"Slurm is not installed here: there is no {missing()}"),
]
SLOW_S = 60.0


@pytest.fixture
def slurm() -> Iterator[SlurmCluster]:
    with running_slurm(nodes=1) as found:
        yield found


@pytest.fixture
def cluster(tmp_path: Path, slurm: SlurmCluster) -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in slurm.environment.items():
            patch.setenv(name, value)
        patch.setenv("PENSTOCK_ALLOCATOR_POLL_S", "0.5")
        patch.setenv("PENSTOCK_ALLOCATOR_WITHDRAW_S", "2")
        patch.setenv("PENSTOCK_DASHBOARD_PORT", "0")
        patch.setenv("PENSTOCK_EXECUTOR_DEVICES", "cpu")
        with running(tmp_path / "data") as found:
            yield found


async def test_a_job_is_told_why_its_pilot_waits_and_the_pilot_goes_with_the_job(
    cluster: Cluster, slurm: SlurmCluster
) -> None:
    taken = slurm.command("sbatch", "--parsable", "--gres=gpu:1", "--output=/dev/null", "--wrap", "sleep 600").strip()
    lab = AllocationSpec(provider="slurm", max_pilots=4, kinds=("fast",), options=("--partition=main", "--gres=gpu:1"))
    async with cluster.client() as client:
        await client.add_allocation("lab", lab)
        shown = cluster.run("submit", "--strict", "--kind", "fast", "--name", "j", "--", "true")
        assert "no node has `fast` now; allocation lab (slurm) may bring it" in shown.stderr
        job_id = shown.stdout.split()[0]

        async def why_of_slurm() -> bool:
            return "on its way, submitted" in (said := (await client.why(job_id)).evidence) and "in Slurm: Res" in said

        await eventually(why_of_slurm, within_s=SLOW_S)
        [allocation] = (await client.why(job_id)).allocations
        assert (allocation.state, allocation.pilots) == ("coming", 1)
        assert [state for number, state, _ in slurm.jobs() if number != taken] == ["PENDING"]
        await client.cancel(job_id)

        async def taken_alone() -> bool:
            return [number for number, _, _ in await asyncio.to_thread(slurm.jobs)] == [taken]

        async def ended() -> bool:
            pilots = (await client.allocations()).allocations[0].pilots
            return [(one.state, one.reason) for one in pilots] == [("cancelled", "no job would run on it any more")]

        await eventually(taken_alone, within_s=SLOW_S)
        await eventually(ended, within_s=SLOW_S)
        assert (await client.allocations()).allocations[0].failures == 0
