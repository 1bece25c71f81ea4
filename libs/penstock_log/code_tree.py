"""
Code trees: the files of a folder in which a job runs, named by their content.

A tree is a list of :class:`TreeEntry`: files with their size and SHA-256, links, and empty folders. :func:`encode`
writes it as bytes (the *manifest*), and the SHA-256 of these is the tree's digest, which a specification holds as
``code``. What a tree needs is stored in *parts* of at most :data:`PART_BYTES`, each under its own SHA-256, so a part
that two trees have in common is stored once. The client makes trees, the gateway keeps them, and executors lay them
out; :func:`problem` is the check that the last two make, since a tree comes from a user.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal, NamedTuple

import msgspec

PART_BYTES: Final = 480 * 1024
"""Two of these fit into a message of the size that a NATS server takes by default, 1 MiB."""
FORMAT: Final = 1
EXECUTABLE: Final = 0o755
PLAIN: Final = 0o644
_DIGEST_BYTES: Final = 32
MOST_LINK_BYTES: Final = 4095
MOST_PATH_BYTES: Final = 2048
"""Half of what Linux takes, so that there is room for the folder that it is in."""
MOST_NAME_BYTES: Final = 255
MOST_NAMES: Final = 128
"""In one path: what lays a tree out, and removes it, may go down by recursion."""


class BadTree(Exception):
    """A manifest is none, or would write outside of its folder; the message says what is wrong."""


class TreeEntry(msgspec.Struct, frozen=True, array_like=True):
    """
    One file, link or empty folder of a tree.

    Attributes
    ----------
    path : bytes
        Relative to the folder, as the file system has it: a name need not be text.
    kind : {"file", "link", "folder"}
    mode : int
        Of a file: ``0o755`` if its owner may execute it, else ``0o644``.
    size : int
        Of a file, in bytes.
    sha256 : bytes
        Of a file.
    target : bytes
        Of a link, relative to where the link is.
    parts : tuple of bytes
        The SHA-256 of each part, of a file that has several.
    """

    path: bytes
    kind: Literal["file", "link", "folder"]
    mode: int = PLAIN
    size: int = 0
    sha256: bytes = b""
    target: bytes = b""
    parts: tuple[bytes, ...] = ()


class CodeTree(msgspec.Struct, frozen=True, array_like=True):
    """A folder's content, sorted by path."""

    entries: tuple[TreeEntry, ...]
    format: int = FORMAT

    @property
    def files(self) -> int:
        """The number of its files."""
        return sum(entry.kind == "file" for entry in self.entries)

    @property
    def size_bytes(self) -> int:
        """The size of all files together."""
        return sum(entry.size for entry in self.entries)


class TreePart(NamedTuple):
    """A part of a file, or of a manifest: its SHA-256 in hexadecimal, and its size in bytes."""

    digest: str
    size: int


def encode(tree: CodeTree) -> bytes:
    """Return the manifest of a tree; the same content gives the same bytes."""
    return msgspec.msgpack.encode(tree)


def decode(manifest: bytes) -> CodeTree:
    """
    Return the tree of a manifest.

    Raises
    ------
    BadTree
        If it is none, or one of a later version, or :func:`problem` finds something.
    """
    try:
        tree = msgspec.msgpack.decode(manifest, type=CodeTree)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadTree(f"what was uploaded is no list of files: {error}") from error
    if tree.format != FORMAT:
        raise BadTree(f"the list of files is of format {tree.format}, and this version reads {FORMAT}; upgrade it")
    if wrong := problem(tree):
        raise BadTree(wrong)
    return tree


def digest_of(data: bytes) -> str:
    """Return the SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def is_digest(text: str) -> bool:
    """
    Say whether a text is a SHA-256 in small hexadecimal digits.

    Examples
    --------
    >>> is_digest("0" * 64), is_digest("../0"), is_digest("A" * 64)
    (True, False, False)
    """
    return len(text) == 2 * _DIGEST_BYTES and set(text) <= set("0123456789abcdef")


def split(data: bytes) -> list[bytes]:
    """Return the parts of some bytes, in order."""
    return [data[at : at + PART_BYTES] for at in range(0, len(data), PART_BYTES)]


def sizes(size: int) -> list[int]:
    """
    Return the sizes of the parts of a file.

    Examples
    --------
    >>> sizes(0), sizes(10), sizes(PART_BYTES + 1) == [PART_BYTES, 1]
    ([], [10], True)
    """
    return [min(PART_BYTES, size - at) for at in range(0, size, PART_BYTES)]


def parts_of(entry: TreeEntry) -> list[TreePart]:
    """Return the parts of a file, in order; an empty one has none."""
    digests = entry.parts or ((entry.sha256,) if entry.size else ())
    return [TreePart(digest.hex(), size) for digest, size in zip(digests, sizes(entry.size))]


def all_parts(tree: CodeTree) -> list[TreePart]:
    """Return the parts of all files, each once, in the order of the files."""
    return list(dict.fromkeys(part for entry in tree.entries for part in parts_of(entry)))


def problem(tree: CodeTree) -> str:
    """
    Return what is wrong with a tree; empty where it can be laid out below a folder and nowhere else.

    Examples
    --------
    >>> problem(CodeTree((TreeEntry(b"../x", "folder"),)))
    "the path b'../x' does not lie in the folder"
    >>> problem(CodeTree((TreeEntry(b"a", "link", target=b"c"), TreeEntry(b"a/b", "folder"))))
    "b'a/b' lies in b'a', which is no folder"
    """
    leaves = {entry.path: entry.kind for entry in tree.entries}
    if len(leaves) < len(tree.entries):
        return "a path is there twice"
    return next((wrong for entry in tree.entries for wrong in _entry_problems(entry, leaves)), "")


def _entry_problems(entry: TreeEntry, leaves: Mapping[bytes, str]) -> Iterator[str]:
    if not is_inside(entry.path):
        yield f"the path {entry.path!r} does not lie in the folder"
    if len(entry.path) > MOST_PATH_BYTES or any(len(name) > MOST_NAME_BYTES for name in entry.path.split(b"/")):
        most = f"{MOST_PATH_BYTES} bytes, or a name in it than {MOST_NAME_BYTES}"
        yield f"the path {entry.path[:80]!r}… is longer than {most}"
    if entry.path.count(b"/") >= MOST_NAMES:
        yield f"the path {entry.path[:80]!r}… has more than {MOST_NAMES} names"
    for above in _above(entry.path):
        if above in leaves and leaves[above] != "folder":
            yield f"{entry.path!r} lies in {above!r}, which is no folder"
    if entry.kind == "file":
        expected = 0 if entry.size <= PART_BYTES else -(-entry.size // PART_BYTES)
        digests = (entry.sha256, *entry.parts)
        if entry.size < 0 or entry.mode not in {PLAIN, EXECUTABLE}:
            yield f"{entry.path!r} has a size or a mode that no file has"
        if len(entry.parts) != expected or any(len(one) != _DIGEST_BYTES for one in digests):
            yield f"{entry.path!r} does not say what is in it"
    if entry.kind == "link":
        yield from _link_problems(entry)


def _link_problems(entry: TreeEntry) -> Iterator[str]:
    if not stays_inside(entry.path, entry.target):
        yield f"the link {entry.path!r} leads out of the folder, to {entry.target!r}"
    if turns_back(entry.target):
        yield f"the link {entry.path!r} goes up again after a name, which may be a link, to {entry.target!r}"


def is_inside(path: bytes) -> bool:
    """Say whether a relative path is written so that it lies below where it begins."""
    parts = path.split(b"/")
    return b"\0" not in path and all(part not in {b"", b".", b".."} for part in parts)


def stays_inside(path: bytes, target: bytes) -> bool:
    """
    Say whether a link's target, as it is written, lies in the folder in which the link's path begins.

    Examples
    --------
    >>> stays_inside(b"a/b", b"../c"), stays_inside(b"a/b", b"../../c"), stays_inside(b"a", b"/c")
    (True, False, False)
    """
    if not target or len(target) > MOST_LINK_BYTES or target.startswith(b"/") or b"\0" in target:
        return False
    depth = path.count(b"/")
    for part in target.split(b"/"):
        depth += -1 if part == b".." else part not in {b"", b"."}
        if depth < 0:
            return False
    return True


def turns_back(target: bytes) -> bool:
    """
    Say whether a path goes up again after a name: where that name is a link, it leads elsewhere than it says.

    Examples
    --------
    >>> turns_back(b"../../a/b"), turns_back(b"a/../b"), turns_back(b"./..")
    (False, True, False)
    """
    parts = [part for part in target.split(b"/") if part not in {b"", b"."}]
    return any(part == b".." and before != b".." for before, part in zip(parts, parts[1:]))


def _above(path: bytes) -> Iterable[bytes]:
    parts = path.split(b"/")
    return (b"/".join(parts[:count]) for count in range(1, len(parts)))


class CodeRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    The gateway's record of a tree that a user has.

    Attributes
    ----------
    parts : tuple of (str, int)
        The parts of the manifest, in order.
    files, size_bytes : int
        Of the tree, as its user says.
    noted_s : float
        When it was last uploaded or submitted, in seconds since the epoch.
    """

    parts: tuple[TreePart, ...]
    files: int = 0
    size_bytes: int = 0
    noted_s: float = 0.0
