"""
Bench of shared aggregation: what it gives on this machine, and what it costs.

:func:`measure` runs a NATS server, an assigner and the aggregation agent of one node as processes of their own, and
jobs of two processes each. It compares what jobs get with plain sums and a local optimizer, bit for bit. It kills an
aggregator while a job counts its steps. It runs four jobs with aggregators of their own, and then the same four on
shared ones. At last it moves parts of a training job back and forth.

This is shell code: it starts and kills processes and reads clocks, which is the whole of its work.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

import msgspec
import numpy as np

from penstock_bus import Append
from penstock_bus.child_processes import dies_with_parent, module_command
from penstock_bus.identity.logins import Login
from penstock_bus.nats import NatsBus, connect
from penstock_bus.service_folder import AGGREGATOR_SOCKET, path_in, secret_in
from penstock_cli.local.aggregation_worker import WorkerTask
from penstock_cli.local.bench_services import BenchError, last_lines, nats_server, service_environment
from penstock_log import (
    AggregationAssigned,
    AggregationMeasured,
    AggregatorEnded,
    AggregatorsAllocated,
    AggregatorsRecycled,
    AggregatorStarted,
    Commit,
    JobSpec,
    JobSubmitted,
    PartMoved,
    PartPlaced,
    RoundDecided,
    subjects,
)
from penstock_log.agent_protocol import AgentEnv
from penstock_log.aggregation_messages import run_token
from penstock_log.decision_facts import Placement, Slot

NODE: Final = "bench"
POOL: Final = "default"
MOST: Final = 6
WORLD: Final = 2
JOBS: Final = 4
SMALL: Final = 100_000
TRAINED: Final = 300_000
DEVICE_S: Final = 0.03
STEPS: Final = 30
COUNTED: Final = 200
KILLS: Final = 3
MEASURED: Final = 60
MOVES: Final = 20
_PATIENCE_S: Final = 60.0
_LOOK_S: Final = 0.05


class MigrationPause(msgspec.Struct, frozen=True, kw_only=True):
    """For how long a part was on no aggregator while it moved, in milliseconds, over so many moves."""

    median: float
    p99: float
    moves: int


class AggregationCosts(msgspec.Struct, frozen=True, kw_only=True):
    """
    What shared aggregation gives and costs on a machine.

    Attributes
    ----------
    bitwise_equal, update_equal : bool
        Whether the means of two processes were those of a plain sum in the order of ranks, and AdamW on an aggregator
        that of one process, in each step and bit for bit.
    servers_own, servers_shared : int
        Aggregators of four jobs that have their own, and of the same four when they share.
    iteration_ratio : float
        Median time of their iterations, shared to own.
    migration_pause_ms : MigrationPause
    kill_lost_updates, kill_doubled_updates : int
        Steps of a job that were missing in its parameters, or in them twice, after its aggregator was killed.
    kills : int
        How often it was killed.
    """

    bitwise_equal: bool
    update_equal: bool
    servers_own: int
    servers_shared: int
    iteration_ratio: float
    migration_pause_ms: MigrationPause
    kill_lost_updates: int
    kill_doubled_updates: int
    kills: int


def measure() -> AggregationCosts:
    """
    Measure all of it, in about a minute.

    Raises
    ------
    BenchError
        If a service does not start, or a job ends otherwise than it should.
    """
    return asyncio.run(_measure())


async def _measure() -> AggregationCosts:
    with tempfile.TemporaryDirectory(prefix="pen-agg-") as place:
        folder = Path(place)
        bus = nats_server(folder / "nats")
        environment = await asyncio.to_thread(bus.__enter__)
        try:
            async with _cluster(folder, environment) as cluster:
                return await cluster.measure()
        finally:
            await asyncio.to_thread(bus.__exit__, None, None, None)


@asynccontextmanager
async def _cluster(folder: Path, bus: dict[str, str]) -> AsyncIterator[BenchCluster]:
    async with AsyncExitStack() as stack:
        login = Login(url=bus["PENSTOCK_URL"], user=bus["PENSTOCK_USER"], password=bus["PENSTOCK_PASSWORD"])
        client = await stack.enter_async_context(connect(bus["PENSTOCK_URL"], login=login))
        cluster = BenchCluster(folder, bus, client)
        stack.push_async_callback(cluster.end)
        await cluster.start()
        yield cluster


class BenchCluster:
    """The services, the jobs, and what the log says of them."""

    def __init__(self, folder: Path, bus: dict[str, str], client: NatsBus) -> None:
        self._folder, self._bus, self._client = folder, bus, client
        self._data = folder / "aggregator"
        self._services: dict[str, asyncio.subprocess.Process] = {}
        self._jobs: list[BenchJob] = []
        self._facts: list[Any] = []
        self._changed = asyncio.Event()
        self._following = asyncio.create_task(self._follow())

    async def start(self) -> None:
        """Start the services; return when both are ready."""
        await self._start("assigner", {})
        settings = {"data_dir": str(self._data), "node_id": NODE, "most": str(MOST), "address": "127.0.0.1"}
        await self._start(
            "aggregator", {f"PENSTOCK_AGGREGATOR_{name.upper()}": text for name, text in settings.items()}
        )

    async def end(self) -> None:
        """End all processes."""
        self._following.cancel()
        for process in [*(one for job in self._jobs for one in job.processes), *self._services.values()]:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def measure(self) -> AggregationCosts:
        """Measure everything, one after the other."""
        bitwise = await self._compare("mean")
        update = await self._compare("update")
        kills, lost, doubled = await self._kill()
        own, own_s, _ = await self._train("own", self._all_measured)
        shared, shared_s, pause = await self._train("shared", self._all_packed, moves=True)
        return AggregationCosts(
            bitwise_equal=bitwise,
            update_equal=update,
            servers_own=own,
            servers_shared=shared,
            iteration_ratio=shared_s / own_s,
            migration_pause_ms=pause,
            kill_lost_updates=lost,
            kill_doubled_updates=doubled,
            kills=kills,
        )

    # --- what is measured
    async def _compare(self, what: str) -> bool:
        job = await self._job(what, WorkerTask(what=what, elements=SMALL, steps=STEPS))  # type: ignore[arg-type]
        found = await job.results()
        return all(each["equal"] == each["steps"] == STEPS for each in found)

    async def _kill(self) -> tuple[int, int, int]:
        """Kill a counting job's aggregator again and again; return kills, and the steps that are missing or twice."""
        job = await self._job("count", WorkerTask(what="count", elements=SMALL, steps=COUNTED, device_s=0.01))
        kills = 0
        for due in range(1, KILLS + 1):
            await self._until(partial(job.has_done, due * COUNTED // (KILLS + 2)), "a job did not go on")
            for pid in self._aggregator_pids():
                os.kill(pid, signal.SIGKILL)
                kills += 1
        found = await job.results()
        least = min(each["least"] for each in found)
        most = max(each["most"] for each in found)
        return kills, max(0, COUNTED - int(least)), max(0, int(most) - COUNTED)

    async def _train(
        self, mode: Literal["shared", "own"], settled: Callable[[Iterable[str]], bool], *, moves: bool = False
    ) -> tuple[int, float, MigrationPause]:
        """Run four jobs until they are settled; return their aggregators, and the median time of an iteration."""
        task = WorkerTask(what="train", elements=TRAINED, device_s=DEVICE_S)
        jobs = [await self._job(f"{mode}{number}", task, mode) for number in range(JOBS)]
        ids = [job.job_id for job in jobs]
        await self._until(lambda: settled(ids), f"four jobs were not {settled.__name__.strip('_').replace('_', ' ')}")
        servers = len({placed.aggregator for job_id in ids for placed in self._assigned(job_id).placed})
        begun = [job.steps_told() for job in jobs]
        await self._until(
            lambda: all(job.steps_told() >= before + MEASURED for job, before in zip(jobs, begun, strict=True)),
            "jobs did not go on",
        )
        taken = median([one for job, before in zip(jobs, begun, strict=True) for one in job.taken(before)])
        pause = await self._move(jobs[0].job_id) if moves else MigrationPause(median=0.0, p99=0.0, moves=0)
        for job in jobs:
            job.stop()
        for job in jobs:
            await job.results()
        await self._until(
            lambda: not self._running() or mode == "shared", "aggregators of ended jobs were not recycled"
        )
        return servers, taken, pause

    async def _move(self, job_id: str) -> MigrationPause:
        """Move a job's part back and forth, in the assigner's place."""
        assigner = self._services.pop("assigner")
        assigner.terminate()
        await assigner.wait()
        home = self._assigned(job_id).placed[0].aggregator
        other = next((one for one in sorted(self._running()) if one != home), "")
        if not other:
            other = f"{NODE}/{MOST - 1}"
            await self._append(
                subjects.aggregation(POOL), AggregatorsAllocated(at_s=0, pool=POOL, aggregators=(other,), job_id=job_id)
            )
            await self._until(lambda: other in self._running(), "a second aggregator did not start")
        pauses: list[float] = []
        for move in range(MOVES):
            last = self._assigned(job_id)
            there = other if move % 2 == 0 else home
            placed = tuple(
                PartPlaced(
                    part=one.part,
                    aggregator=there,
                    generation=last.generation + 1,
                    how="copy",
                    before=one.aggregator,
                )
                for one in last.placed
            )
            fact = msgspec.structs.replace(last, generation=last.generation + 1, placed=placed, because="to measure it")
            await self._append(subjects.aggregation(POOL), fact)
            await self._until(partial(self._has_moved, fact), "a part did not move")
            pauses += [each.pause_s * 1e3 for each in self._moved(job_id, fact.generation)]
        return MigrationPause(median=median(pauses), p99=float(np.percentile(pauses, 99)), moves=len(pauses))

    # --- the log
    async def _follow(self) -> None:
        async for delivery in self._client.follow(
            subjects=[subjects.every("aggregator"), subjects.every("aggregation")]
        ):
            self._facts += delivery.commit.known
            self._changed.set()

    async def _append(self, subject: str, fact: Any) -> None:
        commit = Commit(id=uuid.uuid4().hex, actor="bench", facts=(fact,))
        await self._client.append(Append(subject=subject, commit=commit, expected=await self._head(subject)))

    async def _head(self, subject: str) -> int:
        last = await self._client.last(subject)
        return 0 if last is None else last.seq

    def _running(self) -> set[str]:
        running: set[str] = set()
        for fact in self._facts:
            match fact:
                case AggregatorStarted():
                    running.add(fact.aggregator)
                case AggregatorEnded():
                    running.discard(fact.aggregator)
                case AggregatorsRecycled():
                    running -= set(fact.aggregators)
                case _:
                    pass
        return running

    def _assigned(self, job_id: str) -> AggregationAssigned:
        return next(
            fact for fact in reversed(self._facts) if isinstance(fact, AggregationAssigned) and fact.job_id == job_id
        )

    def _moved(self, job_id: str, generation: int) -> list[PartMoved]:
        return [
            fact
            for fact in self._facts
            if isinstance(fact, PartMoved) and (fact.job_id, fact.generation) == (job_id, generation)
        ]

    def _has_moved(self, assigned: AggregationAssigned) -> bool:
        return len(self._moved(assigned.job_id, assigned.generation)) == len(assigned.placed)

    def _all_measured(self, job_ids: Iterable[str]) -> bool:
        known = {fact.job_id for fact in self._facts if isinstance(fact, AggregationMeasured)}
        return known >= set(job_ids)

    def _all_packed(self, job_ids: Iterable[str]) -> bool:
        """Whether all are packed, and the aggregators that have no part any more are gone."""
        phases = {fact.job_id: fact for fact in self._facts if isinstance(fact, AggregationAssigned)}
        wanted = [phases.get(job_id) for job_id in job_ids]
        if any(one is None or one.phase not in {"packed", "rebalanced"} for one in wanted):
            return False
        used = {placed.aggregator for one in wanted if one is not None for placed in one.placed}
        return self._running() == used

    # --- processes
    async def _start(self, service: str, settings: dict[str, str]) -> None:
        ready, log = self._folder / f"{service}.ready", self._folder / f"{service}.log"
        with log.open("ab") as into:
            process = await asyncio.create_subprocess_exec(
                *module_command(f"penstock_{service}"),
                env=service_environment(self._bus, settings, ready),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=into,
                stderr=into,
                preexec_fn=dies_with_parent(),
            )
        self._services[service] = process
        await self._until(lambda: ready.exists() or process.returncode is not None, f"no {service} got ready")
        if process.returncode is not None:
            raise BenchError(f"the {service} ended with {process.returncode}: {last_lines(log)}")

    async def _job(self, job_id: str, task: WorkerTask, mode: Literal["shared", "own"] = "shared") -> BenchJob:
        """Submit a job and grant it a node, as a gateway and a matcher would; start its processes."""
        at_s = await self._client.now_s()
        spec = JobSpec(name=job_id, command=("true",), gpus=WORLD, aggregation=mode)
        slot = Slot(node_id=NODE, devices=tuple(range(WORLD)))
        granted = Placement(job_id=job_id, epoch=1, kind="bench", slots=(slot,))
        await self._append(subjects.job(job_id), JobSubmitted(at_s=at_s, job_id=job_id, spec=spec))
        await self._append(subjects.round_(POOL), RoundDecided(at_s=at_s, pool=POOL, placements=(granted,)))
        token = run_token(secret_in(self._data), job_id, 1)
        job = BenchJob(job_id, self._folder / f"{job_id}.stop", self._changed.set)
        await job.start(task, mode, path_in(self._data, AGGREGATOR_SOCKET, for_all=True), token)
        self._jobs.append(job)
        return job

    def _aggregator_pids(self) -> list[int]:
        """Return the processes that the agent has started."""
        agent = self._services["aggregator"].pid
        children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
        return [int(pid) for pid in children]

    async def _until(self, condition: Callable[[], bool], failure: str) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while not condition():
                    self._changed.clear()
                    for job in self._jobs:
                        job.check()
                    await _or_soon(self._changed.wait())
        except TimeoutError:
            logs = "; ".join(f"{name}: {last_lines(self._folder / f'{name}.log')}" for name in self._services)
            raise BenchError(f"{failure} within {_PATIENCE_S:g} s: {logs}") from None


async def _or_soon(event: Awaitable[object]) -> None:
    try:
        async with asyncio.timeout(_LOOK_S):
            await event
    except TimeoutError:
        pass


class BenchJob:
    """A job of two processes, and what they say."""

    def __init__(self, job_id: str, stop: Path, on_line: Callable[[], object]) -> None:
        self.job_id, self._stop, self._on_line = job_id, stop, on_line
        self.processes: list[asyncio.subprocess.Process] = []
        self._readers: list[asyncio.Task[str]] = []
        self._said: list[list[dict[str, Any]]] = []

    async def start(self, task: WorkerTask, mode: str, agent: Path, token: str) -> None:
        """Start its processes, as an executor would."""
        for rank in range(WORLD):
            environment = {
                **{name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")},
                AgentEnv.JOB_ID: self.job_id,
                AgentEnv.EPOCH: "1",
                AgentEnv.RANK: str(rank),
                AgentEnv.WORLD_SIZE: str(WORLD),
                AgentEnv.AGGREGATION: mode,
                AgentEnv.AGGREGATION_SOCKET: str(agent),
                AgentEnv.AGGREGATION_TOKEN: token,
                "PENSTOCK_BENCH_STOP": str(self._stop),
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
            }
            process = await asyncio.create_subprocess_exec(
                *module_command("penstock_cli.local.aggregation_worker", msgspec.json.encode(task).decode()),
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=1 << 20,
                preexec_fn=dies_with_parent(),
            )
            self.processes.append(process)
            self._said.append([])
            self._readers.append(asyncio.create_task(self._read(process, rank)))

    async def _read(self, process: asyncio.subprocess.Process, rank: int) -> str:
        errors = asyncio.create_task(_rest(process.stderr))
        if process.stdout is not None:
            async for line in process.stdout:
                self._said[rank].append(json.loads(line))
                self._on_line()
        return await errors

    def stop(self) -> None:
        """Have it end after its next step."""
        self._stop.touch()

    def has_done(self, steps: int) -> bool:
        """Return whether all its processes have done so many steps."""
        return all(said and said[-1].get("step", 0) >= steps for said in self._said)

    def steps_told(self) -> int:
        """Return how many iterations of its first process are known."""
        return sum(len(each.get("taken", ())) for each in self._said[0])

    def taken(self, after: int) -> list[float]:
        """Return the seconds that the first process's iterations took, after so many."""
        return [one for each in self._said[0] for one in each.get("taken", ())][after:]

    def check(self) -> None:
        """Raise BenchError if a process has failed."""
        for process, reader in zip(self.processes, self._readers, strict=True):
            if process.returncode and reader.done():
                raise BenchError(f"a process of job {self.job_id} ended with {process.returncode}: {reader.result()}")

    async def results(self) -> list[dict[str, Any]]:
        """Wait for its end; return the last that each process said."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                errors = [await reader for reader in self._readers]
                codes = [await process.wait() for process in self.processes]
        except TimeoutError:
            raise BenchError(f"job {self.job_id} did not end within {_PATIENCE_S:g} s") from None
        if any(codes):
            raise BenchError(f"job {self.job_id} ended with {codes}: {' / '.join(filter(None, errors))}")
        return [said[-1] for said in self._said]


async def _rest(stream: asyncio.StreamReader | None) -> str:
    """Return the last lines of a stream, once it has ended."""
    body = b"" if stream is None else await stream.read()
    return " / ".join(body.decode(errors="replace").splitlines()[-3:])
