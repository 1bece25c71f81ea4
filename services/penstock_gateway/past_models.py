"""
Read models of the past, from index snapshots.

:class:`PastModels` has a file of snapshots (:mod:`penstock_gateway.snapshot_file`) that it writes as the log goes on,
one for each :data:`EVERY` commits, with a fold of its own (:mod:`penstock_gateway.past_fold`): the fold that answers
questions about the present is never stopped for it. After a start on an old log it makes what is missing, at a low
priority, and at full speed while somebody asks for it. A question about a moment begins at the last snapshot before it.

What the file says follows from the log alone. It is made again if it cannot be read, if it is of another log or of
another layout, or if archived jobs were removed from the log behind it: then a fold from the beginning of the log has
never known them. Gateways may share a folder: whoever comes second goes on from the other's snapshot.
"""

from __future__ import annotations

import asyncio
import gc
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Final, TypeVar, TypeVarTuple

import structlog

from penstock_bus import BusError, Delivery, LogReader
from penstock_bus.decider import RULES
from penstock_bus.follower import FoldFollower, collector_paused
from penstock_gateway import log_reader
from penstock_gateway.answers import ReadModel
from penstock_gateway.endpoints import UNAVAILABLE, RequestRefused
from penstock_gateway.log_reader import LogMoment
from penstock_gateway.machine import SCHEMA, GatewayState
from penstock_gateway.past_fold import PastFold, example
from penstock_gateway.snapshot_file import IndexDamaged, SnapshotFile, make_next, open_newest
from penstock_log import ARCHIVE, LogTrimmed, subjects

EVERY: Final = 1_000
"""Commits between two snapshots."""
REMEMBERED: Final = 4
"""Moments whose models are kept: a page asks several questions about one."""
_MANY: Final = 2_000
"""Entries of a model beyond which the cycle collector is kept from it; when it is dropped, it goes all the same."""
_AGAIN_S: Final = 60.0
"""Pause before the next try to write where nothing can be written, in seconds."""
_RESTS: Final = 3.0
"""Nobody waiting, the index is made during one part of the time, and so many parts are left to others."""
_FORM: Final = f"{SCHEMA} {RULES}"
_log = structlog.get_logger("penstock.gateway")
Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


class _LogTrimmedBehind(Exception):
    """The log behind the snapshots was trimmed."""


class PastModels:
    """
    The models of past moments, and the file of snapshots that they begin with.

    Parameters
    ----------
    bus, live
        The log, and the read model that follows it.
    folder : str
        Where the file is; empty: in a temporary folder, from the first question about the past until :meth:`run` ends.
    ticks : callable
        Seconds of a clock that never jumps.
    patience_s : float
        How long a question waits for the index to be made, in seconds.
    every : int, optional
        Commits between two snapshots.
    """

    def __init__(
        self,
        bus: LogReader,
        live: FoldFollower[GatewayState],
        folder: str,
        *,
        ticks: Callable[[], float],
        patience_s: float,
        every: int | None = None,
    ) -> None:
        self._bus, self._live, self._ticks, self._every = bus, live, ticks, every or EVERY
        self._patience_s = patience_s
        self._folder = Path(folder).expanduser() if folder else None
        self._temporary: Path | None = None
        self._asked, self._advanced = asyncio.Event(), asyncio.Event()
        self._turn = asyncio.Lock()
        self._file: SnapshotFile | None = None
        self._work: asyncio.Task[None] | None = None
        # One thread writes, so that what was cancelled in the midst of a write has ended before the next begins.
        self._writer = ThreadPoolExecutor(1, "penstock-past")
        self._indexed_seq = self._wanted_seq = 0
        self._problem = ""
        self._recent: OrderedDict[int, PastFold] = OrderedDict()

    async def run(self) -> None:
        """Write snapshots as the log goes on, for ever."""
        if self._folder is None:
            await self._asked.wait()
        try:
            while True:
                self._work = asyncio.create_task(self._index())
                await asyncio.wait({self._work})
                if not self._work.cancelled():
                    await self._work  # which only ends by an error that is nobody's fault but the program's
        finally:
            if self._work is not None:
                self._work.cancel()
                with suppress(asyncio.CancelledError):
                    await self._work
            await asyncio.to_thread(self._writer.shutdown)
            if self._file is not None:
                await asyncio.to_thread(self._file.close)
            if self._temporary is not None:
                await asyncio.to_thread(shutil.rmtree, self._temporary, ignore_errors=True)

    async def model_at(self, moment: LogMoment, *, own: bool = False) -> ReadModel:
        """
        Return the read model as of a moment.

        Parameters
        ----------
        own : bool
            Whether nobody else has this read model, so that a thread may read it: a past one reads its tables as it
            is used.

        Raises
        ------
        RequestRefused
            400 if the log has not come that far.
        IndexDamaged
            If the file cannot be read, as each use of the model may. Then call :meth:`drop`, and ask again.
        """
        self._asked.set()
        if moment.seq is not None:
            until_seq = await log_reader.end_of(self._bus, moment)
        else:
            until_seq = await self._seq_at(moment.time_s or 0.0)
        await self._reach(until_seq)
        async with self._turn:  # one at a time: each has a read model of its own
            if self._file is None:
                return await log_reader.model_at(self._bus, self._live.fold.decider, until_seq, moment.time_s)
            fold = await self._fold_at(self._file, until_seq, own=own)
        now_s = moment.time_s if moment.time_s is not None else fold.stored_s
        return ReadModel(state=fold.state, now_s=now_s, seq=fold.fold.last_seq)

    async def drop(self, error: IndexDamaged) -> None:
        """Drop the file that cannot be read, and begin a new one; what another question has dropped is gone already."""
        if self._file is None or self._file.path != error.path:
            return
        _log.warning("index_snapshots_damaged", error=str(error), advice="they are made again from the log")
        file, self._file = self._file, None
        self._recent.clear()
        self._indexed_seq = 0
        with suppress(IndexDamaged, OSError):  # which is found again, and said, when it is opened
            await self._write(make_next, file, _FORM, example, await self._trimmed_seq())
        if self._work is not None:
            self._work.cancel()

    async def _fold_at(self, file: SnapshotFile, until_seq: int, *, own: bool) -> PastFold:
        """Return a fold of the log up to a sequence."""
        for seq in [seq for seq, fold in self._recent.items() if fold.is_large]:
            del self._recent[seq]
        if not own and (known := self._recent.get(until_seq)) is not None:
            self._recent.move_to_end(until_seq)
            return known
        with collector_paused():
            snapshot = file.nearest(until_seq)
            fold = await asyncio.to_thread(PastFold, file, self._live.fold.decider, snapshot)
            async for delivery in log_reader.stretch(self._bus, fold.base_seq, until_seq):
                fold.apply(delivery)
            if fold.loaded > _MANY:  # or collections would go through all of it, in which there are no cycles
                gc.freeze()
        if file is self._file and not own:
            self._recent[until_seq] = fold
            while len(self._recent) > REMEMBERED:
                self._recent.popitem(last=False)
        return fold

    async def _seq_at(self, time_s: float) -> int:
        """Return the sequence of the last commit that was stored by a time."""
        if self._file is None:
            return await log_reader.seq_at(self._bus, time_s)
        before = self._file.nearest_by_time(time_s)
        known = before.seq if before is not None else 0
        after = self._file.after(known)
        if after is None:
            return await log_reader.seq_at(self._bus, time_s, known)
        async with aclosing(log_reader.stretch(self._bus, known, after.seq)) as deliveries:
            async for delivery in deliveries:
                if delivery.stored_s > time_s:
                    break
                known = delivery.seq
        return known

    async def _reach(self, seq: int) -> None:
        """
        Have the index made up to a sequence, if it is far from there, and wait for it.

        Raises
        ------
        RequestRefused
            503 if it takes too long.
        """
        try:
            async with asyncio.timeout(self._patience_s):
                while not self._problem and seq - self._indexed_seq > 2 * self._every:
                    self._wanted_seq = max(self._wanted_seq, seq)
                    self._advanced.clear()
                    await self._advanced.wait()
        except TimeoutError as error:
            there = f"it has come to {self._indexed_seq} of {self._live.last_seq}"
            raise RequestRefused(
                UNAVAILABLE, f"the past is being indexed up to commit {seq}, and {there}; ask again in a moment"
            ) from error

    def _note_progress(self) -> None:
        self._advanced.set()

    async def _index(self) -> None:
        """Make the index, and go on with it; end with no error that the log or the disk is to blame for."""
        while True:
            try:
                await self._write_on(await self._opened())
            except _LogTrimmedBehind:
                _log.info("index_snapshots_begun_anew", reason="archived jobs were removed from the log")
                self._recent.clear()
            except (IndexDamaged, BusError, OSError) as error:
                is_new = self._indexed_seq == 0
                self._give_up(str(error))
                if is_new:
                    await asyncio.sleep(_AGAIN_S)

    def _give_up(self, error: str) -> None:
        advice = "until they are, questions about the past read the log from its beginning"
        _log.warning("index_snapshots_not_written", error=error, advice=advice)
        self._problem, self._file, self._indexed_seq = error, None, 0
        self._recent.clear()
        self._note_progress()

    async def _opened(self) -> SnapshotFile:
        """Return the file of this log."""
        folder = self._folder or self._temporary
        if folder is None:
            folder = self._temporary = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="penstock-past-"))
        trimmed_seq = await self._trimmed_seq()
        file = await self._write(open_newest, folder, _FORM, example, trimmed_seq, _note_damage)
        last = file.nearest(None)
        if last is not None and not await self._is_of_this_log(last.seq, last.commit_id):
            _log.info("index_snapshots_of_another_log_dropped", file=str(file.path))
            file = await self._write(make_next, file, _FORM, example, trimmed_seq)
        self._file, self._problem = file, ""
        self._recent.clear()
        return file

    async def _is_of_this_log(self, seq: int, commit_id: str) -> bool:
        if seq > await self._bus.last_seq():
            return False
        found = [one.commit.id async for one in log_reader.stretch(self._bus, seq - 1, seq)]
        return found == [commit_id]

    async def _trimmed_seq(self) -> int:
        """Return the sequence of the log's last fact about the archive; 0 where there is none."""
        last = await self._bus.last(subjects.archive(ARCHIVE))
        return last.seq if last is not None else 0

    async def _write_on(self, file: SnapshotFile) -> None:
        """Write snapshots until the file is no more."""
        with collector_paused():
            fold = await asyncio.to_thread(PastFold, file, self._live.fold.decider, file.nearest(None))
        began_seq, began = fold.base_seq, self._ticks()
        while True:
            self._indexed_seq = fold.base_seq
            self._note_progress()
            await self._live.reached(fold.base_seq + self._every)
            try:
                await self._fold_on(fold, file)
            except _LogTrimmedBehind:
                trimmed_seq = await self._trimmed_seq()
                self._file = await self._write(make_next, file, _FORM, example, trimmed_seq)
                self._indexed_seq = 0
                raise
            if not file.is_there():
                raise IndexDamaged(file.path, "it was removed")
            if not await self._write(fold.save):  # another gateway was faster
                fold = await asyncio.to_thread(PastFold, file, self._live.fold.decider, file.nearest(None))
            if fold.base_seq - began_seq > 100 * self._every and self._live.last_seq - fold.base_seq <= self._every:
                took_s, size = self._ticks() - began, file.size_bytes()
                _log.info("past_indexed", last_seq=fold.base_seq, took_s=round(took_s, 1), bytes=size)
                began_seq, began = fold.base_seq, self._ticks()

    async def _write(self, call: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._writer, call, *arguments)

    async def _fold_on(self, fold: PastFold, file: SnapshotFile) -> None:
        """Fold the commits up to the next snapshot, and rest after each few of them."""
        target, count, began = fold.base_seq + self._every, 0, self._ticks()
        while not count:
            async for delivery in log_reader.stretch(self._bus, fold.base_seq, min(target, self._live.last_seq)):
                if _trims(delivery) and delivery.seq > file.trimmed_seq:
                    raise _LogTrimmedBehind
                fold.apply(delivery)
                count += 1
                if count % log_reader.SLICE == 0 and self._wanted_seq <= fold.fold.last_seq:
                    await asyncio.sleep(_RESTS * (self._ticks() - began))
                    began = self._ticks()
            target += self._every
            if not count:  # all of it was removed from the log
                await self._live.reached(target)


def _trims(delivery: Delivery) -> bool:
    return any(isinstance(fact, LogTrimmed) for fact in delivery.commit.facts)


def _note_damage(error: IndexDamaged) -> None:
    _log.warning("index_snapshots_damaged", error=str(error), advice="they are made again from the log")
