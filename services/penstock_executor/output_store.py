"""
The output of jobs on this node: kept whole in files, streamed to the log at the log's pace, and handed out on request.

``<data>/output/<job>/<epoch>/<rank>/stdout`` and ``stderr`` are written by the process's shim and stay when the run is
over, until they are older than the operator wants or there are too many. They are readable by the executor's user only.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

import msgspec

from penstock_bus.port import Reply, Request
from penstock_executor import job_folders
from penstock_executor.run_state import Key
from penstock_log import subjects
from penstock_log.request_bodies import STREAMS, OutputAnswer, OutputChannel, OutputEnd, OutputOffset, OutputRequest

PIECE_BYTES: Final = 256 * 1024
LAST_BYTES: Final = 64 * 1024
"""Of a channel that is longer than what is streamed of it, the end is streamed too, once the process has ended."""
NOT_FOUND: Final = 404
BAD_REQUEST: Final = 400
_ask: Final = msgspec.json.Decoder(OutputRequest)


class OutputPiece(msgspec.Struct, frozen=True):
    """The next piece to publish; after it, reading goes on at ``end``."""

    data: bytes
    place: OutputOffset
    end: int


class OutputTail:
    """
    The reader of one output file while it is written.

    Parameters
    ----------
    path : Path
        Need not exist yet.
    mark : Path
        File that keeps how far the output was published, over restarts of the executor. An executor that is killed
        between publishing and noting it publishes the piece twice, which readers see by the piece's place.
    most_bytes : int
        Bytes of the file's beginning that are published; of what is more, only the end is published.
    piece_bytes : int
        The most bytes of one piece.

    Attributes
    ----------
    size : int
        Size of the file at the last look.
    """

    def __init__(
        self, path: Path, mark: Path, channel: OutputChannel, most_bytes: int, piece_bytes: int = PIECE_BYTES
    ) -> None:
        self.channel, self.size = channel, 0
        self._path, self._mark, self._most_bytes, self._piece_bytes = path, mark, most_bytes, piece_bytes
        self._fd = -1
        self._offset = _number(mark)

    @property
    def grows_unseen(self) -> bool:
        """Whether the file is longer than the part of its beginning that is published."""
        return self.size > self._most_bytes

    def look(self, final: bool = False) -> OutputPiece | None:
        """
        Return the next piece; None if there is nothing to publish now.

        ``final``: the process has ended, and what is left need not end with a line.
        """
        self.size = self._measure()
        if self._offset >= self._most_bytes and final:
            self._offset = max(self._offset, self.size - LAST_BYTES)
        end = self.size if final and self._offset >= self._most_bytes else min(self.size, self._most_bytes)
        unread = end - self._offset
        if unread <= 0:
            return None
        data = os.pread(self._fd, min(unread, self._piece_bytes), self._offset)
        if len(data) == unread and end == self.size and not final:
            data = _to_line_end(data)
        return OutputPiece(data, OutputOffset(self.channel, self._offset), self._offset + len(data))

    def done(self, piece: OutputPiece) -> None:
        """Note that a piece was published."""
        self._offset = piece.end
        with contextlib.suppress(OSError):  # a full disk: after a restart, some output is published twice
            mark = os.open(self._mark, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.pwrite(mark, b"%d" % self._offset, 0)  # never shorter than before: there is no moment without a mark
            finally:
                os.close(mark)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _measure(self) -> int:
        if self._fd < 0:
            try:
                self._fd = job_folders.open_plainly(self._path)
            except OSError:
                return 0
        return os.fstat(self._fd).st_size


class OutputStore:
    """The output files of one node."""

    def __init__(self, folder: Path, node_id: str) -> None:
        self.folder, self.node_id = folder, node_id

    def create(self, key: Key, rank: int) -> Path:
        """Make and return the folder for a process's output."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.rank_path(key, rank)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    def rank_path(self, key: Key, rank: int) -> Path:
        """Return the folder for a process's output."""
        return self.folder / key[0] / str(key[1]) / str(rank)

    def end(self, key: Key, rank: int, processes: int) -> OutputEnd:
        """Return the length of the output of one of a run's processes."""
        stdout_bytes, stderr_bytes = (_size(self.rank_path(key, rank) / stream) for stream in STREAMS)
        return OutputEnd(key[1], self.node_id, rank, stdout_bytes, stderr_bytes, processes)

    def channels(self, job_id: str) -> list[tuple[OutputChannel, int]]:
        """Return a job's channels here, with their sizes, in order."""
        return sorted(
            (OutputChannel(epoch, self.node_id, rank, stream), _size(path / stream))
            for epoch, rank, path in self._processes(job_id)
            for stream in STREAMS
        )

    async def answer(self, request: Request) -> Reply:
        """Answer an :class:`OutputRequest`."""
        try:
            ask = _ask.decode(request.body or b"{}")
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return Reply(code=BAD_REQUEST, error=f"not an OutputAsk: {error}")
        if not subjects.is_token(ask.job_id) or "/" in ask.job_id:
            return Reply(code=BAD_REQUEST, error=f"{ask.job_id!r} is no job's id")
        try:
            answer = await asyncio.to_thread(self._read, ask)  # the disk may be slow, and jobs go on meanwhile
        except FileNotFoundError:
            problem = (
                f"node {self.node_id} has no {ask.stream} of rank {ask.rank} in run {ask.epoch} of job {ask.job_id}"
            )
            return Reply(code=NOT_FOUND, error=problem)
        return Reply(body=msgspec.msgpack.encode(answer))

    def expire(self, now_s: float, live: Collection[str], age_s: float, most_bytes: int) -> list[str]:
        """
        Remove old output of jobs, and the oldest if all output takes too much room.

        Parameters
        ----------
        live : collection of str
            Jobs that have a run here; their output stays.

        Returns
        -------
        list of str
            The jobs whose output is gone.
        """
        jobs = sorted((_last_s(path), path) for path in self._jobs() if path.name not in live)
        used = sum(_used_bytes(path) for path in self._jobs())
        gone = []
        for last_s, path in jobs:
            if now_s - last_s < age_s and used <= most_bytes:
                break
            used -= _used_bytes(path)
            job_folders.remove(path)
            gone.append(path.name)
        return gone

    def _read(self, ask: OutputRequest) -> OutputAnswer:
        if not ask.epoch:
            return OutputAnswer(sizes=self.channels(ask.job_id))
        channel = OutputChannel(ask.epoch, self.node_id, ask.rank, ask.stream)
        fd = job_folders.open_plainly(self.rank_path((ask.job_id, ask.epoch), ask.rank) / ask.stream)
        try:
            data = os.pread(fd, ask.most_bytes, ask.offset)
            return OutputAnswer(data=data, sizes=[(channel, os.fstat(fd).st_size)])
        finally:
            os.close(fd)

    def _jobs(self) -> Iterator[Path]:
        return (path for path in self.folder.glob("*") if path.is_dir())

    def _processes(self, job_id: str) -> Iterator[tuple[int, int, Path]]:
        for path in (self.folder / job_id).glob("*/*"):
            if path.name.isdigit() and path.parent.name.isdigit():
                yield int(path.parent.name), int(path.name), path


def _used_bytes(folder: Path) -> int:
    return sum(found.st_blocks * 512 for found in _statuses(folder))


def _last_s(folder: Path) -> float:
    return max((found.st_mtime for found in _statuses(folder)), default=0.0)


def _statuses(folder: Path) -> Iterator[os.stat_result]:
    for path in (folder, *folder.rglob("*")):
        with contextlib.suppress(OSError):
            yield path.lstat()


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def _to_line_end(data: bytes) -> bytes:
    """Leave the beginning of an unfinished line for the next time, unless there is no end of line at all."""
    end = data.rfind(b"\n") + 1
    return data[:end] if end else data


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0
