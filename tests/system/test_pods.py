"""Jobs through Pods, on an API server of which one thing after the other is taken away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from clusters import Cluster, running, signal_all, until
from kube_server import ADMIN, NAMESPACE, Key, KubeServer, Object, Refused
from kubelets import Kubelets

import penstock
from penstock_log import AllocationSpec
from penstock_log.allocation_spec import PodOptions
from penstock_log.views import AllocationView
from penstock_testing import eventually

pytest.importorskip("kr8s")

JOBS = Path(__file__).parents[1] / "chaos" / "jobs"
STEPS = 10
MOST_S = 120.0
MOST_STEPS = 30
"""Steps of a run of which something is taken away: so many that it is still there then."""


@pytest.fixture(scope="module")
def server() -> Iterator[KubeServer]:
    with KubeServer().serving() as found:
        for number in range(3):
            found.add_node(f"machine-{number}", gpus=1)
        yield found


@pytest.fixture(scope="module")
def kubelets(server: KubeServer) -> Iterator[Kubelets]:
    with TemporaryDirectory(prefix="pods-") as folder, Kubelets(server, Path(folder)).at_work() as found:
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


def steps_of(notes: Path, job_id: str) -> int:
    """Return how many steps a job has noted so far."""
    file = notes / f"{job_id}.jsonl"
    return len([line for line in file.read_text().splitlines() if '"what": "step"' in line]) if file.exists() else 0


async def pod_of(client: penstock.Client, notes: Path, ids: list[str], steps: int) -> str:
    """Return the Pod in which one of these jobs runs that has done so many steps more, and has some left to do."""
    before: dict[str, int] = {}
    found: list[str] = []

    async def one_has() -> bool:
        for job_id in ids:
            placed = (await client.job(job_id)).job.placed_on
            done = steps_of(notes, job_id)
            if placed and done - before.setdefault(job_id, done) >= steps and done <= MOST_STEPS:
                nodes = {pilot.nodes: pilot for one in (await client.allocations()).allocations for pilot in one.pilots}
                found.append(nodes[placed[0].partition("/")[0],].provider_id.partition("/")[2])
                return True
        return False

    await eventually(one_has, within_s=MOST_S)
    return found[0]


@contextlib.asynccontextmanager
async def added(client: penstock.Client, name: str) -> AsyncIterator[None]:
    """An allocation that is gone afterwards, whatever has become of the test: all share one cluster."""
    await client.add_allocation(name, allocation())
    try:
        yield
    finally:
        await removed(client, name)


async def view_of(client: penstock.Client, name: str) -> AllocationView:
    [found] = [one for one in (await client.allocations()).allocations if one.name == name]
    return found


def left_of(server: KubeServer, name: str) -> list[Key]:
    """Return the Pods and Secrets that there are of an allocation."""
    with server.lock:
        return [key for key in server.objects if key.resource in {"pods", "secrets"} and f"-{name}-" in key.name]


async def removed(client: penstock.Client, name: str) -> None:
    await client.remove_allocation(name)
    async with asyncio.timeout(MOST_S):
        while any(one.name == name for one in (await client.allocations()).allocations):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def test_each_run_has_a_pod_of_its_own_and_nothing_is_left(
    cluster: Cluster, server: KubeServer, kubelets: Kubelets, tmp_path: Path
) -> None:
    async with cluster.client() as client, asyncio.timeout(MOST_S), added(client, "lab"):
        ids = [(await client.submit(**job(tmp_path / "notes", "digits"))).id for _ in range(5)]
        jobs = [await client.wait(job_id) for job_id in ids]
        assert [(one.state, one.reason) for one in jobs] == [("CD", "")] * 5
        assert [ends(tmp_path / "notes", job_id) for job_id in ids] == [whole()] * 5
    began = [name for name in kubelets.began if "-lab-" in name]
    assert len(began) == len(set(began)) == 5
    assert not left_of(server, "lab")


async def test_a_dry_run_shows_the_pod_and_what_the_server_says_of_it(cluster: Cluster, server: KubeServer) -> None:
    shown = cluster.run("alloc", "dry-run", "kubernetes", "--image", "penstock", "--name", "Lab_A", "--one-run").stdout
    assert "provider: a Pod penstock-lab-a-trial-1 would be made in namespace lab" in shown
    assert "restartPolicy: Never" in shown
    assert "export PENSTOCK_EXECUTOR_LEAVE_AFTER_RUNS=1" in shown
    refused = cluster.tried("alloc", "dry-run", "kubernetes", "--image", "penstock", "--namespace", "x" * 64)
    assert refused.returncode == 2, refused
    assert not left_of(server, "lab-a")


@pytest.mark.faults
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed here")
async def test_kubectl_finds_deletes_and_drains_what_it_finds(
    cluster: Cluster, server: KubeServer, kubelets: Kubelets, tmp_path: Path
) -> None:
    def kubectl(*words: str) -> str:
        login = f"--kubeconfig={server.kubeconfig(tmp_path / 'admin', ADMIN)}"
        return subprocess.run(["kubectl", login, *words], capture_output=True, text=True, check=True).stdout

    notes, labels = tmp_path / "notes", "-l=penstock.dev/allocation=seen"
    async with cluster.client() as client, asyncio.timeout(2 * MOST_S), added(client, "seen"):
        job_id = (await client.submit(**job(notes, "digits", steps=80, step_s=0.1))).id
        name = await pod_of(client, notes, [job_id], 5)
        assert await asyncio.to_thread(kubectl, "get", "pods", labels, "-o", "name") == f"pod/{name}\n"
        await asyncio.to_thread(kubectl, "delete", "pod", name)
        name = await pod_of(client, notes, [job_id], 5)
        node = server.get(Key("pods", NAMESPACE, name))["spec"]["nodeName"]
        drained = await asyncio.to_thread(kubectl, "drain", node, "--force", "--delete-emptydir-data")
        assert f"pod/{name} evicted" in drained
        await asyncio.to_thread(kubectl, "uncordon", node)
        assert (await client.wait(job_id)).state == "CD"
    assert ends(notes, job_id) == whole(80)


async def test_a_run_whose_pod_is_evicted_saves_and_goes_on_in_the_next_pod(
    cluster: Cluster, server: KubeServer, kubelets: Kubelets, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    async with cluster.client() as client, asyncio.timeout(MOST_S), added(client, "moved"):
        job_id = (await client.submit(**job(notes, "digits", steps=60, step_s=0.1))).id
        server.evict(await pod_of(client, notes, [job_id], 5))
        assert (await client.wait(job_id)).state == "CD"
        ended = (await view_of(client, "moved")).pilots[-1]
    assert ends(notes, job_id) == whole(60)
    assert loaded(notes, job_id)[0] >= 5, "it saved at TERM"
    assert ended.reason == "it was evicted, as by a drain of its node: Eviction API: evicting"
    assert len([name for name in kubelets.began if "-moved-" in name]) == 2


@pytest.mark.faults
@pytest.mark.timeout(480)
async def test_every_job_ends_once_with_all_its_steps_whatever_is_taken_away(
    cluster: Cluster, server: KubeServer, kubelets: Kubelets, tmp_path: Path
) -> None:
    notes, killed = tmp_path / "notes", list[str]()

    def kill_the_allocator(pod: Object) -> None:
        """Kill it after the server has made a Pod, and before it knows."""
        killed.append(pod["metadata"]["name"])
        server.on_made = lambda _: None
        signal_all(cluster.pids("allocator"), signal.SIGKILL)

    def drain(name: str) -> str:
        node: str = server.get(Key("pods", NAMESPACE, name))["spec"]["nodeName"]
        server.drain(node)
        return node

    def run_out_of_memory_unseen(name: str) -> None:
        kubelets.run_out_of_memory(name)
        server.away = True

    async with cluster.client() as client, asyncio.timeout(420), contextlib.AsyncExitStack() as stack:
        server.failing = (500, 0)  # planned, and not submitted
        await stack.enter_async_context(added(client, "chaos"))
        stack.callback(answering_again, server)
        ids = [(await client.submit(**job(notes, "digits", steps=40, step_s=0.2))).id for _ in range(8)]
        await until(client, "chaos", "pilot.planned.v1", 1)
        signal_all(cluster.pids("allocator"), signal.SIGKILL)
        server.on_made = kill_the_allocator
        server.failing = None
        taken = partial(take_one, client, notes, ids)
        await taken(server.evict)
        server.compact()
        server.break_watches()
        server.failing = (429, 1)
        await taken(lambda _: setattr(server, "failing", None))
        node = await taken(drain)
        await taken(lambda name: server.delete(Key("pods", NAMESPACE, name), 0))  # kubectl delete --force: no TERM
        server.change(Key("nodes", "", node), {"spec": {"unschedulable": False}})
        await taken(run_out_of_memory_unseen)
        server.compact()
        server.away = False
        jobs = [await client.wait(job_id) for job_id in ids]
        found = await view_of(client, "chaos")
    assert [(one.state, one.reason) for one in jobs] == [("CD", "")] * 8
    assert [ends(notes, job_id) for job_id in ids] == [whole(40)] * 8
    assert found.state == "active", found
    began = [name for name in kubelets.began if "-chaos-" in name]
    assert len(killed) == 1
    assert len(began) == len(set(began)), "no Pod is made twice"
    assert not left_of(server, "chaos")


def answering_again(server: KubeServer) -> None:
    """Have a server answer as before."""
    server.failing, server.away = None, False
    server.on_made = lambda _: None


async def take_one(client: penstock.Client, notes: Path, ids: list[str], act: Callable[[str], Any]) -> Any:
    """Do something to a Pod whose job has begun to train; to another one, if that job was faster."""
    while True:
        with contextlib.suppress(Refused, KeyError, StopIteration):
            return act(await pod_of(client, notes, ids, 5))


def loaded(notes: Path, job_id: str) -> list[int]:
    """Return the steps from which a job went on."""
    lines = [json.loads(line) for line in (notes / f"{job_id}.jsonl").read_text().splitlines()]
    return [one["step"] for one in lines if one["what"] == "load"]
