"""
Co-preemption: which runs that share devices make way together.

A shared device falls free when all of its jobs have stopped, and a gang of lanes ties its devices together. So for a
job that wants a device to itself, all runs that are tied to each other count as one run (:func:`as_one`): its queue is
the first of their queues, and its loss is the sum of their losses. :func:`beside` puts these sets among the other runs
that may be preempted.

A job that wants to join others on a device needs less: only some of them make way, as few and as light as will do, and
never all (:class:`PreemptibleSharingRuns`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np

from penstock_log import JobState
from penstock_policies import job_lengths
from penstock_policies.job_lengths import FinishedService
from penstock_scheduler.placement import Located
from penstock_scheduler.pool.run_columns import Bools, RunColumns, shape_of
from penstock_scheduler.priority_classes import crosses, reaches
from penstock_scheduler.round_types import BORROWED, PreemptibleRun, RankedJob, RoundContext
from penstock_scheduler.sharing.shared_devices import At, SharedDevice, SharingDemand, key_of


class SharingRun(NamedTuple):
    """
    A run that shares its devices, as preemption sees it.

    Attributes
    ----------
    queue : int
        Its queue; with quotas, behind all others if no quota covers it.
    loss_gpu_s : float
        Device-seconds that preempting it wastes, its share of the devices taken into account.
    left_s : float
        In how many seconds it is expected to end.
    overhead_s : float
        What preempting a run of its workload costs, as measured.
    """

    run: PreemptibleRun
    queue: int
    loss_gpu_s: float
    left_s: float
    overhead_s: float

    @property
    def job_id(self) -> str:
        """Whose run it is."""
        return self.run.ranked.job_id

    @property
    def stoppable(self) -> bool:
        """Whether it runs, and may be asked to stop."""
        job = self.run.ranked.job
        return job.state is JobState.RUNNING and not job.stopping and job.started_s > 0

    def yields_to(self, ranked: RankedJob, context: RoundContext) -> bool:
        """Say whether the run makes way for a job now, by the same rules as runs that share nothing."""
        if not self.comes_after(ranked, context) or self.ripe_s(context) > context.now_s:
            return False
        waste_s = self.loss_gpu_s / max(1, len(self.run.devices))
        return self.queue >= BORROWED or crosses(ranked, self.queue) or self.left_s > waste_s

    def comes_after(self, ranked: RankedJob, context: RoundContext) -> bool:
        """Say whether the run ranks so much lower than a job that it may have to make way for it."""
        preempts, own = context.mode.preempts, (self.queue, self.run.ranked.position)
        if ranked.sample or preempts == "never":
            return False
        lower = ranked.queue < self.queue or (preempts == "position" and ranked[:2] < own)
        return lower and self.stoppable and reaches(ranked, self.queue, context.rules.classes)

    def ripe_s(self, context: RoundContext) -> float:
        """Return when the run will have lasted long enough to be preempted."""
        least_s = max(context.rules.min_run_s, self.overhead_s / context.rules.overhead_share)
        return self.run.ranked.job.started_s + least_s

    @property
    def key(self) -> tuple[float, int, float]:
        """The lightest loss first, then the lowest ranked."""
        return self.loss_gpu_s, -self.queue, -self.run.ranked.position


def sharing_runs(
    runs: Sequence[PreemptibleRun],
    context: RoundContext,
    finished_s: Sequence[float] | FinishedService,
    borrowers: Collection[str],
) -> dict[str, SharingRun]:
    """
    Return what is known of the runs that share devices, by job.

    Parameters
    ----------
    finished_s : floats, or FinishedService
        The service that finished jobs of the pool needed, seconds.
    borrowers : collection of str
        Jobs that no quota covers.
    """
    costs = [context.cost(run.ranked.job) for run in runs]
    left_s = _left_s(runs, context, finished_s)
    return {
        run.ranked.job_id: SharingRun(
            run,
            run.ranked.queue + BORROWED * (run.ranked.job_id in borrowers),
            len(run.devices) * run.ranked.job.share * (cost.switch_s + cost.lost_s(run.ranked.job, context.now_s)),
            left,
            cost.overhead_s,
        )
        for run, cost, left in zip(runs, costs, left_s, strict=True)
    }


def tied(runs: Iterable[PreemptibleRun]) -> dict[str, tuple[str, ...]]:
    """
    Return the runs that are tied to each other by devices that they share: name of their first device → jobs.

    The caller leaves out runs that are stopping: no other run has to stop for their sake.

    Examples
    --------
    >>> from penstock_log import Device, Job, JobSpec
    >>> def run(name, *indices):
    ...     job = Job(id=name, spec=JobSpec(name=name, command=("true",)), submitted_s=0.0)
    ...     gpus = [Device(index=i, kind="fast", memory_bytes=8, backend="emulated") for i in indices]
    ...     return PreemptibleRun(RankedJob(0, 0.0, name, job), "fast", tuple(("n1", gpu) for gpu in gpus))
    >>> tied([run("a", 0), run("b", 2), run("g", 1, 2), run("c", 1)])
    {'n1/0': ('a',), 'n1/1': ('b', 'c', 'g')}
    """
    of_device: dict[tuple[str, int], list[str]] = {}
    devices = {run.ranked.job_id: sorted((node_id, device.index) for node_id, device in run.devices) for run in runs}
    for job_id, held in devices.items():
        for at in held:
            of_device.setdefault(at, []).append(job_id)
    found: dict[str, tuple[str, ...]] = {}
    seen: set[str] = set()
    for at in sorted(of_device):
        if of_device[at][0] not in seen:
            jobs = _reached(of_device[at][0], devices, of_device)
            seen |= jobs
            found[f"{at[0]}/{at[1]}"] = tuple(sorted(jobs))
    return found


def _reached(
    first: str, devices: Mapping[str, Sequence[tuple[str, int]]], of_device: Mapping[tuple[str, int], Sequence[str]]
) -> set[str]:
    found, ahead = {first}, [first]
    while ahead:
        beside = {job_id for at in devices[ahead.pop()] for job_id in of_device[at]} - found
        found |= beside
        ahead += beside
    return found


def as_one(name: str, members: Sequence[SharingRun]) -> PreemptibleRun:
    """Return runs that are tied to each other as one run, named after one of their devices."""
    first = min(members, key=lambda member: (member.queue, member.run.ranked.position))
    devices: dict[tuple[str, int], Located] = {
        (node_id, device.index): (node_id, device) for member in members for node_id, device in member.run.devices
    }
    ranked = RankedJob(first.queue, first.run.ranked.position, name, first.run.ranked.job)
    in_order = tuple(devices[at] for at in sorted(devices))
    return PreemptibleRun(ranked, first.run.kind, in_order, max(member.left_s for member in members))


def beside(
    every: RunColumns, stoppable: Bools, ties: Mapping[str, Sequence[str]], known: Mapping[str, SharingRun]
) -> tuple[RunColumns, Bools]:
    """
    Return the runs that may be preempted, those that share devices among them; tied runs are one.

    Parameters
    ----------
    known : mapping of str to SharingRun
        The sharing runs that may be preempted at all. Of runs that are tied, either all are among them or none counts.
    """
    able = {job_id for job_id, member in known.items() if member.stoppable}
    groups = ((name, [known[job_id] for job_id in jobs]) for name, jobs in ties.items() if able.issuperset(jobs))
    found = [(as_one(name, group), group) for name, group in groups]
    if not found:
        return every, stoppable
    return _appended(every, found), np.append(stoppable, np.ones(len(found), dtype=np.bool_))


def _appended(every: RunColumns, found: Sequence[tuple[PreemptibleRun, Sequence[SharingRun]]]) -> RunColumns:
    shapes = list(every.shapes)
    kinds = [(run.kind, shape_of(run)) for run, _ in found]
    shapes += [kind for kind in dict.fromkeys(kinds) if kind not in every.shapes]
    started_s = [max(member.run.ranked.job.started_s for member in members) for _, members in found]
    lost_s = [sum(member.loss_gpu_s for member in members) / max(1, len(run.devices)) for run, members in found]
    return msgspec.structs.replace(
        every,
        queue=np.append(every.queue, [float(run.ranked.queue) for run, _ in found]),
        position=np.append(every.position, [run.ranked.position for run, _ in found]),
        started_s=np.append(every.started_s, started_s),
        saved_s=np.append(every.saved_s, started_s),
        devices=np.append(every.devices, [float(len(run.devices)) for run, _ in found]),
        left_s=np.append(every.left_s, [run.left_s for run, _ in found]),
        overhead_s=np.append(every.overhead_s, [max(s.overhead_s for s in members) for _, members in found]),
        switch_s=np.append(every.switch_s, lost_s),
        saves=np.append(every.saves, np.ones(len(found), dtype=np.bool_)),  # what is lost is reckoned already
        group=np.append(every.group, np.array([shapes.index(kind) for kind in kinds], dtype=np.int64)),
        shapes=shapes,
        rows=np.append(every.rows, len(every.all) + np.arange(len(found))),
        all=[*every.all, *(run for run, _ in found)],
    )


def _left_s(
    runs: Sequence[PreemptibleRun], context: RoundContext, finished_s: Sequence[float] | FinishedService
) -> list[float]:
    """Return in how many seconds each run is expected to end, if its share stays as it is."""
    jobs = [run.ranked.job for run in runs]
    speeds = np.array([context.speed(run.ranked.job, run.kind) for run in runs], dtype=np.float64)
    had_s = np.array([job.served_by(context.now_s) for job in jobs]) * speeds
    unknown_s = job_lengths.remaining_s(had_s, finished_s, context.prior_s)
    declared_s = np.array([job.spec.duration_s for job in jobs], dtype=np.float64)
    share = np.array([job.share for job in jobs], dtype=np.float64)
    found: list[float] = (job_lengths.left_s(declared_s, had_s, unknown_s) / (speeds * share)).tolist()
    return found


Rank = tuple[float | str, ...]
"""Of jobs for which the same runs make way."""


class CoPreemption(NamedTuple):
    """Runs that make room together for another job on a device that they share."""

    loss_gpu_s: float
    number: int
    slowness: float
    at: At
    runs: tuple[SharingRun, ...]


@dataclass
class _Yielding:
    """
    The sharing runs that make way for jobs of one rank.

    Attributes
    ----------
    on : dict of At to list of SharingRun
        Device → its runs that make way, the lightest first.
    in_order : list of At
        The devices, by the lightest run that each had at first.
    left : dict of At to (SharedDevice, SharedDevice)
        Device → its state when it was looked at, and its state without the runs that make way.
    """

    on: dict[At, list[SharingRun]]
    in_order: list[At]
    left: dict[At, tuple[SharedDevice, SharedDevice]] = field(default_factory=dict)


class PreemptibleSharingRuns:
    """
    The sharing runs that may be asked to make room in a round, by device.

    Parameters
    ----------
    sharing_runs : callable
        Returns what preempting each of them would cost; called at most once.
    stopping : collection of str
        Jobs that are asked to stop; it may grow.

    Notes
    -----
    O(S log S) for the first job of each rank for which S runs make way, and O(1) for each device after that.
    """

    def __init__(self, sharing_runs: Callable[[], Mapping[str, SharingRun]], stopping: Collection[str]) -> None:
        self._sharing_runs, self._stopping = sharing_runs, stopping
        self._of_rank: dict[Rank, _Yielding] = {}

    def devices(self, ranked: RankedJob, context: RoundContext) -> list[At]:
        """Return the devices on which some run makes way for a job, in the order of the lightest run on each."""
        return self._yielding(ranked, context).in_order

    def could(self, ranked: RankedJob, context: RoundContext, shared: SharedDevice, demand: SharingDemand) -> bool:
        """Say whether a device would have room for a job without all runs that make way for it there."""
        yielding, at = self._yielding(ranked, context), key_of(shared.at)
        if at not in yielding.on:
            return False
        known = yielding.left.get(at)
        if known is None or known[0] is not shared:
            gone = {*self._stopping, *(member.job_id for member in yielding.on[at])}
            known = yielding.left[at] = shared, shared.without(shared.occupants.keys() & gone)
        left = known[1]
        return left.holds(demand) if left.occupants else len(yielding.on[at]) > 1  # some of them may be enough

    def on(self, ranked: RankedJob, context: RoundContext, at: At) -> Sequence[SharingRun]:
        """Return the runs that make way for a job on a device, the lightest first."""
        return self._yielding(ranked, context).on.get(at, ())

    def stop(self, runs: Sequence[SharingRun]) -> None:
        """Note that some runs have been asked to stop: they make way for no other job."""
        gone = {member.job_id for member in runs}
        for yielding in self._of_rank.values():
            for at in {key_of(located) for member in runs for located in member.run.devices}:
                if left := [member for member in yielding.on.pop(at, ()) if member.job_id not in gone]:
                    yielding.on[at] = left

    def _yielding(self, ranked: RankedJob, context: RoundContext) -> _Yielding:
        order = ranked[:1] if context.mode.preempts == "queue" else ranked[:2]
        rank: Rank = (ranked.job.spec.priority_class, *order)
        if rank in self._of_rank:
            return self._of_rank[rank]
        every = (member for job_id, member in self._sharing_runs().items() if job_id not in self._stopping)
        those = (member for member in every if member.yields_to(ranked, context))
        on: defaultdict[At, list[SharingRun]] = defaultdict(list)
        for member in sorted(those, key=lambda member: (member.key, member.job_id)):
            for located in member.run.devices:
                on[key_of(located)].append(member)
        found = _Yielding(dict(on), sorted(on, key=lambda at: (on[at][0].key, at)))
        self._of_rank[rank] = found
        return found


def runs_to_preempt(
    shared: SharedDevice, demand: SharingDemand, yielding: Sequence[SharingRun], stopping: Collection[str]
) -> tuple[SharingRun, ...]:
    """Return the runs that would have to leave a device for a job; none if that is too little or would be all."""
    gone, chosen = {job_id for job_id in shared.occupants if job_id in stopping}, list[SharingRun]()
    for member in yielding:
        chosen.append(member)
        gone.add(member.job_id)
        left = shared.without(gone)
        if not left.occupants:
            return ()
        if left.holds(demand):
            break
    else:
        return ()
    for member in chosen[:-1]:  # the lighter ones may have become superfluous
        if shared.without(gone - {member.job_id}).holds(demand):
            gone.discard(member.job_id)
    return tuple(member for member in chosen if member.job_id in gone)
