"""Compiled kernels are kept where that is possible, and nobody fails where it is not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numba
import pytest

from penstock_policies.levels import keeping
from penstock_policies.levels.keeping import KernelCache, forget_older, open_directory
from penstock_policies.matching import warm

VARIABLES = ("NUMBA_CACHE_DIR", "PENSTOCK_CACHE_DIR", "XDG_CACHE_HOME")


def double(number):
    return 2 * number


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """A way to have a function compiled anew, with a cache in a directory of the test."""

    def compiled(directory: Path):
        monkeypatch.setattr(keeping, "DIRECTORY", directory)
        made = numba.njit(double)
        made._cache = KernelCache(double)
        return made

    return compiled


def test_a_kernel_is_compiled_once_and_loaded_by_the_next_process(kernel, tmp_path):
    first = kernel(tmp_path)
    assert first(4) == 8
    again = kernel(tmp_path)
    assert again(5) == 10
    assert (sum(first.stats.cache_misses.values()), sum(first.stats.cache_hits.values())) == (1, 0)
    assert (sum(again.stats.cache_misses.values()), sum(again.stats.cache_hits.values())) == (0, 1)


def test_a_directory_that_can_neither_be_read_nor_written_costs_nothing_but_time(kernel, tmp_path):
    (tmp_path / "file").write_text("no directory")
    assert kernel(tmp_path / "file")(4) == 8


def test_a_spoilt_cache_is_compiled_over(kernel, tmp_path):
    assert kernel(tmp_path)(4) == 8
    for path in tmp_path.iterdir():
        path.write_bytes(b"")
    assert kernel(tmp_path)(4) == 8
    again = kernel(tmp_path)
    assert again(4) == 8
    assert sum(again.stats.cache_hits.values()) == 1


def test_the_named_directories_come_first_and_those_that_cannot_be_made_are_passed_over(tmp_path, monkeypatch):
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    beside = Path(keeping.__file__).parent / "__pycache__"
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "penstock"))
    assert open_directory("1").parent == tmp_path / "penstock"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "numba"))
    assert open_directory("1").parent == tmp_path / "numba"
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))
    assert open_directory("1").parent == tmp_path / "penstock"
    monkeypatch.delenv("PENSTOCK_CACHE_DIR")
    assert open_directory(keeping.DIRECTORY.name.removeprefix(keeping.PREFIX)).parent == beside


def test_without_any_directory_there_is_none(monkeypatch):
    monkeypatch.setattr(keeping, "_bases", lambda: iter([Path(os.devnull)]))
    assert open_directory("1") is None


def test_only_the_caches_of_earlier_versions_are_removed(tmp_path):
    for name in ("penstock-kernels-old", "penstock-kernels-new", "others"):
        (tmp_path / name).mkdir()
    forget_older(tmp_path / "penstock-kernels-new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["others", "penstock-kernels-new"]


def test_the_kernels_can_be_loaded_ahead_and_again():
    warm()
    warm()


def test_whoever_needs_only_the_plain_matching_does_not_load_a_compiler():
    code = "import sys, penstock_policies.matching; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
