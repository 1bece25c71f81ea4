"""
Sweep filters: the sweeps that a request names by what they are, and the part of them that it asks for.

:func:`page` answers for the present and for the past. Of a moment in the past, :class:`PastSweeps` finds the sweeps
that are over by their columns in the file of snapshots, and reads only those of the page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from penstock_gateway.authority import Caller
from penstock_gateway.past_tables import PastTable
from penstock_gateway.snapshot_file import OverSweep, SnapshotFile
from penstock_gateway.sweep_table import SweepRecord
from penstock_log.request_bodies import SweepsRequest

Conditions = list[tuple[str, Any]]
_DECODER: Final = msgspec.msgpack.Decoder(SweepRecord)


class PastSweeps(PastTable[SweepRecord]):
    """
    All sweeps as of a moment; those that are not over have been read.

    Attributes
    ----------
    over_by_state : dict of str to int
        State → sweeps that are over in the file.
    """

    over_by_state: dict[str, int] = {}

    @classmethod
    def of_snapshot(cls, file: SnapshotFile, seq: int, next_place: int) -> PastSweeps:
        """Return the sweeps of a file's snapshot."""
        return cls(file, "sweeps", seq, next_place, decoder=_DECODER, is_over=lambda one: one.finished is not None)

    def count_by_state(self) -> dict[str, int]:
        """Return the number of sweeps by state."""
        found = Counter(self.over_by_state)
        found.update(sweep.state for key, sweep in self.loaded() if key not in self.over)
        found.subtract(one.value.state for one in self.removed.values() if one.was_over)
        return {state: count for state, count in found.items() if count}

    def count_over(self, where: Conditions, matches: Callable[[SweepRecord], bool]) -> int:
        """Return how many sweeps that are over match, by columns (see :meth:`SnapshotFile.over`) and by records."""
        found = self.file.count_over_sweeps(self.seq, self._bounded(where))
        found += sum(one.finished is not None and matches(one) for key, one in self.loaded() if key not in self.over)
        return found - sum(matches(one.value) for one in self.removed.values() if one.was_over)

    def newest_over(self, where: Conditions, matches: Callable[[SweepRecord], bool], most: int) -> list[SweepRecord]:
        """Return the newest sweeps that are over and match, the newest first; parameters as :meth:`count_over`."""
        read = self.over | {key for key, one in self.removed.items() if one.was_over}
        rows = self.file.over_sweeps(self.seq, self._bounded(where), limit=most + len(read))
        found = [(row.place, row.id) for row in rows if row.id not in read]
        known = ((self.places[key], key) for key, one in self.loaded() if one.finished is not None and matches(one))
        ids = [key for _, key in sorted([*found, *known], reverse=True)[:most]]
        self.read(ids)
        return [self[key] for key in ids]

    def _bounded(self, where: Conditions) -> Conditions:
        return [("place < ?", self.stored_places), *where]


def page(sweeps: dict[str, SweepRecord], asked: SweepsRequest, caller: Caller) -> tuple[int, list[SweepRecord]]:
    """
    Return how many sweeps may be seen and match, and those of the page that a request asks for.

    Open sweeps come first and then the others, the newest first; a page has its part of them in the reverse order.
    """
    conditions = list(_conditions(asked, caller))

    def matches(sweep: SweepRecord) -> bool:
        return all(holds(sweep) for holds in conditions)

    end = asked.offset + asked.limit
    if isinstance(sweeps, PastSweeps):
        opened = [one for _, one in sorted(sweeps.loaded(), key=lambda pair: sweeps.places[pair[0]])]
        opened = [one for one in opened if one.finished is None and matches(one)]
        where = _columns(asked, caller)
        total = len(opened) + sweeps.count_over(where, matches)
        over = sweeps.newest_over(where, matches, end - len(opened)) if end > len(opened) else []
    else:
        found = [one for one in sweeps.values() if matches(one)]
        opened = [one for one in found if one.finished is None]
        total, over = len(found), [one for one in reversed(found) if one.finished is not None]
    return total, [*reversed(opened), *over][asked.offset : end][::-1]


def count_by_state(sweeps: dict[str, SweepRecord]) -> dict[str, int]:
    """Return the number of sweeps by state."""
    if isinstance(sweeps, PastSweeps):
        return sweeps.count_by_state()
    return dict(Counter(sweep.state for sweep in sweeps.values()))


def over_sweep(place: int, sweep: SweepRecord) -> OverSweep:
    """Return a sweep by what sweeps are found by."""
    job = sweep.spec.job
    return OverSweep(place=place, id=sweep.id, state=sweep.state, user=job.user, team=job.team)


def _conditions(asked: SweepsRequest, caller: Caller) -> Iterator[Callable[[SweepRecord], bool]]:
    yield lambda sweep: caller.sees(sweep.spec.job)
    if asked.state:
        yield lambda sweep: sweep.state in asked.state
    if asked.user:
        yield lambda sweep: sweep.spec.job.user == asked.user
    if asked.team:
        yield lambda sweep: sweep.spec.job.team == asked.team


def _columns(asked: SweepsRequest, caller: Caller) -> Conditions:
    """Return the same as conditions on the columns of sweeps that are over."""
    found: Conditions = []
    if not caller.sees_all:
        teams = ",".join("?" * len(caller.teams))
        found.append((f"(user = ? OR (team != '' AND team IN ({teams})))", (caller.name, *caller.teams)))
    if asked.state:
        found.append((f"state IN ({','.join('?' * len(asked.state))})", asked.state))
    found += [(f"{field} = ?", wanted) for field in ("user", "team") if (wanted := getattr(asked, field))]
    return found
