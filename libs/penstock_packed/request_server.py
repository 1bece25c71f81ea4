"""
Requests from other processes: a Unix socket, one JSON object a line.

A request is ``{"id": 1, "model": "digits", "request": ...}``; its answer ``{"id": 1, "answer": ...}`` or
``{"id": 1, "error": "..."}``. Answers come as they are ready, so in any order. One thread reads all connections.
Only the user that runs the host may connect.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import msgspec

from penstock_packed.member_turn import LOG, reason
from penstock_packed.request_queue import ModelEndpoint
from penstock_sharing.token.token_broker import listen

CHUNK: Final = 65_536
MOST_LINE: Final = 64 * 2**20
MOST_PATH: Final = 107
SEND_TIMEOUT_S: Final = 1
"""A client that does not read its answers for so long is hung up on: the host would wait for it."""


PAUSE_S: Final = 0.1
"""After a connection that could not be accepted: where files have run out, the next attempt would fail at once."""


class RequestLine(msgspec.Struct, frozen=True):
    """A request."""

    id: int
    model: str
    request: Any = None


_decoder: Final = msgspec.json.Decoder(RequestLine)


class RequestConnection:
    """One connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._parts: list[bytes] = []  # of a line that is not complete: joined once, since lines may be long
        self._size = 0
        self._sending = threading.Lock()

    def lines(self) -> list[bytes] | None:
        """Return the lines that have come; None where the client has hung up."""
        try:
            chunk = self.connection.recv(CHUNK)
        except OSError:
            return None
        if not chunk:
            return None
        first, *others = chunk.split(b"\n")
        self._parts.append(first)
        self._size += len(first)
        if self._size > MOST_LINE:
            LOG.warning("request_too_long: a line of more than %s bytes; its client is hung up on", MOST_LINE)
            return None
        if not others:
            return []
        lines = [b"".join(self._parts), *others[:-1]]
        self._parts, self._size = [others[-1]], len(others[-1])
        return lines

    def send(self, message: Mapping[str, Any]) -> None:
        """
        Send a line; a client that is gone, or does not read, is hung up on.

        Raises
        ------
        Exception
            If it cannot be written as JSON, of whatever kind the writer or the value itself raises.
        """
        data = msgspec.json.encode(message, enc_hook=_as_lists) + b"\n"
        with self._sending:
            try:
                self.connection.sendall(data)
            except OSError:
                with contextlib.suppress(OSError):
                    self.connection.shutdown(socket.SHUT_RDWR)


class RequestServer:
    """
    The socket, from ``with`` to the end of it.

    Parameters
    ----------
    path : Path
        At most 107 bytes long; a socket that is there is replaced.
    endpoints : mapping of str to ModelEndpoint
        The models, by name.
    """

    def __init__(self, path: Path, endpoints: Mapping[str, ModelEndpoint[Any, Any]]) -> None:
        self._path = path
        self._endpoints = endpoints
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._pause = threading.Event()  # nobody sets it
        self._thread = threading.Thread(target=self._listen, name="penstock-inlet", daemon=True)

    def __enter__(self) -> RequestServer:
        """
        Listen.

        Raises
        ------
        ValueError
            If the path is too long for a socket's.
        """
        if len(os.fsencode(self._path)) > MOST_PATH:
            raise ValueError(f"{self._path} is too long for a socket; expected at most {MOST_PATH} bytes")
        self._listener = listen(self._path, socket.SOCK_STREAM)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Hang up."""
        self._wake.send(b".")
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._wake.close()
        self._selector.close()
        self._path.unlink(missing_ok=True)

    def _listen(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._woken:
                    return
                if key.data is None:
                    self._accept()
                else:
                    self._read(key.data)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:  # it has gone again, or there are too many open files
            LOG.warning("client_not_accepted error=%r", error)
            self._pause.wait(PAUSE_S)
            return
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_TIMEOUT_S, 0))
        self._selector.register(connection, selectors.EVENT_READ, RequestConnection(connection))

    def _read(self, client: RequestConnection) -> None:
        lines = client.lines()
        if lines is None:
            self._selector.unregister(client.connection)
            client.connection.close()
            return
        for line in lines:
            self._understand(client, line)

    def _understand(self, client: RequestConnection, line: bytes) -> None:
        try:
            asked = _decoder.decode(line)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # no UTF-8; brackets without end
            LOG.warning("request_not_understood line=%r error=%s", line[:200], error)
            client.send({"id": -1, "error": f"{error}; expected one JSON object a line with id, model and request"})
            return
        endpoint = self._endpoints.get(asked.model)
        if endpoint is None:
            known = ", ".join(sorted(self._endpoints)) or "none"
            client.send({"id": asked.id, "error": f"there is no model {asked.model!r} here; expected one of: {known}"})
            return
        endpoint.ask(asked.request).add_done_callback(lambda answer: _reply(client, asked.id, answer))


def _reply(client: RequestConnection, number: int, answer: Future[Any]) -> None:
    error = answer.exception()
    if error is not None:
        client.send({"id": number, "error": reason(error)})
        return
    try:
        client.send({"id": number, "answer": answer.result()})
    except Exception as not_json:  # whatever the answer's own tolist() raises is among it
        client.send({"id": number, "error": f"its answer cannot be written as JSON: {reason(not_json)}"})


def _as_lists(value: Any) -> Any:
    """Write arrays, tensors and their scalars as lists and numbers."""
    if not hasattr(value, "tolist"):
        raise TypeError(f"a {type(value).__name__}; expected numbers, strings, lists, objects, arrays or tensors")
    return value.tolist()
