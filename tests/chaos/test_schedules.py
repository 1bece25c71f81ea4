"""Ten schedules on real clusters: what `make chaos` runs by the hundred."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).parents[1]
SEED: Final = 1
NUMBERS: Final = (7, 12, 16, 17, 21, 46, 52, 64, 72, 74)
"""Short ones, with each kind of fault among them: kills, storms, stops, power cuts, full disks, cuts, a drain."""
SIDE_BY_SIDE: Final = 5


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_schedules_violate_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "chaos", "--seed", str(SEED), "--parallel", str(SIDE_BY_SIDE)]
    command += ["--only", *map(str, NUMBERS), "--folder", str(tmp_path / "chaos")]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert done.stdout.count(" ok ") == len(NUMBERS)
