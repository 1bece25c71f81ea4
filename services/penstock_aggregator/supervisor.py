"""
The processes of aggregators: start, orders, liveness, end.

Each is ``python -m penstock_aggregator.process`` at the other end of a socket pair, which it has as its standard input,
and ends with its agent. It has no part in Penstock's settings and logins.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

from penstock_aggregator.machine import AggregatorView, Ordered
from penstock_bus.child_processes import dies_with_parent, module_command
from penstock_bus.logger import get_logger
from penstock_log.aggregation_messages import (
    AggregatorPong,
    AggregatorReady,
    CopyFailed,
    FromAggregator,
    PartCopied,
    PingAggregator,
    RunMeasuredHere,
)

PING_S: Final = 1.0
HUNG_S: Final = 5.0
"""An aggregator that has not answered for so long is ended."""
START_S: Final = 30.0
"""So long it may take to start: other processes may want the processor."""
END_S: Final = 10.0
"""So long after SIGTERM it is killed."""
RECYCLE_S: Final = 5.0
"""So long one that is recycled may still be asked for results of parts that have moved away."""
LONGEST_LINE: Final = 1 << 20
PROGRAM: Final = module_command("penstock_aggregator.process")
_KEPT_LINES: Final = 5
_ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
Why = Literal["recycled", "killed", "hung", "failed"]
Said = RunMeasuredHere | PartCopied | CopyFailed
_decoder: Final[msgspec.json.Decoder[FromAggregator]] = msgspec.json.Decoder(FromAggregator)
_encoder: Final = msgspec.json.Encoder()
_log = get_logger("penstock.aggregator")


class AggregatorPlace(NamedTuple):
    """Where an aggregator listens: on a host and a port, 0 for any, and on a Unix socket."""

    host: str
    port: int
    socket: Path


class AggregatorGone(Exception):
    """The aggregator's process has ended, or is about to."""


class AggregatorProcess:
    """
    One aggregator's process.

    Parameters
    ----------
    allocation : int
        The sequence of the commit by which it is to run.
    program : sequence of str
        What it is a process of.
    on_said : callable
        Called with what it measures, and what becomes of copies.

    Attributes
    ----------
    view : AggregatorView
        What it was ordered so far.
    port : int
        Where it listens; 0 before it does.
    pong : AggregatorPong
        Its last answer.
    """

    def __init__(
        self,
        name: str,
        allocation: int,
        place: AggregatorPlace,
        *,
        program: Sequence[str],
        on_said: Callable[[AggregatorProcess, Said], None],
    ) -> None:
        self.name, self.allocation, self.place = name, allocation, place
        self.view = AggregatorView(name=name)
        self.port = 0
        self.pong = AggregatorPong(number=0)
        self._program, self._on_said = program, on_said
        self._writer: asyncio.StreamWriter | None = None
        self._why: Why | None = None
        self._pings = self._looks = 0
        self._answers: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._end_wanted = asyncio.Event()
        self._last_lines: deque[str] = deque(maxlen=_KEPT_LINES)

    @property
    def is_ready(self) -> bool:
        """Whether it listens, and is not to end."""
        return bool(self.port) and not self._end_wanted.is_set()

    @property
    def last_lines(self) -> str:
        """What it wrote last."""
        return " | ".join(self._last_lines)

    async def run(self, on_ready: Callable[[], None]) -> Why:
        """Run it until its process is gone, however that comes about; return how. Cancelled: kill it."""
        ours, theirs = socket.socketpair()
        with theirs:
            reader, self._writer = await asyncio.open_unix_connection(sock=ours, limit=LONGEST_LINE)
            try:
                process = await self._begin(theirs)
                theirs.close()  # or its end would not be seen here
                await self._until_ended(process, reader, on_ready)
            except OSError as error:
                self._last_lines.append(str(error))
                return "failed"
            finally:
                self._writer.close()
                self.place.socket.unlink(missing_ok=True)
        return self._why or ("killed" if (process.returncode or 0) < 0 else "failed")

    async def _begin(self, orders: socket.socket) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self._program,
            *arguments_of(self.place),
            stdin=orders.fileno(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=environment_of(os.environ),
            preexec_fn=dies_with_parent(signal.SIGKILL),
            start_new_session=True,
        )

    async def _until_ended(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, on_ready: Callable[[], None]
    ) -> None:
        beside = [
            asyncio.create_task(task)
            for task in (self._keep_lines(process), self._read(reader, on_ready), self._watch(), self._end(process))
        ]
        try:
            await process.wait()
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            self._end_wanted.set()
            self._forget_answers()
            await process.wait()
            await asyncio.wait(beside[:1], timeout=PING_S)  # its last words
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    def end(self, why: Why) -> None:
        """Have it end: in good order where it is recycled, at once otherwise."""
        self._why = self._why or why
        self._end_wanted.set()
        self._forget_answers()

    def order(self, order: Ordered | PingAggregator) -> None:
        """Tell it something, behind all that it was told before."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(_encoder.encode(order) + b"\n")

    async def settled(self) -> None:
        """
        Wait until it has taken in all orders up to now.

        Raises
        ------
        AggregatorGone
            If it ends before.
        """
        if not self.is_ready:
            raise AggregatorGone(f"aggregator {self.name} has ended")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answers.append((self._ping(), done))
        await done

    def _ping(self) -> int:
        self._pings += 1
        self.order(PingAggregator(number=self._pings))
        return self._pings

    async def _read(self, reader: asyncio.StreamReader, on_ready: Callable[[], None]) -> None:
        while line := await self._line(reader):
            try:
                message = _decoder.decode(line)
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                self._last_lines.append(f"it said what is no message: {error}")
                break
            match message:
                case AggregatorReady():
                    self.port, self._looks = message.port, 0
                    on_ready()
                case AggregatorPong():
                    self.pong, self._looks = message, 0
                    self._note_answer(message.number)
                case RunMeasuredHere() | PartCopied() | CopyFailed():
                    self._on_said(self, message)
        self._end_wanted.set()  # it hung up, or speaks nonsense

    async def _line(self, reader: asyncio.StreamReader) -> bytes:
        try:
            return await reader.readline()
        except (OSError, ValueError) as error:  # a line that is too long
            self._last_lines.append(str(error))
            return b""

    def _note_answer(self, number: int) -> None:
        while self._answers and self._answers[0][0] <= number:
            done = self._answers.popleft()[1]
            if not done.done():
                done.set_result(None)

    def _forget_answers(self) -> None:
        while self._answers:
            done = self._answers.popleft()[1]
            if not done.done():
                done.set_exception(AggregatorGone(f"aggregator {self.name} has ended"))

    async def _watch(self) -> None:
        """End it where it is silent, by looks and not by the clock: this process may have been stopped itself."""
        while True:
            await asyncio.sleep(PING_S)
            self._looks += 1
            if self._looks * PING_S > (HUNG_S if self.port else START_S):
                self.end("hung")
            elif self.port:
                self._ping()

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        await self._end_wanted.wait()
        with suppress(ProcessLookupError):
            if self._why == "recycled":
                if self.view.opened:
                    await asyncio.sleep(RECYCLE_S)
                process.terminate()
                await asyncio.sleep(END_S)
            elif self._why is None:  # its own end says more than a signal from here
                await asyncio.sleep(PING_S)
                self._why = "failed"
            process.kill()

    async def _keep_lines(self, process: asyncio.subprocess.Process) -> None:
        """Keep what it writes, for the log."""
        if process.stdout is None:
            return
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:  # a line that is too long is passed over
                continue
            if not line:
                return
            text = line.decode(errors="replace").rstrip()
            self._last_lines.append(text)
            _log.info("aggregator_says", aggregator=self.name, line=text)


def arguments_of(place: AggregatorPlace) -> list[str]:
    """Return the arguments of an aggregator's program; its standard input is the socket to its agent."""
    return ["--orders", "0", "--host", place.host, "--port", str(place.port), "--socket", str(place.socket)]


def environment_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an aggregator's environment: nothing of Penstock's, and one thread for numerics."""
    return {name: value for name, value in environ.items() if not name.startswith("PENSTOCK_")} | _ONE_THREAD
