"""Faults as they are done to a cluster, and lifted again."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import msgspec

from chaos.cluster import Cluster, signal_all
from chaos.schedule import SERVER, Fault, FaultKind
from penstock import Client
from penstock_bus import BusError, ServiceError
from penstock_log.services import CORE

ON_A_DISK: Final = ("full", "freeze")
"""Faults that need a disk of their own; a power cut without one loses nothing."""
NOT_KNOWN: Final = 404
_AGAIN_S: Final = 0.5
_SLOW_S: Final = 0.1


class Injector:
    """
    What does the faults of one schedule.

    Attributes
    ----------
    done : list of str
        Each fault with whom it befell, for people.
    killed_jobs : set of str
        Jobs of which a process was killed.
    """

    def __init__(self, cluster: Cluster, began_s: float, *, clocks: bool) -> None:
        self.done: list[str] = []
        self.killed_jobs: set[str] = set()
        self._cluster, self._began_s, self._clocks = cluster, began_s, clocks

    async def run(self, fault: Fault) -> None:
        """Wait for a fault's time, do it, and lift it; always lifted, whatever happens meanwhile."""
        await self._until(fault.at_s)
        await _DONE_BY[fault.kind](self, fault)

    async def _until(self, at_s: float) -> None:
        await asyncio.sleep(max(0.0, self._began_s + at_s - asyncio.get_running_loop().time()))

    def _note(self, fault: Fault, hit: str = "") -> None:
        self.done.append(f"{fault}{hit and f' ({hit})'}")

    async def _kill(self, fault: Fault) -> None:
        pids = self._hit(fault)
        if fault.target in {"job", "shim"}:
            self.killed_jobs |= {self._cluster.job_of(pid) for pid in pids}
        signal_all(pids, signal.SIGKILL)

    async def _stop(self, fault: Fault) -> None:
        pids = self._hit(fault)
        signal_all(pids, signal.SIGSTOP)
        try:
            await asyncio.sleep(fault.for_s)
        finally:
            signal_all(pids, signal.SIGCONT)

    async def _restart(self, fault: Fault) -> None:
        signal_all(self._hit(fault), signal.SIGTERM)

    async def _cut(self, fault: Fault) -> None:
        proxies = self._cluster.proxies[fault.target]
        for proxy in proxies:
            proxy.cut(fault.how, fault.amount)
        self._note(fault)
        try:
            await asyncio.sleep(fault.for_s)
        finally:
            for proxy in proxies:
                proxy.mend()

    async def _isolate(self, fault: Fault) -> None:
        """Cut one server from the others; everybody else reaches it as before."""
        routes, number = self._cluster.routes, self._cluster.server_at(fault.amount)
        if fault.target == "leader":
            with suppress(BusError):  # while none leads, any of them is as good
                number = await self._cluster.leader() or number
        self._note(fault, f"server {number}")
        routes.isolate(number, fault.how)
        try:
            await asyncio.sleep(fault.for_s)
        finally:
            routes.mend(number)

    async def _power(self, fault: Fault) -> None:
        self._note(fault, "" if self._cluster.disk.able else "nothing but processes is lost: no disk of its own")
        await self._cluster.cut_power(fault.for_s)

    async def _full(self, fault: Fault) -> None:
        disk = self._cluster.disk
        self._note(fault)
        await asyncio.to_thread(disk.fill)
        try:
            await asyncio.sleep(fault.for_s)
        finally:
            await asyncio.to_thread(disk.make_room)

    async def _freeze(self, fault: Fault) -> None:
        disk, end_s = self._cluster.disk, asyncio.get_running_loop().time() + fault.for_s
        self._note(fault)
        hang_s = _SLOW_S if fault.how == "slow" else fault.for_s
        while asyncio.get_running_loop().time() < end_s:
            await asyncio.to_thread(disk.freeze, hang_s)
            await asyncio.sleep(_SLOW_S)

    async def _clock(self, fault: Fault) -> None:
        if fault.target.startswith(SERVER):
            self._note(fault)
            self._cluster.set_server_clock(int(fault.target.removeprefix(SERVER)), fault.amount)
            return
        self._note(fault, "" if self._clocks else "skipped: no libfaketime")
        if self._clocks:
            self._cluster.set_clock(fault.target, fault.amount)

    async def _snapshots(self, fault: Fault) -> None:
        """Damage all snapshots as an administrator could, and kill those who would start from them."""
        self._note(fault)
        try:
            async with self._cluster.admin() as bus:
                if fault.how == "deleted":
                    await bus.delete_snapshots()
                for name in CORE if fault.how == "torn" else ():
                    last = await bus.load_snapshot(name)
                    if last is not None:
                        torn = msgspec.structs.replace(last, state=last.state[: len(last.state) // 2])
                        await bus.save_snapshot(name, torn)
        except BusError as error:
            self._note(fault, f"not done: {error}")
            return
        for target in self._cluster.children:
            if not target.startswith("executor-"):
                signal_all(self._cluster.pids(target, 0.0), signal.SIGKILL)

    async def _drain(self, fault: Fault) -> None:
        self._note(fault)
        await self._asked(lambda client: client.drain(fault.target, "chaos", preempt=True))
        try:
            await asyncio.sleep(fault.for_s)
        finally:
            await self._asked(lambda client: client.resume(fault.target))

    async def _asked(self, ask: Callable[[Client], Awaitable[object]]) -> None:
        """Give a command again and again until it is answered: a drained node must not stay so."""
        while True:
            try:
                async with self._cluster.client() as bus, Client(bus=bus) as client:
                    await ask(client)
                    return
            except ServiceError as error:
                if error.code == NOT_KNOWN:
                    return  # the node has never joined
            except BusError:
                pass
            await asyncio.sleep(_AGAIN_S)

    def _hit(self, fault: Fault) -> list[int]:
        pids = self._cluster.pids(fault.target, fault.amount)
        who = "nobody was there" if not pids else ""
        if fault.target in {"job", "shim"} and pids:
            who = self._cluster.job_of(pids[0])
        self._note(fault, who)
        return pids


_DONE_BY: Final[dict[FaultKind, Callable[[Injector, Fault], Awaitable[None]]]] = {
    "kill": Injector._kill,
    "stop": Injector._stop,
    "restart": Injector._restart,
    "cut": Injector._cut,
    "isolate": Injector._isolate,
    "power": Injector._power,
    "full": Injector._full,
    "freeze": Injector._freeze,
    "clock": Injector._clock,
    "snapshots": Injector._snapshots,
    "drain": Injector._drain,
}
