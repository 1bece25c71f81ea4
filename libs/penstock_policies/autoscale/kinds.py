"""
On which kind of device each admitted job goes: a heuristic, around programmes that are exact once kinds are chosen.

Every choice is scored by the sum of the kinds' exact optima. Three are begun with: the kinds on which admission found
room, and jobs put in one by one where they add most, in rank order and with those first to whom the kind matters most.
From the best one, single jobs are moved and pairs exchanged, whichever adds most, as long as anything does and the work
stays within a bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Final

import numpy as np

from penstock_policies.autoscale.rows import Row
from penstock_policies.elastic import ROUNDING, Floats, added

MOST_WORK: Final = 40_000_000
"""Additions spent on moving and exchanging, in one decision."""

Kinds = list[str]
"""The kind of each job, by position."""


def chosen(
    jobs: Sequence[str],
    table: Mapping[str, Mapping[str, Row]],
    begun: Mapping[str, str],
    room: Mapping[str, int],
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

    Notes
    -----
    Putting jobs in costs as much as one programme over all of them, a pass of moving log(J) times as much.
    """
    first = [begun[job] for job in jobs]
    if all(len(table[job]) == 1 for job in jobs):
        return dict(zip(jobs, first, strict=True))
    search = _Search([table[job] for job in jobs], room)
    best = first
    for other in search.put_in():
        if search.score(other) > search.score(best) * (1 + ROUNDING):
            best = other
    return dict(zip(jobs, search.improved(best), strict=True))


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

    def put_in(self) -> Iterator[Kinds]:
        """Yield choices that come of putting jobs in one by one where they add most; none where one finds no room."""
        most = np.sort([self.net[kind].max(axis=1) for kind in self.room], axis=0)
        matters = np.nan_to_num(most[-1] - most[-2], posinf=np.inf) if len(most) > 1 else np.zeros(len(self.rows))
        for order in (range(len(self.rows)), np.argsort(-matters, kind="stable").tolist()):
            if found := self._put_in(order):
                yield found

    def _put_in(self, order: Sequence[int]) -> Kinds:
        found, sums = [""] * len(self.rows), self._sums([])
        for at in order:
            after = {kind: _last(sums[kind], self.net[kind][at]) - float(sums[kind][-1]) for kind in self.rows[at]}
            kind = max(after, key=lambda kind: after[kind])
            if after[kind] == -np.inf:
                return []
            found[at], sums[kind] = kind, added(sums[kind], self.net[kind][at])
        return found

    def improved(self, kinds: Kinds) -> Kinds:
        """Move and exchange jobs, whichever adds most, as long as it adds anything."""
        kinds, left = list(kinds), MOST_WORK
        while (left := left - self._work(kinds)) >= 0:
            gain, changes = self._best_change(kinds)
            if gain <= ROUNDING * len(kinds):
                break
            for at, kind in changes.items():
                kinds[at] = kind
        return kinds

    def _work(self, kinds: Kinds) -> int:
        counts = {kind: kinds.count(kind) for kind in self.room}
        widest = max(net.shape[1] for net in self.net.values())
        tables = sum(n * max(1, n.bit_length()) * (self.room[kind] + 1) for kind, n in counts.items())
        pairs = sum(a * b for a, b in combinations(counts.values(), 2))
        return int(widest) * (tables + pairs)

    def _best_change(self, kinds: Kinds) -> tuple[float, dict[int, str]]:
        inside = {kind: [at for at, each in enumerate(kinds) if each == kind] for kind in self.room}
        sums = self._sums(kinds)
        without = {kind: _without(sums[kind], self.net[kind][inside[kind]]) for kind in self.room}
        found: tuple[float, dict[int, str]] = (0.0, {})
        for here in self.room:
            for there in self.room:
                if here != there and inside[here]:
                    loss = float(sums[here][-1]) - without[here][:, -1]
                    gain = _with(sums[there][None, :], self.net[there][inside[here]])[0] - float(sums[there][-1]) - loss
                    best = int(gain.argmax())
                    found = max(found, (float(gain[best]), {inside[here][best]: there}), key=lambda each: each[0])
        for here, there in combinations([kind for kind in self.room if inside[kind]], 2):
            before = float(sums[here][-1] + sums[there][-1])
            comes = _with(without[here], self.net[here][inside[there]])
            goes = _with(without[there], self.net[there][inside[here]])
            gains = comes + goes.T - before
            one, other = np.unravel_index(int(gains.argmax()), gains.shape)
            changes = {inside[here][one]: there, inside[there][other]: here}
            found = max(found, (float(gains[one, other]), changes), key=lambda each: each[0])
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
        return sums[None, :0]
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
