"""The data port under attack, by raw sockets: refused, counted by name, and never harmful to another slab."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from memory_agents import LOCAL, MIB, RawSlab, dial

from penstock.leased_connection import ConnectionEnded
from penstock.memory import frames
from penstock.memory.frames import HEADER_BYTES, MAGIC, MOST_BYTES, Kind, Status, encoded
from penstock_bus import data_port
from penstock_bus.data_port import RefusalCounts
from penstock_log.memory_messages import SlabAddress
from penstock_memory import slab_server
from penstock_memory.slab_pool import Slab, SlabPool
from penstock_memory.slab_server import SlabServer
from penstock_testing import eventually


class Port:
    """A data port with a pool, and a slab that somebody else has."""

    def __init__(self, path: Path) -> None:
        self.pool = SlabPool(MIB, first_generation=100)
        self.path = path / "slabs.sock"
        self.server = SlabServer(self.pool, LOCAL, 0, self.path)
        self.bystander = RawSlab(self.lend())
        self.bystander.write(0, b"untouched" * 100)

    def lend(self) -> SlabAddress:
        return self.address(self.pool.lend())

    def address(self, slab: Slab) -> SlabAddress:
        return SlabAddress(
            donor="n1",
            lease=slab.lease.hex(),
            token=slab.token.hex(),
            slab=slab.number,
            generation=slab.generation,
            slab_bytes=slab.slab_bytes,
            host=LOCAL,
            port=self.server.port,
            socket=str(self.path),
        )

    def counts(self) -> dict[str, int]:
        return self.server.refusals.counts()

    def wait_for(self, name: str) -> int:
        """Wait until something was refused under a name; return how often."""
        asyncio.run(eventually(lambda: name in self.counts()))
        return self.counts()[name]


@pytest.fixture
def port(tmp_path: Path) -> Iterator[Port]:
    port = Port(tmp_path)
    yield port
    assert port.bystander.read(0, 900) == b"untouched" * 100, "another slab was harmed"
    port.bystander.close()
    port.server.close()
    port.pool.close()


def test_a_wrong_token_is_refused(port: Port) -> None:
    slab = RawSlab(port.lend(), token="00" * 32)
    assert (slab.greeting.status, "proof is not by its token" in slab.reason) == (Status.BAD_PROOF, True)
    assert slab.is_over()
    assert port.counts() == {"BAD_PROOF": 1}


def test_a_lease_that_there_is_not_is_answered_as_a_wrong_token_is(port: Port) -> None:
    address = port.lend()
    port.pool.take_back([bytes.fromhex(address.lease)])
    slab = RawSlab(address)
    assert slab.greeting.status == Status.BAD_PROOF
    assert slab.is_over()


def test_the_token_of_another_slab_opens_none_but_that(port: Port) -> None:
    mine, other = port.lend(), port.lend()
    assert RawSlab(mine, token=other.token).greeting.status == Status.BAD_PROOF


@pytest.mark.parametrize("kind", [Kind.READ, Kind.WRITE])
@pytest.mark.parametrize("more", [{"generation": 1}, {"slab": 0}], ids=["an older generation", "another slab"])
def test_what_is_about_another_lending_is_refused(port: Port, kind: Kind, more: dict[str, int]) -> None:
    slab = RawSlab(port.lend())
    status, why = slab.ask(slab.frame(kind, 0, 16 if kind == Kind.READ else 0, **more))
    assert (status, "is not what was lent" in why) == (Status.STALE, True)
    assert slab.is_over()
    assert port.counts() == {"STALE": 1}


def test_a_write_with_a_wrong_checksum_ends_the_slab_for_all_its_connections(port: Port) -> None:
    address = port.lend()
    first, second = RawSlab(address), RawSlab(address)
    header = encoded(first.frame(Kind.WRITE, 0, 4096), b"x" * 4096)
    first.connection.sendall(header + b"y" * 4096)
    answer, _ = first.answer()
    assert answer.status == Status.BAD_CHECKSUM
    assert first.is_over()
    assert second.is_over()
    assert RawSlab(address).greeting.status == Status.STALE
    assert port.counts() == {"BAD_CHECKSUM": 1, "STALE": 1}


def test_a_torn_header_is_no_request(port: Port) -> None:
    slab = RawSlab(port.lend())
    header = bytearray(encoded(slab.frame(Kind.READ, 0, 16)))
    header[24] ^= 1
    slab.connection.sendall(header)
    answer, _ = slab.answer()
    assert answer.status == Status.BAD_CHECKSUM


@pytest.mark.parametrize(
    ("offset", "length", "status"),
    [
        (MIB - 1, 2, Status.OUT_OF_RANGE),
        (2**63, 1, Status.OUT_OF_RANGE),
        (0, MOST_BYTES + 1, Status.TOO_LONG),
        (0, 2**32 - 1, Status.TOO_LONG),
    ],
)
@pytest.mark.parametrize("kind", [Kind.READ, Kind.WRITE])
def test_a_range_that_is_not_the_slabs_is_refused(
    port: Port, kind: Kind, offset: int, length: int, status: Status
) -> None:
    slab = RawSlab(port.lend())
    assert slab.ask(slab.frame(kind, offset, length))[0] == status
    assert slab.is_over()
    assert port.counts() == {status.name: 1}


def test_the_last_bytes_of_a_slab_are_the_clients_and_those_behind_them_are_not(port: Port) -> None:
    slab = RawSlab(port.lend())
    assert slab.write(MIB - 2, b"ab").status == Status.OK
    assert slab.read(MIB - 2, 2) == b"ab"
    assert slab.read(MIB, 0) == b""
    assert slab.write(MIB - 1, b"ab").status == Status.OUT_OF_RANGE


@pytest.mark.parametrize("kind", [Kind.HELLO, Kind.SHARE, 9])
def test_a_frame_of_a_kind_that_is_not_served_over_tcp_is_refused(port: Port, kind: int) -> None:
    slab = RawSlab(port.lend())
    assert slab.ask(slab.frame(kind))[0] == Status.BAD_FRAME


@pytest.mark.parametrize("line", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", bytes(64)], ids=["another protocol", "zeros"])
def test_who_speaks_another_protocol_is_refused(port: Port, line: bytes) -> None:
    with dial(port.lend()) as connection:
        connection.sendall(line)
        answer = connection.recv(4096)
        assert frames.decoded(answer)[0].status == Status.BAD_FRAME
    assert port.wait_for("BAD_FRAME") == 1


def test_what_is_no_frame_after_the_hello_is_refused(port: Port) -> None:
    slab = RawSlab(port.lend())
    slab.connection.sendall(bytes(HEADER_BYTES))
    assert slab.answer()[0].status == Status.BAD_FRAME


@pytest.mark.parametrize("part", ["a header", "a payload", "a hello"])
def test_half_a_frame_is_counted(port: Port, part: str) -> None:
    address = port.lend()
    if part == "a hello":
        with dial(address) as connection:
            connection.sendall(MAGIC)
    else:
        slab = RawSlab(address)
        whole = encoded(slab.frame(Kind.WRITE, 0, 4096), b"x" * 4096) + b"x" * 4096
        slab.connection.sendall(whole[: 10 if part == "a header" else 2000])
        slab.close()
    assert port.wait_for("HALF_FRAME") == 1


def test_a_client_that_stands_still_inside_a_frame_is_hung_up_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slab_server, "STALL_S", 1.0)
    port = Port(tmp_path)
    slab = RawSlab(port.lend())
    slab.connection.sendall(encoded(slab.frame(Kind.WRITE, 0, 4096), b"x" * 4096)[:20])
    assert slab.is_over()
    assert port.counts() == {"HALF_FRAME": 1}
    port.server.close()
    port.pool.close()


@pytest.mark.parametrize("drips", [False, True], ids=["nothing", "a byte now and then"])
def test_who_proves_nothing_in_time_is_hung_up_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drips: bool) -> None:
    monkeypatch.setattr(data_port, "HELLO_S", 0.3)
    port = Port(tmp_path)
    with dial(port.lend()) as connection:
        if drips:
            connection.settimeout(0.1)
            for byte in MAGIC * 8:
                try:
                    connection.sendall(bytes([byte]))
                    if not connection.recv(1):
                        break
                except TimeoutError:
                    continue
                except OSError:
                    break
        else:
            assert connection.recv(1) == b""
    assert port.wait_for("NO_HELLO") == 1
    port.server.close()
    port.pool.close()


def test_connections_without_a_proof_are_bounded_and_others_are_served_on(port: Port) -> None:
    address = port.lend()
    idle = [dial(address) for _ in range(data_port.MOST_UNPROVED_OF_ONE + 8)]
    assert port.wait_for("TOO_MANY") >= 1
    assert port.bystander.read(0, 9) == b"untouched"
    local = RawSlab(address, local=True)
    assert local.write(0, b"by another way").status == Status.OK
    for connection in idle:
        connection.close()


def test_connections_about_one_slab_are_bounded(port: Port) -> None:
    address = port.lend()
    slabs = [RawSlab(address) for _ in range(slab_server.MOST_OF_SLAB)]
    refused = RawSlab(address)
    assert "connections about one slab" in refused.reason
    for slab in [*slabs, refused]:
        slab.close()


def test_a_slab_that_is_taken_back_ends_its_connections_in_whatever_they_are_at(port: Port) -> None:
    address = port.lend()
    reading, writing = RawSlab(address), RawSlab(address, local=True)
    shared = writing.share()
    ended = threading.Event()

    def read_on() -> None:
        try:
            while True:
                reading.read(0, MIB)
        except (ConnectionEnded, OSError):
            ended.set()

    threading.Thread(target=read_on, daemon=True).start()
    writing.connection.sendall(encoded(writing.frame(Kind.WRITE, 0, MIB), bytes(MIB)) + bytes(1000))  # and waits
    port.pool.take_back([bytes.fromhex(address.lease)])
    assert ended.wait(30)
    assert writing.is_over()
    assert int.from_bytes(shared[MIB : MIB + 8], "little") == 0
    assert port.counts().keys() <= {"STALE"}, "nobody did anything wrong"


def test_who_has_the_memory_by_descriptor_cannot_take_it_away(port: Port) -> None:
    local = RawSlab(port.lend(), local=True)
    local.connection.sendall(encoded(local.frame(Kind.SHARE)))
    _, fds, _, _ = socket.recv_fds(local.connection, HEADER_BYTES, 1)
    with open(fds[0], "r+b", buffering=0) as memory:
        for size in (0, 2 * MIB):
            with pytest.raises(PermissionError):
                memory.truncate(size)
        local.write(0, b"still there")
        assert memory.read(11) == b"still there"


def test_the_log_is_not_filled_by_who_attacks() -> None:
    now = [0.0]
    refusals = RefusalCounts("slab_request", lambda: now[0])
    with structlog.testing.capture_logs() as logged:
        for _ in range(40):
            refusals.note("BAD_PROOF", "no such lease")
        assert len(logged) == 10
        now[0] = 20.0
        refusals.note("BAD_PROOF", "no such lease")
    assert [line.get("unlogged") for line in logged[10:]] == [30, None]
    assert refusals.counts() == {"BAD_PROOF": 41}


def test_a_request_is_answered_though_others_were_sent_behind_it(port: Port) -> None:
    slab = RawSlab(port.lend())
    sent = [slab.frame(Kind.WRITE, 4096 * i, 4096, request=i) for i in range(50)]
    slab.connection.sendall(
        b"".join(encoded(frame, bytes([i]) * 4096) + bytes([i]) * 4096 for i, frame in enumerate(sent))
    )
    assert [slab.answer()[0].request for _ in sent] == list(range(50))
    assert slab.read(4096 * 49, 4096) == bytes([49]) * 4096
    assert port.server.received_bytes >= 50 * 4096


def test_a_server_that_closes_ends_all_connections(tmp_path: Path) -> None:
    port = Port(tmp_path)
    slab = RawSlab(port.lend())
    port.server.close()
    assert slab.is_over()
    assert port.bystander.is_over()
    port.pool.close()
