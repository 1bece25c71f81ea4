"""
Search for the kind of device on which each admitted job goes: a heuristic around exact programmes.

Once the kinds are chosen, the best widths are exact, so every choice is scored by the sum of the kinds' exact optima.
The search begins with three choices: the kinds on which admission found room; jobs put in one by one where they add
most, in rank order; and the same with those first to whom the kind matters most. From the best of them it moves jobs to
other kinds and exchanges pairs, as long as that adds anything and the work stays within a bound.

:func:`rows` says what a job is worth on each width of each kind: its throughput, relative to that at its smallest
width. Resizing costs a job ``cost_s`` seconds of work, and so does starting one. Within a horizon H a job gets
``T(g) (H - cost_s)`` done if it is resized to g devices, and ``T(now) H`` if it stays. So the row that the programme
sums has ``T(g) (1 - cost_s / H)`` at all sizes but the present one, and its optimum is the most work that can be done
within H, resizing included. The present size counts for a little more, because measured throughputs are not exact.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations, permutations
from typing import Final, NamedTuple

import numpy as np

from penstock_log import Size
from penstock_policies import elastic
from penstock_policies.elastic import ROUNDING, Floats, Ints, ThroughputProfile, added
from penstock_scheduler.sizing.problem import SizeRequest, SizingRules

MOST_WORK: Final = 100_000_000
"""Additions spent on moving and exchanging, in one decision."""

AT_ONCE: Final = 16
"""One of so many jobs is moved at a time: of a few, only the one for which that adds most."""

Kinds = list[str]
"""The kind of each job, by position."""


class KindChange(NamedTuple):
    """A change of a choice: other kinds for one or two jobs, and what that gains."""

    gain: float
    kinds: dict[int, str]


NONE: Final = KindChange(0.0, {})


class KindChoice(NamedTuple):
    """Kinds of all jobs, and the greatest sum of scaling with them."""

    score: float
    kinds: Kinds


def chosen(
    jobs: Sequence[str],
    table: Mapping[str, Mapping[str, SizeRow]],
    begun: Mapping[str, str],
    capacity: Mapping[str, int],
    *,
    comes: bool = True,
) -> dict[str, str]:
    """
    Return the kind of each job.

    Parameters
    ----------
    jobs
        The admitted jobs, in rank order.
    begun : mapping of str to str
        Job → a kind, such that all jobs fit at their smallest widths.
    capacity : mapping of str to int
        Kind → devices.
    comes : bool
        Whether some of the jobs do not run yet. Where all run, they are only moved from where they are.

    Notes
    -----
    Putting jobs in costs as much as one programme over all of them; a pass of moving costs log(J) times as much.
    """
    first = [begun[job] for job in jobs]
    if all(len(table[job]) == 1 for job in jobs):
        return dict(zip(jobs, first, strict=True))
    search = _Search([table[job] for job in jobs], capacity)
    best = KindChoice(search.score(first), first)
    if comes or search.work(first) > MOST_WORK:
        best = max((best, *search.put_in()), key=lambda each: round(each.score, 9))
    return dict(zip(jobs, search.improved(best).kinds, strict=True))


class _Search:
    def __init__(self, rows: Sequence[Mapping[str, SizeRow]], capacity: Mapping[str, int]) -> None:
        self.rows, self.capacity = rows, capacity
        self.net = {kind: self._net(kind) for kind in capacity}

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
        found = {kind: np.zeros(count + 1) for kind, count in self.capacity.items()}
        for at, kind in enumerate(kinds):
            found[kind] = added(found[kind], self.net[kind][at])
        return found

    def put_in(self) -> Iterator[KindChoice]:
        """Yield the choices made by putting jobs in one by one where they add most; none where a job finds no room."""
        most = np.sort([self.net[kind].max(axis=1) for kind in self.capacity], axis=0)
        matters = np.nan_to_num(most[-1] - most[-2], posinf=np.inf) if len(most) > 1 else np.zeros(len(self.rows))
        for order in (range(len(self.rows)), np.argsort(-matters, kind="stable").tolist()):
            yield self._put_in(order)

    def _put_in(self, order: Sequence[int]) -> KindChoice:
        found, sums = [""] * len(self.rows), self._sums([])
        for at in order:
            adds = {kind: _last(sums[kind], self.net[kind][at]) - float(sums[kind][-1]) for kind in self.rows[at]}
            kind = max(adds, key=lambda kind: adds[kind])
            if adds[kind] == -np.inf:
                return KindChoice(-np.inf, [])
            found[at], sums[kind] = kind, added(sums[kind], self.net[kind][at])
        return KindChoice(sum(float(each[-1]) for each in sums.values()), found)

    def improved(self, choice: KindChoice) -> KindChoice:
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

    def _tried(self, kinds: Kinds, changes: Sequence[KindChange]) -> KindChoice:
        found = _after(kinds, changes)
        return KindChoice(self.score(found), found)

    def work(self, kinds: Kinds) -> int:
        """Return how many additions one look for changes takes."""
        counts = {kind: kinds.count(kind) for kind in self.capacity}
        widest = max(net.shape[1] for net in self.net.values())
        tables = sum(n * max(1, n.bit_length()) * (self.capacity[kind] + 1) for kind, n in counts.items())
        pairs = sum(a * b for a, b in combinations(counts.values(), 2))
        return int(widest) * (tables + pairs)

    def _changes(self, kinds: Kinds) -> list[KindChange]:
        """Return the changes that add anything by themselves, most first: each job's best move, the best exchange."""
        inside = {kind: [at for at, each in enumerate(kinds) if each == kind] for kind in self.capacity}
        sums = self._sums(kinds)
        without = {kind: _without(sums[kind], self.net[kind][jobs]) for kind, jobs in inside.items()}
        found: dict[int, KindChange] = {}
        for here, there in permutations(self.capacity, 2):
            jobs = inside[here]
            goes = without[here][:, -1] - float(sums[here][-1])
            comes = _with(sums[there][None, :], self.net[there][jobs])[0] - float(sums[there][-1])
            for at, gain in zip(jobs, (goes + comes).tolist(), strict=True):
                if gain > max(ROUNDING, found[at].gain if at in found else 0.0):
                    found[at] = KindChange(gain, {at: there})
        changes = sorted(found.values(), key=lambda each: -each.gain)
        exchange = max(self._exchanges(inside, sums, without), key=lambda each: each.gain, default=NONE)
        better = exchange.gain > (changes[0].gain if changes else ROUNDING)
        return [exchange, *changes] if better else changes

    def _exchanges(
        self, inside: Mapping[str, list[int]], sums: Mapping[str, Floats], without: Mapping[str, Floats]
    ) -> Iterator[KindChange]:
        """Yield the best exchange between each two kinds."""
        for here, there in combinations([kind for kind in self.capacity if inside[kind]], 2):
            comes = _with(without[here], self.net[here][inside[there]])
            goes = _with(without[there], self.net[there][inside[here]])
            gains = comes + goes.T - float(sums[here][-1] + sums[there][-1])
            one, other = np.unravel_index(int(gains.argmax()), gains.shape)
            yield KindChange(float(gains[one, other]), {inside[here][one]: there, inside[there][other]: here})


def _after(kinds: Kinds, changes: Sequence[KindChange]) -> Kinds:
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


MOST_COST: Final = 1 - 1e-6
"""Of its throughput: what resizing a job costs at most, so that some is left."""


class SizeRow(NamedTuple):
    """
    A job on one kind, for widths from 1.

    Attributes
    ----------
    batch : (k_max,) int array
        Chosen at each width; 0 where it is not feasible.
    scaling : (k_max,) float array
        nan where it is not feasible.
    net : (k_max,) float array
        The scaling less what resizing costs; the programme sums it.
    """

    batch: Ints
    scaling: Floats
    net: Floats

    @property
    def least(self) -> int:
        """The smallest feasible width; 0 where there is none."""
        return int(elastic.smallest(self.net[None, :])[0])


def rows(request: SizeRequest, devices: Mapping[str, int], rules: SizingRules) -> dict[str, SizeRow]:
    """Return a job's rows for the kinds on which any of its widths is feasible."""
    found = {}
    for kind, profile in request.profiles.items():
        widths = _within(request.widths, devices.get(kind, 0))
        batch, speed = _best(profile, widths, request.unfit)
        if batch.any():
            found[kind] = (widths, batch, speed)
    unit = max((speed[batch > 0][0] for _, batch, speed in found.values()), default=1.0)
    return {kind: _row(request, kind, each, float(unit), rules) for kind, each in found.items()}


def _within(widths: range, most: int) -> range:
    return range(max(1, widths.start), min(widths.stop - 1, most) + 1)


def _row(
    request: SizeRequest, kind: str, known: tuple[range, Ints, Floats], unit: float, rules: SizingRules
) -> SizeRow:
    """Write a job's best batches out from width 1, and charge it for resizing."""
    widths, batch, speed = known
    before = np.zeros(widths.start - 1, dtype=np.int64)
    batch = np.concatenate((before, batch))
    scaling = np.concatenate((np.full(len(before), np.nan), speed)) / unit
    net = scaling * (1 - min(request.cost_s / rules.horizon_s, MOST_COST))
    if request.now is not None and kind == request.kind and request.now.gpus in widths:
        stays, at = present_speed(request, kind) / unit, request.now.gpus - 1
        if stays * (1 + rules.least_gain) >= net[at] or (batch[at] == 0 and stays > 0):
            batch[at], scaling[at], net[at] = request.now.batch_size, stays, stays * (1 + rules.least_gain)
    return SizeRow(batch, scaling, net)


def present_speed(request: SizeRequest, kind: str) -> float:
    """Return a job's throughput with its present size; nan where that is not known to be feasible."""
    if request.now is None or request.now in request.unfit or kind not in request.profiles:
        return float("nan")
    profile = request.profiles[kind]
    batch = request.now.batch_size or profile.b_min
    return (
        float(profile.throughput(batch, request.now.gpus)) if profile.b_min <= batch <= profile.b_max else float("nan")
    )


def _best(profile: ThroughputProfile, widths: range, unfit: Collection[Size]) -> tuple[Ints, Floats]:
    batches, speeds = table_of(profile.key, widths.stop - 1)
    batch, speed = batches[widths.start - 1 :].copy(), speeds[widths.start - 1 :].copy()
    for gpus in {size.gpus for size in unfit} & set(widths):
        below = min(size.batch_size for size in unfit if size.gpus == gpus)
        one, fast = _smaller(profile, gpus, below)
        batch[gpus - widths.start], speed[gpus - widths.start] = one, fast
    return batch, speed


def _smaller(profile: ThroughputProfile, gpus: int, below: int) -> tuple[int, float]:
    """Return the best batch on a number of devices that is smaller than a batch that failed."""
    most = min(profile.b_max, below - 1)
    if most < profile.b_min:
        return 0, float("nan")
    batch, speed = elastic.table(profile.up_to(most), range(gpus, gpus + 1))
    return int(batch[0]), float(speed[0])


@lru_cache(maxsize=4096)
def table_of(key: elastic.Key, k_max: int) -> tuple[Ints, Floats]:
    """Return the table of a profile for widths from 1, worked out once."""
    return elastic.table(ThroughputProfile.of(key), range(1, k_max + 1))
