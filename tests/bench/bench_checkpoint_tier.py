"""
What a preemption and a resume cost by the checkpoint's tier: ``python tests/bench/bench_checkpoint_tier.py [ROUNDS]``.

The digits job, with a state of 200 MiB, is preempted and goes on on another node, in turn with its checkpoints on a
disk that the nodes share, on disks of their own (copied over the bus), and in two peers' memory. All nodes are on this
machine, on a real server; so a peer's memory is had as shared memory here, and elsewhere at the network's speed.

``stop`` is from the decision until the run has ended, with its checkpoint saved; ``resume`` from the placement until
the script has loaded it. The disk is the one of ``/var/tmp``.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from checkpoint_clusters import Cluster, cluster_on
from executor_cases import python

from penstock_bus.logins import Login
from penstock_bus.nats import NatsBus, connect
from penstock_bus.server import Server, ServerSettings
from penstock_executor.checkpoint_tier import SHARED_MEMORY
from penstock_log import RunCheckpointed, RunStarted

MIB = 1 << 20
EXAMPLES = Path(__file__).parents[2] / "examples"
TRAINING = """
import os, sys
sys.path.insert(0, sys.argv[1])
import digits, digits_mlp
import numpy as np

class Heavy(digits.Momentum):
    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self.ballast = np.arange(200 << 17)  # 200 MiB

    def save(self, folder):
        super().save(folder)
        np.save(folder / "ballast.npy", self.ballast)

    def load(self, folder):
        super().load(folder)
        self.ballast = np.load(folder / "ballast.npy")
        print("loaded in run", os.environ["PENSTOCK_EPOCH"], flush=True)

    def step(self, gradients):
        super().step(gradients)
        self.steps = getattr(self, "steps", 0) + 1
        if self.steps == 5:
            print("far enough in run", os.environ["PENSTOCK_EPOCH"], flush=True)

digits.Momentum = Heavy
digits.train(digits_mlp.build, lr=0.1, steps=10**9)
"""
TIERS = {"shared disk": ("s1", "s2"), "own disks": ("d1", "d2"), "peers' memory": ("m1", "m2")}


@asynccontextmanager
async def cluster_of_all(folder: Path, memory: Path) -> AsyncIterator[Cluster]:
    """Nodes of each kind on a real server."""
    users = [{"user": "bench", "password": "bench"}]
    account = {"accounts": {"T": {"jetstream": "enabled", "users": users}}}
    server = Server(ServerSettings(data_dir=folder / "nats"), account)
    await server.start()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.stop)
        login = Login(url=server.url, user="bench", password="bench")
        bus: NatsBus = await stack.enter_async_context(connect(server.url, login=login, name="bench"))
        cluster = await stack.enter_async_context(cluster_on(bus, folder))
        for node_id in ("s1", "s2"):
            await cluster.machine(node_id, agent=False, checkpoint_dir=str(folder / "shared"))
        for node_id in ("d1", "d2"):
            await cluster.machine(node_id, agent=False)
        for node_id in ("m1", "m2", "m3"):
            lends = {"slab_bytes": 64 * MIB, "headroom_bytes": 512 * MIB, "most_lent_bytes": 2048 * MIB}
            await cluster.machine(node_id, lends=lends, checkpoint_memory_dir=str(memory / node_id))
        yield cluster


async def move(cluster: Cluster, tier: str, turn: int) -> tuple[float, float]:
    """Run the tier's job, preempt it, have it go on on the other node; return the seconds of both. Then it is idle."""
    job_id, (here, there) = tier.split(maxsplit=1)[0].strip("'"), TIERS[tier]
    epoch = 2 * turn + 1
    await cluster.place(job_id, epoch=epoch, node_id=here)
    await cluster.says(job_id, f"far enough in run {epoch}")
    begun_s = perf_counter()
    await cluster.preempt(job_id, epoch)
    ended = await cluster.ended(job_id, epoch, here)
    stop_s = perf_counter() - begun_s
    saved = await cluster.fact(RunCheckpointed, job_id, lambda fact: fact.epoch == epoch)
    expected = "memory" if "memory" in tier else "disk"
    assert (ended.outcome, saved.tier) == ("preempted", expected), (ended, saved)
    begun_s = perf_counter()
    await cluster.place(job_id, epoch=epoch + 1, node_id=there)
    await cluster.says(job_id, f"loaded in run {epoch + 1}")
    resume_s = perf_counter() - begun_s
    started = await cluster.fact(RunStarted, job_id, lambda fact: fact.epoch == epoch + 1)
    assert started.resumed_step == saved.step, (started, saved)
    await cluster.says(job_id, f"far enough in run {epoch + 1}")
    await cluster.preempt(job_id, epoch + 1)
    await cluster.ended(job_id, epoch + 1, there)
    return stop_s, resume_s


async def measure(rounds: int, folder: Path, memory: Path) -> dict[str, list[tuple[float, float]]]:
    """Return the seconds of each stop and resume, by tier."""
    found: dict[str, list[tuple[float, float]]] = {tier: [] for tier in TIERS}
    async with cluster_of_all(folder, memory) as cluster:
        for tier in TIERS:
            asks = "memory" if "memory" in tier else "disk"
            what = {"checkpoint_tier": asks, "params": {"width": 128}}
            await cluster.submit(tier.split()[0].strip("'"), *python(TRAINING, str(EXAMPLES)), **what)
        for turn in range(rounds):
            for tier in TIERS:
                found[tier].append(await move(cluster, tier, turn))
                print(tier, turn, *(f"{each:.2f}" for each in found[tier][-1]), file=sys.stderr, flush=True)
    return found


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    disk = tempfile.TemporaryDirectory(prefix="penstock-bench-", dir="/var/tmp")
    memory = tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=SHARED_MEMORY)
    with disk as folder, memory as shm, contextlib.redirect_stdout(io.StringIO()):  # of the services in this process
        found = asyncio.run(measure(rounds, Path(folder), Path(shm)))
    medians = {tier: [median(column) for column in zip(*rows, strict=True)] for tier, rows in found.items()}
    base = medians["peers' memory"]
    print(f"{'':16}{'stop s':>8}{'resume s':>10}{'both s':>8}{'ratio':>7}   (medians of {rounds}; 200 MiB)")
    for tier, (stop_s, resume_s) in medians.items():
        both_s = stop_s + resume_s
        print(f"{tier:16}{stop_s:8.2f}{resume_s:10.2f}{both_s:8.2f}{both_s / sum(base):7.2f}")


if __name__ == "__main__":
    main()
