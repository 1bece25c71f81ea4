"""
A cluster in one file: its streams, and the small files of its data folder that nothing else brings back.

:func:`write` makes the file while the cluster runs, :func:`check` reads all of it and says what is wrong, and
:func:`restore` makes a data folder from it. The file is a tar archive compressed by gzip; its members, in order:

* ``backup.json``: what it is, and who wrote it (:class:`BackupHead`).
* ``streams/NAME/copy.json`` and ``streams/NAME/0000000``, …: each stream as the server sends it.
* ``files/PATH``: the archive, certificates and whatever else lies in the data folder, but for logins and the keys that
  sign them, and for what is large or made anew.
* ``members.json``: size and SHA-256 of each member before it. A file without it at its end is torn.

The streams are copied one after the other, in an order in which no submission can be missing: snapshots and submissions
first, then the log, then output. Files come last: what the archiver removes from the log meanwhile is in the archive's
files before, so each commit is in one of the two. The sums tell whether a file was torn or damaged; they are no
signature.

Logins do not come back, not even from a file of an earlier version that holds the keys: a backup does not know whose
were revoked after it was made, nor which nodes joined (ADR 18). The server of the new folder makes keys of its own, and
lets in only whom it has given a login.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import sqlite3
import tarfile
import tempfile
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, closing, contextmanager
from io import BytesIO
from itertools import groupby
from pathlib import Path, PurePath, PurePosixPath
from typing import IO, Any, Final, cast

import msgspec

from penstock_bus.health import VERSION
from penstock_bus.nats import streams
from penstock_bus.nats.link import Link
from penstock_bus.nats.stream_backup import StreamCopy, copy_in, copy_out
from penstock_bus.servers.server import CREDENTIALS
from penstock_log import subjects

FORMAT: Final = 1
"""Of the file; a later one is refused by its number."""

_HEAD: Final = "backup.json"
_MEMBERS: Final = "members.json"
_COPY: Final = "copy.json"
_PART_BYTES: Final = 4 << 20
_READ_BYTES: Final = 1 << 20
_LEFT_OUT: Final = frozenset({streams.BUCKET})  # leases last for seconds; who leads is decided anew
_FIRST: Final = (subjects.STATE, subjects.NODES, subjects.INBOX)
_LAST: Final = (subjects.CODE, subjects.LOG, subjects.SERIES, subjects.SHADOW)
"""After the log, so that it has the code of the jobs that are in the log."""
_OWNER_ONLY: Final = 0o600
_FOLDER: Final = 0o700

_LARGE: Final = ("jetstream", "logs", "checkpoints", "executor")
"""Folders that are left out, and those whose names begin like this: what jobs wrote, and the streams' own store."""
_MADE_ANEW: Final = (".log", ".ports", ".conf", ".lock", ".new", ".part", ".pid", "penstock.json", ".past.sqlite")
_LOGINS: Final = frozenset({"keys.json", "revoked.json", "accounts", "logins"})
"""In the folder of each server: the keys, and what is signed with them."""
_DATABASE: Final = ".sqlite"
_OF_DATABASES: Final = tuple(f"{_DATABASE}-{what}" for what in ("journal", "wal", "shm"))


class BackupError(Exception):
    """A file that is no whole backup, or one that cannot be written; the message says what to do."""


class BackupHead(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a file says of itself.

    Attributes
    ----------
    format : int
        See :data:`FORMAT`.
    version : str
        Of the Penstock that wrote it.
    made_s : float
        By the clock of the machine that wrote it.
    """

    format: int
    version: str
    made_s: float
    url: str = ""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One member of the archive."""

    name: str
    bytes: int
    sha256: str


class BackupContent(msgspec.Struct, kw_only=True):
    """
    What is in a file.

    Attributes
    ----------
    files : list of str
        Paths in the data folder.
    streams : dict of str to dict
        Stream → its state when it was copied, as the server has it: messages, first and last sequence.
    bytes : int
        Size of the file.
    """

    head: BackupHead
    files: list[str] = msgspec.field(default_factory=list)
    streams: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    bytes: int = 0


async def write(path: Path, link: Link, folder: Path | None, made_s: float) -> BackupContent:
    """
    Write a backup of a running cluster; nobody sees the file before it is whole and on disk.

    Parameters
    ----------
    path : Path
        Of a new file, which only its owner may read: all that jobs were given is in it.
    link : Link
        An administrator's.
    folder : Path or None
        The data folder; None leaves its files out.

    Raises
    ------
    BackupError
        If the file exists, or cannot be written.
    BusError
        If a stream cannot be copied.
    """
    content = BackupContent(head=BackupHead(format=FORMAT, version=VERSION, made_s=made_s, url=link.address))
    with _new(path) as raw:
        await _write(raw, content, link, folder)
    return content


@contextmanager
def _new(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file that gets its name when it is whole and on disk."""
    if path.exists():
        raise BackupError(f"{path} exists; name another file, or remove it first")
    part = path.with_name(path.name + ".part")
    try:
        part.unlink(missing_ok=True)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
        with os.fdopen(descriptor, "wb") as raw:
            yield raw
            raw.flush()
            os.fsync(raw.fileno())
        part.replace(path)
        _sync(path.parent)
    except OSError as error:
        raise BackupError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


async def _write(raw: IO[bytes], content: BackupContent, link: Link, folder: Path | None) -> None:
    with (
        gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=1, filename="") as packed,
        tarfile.open(fileobj=packed, mode="w|") as archive,
    ):
        writer = _Writer(archive, content.head.made_s)
        writer.add(_HEAD, msgspec.json.encode(content.head))
        names = {one.name for one in await streams.streams(link)} - _LEFT_OUT
        for name in _in_order(names):
            content.streams[name] = await _add_stream(writer, link, name)
        for name, path in _kept_files(folder) if folder is not None else ():
            if writer.add_file(f"files/{name}", path):
                content.files.append(name)
        writer.add(_MEMBERS, msgspec.json.encode(writer.members))
    content.bytes = raw.tell()


async def _add_stream(writer: _Writer, link: Link, name: str) -> dict[str, Any]:
    state: dict[str, Any] = {}
    part, number = bytearray(), 0
    async with aclosing(copy_out(link, name)) as pieces:
        async for piece in pieces:
            if isinstance(piece, StreamCopy):
                writer.add(f"streams/{name}/{_COPY}", msgspec.json.encode(piece))
                state = piece.state
                continue
            part += piece
            if len(part) >= _PART_BYTES:
                writer.add(f"streams/{name}/{number:07}", bytes(part))
                part, number = bytearray(), number + 1
    if part:
        writer.add(f"streams/{name}/{number:07}", bytes(part))
    return state


def _in_order(names: Iterable[str]) -> list[str]:
    """
    Return the streams in an order in which nothing is missing that was accepted before the copy began.

    What was submitted is in the log before it leaves INBOX; a snapshot is never ahead of the log.
    """
    place = {name: i - len(_FIRST) for i, name in enumerate(_FIRST)} | {name: i + 1 for i, name in enumerate(_LAST)}
    return sorted(names, key=lambda name: (place.get(name, 0), name != subjects.EVT, name))


def _kept_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield all files that nothing else brings back: how they are called in the folder, and where they are."""
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(_LARGE))
        for name in sorted(names):
            path = Path(where, name)
            called = path.relative_to(folder)
            if not name.endswith(_MADE_ANEW + _OF_DATABASES) and not _is_of_logins(called) and path.is_file():
                yield called.as_posix(), path


def _is_of_logins(path: PurePath) -> bool:
    """
    Say whether a file of a data folder is a login, or says which logins count.

    Examples
    --------
    >>> _is_of_logins(PurePath("nats/keys.json")), _is_of_logins(PurePath("nats-2/accounts/AB.jwt"))
    (True, True)
    >>> _is_of_logins(PurePath("nats/tls/ca.pem")), _is_of_logins(PurePath("oidc.json"))
    (False, False)
    """
    return len(path.parts) > 1 and path.parts[0].startswith(CREDENTIALS) and path.parts[1] in _LOGINS


class _Writer:
    def __init__(self, archive: tarfile.TarFile, made_s: float) -> None:
        self.members: list[Member] = []
        self._archive, self._made_s = archive, made_s

    def add(self, name: str, body: bytes) -> None:
        self._add(name, BytesIO(body), len(body))

    def add_file(self, name: str, path: Path) -> bool:
        """Add a file as it is now; False if it has gone since it was listed."""
        try:
            with _database_copy(path) if path.suffix == _DATABASE else path.open("rb") as file:
                self._add(name, file, os.fstat(file.fileno()).st_size)
        except FileNotFoundError:
            return False
        return True

    def _add(self, name: str, file: IO[bytes], size: int) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode, info.mtime = size, _OWNER_ONLY, int(self._made_s)
        summed = _Summed(file)
        self._archive.addfile(info, summed)
        self.members.append(summed.member(name))


def _database_copy(path: Path) -> IO[bytes]:
    """Open a copy of a database as it is between two transactions, whoever writes to it meanwhile."""
    copy = tempfile.NamedTemporaryFile()  # noqa: SIM115 - its reader closes it
    try:
        with (
            closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as live,
            closing(sqlite3.connect(copy.name)) as target,
        ):
            live.execute("BEGIN")
            live.execute("SELECT count(*) FROM sqlite_schema")  # locked here if ever: copying would wait for ever
            live.backup(target)
    except sqlite3.Error as error:
        copy.close()
        if not path.exists():
            raise FileNotFoundError(path) from error
        raise BackupError(f"{path} cannot be copied: {error}; make it readable, or move it away") from error
    return cast("IO[bytes]", copy)


def check(path: Path) -> BackupContent:
    """
    Read a whole file and return what is in it.

    Raises
    ------
    BackupError
        If it is torn, damaged, or of a later format; the message names the file and the member.
    """
    content: BackupContent | None = None
    members: list[Member] = []
    listed: list[Member] | None = None
    with _opened(path) as archive:
        for name, file in _members(path, archive):
            if listed is not None:
                raise BackupError(f"{path} goes on behind its end, with {name}; take another backup")
            if content is None:
                content = BackupContent(head=BackupHead(format=0, version="", made_s=0.0), bytes=path.stat().st_size)
            summed = _Summed(file)
            listed = _note(path, content, name, summed)
            if listed is None:
                members.append(summed.member(name))
    if content is None or listed is None:
        raise BackupError(f"{path} is torn: its end is missing; take another backup")
    for found, wanted in zip(members, listed, strict=False):
        if found != wanted:
            raise BackupError(f"{path} is damaged: {wanted.name} is not as it was written; take another backup")
    if len(members) != len(listed):
        raise BackupError(f"{path} is damaged: it has {len(members)} members and lists {len(listed)}")
    return content


def _note(path: Path, content: BackupContent, name: str, file: _Summed) -> list[Member] | None:
    """Note what a member says; return the list of all members if it is that."""
    if not content.head.format:
        content.head = _head(path, name, file.read())
    elif name == _MEMBERS:
        listed: list[Member] = _decoded(path, name, file.read(), list[Member])
        return listed
    elif name.startswith("files/"):
        content.files.append(str(_inside(path, name.removeprefix("files/"))))
    elif name.endswith(f"/{_COPY}"):
        copy = _decoded(path, name, file.read(), StreamCopy)
        content.streams[copy.name] = copy.state
    return None


def _head(path: Path, name: str, body: bytes) -> BackupHead:
    if name != _HEAD:
        raise BackupError(f"{path} is no backup of Penstock: it begins with {name} and not with {_HEAD}")
    head: BackupHead = _decoded(path, name, body, BackupHead)
    if head.format > FORMAT:
        raise BackupError(
            f"{path} was written by Penstock {head.version} in format {head.format}, and this is {VERSION}, which "
            f"reads formats up to {FORMAT}; use a version at least as new"
        )
    return head


Started = Callable[[Path], AbstractAsyncContextManager[tuple[Link, int]]]
"""Runs a server on a folder that has a backup's files: an administrator's link to it, and the bytes of its store."""


async def restore(path: Path, folder: Path, started: Started) -> BackupContent:
    """
    Make a data folder from a backup; there is no folder before all is in it and on disk.

    Parameters
    ----------
    folder : Path
        Must not exist, or be empty.
    started : Started

    Raises
    ------
    BackupError
        If the file is not whole, or the folder holds something.
    BusError
        If the server refuses a stream.
    """
    content = check(path)
    with _new_folder(folder) as part:
        _restore_files(path, part)
        async with started(part) as (link, store_bytes):
            await _restore_streams(path, link, store_bytes)
    return content


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """Make a folder that gets its name when all in it is on disk."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BackupError(f"{folder} is not empty; name a folder that does not exist yet with --data")
    part = folder.with_name(folder.name + ".restoring")
    if part.exists():
        raise BackupError(f"{part} is left of a restore that was killed, or of one that goes on; remove it first")
    try:
        part.mkdir(mode=_FOLDER, parents=True)
        yield part
        for where, _, names in os.walk(part):
            for name in names:
                _sync(Path(where, name))
            _sync(Path(where))
        if folder.exists():
            folder.rmdir()
        part.replace(folder)
        _sync(folder.parent)
    except OSError as error:
        raise BackupError(f"{folder} cannot be made: {error.strerror or error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _restore_files(path: Path, folder: Path) -> None:
    with _opened(path) as archive:
        for name, file in _members(path, archive):
            kind, _, rest = name.partition("/")
            if kind == "files" and not _is_of_logins(inside := _inside(path, rest)):
                target = folder / inside
                target.parent.mkdir(mode=_FOLDER, parents=True, exist_ok=True)
                descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
                with os.fdopen(descriptor, "wb") as copy:
                    shutil.copyfileobj(file, copy, _READ_BYTES)


async def _restore_streams(path: Path, link: Link, store_bytes: int) -> None:
    with _opened(path) as archive:
        copied = ((name, file.read()) for name, file in _members(path, archive) if name.startswith("streams/"))
        for _, members in groupby(copied, key=lambda member: member[0].split("/")[1]):
            parts = iter(members)
            copy = _decoded(path, *next(parts), StreamCopy)
            await copy_in(link, copy, _bodies(parts), streams.of_today(copy.config, copy.state, store_bytes))


async def _bodies(members: Iterator[tuple[str, bytes]]) -> AsyncIterator[bytes]:
    for _, body in members:
        yield body


@contextmanager
def _opened(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with gzip.open(path, "rb") as packed, tarfile.open(fileobj=packed, mode="r|") as archive:
            yield archive
            while packed.read(_READ_BYTES):  # the sum at the very end is looked at too
                pass
    except (gzip.BadGzipFile, tarfile.TarError, zlib.error, EOFError) as error:
        raise BackupError(f"{path} is torn or damaged, or no backup at all: {error}; take another backup") from error
    except OSError as error:
        raise BackupError(f"{path} cannot be read: {error.strerror or error}") from error


def _members(path: Path, archive: tarfile.TarFile) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield each member; it has to be read before the next one is asked for."""
    for info in archive:
        file = archive.extractfile(info) if info.isreg() else None
        if file is None:
            raise BackupError(f"{path}: {info.name} is no plain file, and no backup holds such; take another backup")
        yield info.name, file


class _Summed:
    """A file that counts and sums what is read of it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._sum = file, hashlib.sha256()
        self.count = 0

    def read(self, most: int = -1) -> bytes:
        body = self._file.read(most)
        self._sum.update(body)
        self.count += len(body)
        return body

    def member(self, name: str) -> Member:
        while self.read(_READ_BYTES):
            pass
        return Member(name=name, bytes=self.count, sha256=self._sum.hexdigest())


def _inside(path: Path, name: str) -> PurePosixPath:
    """Return the path of a file within the data folder; refuse one that leads out of it."""
    found = PurePosixPath(name)
    if found.is_absolute() or ".." in found.parts or not found.parts:
        raise BackupError(f"{path} is no backup of Penstock: {name!r} is outside of a data folder")
    return found


def _decoded(path: Path, name: str, body: bytes, type_: Any) -> Any:
    try:
        return msgspec.json.decode(body, type=type_)
    except msgspec.MsgspecError as error:
        raise BackupError(f"{path}: {name} is not what a backup holds: {error}; take another backup") from error


def _sync(path: Path) -> None:
    """Have a file, or the names in a folder, on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
