"""
Copies of a job's checkpoint in the memory of other nodes: how a process makes two of them, and how one is read again.

A checkpoint's folder becomes one archive: the length of its manifest (u64, network order), the manifest, and the files
that the manifest has, in its order and one after the other. The manifest has their sizes, so nothing else is needed to
take it apart. Each copy lies whole on a node, in slabs that are filled in their order.

:class:`CopyAgent` is the talk with the node's agent, and waits for its answers; a process that saves waits anyway.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType
from typing import Final, TypeVar

import msgspec

from penstock.memory.agent_link import hello_of
from penstock.memory.slab_binding import SlabBinding, SlabLost, bind_slab
from penstock_log.memory_messages import (
    AgentWelcome,
    ClientRefused,
    CopiesKept,
    CopiesPlaced,
    CopyFound,
    EvictSlab,
    FindCopy,
    FromClient,
    KeepCopies,
    NoCopies,
    PlaceCopies,
    SlabAddress,
    ToClient,
)

ANSWER_S: Final = 5.0
PIECE_BYTES: Final = 1 << 20
"""So that a piece is still in the processor's cache when it is written the second time."""
LENGTH: Final = struct.Struct("!Q")
AnswerT = TypeVar("AnswerT", AgentWelcome, CopiesPlaced, CopiesKept, CopyFound)


class CopiesUnavailable(Exception):
    """No copies can be made, or the copy cannot be read; the message says why."""


class CopyAgent:
    """
    The node's agent, as who makes or reads copies of a checkpoint talks to it.

    Raises
    ------
    CopiesUnavailable
        If no agent answers at ``path``.
    """

    def __init__(self, path: str, name: str = "checkpoint") -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(ANSWER_S)
        self._path, self._rest = path, b""
        try:
            self._socket.connect(path)
            self._ask(hello_of(name), AgentWelcome)
        except OSError as error:
            self._socket.close()
            message = f"no memory agent answers at {path}: {error.strerror or error}"
            raise CopiesUnavailable(message) from error
        except CopiesUnavailable:
            self._socket.close()
            raise

    def __enter__(self) -> CopyAgent:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Hang up; what was placed and not kept is given back by that."""
        self._socket.close()

    def place(self, size: int) -> Sequence[Sequence[SlabAddress]]:
        """Return the slabs of two copies of so many bytes; raises CopiesUnavailable."""
        return self._ask(PlaceCopies(size=size), CopiesPlaced).copies

    def keep(self, job_id: str, *, generation: int, step: int, digest: str) -> tuple[str, ...]:
        """Have the copies that were placed last kept for a job; return the nodes. Raises CopiesUnavailable."""
        return self._ask(KeepCopies(job_id=job_id, generation=generation, step=step, digest=digest), CopiesKept).nodes

    def find(self, job_id: str, step: int, digest: str, nodes: Iterable[str]) -> CopyFound:
        """Return where a copy is, on one of these nodes; raises CopiesUnavailable."""
        return self._ask(FindCopy(job_id=job_id, step=step, digest=digest, nodes=tuple(nodes)), CopyFound)

    def _ask(self, message: FromClient, kind: type[AnswerT]) -> AnswerT:
        try:
            self._socket.sendall(msgspec.json.encode(message) + b"\n")
            answer = self._answer()
        except OSError as error:
            why = f"the memory agent at {self._path} gave no answer: {error.strerror or error}"
            raise CopiesUnavailable(why) from error
        except msgspec.MsgspecError as error:
            why = f"the memory agent at {self._path} answered what is no message: {error}"
            raise CopiesUnavailable(why) from error
        if isinstance(answer, kind):
            return answer
        why = answer.reason if isinstance(answer, (NoCopies, ClientRefused)) else f"unexpected {type(answer).__name__}"
        raise CopiesUnavailable(why)

    def _answer(self) -> ToClient:
        while b"\n" not in self._rest:
            data = self._socket.recv(65_536)
            if not data:
                raise ConnectionResetError("it hung up")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        message = msgspec.json.decode(line, type=ToClient)
        # a slab that goes meanwhile is noticed where it is written, or where its donor is to keep it
        return self._answer() if isinstance(message, EvictSlab) else message


def archive_bytes(manifest: bytes, sizes: Iterable[int]) -> int:
    """Return the size of an archive."""
    return LENGTH.size + len(manifest) + sum(sizes)


def write_copies(copies: Sequence[Sequence[SlabAddress]], folder: Path, manifest: bytes, names: Sequence[str]) -> None:
    """
    Write a checkpoint's folder into the slabs of all copies; each piece of it is read once.

    Raises
    ------
    CopiesUnavailable
        If a donor is lost on the way.
    OSError
        If a file cannot be read.
    """
    with ExitStack() as stack:
        writers = [stack.enter_context(closing(_SlabWriter(slabs))) for slabs in copies]
        try:
            for piece in _pieces(folder, manifest, names):
                for writer in writers:
                    writer.write(piece)
        except SlabLost as error:
            raise CopiesUnavailable(str(error)) from error


def read_copy(slabs: Sequence[SlabAddress], size: int) -> Generator[memoryview, None, None]:
    """
    Yield the bytes of an archive in pieces; each is good until the next one is asked for.

    Raises
    ------
    CopiesUnavailable
        If a slab is lost.
    """
    buffer = memoryview(bytearray(PIECE_BYTES))
    for address in slabs:
        here = min(size, address.slab_bytes)
        try:
            with closing(bind_slab(address)) as binding:
                for offset in range(0, here, PIECE_BYTES):
                    piece = buffer[: min(PIECE_BYTES, here - offset)]
                    binding.read_into(offset, piece)
                    yield piece
        except SlabLost as error:
            raise CopiesUnavailable(str(error)) from error
        size -= here
    if size:
        message = f"the copy's slabs have {size} bytes less than it"
        raise CopiesUnavailable(message)


class _SlabWriter:
    """Slabs that are filled one after the other."""

    def __init__(self, slabs: Sequence[SlabAddress]) -> None:
        self._slabs = iter(slabs)
        self._binding: SlabBinding | None = None
        self._offset = 0

    def write(self, data: memoryview) -> None:
        while data:
            if self._binding is None or self._offset == self._binding.slab_bytes:
                self.close()
                self._binding, self._offset = bind_slab(self._next_slab()), 0
            part = data[: self._binding.slab_bytes - self._offset]
            self._binding.write(self._offset, part)
            self._offset += len(part)
            data = data[len(part) :]

    def _next_slab(self) -> SlabAddress:
        for address in self._slabs:
            return address
        message = "the checkpoint has become larger than the slabs that were placed for it"
        raise CopiesUnavailable(message)

    def close(self) -> None:
        if self._binding is not None:
            self._binding.close()
            self._binding = None


def _pieces(folder: Path, manifest: bytes, names: Sequence[str]) -> Iterator[memoryview]:
    yield memoryview(LENGTH.pack(len(manifest)) + manifest)
    buffer = memoryview(bytearray(PIECE_BYTES))
    for name in names:
        with (folder / name).open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                yield buffer[:count]
