from __future__ import annotations

import json
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from nbd_cases import FUA, READ, WRITE, RawClient

from penstock_cli.local.memory_bench import SIZE, has_fio_for_nbd

PENSTOCK = [sys.executable, "-m", "penstock"]


@contextmanager
def served(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run ``penstock memory serve``; yield it and its first line once it serves."""
    command = [*PENSTOCK, "memory", "serve", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline()
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_what_was_written_to_a_served_device_is_there_when_it_is_served_again(
    tmp_path: Path, signum: signal.Signals
) -> None:
    path, options = tmp_path / "s.sock", ("--size", "1MiB", "--socket", str(tmp_path / "s.sock"))
    options = (*options, "--path", str(tmp_path / "content"), "--local", "0", "--agent", "")
    with served(*options) as (process, said):
        assert said == f"serving 1MiB at {path}; Ctrl-C ends it\n"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with RawClient(path) as client:
            assert client.go().request(WRITE, 4000, data=b"kept" * 50).error == 0
        process.send_signal(signum)
        assert process.stdout is not None
        assert process.stderr is not None
        out, err = process.stdout.read(), process.stderr.read()
        assert (process.wait(), err) == (0, "")
        assert f"nbd-client -unix {path} /dev/nbd0" in out
        assert out.endswith("ended; everything that was written is on disk\n")
    assert not path.exists()
    with served(*options), RawClient(path) as client:
        assert client.go().request(READ, 4000, 200).data == b"kept" * 50


@pytest.mark.slow
def test_a_write_that_was_flushed_outlives_a_killed_server(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    options = ("--size", "1MiB", "--socket", str(path), "--path", str(tmp_path / "content"), "--agent", "")
    with served(*options) as (process, _), RawClient(path) as client:
        assert client.go().request(WRITE, 0, data=b"kept", flags=FUA).error == 0
        process.kill()
        process.wait()
    with served(*options), RawClient(path) as client:
        assert client.go().request(READ, 0, 4).data == b"kept"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        (("--size", "much", "--socket", "s"), 2, "'much' is no amount of memory"),
        (("--size", "0", "--socket", "s"), 2, "--size 0 is no block device; expected such as 8GiB"),
        (("--size", "1MiB", "--socket", "none/s"), 1, "no socket can be made there"),
        (("--size", "1MiB", "--socket", "s", "--path", "none/content"), 1, "none/content"),
        (("--size", "1MiB", "--socket", "taken"), 1, "a file that is no socket is in the way"),
        (("--size", "1MiB", "--socket", "busy"), 1, "a server listens there already"),
    ],
)
def test_a_device_that_cannot_be_served_is_explained_in_a_line(
    tmp_path: Path, options: tuple[str, ...], code: int, told: str
) -> None:
    (tmp_path / "taken").write_text("mine")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "busy"))
        listener.listen()
        command = [*PENSTOCK, "memory", "serve", *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60)
    assert done.returncode == code, done
    assert told in done.stderr
    assert done.stderr.startswith("penstock: ") or code == 2
    assert "Traceback" not in done.stderr
    assert (tmp_path / "taken").read_text() == "mine"


@pytest.mark.faults
@pytest.mark.timeout(300)
def test_memory_bench_kills_a_donor_and_finds_every_byte() -> None:
    command = [*PENSTOCK, "memory", "bench", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=280)
    costs = json.loads(done.stdout)
    assert costs["donor_killed"]["bytes_checked"] > SIZE
    assert costs["donor_killed"]["bytes_wrong"] == 0
    assert costs["donor_killed"]["slabs_lost"] > 0
    assert costs["evicted_slabs"] > 0
    assert 0 < costs["read_64k_us"] < costs["read_1m_us"]
    assert costs["disk_read_64k_us"] > 0
    assert (costs["nbd_1m_ratio"] is not None) <= has_fio_for_nbd()
    for name in ("nbd_1m", "nbd_1m_write") if has_fio_for_nbd() else ():
        least, most = costs[f"{name}_range"]
        assert 0 < least <= costs[f"{name}_ratio"] <= most
