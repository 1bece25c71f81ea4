"""
How many more pilots waiting jobs would run on.

:func:`wanted` asks the matcher's own round: it adds the nodes of more pilots to the pool, and looks at which jobs would
start then that would not without them. The nodes of pilots that are on their way are there in every round, so that no
pilot is submitted twice for one job. :func:`spare` takes pilots away that wait for their start, and asks the same.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Final, NamedTuple

import msgspec

from penstock_cluster.allocations import GUESSED_KIND, Allocation
from penstock_cluster.nodes import Cluster, Node
from penstock_log import Job, JobTable, Placement
from penstock_log.allocation_spec import LABEL_ALLOCATION, LABEL_PILOT
from penstock_log.text import count, listed
from penstock_scheduler import what_if
from penstock_scheduler.pool.pool_index import PoolIndex
from penstock_scheduler.pool.pool_view import PoolView
from penstock_scheduler.pool.scheduler_state import SchedulerState
from penstock_scheduler.round import decide_pool
from penstock_scheduler.round_types import RoundRules

NAMED: Final = 3
"""Jobs that a pilot's reason names."""


class PilotDemand(NamedTuple):
    """
    How many more pilots, and for which jobs, in words.

    Attributes
    ----------
    again_s : float
        When it may be otherwise although nothing happens: a job's time to start has come; infinite if nothing will.
    """

    pilots: int
    reason: str
    again_s: float = math.inf


NO_DEMAND: Final = PilotDemand(0, "")


def wanted(
    state: SchedulerState,
    jobs: JobTable,
    allocation: Allocation,
    others: Sequence[Allocation],
    *,
    refused: Mapping[str, Collection[str]],
    now_s: float,
    join_s: float,
    rules: RoundRules,
    most: int,
) -> PilotDemand:
    """
    Return how many more pilots of an allocation would let jobs start that wait now.

    Parameters
    ----------
    others : sequence of Allocation
        All other allocations of its pool, whose pilots may be on their way.
    refused : mapping of str to collection of str
        Allocation → the users whose jobs its pilots refuse.
    join_s : float
        As :meth:`penstock_cluster.allocations.Allocation.missing_nodes` has it.
    rules : RoundRules
        The pool's.
    most : int
        The most pilots that may be submitted now. A job that needs more than these gets so many to begin with, if the
        allocation may ever have enough.

    Notes
    -----
    The rounds of one moment, at most 2 log2(``most``) + 3 times, each on an index of the pool that is made for it:
    O(J log J) for J jobs of the pool. The number of pilots is doubled while more jobs start, or where a job waits that
    only several pilots hold, and then bisected. Where not even the
    number of an allocation's devices is known yet, one pilot is tried, with every kind that a waiting job names, and as
    many devices as the largest of them asks for.
    """
    waiting = [job for job in state.jobs_of(allocation.spec.pool, jobs) if job.placement is None and job.startable]
    if most < 1 or not waiting:
        return NO_DEMAND
    coming = [node for one in (allocation, *others) for node in one.missing_nodes(now_s, join_s)]
    trial = _Trial(state, jobs, allocation.spec.pool, refused=refused, now_s=now_s, rules=rules)
    before = trial.starts(coming)
    later_s = (job.not_before_s for job in waiting if job.not_before_s > now_s)  # a pool without nodes does not tell
    missing_s = (one.missing_until_s(now_s, join_s) for one in (allocation, *others))
    again_s = min(trial.again_s, *later_s, *missing_s)
    limit = most if allocation.has_known_size else min(most, 1 - len(allocation.coming))
    largest = max(job.spec.gpus for job in waiting)
    for shape in _shapes(allocation, waiting, largest):
        spreads = largest > sum(len(node.devices) for node in shape)
        ever = max(limit, allocation.spec.max_pilots - len(allocation.pilots)) if spreads and limit > 0 else limit
        pilots, started = _fewest(trial, coming, shape, before, ever, spreads=spreads)
        if pilots:
            return PilotDemand(min(pilots, limit), _because(started, before), again_s)
    return NO_DEMAND._replace(again_s=again_s)


def spare(
    state: SchedulerState,
    jobs: JobTable,
    allocation: Allocation,
    others: Sequence[Allocation],
    *,
    refused: Mapping[str, Collection[str]],
    now_s: float,
    join_s: float,
    rules: RoundRules,
) -> int:
    """
    Return how many pilots that wait for their start no waiting job would run on; parameters as for :func:`wanted`.

    The pilots that came last are spare first, and ``min_pilots`` never are. What is in the pool counts as if it were
    there for good: a job that would start without these pilots does not need them. While a gang waits that would start
    once the allocation has all of its pilots, none is spare.
    """
    waiting = [pilot for pilot in allocation.coming if not pilot.started_s]
    staying = sum(not pilot.is_withdrawn for pilot in allocation.pilots.values())
    most = min(len(waiting), staying - allocation.spec.min_pilots)
    if most < 1:
        return 0
    asking = [job for job in state.jobs_of(allocation.spec.pool, jobs) if job.placement is None and job.startable]
    if not asking:
        return most
    trial = _Trial(state, jobs, allocation.spec.pool, refused=refused, now_s=now_s, rules=rules)
    own = {pilot.id for pilot in waiting}
    coming = [node for one in (allocation, *others) for node in one.missing_nodes(now_s, join_s)]
    rest = [node for node in coming if node.labels.get(LABEL_PILOT) not in own]

    def starts(shape: Sequence[Node], pilots: int) -> int:
        names = [pilot.id for pilot in waiting[:pilots]] + [f"more-{n}" for n in range(pilots - len(waiting))]
        return len(trial.starts([*rest, *(node for name in names for node in _named(shape, name))]))

    needed, ever = len(waiting) - most, len(waiting) + allocation.spec.max_pilots - len(allocation.pilots)
    largest = max(job.spec.gpus for job in asking)
    for shape in _shapes(allocation, asking, largest):
        all_start, too_few, enough = starts(shape, len(waiting)), needed - 1, len(waiting)
        if largest > sum(len(node.devices) for node in shape) and starts(shape, ever) > all_start:
            return 0
        while enough - too_few > 1:
            pilots = (too_few + enough) // 2
            too_few, enough = (too_few, pilots) if starts(shape, pilots) >= all_start else (pilots, enough)
        needed = max(needed, enough)
    return len(waiting) - needed


def _fewest(
    trial: _Trial,
    coming: Sequence[Node],
    shape: Sequence[Node],
    before: Sequence[Placement],
    most: int,
    *,
    spreads: bool,
) -> tuple[int, Sequence[Placement]]:
    """
    Return the fewest pilots with which as many jobs start as with more, and what starts with them.

    Parameters
    ----------
    spreads : bool
        Whether a job waits that one pilot does not hold: then two may start it where one starts none.
    """

    def starts(pilots: int) -> Sequence[Placement]:
        return trial.starts([*coming, *(node for n in range(pilots) for node in _named(shape, f"more-{n}"))])

    too_few, enough, started, tried = 0, 0, before, 0
    while tried < most:
        last, tried = tried, min(most, max(1, 2 * tried))
        found = starts(tried)
        if len(found) > len(started):
            too_few, enough, started = last, tried, found
        elif not spreads:
            break
    count_of_all = len(started)
    while enough - too_few > 1:
        pilots = (too_few + enough) // 2
        found = starts(pilots)
        if len(found) < count_of_all:
            too_few = pilots
        else:
            enough, started = pilots, found
    return enough, started


def _shapes(allocation: Allocation, waiting: Sequence[Job], largest: int) -> Iterator[list[Node]]:
    """Yield what the nodes of a pilot may be like: as the last ones were, or of any kind and size that is asked for."""
    nodes = list(allocation.new_nodes("shape"))
    if not allocation.has_known_size:
        nodes = [_of_size(node, largest) for node in nodes]
    yield nodes
    if allocation.devices or allocation.spec.kinds:
        return
    for kind in sorted({kind for job in waiting for kind in job.spec.kinds} - {GUESSED_KIND}):
        yield [
            msgspec.structs.replace(node, devices=tuple(msgspec.structs.replace(d, kind=kind) for d in node.devices))
            for node in nodes
        ]


def _of_size(node: Node, devices: int) -> Node:
    first = node.devices[0]
    many = (msgspec.structs.replace(first, index=index) for index in range(max(devices, len(node.devices))))
    return msgspec.structs.replace(node, devices=tuple(many))


def _named(shape: Iterable[Node], name: str) -> Iterator[Node]:
    for number, node in enumerate(shape):
        yield msgspec.structs.replace(node, id=f"{name}/{number}")  # no real node has this name


def _because(started: Sequence[Placement], before: Sequence[Placement]) -> str:
    known = {placement.job_id for placement in before}
    fresh = [placement.job_id for placement in started if placement.job_id not in known] or ["others"]
    shown = fresh[:NAMED] + ([f"{len(fresh) - NAMED} more"] if len(fresh) > NAMED else [])
    return f"{count(len(fresh), 'job')} would start: {listed(shown)}"


class _Trial:
    """
    The rounds of one moment, of a pool with more nodes.

    Attributes
    ----------
    again_s : float
        When the last of them is to be decided again although nothing happens.
    """

    def __init__(
        self,
        state: SchedulerState,
        jobs: JobTable,
        pool: str,
        *,
        refused: Mapping[str, Collection[str]],
        now_s: float,
        rules: RoundRules,
    ) -> None:
        self._state, self._jobs, self._pool, self._refused, self._now_s = state, jobs, pool, refused, now_s
        self._rules = msgspec.structs.replace(rules, max_waits=0)
        self.again_s = math.inf

    def starts(self, more: Iterable[Node]) -> list[Placement]:
        """Return what starts in the next rounds if these nodes are there as well."""
        placed: list[Placement] = []
        with ExitStack() as stack:
            pool = self._view({node.id: node for node in more})
            for _ in range(what_if.MOST_ROUNDS):
                found, self.again_s = decide_pool(pool, self._now_s, self._rules)
                if found is None or not (found.placements or found.preemptions):
                    break
                placed += found.placements
                pool = stack.enter_context(what_if.decided(pool, found))
        return placed

    def _view(self, more: dict[str, Node]) -> PoolView:
        state, name, rules = self._state, self._pool, self._rules
        cluster = Cluster(nodes={**state.cluster.nodes, **more})
        topology = tuple(rules.topology)
        found = self._with_refusals(state.jobs_of(name, self._jobs), more.values())
        index = PoolIndex(name, cluster, state.ranks, found, topology, state.needs, rules.classes)
        view = state.pool(name, self._jobs, rules.topology, rules.classes)
        return msgspec.structs.replace(view, cluster=cluster, index=index)

    def _with_refusals(self, jobs: Sequence[Job], more: Iterable[Node]) -> Sequence[Job]:
        """Return the jobs with those of the added nodes that refuse their users, as refusals of real nodes are told."""
        nodes_of: defaultdict[str, list[str]] = defaultdict(list)
        for node in more:
            for user in self._refused.get(node.labels.get(LABEL_ALLOCATION, ""), ()):
                nodes_of[user].append(node.id)
        return [_refused_by(job, nodes_of[job.spec.user]) if job.spec.user in nodes_of else job for job in jobs]


def _refused_by(job: Job, nodes: Iterable[str]) -> Job:
    spec = msgspec.structs.replace(job.spec, refused_by=(*job.spec.refused_by, *nodes))
    return msgspec.structs.replace(job, spec=spec)
