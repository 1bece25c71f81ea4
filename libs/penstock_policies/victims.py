"""
Which runs make room: those with the lightest loss that free enough.

A run's *loss* is its devices times the seconds that preempting it wastes: stopping and resuming, as measured for its
workload, and what it has done since its last checkpoint and would not save. A run is a victim at all only if

* it has run for ``min_run_s``, and so long that the workload's measured overhead is at most ``overhead_share`` of the
  run: whatever arrives, a job advances. So a job is preempted at most once for each ``min_run_s`` of service that it
  received, and it loses at most ``overhead_share`` of this service to the measured overhead;
* the gain exceeds the cost: whoever takes its devices has them as much earlier as the run is expected to go on, which
  must be more than stopping and resuming take and the run would lose. Who is about to end anyway is waited for, and
  a long run without a checkpoint is not thrown away for a short one.

For one job the set of victims is the one with the least sum of losses, then of the fewest runs: a run is never chosen
where a lighter choice frees enough. Among equals the lowest ranked come first.

That is for orders in which jobs make way for lower queues. In one in which they make way for whatever comes before them
(:attr:`penstock_policies.order.Manner.preempts` is ``position``), the order itself says who goes: the lowest ranked.

Runs that no quota covers (:mod:`penstock_policies.quotas`) go first, where they are enough.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import NamedTuple

import numpy as np

from penstock_events import Device, JobSpec
from penstock_policies.cluster import fits
from penstock_policies.order import BORROWED, Outlook, Ranked, Running

Key = tuple[float, int, float]
"""Loss, then the lowest ranked first."""


class Victim(NamedTuple):
    """A run that may be preempted, and what that would waste, in device-seconds."""

    key: Key
    run: Running

    @property
    def loss_gpu_s(self) -> float:
        """Devices times seconds lost."""
        return self.key[0]


class Choice(NamedTuple):
    """Runs to be preempted for one job."""

    loss_gpu_s: float
    runs: tuple[Running, ...]


@dataclass
class _Group:
    """Runs of one queue with equal devices, the lightest loss first: whoever takes any takes the first ones."""

    queue: int
    kind: str
    shape: tuple[tuple[Device, int], ...]
    members: deque[Victim] = field(default_factory=deque)

    def gain(self, spec: JobSpec) -> int:
        """Return how many devices a job would get of each of them."""
        return sum(count for like, count in self.shape if fits(spec, like))


class Victims:
    """
    The runs that may be preempted in a round.

    Parameters
    ----------
    running : iterable of Running
        In any order; samples and runs that are stopping already left out.
    outlook : Outlook

    Notes
    -----
    O(P log P) in the number of runs. A choice looks at the first runs of each group of equal ones; taking them is O(1)
    each.
    """

    def __init__(self, running: Iterable[Running], outlook: Outlook) -> None:
        self._outlook, self._preempts = outlook, outlook.manner.preempts
        self._groups: dict[tuple[object, ...], _Group] = {}
        self._left: Counter[int] = Counter()  # by queue
        self._ripe_s: defaultdict[int, float] = defaultdict(lambda: math.inf)  # by queue: when the next one is ripe
        self._for: dict[tuple[object, ...], dict[str, list[tuple[_Group, int]]]] = {}
        self._of: dict[int, _Group] = {}  # by identity of the run
        for victim in sorted(self._worthwhile(running)):
            group = self._of[id(victim.run)] = self._group(victim.run)
            group.members.append(victim)
            self._left[group.queue] += 1
        self._lowest = max(self._left, default=-1)

    def below(self, ranked: Ranked) -> bool:
        """Say whether any run is left that ranks so much lower that the job may preempt it."""
        if ranked.sample or self._preempts == "never":
            return False
        if self._preempts == "queue":
            return self._lowest > ranked.queue
        return any(self._yields(group, ranked) for group in self._groups.values())

    def ripe_s(self, ranked: Ranked) -> float:
        """Return when the next run below the job will have run long enough; infinite if none."""
        if ranked.sample or self._preempts == "never":
            return math.inf
        first = ranked.queue + (self._preempts == "queue")
        return min((at_s for queue, at_s in self._ripe_s.items() if queue >= first), default=math.inf)

    def kinds(self, ranked: Ranked) -> list[str]:
        """Return the kinds of which runs below the job have devices that it fits."""
        groups = self._groups_for(ranked.job.spec)
        return [kind for kind in groups if any(self._yields(group, ranked) for group, _ in groups[kind])]

    def choose(self, ranked: Ranked, kind: str, lacking: int) -> Choice | None:
        """Return the runs below the job with the least loss that have so many devices for it; None if all do not."""
        groups = self._groups_for(ranked.job.spec).get(kind, [])
        open_to = [(group, gain) for group, gain in groups if self._yields(group, ranked)]
        lent = [(group, gain) for group, gain in open_to if group.queue >= BORROWED] if not ranked.borrows else []
        if lent and (found := self._choose(ranked, lent, lacking)) is not None:
            return found
        return self._choose(ranked, open_to, lacking) if open_to else None

    def _choose(self, ranked: Ranked, open_to: Sequence[tuple[_Group, int]], lacking: int) -> Choice | None:
        if self._preempts == "position":
            return _lowest_ranked(
                (
                    (v, gain)
                    for group, gain in open_to
                    for v in takewhile(lambda v: _before(ranked, v.run), group.members)
                ),
                lacking,
            )
        if lacking == 1:
            first = min(group.members[0] for group, _ in open_to)
            return Choice(first.loss_gpu_s, (first.run,))
        return _lightest(_candidates(open_to, lacking), lacking)

    def take(self, choice: Choice) -> None:
        """Take out the runs of a choice that was made just now."""
        taken = {id(run) for run in choice.runs}
        for run in choice.runs:
            group = self._of[id(run)]
            _drop(group.members, taken)
            self._left[group.queue] -= 1
        while self._lowest >= 0 and not self._left[self._lowest]:
            self._lowest -= 1

    def _yields(self, group: _Group, ranked: Ranked) -> bool:
        """Say whether a group's first run makes way for the job, as far as ranks go."""
        if not group.members or self._preempts == "never":
            return False
        return group.queue > ranked.queue if self._preempts == "queue" else _before(ranked, group.members[0].run)

    def _worthwhile(self, running: Iterable[Running]) -> Iterable[Victim]:
        outlook, rules = self._outlook, self._outlook.rules
        for run in running:
            job = run.ranked.job
            if not job.started_s:
                continue
            cost = outlook.cost(job)
            ripe_s = job.started_s + max(rules.min_run_s, cost.overhead_s / rules.overhead_share)
            if ripe_s > outlook.now_s:
                self._ripe_s[run.ranked.queue] = min(self._ripe_s[run.ranked.queue], ripe_s)
                continue
            waste_s = cost.switch_s + cost.lost_s(job, outlook.now_s)
            if run.left_s > waste_s:
                loss_gpu_s = 0.0 if self._preempts == "position" else len(run.devices) * waste_s
                yield Victim((loss_gpu_s, -run.ranked.queue, -run.ranked.position), run)

    def _group(self, run: Running) -> _Group:
        like = {(device.kind, device.memory_bytes, device.backend): device for _, device in run.devices}
        if len(like) == 1:
            counts = [(next(iter(like)), len(run.devices))]
        else:
            counts = sorted(Counter((d.kind, d.memory_bytes, d.backend) for _, d in run.devices).items())
        key = (run.ranked.queue, run.kind, *counts)
        group = self._groups.get(key)
        if group is None:
            shape = tuple((like[which], count) for which, count in counts)
            group = self._groups[key] = _Group(run.ranked.queue, run.kind, shape)
        return group

    def _groups_for(self, spec: JobSpec) -> dict[str, list[tuple[_Group, int]]]:
        """Return kind → groups that have devices for the job, and how many each run of them."""
        demand = (spec.kinds, spec.memory_bytes)
        found = self._for.get(demand)
        if found is None:
            found = self._for[demand] = {}
            for group in sorted(self._groups.values(), key=lambda group: group.kind):
                if gain := group.gain(spec):
                    found.setdefault(group.kind, []).append((group, gain))
        return found


def _drop(members: deque[Victim], taken: set[int]) -> None:
    """Take runs out: nearly always the first ones."""
    while members and id(members[0].run) in taken:
        members.popleft()
    for victim in [v for v in islice(members, len(taken)) if id(v.run) in taken] if len(taken) > 1 else ():
        members.remove(victim)


def _before(ranked: Ranked, run: Running) -> bool:
    return ranked[:2] < run.ranked[:2]


def _lowest_ranked(open_to: Iterable[tuple[Victim, int]], lacking: int) -> Choice | None:
    """Return the lowest ranked runs that are enough, without those that a later, larger one makes superfluous."""
    chosen: list[tuple[Victim, int]] = []
    for victim, gain in sorted(open_to):
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
    return Choice(0.0, tuple(victim.run for victim, _ in chosen))


def _candidates(groups: Sequence[tuple[_Group, int]], lacking: int) -> list[tuple[Victim, int]]:
    """Return the runs among which the lightest choice is: of those with equal gains, as many of the lightest as do."""
    by_gain: defaultdict[int, list[Victim]] = defaultdict(list)
    for group, gain in groups:
        useful = min(gain, lacking)
        by_gain[useful] += islice(group.members, math.ceil(lacking / useful))
    return sorted(
        (victim, gain) for gain, found in by_gain.items() for victim in sorted(found)[: math.ceil(lacking / gain)]
    )


def _lightest(candidates: Sequence[tuple[Victim, int]], lacking: int) -> Choice | None:
    """
    Solve the covering knapsack exactly: least loss, then fewest runs, then the first in order.

    Notes
    -----
    O(C · lacking) for C candidates, of which there are at most lacking · (1 + 1/2 + … + 1/lacking); where all gains are
    equal, the first ones are the answer.
    """
    if sum(gain for _, gain in candidates) < lacking:
        return None
    chosen = [victim for victim, _ in candidates]
    if len({gain for _, gain in candidates}) > 1:
        chosen = [candidates[at][0] for at in _cover(candidates, lacking)]
    return Choice(sum(victim.loss_gpu_s for victim in chosen), tuple(victim.run for victim in chosen))


def _cover(candidates: Sequence[tuple[Victim, int]], lacking: int) -> list[int]:
    """Return which of them, given that all together are enough."""
    loss, number = np.full(lacking + 1, np.inf), np.zeros(lacking + 1, dtype=np.int64)  # to free at least so many
    loss[0] = 0.0
    counts = np.arange(lacking + 1)
    taken = np.zeros((len(candidates), lacking + 1), dtype=np.bool_)
    for at, (victim, gain) in enumerate(candidates):
        before = np.maximum(0, counts - gain)
        with_it, fewer = loss[before] + victim.loss_gpu_s, number[before] + 1
        better = (with_it < loss) | ((with_it == loss) & (fewer < number))
        better[0] = False
        taken[at] = better
        loss, number = np.where(better, with_it, loss), np.where(better, fewer, number)
    chosen, count = [], lacking
    for at in range(len(candidates) - 1, -1, -1):
        if taken[at, count]:
            chosen.append(at)
            count = max(0, count - candidates[at][1])
    return chosen[::-1]
