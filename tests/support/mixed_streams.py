"""
Random streams of jobs of every kind on a live emulated cluster, recorded, and replayed beside what really happened.

``python tests/support/mixed_streams.py --clusters 20 --keep DIR`` brings up one cluster for each seed, records its log,
and prints how far the replay of the same settings is off. It is no test: a loaded host makes single jobs late. Some of
its logs, without what they say of the machine, are replayed by
``tests/penstock_simulator/replay/test_replay_recorded.py``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import getpass
import gzip
import re
import signal
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import numpy as np
from clusters import Cluster, signal_all

import penstock
from penstock_bus import Delivery, ServiceError
from penstock_log import AnyEvent, Choice, Commit, JobSpec, JobSubmitted, MemoryNeed, SweepSpec, subjects, workload
from penstock_simulator.replay.history import of_deliveries
from penstock_simulator.replay.replay import Replay, replay
from penstock_simulator.traces import log_file

SCRIPT = Path(__file__).with_name("stream_job.py")
DEVICES = "fast:2@1.0:16GiB,slow:2@0.4:16GiB"
MIB = 2**20


class Stream:
    """
    One random stream of jobs.

    Parameters
    ----------
    client
    folder : Path
        For the markers of jobs that fail once.
    seed : int
    length_s : float
        How long jobs come.
    cluster : Cluster, optional
        Whose executor is stopped for longer than a node may be silent; without it, none is.
    """

    def __init__(
        self, client: penstock.Client, folder: Path, seed: int, length_s: float, cluster: Cluster | None = None
    ) -> None:
        self._client, self._folder, self._length_s, self._cluster = client, folder, length_s, cluster
        self._rng, self._count = np.random.default_rng(seed), 0
        self._tasks: list[asyncio.Task[None]] = []
        self._jobs: list[str] = []
        self._sweeps: list[str] = []

    async def play(self) -> None:
        """Submit until the time is over, and wait for all to end."""
        clock = asyncio.get_running_loop().time
        ends_s = clock() + self._length_s
        kinds: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self.opaque, 4),
            (self.steps, 4),
            (self.gang, 2),
            (self.array, 1),
            (self.fails, 2),
            (self.cancelled, 1),
            (self.held, 1),
            (self.lane, 2),
            (self.fraction, 2),
            (self.elastic, 1),
            (self.sweep, 1),
            (self.drain, 1),
        ]
        while clock() < ends_s:
            weights = np.array([weight for _, weight in kinds])
            what, _ = kinds[int(self._rng.choice(len(kinds), p=weights / weights.sum()))]
            await what()
            await asyncio.sleep(float(self._rng.exponential(1.3)))
        if self._cluster is not None:
            await self.silence(self._cluster)
        await asyncio.gather(*self._tasks)
        await asyncio.gather(*map(self._client.wait, self._jobs), *map(self._client.wait_sweep, self._sweeps))

    async def opaque(self) -> None:
        """A command that says nothing of itself."""
        await self._submit("opaque", ("sh", "-c", f"sleep {self._rng.uniform(0.3, 5):.2f}"))

    async def steps(self) -> None:
        """A script with a session, some of a model that others have as well."""
        await self._submit("steps", **self._training(), model=str(self._rng.choice(["", "mlp", "cnn"])))

    async def gang(self) -> None:
        """Two devices at once."""
        if self._rng.random() < 0.5:
            await self._submit("gang", ("sh", "-c", f"sleep {self._rng.uniform(0.5, 4):.2f}"), gpus=2)
        else:
            await self._submit("gang", **self._training(), gpus=2)

    async def array(self) -> None:
        """Several of one kind, at once."""
        for number in range(self._rng.integers(2, 5)):
            await self._submit("array", ("sh", "-c", f"sleep 1.{number}"), params={"index": number})

    async def fails(self) -> None:
        """One that fails and is tried again after a while; some fail for good."""
        marker = self._folder / f"marker-{self._count}"
        more = {"retries": int(self._rng.integers(3)), "backoff_s": float(self._rng.choice([0.5, 1.0, 2.0]))}
        if self._rng.random() < 0.5:
            text = f"sleep {self._rng.uniform(0.3, 2):.2f}; test -e {marker} || {{ touch {marker}; exit 3; }}; sleep 1"
            await self._submit("fails", ("sh", "-c", text), **more)
        else:
            training = self._training()
            params = {**training["params"], "crash_at": int(self._rng.integers(5, 40)), "marker": str(marker)}
            await self._submit("fails", **{**training, "params": params}, **more)

    async def cancelled(self) -> None:
        """One whose user thinks better of it, running or not."""
        job_id = await self._submit("cancelled", ("sh", "-c", "sleep 8"), gpus=int(self._rng.choice([1, 1, 2])))
        self._later(self._rng.uniform(0.2, 5), lambda: self._client.cancel(job_id))

    async def held(self) -> None:
        """One that is released later."""
        job_id = await self._submit("held", ("sh", "-c", "sleep 1"), hold=True)
        self._later(self._rng.uniform(1, 4), lambda: self._client.release(job_id))

    async def lane(self) -> None:
        """Jobs that take turns on a device."""
        need = MemoryNeed(40 * MIB, 0, 60 * MIB) if self._rng.random() < 0.5 else None
        for _ in range(self._rng.integers(1, 4)):
            await self._submit("lane", **self._training(), sharing="lane", memory=need)

    async def fraction(self) -> None:
        """Jobs beside each other."""
        text = f"sleep {self._rng.uniform(0.5, 4):.2f}"
        await self._submit(
            "part", ("sh", "-c", text), sharing="fraction", fraction=float(self._rng.choice([0.25, 0.5]))
        )

    async def elastic(self) -> None:
        """One that may be resized."""
        training = self._training(steps=int(self._rng.integers(80, 300)))
        params = {**training["params"], "samples": True}
        await self._submit("elastic", **{**training, "params": params}, min_gpus=1, max_gpus=2, batch_size=64)

    async def sweep(self) -> None:
        """A search of a few trials."""
        training = self._training()
        job = JobSpec(name="trial", **training, cwd=str(self._folder))
        spec = SweepSpec(
            name="sweep",
            job=job,
            space={"x": Choice(values=(0.1, 0.2, 0.3, 0.4))},
            metric="score",
            search="grid",
            concurrency=int(self._rng.choice([2, 4])),
            max_gpus=int(self._rng.choice([1, 2])),
        )
        self._count += 1
        self._sweeps.append((await self._client.tune(spec)).id)

    async def drain(self) -> None:
        """A node that takes no more jobs for a while."""
        nodes = [node.id for node in (await self._client.nodes()).nodes]
        node_id = str(self._rng.choice(nodes))
        await self._client.drain(node_id, preempt=bool(self._rng.random() < 0.5))
        self._later(self._rng.uniform(1, 4), lambda: self._client.resume(node_id))

    async def silence(self, cluster: Cluster) -> None:
        """An executor that says nothing for longer than a node may."""
        pids = cluster.pids("executor")[:1]
        signal_all(pids, signal.SIGSTOP)
        await asyncio.sleep(8.0)
        signal_all(pids, signal.SIGCONT)

    def _training(self, steps: int = 0) -> dict[str, object]:
        params = {
            "steps": steps or int(self._rng.integers(20, 200)),
            "busy_ms": int(self._rng.choice([1, 3])),
            "idle_ms": int(self._rng.choice([2, 10])),
            "saves": bool(self._rng.random() < 0.7),
        }
        return {"command": (sys.executable, str(SCRIPT)), "params": params}

    async def _submit(self, name: str, command: tuple[str, ...] = (), **fields: object) -> str:
        self._count += 1
        given = {"command": command} if command else {}
        user = str(self._rng.choice(["ada", "bob"]))
        spec = JobSpec(name=name, user=user, team="lab", checkpoint_s=1.0, **given, **fields)  # type: ignore[arg-type]
        job_id = (await self._client.submit(spec)).id
        self._jobs.append(job_id)
        return job_id

    def _later(self, after_s: float, what: Callable[[], Awaitable[object]]) -> None:
        async def act() -> None:
            await asyncio.sleep(after_s)
            with contextlib.suppress(ServiceError):  # it may be over by then
                await what()

        self._tasks.append(asyncio.create_task(act()))


async def recorded(cluster: Cluster, folder: Path, seed: int, length_s: float) -> list[Delivery]:
    """Play a stream on a cluster that is up; return its log."""
    async with cluster.client() as client:
        await Stream(client, folder, seed, length_s, cluster if seed % 4 == 3 else None).play()
        last, log = await client.bus.last_seq(), list[Delivery]()
        async for delivery in client.bus.follow():
            log.append(delivery)
            if delivery.seq >= last:
                return log
    raise AssertionError("a followed log does not end")


def main() -> None:
    """Record as many clusters as asked for, and print how far each replay is off."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--length", type=float, default=25.0, help="seconds in which jobs come")
    parser.add_argument("--port", type=int, default=-1)
    parser.add_argument("--keep", type=Path, help="folder for the logs; those that are there are replayed again")
    parser.add_argument("--again", action="store_true", help="only replay the logs that are kept")
    given = parser.parse_args()
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
    for seed in range(given.first_seed, given.first_seed + given.clusters):
        kept = given.keep / f"stream-{seed}.log.gz" if given.keep else None
        if kept is not None and kept.exists():
            log = list(log_file.decode(gzip.decompress(kept.read_bytes()).splitlines()))
        elif given.again:
            continue
        else:
            log = _record(seed, given.length, given.port)
            if kept is not None:
                kept.write_bytes(gzip.compress(b"".join(map(log_file.encode, scrubbed(log))), mtime=0))
        sys.stdout.write(f"seed {seed}: {_told(log)}\n")
        sys.stdout.flush()


def scrubbed(log: Iterable[Delivery]) -> list[Delivery]:
    """Return a log without what it says of the machine: paths, environments, addresses, and keys that hang on these."""
    log = list(log)
    text = b"".join(map(log_file.encode, log)).decode()
    keys: dict[str, str] = {}
    for fact in (fact for delivery in log for fact in delivery.commit.facts):
        if isinstance(fact, JobSubmitted):
            plain = _plain(log_file.encode(_one(fact)).decode())
            (spec,) = (one.spec for one in _facts(plain) if isinstance(one, JobSubmitted))
            keys[workload.key(fact.spec)] = workload.key(spec)
    text = _plain(text)
    for key, plain in keys.items():
        text = text.replace(key, plain)
    return list(log_file.decode(text.splitlines()))


def _plain(text: str) -> str:
    for path, name in ((sys.executable, "python"), (str(SCRIPT), "stream_job.py"), (str(Path.cwd()), "/home/eve")):
        text = text.replace(path, name)
    text = re.sub(r"/tmp/replay-[^/\"\\ ]*", "/scratch", text)
    text = re.sub(rf"(?<![a-z0-9]){re.escape(socket.gethostname())}(?![a-z0-9])", "node", text)
    text = re.sub(rf'"(user|by)":"{re.escape(getpass.getuser())}"', r'"\1":"eve"', text)
    text = re.sub(r'"env":\{[^{}]*\}', '"env":{}', text)
    return re.sub(r'"labels":\{[^{}]*\}', '"labels":{}', text)


def _one(fact: JobSubmitted) -> Delivery:
    return Delivery(
        seq=1,
        subject=subjects.job(fact.job_id),
        stored_s=0.0,
        pending=0,
        commit=Commit(id="1", actor="", facts=(fact,)),
    )


def _facts(text: str) -> list[AnyEvent]:
    return [fact for delivery in log_file.decode(text.splitlines()) for fact in delivery.commit.facts]


def _record(seed: int, length_s: float, port: int) -> list[Delivery]:
    with tempfile.TemporaryDirectory(prefix="replay-") as name:
        folder = Path(name)
        cluster = Cluster(folder / "data", "--emulate", DEVICES, "--replicas", "executor=2", "--port", str(port))
        cluster.up()
        try:
            return asyncio.run(recorded(cluster, folder, seed, length_s))
        finally:
            cluster.kill_all()


def _told(log: list[Delivery]) -> str:
    found = replay(of_deliveries(log))
    was_s, is_s = found.average_jct_s()
    worst = ", ".join(f"{name} {job_id} {change_s:+.1f}s" for change_s, name, job_id in _worst(found))
    return (
        f"{len(found.known)} jobs, {int(found.known.sum())} completed: {was_s:.2f}s really, {is_s:.2f}s replayed, "
        f"{is_s / was_s - 1:+.1%}; {worst}"
    )


def _worst(found: Replay) -> list[tuple[float, str, str]]:
    change_s = found.replayed.end_s - found.measured.end_s
    rows = [row for row in range(len(found.known)) if found.known[row]]
    rows.sort(key=lambda row: -abs(change_s[row]))
    return [(float(change_s[row]), found.names[row], str(found.measured.trace.job_ids[row])) for row in rows[:4]]


if __name__ == "__main__":
    main()
