"""
The metrics of this node's runs as series, kept in memory and, for a later executor, in the runs' folders.

A run's series is due to be published after a twentieth of its age, and at its end. Then it is written to the run's
folder too; an executor that was killed has lost what came since. Synchronous.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from penstock_executor.run_folders import SERIES, path_of, replace_file
from penstock_executor.run_state import Key
from penstock_log import run_series
from penstock_log.agent_protocol import LoopReport
from penstock_log.run_series import RunSeries

PART_OF_AGE: Final = 1 / 20
LEAST_S: Final = 5.0
MOST_S: Final = 60.0
"""Between two publications: a part of the run's age, at least and at most so long."""
_log = structlog.get_logger("penstock.executor")


@dataclass
class _KeptSeries:
    """A run's series, since when it is kept here, and when it was last given out to be published."""

    series: RunSeries
    since_s: float
    given_s: float
    changed: bool = False


class SeriesStore:
    """The series of the runs whose first process is on this node; a run that reports no metrics has none."""

    def __init__(self, runs_dir: Path) -> None:
        self._runs_dir = runs_dir
        self._kept: dict[Key, _KeptSeries] = {}

    def add_report(self, key: Key, report: LoopReport, now_s: float) -> None:
        """Add what a run's first process has reported."""
        if not (report.metrics or report.diverged):
            return
        kept = self._of_run(key, now_s)
        kept.changed = kept.series.add(report, now_s) or kept.changed

    def _of_run(self, key: Key, now_s: float) -> _KeptSeries:
        if key not in self._kept:
            series = self._load(key)
            since_s = series.times_s[0] if series.times_s else now_s
            self._kept[key] = _KeptSeries(series, since_s, now_s)
        return self._kept[key]

    def _load(self, key: Key) -> RunSeries:
        """Return what an earlier executor has left of a run, or an empty series."""
        try:
            return run_series.decode((path_of(self._runs_dir, key) / SERIES).read_bytes())
        except FileNotFoundError:
            pass
        except (OSError, ValueError, RecursionError) as error:
            _log.warning("series_not_read", job_id=key[0], epoch=key[1], error=str(error))
        return RunSeries(job_id=key[0], epoch=key[1])

    def adopt_run(self, key: Key, now_s: float) -> None:
        """Have what an earlier executor left of a run, which has ended meanwhile or goes on, published again."""
        if key not in self._kept and (path_of(self._runs_dir, key) / SERIES).exists():
            kept = self._of_run(key, now_s)
            kept.changed = bool(kept.series.steps)

    def has_run(self, key: Key) -> bool:
        """Say whether a run has reported metrics here."""
        return key in self._kept

    def due(self, now_s: float) -> list[Key]:
        """Return the runs whose series have changed and are to be published now."""
        return [key for key, kept in self._kept.items() if kept.changed and now_s >= _next_s(kept, now_s)]

    def give_out(self, key: Key, most_bytes: int, now_s: float) -> bytes | None:
        """Return a run's series for publication, after writing it to the run's folder; None if it has not changed."""
        kept = self._kept.get(key)
        if kept is None or not kept.changed:
            return None
        kept.changed, kept.given_s = False, now_s
        body = kept.series.encode(most_bytes)
        self._save(key, body)
        return body

    def take_back(self, key: Key) -> None:
        """Note that what was given out last was not published: it is due again after the usual time."""
        if key in self._kept:
            self._kept[key].changed = True

    def save_all(self) -> None:
        """Write what has changed to the runs' folders, for the next executor."""
        for key, kept in self._kept.items():
            if kept.changed:
                self._save(key, kept.series.encode(_LARGEST))

    def _save(self, key: Key, body: bytes) -> None:
        folder = path_of(self._runs_dir, key)
        if folder.exists():
            replace_file(folder / SERIES, body)

    def forget_run(self, key: Key) -> None:
        """Forget a run whose end is in the log."""
        self._kept.pop(key, None)


_LARGEST: Final = 1 << 24


def _next_s(kept: _KeptSeries, now_s: float) -> float:
    return kept.given_s + min(max((now_s - kept.since_s) * PART_OF_AGE, LEAST_S), MOST_S)
