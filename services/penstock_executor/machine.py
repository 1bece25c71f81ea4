"""What this node is to do, decided from the log and from its processes. Pure: no clock, no process, no socket."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator
from typing import Final

import msgspec

from penstock_bus import Decider, Decision
from penstock_cluster.nodes import Cluster
from penstock_executor import run_state
from penstock_executor.checkpoint_transfer import ResumeRequest
from penstock_executor.parked_run import ParkedRun, may_park, why_not_on
from penstock_executor.run_state import HOLD, Ending, Key, LocalRun, NodeObservation, NodeStop, sharing_of
from penstock_log import (
    TERMINAL,
    Event,
    Job,
    JobState,
    JobTable,
    NodeJoined,
    NodeLeaving,
    Outcome,
    PolicySet,
    RunBusyAgain,
    RunEnded,
    RunIdle,
    RunStarted,
    Setting,
)
from penstock_log.decision_facts import SweepFinished
from penstock_log.text import duration

REMEMBERED: Final = 1000
"""Finished jobs whose checkpoints may still have to go."""
HAS_HAD_ITS_RUNS: Final = "it has had its runs"
"""Why a node leaves that was for so many runs; other reasons stop the runs that are there."""
_TOLD_S: Final = 0.5
"""By so much the end of a job's time has to change before its processes are told anew."""


class ExecutorState(msgspec.Struct):
    """
    The fold of the log that an executor decides from.

    Attributes
    ----------
    started : dict of str to dict of str to int
        Job id → node id → epoch whose start the node has reported.
    led : dict of str to RunStarted
        Gang → the last start of its first process, which says from where all of them go on.
    granted : dict of str to int
        Job that has a grant somewhere → sequence of the commit that gave it.
    finished : list of str
        The last finished jobs whose checkpoints are no longer needed.
    policies : dict of str to dict of str to Setting
        Pool → what is set live.
    idle : dict of str to dict of str to int
        Job id → node id → epoch of which the node has said that the run is idle there.
    kept : dict of str to list of str
        Sweep → its finished jobs from whose checkpoints others may go on.
    spent : set of str
        Nodes that leave because they have had their runs: that stops none of the runs of which they had a part.
    """

    jobs: JobTable = msgspec.field(default_factory=JobTable)
    cluster: Cluster = msgspec.field(default_factory=Cluster)
    started: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    led: dict[str, RunStarted] = msgspec.field(default_factory=dict)
    granted: dict[str, int] = msgspec.field(default_factory=dict, name="leased")
    finished: list[str] = msgspec.field(default_factory=list)
    kept: dict[str, list[str]] = msgspec.field(default_factory=dict)
    policies: dict[str, dict[str, Setting]] = msgspec.field(default_factory=dict)
    idle: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    spent: set[str] = msgspec.field(default_factory=set)


class RunAction(msgspec.Struct, frozen=True, kw_only=True):
    """An action about one run."""

    job_id: str
    epoch: int

    @property
    def key(self) -> Key:
        """The run's name on this node."""
        return self.job_id, self.epoch


class FindCheckpoint(RunAction, frozen=True, kw_only=True):
    """Find the checkpoint that the job's run goes on from, and copy it here; the run must not start before."""

    request: ResumeRequest


class FetchCode(RunAction, frozen=True, kw_only=True):
    """Fetch the job's code, and lay it out for the run, which must not start before."""


class StartRun(msgspec.Struct, frozen=True, kw_only=True):
    """Start the job's processes on this node under its present placement."""

    job_id: str


class RequestLanes(msgspec.Struct, frozen=True, kw_only=True):
    """Ask for a lane on each device that the job's grant has here; the run must not start before it has them."""

    job_id: str


class ContinueRun(msgspec.Struct, frozen=True, kw_only=True):
    """Let the job's parked run go on under its present placement."""

    job_id: str


class EndParked(msgspec.Struct, frozen=True, kw_only=True):
    """End the job's parked run, and say why."""

    job_id: str
    why: str


class AskToStop(RunAction, frozen=True, kw_only=True):
    """Ask the run's processes over the socket to save a checkpoint and leave, or to ``park`` there."""

    ending: Ending
    why: str = ""
    park: bool = False


class TerminateRun(RunAction, frozen=True, kw_only=True):
    """Send TERM to the run's process groups."""

    ending: Ending


class TellTime(RunAction, frozen=True, kw_only=True):
    """
    Tell the run's processes how long the job may still run.

    Attributes
    ----------
    due_s : float or None
        When its time is over, seconds since the epoch; None: never.
    is_short : bool
        Whether it is a warning.
    signal : str
        That they get with it; empty: none.
    warning : str
        What is to be in the log of it; empty: another node says so.
    """

    due_s: float | None
    is_short: bool = False
    signal: str = ""
    warning: str = ""


class KillRun(RunAction, frozen=True, kw_only=True):
    """Send KILL to the run's process groups."""


class ReportFact(msgspec.Struct, frozen=True, kw_only=True):
    """Append a fact about a run."""

    fact: RunStarted | RunEnded


class RemoveRun(RunAction, frozen=True, kw_only=True):
    """Remove what is left of a run whose end is in the log."""


class AnnounceNode(msgspec.Struct, frozen=True):
    """Append that this node offers its devices."""


class AnnounceLeaving(msgspec.Struct, frozen=True):
    """Append that this node begins to stop, and wait until the log has it, for a while; no run is ended before."""


class WithdrawNode(msgspec.Struct, frozen=True):
    """Append that this node is gone; nothing else is left to do here."""


Action = (
    FindCheckpoint
    | FetchCode
    | StartRun
    | ContinueRun
    | EndParked
    | RequestLanes
    | AskToStop
    | TerminateRun
    | TellTime
    | KillRun
    | ReportFact
    | RemoveRun
    | AnnounceNode
    | AnnounceLeaving
    | WithdrawNode
)


class NodePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The actions to take now, and when to decide again even if nothing happens."""

    actions: list[Action] = []
    wake_at_s: float | None = None


def decider() -> Decider[ExecutorState]:
    """Return the fold of an executor; :func:`decide` also needs the node's processes, so it is not part of it."""
    return Decider(
        name="executor",
        state=ExecutorState,
        schema="executor.v10",
        apply=apply,
        decide=lambda state, now_s: Decision(),  # noqa: ARG005
        leads=False,
    )


def apply(state: ExecutorState, event: Event, seq: int) -> None:
    """Fold one fact in; drop finished jobs, since no run of theirs is wanted any more."""
    state.cluster.apply(event)
    for job in state.jobs.apply(event):
        if job.placement is None:
            state.granted.pop(job.id, None)
        else:
            state.granted.setdefault(job.id, seq)
        if job.state in TERMINAL:
            state.jobs.forget(job.id)
            state.started.pop(job.id, None)
            state.led.pop(job.id, None)
            state.idle.pop(job.id, None)
            _finish(state, job)
    _note_spent(state, event)
    if isinstance(event, PolicySet):
        state.policies[event.pool] = event.settings
    elif isinstance(event, RunIdle) and event.job_id in state.jobs.by_id:
        state.idle.setdefault(event.job_id, {})[event.node_id] = event.epoch
    elif isinstance(event, RunBusyAgain):
        state.idle.get(event.job_id, {}).pop(event.node_id, None)
    if isinstance(event, SweepFinished) and (kept := state.kept.pop(event.sweep_id, [])):
        state.finished = [*state.finished, *kept][-max(REMEMBERED, len(kept)) :]
    if isinstance(event, RunStarted) and (started := state.jobs.get(event.job_id)) is not None:
        state.started.setdefault(event.job_id, {})[event.node_id] = event.epoch
        if first_node(started) == event.node_id and started.may_run(event.epoch, event.node_id):
            state.led[event.job_id] = event


def _note_spent(state: ExecutorState, event: Event) -> None:
    """Note whether a node leaves because it has had its runs, until it joins again or stops for another reason."""
    if not isinstance(event, NodeLeaving | NodeJoined):
        return
    state.spent.intersection_update(state.cluster.nodes)  # others are forgotten
    if isinstance(event, NodeLeaving) and event.reason == HAS_HAD_ITS_RUNS:
        state.spent.add(event.node_id)
    else:
        state.spent.discard(event.node_id)


def _finish(state: ExecutorState, job: Job) -> None:
    """Note whether another job may still need the checkpoints of a job that is over."""
    if job.timed_out and not job.spec.parent:
        return  # another job may go on from there
    if not job.spec.keep_checkpoint:
        state.finished = [*state.finished[1 - REMEMBERED :], job.id]
    elif job.spec.parent:
        state.kept.setdefault(job.spec.parent, []).append(job.id)


def decide(
    state: ExecutorState, node_id: str, observed: NodeObservation, now_s: float, sample_limit_s: float = 60.0
) -> NodePlan:
    """
    Return the actions that make the node's processes match the log.

    Parameters
    ----------
    node_id : str
        Of this node.
    now_s, sample_limit_s : float
        Seconds since the epoch, and the longest time for a sample.
    """
    node = _Node(state, node_id, observed, now_s, sample_limit_s)
    if node.is_to_say_that_it_leaves:
        return NodePlan(actions=[AnnounceLeaving()])
    actions: list[Action] = [action for run in observed.runs.values() for action in node.settle(run)]
    actions += [action for parked in observed.parked.values() for action in node.settle_parked(parked)]
    if not actions:
        actions += node.join()
    if node.joined:
        actions += node.grants()
    return NodePlan(actions=actions, wake_at_s=min(node.deadlines, default=None))


def is_awaited(state: ExecutorState, node_id: str, sharing: Collection[str]) -> bool:
    """
    Return whether jobs that go on elsewhere need checkpoints that only this node has.

    Parameters
    ----------
    sharing : collection of str
        The nodes that have the same checkpoint folder: they need no copy.
    """
    others = (node for node in state.cluster.nodes.values() if node.usable and node.id != node_id)
    if all(node.id in sharing for node in others):
        return False
    return any(
        job.checkpoint is not None and job.checkpoint.node_ids == (node_id,) and job.startable and not job.started_s
        for job in state.jobs
    )


def refuse(state: ExecutorState, node_id: str, observed: NodeObservation, now_s: float) -> list[ReportFact]:
    """Return the ends of grants that came while the node left: their runs never began."""
    node = _Node(state, node_id, observed, now_s, 0.0)
    return [action for action in node.grants() if isinstance(action, ReportFact)]


class _Node:
    """One decision: its inputs, and the deadlines that it finds on the way."""

    def __init__(
        self, state: ExecutorState, node_id: str, observed: NodeObservation, now_s: float, sample_limit_s: float
    ) -> None:
        self.state, self.id, self.observed, self.now_s = state, node_id, observed, now_s
        self.sample_limit_s = sample_limit_s
        self.deadlines: list[float] = []
        self.taken = observed.busy_devices()
        known = state.cluster.nodes.get(node_id)
        self.joined = known is not None and known.present and known.incarnation.startswith(observed.incarnation)
        self.leaving = self.joined and known is not None and known.leaving
        is_said = self.leaving and not (node_id in state.spent and any(run.alive for run in observed.runs.values()))
        self.is_to_say_that_it_leaves = observed.draining and self.joined and not (is_said or observed.told_leaving)

    # --- runs that are here
    def settle(self, run: LocalRun) -> Iterator[Action]:
        """Yield what to do about a run found on this node."""
        job = self.state.jobs.get(run.job_id)
        if job is None or not job.may_run(run.epoch, self.id):
            yield from self._abandon(run)
            return
        if "started" not in run.reported and not run.refused:
            yield ReportFact(fact=run_state.started(run, self.id))
        if run.alive:
            yield from self._tell_time(run, job)
            yield from self._stop(run, job)
        elif "ended" not in run.reported and not self._holds_back():
            stop = self._stop_of(job)
            yield ReportFact(fact=run_state.ended(run, job, self.id, self.now_s, self.sample_limit_s, stop=stop))

    def _abandon(self, run: LocalRun) -> Iterator[Action]:
        """End a run that the log no longer wants: its epoch is over, and another may have begun elsewhere."""
        if not run.alive:
            yield RemoveRun(job_id=run.job_id, epoch=run.epoch)
        elif not run.killed_s:
            yield KillRun(job_id=run.job_id, epoch=run.epoch)

    def _holds_back(self) -> bool:
        """
        Whether to keep back the ends of runs.

        A draining node that reported them one by one would get new runs, where the log does not know that it leaves.
        """
        if not self.observed.draining or self.leaving:
            return False
        return any(run.alive for run in self.observed.runs.values())

    def _stop_of(self, job: Job) -> NodeStop:
        """
        Return whether a node of a job's run is being stopped, as far as this node and the log know.

        A node stops no run by leaving that has had its runs, nor one whose part of the run had ended before by itself.
        """
        if self.observed.draining or self._is_stopping(self.id):
            return NodeStop(self._shutting_down(self.id))
        slots = job.placement.slots if job.placement is not None else ()
        for slot in slots:
            had_part = slot.node_id in job.open_nodes or job.outcome in {"preempted", "lost"}
            if had_part and self._is_stopping(slot.node_id):
                return NodeStop(self._shutting_down(slot.node_id), is_elsewhere=True)
        return NodeStop()

    def _is_stopping(self, node_id: str) -> bool:
        node = self.state.cluster.nodes.get(node_id)
        return node is not None and node.leaving and node_id not in self.state.spent

    @staticmethod
    def _shutting_down(node_id: str) -> str:
        return f"node {node_id} is shutting down"

    def _stop(self, run: LocalRun, job: Job) -> Iterator[Action]:
        ending = self._why_end(run, job)
        if not ending or run.parking:
            return
        grace_s = job.spec.grace_s
        if ending == "preempted" and run.greeted and not run.termed_s:
            if not run.asked_s:
                self._decide_at(self.now_s + grace_s)
                park = self.observed.parks and not self._is_closed() and may_park(job, run.world_size)
                yield AskToStop(job_id=run.job_id, epoch=run.epoch, ending=ending, why=self._evicted(run), park=park)
                return
            if not self._due(run.asked_s + grace_s):
                return
        if not run.termed_s:
            self._decide_at(self.now_s + grace_s)
            yield TerminateRun(job_id=run.job_id, epoch=run.epoch, ending=ending)
        elif not run.killed_s and self._due(run.termed_s + grace_s):
            yield KillRun(job_id=run.job_id, epoch=run.epoch)

    def _tell_time(self, run: LocalRun, job: Job) -> Iterator[Action]:
        """Yield what its processes are to know of the job's time limit, which may change."""
        due_s = job.runs_out_s
        if run.asked_s or run.termed_s or (due_s is None and run.told_due_s is None):
            return
        if due_s is None or run.told_due_s is None or abs(due_s - run.told_due_s) > _TOLD_S:
            yield TellTime(job_id=run.job_id, epoch=run.epoch, due_s=due_s)
            return
        warning_s = job.spec.warning_s(job.limit_s)
        if not warning_s or run.warned or not self._due(due_s - warning_s):
            return
        text = f"its time limit of {duration(job.limit_s)} ends it in {duration(max(0.0, due_s - self.now_s))}"
        yield TellTime(
            job_id=run.job_id,
            epoch=run.epoch,
            due_s=due_s,
            is_short=True,
            signal=job.spec.warn_signal,
            warning=f"{text}; penstock extend gives it more" if first_node(job) == self.id else "",
        )

    def _why_end(self, run: LocalRun, job: Job) -> Ending:
        if job.state is JobState.COMPLETING:
            return "cancelled"
        if run.crashed or job.outcome not in {"completed", "preempted"}:
            return "gang"
        if job.sample and self._due(run.started_s + self.sample_limit_s):
            return "time_limit"
        if job.state is JobState.PREEMPTING or job.outcome == "preempted" or self.observed.draining:
            return "preempted"
        return "preempted" if self._evicted(run) else run.ending

    def _evicted(self, run: LocalRun) -> str:
        progress = self.observed.shared.get(run.key)
        return progress.reason if progress is not None and progress.at == "leaving" else ""

    def settle_parked(self, parked: ParkedRun) -> Iterator[Action]:
        """Yield the end of a parked run that nobody waits for any more, or that cannot go on."""
        job = self.state.jobs.get(parked.job_id)
        why = ""
        if job is None:
            why = "its job is over"
        elif self._is_closed():
            why = f"node {self.id} takes no jobs any more"
        elif job.epoch > parked.epoch and (job.placement is None or not self._has_grant(job)):
            why = "its job was given other nodes"
        elif job.epoch > parked.epoch and not job.stopping:
            why = self._why_not_on(parked, job)
        if why:
            yield EndParked(job_id=parked.job_id, why=why)

    def _is_closed(self) -> bool:
        """Return whether the node is to have no further run."""
        known = self.state.cluster.nodes.get(self.id)
        return self.observed.draining or (known is not None and known.drained)

    def _why_not_on(self, parked: ParkedRun, job: Job) -> str:
        given = devices_of(job, self.id)
        devices = [device for device in self.observed.devices if device.index in given]
        return why_not_on(parked, job, devices, self.observed.hold_s(_patience_s(job)))

    # --- grants that have no run here
    def grants(self) -> Iterator[Action]:
        """Yield what to do about grants of this node that have no run here yet."""
        granted = [job for job in map(self.state.jobs.get, sorted(self.state.granted)) if job and self._has_grant(job)]
        for job in granted:
            if (job.id, job.epoch) not in self.observed.runs:
                yield from self._grant(job)
        if self.observed.draining and not self.observed.runs and not granted:
            yield WithdrawNode()

    def _grant(self, job: Job) -> Iterator[Action]:
        devices = devices_of(job, self.id)
        if self.state.started.get(job.id, {}).get(self.id) == job.epoch:
            if self._surely_over(job):
                why = "its processes are gone without a trace: was the run folder removed?"
                yield self._never_ran(job, "lost", why)
        elif job.state is JobState.COMPLETING:
            yield self._never_ran(job, "cancelled", job.reason)
        elif job.stopping:
            yield self._never_ran(job, "preempted", job.reason)
        elif self.observed.draining:
            if not self._holds_back():
                yield self._never_ran(job, "preempted", self._shutting_down(self.id))
        elif self._may_have(job, devices) and self._is_heard(job) and not self._older_epoch_runs(job):
            yield from self._begin(job, devices)

    def _is_heard(self, job: Job) -> bool:
        """Return whether the matcher may count on this node: after a pause, the grant may be another node's by now."""
        patience_s = _patience_s(job)
        return not patience_s or self.observed.unheard_s < HOLD * patience_s

    def _surely_over(self, job: Job) -> bool:
        """Return whether processes that an executor of this name has started elsewhere have run out of their time."""
        patience_s, alone_s = _patience_s(job), self.observed.alone_s
        return not patience_s or (alone_s is not None and self._due(alone_s + patience_s))

    def _may_have(self, job: Job, devices: tuple[int, ...]) -> bool:
        """Return whether every process on the devices shares them in the same way as the job."""
        sharing = sharing_of(job)
        return all(
            index not in self.taken or (sharing != "exclusive" and self.taken[index] == sharing) for index in devices
        )

    def _begin(self, job: Job, devices: tuple[int, ...]) -> Iterator[Action]:
        parked = self.observed.parked.get(job.id)
        if job.id in self.observed.leaving:
            return
        if parked is not None:
            if not self._why_not_on(parked, job) and self._due(self.observed.postponed.get((job.id, job.epoch), 0.0)):
                self.taken |= dict.fromkeys(devices, sharing_of(job))
                yield ContinueRun(job_id=job.id)
            return
        has_code = yield from self._has_code(job)
        if not (yield from self._resumes(job)) or not has_code:
            return
        progress = self.observed.shared.get((job.id, job.epoch))
        if sharing_of(job) == "lane" and (progress is None or progress.at != "in"):
            if progress is None:
                yield RequestLanes(job_id=job.id)
            elif progress.at == "refused":
                yield self._never_ran(job, "failed", progress.reason)
            return
        self.taken |= dict.fromkeys(devices, sharing_of(job))
        if self._due(self.observed.postponed.get((job.id, job.epoch), 0.0)):
            yield StartRun(job_id=job.id)

    def _has_code(self, job: Job) -> Generator[Action, None, bool]:
        """Return whether the run's folder is here, or the job has none."""
        if not job.spec.code:
            return True
        progress = self.observed.code.get((job.id, job.epoch))
        if progress is None:
            yield FetchCode(job_id=job.id, epoch=job.epoch)
        elif progress.at == "refused":
            yield self._never_ran(job, "failed", progress.reason)
        return progress is not None and progress.at == "ready"

    def _resumes(self, job: Job) -> Generator[Action, None, bool]:
        """
        Return whether the checkpoint that the job's run goes on from is known and here.

        The first node of a gang finds the checkpoint, since all of the gang's processes must go on from the same one.
        """
        resume = self.observed.resumes.get((job.id, job.epoch))
        if resume is not None and resume.at == "refused":
            yield self._never_ran(job, "preempted", resume.reason)
        if resume is not None or job.sample or not _may_resume(job):
            return resume is None or resume.at == "ready"
        lead = self.state.led.get(job.id) if first_node(job) != self.id else None
        if first_node(job) == self.id or (lead is not None and lead.epoch == job.epoch):
            yield FindCheckpoint(
                job_id=job.id,
                epoch=job.epoch,
                request=ResumeRequest(
                    job_id=job.id,
                    own=job.checkpoint,
                    rewound=job.rewound,
                    begins_from="" if job.begins_anew else job.spec.begins_from,
                    lead=lead,
                ),
            )
        return False

    def _never_ran(self, job: Job, result: Outcome, reason: str) -> ReportFact:
        return ReportFact(
            fact=RunEnded(
                job_id=job.id,
                epoch=job.epoch,
                node_id=self.id,
                outcome=result,
                reason=reason,
                steps=job.checkpoint_step,
                at_s=self.now_s,
            )
        )

    def _older_epoch_runs(self, job: Job) -> bool:
        return any(run.job_id == job.id and run.alive for run in self.observed.runs.values())

    def _has_grant(self, job: Job) -> bool:
        return job.may_run(job.epoch, self.id)

    # --- the node itself
    def join(self) -> Iterator[Action]:
        """Yield the offer of this node's devices, once no process of an ended run is on them."""
        clean = all(self._wanted(run) for run in self.observed.runs.values() if run.alive)
        if clean and not self.joined and not self.observed.draining:
            yield AnnounceNode()

    def _wanted(self, run: LocalRun) -> bool:
        job = self.state.jobs.get(run.job_id)
        return job is not None and job.may_run(run.epoch, self.id)

    def _due(self, at_s: float) -> bool:
        if self.now_s < at_s:
            self._decide_at(at_s)
        return self.now_s >= at_s

    def _decide_at(self, at_s: float) -> None:
        self.deadlines.append(at_s)


def _may_resume(job: Job) -> bool:
    """Return whether a job may have a checkpoint: one that the log knows of, or one that could not be reported."""
    return job.checkpoint is not None or bool(job.spec.begins_from) or job.attempts > 0


def _patience_s(job: Job) -> float:
    return job.placement.patience_s if job.placement is not None else 0.0


def first_node(job: Job) -> str:
    """Return the node of a job's first process; empty if it has no grant."""
    slots = job.placement.slots if job.placement is not None else ()
    return slots[0].node_id if slots else ""


def devices_of(job: Job, node_id: str) -> tuple[int, ...]:
    """Return the devices that a job's grant has on a node."""
    slots = job.placement.slots if job.placement else ()
    return tuple(index for slot in slots if slot.node_id == node_id for index in slot.devices)
