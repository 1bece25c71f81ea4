"""
Code on its way to this node: fetched from the bus, checked, and laid out before a run starts.

:class:`PendingCode` fetches for several runs side by side what the node's cache lacks. While the bus is away, or the
disk is full, it tries again and warns of it; what was never uploaded, or is not what its digest says, fails the run.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Container, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, Literal, TypeVar

import msgspec
import structlog

from penstock_bus import BusError
from penstock_bus.follower import until_available
from penstock_bus.port import CodePort
from penstock_executor.code_cache import CodeCache, WorkFolders
from penstock_executor.run_identity import IdentityRefused, IdentityRule
from penstock_log import Job, code_tree, subjects
from penstock_log.code_tree import BadTree, CodeRecord, CodeTree, TreeEntry, TreePart
from penstock_log.text import gibibytes

FULL_S: Final = 2.0
"""Between two tries where the disk does not take the files."""
AT_ONCE: Final = 4
"""Runs whose code is fetched and laid out at the same time; the others wait."""
_THREADS: Final = 2
_ASKED_BYTES: Final = 8 << 20
_LOOKS: Final = 5
_LOOK_S: Final = 0.3
_LONG_S: Final = 5.0
_PASSING: Final = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE)
"""What a disk says that may be well again."""
_Key = tuple[str, int]
_T = TypeVar("_T")
_record: Final = msgspec.json.Decoder(CodeRecord)
_log = structlog.get_logger("penstock.executor")


class CodeProgress(msgspec.Struct, frozen=True, kw_only=True):
    """
    How far the code of a run is that is about to start.

    Attributes
    ----------
    at : {"coming", "ready", "refused"}
    reason : str
        Why it cannot be had.
    """

    at: Literal["coming", "ready", "refused"] = "coming"
    reason: str = ""


class PendingCode:
    """
    The code of runs that are about to start.

    Few are fetched at once, by few threads, which are nobody else's: an array of a hundred runs whose trees have
    thousands of files must not keep the node's heartbeats and fences waiting.

    Parameters
    ----------
    tasks : asyncio.TaskGroup
        Where the fetching runs.
    rule : IdentityRule
        Whose the folders are.
    warn : callable
        ``warn(key, warning)`` warns of a run.
    wake : callable
        Called when the code of a run is here, or cannot be had.
    """

    def __init__(
        self,
        bus: CodePort,
        cache: CodeCache,
        folders: WorkFolders,
        tasks: asyncio.TaskGroup,
        *,
        rule: IdentityRule,
        warn: Callable[[_Key, str], None],
        wake: Callable[[], None],
    ) -> None:
        self.found: dict[_Key, CodeProgress] = {}
        self._bus, self._cache, self.folders, self._tasks = bus, cache, folders, tasks
        self._rule, self._warn, self._wake = rule, warn, wake
        self._fetching: dict[_Key, asyncio.Task[None]] = {}
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="code")

    def fetch(self, key: _Key, job: Job) -> None:
        """Begin to fetch the code of a run."""
        self.found[key] = CodeProgress()
        self._fetching[key] = self._tasks.create_task(self._fetch(key, job))

    def tidy(self, wanted: Callable[[_Key], bool], has_started: Container[_Key]) -> None:
        """Forget the runs that have started or are no longer wanted; fetching for them stops."""
        for key in [key for key in self.found if key in has_started or not wanted(key)]:
            del self.found[key]
            self._fetching.pop(key).cancel()

    def cancel(self) -> None:
        """Stop all fetching."""
        for fetching in self._fetching.values():
            fetching.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _fetch(self, key: _Key, job: Job) -> None:
        log = _log.bind(job_id=key[0], epoch=key[1], code=job.spec.code)
        late = asyncio.get_running_loop().call_later(
            _LONG_S, self._warn, key, "its code takes long to fetch; it starts once all of it is here"
        )
        warned = False
        try:
            while True:
                try:
                    async with self._turns:
                        await self._bring(key, job)
                except OSError as error:
                    if error.errno not in _PASSING:
                        what = f"it cannot be laid out in {self.folders.folder}: {error.strerror or error}"
                        raise BadTree(what) from error
                    if not warned:
                        warned = True
                        what = f"its code cannot be laid out in {self.folders.folder}: {error.strerror or error}"
                        self._warn(key, f"{what}; free some space there; it is tried again until then")
                    log.warning("code_not_laid_out", error=str(error))
                    await asyncio.sleep(FULL_S)
                else:
                    break
            self.found[key] = CodeProgress(at="ready")
        except (BadTree, BusError) as error:
            log.warning("code_not_had", reason=str(error))
            self.found[key] = CodeProgress(at="refused", reason=f"its code {job.spec.code[:12]} cannot be had: {error}")
        except Exception as error:  # one user's code must not end the node's executor
            log.exception("code_fetch_failed")
            what = f"it was not expected to be such: {type(error).__name__}; see the executor's log"
            self.found[key] = CodeProgress(at="refused", reason=f"its code {job.spec.code[:12]} cannot be had: {what}")
        finally:
            late.cancel()
        self._wake()

    async def _bring(self, key: _Key, job: Job) -> None:
        tree = await self._tree(job.spec.user, job.spec.code)
        with self._cache.pinned(tree):
            missing = await self._in_thread(self._cache.missing, tree)
            if missing:
                size = sum(entry.size for entry in missing)
                _log.info("code_fetched", job_id=key[0], files=len(missing), size=gibibytes(size))
            for some in _groups(missing):
                await self._bring_files(job.spec.user, some)
            owner = await self._in_thread(self._owner, job.spec.user)
            await self._in_thread(self.folders.make, key, tree, self._cache, owner)
        await self._in_thread(self._cache.evict)

    async def _in_thread(self, function: Callable[..., _T], *arguments: object) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(function, *arguments))

    def _owner(self, user: str) -> tuple[int, int] | None:
        """Return whose a run's folder is; None where it is the executor's, or nobody's since the run is refused."""
        try:
            identity = self._rule.identity(user)
        except IdentityRefused:
            return None
        return (identity.uid, identity.gid) if identity.switches else None

    async def _tree(self, user: str, digest: str) -> CodeTree:
        subject = subjects.code_record(user, digest)
        try:
            record = _record.decode((await self._get([subject]))[subject])
        except (msgspec.MsgspecError, ValueError) as error:
            raise BadTree(f"its record cannot be read: {error}") from error
        parts = [subjects.code_part(user, part.digest, part.size) for part in record.parts]
        bodies = await self._get(parts)
        manifest = b"".join(bodies[part] for part in parts)
        if code_tree.digest_of(manifest) != digest:
            raise BadTree("its list of files is not what was uploaded")
        return await self._in_thread(code_tree.decode, manifest)

    async def _bring_files(self, user: str, entries: list[TreeEntry]) -> None:
        """Fetch files whose sizes together are bounded, or one large file."""
        parts = [(entry, code_tree.parts_of(entry)) for entry in entries]
        if len(entries) == 1:
            await self._bring_large(user, *parts[0])
            return
        bodies = await self._get([_subject(user, part) for _, some in parts for part in some])

        def keep() -> None:
            for entry, some in parts:
                self._cache.add(entry, (_checked(bodies[_subject(user, part)], part) for part in some))

        await self._in_thread(keep)

    async def _bring_large(self, user: str, entry: TreeEntry, parts: list[TreePart]) -> None:
        """Fetch one file, and hold no more than a bound of it in memory."""
        step = max(1, _ASKED_BYTES // code_tree.PART_BYTES)
        with self._cache.fresh(entry) as write:
            for at in range(0, len(parts), step):
                some = parts[at : at + step]
                found = await self._get([_subject(user, part) for part in some])
                body = b"".join(_checked(found[_subject(user, part)], part) for part in some)
                await self._in_thread(write, body)

    async def _get(self, wanted: list[str]) -> dict[str, bytes]:
        """
        Return bodies from the bus, all of them; a server of several may not have the newest yet.

        Raises
        ------
        BadTree
            If some are not there.
        """
        for _ in range(_LOOKS):
            found = await until_available(lambda: self._bus.get_code(wanted), "get_code")
            if len(found) == len(set(wanted)):
                return found
            await asyncio.sleep(_LOOK_S)
        raise BadTree("a part of it is not in the cluster (any more); submit the job again with its folder")


def _groups(entries: list[TreeEntry]) -> Iterator[list[TreeEntry]]:
    """Yield files in groups of a bounded size; a larger one comes alone."""
    some: list[TreeEntry] = []
    size = 0
    for entry in entries:
        if some and size + entry.size > _ASKED_BYTES:
            yield some
            some, size = [], 0
        some.append(entry)
        size += entry.size
    if some:
        yield some


def _subject(user: str, part: TreePart) -> str:
    return subjects.code_part(user, part.digest, part.size)


def _checked(body: bytes, part: TreePart) -> bytes:
    if len(body) != part.size or code_tree.digest_of(body) != part.digest:
        raise BadTree("a part of it is not what was uploaded")
    return body
