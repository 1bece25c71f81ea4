"""
Which runs make room: those with the lightest loss that free enough.

A run's *loss* is its devices times the seconds that preempting it wastes: stopping and resuming, as measured for its
workload, and what it has done since its last checkpoint and would not save. A run is a victim at all only if

* it has run for ``min_run_s``, and so long that the workload's measured overhead is at most ``overhead_share`` of the
  run: whatever arrives, a job advances. So a job is preempted at most once for each ``min_run_s`` of service that it
  received, and it loses at most ``overhead_share`` of this service to the measured overhead;
* the gain exceeds the cost: whoever takes its devices has them as much earlier as the run is expected to go on, which
  must be more than stopping and resuming take and the run would lose. Who is about to end anyway is waited for, and
  a long run without a checkpoint is not thrown away for a short one. One that does not end when it was expected to is
  looked at again when anything happens, a checkpoint for instance; nobody asks to be woken for it.

For one job the set of victims is the one with the least sum of losses, then of the fewest runs: a run is never chosen
where a lighter choice frees enough. Among equals the lowest ranked come first.

That is for orders in which jobs make way for lower queues. In one in which they make way for whatever comes before them
(:attr:`penstock_policies.queue_policies.DispatchMode.preempts` is ``position``), the order itself says who goes: the
lowest ranked.

Runs that no quota covers (:mod:`penstock_scheduler.quotas`) go first, where they are enough, and whatever they lose:
gain and cost are weighed only where the devices are a run's own. Nor are they weighed for a job of a higher class
(:mod:`penstock_scheduler.priority_classes`): its class preempts runs of lower ones, or it does not.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import merge
from itertools import groupby, islice, pairwise, takewhile
from typing import NamedTuple

import numpy as np

from penstock_cluster.nodes import fits
from penstock_log import JobSpec
from penstock_scheduler.placement import Shape
from penstock_scheduler.pool.run_columns import Bools, Floats, Ints, RunColumns
from penstock_scheduler.priority_classes import any_preempts, crosses, reaches
from penstock_scheduler.round_types import BORROWED, PreemptibleRun, RankedJob, RoundContext

Key = tuple[float, int, float]
"""Loss, then the lowest ranked first."""


class Victim(NamedTuple):
    """A run that may be preempted, and what that would waste, in device-seconds."""

    key: Key
    run: PreemptibleRun

    @property
    def loss_gpu_s(self) -> float:
        """Devices times seconds lost."""
        return self.key[0]


class VictimChoice(NamedTuple):
    """Runs to be preempted for one job."""

    loss_gpu_s: float
    runs: tuple[PreemptibleRun, ...]


class _RunsByRow:
    """Runs that were looked at one by one, made when they first are."""

    def __init__(self, runs: RunColumns, loss_gpu_s: Floats) -> None:
        self.runs, self.loss_gpu_s = runs, loss_gpu_s
        self.rows: dict[str, tuple[int, int]] = {}  # job → number of its group, row
        self._found: dict[int, Victim] = {}

    def victim(self, group: int, row: int) -> Victim:
        """Return the run of a row."""
        found = self._found.get(row)
        if found is None:
            run = self.runs.running(row)
            key = float(self.loss_gpu_s[row]), -run.ranked.queue, -run.ranked.position
            found = self._found[row] = Victim(key, run)
            self.rows[run.ranked.job_id] = group, row
        return found


@dataclass(eq=False)
class _Group:
    """
    Runs of one queue with equal devices, the lightest loss first: whoever takes any takes the first ones.

    They are ``worthwhile`` if the gain from preempting them exceeds the cost; the others make way for higher classes
    only.
    """

    number: int
    queue: int
    kind: str
    shape: Shape
    members: deque[int]
    by_row: _RunsByRow
    worthwhile: bool = True

    @property
    def head(self) -> Victim:
        """The first run; there must be one."""
        return self.by_row.victim(self.number, self.members[0])

    def victims(self) -> Iterator[Victim]:
        """Yield the runs in order."""
        return (self.by_row.victim(self.number, row) for row in self.members)

    def gain(self, spec: JobSpec) -> int:
        """Return how many devices a job would get of each of them."""
        return sum(count for like, count in self.shape if fits(spec, like))


class PreemptionCandidates:
    """
    The runs that may be preempted in a round.

    Parameters
    ----------
    running : RunColumns
        In any order; samples and runs that are stopping already left out.
    context : RoundContext

    Notes
    -----
    O(P log P) in the number of runs, in whole columns. A choice looks at the first runs of each group of equal ones;
    taking them is O(1) each.
    """

    def __init__(self, running: RunColumns, context: RoundContext) -> None:
        self._preempts = context.mode.preempts
        self._classes = context.rules.classes
        waste_s, ripe, worthwhile, self._unripe = _weigh(running, context)
        able = ripe if any_preempts(self._classes) else worthwhile
        found = running.only(able) if len(running) else running
        loss_gpu_s = found.devices * (0.0 if self._preempts == "position" else waste_s[able])
        self._by_row, self._worthwhile = _RunsByRow(found, loss_gpu_s), worthwhile[able]
        self._lowest = int(found.queue.max()) if len(found) else -1
        self._for: dict[tuple[object, ...], dict[str, list[tuple[_Group, int]]]] = {}
        self._on_nodes: dict[tuple[object, ...], dict[str, list[tuple[int, int, Victim, int]]]] = {}
        self._taken: set[int] = set()

    @cached_property
    def _groups(self) -> list[_Group]:
        """All of them; in most rounds, to know the lowest queue is enough."""
        return list(_divided(self._by_row, self._worthwhile))

    @cached_property
    def _left(self) -> Counter[int]:
        """How many runs of each queue nobody has taken."""
        left = Counter[int]()
        for group in self._groups:
            left[group.queue] += len(group.members)
        return left

    def below(self, ranked: RankedJob) -> bool:
        """Say whether any run is left that ranks so much lower that the job may preempt it."""
        if ranked.sample or self._preempts == "never":
            return False
        if self._preempts == "queue" and not self._classes:
            return self._lowest > ranked.queue
        return any(self._yields(group, ranked) for group in self._groups)

    def ripe_s(self, ranked: RankedJob) -> float:
        """Return when the next run below the job will have run long enough; infinite if none."""
        if ranked.sample or self._preempts == "never":
            return math.inf
        queue, ripe_s = self._unripe
        below = ripe_s[queue >= ranked.queue + (self._preempts == "queue")]
        return float(below.min()) if len(below) else math.inf

    def kinds(self, ranked: RankedJob) -> list[str]:
        """Return the kinds of which runs below the job have devices that it fits."""
        groups = self._groups_for(ranked.job.spec)
        return [kind for kind in groups if any(self._yields(group, ranked) for group, _ in groups[kind])]

    def choose(self, ranked: RankedJob, kind: str, lacking: int) -> VictimChoice | None:
        """Return the runs below the job with the least loss that have so many devices for it; None if all do not."""
        groups = self._groups_for(ranked.job.spec).get(kind, [])
        open_to = [(group, gain) for group, gain in groups if self._yields(group, ranked)]
        lent = [(group, gain) for group, gain in open_to if group.queue >= BORROWED] if not ranked.borrows else []
        if lent and (found := self._choose(ranked, lent, lacking)) is not None:
            return found
        return self._choose(ranked, open_to, lacking) if open_to else None

    def on_nodes(
        self, ranked: RankedJob, kind: str, nodes: Container[str], *, lent: bool
    ) -> Mapping[str, list[tuple[Victim, int]]]:
        """
        Return node → the runs below the job with devices there that fit it, and how many.

        With ``lent``, those alone that no quota covers. :mod:`penstock_scheduler.node_preemption` chooses among them.
        """
        spec = ranked.job.spec
        open_to = {
            group.number
            for group, _ in self._groups_for(spec).get(kind, [])
            if self._yields(group, ranked) and not (lent and group.queue < BORROWED)
        }
        if not open_to:
            return {}
        found: dict[str, list[tuple[Victim, int]]] = {}
        for node_id, runs in self._by_node(spec, kind).items():
            if node_id in nodes and (
                some := [
                    (victim, gain)
                    for number, row, victim, gain in runs
                    if number in open_to
                    and row not in self._taken
                    and (not self.by_position or _before(ranked, victim.run))
                ]
            ):
                found[node_id] = some
        return found

    def _by_node(self, spec: JobSpec, kind: str) -> Mapping[str, list[tuple[int, int, Victim, int]]]:
        """Return node → the runs on it that have devices for a job: group, row, run and how many; taken ones too."""
        demand = (kind, spec.kinds, spec.memory_bytes)
        found = self._on_nodes.get(demand)
        if found is None:
            found = self._on_nodes[demand] = {}
            for group, _ in self._groups_for(spec).get(kind, []):
                for row in group.members:
                    victim = self._by_row.victim(group.number, row)
                    gains = Counter(node_id for node_id, device in victim.run.devices if fits(spec, device))
                    for node_id, gain in gains.items():
                        found.setdefault(node_id, []).append((group.number, row, victim, gain))
        return found

    @property
    def by_position(self) -> bool:
        """Say whether the order of the jobs says which run goes first."""
        return self._preempts == "position"

    def _choose(self, ranked: RankedJob, open_to: Sequence[tuple[_Group, int]], lacking: int) -> VictimChoice | None:
        if self._preempts == "position":
            return _lowest_ranked((self._after(group, gain, ranked) for group, gain in open_to), lacking)
        if lacking == 1:
            first = min(group.head for group, _ in open_to)
            return VictimChoice(first.loss_gpu_s, (first.run,))
        return lightest(_heads(open_to, lacking), lacking)

    def _after(self, group: _Group, gain: int, ranked: RankedJob) -> Iterator[tuple[Victim, int]]:
        """Yield the runs of a group that the job comes before, the lowest first."""
        return ((victim, gain) for victim in takewhile(lambda victim: _before(ranked, victim.run), group.victims()))

    def take(self, choice: VictimChoice) -> None:
        """Take out the runs of a choice that was made just now."""
        left = self._left
        for run in choice.runs:
            number, row = self._by_row.rows[run.ranked.job_id]
            group = self._groups[number]
            group.members.remove(row)  # nearly always the first one
            self._taken.add(row)
            left[group.queue] -= 1
        self._lowest = max((queue for queue, runs in left.items() if runs), default=-1)

    def _yields(self, group: _Group, ranked: RankedJob) -> bool:
        """Say whether a group's first run makes way for the job, as far as ranks go."""
        if not group.members or self._preempts == "never" or not reaches(ranked, group.queue, self._classes):
            return False
        if not group.worthwhile and not crosses(ranked, group.queue):
            return False
        return group.queue > ranked.queue if self._preempts == "queue" else _before(ranked, group.head.run)

    def _groups_for(self, spec: JobSpec) -> dict[str, list[tuple[_Group, int]]]:
        """Return kind → groups that have devices for the job, and how many each run of them."""
        demand = (spec.kinds, spec.memory_bytes)
        found = self._for.get(demand)
        if found is None:
            found = self._for[demand] = {}
            for group in sorted(self._groups, key=lambda group: group.kind):
                if gain := group.gain(spec):
                    found.setdefault(group.kind, []).append((group, gain))
        return found


def _weigh(every: RunColumns, context: RoundContext) -> tuple[Floats, Bools, Bools, tuple[Floats, Floats]]:
    """
    Return what stopping each run would waste, whether it has lasted long enough, whether stopping it is worth it, and
    the queues and times of unripe ones.
    """
    if not len(every):
        return every.left_s, every.saves, every.saves, (every.queue, every.started_s)
    ripe_s = every.started_s + np.maximum(context.rules.min_run_s, every.overhead_s / context.rules.overhead_share)
    runs = every.started_s > 0
    unripe = runs & (ripe_s > context.now_s)
    unsaved_s = np.where(every.saves, 0.0, np.maximum(0.0, context.now_s - every.saved_s))
    waste_s = every.switch_s + unsaved_s
    lent = every.queue >= BORROWED  # what it runs on is not its own, whatever it loses
    ripe = runs & ~unripe
    return waste_s, ripe, ripe & (lent | (every.left_s > waste_s)), (every.queue[unripe], ripe_s[unripe])


def _divided(by_row: _RunsByRow, worthwhile: Bools) -> Iterator[_Group]:
    """Yield the groups, their runs in order."""
    found, loss_gpu_s = by_row.runs, by_row.loss_gpu_s
    if not len(found):
        return
    order = np.lexsort((-found.position, loss_gpu_s, ~worthwhile, found.group, found.queue))
    alike = _same(found.queue[order]) & _same(found.group[order]) & (worthwhile[order][1:] == worthwhile[order][:-1])
    equal = alike & _same(loss_gpu_s[order]) & _same(found.position[order])
    starts = [0, *(np.flatnonzero(~alike) + 1).tolist(), len(found)]
    in_order = _by_name(order.tolist(), np.flatnonzero(equal).tolist(), found)
    for number, (start, end) in enumerate(pairwise(starts)):
        queue = int(found.queue[in_order[start]])
        kind, shape = found.shapes[found.group[in_order[start]]]
        members = deque(in_order[start:end])
        yield _Group(number, queue, kind, shape, members, by_row, bool(worthwhile[members[0]]))


def _by_name(order: list[int], equal: Sequence[int], found: RunColumns) -> list[int]:
    """Put those in the order of their names that are equal otherwise; ``equal`` says where one equals the next."""
    for _, group in groupby(enumerate(equal), key=lambda pair: pair[1] - pair[0]):
        places = [place for _, place in group]
        start, end = places[0], places[-1] + 2
        order[start:end] = sorted(order[start:end], key=found.name)
    return order


def _same(sorted_values: Floats | Ints) -> Bools:
    """Say of each but the first whether it equals the one before it."""
    equal: Bools = sorted_values[1:] == sorted_values[:-1]
    return equal


def _before(ranked: RankedJob, run: PreemptibleRun) -> bool:
    return ranked[:2] < run.ranked[:2]


def _lowest_ranked(open_to: Iterable[Iterator[tuple[Victim, int]]], lacking: int) -> VictimChoice | None:
    """Return the lowest ranked runs that are enough, without those that a later, larger one makes superfluous."""
    chosen: list[tuple[Victim, int]] = []
    for victim, gain in merge(*open_to):
        if lacking <= 0:
            break
        chosen.append((victim, gain))
        lacking -= gain
    if lacking > 0:
        return None
    for victim, gain in reversed(chosen[:-1]):
        if lacking + gain <= 0:
            chosen.remove((victim, gain))
            lacking += gain
    return VictimChoice(0.0, tuple(victim.run for victim, _ in chosen))


def _heads(groups: Sequence[tuple[_Group, int]], lacking: int) -> Iterator[tuple[Victim, int]]:
    """Yield as many of the first runs of each group as could be of use."""
    for group, gain in groups:
        some = islice(group.victims(), math.ceil(lacking / min(gain, lacking)))
        yield from ((victim, gain) for victim in some)


def _useful(victims: Iterable[tuple[Victim, int]], lacking: int) -> list[tuple[Victim, int]]:
    """Return the runs among which the lightest choice is: of those with equal gains, as many of the lightest as do."""
    by_gain: defaultdict[int, list[Victim]] = defaultdict(list)
    for victim, gain in victims:
        by_gain[min(gain, lacking)].append(victim)
    return sorted(
        (victim, gain) for gain, found in by_gain.items() for victim in sorted(found)[: math.ceil(lacking / gain)]
    )


def lightest(victims: Iterable[tuple[Victim, int]], lacking: int) -> VictimChoice | None:
    """
    Return the runs that free so many devices with the least loss, then the fewest, then the first in order.

    Parameters
    ----------
    victims : iterable of (Victim, int)
        Runs, and how many devices each frees.
    lacking : int
        At least 1.

    Returns
    -------
    VictimChoice or None
        None if all of them free fewer.

    Notes
    -----
    Solves the covering knapsack exactly: O(C · lacking) for C candidates, of which there are at most
    lacking · (1 + 1/2 + … + 1/lacking); where all gains are equal, the first ones are the answer.
    """
    candidates = _useful(victims, lacking)
    if sum(gain for _, gain in candidates) < lacking:
        return None
    chosen = [victim for victim, _ in candidates]
    if len({gain for _, gain in candidates}) > 1:
        chosen = [candidates[at][0] for at in _covering(candidates, _cover(candidates, lacking), lacking)]
    return VictimChoice(sum(victim.loss_gpu_s for victim in chosen), tuple(victim.run for victim in chosen))


def lightest_for_each(victims: Sequence[tuple[Victim, int]], most: int) -> list[tuple[Victim, ...]]:
    """
    Return, for 1, 2, … and so on up to ``most`` devices, what :func:`lightest` chooses to free so many.

    Parameters
    ----------
    victims : sequence of (Victim, int)
        Runs, and how many devices each frees.
    most : int

    Returns
    -------
    list of tuple of Victim
        The choice for ``n`` devices is at ``n - 1``; the list ends where all of the runs free fewer.

    Notes
    -----
    One table for all of them: O(C · most) for C candidates.
    """
    most = min(most, sum(gain for _, gain in victims))
    if most < 1:
        return []
    candidates = _useful(victims, most)
    in_order = [victim for victim, _ in candidates]
    if len({gain for _, gain in candidates}) == 1:
        gain = candidates[0][1]
        return [tuple(in_order[: math.ceil(lacking / gain)]) for lacking in range(1, most + 1)]
    taken = _cover(candidates, most)
    return [tuple(in_order[at] for at in _covering(candidates, taken, lacking)) for lacking in range(1, most + 1)]


def _cover(candidates: Sequence[tuple[Victim, int]], most: int) -> Bools:
    """Return the table that says of each candidate whether the best choice among it and those before it has it."""
    loss, number = np.full(most + 1, np.inf), np.zeros(most + 1, dtype=np.int64)  # to free at least so many
    loss[0] = 0.0
    counts = np.arange(most + 1)
    taken = np.zeros((len(candidates), most + 1), dtype=np.bool_)
    for at, (victim, gain) in enumerate(candidates):
        before = np.maximum(0, counts - gain)
        with_it, fewer = loss[before] + victim.loss_gpu_s, number[before] + 1
        better = (with_it < loss) | ((with_it == loss) & (fewer < number))
        better[0] = False
        taken[at] = better
        loss, number = np.where(better, with_it, loss), np.where(better, fewer, number)
    return taken


def _covering(candidates: Sequence[tuple[Victim, int]], taken: Bools, lacking: int) -> list[int]:
    """Return which of the candidates free so many devices, given that all together are enough."""
    chosen, count = [], lacking
    for at in range(len(candidates) - 1, -1, -1):
        if taken[at, count]:
            chosen.append(at)
            count = max(0, count - candidates[at][1])
    return chosen[::-1]
