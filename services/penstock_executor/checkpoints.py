"""
The checkpoints that lie on this node: which of them a run goes on from, and how one gets here from another node.

Where all nodes share a checkpoint folder, every checkpoint is here. Where each has a folder of its own, the log says on
which nodes a job's last checkpoint lies (:class:`penstock_events.states.Checkpoint`), and an executor that is to start
the job copies it from one of them: over the bus, since nodes need not reach each other, in pieces, and first into a
folder that bears no checkpoint's name. The manifest must have the digest that is in the log, and each file the checksum
that is in the manifest. What cannot be had is said, and the run goes on from an earlier step.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import shutil
import stat
import tempfile
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Annotated, BinaryIO, Final, Literal, TypedDict, TypeVar
from weakref import WeakValueDictionary

import msgspec
from msgspec import Meta

from penstock_bus import Bus, BusError, Delivery, Endpoint, Reply, ServiceError
from penstock_bus.port import NoResponders, Timeout, Unavailable
from penstock_bus.retry import until_available
from penstock_events import Checkpoint, RunCheckpointed, RunRewound, RunStarted, last_checkpoint, subjects
from penstock_events.agent import Count

T = TypeVar("T")
FORMATS: Final = (1, 2)
MANIFEST: Final = "penstock-manifest.json"
PIECE_BYTES: Final = 512 * 1024
SIDE_BY_SIDE: Final = 8
"""Pieces that are asked for at once."""
ANSWER_S: Final = 10.0
AGAIN_S: Final = 0.5
LARGEST_MANIFEST: Final = 64 * 2**20
AWAY: Final = frozenset(
    {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
)
"""What a file system says that cannot be read now: of what lies there nothing is to be concluded from that."""
_PREFIX: Final = "step-"
_NODES: Final = ".nodes"
_COPYING: Final = ".copying-"


class CheckpointUnavailable(Exception):
    """A checkpoint cannot be had; says why."""


class About(TypedDict):
    """What every fact about a run says."""

    job_id: str
    epoch: int
    node_id: str
    at_s: float


class HeldCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A complete checkpoint on this node."""

    step: int
    generation: int = 0
    digest: str = ""
    samples: int = 0

    def is_what(self, wanted: Checkpoint) -> bool:
        """Say whether it is the checkpoint that the log means."""
        return self.step == wanted.step and (not wanted.digest or self.digest == wanted.digest)


class ResumeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """
    What there is to be known before a run can start: what the log has of its job's checkpoints.

    Attributes
    ----------
    own : Checkpoint or None
        Its last one.
    rewound : int
        Checkpoints of earlier generations no longer count.
    begins_from : str
        The job with whose last checkpoint it begins where it has none of its own.
    lead : RunStarted or None
        Of a gang over several nodes, elsewhere than on its first: what the first one goes on from, and so must all.
    """

    job_id: str
    own: Checkpoint | None = None
    rewound: int = 0
    begins_from: str = ""
    lead: RunStarted | None = None


class Resume(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a run goes on from.

    Attributes
    ----------
    at : {"looking", "ready", "refused"}
        ``looking``: it must not start yet. ``refused``: it cannot go on with the others of its gang.
    held : HeldCheckpoint or None
        The job's own checkpoint, on this node; None for none.
    begun : HeldCheckpoint or None
        That of the job from which it begins, where it has none of its own.
    begun_from : str
        Which job that is.
    copied_from : str
        The node from which it was copied for this run.
    lost : Checkpoint or None
        The checkpoint from which it should have gone on, and cannot.
    reason : str
        Why not, in one sentence; or why it was refused.
    """

    at: Literal["looking", "ready", "refused"] = "ready"
    held: HeldCheckpoint | None = None
    begun: HeldCheckpoint | None = None
    begun_from: str = ""
    copied_from: str = ""
    lost: Checkpoint | None = None
    reason: str = ""

    @property
    def source(self) -> HeldCheckpoint:
        """The checkpoint that is loaded; one after step 0 where there is none."""
        return self.held or self.begun or HeldCheckpoint(step=0)

    def news(self, request: ResumeRequest, about: About) -> Iterator[RunRewound | RunCheckpointed]:
        """Yield what the log does not know yet of the job's checkpoints."""
        held, source = self.held, self.source
        if self.lost is not None:
            yield RunRewound(
                step=source.step,
                generation=max(1, held.generation) if held is not None else 0,
                digest=held.digest if held is not None else "",
                samples=source.samples,
                lost_step=self.lost.step,
                lost_generation=self.lost.generation,
                reason=self.reason,
                **about,
            )
        elif held is not None and request.lead is None and (request.own is None or not held.is_what(request.own)):
            yield RunCheckpointed(step=held.step, generation=held.generation, digest=held.digest, **about)


class CopyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How large a checkpoint may be that is copied, in bytes, and how long that may take, in seconds; 0 copies none."""

    largest_bytes: int
    longest_s: float


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
    root : Path
    node_id : str
        Of this node: names what is being copied, where others use the folder as well.
    """

    def __init__(self, root: Path, node_id: str) -> None:
        self._root, self._node_id = root, node_id

    def enter(self) -> None:
        """Leave this node's name in the folder, so that others can see that they share it."""
        with suppress(OSError):  # where it cannot be written, jobs that save are warned
            names = self._make(_NODES)
            (names / self._node_id).touch()

    def sharing(self) -> set[str]:
        """Return the nodes that have this folder too."""
        return {path.name for path in (self._root / _NODES).glob("*")}

    def held(self, job_id: str) -> list[HeldCheckpoint]:
        """
        Return a job's complete checkpoints, the one that counts most first; what is damaged is left out.

        Raises
        ------
        OSError
            If the folder cannot be read at present.
        """
        found = [held for path in self._all(job_id) if (held := _look(path)) is not None]
        return sorted(found, key=lambda held: (held.generation, held.step), reverse=True)

    def of_step(self, job_id: str, step: int) -> HeldCheckpoint | None:
        """Return a job's checkpoint after a step, if it is here and complete."""
        return _look(self.path(job_id, step))

    def find(self, job_id: str, wanted: Checkpoint) -> HeldCheckpoint | None:
        """
        Return a checkpoint if it is here.

        Of one without a digest nobody knows what it looks like: a program that speaks the agent protocol by itself
        writes what it likes. If there is anything of the job here, it is taken to be that.
        """
        for held in self.held(job_id):
            if held.is_what(wanted):
                return held
        if not wanted.digest and self._anything(job_id):
            return HeldCheckpoint(step=wanted.step, generation=wanted.generation)
        return None

    def path(self, job_id: str, step: int) -> Path:
        """Return the folder of one checkpoint."""
        return self._root / job_id / f"{_PREFIX}{step}"

    def free_bytes(self) -> int:
        """Return the room on the disk."""
        self._make()
        return shutil.disk_usage(self._root).free

    def begin_copy(self, job_id: str) -> Path:
        """Return a fresh folder to copy a checkpoint into; what a copy left that was killed is removed."""
        where = self._make(job_id)
        prefix = f"{_COPYING}{self._node_id}-"
        for left in where.glob(f"{prefix}*"):
            shutil.rmtree(left, ignore_errors=True)
        return Path(tempfile.mkdtemp(prefix=prefix, dir=where))  # 0700

    def publish(self, fresh: Path, job_id: str, step: int) -> None:
        """Give a complete copy its name; another checkpoint of that name is not what was wanted, and goes."""
        for path in [*fresh.rglob("*"), fresh]:
            _flush(path)
        path = self.path(job_id, step)
        if path.exists():
            path.rename(fresh.with_name(f"{fresh.name}-replaced"))
        fresh.rename(path)
        _flush(path.parent)
        shutil.rmtree(fresh.with_name(f"{fresh.name}-replaced"), ignore_errors=True)

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
            if ask.name not in _manifest(body).files or not _is_inside(ask.name):
                raise CheckpointUnavailable(f"the checkpoint has no file {ask.name!r}")
            with _open(path / ask.name) as file:
                file.seek(ask.offset)
                return FilePiece(size=os.fstat(file.fileno()).st_size, data=file.read(length))
        except FileNotFoundError as error:
            raise CheckpointUnavailable(f"no checkpoint of job {ask.job_id} after step {ask.step} lies here") from error
        except (OSError, ValueError) as error:
            raise CheckpointUnavailable(
                f"the checkpoint of job {ask.job_id} after step {ask.step} cannot be read: {error}"
            ) from error

    def _make(self, name: str = "") -> Path:
        """Return the folder, or one in it, which is there then; for a parent, mkdir would not heed the mode."""
        path = self._root
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if name:
            path = path / name
            path.mkdir(exist_ok=True, mode=0o700)
        return path

    def _all(self, job_id: str) -> Iterator[Path]:
        return (
            path for path in (self._root / job_id).glob(f"{_PREFIX}*") if path.name.removeprefix(_PREFIX).isdecimal()
        )

    def _anything(self, job_id: str) -> bool:
        try:
            return any(not path.name.startswith(".") for path in (self._root / job_id).iterdir())
        except OSError:
            return False


def _look(path: Path) -> HeldCheckpoint | None:
    """Return the checkpoint in a folder, if all of its files are as long as they were written."""
    try:
        body = _body(path)
        manifest = _manifest(body)
        whole = all(_size_of(path / name) == size for name, size in manifest.files.items())
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
    with _open(path / MANIFEST) as file:
        if (size := os.fstat(file.fileno()).st_size) > LARGEST_MANIFEST:
            raise ValueError(f"its manifest has {_size(size)}")
        return file.read(LARGEST_MANIFEST)


def _open(path: Path) -> BinaryIO:
    """Open a regular file; anything else that a job has put in its place might never give or take a byte."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError(f"{path} is no regular file")
    return os.fdopen(handle, "rb")


def _size_of(path: Path) -> int:
    """Return the size of a regular file; -1 for anything else."""
    status = path.stat()
    return status.st_size if stat.S_ISREG(status.st_mode) else -1


def _manifest(body: bytes) -> CheckpointManifest:
    """
    Return what a manifest says.

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


def _is_inside(name: str) -> bool:
    """Say whether a file's name stays below the folder that it is relative to."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\0" not in name


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
async def serving(bus: Bus, folder: CheckpointFolder, node_id: str) -> AsyncIterator[None]:
    """Hand out this node's checkpoints to other executors while the context is open."""

    async def answer(body: bytes) -> Reply:
        try:
            ask = msgspec.msgpack.decode(body, type=PieceRequest)
            piece = await asyncio.to_thread(folder.read, ask, bus.max_body_bytes // 2)
        except (ValueError, RecursionError) as error:
            return Reply(code=400, error=f"expected the name of a piece of a checkpoint: {error}")
        except CheckpointUnavailable as error:
            return Reply(code=404, error=str(error))
        return Reply(body=msgspec.msgpack.encode(piece))

    endpoint = Endpoint(name="read", subject=subjects.checkpoints(node_id), handler=answer)
    async with bus.serve(f"penstock-checkpoints-{node_id}", "1.0.0", [endpoint]):
        yield


class CheckpointFinder:
    """
    Finds what runs go on from, and has it copied here.

    Parameters
    ----------
    bus : Bus
    folder : CheckpointFolder
    node_id : str
        Of this node.
    present : callable
        ``present(node_id)``: whether the log has that node's executor up.
    limits : CopyLimits
    """

    def __init__(
        self, bus: Bus, folder: CheckpointFolder, node_id: str, present: Callable[[str], bool], limits: CopyLimits
    ) -> None:
        self._bus, self._folder, self._node_id, self._present = bus, folder, node_id, present
        self._limits = limits
        self._copying: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def find(self, wanted: ResumeRequest) -> Resume:
        """Return what a run goes on from, once it is here."""
        if wanted.lead is not None:
            return await self._as_led(wanted, wanted.lead)
        held = await asyncio.to_thread(self._folder.held, wanted.job_id)
        counts = [one for one in held if one.generation >= wanted.rewound]
        if wanted.own is None:
            return Resume(held=counts[0]) if counts else await self._begin(wanted)
        newer = [one for one in counts if (one.generation, one.step) > (wanted.own.generation, wanted.own.step)]
        if newer:  # its executor was killed before it could tell of it
            return Resume(held=newer[0])
        try:
            found, copied_from = await self._have(wanted.job_id, wanted.own)
        except CheckpointUnavailable as error:
            older = Resume(held=counts[0]) if counts else await self._begin(wanted)
            return msgspec.structs.replace(older, lost=wanted.own, reason=str(error))
        return Resume(held=found, copied_from=copied_from)

    async def _begin(self, wanted: ResumeRequest) -> Resume:
        """Begin with another job's last checkpoint, where it is to and that can be had."""
        if not wanted.begins_from:
            return Resume()
        last = last_checkpoint(
            fact for delivery in await self._read(wanted.begins_from) for fact in delivery.commit.facts
        )
        here = await asyncio.to_thread(self._folder.held, wanted.begins_from)
        if last is None:
            return Resume(begun=here[0] if here else None, begun_from=wanted.begins_from)
        try:
            found, copied_from = await self._have(wanted.begins_from, last)
        except CheckpointUnavailable as error:
            return Resume(begun_from=wanted.begins_from, lost=last, reason=str(error))
        return Resume(begun=found, begun_from=wanted.begins_from, copied_from=copied_from)

    async def _as_led(self, wanted: ResumeRequest, lead: RunStarted) -> Resume:
        """Go on from what the gang's first node goes on from, or not at all."""
        if not lead.resumed_step:
            return Resume(begun_from=wanted.begins_from)
        of = lead.begun_from or wanted.job_id
        checkpoint = Checkpoint(
            generation=wanted.own.generation if wanted.own is not None else 0,
            step=lead.resumed_step,
            digest=lead.resumed_digest,
            node_ids=(lead.node_id,),
        )
        try:
            found, copied_from = await self._have(of, checkpoint)
        except CheckpointUnavailable as error:
            return Resume(at="refused", lost=checkpoint, reason=str(error))
        if lead.begun_from:
            return Resume(begun=found, begun_from=of, copied_from=copied_from)
        return Resume(held=found, copied_from=copied_from)

    async def _have(self, job_id: str, wanted: Checkpoint) -> tuple[HeldCheckpoint, str]:
        """
        Return a checkpoint that is here, or has been copied, and the node that it was copied from.

        Raises
        ------
        CheckpointUnavailable
            If it can be had nowhere.
        """
        turn = self._copying.setdefault(job_id, asyncio.Lock())
        async with turn:  # two jobs may begin from the same one; and a copy clears away what others have left
            held = await asyncio.to_thread(self._folder.find, job_id, wanted)
            if held is not None:
                return held, ""
            node_id = await self._copy(job_id, wanted)
            held = await asyncio.to_thread(self._folder.find, job_id, wanted)
        if held is None:
            raise CheckpointUnavailable(
                f"the copy of the checkpoint after step {wanted.step} from {node_id} was removed meanwhile"
            )
        return held, node_id

    async def _copy(self, job_id: str, wanted: Checkpoint) -> str:
        """Copy a checkpoint from one of the nodes that have it; return which."""
        nodes = [node_id for node_id in reversed(wanted.node_ids) if node_id != self._node_id]
        what = f"the checkpoint after step {wanted.step}"
        if not nodes:
            raise CheckpointUnavailable(f"{what} is no longer on {self._node_id}, the only node that had it")
        if not self._limits.largest_bytes or not self._limits.longest_s:
            raise CheckpointUnavailable(
                f"{what} is on {nodes[0]}, and nothing is copied here (checkpoint_copy_bytes, _copy_s)"
            )
        copy = _Copy(self._bus, self._folder, job_id, wanted, self._limits)
        refusals: dict[str, str] = {}
        while True:
            for node_id in [node_id for node_id in nodes if node_id not in refusals]:
                refusal = await self._copy_from(node_id, copy)
                if refusal is None:
                    return node_id
                if refusal:
                    refusals[node_id] = f"{what} is on {node_id}{refusal}"
            if len(refusals) == len(nodes):
                raise CheckpointUnavailable("; ".join(refusals.values()))
            await asyncio.sleep(AGAIN_S)

    async def _copy_from(self, node_id: str, copy: _Copy) -> str | None:
        """Copy it from one node; return None if it is here, else why it never will be; empty to try again."""
        try:
            await copy.run(node_id)
        except CheckpointUnavailable as error:
            return f": {error}"
        except NoResponders:
            return ", which is not there" if copy.is_late() or not self._present(node_id) else ""
        except Timeout:
            return ", which does not answer" if copy.is_late() else ""
        except Unavailable:  # the bus itself is away: nothing is to be concluded from that
            copy.put_off(AGAIN_S)
            return ""
        except BusError as error:
            return f", and the bus did not let it through: {error}"
        return None

    async def _read(self, job_id: str) -> list[Delivery]:
        read = partial(self._bus.read, subjects.run(job_id))
        return await until_available(read, "read")


class _Copy:
    """One checkpoint on its way here, from whichever node; the time limit is for all tries together."""

    def __init__(self, bus: Bus, folder: CheckpointFolder, job_id: str, wanted: Checkpoint, limits: CopyLimits) -> None:
        self._bus, self._folder, self._job_id, self._wanted, self._limits = bus, folder, job_id, wanted, limits
        self._loop = asyncio.get_running_loop()
        self._late_s = self._loop.time() + limits.longest_s
        self._piece_bytes = min(PIECE_BYTES, bus.max_body_bytes // 2)

    def is_late(self) -> bool:
        """Say whether the time is over."""
        return self._loop.time() >= self._late_s

    def put_off(self, by_s: float) -> None:
        """Do not count a time in which nothing could be done."""
        self._late_s += by_s

    async def run(self, node_id: str) -> None:
        """
        Copy it from one node.

        Raises
        ------
        CheckpointUnavailable
            If it is not there, too large, not what it should be, or takes too long.
        BusError
            If the node does not answer.
        """
        body = b"".join([piece async for piece in self._file(node_id, "", None)])
        manifest = await asyncio.to_thread(self._check, body)
        fresh = await self._io(self._folder.begin_copy, self._job_id)
        try:
            for name, size in manifest.files.items():
                await self._fetch(node_id, fresh / name, name, size, manifest.checksums.get(name))
            await self._io((fresh / MANIFEST).write_bytes, body)
            await self._io(self._folder.publish, fresh, self._job_id, self._wanted.step)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)

    def _check(self, body: bytes) -> CheckpointManifest:
        if self._wanted.digest and hashlib.sha256(body).hexdigest() != self._wanted.digest:
            raise CheckpointUnavailable("what came is not what its digest says")
        try:
            manifest = _manifest(body)
        except ValueError as error:
            raise CheckpointUnavailable(f"its manifest cannot be read: {error}") from error
        if manifest.format not in FORMATS or manifest.step != self._wanted.step:
            raise CheckpointUnavailable(f"its manifest is of format {manifest.format} and after step {manifest.step}")
        for name in manifest.files:
            if not _is_inside(name):
                raise CheckpointUnavailable(f"its file {name!r} would lie outside of it")
        whole = sum(manifest.files.values())
        if whole > self._limits.largest_bytes:
            raise CheckpointUnavailable(
                f"it has {_size(whole)}, more than the {_size(self._limits.largest_bytes)} that are copied "
                "(checkpoint_copy_bytes)"
            )
        if whole > (free := self._folder.free_bytes()):
            raise CheckpointUnavailable(f"it has {_size(whole)}, and the disk has room for {_size(free)}")
        return manifest

    async def _fetch(self, node_id: str, path: Path, name: str, size: int, checksum: int | None) -> None:
        seen = 0
        await self._io(partial(path.parent.mkdir, parents=True, exist_ok=True, mode=0o700))
        with await self._io(path.open, "xb") as file:
            async for data in self._file(node_id, name, size):
                await self._io(file.write, data)
                seen = zlib.crc32(data, seen)
        if checksum is not None and seen != checksum:
            raise CheckpointUnavailable(f"its file {name} came with other bytes than were written")

    async def _file(self, node_id: str, name: str, size: int | None) -> AsyncIterator[bytes]:
        """Yield a file's bytes in order, several pieces ahead; ``size`` is None where only the first answer says it."""
        if size is None:
            first = await self._piece(node_id, name, 0)
            size = first.size
            if size > LARGEST_MANIFEST:
                raise CheckpointUnavailable(f"its manifest has {_size(size)}")
            yield first.data
            at = len(first.data)
        else:
            at = 0
        while at < size:
            offsets = range(at, size, self._piece_bytes)[:SIDE_BY_SIDE]
            pieces = await asyncio.gather(*(self._piece(node_id, name, offset) for offset in offsets))
            for offset, piece in zip(offsets, pieces, strict=True):
                if piece.size != size or len(piece.data) != min(self._piece_bytes, size - offset):
                    raise CheckpointUnavailable(
                        f"its file {name or MANIFEST} has {piece.size} bytes there, {size} were written"
                    )
                yield piece.data
                at = offset + len(piece.data)

    async def _piece(self, node_id: str, name: str, offset: int) -> FilePiece:
        if (left_s := self._late_s - self._loop.time()) <= 0:
            raise CheckpointUnavailable(
                f"it could not be copied within {self._limits.longest_s:g} s (checkpoint_copy_s)"
            )
        ask = PieceRequest(
            job_id=self._job_id,
            step=self._wanted.step,
            digest=self._wanted.digest,
            name=name,
            offset=offset,
            length=self._piece_bytes,
        )
        try:
            body = await self._bus.request(
                subjects.checkpoints(node_id), msgspec.msgpack.encode(ask), timeout_s=min(ANSWER_S, max(left_s, 0.1))
            )
            return msgspec.msgpack.decode(body, type=FilePiece)
        except ServiceError as error:
            raise CheckpointUnavailable(str(error)) from error
        except (ValueError, RecursionError) as error:
            raise CheckpointUnavailable(f"what came is no piece of a file: {error}") from error

    async def _io(self, call: Callable[..., T], *arguments: object) -> T:
        try:
            return await asyncio.to_thread(call, *arguments)
        except OSError as error:
            raise CheckpointUnavailable(f"the copy cannot be written: {error.strerror or error}") from error


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.1f} MiB"
