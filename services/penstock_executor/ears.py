"""The executor's side of the socket that jobs talk to: lines in, lines out, and nobody who is not of the run."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import struct
import tempfile
from pathlib import Path
from typing import Final, Protocol, cast

import msgspec
import structlog

from penstock_events.agent import VERSION, FromJob, Hello, ToJob

LONGEST_LINE: Final = 256 * 1024
LONGEST_PATH: Final = 100
"""Bytes; the kernel takes 107."""
_decoder: Final[msgspec.json.Decoder[FromJob]] = msgspec.json.Decoder(FromJob)
_encoder: Final = msgspec.json.Encoder()
_log = structlog.get_logger("penstock.executor")


class Ears(Protocol):
    """Who listens."""

    def greet(self, line: Line, hello: Hello) -> bool:
        """Take a process in; False if it is not the one that it says it is."""

    def hear(self, line: Line, message: FromJob) -> None:
        """Take in what a process that was taken in says."""

    def gone(self, line: Line) -> None:
        """Let go of a process whose connection has ended."""


class Line(asyncio.Protocol):
    """
    One connection.

    Attributes
    ----------
    pid, uid : int
        Of the process at the other end, by the kernel's word.
    hello : Hello or None
        What it said first, once it was believed.
    closed : asyncio.Event
        Set when everything that it ever said has been heard.
    """

    def __init__(self, ears: Ears) -> None:
        self.pid = self.uid = -1
        self.hello: Hello | None = None
        self.closed = asyncio.Event()
        self._ears = ears
        self._rest = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask the kernel who it is."""
        self._transport = cast("asyncio.Transport", transport)
        self.pid, self.uid = _peer(transport.get_extra_info("socket").fileno())
        if self.uid != os.getuid():
            self._refuse("another user's process", uid=self.uid)

    def data_received(self, data: bytes) -> None:
        """Understand whole lines; keep the beginning of the next."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            self._refuse("a line without an end", length=len(self._rest))
            return
        for line in lines:
            if self._transport is None:
                return
            self._understand(line)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Say so, if anybody was told of it."""
        self._transport = None
        self.closed.set()
        if self.hello is not None:
            self._ears.gone(self)

    def say(self, message: ToJob) -> None:
        """Send a line; what cannot be sent any more is dropped."""
        if self._transport is not None:
            self._transport.write(_encoder.encode(message) + b"\n")

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()

    def _understand(self, line: bytes) -> None:
        try:
            message = _decoder.decode(line)
        except msgspec.MsgspecError as error:
            self._refuse("a line that is no message", line=line[:200], error=str(error))
            return
        if self.hello is not None:
            self._ears.hear(self, message)
        elif not isinstance(message, Hello):
            self._refuse("a process that did not say hello first")
        elif message.version != VERSION:
            self._refuse("a process of another version", version=message.version, expected=VERSION)
        elif self._ears.greet(self, message):
            self.hello = message
        else:
            self._refuse("a process that is not of that run", job_id=message.job_id, epoch=message.epoch)

    def _refuse(self, what: str, **details: object) -> None:
        _log.warning("agent_connection_refused", what=what, pid=self.pid, **details)
        if self._transport is not None:
            self._transport.abort()
            self._transport = None


def _peer(fd: int) -> tuple[int, int]:
    """Return pid and uid of the other end; a copy of the descriptor, because loops wrap their sockets differently."""
    with socket.socket(fileno=os.dup(fd)) as copy:
        pid, uid, _ = struct.unpack("3i", copy.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def path_in(data: Path, name: str = "agent") -> Path:
    """
    Return where a socket is: in the data folder, or under the temporary folder where that path is too long.

    It is the same at every start, since jobs of an earlier one look for it.
    """
    path = data / f"{name}.sock"
    if len(os.fsencode(path)) <= LONGEST_PATH:
        return path
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o077:
        raise PermissionError(
            f"{folder} is open to others; remove it, or use a data_dir with a shorter path than {data}"
        )
    return folder / f"{digest}.sock"


def bind(path: Path) -> socket.socket:
    """Return the listening socket, readable and writable for this user alone from its first moment."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    return listener
