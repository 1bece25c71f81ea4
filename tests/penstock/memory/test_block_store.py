"""A store above its disk: tiers, slabs that come and go, disks that fail, and forks."""

from __future__ import annotations

import errno
import gc
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from memory_stubs import donor_and_agent

from penstock.memory import backing_file
from penstock.memory.block_store import BlockStore, open_store
from penstock_log.memory_messages import BorrowSlab, ReturnSlab

SLAB = 256 << 10


@pytest.fixture(params=["tcp", "shared"])
def lent(request, tmp_path):
    with donor_and_agent(tmp_path, slab_bytes=SLAB, shared=request.param == "shared") as both:
        yield both


@pytest.fixture
def store(lent):
    _, agent = lent
    with BlockStore(5 * SLAB + 100, socket=str(agent.path), local_bytes=0, timeout_s=0.2, second_s=0.02) as opened:
        yield opened


def read(store, offset, length):
    view = bytearray(length)
    store.read_into(offset, memoryview(view))
    return bytes(view)


def heat(store, slab=0):
    """Write a range, with what it has, until a slab is bound to it."""
    while not store.stats().bound:
        store.write(slab * SLAB, read(store, slab * SLAB, SLAB))


def test_a_range_that_is_not_hot_borrows_nothing(lent, store):
    _, agent = lent
    store.write(0, b"x" * 4096)
    store.flush()
    assert not agent.of(BorrowSlab)


def test_what_is_in_a_slab_is_read_from_there(store):
    heat(store)
    data = os.urandom(SLAB)
    store.write(0, data)
    before = store.stats()
    assert read(store, 0, SLAB) == data
    after = store.stats()
    assert (after.slab_bytes - before.slab_bytes, after.disk_bytes) == (SLAB, before.disk_bytes)


def test_what_was_read_from_disk_is_in_the_slab_then(store):
    data = os.urandom(SLAB)
    store.write(SLAB, data)
    while not store.stats().bound:
        read(store, SLAB, SLAB)
    assert read(store, SLAB, SLAB) == read(store, SLAB, SLAB) == data
    assert store.stats().filled_bytes >= SLAB
    assert store.stats().slab_bytes >= SLAB


def test_a_block_that_is_written_partly_is_not_valid_before_the_rest_is(store):
    data = bytearray(os.urandom(SLAB))
    store.write(0, data)
    while not store.stats().bound:
        store.write(4096, data[4096:])  # block 0 has never been in the slab
    store.write(10, b"partly")
    data[10:16] = b"partly"
    assert read(store, 0, SLAB) == data


def test_an_evicted_slab_is_given_back_and_nothing_is_missing(lent, store):
    _, agent = lent
    heat(store)
    data = os.urandom(SLAB)
    store.write(0, data)
    agent.evict(0)
    agent.wait_for(ReturnSlab)  # the donor has filled it with something else by now
    assert read(store, 0, SLAB) == data
    assert store.stats().evicted == 1


def test_an_agent_that_goes_away_takes_its_slabs_with_it(lent, store):
    _, agent = lent
    heat(store)
    store.write(0, b"mine")
    agent.die()
    while store.stats().bound:
        assert read(store, 0, 4) == b"mine"
    agent.start()
    heat(store)
    assert read(store, 0, 4) == b"mine"


def test_the_last_bytes_are_no_whole_block_and_writes_go_over_the_edges_of_slabs(store):
    data = os.urandom(2 * SLAB + 33)
    store.write(SLAB - 17, data)
    assert read(store, SLAB - 17, len(data)) == data
    store.write(store.size - 5, b"12345")
    assert read(store, store.size - 7, 7) == b"\0\x0012345"
    with pytest.raises(ValueError, match="not within the store's"):
        store.write(store.size - 4, b"12345")


def test_zeros_are_zeros_in_every_tier(lent):
    _, agent = lent
    with BlockStore(2 * SLAB, socket=str(agent.path), local_bytes=1 << 20, second_s=0.02) as store:
        heat(store)
        store.write(0, b"\xff" * 2 * SLAB)
        store.zero(100, SLAB)
        store.discard(SLAB + 4096, 8192)
        expected = bytearray(b"\xff" * 2 * SLAB)
        expected[100 : 100 + SLAB] = bytes(SLAB)
        expected[SLAB + 4096 : SLAB + 4096 + 8192] = bytes(8192)
        assert read(store, 0, 2 * SLAB) == expected


def test_a_store_of_one_byte():
    with open_store(1, socket="") as store:
        store.write(0, b"!")
        assert read(store, 0, 1) == b"!"
        store.zero(0, 1)
        assert read(store, 0, 1) == b"\0"


def test_two_stores_in_one_process_have_slabs_of_their_own(lent):
    _, agent = lent
    with BlockStore(SLAB, socket=str(agent.path), name="a", second_s=0.02) as one:
        heat(one)
        one.write(0, b"one")
        with BlockStore(SLAB, socket="", name="b") as two:
            two.write(0, b"two")
            assert (read(one, 0, 3), read(two, 0, 3)) == (b"one", b"two")


def test_a_path_is_kept_for_its_owner_alone_and_opened_again(tmp_path):
    path = tmp_path / "content"
    with open_store(10_000, path=path, socket="") as store:
        store.write(5_000, b"kept")
        with pytest.raises(OSError, match="another store has it open"):
            open_store(10_000, path=path, socket="")
    assert path.stat().st_mode & 0o777 == 0o600
    with open_store(20_000, path=path, socket="") as store:
        assert read(store, 5_000, 4) == b"kept"


def test_closing_twice_is_closing_once_and_then_nothing_works():
    store = open_store(4096, socket="")
    store.close()
    store.close()
    with pytest.raises(ValueError, match="closed"):
        store.write(0, b"x")


def test_a_forgotten_store_is_written_and_its_threads_end(tmp_path):
    store = open_store(4096, path=tmp_path / "content", socket=str(tmp_path / "no-agent"))
    store.write(0, b"forgotten")
    del store
    gc.collect()
    assert (tmp_path / "content").read_bytes()[:9] == b"forgotten"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("penstock-memory")]


def test_a_full_disk_is_told_to_who_writes(tmp_path):
    script = """
import json
from penstock.memory import open_store
store = open_store(32 << 20, socket="")
written = 0
try:
    while True:
        store.write(written, b"x" * 65536)
        written += 65536
except OSError as error:
    view = bytearray(written)
    store.read_into(0, view)
    print(json.dumps([error.errno, written, view == b"x" * written]))
"""
    folder = tmp_path / "small"
    folder.mkdir()
    command = f'mount -t tmpfs -o size=2m none "{folder}" && exec "{sys.executable}" -c "$SCRIPT"'
    environment = {**os.environ, "TMPDIR": str(folder), "SCRIPT": script, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", command], capture_output=True, text=True, check=False, env=environment
    )
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip("no namespaces here")
    assert json.loads(done.stdout) == [errno.ENOSPC, 2 << 20, True], done.stderr


def test_an_error_of_the_disk_keeps_the_data_and_is_told_until_it_is_over(monkeypatch, tmp_path):
    broken = threading.Event()
    broken.set()
    really = backing_file._write_all

    def write_all(fd, views, offset):
        if broken.is_set():
            raise OSError(errno.EIO, "broken")
        really(fd, views, offset)

    monkeypatch.setattr(backing_file, "_write_all", write_all)
    store = open_store(1 << 20, path=tmp_path / "content", socket="", local_bytes=0)
    store.write(0, b"precious")
    for _ in range(2):
        with pytest.raises(OSError, match=r"Input/output error.*kept in memory"):
            store.flush()
    assert read(store, 0, 8) == b"precious"
    broken.clear()
    for _ in range(2):  # what was tried in vain may be told once more
        try:
            store.flush()
        except OSError:
            continue
    store.close()
    assert (tmp_path / "content").read_bytes()[:8] == b"precious"


def test_where_no_space_can_be_reserved_a_write_is_on_disk_when_it_returns(monkeypatch, tmp_path):
    monkeypatch.setattr(backing_file, "_system_fallocate", lambda: None)
    with open_store(1 << 20, path=tmp_path / "content", socket="") as store:
        store.write(100, b"through")
        assert (tmp_path / "content").read_bytes()[100:107] == b"through"
        store.zero(0, 8192)
        assert read(store, 0, 8192) == bytes(8192)


def test_a_forked_child_reads_what_was_written_and_writes_nothing(store):
    heat(store)
    data = os.urandom(SLAB)
    store.write(0, data)
    queue = multiprocessing.get_context("fork").SimpleQueue()

    def work():
        found = read(store, 0, SLAB)
        try:
            store.write(0, b"child")
        except RuntimeError as error:
            queue.put((found, str(error)))
        store.close()

    worker = multiprocessing.get_context("fork").Process(target=work)
    worker.start()
    found, said = queue.get()
    worker.join()
    assert found == data
    assert "open a store of its own" in said
    store.write(0, b"parent")  # its slab is still there, with its connection
    assert read(store, 0, 6) == b"parent"
    assert (store.stats().bound, store.stats().lost) == (1, 0)


@pytest.mark.thorough
def test_forks_under_load_find_the_store_in_order(store):
    over = threading.Event()

    def write(number):
        while not over.is_set():
            store.write(number * SLAB, bytes([number]) * SLAB)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(1, 4)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        child = os.fork()
        if not child:
            good = all(set(read(store, number * SLAB, SLAB)) <= {0, number} for number in range(1, 4))
            os._exit(0 if good else 1)
        assert os.waitpid(child, 0)[1] == 0
    over.set()
    for thread in threads:
        thread.join()


def test_a_slow_disk_holds_back_who_writes_faster(monkeypatch):
    gate = threading.Semaphore(0)
    really = backing_file._write_all
    monkeypatch.setattr(backing_file, "_write_all", lambda *given: (gate.acquire(), really(*given)))
    store = BlockStore(1 << 20, socket="", pending_bytes=128 << 10)
    thread = threading.Thread(target=lambda: store.write(0, bytes(1 << 18)) or store.write(1 << 18, b"x" * 4096))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    for _ in range(10):
        gate.release()
    thread.join(30)
    assert read(store, 1 << 18, 1) == b"x"
    store.close()


def test_a_write_that_is_interrupted_is_read_as_the_disk_has_it(lent):
    donor, agent = lent
    if donor.shared:
        pytest.skip("nobody waits for a donor whose memory is shared")

    def interrupt(*_):
        raise KeyboardInterrupt

    def interrupt_the_write():
        while not donor.faults_done:
            over.wait(0.001)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    over = threading.Event()
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with BlockStore(SLAB, socket=str(agent.path), local_bytes=1 << 20, timeout_s=30, second_s=0.02) as store:
            heat(store)
            store.write(0, b"old" * 4096)
            donor.fault = "hang"
            thread = threading.Thread(target=interrupt_the_write)
            thread.start()
            with pytest.raises(KeyboardInterrupt):
                store.write(0, b"new" * 4096)
            thread.join()
            donor.fault = ""
            donor.break_connections()
            assert read(store, 0, 3) == b"new"
    finally:
        over.set()
        signal.signal(signal.SIGUSR1, before)


def test_what_a_caller_changes_in_his_buffer_during_a_write_is_in_no_tier(monkeypatch, lent):
    _, agent = lent
    buffer = bytearray(b"a" * SLAB)
    really = backing_file.BackingFile.write

    def write(self, offset, data):
        written = really(self, offset, data)
        buffer[:] = b"b" * SLAB
        return written

    with BlockStore(2 * SLAB, socket=str(agent.path), local_bytes=1 << 20, second_s=0.02) as store:
        heat(store)
        monkeypatch.setattr(backing_file.BackingFile, "write", write)
        store.write(0, buffer)
        buffer[:] = b"a" * SLAB
        store.write(SLAB, memoryview(buffer)[: SLAB // 2])
        assert set(read(store, 0, SLAB + SLAB // 2)) == {ord("a")}
        assert store.stats().lost == 0


def test_a_write_that_waits_for_the_disk_comes_after_those_that_were_behind(monkeypatch, tmp_path):
    """The file system reserves space at first, and later does not."""
    answers = iter([0])
    monkeypatch.setattr(backing_file, "_fallocate", lambda *_: next(answers, errno.EOPNOTSUPP))
    gate = threading.Event()
    really = backing_file._write_all

    def write_all(*given):
        if threading.current_thread().name == "penstock-memory-disk":
            gate.wait(60)
        really(*given)

    monkeypatch.setattr(backing_file, "_write_all", write_all)

    def write():
        store.write(backing_file.EXTENT_BYTES, b"elsewhere")
        store.write(0, b"new")

    with open_store(2 * backing_file.EXTENT_BYTES, path=tmp_path / "content", socket="", local_bytes=0) as store:
        store.write(0, b"old")
        thread = threading.Thread(target=write)
        thread.start()
        thread.join(0.05)
        gate.set()
        thread.join()
        store.flush()
        assert read(store, 0, 3) == b"new"


def test_who_waits_for_the_disk_does_not_wait_longer_than_the_store_is_open(monkeypatch):
    gate = threading.Event()
    really = backing_file._write_all
    monkeypatch.setattr(backing_file, "_write_all", lambda *given: (gate.wait(60), really(*given)))
    store = open_store(1 << 20, socket="")
    store.write(0, b"first")
    store.write(8192, b"second")
    told = []

    def flush():
        try:
            store.flush()
        except (OSError, ValueError) as error:
            told.append(error)

    flushing, closing = threading.Thread(target=flush), threading.Thread(target=store.close)
    for thread in (flushing, closing):
        thread.start()
        thread.join(0.05)
    gate.set()
    for thread in (flushing, closing):
        thread.join(30)
        assert not thread.is_alive()
    assert "closed before everything was written" in str(told)


def test_a_store_whose_garbage_its_own_thread_collects_is_written_all_the_same(monkeypatch, tmp_path):
    forgotten = threading.Event()
    really = backing_file._write_all

    def write_all(*given):
        forgotten.wait(60)
        gc.collect()
        really(*given)

    def join_others():
        for thread in set(threading.enumerate()) - before:
            thread.join(30)

    before = set(threading.enumerate())
    monkeypatch.setattr(backing_file, "_write_all", write_all)
    cycle = [open_store(4096, path=tmp_path / "content", socket="")]
    cycle.append(cycle)
    gc.disable()
    try:
        cycle[0].write(0, b"forgotten")
        del cycle
        forgotten.set()
        join_others()
    finally:
        gc.enable()
    join_others()  # the one that closes it
    assert (tmp_path / "content").read_bytes()[:9] == b"forgotten"


@pytest.mark.thorough
def test_forks_of_two_threads_at_once_release_what_they_lock():
    def fork():
        for _ in range(20):
            child = os.fork()
            if not child:
                os._exit(0)
            os.waitpid(child, 0)

    with open_store(1 << 20, socket="") as store:
        threads = [threading.Thread(target=fork, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        store.write(0, b"still here")
        assert read(store, 0, 10) == b"still here"


def test_a_forked_child_does_not_wait_for_what_its_parent_has_to_write(monkeypatch):
    def write_all(*_):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(backing_file, "_write_all", write_all)
    store = open_store(1 << 20, socket="")
    store.write(0, b"pending")
    child = os.fork()
    if not child:
        signal.alarm(30)
        store.flush()
        os._exit(0 if read(store, 0, 7) == b"pending" else 1)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(OSError, match=r"Input/output error|broken"):
        store.close()


def test_what_its_writer_changes_afterwards_is_written_as_it_was(monkeypatch):
    gate = threading.Event()
    really = backing_file._write_all
    monkeypatch.setattr(backing_file, "_write_all", lambda *given: (gate.wait(), really(*given)))
    with BlockStore(1 << 20, socket="", local_bytes=0) as store:
        changed = bytearray(b"a" * 8192)
        store.write(0, changed)
        store.write(8192, memoryview(changed).toreadonly())
        changed[:] = b"b" * 8192
        assert read(store, 0, 16384) == b"a" * 16384
        gate.set()
        store.flush()
        assert read(store, 0, 16384) == b"a" * 16384


def test_bytes_are_on_their_way_without_a_copy_but_for_small_parts_of_them(monkeypatch):
    gate = threading.Event()
    really = backing_file._write_all
    monkeypatch.setattr(backing_file, "_write_all", lambda *given: (gate.wait(), really(*given)))
    with BlockStore(4 << 20, socket="", local_bytes=0) as store:
        whole = os.urandom(1 << 20)
        store.write(0, whole)
        store.write(1 << 20, memoryview(whole)[4096:8192])
        kept, part = (entry.data for entry in list(store._disk._entries)[:2])
        assert memoryview(kept).obj is whole
        assert memoryview(part).obj is not whole
        gate.set()
        store.flush()
        assert read(store, 0, 1 << 20) == whole
        assert read(store, 1 << 20, 4096) == whole[4096:8192]


def test_a_full_cache_never_shows_what_its_oldest_chunk_held(lent):
    _, agent = lent
    with BlockStore(4 << 20, socket=str(agent.path), local_bytes=128 << 10, second_s=0.02) as store:
        for place in range(64):
            store.write(place << 16, bytes([place]) * (64 << 10))
        for place in reversed(range(64)):
            store.write((place << 16) + 4096, bytes([255 - place]) * 4096)
            assert read(store, place << 16, 12288) == (
                bytes([place]) * 4096 + bytes([255 - place]) * 4096 + bytes([place]) * 4096
            )


def test_the_libraries_name_is_found_lazily():
    script = (
        "import sys, penstock.memory; print('penstock.memory.block_store' in sys.modules); penstock.memory.RemoteFile"
    )
    libs = Path(backing_file.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(libs)}
    )
    assert done.stdout.strip() == "False"
