"""
Trials and their devices.

:func:`group` turns the runs that a search wants into trials: how many devices each gets, and the job that each becomes
(:func:`job_spec`). :func:`demands` gives trials other widths: running ones, once nobody waits, and waiting ones that
find no room. :class:`GrantedDevices` says which jobs hold which devices, of this sweep and of others.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from penstock_cluster.nodes import Cluster, fits
from penstock_log import Demand, Job, JobSpec, JobState, JobTable, SweepSpec, Trial
from penstock_log.records import compose
from penstock_policies import waterfill
from penstock_policies.search import WantedRun
from penstock_policies.search.drivers import GROUP
from penstock_tuner.sweep_state import SweepState

ALONE: Final = "-a"
"""Ends the id of a job that runs a trial once more, alone."""
_ALONE: Final[dict[str, Any]] = {"sharing": "exclusive", "sharers": 0, "fraction": 1.0, "memory": None}
_LONGEST: Final = 49  # of the part of a job's id or name before "-t00000-r000-a"; 63 characters in all


class SweepDevices(msgspec.Struct, frozen=True):
    """
    The devices that a sweep could use.

    Attributes
    ----------
    all : int
        Devices on usable nodes that its trials fit.
    of_one_kind : int
        The most devices of one kind: a trial on several devices is a gang, and a gang has one kind.
    free : dict of str to int
        Kind → devices of it that no job holds.
    """

    all: int
    of_one_kind: int
    free: dict[str, int]

    @property
    def idle(self) -> int:
        """The number of devices that no job holds."""
        return sum(self.free.values())


def devices(spec: SweepSpec, cluster: Cluster, grants: GrantedDevices) -> SweepDevices:
    """Return the devices that the sweep could use at present."""
    fitting = [
        (node.id, device)
        for node in cluster.usable(spec.job.pool)
        for device in node.schedulable
        if fits(spec.job, device)
    ]
    by_kind = Counter(device.kind for _, device in fitting)
    free = Counter(device.kind for node_id, device in fitting if not grants.sharers(node_id, device.index))
    return SweepDevices(by_kind.total(), max(by_kind.values(), default=0), dict(free))


def group(sweep: SweepState, wanted: Sequence[WantedRun], available: SweepDevices, idle: int) -> tuple[Trial, ...]:
    """Return the trials of a group, :data:`GROUP` at most, with widths for so many idle devices."""
    some = wanted[:GROUP]
    widths = _widths(sweep, some, available, idle)
    return tuple(_trial(sweep, one, *width) for one, width in zip(some, widths, strict=True))


def alone(trial: Trial) -> Trial:
    """Return a trial as another job that has a device to itself."""
    return msgspec.structs.replace(trial, job_id=f"{trial.job_id}{ALONE}", packed=1)


def is_alone(trial: Trial) -> bool:
    """Return whether a job runs its trial once more, alone: it then shares its device with nobody."""
    return trial.job_id.endswith(ALONE)


def trial_id(sweep_id: str, number: int, rung: int = 0) -> str:
    """
    Return the id of a run of a sweep's trial; always the same, so that submitting it twice is submitting it once.

    Examples
    --------
    >>> trial_id("digits", 7), trial_id("digits", 7, rung=2)
    ('digits-t007', 'digits-t007-r2')
    """
    return f"{_shortened(sweep_id)}-{_label(number, rung)}"


def job_spec(sweep_id: str, spec: SweepSpec, trial: Trial) -> JobSpec:
    """Return the job that a trial runs as: the template, overlaid with the trial's point, budget and width."""
    budget = {spec.budget.param: trial.budget} if spec.budget is not None and trial.budget else {}
    packed = {"sharing": "lane", "share_with": "user", "sharers": trial.packed} if trial.packed > 1 else {}
    may_go_on = spec.budget is not None and trial.budget < spec.budget.most
    return msgspec.structs.replace(
        spec.job,
        id=trial.job_id,
        name=f"{spec.name[:_LONGEST]}-{_label(trial.number, trial.rung)}{ALONE * is_alone(trial)}",
        parent=sweep_id,
        gpus=trial.gpus,
        **(_ALONE if is_alone(trial) else packed),
        params={**spec.job.params, **trial.params, **budget},
        begins_from=trial.origin,
        keep_checkpoint=spec.job.keep_checkpoint or may_go_on,
    )


class TrialWidthBounds(msgspec.Struct, frozen=True):
    """
    The present bounds of the widths of a sweep's trials.

    Attributes
    ----------
    packing : int
        Most trials on one device (c).
    most : int
        Most devices for one trial (d).
    """

    packing: int
    most: int
    mechanisms: waterfill.Mechanisms

    @classmethod
    def of(cls, sweep: SweepState, available: SweepDevices) -> TrialWidthBounds:
        """Return the bounds that the sweep allows and that its trials have shown to be worth it."""
        spec, measures = sweep.spec, sweep.measures
        plain = spec.job.sharing == "exclusive"
        intra, dynamic = spec.intra and plain and spec.job.gpus == 1, spec.dynamic and plain and spec.filling == "water"
        return cls(
            packing=measures.packing(spec.packing),
            most=max(1, min(spec.max_gpus, available.of_one_kind, waterfill.widest(measures.beta))),
            mechanisms=compose(waterfill.Mechanisms, spec, intra=intra, dynamic=dynamic),
        )

    def form(self, spec: SweepSpec, width: float) -> tuple[int, int]:
        """Return a width as devices and trials on each of them; no run gets less than the template asks for."""
        return max(spec.job.gpus, int(width)), round(1.0 / width) if width < 1.0 else 1


def _widths(
    sweep: SweepState, wanted: Sequence[WantedRun], available: SweepDevices, idle: int
) -> list[tuple[int, int]]:
    """
    Return how many devices each run gets: its share of the work, by the speeds that the trials have shown.

    Before any trial has run, all are expected to take equally long for a unit of budget.
    """
    spec, bound = sweep.spec, TrialWidthBounds.of(sweep, available)
    match spec.filling:
        case "water" if available.all:
            widths = fill(sweep, bound, left_s(sweep, wanted), idle)
        case "fixed":
            widths = [float(min(bound.most, max(1, idle // len(wanted))))] * len(wanted)
        case _:
            widths = [1.0] * len(wanted)
    return [bound.form(spec, width) for width in widths]


def fill(sweep: SweepState, bound: TrialWidthBounds, h1_s: Sequence[float], idle: int) -> list[float]:
    """Return the widths that water-filling gives to trials with this work on idle devices."""
    measures = sweep.measures
    widths: list[float] = waterfill.fill(
        np.array(h1_s),
        idle,
        bound.packing,
        bound.most,
        alpha=measures.alpha,
        beta=measures.beta,
        mechanisms=bound.mechanisms,
    ).tolist()
    return widths


def left_s(sweep: SweepState, wanted: Sequence[WantedRun]) -> list[float]:
    """Return the seconds that each would take on one device; if nothing was measured, its units of budget."""
    typical_s = sweep.speeds.typical_s or 1.0
    found = []
    for one in wanted:
        before = sweep.past.runs[one.origin].budget if one.origin >= 0 else 0
        work_s = sweep.speeds.work_s(sweep.job_ids[one.origin]) if one.origin >= 0 else None
        found.append(max(1, one.budget - before) * (work_s or typical_s))
    return found


def _trial(sweep: SweepState, wanted: WantedRun, gpus: int, packed: int) -> Trial:
    job_id = trial_id(sweep.id, wanted.trial, wanted.rung)
    origin = sweep.job_ids[wanted.origin] if wanted.origin >= 0 else ""
    return compose(Trial, wanted, job_id=job_id, number=wanted.trial, gpus=gpus, packed=packed, origin=origin)


def _label(number: int, rung: int) -> str:
    return f"t{number:03d}" + (f"-r{rung}" if rung else "")


def _shortened(sweep_id: str) -> str:
    if len(sweep_id) <= _LONGEST:
        return sweep_id
    digest = hashlib.blake2b(sweep_id.encode(), digest_size=4).hexdigest()
    return f"{sweep_id[: _LONGEST - 9]}-{digest}"


_LATE: Final = 0.5
"""A trial that has taken as long as was expected of it, or longer, is expected to take half as long again."""
_LEAST_S: Final = 1e-3


class OpenTrial(NamedTuple):
    """A trial that is not over, its job, and the seconds that are left of it on one device."""

    trial: Trial
    job: Job
    left_s: float
    width: float


def demands(
    sweep: SweepState,
    jobs: JobTable,
    grants: GrantedDevices,
    available: SweepDevices,
    now_s: float,
    *,
    others_wait: bool,
) -> tuple[tuple[Demand, ...], float]:
    """
    Return new widths of trials, and when to ask again; no widths as long as any trial starts or stops.

    The time to ask again, although nothing happens, is when the running trials have taken twice as long and devices are
    idle: a trial that was expected to end soon may turn out to be a long one.

    Parameters
    ----------
    sweep : SweepState
    jobs : JobTable
        The jobs that are not over.
    available : SweepDevices
        The devices that the sweep could use.
    others_wait : bool
        Whether jobs outside of this sweep wait for devices: then idle devices are theirs.

    Notes
    -----
    The published method resizes running trials if nothing waits. Beyond it, waiting trials that are wider than the idle
    devices get new widths. A trial that has a device of its own because its neighbours have ended counts as that wide,
    and need not be moved.
    """
    bound = TrialWidthBounds.of(sweep, available)
    if not bound.mechanisms.dynamic or sweep.cancelled or not _settled(sweep, jobs) or sweep.speeds.typical_s is None:
        return (), math.inf
    open_trials = [_open_trial(sweep, trial, jobs[trial.job_id], grants, now_s) for trial in sweep.running.values()]
    waiting = [one for one in open_trials if one.job.state is JobState.PENDING]
    if not waiting and not sweep.measures.saves:
        return (), math.inf
    if waiting:
        return tuple(_refilled(sweep, bound, waiting, available)), math.inf
    free = _FreeDevices(available, grants, others_wait=others_wait)
    found, again_s = tuple(_resized(sweep, bound, open_trials, free)), math.inf
    if available.idle and not others_wait and not found:
        again_s = now_s + max(sweep.measures.overhead_s, min(now_s - one.job.started_s for one in open_trials))
    return found, again_s


def _settled(sweep: SweepState, jobs: JobTable) -> bool:
    """Return whether every trial runs or waits: none has to be submitted or reported, none starts or stops."""
    if sweep.ended or not sweep.running:
        return False
    found = [jobs.get(job_id) for job_id in sweep.running]
    return all(job is not None and _rests(job) for job in found)


def _rests(job: Job) -> bool:
    if job.state is JobState.PENDING:
        return job.startable
    return job.state is JobState.RUNNING and not job.stopping and job.demand is None and job.started_s > 0


def _open_trial(sweep: SweepState, trial: Trial, job: Job, grants: GrantedDevices, now_s: float) -> OpenTrial:
    width = float(job.spec.gpus)
    if job.spec.sharing == "lane" and (beside := grants.most_on(job.id)) > 1:
        width = 1.0 / beside
    origin = sweep.numbers.get(trial.origin, -1)
    wanted = WantedRun(trial=trial.number, params=trial.params, budget=trial.budget, origin=origin)
    (whole_s,) = left_s(sweep, [wanted])
    done_s = sweep.speeds.done_by(job.id, width, now_s)
    return OpenTrial(trial, job, max(_LEAST_S, whole_s - done_s if done_s < whole_s else _LATE * done_s), width)


# --- those that wait
def _refilled(
    sweep: SweepState, bound: TrialWidthBounds, waiting: Sequence[OpenTrial], available: SweepDevices
) -> Iterator[Demand]:
    """Yield the widths of trials that are too wide for what is idle, filled anew."""
    widest = max(available.free.values(), default=0)
    if not widest or all(one.job.spec.gpus <= widest for one in waiting):
        return
    widths = fill(sweep, bound, [one.left_s for one in waiting], available.idle)
    idle = "1 device is" if available.idle == 1 else f"{available.idle} devices are"
    for one, width in zip(waiting, widths, strict=True):
        if (form := bound.form(sweep.spec, min(width, widest)))[0] < one.job.spec.gpus:
            yield _demand(one, form, f"{idle} idle, and it waits for {one.job.spec.gpus}")


# --- those that run
class _FreeDevices:
    def __init__(self, available: SweepDevices, grants: GrantedDevices, *, others_wait: bool) -> None:
        self.grants = grants
        self.free: dict[str, int] = {} if others_wait else dict(available.free)

    @property
    def idle(self) -> int:
        return sum(self.free.values())

    def take(self, job: Job, gpus: int, alone: bool) -> bool:
        """Move a job to ``gpus`` devices of one kind, if they are free; its own count as free if it is alone there."""
        own = job.placement.kind if job.placement is not None else ""
        given = job.spec.gpus if alone else 0
        for kind in sorted(self.free.keys() | {own}, key=lambda kind: kind != own):
            if self.free.get(kind, 0) + given * (kind == own) >= gpus:
                self.free[own] = self.free.get(own, 0) + given
                self.free[kind] = self.free.get(kind, 0) - gpus
                return True
        return False


def _resized(
    sweep: SweepState, bound: TrialWidthBounds, open_trials: Sequence[OpenTrial], free: _FreeDevices
) -> Iterator[Demand]:
    measures = sweep.measures
    held = {at for one in open_trials for at in free.grants.of_job.get(one.job.id, ())}
    after = waterfill.resized(
        np.array([one.left_s for one in open_trials]),
        np.array([one.width for one in open_trials]),
        free.idle + len(held),
        bound.packing,
        bound.most,
        overhead_s=measures.overhead_s,
        alpha=measures.alpha,
        beta=measures.beta,
        mechanisms=bound.mechanisms,
    ).tolist()
    moved = {one.job.id: width for one, width in zip(open_trials, after, strict=True) if width != one.width}
    stays = _left_alone(open_trials, moved, free.grants)
    for one in sorted(open_trials, key=lambda one: (moved.get(one.job.id, 0.0) > one.width, -one.left_s)):
        width = moved.get(one.job.id, one.width)
        if width == one.width or one.job.id in stays:
            continue
        form = bound.form(sweep.spec, width)
        if form[1] > 1 and (one.job.spec.sharing == "lane" or is_alone(one.trial)):
            continue  # it shares its device already with whoever comes, or must not
        if free.take(one.job, form[0], alone=free.grants.most_on(one.job.id) == 1):
            yield _demand(one, form, _why(sweep, one, width))


def _left_alone(open_trials: Sequence[OpenTrial], moved: Mapping[str, float], grants: GrantedDevices) -> set[str]:
    """Return the trials that get a device alone because the others leave it: on each, the one with most work left."""
    neighbours: defaultdict[tuple[str, ...], list[OpenTrial]] = defaultdict(list)
    for one in open_trials:
        if one.width < 1.0:
            neighbours[grants.of_job[one.job.id]].append(one)
    stays = set()
    for at, ones in neighbours.items():
        if len(ones) == grants.jobs_on[at[0]] and all(moved.get(one.job.id, 0.0) >= 1.0 for one in ones):
            best = max(ones, key=lambda one: (moved[one.job.id] == 1.0, one.left_s))
            if moved[best.job.id] == 1.0:
                stays.add(best.job.id)
    return stays


def _why(sweep: SweepState, one: OpenTrial, width: float) -> str:
    measures = sweep.measures
    now_s = one.left_s * measures.factor(one.width)
    then_s = one.left_s * measures.factor(width) + measures.overhead_s
    change = f"{_width_text(width)} instead of {_width_text(one.width)}"
    return f"{change}: {then_s:.1f} s left, moving included, instead of {now_s:.1f} s"


def _width_text(width: float) -> str:
    return f"1/{round(1 / width)} of a device" if width < 1 else f"{width:g} device{'s' if width > 1 else ''}"


def _demand(one: OpenTrial, form: tuple[int, int], reason: str) -> Demand:
    job, (gpus, packed) = one.job, form
    if packed > 1 and not is_alone(one.trial):
        return Demand(job_id=job.id, epoch=job.epoch, gpus=gpus, sharing="lane", sharers=packed, reason=reason)
    return Demand(job_id=job.id, epoch=job.epoch, gpus=gpus, reason=reason)


class GrantedDevices(msgspec.Struct):
    """
    The devices that jobs hold.

    Attributes
    ----------
    of_job : dict of str to tuple of str
        Job → its devices, as ``node/index``.
    jobs_on : dict of str to int
        Device → how many jobs hold it.

    Examples
    --------
    >>> from penstock_log import JobSpec, Placement, Slot
    >>> job = Job(id="j", spec=JobSpec(name="j", command=("true",)), submitted_s=0.0)
    >>> job.placement = Placement(job_id="j", epoch=1, kind="fast", slots=(Slot(node_id="n1", devices=(0, 1)),))
    >>> job.open_nodes = {"n1"}
    >>> grants = GrantedDevices()
    >>> grants.note(job), grants.sharers("n1", 1), grants.sharers("n1", 2)
    (True, 1, 0)
    """

    of_job: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    jobs_on: dict[str, int] = msgspec.field(default_factory=dict)

    def sharers(self, node_id: str, index: int) -> int:
        """Return how many jobs hold a device."""
        return self.jobs_on.get(f"{node_id}/{index}", 0)

    def most_on(self, job_id: str) -> int:
        """Return how many jobs there are on the fullest device of a job; 0 where it has none."""
        return max((self.jobs_on[at] for at in self.of_job.get(job_id, ())), default=0)

    def note(self, job: Job) -> bool:
        """Note a job that a fact was about; return whether its devices have changed."""
        before, now = self.of_job.get(job.id, ()), tuple(_devices(job))
        if before == now:
            return False
        for at in before:
            self.jobs_on[at] -= 1
            if not self.jobs_on[at]:
                del self.jobs_on[at]
        for at in now:
            self.jobs_on[at] = self.jobs_on.get(at, 0) + 1
        if now:
            self.of_job[job.id] = now
        else:
            del self.of_job[job.id]
        return True


def _devices(job: Job) -> Iterable[str]:
    slots = job.placement.slots if job.placement is not None else ()
    return (f"{slot.node_id}/{index}" for slot in slots if slot.node_id in job.open_nodes for index in slot.devices)
