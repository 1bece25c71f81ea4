"""
The checkpoint that a run goes on from, and its copy to this node.

A :class:`ResumeRequest` has what the log says of a job's checkpoints, and :class:`CheckpointFinder` answers it with a
:class:`Resume`: the job's own last checkpoint, that of the job from which it begins, or none. A checkpoint that is on
another node is copied here first, within :class:`CopyLimits`. All processes of a gang go on from the same checkpoint:
the gang's first node chooses it, and the other nodes follow.
"""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from collections.abc import AsyncIterator, Callable, Container, Iterator
from functools import partial
from pathlib import Path
from typing import Final, Literal, Protocol, TypedDict, TypeVar
from weakref import WeakValueDictionary

import msgspec
import structlog

from penstock.sessions.checkpoint import FORMATS, MANIFEST
from penstock_bus import BusError, Delivery, LogReader, RequestPort, ServiceError
from penstock_bus.follower import until_available
from penstock_bus.port import NoResponders, Timeout, Unavailable
from penstock_executor.checkpoint_folder import (
    LARGEST_MANIFEST,
    PIECE_BYTES,
    CheckpointFolder,
    CheckpointManifest,
    CheckpointUnavailable,
    FilePiece,
    HeldCheckpoint,
    PieceRequest,
    is_inside,
    parse_manifest,
)
from penstock_executor.checkpoint_tier import restore
from penstock_log import AnyEvent, Checkpoint, RunCheckpointed, RunRewound, RunStarted, last_checkpoint, subjects
from penstock_log.text import gibibytes

T = TypeVar("T")
_Key = tuple[str, int]  # job and epoch: ``run_state.Key``, which is above
_log = structlog.get_logger("penstock.executor")

SIDE_BY_SIDE: Final = 8
"""Pieces that are asked for at once."""
ANSWER_S: Final = 10.0
AGAIN_S: Final = 0.5
UNREADABLE_S: Final = 1.0
"""How long a run waits for its next try whose checkpoint is on a disk that cannot be read."""


class RunFactFields(TypedDict):
    """The fields that every fact about a run has."""

    job_id: str
    epoch: int
    node_id: str
    at_s: float


class ResumeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """
    What the log says of a job's checkpoints, before a run of it can start.

    Attributes
    ----------
    own : Checkpoint or None
        The job's last checkpoint.
    rewound : int
        Checkpoints of earlier generations no longer count.
    begins_from : str
        The job whose last checkpoint it begins with if it has none of its own.
    lead : RunStarted or None
        On the further nodes of a gang: the start on the first node, whose checkpoint all must go on from.
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
        The checkpoint of the job from which it begins, if it has none of its own.
    begun_from : str
        The id of that job.
    copied_from : str
        The node from which the checkpoint was copied for this run.
    lost : Checkpoint or None
        The checkpoint from which it should have gone on, and cannot.
    reason : str
        Why it cannot, in one sentence; or why it was refused.
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

    def unreported(self, request: ResumeRequest, about: RunFactFields) -> Iterator[RunRewound | RunCheckpointed]:
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
    """Largest checkpoint to copy, in bytes, and longest time for a copy, in seconds; 0 copies none."""

    largest_bytes: int
    longest_s: float


class CheckpointSource(LogReader, RequestPort, Protocol):
    """Where checkpoints are found: by the log, and on the nodes."""


class CheckpointFinder:
    """
    A finder of the checkpoints that runs go on from; it copies them to this node.

    Parameters
    ----------
    node_id : str
        Of this node.
    present : callable
        ``present(node_id)``: whether the log has that node's executor up.
    memory : CheckpointFolder or None
        This node's checkpoints in memory.
    agent : str
        Path of the socket of this node's memory agent, by which peers' copies are had; empty where there is none.
    """

    def __init__(
        self,
        bus: CheckpointSource,
        folder: CheckpointFolder,
        node_id: str,
        present: Callable[[str], bool],
        limits: CopyLimits,
        *,
        memory: CheckpointFolder | None = None,
        agent: str = "",
    ) -> None:
        self._bus, self._folder, self._node_id, self._present = bus, folder, node_id, present
        self._limits, self._memory, self._agent = limits, memory, agent
        self._copying: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def root(self) -> Path:
        """The folder that holds the checkpoints of all jobs."""
        return self._folder.root

    async def find(self, wanted: ResumeRequest) -> Resume:
        """Return what a run goes on from, once it is here."""
        found = await self._find(wanted)
        if self._memory is not None:
            await asyncio.to_thread(self._memory.keep_only, wanted.job_id, found.held)
        return found

    async def _find(self, wanted: ResumeRequest) -> Resume:
        if wanted.lead is not None:
            return await self._as_led(wanted, wanted.lead)
        held = await self._held(wanted)
        counts = [one for one in held if one.generation >= wanted.rewound]
        if wanted.own is None:
            return Resume(held=counts[0]) if counts else await self._begin(wanted)
        newer = [one for one in counts if (one.generation, one.step) > (wanted.own.generation, wanted.own.step)]
        if newer:  # its executor was killed before it could tell of it
            return Resume(held=newer[0])
        try:
            found, copied_from = await self._have(wanted.job_id, wanted.own, self._memory)
        except CheckpointUnavailable as error:
            older = Resume(held=counts[0]) if counts else await self._begin(wanted)
            return msgspec.structs.replace(older, lost=wanted.own, reason=str(error))
        return Resume(held=found, copied_from=copied_from)

    async def _held(self, wanted: ResumeRequest) -> list[HeldCheckpoint]:
        """Return the job's checkpoints here, the one that counts most first."""
        found = [] if self._memory is None else await asyncio.to_thread(self._memory.held, wanted.job_id)
        try:
            found += await asyncio.to_thread(self._folder.held, wanted.job_id)
        except OSError:  # of a disk that is away
            if wanted.own is None or not wanted.own.peers:
                raise
        return sorted(found, key=lambda held: (held.generation, held.step), reverse=True)

    async def _begin(self, wanted: ResumeRequest) -> Resume:
        """Begin with another job's last checkpoint, if the job asks for it and it can be had."""
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
            peers=wanted.own.peers if wanted.own is not None and wanted.own.digest == lead.resumed_digest else (),
        )
        try:
            found, copied_from = await self._have(of, checkpoint, None if lead.begun_from else self._memory)
        except CheckpointUnavailable as error:
            return Resume(at="refused", lost=checkpoint, reason=str(error))
        if lead.begun_from:
            return Resume(begun=found, begun_from=of, copied_from=copied_from)
        return Resume(held=found, copied_from=copied_from)

    async def _have(
        self, job_id: str, wanted: Checkpoint, memory: CheckpointFolder | None = None
    ) -> tuple[HeldCheckpoint, str]:
        """
        Return a checkpoint that is here or has been copied, and the node that it was copied from.

        A run looks into its own job's folder in ``memory`` too; another job's checkpoint has to be on the disk.
        """
        turn = self._copying.setdefault(job_id, asyncio.Lock())
        async with turn:  # two jobs may begin from the same one; and a copy clears away what others have left
            if memory is not None and wanted.digest:
                held = await asyncio.to_thread(memory.find, job_id, wanted)
                if held is not None:
                    return held, ""
            if (brought := await self._from_peer(job_id, wanted, memory or self._folder)) is not None:
                return brought
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

    async def _from_peer(
        self, job_id: str, wanted: Checkpoint, into: CheckpointFolder
    ) -> tuple[HeldCheckpoint, str] | None:
        """Bring a checkpoint from a peer's memory, if one has it."""
        if not wanted.peers or not self._agent or not wanted.digest:
            return None
        try:
            most_bytes = self._limits.largest_bytes
            node_id = await asyncio.to_thread(restore, self._agent, into, job_id, wanted, most_bytes)
            held = await asyncio.to_thread(into.find, job_id, wanted)
        except CheckpointUnavailable as error:
            _log.warning("checkpoint_not_had_from_peers", job_id=job_id, step=wanted.step, reason=str(error))
            return None
        return None if held is None else (held, node_id)

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
        """Copy it from one node; return None if it is here, else why it cannot be copied; empty to try again."""
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


class PendingResumes:
    """
    What runs that are about to start go on from: looked for, copied, and kept until they have started.

    Parameters
    ----------
    tasks : asyncio.TaskGroup
        Where the looking runs.
    about : callable
        ``about(key)``: the fields that every fact about a run has.
    report, warn : callable
        ``report(fact)`` appends a fact; ``warn(key, warning)`` warns of a run.
    wake : callable
        Called when something was found.
    """

    def __init__(
        self,
        finder: CheckpointFinder,
        tasks: asyncio.TaskGroup,
        *,
        about: Callable[[_Key], RunFactFields],
        report: Callable[[AnyEvent], None],
        warn: Callable[[_Key, str], None],
        wake: Callable[[], None],
    ) -> None:
        self.found: dict[_Key, Resume] = {}
        self._finder, self._tasks = finder, tasks
        self._about, self._report, self._warn, self._wake = about, report, warn, wake
        self._looking: dict[_Key, asyncio.Task[None]] = {}
        self._unreadable: set[_Key] = set()

    def find(self, key: _Key, request: ResumeRequest) -> None:
        """Begin to look for what a run goes on from."""
        self.found[key] = Resume(at="looking")
        self._looking[key] = self._tasks.create_task(self._look(key, request))

    def tidy(self, wanted: Callable[[_Key], bool], has_started: Container[_Key]) -> None:
        """Drop what was found for runs that have started or are no longer wanted; copies for them stop."""
        for key in [key for key in self.found if key in has_started or not wanted(key)]:
            del self.found[key]
            self._looking.pop(key).cancel()
        self._unreadable = {key for key in self._unreadable if wanted(key)}

    def cancel(self) -> None:
        """Stop all looking."""
        for looking in self._looking.values():
            looking.cancel()

    async def _look(self, key: _Key, request: ResumeRequest) -> None:
        log = _log.bind(job_id=key[0], epoch=key[1])
        try:
            resume = await self._finder.find(request)
        except OSError as error:  # of a disk that is away: what lies there is not lost
            log.warning("checkpoints_not_readable", error=str(error))
            if key not in self._unreadable:
                self._unreadable.add(key)
                problem = f"{self._finder.root} cannot be read: {error.strerror or error}"
                self._warn(key, f"{problem}; the run waits until it can, so as not to begin anew")
            asyncio.get_running_loop().call_later(UNREADABLE_S, self._look_again, key)
            return
        if resume.copied_from:
            log.info("checkpoint_copied", step=resume.source.step, node_id=resume.copied_from)
        if resume.lost is not None:
            log.warning("checkpoint_not_had", step=resume.lost.step, reason=resume.reason)
        for fact in resume.unreported(request, self._about(key)):
            self._report(fact)
        self.found[key] = resume
        self._wake()

    def _look_again(self, key: _Key) -> None:
        self.found.pop(key, None)
        self._looking.pop(key, None)
        self._wake()


class _Copy:
    """One checkpoint on its way here, from whichever node; the time limit is for all tries together."""

    def __init__(
        self, bus: RequestPort, folder: CheckpointFolder, job_id: str, wanted: Checkpoint, limits: CopyLimits
    ) -> None:
        self._bus, self._folder, self._job_id, self._wanted, self._limits = bus, folder, job_id, wanted, limits
        self._loop = asyncio.get_running_loop()
        self._late_s = self._loop.time() + limits.longest_s
        self._piece_bytes = min(PIECE_BYTES, bus.max_body_bytes // 2)

    def is_late(self) -> bool:
        """Return whether the time limit has passed."""
        return self._loop.time() >= self._late_s

    def put_off(self, by_s: float) -> None:
        """Extend the limit by a time in which the bus was away."""
        self._late_s += by_s

    async def run(self, node_id: str) -> None:
        """Copy it from one node; a BusError says that the node does not answer."""
        body = b"".join([piece async for piece in self._file(node_id, "", None)])
        manifest = await asyncio.to_thread(self._check, body)
        fresh = await self._io(self._folder.begin_copy, self._job_id)
        try:
            for name, size in manifest.files.items():
                await self._fetch(node_id, fresh / name, name, size, manifest.checksums.get(name))
            await self._io((fresh / MANIFEST).write_bytes, body)
            await self._io(self._folder.publish, fresh, self._job_id, self._wanted.step)
        finally:
            self._folder.end_copy(fresh)

    def _check(self, body: bytes) -> CheckpointManifest:
        if self._wanted.digest and hashlib.sha256(body).hexdigest() != self._wanted.digest:
            raise CheckpointUnavailable("what came is not what its digest says")
        try:
            manifest = parse_manifest(body)
        except ValueError as error:
            raise CheckpointUnavailable(f"its manifest cannot be read: {error}") from error
        if manifest.format not in FORMATS or manifest.step != self._wanted.step:
            raise CheckpointUnavailable(f"its manifest is of format {manifest.format} and after step {manifest.step}")
        for name in manifest.files:
            if not is_inside(name):
                raise CheckpointUnavailable(f"its file {name!r} would lie outside of it")
        whole = sum(manifest.files.values())
        if whole > self._limits.largest_bytes:
            raise CheckpointUnavailable(
                f"it has {gibibytes(whole)}, more than the {gibibytes(self._limits.largest_bytes)} that are copied "
                "(checkpoint_copy_bytes)"
            )
        if whole > (free := self._folder.free_bytes()):
            raise CheckpointUnavailable(f"it has {gibibytes(whole)}, and the disk has room for {gibibytes(free)}")
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
        """Yield a file's bytes in order, several pieces ahead; ``size`` is None where only the first answer has it."""
        if size is None:
            first = await self._piece(node_id, name, 0)
            size = first.size
            if size > LARGEST_MANIFEST:
                raise CheckpointUnavailable(f"its manifest has {gibibytes(size)}")
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
