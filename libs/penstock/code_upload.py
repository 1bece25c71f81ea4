"""
Upload of a folder: what the cluster has of it already stays there, and the rest is sent.

:func:`upload` asks which parts are missing, sends them, and asks again until nothing is. It waits for one answer at a
time, so that it works with and without an event loop.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, Union

import msgspec

from penstock import code_folder
from penstock.code_folder import CodeFolder, FolderScan
from penstock_bus.errors import BusError, ServiceError, TooLarge
from penstock_log import code_tree
from penstock_log.code_tree import TreePart
from penstock_log.request_bodies import PartsRequest, UploadRequest
from penstock_log.text import count, gibibytes, listed
from penstock_log.views import UploadView

T = TypeVar("T")
Ask = Callable[[str, bytes], Awaitable[UploadView]]
"""Asks the gateway by a command's name and a body."""
Aside = Callable[[Callable[[], T]], Awaitable[T]]
"""Returns what a function returns that reads files, which may take long."""
_TOO_LARGE: Final = 413
_HEADROOM: Final = 16 * 1024
_MOST_PARTS: Final = 2000
"""Parts of a request, however small they are: it is answered once they are stored."""
_ROUNDS: Final = 8
_SHOWN: Final = 6


class UploadedCode(msgspec.Struct, frozen=True, kw_only=True):
    """
    A folder that the cluster has.

    Attributes
    ----------
    digest : str
        What a job names as its ``code``.
    files, size_bytes : int
        What the folder has.
    sent_bytes : int
        What was not there yet.
    left_out : dict of str to int
        Names of what was not uploaded, and how many there are of each.
    """

    digest: str
    files: int
    size_bytes: int
    sent_bytes: int
    left_out: dict[str, int] = {}

    @property
    def text(self) -> str:
        """
        What became of the folder, in words.

        Examples
        --------
        >>> UploadedCode(digest="0f" * 32, files=2, size_bytes=10, sent_bytes=0, left_out={".git": 1}).text
        'code 0f0f0f0f0f0f: 2 files of 10 B, all of it there already, 0 B uploaded (left out: .git)'
        """
        sent = gibibytes(self.sent_bytes)
        how = f"{sent} uploaded" if self.sent_bytes else f"all of it there already, {sent} uploaded"
        names = [f"{name} ({times})" if times > 1 else name for name, times in list(self.left_out.items())[:_SHOWN]]
        more = [f"{len(self.left_out) - _SHOWN} more"] if len(self.left_out) > _SHOWN else []
        aside = f" (left out: {listed([*names, *more])})" if names else ""
        return f"code {self.digest[:12]}: {count(self.files, 'file')} of {gibibytes(self.size_bytes)}, {how}{aside}"


async def upload(
    ask: Ask,
    workdir: Union[str, os.PathLike[str]],
    user: str,
    most_bytes: int,
    needed: Sequence[str] = (),
    *,
    aside: Aside[Any],
) -> UploadedCode:
    """
    Upload what the cluster does not have of a folder.

    Parameters
    ----------
    user : str
        Whose jobs may use it; empty: those of who asks.
    most_bytes : int
        The largest body of a request.
    needed : sequence of str
        Files of the folder that jobs begin with, relative to it: one that is there must not be left out.
    aside : callable
        Where files are read: in a thread, where there is an event loop.

    Raises
    ------
    CodeFolderError
        If the folder cannot be uploaded as it is.
    ServiceError
        413 where it is too large: the message names the largest files.
    """
    folder = _absolute(workdir)
    found: FolderScan = await aside(lambda: code_folder.scan(folder))
    found.require(needed)
    try:
        asked = UploadRequest(user=user, files=found.files, size_bytes=found.size_bytes)
        await ask("upload", msgspec.json.encode(asked))  # whoever has too much hears so before all of it is hashed
        return await _upload(ask, found, await aside(lambda: code_folder.read(found)), user, most_bytes)
    except ServiceError as error:
        if error.code != _TOO_LARGE or not found.files:
            raise
        advice = f"name what a job does not need in {code_folder.IGNORE_FILE}"
        raise ServiceError(error.code, f"{error}. The largest of {folder}: {found.largest()}; {advice}") from error


def _absolute(workdir: Union[str, os.PathLike[str]]) -> Path:
    return Path(os.path.expanduser(workdir)).absolute()


async def _upload(ask: Ask, found: FolderScan, code: CodeFolder, user: str, most_bytes: int) -> UploadedCode:
    if most_bytes < code_tree.PART_BYTES + _HEADROOM:
        raise TooLarge(
            f"the server takes messages of {most_bytes} bytes, and files are sent in parts of {code_tree.PART_BYTES}; "
            "raise its max_payload"
        )
    manifest = code_tree.encode(code.tree)
    pieces, files = code_tree.split(manifest), code_tree.all_parts(code.tree)
    digest, size = code_tree.digest_of(manifest), code.tree.size_bytes
    asked = UploadRequest(
        user=user,
        digest=digest,
        parts=tuple((code_tree.digest_of(piece), len(piece)) for piece in pieces),
        files=code.tree.files,
        size_bytes=size,
    )
    sent = 0
    for _ in range(_ROUNDS):  # what was removed in the middle is asked for again
        answer = await ask("upload", msgspec.json.encode(asked))
        if answer.ready:
            left_out = dict(found.left_out)
            return UploadedCode(
                digest=digest, files=code.tree.files, size_bytes=size, sent_bytes=sent, left_out=left_out
            )
        if answer.wanted == "list":
            bodies: Iterator[bytes] = (pieces[index] for index in answer.missing)
        else:
            bodies = _bodies(code, [files[index] for index in answer.missing])
        more = await _send(ask, bodies, user, most_bytes)
        sent += more if answer.wanted == "files" else 0
    raise BusError("the cluster kept asking for what was sent already; is its store for code full? try again later")


def _bodies(code: CodeFolder, parts: Sequence[TreePart]) -> Iterator[bytes]:
    return (code.part(part) for part in parts)


async def _send(ask: Ask, bodies: Iterator[bytes], user: str, most_bytes: int) -> int:
    """Send parts, as many at a time as a request has room for; return how many bytes they had."""
    room, sent = most_bytes - _HEADROOM, 0
    some: list[bytes] = []
    size = 0
    for body in bodies:
        if some and (size + len(body) + 8 > room or len(some) == _MOST_PARTS):
            await ask("upload_parts", msgspec.msgpack.encode(PartsRequest(parts=tuple(some), user=user)))
            some, size = [], 0
        some.append(body)
        size += len(body) + 8
        sent += len(body)
    if some:
        await ask("upload_parts", msgspec.msgpack.encode(PartsRequest(parts=tuple(some), user=user)))
    return sent
