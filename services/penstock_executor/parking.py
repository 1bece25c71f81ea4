"""
The parked runs of this node: parked, continued and ended. Part of the runner.

The process of a parked run is stopped by its shim, which keeps it so for as long as a connection of this executor is
open: whatever becomes of the executor, its parked processes end with it. One that is parked no more leaves by itself,
as the connection of its session is closed too, and does what scripts do at their end; a script that has called
``session.park_torch``, whose tensors are not on the device then, ends by ``os._exit(75)`` instead.
The rules by which runs are parked and go on are in :mod:`penstock_executor.parked_run`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from penstock_cluster.accounting import own_bytes
from penstock_cluster.host_limits import HostCapacity
from penstock_executor.agent_listener import AgentConnection
from penstock_executor.launchers.launcher import LaunchedProcess
from penstock_executor.launchers.shim import descendants
from penstock_executor.parked_run import ParkedRun
from penstock_executor.process_host import Place, ProcessHost
from penstock_executor.run_state import LocalRun
from penstock_log import Job, RunUnparked
from penstock_log.agent_protocol import GoOn, StopAtStep
from penstock_log.text import gibibytes

SHARE: Final = 4
"""By default, parked runs hold one of so many parts of the memory that no job has asked for."""
PRESSURE: Final = 16
"""Where less than one of so many parts of the host's memory is left, parked runs give theirs."""
MOST_RUNS: Final = 32
"""The most parked runs of a node: each has a connection, of which a user has so many."""
ANSWER_S: Final = 10.0
"""How long a shim may take to stop a process or to let it go on: it may wait for a slow disk."""
_ANSWER_BYTES: Final = 4096
_log = structlog.get_logger("penstock.executor")


class _Refused(Exception):
    """The run is not parked, and leaves; the message says why."""


class _Held(msgspec.Struct, kw_only=True):
    """A parked run, and what it is held by: its process, the connection to its shim, that of its session, a pidfd."""

    run: ParkedRun
    process: LaunchedProcess
    link: socket.socket
    agent: AgentConnection
    exit_fd: int


class ParkedRuns:
    """
    The parked runs of one node.

    Parameters
    ----------
    most_bytes : int
        The most memory that they may hold together; negative: a part of what no job has asked for.
    finish_output : callable
        Publishes the rest of a process's output.
    let_go : callable
        ``let_go(place)``: stops watching for the end of a process; returns False where it has ended.
    is_entered : callable
        ``is_entered(place)``: says whether people are in the run.
    report : callable
        Reports a fact.
    """

    def __init__(
        self,
        host: ProcessHost,
        capacity: HostCapacity,
        most_bytes: int,
        *,
        clock: Callable[[], float],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        finish_output: Callable[[Place], Coroutine[Any, Any, None]],
        let_go: Callable[[Place], bool],
        is_entered: Callable[[Place], bool],
        report: Callable[[RunUnparked], None],
        wake: Callable[[], None],
    ) -> None:
        self._host, self._capacity, self._most_bytes = host, capacity, most_bytes
        self._clock, self._spawn, self._finish_output = clock, spawn, finish_output
        self._let_go, self._is_entered, self._report, self._wake = let_go, is_entered, report, wake
        self._held: dict[str, _Held] = {}
        self._leaving: dict[int, str] = {}
        self._asked: set[Place] = set()

    @property
    def leaving(self) -> frozenset[str]:
        """The jobs whose processes are parked no more, and have not ended yet."""
        return frozenset(self._leaving.values())

    @property
    def runs(self) -> dict[str, ParkedRun]:
        """The runs that are parked, by job, the longest first."""
        return {job_id: held.run for job_id, held in self._held.items()}

    @property
    def is_on(self) -> bool:
        """Whether runs may be parked on this node at all."""
        return self._most_bytes != 0

    @property
    def held_bytes(self) -> int:
        """Memory that they hold."""
        return sum(held.run.held_bytes for held in self._held.values())

    # --- parking
    def park(self, place: Place, job: Job | None, step: int) -> None:
        """Park a run whose process says that it is ready, or have it leave."""
        agent = self._host.connections.get(place)
        if agent is not None and place not in self._asked:
            self._asked.add(place)
            self._spawn(self._answer(place, agent, job, step))

    async def _answer(self, place: Place, agent: AgentConnection, job: Job | None, step: int) -> None:
        try:
            await self._park(place, agent, job, step)
        finally:
            self._asked.discard(place)

    async def _park(self, place: Place, agent: AgentConnection, job: Job | None, step: int) -> None:
        key, _ = place
        link: socket.socket | None = None
        try:
            if job is None or not self.is_on:
                raise _Refused("it may not be parked")
            held_bytes = await self._make_room(place)
            link = self._host.launcher.park(self._host.rank_dir(place))
            answer = await _ask(link, f"park {agent.pid}")
            run = self._run(place)
            if answer != "parked":
                raise _Refused(answer)
            exit_fd = self._host.launcher.exit_fd(self._host.process(place))
        except (OSError, TimeoutError, _Refused) as error:
            if link is not None:
                link.close()
            _log.info("run_not_parked", job_id=key[0], epoch=key[1], reason=str(error) or type(error).__name__)
            agent.send(StopAtStep(step=step))
            return
        parked = self._describe(run, job, step, held_bytes)
        if not self._let_go(place):
            os.close(exit_fd)
            link.close()
            return
        process = self._host.begin_parking(place, parked)
        held = _Held(run=parked, process=process, link=link, agent=agent, exit_fd=exit_fd)
        self._hold(held)
        await self._finish_output(place)
        self._host.end_as_parked(place, held_bytes if self._held.get(parked.job_id) is held else 0)

    def _run(self, place: Place) -> LocalRun:
        """Return the run, which may have been ended meanwhile."""
        run = self._host.runs.get(place[0])
        if run is None or not run.alive or run.termed_s or run.killed_s:
            raise _Refused("it is being ended")
        if not run.may_park or run.stop_step is None:
            raise _Refused("it was not asked to")
        if self._is_entered(place):
            raise _Refused("somebody is in it")
        return run

    async def _make_room(self, place: Place) -> int:
        """Return what a run holds, once there is room for that: the longest parked ends first."""
        self._run(place)
        leader = self._host.leader(place)
        held_bytes = await asyncio.to_thread(lambda: own_bytes(descendants(leader)))
        most_bytes = self.most_bytes()
        if held_bytes > most_bytes:
            raise _Refused(f"it holds {gibibytes(held_bytes)}, and {gibibytes(most_bytes)} may be parked here")
        for job_id in list(self._held):
            if self.held_bytes + held_bytes <= most_bytes and len(self._held) < MOST_RUNS:
                break
            self.end(job_id, "another run was parked in its place")
        return max(1, held_bytes)

    def most_bytes(self) -> int:
        """Return the most memory that parked runs may hold now."""
        if self._most_bytes >= 0:
            return self._most_bytes
        asked_bytes = sum(
            share.memory_bytes * max(1, len(self._host.runs[key].devices))
            for key, share in self._host.limits.hosted.items()
            if share.asked and key in self._host.runs and self._host.runs[key].alive
        )
        return max(0, self._capacity.memory_bytes - asked_bytes) // SHARE

    def _describe(self, run: LocalRun, job: Job, step: int, held_bytes: int) -> ParkedRun:
        placement = job.placement
        return ParkedRun(
            job_id=run.job_id,
            epoch=run.epoch,
            step=step,
            home=run.home or run.epoch,
            spec=job.spec,
            kind=placement.kind if placement is not None else "",
            devices=tuple(device for device in self._host.site.devices if device.index in run.devices),
            uid=run.uid,
            hold_s=run.hold_s,
            held_bytes=held_bytes,
            at_s=self._clock(),
        )

    def _hold(self, held: _Held) -> None:
        run = held.run
        self.end(run.job_id, "a later run of its job was parked")
        self._held[run.job_id] = held
        asyncio.get_running_loop().add_reader(held.exit_fd, self._ended, held)
        _log.info("run_parked", job_id=run.job_id, epoch=run.epoch, held_bytes=run.held_bytes)

    # --- going on
    def go_on(self, job: Job) -> LocalRun:
        """
        Let the parked run of a job go on as its present run.

        Raises
        ------
        NodeExhausted
            If the node lacks something for the run now: it stays parked.
        """
        held = self._held[job.id]
        run = self._host.start_parked(job, held.run, held.process)
        del self._held[job.id]
        self._unwatch(held)
        os.close(held.exit_fd)
        held.agent.send(GoOn(epoch=job.epoch))
        self._spawn(self._let_run(held, run, self._host.outputs.rank_path(run.key, 0)))
        return run

    async def _let_run(self, held: _Held, run: LocalRun, output: Path) -> None:
        try:
            answer = await _ask(held.link, f"go {output}")
        except (OSError, TimeoutError) as error:
            answer = str(error) or type(error).__name__
        if answer == "going":
            self._host.note_going(run)
        else:
            run.ending, run.why = "preempted", f"its parked processes could not go on: {answer}"
        held.link.close()
        held.agent.close()

    # --- the end
    def end(self, job_id: str, why: str) -> None:
        """End the parked run of a job, if there is one: by the end of its connections, its processes leave."""
        held = self._held.pop(job_id, None)
        if held is not None:
            self._forget(held, why)
            held.link.close()

    def end_under_pressure(self) -> None:
        """End the longest parked run where the host is short of memory."""
        if self._held and (why := _pressure()):
            self.end(next(iter(self._held)), why)

    def close(self) -> None:
        """End all: their processes leave with the connections; what they leave behind is removed at the next start."""
        for held in self._held.values():
            self._unwatch(held)
            os.close(held.exit_fd)
            held.link.close()
        self._held.clear()

    def _ended(self, held: _Held) -> None:
        """Note that a parked process has ended by itself."""
        if self._held.get(held.run.job_id) is held:
            del self._held[held.run.job_id]
            self._forget(held, "its processes have ended")
            held.link.close()

    def _forget(self, held: _Held, why: str) -> None:
        run = held.run
        self._unwatch(held)
        held.agent.close()
        _log.info("parked_run_ended", job_id=run.job_id, epoch=run.epoch, reason=why)
        node_id = self._host.site.node_id
        self._report(RunUnparked(job_id=run.job_id, epoch=run.epoch, node_id=node_id, reason=why, at_s=self._clock()))
        self._leaving[held.exit_fd] = run.job_id
        self._spawn(self._clean(held))
        self._wake()

    async def _clean(self, held: _Held) -> None:
        """Remove what is left of a parked run, once its process has ended."""
        await _gone(held.exit_fd)
        del self._leaving[held.exit_fd]
        self._host.remove_parked(held.run, held.process)
        self._wake()

    @staticmethod
    def _unwatch(held: _Held) -> None:
        asyncio.get_running_loop().remove_reader(held.exit_fd)


async def _ask(link: socket.socket, line: str) -> str:
    """Return what a shim answers."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(ANSWER_S):
        await loop.sock_sendall(link, os.fsencode(f"{line}\n"))
        answer = b""
        while not answer.endswith(b"\n"):
            more = await loop.sock_recv(link, _ANSWER_BYTES)
            if not more:
                raise ConnectionResetError("its process has ended")
            answer += more
    return os.fsdecode(answer.rstrip(b"\n"))


async def _gone(exit_fd: int) -> None:
    """Wait until a process has ended; the descriptor is closed."""
    loop, gone = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(exit_fd, gone.set)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(exit_fd)
        os.close(exit_fd)


def _pressure() -> str:
    """Return that the host is short of memory, in figures; empty where it is not, or where nobody says."""
    sizes = {}
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                sizes[name] = int(value.split()[0]) * 1024
    if len(sizes) < 2 or sizes["MemAvailable"] >= sizes["MemTotal"] // PRESSURE:
        return ""
    return f"the host has {gibibytes(sizes['MemAvailable'])} of memory left"
