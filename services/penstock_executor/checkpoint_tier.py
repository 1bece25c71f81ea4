"""
Checkpoints in memory: this node's folder for them, what is written behind to the disk, and what peers have.

A job whose checkpoint tier is ``memory`` saves into a folder here, and two other nodes keep a copy each
(:mod:`penstock.sessions.memory_tier`). :class:`WriteBehind` copies to the disk what the log has of this node's
checkpoints in memory only. :func:`restore` brings a checkpoint back from a peer's copy, by the node's memory agent.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
import zlib
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import structlog

from penstock.sessions.checkpoint import MANIFEST
from penstock_executor import job_folders
from penstock_executor.checkpoint_folder import (
    LARGEST_MANIFEST,
    CheckpointFolder,
    CheckpointManifest,
    CheckpointUnavailable,
    is_inside,
    parse_manifest,
)
from penstock_log import TERMINAL, AnyEvent, Checkpoint, Job, JobTable, RunCheckpointed
from penstock_log.memory_messages import CopyFound
from penstock_log.text import gibibytes

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a folder of the executor's own is made there, and checked
AGAIN_S: Final = 5.0
"""How long a disk that could not be written is left alone."""
_PIECE_BYTES: Final = 1 << 20
_log = structlog.get_logger("penstock.executor")


# --- the folder
def memory_root(folder: str, data: Path) -> Path | None:
    """
    Return the folder for checkpoints in memory; None where there is no such place.

    Parameters
    ----------
    folder : str
        As the settings have it; empty: one in ``/dev/shm``, which an executor on the same data finds again.
    data : Path
        The executor's data folder.
    """
    if folder:
        return Path(folder).absolute()
    name = hashlib.sha256(os.fsencode(data)).hexdigest()[:16]
    return SHARED_MEMORY / f"penstock-{os.geteuid()}" / name if SHARED_MEMORY.is_dir() else None


def prepare(root: Path) -> None:
    """
    Make the folder above the executor's own, where that is one of all users.

    Raises
    ------
    OSError
        If it cannot be made, or is somebody else's.
    """
    above = root.parent
    if above.parent != SHARED_MEMORY:
        return
    job_folders.make_passable(above)
    status = above.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(f"{above} is not this executor's own; remove it, or set checkpoint_memory_dir")


# --- behind
class WriteBehind:
    """
    The writer of checkpoints to the disk that are in this node's memory only, by the log; and the one who tidies up.

    Parameters
    ----------
    memory, disk : CheckpointFolder
        From where to where.
    spawn : callable
        Runs a coroutine beside the caller.
    report : callable
        ``report(fact)`` appends a fact.
    wake : callable
        Called when there may be something to do again.
    """

    def __init__(
        self,
        memory: CheckpointFolder,
        disk: CheckpointFolder,
        node_id: str,
        *,
        clock: Callable[[], float],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        report: Callable[[AnyEvent], None],
        wake: Callable[[], None],
    ) -> None:
        self._memory, self._disk, self._node_id = memory, disk, node_id
        self._clock, self._spawn, self._report, self._wake = clock, spawn, report, wake
        self._writing: dict[str, Checkpoint] = {}
        self._told: set[tuple[str, str]] = set()
        self._over: set[str] = set()

    def end_job(self, job_id: str) -> None:
        """Take note that a job's checkpoints are removed: what is being written of it goes too."""
        if job_id in self._writing:
            self._over.add(job_id)

    def settle(self, jobs: JobTable, runs_here: Callable[[str], bool]) -> None:
        """
        Begin to write what is in memory only, and remove what is needed there no more.

        Parameters
        ----------
        runs_here : callable
            ``runs_here(job_id)``: whether a process of the job is on this node.
        """
        for job_id in self._memory.jobs():
            if job_id in self._writing:
                continue
            job = jobs.get(job_id)
            last = job.checkpoint if job is not None and job.state not in TERMINAL else None
            if last is not None and self._is_here_only(last):
                if not self._is_told(job_id, last):
                    self._writing[job_id] = last
                    self._spawn(self._write(job_id, last))
            elif not runs_here(job_id) and not (job is not None and self._has_grant(job)):
                self._memory.remove(job_id)
        self._told = {told for told in self._told if told[0] in jobs.by_id}

    def _is_here_only(self, last: Checkpoint) -> bool:
        return last.tier == "memory" and self._node_id in last.node_ids

    def _is_told(self, job_id: str, last: Checkpoint) -> bool:
        return (job_id, last.digest) in self._told

    def _has_grant(self, job: Job) -> bool:
        return job.state not in TERMINAL and job.may_run(job.epoch, self._node_id)

    async def _write(self, job_id: str, last: Checkpoint) -> None:
        log = _log.bind(job_id=job_id, step=last.step)
        try:
            await asyncio.to_thread(self._copy, job_id, last)
        except CheckpointUnavailable as error:  # a newer one has taken its place, as a rule
            log.info("checkpoint_not_written_behind", reason=str(error))
            self._told.add((job_id, last.digest))
        except OSError as error:
            log.warning("checkpoint_written_behind_later", error=str(error), again_s=AGAIN_S)
            asyncio.get_running_loop().call_later(AGAIN_S, self._again, job_id)
            return
        else:
            log.info("checkpoint_written_behind")
            self._told.add((job_id, last.digest))
            self._report(
                RunCheckpointed(
                    job_id=job_id,
                    epoch=last.generation,
                    node_id=self._node_id,
                    step=last.step,
                    generation=last.generation,
                    digest=last.digest,
                    peers=last.peers,
                    at_s=self._clock(),
                )
            )
        self._again(job_id)

    def _again(self, job_id: str) -> None:
        self._writing.pop(job_id, None)
        if job_id in self._over:
            self._over.remove(job_id)
            self._disk.remove(job_id)
        self._wake()

    def _copy(self, job_id: str, last: Checkpoint) -> None:
        self._disk.refuse_if_superseded(job_id, last.generation)
        body, pieces = self._memory.open_checkpoint(job_id, last)
        fresh = self._disk.begin_copy(job_id, apart="behind")
        try:
            _unpack(fresh, body, pieces)
            self._disk.publish(fresh, job_id, last.step)
        finally:
            self._disk.end_copy(fresh)
        self._disk.prune(job_id)


# --- from peers
def restore(agent: str, folder: CheckpointFolder, job_id: str, wanted: Checkpoint, most_bytes: int) -> str:
    """
    Bring a checkpoint from a peer's memory into a folder of this node; return the peer.

    Parameters
    ----------
    agent : str
        Path of the socket of the node's memory agent.
    most_bytes : int
        The largest checkpoint that is brought.

    Raises
    ------
    CheckpointUnavailable
        If no peer has it whole, or it cannot be written.
    """
    try:
        from penstock.memory.checkpoint_copies import CopiesUnavailable, CopyAgent  # noqa: PLC0415 - needs crc32c
    except ImportError as error:
        raise CheckpointUnavailable(str(error)) from error
    problems = []
    for node_id in wanted.peers:
        try:
            prepare(folder.root)
            with CopyAgent(agent, f"resume {job_id}") as link:
                found = link.find(job_id, wanted.step, wanted.digest, [node_id])
                if found.size > most_bytes:
                    raise CheckpointUnavailable(
                        f"it has {gibibytes(found.size)}, and {gibibytes(most_bytes)} may be copied here "
                        "(checkpoint_copy_bytes)"
                    )
                _restore_copy(found, folder, job_id, wanted)
        except (CopiesUnavailable, CheckpointUnavailable, OSError) as error:
            problems.append(f"{node_id}: {error}")
        else:
            return node_id
    raise CheckpointUnavailable(f"no peer has the checkpoint after step {wanted.step} ({'; '.join(problems)})")


def _restore_copy(found: CopyFound, folder: CheckpointFolder, job_id: str, wanted: Checkpoint) -> None:
    from penstock.memory.checkpoint_copies import LENGTH, read_copy  # noqa: PLC0415 - as above

    with closing(read_copy(found.slabs, found.size)) as pieces:
        archive = _Archive(pieces)
        (length,) = LENGTH.unpack(archive.take(LENGTH.size))
        if length > LARGEST_MANIFEST:
            raise CheckpointUnavailable(f"its manifest has {gibibytes(length)}")
        body = archive.take(length)
        if hashlib.sha256(body).hexdigest() != wanted.digest:
            raise CheckpointUnavailable("what came is not what its digest says")
        fresh = folder.begin_copy(job_id)
        try:
            _unpack(fresh, body, archive.files)
            folder.publish(fresh, job_id, wanted.step)
        finally:
            folder.end_copy(fresh)


class _Archive:
    """The bytes of an archive, as they come."""

    def __init__(self, pieces: Iterator[memoryview]) -> None:
        self._pieces, self._rest = pieces, memoryview(b"")

    def take(self, length: int) -> bytes:
        """Return the next bytes."""
        return b"".join(bytes(piece) for piece in self.files("", length))

    def files(self, name: str, size: int) -> Iterator[memoryview]:
        """Yield the bytes of the next file."""
        while size:
            if not self._rest:
                try:
                    self._rest = next(self._pieces)
                except StopIteration as error:
                    raise CheckpointUnavailable(f"the copy ends within {name or 'its manifest'}") from error
            part, self._rest = self._rest[:size], self._rest[size:]
            size -= len(part)
            yield part


def _unpack(fresh: Path, body: bytes, pieces: Callable[[str, int], Iterator[memoryview]]) -> CheckpointManifest:
    """Write a checkpoint's files into a fresh folder, and check each by its checksum."""
    try:
        manifest = parse_manifest(body)
    except ValueError as error:
        raise CheckpointUnavailable(f"its manifest cannot be read: {error}") from error
    for name, size in manifest.files.items():
        if not is_inside(name):
            raise CheckpointUnavailable(f"its file {name!r} would lie outside of it")
        path, seen = fresh / name, 0
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with path.open("xb", buffering=0) as file:
            for piece in pieces(name, size):
                seen = zlib.crc32(piece, seen)
                _write_all(file.write, piece)
        checksum = manifest.checksums.get(name)
        if checksum is not None and seen != checksum:
            raise CheckpointUnavailable(f"its file {name} came with other bytes than were written")
    (fresh / MANIFEST).write_bytes(body)
    return manifest


def _write_all(write: Callable[[memoryview], int | None], piece: memoryview) -> None:
    while piece:
        piece = piece[write(piece) or 0 :]
