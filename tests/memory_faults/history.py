"""One history from start to verdict."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from memory_faults.client import ClientReport, ClientTask
from memory_faults.content import WORD_BYTES, WordVersions
from memory_faults.machines import Machine, World, clean_environment
from memory_faults.plan import NEED_NAMESPACES, ClientPlan, HistoryPlan, MemoryFault
from penstock_log.agent_protocol import AgentEnv

MOST_S: Final = 12.0
"""The longest that one request of a client may take: it touches a few slabs, each with a time-out of a second."""
BEGIN_S: Final = 40.0
FINISH_S: Final = 60.0
KILLED_BACK_S: Final = 30.0
_DAMAGED: Final = ("BAD_CHECKSUM", "OUT_OF_RANGE", "TOO_LONG", "BAD_FRAME", "TOO_MANY")
"""
Refusals that no good client causes, whatever happens to processes and networks.

``BAD_PROOF`` is none of them: a slab may be taken back before the client that it was lent to has connected.
"""


@dataclass
class FaultVerdict:
    """What came of a history; it was good where ``problems`` is empty."""

    plan: HistoryPlan
    problems: list[str] = field(default_factory=list)
    skipped: list[MemoryFault] = field(default_factory=list)
    reports: list[ClientReport] = field(default_factory=list)
    killed_back_s: list[float] = field(default_factory=list)
    """How long the slabs of killed clients took to come back, to a second."""
    slabs_back_s: float = 0.0

    def total(self, name: str) -> int:
        """Return a sum over the clients."""
        return int(sum(getattr(report, name) for report in self.reports))

    def __str__(self) -> str:
        """Return a line, and a line for each problem."""
        slowest = max((report.slowest_s for report in self.reports), default=0.0)
        back = "".join(f", killed one's slabs back in {each:.1f} s" for each in self.killed_back_s)
        return (
            f"{'VIOLATED' if self.problems else 'good'}: {self.plan}: {self.total('checked_bytes') >> 20} MiB checked, "
            f"{self.total('slab_bytes') >> 20} MiB from slabs, {self.total('lost')} lost, "
            f"{self.total('evicted')} evicted, {self.total('full')} refused by a full disk, slowest {slowest:.2f} s"
            f"{back}, all slabs back in {self.slabs_back_s:.1f} s" + "".join(f"\n    {one}" for one in self.problems)
        )


class ClientProcess:
    """A client on its machine; it may be killed and started again."""

    def __init__(self, plan: ClientPlan, machine: Machine, world: World, folder: Path, break_by: str) -> None:
        self.plan, self.machine, self.world, self.folder = plan, machine, world, folder
        self.break_by = break_by
        self.life = 0
        self.ready = asyncio.Event()
        self.reported = asyncio.Event()
        self.report: ClientReport | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.reading: asyncio.Task[None] | None = None
        self.disk = folder / "disk"
        self.disk.mkdir(parents=True)
        self.content = self.disk / "content"
        self.small_disk = bool(plan.disk_bytes) and machine.network is not None  # it takes root as they do

    @property
    def job_id(self) -> str:
        """What its slabs are lent to."""
        return f"{self.folder.parent.name}-{self.plan.home}-{self.life}"

    def prepare_disk(self) -> None:
        """Mount a disk that is too small, if there is to be one."""
        if self.small_disk:
            options = f"size={self.plan.disk_bytes}"
            subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.disk)], check=True)

    def make_room(self) -> None:
        """Have the disk be large enough from now on."""
        if self.small_disk:
            subprocess.run(["mount", "-o", "remount,size=1g", str(self.disk)], check=True)

    def remove_disk(self) -> None:
        """Undo :meth:`prepare_disk`."""
        if self.small_disk:
            subprocess.run(["umount", str(self.disk)], check=False)

    async def start(self) -> None:
        """Start it; return when it has slabs, or has tried for long."""
        plan = self.plan
        task = ClientTask(
            life=self.life,
            folder=str(self.folder),
            content=str(self.content) if plan.kept else "",
            agent=str(self.machine.socket),
            size=plan.size,
            seed=plan.seed,
            local_bytes=plan.local_bytes,
            pending_bytes=plan.pending_bytes,
            break_by=self.break_by,
        )
        boot_id = self.folder / "boot_id"
        boot_id.write_text("nobody's\n")
        if plan.shares_with:
            boot_id = self.world.machines[plan.shares_with].boot_id
        self.ready.clear()
        self.process = self.machine.begin(
            sys.executable, "-m", "memory_faults.client", msgspec.json.encode(task).decode(),
            boot_id=boot_id, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**clean_environment(), "TMPDIR": str(self.disk), AgentEnv.JOB_ID: self.job_id},
        )  # fmt: skip
        self.reading = asyncio.create_task(self._read(self.process))
        await self._expect(self.ready, BEGIN_S, "has not begun")

    async def _read(self, process: subprocess.Popen[bytes]) -> None:
        reader = asyncio.StreamReader(limit=1 << 24)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), process.stdout)
        while line := await reader.readline():
            message = json.loads(line)
            if "report" in message:
                self.report = msgspec.convert(message["report"], ClientReport)
                self.reported.set()
            else:
                self.ready.set()

    async def _expect(self, event: asyncio.Event, within_s: float, what: str) -> None:
        assert self.process is not None
        assert self.reading is not None
        waiting = asyncio.ensure_future(event.wait())
        try:
            await asyncio.wait({waiting, self.reading}, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if not event.is_set():
            code = self.process.poll()
            raise ClientFailed(f"client on {self.plan.home} {what} within {within_s:g} s (status {code})")

    def tell(self, line: str) -> None:
        """Send it a line."""
        assert self.process is not None
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(f"{line}\n".encode())
            self.process.stdin.flush()

    async def finish(self) -> None:
        """Have it read all back and end."""
        assert self.process is not None
        self.tell("finish")
        await self._expect(self.reported, FINISH_S, "has not read all back")
        process = self.process
        try:
            code = await asyncio.to_thread(process.wait, 20)
        except subprocess.TimeoutExpired as error:
            raise ClientFailed(f"client on {self.plan.home} has not ended 20 s after its report") from error
        if code:
            raise ClientFailed(f"client on {self.plan.home} ended with {code}")

    async def kill(self) -> None:
        """Kill it with signal 9, and start it again on what it has left."""
        assert self.process is not None
        assert self.reading is not None
        self.process.kill()
        await asyncio.to_thread(self.process.wait)
        await self.reading
        self.life += 1
        await self.start()

    def check_content(self) -> list[str]:
        """Check the file that a client has left, read by nothing of the product."""
        if not self.plan.kept:
            left = list(self.disk.iterdir())
            return [f"files are left on the disk of {self.plan.home}: {left}"] if left else []
        words = self.plan.size // WORD_BYTES
        versions = WordVersions(self.folder / "versions", words)
        found = np.fromfile(self.content, np.int64, words)
        problem = versions.problem(0, found, np.array(versions.done), np.array(versions.begun))
        left = [path for path in self.disk.iterdir() if path != self.content]
        return [f"file of {self.plan.home}: {problem}"] * bool(problem) + [f"left over: {path}" for path in left]

    def discard(self) -> None:
        """End it, whatever it does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            if self.process.stdin is not None:
                with suppress(OSError):
                    self.process.stdin.close()


class ClientFailed(Exception):
    """A client has not done what it was told; the message says what."""


async def run_history(plan: HistoryPlan, world: World, *, break_by: str = "") -> FaultVerdict:
    """Have a history happen in a world, and judge it."""
    verdict = FaultVerdict(plan)
    folder = Path(tempfile.mkdtemp(prefix=f"h{plan.number}-", dir=world.folder))
    errors_before = {node: dict(offer.errors) for node, offer in world.offers.items()}
    with ExitStack() as disks:
        clients = {}
        for each in plan.clients:
            client = ClientProcess(each, world.machines[each.home], world, folder / each.home, break_by)
            client.prepare_disk()
            disks.callback(client.remove_disk)
            clients[each.home] = client
        await _live(plan, world, clients, verdict)
        for client in clients.values():
            if client.report is not None:
                verdict.reports.append(client.report)
                verdict.problems += client.check_content()
    back_s = await world.slabs_back_s()
    counts = {machine.node: machine.slabs() for machine in world.machines.values()}
    verdict.slabs_back_s = back_s or 0.0
    if back_s is None:
        verdict.problems.append(f"slabs do not come back: memory is held for {counts}")
    verdict.problems += [*_client_problems(plan, verdict.reports), *_agent_problems(world, errors_before)]
    if not verdict.problems:
        shutil.rmtree(folder)
    return verdict


async def _live(plan: HistoryPlan, world: World, clients: dict[str, ClientProcess], verdict: FaultVerdict) -> None:
    try:
        await asyncio.gather(*(client.start() for client in clients.values()))
        await _suffer(plan, world, clients, verdict)
        await asyncio.gather(*(client.finish() for client in clients.values()))
    except ClientFailed as error:
        verdict.problems.append(str(error))
    finally:
        for client in clients.values():
            client.discard()


def _client_problems(plan: HistoryPlan, reports: list[ClientReport]) -> list[str]:
    stopped_s = sum(fault.for_s for fault in plan.faults if fault.kind == "stop_client")
    problems = [problem for report in reports for problem in report.problems]
    slow = [report for report in reports if report.slowest_s > MOST_S + stopped_s]
    return problems + [f"a {report.slowest} took {report.slowest_s:.1f} s" for report in slow]


def _agent_problems(world: World, errors_before: dict[str, dict[str, int]]) -> list[str]:
    problems: list[str] = []
    for machine in world.machines.values():
        machine.check_running()
        problems += machine.problems + machine.failures()
        machine.problems.clear()
    for node, offer in world.offers.items():
        for status, count in offer.errors.items():
            if status in _DAMAGED and count > errors_before.get(node, {}).get(status, 0):
                problems.append(f"the data port of {node} refused {count} requests as {status}")
    return problems


async def _suffer(plan: HistoryPlan, world: World, clients: dict[str, ClientProcess], verdict: FaultVerdict) -> None:
    """Have the faults happen at their times, and return when all are over and the load has had its time."""
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    busy = {home: asyncio.Lock() for home in clients}
    watching: list[asyncio.Task[None]] = []

    async def happen(fault: MemoryFault) -> None:
        await asyncio.sleep(max(0.0, begun_s + fault.at_s - loop.time()))
        if world.network is None and fault.kind in NEED_NAMESPACES:
            verdict.skipped.append(fault)
        elif fault.kind in {"kill_client", "stop_client", "fork", "make_room"}:
            client = clients[fault.node]
            async with busy[fault.node]:
                await _hit_client(fault, client, world, verdict, watching)
        else:
            await world.inflict(fault)

    async with asyncio.TaskGroup() as group:
        for fault in plan.faults:
            group.create_task(_reported(happen(fault), verdict))
    await asyncio.sleep(max(0.0, begun_s + plan.load_s - loop.time()))
    await asyncio.gather(*watching)


async def _reported(happening: Any, verdict: FaultVerdict) -> None:
    try:
        await happening
    except ClientFailed as error:
        verdict.problems.append(str(error))


async def _hit_client(
    fault: MemoryFault,
    client: ClientProcess,
    world: World,
    verdict: FaultVerdict,
    watching: list[asyncio.Task[None]],
) -> None:
    assert client.process is not None
    match fault.kind:
        case "fork":
            client.tell("fork")
        case "make_room":
            await asyncio.to_thread(client.make_room)
        case "stop_client":
            client.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(fault.for_s)
            client.process.send_signal(signal.SIGCONT)
        case _:
            watching.append(asyncio.create_task(_watch_slabs(client.job_id, world, verdict)))
            await client.kill()


async def _watch_slabs(job_id: str, world: World, verdict: FaultVerdict) -> None:
    """Measure until no agent lends to a client that was killed."""
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    if not world.lent_to(job_id):
        return
    while world.lent_to(job_id):
        world.heard.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await world.heard.wait()
        if loop.time() > begun_s + KILLED_BACK_S:
            verdict.problems.append(f"slabs of {job_id}, killed {KILLED_BACK_S:g} s ago, are still lent")
            return
    verdict.killed_back_s.append(loop.time() - begun_s)
