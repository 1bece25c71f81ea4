"""
The next decision about aggregation in a pool.

:func:`next_step` looks for one thing to do, the most urgent first: parts whose aggregator is gone get another; a run
that was measured is packed, or gets its own aggregators back; parts leave drained nodes; a run that waits is admitted
or refused; aggregators without a part are recycled; and now and then parts move, so that limits are kept and
aggregators become empty. After its facts have come back, it is asked again.

Which part shares which aggregator, :mod:`penstock_policies.aggregation` says. A run that is measured, or that has its
own aggregators for good, shares them with nobody. A part that is on its way is not moved again before it has come,
unless one of its two aggregators is gone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple

import msgspec

from penstock_cluster.nodes import Cluster
from penstock_log import (
    AggregationAssigned,
    AggregationRefused,
    AggregatorsAllocated,
    AggregatorsRecycled,
    AnyEvent,
    PartPlaced,
)
from penstock_log.aggregation_facts import Phase, node_of
from penstock_log.text import count, duration, listed
from penstock_policies.aggregation import (
    AggregatorLoad,
    Task,
    admits,
    assign,
    lost_more,
    rebalance,
    recycle,
)
from penstock_scheduler.aggregation.aggregation_table import AggregationRun, AggregationTable, refusal_of
from penstock_scheduler.aggregation.aggregator_choice import AggregatorRoom, choose, deal, nodes_of, room_of

HELD_SHARE: Final = 0.5
"""A run that got slower goes back where this part of what it lost is spent at its aggregators; else something else is
slower, such as its node, and its own aggregators would not help."""
MOST_NAMES: Final = 1_000
"""Aggregators in one fact."""


class AssignerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """
    How runs share aggregators: ``[assigner]`` in the settings file or ``PENSTOCK_ASSIGNER_…``.

    Attributes
    ----------
    loss_limit : float
        The share of its speed that a run may lose by sharing: none is packed where it would lose as much, and one that
        was measured to lose more gets aggregators of its own again. Above 0, below 1.
    rebalance_s : float
        Parts are moved by choice no more often than once in so many seconds, to keep limits and to empty aggregators.
    """

    loss_limit: float = 0.1
    rebalance_s: float = 30.0

    def __post_init__(self) -> None:
        """Refuse a limit that nobody or everybody keeps, and an interval that is none."""
        if not 0 < self.loss_limit < 1:
            raise ValueError(f"loss_limit is {self.loss_limit}; expected a share above 0 and below 1, such as 0.1")
        if not 0 <= self.rebalance_s < math.inf:
            raise ValueError(f"rebalance_s is {self.rebalance_s}; expected seconds, 0 or more, such as 30")


class AssignmentStep(NamedTuple):
    """Commits to make, each of one or more facts, and when to look again where nothing happens; infinite: never."""

    commits: tuple[tuple[AnyEvent, ...], ...]
    again_s: float = math.inf


def next_step(
    table: AggregationTable, cluster: Cluster, pool: str, now_s: float, settings: AssignerSettings
) -> AssignmentStep:
    """Return the most urgent thing to do in a pool, of all that can be done now."""
    look = PoolLook(table, cluster, pool, now_s, settings)
    for facts in look.urgent():
        return AssignmentStep((facts,))
    commits, again_s = look.balance()
    return AssignmentStep(commits, min(again_s, look.due_s, look.room.again_s if look.short else math.inf))


class PoolLook:
    """
    One look at a pool.

    Attributes
    ----------
    short : bool
        Whether something could not be done for want of free aggregators.
    due_s : float
        When the next aggregator is given up if it does not run by then; infinite where all do.
    """

    def __init__(
        self, table: AggregationTable, cluster: Cluster, pool: str, now_s: float, settings: AssignerSettings
    ) -> None:
        self._table, self._cluster, self._pool = table, cluster, pool
        self._now_s, self._settings = now_s, settings
        self.room: AggregatorRoom = room_of(table, cluster, pool, now_s)
        self._runs = [run for run in table.runs_in(pool) if not run.closed]
        self._holders = table.holders()
        self._sources = table.sources()
        self.short = False
        here = [(name, one) for name, one in table.aggregators.items() if one.pool == pool]
        self.due_s: float = min((one.due_s for name, one in here if name in self._holders), default=math.inf)

    def urgent(self) -> Iterator[tuple[AnyEvent, ...]]:
        """Yield what is not left for later, the most urgent first."""
        return filter(None, self._urgent())

    def _urgent(self) -> Iterator[tuple[AnyEvent, ...]]:
        yield self._give_up()
        there = [run for run in self._runs if run.open]
        yield from map(self._recover, there)
        resting = [run for run in there if not run.moving]
        yield from (self._judge(run) for run in resting if run.measured)
        yield from map(self._vacate, resting)
        if not self.short:  # else those that are under way come first
            yield from (self._admit(run) for run in self._runs if run.waits)
        yield self._empty()

    # --- admission

    def _admit(self, run: AggregationRun) -> tuple[AnyEvent, ...]:
        if reason := refusal_of(run) or self._never(run):
            return (
                AggregationRefused(
                    at_s=self._now_s, pool=self._pool, job_id=run.job_id, epoch=run.epoch, reason=reason
                ),
            )
        if not admits(self.room.total, run.servers):
            self.short = True
            return ()
        names = self._new(run, min(run.servers, len(run.parts)))
        places = deal(dict(enumerate(run.parts)), dict.fromkeys(names, 0))
        own = run.mode == "own"
        because = "it asks for aggregators of its own" if own else f"it is to be measured on {_of_its_own(names)}"
        return self._assigned(run, places, "own" if own else "profile", because, new=names)

    def _never(self, run: AggregationRun) -> str:
        if not self.room.most:
            return f"no node of pool {self._pool!r} runs aggregators: is the service aggregator there?"
        if run.servers > self.room.most:
            return (
                f"it asks for {count(run.servers, 'aggregator')}, and the nodes of pool {self._pool!r} run "
                f"{self.room.most} at most: ask for fewer servers"
            )
        return ""

    # --- recovery

    def _give_up(self) -> tuple[AnyEvent, ...]:
        """Return that aggregators are to end which have parts and should run by now."""
        overdue = [
            name
            for name, one in self._table.aggregators.items()
            if one.pool == self._pool and name in self._holders and one.is_overdue(self._now_s)
        ]
        return self._recycled(overdue) if overdue else ()

    def _recover(self, run: AggregationRun) -> tuple[AnyEvent, ...]:
        """Return another place for the parts of a run whose aggregator is gone, or the one that they come from."""
        lost = [one for one in run.placed if not self._reaches(run, one.aggregator)]
        orphans = [one for one in run.placed if one not in lost and self._is_orphan(run, one.part)]
        if not lost and not orphans:
            return ()
        dead = tuple(dict.fromkeys(one.aggregator for one in lost))
        because = self._why_gone(run, dead, orphans)
        new = self._new(run, len(dead)) if lost else ()
        places = self._packed_places(run, lost, new) if run.stage == "packed" else self._own_places(run, lost, new)
        if places is None and run.stage == "packed":
            return self._give_back(run, f"{because}; no shared aggregator has time for it")
        if places is None:
            self.short = True
            return ()
        joined = frozenset(one.part for one in (*lost, *orphans))
        return self._assigned(run, places, "recovered", because, new=new, joined=joined)

    def _own_places(self, run: AggregationRun, lost: Sequence[PartPlaced], new: Sequence[str]) -> dict[int, str] | None:
        """Return where the lost parts of a run with aggregators of its own go: to new ones, else to those it has."""
        loads = dict.fromkeys(new, 0) or {
            name: size for name, size in self._bytes_at(run).items() if self._reaches(run, name)
        }
        if lost and not loads:
            return None
        return deal({one.part: run.parts[one.part] for one in lost}, loads)

    def _packed_places(
        self, run: AggregationRun, lost: Sequence[PartPlaced], new: Sequence[str]
    ) -> dict[int, str] | None:
        """Return where the lost parts of a packed run go, by best fit; None where they fit nowhere."""
        tasks = [Task(run.job_id, one.part, run.cost_s(one.part)) for one in lost]
        there = self._shared(without=frozenset(one.part for one in lost), of=run)
        found = assign(tasks, self._alone_s, there, loss_limit=self._settings.loss_limit, new_ids=new)
        return {int(task.part): name for task, name in found.placements.items()} if found is not None else None

    def _is_orphan(self, run: AggregationRun, part: int) -> bool:
        """Return whether a part is on its way and cannot arrive."""
        source = run.sources[part]
        return bool(source) and (not self._reaches(run, source) or str(part) in run.uncopied)

    def _why_gone(self, run: AggregationRun, dead: Iterable[str], orphans: Iterable[PartPlaced]) -> str:
        sources = {run.sources[one.part]: run.uncopied.get(str(one.part), "") for one in orphans}
        reasons = {}
        for name in (*dead, *sources):
            found = self._table.aggregators.get(name)
            gone = found.gone if found is not None else "is not there any more"
            gone = gone or ("did not start" if found is not None and found.recycled and not found.started_s else "")
            reasons[name] = gone or run.avoids.get(name) or sources.get(name)
        return listed(f"{name} {why}" for name, why in reasons.items())

    def _reaches(self, run: AggregationRun, name: str) -> bool:
        return self._table.serves(name) and name not in run.avoids

    # --- measured runs

    def _judge(self, run: AggregationRun) -> tuple[AnyEvent, ...]:
        """Return what follows from a run's measurements, where something does."""
        if run.stage == "profile":
            return self._pack(run) if run.is_profiled else ()
        late = run.stage == "packed" and lost_more(run.alone_s, run.now_s, self._settings.loss_limit)
        if late and run.is_watched and not self._table.has_its_own(run) and self._is_by_sharing(run):
            share = 1 - run.alone_s / run.now_s
            times = f"{_short(run.now_s)} instead of {_short(run.alone_s)}"
            held = f"{_short(run.held_s)} of them at its aggregators instead of {_short(run.alone_held_s)}"
            return self._give_back(run, f"it was {100 * share:.0f} % slower over {run.steps} steps: {times}, {held}")
        return ()

    def _is_by_sharing(self, run: AggregationRun) -> bool:
        """Return whether its aggregators have as much of what it lost as to be the reason."""
        return run.held_s - run.alone_held_s >= HELD_SHARE * (run.now_s - run.alone_s)

    def _pack(self, run: AggregationRun) -> tuple[AnyEvent, ...]:
        own = [name for name in run.aggregators if self._table.serves(name)]
        tasks = [Task(run.job_id, part, run.cost_s(part)) for part in range(len(run.parts))]
        alone_s = {**self._alone_s, run.job_id: run.alone_s}
        found = assign(tasks, alone_s, self._shared(of=run), loss_limit=self._settings.loss_limit, new_ids=own)
        if found is None:
            because = "no aggregator keeps up with its parts beside others"
            return self._assigned(run, {}, "own", because)
        places = _renamed(run, {int(task.part): name for task, name in found.placements.items()}, own)
        names = tuple(dict.fromkeys(places.values()))
        others = sorted({job_id for name in names for job_id in self._holders.get(name, ())} - {run.job_id})
        beside = f"beside {listed(others[:8])}" if others else f"on {count(len(names), 'aggregator')}"
        because = f"it was measured, and fits {beside}"
        return self._assigned(run, places, "packed", because)

    def _give_back(self, run: AggregationRun, because: str) -> tuple[AnyEvent, ...]:
        """Return aggregators of a run's own, as many as it asked for; nothing while they are not free."""
        wanted = min(run.servers, len(run.parts))
        kept = [name for name in run.aggregators if self._is_alone(run, name)][:wanted]
        new = self._new(run, wanted - len(kept))
        if len(kept) + len(new) < wanted:
            self.short = True
            return ()
        quota = math.ceil(sum(run.parts) / wanted)
        loads, stays, goes = dict.fromkeys((*kept, *new), 0), {}, {}
        for one in run.placed:
            size = run.parts[one.part]
            if one.aggregator in kept and (not loads[one.aggregator] or loads[one.aggregator] + size <= quota):
                stays[one.part] = one.aggregator
                loads[one.aggregator] += size
            else:
                goes[one.part] = size
        joined = frozenset(
            one.part for one in run.placed if not self._reaches(run, one.aggregator) or self._is_orphan(run, one.part)
        )
        return self._assigned(run, {**stays, **deal(goes, loads)}, "own", because, new=new, joined=joined)

    def _is_alone(self, run: AggregationRun, name: str) -> bool:
        return self._reaches(run, name) and self._holders.get(name) == [run.job_id]

    # --- drained nodes

    def _vacate(self, run: AggregationRun) -> tuple[AnyEvent, ...]:
        """Return moves of a run's parts from drained nodes, so that these can go; nothing where there is no room."""
        leaving = [one for one in run.placed if self._is_drained(one.aggregator)]
        sources = tuple(dict.fromkeys(one.aggregator for one in leaving))
        new = self._new(run, len(sources)) if sources else ()
        if run.stage == "packed" and leaving:
            places = self._packed_places(run, leaving, new)
        elif leaving and len(new) == len(sources):
            places = {one.part: new[sources.index(one.aggregator)] for one in leaving}
        else:
            return ()
        if places is None:
            return ()
        drained = listed(f"node {node_id} {self._closing(node_id)}" for node_id in sorted(nodes_of(sources)))
        return self._assigned(run, places, "rebalanced", drained, new=new)

    def _is_drained(self, name: str) -> bool:
        node = self._cluster.nodes.get(node_of(name))
        return node is not None and not node.gone and not node.usable

    def _closing(self, node_id: str) -> str:
        node = self._cluster.nodes.get(node_id)
        return "is shutting down" if node is not None and node.leaving else "is drained"

    # --- aggregators without a part, and balance

    def _empty(self) -> tuple[AnyEvent, ...]:
        """Return that aggregators are to end which no part is on or on its way from."""
        idle = [
            name
            for name, one in self._table.aggregators.items()
            if one.pool == self._pool
            and (one.serves or (one.gone and not one.ended))
            and name not in self._holders
            and name not in self._sources
        ]
        return self._recycled(idle) if idle else ()

    def _recycled(self, names: Sequence[str]) -> tuple[AnyEvent, ...]:
        return (AggregatorsRecycled(at_s=self._now_s, pool=self._pool, aggregators=tuple(names[:MOST_NAMES])),)

    def balance(self) -> tuple[tuple[tuple[AnyEvent, ...], ...], float]:
        """Return moves that keep limits, else such as empty aggregators; and when to look again if it is too early."""
        packed = [run for run in self._runs if run.open and run.stage == "packed"]
        if not packed or any(run.moving for run in self._runs):
            return (), math.inf
        due_s = self._table.moved_s.get(self._pool, -math.inf) + self._settings.rebalance_s
        if self._now_s < due_s:
            return (), due_s
        limit = self._settings.loss_limit
        there = self._shared()
        new = choose(self._table, self.room, self.room.total, {node for run in packed for node in run.nodes})
        relieved = rebalance(there, self._alone_s, loss_limit=limit, new_ids=new)
        if relieved.unplaced:
            run = self._table.runs[relieved.unplaced[0].job]
            facts = self._give_back(run, "no shared aggregator has time for it any more")
            return ((facts,) if facts else ()), math.inf
        moves = relieved.moves or recycle(there, self._alone_s, loss_limit=limit)
        emptied = not relieved.moves
        by_job: dict[str, dict[int, str]] = {}
        for move in moves:
            if move.target not in self._table.runs[move.task.job].avoids:
                by_job.setdefault(move.task.job, {})[int(move.task.part)] = move.target
        commits = []
        left = set(relieved.allocated)
        for job_id, places in by_job.items():
            run = self._table.runs[job_id]
            sources = listed(dict.fromkeys(run.placed[part].aggregator for part in places))
            because = f"{sources} can be emptied" if emptied else f"{sources} had more to do than its cycle is long"
            mine = tuple(name for name in dict.fromkeys(places.values()) if name in left)
            left -= set(mine)
            commits.append(self._assigned(run, places, "rebalanced", because, new=mine))
        return tuple(commits), math.inf

    # --- what all of them need

    @cached_property
    def _alone_s(self) -> Mapping[str, float]:
        return {run.job_id: run.alone_s for run in self._runs if run.stage == "packed" and run.alone_s > 0}

    def _shared(
        self, *, without: frozenset[int] = frozenset(), of: AggregationRun | None = None
    ) -> dict[str, list[Task]]:
        """Return what shared aggregators hold, less these parts of a run, which has to reach them."""
        found: dict[str, list[Task]] = {}
        for run in self._runs:
            if run.stage != "packed":
                continue
            for one in run.placed:
                if run is of and one.part in without:
                    continue
                name = one.aggregator
                if self._table.serves(name) and not self._is_drained(name) and (of is None or name not in of.avoids):
                    task = Task(run.job_id, one.part, run.cost_s(one.part))
                    found.setdefault(one.aggregator, []).append(task)
        return dict(sorted(found.items()))

    def _bytes_at(self, run: AggregationRun) -> dict[str, int]:
        found: dict[str, int] = {}
        for one in run.placed:
            found[one.aggregator] = found.get(one.aggregator, 0) + run.parts[one.part]
        return found

    def _new(self, run: AggregationRun, wanted: int) -> tuple[str, ...]:
        return choose(self._table, self.room, wanted, run.nodes, nodes_of(run.avoids))

    def _assigned(
        self,
        run: AggregationRun,
        places: Mapping[int, str],
        phase: Phase,
        because: str,
        *,
        new: Sequence[str] = (),
        joined: frozenset[int] = frozenset(),
    ) -> tuple[AnyEvent, ...]:
        """
        Return the facts that put parts of a run elsewhere.

        Parameters
        ----------
        places : mapping of int to str
            Part → aggregator; those that it does not name stay.
        new : sequence of str
            Aggregators that are to be allocated, where a part is on them.
        joined : frozenset of int
            Parts that begin anew, be it where they are: nothing can be copied.
        """
        generation = run.generation + 1
        before = {one.part: one for one in run.placed}
        placed = []
        for part in range(len(run.parts)):
            was = before.get(part)
            name = places[part] if was is None else places.get(part, was.aggregator)
            if was is None or part in joined:
                placed.append(PartPlaced(part=part, aggregator=name, generation=generation))
            elif name == was.aggregator:
                placed.append(was)
            else:
                placed.append(
                    PartPlaced(part=part, aggregator=name, generation=generation, how="copy", before=was.aggregator)
                )
        fact = AggregationAssigned(
            at_s=self._now_s,
            pool=self._pool,
            job_id=run.job_id,
            epoch=run.epoch,
            generation=generation,
            phase=phase,
            placed=tuple(placed),
            iteration_s=run.alone_s,
            loss=self._loss(run, placed) if phase in {"packed", "rebalanced", "recovered"} else 0.0,
            because=because,
        )
        used = {one.aggregator for one in placed}
        allocated = tuple(name for name in new if name in used)
        if not allocated:
            return (fact,)
        ask = AggregatorsAllocated(at_s=self._now_s, pool=self._pool, aggregators=allocated, job_id=run.job_id)
        return ask, fact

    def _loss(self, run: AggregationRun, placed: Iterable[PartPlaced]) -> float:
        """Return the greatest loss of a run on the aggregators that it is to be on."""
        if not run.alone_s:
            return 0.0
        alone_s = {**self._alone_s, run.job_id: run.alone_s}
        there = self._shared(without=frozenset(range(len(run.parts))), of=run)
        worst = 0.0
        for name in {one.aggregator for one in placed}:
            load = AggregatorLoad((*there.get(name, ()), Task(run.job_id, -1, 0.0)), alone_s)
            worst = max(worst, load.loss_of(run.job_id))
        return round(worst, 6)


def _renamed(run: AggregationRun, places: Mapping[int, str], own: Sequence[str]) -> dict[int, str]:
    """Return the same division, with those of a run's own aggregators that the fewest bytes have to move to."""
    overlap: dict[tuple[str, str], int] = {}
    for part, name in places.items():
        if name in own:
            pair = (name, run.placed[part].aggregator)
            overlap[pair] = overlap.get(pair, 0) + run.parts[part]
    names: dict[str, str] = {}
    for (name, now), _ in sorted(overlap.items(), key=lambda pair: (-pair[1], pair[0])):
        if name not in names and now not in names.values():
            names[name] = now
    spare = [name for name in own if name not in names.values()]
    for name in dict.fromkeys(places.values()):
        if name in own and name not in names:
            names[name] = spare.pop(0)
    return {part: names.get(name, name) for part, name in places.items()}


def _of_its_own(names: Sequence[str]) -> str:
    return f"{count(len(names), 'aggregator')} of its own"


def _short(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else duration(seconds)
