"""Small traces for the counting simulators, and the published ones."""

from __future__ import annotations

import gzip
from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st
from published import REFERENCE, TRACES

from penstock_simulator.trace import Floats, Trace

TIRESIAS = REFERENCE / "tiresias"


def trace_of(rows: Sequence[tuple[float, int, float]], name: str = "small") -> Trace:
    """Return a trace of (submission, devices, duration)."""
    rows = sorted(rows, key=lambda row: row[0])
    submit_s, num_gpus, duration_s = zip(*rows, strict=True) if rows else ((), (), ())
    return Trace(
        name=name,
        job_ids=[f"j{number:04}" for number in range(len(rows))],
        submit_s=np.array(submit_s, dtype=np.float64),
        num_gpus=np.array(num_gpus, dtype=np.int64),
        duration_s=np.array(duration_s, dtype=np.float64),
    )


def golden() -> tuple[Trace, dict[str, Floats]]:
    """Return the 3,000 jobs and each column of end times."""
    with gzip.open(TRACES / "bench_S3000_golden_256gpu.csv.gz", "rt") as file:
        names = file.readline().strip().split(",")
        table = [line.strip().split(",") for line in file]
    columns = dict(zip(names, zip(*table, strict=True), strict=True))
    rows = zip(columns["submit_s"], columns["num_gpus"], columns["duration_s"], strict=True)
    trace = trace_of([(float(submit_s), int(gpus), float(lasts_s)) for submit_s, gpus, lasts_s in rows])
    return trace, {name: np.array(ends, dtype=float) for name, ends in columns.items() if name.endswith("_end")}


def traces(*, devices: Sequence[int] = (1, 2, 4), most: int = 12) -> st.SearchStrategy[Trace]:
    """Return traces in whole seconds, with many things happening at one time."""
    row = st.tuples(st.integers(0, 25).map(float), st.sampled_from(devices), st.integers(1, 20).map(float))
    return st.lists(row, min_size=1, max_size=most).map(trace_of)
