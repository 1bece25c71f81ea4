"""
Code of users: what they upload of the folders in which their jobs run, and whether a job's code is here.

Each user's code is apart: nobody can name, or find out about, what only somebody else has uploaded. A client asks which
parts are missing (``upload``), sends them (``upload_parts``), and asks again until nothing is. The record of a tree is
stored before it is looked what is there, and the collector (:mod:`penstock_gateway.code_collection`) marks a user
before it looks at that user's records. So either the collector sees the record, or the client sees what was removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import msgspec

from penstock_bus import Endpoint, StorageFull, Unavailable
from penstock_bus.port import CodePort
from penstock_gateway.authority import Admit, Caller
from penstock_gateway.endpoints import BAD, NOT_FOUND, RequestRefused, ask, endpoint
from penstock_gateway.machine import GatewaySettings
from penstock_gateway.user_queues import UserQueues
from penstock_log import JobSpec, code_tree, subjects
from penstock_log.code_tree import CodeRecord, CodeTree, TreePart
from penstock_log.request_bodies import PartsRequest, UploadRequest
from penstock_log.text import gibibytes
from penstock_log.validation import BadInput
from penstock_log.views import UploadView, View

TOO_LARGE: Final = 413
KNOWN_S: Final = 60.0
"""So long a tree that was found is not looked for again; far less than the collector's ``GRACE_S``."""
_SLOTS: Final = 4
_AGAIN_S: Final = 0.05
_MARKED_S: Final = 3.0
_MOST_KNOWN: Final = 10_000
_MOST_MANIFEST: Final = 64 << 20
LEAST_PART_BYTES: Final = 1024
"""As so much a part counts at least: a server keeps its name and its place as well."""
RECORD_BYTES: Final = 16 * 1024
"""As so much the record of a tree counts, however short it is."""
_record: Final = msgspec.json.Decoder(CodeRecord)
_parts: Final = msgspec.msgpack.Decoder(PartsRequest)


class CodeBus(CodePort, Protocol):
    """What the store uses of the bus."""


class CodeStore:
    """
    The code of all users, as it lies on the bus.

    Parameters
    ----------
    now_s : callable
        Seconds since the epoch.
    ticks : callable
        Seconds of a clock that only goes on.
    admit : Admit
        Says who asks, or refuses them.
    """

    def __init__(
        self,
        bus: CodeBus,
        settings: GatewaySettings,
        *,
        now_s: Callable[[], float],
        ticks: Callable[[], float],
        admit: Admit,
    ) -> None:
        self._bus, self._settings, self._now_s, self._ticks, self._admit = bus, settings, now_s, ticks, admit
        self._known: dict[tuple[str, str], float] = {}
        self._held: dict[str, int] = {}
        """User → bytes of all parts and records, as of the last look and with what has come since."""
        self._queues = UserQueues(
            "uploads",
            slots=_SLOTS,
            most=settings.waiting_commands,
            most_bytes=settings.waiting_bytes,
            rate=None,
            now_s=ticks,
        )

    def endpoints(self) -> list[Endpoint]:
        """Return the requests of those who upload."""
        most_bytes = self._bus.max_body_bytes
        return [
            endpoint(name, subjects.command(name), self._admit, handler, most_bytes, in_turn=self._queues.slot)
            for name, handler in (("upload", self.upload), ("upload_parts", self.upload_parts))
        ]

    def close(self) -> None:
        """Refuse the requests that wait for their turn."""
        self._queues.close()

    # --- uploads
    async def upload(self, body: bytes, caller: Caller) -> View:
        """
        Return which parts of a tree are missing.

        Raises
        ------
        RequestRefused
            413 where it is too large, or the user has too much.
        BadInput
            If the list of files is none.
        """
        asked = ask(body, UploadRequest)
        user = caller.stamp(JobSpec(name="code", command=("x",), user=asked.user)).user
        self._check_size(asked)
        if not asked.digest:
            return UploadView()
        manifest_parts = tuple(TreePart(*part) for part in asked.parts)
        _check_parts(manifest_parts)
        record = CodeRecord(parts=manifest_parts, files=asked.files, size_bytes=asked.size_bytes, noted_s=self._now_s())
        subject = subjects.code_record(user, asked.digest)
        if not await self._bus.get_code([subject]):
            await self._take_room(user, RECORD_BYTES)
        await self._put([(subject, msgspec.json.encode(record))])
        await self.settled(user)
        if await self._bus.list_code(subjects.code_ready(user, asked.digest)):
            return UploadView(ready=True)
        there = await self._parts_of(user)
        if missing := _missing(manifest_parts, there):
            return UploadView(wanted="list", missing=missing)
        tree = await self.tree(user, asked.digest, manifest_parts)
        self._check_tree(asked, tree)
        parts = await asyncio.to_thread(code_tree.all_parts, tree)
        if missing := _missing(parts, there):
            self._check_room(user, sum(_counted(parts[index].size) for index in missing))
            return UploadView(wanted="files", missing=missing)
        await self._put([(subjects.code_ready(user, asked.digest), b"")])
        return UploadView(ready=True)

    async def upload_parts(self, body: bytes, caller: Caller) -> View:
        """Store parts of files under what they are; errors as for :meth:`upload`."""
        try:
            asked = _parts.decode(body)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise BadInput(f"expected parts of files as MessagePack: {error}") from error
        user = caller.stamp(JobSpec(name="code", command=("x",), user=asked.user)).user
        if any(not 0 < len(part) <= code_tree.PART_BYTES for part in asked.parts):
            raise BadInput(f"$.parts: expected parts of 1 to {code_tree.PART_BYTES} bytes")
        await self._take_room(user, sum(_counted(len(part)) for part in asked.parts))
        digests = await asyncio.to_thread(lambda: [code_tree.digest_of(part) for part in asked.parts])
        named = zip(digests, asked.parts, strict=True)
        await self._put([(subjects.code_part(user, digest, len(part)), part) for digest, part in named])
        return UploadView(stored=len(asked.parts))

    # --- jobs
    async def require(self, user: str, digest: str) -> None:
        """
        Check that a user's tree is here, and keep it for a while longer, so that a job may begin to need it.

        Raises
        ------
        RequestRefused
            404 where the user has not uploaded it, whoever else has.
        """
        if self._ticks() - self._known.get((user, digest), float("-inf")) < KNOWN_S:
            return
        subject = subjects.code_record(user, digest)
        found = (await self._bus.newest_code([subject])).get(subject)
        if found is not None:
            record = msgspec.structs.replace(_record.decode(found), noted_s=self._now_s())
            await self._put([(subject, msgspec.json.encode(record))])
            await self.settled(user)
        if found is None or not await self._bus.list_code(subjects.code_ready(user, digest)):
            raise RequestRefused(
                NOT_FOUND,
                f"$.code: {user or 'nobody'} has not uploaded the code {digest[:12]}…, or it was removed since no job "
                "has needed it for long; submit with the folder again (--workdir)",
            )
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[user, digest] = self._ticks()

    async def settled(self, user: str) -> None:
        """
        Return once nothing of a user's code is being removed.

        Raises
        ------
        Unavailable
            If that takes long; then it may be asked again.
        """
        until_s = self._ticks() + _MARKED_S
        while await self._bus.list_code(subjects.code_mark(user)):
            if self._ticks() >= until_s:
                raise Unavailable("code that no job needs is being removed just now; try again in a moment")
            await asyncio.sleep(_AGAIN_S)

    # --- what is there
    async def tree(self, user: str, digest: str, parts: Sequence[TreePart]) -> CodeTree:
        """
        Return a tree by the parts of its list of files, all of which are there.

        Raises
        ------
        BadInput
            If they are no list of files, or that of another tree.
        """
        wanted = [subjects.code_part(user, part.digest, part.size) for part in parts]
        found = await self._bus.get_code(wanted)
        if any(subject not in found for subject in wanted):
            raise Unavailable("the list of files cannot be read back yet; try again in a moment")
        manifest = b"".join(found[subject] for subject in wanted)
        if code_tree.digest_of(manifest) != digest:
            raise BadInput(f"$.digest: {digest} is not that of the list of files that was sent")
        try:
            return await asyncio.to_thread(code_tree.decode, manifest)
        except code_tree.BadTree as error:
            raise BadInput(f"$.parts: {error}") from error

    async def _parts_of(self, user: str) -> set[str]:
        """Return the subjects of all parts that a user has."""
        found = set(await self._bus.list_code(subjects.code_pattern(user, "part")))
        records = await self._bus.list_code(subjects.code_pattern(user, "tree"))
        self._held[user] = sum(_counted(int(subject.split(".")[4])) for subject in found) + RECORD_BYTES * len(records)
        return found

    async def _put(self, items: Sequence[tuple[str, bytes]]) -> None:
        try:
            await self._bus.put_code(items)
        except StorageFull as error:
            raise RequestRefused(
                TOO_LARGE,
                "the cluster's store for code (stream CODE) is full; wait until jobs are over and what they needed is "
                f"removed, or ask an operator for more of it: {error}",
            ) from error

    # --- limits
    def _check_size(self, asked: UploadRequest) -> None:
        settings = self._settings
        if asked.size_bytes > settings.code_tree_bytes:
            raise RequestRefused(
                TOO_LARGE,
                f"the folder has {gibibytes(asked.size_bytes)}, and {gibibytes(settings.code_tree_bytes)} are the "
                "most for the code of a job (code_tree_bytes)",
            )
        if asked.files > settings.code_tree_files:
            raise RequestRefused(
                TOO_LARGE,
                f"the folder has {asked.files:,} files, and {settings.code_tree_files:,} are the most for the code of "
                "a job (code_tree_files)",
            )

    def _check_tree(self, asked: UploadRequest, tree: CodeTree) -> None:
        """Refuse a tree that is larger than its user said."""
        if (tree.files, tree.size_bytes) != (asked.files, asked.size_bytes):
            raise RequestRefused(BAD, "$.files: the list of files is of other files than $.files and $.size_bytes say")
        if len(tree.entries) > self._settings.code_tree_files:
            raise RequestRefused(
                TOO_LARGE,
                f"the folder has {len(tree.entries):,} files, links and empty folders, and "
                f"{self._settings.code_tree_files:,} are the most for the code of a job (code_tree_files)",
            )

    async def _take_room(self, user: str, more: int) -> None:
        """Count something that is about to be stored, if there is room; what is here is looked at again before a no."""
        if user not in self._held or self._held[user] + more > self._settings.code_user_bytes:
            await self._parts_of(user)
        self._check_room(user, more)
        self._held[user] += more

    def _check_room(self, user: str, more: int) -> None:
        most = self._settings.code_user_bytes
        if (held := self._held.get(user, 0)) + more > most:
            raise RequestRefused(
                TOO_LARGE,
                f"{user or 'nobody'} has {gibibytes(held)} of code here, this needs {gibibytes(more)} more, and "
                f"{gibibytes(most)} are the most for one user (code_user_bytes); leave out what does not change "
                "(.penstockignore), or wait until the code of jobs that are over is removed "
                f"(code_keep_days, {self._settings.code_keep_days:g})",
            )


def _missing(parts: Iterable[TreePart], there: set[str]) -> tuple[int, ...]:
    """Return the indices of parts that are not there; what is there has a user's subjects, of which the end counts."""
    ends = {subject.split(".part.", 1)[1] for subject in there}
    return tuple(index for index, part in enumerate(parts) if f"{part.size}.{part.digest}" not in ends)


def _counted(size: int) -> int:
    return max(LEAST_PART_BYTES, size)


def _check_parts(parts: Sequence[TreePart]) -> None:
    if not parts or not all(
        code_tree.is_digest(part.digest) and 0 < part.size <= code_tree.PART_BYTES for part in parts
    ):
        raise BadInput(f"$.parts: expected the parts of a list of files, of 1 to {code_tree.PART_BYTES} bytes each")
    size = sum(part.size for part in parts)
    if size > _MOST_MANIFEST:
        raise RequestRefused(TOO_LARGE, "the list of files is too long; leave out files (.penstockignore)")
    if [part.size for part in parts] != code_tree.sizes(size):
        raise BadInput(f"$.parts: expected parts of {code_tree.PART_BYTES} bytes each, and the rest as the last one")
