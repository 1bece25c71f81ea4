"""A store in memory, an NBD client of bare sockets for what no good client sends, and the clients of others."""

from __future__ import annotations

import errno
import shutil
import socket
import struct
import subprocess
import threading
from typing import Any, NamedTuple

import pytest

OPTION_MAGIC = 0x49484156454F5054
OPTION_REPLY_MAGIC = 0x3E889045565A9
REQUEST_MAGIC = 0x25609513
SIMPLE_MAGIC = 0x67446698
STRUCTURED_MAGIC = 0x668E33EF
GO, INFO, LIST, ABORT, EXPORT_NAME, STRUCTURED_REPLY = 7, 6, 3, 2, 1, 8
READ, WRITE, DISC, FLUSH, TRIM, WRITE_ZEROES = 0, 1, 2, 3, 4, 6
FUA, NO_HOLE, DF, FAST_ZERO = 1, 2, 4, 16
EIO, EINVAL, ENOSPC = 5, 22, 28
ACK, ERR_UNSUP, ERR_INVALID, ERR_UNKNOWN = 1, 1 << 31 | 1, 1 << 31 | 3, 1 << 31 | 6


class MemoryStore:
    """A store in memory, which can be made to fail and to wait."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.bytes = bytearray(size)
        self.calls: list[str] = []
        self.error: Exception | None = None
        self.entered = threading.Event()
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def _called(self, what: str) -> None:
        self.calls.append(what)
        self.entered.set()
        self.may_go_on.wait()
        if self.error is not None:
            raise self.error

    def read_into(self, offset: int, view: memoryview) -> None:
        self._called("read")
        view[:] = self.bytes[offset : offset + len(view)]

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        self._called("write")
        self.bytes[offset : offset + len(data)] = data

    def zero(self, offset: int, length: int) -> None:
        self._called("zero")
        self.bytes[offset : offset + length] = bytes(length)

    def discard(self, offset: int, length: int) -> None:
        self._called("discard")
        self.bytes[offset : offset + length] = bytes(length)

    def flush(self) -> None:
        self._called("flush")


def disk_full() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")


class Answer(NamedTuple):
    error: int
    data: bytes = b""
    reason: str = ""


class RawClient:
    """A client that sends whatever it is told to."""

    def __init__(self, address: Any) -> None:
        family = socket.AF_INET if isinstance(address, tuple) else socket.AF_UNIX
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.settimeout(20)
        self.socket.connect(address if isinstance(address, tuple) else str(address))
        self.structured = False

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def get(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            if not (more := self.socket.recv(count - len(data))):
                raise EOFError(f"the server hung up after {len(data)} of {count} bytes")
            data += more
        return data

    def hung_up(self) -> bool:
        """Say whether the server sends nothing any more, and has ended the connection."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def greet(self, flags: int = 3) -> None:
        assert self.get(18) == b"NBDMAGICIHAVEOPT\x00\x03"
        self.socket.sendall(struct.pack(">I", flags))

    def send_option(self, option: int, data: bytes = b"", magic: int = OPTION_MAGIC) -> None:
        self.socket.sendall(struct.pack(">QII", magic, option, len(data)) + data)

    def option_answer(self, option: int) -> tuple[int, bytes]:
        magic, about, kind, length = struct.unpack(">QIII", self.get(20))
        assert (magic, about) == (OPTION_REPLY_MAGIC, option)
        return kind, self.get(length)

    def ask(self, option: int, data: bytes = b"") -> list[tuple[int, bytes]]:
        """Return all answers to an option, the final one last."""
        self.send_option(option, data)
        answers = [self.option_answer(option)]
        while answers[-1][0] in (2, 3):
            answers.append(self.option_answer(option))
        return answers

    def go(self, *, structured: bool = False) -> RawClient:
        """Come to where requests are made."""
        self.greet()
        if structured:
            assert self.ask(STRUCTURED_REPLY) == [(ACK, b"")]
            self.structured = True
        assert self.ask(GO, chosen())[-1] == (ACK, b"")
        return self

    def send_request(self, kind: int, offset: int, length: int, *, flags: int = 0, data: bytes = b"") -> None:
        self.socket.sendall(struct.pack(">IHHQQI", REQUEST_MAGIC, flags, kind, 7, offset, length) + data)

    def request(self, kind: int, offset: int = 0, length: int = 0, *, flags: int = 0, data: bytes = b"") -> Answer:
        self.send_request(kind, offset, length or len(data), flags=flags, data=data)
        return self.answer(length if kind == READ else 0)

    def answer(self, length: int = 0) -> Answer:
        if not self.structured:
            magic, error, cookie = struct.unpack(">IIQ", self.get(16))
            assert (magic, cookie) == (SIMPLE_MAGIC, 7)
            return Answer(error, b"" if error else self.get(length))
        magic, flags, kind, cookie, size = struct.unpack(">IHHQI", self.get(20))
        assert (magic, flags, cookie) == (STRUCTURED_MAGIC, 1, 7)
        payload = self.get(size)
        if kind == 1 << 15 | 1:
            error, reason_bytes = struct.unpack_from(">IH", payload)
            assert len(payload) == 6 + reason_bytes
            return Answer(error, reason=payload[6:].decode())
        assert kind == (1 if length else 0)
        return Answer(0, payload[8:])


def chosen(name: bytes = b"", *kinds: int) -> bytes:
    """Return the data of GO and INFO."""
    return struct.pack(">I", len(name)) + name + struct.pack(f">H{len(kinds)}H", len(kinds), *kinds)


def run_client(*command: str, check: bool = True, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a client that somebody else wrote; the test is skipped where it is not installed."""
    require(command[0])
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100, **more)
    if check:
        assert done.returncode == 0, f"{command} ended with {done.returncode}: {done.stdout}{done.stderr}"
    return done


def require(program: str) -> None:
    """Skip the test where a program is not installed."""
    if shutil.which(program) is None:
        pytest.skip(f"NOT TESTED: {program} is not installed; Debian has it in one of {DEBIAN_PACKAGES}")


DEBIAN_PACKAGES = "libnbd-bin, nbdkit, nbd-client, fio, qemu-utils"
