"""One schedule from start to verdict."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from chaos import record
from chaos.cluster import Cluster
from chaos.disk import LoopDisk, PlainFolder
from chaos.faults import ON_A_DISK, Injector
from chaos.invariants import violations
from chaos.record import LeaseNote, Record
from chaos.schedule import SERVER, Schedule
from chaos.submitter import Submitter
from penstock import Client
from penstock_bus.nats import NatsBus
from penstock_cli.local.data_folder import UpError
from penstock_cli.local.service_template import ServiceTemplate
from penstock_log import JobFinished, JobSubmitted, SweepFinished, SweepSubmitted, subjects

PATIENCE_S: Final = 90.0
"""How long after the last fault, and after each job's end, the next may take: far more than it needs."""
READY_AGAIN_S: Final = 60.0
"""How long processes may take to be ready again."""
QUIET_S: Final = 10.0
"""How long processes of jobs may take to be gone when all jobs have ended."""
_LOOK_S: Final = 0.1
_SUBMITTED: Final = (JobSubmitted, SweepSubmitted)
_FINISHED: Final = (JobFinished, SweepFinished)


@dataclass(frozen=True)
class Means:
    """
    What this machine allows.

    Attributes
    ----------
    template, clocks : ServiceTemplate
        What services are forked from; ``clocks`` where their clocks can be set, None without libfaketime.
    disks : bool
        Whether a disk of its own can be mounted.
    """

    template: ServiceTemplate
    clocks: ServiceTemplate | None
    disks: bool


@dataclass
class Verdict:
    """What came of one schedule."""

    schedule: Schedule
    home: Path
    done: Sequence[str] = ()
    violations: list[str] = field(default_factory=list)
    took_s: float = 0.0
    runs: int = 0

    def __str__(self) -> str:
        what = "FAIL" if self.violations else "ok"
        servers = "3 servers, " * (self.schedule.servers > 1)
        counts = f"{servers}{len(self.schedule.jobs)} jobs, {self.runs} runs"
        lines = [f"{self.schedule.number:5d} {what:4} {self.took_s:5.1f} s  {counts}; {'; '.join(self.done)}"]
        lines += [f"           {text}" for text in self.violations]
        return "\n".join([*lines, f"           see {self.home}"] if self.violations else lines)


async def run(schedule: Schedule, home: Path, means: Means, *, keep: bool = False) -> Verdict:
    """Run one schedule in a folder of its own, emptied before; it stays if a rule was violated."""
    shutil.rmtree(home, ignore_errors=True)  # of an earlier run of the same schedule
    home.mkdir(parents=True)
    clock, verdict = asyncio.get_running_loop().time, Verdict(schedule, home)
    began_s = clock()
    template = means.clocks if schedule.clocks and means.clocks else means.template
    disk = await asyncio.to_thread(LoopDisk if means.disks else PlainFolder, home)
    cluster = Cluster(schedule, home, disk, template)
    try:
        found = await _carried_out(cluster, means, verdict)
        verdict.violations += violations(found)
        verdict.runs = sum(one.type == "run.started" for one in found.facts)
        _save(found, home)
    except Exception as error:  # the suite itself failed, or the cluster did not even start: no verdict is a bad one
        verdict.violations.append(f"no verdict: {error!r}")
    finally:
        await cluster.abandon()
        await asyncio.to_thread(_put_away, cluster, keep=keep or bool(verdict.violations))
    verdict.took_s = clock() - began_s
    return verdict


async def _carried_out(cluster: Cluster, means: Means, verdict: Verdict) -> Record:
    schedule, found = cluster.schedule, Record(cluster.schedule)
    await cluster.start()
    leases: list[LeaseNote] = []
    async with cluster.admin() as bus, AsyncExitStack() as stack:
        watching = asyncio.ensure_future(record.watch_leases(bus, leases))
        began_s = asyncio.get_running_loop().time()
        injector = Injector(cluster, began_s, clocks=means.clocks is not None)
        submitter = Submitter(cluster, began_s)
        able = [fault for fault in schedule.faults if means.disks or fault.kind not in ON_A_DISK]
        injector.done += [f"{fault} (skipped: no disk of its own)" for fault in schedule.faults if fault not in able]
        if why := cluster.server_clock_problem:
            able = [fault for fault in able if not (fault.kind == "clock" and fault.target.startswith(SERVER))]
            injector.done += [f"a server's clock (skipped: {why})"]
        submitting = [asyncio.ensure_future(submitter.run(job)) for job in schedule.jobs]
        stack.push_async_callback(_ended, [watching, *submitting])
        await asyncio.gather(*(injector.run(fault) for fault in able))
        found.unfinished = await _unfinished(bus, submitting, schedule)
        found.orphans = await _orphans(cluster)
        found.gave_up = await _not_back(cluster, bus)
        async with cluster.client() as people, Client(bus=people) as client:
            found.answers = await record.answers(client, schedule.jobs)
        found.statuses = await cluster.stop()
        found.facts = await record.facts(bus)
        found.folds = await record.wrong_folds(bus, schedule.executors)
        found.gave_up += [f"leases were watched no longer: {watching.exception()!r}"] if watching.done() else []
    await cluster.stop_server()
    found.orphans += [f"{_shown(pid)} is left when all has been stopped" for pid in cluster.leftovers()]
    found.notes, found.leases = record.notes(cluster.notes), leases
    found.accepted, found.cancelled = set(submitter.accepted), submitter.cancelled
    found.refused, found.killed_jobs = submitter.refused, injector.killed_jobs
    verdict.done = injector.done
    return found


async def _unfinished(bus: NatsBus, submitting: Sequence[asyncio.Future[None]], schedule: Schedule) -> set[str]:
    """Wait until all is submitted and over; return what is not once nothing has ended for :data:`PATIENCE_S`."""
    clock = asyncio.get_running_loop().time
    open_ = {job.id for job in schedule.jobs}
    try:
        async with asyncio.timeout(PATIENCE_S) as patience:
            await asyncio.gather(*submitting)
            kinds = [f"{subjects.prefix(kind)}*" for kind in ("job", "request", "sweep")]
            async for delivery in bus.follow(subjects=kinds):
                for fact in delivery.commit.facts:
                    if isinstance(fact, _SUBMITTED):
                        open_.add(_named(fact))
                    elif isinstance(fact, _FINISHED):
                        open_.discard(_named(fact))
                        patience.reschedule(clock() + PATIENCE_S)
                if not open_ and not delivery.pending:
                    break
    except TimeoutError:
        return open_ or {job.id for job, one in zip(schedule.jobs, submitting, strict=True) if not one.done()}
    return set()


async def _not_back(cluster: Cluster, bus: NatsBus) -> list[str]:
    """Wait until every process is ready again; return who is not, and who is not started any more."""
    try:
        await cluster.ready(bus, READY_AGAIN_S)
    except UpError as error:
        return [f"{error}", *cluster.gave_up]
    return cluster.gave_up


async def _ended(tasks: Sequence[asyncio.Future[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _named(fact: msgspec.Struct) -> str:
    return str(getattr(fact, "job_id", "") or getattr(fact, "sweep_id", ""))


async def _orphans(cluster: Cluster) -> list[str]:
    """Wait until no node runs anything any more; return what still runs after :data:`QUIET_S`."""
    numbers = range(1, cluster.schedule.executors + 1)
    end_s = asyncio.get_running_loop().time() + QUIET_S
    left: list[int] = []
    while asyncio.get_running_loop().time() < end_s:
        left = [pid for number in numbers for pid in cluster.processes_of_node(number)]
        if not left:
            return []
        await asyncio.sleep(_LOOK_S)
    return [f"{_shown(pid)} is left when all jobs have ended" for pid in left]


def _shown(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        words = "gone meanwhile"
    return f"process {pid} ({words[:200]})"


def _save(found: Record, home: Path) -> None:
    """Write the log down as lines, beside the jobs' notes and the services' logs."""
    with (home / "facts.jsonl").open("w") as file:
        for one in found.facts:
            file.write(json.dumps({"seq": one.seq, "actor": one.actor, **one.fact}) + "\n")
    with (home / "leases.jsonl").open("w") as file:
        file.writelines(json.dumps(vars(note)) + "\n" for note in found.leases)


def _put_away(cluster: Cluster, *, keep: bool) -> None:
    """Keep what explains a violation, and remove the rest."""
    if keep:
        for name in (
            "nats/server.log",
            "nats-2/server.log",
            "nats-3/server.log",
            "executor",
            "executor-2",
            "executor-3",
        ):
            path = cluster.disk.folder / name
            with suppress(OSError):  # where it is not, there is nothing to keep
                if path.is_dir():
                    for part in ("runs", "output"):
                        shutil.copytree(path / part, cluster.home / name / part, symlinks=True, dirs_exist_ok=True)
                else:
                    shutil.copy(path, cluster.home / "logs" / name.replace("/", "-"))
    cluster.disk.remove()
    if not keep:
        shutil.rmtree(cluster.home, ignore_errors=True)
