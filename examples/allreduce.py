"""
Sum arrays over the processes of a gang, over TCP: a star around rank 0.

Every rank gets bit for bit the same sum, since rank 0 alone adds up, in the order of ranks. What it costs is that rank
0 moves ``2 * (n - 1)`` arrays a step: fine for a few small processes, a ring is the thing for many large ones.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from contextlib import ExitStack
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

import penstock

Floats = NDArray[np.float32]

TIMEOUT_S = 60.0
RETRY_S = 0.05
_LENGTH = struct.Struct("!I")


class PeerLost(Exception):
    """Another process of the gang is gone, silent or a stranger."""


class AllReduce:
    """
    The star; a gang of one needs no connection.

    Parameters
    ----------
    rank, world_size : int
    address, port
        Where rank 0 listens.
    run : str
        Names the run, such as job and epoch: a process left over from an earlier one is turned away.
    timeout_s : float
        How long to wait for a peer, at the start and in each step.
    """

    def __init__(
        self, rank: int, world_size: int, address: str, port: int, *, run: str = "", timeout_s: float = TIMEOUT_S
    ) -> None:
        self._rank, self._world_size, self._run, self._timeout_s = rank, world_size, run, timeout_s
        self._peers: list[socket.socket] = []
        self._open = ExitStack()
        try:
            if world_size > 1:
                self._peers = self._accept(address, port) if rank == 0 else [self._join(address, port)]
        except BaseException:
            self._open.close()
            raise

    @classmethod
    def of(cls, session: penstock.Session) -> AllReduce:
        """Return the star of a session's gang, at MASTER_ADDR and MASTER_PORT."""
        if session.world_size > 1 and "MASTER_PORT" not in os.environ:
            raise PeerLost("MASTER_PORT is not set: who starts several ranks has to say where rank 0 listens")
        return cls(
            session.rank,
            session.world_size,
            os.environ.get("MASTER_ADDR", "127.0.0.1"),
            int(os.environ.get("MASTER_PORT", "0")),
            run=f"{session.job_id}/{os.environ.get('PENSTOCK_EPOCH', '')}",
        )

    def __enter__(self) -> AllReduce:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._open.close()

    def sum(self, mine: Floats) -> Floats:
        """
        Return the sum of all ranks' arrays of this shape.

        Raises
        ------
        PeerLost
            If a peer does not answer in time, hangs up, or sends an array of another size.
        """
        if self._rank:
            _send(self._peers[0], mine.tobytes())
            return self._array(self._peers[0], mine)
        total = mine.copy()
        for peer in self._peers:
            total += self._array(peer, mine)
        for peer in self._peers:
            _send(peer, total.tobytes())
        return total

    def mean(self, loss: float, gradients: dict[str, Floats], rows: int) -> tuple[float, dict[str, Floats]]:
        """Return loss and gradients, given as sums over each rank's own ``rows``, as means over the rows of all."""
        mine = [np.array([rows, loss], np.float32), *(value.ravel() for value in gradients.values())]
        flat = self.sum(np.concatenate(mine))
        flat = flat / flat[0]
        means, place = {}, 2
        for name, value in gradients.items():
            means[name] = flat[place : place + value.size].reshape(value.shape)
            place += value.size
        return float(flat[1]), means

    def _accept(self, address: str, port: int) -> list[socket.socket]:
        try:
            listener = socket.create_server((address, port), backlog=self._world_size)
        except OSError as error:
            raise PeerLost(f"rank 0 cannot listen on {address}:{port} ({error}); choose another MASTER_PORT") from error
        deadline = time.perf_counter() + self._timeout_s
        peers: dict[int, socket.socket] = {}
        with listener:
            while len(peers) < self._world_size - 1:
                listener.settimeout(max(deadline - time.perf_counter(), 0.001))
                try:
                    connection, _ = listener.accept()
                except TimeoutError as error:
                    missing = sorted({*range(1, self._world_size)} - {*peers})
                    raise PeerLost(f"ranks {missing} did not join within {self._timeout_s} s") from error
                rank = self._welcome(connection)
                if rank is not None and rank not in peers:
                    peers[rank] = self._open.enter_context(connection)
                else:
                    connection.close()
        return [peers[rank] for rank in sorted(peers)]

    def _welcome(self, connection: socket.socket) -> int | None:
        """Return the rank of a peer of this run; None for a stranger."""
        _prepare(connection, self._timeout_s)
        try:
            hello = json.loads(_receive(connection))
        except (PeerLost, ValueError):
            return None
        ours = {"run": self._run, "world_size": self._world_size}
        if hello != ours | {"rank": hello.get("rank")} or hello["rank"] not in range(1, self._world_size):
            return None
        _send(connection, json.dumps(ours).encode())
        return int(hello["rank"])

    def _join(self, address: str, port: int) -> socket.socket:
        deadline = time.perf_counter() + self._timeout_s
        while True:
            try:
                connection = socket.create_connection((address, port), timeout=self._timeout_s)
                _prepare(connection, self._timeout_s)
                hello = {"run": self._run, "world_size": self._world_size, "rank": self._rank}
                _send(connection, json.dumps(hello).encode())
                _receive(connection)
                return self._open.enter_context(connection)
            except (OSError, PeerLost) as error:
                if time.perf_counter() > deadline:
                    message = (
                        f"rank {self._rank} could not join rank 0 at {address}:{port} in {self._timeout_s} s: {error}"
                    )
                    raise PeerLost(message) from error
            time.sleep(RETRY_S)  # rank 0 may start later than this one

    def _array(self, peer: socket.socket, like: Floats) -> Floats:
        data = _receive(peer)
        if len(data) != like.nbytes:
            raise PeerLost(f"a peer sent {len(data)} bytes, expected {like.nbytes}: is it running another model?")
        return np.frombuffer(data, dtype=like.dtype).reshape(like.shape)


def _prepare(connection: socket.socket, timeout_s: float) -> None:
    connection.settimeout(timeout_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _send(connection: socket.socket, data: bytes) -> None:
    try:
        connection.sendall(_LENGTH.pack(len(data)) + data)
    except OSError as error:
        raise PeerLost(f"a process of the gang is gone: {error}") from error


def _receive(connection: socket.socket) -> bytearray:
    length = _LENGTH.unpack(_exactly(connection, _LENGTH.size))[0]
    return _exactly(connection, length)


def _exactly(connection: socket.socket, length: int) -> bytearray:
    data = bytearray(length)
    view, got = memoryview(data), 0
    while got < length:
        try:
            count = connection.recv_into(view[got:])
        except OSError as error:
            raise PeerLost(f"a process of the gang does not answer: {error}") from error
        if count == 0:
            raise PeerLost("a process of the gang hung up; look into the logs of the other ranks for the cause")
        got += count
    return data
