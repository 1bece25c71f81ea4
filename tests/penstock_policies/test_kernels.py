"""Compiled kernels are kept where that is possible, and nobody fails where it is not."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from penstock_policies import kernels
from penstock_policies.kernels import Kernels, open_directory
from penstock_policies.matching import warm

VARIABLES = ("NUMBA_CACHE_DIR", "PENSTOCK_CACHE_DIR", "XDG_CACHE_HOME")


def double(number):
    return 2 * number


@pytest.fixture
def package(tmp_path) -> Path:
    made = tmp_path / "package"
    made.mkdir()
    (made / "sources.py").write_text("first")
    return made


@pytest.fixture
def kernel(package, monkeypatch):
    """A way to have a function compiled anew, with its cache in a directory of the test."""

    def compiled(directory: Path):
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(directory))
        return Kernels("test", package).compiled(double)

    return compiled


def test_a_kernel_is_compiled_once_and_loaded_by_the_next_process(kernel, tmp_path):
    first = kernel(tmp_path)
    assert first(4) == 8
    again = kernel(tmp_path)
    assert again(5) == 10
    assert (sum(first.stats.cache_misses.values()), sum(first.stats.cache_hits.values())) == (1, 0)
    assert (sum(again.stats.cache_misses.values()), sum(again.stats.cache_hits.values())) == (0, 1)


def test_a_directory_that_can_neither_be_read_nor_written_costs_nothing_but_time(tmp_path):
    kept = Kernels("test", tmp_path)
    kept.directory = tmp_path / "file"
    kept.directory.write_text("no directory")
    assert kept.compiled(double)(4) == 8


def test_a_spoilt_cache_is_compiled_over(kernel, tmp_path):
    assert kernel(tmp_path)(4) == 8
    spoilt = [path for path in tmp_path.rglob("*") if path.suffix in {".nbi", ".nbc"}]
    assert spoilt
    for path in spoilt:
        path.write_bytes(b"")
    assert kernel(tmp_path)(4) == 8
    again = kernel(tmp_path)
    assert again(4) == 8
    assert sum(again.stats.cache_hits.values()) == 1


def test_the_named_directories_come_first_and_those_that_cannot_be_made_are_passed_over(package, tmp_path, monkeypatch):
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "penstock"))
    assert open_directory("1", package).parent == tmp_path / "penstock"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "numba"))
    assert open_directory("1", package).parent == tmp_path / "numba"
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))
    assert open_directory("1", package).parent == tmp_path / "penstock"
    monkeypatch.delenv("PENSTOCK_CACHE_DIR")
    assert open_directory("1", package).parent == package / "__pycache__"


def test_without_any_directory_each_process_compiles_for_itself(package, monkeypatch):
    monkeypatch.setattr(kernels, "_bases", lambda _: iter([Path(os.devnull)]))
    kept = Kernels("test", package)
    assert kept.directory is None
    assert kept.compiled(double)(4) == 8


def test_only_kernels_of_earlier_sources_of_the_same_package_are_forgotten(package, tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kept"))
    older, other = Kernels("test", package), Kernels("other", package)
    (package / "sources.py").write_text("second")
    newer = Kernels("test", package)
    newer.forget_older()
    assert set((tmp_path / "kept").iterdir()) == {newer.directory, other.directory}
    assert older.directory != newer.directory


def test_of_two_processes_that_keep_all_kernels_one_compiles_and_the_other_waits(kernel, package, tmp_path):
    compiled, began, go_on = [], threading.Event(), threading.Event()
    first, second = (Kernels("test", package) for _ in range(2))
    first.directory = second.directory = tmp_path / "kept"
    first.directory.mkdir()

    def compile_slowly():
        compiled.append("first")
        began.set()
        go_on.wait()

    one = threading.Thread(target=first.keep_all, args=(compile_slowly,))
    one.start()
    began.wait()
    assert not second.are_kept()
    assert second.are_being_compiled()
    other = threading.Thread(target=second.keep_all, args=(lambda: compiled.append("second"),))
    other.start()
    go_on.set()
    one.join()
    other.join()
    assert compiled == ["first"]
    assert second.are_kept()
    assert not second.are_being_compiled()


def test_kernels_that_were_kept_for_another_processor_are_not_taken_for_all(package, tmp_path):
    kernels = Kernels("test", package)
    kernels.directory = tmp_path / "kept"
    kernels.directory.mkdir()
    kernels.keep_all(lambda: None)
    (written,) = (path for path in kernels.directory.iterdir() if path.name.startswith("all-kept-"))
    assert kernels.are_kept()
    written.rename(written.with_name("all-kept-by-another"))
    assert not kernels.are_kept()


def test_a_directory_that_holds_nothing_and_takes_nothing_is_passed_over(package, tmp_path, monkeypatch):
    """Such as one that root has made beside the package, where somebody else runs it."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "made-by-another"))
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "own"))
    (tmp_path / "made-by-another" / "kernels").mkdir(parents=True)
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: "made-by-another" not in str(path) and access(path, mode))
    assert open_directory("kernels", package) == tmp_path / "own" / "kernels"
    (tmp_path / "made-by-another" / "kernels" / "kernel").touch()
    assert open_directory("kernels", package) == tmp_path / "made-by-another" / "kernels"


def test_a_switched_kernel_is_interpreted_but_for_those_who_compile(package, monkeypatch):
    monkeypatch.setattr(kernels, "_bases", lambda _: iter([Path(os.devnull)]))
    kept = Kernels("test", package)
    kernel = kept.switched(double)
    kept.interpreted = True
    assert kernel("a") == "aa"  # no type that it could be compiled for
    assert "dispatcher" not in vars(kernel)
    with kept.compiling():
        assert kernel(4) == 8
    assert kernel.dispatcher.signatures
    kept.interpreted = False
    assert kernel(4) == 8


def test_the_kernels_can_be_loaded_ahead_and_again():
    warm()
    warm()


def test_whoever_matches_interpreted_does_not_load_a_compiler():
    code = (
        "import sys, numpy as np\n"
        "from penstock_policies import matching\n"
        "matching.KERNELS.interpreted = True\n"
        "matching.assign(np.array([[1, 2]]), [np.array([0]), np.array([0])])\n"
        "assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
