"""
The checkpoints that lie on this node: which of them a run goes on from, and how one gets here from another node.

Where all nodes share a checkpoint folder, every checkpoint is here. Where each has a folder of its own, the log says on
which nodes a job's last checkpoint lies (:class:`penstock_log.job_state.Checkpoint`), and an executor that is to start
the job copies it from one of them: over the bus, since nodes need not reach each other, in pieces, and first into a
folder that bears no checkpoint's name. The manifest must have the digest that is in the log, and each file the checksum
that is in the manifest. Where no node has the checkpoint, the run goes on from an earlier step, and the log says so.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Annotated, BinaryIO, Final

import msgspec
from msgspec import Meta

from penstock.sessions.checkpoint import EPOCH_FILE, FORMATS, KEPT, MANIFEST, STEP_PREFIX, flush, step_folders
from penstock_bus import Endpoint, Reply, Request, RequestPort
from penstock_executor import job_folders
from penstock_log import Checkpoint, subjects
from penstock_log.agent_protocol import Count
from penstock_log.text import gibibytes

PIECE_BYTES: Final = 512 * 1024
LARGEST_MANIFEST: Final = 64 * 2**20
AWAY: Final = frozenset(
    {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
)
"""What a file system says that cannot be read now: of what lies there nothing is to be concluded from that."""
_READ_BYTES: Final = 1 << 20
_LONGEST_EPOCH: Final = 32
_NODES: Final = ".nodes"
_COPYING: Final = ".copying"
"""Where copies are made: not in the job's folder, where its user could put a link in their way."""


class CheckpointUnavailable(Exception):
    """A checkpoint cannot be read or copied; the message says why."""


class HeldCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A complete checkpoint on this node."""

    step: int
    generation: int = 0
    digest: str = ""
    samples: int = 0

    def is_what(self, wanted: Checkpoint) -> bool:
        """Return whether it is the checkpoint that the log means."""
        return self.step == wanted.step and (not wanted.digest or self.digest == wanted.digest)


# --- what is here
class _SamplerPlace(msgspec.Struct, frozen=True):
    samples: Count | None = None


class CheckpointManifest(msgspec.Struct, frozen=True, kw_only=True):
    """
    What the session has written beside the files of a checkpoint, as far as copying it goes.

    Any job may write any other: numbers are those that the log takes.
    """

    format: int
    step: Count
    files: dict[str, Count]
    checksums: dict[str, Count] = {}
    generation: Count = 0
    place: _SamplerPlace | None = None


class CheckpointFolder:
    """
    The folder that holds the checkpoints of all jobs on this node, each job's in one of its own.

    Parameters
    ----------
    node_id : str
        Of this node: names what is being copied, where others use the folder as well.
    passable : bool
        Whether jobs run as their users, who have to come to their folders through this one.
    """

    def __init__(self, root: Path, node_id: str, *, passable: bool = False) -> None:
        self.root, self._node_id, self._passable = root, node_id, passable

    def enter(self) -> None:
        """Leave this node's name in the folder, so that others can see that they share it."""
        with suppress(OSError):  # where it cannot be written, jobs that save are warned
            names = self._make(_NODES)
            (names / self._node_id).touch()

    def sharing(self) -> set[str]:
        """Return the nodes that have this folder too."""
        return {path.name for path in (self.root / _NODES).glob("*")}

    def held(self, job_id: str) -> list[HeldCheckpoint]:
        """
        Return a job's complete checkpoints, the one that counts most first; what is damaged is left out.

        Raises
        ------
        OSError
            If the folder cannot be read at present.
        """
        found = [held for path in step_folders(self.root / job_id) if (held := _look(path)) is not None]
        return sorted(found, key=lambda held: (held.generation, held.step), reverse=True)

    def of_step(self, job_id: str, step: int) -> HeldCheckpoint | None:
        """Return a job's checkpoint after a step, if it is here and complete."""
        return _look(self.path(job_id, step))

    def find(self, job_id: str, wanted: Checkpoint) -> HeldCheckpoint | None:
        """
        Return a checkpoint if it is here.

        A checkpoint without a digest may have any form, since a program that speaks the agent protocol by itself writes
        its own. Any file of the job here is taken to be that checkpoint.
        """
        for held in self.held(job_id):
            if held.is_what(wanted):
                return held
        if not wanted.digest and self._anything(job_id):
            return HeldCheckpoint(step=wanted.step, generation=wanted.generation)
        return None

    def path(self, job_id: str, step: int) -> Path:
        """Return the folder of one checkpoint."""
        return self.root / job_id / f"{STEP_PREFIX}{step}"

    def free_bytes(self) -> int:
        """Return the room on the disk."""
        self._make()
        return shutil.disk_usage(self.root).free

    def jobs(self) -> list[str]:
        """Return the jobs that have a folder here."""
        try:
            return [name for name in os.listdir(self.root) if not name.startswith(".")]
        except FileNotFoundError:
            return []

    def remove(self, job_id: str) -> None:
        """Remove all checkpoints of a job."""
        job_folders.remove(self.root / job_id)

    def keep_only(self, job_id: str, held: HeldCheckpoint | None) -> None:
        """Remove a job's checkpoints but one, so that no other can be taken for it."""
        for path in step_folders(self.root / job_id):
            found = _look(path)
            if found is None or held is None or (found.step, found.digest) != (held.step, held.digest):
                job_folders.remove(path)

    def prune(self, job_id: str) -> None:
        """Remove a job's complete checkpoints but those that count most, as its own process does."""
        for held in self.held(job_id)[KEPT:]:
            job_folders.remove(self.path(job_id, held.step))

    def refuse_if_superseded(self, job_id: str, generation: int) -> None:
        """Raise CheckpointUnavailable if a run of a later generation writes here."""
        try:
            with os.fdopen(job_folders.open_beneath(self.root / job_id, EPOCH_FILE), "rb") as file:
                newest = int(file.read(_LONGEST_EPOCH))
        except (FileNotFoundError, ValueError):
            return
        if newest > generation:
            raise CheckpointUnavailable(f"run {newest} of the job writes its checkpoints there now")

    def open_checkpoint(
        self, job_id: str, wanted: Checkpoint
    ) -> tuple[bytes, Callable[[str, int], Iterator[memoryview]]]:
        """
        Return the manifest of a checkpoint, and by what its files are read: called with a file's name and size.

        Raises
        ------
        CheckpointUnavailable
            If it is not here; also when its files are read.
        """
        path = self.path(job_id, wanted.step)

        def pieces(name: str, size: int) -> Iterator[memoryview]:
            buffer = memoryview(bytearray(_READ_BYTES))
            try:
                with _open(path.parent, f"{path.name}/{name}") as file:
                    while size and (count := file.readinto(buffer[: min(size, _READ_BYTES)])):  # type: ignore[attr-defined]
                        yield buffer[:count]
                        size -= count
            except (FileNotFoundError, ValueError) as error:
                raise CheckpointUnavailable(f"it was removed meanwhile: {error}") from error
            if size:
                raise CheckpointUnavailable(f"its file {name} lacks {size} bytes")

        try:
            body = _body(path)
        except (FileNotFoundError, ValueError) as error:
            raise CheckpointUnavailable(f"it is not here any more: {error}") from error
        if hashlib.sha256(body).hexdigest() != wanted.digest:
            raise CheckpointUnavailable("another checkpoint is in its place")
        return body, pieces

    def begin_copy(self, job_id: str, apart: str = "") -> Path:
        """
        Return a fresh folder to copy a checkpoint into; what a copy left that was killed is removed.

        Copies that are made ``apart`` do not remove each other.
        """
        where = self._make(_COPYING)
        for name in (self._node_id, f"{job_id}.{apart}" if apart else job_id):
            where = where / name
            where.mkdir(exist_ok=True, mode=0o700)
        for left in where.iterdir():
            job_folders.remove(left)
        return Path(tempfile.mkdtemp(dir=where))  # 0700

    def end_copy(self, fresh: Path) -> None:
        """Remove what is left of a copy, whether or not it was published."""
        job_folders.remove(fresh)
        with suppress(OSError):
            fresh.parent.rmdir()

    def give(self, job_id: str, uid: int, gid: int) -> None:
        """
        Give a job's folder to the user that its run is about to run as.

        Raises
        ------
        FolderNotOurs
            If it is somebody else's.
        OSError
            If it cannot be made.
        """
        self._make()
        job_folders.make_owned(self.root / job_id, uid, gid)

    def publish(self, fresh: Path, job_id: str, step: int) -> None:
        """Give a complete copy its name; another checkpoint of that name is not what was wanted, and goes."""
        for path in [*fresh.rglob("*"), fresh]:
            flush(path)
        owner = self._make(job_id).lstat()
        if owner.st_uid != os.geteuid():
            job_folders.hand_over(fresh, owner.st_uid, owner.st_gid)
        path = self.path(job_id, step)
        if os.path.lexists(path):
            path.rename(fresh.with_name(f"{fresh.name}-replaced"))
        fresh.rename(path)
        flush(path.parent)
        job_folders.remove(fresh.with_name(f"{fresh.name}-replaced"))

    def read(self, ask: PieceRequest, most_bytes: int) -> FilePiece:
        """
        Return a piece of a file of a checkpoint that lies here, of so many bytes at most.

        Raises
        ------
        CheckpointUnavailable
            If it does not, or no longer.
        """
        if not _is_name(ask.job_id):
            raise CheckpointUnavailable(f"{ask.job_id!r} is no job's id")
        path, length = self.path(ask.job_id, ask.step), min(ask.length, most_bytes)
        try:
            body = _body(path)
            if ask.digest and hashlib.sha256(body).hexdigest() != ask.digest:
                raise CheckpointUnavailable(
                    f"what lies here of job {ask.job_id} after step {ask.step} is another checkpoint"
                )
            if not ask.name:
                return FilePiece(size=len(body), data=body[ask.offset : ask.offset + length])
            if ask.name not in parse_manifest(body).files or not is_inside(ask.name):
                raise CheckpointUnavailable(f"the checkpoint has no file {ask.name!r}")
            with _open(path.parent, f"{path.name}/{ask.name}") as file:
                file.seek(ask.offset)
                return FilePiece(size=os.fstat(file.fileno()).st_size, data=file.read(length))
        except FileNotFoundError as error:
            raise CheckpointUnavailable(f"no checkpoint of job {ask.job_id} after step {ask.step} lies here") from error
        except (OSError, ValueError) as error:
            raise CheckpointUnavailable(
                f"the checkpoint of job {ask.job_id} after step {ask.step} cannot be read: {error}"
            ) from error

    def _make(self, name: str = "") -> Path:
        """Make and return the folder, or one in it; the parent comes first: mkdir ignores the mode for parents."""
        path = self.root
        if self._passable:
            job_folders.make_passable(path)
        else:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if name:
            path = path / name
            path.mkdir(exist_ok=True, mode=0o700)
        return path

    def _anything(self, job_id: str) -> bool:
        try:
            return any(not path.name.startswith(".") for path in (self.root / job_id).iterdir())
        except OSError:
            return False


def _look(path: Path) -> HeldCheckpoint | None:
    """Return the checkpoint in a folder, if all of its files are as long as they were written."""
    job = path.parent
    try:
        body = _body(path)
        manifest = parse_manifest(body)
        whole = all(_size_of(job, f"{path.name}/{name}") == size for name, size in manifest.files.items())
    except OSError as error:
        if error.errno in AWAY:
            raise
        return None
    except ValueError:
        return None
    if manifest.format not in FORMATS or not whole:
        return None
    samples = (manifest.place.samples or 0) if manifest.place is not None else 0
    digest = hashlib.sha256(body).hexdigest()
    return HeldCheckpoint(step=manifest.step, generation=manifest.generation, digest=digest, samples=samples)


def _body(path: Path) -> bytes:
    """Return the manifest of a checkpoint's folder, as it is written there."""
    with _open(path.parent, f"{path.name}/{MANIFEST}") as file:
        if (size := os.fstat(file.fileno()).st_size) > LARGEST_MANIFEST:
            raise ValueError(f"its manifest has {gibibytes(size)}")
        return file.read(LARGEST_MANIFEST)


def _open(job: Path, name: str) -> BinaryIO:
    """Open a file of a job's folder; anything else that a job has put in its place might never give or take a byte."""
    return os.fdopen(job_folders.open_beneath(job, name), "rb")


def _size_of(job: Path, name: str) -> int:
    """Return the size of a file."""
    with _open(job, name) as file:
        return os.fstat(file.fileno()).st_size


def parse_manifest(body: bytes) -> CheckpointManifest:
    """
    Return the manifest that these bytes are.

    Raises
    ------
    ValueError
        If it is none.
    """
    try:
        return msgspec.json.decode(body, type=CheckpointManifest)
    except RecursionError as error:
        raise ValueError(f"it is nested too deeply: {error}") from error


def _is_name(text: str) -> bool:
    return subjects.is_token(text) and "/" not in text


def is_inside(name: str) -> bool:
    """Return whether a file's name stays below the folder that it is relative to."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\0" not in name


# --- from node to node
class PieceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request for a piece of a checkpoint's file; without a name, of its manifest."""

    job_id: str
    step: int
    digest: str = ""
    name: str = ""
    offset: Annotated[int, Meta(ge=0)] = 0
    length: Annotated[int, Meta(ge=1)] = PIECE_BYTES


class FilePiece(msgspec.Struct, frozen=True, kw_only=True):
    """So many bytes of a file of ``size`` bytes."""

    size: int
    data: bytes


@asynccontextmanager
async def serving(bus: RequestPort, folders: Sequence[CheckpointFolder], node_id: str) -> AsyncIterator[None]:
    """Hand out this node's checkpoints to other executors while the context is open, from the first that has one."""

    def read(ask: PieceRequest) -> FilePiece:
        for folder in folders[:-1]:
            with suppress(CheckpointUnavailable):
                return folder.read(ask, bus.max_body_bytes // 2)
        return folders[-1].read(ask, bus.max_body_bytes // 2)

    async def answer(request: Request) -> Reply:
        try:
            ask = msgspec.msgpack.decode(request.body, type=PieceRequest)
            piece = await asyncio.to_thread(read, ask)
        except (ValueError, RecursionError) as error:
            return Reply(code=400, error=f"expected the name of a piece of a checkpoint: {error}")
        except CheckpointUnavailable as error:
            return Reply(code=404, error=str(error))
        return Reply(body=msgspec.msgpack.encode(piece))

    endpoint = Endpoint(name="read", subject=subjects.checkpoints(node_id), handler=answer)
    async with bus.serve(f"penstock-checkpoints-{node_id}", "1.0.0", [endpoint]):
        yield
