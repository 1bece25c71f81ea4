"""
One job's life in sentences.

A :class:`Timeline` turns the facts of the log, in order, into sentences about one job. :func:`own_subjects` and
:func:`shared_subjects` say where in the log these facts are. :func:`sentence` tells what happens to runs that share
their devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, assert_never

import msgspec

from penstock_bus import Delivery
from penstock_gateway import idle_runs, job_sizes
from penstock_gateway.dependencies import begin_text
from penstock_gateway.job_history import device_names, rewound
from penstock_log import (
    AggregationAsked,
    AggregationAssigned,
    AggregationLeft,
    AggregationMeasured,
    AggregationRefused,
    AggregatorEnded,
    AggregatorsAllocated,
    AggregatorsOffered,
    AggregatorsRecycled,
    AggregatorStarted,
    AggregatorUnreachable,
    AllocationAdded,
    AllocationPaused,
    AllocationRemoved,
    AllocationResumed,
    AnyEvent,
    DeviceDrained,
    DeviceFailed,
    DeviceRecovered,
    DeviceResumed,
    Job,
    JobCancelled,
    JobEntered,
    JobFinished,
    JobHeld,
    JobReleased,
    JobsArchived,
    JobSpec,
    JobsRanked,
    JobSubmitted,
    JobTimedOut,
    JobTimeSet,
    JobUnblocked,
    KindSpeed,
    LaneChanged,
    LogCopied,
    LogTrimmed,
    MemoryOffered,
    NodeDrained,
    NodeJoined,
    NodeLeaving,
    NodeLeft,
    NodeLoginIssued,
    NodeLoginRevoked,
    NodeRemoved,
    NodeResumed,
    NodeTokenIssued,
    NotificationRuleRemoved,
    NotificationRuleSet,
    NotificationSent,
    PartMoved,
    PilotEnded,
    PilotPlanned,
    PilotsPaused,
    PilotStarted,
    PilotSubmitted,
    PilotWaits,
    PilotWithdrawn,
    PolicySet,
    ReservationCancelled,
    ReservationMade,
    RoundDecided,
    RunBusyAgain,
    RunCheckpointed,
    RunEnded,
    RunIdle,
    RunMeasured,
    RunRewound,
    RunStarted,
    RunUnparked,
    RunWarned,
    SamplesRequested,
    Scalability,
    ScaleDecided,
    SlabsEvicted,
    SlabsLent,
    SlabsReturned,
    SweepCancelled,
    SweepFinished,
    SweepSubmitted,
    TrialFinished,
    TrialGroupOpened,
    TrialRetried,
    TrialsMeasured,
    TrialsScaled,
    UnknownFact,
    UserRemoved,
    UserSet,
    WorkloadProfiled,
    WorkloadScaled,
    subjects,
    workload,
)
from penstock_log.aggregation_messages import WATCH_STEPS
from penstock_log.text import count, duration, gibibytes, listed, pairs
from penstock_log.views import StoryLine
from penstock_policies import sample_plan

_BECAUSE: Final = {
    "arrival": "a job has come",
    "completion": "a job is over",
    "nodes": "nodes have changed",
    "order": "the order has changed",
    "profile": "more is known of a workload",
    "interval": "it was time to",
}
"""What led to a decision about sizes, as people say it."""


def own_subjects(job: Job) -> list[str]:
    """Return the subjects and patterns whose facts are about this job alone."""
    return [subjects.job(job.id), subjects.run(job.id), subjects.extensions(job.id)]


def shared_subjects(job: Job) -> list[str]:
    """Return the subjects whose facts are about this job among others."""
    key = job.profile_key or workload.key(job.spec)
    pool = job.spec.pool
    of_sweep = [subjects.sweep(job.spec.parent)] if subjects.is_token(job.spec.parent) else []  # people name any
    shared = [subjects.rank(pool), subjects.round_(pool), subjects.scale(pool), subjects.policy(pool)]
    others = [subjects.aggregation(pool), subjects.AGGREGATOR_FACTS, subjects.NODE_FACTS]
    return [*shared, *others, subjects.profile(key), *of_sweep]


def sentence(fact: RunMeasured | LaneChanged, kind: str) -> str:
    """Return a fact as a sentence, for the story of a job that has devices of this kind."""
    if isinstance(fact, LaneChanged):
        text = _LANE_CHANGES[fact.change].format(lane=fact.lane, device=f"{fact.node_id}/{kind}{fact.device}")
        return f"{text} ({fact.reason})" if fact.reason else text
    need = fact.need
    return (
        f"measured on {fact.node_id} over {fact.iterations} iterations: {gibibytes(need.persistent_bytes)} persistent, "
        f"{gibibytes(need.framework_bytes)} of the framework, {gibibytes(need.ephemeral_bytes)} in an iteration"
    )


def _asked(fact: AggregationAsked) -> str:
    whole, servers = gibibytes(sum(fact.parts)), count(fact.servers, "aggregator")
    whose = servers if fact.mode == "shared" else f"{servers} of its own"
    return f"asks for aggregation of {whole} in {count(len(fact.parts), 'part')}: {whose}, {fact.rule}"


def _assigned(fact: AggregationAssigned) -> str:
    names = listed(dict.fromkeys(one.aggregator for one in fact.placed))
    moved = sum(one.generation == fact.generation and one.how == "copy" for one in fact.placed)
    moves = f", {count(moved, 'part')} to be moved" if moved else ""
    return f"aggregated on {names}{moves}{_because(fact.because)}"


def _moved(fact: PartMoved) -> str:
    copied = gibibytes(fact.copied_bytes)
    return f"part {fact.part} moved from {fact.before} to {fact.aggregator}: {copied} in {fact.pause_s:.3g} s"


class Timeline:
    """A job's life in sentences; it remembers the last sentence, so that it says nothing twice in a row."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._queue: int | None = None
        self._cause, self._sized, self._cancelled_because = "", "", ""
        self._timed_out = self._is_over = False
        self._epoch = 0
        self._nodes: set[str] = set()
        self._measured: set[tuple[str, int, int, bool]] = set()
        self._kind = job.placement.kind if job.placement is not None else ""

    def lines(self, delivery: Delivery) -> Iterator[StoryLine]:
        """Yield the sentences of the next commit of the log; facts about other things yield nothing."""
        for fact in delivery.commit.facts:
            if isinstance(fact, UnknownFact):
                yield from self._as_it_is(fact, delivery)
                continue
            for text in self._sentences(fact):
                yield self._line(text, fact.at_s, delivery)

    def _as_it_is(self, fact: UnknownFact, delivery: Delivery) -> Iterator[StoryLine]:
        """Yield an unknown fact that stands under the job's own id: as it is, by the store's time if it has none."""
        if subjects.entity_of(delivery.subject)[1] != self._job.id:
            return
        at_s = fact.at_s or delivery.stored_s
        fields = {key: value for key, value in fact.raw.items() if key not in {"type", "at_s"}}
        yield self._line(f"{fact.tag} {msgspec.json.encode(fields).decode()}", at_s, delivery)

    def _line(self, text: str, at_s: float, delivery: Delivery) -> StoryLine:
        after_s = at_s - self._job.submitted_s
        return StoryLine.of(delivery, delivery.commit, text=text, at_s=at_s, after_s=after_s)

    def _sentences(self, fact: AnyEvent) -> Iterator[str]:  # noqa: C901, PLR0911, PLR0912, PLR0915 - a case for each kind
        if getattr(fact, "job_id", self._job.id) != self._job.id:
            return
        match fact:
            case JobSubmitted():
                yield _submitted(fact)
            case JobCancelled():
                self._cancelled_because = fact.reason
                yield f"cancelled{_by(fact.by)}{_because(fact.reason)}"
            case JobHeld():
                yield f"held{_by(fact.by)}"
            case JobTimedOut():
                self._timed_out = True
                yield f"its time limit of {duration(fact.limit_s)} is over: it ran for {duration(fact.executed_s)}"
            case JobTimeSet():
                yield f"may run {_how_long(fact.limit_s)}{_by(fact.by)}"
            case JobEntered():
                yield f"{_ENTERED[fact.purpose]} rank {fact.rank} on {fact.node_id}{_by(fact.by)}"
            case JobUnblocked():
                yield f"may start: {listed(fact.met)} has come"
            case JobReleased():
                yield f"released{_by(fact.by)}"
            case JobFinished():
                self._is_over = True
                yield _finished(fact, self._cancelled_because)
            case RunStarted():
                yield f"{_HOW.get(fact.start, 'started')} on {fact.node_id}{_resumed(fact)}{_cold(fact)}"
            case RunCheckpointed() if fact.generation and fact.generation != fact.epoch:
                yield f"a checkpoint after step {fact.step} was found on {fact.node_id}, which nobody had reported"
            case RunCheckpointed() if fact.generation:
                yield f"the checkpoint after step {fact.step} is on the disk of {fact.node_id} too"
            case RunCheckpointed() if fact.tier == "memory":
                yield f"checkpointed after step {fact.step}, in the memory of {' and '.join(fact.peers)}"
            case RunCheckpointed():
                yield f"checkpointed after step {fact.step}"
            case RunRewound():
                yield rewound(fact)
            case RunWarned():
                yield f"warning from {fact.node_id}: {fact.warning}"
            case RunIdle():
                yield idle_runs.measured(fact)
            case RunUnparked():
                yield f"no longer parked on {fact.node_id}{_because(fact.reason)}"
            case RunBusyAgain():
                yield f"busy again on {fact.node_id}"
            case RunEnded():
                yield self._of_end(fact)
            case RunMeasured() | LaneChanged():
                yield sentence(fact, self._kind)
            case SamplesRequested():
                kinds = listed(dict.fromkeys(sample.kind for sample in fact.samples))
                since = f", since {why}" if (why := sample_plan.why_sampled(fact.spec)) else ""
                yield f"its workload is new: {count(len(fact.samples), 'sample')} on {kinds} requested{since}"
            case WorkloadProfiled():
                yield f"profiled, relative speeds: {listed(_speed(speed) for speed in fact.speeds)}"
            case WorkloadScaled():
                yield f"measured how it goes with batch size and devices: {listed(map(_timings, fact.kinds))}"
            case JobsRanked():
                yield from self._of_rank(fact)
            case RoundDecided():
                yield from self._of_round(fact)
            case TrialsScaled():
                yield from self._of_scale(fact)
            case ScaleDecided():
                yield from self._of_sizing(fact)
            case PolicySet():
                yield _policy(fact)
            case ReservationMade():
                yield _reservation(fact)
            case ReservationCancelled():
                what = f"reservation {fact.reservation_id} of pool {fact.pool} is cancelled"
                yield f"{what}{_by(fact.by)}{_because(fact.reason)}"
            case NodeLeaving():
                if fact.node_id in self._nodes:
                    yield f"its node {fact.node_id} begins to leave{_because(fact.reason)}"
            case NodeJoined() | NodeLeft() | NodeDrained() | NodeResumed() | NodeRemoved():
                return
            case DeviceFailed() | DeviceRecovered() | DeviceDrained() | DeviceResumed():
                return
            case SweepSubmitted() | SweepCancelled() | SweepFinished() | TrialsMeasured() | TrialGroupOpened():
                return
            case AllocationAdded() | AllocationRemoved() | AllocationPaused() | AllocationResumed() | PilotsPaused():
                return
            case PilotPlanned() | PilotSubmitted() | PilotStarted() | PilotEnded() | PilotWaits() | PilotWithdrawn():
                return
            case UserSet() | UserRemoved() | NodeTokenIssued() | NodeLoginIssued() | NodeLoginRevoked():
                return
            case NotificationRuleSet() | NotificationRuleRemoved() | NotificationSent():
                return
            case LogCopied() | JobsArchived() | LogTrimmed() | TrialFinished() | TrialRetried():
                return
            case AggregationAsked():
                yield _asked(fact)
            case AggregationAssigned():
                yield _assigned(fact)
            case AggregationMeasured():
                yield from self._of_measurement(fact)
            case PartMoved():
                yield _moved(fact)
            case AggregatorUnreachable():
                yield f"aggregator {fact.aggregator} cannot be reached from {fact.node_id}{_because(fact.reason)}"
            case AggregationRefused():
                yield f"aggregation refused{_because(fact.reason)}"
            case AggregationLeft():
                yield f"needs no aggregation any more on {fact.node_id}"
            case (
                AggregatorsOffered()
                | AggregatorStarted()
                | AggregatorEnded()
                | AggregatorsAllocated()
                | AggregatorsRecycled()
                | MemoryOffered()
                | SlabsLent()
                | SlabsReturned()
                | SlabsEvicted()
            ):
                return
            case _:
                assert_never(fact)

    def _of_end(self, fact: RunEnded) -> str:
        if self._epoch and (fact.epoch != self._epoch or fact.node_id not in self._nodes):
            return self._of_late_end(fact)
        self._nodes.discard(fact.node_id)
        known = f"exit code {fact.exit_code}" in fact.reason
        code = f" with exit code {fact.exit_code}" if fact.exit_code and not known else ""
        after = f" after step {fact.steps}" if fact.steps else ""
        reason = _because(fact.reason) if fact.reason != self._sized else ""
        outcome = "stopped" if self._timed_out and fact.outcome == "preempted" else fact.outcome
        parked = f", parked with {gibibytes(fact.parked_bytes)}" if fact.parked else ""
        return f"run {outcome} on {fact.node_id}{'' if parked else code}{after}{reason}{parked}"

    def _of_late_end(self, fact: RunEnded) -> str:
        """Return how a run ended that had been given up before, and what that means for the job."""
        now = f"run {self._epoch}" if fact.epoch != self._epoch else "its next run"
        ended = f"run {fact.epoch} {fact.outcome} on {fact.node_id}{f' after step {fact.steps}' if fact.steps else ''}"
        what = f"{ended}, after it had been given up as lost"
        if self._is_over:
            return f"{what}: the job was over by then, and this changes nothing"
        if fact.outcome == "completed":
            return f"{what}: this does not count, and {now} does it again from the last checkpoint that is known"
        return f"{what}: this changes nothing, and {now} goes on from the last checkpoint that is known"

    def _of_measurement(self, fact: AggregationMeasured) -> Iterator[str]:
        """Yield the first short and the first long measurement since parts moved; they go on as the run does."""
        which = (fact.aggregator, fact.epoch, fact.generation, fact.steps >= WATCH_STEPS)
        if which in self._measured:
            return
        self._measured.add(which)
        busy_s, steps = sum(fact.costs_s.values()), count(fact.steps, "step")
        each = f"{fact.iteration_s:.3g} s each, busy {busy_s:.2g} s"
        yield f"aggregation measured on {fact.aggregator} over {steps}: {each}"

    def _of_rank(self, fact: JobsRanked) -> Iterator[str]:
        for rank in fact.ranks:
            if rank.job_id == self._job.id and rank.queue != self._queue:
                used = f" after {rank.attained_gpu_s:.1f} GPU-seconds" if rank.attained_gpu_s else ""
                yield f"ranked in queue {rank.queue}{used}"
                self._queue = rank.queue

    def _of_scale(self, fact: TrialsScaled) -> Iterator[str]:
        for demand in fact.demands:
            if demand.job_id == self._job.id:
                beside = f" with {demand.sharers - 1} beside it" if demand.sharing == "lane" and demand.sharers else ""
                yield f"to go on on {count(demand.gpus, 'device')}{beside}{_because(demand.reason)}"

    def _of_sizing(self, fact: ScaleDecided) -> Iterator[str]:
        for demand in fact.demands:
            if demand.job_id == self._job.id:
                batch = f" with a batch of {demand.batch_size}" if demand.batch_size else ""
                self._sized = demand.reason or f"to have {count(demand.gpus, 'device')}{batch}"
                yield f"sized ({_BECAUSE[fact.because]}): {self._sized}"
            elif devices := demand.gives.get(self._job.id):
                yield f"job {demand.job_id} is to give up {count(devices, 'device')} for it"
        if self._job.id in fact.dropped:
            yield "dropped: its smallest size found no room"

    def _of_round(self, fact: RoundDecided) -> Iterator[str]:
        for node_id in sorted(self._nodes.intersection(fact.lost_nodes)):
            self._nodes.discard(node_id)
            yield f"lost with its node {node_id}, which was no longer heard of"
        for preemption in fact.preemptions:
            if preemption.job_id == self._job.id:
                yield "to be preempted" + (
                    " for that" if preemption.reason == self._sized else _because(preemption.reason)
                )
        for placement in fact.placements:
            if placement.job_id == self._job.id:
                self._cause, self._epoch = "", placement.epoch
                self._nodes = {slot.node_id for slot in placement.slots}
                self._kind = placement.kind
                yield f"placed on {listed(device_names(placement))} (run {placement.epoch})"
        for wait in fact.waits:
            if wait.job_id == self._job.id and wait.cause != self._cause:
                self._cause = wait.cause
                yield f"waits ({wait.cause.replace('_', ' ')}): {wait.evidence}"


def _timings(kind: Scalability) -> str:
    widest = max((timing.gpus for timing in kind.timings), default=0)
    return f"{count(len(kind.timings), 'timing')} on {kind.kind}, up to {count(widest, 'device')}"


def _submitted(fact: JobSubmitted) -> str:
    spec = fact.spec
    kinds = f" of {' or '.join(spec.kinds)}" if spec.kinds else ""
    parent = f" for sweep {spec.parent}" if spec.parent else ""
    size = job_sizes.range_text(spec) or count(spec.gpus, "device")
    in_class = f", in class {spec.priority_class}" if spec.priority_class else ""
    return f"submitted{_by(spec.user)}{parent}: {size}{kinds}{in_class}{', on hold' if spec.hold else ''}{_later(spec)}"


def _how_long(limit_s: float) -> str:
    return f"for {duration(limit_s)}" if limit_s else "as long as it likes"


def _later(spec: JobSpec) -> str:
    """Say what a job waits for by its own specification."""
    after = f", after {listed(one.partition(':')[2] for one in spec.after)}" if spec.after else ""
    limit = f", for {duration(spec.time_limit_s)} at most" if spec.time_limit_s else ""
    return f"{limit}{after}{f', {begin_text(spec.begin_s)}' if spec.begin_s else ''}"


def _finished(fact: JobFinished, said: str) -> str:
    """Return how a job ended; the reason is left out where the cancellation has ``said`` it."""
    because = _because(fact.reason) if fact.state != "cancelled" or fact.reason != said else ""
    steps = f", {count(fact.steps, 'step')}" if fact.steps else ""
    return f"{fact.state}{because} (ran {duration(fact.run_s)} in {count(fact.attempts, 'run')}{steps})"


def _resumed(fact: RunStarted) -> str:
    if not fact.resumed_step:
        return ""
    what = f"beginning with job {fact.begun_from}'s checkpoint" if fact.begun_from else "resuming"
    copied = f" (copied from {fact.copied_from})" if fact.copied_from else ""
    return f", {what} after step {fact.resumed_step}{copied}"


_HOW: Final = {"warm": "started warm", "parked": "continued where it was parked,"}


def _cold(fact: RunStarted) -> str:
    return f" ({fact.start})" if fact.start.startswith("cold") else ""


def _speed(speed: KindSpeed) -> str:
    return f"{speed.kind} {speed.speed:.2f}{' (predicted)' if speed.predicted else ''}"


def _by(who: str) -> str:
    return f" by {who}" if who else ""


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def _policy(fact: PolicySet) -> str:
    what = f"{pairs(fact.settings)} set live" if fact.settings else "nothing is set live any more"
    return f"pool {fact.pool}: {what}{f', by {fact.by}' if fact.by else ''}"


def _reservation(fact: ReservationMade) -> str:
    of_kind = f" {fact.kind}" if fact.kind else ""
    what = (
        f"{fact.gpus}{of_kind} device{'' if fact.gpus == 1 else 's'} of pool {fact.pool} reserved for team {fact.team}"
    )
    lasts = f"in {duration(fact.from_s - fact.at_s)}, for {duration(fact.until_s - fact.from_s)}"
    return f"{what} {lasts}{_by(fact.by)}{_because(fact.reason)}"


_ENTERED: Final = {
    "exec": "a command is run beside",
    "shell": "a shell is opened beside",
    "forward": "a port is forwarded to",
    "copy": "files are copied beside",
}
_LANE_CHANGES: Final = {
    "entered": "takes its turns in lane {lane} of device {device}",
    "moved": "goes on in lane {lane} of device {device}",
    "parked": "is parked on device {device}: it keeps what it holds and waits at a boundary",
    "left": "has left the lanes of device {device}",
}
