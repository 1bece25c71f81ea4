"""
The conversation of a client with the memory agent of its node, over a Unix socket.

:class:`AgentLink` asks for slabs, gives them back and says how they are used; it hears of slabs that are lent, and of
those that have to go. One thread listens, and one sends, so that nobody who reads or writes memory ever waits for the
agent. An agent that is away is looked for again; what it had lent is lost then, since it is the agent that renews it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import socket
import struct
import threading
from collections.abc import Callable
from time import perf_counter
from typing import Final, Optional, Protocol

import msgspec

from penstock_log.agent_protocol import AgentEnv
from penstock_log.memory_messages import (
    VERSION,
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

LOOK_S: Final = (0.5, 5.0)
"""How long an agent that is away is left alone, at first and at most."""
SEND_TIMEOUT_S: Final = 2

BorrowResult = Callable[[Optional[SlabAddress], str], object]
"""Called with the slab that was lent, or with None and the reason."""

_log = logging.getLogger("penstock.memory")
_decoder: Final = msgspec.json.Decoder(ToClient)


class LinkOwner(Protocol):
    """Whose slabs they are. All is called by the link's threads, which wait meanwhile."""

    def agent_welcomed(self, slab_bytes: int) -> None:
        """Note that an agent is there, which lends slabs of this size."""

    def agent_gone(self) -> None:
        """Note that the agent is away, and with it all that it had lent."""

    def slab_evicted(self, slab: int, reason: str) -> None:
        """Stop using a slab; when this returns, it is given back."""

    def second_over(self) -> dict[int, float]:
        """Return how active each bound slab is; called about once a second, with an agent and without."""


def agent_socket(path: str | None) -> str:
    """Return the path of the agent's socket: the given one, or else the environment's; empty where there is none."""
    return os.environ.get(AgentEnv.MEMORY_SOCKET, "") if path is None else path


def hello_of(name: str) -> ClientHello:
    """Return the first line of this process, with the run that it is a part of, as its environment says."""
    epoch = os.environ.get(AgentEnv.EPOCH, "")
    return ClientHello(
        version=VERSION,
        pid=os.getpid(),
        name=name[:256],
        job_id=os.environ.get(AgentEnv.JOB_ID, "")[:256],
        epoch=int(epoch) if epoch.isdecimal() else 0,
    )


class AgentLink:
    """
    The connection to the agent, which may come and go.

    Nothing here waits but :meth:`close`.

    Parameters
    ----------
    path : str
        The agent's socket.
    name : str
        What the client calls its memory, for people to see.
    owner : LinkOwner
    second_s : float
        How long a second is here; tests have shorter ones.
    """

    def __init__(self, path: str, name: str, owner: LinkOwner, *, second_s: float = 1.0) -> None:
        self._path, self._name, self._owner, self._second_s = path, name, owner, second_s
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._outbox: queue.SimpleQueue[FromClient | None] = queue.SimpleQueue()
        self._asked: dict[int, BorrowResult] = {}
        self._socket: socket.socket | None = None
        self._welcomed = False
        self._told = ""
        self._threads = [
            threading.Thread(target=self._listen, name="penstock-memory-agent", daemon=True),
            threading.Thread(target=self._send_all, name="penstock-memory-use", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def connected(self) -> bool:
        """Whether the agent is there and knows the client."""
        return self._welcomed

    def borrow(self, slab: int, result: BorrowResult) -> bool:
        """
        Ask for a slab, to be called ``slab``.

        Returns
        -------
        bool
            Whether the agent is asked; if not, ``result`` is never called. Else it is called once, by another thread.
        """
        with self._lock:
            if not self._welcomed or slab in self._asked:
                return False
            self._asked[slab] = result
        self._outbox.put(BorrowSlab(slab=slab))
        return True

    def give_back(self, slab: int) -> None:
        """Say that a slab is used no more."""
        self._outbox.put(ReturnSlab(slab=slab))

    def close(self) -> None:
        """Hang up, which gives everything back, and end the threads."""
        self._closing.set()
        with self._lock:
            self._hang_up()
        self._outbox.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(SEND_TIMEOUT_S)

    def before_fork(self) -> None:
        """Keep the state as it is until after the fork."""
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Let go of the parent's socket, so that it closes when the parent dies; there are no threads."""
        self._closing.set()
        self._lock = threading.Lock()
        self._threads, self._asked, self._welcomed = [], {}, False
        if self._socket is not None:
            os.close(self._socket.detach())
            self._socket = None

    def _listen(self) -> None:
        first_s, longest_s = (each * self._second_s for each in LOOK_S)
        wait_s = first_s
        while not self._closing.is_set():
            connection = self._connect()
            if connection is not None:
                self._read(connection)
                welcomed = self._disconnected()
                wait_s = first_s if welcomed else wait_s
            self._closing.wait(wait_s)
            wait_s = min(2 * wait_s, longest_s)

    def _connect(self) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_TIMEOUT_S, 0))
        try:
            connection.connect(self._path)
        except OSError as error:
            connection.close()
            self._tell(f"no agent answers at {self._path} ({error.strerror or error})")
            return None
        with self._lock:
            self._socket = connection
            if self._closing.is_set():
                self._hang_up()
                return None
            return connection if self._send(hello_of(self._name)) else None

    def _read(self, connection: socket.socket) -> None:
        rest = b""
        with contextlib.suppress(OSError):
            while chunk := connection.recv(65_536):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._decode(line)

    def _decode(self, line: bytes) -> None:
        try:
            message = _decoder.decode(line)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            _log.warning("memory_agent_line_not_understood line=%r error=%s", line[:200], error)
            return
        self._handle(message)

    def _handle(self, message: ToClient) -> None:
        if isinstance(message, AgentWelcome):
            self._owner.agent_welcomed(message.slab_bytes)
            with self._lock:
                self._welcomed, self._told = self._socket is not None, ""
        elif isinstance(message, ClientRefused):
            self._tell(f"the agent refused: {message.reason}")
        elif isinstance(message, EvictSlab):
            self._owner.slab_evicted(message.slab, message.reason)
            self.give_back(message.slab)
        elif isinstance(message, (SlabLent, SlabRefused)):
            self._answered(message)
        else:
            _log.warning("memory_answer_not_asked_for kind=%s", type(message).__name__)

    def _answered(self, message: SlabLent | SlabRefused) -> None:
        with self._lock:
            result = self._asked.pop(message.slab, None)
        if isinstance(message, SlabRefused):
            if result is not None:
                result(None, message.reason)
        elif result is None:
            _log.warning("memory_slab_not_asked_for slab=%s", message.slab)
            self.give_back(message.slab)
        else:
            result(message.address, "")

    def _disconnected(self) -> bool:
        """Hang up, and tell everybody who waits; return whether the agent had known the client."""
        with self._lock:
            welcomed, self._welcomed = self._welcomed, False
            asked, self._asked = self._asked, {}
            self._hang_up()
        for result in asked.values():
            result(None, "the agent is away")
        if welcomed and not self._closing.is_set():
            self._owner.agent_gone()
            self._tell(f"the agent at {self._path} is away")
        return welcomed

    def _tell(self, what: str) -> None:
        """Say once why there is no memory but the own; again only after it was otherwise."""
        if what != self._told and not self._closing.is_set():
            _log.warning("memory_without_agent reason=%s; the disk is used, looking again", what)
        self._told = what

    def _send_all(self) -> None:
        """Send what is to be sent, and once a second how the slabs are used."""
        due_s = perf_counter() + self._second_s
        while not self._closing.is_set():
            try:
                message = self._outbox.get(timeout=max(0.0, due_s - perf_counter()))
            except queue.Empty:
                message = None
            if message is not None:
                self._send_now(message)
            if perf_counter() >= due_s:
                due_s = perf_counter() + self._second_s
                activity = self._owner.second_over()
                if activity:
                    self._send_now(SlabUse(activity=activity))

    def _send_now(self, message: FromClient) -> None:
        with self._lock:
            if self._welcomed:
                self._send(message)

    def _send(self, message: FromClient) -> bool:
        """Send with the lock held. A line that did not go out whole costs the connection."""
        if self._socket is None:
            return False
        try:
            self._socket.sendall(msgspec.json.encode(message) + b"\n")
        except OSError:
            self._hang_up()
            return False
        return True

    def _hang_up(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
            self._socket = None
