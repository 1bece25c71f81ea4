"""
Files of jobs' code on this node: kept by their content, and laid out in a folder for each run. Synchronous.

:class:`CodeCache` keeps files under their SHA-256, up to a bound; what was not used for the longest time goes first,
and never what a run that is about to start needs. :func:`lay_out` copies a tree's files into a folder, so that nothing
that a job writes reaches the cache. :class:`WorkFolders` are these folders.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import structlog

from penstock_executor import job_folders
from penstock_log.code_tree import BadTree, CodeTree, TreeEntry

CODE: Final = "code"
_FRESH: Final = "fresh"
_log = structlog.get_logger("penstock.executor")


class CodeCache:
    """
    Files by their content.

    Parameters
    ----------
    folder : Path
        The executor's own; nobody else may read there.
    most_bytes : int
        The most that all of them may take, as long as runs that are about to start need no more.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self.folder, self._most_bytes = folder, most_bytes
        self._pinned: Counter[str] = Counter()
        self._pinning = threading.Lock()
        """Held while files are pinned, and from the look whether one is until it is removed."""
        self._size = -1

    def path(self, digest: str) -> Path:
        """Return where the file of a digest is, if it is here."""
        return self.folder / digest[:2] / digest

    def missing(self, tree: CodeTree) -> list[TreeEntry]:
        """Return the files of a tree that are not here, each content once; the others count as used now."""
        wanted = {entry.sha256.hex(): entry for entry in tree.entries if entry.kind == "file" and entry.size}
        found = []
        for digest, entry in wanted.items():
            path = self.path(digest)
            try:
                if path.stat().st_size == entry.size:
                    os.utime(path)
                    continue
            except FileNotFoundError:
                pass
            found.append(entry)
        return found

    def add(self, entry: TreeEntry, bodies: Iterable[bytes]) -> None:
        """Keep a file whose parts have come; errors as for :meth:`fresh`."""
        with self.fresh(entry) as write:
            for body in bodies:
                write(body)

    @contextmanager
    def fresh(self, entry: TreeEntry) -> Iterator[Callable[[bytes], None]]:
        """
        Give what writes a file's parts in order; the file is here once the context has ended.

        Raises
        ------
        BadTree
            If the parts were not what the tree says.
        OSError
            If the disk does not take them.
        """
        digest = entry.sha256.hex()
        path = self.path(digest)
        fresh = self.folder / _FRESH / f"{digest}-{os.urandom(4).hex()}"
        path.parent.mkdir(mode=job_folders.OWNER_ONLY, parents=True, exist_ok=True)
        fresh.parent.mkdir(mode=job_folders.OWNER_ONLY, exist_ok=True)
        seen = hashlib.sha256()
        try:
            with fresh.open("xb") as file:

                def write(body: bytes) -> None:
                    seen.update(body)
                    file.write(body)

                yield write
            if seen.hexdigest() != digest:
                raise BadTree(f"what came of {entry.path!r} is not what was uploaded")
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)
        if self._size >= 0:
            self._size += entry.size

    @contextmanager
    def pinned(self, tree: CodeTree) -> Iterator[None]:
        """Remove none of a tree's files while the context is open."""
        digests = [entry.sha256.hex() for entry in tree.entries if entry.kind == "file"]
        with self._pinning:
            self._pinned.update(digests)
        try:
            yield
        finally:
            with self._pinning:
                self._pinned.subtract(digests)
                self._pinned += Counter()  # which drops the zeros

    def enter(self) -> None:
        """Remove what an earlier executor had not fetched completely."""
        shutil.rmtree(self.folder / _FRESH, ignore_errors=True)

    def evict(self) -> int:
        """Remove what was not used for the longest time, until the rest keeps to the bound; return how many files."""
        if 0 <= self._size <= self._most_bytes:
            return 0
        files = sorted(self._files())
        self._size = sum(size for _, size, _ in files)
        gone = 0
        for _, size, path in files:
            if self._size <= self._most_bytes:
                break
            with self._pinning:
                if self._pinned[path.name]:
                    continue
                path.unlink(missing_ok=True)
            self._size -= size
            gone += 1
        return gone

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        for path in self.folder.glob("??/*"):
            with suppress(FileNotFoundError):
                status = path.stat()
                yield status.st_mtime, status.st_size, path


def lay_out(tree: CodeTree, cache: CodeCache, folder: Path) -> None:
    """
    Make a folder with the files of a tree, which are all in the cache.

    Links come last, so that no file is written through one.

    Raises
    ------
    OSError
        If the disk does not take them.
    """
    root = os.fsencode(folder)
    folder.mkdir(mode=job_folders.OWNER_ONLY)
    made = {b""}
    for entry in tree.entries:
        _make_folders(root, entry.path if entry.kind == "folder" else os.path.dirname(entry.path), made)
    for entry in tree.entries:
        if entry.kind == "file":
            path = os.path.join(root, entry.path)
            if entry.size:
                shutil.copyfile(cache.path(entry.sha256.hex()), path)
            else:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            os.chmod(path, entry.mode)
    for entry in tree.entries:
        if entry.kind == "link":
            os.symlink(entry.target, os.path.join(root, entry.path))


def _make_folders(root: bytes, path: bytes, made: set[bytes]) -> None:
    missing = []
    while path not in made:
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        os.mkdir(os.path.join(root, folder), 0o755)
        made.add(folder)


class WorkFolders:
    """
    The folders in which runs work whose code was uploaded: ``JOB-EPOCH/code``, which is its user's alone.

    A folder stays for a while after its run, for people to look at; that of a job's next run here takes its place.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, key: tuple[str, int]) -> Path:
        """Return the folder of a run's code."""
        return self.folder / f"{key[0]}-{key[1]}" / CODE

    def make(self, key: tuple[str, int], tree: CodeTree, cache: CodeCache, owner: tuple[int, int] | None) -> None:
        """
        Lay a tree out for a run, anew if that was begun before, and give it to the run's user.

        Parameters
        ----------
        owner : tuple of int, optional
            Uid and gid; None: it stays the executor's.
        """
        job_folders.make_passable(self.folder)
        self._remove_older(key)
        path = self.path(key)
        job_folders.remove(path.parent)
        path.parent.mkdir(mode=job_folders.PASSABLE)
        lay_out(tree, cache, path)
        if owner is not None:
            job_folders.hand_over(path, *owner)

    def end(self, key: tuple[str, int]) -> None:
        """Note that a run is over: its folder's age counts from now."""
        with suppress(OSError):
            os.utime(self.path(key).parent)

    def remove(self, key: tuple[str, int]) -> None:
        """Remove the folder of a run that did not start."""
        job_folders.remove(self.path(key).parent)

    def expire(self, now_s: float, live: Container[tuple[str, int]], age_s: float) -> Sequence[str]:
        """Remove the folders of runs that ended that long ago; return their names."""
        gone = []
        for path, key in self._all():
            with suppress(OSError):
                if key not in live and path.stat().st_mtime < now_s - age_s:
                    job_folders.remove(path)
                    gone += [] if os.path.lexists(path) else [path.name]
        return gone

    def _remove_older(self, key: tuple[str, int]) -> None:
        for path, other in self._all():
            if other[0] == key[0] and other[1] < key[1]:
                job_folders.remove(path)

    def _all(self) -> Iterator[tuple[Path, tuple[str, int]]]:
        for path in self.folder.glob("*-*"):
            job_id, _, epoch = path.name.rpartition("-")
            if epoch.isdigit():
                yield path, (job_id, int(epoch))
