"""
The conversation of a job's process with the aggregation agent of its node, over a Unix socket.

A thread asks, and passes on where the run's parts are, now and whenever they move. An agent that is away is looked for
again, and asked anew: it knows from the log where the parts are.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import threading
from collections.abc import Callable
from typing import Final, Optional

import msgspec

from penstock_log.aggregation_messages import (
    AggregationDenied,
    AggregationFromClient,
    AggregationPending,
    AggregationToClient,
    AskAggregation,
    LeaveAggregation,
    LostAggregator,
    PartsAt,
)

LOOK_S: Final = (0.05, 2.0)
"""How long an agent that is away is left alone, at first and at most."""
SEND_TIMEOUT_S: Final = 2
PATIENCE_S: Final = 5.0
"""A process that has no aggregators for so long says so, once."""

_log = logging.getLogger("penstock.aggregation")
_decoder: Final = msgspec.json.Decoder(AggregationToClient)


class AgentConversation:
    """
    The connection to the agent, which may come and go.

    Parameters
    ----------
    path : str
        The agent's socket.
    ask : AskAggregation
        What the process asks; said again at each connection.
    on_parts, on_denied : callable
        Called by the thread with :class:`PartsAt`, and with the reason of a refusal.
    """

    def __init__(
        self, path: str, ask: AskAggregation, on_parts: Callable[[PartsAt], object], on_denied: Callable[[str], object]
    ) -> None:
        self._path, self._ask, self._on_parts, self._on_denied = path, ask, on_parts, on_denied
        self.pending = f"no aggregation agent answers at {path}"
        """Why there are no aggregators yet; empty once there were."""
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._socket: Optional[socket.socket] = None
        self._impatience = threading.Timer(PATIENCE_S, self._complain)
        self._impatience.daemon = True
        self._impatience.start()
        self._thread = threading.Thread(target=self._listen, name="penstock-aggregation-agent", daemon=True)
        self._thread.start()

    def report_lost(self, lost: LostAggregator) -> None:
        """Say that an aggregator cannot be reached."""
        with self._lock:
            self._send(lost)

    def close(self) -> None:
        """Say that no aggregation is needed any more, and hang up."""
        self._closing.set()
        self._impatience.cancel()
        with self._lock:
            self._send(LeaveAggregation())
            self._hang_up()
        if self._thread is not threading.current_thread():
            self._thread.join(SEND_TIMEOUT_S)

    def detach(self) -> None:
        """In a forked child: let go of the parent's socket."""
        self._closing.set()
        self._lock = threading.Lock()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _complain(self) -> None:
        _log.warning("aggregation_waits reason=%s; `penstock why` says more", self.pending)

    def _listen(self) -> None:
        wait_s = LOOK_S[0]
        while not self._closing.is_set():
            connection = self._connect()
            if connection is not None:
                heard = self._read(connection)
                wait_s = LOOK_S[0] if heard else wait_s
                with self._lock:
                    self._hang_up()
            self._closing.wait(wait_s)
            wait_s = min(2 * wait_s, LOOK_S[1])

    def _connect(self) -> Optional[socket.socket]:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_TIMEOUT_S, 0))
        try:
            connection.connect(self._path)
        except OSError as error:
            connection.close()
            self.pending = f"no aggregation agent answers at {self._path} ({error.strerror or error})"
            return None
        with self._lock:
            self._socket = connection
            return connection if not self._closing.is_set() and self._send(self._ask) else None

    def _read(self, connection: socket.socket) -> bool:
        """Pass on what the agent says until it hangs up; return whether it said anything."""
        heard, rest = False, b""
        with contextlib.suppress(OSError):
            while chunk := connection.recv(65_536):
                heard = True
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._decode(line)
        return heard

    def _decode(self, line: bytes) -> None:
        try:
            message = _decoder.decode(line)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            _log.warning("aggregation_agent_line_not_understood line=%r error=%s", line[:200], error)
            return
        if isinstance(message, PartsAt):
            self.pending = ""
            self._impatience.cancel()
            self._on_parts(message)
        elif isinstance(message, AggregationPending):
            self.pending = message.reason
        elif isinstance(message, AggregationDenied):
            self._impatience.cancel()
            self._closing.set()
            self._on_denied(message.reason)

    def _send(self, message: AggregationFromClient) -> bool:
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
