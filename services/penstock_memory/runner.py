"""The memory agent at work: it measures, lends, borrows for its clients, renews, and tells what it does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec
import numpy as np

from penstock_bus.addresses import reachable_address
from penstock_bus.follower import FoldFollower, background, until_available
from penstock_bus.health import VERSION, Vitals
from penstock_bus.port import BusError, Endpoint, Reply, Request, ServiceError
from penstock_bus.service_folder import MEMORY_SOCKET, alone_in, path_in
from penstock_bus.settings import SettingsError
from penstock_bus.shell import Shell
from penstock_cluster.host_limits import node_id_of
from penstock_log import subjects
from penstock_log.memory_messages import (
    RENEW_S,
    AgentRequest,
    CheckActivity,
    EvictSlabs,
    QuerySlabs,
    SlabOffer,
)
from penstock_memory import machine
from penstock_memory.borrower import Borrower
from penstock_memory.client_listener import ClientListener
from penstock_memory.donor import Donor, DonorPlace, Refused
from penstock_memory.fact_batch import FactBatch
from penstock_memory.machine import MemorySettings
from penstock_memory.pressure import host_memory
from penstock_memory.slab_pool import SlabPool
from penstock_memory.slab_server import SlabServer

MEASURE_S: Final = 1.0
CLAIM_S: Final = 2.0
"""How long another agent of this name is given to answer."""
SNAPSHOT_LOOK_S: Final = 10.0
SNAPSHOT_EVERY: Final = 5_000
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_PASSABLE: Final = 0o711
T = TypeVar("T")
_decoder: Final[msgspec.json.Decoder[AgentRequest]] = msgspec.json.Decoder(AgentRequest)


class AgentError(Exception):
    """The agent cannot work here; the message says what to do."""


async def run(shell: Shell, settings: MemorySettings) -> None:
    """Be a node's memory agent until the shell stops."""

    def examine(vitals: Vitals) -> None:
        vitals.undecided_s = shell.progress.undecided_s()

    shell.examine = examine
    address = await asyncio.to_thread(reachable_address, shell.url, settings.address, "memory")
    node_id = node_id_of(settings.node_id)
    with alone_in(settings.data_dir, "memory agent", AgentError) as data:
        data.chmod(_PASSABLE)  # clients are other accounts; what is in it is closed each by itself
        await claim_name(shell, node_id)
        live = FoldFollower(
            shell.bus,
            machine.decider(node_id),
            name=f"memory.{node_id}",
            on_delivery=lambda delivery: shell.progress.read(delivery.seq, matters=False),
        )
        async with live:
            await live.caught_up()
            async with asyncio.TaskGroup() as tasks:
                await MemoryAgent(shell, settings, live, tasks, data=data, node_id=node_id, address=address).work()
            await live.save_snapshot()


async def claim_name(shell: Shell, node_id: str) -> None:
    """
    Check that no other agent runs as this node: each would answer for slabs of the other.

    Raises
    ------
    SettingsError
        If one answers.
    """
    try:
        await shell.bus.request(subjects.slab(node_id), msgspec.json.encode(QuerySlabs(slab_bytes=0)), CLAIM_S)
    except ServiceError:
        pass
    except BusError:
        return
    raise SettingsError(
        f"another memory agent runs as node {node_id}: each node needs a name of its own; give this one another by "
        "node_id under [memory], or as PENSTOCK_MEMORY_NODE_ID"
    )


class MemoryAgent:
    """
    One node's agent, for one life of its process: leases of an earlier one are unknown to it.

    Parameters
    ----------
    root : Path
        Where ``proc`` and the control groups' file systems are.
    """

    def __init__(
        self,
        shell: Shell,
        settings: MemorySettings,
        live: FoldFollower[machine.MemoryState],
        tasks: asyncio.TaskGroup,
        *,
        data: Path,
        node_id: str,
        address: str,
        root: Path = Path("/"),
    ) -> None:
        self.shell, self.settings, self.live, self.tasks, self.node_id = shell, settings, live, tasks, node_id
        self.root = root
        rng, ticking = np.random.default_rng(), shell.monotonic
        self.pool = SlabPool(settings.slab_bytes, time.time_ns() // 1000)  # later lives have larger generations
        # by the node's name: another container of this host has none of that path, where its own agent has one
        slabs = path_in(data, f"slabs-{quote(node_id, safe='')}", for_all=True)
        clients = path_in(data, MEMORY_SOCKET, for_all=True)
        self.server = SlabServer(self.pool, settings.host, settings.port, slabs, ticking=ticking)
        self.facts = FactBatch(shell.bus, node_id, shell.now_s, ticking)
        waiting = shell.metrics.gauge("penstock_outbox_facts", "Facts that wait for the log.")
        waiting.follow(lambda: len(self.facts))
        place = DonorPlace(node_id=node_id, host=address, port=self.server.port, socket=str(slabs), boot_id=_boot_id())
        self.donor = Donor(
            self.pool,
            place,
            settings,
            ask=self._ask,
            facts=self.facts,
            ticking=ticking,
            rng=rng,
            find_job=lambda job_id: live.state.jobs.get(job_id),  # noqa: PLW0108 - the state may be another object later
        )
        self.borrower = Borrower(node_id, settings, ask=self._ask, spawn=self._spawn, ticking=ticking, rng=rng)
        self.listener = ClientListener(clients, self.borrower, ticking)

    async def work(self) -> None:
        """Lend and borrow until the shell stops."""
        endpoint = Endpoint(name="slab", subject=subjects.slab(self.node_id), handler=self._answer, concurrent=True)
        try:
            await self._measure()
            async with (
                self.shell.bus.serve(f"penstock-memory-{self.node_id}", VERSION, [endpoint]),
                background(
                    self._keep_measuring(),
                    self._follow_placements(),
                    self._hear_donors(),
                    self._keep_renewing(),
                    self.listener.accept(),
                    self.facts.write(self.shell.stopping),
                    self._save(),
                ),
            ):
                self.shell.vitals.ready = True
                about = {"port": self.server.port, "offered": self.donor.offered}
                self.shell.log.info("memory_offered", node_id=self.node_id, **about)
                await self.shell.stopping.wait()
                self.shell.vitals.ready = False
                await self.donor.close()
            await self._flush()
        finally:
            await asyncio.to_thread(self.server.close)
            await asyncio.to_thread(self.pool.close)

    # --- the node's memory
    async def _keep_measuring(self) -> None:
        while True:
            await self._publish_offer()
            await asyncio.sleep(MEASURE_S)
            await self._measure()

    async def _measure(self) -> None:
        memory = await asyncio.to_thread(host_memory, self.root)
        self.donor.measure(memory)
        await self.donor.settle(self._promised_bytes())
        await self.donor.expire()

    async def _follow_placements(self) -> None:
        promised_bytes = self._promised_bytes()
        while True:
            await self.live.changed.wait()
            self.live.changed.clear()
            before, promised_bytes = promised_bytes, self._promised_bytes()
            if promised_bytes > before:  # a job has come: its memory is not waited for until the next second
                await self.donor.settle(promised_bytes)

    def _promised_bytes(self) -> int:
        return self.live.state.promised_bytes(self.shell.now_s())

    async def _publish_offer(self) -> None:
        offer = msgspec.structs.replace(
            self.donor.offer(),
            errors=self.server.refusals.counts(),
            sent_bytes=self.server.sent_bytes,
            received_bytes=self.server.received_bytes,
        )
        self.borrower.hear(self.node_id, offer)
        await self.shell.bus.publish(subjects.memory_offer(self.node_id), msgspec.json.encode(offer))

    # --- other agents
    async def _hear_donors(self) -> None:
        async for subject, body in self.shell.bus.subscribe(subjects.MEMORY_OFFERS):
            node_id = subject.rpartition(".")[2]
            if node_id == self.node_id:
                continue
            try:
                self.borrower.hear(node_id, msgspec.json.decode(body, type=SlabOffer))
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                self.shell.log.warning("memory_offer_unreadable", node_id=node_id, error=str(error))

    async def _keep_renewing(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            await self.borrower.renew()

    async def _answer(self, request: Request) -> Reply:
        try:
            answer = await self._handle(_decoder.decode(request.body))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return Reply(code=400, error=f"expected a request between memory agents: {error}")
        except Refused as error:
            return Reply(code=409, error=str(error))
        return Reply(body=msgspec.json.encode(answer))

    async def _handle(self, request: AgentRequest) -> msgspec.Struct:
        if isinstance(request, (CheckActivity, EvictSlabs)):
            return await self.borrower.answer(request)
        return await self.donor.answer(request)

    async def _ask(self, node_id: str, request: AgentRequest, answer: type[T], timeout_s: float) -> T:
        if node_id == self.node_id:
            try:
                found = await self._handle(request)
            except Refused as error:
                raise ServiceError(409, str(error)) from error
            return msgspec.convert(found, answer)
        body = await self.shell.bus.request(subjects.slab(node_id), msgspec.json.encode(request), timeout_s)
        try:
            return msgspec.json.decode(body, type=answer)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ServiceError(502, f"node {node_id} answered what is no {answer.__name__}: {error}") from error

    # --- the frame
    def _spawn(self, task: Coroutine[Any, Any, None]) -> None:
        try:
            self.tasks.create_task(task)
        except RuntimeError:  # the agent is being ended: donors take back what is not renewed
            task.close()

    async def _save(self) -> None:
        while True:
            await asyncio.sleep(SNAPSHOT_LOOK_S)
            if self.live.unsaved >= SNAPSHOT_EVERY:
                await until_available(self.live.save_snapshot, "save_snapshot")

    async def _flush(self) -> None:
        try:
            await self.facts.flush(self.shell.stopping)
        except BusError as error:
            self.shell.log.warning("memory_facts_not_written", error=str(error))


def _boot_id() -> str:
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""
