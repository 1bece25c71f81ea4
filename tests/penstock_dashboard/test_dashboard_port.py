"""The port of the dashboard: the one that it had last, else that of the settings, else a free one."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock_dashboard.runner import bound
from penstock_dashboard.settings import DashboardSettings


@pytest.fixture
def taken() -> Iterator[int]:
    """A port of loopback at which something else listens."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def port_of(settings: DashboardSettings) -> int:
    with bound(settings) as listener:
        found: int = listener.getsockname()[1]
    return found


def test_where_the_port_is_taken_the_next_start_has_the_same_other_port(taken: int, tmp_path: Path) -> None:
    settings = DashboardSettings(port=taken, port_file=str(tmp_path / "dashboard.port"))
    first = port_of(settings)
    assert first != taken
    assert [port_of(settings) for _ in range(3)] == [first] * 3


def test_a_port_that_it_had_and_that_is_taken_now_is_given_up(taken: int, tmp_path: Path) -> None:
    file = tmp_path / "dashboard.port"
    file.write_text(f"{taken}\n")
    port = port_of(DashboardSettings(port=taken, port_file=str(file)))
    assert port != taken
    assert file.read_text() == f"{port}\n"


@pytest.mark.parametrize("text", [b"", b"0", b"70000", b"http", b"\xff", b"80 81", "٣".encode()])
def test_a_file_with_no_port_in_it_is_written_anew(text: bytes, tmp_path: Path) -> None:
    file = tmp_path / "dashboard.port"
    file.write_bytes(text)
    port = port_of(DashboardSettings(port=0, port_file=str(file)))
    assert file.read_text() == f"{port}\n"


def test_a_file_that_cannot_be_written_keeps_no_dashboard_from_starting(tmp_path: Path) -> None:
    assert port_of(DashboardSettings(port=0, port_file=str(tmp_path / "nowhere" / "dashboard.port"))) > 0
