"""Telemetry of runs: heartbeats, progress, output, series of metrics, stop answers of gangs. Part of the runner."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from penstock_bus import BusError, Unavailable
from penstock_bus.clock import ticks
from penstock_bus.follower import until_available
from penstock_bus.port import StorageFull
from penstock_bus.shell import Shell
from penstock_executor.fence import BEATS
from penstock_executor.output_store import PIECE_BYTES, OutputPiece, OutputTail
from penstock_executor.process_host import Place, ProcessHost
from penstock_executor.run_state import Key, LocalRun
from penstock_executor.settings import ExecutorSettings
from penstock_log import subjects
from penstock_log.records import compose
from penstock_log.request_bodies import STREAMS, NodeHeartbeat, OutputChannel, OutputGrown, RunProgress

OUTPUT_S: Final = 0.05
TURN_PIECES: Final = 16
"""So many pieces of one file are published before the next file has its turn."""
GROWN_S: Final = 0.5
FULL_S: Final = 1.0
"""How often it is looked whether the disk has refused output."""
PROGRESS_S: Final = 0.5
SERIES_S: Final = 0.5
"""How often it is looked which runs' series are due."""
HURRY_S: Final = 0.1
HURRIED: Final = 30
"""So many heartbeats come fast after the node has joined, until one is answered: no run begins before."""


class StopBarrierMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message between the nodes of a gang about where to stop."""

    job_id: str
    epoch: int
    answers: dict[int, int]
    stop_step: int | None = None


@dataclass
class _Output:
    """A process's output files, the lock of their reader, and what was last published of them."""

    tails: list[OutputTail]
    lock: asyncio.Lock
    grown_s: float = 0.0
    full_s: float = 0.0


class _LogFull(BusError):
    """The log is full; the rest of the output stays on this node."""


class RunTelemetry:
    """The telemetry of one node's runs."""

    def __init__(
        self,
        shell: Shell,
        settings: ExecutorSettings,
        host: ProcessHost,
        incarnation: Callable[[], str],
        giving_up: asyncio.Event,
    ) -> None:
        self._shell, self._settings, self._host, self._incarnation = shell, settings, host, incarnation
        self._giving_up = giving_up
        self._outputs: dict[Place, _Output] = {}
        self._published_s: dict[Key, float] = {}
        self._writing_series: dict[Key, asyncio.Lock] = {}
        self._answered = ""
        self._sent = ("", 0)

    # --- output and progress
    async def publish_output(self) -> None:
        """Publish output and progress as they come, for ever."""
        while True:
            more = False
            for place, output in list(self._outputs.items()):
                async with output.lock:
                    for tail in output.tails if place in self._outputs else ():
                        more = await self._publish_some(place, tail) or more
                    await self._publish_growth(place, output)
            await self._publish_progress()
            await asyncio.sleep(0 if more else OUTPUT_S)

    async def finish_output(self, place: Place) -> None:
        """
        Publish the rest of an ended process's output, and its last progress.

        If the log is full, this node keeps the rest.
        """
        self.begin_output(place)
        output = self._outputs[place]
        async with output.lock:
            try:
                for tail in output.tails:
                    while (piece := tail.look(final=True)) is not None:
                        await until_available(
                            partial(self._write_in_time, place, piece), "write_output", self._giving_up
                        )
                        tail.done(piece)
                end = self._host.outputs.end(*place, len(self._host.runs[place[0]].ranks))
                write = partial(self._shell.bus.write_output, place[0][0], place[1], b"", end)
                await until_available(write, "write_output", self._giving_up)
            except _LogFull as error:
                self._shell.log.warning("output_not_streamed", job_id=place[0][0], rank=place[1], reason=str(error))
            for tail in output.tails:
                tail.close()
            self._warn_of_loss(place, ended=True)
            del self._outputs[place]
        self._published_s.pop(place[0], None)
        await self._publish_progress()
        if place[1] == 0 and self._host.series.has_run(place[0]):
            await self._finish_series(place[0])

    def begin_output(self, place: Place) -> None:
        """Publish the output of a process from now on."""
        if place not in self._outputs:
            (key, rank), node_id = place, self._host.site.node_id
            files, marks = self._host.outputs.rank_path(key, rank), self._host.marks_dir(place)
            most_bytes = self._settings.output_stream_bytes
            piece_bytes = min(PIECE_BYTES, self._shell.bus.max_body_bytes // 2)
            channels = [OutputChannel(key[1], node_id, rank, name) for name in STREAMS]
            tails = [
                OutputTail(files / channel.stream, marks / f"{channel.stream}.read", channel, most_bytes, piece_bytes)
                for channel in channels
            ]
            self._outputs[place] = _Output(tails, asyncio.Lock())

    async def _publish_some(self, place: Place, tail: OutputTail) -> bool:
        """Publish a few pieces; return whether there may be more. What the bus does not take now, waits in its file."""
        for _ in range(TURN_PIECES):
            if (piece := tail.look()) is None:
                return False
            try:
                await self._write(place, piece)
            except Unavailable as error:
                self._shell.log.debug("output_waits", job_id=place[0][0], reason=str(error))
                return False
            tail.done(piece)
        return True

    async def _write_in_time(self, place: Place, piece: OutputPiece) -> None:
        try:
            await self._write(place, piece)
        except StorageFull as error:
            raise _LogFull(str(error)) from error

    async def _write(self, place: Place, piece: OutputPiece) -> None:
        await self._shell.bus.write_output(place[0][0], place[1], piece.data, piece.place)

    async def _publish_growth(self, place: Place, output: _Output) -> None:
        """Publish the lengths of channels that are not streamed, and warn of a full disk."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= output.grown_s + GROWN_S:
            output.grown_s = now_s
            for tail in output.tails:
                if tail.grows_unseen:
                    grown = OutputGrown(channel=tail.channel, size=tail.size)
                    await self.publish(subjects.output_grown(place[0][0]), grown)
        if now_s >= output.full_s + FULL_S:
            output.full_s = now_s
            self._warn_of_loss(place)

    def _warn_of_loss(self, place: Place, *, ended: bool = False) -> None:
        """Warn in the log, once each, that output is held in memory, was lost, or exceeds what is kept."""
        run = self._host.runs.get(place[0])
        for name, fate in zip(STREAMS, self._host.launcher.fates(self._host.rank_dir(place)), strict=True):
            what = f"rank {place[1]}'s {name}"
            if fate.refused and run is not None:
                why = os.strerror(fate.refused)
                if ended and fate.lost_bytes:
                    self._warn_once(run, f"lost {what}", f"{fate.lost_bytes} bytes of {what} are lost: {why}")
                else:
                    warning = f"the disk did not take {what}: {why}; it is held in memory until there is room"
                    self._warn_once(run, f"held {what}", warning)
            if fate.over_bytes and run is not None:
                most_bytes = self._settings.output_bytes
                warning = (
                    f"{what} has more than {most_bytes} bytes; the excess is dropped (executor setting output_bytes)"
                )
                self._warn_once(run, f"over {what}", warning)

    def _warn_once(self, run: LocalRun, what: str, warning: str) -> None:
        if what not in run.reported:
            run.reported.add(what)
            self._host.warn(run.key, warning)

    async def _publish_progress(self) -> None:
        now_s = self._shell.now_s()
        for key in [key for key in self._host.unpublished if now_s - self._published_s.get(key, 0.0) >= PROGRESS_S]:
            run = self._host.runs[key]
            progress = compose(RunProgress, run, run.ranks[0].report)
            self._host.unpublished.discard(key)
            self._published_s[key] = now_s
            await self.publish(subjects.progress(key[0]), progress)
        for key in self._published_s.keys() - self._host.runs.keys():
            del self._published_s[key]

    # --- series
    async def publish_series(self) -> None:
        """Publish the metrics of runs as series, each at its own growing intervals, for ever; at the end save them."""
        series = self._host.series
        try:
            while True:
                for key in series.due(self._shell.now_s()):
                    try:
                        await self._write_series(key)
                    except BusError as error:
                        series.take_back(key)
                        self._shell.log.debug("series_waits", job_id=key[0], reason=str(error))
                for key in self._writing_series.keys() - self._host.runs.keys():
                    del self._writing_series[key]
                await asyncio.sleep(SERIES_S)
        finally:
            series.save_all()

    async def _finish_series(self, key: Key) -> None:
        """Publish the metrics of a run whose first process has ended, if it has reported any since the last time."""
        try:
            await until_available(partial(self._write_series_again, key), "write_series", self._giving_up)
        except Unavailable:
            raise
        except (_LogFull, BusError) as error:
            self._shell.log.warning("series_not_kept", job_id=key[0], epoch=key[1], reason=str(error))
            self._host.warn(key, f"its metrics are not kept as series up to its end: {error}")

    async def _write_series_again(self, key: Key) -> None:
        try:
            await self._write_series(key)
        except StorageFull as error:
            raise _LogFull(str(error)) from error
        except Unavailable:
            self._host.series.take_back(key)
            raise

    async def _write_series(self, key: Key) -> None:
        """Write a run's series, if it has changed; one after another, so that the last one written is the newest."""
        async with self._writing_series.setdefault(key, asyncio.Lock()):
            body = self._host.series.give_out(key, self._shell.bus.max_body_bytes, self._shell.now_s())
            if body is not None:
                await self._shell.bus.write_series(*key, body)

    # --- heartbeats
    async def publish_heartbeats(self) -> None:
        """Publish heartbeats for ever; repeat what a gang's other nodes may have missed."""
        node_id = self._host.site.node_id
        while True:
            beat = NodeHeartbeat(
                node_id=node_id, incarnation=self._incarnation(), at_s=self._shell.now_s(), ticks_s=ticks()
            )
            await self.publish(subjects.heartbeat(node_id), beat)
            for run in [run for run in self._host.runs.values() if run.asked_s and run.alive]:
                await self.publish_answers(run)
            await asyncio.sleep(self._pause_s(beat.incarnation))

    def answered(self, incarnation: str) -> None:
        """Note that the matcher has answered a heartbeat of this incarnation."""
        self._answered = incarnation

    def _pause_s(self, incarnation: str) -> float:
        """Return the time to the next heartbeat: less where runs are soon stopped, or where none was answered yet."""
        if incarnation != self._sent[0]:
            self._sent = (incarnation, 0)
        self._sent = (incarnation, self._sent[1] + 1)
        hurries = incarnation != self._answered and self._sent[1] < HURRIED
        return min(self._settings.heartbeat_s, HURRY_S if hurries else self._host.least_hold_s() / BEATS)

    # --- gangs over several nodes
    async def publish_answers(self, run: LocalRun) -> None:
        """Publish our processes' answers to the gang's other nodes; each heartbeat repeats it until all have left."""
        if len(run.ranks) < run.world_size:
            answers = {rank: step for rank, step in run.answers.items() if rank in run.ranks}
            message = StopBarrierMessage(job_id=run.job_id, epoch=run.epoch, answers=answers, stop_step=run.stop_step)
            await self.publish(subjects.agreement(run.job_id), message)

    async def follow_peers(self) -> None:
        """Handle the answers of gangs' other nodes, for ever."""
        async for _, body in self._shell.bus.subscribe(subjects.AGREEMENTS):
            with contextlib.suppress(msgspec.MsgspecError, ValueError, RecursionError):
                await self._handle_answers(msgspec.json.decode(body, type=StopBarrierMessage))

    async def _handle_answers(self, message: StopBarrierMessage) -> None:
        run = self._host.runs.get((message.job_id, message.epoch))
        if run is None or not run.alive:
            return
        if not run.asked_s and run.greeted:
            self._host.ask(run.key, "preempted")
        theirs = {rank: step for rank, step in message.answers.items() if rank not in run.ranks}
        unknown = theirs.keys() - run.answers.keys()
        run.answers.update(theirs)
        self._host.settle(run, message.stop_step)
        if unknown:
            await self.publish_answers(run)

    async def publish(self, subject: str, body: object) -> None:
        """Publish a message without waiting; it may be lost."""
        try:
            await self._shell.bus.publish(subject, msgspec.json.encode(body))
        except BusError as error:
            self._shell.log.debug("telemetry_lost", subject=subject, error=str(error))
