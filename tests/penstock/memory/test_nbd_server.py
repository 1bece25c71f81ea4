from __future__ import annotations

import json
import os
import select
import socket
import stat
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nbd_cases import (
    ABORT,
    ACK,
    DF,
    DISC,
    EINVAL,
    EIO,
    ENOSPC,
    ERR_INVALID,
    ERR_UNKNOWN,
    ERR_UNSUP,
    EXPORT_NAME,
    FAST_ZERO,
    FLUSH,
    FUA,
    GO,
    INFO,
    LIST,
    NO_HOLE,
    READ,
    STRUCTURED_REPLY,
    TRIM,
    WRITE,
    WRITE_ZEROES,
    Answer,
    MemoryStore,
    RawClient,
    chosen,
    disk_full,
    require,
    run_client,
)

from penstock.memory.block_store import open_store
from penstock.memory.nbd_server import MOST_BYTES, MOST_CONNECTIONS, NbdServer
from sweeps import examples

MIB = 1 << 20
SIZE = 48 * MIB
OK = Answer(0)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(SIZE)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "nbd.sock"


@pytest.fixture
def server(store: MemoryStore, path: Path) -> Iterator[NbdServer]:
    with NbdServer(store, path, name="spill") as served:
        yield served
        store.error = None


@pytest.fixture(params=[False, True], ids=["simple", "structured"])
def client(request: pytest.FixtureRequest, server: NbdServer, path: Path) -> Iterator[RawClient]:
    with RawClient(path) as connected:
        yield connected.go(structured=request.param)


# --- clients that somebody else wrote


def test_nbdinfo_is_told_all_that_clients_may_use(server: NbdServer) -> None:
    (export,) = json.loads(run_client("nbdinfo", "--json", server.uri).stdout)["exports"]
    told = {key: value for key, value in export.items() if key.startswith(("can_", "is_", "block_"))}
    assert export["export-size"] == SIZE
    assert told == {
        "is_rotational": False,
        "is_read_only": False,
        "can_cache": False,
        "can_df": True,
        "can_fast_zero": False,
        "can_flush": True,
        "can_fua": True,
        "can_multi_conn": True,
        "can_trim": True,
        "can_zero": True,
        "block_size_minimum": 1,
        "block_size_preferred": 4096,
        "block_size_maximum": MOST_BYTES,
    }


def test_nbdinfo_lists_the_export(server: NbdServer) -> None:
    listed = json.loads(run_client("nbdinfo", "--list", "--json", server.uri).stdout)
    assert [export["export-name"] for export in listed["exports"]] == ["spill"]


def test_nbdcopy_gets_back_by_several_connections_what_it_wrote_by_several(server: NbdServer, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(np.random.default_rng(1).bytes(SIZE))
    run_client("nbdcopy", "--connections=4", "--flush", str(tmp_path / "in"), server.uri)
    run_client("nbdcopy", "--connections=4", server.uri, str(tmp_path / "out"))
    assert (tmp_path / "in").read_bytes() == (tmp_path / "out").read_bytes()


def test_nbdcopy_writes_holes_as_zeros(server: NbdServer, store: MemoryStore, tmp_path: Path) -> None:
    store.bytes[:] = b"\xff" * SIZE
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(SIZE)
        file.seek(5 * MIB)
        file.write(b"data")
    run_client("nbdcopy", str(tmp_path / "sparse"), server.uri)
    assert store.bytes == (tmp_path / "sparse").read_bytes()
    assert "zero" in store.calls


def test_qemu_io_finds_its_patterns_and_its_zeros(server: NbdServer, store: MemoryStore) -> None:
    asked = (
        "write -P 5 1M 3M",
        "read -P 5 1M 3M",
        "write -f -P 6 12345 678",
        "read -P 6 12345 678",
        "write -z 2M 512k",
        "read -P 0 2M 512k",
        "write -z -u 3M 4k",
        "read -P 0 3M 4k",
        "discard 1M 4k",
        "flush",
        "read -P 5 2560k 512k",
    )
    run_client("qemu-io", "-f", "raw", *(word for line in asked for word in ("-c", line)), server.uri)
    assert {"discard", "flush", "zero", "write"} <= set(store.calls)


def test_qemu_img_converts_to_it_and_compares(server: NbdServer, tmp_path: Path) -> None:
    image = tmp_path / "image.qcow2"
    run_client("qemu-img", "create", "-q", "-f", "qcow2", str(image), str(SIZE))
    run_client("qemu-io", "-f", "qcow2", "-c", "write -P 9 7M 11M", str(image))
    run_client("qemu-img", "convert", "-n", "-f", "qcow2", "-O", "raw", "-m", "4", "-W", str(image), server.uri)
    run_client("qemu-img", "compare", "-f", "qcow2", "-F", "raw", str(image), server.uri)


@pytest.mark.parametrize("block", ["4k", "64k", "1M"])
@pytest.mark.thorough
def test_fio_verifies_what_it_wrote_by_several_jobs(server: NbdServer, block: str, tmp_path: Path) -> None:
    require("fio")
    if "nbd" not in run_client("fio", "--enghelp").stdout.split():
        pytest.skip("NOT TESTED: this fio has no engine for NBD")
    run_client(
        "fio", "--name=verified", "--ioengine=nbd", f"--uri={server.uri}", "--rw=randwrite", f"--bs={block}",
        "--iodepth=8", "--size=12M", "--numjobs=4", "--offset_increment=12M", "--verify=crc32c", "--do_verify=1",
        "--verify_fatal=1", cwd=tmp_path,
    )  # fmt: skip


def test_a_program_uses_it_as_a_file_by_nbdfuse(server: NbdServer, store: MemoryStore, tmp_path: Path) -> None:
    require("nbdfuse")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("NOT TESTED: /dev/fuse is not there, or not ours")
    folder, ready = tmp_path / "mnt", tmp_path / "ready"
    folder.mkdir()
    os.mkfifo(ready)
    told = os.open(ready, os.O_RDONLY | os.O_NONBLOCK)
    with subprocess.Popen(["nbdfuse", "-P", str(ready), str(folder / "disk"), server.uri]) as mounted:
        try:
            assert select.select([told], [], [], 20)[0], "nbdfuse did not say that the file is there"
            with (folder / "disk").open("r+b") as file:
                file.seek(MIB - 3)
                file.write(b"abcdef")
                file.flush()
                os.fsync(file.fileno())
            assert store.bytes[MIB - 3 : MIB + 3] == b"abcdef"
            assert (folder / "disk").read_bytes() == store.bytes
        finally:
            os.close(told)
            mounted.terminate()


@pytest.mark.thorough
def test_a_store_above_a_disk_holds_up_under_fio_and_nbdcopy(path: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(np.random.default_rng(4).bytes(SIZE))
    with open_store(SIZE, local_bytes=4 * MIB, socket="") as store, NbdServer(store, path) as served:
        if "nbd" in run_client("fio", "--enghelp").stdout.split():
            run_client(
                "fio", "--name=verified", "--ioengine=nbd", f"--uri={served.uri}", "--rw=randwrite",
                "--bsrange=4k-512k", "--iodepth=8", "--size=12M", "--numjobs=4", "--offset_increment=12M",
                "--verify=crc32c", "--do_verify=1", "--verify_fatal=1", cwd=tmp_path,
            )  # fmt: skip
        run_client("nbdcopy", "--connections=4", "--flush", str(tmp_path / "in"), served.uri)
        run_client("nbdcopy", "--connections=4", served.uri, str(tmp_path / "out"))
    assert (tmp_path / "in").read_bytes() == (tmp_path / "out").read_bytes()


def test_nbd_client_lists_it(store: MemoryStore) -> None:
    require("nbd-client")
    with NbdServer(store, 0, name="spill") as served:
        _, port = served._listener.getsockname()
        assert "spill" in run_client("nbd-client", "-l", "127.0.0.1", str(port)).stdout


def test_the_kernel_has_it_as_a_disk_by_nbd_client(server: NbdServer, store: MemoryStore, path: Path) -> None:
    require("nbd-client")
    device = Path("/dev/nbd0")
    if os.geteuid() != 0 or not device.is_block_device():
        pytest.skip("NOT TESTED: a disk of the kernel's takes root, and its module (modprobe nbd)")
    run_client("nbd-client", "-unix", str(path), str(device))
    try:
        with device.open("r+b", buffering=0) as disk:
            disk.write(b"\x05" * 4096)
            os.fsync(disk.fileno())
        run_client("mkswap", str(device))
    finally:
        run_client("nbd-client", "-d", str(device))
    assert b"SWAPSPACE2" in store.bytes[:8192]


# --- handshake


@pytest.mark.parametrize(("flags", "padding"), [(3, 0), (1, 124), (0, 124)])
def test_the_oldest_way_to_choose_an_export_pads_its_answer_unless_told_not_to(
    server: NbdServer, path: Path, flags: int, padding: int
) -> None:
    with RawClient(path) as client:
        client.greet(flags)
        client.send_option(EXPORT_NAME, b"spill")
        assert client.get(10) == SIZE.to_bytes(8, "big") + (0b101101101).to_bytes(2, "big")
        assert client.get(padding) == bytes(padding)
        assert client.request(READ, 0, 4) == Answer(0, bytes(4))


def test_options_that_are_refused_do_not_hinder_those_that_follow(server: NbdServer, path: Path) -> None:
    with RawClient(path) as client:
        client.greet()
        for unknown in (4, 5, 9, 10, 11, 4_000_000_000):
            ((kind, _),) = client.ask(unknown, b"any data")
            assert kind == ERR_UNSUP
        for malformed in (b"", b"\0\0\0\1", b"\xff\xff\xff\xff\0\0", chosen() + b"\0", chosen(b"", 1)[:-1]):
            ((kind, _),) = client.ask(GO, malformed)
            assert kind == ERR_INVALID
        for option in (LIST, STRUCTURED_REPLY):
            ((kind, _),) = client.ask(option, b"x")
            assert kind == ERR_INVALID
        for option in (INFO, GO):
            ((kind, _),) = client.ask(option, chosen(b"another"))
            assert kind == ERR_UNKNOWN
        assert client.ask(LIST) == [(2, b"\0\0\0\5spill"), (ACK, b"")]
        told = client.ask(INFO, chosen(b"spill", 1, 3, 99))
        assert (3, b"\0\1spill") in told
        assert client.ask(GO, chosen(b"spill", 1, 3, 99)) == told
        assert client.request(READ, 0, 4) == Answer(0, bytes(4))


def test_an_aborted_handshake_is_acknowledged(server: NbdServer, path: Path) -> None:
    with RawClient(path) as client:
        client.greet()
        assert client.ask(ABORT, b"reason") == [(ACK, b"")]
        assert client.hung_up()


@pytest.mark.parametrize(
    ("flags", "sent"),
    [
        (1 << 5, b""),
        (3, b"GET / HTTP/1.1\r\n\r\n"),
        (3, b"IHAVEOPT" + (7).to_bytes(4, "big") + (1 << 30).to_bytes(4, "big")),
        (3, b"IHAVEOPT" + (1).to_bytes(4, "big") + (7).to_bytes(4, "big") + b"another"),
        (3, (b"IHAVEOPT" + (99).to_bytes(4, "big") + bytes(4)) * 64),
    ],
    ids=["unknown flags", "no option", "too long an option", "no such export", "options without end"],
)
def test_nonsense_instead_of_a_handshake_ends_its_connection_only(
    server: NbdServer, path: Path, flags: int, sent: bytes, client: RawClient
) -> None:
    with RawClient(path) as bad:
        bad.greet(flags)
        with suppress(OSError):  # it may have been hung up on already
            bad.socket.sendall(sent)
        while not bad.hung_up():
            pass
    assert client.request(READ, 0, 4) == Answer(0, bytes(4))


# --- requests


def test_bytes_come_back_where_they_were_written(client: RawClient, store: MemoryStore) -> None:
    data = np.random.default_rng(2).bytes(3 * MIB + 5)
    assert client.request(WRITE, 4097, data=data) == OK
    assert client.request(READ, 4097, len(data)) == Answer(0, data)
    assert store.bytes[4097 : 4097 + len(data)] == data
    assert client.request(READ, SIZE - 1, 1) == Answer(0, b"\0")


@pytest.mark.thorough
def test_the_longest_request_is_answered(client: RawClient) -> None:
    data = np.random.default_rng(3).bytes(MOST_BYTES)
    assert client.request(WRITE, 1, data=data) == OK
    assert client.request(READ, 1, MOST_BYTES) == Answer(0, data)


def test_several_requests_may_be_sent_at_a_time(client: RawClient) -> None:
    for number in range(20):
        client.send_request(WRITE, number, 1, data=bytes([number]))
    client.send_request(READ, 0, 20)
    assert [client.answer() for _ in range(20)] == [OK] * 20
    assert client.answer(20).data == bytes(range(20))


def test_zeros_and_trims_reach_the_store(client: RawClient, store: MemoryStore) -> None:
    store.bytes[:] = b"\xff" * SIZE
    assert client.request(WRITE_ZEROES, 10, SIZE - 20) == OK
    assert store.bytes == b"\xff" * 10 + bytes(SIZE - 20) + b"\xff" * 10
    assert client.request(TRIM, 0, SIZE) == OK
    assert store.calls == ["zero", "discard"]


def test_zeros_that_must_not_be_a_hole_are_written(client: RawClient, store: MemoryStore) -> None:
    store.bytes[:] = b"\xff" * SIZE
    assert client.request(WRITE_ZEROES, 3, 2 * MIB + 1, flags=NO_HOLE) == OK
    assert store.bytes[:3] == b"\xff" * 3
    assert store.bytes[3 : 2 * MIB + 4] == bytes(2 * MIB + 1)
    assert store.bytes[2 * MIB + 4] == 0xFF
    assert set(store.calls) == {"write"}


@pytest.mark.parametrize("kind", [WRITE, TRIM, WRITE_ZEROES])
def test_what_must_be_on_disk_is_flushed_before_it_is_answered(
    client: RawClient, store: MemoryStore, kind: int
) -> None:
    assert client.request(kind, 0, 4, flags=FUA, data=b"data" if kind == WRITE else b"") == OK
    assert store.calls[-1] == "flush"
    assert client.request(FLUSH) == OK
    assert store.calls[-2:] == ["flush", "flush"]


def test_nothing_is_read_or_changed_by_requests_of_no_length(client: RawClient, store: MemoryStore) -> None:
    for kind in (READ, WRITE, TRIM, WRITE_ZEROES):
        assert client.request(kind, SIZE, 0) == OK
    assert store.calls == []


@pytest.mark.parametrize(("kind", "error"), [(READ, EINVAL), (TRIM, EINVAL), (WRITE, ENOSPC), (WRITE_ZEROES, ENOSPC)])
@pytest.mark.parametrize("offset", [SIZE - 3, SIZE, 2**64 - 1])
def test_what_is_beyond_the_end_is_refused_and_the_next_request_answered(
    client: RawClient, store: MemoryStore, kind: int, error: int, offset: int
) -> None:
    assert client.request(kind, offset, 4, data=b"data" if kind == WRITE else b"").error == error
    assert client.request(READ, SIZE - 4, 4) == Answer(0, bytes(4))
    assert store.calls == ["read"]


@pytest.mark.parametrize(
    ("kind", "flags"),
    [(READ, 8), (READ, NO_HOLE), (WRITE, DF), (WRITE, 1 << 15), (WRITE_ZEROES, FAST_ZERO), (FLUSH, DF)],
)
def test_unknown_flags_are_refused_and_the_next_request_answered(
    client: RawClient, store: MemoryStore, kind: int, flags: int
) -> None:
    length = 0 if kind == FLUSH else 4
    assert client.request(kind, 0, length, flags=flags, data=b"data" if kind == WRITE else b"").error == EINVAL
    assert store.calls == []
    assert client.request(READ, 0, 4) == Answer(0, bytes(4))


@pytest.mark.parametrize("kind", [5, 7, 8, 65535])
def test_unknown_commands_are_refused(client: RawClient, kind: int) -> None:
    assert client.request(kind, 0, 4).error == EINVAL
    assert client.request(READ, 0, 4) == Answer(0, bytes(4))


def test_too_long_a_read_is_refused(client: RawClient) -> None:
    assert client.request(READ, 0, MOST_BYTES + 1).error == EINVAL
    assert client.request(READ, 0, 4) == Answer(0, bytes(4))


def test_a_full_disk_is_told_as_such(client: RawClient, store: MemoryStore) -> None:
    store.error = disk_full()
    for kind in (WRITE, WRITE_ZEROES, TRIM):
        assert client.request(kind, 0, 4, data=b"data" if kind == WRITE else b"").error == ENOSPC
    assert client.request(FLUSH).error == ENOSPC


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), PermissionError(13, "no"), ValueError("defect")])
def test_any_other_failure_of_the_store_is_an_input_output_error(
    client: RawClient, store: MemoryStore, error: Exception
) -> None:
    store.error = error
    for kind in (READ, WRITE, WRITE_ZEROES, TRIM):
        answer = client.request(kind, 0, 4, data=b"data" if kind == WRITE else b"")
        assert answer.error == EIO
        assert str(error) in answer.reason or not client.structured
    store.error = None
    assert client.request(READ, 0, 4) == Answer(0, bytes(4))


def test_a_write_whose_flush_fails_is_not_confirmed(client: RawClient, store: MemoryStore) -> None:
    store.flush = lambda: (_ for _ in ()).throw(disk_full())  # type: ignore[method-assign] # a disk that fills up late
    assert client.request(WRITE, 0, flags=FUA, data=b"data").error == ENOSPC
    del store.flush


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense" * 4,
        (0x25609513).to_bytes(4, "big"),
        (0x25609513).to_bytes(4, "big") + bytes(3) + bytes([WRITE]) + bytes(16) + (100).to_bytes(4, "big") + b"half",
        (0x25609513).to_bytes(4, "big") + bytes(3) + bytes([WRITE]) + bytes(16) + (MOST_BYTES + 1).to_bytes(4, "big"),
    ],
    ids=["nonsense", "half a request", "half a write", "too long a write"],
)
def test_what_is_no_request_ends_its_connection_only_and_changes_nothing(
    server: NbdServer, path: Path, store: MemoryStore, client: RawClient, sent: bytes
) -> None:
    with RawClient(path) as bad:
        bad.go().socket.sendall(sent)
        bad.socket.shutdown(socket.SHUT_WR)
        assert bad.hung_up()
    assert client.request(READ, 0, 4) == Answer(0, bytes(4))
    assert store.calls == ["read"]


def test_a_client_that_disconnects_is_let_go(client: RawClient) -> None:
    client.send_request(DISC, 0, 0)
    assert client.hung_up()


@given(st.lists(st.binary(max_size=40) | st.just(b"IHAVEOPT\0\0\0\7\0\0\0\6" + chosen()), max_size=6))
@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_bytes_whatever_hinder_other_clients(server: NbdServer, path: Path, sent: list[bytes]) -> None:
    with RawClient(path) as bad, suppress(OSError):  # it may have been hung up on already
        for data in [b"\0\0\0\3", *sent]:
            bad.socket.sendall(data)
    with RawClient(path) as good:
        assert good.go().request(READ, 0, 4).error == 0


def test_connections_that_write_at_once_do_not_hinder_each_other(server: NbdServer, path: Path) -> None:
    torn: list[int] = []

    def use(number: int) -> None:
        rng = np.random.default_rng(number)
        with RawClient(path) as client:
            client.go(structured=number % 2 == 0)
            for _ in range(30):
                offset, length = int(rng.integers(2 * MIB)), int(rng.integers(1, MIB))
                data = rng.bytes(length)
                done = client.request(WRITE, number * 4 * MIB + offset, data=data)
                if done != OK or client.request(READ, number * 4 * MIB + offset, length).data != data:
                    torn.append(number)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torn == []


def test_what_one_connection_wrote_another_one_reads(server: NbdServer, path: Path) -> None:
    with RawClient(path) as one, RawClient(path) as other:
        one.go()
        other.go(structured=True)
        assert one.request(WRITE, 100, flags=FUA, data=b"shared") == OK
        assert other.request(READ, 100, 6).data == b"shared"


def test_connections_beyond_the_most_are_refused_until_one_goes(server: NbdServer, path: Path) -> None:
    clients = [RawClient(path).go() for _ in range(MOST_CONNECTIONS)]
    with RawClient(path) as beyond:
        assert beyond.hung_up()
    clients.pop().socket.close()
    assert server._changed.acquire()
    try:
        assert server._changed.wait_for(lambda: len(server._connections) < MOST_CONNECTIONS, 20)
    finally:
        server._changed.release()
    with RawClient(path) as again:
        assert again.go().request(READ, 0, 4).error == 0
    for client in clients:
        client.socket.close()


# --- the server's beginning and end


def test_the_socket_is_for_its_user_alone_and_goes_with_the_server(store: MemoryStore, path: Path) -> None:
    with NbdServer(store, path) as served:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert served.uri == f"nbd+unix:///?socket={path}"
    assert not path.exists()
    assert store.calls == ["flush"]


def test_a_socket_that_a_killed_server_left_is_replaced(store: MemoryStore, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    with NbdServer(store, path), RawClient(path) as client:
        assert client.go().request(READ, 0, 4).error == 0


def test_a_socket_that_is_served_and_a_file_are_left_alone(server: NbdServer, path: Path, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="a server listens there already"):
        NbdServer(MemoryStore(MIB), path)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileExistsError, match="no socket is in the way"):
        NbdServer(MemoryStore(MIB), tmp_path / "file")
    with pytest.raises(OSError, match="no socket can be made there"):
        NbdServer(MemoryStore(MIB), tmp_path / "none" / "nbd.sock")
    assert (tmp_path / "file").read_text() == "mine"
    with RawClient(path) as client:
        client.go()


def test_a_port_of_the_loopback_device_serves_too(store: MemoryStore) -> None:
    with NbdServer(store, 0) as served:
        address = served._listener.getsockname()
        assert served.uri == f"nbd://127.0.0.1:{address[1]}/"
        with RawClient(address) as client:
            client.go()
            assert client.request(WRITE, 0, data=b"data") == OK
            assert client.request(READ, 0, 4).data == b"data"


def test_a_server_that_ends_answers_first_what_it_was_asked(store: MemoryStore, path: Path) -> None:
    server = NbdServer(store, path)
    with RawClient(path) as busy, RawClient(path) as idle:
        busy.go()
        idle.go()
        store.may_go_on.clear()
        busy.send_request(WRITE, 0, 4, data=b"data")
        assert store.entered.wait(20)
        closing = threading.Thread(target=server.close)
        closing.start()
        assert idle.hung_up()
        store.may_go_on.set()
        assert busy.answer() == OK
        assert busy.hung_up()
        closing.join()
    assert store.calls == ["write", "flush"]
    server.close()  # again does nothing
    assert store.calls == ["write", "flush"]


def test_a_client_that_does_not_take_its_answer_does_not_keep_the_server(store: MemoryStore, path: Path) -> None:
    server = NbdServer(store, path)
    with RawClient(path) as client:
        client.go().send_request(READ, 0, 32 * MIB)
        assert store.entered.wait(20)
        server.close(within_s=0.1)
    assert store.calls == ["read", "flush"]
