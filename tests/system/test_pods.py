"""Jobs through Pods, on an API server of which one thing after the other is taken away."""

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
from kube_server import KubeServer
from kubelets import Kubelets

import penstock
from penstock_log import AllocationSpec
from penstock_log.allocation_spec import PodOptions

pytest.importorskip("kr8s")

JOBS = Path(__file__).parents[1] / "chaos" / "jobs"
STEPS = 10
MOST_S = 60.0


@pytest.fixture(scope="module")
def server() -> Iterator[KubeServer]:
    with KubeServer().serving() as found:
        for number in range(3):
            found.add_node(f"machine-{number}", gpus=1)
        yield found


@pytest.fixture(scope="module")
def kubelets(server: KubeServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubelets]:
    with Kubelets(server, tmp_path_factory.mktemp("pods")).at_work() as found:
        yield found


@pytest.fixture(scope="module")
def cluster(server: KubeServer, kubelets: Kubelets, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("penstock")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(server.kubeconfig(folder / "kubeconfig")))
        patch.setenv("PENSTOCK_DASHBOARD_PORT", "0")
        patch.setenv("PENSTOCK_EXECUTOR_DEVICES", "cpu")
        with running(folder / "data") as found:
            yield found


def allocation(**fields: Any) -> AllocationSpec:
    given = {
        "provider": "kubernetes",
        "max_pilots": 3,
        "backlog": 3,
        "walltime_s": 600.0,
        "idle_s": 60.0,
        "devices": "fast:1@1.0:4GiB",
        "kinds": ("fast",),
        "runs": 1,
        "pod": PodOptions(image="penstock", claim="checkpoints"),
    }
    return AllocationSpec(**{**given, **fields})


def job(notes: Path, name: str, steps: int = STEPS, step_s: float = 0.02, **more: object) -> dict[str, Any]:
    notes.mkdir(exist_ok=True)
    return {
        "name": name,
        "command": (sys.executable, str(JOBS / "session_job.py"), str(steps), str(step_s)),
        "env": {"CHAOS_NOTES": str(notes), "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        "kinds": ("fast",),
        "profile": "off",
        **more,
    }


def ends(notes: Path, job_id: str) -> list[tuple[int, int]]:
    lines = [json.loads(line) for line in (notes / f"{job_id}.jsonl").read_text().splitlines()]
    return [(one["sum"], one["step"]) for one in lines if one["what"] == "end"]


def whole(steps: int = STEPS) -> list[tuple[int, int]]:
    return [(sum(step * step for step in range(1, steps + 1)), steps)]


async def removed(client: penstock.Client, name: str) -> None:
    await client.remove_allocation(name)
    async with asyncio.timeout(MOST_S):
        while any(one.name == name for one in (await client.allocations()).allocations):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def test_each_run_has_a_pod_of_its_own_and_nothing_is_left(
    cluster: Cluster, server: KubeServer, kubelets: Kubelets, tmp_path: Path
) -> None:
    async with cluster.client() as client, asyncio.timeout(MOST_S):
        await client.add_allocation("lab", allocation())
        ids = [(await client.submit(**job(tmp_path / "notes", "digits"))).id for _ in range(5)]
        jobs = [await client.wait(job_id) for job_id in ids]
        assert [(one.state, one.reason) for one in jobs] == [("CD", "")] * 5
        assert [ends(tmp_path / "notes", job_id) for job_id in ids] == [whole()] * 5
        await removed(client, "lab")
    assert len(kubelets.began) == len(set(kubelets.began)) == 5
    assert not [key for key in server.objects if key.resource in {"pods", "secrets"}]
