"""One policy's jobs as CSV, one a line: for those who want to look themselves."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from penstock_sim.outcome import Outcome
from penstock_sim.trace import Floats

HEADERS: Final = (
    "job_id",
    "submit_s",
    "num_gpus",
    "duration_s",
    "start_s",
    "end_s",
    "jct_s",
    "executed_s",
    "preemptions",
    "promotions",
)
_NAMES: Final = {"vc": "vcs", "user": "users", "model": "models", "kind": "kinds"}


def write(outcome: Outcome, path: Path) -> None:
    """
    Write a line for each job, in the trace's order; a cell is empty where there was nothing, such as no end.

    The first four columns are a trace in the plain form: what one simulation wrote, another can read.
    """
    trace = outcome.trace
    extra = {name: getattr(trace, column) for name, column in _NAMES.items() if getattr(trace, column)}
    if trace.batch_sizes is not None:
        extra["batch_size"] = trace.batch_sizes.tolist()
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((*HEADERS, *extra))
        writer.writerows(zip(*_columns(outcome), *extra.values(), strict=True))


def _columns(outcome: Outcome) -> Iterator[Iterable[object]]:
    trace = outcome.trace
    yield trace.job_ids
    yield _seconds(trace.submit_s)
    yield trace.num_gpus.tolist()
    yield _seconds(trace.duration_s)
    yield _seconds(outcome.start_s)
    yield _seconds(outcome.end_s)
    yield _seconds(outcome.end_s - trace.submit_s)
    yield _seconds(outcome.executed_s)
    yield outcome.preemptions.tolist()
    yield outcome.promotions.tolist()


def _seconds(values: Floats) -> Iterator[str]:
    """Return numbers that read back as the same: whole ones without a fraction, none as nothing."""
    for value in values.tolist():
        if math.isfinite(value):
            yield str(int(value)) if value.is_integer() else repr(value)
        else:
            yield ""
