"""The connection of a quick command, to servers that do not behave."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock_bus.errors import Unauthorized, Unavailable
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


# --- servers that stop in the midst
SUBJECT = "penstock.qry.gateway.jobs"


def test_a_server_that_stops_in_the_midst_of_an_answer_is_left_in_time() -> None:
    over = threading.Event()

    def stop(connection: socket.socket) -> None:
        inbox = greeted(connection)
        connection.recv(65536)
        connection.sendall(b"MSG " + inbox + b".1 1 500000\r\nand so")
        over.wait(60)

    with server(stop) as url:
        connection = PlainConnection(url, None, name="t", connect_timeout_s=5.0)
        connection.send(SUBJECT, b"{}", patience_s=0.2)
        with pytest.raises(Unavailable, match="the server stopped in the midst of an answer"):
            connection.receive(0.1)
        over.set()


def test_an_answer_that_has_begun_is_waited_for_longer_than_for_its_beginning() -> None:
    goes_on = threading.Event()

    def slow(connection: socket.socket) -> None:
        inbox = greeted(connection)
        connection.recv(65536)
        connection.sendall(b"MSG " + inbox + b".1 1 5\r\nri")
        goes_on.wait(60)
        connection.sendall(b"ght\r\n")
        connection.recv(65536)

    with server(slow) as url:
        connection = PlainConnection(url, None, name="t", connect_timeout_s=5.0)
        connection.send(SUBJECT, b"{}", patience_s=60.0)
        threading.Timer(0.3, goes_on.set).start()
        answer = connection.receive(0.1)
        connection.close()
    assert answer is not None
    assert answer.body == b"right"


def test_a_server_that_takes_nothing_more_is_left_in_time() -> None:
    over, size = threading.Event(), 64 << 20

    def deaf(connection: socket.socket) -> None:
        connection.sendall(INFO.replace(b"1048576", b"%d" % (2 * size)) % b"")
        said = b""
        while b"PING\r\n" not in said:
            said += connection.recv(65536)
        connection.sendall(b"PONG\r\n")
        over.wait(60)

    with server(deaf) as url:
        connection = PlainConnection(url, None, name="t", connect_timeout_s=5.0)
        with pytest.raises(Unavailable, match="the server takes nothing more"):
            connection.send(SUBJECT, bytes(size), patience_s=0.2)
        over.set()


def test_a_server_that_never_begins_to_encrypt_is_left_in_time() -> None:
    over = threading.Event()

    def silent(connection: socket.socket) -> None:
        connection.sendall(INFO % b', "tls_required": true')
        over.wait(60)

    with server(silent) as url:
        with pytest.raises(Unavailable, match="timed out"):
            PlainConnection(url, None, name="t", connect_timeout_s=0.2)
        over.set()


# --- errors at the login
def ended(said: str) -> Talk:
    """Return a server that ends each login by an error."""

    def talk(connection: socket.socket) -> None:
        connection.sendall(INFO % b"")
        heard = b""
        while b"PING\r\n" not in heard:
            heard += connection.recv(65536)
        connection.sendall(f"-ERR '{said}'\r\n".encode())

    return talk


@pytest.mark.parametrize(
    "said", ["maximum connections exceeded", "maximum account active connections exceeded", "Authentication Timeout"]
)
def test_a_server_without_room_is_told_in_its_words_and_refuses_nobody(said: str) -> None:
    with server(*[ended(said)] * 40) as url, pytest.raises(Unavailable, match=f"ended the login: {said}") as failed:
        PlainConnection(url, None, name="t", connect_timeout_s=0.5)
    assert not isinstance(failed.value, Unauthorized)


def test_a_server_that_has_room_again_is_used() -> None:
    def free(connection: socket.socket) -> None:
        greeted(connection)
        connection.recv(65536)

    with server(ended("maximum connections exceeded"), free) as url:
        PlainConnection(url, None, name="t", connect_timeout_s=30.0).close()


@pytest.mark.parametrize("said", ["Authorization Violation", "User Authentication Expired"])
def test_a_login_that_is_refused_is_not_tried_again(said: str) -> None:
    with server(ended(said)) as url, pytest.raises(Unauthorized, match="refused a client without a user"):
        PlainConnection(url, None, name="t", connect_timeout_s=30.0)
