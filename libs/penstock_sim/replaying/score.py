"""What another schedule of the same jobs would have meant: over all, for each team and user, and for single jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from penstock_sim.outcome import Outcome
from penstock_sim.replaying.censoring import Estimate, estimate
from penstock_sim.report.intervals import LEVEL, RESAMPLES, Change, change
from penstock_sim.trace import Floats

TOLERANCE: Final = 0.05
"""Share by which the average JCT of a replay may be off under the policy that was recorded."""
MOST: Final = 10
"""Jobs that gain and that lose most, of each."""
_EVEN_S: Final = 0.05
"""A job that ends earlier or later by less has not changed."""


class JobChange(msgspec.Struct, frozen=True, kw_only=True):
    """One job's completion time, really and otherwise."""

    id: str
    name: str
    team: str
    user: str
    gpus: int
    was_s: float
    jct_s: float
    change_s: float


class Everybody(msgspec.Struct, frozen=True, kw_only=True):
    """Completion times with censored jobs, really and otherwise, up to a common horizon."""

    jobs: int
    censored: int
    horizon_s: float
    was: Estimate
    now: Estimate


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """
    One policy against what really happened.

    Attributes
    ----------
    all : Change
        Over the jobs that completed in both.
    teams, users : dict of str to Change
        The same, for each; by name. Empty names are jobs without one.
    gained, lost : tuple of JobChange
        The ten jobs whose completion comes earliest, and latest, against what it was; the most first.
    everybody : Everybody
        With jobs that have no true length.
    unfinished : tuple of str
        Jobs that completed really and do not otherwise.
    resamples : int
    level : float
        Of the intervals.
    """

    all: Change
    teams: dict[str, Change]
    users: dict[str, Change]
    gained: tuple[JobChange, ...]
    lost: tuple[JobChange, ...]
    everybody: Everybody
    unfinished: tuple[str, ...]
    resamples: int = RESAMPLES
    level: float = LEVEL


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """
    The log replayed under the policy and with the settings under which it was recorded: how far its replays are off.

    Attributes
    ----------
    policy : str
    jobs : int
        That completed in both.
    was_avg_s, avg_s : float
    off : float or None
        Average JCT, replayed over measured, less 1; None where no job completed in both.
    tolerance : float
        How far it may be off for a verdict on other policies.
    holds : bool
    differ : tuple of JobChange
        The jobs whose completion times differ most, the most first.
    """

    policy: str
    jobs: int
    was_avg_s: float
    avg_s: float
    off: float | None
    tolerance: float
    holds: bool
    differ: tuple[JobChange, ...]


def check(found: Score, policy: str) -> Check:
    """Return how far a replay is off, by the score of the one under the recorded policy."""
    change = found.all
    off = change.ratio - 1.0 if change.ratio is not None else None
    holds = off is not None and (abs(off) <= TOLERANCE or abs(change.avg_change_s) < _EVEN_S)
    return Check(
        policy=policy,
        jobs=change.jobs,
        was_avg_s=change.was_avg_s,
        avg_s=change.avg_s,
        off=off,
        tolerance=TOLERANCE,
        holds=holds and not found.unfinished,
        differ=tuple(sorted((*found.gained, *found.lost), key=lambda job: -abs(job.change_s))[:MOST]),
    )


def without_intervals(found: Score) -> Score:
    """Return a score that says nothing of how sure its differences are."""

    def bare(one: Change) -> Change:
        return msgspec.structs.replace(one, avg_interval_s=None, ratio_interval=None, p95_interval_s=None)

    return msgspec.structs.replace(
        found,
        all=bare(found.all),
        teams={name: bare(one) for name, one in found.teams.items()},
        users={name: bare(one) for name, one in found.users.items()},
    )


def score(
    was: Outcome,
    now: Outcome,
    *,
    left_s: Floats,
    names: Sequence[str] = (),
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Score:
    """
    Compare two schedules of the same jobs.

    Parameters
    ----------
    was, now : Outcome
        Of the same trace of J jobs. Jobs of ``was`` without an end are censored; those that end in ``now`` end there
        as they were killed.
    left_s : (J,) float array, seconds
        When each job was last seen in ``was``, on the trace's clock: its end, or when it was killed, or the log's end.
    names : sequence of str, (J,), optional
        What people call the jobs.
    seed : int
        Of the resamples: the same seed gives the same intervals.
    """
    trace, both = was.trace, was.finished & now.finished
    was_s, now_s = was.end_s - trace.submit_s, now.end_s - trace.submit_s

    def changes(rows: npt.NDArray[np.bool_], *stream: int) -> Change:
        return change(was_s[rows], now_s[rows], np.random.default_rng([seed, *stream]), resamples)

    def parties(labels: Sequence[str], stream: int) -> dict[str, Change]:
        found = np.array(labels, dtype=object)
        told = sorted(set(found[both].tolist())) if len(found) else []
        return {name: changes(both & (found == name), stream, at) for at, name in enumerate(told)}

    jobs = _Jobs(was, was_s, now_s, names)
    order = np.flatnonzero(both)[np.argsort((now_s - was_s)[both], kind="stable")]
    return Score(
        all=changes(both, 0),
        teams=parties(trace.vcs, 1),
        users=parties(trace.users, 2),
        gained=jobs.told(row for row in order[:MOST] if now_s[row] < was_s[row] - _EVEN_S),
        lost=jobs.told(row for row in order[::-1][:MOST] if now_s[row] > was_s[row] + _EVEN_S),
        everybody=_everybody(was, now, left_s),
        unfinished=tuple(str(trace.job_ids[row]) for row in np.flatnonzero(was.finished & ~now.finished).tolist()),
        resamples=resamples,
    )


class _Jobs:
    """Tells of single jobs."""

    def __init__(self, was: Outcome, was_s: Floats, now_s: Floats, names: Sequence[str]) -> None:
        self._trace, self._was_s, self._now_s, self._names = was.trace, was_s, now_s, names

    def told(self, rows: Iterable[np.int64]) -> tuple[JobChange, ...]:
        return tuple(self._one(int(row)) for row in rows)

    def _one(self, row: int) -> JobChange:
        trace = self._trace
        return JobChange(
            id=str(trace.job_ids[row]),
            name=str(self._names[row]) if self._names else "",
            team=str(trace.vcs[row]) if trace.vcs else "",
            user=str(trace.users[row]) if trace.users else "",
            gpus=int(trace.num_gpus[row]),
            was_s=float(self._was_s[row]),
            jct_s=float(self._now_s[row]),
            change_s=float(self._now_s[row] - self._was_s[row]),
        )


def _everybody(was: Outcome, now: Outcome, left_s: Floats) -> Everybody:
    """Return both estimates: a job that is censored really is censored otherwise where it would have been killed."""
    submit_s = was.trace.submit_s
    last_s = float(np.nanmax(now.end_s, initial=float(submit_s[-1])))
    was_s = np.where(was.finished, was.end_s, left_s) - submit_s
    now_s = np.maximum(np.where(now.finished, now.end_s, last_s) - submit_s, 0.0)
    horizon_s = float(min(was_s.max(), now_s.max()))
    return Everybody(
        jobs=was_s.size,
        censored=int((~was.finished).sum()),
        horizon_s=horizon_s,
        was=estimate(was_s, was.finished, horizon_s),
        now=estimate(now_s, was.finished & now.finished, horizon_s),
    )
