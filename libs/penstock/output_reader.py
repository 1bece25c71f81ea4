"""
A job's output, read whole: from the stream ``LOG`` as far as that has it, and the rest from the nodes that keep it.

The stream gives order among a job's processes and outlives its nodes, but drops its oldest and has only the beginning
and the end of what is very long. Each piece has its place, so gaps are seen, and the nodes are asked for them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from typing import Any, Final, Protocol

import msgspec

from penstock_bus.compat import aclosing
from penstock_bus.port import BusError, Delivery, LogLine, NoResponders, Timeout
from penstock_log import RunStarted, subjects
from penstock_log.request_bodies import (
    MOST_BYTES,
    OutputAnswer,
    OutputChannel,
    OutputEnd,
    OutputGrown,
    OutputOffset,
    OutputRequest,
)

ASK_S: Final = 5.0
AGAIN_S: Final = 0.2
RESTART_S: Final = 3.0
"""How long a node whose executor does not listen is given, which may be just then started anew."""
_AHEAD: Final = 64
_answer: Final = msgspec.msgpack.Decoder(OutputAnswer)
_grown: Final = msgspec.json.Decoder(OutputGrown)


class OutputGap(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a channel that the stream does not have."""

    channel: OutputChannel
    begin: int
    end: int


class OutputSource(Protocol):
    """Where a job's output is: the stream, and the nodes, which the log and the telemetry name."""

    def read_output(
        self, job_id: str, follow: bool = False, tail: int | None = None, after_seq: int = 0
    ) -> AsyncGenerator[LogLine, None]:
        """Yield what the stream holds, as :class:`penstock_bus.port.OutputPort` does."""

    def subscribe(self, subject: str) -> AsyncIterator[tuple[str, bytes]]:
        """Yield telemetry."""

    async def request(self, subject: str, body: bytes, timeout_s: float = 5.0) -> bytes:
        """Ask a node."""

    async def read(self, subject: str, after_seq: int = 0, until_seq: int | None = None) -> list[Delivery]:
        """Return what the log has of a job's runs."""


class OutputReader:
    """
    One reader of a job's output: every byte is given out once, however often it is read on.

    Parameters
    ----------
    job_id : str
        In full.
    """

    def __init__(self, bus: OutputSource, job_id: str) -> None:
        self._bus, self._job_id = bus, job_id
        self._seq = 0
        self._next: dict[OutputChannel, int] = {}
        self._ends: dict[tuple[int, str], dict[int, OutputEnd]] = {}
        """Run and node → rank → the end of its output."""
        self._unplaced = False
        self._unreachable: dict[str, str] = {}

    async def stored(self) -> AsyncGenerator[LogLine, None]:
        """Yield what there is by now, then end."""
        async with aclosing(self._items()) as items:
            async for item in items:
                async with aclosing(self._pieces(item)) as pieces:
                    async for line in pieces:
                        yield line

    async def last(self, lines: int, rank: int | None = None) -> list[LogLine]:
        """
        Return pieces that hold the last lines of what there is by now; no more is fetched than they need.

        Parameters
        ----------
        rank : int, optional
            Only of this process.
        """
        items: deque[LogLine | OutputGap] = deque()
        ends = 0
        async for item in self._items():
            if rank is None or rank == _rank(item):
                items.append(item)
                ends += _line_ends(item)
            while items and ends - _line_ends(items[0]) > lines:
                ends -= _line_ends(items.popleft())
        found: deque[LogLine] = deque()
        ends = 0
        while items and ends <= lines:
            item = items.pop()
            if isinstance(item, OutputGap):
                begin = max(item.begin, item.end - MOST_BYTES)
                part = msgspec.structs.replace(item, begin=begin)
                pieces = [line async for line in self._fetch(part, whole=item)]
                if begin > item.begin and not pieces[0].missing:
                    items.append(msgspec.structs.replace(item, end=begin))
            else:
                pieces = [item]
            ends += sum(map(_line_ends, pieces))
            found.extendleft(reversed(pieces))
        return list(found)

    async def follow(self, end: asyncio.Future[Any]) -> AsyncGenerator[LogLine, None]:
        """Yield what there is and what comes until ``end`` is done, and then what is left."""
        async with aclosing(self.stored()) as lines:
            async for line in lines:
                yield line
        async with aclosing(self._events(end)) as events:
            async for event in events:
                for item in self._place(event) if isinstance(event, LogLine) else (event,):
                    async with aclosing(self._pieces(item)) as pieces:
                        async for line in pieces:
                            yield line
        end.result()
        self._unreachable.clear()
        async with aclosing(self.stored()) as lines:
            async for line in lines:
                yield line

    async def _events(self, end: asyncio.Future[Any]) -> AsyncGenerator[LogLine | OutputGrown, None]:
        """Yield pieces and telemetry as they come, until ``end`` is done."""
        events: asyncio.Queue[LogLine | OutputGrown | None] = asyncio.Queue(_AHEAD)

        async def pieces() -> None:
            async for line in self._bus.read_output(self._job_id, follow=True, after_seq=self._seq):
                await events.put(line)

        async def growth() -> None:
            async for _, body in self._bus.subscribe(subjects.output_grown(self._job_id)):
                with contextlib.suppress(
                    msgspec.MsgspecError, ValueError, RecursionError
                ):  # another version's: then it is read at the end
                    await events.put(_grown.decode(body))

        async def first_end() -> None:
            await asyncio.wait([end, *following], return_when=asyncio.FIRST_COMPLETED)
            await events.put(None)

        following = [asyncio.ensure_future(pieces()), asyncio.ensure_future(growth())]
        tasks = [*following, asyncio.ensure_future(first_end())]
        try:
            while (event := await events.get()) is not None:
                yield event
            for task in following:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # --- what there is, and what is missing
    async def _items(self) -> AsyncGenerator[LogLine | OutputGap, None]:
        async with aclosing(self._bus.read_output(self._job_id, after_seq=self._seq)) as lines:
            async for line in lines:
                for item in self._place(line):
                    yield item
        async with aclosing(self._rest()) as gaps:
            async for gap in gaps:
                yield gap

    async def _pieces(self, item: LogLine | OutputGap | OutputGrown) -> AsyncGenerator[LogLine, None]:
        if isinstance(item, LogLine):
            yield item
            return
        async with aclosing(self._fetch(item) if isinstance(item, OutputGap) else self._fetch_grown(item)) as lines:
            async for line in lines:
                yield line

    def _place(self, line: LogLine) -> Iterable[LogLine | OutputGap]:
        """Yield what of a piece is new, after the gap before it."""
        self._seq = max(self._seq, line.seq)
        place = line.place
        if place is None:
            self._unplaced = True
            yield line
        elif isinstance(place, OutputEnd):
            self._ends.setdefault((place.epoch, place.node_id), {})[place.rank] = place
            for channel, size in place.sizes.items():
                if size > self._next.get(channel, 0):
                    yield self._gap(channel, size)
        else:
            channel, offset = place.channel, place.offset
            known = self._next.get(channel, 0)
            if offset > known:
                yield self._gap(channel, offset)
                known = offset
            if offset + len(line.data) > known:
                self._next[channel] = offset + len(line.data)
                yield msgspec.structs.replace(line, data=line.data[known - offset :])

    def _gap(self, channel: OutputChannel, end: int) -> OutputGap:
        begin, self._next[channel] = self._next.get(channel, 0), end
        return OutputGap(channel=channel, begin=begin, end=end)

    async def _rest(self) -> AsyncGenerator[LogLine | OutputGap, None]:
        """Yield what nodes have of those runs whose output the stream may not have whole."""
        for epoch, node_id in await self._runs():
            ends = self._ends.get((epoch, node_id), {})
            if ends and len(ends) >= max(end.processes for end in ends.values()):
                continue
            try:
                answer = await self._ask(node_id, OutputRequest(job_id=self._job_id))
            except BusError as error:
                if not self._unplaced:
                    yield self._lost(
                        OutputChannel(epoch, node_id, 0, "stdout"), f"what more run {epoch} printed", str(error)
                    )
                continue
            sizes = [(channel, size) for channel, size in answer.sizes if channel.epoch == epoch]
            for channel, size in sizes:
                if size > self._next.get(channel, 0):
                    yield self._gap(channel, size)
            if not sizes and not self._unplaced:
                why = f"node {node_id} does not keep it any more"
                yield self._lost(OutputChannel(epoch, node_id, 0, "stdout"), f"what more run {epoch} printed", why)

    async def _runs(self) -> list[tuple[int, str]]:
        deliveries = await self._bus.read(subjects.run(self._job_id))
        facts = (fact for delivery in deliveries for fact in delivery.commit.facts)
        return sorted({(fact.epoch, fact.node_id) for fact in facts if isinstance(fact, RunStarted)})

    # --- asking nodes
    async def _fetch(self, gap: OutputGap, whole: OutputGap | None = None) -> AsyncGenerator[LogLine, None]:
        """Yield a part of a channel from the node that has it, or what is missing: all of the ``whole``, if any is."""
        at, channel = gap.begin, gap.channel
        while at < gap.end:
            try:
                data = await self._read(channel, at, min(MOST_BYTES, gap.end - at))
            except BusError as error:
                begin = whole.begin if whole is not None and at == gap.begin else at
                what = f"{gap.end - begin} bytes of {channel.stream} of rank {channel.rank} in run {channel.epoch}"
                yield self._lost(channel, what, str(error))
                return
            yield self._line(channel, at, data)
            at += len(data)

    async def _fetch_grown(self, event: OutputGrown) -> AsyncGenerator[LogLine, None]:
        """Yield what a channel has more than was given out, as far as it is to be had now."""
        channel, at = event.channel, self._next.get(event.channel, 0)
        while at < event.size:
            try:
                data = await self._read(channel, at, min(MOST_BYTES, event.size - at))
            except BusError:
                self._unreachable.clear()  # it may be back by the next telemetry, and at the end all is asked for again
                return
            self._next[channel] = at + len(data)
            yield self._line(channel, at, data)
            at += len(data)

    async def _read(self, channel: OutputChannel, offset: int, most_bytes: int) -> bytes:
        ask = OutputRequest(
            job_id=self._job_id,
            epoch=channel.epoch,
            rank=channel.rank,
            stream=channel.stream,
            offset=offset,
            most_bytes=most_bytes,
        )
        data = (await self._ask(channel.node_id, ask)).data
        if not data:
            raise BusError(f"node {channel.node_id} has no more than {offset} bytes of it")
        return data

    async def _ask(self, node_id: str, ask: OutputRequest) -> OutputAnswer:
        """Ask a node; one whose executor is restarting gets a moment, once."""
        if node_id in self._unreachable:
            raise BusError(self._unreachable[node_id])
        clock = asyncio.get_running_loop().time
        end_s, body = clock() + RESTART_S, msgspec.json.encode(ask)
        while True:
            try:
                return _answer.decode(await self._bus.request(subjects.output(node_id), body, ASK_S))
            except NoResponders as error:
                if clock() >= end_s:
                    self._unreachable[node_id] = (
                        f"no executor of node {node_id} answers; it may be down, or gone for good"
                    )
                    raise BusError(self._unreachable[node_id]) from error
            except Timeout as error:
                self._unreachable[node_id] = f"node {node_id} does not answer: {error}"
                raise BusError(self._unreachable[node_id]) from error
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                raise BusError(f"node {node_id} answers what this version cannot read: {error}") from error
            await asyncio.sleep(AGAIN_S)

    def _lost(self, channel: OutputChannel, what: str, why: str) -> LogLine:
        return self._line(channel, self._next.get(channel, 0), b"", f"missing here: {what}: {why}")

    def _line(self, channel: OutputChannel, offset: int, data: bytes, missing: str = "") -> LogLine:
        place = OutputOffset(channel, offset)
        return LogLine(
            seq=0, job_id=self._job_id, rank=channel.rank, stored_s=0.0, data=data, place=place, missing=missing
        )


def _rank(item: LogLine | OutputGap) -> int:
    return item.channel.rank if isinstance(item, OutputGap) else item.rank


def _line_ends(item: LogLine | OutputGap) -> int:
    return 0 if isinstance(item, OutputGap) else item.data.count(b"\n")
