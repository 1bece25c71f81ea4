"""
The ranker's settings, rankings, state, apply, decide.

The ranker orders each pool's jobs by the rules that are set for the pool. It publishes a rank only when a job's
position changes by itself: the job is new, it crosses a threshold, it is promoted, or it waits again at another
position. Between events the decider sleeps until the next of these; it never polls.

:class:`RankerState` is the fold. It knows nothing of settings, so that one log gives one state whatever is set.
:class:`PoolRankings` stand beside the fold: what the settings make of it (when the next threshold is crossed, which
position is out of date). They follow the fold, are never saved, and are built anew after a snapshot is loaded.
:class:`PublishedPosition` is a job's position as the log has it. :class:`RankerSettings` come from the table
``[ranker]`` or from ``PENSTOCK_RANKER_…``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from penstock_bus import UNHURRIED_S, Decider, Decision, Proposal
from penstock_log import (
    TERMINAL,
    Event,
    Job,
    JobRank,
    JobsArchived,
    JobsRanked,
    JobState,
    JobTable,
    PolicySet,
    Setting,
    lifecycle,
    subjects,
)
from penstock_policies.job_lengths import Lengths, blend, read_prior
from penstock_policies.queue_policies import BY_QUEUE, NOTHING, DispatchMode, LengthKnowledge, QueuePolicy
from penstock_policies.ranking import Phase, PoolRanking, QueueLadder, RankMove
from penstock_scheduler.pool.pool_settings import OrderingSettings, overlaid

MOST_RANKS: Final = 2_000
"""Ranks of one fact: about 300 kB. More than these follow in the next."""


@dataclass
class RankerCache:
    """What the settings make of a ranker's state: kept beside it, never saved; None before its first use."""

    rankings: PoolRankings | None = None


class RankerState(msgspec.Struct, dict=True):
    """
    The jobs that are not over, and how long others were.

    Attributes
    ----------
    jobs : JobTable
        Open jobs, with samples of the profiler, which the ranker does not rank.
    places : dict of str to PublishedPosition
        Job id → its position as published.
    lengths : dict of str to Lengths
        Pool → GPU-times of its jobs that completed.
    live : dict of str to dict of str to Setting
        Pool → settings that operators have changed.
    modes : dict of str to DispatchMode
        Pool → the dispatch mode, as published.
    seq : int
        Sequence of the last fact that could change a rank.
    """

    jobs: JobTable = msgspec.field(default_factory=JobTable)
    places: dict[str, PublishedPosition] = msgspec.field(default_factory=dict)
    lengths: dict[str, Lengths] = msgspec.field(default_factory=dict)
    live: dict[str, dict[str, Setting]] = msgspec.field(default_factory=dict)
    modes: dict[str, DispatchMode] = msgspec.field(default_factory=dict)
    seq: int = 0

    @cached_property
    def cache(self) -> RankerCache:
        """The rankings that follow the state."""
        return RankerCache()


def decider(
    settings: RankerSettings | None = None, priors_gpu_s: Mapping[str, Sequence[float]] | None = None
) -> Decider[RankerState]:
    """
    Return the ranker as the shell, the simulator and tests run it.

    Parameters
    ----------
    settings : RankerSettings, optional
    priors_gpu_s : mapping of str to (P,) floats, GPU-seconds, rising, optional
        What the prior files that the settings name hold: :meth:`RankerSettings.priors`.
    """
    chosen = RankingRules(settings or RankerSettings(), priors_gpu_s or {})
    return Decider(
        name="ranker",
        state=RankerState,
        schema="ranker.12",
        apply=apply,
        decide=partial(decide, chosen=chosen),
        reads=lifecycle.OF_JOBS | {JobsRanked, JobsArchived, PolicySet},
        gather_s=lambda _: UNHURRIED_S,  # a job without a rank is placed as a new one
    )


def apply(state: RankerState, event: Event, seq: int) -> None:
    """Fold one fact in."""
    if isinstance(event, JobsRanked):
        _note_ranks(state, event)
        return
    if isinstance(event, PolicySet):
        _set_live(state, event, seq)
        return
    if isinstance(event, JobsArchived):
        _take_lengths(state, event, seq)
        return
    rankings = state.cache.rankings
    for job in state.jobs.apply(event):
        state.seq = seq
        if job.state in TERMINAL:
            _conclude(state, job, rankings)
        elif job.sample is None and rankings is not None:
            rankings.note(job)
    if state.jobs.sharers:
        _note_beside(state, event, seq)


def _note_beside(state: RankerState, event: Event, seq: int) -> None:
    """Note the jobs that have another share of a device because another job came or went there."""
    for job in lifecycle.beside(state.jobs, event):
        state.seq = seq
        if state.cache.rankings is not None:
            state.cache.rankings.note(job)


def decide(state: RankerState, now_s: float, chosen: RankingRules) -> Decision:
    """
    Return one :class:`JobsRanked` for each pool in which a job's place changes, and the time of the next change.

    Notes
    -----
    The decision looks only at the jobs whose position changes, and at one more in each pool.
    """
    proposals, wake_s = [], math.inf
    if state.cache.rankings is None:
        ranked = (job for job in state.jobs if job.sample is None)
        state.cache.rankings = PoolRankings(chosen, ranked, state.places, state.lengths, state.live)
    for pool, ranking in state.cache.rankings.rankings.items():
        ranks, next_s = _due(state, ranking, now_s)
        wake_s = min(wake_s, next_s)
        mode = ranking.ladder.mode
        if ranks or (mode != state.modes.get(pool, BY_QUEUE) and len(ranking)):
            fact = JobsRanked(
                at_s=now_s,
                pool=pool,
                ranks=ranks,
                backfills=mode.backfills,
                preempts=mode.preempts,
                order=mode.order,
            )
            proposals.append(Proposal(subject=subjects.rank(pool), facts=(fact,), cause=state.seq))
    return Decision(proposals=proposals, wake_at_s=None if math.isinf(wake_s) else wake_s)


def _due(state: RankerState, ranking: PoolRanking, now_s: float) -> tuple[tuple[JobRank, ...], float]:
    if (first_s := ranking.first_s) > now_s:  # as mostly
        return (), first_s
    moves = ranking.due(now_s, MOST_RANKS + 1)
    next_s = ranking.next_s(now_s) if len(moves) <= MOST_RANKS else now_s
    ordered = sorted(moves[:MOST_RANKS], key=lambda move: (move.queue, move.position, move.entered_s, move.job_id))
    order = ranking.ladder.order
    return tuple([rank_of(move, state.jobs[move.job_id], now_s, order) for move in ordered]), next_s


def _conclude(state: RankerState, job: Job, rankings: PoolRankings | None) -> None:
    state.places.pop(job.id, None)
    state.jobs.forget(job.id)
    if job.sample is not None:
        return
    if rankings is not None:
        rankings.remove(job)
    if job.state is JobState.COMPLETED:
        lengths = state.lengths.setdefault(job.spec.pool, Lengths())
        if lengths.add(job.id, job.attained_gpu_s(job.finished_s)) and rankings is not None:
            rankings.learn(job.spec.pool)


def _note_ranks(state: RankerState, event: JobsRanked) -> None:
    state.modes[event.pool] = DispatchMode(event.backfills, event.preempts, order=event.order)
    rankings = state.cache.rankings
    for rank in event.ranks:
        job = state.jobs.by_id.get(rank.job_id)
        if job is None or job.sample is not None:
            continue
        place = state.places[job.id] = published(rank, event.at_s, job, state.places.get(job.id))
        if rankings is not None:
            rankings.put(job, place)


def _take_lengths(state: RankerState, event: JobsArchived, seq: int) -> None:
    """Take what the archive says of lengths: a fold that has never seen the archived jobs then knows as much."""
    for pool, learnt in event.learnt.items():
        state.lengths[pool] = Lengths.of_fact(learnt)
        state.seq = seq
        if state.cache.rankings is not None:
            state.cache.rankings.learn(pool)


def _set_live(state: RankerState, event: PolicySet, seq: int) -> None:
    """Change a pool's settings: if they concern the order, every job gets a new position, by its service."""
    before = state.live.get(event.pool, {})
    state.live[event.pool] = event.settings
    if all(before.get(name, UNSET) == event.settings.get(name, UNSET) for name in OrderingSettings.__struct_fields__):
        return
    for job in state.jobs:
        if job.spec.pool == event.pool:
            state.places.pop(job.id, None)
    state.cache.rankings = None
    state.seq = seq


@dataclass(frozen=True)
class RankingRules:
    """
    The ranker's settings, and the contents of the files that they name.

    Attributes
    ----------
    priors_gpu_s : mapping of str to (P,) floats, GPU-seconds, rising
        Name of a prior file → what it holds.
    """

    settings: RankerSettings
    priors_gpu_s: Mapping[str, Sequence[float]]


class PoolRankings:
    """
    The rankings of all pools.

    Parameters
    ----------
    chosen : RankingRules
    jobs : iterable of Job
        Open jobs that are ranked.
    places : mapping of str to PublishedPosition
        Job id → its position as published.
    lengths : mapping of str to Lengths
        Pool → GPU-times of its completed jobs; read again whenever a job ends.
    live : mapping of str to mapping of str to Setting
        Pool → settings that operators have changed.
    """

    def __init__(
        self,
        chosen: RankingRules,
        jobs: Iterable[Job],
        places: Mapping[str, PublishedPosition],
        lengths: Mapping[str, Lengths],
        live: Mapping[str, Mapping[str, Setting]],
    ) -> None:
        self._chosen, self._lengths, self._live = chosen, lengths, live
        self.rankings: dict[str, PoolRanking] = {}
        for job in jobs:
            self.note(job)
            if job.id in places:
                self.put(job, places[job.id])

    def note(self, job: Job) -> None:
        """Note a job that came, started or stopped."""
        ranking = self._ranking(job.spec.pool)
        if job.id not in ranking:
            ranking.add(
                job.id,
                gpus=job.spec.gpus,
                submitted_s=job.submitted_s,
                length_s=job.spec.duration_s,
                least=job.spec.least_gpus,
            )
        phase, since_s = _phase(job)
        carried_s = job.carried_gpu_s / job.spec.gpus
        served_s = job.executed_s - job.forgone_s
        if job.share != 1.0:  # reckoned anew whenever somebody comes or goes beside it
            since_s = job.share_since_s
            served_s = job.served_by(since_s)
        ranking.note(
            job.id,
            phase,
            since_s,
            executed_s=served_s + carried_s,
            waited_s=job.waited_s,
            rate=job.share,
            gpus=job.spec.gpus,  # it may have been given another width
        )

    def put(self, job: Job, place: PublishedPosition) -> None:
        """Note a job's published position."""
        self._ranking(job.spec.pool).put(
            RankMove(job.id, place.queue, place.position, place.entered_s),
            executed_before_s=place.executed_before_s,
            waited_before_s=place.waited_before_s,
        )

    def remove(self, job: Job) -> None:
        """Drop a job that is over."""
        ranking = self._ranking(job.spec.pool)
        if job.id in ranking:
            ranking.remove(job.id)

    def learn(self, pool: str) -> None:
        """Note that the lengths of a pool's jobs have changed."""
        ranking, ladder = self._ranking(pool), self._ladder(pool)
        ranking.follow(ladder)
        ranking.learn(self._learnt(pool, ladder))

    def _ranking(self, pool: str) -> PoolRanking:
        found = self.rankings.get(pool)
        if found is None:
            ladder = self._ladder(pool)
            found = self.rankings[pool] = PoolRanking(ladder, self._learnt(pool, ladder))
            self.rankings = dict(sorted(self.rankings.items()))
        return found

    def _ladder(self, pool: str) -> QueueLadder:
        return self._ordering(pool).ladder(self._lengths_gpu_s(pool))

    def _learnt(self, pool: str, ladder: QueueLadder) -> LengthKnowledge:
        return LengthKnowledge(ladder.thresholds_gpu_s, self._lengths_gpu_s(pool)) if ladder.order.learns else NOTHING

    def _lengths_gpu_s(self, pool: str) -> Sequence[float]:
        edition = self._lengths[pool].edition_gpu_s if pool in self._lengths else []
        return blend(edition, self._chosen.priors_gpu_s.get(self._chosen.settings.of(pool).prior_file, ()))

    def _ordering(self, pool: str) -> OrderingSettings:
        return overlaid(self._chosen.settings.of(pool).ordering, self._live.get(pool, {}))


def _phase(job: Job) -> tuple[Phase, float]:
    if job.placement is not None:
        return ("running", job.started_s) if job.started_s else ("starting", 0.0)
    return "waiting", job.pending_since_s


class PublishedPosition(msgspec.Struct, frozen=True, kw_only=True):
    """
    A job's position as published.

    Attributes
    ----------
    entered_s : float
        When the job entered its queue.
    executed_before_s, waited_before_s : float
        How long the job had executed and waited when it was last promoted.
    """

    queue: int
    position: float
    entered_s: float
    executed_before_s: float = 0.0
    waited_before_s: float = 0.0


def published(rank: JobRank, at_s: float, job: Job, before: PublishedPosition | None) -> PublishedPosition:
    """Return the position that a rank gives to a job; a job that rises to a lower queue starts again from zero."""
    executed_s = before.executed_before_s if before is not None else 0.0
    waited_s = before.waited_before_s if before is not None else 0.0
    if before is not None and rank.queue < before.queue:
        executed_s, waited_s = rank.attained_gpu_s / job.spec.gpus, job.waited_by(at_s)
    return PublishedPosition(
        queue=rank.queue,
        position=rank.position,
        entered_s=rank.entered_s,
        executed_before_s=executed_s,
        waited_before_s=waited_s,
    )


def rank_of(move: RankMove, job: Job, now_s: float, order: QueuePolicy) -> JobRank:
    """Return a move as the rank in the log."""
    return JobRank(
        job_id=job.id,
        queue=move.queue,
        position=move.position,
        since_s=None if move.entered_s == move.position else move.entered_s,
        attained_gpu_s=job.attained_gpu_s(now_s),
        falls_per_s=order.falls_per_s(job.spec.gpus, job.spec.least_gpus),
    )


class PoolSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one pool, ``[ranker.pools.NAME]``; those that are left out are as for all pools."""

    order: str | UnsetType = UNSET
    thresholds_gpu_s: tuple[float, ...] | Literal["learnt"] | UnsetType = UNSET
    promote_knob: float | UnsetType | None = UNSET
    prior_file: str | UnsetType = UNSET


class RankerSettings(OrderingSettings, frozen=True, kw_only=True):
    """
    The order's parameters, as :class:`penstock_scheduler.pool.pool_settings.OrderingSettings` has them, and the
    ranker's own.

    Attributes
    ----------
    prior_file : str
        File with GPU-seconds that jobs are assumed to need while few have finished, one number a line, for
        ``2d-gittins``; each job that finishes replaces one of them. Empty: no assumption.
    pools : dict of str to PoolSettings
        Pools with settings of their own.
    """

    prior_file: str = ""
    pools: dict[str, PoolSettings] = {}

    def __post_init__(self) -> None:
        for rules in (self, *map(self.of, self.pools)):
            OrderingSettings.__post_init__(rules)
        self.priors()  # a file that cannot be read is better known now

    def of(self, pool: str) -> RankerSettings:
        """Return the settings of a pool."""
        own = self.pools.get(pool, PoolSettings())
        chosen = {name: value for name, value in msgspec.structs.asdict(own).items() if value is not UNSET}
        return msgspec.structs.replace(self, pools={}, **chosen) if self.pools else self

    @property
    def ordering(self) -> OrderingSettings:
        """The settings that operators can change at run time."""
        return OrderingSettings(**{name: getattr(self, name) for name in OrderingSettings.__struct_fields__})

    def priors(self) -> dict[str, Sequence[float]]:
        """
        Read all prior files; return the sorted numbers of each, by the file's name.

        Raises
        ------
        ValueError
            If one cannot be read, or does not hold a number a line.
        """
        named = {self.prior_file, *(self.of(pool).prior_file for pool in self.pools)}
        return {name: _prior_gpu_s(name) for name in sorted(named) if name}


def _prior_gpu_s(name: str) -> Sequence[float]:
    try:
        return read_prior(Path(name).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"prior_file {name} cannot be read: {error}; make it readable") from error
    except ValueError as error:
        raise ValueError(f"prior_file {name}: {error}") from error
