"""The benchmarks, which no other test runs: what they import is there, also without the paths that pytest adds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

# In one process, since they load the same libraries; each finds the path and the modules of a new one.
IMPORT_ALL = """
import runpy, sys
from pathlib import Path
tests = Path(sys.argv[1])
before = list(sys.path)
failed = []
for path in sorted((tests / "bench").glob("bench_*.py")):
    sys.argv, sys.path = [str(path)], [str(path.parent), *before]
    try:
        runpy.run_path(str(path), run_name="imported")
    except ImportError as error:
        failed.append(f"{path.name}: {error}")
    for name, module in list(sys.modules.items()):
        if str(tests) in (getattr(module, "__file__", "") or ""):
            del sys.modules[name]
print("; ".join(failed), end="")
"""


@pytest.mark.thorough
def test_each_benchmark_imports_what_it_measures():
    ran = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, str(TESTS)], capture_output=True, text=True, check=False, timeout=120
    )
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr
