"""The aggregation agent at work: it runs its node's aggregators, and speaks for the runs with processes here."""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec

from penstock_aggregator import machine
from penstock_aggregator.client_listener import RankListener
from penstock_aggregator.fact_queue import FactQueue
from penstock_aggregator.local_runs import NOT_READY, Changes, LocalRuns
from penstock_aggregator.machine import AggregatorSettings, AggregatorState, CopyOwed
from penstock_aggregator.supervisor import PROGRAM, AggregatorGone, AggregatorPlace, AggregatorProcess, Said
from penstock_bus.addresses import reachable_address
from penstock_bus.follower import FoldFollower, background, until_available
from penstock_bus.health import VERSION, Vitals
from penstock_bus.port import BusError, Endpoint, Reply, Request, ServiceError
from penstock_bus.service_folder import AGGREGATOR_SOCKET, alone_in, path_in, secret_in
from penstock_bus.settings import SettingsError
from penstock_bus.shell import Shell
from penstock_cluster.host_limits import all_memory, node_id_of
from penstock_log import (
    AggregationMeasured,
    AggregatorEnded,
    AggregatorsOffered,
    AggregatorStarted,
    AggregatorUnreachable,
    PartMoved,
    subjects,
)
from penstock_log.aggregation_facts import node_of
from penstock_log.aggregation_messages import (
    COPY_RANK,
    AggregatorAddress,
    AggregatorLoads,
    AggregatorReport,
    CopyFailed,
    GrantLease,
    OpenLease,
    PartCopied,
    RunMeasuredHere,
    SendPart,
)

CLAIM_S: Final = 2.0
"""How long another agent of this name is given to answer."""
LOADS_S: Final = 1.0
LEASE_S: Final = 4.0
"""How long a request for a lease waits here for its assignment and its aggregator."""
ANSWER_S: Final = 6.0
"""How long another agent is waited for."""
COPY_TRIES: Final = 3
MOST_WAITING: Final = 1000
"""Requests of other agents that wait at a time."""
SNAPSHOT_LOOK_S: Final = 10.0
SNAPSHOT_EVERY: Final = 5_000
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_PASSABLE: Final = 0o711
_decoder: Final[msgspec.json.Decoder[OpenLease]] = msgspec.json.Decoder(OpenLease)


class AgentRefused(Exception):
    """The agent cannot work here; the message says what to do."""


async def run(shell: Shell, settings: AggregatorSettings, program: Sequence[str] = PROGRAM) -> None:
    """Be a node's aggregation agent until the shell stops."""

    def examine(vitals: Vitals) -> None:
        vitals.undecided_s = shell.progress.undecided_s()

    shell.examine = examine
    address = await asyncio.to_thread(reachable_address, shell.url, settings.address, "aggregator")
    node_id = node_id_of(settings.node_id)
    with alone_in(settings.data_dir, "aggregation agent", AgentRefused) as data:
        data.chmod(_PASSABLE)  # clients are other accounts; what is in it is closed each by itself
        await claim_name(shell, node_id)
        live = FoldFollower(
            shell.bus,
            machine.decider(node_id),
            name=f"aggregator.{node_id}",
            on_delivery=lambda delivery: shell.progress.read(delivery.seq, matters=False),
        )
        async with live:
            await live.caught_up()
            await AggregationAgent(shell, settings, live, program, data=data, node_id=node_id, address=address).work()
            await live.save_snapshot()


async def claim_name(shell: Shell, node_id: str) -> None:
    """
    Check that no other agent runs as this node: each would run the same aggregators.

    Raises
    ------
    SettingsError
        If one answers.
    """
    nothing = OpenLease(aggregator="", job_id="", epoch=0, rank=0, generation=0)
    try:
        await shell.bus.request(subjects.aggregators(node_id), msgspec.json.encode(nothing), CLAIM_S)
    except ServiceError:
        pass
    except BusError:
        return
    raise SettingsError(
        f"another aggregation agent runs as node {node_id}: each node needs a name of its own; give this one another "
        "by node_id under [aggregator], or as PENSTOCK_AGGREGATOR_NODE_ID"
    )


class AggregationAgent:
    """One node's agent, for one life of its process: aggregators of an earlier one are gone."""

    def __init__(
        self,
        shell: Shell,
        settings: AggregatorSettings,
        live: FoldFollower[AggregatorState],
        program: Sequence[str],
        *,
        data: Path,
        node_id: str,
        address: str,
    ) -> None:
        self.shell, self.settings, self.live, self.node_id = shell, settings, live, node_id
        self.program, self.data, self.address = program, data, address
        self.most = settings.most
        self.incarnation = uuid.uuid4().hex
        self.processes: dict[str, AggregatorProcess] = {}
        self._ended: dict[str, int] = {}
        """Aggregator whose process has ended → its allocation: it is not started again for the same one."""
        self._assigned: dict[str, tuple[int, int, float]] = {}
        """Job → epoch and generation of its last assignment, and since when it is known here."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting = 0
        self._ends = False
        self._boot_id = _boot_id()
        self.changes = Changes()
        self.facts = FactQueue(shell.bus, node_id)
        waiting = shell.metrics.gauge("penstock_outbox_facts", "Facts that wait for the log.")
        waiting.follow(lambda: len(self.facts))
        self.runs = LocalRuns(
            node_id,
            settings.pool,
            live,
            self.changes,
            self.facts,
            secret=secret_in(data),
            run_bytes=settings.run_bytes or all_memory(Path("/")) // 4,
            open_lease=self._ask,
            spawn=self._spawn,
            now_s=shell.now_s,
        )
        self.listener = RankListener(path_in(data, AGGREGATOR_SOCKET, for_all=True), self.runs, shell.monotonic)

    async def work(self) -> None:
        """Run aggregators and speak for clients until the shell stops."""
        served = Endpoint(
            name="aggregator", subject=subjects.aggregators(self.node_id), handler=self._answer, concurrent=True
        )
        self._offer(self.most)
        async with (
            self.shell.bus.serve(f"penstock-aggregator-{self.node_id}", VERSION, [served]),
            background(self._follow(), self.listener.accept(), self._publish_loads(), self.facts.write(), self._save()),
        ):
            self.runs.leave_unclaimed()
            self.shell.vitals.ready = True
            self.shell.log.info("aggregation_offered", node_id=self.node_id, most=self.most)
            try:
                await self.shell.stopping.wait()
            finally:
                self.shell.vitals.ready = False
                await self._end_all()
        self._offer(0)
        try:
            await self.facts.flush(self.shell.stopping)
        except BusError as error:
            self.shell.log.warning("aggregator_facts_not_written", error=str(error))

    def _offer(self, most: int) -> None:
        about = {"node_id": self.node_id, "pool": self.settings.pool, "incarnation": self.incarnation}
        self.facts.put(AggregatorsOffered(at_s=self.shell.now_s(), most=most, **about))

    # --- the processes of aggregators
    async def _follow(self) -> None:
        """Make true what the log says, as often as it says something new."""
        seen = -1
        while True:
            if self.live.state.changes != seen:
                seen = self.live.state.changes
                self._reconcile()
            await self.live.changed.wait()
            self.live.changed.clear()

    def _reconcile(self) -> None:
        state = self.live.state
        if (
            state.incarnation == self.incarnation and not self._ends
        ):  # before, what is allocated was allocated to an earlier life
            for name, allocation in state.allocated.items():
                if name not in self.processes and self._ended.get(name) != allocation:
                    self._start(name, allocation)
            for process in self.processes.values():
                if state.allocated.get(process.name) != process.allocation:
                    process.end("recycled")
                elif process.is_ready:
                    self._give_orders(process)
        self._note_assignments()
        self.changes.notify()

    def _note_assignments(self) -> None:
        before, now_s = self._assigned, self.shell.monotonic()
        self._assigned = {}
        for job_id, run in self.live.state.runs.items():
            known = before.get(job_id)
            present = (run.epoch, run.generation)
            self._assigned[job_id] = known if known is not None and known[:2] == present else (*present, now_s)

    def _start(self, name: str, allocation: int) -> None:
        # by its allocation, too: one that is recycled may be allocated again before the socket of the first is gone
        socket = path_in(self.data, f"{quote(name, safe='')}-{allocation}", for_all=True)
        place = AggregatorPlace(self.settings.host, self._free_port(), socket)
        process = AggregatorProcess(name, allocation, place, program=self.program, on_said=self._note_said)
        self.processes[name] = process
        self._spawn(self._live_of(process))

    def _free_port(self) -> int:
        if not self.settings.port:
            return 0
        taken = {process.place.port for process in self.processes.values()}
        return next(port for port in range(self.settings.port, 65_536) if port not in taken)

    async def _live_of(self, process: AggregatorProcess) -> None:
        """Run an aggregator, and have the log know of its beginning and its end."""

        def on_ready() -> None:
            fact = AggregatorStarted(
                at_s=self.shell.now_s(), node_id=self.node_id, aggregator=process.name, incarnation=self.incarnation
            )
            self.facts.put(fact)
            self._reconcile()

        why = await process.run(on_ready)
        del self.processes[process.name]
        self._ended[process.name] = process.allocation
        log = self.shell.log.info if why == "recycled" else self.shell.log.warning
        log("aggregator_ended", aggregator=process.name, why=why, said=process.last_lines)
        self.facts.put(AggregatorEnded(at_s=self.shell.now_s(), node_id=self.node_id, aggregator=process.name, why=why))
        self._reconcile()  # it may be allocated again meanwhile

    async def _end_all(self) -> None:
        """End all aggregators, as the agent itself ends: the log is told that none is left."""
        self._ends = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- their orders, and what they say
    def _give_orders(self, process: AggregatorProcess) -> None:
        for order in machine.owed_orders(self.live.state, process.view):
            process.view.note(order)
            if not isinstance(order, CopyOwed):
                process.order(order)
            elif order.held:
                self._spawn(self._send_part(process, order))
            else:
                reason = f"aggregator {process.name} does not hold the part that is to be copied from there"
                self._report_copy(order, reason)

    async def _send_part(self, process: AggregatorProcess, copy: CopyOwed) -> None:
        """Have an aggregator send a part to another one, once that one's agent has given a lease."""
        about: dict[str, Any] = {"job_id": copy.job_id, "epoch": copy.epoch, "generation": copy.generation}
        request, problem = OpenLease(aggregator=copy.to, rank=COPY_RANK, **about), ""
        for _ in range(COPY_TRIES):
            changed = self.changes.next
            try:
                to = await self._ask(request)
            except BusError as error:
                problem = str(error)
            else:
                if process.view.sent.get((copy.job_id, copy.epoch, copy.part)) == copy.generation:  # it is still owed
                    process.order(SendPart(part=copy.part, to=to, **about))
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(LOADS_S):
                    await changed.wait()
        self._report_copy(copy, problem)

    def _report_copy(self, copy: CopyOwed | CopyFailed, reason: str) -> None:
        """Have the log know that a part cannot be copied to where it is now, unless it is elsewhere by now."""
        run = self.live.state.run(copy.job_id, copy.epoch)
        placed = run.placed[copy.part] if run is not None and copy.part < len(run.placed) else None
        if run is None or placed is None or placed.generation != copy.generation:
            return
        fact = AggregatorUnreachable(
            at_s=self.shell.now_s(),
            node_id=self.node_id,
            aggregator=placed.aggregator,
            job_id=copy.job_id,
            epoch=copy.epoch,
            generation=run.generation,
            reason=f"part {copy.part} was not copied: {reason}",
        )
        self.facts.put(fact)

    def _note_said(self, process: AggregatorProcess, said: Said) -> None:
        about: dict[str, Any] = {"at_s": self.shell.now_s(), "node_id": self.node_id, "aggregator": process.name}
        match said:
            case RunMeasuredHere():
                measured = {**msgspec.structs.asdict(said), "generation": self._generation_over(process, said)}
                self.facts.put(AggregationMeasured(**about, **measured))
            case PartCopied():
                run = self.live.state.run(said.job_id, said.epoch)
                placed = run.placed[said.part] if run is not None and said.part < len(run.placed) else None
                before = placed.before if placed is not None and placed.generation == said.generation else ""
                self.facts.put(PartMoved(**about, before=before, **msgspec.structs.asdict(said)))
            case CopyFailed():
                self._report_copy(said, said.reason)

    def _generation_over(self, process: AggregatorProcess, said: RunMeasuredHere) -> int:
        """
        Return the generation of the assignment under which all measured steps were.

        An aggregator knows the generations of its own parts only. Where these are those of the present assignment, and
        that is older than the steps, it is the assignment's; otherwise what the aggregator says.
        """
        run = self.live.state.run(said.job_id, said.epoch)
        epoch, generation, since_s = self._assigned.get(said.job_id, (0, 0, 0.0))
        here = [part.generation for part in run.placed if part.aggregator == process.name] if run is not None else []
        took_s = said.steps * said.iteration_s
        if (
            epoch == said.epoch
            and max(here, default=0) == said.generation
            and self.shell.monotonic() >= since_s + took_s
        ):
            return generation
        return said.generation

    # --- other agents
    async def _ask(self, request: OpenLease) -> AggregatorAddress:
        """Return an aggregator's address with a lease, of this node or another; BusError where it is not given."""
        node_id = node_of(request.aggregator)
        if node_id == self.node_id:
            return await self._lease(request)
        body = await self.shell.bus.request(subjects.aggregators(node_id), msgspec.json.encode(request), ANSWER_S)
        try:
            return msgspec.json.decode(body, type=AggregatorAddress)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ServiceError(502, f"node {node_id} answered what is no address of an aggregator: {error}") from error

    async def _answer(self, request: Request) -> Reply:
        if self._waiting >= MOST_WAITING:
            return Reply(code=503, error=f"more than {MOST_WAITING} requests wait here; ask later")
        self._waiting += 1
        try:
            answer = await self._lease(_decoder.decode(request.body))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return Reply(code=400, error=f"expected a request for a lease: {error}")
        except ServiceError as error:
            return Reply(code=error.code, error=str(error))
        finally:
            self._waiting -= 1
        return Reply(body=msgspec.json.encode(answer))

    async def _lease(self, asked: OpenLease) -> AggregatorAddress:
        """Return an aggregator of this node with a lease; ServiceError where there is none."""
        if not asked.aggregator:
            raise ServiceError(404, "a request for a lease names an aggregator")
        try:
            async with asyncio.timeout(LEASE_S):
                process = await self._ready_process(asked)
                key = (asked.job_id, asked.epoch, asked.rank)
                lease = process.view.leases.get(key)
                if lease is None:
                    lease = GrantLease(
                        job_id=asked.job_id,
                        epoch=asked.epoch,
                        rank=asked.rank,
                        lease=secrets.token_hex(16),
                        token=secrets.token_hex(32),
                    )
                    process.view.note(lease)
                    process.order(lease)
                await process.settled()  # a rank that comes by it at once is known
        except TimeoutError as error:
            raise ServiceError(
                NOT_READY, f"aggregator {asked.aggregator} is not ready for run {asked.epoch} of job {asked.job_id} yet"
            ) from error
        except AggregatorGone as error:
            raise ServiceError(409, str(error)) from error
        place = process.place
        return AggregatorAddress(
            aggregator=process.name,
            lease=lease.lease,
            token=lease.token,
            host=self.address,
            port=process.port,
            boot_id=self._boot_id,
            socket=str(place.socket),
        )

    async def _ready_process(self, asked: OpenLease) -> AggregatorProcess:
        """Return the process of an aggregator that holds parts of a run, once it does."""
        while True:
            changed, state = self.changes.next, self.live.state
            run = state.run(asked.job_id, asked.epoch)
            if run is None and (over := state.ended.get(machine.run_name(asked.job_id, asked.epoch))):
                raise ServiceError(409, over)
            if run is not None and run.generation >= asked.generation:
                if not COPY_RANK <= asked.rank < run.asked.world_size:
                    raise ServiceError(409, f"rank {asked.rank} is none of {run.asked.world_size}")
                if not run.uses(asked.aggregator):
                    raise ServiceError(409, f"aggregator {asked.aggregator} has no part of job {asked.job_id} any more")
                if state.incarnation == self.incarnation and asked.aggregator not in state.allocated:
                    raise ServiceError(409, f"aggregator {asked.aggregator} has ended")
                process = self.processes.get(asked.aggregator)
                if process is not None and process.is_ready:
                    self._give_orders(process)
                    return process
            await changed.wait()

    # --- the frame
    async def _publish_loads(self) -> None:
        """Publish how busy the aggregators are, as long as there are some, once more after that, and who is denied."""
        said, denied = False, 0
        while True:
            await asyncio.sleep(LOADS_S)
            if not (self.processes or said or self.runs.denied.total() > denied):
                continue
            said, denied = bool(self.processes), self.runs.denied.total()
            body = msgspec.json.encode(self._loads())
            try:
                await self.shell.bus.publish(subjects.aggregator_load(self.node_id), body)
            except BusError as error:
                self.shell.log.info("aggregator_loads_not_published", error=str(error))

    def _loads(self) -> AggregatorLoads:
        loads = (
            AggregatorReport(
                aggregator=process.name,
                parts=len(process.view.opened.keys() - process.view.sent.keys()),
                busy_s=process.pong.busy_s,
                refused=process.pong.refused,
                received_bytes=process.pong.received_bytes,
                sent_bytes=process.pong.sent_bytes,
            )
            for process in self.processes.values()
        )
        return AggregatorLoads(node_id=self.node_id, most=self.most, loads=tuple(loads), denied=dict(self.runs.denied))

    def _spawn(self, task: Coroutine[Any, Any, None]) -> None:
        running = asyncio.create_task(task)
        self._tasks.add(running)
        running.add_done_callback(self._note_done)

    def _note_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.shell.log.error("aggregation_task_failed", exc_info=error)

    async def _save(self) -> None:
        while True:
            await asyncio.sleep(SNAPSHOT_LOOK_S)
            if self.live.unsaved >= SNAPSHOT_EVERY:
                await until_available(self.live.save_snapshot, "save_snapshot")


def _boot_id() -> str:
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""
