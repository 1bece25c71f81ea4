"""A store as a file, as an array and as a mapping."""

from __future__ import annotations

import copy
import errno
import gzip
import io
import logging
import multiprocessing
import os
import pickle
import shutil
import tarfile
import tempfile
import threading
import zipfile
from contextlib import suppress

import numpy as np
import pytest

from penstock.memory import BlockStore, RemoteFile, SpillDict, open_store


@pytest.fixture
def file():
    with RemoteFile(1 << 20, socket="") as opened:
        yield opened


def test_it_is_a_file(file):
    assert file.write(b"abc") == 3
    assert file.seek(-2, os.SEEK_CUR) == file.tell() == 1
    assert file.read(2) == b"bc"
    assert file.seek(-1, os.SEEK_END) == (1 << 20) - 1
    assert (file.read(), file.read()) == (b"\0", b"")
    assert (file.readable(), file.writable(), file.seekable()) == (True, True, True)
    buffered = io.BufferedRandom(file)
    buffered.seek(100)
    buffered.write(b"through a buffer")
    buffered.flush()
    assert file.pread(16, 100) == b"through a buffer"
    buffered.detach()


def kept_in_tar(file, data):
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        member = tarfile.TarInfo("data")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    file.seek(0)
    with tarfile.open(fileobj=file) as archive:
        return archive.extractfile("data").read()


def kept_by_gzip(file, data):
    with gzip.GzipFile(fileobj=file, mode="wb") as packed:
        packed.write(data)
    file.seek(0)
    with gzip.GzipFile(fileobj=file) as packed:
        return packed.read(len(data))


def kept_by_pickle(file, data):
    pickle.dump([np.frombuffer(data, "u1"), 7], file, protocol=5)
    file.seek(0)
    return pickle.load(file)[0].tobytes()  # noqa: S301 - it was written here


def kept_by_numpy(file, data):
    for array in (np.frombuffer(data, "u1"), np.ones(3)):
        np.save(file, array)
    file.seek(0)
    first, second = np.load(file), np.load(file)
    assert second.tolist() == [1, 1, 1]
    return first.tobytes()


def kept_by_copying(file, data):
    shutil.copyfileobj(io.BytesIO(data), file)
    file.seek(0)
    return io.BufferedReader(file).read(len(data))


def kept_as_lines(file, data):
    text = io.TextIOWrapper(io.BufferedWriter(file), encoding="utf-8", newline="\n")
    text.write("Größe\n" + data.hex() + "\n")
    text.flush()
    text.detach().detach()
    file.seek(0)
    reader = io.BufferedReader(file)
    title, line = reader.readline(), reader.readline()
    assert title.decode() == "Größe\n"
    return bytes.fromhex(line.decode())


KEEPERS = (kept_in_tar, kept_by_gzip, kept_by_pickle, kept_by_numpy, kept_by_copying, kept_as_lines)


@pytest.mark.parametrize("kept", KEEPERS)
def test_who_wants_a_file_can_have_it(file, kept):
    data = os.urandom(300_001)
    assert kept(file, data) == data


def test_a_format_that_is_read_from_its_end_is_given_a_file_that_ends_there(file):
    np.savez(file, first=np.arange(10), second=np.ones((3, 4)))
    end = file.tell()
    with pytest.raises(zipfile.BadZipFile):
        zipfile.ZipFile(file)
    with RemoteFile(end, store=file.store) as ending_there, np.load(ending_there) as found:
        assert found["first"].tolist() == list(range(10))
        assert found["second"].shape == (3, 4)
    assert file.pread(2, 0) == b"PK"


def test_what_ends_behind_the_file_is_refused_whole(file):
    with pytest.raises(OSError, match="end behind it") as caught:
        file.pwrite(b"12345", file.size - 4)
    assert caught.value.errno == errno.ENOSPC
    assert file.pread(10, file.size - 4) == bytes(4)
    with pytest.raises(ValueError, match="negative"):
        file.pread(1, -1)


def test_a_closed_file_says_so():
    file = RemoteFile(100, socket="")
    file.close()
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.pread(1, 0)


def test_a_job_says_how_large_its_files_are_and_what_they_keep(monkeypatch):
    monkeypatch.setenv("PENSTOCK_MEMORY_SPILL", "1048576")
    monkeypatch.setenv("PENSTOCK_MEMORY_LOCAL", "0")
    with RemoteFile(socket="") as file, SpillDict(socket="") as spilled, RemoteFile(store=file.store) as same:
        assert file.size == spilled.size == same.size == 1 << 20
        file.pwrite(b"x" * 4096, 0)
        assert file.pread(4096, 0) == b"x" * 4096
        assert file.store.stats().cache_bytes == 0
    with RemoteFile(4096, local_bytes=1 << 20, socket="") as own:
        assert own.size == 4096


@pytest.mark.parametrize("said", [None, "much"])
def test_a_size_that_nobody_says_is_asked_for(monkeypatch, said):
    monkeypatch.delenv("PENSTOCK_MEMORY_SPILL", raising=False)
    if said:
        monkeypatch.setenv("PENSTOCK_MEMORY_SPILL", said)
    with pytest.raises(ValueError, match="expected a number of bytes" if said else "how large"):
        RemoteFile(socket="")


@pytest.mark.parametrize("size", ["16GiB", 1e6, None])
def test_a_size_that_is_no_number_of_bytes_is_refused(size):
    for kind in (RemoteFile, SpillDict):
        with pytest.raises(TypeError if size else ValueError, match=r"bytes, (such as|or have)"):
            kind(size, socket="")


@pytest.mark.parametrize("size", [1 << 60, 1 << 70])
def test_a_size_that_no_file_can_have_is_named(size):
    with pytest.raises(OSError, match=f"{size} bytes") as caught:
        RemoteFile(size, socket="")
    assert caught.value.errno in {errno.EFBIG, errno.EINVAL, errno.ENOSPC}


def test_a_file_much_larger_than_the_disk_is_sparse():
    with RemoteFile(1 << 40, socket="") as file:
        file.pwrite(b"end", file.size - 3)
        assert file.pread(10, file.size - 5) == b"\0\0end"


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_what_belongs_to_a_process_is_not_copied_and_stays_open(file, how):
    file.pwrite(b"kept", 0)
    with SpillDict(4096, socket="") as spilled:
        for thing in (file, file.store, file.array("f4", (10,)), spilled):
            with pytest.raises(TypeError, match=f"{type(thing).__name__} belongs to the process that opened it"):
                how(thing)
    assert file.pread(4, 0) == b"kept"


def test_a_folder_for_temporary_files_that_is_none_is_told(monkeypatch, caplog, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with caplog.at_level(logging.WARNING, "penstock.memory"), RemoteFile(10, socket=""):
        assert str(tmp_path / "missing") in caplog.text


def test_rows_are_shuffled_in_place(file):
    table = file.array("i8", (50, 3))
    table[:] = np.arange(150).reshape(50, 3)
    with pytest.warns(UserWarning, match="shuffl"):
        np.random.default_rng(1).shuffle(table)
    found = np.asarray(table)
    assert not np.array_equal(found[:, 0], np.arange(0, 150, 3))
    assert np.array_equal(found[np.argsort(found[:, 0])], np.arange(150).reshape(50, 3))


def test_a_given_store_stays_open():
    with open_store(100, socket="") as store:
        with RemoteFile(100, store=store) as file:
            file.write(b"x")
        view = bytearray(1)
        store.read_into(0, view)
        assert view == b"x"


INDICES = {
    1: [3, -1, slice(None), slice(2, 9), slice(None, None, -1), slice(10, 2, -2), slice(50, 60), ..., (), [1, 5, -2]],
    2: [(3, 1), (slice(2, 9), slice(1, 3)), (..., 1), (slice(None, None, 3), None), (3, ...), (..., 1, 1), ([1, 2], 0)],
    3: [(1, 2, 3), (..., 1, 2), (slice(3), ..., 0), (..., 1, 1, 1), (slice(None, None, -4), slice(1))],
}


@pytest.mark.parametrize("shape", [(37,), (37, 5), (20, 3, 4), (12, 9000)])
def test_an_array_has_numpys_indices(file, shape):
    rng = np.random.default_rng(1)
    ours, numpys = file.array("f4", shape, offset=100), rng.random(shape).astype("f4")
    ours[:] = numpys
    for dimensions in range(1, len(shape) + 1):
        for index in [*INDICES[dimensions], numpys[(slice(None), *[0] * (len(shape) - 1))] > 0.5]:
            try:
                expected = numpys[index]
            except IndexError:
                with pytest.raises(IndexError):
                    ours[index]
                continue
            assert np.array_equal(ours[index], expected), index
            assert np.shape(ours[index]) == np.shape(expected), index
            for value in (rng.random(np.shape(expected)).astype("f4"), 2.5):
                ours[index] = numpys[index] = value
                assert np.array_equal(np.asarray(ours), numpys), index
    assert np.array_equal(np.stack(list(ours)), numpys)
    assert np.array_equal(np.concatenate(list(ours.blocks(7))), numpys)


def test_parts_of_the_same_rows_that_two_arrays_set_at_once_are_both_there():
    both_have_read = threading.Barrier(2)

    class SlowStore(BlockStore):
        def read_into(self, offset, view):
            super().read_into(offset, view)
            with suppress(threading.BrokenBarrierError):
                both_have_read.wait(0.2)

    with SlowStore(4096, socket="") as store, RemoteFile(store=store) as file:
        arrays = [file.array("i4", (4, 2)) for _ in range(2)]
        threads = [
            threading.Thread(target=array.__setitem__, args=((slice(None), column), column + 1))
            for column, array in enumerate(arrays)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert arrays[0][:].tolist() == [[1, 2]] * 4


def test_an_array_that_does_not_fit_is_refused(file):
    with pytest.raises(ValueError, match="not within the file's"):
        file.array("f8", (1 << 17) + 1)
    with pytest.raises(ValueError, match="no Python objects"):
        file.array("O", 3)
    with pytest.raises(IndexError, match="out of bounds"):
        file.array("f8", 3)[3]


def test_an_estimator_learns_from_slices(file):
    from sklearn.linear_model import SGDClassifier  # noqa: PLC0415 - it takes a second, in each process that collects
    from sklearn.preprocessing import StandardScaler  # noqa: PLC0415 - as above

    rng = np.random.default_rng(0)
    samples = rng.normal(size=(2000, 10))
    labels = (samples[:, 0] > 0).astype(int)
    stored = file.array("f8", samples.shape)
    for begin in range(0, 2000, 300):
        stored[begin : begin + 300] = samples[begin : begin + 300]
    scaler, model = StandardScaler(), SGDClassifier(random_state=0)
    for block in stored.blocks(256):
        scaler.partial_fit(block)
    for begin in range(0, 2000, 250):
        part = scaler.transform(stored[begin : begin + 250])
        model.partial_fit(part, labels[begin : begin + 250], classes=[0, 1])
    assert np.allclose(scaler.mean_, samples.mean(axis=0))
    assert model.score(scaler.transform(stored), labels) > 0.9


def test_workers_that_are_forked_load_batches(file):
    stored = file.array("i8", (64, 100))
    stored[:] = np.arange(64)[:, None]
    context = multiprocessing.get_context("fork")
    with context.Pool(2, initializer=_begin, initargs=(stored,)) as pool:
        assert pool.map(_load, range(64)) == [100 * row for row in range(64)]


_stored = []


def _begin(stored):
    _stored[:] = [stored]


def _load(row):
    return int(_stored[0][row].sum())


def test_values_are_kept_whole_and_space_is_used_again():
    with SpillDict(1 << 20, socket="") as spilled:
        for turn in range(20):  # six times what there is room for
            spilled["array"] = np.full((300, 100), turn, "f8")
            spilled[turn % 2] = {"turn": turn, "more": [np.arange(2000), "text"]}
            assert spilled["array"].sum() == turn * 30_000
            assert spilled[turn % 2]["more"][0][-1] == 1999
        spilled["array"][0] = -1
        assert spilled["array"][0, 0] == 19, "what comes is a copy"
        assert sorted(map(str, spilled)) == ["0", "1", "array"]
        for key in list(spilled):
            del spilled[key]
        assert spilled.free_bytes == 1 << 20
        with pytest.raises(KeyError):
            spilled["array"]


def test_a_full_mapping_says_what_there_is_and_keeps_what_it_has():
    with SpillDict(100_000, socket="") as spilled:
        spilled["a"] = bytearray(50_000)
        with pytest.raises(OSError, match=r"no room for a value of 61440 bytes: .* are free") as caught:
            spilled["a"] = bytearray(60_000)
        assert caught.value.errno == errno.ENOSPC
        assert len(spilled["a"]) == 50_000


def test_a_value_that_is_replaced_while_it_is_read_comes_whole():
    with SpillDict(4 << 20, socket="") as spilled:
        spilled["x"] = np.zeros(100_000)
        over = threading.Event()
        seen = []

        def look():
            while not over.is_set():
                seen.append(np.unique(spilled["x"]).size)

        thread = threading.Thread(target=look)
        thread.start()
        for turn in range(50):
            spilled["x"] = np.full(100_000, turn)
        over.set()
        thread.join()
        assert set(seen) <= {1}


def test_a_forked_child_is_told_of_a_value_that_is_not_there_any_more():
    with SpillDict(1 << 20, socket="") as spilled:
        spilled["x"] = np.zeros(10_000)
        read_end, write_end = os.pipe()
        go_read, go_write = os.pipe()
        child = os.fork()
        if not child:
            os.read(go_read, 1)
            try:
                spilled["x"].sum()
            except RuntimeError as error:
                os.write(write_end, str(error).encode())
            os._exit(0)
        del spilled["x"]
        spilled["y"] = np.ones(10_000)
        spilled.store.flush()
        os.write(go_write, b"x")
        said = os.read(read_end, 1000).decode()
        os.waitpid(child, 0)
    assert "since this one was forked" in said
