"""Runs whose checkpoints go to two peers' memory first, and to the disk behind."""

from __future__ import annotations

import errno
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from checkpoint_clusters import MIB, TRAINING, Cluster, cluster_on
from executor_cases import end_processes, python

from penstock_bus.memory import MemoryBus
from penstock_executor.checkpoint_folder import CheckpointFolder, HeldCheckpoint
from penstock_executor.checkpoint_tier import WriteBehind
from penstock_log import RunCheckpointed, RunRewound, RunWarned, SlabsEvicted, subjects
from penstock_testing import eventually

pytestmark = pytest.mark.slow
MEMBERS = """
class Counted:
    def __init__(self, name):
        self.name, self.count = name, 0
    def setup(self):
        pass
    def step(self, turn):
        assert turn.step == self.count
        self.count += 1
        if self.count == 200 and self.name == "b":
            print("far enough", flush=True)
    def teardown(self):
        pass
    def save(self, folder):
        (folder / "count").write_text(str(self.count))
    def load(self, folder):
        self.count = int((folder / "count").read_text())
        print(self.name, "goes on", "behind 20" if self.count >= 20 else self.count, flush=True)


def members(host):
    for name in "ab":
        host.train(name, Counted(name))
"""


@pytest_asyncio.fixture
async def cluster(memory_bus: MemoryBus, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_on(memory_bus, tmp_path) as cluster:
        yield cluster


async def test_a_job_goes_on_elsewhere_from_a_peers_copy(cluster: Cluster) -> None:
    for node_id in ("n1", "n2", "n3"):
        await cluster.machine(node_id)
    await cluster.run("j1", *python(TRAINING), checkpoint_tier="memory")
    steps = await cluster.preempted("j1")
    saved = await cluster.fact(RunCheckpointed, "j1")
    assert (saved.step, saved.tier, sorted(saved.peers)) == (steps, "memory", ["n2", "n3"])
    await cluster.place("j1", epoch=2, node_id="n2")
    begun = await cluster.started("j1", 2, "n2")
    assert begun.resumed_step == steps
    assert begun.copied_from in {"n2", "n3"}
    await cluster.says("j1", f"begins at {steps} with {steps}")
    assert "RunRewound" not in await cluster.facts("j1")


async def test_the_disk_is_written_behind_and_memory_is_free_again(cluster: Cluster) -> None:
    for node_id in ("n1", "n2", "n3"):
        await cluster.machine(node_id)
    await cluster.run("j1", *python(TRAINING), checkpoint_tier="memory")
    steps = await cluster.preempted("j1")
    behind = await cluster.fact(RunCheckpointed, "j1", lambda fact: fact.tier == "disk")
    assert (behind.step, behind.generation, behind.node_id) == (steps, 1, "n1")
    where = cluster.folder / "n1"
    assert (where / "checkpoints" / "j1" / f"step-{steps}" / "weights" / "first").stat().st_size == 2_560_000
    await eventually(lambda: not (where / "shm" / "j1").exists(), why="memory is not kept for what is on the disk")
    await cluster.place("j1", epoch=2)
    assert (await cluster.started("j1", 2, "n1")).resumed_step == steps
    await cluster.says("j1", f"begins at {steps} with {steps}")


async def test_a_lost_nodes_job_goes_on_from_a_peers_copy(cluster: Cluster) -> None:
    n1, *_ = [await cluster.machine(node_id) for node_id in ("n1", "n2", "n3")]
    await cluster.run("j1", *python(TRAINING), checkpoint_tier="memory", checkpoint_s=0.2)
    saved = await cluster.fact(RunCheckpointed, "j1", lambda fact: fact.tier == "memory")
    await n1.kill()
    await cluster.agents["n1"].kill()
    end_processes(cluster.folder)
    shutil.rmtree(cluster.folder / "n1")  # its disk is as far away as its memory
    await cluster.lose("n1")
    await cluster.place("j1", epoch=2, node_id="n2")
    begun = await cluster.started("j1", 2, "n2")
    assert begun.resumed_step >= saved.step
    assert begun.copied_from in {"n2", "n3"}
    await cluster.says("j1", f"begins at {begun.resumed_step} with {begun.resumed_step}")
    assert "RunRewound" not in await cluster.facts("j1")


async def test_both_nodes_of_a_gang_go_on_from_peers_copies(cluster: Cluster) -> None:
    for node_id in ("n1", "n2", "n3", "n4"):
        await cluster.machine(node_id)
    await cluster.submit("g", *python(TRAINING), gpus=2, checkpoint_tier="memory")
    await cluster.place_on("g", {"n1": [0], "n2": [0]})
    await cluster.says("g", "far enough", times=2)  # both: one that is in no session yet is only terminated
    steps = await cluster.preempted("g")
    assert (await cluster.ended("g", node_id="n2")).outcome == "preempted"
    saved = await cluster.fact(RunCheckpointed, "g")
    assert (saved.step, saved.tier, saved.node_id) == (steps, "memory", "n1")
    assert len(set(saved.peers) - {"n1"}) == 2
    await cluster.place_on("g", {"n3": [0], "n4": [0]}, epoch=2)
    begun = [await cluster.started("g", 2, node_id) for node_id in ("n3", "n4")]
    assert [one.resumed_step for one in begun] == [steps, steps]
    assert {one.copied_from for one in begun} <= set(saved.peers)
    await cluster.says("g", f"begins at {steps} with {steps}")
    assert "RunRewound" not in await cluster.facts("g")


async def test_the_trials_of_a_packed_host_go_on_elsewhere_from_a_peers_copy(cluster: Cluster) -> None:
    for node_id in ("n1", "n2", "n3"):
        await cluster.machine(node_id)
    (cluster.folder / "members.py").write_text(MEMBERS)
    packed = (sys.executable, "-m", "penstock_packed", str(cluster.folder / "members.py"))
    await cluster.run("p", *packed, checkpoint_tier="memory")
    await cluster.preempted("p")
    saved = await cluster.fact(RunCheckpointed, "p")
    assert (saved.tier, sorted(saved.peers)) == ("memory", ["n2", "n3"])
    await cluster.place("p", epoch=2, node_id="n2")
    begun = await cluster.started("p", 2, "n2")
    assert begun.resumed_step == saved.step
    assert begun.copied_from in {"n2", "n3"}
    for name in ("a", "b"):
        await cluster.says("p", f"{name} goes on behind 20")


async def test_with_one_other_donor_checkpoints_go_to_the_disk_and_the_log_says_so_once(cluster: Cluster) -> None:
    for node_id in ("n1", "n2"):
        await cluster.machine(node_id)
    await cluster.run("j1", *python(TRAINING), checkpoint_tier="memory", checkpoint_s=0.1)
    warned = await cluster.fact(RunWarned, "j1")
    assert "saved to the disk, and not in memory: a copy of" in warned.warning
    assert warned.warning.endswith("on each of 2 other nodes is wanted, and 1 can have one")
    steps = [await cluster.fact(RunCheckpointed, "j1")]
    steps.append(await cluster.fact(RunCheckpointed, "j1", lambda fact: fact.step > steps[0].step))
    assert {fact.tier for fact in steps} == {"disk"}
    await cluster.preempted("j1")
    assert (await cluster.facts("j1")).count("RunWarned") == 1


async def test_without_an_agent_checkpoints_go_to_the_disk(cluster: Cluster) -> None:
    await cluster.machine("n1", agent=False)
    await cluster.run("j1", *python(TRAINING), checkpoint_tier="memory")
    steps = await cluster.preempted("j1")
    assert "there is no memory agent on this node" in (await cluster.fact(RunWarned, "j1")).warning
    saved = await cluster.fact(RunCheckpointed, "j1")
    assert (saved.step, saved.tier, saved.peers) == (steps, "disk", ())
    await cluster.place("j1", epoch=2)
    await cluster.says("j1", f"begins at {steps} with {steps}")


async def test_a_checkpoint_larger_than_memory_may_have_goes_to_the_disk(cluster: Cluster) -> None:
    for node_id in ("n1", "n2", "n3"):
        await cluster.machine(node_id, checkpoint_memory_bytes=MIB)
    await cluster.run("j1", *python(TRAINING), checkpoint_tier="memory")
    await cluster.preempted("j1")
    assert "1048576 may be in memory (checkpoint_memory_bytes)" in (await cluster.fact(RunWarned, "j1")).warning
    assert (await cluster.fact(RunCheckpointed, "j1")).tier == "disk"


async def test_without_the_tier_nothing_is_in_memory(cluster: Cluster) -> None:
    for node_id in ("n1", "n2", "n3"):
        await cluster.machine(node_id)
    await cluster.run("j1", *python(TRAINING))
    await cluster.preempted("j1")
    saved = await cluster.fact(RunCheckpointed, "j1")
    assert (saved.tier, saved.peers) == ("disk", ())
    assert not (cluster.folder / "n1" / "shm").exists()


async def test_peers_keep_the_newest_copy_until_the_job_is_over(cluster: Cluster) -> None:
    for node_id in ("n1", "n2", "n3"):
        await cluster.machine(node_id)
    await cluster.run("j1", *python(TRAINING), checkpoint_tier="memory")
    await cluster.preempted("j1")
    n2 = cluster.agents["n2"]
    slabs = (await n2.offer(lambda offer: offer.lent > 0)).lent_to["j1"]
    await cluster.place("j1", epoch=2)
    await cluster.started("j1", 2, "n1")
    await cluster.preempt("j1", 2)
    second = (await cluster.ended("j1", 2)).steps
    await cluster.fact(RunCheckpointed, "j1", lambda fact: fact.step == second and fact.tier == "memory")
    await n2.offer(lambda offer: 0 < offer.lent <= slabs + 1)
    await cluster.cancel("j1")
    assert (await n2.offer(lambda offer: offer.lent == 0)).lent_to == {}


async def test_copies_under_pressure_go_last_and_the_disk_has_them_by_then(cluster: Cluster) -> None:
    for node_id in ("n1", "n2", "n3"):
        await cluster.machine(node_id)
    await cluster.run("j1", *python(TRAINING), checkpoint_tier="memory")
    steps = await cluster.preempted("j1")
    await cluster.fact(RunCheckpointed, "j1", lambda fact: fact.tier == "disk")
    for node_id in ("n2", "n3"):
        agent = cluster.agents[node_id]
        agent.shell.stopping.set()  # it takes everything back
        await agent.task
        async for delivery in cluster.bus.follow(subjects=[subjects.memory(node_id)]):
            evicted = [fact for fact in delivery.commit.known if isinstance(fact, SlabsEvicted)]
            if evicted:
                assert evicted[0].job_id == "j1"
                assert evicted[0].reason.endswith("it was a part of a copy of a checkpoint")
                break
    await cluster.place("j1", epoch=2, node_id="n2")
    begun = await cluster.started("j1", 2, "n2")
    assert (begun.resumed_step, begun.copied_from) == (steps, "n1")
    await cluster.says("j1", f"begins at {steps} with {steps}")


async def test_a_job_whose_node_and_peers_are_gone_is_rewound(cluster: Cluster) -> None:
    n1, *_ = [await cluster.machine(node_id) for node_id in ("n1", "n2", "n3", "n4")]
    await cluster.run("j1", *python(TRAINING), checkpoint_tier="memory")
    steps = await cluster.preempted("j1")
    peers = (await cluster.fact(RunCheckpointed, "j1")).peers
    (left,) = {"n2", "n3", "n4"} - set(peers)
    await n1.kill()
    for node_id in peers:
        await cluster.agents[node_id].kill()
    await cluster.lose("n1")
    await cluster.place("j1", epoch=2, node_id=left)
    rewound = await cluster.fact(RunRewound, "j1")
    assert (rewound.step, rewound.lost_step) == (0, steps)
    await cluster.says("j1", "begins at 0 with 0")


async def test_what_was_not_written_behind_is_written_after_a_restart(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    n1, *_ = [await cluster.machine(node_id) for node_id in ("n1", "n2", "n3")]
    with monkeypatch.context() as patched:
        patched.setattr(WriteBehind, "settle", lambda *_: None)  # it ends before it has come to it
        await cluster.run("j1", *python(TRAINING), checkpoint_tier="memory")
        steps = await cluster.preempted("j1")
        await n1.kill()
    assert (cluster.folder / "n1" / "shm" / "j1" / f"step-{steps}").is_dir()
    assert not (cluster.folder / "n1" / "checkpoints" / "j1" / f"step-{steps}").exists()
    await n1.start()
    assert (await cluster.fact(RunCheckpointed, "j1", lambda fact: fact.tier == "disk")).step == steps


async def test_a_disk_that_is_away_keeps_no_run_waiting_that_a_peer_has_the_checkpoint_of(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for node_id in ("n1", "n2", "n3"):
        await cluster.machine(node_id)
    await cluster.run("j1", *python(TRAINING), checkpoint_tier="memory")
    steps = await cluster.preempted("j1")
    held = CheckpointFolder.held

    def stale(folder: CheckpointFolder, job_id: str) -> list[HeldCheckpoint]:
        if folder.root.name == "checkpoints":
            raise OSError(errno.ESTALE, "Stale file handle")
        return held(folder, job_id)

    monkeypatch.setattr(CheckpointFolder, "held", stale)
    await cluster.place("j1", epoch=2, node_id="n2")
    assert (await cluster.started("j1", 2, "n2")).resumed_step == steps
    await cluster.says("j1", f"begins at {steps} with {steps}")
