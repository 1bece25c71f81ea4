"""Published cases and traces: those in the repository, and the two traces that are too large for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

REFERENCE = Path(__file__).parents[1] / "data" / "reference"
TRACES = Path(__file__).parents[1] / "data" / "traces"
LARGE = Path(__file__).parents[3] / "shared" / "traces"


def reference(name: str) -> Any:
    """Return the published cases of a file."""
    return json.loads((REFERENCE / name).read_text())


def large_trace(name: str) -> Path:
    """Return a trace that is not in the repository; the test is skipped where it is not beside it either."""
    path = LARGE / name
    if not path.exists():
        pytest.skip(f"NOT TESTED: {path} is not there, and too large for the repository (tests/data/README.md)")
    return path
