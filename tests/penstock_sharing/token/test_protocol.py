"""What goes over the lane socket, and who may say it."""

from __future__ import annotations

import gc
import json
import os
import resource
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_clients import house, who

from penstock_sharing.token import ClientGone, JoinRequested, LaneClient, TokenBroker, protocol
from penstock_sharing.token.protocol import (
    VERSION,
    BadPacket,
    JoinLane,
    JoinRefused,
    LaneClientId,
    SlotPlace,
    SlotsAssigned,
    SlotsTaken,
    decode,
    encode,
)
from penstock_sharing.token.shared_page import SharedPage

places = st.lists(st.builds(SlotPlace, st.text(), st.integers(0, 249))).map(tuple)
messages = st.one_of(
    st.builds(JoinLane, st.integers(0, 9), st.builds(LaneClientId, st.text(), st.integers(0), st.integers(0)), places),
    st.builds(SlotsAssigned, st.integers(1), places),
    st.builds(SlotsTaken, st.integers(1)),
    st.builds(JoinRefused, st.text()),
)


@given(messages)
def test_every_message_survives_the_wire(message: protocol.Message) -> None:
    assert decode(encode(message)) == message


def test_fields_of_a_later_version_are_left_alone() -> None:
    told = json.loads(encode(JoinRefused("no"))) | {"more": [1, 2]}
    assert decode(json.dumps(told).encode()) == JoinRefused("no")


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b'{"kind":"x"}',
        b'{"kind":"seated"}',
        b'{"kind":"seated","places":[["a"]]}',
        b"\xff",
        b"[" * 60_000,
    ],
)
def test_what_is_no_message_is_refused(packet: bytes) -> None:
    with pytest.raises(BadPacket):
        decode(packet)


@given(st.binary())
def test_no_packet_brings_the_decoder_down(packet: bytes) -> None:
    with suppress(BadPacket):
        decode(packet)


def test_descriptors_that_come_with_nonsense_are_not_kept() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reader, writer = os.pipe2(os.O_NONBLOCK)
    socket.send_fds(theirs, [b"nonsense"], [writer] * 3)
    os.close(writer)
    with pytest.raises(BadPacket):
        protocol.receive(ours)
    assert os.read(reader, 1) == b""  # the end of the pipe: nobody has it open for writing any more
    os.close(reader)
    ours.close()
    theirs.close()


def connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(30)
    connection.connect(str(path))
    return connection


def test_another_version_is_told_which_one_is_spoken(tmp_path: Path) -> None:
    with house(tmp_path) as served, connect(served.path) as connection:
        protocol.send(connection, JoinLane(VERSION + 1, who("a")))
        refused, _ = protocol.receive(connection) or (None, [])
        assert isinstance(refused, JoinRefused)
        assert "version 2" in refused.reason
        assert protocol.receive(connection) is None


def test_the_broker_hangs_up_on_nonsense_and_serves_others(tmp_path: Path) -> None:
    with house(tmp_path) as served, connect(served.path) as connection:
        connection.send(b"nonsense")
        assert connection.recv(1) == b""
        assert served.process("a").do("enter")[0].startswith("entered")


def test_a_page_that_somebody_could_cut_short_is_not_taken_for_an_earlier_brokers(tmp_path: Path) -> None:
    with house(tmp_path) as served, connect(served.path) as connection:
        page, call_fd = os.memfd_create("page"), os.eventfd(0)
        os.ftruncate(page, 65_536)
        protocol.send(connection, JoinLane(VERSION, who("a"), (SlotPlace("0/0", 0),)), (page, call_fd))
        served.wait_for(JoinRequested)
        seated, descriptors = protocol.receive(connection) or (None, [])
        assert isinstance(seated, SlotsAssigned)
        assert not os.path.sameopenfile(page, descriptors[0])
        for fd in (page, call_fd, *descriptors):
            os.close(fd)


def a_page(folder: Path) -> int:
    """Return the descriptor of a page that nobody sits on."""
    page = SharedPage.make()
    page.used = 1
    return page.fd


def a_file_like_it(folder: Path) -> int:
    """Return that of a file with the same in it, which nothing keeps from being made shorter."""
    copy = os.open(folder / "page", os.O_RDWR | os.O_CREAT)
    page = a_page(folder)
    os.write(copy, os.pread(page, os.fstat(page).st_size, 0))
    os.close(page)
    return copy


def a_bell(folder: Path) -> int:
    return os.eventfd(0, os.EFD_NONBLOCK)


def a_file(folder: Path) -> int:
    return os.open(folder / "file", os.O_RDWR | os.O_CREAT | os.O_NONBLOCK)


def descriptors() -> list[str]:
    """Return what is open; mappings go with the last that refers to them."""
    gc.collect()
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one by which they are listed
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sorted(found)


@pytest.mark.parametrize(
    ("make_page", "make_call_fd"),
    [(a_file, a_bell), (a_file_like_it, a_bell), (a_page, a_file), (a_page, lambda _: os.eventfd(0))],
    ids=["no page", "a file", "no eventfd", "an eventfd that blocks"],
)
def test_of_pages_that_are_not_taken_back_the_broker_keeps_nothing(
    tmp_path: Path, make_page: Callable[[Path], int], make_call_fd: Callable[[Path], int]
) -> None:
    broker = TokenBroker(tmp_path / "lanes.sock")
    broker.open("0/0")
    page, call_fd = make_page(tmp_path), make_call_fd(tmp_path)
    before = descriptors()
    for number in range(3):
        with connect(tmp_path / "lanes.sock") as connection:
            protocol.send(connection, JoinLane(VERSION, who("a"), (SlotPlace("0/0", 0),)), (page, call_fd))
            events = [*broker.poll(), *broker.poll()]
            assert [type(one) for one in events] == [JoinRequested], number
        assert [type(one) for one in broker.poll()] == [ClientGone]
    assert descriptors() == before
    broker.close()
    os.close(page)
    os.close(call_fd)


def test_a_process_with_many_open_files_hears_its_broker(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], min(2048, limits[1])), limits[1]))
    broker = TokenBroker(tmp_path / "lanes.sock")
    broker.open("0/0")
    with ExitStack() as opened:
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        fd = 0
        while fd < 1024:  # of which select() knows nothing
            fd = os.dup(0)
            opened.callback(os.close, fd)
        member = LaneClient(str(tmp_path / "lanes.sock"), who("a"))
        assert [type(one) for one in [*broker.poll(), *broker.poll()]] == [JoinRequested]
        broker.assign_slots(who("a"), ["0/0"])
        member.look()
        assert [slot.lane for slot in member.slots] == ["0/0"]
        member.close()
    broker.close()


def test_only_this_user_can_reach_the_socket(tmp_path: Path) -> None:
    with house(tmp_path) as served:
        assert served.path.stat().st_mode & 0o077 == 0
