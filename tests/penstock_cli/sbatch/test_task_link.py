"""The link between the nodes of an allocation: who does not know the secret is refused on either side."""

from __future__ import annotations

import socket
from concurrent.futures import Future, ThreadPoolExecutor, wait

import pytest

from penstock_cli.sbatch.node_programs.task_link import TaskLink, accept, connect


def met(ours: bytes, theirs: bytes) -> tuple[Future[TaskLink], Future[TaskLink]]:
    """Return what comes of a listener that knows one secret and a caller that knows another."""
    with ThreadPoolExecutor(2) as pool, socket.create_server(("127.0.0.1", 0)) as server:
        accepting = pool.submit(lambda: accept(server.accept()[0], ours))
        connecting = pool.submit(lambda: connect(server.getsockname(), theirs))
        wait((accepting, connecting))  # a listener that is closed in the meantime would wait for ever
    return accepting, connecting


def test_two_that_know_the_secret_understand_each_other() -> None:
    here, there = (one.result() for one in met(b"secret", b"secret"))
    here.tell({"signal": 10})
    assert there.hear() == {"signal": 10}
    there.close()
    with pytest.raises(ConnectionError):
        here.hear()
    here.close()


def test_a_stranger_is_refused_and_learns_it_before_anything_is_said() -> None:
    accepting, connecting = met(b"secret", b"another")
    with pytest.raises(ConnectionError, match="does not know the secret"):
        accepting.result()
    with pytest.raises(OSError, match=r".*"):
        connecting.result()


def test_a_listener_that_does_not_know_the_secret_is_told_nothing() -> None:
    with ThreadPoolExecutor(1) as pool, socket.create_server(("127.0.0.1", 0)) as server:
        connecting = pool.submit(lambda: connect(server.getsockname(), b"secret"))
        link = TaskLink(server.accept()[0])
        link.tell({"nonce": "1"})
        link.hear()
        link.tell({"proof": "invented"})
        with pytest.raises(ConnectionError, match="the listener does not know the secret"):
            connecting.result()
        link.close()
