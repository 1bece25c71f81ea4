"""
NBD server: any program has a store of bytes as a block device, unmodified.

:class:`NbdServer` speaks the fixed newstyle protocol of the Network Block Device
(https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md) over a Unix socket, or a TCP port of the loopback
device: the handshake with its options, simple and structured replies, and the commands READ, WRITE, FLUSH, TRIM and
WRITE_ZEROES. There is no TLS: whoever may connect to the socket may read and write.

Each connection has a thread with a blocking socket, which answers one request after the other. A client that wants
several at a time opens several connections, as ``nbdcopy`` and the kernel do; all share one store.

What ends a connection, and that one only: what is no NBD, half a request, and a write of more than :data:`MOST_BYTES`,
whose bytes would have to be read to find the next request. Anything else that is wrong with a request is answered with
an error.

Notes
-----
A read costs two system calls and one copy in this process (from the store into the connection's buffer), a write three
and one. ``MSG_WAITALL`` has the kernel fill the buffer in one call, so that a thread waits once for the interpreter's
lock, and not once for every piece of 200 KiB.

``nbdkit`` could have been the host, with its Python plugin. Measured in one run with fio (two busy cores; GB for each
second of the server's processor, medians of three): reads of 1 MiB one at a time 2.9 here, 1.9 in the plugin, 2.1 in
``nbdkit memory``, which is all C; writes 1.8, 1.9 and 2.4; reads of 64 KiB 1.8, 0.9 and 2.5. A plugin also runs in the
Python that the distribution built nbdkit for, where Penstock is not installed, and is a package of its own
(``nbdkit-plugin-python``). So the protocol is spoken here.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
import struct
import threading
from contextlib import suppress
from enum import IntEnum, IntFlag
from pathlib import Path
from types import TracebackType
from typing import Final, Optional, Protocol, Union
from urllib.parse import quote

MOST_BYTES: Final = 32 << 20
"""The longest read or write; clients split what is longer."""
MOST_CONNECTIONS: Final = 64
_PREFERRED_BYTES: Final = 4096
_MOST_OPTION_BYTES: Final = 64 << 10
_MOST_OPTIONS: Final = 64
_ACCEPT_AGAIN_S: Final = 1.0
_LEAST_BUFFER_BYTES: Final = 1 << 18
_ZEROS: Final = memoryview(bytes(1 << 20))

_log = logging.getLogger("penstock.memory")


class ByteStore(Protocol):
    """
    What is served: bytes at offsets, used by several threads at once; :class:`penstock.memory.block_store.BlockStore`.

    A range lies within ``size``. A buffer belongs to the caller again when the call returns. An error is an OSError;
    ``ENOSPC`` reaches the client as such, and any other as ``EIO``.
    """

    @property
    def size(self) -> int:
        """How many bytes it has."""

    def read_into(self, offset: int, view: memoryview) -> None:
        """Fill the view with the bytes from the offset on."""

    def write(self, offset: int, data: Union[bytes, bytearray, memoryview]) -> None:
        """Put bytes at the offset."""

    def zero(self, offset: int, length: int) -> None:
        """Have a range read as zeros."""

    def discard(self, offset: int, length: int) -> None:
        """Say that a range's content does not matter any more."""

    def flush(self) -> None:
        """Return when all that was written is on disk."""


class ProtocolError(Exception):
    """What a client sent is no NBD, or more than is taken; its connection ends."""


class HungUp(Exception):
    """The client ended its connection where it may: before a request."""


# --- the protocol's numbers, under its own names


class OptionKind(IntEnum):
    """What a client asks during the handshake."""

    EXPORT_NAME = 1
    ABORT = 2
    LIST = 3
    INFO = 6
    GO = 7
    STRUCTURED_REPLY = 8


class OptionReply(IntEnum):
    """How an option is answered."""

    ACK = 1
    SERVER = 2
    INFO = 3
    ERR_UNSUP = 1 << 31 | 1
    ERR_INVALID = 1 << 31 | 3
    ERR_UNKNOWN = 1 << 31 | 6
    ERR_TOO_BIG = 1 << 31 | 9


class ExportInfo(IntEnum):
    """What is told of an export."""

    EXPORT = 0
    NAME = 1
    BLOCK_SIZE = 3


class Feature(IntFlag):
    """Transmission flags: what a client may use."""

    HAS_FLAGS = 1 << 0
    SEND_FLUSH = 1 << 2
    SEND_FUA = 1 << 3
    SEND_TRIM = 1 << 5
    SEND_WRITE_ZEROES = 1 << 6
    SEND_DF = 1 << 7
    CAN_MULTI_CONN = 1 << 8


class Command(IntEnum):
    """What a request asks."""

    READ = 0
    WRITE = 1
    DISC = 2
    FLUSH = 3
    TRIM = 4
    WRITE_ZEROES = 6


class CommandFlag(IntFlag):
    """How it is to be done."""

    FUA = 1 << 0
    NO_HOLE = 1 << 1
    DF = 1 << 2


class NbdError(IntEnum):
    """What is wrong with a request; the numbers are Linux' own."""

    EIO = 5
    EINVAL = 22
    ENOSPC = 28


_FIXED_NEWSTYLE: Final = 1
_NO_ZEROES: Final = 2
_OPTION_MAGIC: Final = 0x49484156454F5054
_OPTION_REPLY_MAGIC: Final = 0x3E889045565A9
_REQUEST_MAGIC: Final = 0x25609513
_SIMPLE_MAGIC: Final = 0x67446698
_STRUCTURED_MAGIC: Final = 0x668E33EF
_DONE: Final = 1
_CHUNK_NONE: Final = 0
_CHUNK_OFFSET_DATA: Final = 1
_CHUNK_ERROR: Final = 1 << 15 | 1
_OPTION: Final = struct.Struct(">QII")
_OPTION_REPLY: Final = struct.Struct(">QIII")
_REQUEST: Final = struct.Struct(">IHHQQI")
_SIMPLE: Final = struct.Struct(">IIQ")
_CHUNK: Final = struct.Struct(">IHHQI")
_DATA_CHUNK: Final = struct.Struct(">IHHQIQ")
_PADDING: Final = bytes(124)

_FEATURES: Final = (
    Feature.HAS_FLAGS
    | Feature.SEND_FLUSH
    | Feature.SEND_FUA
    | Feature.SEND_TRIM
    | Feature.SEND_WRITE_ZEROES
    | Feature.CAN_MULTI_CONN
)
_FLAGS_OF: Final = {
    int(Command.READ): int(CommandFlag.FUA | CommandFlag.DF),
    int(Command.WRITE_ZEROES): int(CommandFlag.FUA | CommandFlag.NO_HOLE),
}
"""Flags that a command may have; any other one may have FUA, which some clients set everywhere."""
_OUT_OF_SPACE: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


class NbdServer:
    """
    Serve a store until :meth:`close`; a context manager.

    Parameters
    ----------
    store : ByteStore
        What is served; it stays the caller's, who closes it afterwards.
    address : Path or int
        A Unix socket's path, which this user alone may use; or a TCP port of 127.0.0.1, which every user of the host
        may use, 0 for any that is free. A socket that nobody listens on any more is replaced.
    name : str
        Name of the export; the empty name, which most clients ask for, is always served.

    Raises
    ------
    OSError
        If the address cannot be had: somebody listens there, or a file that is no socket is in the way.
    """

    def __init__(self, store: ByteStore, address: Union[Path, int], *, name: str = "") -> None:
        self.store = store
        self.name = name
        self._listener = _listener_at(address)
        self._path = address if isinstance(address, Path) else None
        self._ending = threading.Event()
        self._changed = threading.Condition()
        self._connections: set[_Connection] = set()
        self._acceptor = threading.Thread(target=self._accept, name="nbd-accept", daemon=True)
        self._acceptor.start()

    def __enter__(self) -> NbdServer:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], traceback: Optional[TracebackType]
    ) -> None:
        self.close()

    @property
    def uri(self) -> str:
        """The NBD URI by which clients find it."""
        if self._path is not None:
            return f"nbd+unix:///{quote(self.name)}?socket={quote(str(self._path))}"
        host, port = self._listener.getsockname()
        return f"nbd://{host}:{port}/{quote(self.name)}"

    def close(self, within_s: float = 5.0) -> None:
        """
        Accept nobody any more, answer what was asked, end all connections, and flush the store.

        Parameters
        ----------
        within_s : float
            A connection whose client does not take its answer is cut off after so long.

        Raises
        ------
        OSError
            If the store cannot be flushed.
        """
        if self._ending.is_set():
            return
        self._ending.set()
        with suppress(OSError):  # on some systems a listening socket cannot be shut down
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._acceptor.join()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        for how in (socket.SHUT_RD, socket.SHUT_RDWR):
            with self._changed:
                for connection in self._connections:
                    connection.shut(how)
                if self._changed.wait_for(lambda: not self._connections, within_s):
                    break
        self.store.flush()

    def _accept(self) -> None:
        while not self._ending.is_set():
            try:
                accepted, _ = self._listener.accept()
            except OSError as error:
                if self._ending.is_set():
                    return
                _log.warning("NBD: a connection could not be accepted, the next one is tried in a moment: %s", error)
                self._ending.wait(_ACCEPT_AGAIN_S)
                continue
            self._begin(accepted)

    def _begin(self, accepted: socket.socket) -> None:
        with self._changed:
            if len(self._connections) >= MOST_CONNECTIONS:
                _log.warning("NBD: a connection was refused, there are %d, which is the most", MOST_CONNECTIONS)
                accepted.close()
                return
            connection = _Connection(accepted, self.store, self.name, self._ending)
            self._connections.add(connection)
        threading.Thread(target=self._serve, args=(connection,), name="nbd-connection", daemon=True).start()

    def _serve(self, connection: _Connection) -> None:
        try:
            connection.serve()
        except HungUp:
            pass
        except (ProtocolError, OSError) as error:
            if not self._ending.is_set():
                _log.warning("NBD: a connection ended: %s", error)
        finally:
            connection.close()
            with self._changed:
                self._connections.discard(connection)
                self._changed.notify_all()


def _listener_at(address: Union[Path, int]) -> socket.socket:
    if isinstance(address, int):
        return socket.create_server(("127.0.0.1", address), backlog=MOST_CONNECTIONS)
    _remove_dead_socket(address)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        before = os.umask(0o177)
        try:
            listener.bind(str(address))
        finally:
            os.umask(before)
        listener.listen(MOST_CONNECTIONS)
    except OSError as error:
        listener.close()
        raise OSError(error.errno or errno.EINVAL, f"no socket can be made there: {error}", str(address)) from error
    return listener


def _remove_dead_socket(path: Path) -> None:
    """Remove what is left of a server that was killed; raises OSError if it is anything else."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "a file that is no socket is in the way; choose another path", str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
    raise OSError(errno.EADDRINUSE, "a server listens there already; choose another path", str(path))


class _Connection:
    """One client's connection, from the handshake to its end; everything but ``shut`` is its own thread's."""

    def __init__(self, connection: socket.socket, store: ByteStore, name: str, ending: threading.Event) -> None:
        self._socket = connection
        self._store = store
        self._size = store.size
        self._name = name.encode()
        self._ending = ending
        self._structured = False
        self._padded = True
        self._buffer = memoryview(bytearray(_LEAST_BUFFER_BYTES))
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def shut(self, how: int) -> None:
        """End the connection's one side or both, from another thread."""
        with suppress(OSError):  # it has ended already
            self._socket.shutdown(how)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def serve(self) -> None:
        """
        Agree on the export, then answer requests until the client disconnects or the server ends.

        Raises
        ------
        HungUp
            If the client goes without a word, between two requests.
        ProtocolError, OSError
            If it goes amid one, sends what is no NBD, or the connection breaks.
        """
        if not self._shake_hands():
            return
        header = bytearray(_REQUEST.size)
        view = memoryview(header)
        while not self._ending.is_set():
            self._receive(view, "a request", may_end=True)
            magic, flags, kind, cookie, offset, length = _REQUEST.unpack(header)
            if magic != _REQUEST_MAGIC:
                raise ProtocolError(f"a request begins with {_REQUEST_MAGIC:#x}, and this one with {magic:#x}")
            if kind == Command.DISC:
                return
            if kind == Command.READ:
                self._read(flags, cookie, offset, length)
            else:
                self._change(flags, kind, cookie, offset, length)

    # --- handshake

    def _shake_hands(self) -> bool:
        """Return whether an export was chosen; else the client wants to go."""
        self._socket.sendall(struct.pack(">8sQH", b"NBDMAGIC", _OPTION_MAGIC, _FIXED_NEWSTYLE | _NO_ZEROES))
        (flags,) = struct.unpack(">I", self._received(4, "the client's flags", may_end=True))
        if flags & ~(_FIXED_NEWSTYLE | _NO_ZEROES):
            raise ProtocolError(f"the client's flags are {flags:#x}; known are FIXED_NEWSTYLE (1) and NO_ZEROES (2)")
        self._padded = not flags & _NO_ZEROES
        for _ in range(_MOST_OPTIONS):
            magic, option, length = _OPTION.unpack(self._received(_OPTION.size, "an option", may_end=True))
            if magic != _OPTION_MAGIC:
                raise ProtocolError(f"an option begins with {_OPTION_MAGIC:#x}, and this one with {magic:#x}")
            if length > _MOST_OPTION_BYTES:
                raise ProtocolError(f"option {option} has {length} bytes; expected {_MOST_OPTION_BYTES} at most")
            data = self._received(length, f"option {option}")
            if option == OptionKind.ABORT:
                with suppress(OSError):  # it may be gone without waiting for the answer
                    self._answer_option(option, OptionReply.ACK)
                return False
            if option == OptionKind.EXPORT_NAME:
                self._export(bytes(data))
                return True
            if self._answered(option, bytes(data)):
                return True
        raise ProtocolError(f"{_MOST_OPTIONS} options, and no export chosen")

    def _answered(self, option: int, data: bytes) -> bool:
        """Answer an option; return whether requests follow."""
        if option in (OptionKind.GO, OptionKind.INFO):
            return self._describe(option, data) and option == OptionKind.GO
        if option not in (OptionKind.LIST, OptionKind.STRUCTURED_REPLY):
            self._answer_option(option, OptionReply.ERR_UNSUP, b"this server does not know the option")
        elif data:
            self._answer_option(option, OptionReply.ERR_INVALID, b"the option has no data")
        else:
            if option == OptionKind.LIST:
                self._answer_option(option, OptionReply.SERVER, struct.pack(">I", len(self._name)) + self._name)
            else:
                self._structured = True
            self._answer_option(option, OptionReply.ACK)
        return False

    def _export(self, name: bytes) -> None:
        """Answer EXPORT_NAME, which has no way to say no but hanging up."""
        if name not in (b"", self._name):
            raise ProtocolError(f"there is no export {name!r}; there is {self._name!r}")
        answer = struct.pack(">QH", self._size, self._features())
        self._socket.sendall(answer + _PADDING if self._padded else answer)

    def _describe(self, option: int, data: bytes) -> bool:
        """Answer INFO or GO; return whether the export is one of ours."""
        if (asked := _asked_of(data)) is None:
            self._answer_option(option, OptionReply.ERR_INVALID, b"expected a name and the kinds of information")
            return False
        name, kinds = asked
        if name not in (b"", self._name):
            self._answer_option(option, OptionReply.ERR_UNKNOWN, b"there is no such export")
            return False
        self._inform(option, ExportInfo.EXPORT, struct.pack(">QH", self._size, self._features()))
        if ExportInfo.NAME in kinds:
            self._inform(option, ExportInfo.NAME, self._name)
        if ExportInfo.BLOCK_SIZE in kinds:
            self._inform(option, ExportInfo.BLOCK_SIZE, struct.pack(">III", 1, _PREFERRED_BYTES, MOST_BYTES))
        self._answer_option(option, OptionReply.ACK)
        return True

    def _inform(self, option: int, kind: ExportInfo, payload: bytes) -> None:
        self._answer_option(option, OptionReply.INFO, struct.pack(">H", kind) + payload)

    def _answer_option(self, option: int, reply: OptionReply, data: bytes = b"") -> None:
        self._socket.sendall(_OPTION_REPLY.pack(_OPTION_REPLY_MAGIC, option, reply, len(data)) + data)

    def _features(self) -> Feature:
        return _FEATURES | Feature.SEND_DF if self._structured else _FEATURES

    # --- requests

    def _read(self, flags: int, cookie: int, offset: int, length: int) -> None:
        if flags & ~_FLAGS_OF[Command.READ]:
            self._refuse(cookie, NbdError.EINVAL, f"a read has no flags {flags:#x}")
        elif length > MOST_BYTES:
            self._refuse(cookie, NbdError.EINVAL, f"{length} bytes are too many; expected {MOST_BYTES} at most")
        elif offset + length > self._size:
            self._refuse(cookie, NbdError.EINVAL, self._beyond(offset, length))
        elif not length:
            self._confirm(cookie)
        else:
            view = self._room(length)
            try:
                self._store.read_into(offset, view)
            except Exception as error:  # whatever it is, the client hears of it and goes on
                self._fail(cookie, error, f"{length} bytes at {offset} could not be read")
                return
            self._send_data(cookie, offset, view)

    def _send_data(self, cookie: int, offset: int, view: memoryview) -> None:
        length = len(view)
        if self._structured:
            header = _DATA_CHUNK.pack(_STRUCTURED_MAGIC, _DONE, _CHUNK_OFFSET_DATA, cookie, length + 8, offset)
        else:
            header = _SIMPLE.pack(_SIMPLE_MAGIC, 0, cookie)
        sent = self._socket.sendmsg([header, view])
        if sent < len(header):
            self._socket.sendall(header[sent:])
            sent = len(header)
        if sent < len(header) + length:
            self._socket.sendall(view[sent - len(header) :])

    def _change(self, flags: int, kind: int, cookie: int, offset: int, length: int) -> None:
        """Do anything but a read; a write's bytes are received before it is looked at, since they come anyhow."""
        data = None
        if kind == Command.WRITE:
            if length > MOST_BYTES:
                raise ProtocolError(f"a write of {length} bytes; expected {MOST_BYTES} at most")
            data = self._received_bytes(length, "the bytes of a write")
        if refusal := self._refusal(flags, kind, offset, length):
            self._refuse(cookie, *refusal)
            return
        try:
            if not length:  # a flush, or nothing to do
                pass
            elif data is not None:
                self._store.write(offset, data)
            elif kind == Command.TRIM:
                self._store.discard(offset, length)
            elif kind == Command.WRITE_ZEROES:
                self._write_zeros(offset, length, keep_room=bool(flags & CommandFlag.NO_HOLE))
            if flags & CommandFlag.FUA or kind == Command.FLUSH:
                self._store.flush()
        except Exception as error:  # whatever it is, the client hears of it and goes on
            self._fail(cookie, error, f"{Command(kind).name} of {length} bytes at {offset} failed")
            return
        self._confirm(cookie)

    def _refusal(self, flags: int, kind: int, offset: int, length: int) -> Optional[tuple[NbdError, str]]:
        """Return what is wrong with a request, if anything."""
        if kind not in (Command.WRITE, Command.FLUSH, Command.TRIM, Command.WRITE_ZEROES):
            return NbdError.EINVAL, f"there is no command {kind} here"
        if flags & ~_FLAGS_OF.get(kind, int(CommandFlag.FUA)):
            return NbdError.EINVAL, f"{Command(kind).name} has no flags {flags:#x}"
        if kind == Command.FLUSH:
            return (NbdError.EINVAL, "a flush has no offset and no length") if offset or length else None
        if offset + length > self._size:
            return NbdError.EINVAL if kind == Command.TRIM else NbdError.ENOSPC, self._beyond(offset, length)
        return None

    def _write_zeros(self, offset: int, length: int, *, keep_room: bool) -> None:
        """Have a range read as zeros; ``keep_room``: written ones, so that no later write of it can lack space."""
        if not keep_room:
            self._store.zero(offset, length)
            return
        end = offset + length
        while offset < end:
            piece = _ZEROS[: end - offset]
            self._store.write(offset, piece)
            offset += len(piece)

    def _beyond(self, offset: int, length: int) -> str:
        return f"{length} bytes at {offset} are beyond the end, {self._size}"

    def _confirm(self, cookie: int) -> None:
        if self._structured:
            self._socket.sendall(_CHUNK.pack(_STRUCTURED_MAGIC, _DONE, _CHUNK_NONE, cookie, 0))
        else:
            self._socket.sendall(_SIMPLE.pack(_SIMPLE_MAGIC, 0, cookie))

    def _fail(self, cookie: int, error: Exception, what: str) -> None:
        _log.error("NBD: %s: %s", what, error, exc_info=None if isinstance(error, OSError) else error)
        full = isinstance(error, OSError) and error.errno in _OUT_OF_SPACE
        self._refuse(cookie, NbdError.ENOSPC if full else NbdError.EIO, f"{what}: {error}")

    def _refuse(self, cookie: int, error: NbdError, reason: str) -> None:
        if not self._structured:
            self._socket.sendall(_SIMPLE.pack(_SIMPLE_MAGIC, error, cookie))
            return
        text = reason[:1000].encode(errors="replace")
        payload = struct.pack(">IH", error, len(text)) + text
        self._socket.sendall(_CHUNK.pack(_STRUCTURED_MAGIC, _DONE, _CHUNK_ERROR, cookie, len(payload)) + payload)

    # --- bytes

    def _room(self, length: int) -> memoryview:
        """Return so much of the connection's buffer, which grows with what its client asks for."""
        if length > len(self._buffer):
            self._buffer = memoryview(bytearray(1 << (length - 1).bit_length()))
        return self._buffer[:length]

    def _received(self, length: int, what: str, *, may_end: bool = False) -> bytearray:
        data = bytearray(length)
        self._receive(memoryview(data), what, may_end=may_end)
        return data

    def _received_bytes(self, length: int, what: str) -> bytes:
        """Receive into bytes, which a store can keep as they are."""
        data = self._socket.recv(length, socket.MSG_WAITALL) if length else b""
        while len(data) < length:  # the client goes, or a signal came
            more = self._socket.recv(length - len(data), socket.MSG_WAITALL)
            if not more:
                raise ProtocolError(f"the client went amid {what}, after {len(data)} of {length} bytes")
            data += more
        return data

    def _receive(self, view: memoryview, what: str, *, may_end: bool = False) -> None:
        """Fill a buffer; a client may go before its first byte where it ``may_end``."""
        wanted = len(view)
        while view:
            count = self._socket.recv_into(view, len(view), socket.MSG_WAITALL)
            if not count:
                if may_end and len(view) == wanted:
                    raise HungUp
                raise ProtocolError(f"the client went amid {what}, after {wanted - len(view)} of {wanted} bytes")
            view = view[count:]


def _asked_of(data: bytes) -> Optional[tuple[bytes, frozenset[int]]]:
    """Return the name and the kinds of information that INFO or GO asks for; None if it is malformed."""
    if len(data) < 6:
        return None
    (length,) = struct.unpack_from(">I", data)
    if length > len(data) - 6:
        return None
    (count,) = struct.unpack_from(">H", data, 4 + length)
    if len(data) != 6 + length + 2 * count:
        return None
    return data[4 : 4 + length], frozenset(struct.unpack_from(f">{count}H", data, 6 + length))
