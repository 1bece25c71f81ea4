"""
On which kind of device each admitted job goes: a heuristic, around programmes that are exact once kinds are chosen.

Every choice is scored by the sum of the kinds' exact optima. Three are begun with: the kinds on which admission found
room, and jobs put in one by one where they add most, in rank order and with those first to whom the kind matters most.
From the best one, jobs are moved to other kinds and pairs exchanged, as long as anything is added and the work stays
within a bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, permutations
from typing import Final, NamedTuple

import numpy as np

from penstock_policies.autoscale.rows import Row
from penstock_policies.elastic import ROUNDING, Floats, added

MOST_WORK: Final = 100_000_000
"""Additions spent on moving and exchanging, in one decision."""

AT_ONCE: Final = 16
"""One of so many jobs is moved at a time: of a few, only the one for which that adds most."""

Kinds = list[str]
"""The kind of each job, by position."""


class Change(NamedTuple):
    """What a choice gains by other kinds for one or two jobs."""

    gain: float
    kinds: dict[int, str]


NONE: Final = Change(0.0, {})


class Choice(NamedTuple):
    """Kinds of all jobs, and the greatest sum of scaling with them."""

    score: float
    kinds: Kinds


def chosen(
    jobs: Sequence[str],
    table: Mapping[str, Mapping[str, Row]],
    begun: Mapping[str, str],
    room: Mapping[str, int],
    *,
    comes: bool = True,
) -> dict[str, str]:
    """
    Return the kind of each job.

    Parameters
    ----------
    jobs
        Those that are admitted, in rank order.
    begun : mapping of str to str
        Kinds on which all of them fit at their smallest widths.
    room : mapping of str to int
        Kind → devices.
    comes : bool
        Whether some of them do not run yet. Where all do, they are only moved from where they are.

    Notes
    -----
    Putting jobs in costs as much as one programme over all of them, a pass of moving log(J) times as much.
    """
    first = [begun[job] for job in jobs]
    if all(len(table[job]) == 1 for job in jobs):
        return dict(zip(jobs, first, strict=True))
    search = _Search([table[job] for job in jobs], room)
    best = Choice(search.score(first), first)
    if comes or search.work(first) > MOST_WORK:
        best = max((best, *search.put_in()), key=lambda each: round(each.score, 9))
    return dict(zip(jobs, search.improved(best).kinds, strict=True))


class _Search:
    def __init__(self, rows: Sequence[Mapping[str, Row]], room: Mapping[str, int]) -> None:
        self.rows, self.room = rows, room
        self.net = {kind: self._net(kind) for kind in room}

    def _net(self, kind: str) -> Floats:
        """Return what each job is worth on each width of a kind, (J, W); -inf where that is not feasible."""
        widest = max((len(row[kind].net) for row in self.rows if kind in row), default=1)
        found = np.full((len(self.rows), widest), -np.inf)
        for at, row in enumerate(self.rows):
            if kind in row:
                found[at, : len(row[kind].net)] = np.nan_to_num(row[kind].net, nan=-np.inf)
        return found

    def score(self, kinds: Kinds) -> float:
        """Return the greatest sum of scaling."""
        return sum(float(sums[-1]) for sums in self._sums(kinds).values())

    def _sums(self, kinds: Kinds) -> dict[str, Floats]:
        found = {kind: np.zeros(count + 1) for kind, count in self.room.items()}
        for at, kind in enumerate(kinds):
            found[kind] = added(found[kind], self.net[kind][at])
        return found

    def put_in(self) -> Iterator[Choice]:
        """Yield choices that come of putting jobs in one by one where they add most; none where one finds no room."""
        most = np.sort([self.net[kind].max(axis=1) for kind in self.room], axis=0)
        matters = np.nan_to_num(most[-1] - most[-2], posinf=np.inf) if len(most) > 1 else np.zeros(len(self.rows))
        for order in (range(len(self.rows)), np.argsort(-matters, kind="stable").tolist()):
            yield self._put_in(order)

    def _put_in(self, order: Sequence[int]) -> Choice:
        found, sums = [""] * len(self.rows), self._sums([])
        for at in order:
            adds = {kind: _last(sums[kind], self.net[kind][at]) - float(sums[kind][-1]) for kind in self.rows[at]}
            kind = max(adds, key=lambda kind: adds[kind])
            if adds[kind] == -np.inf:
                return Choice(-np.inf, [])
            found[at], sums[kind] = kind, added(sums[kind], self.net[kind][at])
        return Choice(sum(float(each[-1]) for each in sums.values()), found)

    def improved(self, choice: Choice) -> Choice:
        """Move jobs to other kinds, or exchange two, as long as it adds anything."""
        left, most = MOST_WORK, max(1, len(choice.kinds) // AT_ONCE)
        many = most
        while (left := left - self.work(choice.kinds)) >= 0:
            changes = self._changes(choice.kinds)
            many = min(many, len(changes))
            while many and (tried := self._tried(choice.kinds, changes[:many])).score <= choice.score * (1 + ROUNDING):
                many //= 4  # what each adds alone, they need not add together
            if not many:
                break
            choice, many = tried, min(2 * many, most)
        return choice

    def _tried(self, kinds: Kinds, changes: Sequence[Change]) -> Choice:
        found = _after(kinds, changes)
        return Choice(self.score(found), found)

    def work(self, kinds: Kinds) -> int:
        """Return how many additions it takes to look for changes once."""
        counts = {kind: kinds.count(kind) for kind in self.room}
        widest = max(net.shape[1] for net in self.net.values())
        tables = sum(n * max(1, n.bit_length()) * (self.room[kind] + 1) for kind, n in counts.items())
        pairs = sum(a * b for a, b in combinations(counts.values(), 2))
        return int(widest) * (tables + pairs)

    def _changes(self, kinds: Kinds) -> list[Change]:
        """Return what adds something by itself, most first: the best move of each job, and the best exchange."""
        inside = {kind: [at for at, each in enumerate(kinds) if each == kind] for kind in self.room}
        sums = self._sums(kinds)
        without = {kind: _without(sums[kind], self.net[kind][jobs]) for kind, jobs in inside.items()}
        found: dict[int, Change] = {}
        for here, there in permutations(self.room, 2):
            jobs = inside[here]
            goes = without[here][:, -1] - float(sums[here][-1])
            comes = _with(sums[there][None, :], self.net[there][jobs])[0] - float(sums[there][-1])
            for at, gain in zip(jobs, (goes + comes).tolist(), strict=True):
                if gain > max(ROUNDING, found[at].gain if at in found else 0.0):
                    found[at] = Change(gain, {at: there})
        changes = sorted(found.values(), key=lambda each: -each.gain)
        exchange = max(self._exchanges(inside, sums, without), key=lambda each: each.gain, default=NONE)
        better = exchange.gain > (changes[0].gain if changes else ROUNDING)
        return [exchange, *changes] if better else changes

    def _exchanges(
        self, inside: Mapping[str, list[int]], sums: Mapping[str, Floats], without: Mapping[str, Floats]
    ) -> Iterator[Change]:
        """Yield the best exchange between each two kinds."""
        for here, there in combinations([kind for kind in self.room if inside[kind]], 2):
            comes = _with(without[here], self.net[here][inside[there]])
            goes = _with(without[there], self.net[there][inside[here]])
            gains = comes + goes.T - float(sums[here][-1] + sums[there][-1])
            one, other = np.unravel_index(int(gains.argmax()), gains.shape)
            yield Change(float(gains[one, other]), {inside[here][one]: there, inside[there][other]: here})


def _after(kinds: Kinds, changes: Sequence[Change]) -> Kinds:
    """Return kinds after changes; of two for one job, the first counts."""
    found = list(kinds)
    for change in reversed(changes):
        for at, kind in change.kinds.items():
            found[at] = kind
    return found


def _last(sums: Floats, net: Floats) -> float:
    """Return the greatest sum on all devices once one more job gets some of them."""
    return float(_with(sums[None, :], net[None, :])[0, 0])


def _with(sums: Floats, net: Floats) -> Floats:
    """Return the greatest sums on all devices, (N, M), of each of N tables with each of M jobs more."""
    width = min(net.shape[1], sums.shape[1] - 1)
    if not width:
        return np.full((len(sums), len(net)), -np.inf)
    left = sums[:, ::-1][:, 1 : width + 1]
    return np.asarray((left[:, None, :] + net[None, :, :width]).max(axis=2), dtype=np.float64)


def _without(sums: Floats, net: Floats) -> Floats:
    """Return the greatest sums without each of N jobs, (N, K + 1), in N log N steps."""
    if len(net) == 0:
        return sums[None, :][:0]
    return np.stack(list(_leaving(np.zeros_like(sums), net)))


def _leaving(sums: Floats, net: Floats) -> Iterator[Floats]:
    """Yield the sums with all jobs but one, each once, on top of some."""
    if len(net) == 1:
        yield sums
        return
    half = len(net) // 2
    for inside, others in ((net[:half], net[half:]), (net[half:], net[:half])):
        below = sums
        for row in others:
            below = added(below, row)
        yield from _leaving(below, inside)
