"""A server that speaks as much NATS as a plain connection needs, and answers each request as a test says."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

Answer = Callable[[str, bytes], bytes | None]
"""From a request's subject and body: the body of the answer; None for no answer."""


class PlainServer:
    """
    Attributes
    ----------
    answer : callable
        Gives the answer to a request; :class:`ConnectionError` closes the connection instead.
    asked : list of (str, bytes)
        Subjects and bodies of the requests, in order.
    logins : list of dict
        What each connection has said of itself.
    """

    def __init__(self, answer: Answer, info: dict[str, Any]) -> None:
        self.answer, self.info = answer, info
        self.asked: list[tuple[str, bytes]] = []
        self.logins: list[dict[str, Any]] = []
        self.refuses = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"nats://127.0.0.1:{self._listener.getsockname()[1]}"

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as lines:
                self._converse(connection, lines)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _converse(self, connection: socket.socket, lines: Any) -> None:
        connection.sendall(b"INFO " + msgspec.json.encode(self.info) + b"\r\n")
        for line in lines:
            verb, _, rest = line.strip().partition(b" ")
            if verb == b"CONNECT":
                self.logins.append(msgspec.json.decode(rest))
            elif verb == b"PING":
                connection.sendall(b"-ERR 'Authorization Violation'\r\n" if self.refuses else b"PONG\r\n")
            elif verb == b"PUB":
                subject, reply, size = rest.decode().split()
                body = lines.read(int(size) + 2)[:-2]
                self.asked.append((subject, body))
                try:
                    answer = self.answer(subject, body)
                except ConnectionError:
                    return
                if answer is not None:
                    connection.sendall(framed(reply, answer))


def framed(reply: str, answer: bytes) -> bytes:
    """Return an answer as the server sends it; one that begins as a header has one."""
    if not answer.startswith(b"NATS/1.0"):
        return f"MSG {reply} 1 {len(answer)}\r\n".encode() + answer + b"\r\n"
    header = answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    return f"HMSG {reply} 1 {len(header)} {len(answer)}\r\n".encode() + answer + b"\r\n"


NOBODY = b"NATS/1.0 503\r\n\r\n"


def refusal(code: int, message: str, body: bytes = b"") -> bytes:
    """Return the answer of a service that refuses."""
    head = f"NATS/1.0\r\nNats-Service-Error: {message}\r\nNats-Service-Error-Code: {code}\r\n\r\n"
    return head.encode() + body


@contextmanager
def plain_server(answer: Answer, **info: Any) -> Iterator[PlainServer]:
    """Run a server in a thread."""
    server = PlainServer(answer, {"headers": True, "max_payload": 1 << 20, "nonce": "n", **info})
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join(5.0)
