"""
A path as a stream of ``tar``, and such a stream as a path, beside an event loop.

:class:`TarSource` and :class:`TarTarget` have ``tarfile`` work in a thread, some blocks ahead of, or behind, the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import posixpath
import queue
import shutil
import tarfile
import tempfile
import threading
from collections.abc import AsyncIterator
from pathlib import Path, PurePosixPath
from typing import IO, Final, cast

from penstock_cli.invocation import Failure, tell
from penstock_log.code_tree import turns_back
from penstock_log.text import escaped

BLOCK_BYTES: Final = 256 * 1024
_AHEAD: Final = 16


class _Piped:
    """
    A file that a thread reads or writes, and the event loop the other end of: some blocks at most between them.

    Attributes
    ----------
    files, size_bytes : int
        How much has gone through.
    """

    def __init__(self) -> None:
        self._blocks: queue.Queue[bytes | None] = queue.Queue(_AHEAD)
        self._is_over = threading.Event()
        self._rest = b""
        self.files = self.size_bytes = 0

    def stop(self) -> None:
        """Let nobody wait any more."""
        self._is_over.set()

    def _put(self, block: bytes | None) -> None:
        while not self._is_over.is_set():
            with contextlib.suppress(queue.Full):
                self._blocks.put(block, timeout=0.2)
                return
        raise BrokenPipeError("the copy was ended")

    def _get(self) -> bytes | None:
        while not self._is_over.is_set():
            with contextlib.suppress(queue.Empty):
                return self._blocks.get(timeout=0.2)
        raise BrokenPipeError("the copy was ended")

    def write(self, data: bytes) -> int:
        """Take in what ``tarfile`` writes."""
        self._put(bytes(data))
        return len(data)

    def read(self, size: int) -> bytes:
        """Return what ``tarfile`` reads."""
        while not self._rest:
            block = self._get()
            if block is None:
                self._blocks.put(None)
                return b""
            self._rest = block
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    def _count(self, member: tarfile.TarInfo) -> None:
        self.files += member.isfile()
        self.size_bytes += member.size


class TarSource(_Piped):
    """A path here as a stream of ``tar``, whose first name is the path's own."""

    def __init__(self, source: Path) -> None:
        super().__init__()
        self.source = source.resolve() if source.is_symlink() or source.name in {"", ".", ".."} else source

    async def blocks(self) -> AsyncIterator[bytes]:
        """Yield the stream."""
        loop = asyncio.get_running_loop()
        packing = loop.run_in_executor(None, self._pack)
        packing.add_done_callback(_note_error)
        while (block := await loop.run_in_executor(None, self._get)) is not None:
            yield block
        await packing

    def _pack(self) -> None:
        try:
            with tarfile.open(fileobj=cast("IO[bytes]", self), mode="w|", bufsize=BLOCK_BYTES) as archive:
                archive.add(self.source, arcname=self.source.name, filter=self._counted)
        finally:
            with contextlib.suppress(BrokenPipeError):
                self._put(None)

    def _counted(self, member: tarfile.TarInfo) -> tarfile.TarInfo:
        self._count(member)
        return member


class TarTarget(_Piped):
    """
    A stream of ``tar`` that becomes a path here, whatever its first name is there.

    Nothing is written outside of the path, nor by way of a link in it, which an earlier copy may have brought: what
    would be, and a link out of it, is left out, and that is said. What is new is made in a folder beside it, and takes
    its name once all of it is there; a folder that is there already is written into.

    Attributes
    ----------
    left_out : int
        How much was left out.
    """

    def __init__(self, into: Path) -> None:
        super().__init__()
        self._into, self.left_out = into, 0
        self._unpacking: asyncio.Future[None] | None = None

    async def put(self, data: bytes) -> None:
        """Take in a part of the stream."""
        loop = asyncio.get_running_loop()
        if self._unpacking is None:
            self._unpacking = loop.run_in_executor(None, self._unpack)
            self._unpacking.add_done_callback(_note_error)
        if self._unpacking.done():
            self._unpacking.result()
        try:
            self._blocks.put_nowait(data)
        except queue.Full:
            await self._put_in_thread(data)

    async def finish(self) -> None:
        """Wait until all of it is written."""
        if self._unpacking is not None:
            await self._put_in_thread(None)
            await self._unpacking

    async def _put_in_thread(self, block: bytes | None) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._put, block)
        except BrokenPipeError:
            if self._unpacking is not None:
                await self._unpacking  # which says why nobody takes it
            raise

    def _unpack(self) -> None:
        try:
            if self._into.is_dir():
                self._extract_all(self._into)
            else:
                self._make_anew()
            self._drain()
        except tarfile.ReadError as error:
            raise Failure(f"what came of the copy is no whole archive: {error}") from error
        except BrokenPipeError:
            raise
        except OSError as error:
            raise Failure(f"the copy cannot be written to {self._into}: {error}") from error
        finally:
            self.stop()  # nobody is to wait for us

    def _make_anew(self) -> None:
        if self._into.exists() and not self._into.is_file():
            raise Failure(f"{self._into} is there, and is no file")
        beside = Path(tempfile.mkdtemp(prefix=".penstock-copy-", dir=self._into.parent))
        try:
            root = beside / self._into.name
            self._extract_all(root)
            if root.is_symlink() and self.left_out:  # it was to have the rest written through it
                return
            if os.path.lexists(root):
                os.replace(root, self._into)
        finally:
            shutil.rmtree(beside, ignore_errors=True)

    def _extract_all(self, root: Path) -> None:
        with tarfile.open(fileobj=cast("IO[bytes]", self), mode="r|", bufsize=BLOCK_BYTES) as archive:
            for member in archive:
                self._count(member)
                try:
                    self._extract(archive, member, root)
                except _REFUSED as error:
                    self.left_out += 1
                    tell(f"left out: {escaped(str(error))}")

    def _extract(self, archive: tarfile.TarFile, member: tarfile.TarInfo, root: Path) -> None:
        parts = [part for part in member.name.split("/") if part not in {"", "."}]
        if member.name.startswith("/") or ".." in parts:
            raise _Outside(f"{member.name} is outside of what was asked for")
        top = member.name.split("/")[0]
        below = parts if top == "." else parts[1:]
        if member.issym() and turns_back(os.fsencode(member.linkname)):
            raise _Outside(f"the link {member.name} goes up again after a name, to {member.linkname}")
        if not below and not member.isdir():
            if os.path.lexists(root) or member.islnk():
                raise _Outside(f"{member.name} is in the place of something else, or the same as that")
            _write(archive, _renamed(member, root.name, top), root.parent)
            return
        if root != self._into and os.path.lexists(root) and (root.is_symlink() or not root.is_dir()):
            raise _Outside(f"{member.name} lies in what is no folder")
        root.mkdir(exist_ok=True)
        if below:
            self._extract_below(archive, member, _renamed(member, posixpath.join(*below), top), root)

    def _extract_below(
        self, archive: tarfile.TarFile, member: tarfile.TarInfo, renamed: tarfile.TarInfo, root: Path
    ) -> None:
        """Write something in a folder, and nothing by way of a link in it, whoever made that: it may lead out."""
        name, same = PurePosixPath(renamed.name), PurePosixPath(renamed.linkname if member.islnk() else "")
        through = {*name.parents, *([name] if member.isdir() else []), same, *same.parents} - {PurePosixPath()}
        if ".." in (*name.parts, *same.parts) or any((root / one).is_symlink() for one in through):
            raise _Outside(f"{member.name} lies in a link, or is to be the same as a link or what lies in one")
        if member.isreg() and (root / name).is_symlink():
            (root / name).unlink()  # or what it leads to would be written
        try:
            _write(archive, renamed, root)
        except KeyError as error:
            raise _Outside(f"{member.name} is the same as what has not come: {member.linkname}") from error

    def _drain(self) -> None:
        """Take what still comes behind the archive's end."""
        while self._get() is not None:
            pass


def _note_error(future: asyncio.Future[None]) -> None:
    """Take an error that nobody waits for any more, which asyncio would print otherwise."""
    if not future.cancelled():
        future.exception()


class _Outside(Exception):
    """What would be written elsewhere."""


HAS_FILTERS: Final = hasattr(tarfile, "data_filter")
"""Python 3.11.4 has them; Debian 12 has Python 3.11.2."""
_REFUSED: Final = (tarfile.FilterError, _Outside) if HAS_FILTERS else (_Outside,)


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, root: Path) -> None:
    """Write a member below a folder as plain data: nobody's but ours, without special bits, and not leading out."""
    if HAS_FILTERS:
        archive.extract(member, root, filter="data")
    else:
        archive.extract(_as_data(member, root), root)


def _as_data(member: tarfile.TarInfo, root: Path) -> tarfile.TarInfo:
    """Return a member as the filter ``data`` of later versions of Python does."""
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        raise _Outside(f"{member.name} is a special file")
    target = posixpath.join(posixpath.dirname(member.name), member.linkname) if member.issym() else member.linkname
    leads_out = target.startswith("/") or posixpath.normpath(target).split("/")[0] == ".."
    if leads_out or not (root / target).resolve().is_relative_to(root.resolve()):
        raise _Outside(f"{member.name} would link to {member.linkname}, which is outside the destination")
    found = copy.copy(member)
    found.uid, found.gid, found.uname, found.gname = os.getuid(), os.getgid(), "", ""
    found.mode = 0o755 if member.isdir() else (member.mode & 0o755) | 0o600
    if not found.mode & 0o100:
        found.mode &= ~0o011
    return found


def _renamed(member: tarfile.TarInfo, name: str, top: str) -> tarfile.TarInfo:
    """Return a member under another name; a hard link names its target from the archive's top."""
    found = copy.copy(member)
    found.name = name
    if member.islnk():
        parts = member.linkname.split("/")
        found.linkname = "/".join(parts[1:] if top == parts[0] else parts)
    return found
