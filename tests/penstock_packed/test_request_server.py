"""Requests from other processes, over a Unix socket."""

from __future__ import annotations

import json
import resource
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from packed_cases import Echo, Ledger

from penstock_packed import MemoryNeed, PackedHost
from penstock_packed.request_server import CHUNK, RequestServer


class Doubles(Echo):
    """Answers with an array."""

    def step(self, requests: object, /) -> list[object]:
        return [self._double(request) for request in requests]

    def _double(self, request: object) -> object:
        return 2 * np.array(request) if isinstance(request, list) else NoList() if request == 0 else object()


class NoList:
    """An array that cannot be read any more."""

    def tolist(self) -> list[float]:
        raise RuntimeError("the tensor was freed")


@pytest.fixture
def listening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("s") / "inlet"
    host = PackedHost(Ledger())
    endpoints = [
        host.serve("echo", Echo(), target_s=5.0, memory=MemoryNeed(1, 0, 1)),
        host.serve("double", Doubles(), target_s=5.0, memory=MemoryNeed(1, 0, 1)),
    ]
    thread = threading.Thread(target=host.run)
    with RequestServer(path, host.endpoints):
        thread.start()
        yield path
        for endpoint in endpoints:
            endpoint.close()
        thread.join(30)
    assert not path.exists()


def talk(path: Path, *lines: str) -> list[dict[str, object]]:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(str(path))
        client.sendall("".join(line + "\n" for line in lines).encode())
        with client.makefile() as answers:
            return sorted((json.loads(answers.readline()) for _ in lines), key=lambda answer: answer["id"])


def test_a_request_is_a_line_and_so_is_its_answer(listening: Path) -> None:
    answers = talk(
        listening,
        '{"id": 1, "model": "echo", "request": {"a": [1, 2]}}',
        '{"id": 2, "model": "double", "request": [1, 2.5]}',
    )
    assert answers == [{"id": 1, "answer": {"a": [1, 2]}}, {"id": 2, "answer": [2.0, 5.0]}]


def test_what_cannot_be_answered_says_why_and_the_connection_lives_on(listening: Path) -> None:
    answers = talk(
        listening,
        "hello",
        '{"id": 3, "model": "ehco", "request": 1}',
        '{"id": 4, "model": "double", "request": 1}',
        '{"id": 5, "model": "echo", "request": 1}',
    )
    assert "JSON" in answers[0]["error"]
    assert answers[1]["error"] == "there is no model 'ehco' here; expected one of: double, echo"
    assert "cannot be written as JSON" in answers[2]["error"]
    assert answers[3] == {"id": 5, "answer": 1}


@pytest.mark.parametrize("line", [b'{"id": 1, "model": "\xff"}\n', b"[" * 100_000 + b"\n"], ids=["bytes", "brackets"])
def test_a_line_that_no_reader_of_json_can_take_ends_nobodys_service(listening: Path, line: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(str(listening))
        client.sendall(line + b'{"id": 2, "model": "echo", "request": 1}\n')
        with client.makefile() as answers:
            assert "expected one JSON object a line" in json.loads(answers.readline())["error"]
            assert json.loads(answers.readline()) == {"id": 2, "answer": 1}


def test_an_answer_that_fails_while_it_is_written_is_answered_with_its_error(listening: Path) -> None:
    [answer] = talk(listening, '{"id": 1, "model": "double", "request": 0}')
    assert answer["error"] == "its answer cannot be written as JSON: RuntimeError: the tensor was freed"


def test_a_long_line_comes_in_many_parts(listening: Path) -> None:
    text = "x" * (3 * CHUNK + 7)
    assert talk(listening, f'{{"id": 1, "model": "echo", "request": "{text}"}}') == [{"id": 1, "answer": text}]


def test_a_connection_that_cannot_be_accepted_does_not_end_the_service(listening: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, limits[1]))
        try:
            client.connect(str(listening))
            client.sendall(b'{"id": 1, "model": "echo", "request": 1}\n')
            client.settimeout(0.15)
            with pytest.raises(TimeoutError):
                client.recv(1)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        client.settimeout(30)
        assert json.loads(client.recv(1000)) == {"id": 1, "answer": 1}


def test_many_clients_are_served_and_one_that_vanishes_harms_nobody(listening: Path) -> None:
    for number in range(5):
        with socket.socket(socket.AF_UNIX) as gone:
            gone.connect(str(listening))
            gone.sendall(b'{"id": 1, "model": "echo", "request": 1}\n{"id": 2, "mod')
        assert talk(listening, f'{{"id": {number}, "model": "echo", "request": {number}}}') == [
            {"id": number, "answer": number}
        ]


def test_only_the_hosts_own_user_may_connect(listening: Path) -> None:
    assert stat.S_IMODE(listening.stat().st_mode) == 0o600
