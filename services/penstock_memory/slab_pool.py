"""
The slabs of a node: memory of their own for each lending, prepared before they are asked for.

A slab is a ``memfd``, all of whose memory is allocated before it is lent, and whose size is sealed: who shares it by
descriptor cannot take pages away from under the agent. Behind ``slab_bytes`` lies one more page, whose first 8 bytes
hold the generation while the slab counts, and 0 from then on. A slab is never used again: what is taken back is given
to the kernel, and the next one is zero because it is new.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from penstock.leased_connection import LEASE_BYTES

PAGE_BYTES: Final = 4096
TOKEN_BYTES: Final = 32
JOIN_S: Final = 5.0
"""How long a thread whose connection was shut down is waited for; it has nothing else to wait for."""
_PIECE_BYTES: Final = 8 << 20
_WORD: Final = struct.Struct("=Q")
_ADD_SEALS: Final = getattr(fcntl, "F_ADD_SEALS", 1033)
_SEALS: Final = 0x0001 | 0x0002 | 0x0004  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW


class NoMemory(Exception):
    """The kernel gives no memory for another slab."""


class Slab:
    """
    One lending of memory.

    Attributes
    ----------
    number, generation : int
        The agent's number of the slab, and which lending it is.
    lease, token : bytes
        What names the lending, and what proves that one may use it.
    view : memoryview
        ``slab_bytes`` of it.
    """

    def __init__(self, memory: SlabMemory, number: int, generation: int) -> None:
        self.number, self.generation, self.slab_bytes = number, generation, memory.slab_bytes
        self.lease, self.token = secrets.token_bytes(LEASE_BYTES), secrets.token_bytes(TOKEN_BYTES)
        self._memory = memory
        self.view = memoryview(memory.mapping)[: memory.slab_bytes]
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, threading.Thread] = {}
        self.counts = True
        _WORD.pack_into(memory.mapping, memory.slab_bytes, generation)

    def enter(self, connection: socket.socket, most: int) -> str:
        """Note that this thread serves a connection about the slab; return why not, empty if it may."""
        with self._lock:
            if not self.counts:
                return "the lease is over"
            if len(self._connections) >= most:
                return f"more than {most} connections about one slab"
            self._connections[connection] = threading.current_thread()
            return ""

    def leave(self, connection: socket.socket) -> None:
        """Note that a connection has ended, before it is closed."""
        with self._lock:
            self._connections.pop(connection, None)

    def share(self) -> int:
        """Return the memory's descriptor, to be given to a client of this host."""
        self._memory.shared = True
        return self._memory.fd

    def end(self, but: socket.socket | None = None) -> None:
        """Let the slab count no more, and shut down all connections about it ``but`` one; does not wait."""
        with self._lock:
            if not self.counts:
                return
            self.counts = False
            _WORD.pack_into(self._memory.mapping, self.slab_bytes, 0)
            for connection in self._connections:
                if connection is not but:
                    _shut_down(connection)

    def release(self) -> None:
        """Wait for the threads of the connections, and give the memory to the kernel."""
        with self._lock:
            threads = list(self._connections.values())
        for thread in threads:
            thread.join(JOIN_S)
        self.view.release()
        self._memory.free()


class SlabMemory:
    """
    Memory for one slab, allocated and zero.

    Attributes
    ----------
    shared : bool
        Whether somebody else was given its descriptor.

    Raises
    ------
    NoMemory
        If there is none.
    """

    def __init__(self, slab_bytes: int) -> None:
        self.slab_bytes, self.shared = slab_bytes, False
        self.fd = os.memfd_create("penstock-slab", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(self.fd, 0, slab_bytes + PAGE_BYTES)
            fcntl.fcntl(self.fd, _ADD_SEALS, _SEALS)
            self.mapping = mmap.mmap(self.fd, slab_bytes + PAGE_BYTES)
        except OSError as error:
            os.close(self.fd)
            raise NoMemory(f"no memory for a slab of {slab_bytes} bytes: {error.strerror}") from error

    def free(self) -> None:
        """
        Give the memory back at once, whoever else still has a descriptor of it.

        Python holds its lock during ``madvise``, so it is done in pieces of a millisecond.
        """
        for begin in range(0, self.slab_bytes + PAGE_BYTES if self.shared else 0, _PIECE_BYTES):
            self.mapping.madvise(mmap.MADV_REMOVE, begin, min(_PIECE_BYTES, self.slab_bytes + PAGE_BYTES - begin))
        with suppress(BufferError):  # a thread that has not ended yet has a view: the mapping goes with it
            self.mapping.close()
        os.close(self.fd)


class SlabPool:
    """
    The slabs that are lent, and memory that is ready for the next ones; safe to call from any thread.

    Parameters
    ----------
    slab_bytes : int
        Of each slab; a multiple of 4096.
    first_generation : int
        Larger than any generation of an earlier life of this agent.
    """

    def __init__(self, slab_bytes: int, first_generation: int = 1) -> None:
        self.slab_bytes = slab_bytes
        self._generation = first_generation
        self._lock = threading.Lock()
        self._lent: dict[bytes, Slab] = {}
        self._ready: deque[SlabMemory] = deque()

    @property
    def lent(self) -> int:
        """How many slabs are lent."""
        return len(self._lent)

    @property
    def ready(self) -> int:
        """For how many slabs memory is ready."""
        return len(self._ready)

    @property
    def held_bytes(self) -> int:
        """Memory that the pool has taken from the node."""
        return (len(self._lent) + len(self._ready)) * (self.slab_bytes + PAGE_BYTES)

    def prepare(self, count: int) -> None:
        """
        Have memory ready for so many slabs, no more and no less; takes milliseconds for each.

        Raises
        ------
        NoMemory
            If the kernel has no more.
        """
        while self.ready < count:
            memory = SlabMemory(self.slab_bytes)
            with self._lock:
                self._ready.append(memory)
        while self.ready > count:
            with self._lock:
                spare = self._ready.popleft() if self.ready > count else None
            if spare is not None:
                spare.free()

    def lend(self) -> Slab:
        """
        Return a slab that nobody has had before, under a lease of its own.

        Raises
        ------
        NoMemory
            If the kernel has no memory for it.
        """
        with self._lock:
            memory = self._ready.popleft() if self._ready else None
        if memory is None:
            memory = SlabMemory(self.slab_bytes)
        with self._lock:
            taken = {slab.number for slab in self._lent.values()}
            number = next(number for number in range(len(taken) + 1) if number not in taken)
            slab = Slab(memory, number, self._generation)
            self._generation += 1
            self._lent[slab.lease] = slab
            return slab

    def find(self, lease: bytes) -> Slab | None:
        """Return the slab of a lease that counts; None where it is none."""
        return self._lent.get(lease)

    def take_back(self, leases: Iterable[bytes]) -> list[Slab]:
        """
        End these leases and give their memory to the kernel; return the slabs of those that there were.

        All of them end before the first one's threads are waited for.
        """
        with self._lock:
            found = [slab for lease in leases if (slab := self._lent.pop(lease, None)) is not None]
        for slab in found:
            slab.end()
        for slab in found:
            slab.release()
        return found

    def close(self) -> None:
        """Take everything back."""
        self.take_back(list(self._lent))
        self.prepare(0)


def _shut_down(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has ended by itself
