"""Device time as CSV, in GPU-hours: what ``penstock usage -o csv`` prints and the dashboard's page of users exports."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Final

from penstock_log.usage import Usage
from penstock_log.views import UsageRowView, UsageView

COLUMNS: Final = ("requested", "waited", "held", "used", "idle", "unmeasured", "lost")
_IN_CSV: Final = (*COLUMNS, "lost_to_preemption")
COUNTS: Final = ("jobs", "runs", "preemptions")
_HOUR_S: Final = 3600.0
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""What makes a spreadsheet take a cell for a formula."""


def gpu_h(usage: Usage, column: str) -> float:
    """Return a column in GPU-hours."""
    found: float = getattr(usage, f"{column}_gpu_s")
    return found / _HOUR_S


def usage_csv(view: UsageView) -> str:
    """
    Return device time as CSV with a header, in GPU-hours and seconds; no total, so that columns can be summed.

    Names that a spreadsheet would take for formulas begin with an apostrophe.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    times = [f"{column}_gpu_h" for column in _IN_CSV]
    writer.writerow([view.by, "job_name", "job_user", "others", *times, *COUNTS, "median_wait_s", "p90_wait_s"])
    writer.writerows(_csv_rows(view.rows))
    return text.getvalue()


def _csv_rows(rows: Sequence[UsageRowView]) -> Iterable[list[object]]:
    for row in rows:
        times = [f"{gpu_h(row.usage, column):.6f}" for column in _IN_CSV]
        counts = [getattr(row.usage, count) for count in COUNTS]
        waits = ["" if wait is None else f"{wait:.3f}" for wait in (row.waits.median_s, row.waits.p90_s)]
        yield [_cell(row.name), _cell(row.title), _cell(row.user), int(row.others), *times, *counts, *waits]


def _cell(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text
