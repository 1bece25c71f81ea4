"""The benchmarks, which no other test runs: what they import is there."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

BENCHES = sorted((Path(__file__).parents[1] / "bench").glob("bench_*.py"))


@pytest.mark.parametrize("path", BENCHES, ids=lambda path: path.stem)
def test_a_benchmark_imports_what_it_measures(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(path.parent))
    monkeypatch.setattr("sys.argv", [str(path)])
    assert runpy.run_path(str(path), run_name="imported")["__doc__"]
