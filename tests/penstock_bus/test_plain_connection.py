"""The connection of a quick command, to servers that do not behave."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock_bus.errors import Unavailable
from penstock_bus.identity.certificates import ensured
from penstock_bus.identity.logins import Login
from penstock_bus.nats.plain_connection import PlainConnection

INFO = b'INFO {"max_payload": 1048576, "headers": true%b}\r\n'
Talk = Callable[[socket.socket], None]


@contextmanager
def server(*talks: Talk) -> Iterator[str]:
    """Listen, and talk to each connection in turn as a test says."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for talk in talks:
                try:
                    connection, _ = listener.accept()
                except OSError:  # the test is over
                    return
                with connection:
                    talk(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"nats://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)  # wakes who waits to accept, as closing it does not
        thread.join(10)


def greeted(connection: socket.socket, more: bytes = b"") -> bytes:
    """Greet a client and let it in; return its inbox."""
    connection.sendall(INFO % more)
    said = b""
    while b"PING\r\n" not in said:
        said += connection.recv(65536)
    connection.sendall(b"PONG\r\n")
    return said.partition(b"SUB ")[2].partition(b".* 1")[0]


def test_what_a_server_says_before_encryption_begins_is_not_believed() -> None:
    heard: list[bytes] = []

    def inject(connection: socket.socket) -> None:
        connection.sendall(INFO % b', "tls_required": true' + b"PONG\r\nMSG x.1 1 2\r\nhi\r\n")
        heard.append(connection.recv(65536))

    with server(*[inject] * 20) as url, pytest.raises(Unavailable):
        PlainConnection(url, None, name="t", connect_timeout_s=0.5)
    assert b"CONNECT" not in b"".join(heard)


def test_a_login_with_an_authority_is_not_sent_in_the_clear(tmp_path: Path) -> None:
    heard: list[bytes] = []

    def in_the_clear(connection: socket.socket) -> None:
        connection.sendall(INFO % b"")
        heard.append(connection.recv(65536))

    login = Login(url="", user="alice", password="secret", ca=ensured(tmp_path, ["localhost"]).authority)
    with server(*[in_the_clear] * 20) as url, pytest.raises(Unavailable):
        PlainConnection(url, login, name="t", connect_timeout_s=0.5)
    assert b"secret" not in b"".join(heard)


def test_a_message_for_somebody_else_is_no_answer() -> None:
    def talk(connection: socket.socket) -> None:
        inbox = greeted(connection)
        connection.recv(65536)
        connection.sendall(b"MSG x.1 1 5\r\nwrong\r\nMSG " + inbox + b".1 1 5\r\nright\r\n")
        connection.recv(65536)

    with server(talk) as url:
        connection = PlainConnection(url, None, name="t", connect_timeout_s=5.0)
        token = connection.send("penstock.qry.gateway.jobs", b"{}")
        answer = connection.receive(10.0)
        connection.close()
    assert answer is not None
    assert (answer.token, answer.body) == (token, b"right")
