"""What is told while runs last: heartbeats, progress, output, and the answers of gangs. Part of the runner."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from penstock_bus import BusError
from penstock_bus.context import Shell
from penstock_bus.retry import until_available
from penstock_events import subjects
from penstock_executor.host import Host, Place
from penstock_executor.local import Key, Run
from penstock_executor.output import Limit, Tail
from penstock_executor.settings import ExecutorSettings

OUTPUT_S: Final = 0.05
PROGRESS_S: Final = 0.5
TOLD: Final = ("step", "metrics", "loop_s", "loop_steps", "batch_size", "samples", "iteration_s", "error_s")
"""What is told of a run's progress, as its first process has said it."""
PIECE_BYTES: Final = 64 * 1024


class Word(msgspec.Struct, frozen=True, kw_only=True):
    """What the nodes of a gang tell each other about a stop."""

    job_id: str
    epoch: int
    answers: dict[int, int]
    stop_step: int | None = None


@dataclass
class _Output:
    """A process's output files, and who may read them now."""

    tails: list[Tail]
    lock: asyncio.Lock


class Teller:
    """Speaks for the runs of one node."""

    def __init__(
        self,
        shell: Shell,
        settings: ExecutorSettings,
        host: Host,
        incarnation: Callable[[], str],
        giving_up: asyncio.Event,
    ) -> None:
        self._shell, self._settings, self._host, self._incarnation = shell, settings, host, incarnation
        self._giving_up = giving_up
        self._outputs: dict[Place, _Output] = {}
        self._told_s: dict[Key, float] = {}

    # --- output and progress
    async def publish(self) -> None:
        """Publish output and progress as they come, for ever."""
        while True:
            for place, output in list(self._outputs.items()):
                async with output.lock:
                    for tail in output.tails if place in self._outputs else ():
                        await self._publish(place, tail)
            await self._tell_progress()
            await asyncio.sleep(OUTPUT_S)

    async def finish(self, place: Place) -> None:
        """Publish the rest of an ended process's output, and its last progress."""
        self.begin(place)
        output = self._outputs[place]
        async with output.lock:
            for tail in output.tails:
                await self._publish(place, tail, final=True)
                tail.close()
            del self._outputs[place]
        self._told_s.pop(place[0], None)
        await self._tell_progress()

    def begin(self, place: Place) -> None:
        """Publish the output of a process from now on."""
        if place not in self._outputs:
            limit = Limit(self._settings.log_rate_bytes_per_s, self._settings.log_burst_bytes)
            where = self._host.rank_dir(place)
            self._outputs[place] = _Output([Tail(where / name, limit) for name in ("stdout", "stderr")], asyncio.Lock())

    async def _publish(self, place: Place, tail: Tail, final: bool = False) -> None:
        (job_id, _), rank = place
        while (piece := tail.look(self._shell.now_s(), final)) is not None:
            for at in range(0, len(piece.data), PIECE_BYTES):
                write = partial(self._shell.bus.write_log, job_id, rank, piece.data[at : at + PIECE_BYTES])
                await until_available(write, "write_log", self._giving_up)
            tail.done(piece)
        run = self._host.runs.get(place[0])
        if tail.dropped_bytes and run is not None and "dropped" not in run.told:
            run.told.add("dropped")
            rate = self._settings.log_rate_bytes_per_s
            self._host.warn(run.key, f"rank {rank} prints more than {rate} bytes/s; the excess is dropped")

    async def _tell_progress(self) -> None:
        now_s = self._shell.now_s()
        for key in [key for key in self._host.fresh if now_s - self._told_s.get(key, 0.0) >= PROGRESS_S]:
            rank = self._host.runs[key].ranks[0]
            body = {name: getattr(rank, name) for name in TOLD} | {"job_id": key[0]}
            self._host.fresh.discard(key)
            self._told_s[key] = now_s
            await self.tell(subjects.progress(key[0]), body)
        for key in self._told_s.keys() - self._host.runs.keys():
            del self._told_s[key]

    # --- heartbeats
    async def beat(self) -> None:
        """Say that this node is alive, for ever; repeat what a gang's other nodes may have missed."""
        node_id = self._host.site.node_id
        while True:
            body = {"node_id": node_id, "incarnation": self._incarnation(), "at_s": self._shell.now_s()}
            await self.tell(subjects.heartbeat(node_id), body)
            for run in [run for run in self._host.runs.values() if run.asked_s and run.alive]:
                await self.tell_peers(run)
            await asyncio.sleep(self._settings.heartbeat_s)

    # --- gangs over several nodes
    async def tell_peers(self, run: Run) -> None:
        """Tell the gang's other nodes what our processes answered; repeated with each heartbeat until all have left."""
        if len(run.ranks) < run.world_size:
            answers = {rank: step for rank, step in run.answers.items() if rank in run.ranks}
            word = Word(job_id=run.job_id, epoch=run.epoch, answers=answers, stop_step=run.stop_step)
            await self.tell(subjects.agreement(run.job_id), word)

    async def hear_peers(self) -> None:
        """Take in what a gang's other nodes say, for ever."""
        async for _, body in self._shell.bus.listen(subjects.AGREEMENTS):
            with contextlib.suppress(msgspec.MsgspecError):
                await self._hear_peer(msgspec.json.decode(body, type=Word))

    async def _hear_peer(self, word: Word) -> None:
        run = self._host.runs.get((word.job_id, word.epoch))
        if run is None or not run.alive:
            return
        if not run.asked_s and run.greeted:
            self._host.ask(run.key, "preempted")
        theirs = {rank: step for rank, step in word.answers.items() if rank not in run.ranks}
        news = theirs.keys() - run.answers.keys()
        run.answers.update(theirs)
        self._host.settle(run, word.stop_step)
        if news:
            await self.tell_peers(run)

    async def tell(self, subject: str, body: object) -> None:
        """Tell whoever listens; nobody waits for it, and it may be lost."""
        try:
            await self._shell.bus.tell(subject, msgspec.json.encode(body))
        except BusError as error:
            self._shell.log.debug("telemetry_lost", subject=subject, error=str(error))
