"""
Totals since the log began, by pool and team: what only ever rises, for metrics.

:class:`ClusterTotals` counts jobs that ended, how long they waited and took, how their runs ended, and the device time
that these held. Times are whole milliseconds: sums of them, and what is left after some are taken away, are exact, so
that a counter never falls by a rounding. The gateway folds them, and the fact that archives jobs carries them on.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Final

import msgspec

from penstock_log.usage import Usage

_MINUTE: Final = 60.0
_HOUR: Final = 3600.0
_DAY: Final = 86_400.0
BOUNDS_S: Final = (
    *(1.0, 5.0, 15.0, _MINUTE, 5 * _MINUTE, 15 * _MINUTE, _HOUR, 4 * _HOUR, 12 * _HOUR),
    *(_DAY, 3 * _DAY, 7 * _DAY, 30 * _DAY),
)
"""Upper bounds of the classes of a :class:`Spread`. Facts have counts by them: another list would need another fact."""


_MOST_S: Final = 1e10


def milliseconds(time_s: float) -> int:
    """Return a time in milliseconds; what no clock can have said is kept within what snapshots can hold."""
    return 0 if math.isnan(time_s) else round(min(max(time_s, 0.0), _MOST_S) * 1000)


class Spread(msgspec.Struct, kw_only=True, omit_defaults=True):
    """
    How many times are in which class, and their sum.

    Attributes
    ----------
    counts : list of int
        One for each of :data:`BOUNDS_S`, and one for what is longer; empty while there is nothing in it.
    total_ms : int

    Examples
    --------
    >>> spread = Spread()
    >>> spread.add(1_000, 1), spread.add(20_000, 1)
    (None, None)
    >>> spread.counts[:4], spread.total_ms
    ([1, 0, 0, 1], 21000)
    >>> spread.add(20_000, -1)
    >>> spread.add(1_000, -1)
    >>> spread.counts, spread.total_ms
    ([], 0)
    """

    counts: list[int] = msgspec.field(default_factory=list)
    total_ms: int = 0

    def add(self, time_ms: int, sign: int) -> None:
        """Add a time, or take it away again with a sign of -1."""
        self.counts = self.counts or [0] * (len(BOUNDS_S) + 1)
        self.counts[bisect_left(BOUNDS_S, time_ms / 1000)] += sign
        self.total_ms += sign * time_ms
        if not any(self.counts):
            self.counts = []

    def add_all(self, other: Spread) -> None:
        """Add all times of another."""
        if other.counts:
            mine = self.counts or [0] * (len(BOUNDS_S) + 1)
            self.counts = [a + b for a, b in zip(mine, other.counts)]
            self.total_ms += other.total_ms


class DeviceTime(msgspec.Struct, kw_only=True, omit_defaults=True):
    """
    Device time of runs, in GPU-milliseconds; ``held_ms`` is the sum of the others.

    Attributes
    ----------
    used_ms : int
        In iterations.
    idle_ms : int
        Not in iterations, of jobs that have shown some.
    unmeasured_ms : int
        Of commands that tell of no iterations.
    lost_ms : int
        What a later run had to do again, or nobody will.
    """

    held_ms: int = 0
    used_ms: int = 0
    idle_ms: int = 0
    unmeasured_ms: int = 0
    lost_ms: int = 0

    @classmethod
    def of(cls, usage: Usage) -> DeviceTime:
        """Return the device time of an account; the sum of the columns, and not the account's, is what was held."""
        names = ("used", "idle", "unmeasured", "lost")
        found = {f"{name}_ms": milliseconds(getattr(usage, f"{name}_gpu_s")) for name in names}
        return cls(held_ms=sum(found.values()), **found)

    def add(self, other: DeviceTime, sign: int = 1) -> None:
        """Add another's, or take it away again with a sign of -1."""
        for name in DeviceTime.__struct_fields__:
            setattr(self, name, getattr(self, name) + sign * getattr(other, name))


class TeamTotals(msgspec.Struct, kw_only=True, omit_defaults=True):
    """
    What the jobs of a team did in a pool.

    Attributes
    ----------
    ended : dict of str to int
        ``completed``, ``failed`` or ``cancelled`` → jobs.
    time : DeviceTime
        Of runs that are over, as it was known when they ended.
    """

    ended: dict[str, int] = msgspec.field(default_factory=dict)
    time: DeviceTime = msgspec.field(default_factory=DeviceTime)


class PoolTotals(msgspec.Struct, kw_only=True, omit_defaults=True):
    """
    What happened in a pool.

    Attributes
    ----------
    waits : Spread
        From when each job could begin to its first start.
    completions : Spread
        From the submission of each job to its end, of those that completed.
    runs : dict of str to int
        Outcome → runs that ended so; ``timed_out`` where a run was stopped for its job's time limit.
    teams : dict of str to TeamTotals
    """

    waits: Spread = msgspec.field(default_factory=Spread)
    completions: Spread = msgspec.field(default_factory=Spread)
    runs: dict[str, int] = msgspec.field(default_factory=dict)
    teams: dict[str, TeamTotals] = msgspec.field(default_factory=dict)

    def team(self, name: str) -> TeamTotals:
        """Return the totals of a team, empty ones where it has none."""
        return self.teams.setdefault(name, TeamTotals())

    def add_all(self, other: PoolTotals) -> None:
        """Add all of another."""
        self.waits.add_all(other.waits)
        self.completions.add_all(other.completions)
        add_counts(self.runs, other.runs)
        for name, totals in other.teams.items():
            add_counts(self.team(name).ended, totals.ended)
            self.team(name).time.add(totals.time)


class ClusterTotals(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The totals of all pools."""

    pools: dict[str, PoolTotals] = msgspec.field(default_factory=dict)

    def pool(self, name: str) -> PoolTotals:
        """Return the totals of a pool, empty ones where it has none."""
        return self.pools.setdefault(name, PoolTotals())

    def add_all(self, other: ClusterTotals) -> None:
        """Add all of another."""
        for name, totals in other.pools.items():
            self.pool(name).add_all(totals)

    def drop_empty(self, pool: str, team: str) -> None:
        """Drop a team of a pool, and then the pool, if nothing is left in them after something was taken away."""
        found = self.pool(pool)
        if found.team(team) == TeamTotals():
            del found.teams[team]
        if found == PoolTotals():
            del self.pools[pool]


def add_counts(to: dict[str, int], counts: dict[str, int], sign: int = 1) -> None:
    """Add counts to others in place, or take them away again with a sign of -1; what is then 0 is left out."""
    for name, count in counts.items():
        to[name] = to.get(name, 0) + sign * count
        if not to[name]:
            del to[name]
