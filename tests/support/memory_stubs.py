"""The donor's and the agent's side of borrowed memory, enough of them to test the client's: servers on threads."""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import msgspec

from penstock.leased_connection import (
    LEASE_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    Buffer,
    ConnectionEnded,
    boot_id,
    proof_of,
    receive,
    send,
)
from penstock.memory import frames
from penstock.memory.frames import Frame, Kind, Status
from penstock.memory.slab_binding import STATE_BYTES
from penstock_log.memory_messages import (
    AgentWelcome,
    BorrowSlab,
    ClientHello,
    ClientRefused,
    EvictSlab,
    FromClient,
    ReturnSlab,
    SlabAddress,
    SlabLent,
    SlabRefused,
    SlabUse,
    ToClient,
)

Fault = Literal["", "hang", "hang_up", "half_frame", "wrong_crc", "stale", "drip"]
WAIT_LIMIT_S = 60.0


class DonorStub:
    """
    Lends slabs of memory, over TCP and over a Unix socket, as often as it is asked.

    ``fault`` says what goes wrong with the next answers of all slabs; ``served`` counts requests that were answered.
    """

    def __init__(self, folder: Path, *, slab_bytes: int, shared: bool = False, name: str = "donor") -> None:
        self.slab_bytes, self.shared, self.name = slab_bytes, shared, name
        self.fault: Fault = ""
        self.fault_after = 0
        self.served = 0
        self.faults_done = 0
        self.sealed = True
        self.slabs: dict[bytes, _LentSlab] = {}
        self._number = 0
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._released = threading.Event()
        self._tcp = socket.create_server(("127.0.0.1", 0))
        self._path = folder / f"{name}.sock"
        self._unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._unix.bind(str(self._path))
        self._unix.listen()
        for listener in (self._tcp, self._unix):
            threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def lend(self) -> SlabAddress:
        """Return the address of a new slab, zeroed."""
        with self._lock:
            self._number += 1
            number = self._number
        lease = hashlib.sha256(f"{self.name} {number}".encode()).digest()[:LEASE_BYTES]
        token = hashlib.sha256(lease).digest()
        self.slabs[lease] = _LentSlab(number, number + 100, token, self.slab_bytes, sealed=self.sealed)
        host, port = self._tcp.getsockname()[:2]
        return SlabAddress(
            donor=self.name,
            lease=lease.hex(),
            token=token.hex(),
            slab=number,
            generation=number + 100,
            slab_bytes=self.slab_bytes,
            host=host,
            port=port,
            boot_id=boot_id() if self.shared else "",
            socket=str(self._path) if self.shared else "",
        )

    def take_back(self, address: SlabAddress) -> None:
        """Have a slab count no more, and fill it with garbage, as its next user may."""
        slab = self.slabs[bytes.fromhex(address.lease)]
        slab.over = True
        slab.map[self.slab_bytes : self.slab_bytes + 8] = bytes(8)
        slab.map[: self.slab_bytes] = b"\xee" * self.slab_bytes

    def content(self, address: SlabAddress) -> bytes:
        """Return what a slab holds."""
        return self.slabs[bytes.fromhex(address.lease)].map[: self.slab_bytes]

    def break_connections(self) -> None:
        """Hang up on everybody."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Vanish, with all threads."""
        self._released.set()
        for listener in (self._tcp, self._unix):
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self.break_connections()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with self._lock:
                self._connections.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, ConnectionEnded, frames.FrameError, _HungUp):
            with suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            slab = self._prove(connection)
            while True:
                self._answer(connection, slab)
        with self._lock:
            self._connections.discard(connection)

    def _prove(self, connection: socket.socket) -> _LentSlab:
        hello = memoryview(bytearray(len(frames.MAGIC) + LEASE_BYTES))
        receive(connection, hello)
        lease = bytes(hello[len(frames.MAGIC) :])
        nonce = os.urandom(NONCE_BYTES)
        connection.sendall(nonce)
        proof = memoryview(bytearray(PROOF_BYTES))
        receive(connection, proof)
        slab = self.slabs.get(lease)
        if slab is None or bytes(proof) != proof_of(slab.token, lease, nonce):
            self._refuse(connection, Frame(Kind.HELLO), Status.BAD_PROOF, "there is no such lease")
            raise _HungUp
        connection.sendall(frames.encoded(Frame(Kind.HELLO, length=self.slab_bytes)))
        return slab

    def _refuse(self, connection: socket.socket, frame: Frame, status: Status, reason: str) -> None:
        text = reason.encode()
        answer = frame._replace(status=status, length=len(text))
        send(connection, frames.encoded(answer, text), text)

    def _answer(self, connection: socket.socket, slab: _LentSlab) -> None:
        header = memoryview(bytearray(frames.HEADER_BYTES))
        receive(connection, header)
        frame, checksum, begun = frames.decoded(header)
        payload = memoryview(bytearray(frame.length if frame.kind == Kind.WRITE else 0))
        receive(connection, payload)
        frames.check(payload, checksum, begun)
        fault = self._fault()
        if slab.over or fault == "stale":
            self._refuse(connection, frame, Status.STALE, "the lease is over")
            raise _HungUp
        if frame.kind == Kind.SHARE:
            socket.send_fds(connection, [frames.encoded(frame)], [slab.descriptor])
            return
        data = slab.view[frame.offset : frame.offset + frame.length]
        if frame.kind == Kind.WRITE:
            if fault == "half_frame":  # a donor that dies while it copies
                data[: len(data) // 2] = payload[: len(data) // 2]
                raise _HungUp
            data[:] = payload
            answer, body = frames.encoded(frame._replace(length=0)), b""
        else:
            answer, body = frames.encoded(frame, data), data
        self._say(connection, fault, answer, body)
        self.served += 1

    def _fault(self) -> Fault:
        if self.fault and self.fault_after > 0:
            self.fault_after -= 1
            return ""
        self.faults_done += bool(self.fault)
        return self.fault

    def _say(self, connection: socket.socket, fault: Fault, answer: bytes, body: Buffer) -> None:
        if fault == "hang":
            self._released.wait(WAIT_LIMIT_S)
            raise _HungUp
        if fault == "hang_up":
            raise _HungUp
        if fault == "half_frame":
            connection.sendall((answer + bytes(body))[: (len(answer) + len(body)) // 2])
            raise _HungUp
        if fault == "drip":
            for at, byte in enumerate(answer + bytes(body)):
                connection.sendall(bytes([byte]))
                self._released.wait(0.01 if at else 0)
        elif fault == "wrong_crc":
            damaged = bytearray(answer + bytes(body))
            damaged[-1] ^= 0x40
            connection.sendall(damaged)
        else:
            send(connection, answer, body)


class AgentStub:
    """Listens on a Unix socket, lends what its donor has, keeps what it hears and says what it is told to say."""

    def __init__(self, path: Path, donor: DonorStub) -> None:
        self.path, self.donor = path, donor
        self.lending = True
        self.refusal = ""
        self.heard: list[FromClient] = []
        self.lent: dict[int, SlabAddress] = {}
        self._changed = threading.Condition()
        self._restarting = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self.start()

    def start(self) -> None:
        """Listen, also again after :meth:`die`."""
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen()
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def die(self) -> None:
        """Vanish as a killed agent does: no listener, no connections, nothing lent."""
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        self.path.unlink(missing_ok=True)
        with self._changed:
            for connection in self._connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            self._connections.clear()

    def say(self, message: ToClient) -> None:
        """Send a line to everybody."""
        with self._changed:
            for connection in self._connections:
                with suppress(OSError):
                    connection.sendall(msgspec.json.encode(message) + b"\n")

    def restart(self) -> None:
        """Vanish, and be there again; donors take back what it had borrowed."""
        with self._restarting:
            self.die()
            for slab in list(self.lent):
                self.take_back(slab)
            self.start()

    def take_back(self, slab: int) -> None:
        """Have the donor of a slab take it, and say nothing."""
        with self._changed:
            address = self.lent.pop(slab, None)
        if address is not None:
            self.donor.take_back(address)

    def evict(self, slab: int, reason: str = "its donor needs it") -> None:
        """Have a slab go."""
        self.say(EvictSlab(slab=slab, reason=reason))

    def wait_for(self, said: type[FromClient], count: int = 1) -> list[FromClient]:
        """Wait until the clients have said so many messages of a kind, and return them."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.of(said)) >= count, WAIT_LIMIT_S), self.heard
            return self.of(said)

    def of(self, said: type[FromClient]) -> list[FromClient]:
        """Return what was said of a kind so far."""
        return [message for message in self.heard if isinstance(message, said)]

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with self._changed:
                self._connections.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        decoder = msgspec.json.Decoder(FromClient)
        with connection, suppress(OSError), connection.makefile("rb") as lines:
            for line in lines:
                with self._changed:
                    message = decoder.decode(line)
                    for answer in self._answers(message):
                        connection.sendall(msgspec.json.encode(answer) + b"\n")
                    self.heard.append(message)
                    self._changed.notify_all()
                    if self.refusal:
                        return
        with self._changed:
            self._connections.discard(connection)

    def _answers(self, message: FromClient) -> Iterator[ToClient]:
        if isinstance(message, ClientHello):
            if self.refusal:
                yield ClientRefused(reason=self.refusal)
            else:
                yield AgentWelcome(node_id="here", slab_bytes=self.donor.slab_bytes)
        elif isinstance(message, BorrowSlab):
            if self.lending:
                self.lent[message.slab] = self.donor.lend()
                yield SlabLent(slab=message.slab, address=self.lent[message.slab])
            else:
                yield SlabRefused(slab=message.slab, reason="nobody has memory to lend")
        elif isinstance(message, ReturnSlab):
            address = self.lent.pop(message.slab, None)
            if address is not None:
                self.donor.take_back(address)
        else:
            assert isinstance(message, SlabUse)


@contextmanager
def donor_and_agent(
    folder: Path, *, slab_bytes: int = 1 << 20, shared: bool = False
) -> Iterator[tuple[DonorStub, AgentStub]]:
    """Yield a donor and an agent that lends its slabs."""
    donor = DonorStub(folder, slab_bytes=slab_bytes, shared=shared)
    agent = AgentStub(folder / "agent.sock", donor)
    try:
        yield donor, agent
    finally:
        agent.die()
        donor.close()


class _LentSlab:
    """Memory of one lending."""

    def __init__(self, number: int, generation: int, token: bytes, slab_bytes: int, *, sealed: bool) -> None:
        self.token, self.over = token, False
        self.descriptor = os.memfd_create(f"slab-{number}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.descriptor, slab_bytes + STATE_BYTES)
        if sealed:
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        self.map = mmap.mmap(self.descriptor, slab_bytes + STATE_BYTES)
        self.map[slab_bytes : slab_bytes + 8] = generation.to_bytes(8, "little")
        self.view = memoryview(self.map)

    def __del__(self) -> None:
        os.close(self.descriptor)


class _HungUp(Exception):
    """The stub ends a connection."""
