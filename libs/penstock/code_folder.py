"""
A folder of the submitter's as a code tree: which of its files belong to it, and what they hold.

:func:`scan` lists what is to be uploaded, without what nobody wants (``.git``, ``.venv`` and so on) and what a
``.penstockignore`` names in the syntax of ``.gitignore``. :func:`read` reads and hashes it. Links that lead out of the
folder, files that cannot be read, and files that change all the time are refused by name: a job that misses a file
fails hours later, far from whoever could have helped it.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from penstock_log import code_tree
from penstock_log.code_tree import PART_BYTES, CodeTree, TreeEntry, TreePart
from penstock_log.text import gibibytes, listed
from penstock_log.validation import BadInput

IGNORE_FILE: Final = ".penstockignore"
LEFT_OUT: Final = (".git", "__pycache__/", ".venv/", "penstock-data/")
"""What is left out unless a ``.penstockignore`` takes it in: ``!.git``."""
_TRIES: Final = 3
_SHOWN: Final = 5


class CodeFolderError(BadInput):
    """A folder cannot be uploaded; the message names the files, and says what to do."""


class FolderEntry(NamedTuple):
    """What lies in the folder: its path relative to it, and its status."""

    path: bytes
    status: os.stat_result


class FolderScan(NamedTuple):
    """
    What is to be uploaded of a folder.

    Attributes
    ----------
    left_out : Counter of str
        Names of what is not uploaded, and how many there are of each.
    """

    folder: Path
    entries: list[FolderEntry]
    left_out: Counter[str]

    @property
    def files(self) -> int:
        """The number of its files."""
        return sum(stat.S_ISREG(entry.status.st_mode) for entry in self.entries)

    @property
    def size_bytes(self) -> int:
        """The size of all files together."""
        return sum(entry.status.st_size for entry in self.entries if stat.S_ISREG(entry.status.st_mode))

    def require(self, names: Iterable[str]) -> None:
        """
        Check that files are not left out.

        Raises
        ------
        CodeFolderError
            If one of them is in the folder, and is not to be uploaded.
        """
        there = {entry.path for entry in self.entries}
        for name in names:
            path = os.path.normpath(os.fsencode(name))
            above = {path[:at] for at in range(len(path)) if path[at : at + 1] == b"/"}  # a link may lead on
            if (self.folder / name).is_file() and path not in there and not above & there:
                raise CodeFolderError(
                    f"{name} is in {self.folder}, and is left out by {IGNORE_FILE} or by default ({listed(LEFT_OUT)}), "
                    f"though the job begins with it; take it in with a line !{name} in {IGNORE_FILE}"
                )

    def largest(self) -> str:
        """Return the names and sizes of the largest files, as a message says them."""
        files = sorted((-entry.status.st_size, entry.path) for entry in self.entries if _is_file(entry))
        return listed([f"{_shown(path)} ({gibibytes(-size)})" for size, path in files[:_SHOWN]])


class CodeFolder(NamedTuple):
    """
    A folder that was read.

    Attributes
    ----------
    places : dict of TreePart to (bytes, int)
        Of each part, the path of a file that has it, and where in the file it begins.
    """

    folder: Path
    tree: CodeTree
    places: dict[TreePart, tuple[bytes, int]]

    def part(self, part: TreePart) -> bytes:
        """
        Return a part's bytes.

        Raises
        ------
        CodeFolderError
            If the file has changed since it was read.
        """
        path, offset = self.places[part]
        try:
            with open(os.path.join(os.fsencode(self.folder), path), "rb") as file:
                file.seek(offset)
                data = file.read(part.size)
        except OSError as error:
            raise CodeFolderError(f"{_shown(path)} cannot be read any more: {error.strerror or error}") from error
        if code_tree.digest_of(data) != part.digest:
            raise CodeFolderError(f"{_shown(path)} has changed while it was uploaded; submit again once it is done")
        return data


def scan(folder: Path) -> FolderScan:
    """
    List what is to be uploaded of a folder.

    Raises
    ------
    CodeFolderError
        If it is no folder, or a part of it cannot be listed.
    """
    if not folder.is_dir():
        raise CodeFolderError(f"{folder} is no folder; give the one in which the job's files are (--workdir)")
    if folder.resolve() == Path(folder.anchor):
        raise CodeFolderError(
            f"{folder} is the whole file system; give the folder in which the job's files are (--workdir)"
        )
    found = FolderScan(folder, [], Counter())
    unreadable: list[str] = []
    _walk(found, b"", _Ignored(folder), unreadable)
    _refuse(unreadable, "cannot be listed", f"let yourself read them, or name them in {IGNORE_FILE}")
    found.entries.sort(key=lambda entry: entry.path)
    return found


def _walk(found: FolderScan, below: bytes, ignored: _Ignored, unreadable: list[str]) -> bool:
    """Add what lies in a folder and in those below it; return whether there was anything."""
    before = len(found.entries)
    try:
        entries = sorted(os.scandir(os.path.join(os.fsencode(found.folder), below)), key=lambda entry: entry.name)
    except OSError:
        unreadable.append(_shown(below or b"."))
        return True
    for entry in entries:
        path = os.path.join(below, entry.name)
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue  # removed since it was listed
        except OSError:
            unreadable.append(_shown(path))
            continue
        is_folder = stat.S_ISDIR(status.st_mode)
        known = is_folder or stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)
        if not known or ignored(path, is_folder=is_folder):
            found.left_out[_shown(entry.name)] += 1
        elif path.count(b"/") >= code_tree.MOST_NAMES:
            raise CodeFolderError(
                f"{_shown(path[:80])}… lies in more than {code_tree.MOST_NAMES - 1} folders; name one of them in "
                f"{IGNORE_FILE}"
            )
        elif not is_folder or not _walk(found, path, ignored, unreadable):
            found.entries.append(FolderEntry(path, status))
    return len(found.entries) > before


class _Ignored:
    """What is not to be uploaded, by what ``.penstockignore`` says."""

    def __init__(self, folder: Path) -> None:
        from pathspec import GitIgnoreSpec  # noqa: PLC0415 - who submits no folder needs no patterns

        lines: list[str] = []
        path = folder / IGNORE_FILE
        try:
            lines = path.read_text("utf-8", "surrogateescape").splitlines()
        except FileNotFoundError:
            pass
        except OSError as error:
            raise CodeFolderError(f"{path} cannot be read: {error.strerror or error}") from error
        try:
            self._spec = GitIgnoreSpec.from_lines([*LEFT_OUT, *lines])
        except ValueError as error:
            raise CodeFolderError(f"{path} has a pattern that is none: {error}") from error

    def __call__(self, path: bytes, *, is_folder: bool) -> bool:
        return self._spec.match_file(os.fsdecode(path) + "/" * is_folder)


def read(found: FolderScan) -> CodeFolder:
    """
    Read and hash what a scan has listed.

    Raises
    ------
    CodeFolderError
        If a link leads out of the folder, or a file cannot be read or changes all the time.
    """
    root = os.path.realpath(os.fsencode(found.folder))
    leaving, unreadable, entries = list[str](), list[str](), list[TreeEntry]()
    for path, status in found.entries:
        if stat.S_ISDIR(status.st_mode):
            entries.append(TreeEntry(path, "folder"))
        elif stat.S_ISLNK(status.st_mode):
            try:
                target = _link_target(root, path)
            except OSError as error:
                unreadable.append(f"{_shown(path)} ({error.strerror or error})")
                continue
            if target:
                entries.append(TreeEntry(path, "link", target=target))
            else:
                leaving.append(_shown(path))
        else:
            try:
                entries.append(_file_entry(root, path))
            except OSError as error:
                unreadable.append(f"{_shown(path)} ({error.strerror or error})")
    aside = f"or name them in {IGNORE_FILE}"
    _refuse(leaving, "lead out of the folder, and nodes do not have what they lead to", f"copy it there, {aside}")
    _refuse(unreadable, "cannot be read", f"let yourself read them, {aside}")
    tree = CodeTree(tuple(entries))
    return CodeFolder(found.folder, tree, dict(_places(tree)))


def _places(tree: CodeTree) -> Iterator[tuple[TreePart, tuple[bytes, int]]]:
    for entry in tree.entries:
        for index, part in enumerate(code_tree.parts_of(entry)):
            yield part, (entry.path, index * PART_BYTES)


def _file_entry(root: bytes, path: bytes) -> TreeEntry:
    """Return a file's entry; it is read again while it changes."""
    for _ in range(_TRIES):
        with open(os.path.join(root, path), "rb") as file:
            before = os.fstat(file.fileno())
            whole, parts, size = hashlib.sha256(), list[bytes](), 0
            while piece := file.read(PART_BYTES):
                whole.update(piece)
                parts.append(hashlib.sha256(piece).digest())
                size += len(piece)
            after = os.fstat(file.fileno())
        if (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns) and size == after.st_size:
            mode = code_tree.EXECUTABLE if after.st_mode & stat.S_IXUSR else code_tree.PLAIN
            several = tuple(parts) if size > PART_BYTES else ()
            return TreeEntry(path, "file", mode, size, whole.digest(), parts=several)
    raise CodeFolderError(
        f"{_shown(path)} changes while it is read; wait until whoever writes it is done, or name it in {IGNORE_FILE}"
    )


def _link_target(root: bytes, path: bytes) -> bytes:
    """Return where a link leads to, relative to it; empty where it leads out of the folder."""
    link = os.path.join(root, path)
    target = os.readlink(link)
    real = os.path.realpath(os.path.join(os.path.dirname(link), target))
    if real != root and not real.startswith(root + b"/"):
        return b""
    if os.path.isabs(target) or code_tree.turns_back(target):
        target = os.path.relpath(real, os.path.realpath(os.path.dirname(link)))
    return target if code_tree.stays_inside(path, target) else b""


def _refuse(names: Iterable[str], what: str, advice: str) -> None:
    found = list(names)
    if found:
        more = f" and {len(found) - _SHOWN:,} more" if len(found) > _SHOWN else ""
        raise CodeFolderError(f"{listed(found[:_SHOWN])}{more} {what}; {advice}")


def _is_file(entry: FolderEntry) -> bool:
    return stat.S_ISREG(entry.status.st_mode)


def _shown(path: bytes) -> str:
    """Return a path as a message shows it, whatever its name."""
    text = path.decode(errors="backslashreplace")
    return text if text.isprintable() else ascii(text)[1:-1]
