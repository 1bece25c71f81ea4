"""
What this node knows of its runs, and how a run ended.

A :class:`LocalRun` is one epoch of a job on this node, a :class:`RunProcess` one of its processes: what it reported,
and how far its end has come. A :class:`NodeObservation` is everything that the node sees of itself when it decides.
:func:`ended` turns exit codes and last lines into the fact that ends a run.
"""

from __future__ import annotations

import re
import signal
from typing import Final, Literal, NamedTuple

import msgspec

from penstock_executor.checkpoint_transfer import Resume
from penstock_executor.code_fetch import CodeProgress
from penstock_executor.parked_run import ParkedRun
from penstock_log import Device, Job, JobState, Outcome, RunEnded, RunStarted
from penstock_log.agent_protocol import EXIT_PREEMPTED, LoopReport
from penstock_log.records import compose

Ending = Literal["", "preempted", "cancelled", "gang", "time_limit", "memory", "host_memory", "hang"]
"""
Why this node ends a run; ``gang`` means that another of its processes has failed, ``memory`` that it took more of its
device than it had been given, ``host_memory`` the same of its host's memory, ``hang`` that it did not give its turn
back, or wrote on its page what it must not.
"""

EXIT_UNFLUSHED: Final = 120
"""With this, Python leaves when it cannot flush its standard output or error: the disk that they go to may be full."""

Sharing = Literal["exclusive", "lane", "fraction"]
"""How a run has its devices."""


Key = tuple[str, int]
"""Job id and epoch: the name of a run on this node."""


def sharing_of(job: Job) -> Sharing:
    """Return how a job's run has its devices; a sample has them alone, to show how fast the job can be."""
    return "exclusive" if job.sample else job.spec.sharing


class RunProcess(msgspec.Struct, kw_only=True):
    """
    One process of a run.

    Attributes
    ----------
    exit_code : int or None
        As a shell gives it: 128 + the signal's number if a signal ended it. None while it runs, and for ever if it
        vanished without an exit code.
    ended_s : float
        When the executor learned of its end; 0 while it runs.
    greeted : bool
        Whether it speaks the agent protocol.
    report : LoopReport
        Its last report of its loop.
    peak_bytes : int
        The most memory that it reported of one device.
    saved_step, saved_samples : int
        Step and samples of its last complete checkpoint in this run.
    leaving : bool
        Whether it saved a checkpoint because it was asked to stop.
    stopped : bool
        Whether it ended, or may have ended, because its node was being stopped: what stops a node often sends the same
        signal to all that runs there.
    done : bool
        Whether it reported that it left its session in good order, all steps done.
    crowded : bool
        Whether it reported more metrics, or longer names, than are kept.
    last_line : str
        Last line of its standard error.
    """

    exit_code: int | None = None
    ended_s: float = 0.0
    greeted: bool = False
    report: LoopReport = LoopReport(step=0, loop_steps=0, loop_s=0.0)
    peak_bytes: int = 0
    saved_step: int = 0
    saved_samples: int = 0
    leaving: bool = False
    stopped: bool = False
    done: bool = False
    crowded: bool = False
    last_line: str = ""

    @property
    def alive(self) -> bool:
        """Whether its process is still there."""
        return not self.ended_s

    @property
    def failed(self) -> bool:
        """Whether the process failed; last output that found no room is no failure."""
        return not self.alive and self.exit_code != 0 and not self.unflushed

    @property
    def unflushed(self) -> bool:
        """Whether it failed only to write the end of its output: the work was done before."""
        return self.done and self.exit_code == EXIT_UNFLUSHED


class LocalRun(msgspec.Struct, kw_only=True):
    """
    One epoch of a job on this node.

    Attributes
    ----------
    world_size : int
        Processes of the whole gang, on all of its nodes.
    ranks : dict of int to RunProcess
        Process rank → process, of this node.
    uid : int or None
        Of the account that its processes run as; None: the executor's own.
    refused : str
        Why nothing was started; empty if something was.
    refuses_user : bool
        Whether that is as this node runs no jobs of the user.
    asked_s, termed_s, killed_s : float
        When it was asked to stop, got TERM, and got KILL; 0 where not yet.
    resumed_step, resumed_generation, resumed_digest : int, int, str
        The checkpoint that its processes load; 0 if there is none.
    begun_from : str
        The other job, if the checkpoint is another job's.
    copied_from : str
        The node from which it was copied for this run.
    start : str
        How its processes began, as in :class:`penstock_log.RunStarted`.
    home : int
        Epoch of the run in which its processes were started, if that was parked: they have its folders; 0: this one.
    may_park : bool
        Whether its process may be parked in place of leaving, once it is asked to stop.
    parking : bool
        Whether its process is stopped, and the run about to end as parked.
    parked, parked_bytes : bool, int
        Whether it has ended so, and the memory that it holds.
    ending : Ending
        Why the run is ended.
    answers : dict of int to int
        Process rank → steps done when asked to stop, as far as known.
    held : set of int
        Process ranks of this node that begin no further step before they receive the stop step.
    absent : set of int
        Process ranks on other nodes that have ended, by the log.
    stop_step : int or None
        The step that the gang agreed to stop after.
    hold_s : float
        After so many seconds without an answered heartbeat its processes are stopped; 0: they are not.
    sharing : {"exclusive", "lane", "fraction"}
        How it has its devices.
    cap_bytes : int
        The most memory that it may hold of a device; 0: no limit.
    why : str
        Why this node ends the run, in one sentence, if neither the log nor ``ending`` has it.
    unfit : str
        Why a device is unfit on which one of its processes failed; empty where none is, as far as is known.
    told_due_s : float or None
        When its time is over, as its processes were told, seconds since the epoch; None: they were told nothing.
    warned : bool
        Whether they were warned that it is short.
    reported : set of str
        Facts already on their way to the log: ``started``, ``ended``, ``rewound``, and warnings that are given once.
    """

    job_id: str
    epoch: int
    devices: tuple[int, ...] = ()
    world_size: int = 1
    ranks: dict[int, RunProcess] = {}
    started_s: float = 0.0
    uid: int | None = None
    refused: str = ""
    refuses_user: bool = False
    asked_s: float = 0.0
    termed_s: float = 0.0
    killed_s: float = 0.0
    resumed_step: int = 0
    resumed_generation: int = 0
    resumed_digest: str = ""
    begun_from: str = ""
    copied_from: str = ""
    start: str = ""
    home: int = 0
    may_park: bool = False
    parking: bool = False
    parked: bool = False
    parked_bytes: int = 0
    ending: Ending = ""
    answers: dict[int, int] = {}
    held: set[int] = set()
    absent: set[int] = set()
    stop_step: int | None = None
    hold_s: float = 0.0
    sharing: Sharing = "exclusive"
    why: str = ""
    cap_bytes: int = 0
    unfit: str = ""
    told_due_s: float | None = None
    warned: bool = False
    reported: set[str] = msgspec.field(default_factory=set)

    @property
    def key(self) -> Key:
        """Job and epoch: the run's name on this node."""
        return self.job_id, self.epoch

    @property
    def devices_of(self) -> dict[int, tuple[int, ...]]:
        """Process rank → devices: one device each, or all of them if there is only one process."""
        ranks = sorted(self.ranks)
        if len(ranks) == len(self.devices):
            return {rank: (device,) for rank, device in zip(ranks, self.devices, strict=True)}
        return dict.fromkeys(ranks, self.devices)

    @property
    def alive(self) -> bool:
        """Whether any of its processes is still there."""
        return any(rank.alive for rank in self.ranks.values())

    @property
    def crashed(self) -> bool:
        """Whether any process failed by itself: before TERM, and not because it was to leave or its node stopped."""
        return any(
            rank.failed
            and not (rank.leaving or rank.stopped or rank.exit_code == EXIT_PREEMPTED)
            and (not self.termed_s or rank.ended_s < self.termed_s)
            for rank in self.ranks.values()
        )

    @property
    def greeted(self) -> bool:
        """Whether any of its processes can be asked to stop."""
        return any(rank.greeted for rank in self.ranks.values())


class SharingProgress(msgspec.Struct, frozen=True):
    """
    How far a run that shares its devices has come.

    Attributes
    ----------
    at : {"waits", "in", "refused", "leaving"}
        ``waits``: it must not start yet. ``in``: it has a lane on each of its devices, or had one and is parked.
        ``refused``: it can never have one here. ``leaving``: it has to be saved and stopped.
    reason : str
        In one sentence; empty for ``in``.
    """

    at: Literal["waits", "in", "refused", "leaving"]
    reason: str = ""


HOLD: Final = 0.75
"""The part of the matcher's patience after which a run is stopped, counted from the last heartbeat it has answered."""


class NodeObservation(msgspec.Struct, kw_only=True):
    """
    Everything that the node sees of itself when it decides.

    Attributes
    ----------
    incarnation : str
        Names this start of the executor.
    draining : bool
        Whether the executor is being stopped, and its runs go elsewhere.
    told_leaving : bool
        Whether it has told the log that it stops, or could not within the time that it has for that.
    postponed : dict of (job id, epoch) to float
        Runs that could not be started for want of room on the disk, and when to try again.
    shared : dict of (job id, epoch) to SharingProgress
        Progress of the runs that take turns with others.
    resumes : dict of (job id, epoch) to Resume
        What runs that are about to start go on from, as far as it is known and here.
    code : dict of (job id, epoch) to CodeProgress
        How far the code of runs is that are about to start.
    unheard_s : float
        How long ago the last heartbeat was sent that the matcher has answered.
    alone_s : float or None
        When the matcher first answered this start of the executor; None before. From then on it answers no other.
    parked : dict of str to ParkedRun
        The parked runs, by job.
    leaving : frozenset of str
        Jobs whose processes are parked no more, and have not ended yet.
    parks : bool
        Whether runs may be parked here.
    devices : tuple of Device
        Those of the node.
    fences : bool
        Whether its runs are stopped where the matcher does not hear it.
    """

    incarnation: str
    runs: dict[Key, LocalRun] = {}
    draining: bool = False
    told_leaving: bool = False
    postponed: dict[Key, float] = {}
    shared: dict[Key, SharingProgress] = {}
    resumes: dict[Key, Resume] = {}
    code: dict[Key, CodeProgress] = {}
    unheard_s: float = 0.0
    alone_s: float | None = None
    parked: dict[str, ParkedRun] = {}
    leaving: frozenset[str] = frozenset()
    parks: bool = False
    devices: tuple[Device, ...] = ()
    fences: bool = False

    def hold_s(self, patience_s: float) -> float:
        """Return after how long without the matcher the runs of a grant are stopped; 0: they are not."""
        return HOLD * patience_s if self.fences else 0.0

    def busy_devices(self) -> dict[int, Sharing]:
        """Return the devices that a process is on, and how it has them."""
        return {index: run.sharing for run in self.runs.values() if run.alive for index in run.devices}


WANTS_MEMORY: Final = re.compile(r"MemoryError|out ?of ?memory|allocate memory|bad_alloc", re.IGNORECASE)
STOPPING: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Signals with which a node is stopped, and that what stops it may send to all that runs there."""
_VANISHING: Final = frozenset(
    {signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL}
)
"""Beside KILL; not ABRT, with which a program gives up by itself, often because a peer of it is gone."""
NOT_FOUND: Final = 127
"""What a shell says of a program that it cannot find."""


def started(run: LocalRun, node_id: str) -> RunStarted:
    """Return the fact that a run has begun on a node."""
    return compose(RunStarted, run, node_id=node_id, at_s=run.started_s)


class NodeStop(NamedTuple):
    """
    Whether a node of a run is being stopped.

    Attributes
    ----------
    why : str
        In one sentence; empty where none is.
    is_elsewhere : bool
        Whether it is another node than this one: then the gang's processes here fail for want of those there.
    """

    why: str = ""
    is_elsewhere: bool = False


STAYING: Final = NodeStop()


def is_stopping_signal(code: int | None) -> bool:
    """
    Say whether a process was ended by a signal with which a node is stopped.

    Examples
    --------
    >>> is_stopping_signal(143), is_stopping_signal(137), is_stopping_signal(None)
    (True, False, False)
    """
    return code is not None and code - 128 in STOPPING


def ended(
    run: LocalRun, job: Job, node_id: str, now_s: float, limit_s: float = 0.0, *, stop: NodeStop = STAYING
) -> RunEnded:
    """
    Return the fact that ends a run without living processes; of its loop it has what its first process reported last.

    Parameters
    ----------
    job : Job
        The job as the log has it, with any request to stop it.
    limit_s : float
        The time limit that ended the run; 0 if none did.
    stop : NodeStop
        Whether one of its nodes is being stopped.
    """
    outcome, reason, rank = _verdict(run, job, limit_s, stop)
    first = run.ranks.get(0, RunProcess())
    of_this_run = job.checkpoint is not None and job.checkpoint.generation == run.epoch  # on whichever of its nodes
    saved = max(first.saved_step, run.resumed_step, job.checkpoint_step if of_this_run else 0)
    wanted = bool(WANTS_MEMORY.search(rank.last_line))
    return compose(
        RunEnded,
        run,
        first.report,
        node_id=node_id,
        at_s=now_s,
        outcome=outcome,
        parked=outcome == "preempted" and run.parked,
        exit_code=NOT_FOUND
        if run.refused and not run.refuses_user and not job.sample
        else 0
        if rank.unflushed
        else rank.exit_code,
        reason=reason,
        steps=saved if outcome == "preempted" else first.report.step,
        samples=first.saved_samples if outcome == "preempted" else first.report.samples,
        peak_memory_bytes=first.peak_bytes,
        out_of_memory=outcome == "failed" and (run.ending == "memory" or (wanted and run.ending != "host_memory")),
        killed=outcome == "failed" and rank.failed and _vanished(run, rank) and run.ending != "host_memory",
    )


def _verdict(run: LocalRun, job: Job, limit_s: float, stop: NodeStop) -> tuple[Outcome, str, RunProcess]:
    if run.refused:
        return "preempted" if run.refuses_user else "failed", run.refused, RunProcess()
    rank, ending = _decisive(run), _ending(run, job)
    if not any(each.failed for each in run.ranks.values()):
        termed = ending == "preempted" and run.termed_s and not all(each.done for each in run.ranks.values())
        stopped = ending in {"", "preempted"} and any(each.stopped and not each.done for each in run.ranks.values())
        if termed or stopped:  # it has heeded TERM, whoever sent it, as programs do that save then
            return "preempted", run.why or job.reason or stop.why, rank
        return "completed", "", rank
    if run.unfit and run.crashed and ending != "cancelled":
        return "lost", f"{run.unfit}; {_reason(run, rank)}", rank
    outcome, reason = _outcome(run, job, ending, rank, limit_s)
    if outcome == "failed" and ending in {"", "preempted", "gang"} and _is_stopped(run, stop):
        return "preempted", f"{stop.why or _STOPPED}; {reason}", rank
    return outcome, reason or (stop.why if outcome == "preempted" else ""), rank


_STOPPED: Final = "its node was being stopped"


def _is_stopped(run: LocalRun, stop: NodeStop) -> bool:
    """Return whether a run's failure comes of the stop of one of its nodes, as far as can be known."""
    return stop.is_elsewhere or (not run.crashed and any(rank.stopped for rank in run.ranks.values()))


def _outcome(run: LocalRun, job: Job, ending: Ending, rank: RunProcess, limit_s: float) -> tuple[Outcome, str]:
    if ending == "cancelled":
        return "cancelled", job.reason or "cancelled"
    if ending in {"time_limit", "memory", "host_memory", "hang"}:
        return "failed", run.why or f"the sample took longer than {limit_s:g} s and was ended"
    if not run.crashed and ending == "preempted":
        return "preempted", run.why or job.reason
    if not run.crashed and ending == "gang" and not _vanished(run, rank):
        return "preempted", "ended because its gang ended on another node"
    if rank.exit_code is None:
        return "lost", "its processes vanished without an exit status: was the machine restarted?"
    return "failed", _reason(run, rank)


def _ending(run: LocalRun, job: Job) -> Ending:
    """Return why the run was ended; the log knows it too, if the executor was killed before it could note it."""
    if job.state is JobState.COMPLETING:
        return "cancelled"
    left = all(rank.exit_code in (0, EXIT_PREEMPTED) or rank.leaving for rank in run.ranks.values())
    return "preempted" if left and not run.ending and job.state is JobState.PREEMPTING else run.ending


def _decisive(run: LocalRun) -> RunProcess:
    """
    Return the process that decides how the run ended: the lowest one if all went well.

    Otherwise it is a process that was killed, or else the one that failed first, as far as the order was seen.
    """
    ranks = [run.ranks[index] for index in sorted(run.ranks)]
    failed = [rank for rank in ranks if rank.failed]
    return min(failed, key=lambda rank: (not _vanished(run, rank), rank.ended_s), default=ranks[0])


def _vanished(run: LocalRun, rank: RunProcess) -> bool:
    """Return whether a process was ended by a signal that this node did not send."""
    signum = None if rank.exit_code is None else rank.exit_code - 128
    if signum in (None, signal.SIGKILL):
        return not run.killed_s or rank.ended_s < run.killed_s
    return signum in _VANISHING and (not run.termed_s or rank.ended_s < run.termed_s)


def _reason(run: LocalRun, rank: RunProcess) -> str:
    index = next(index for index, each in run.ranks.items() if each is rank)
    who = f"rank {index} of {run.world_size}: " if run.world_size > 1 else ""
    last = f": {rank.last_line}" if rank.last_line else ""
    return who + exit_text(rank.exit_code or 0) + last + _cap_text(run, rank)


def _cap_text(run: LocalRun, rank: RunProcess) -> str:
    """Return what a process may hold of its device, where it ended for want of memory."""
    if not run.cap_bytes or not WANTS_MEMORY.search(rank.last_line):
        return ""
    return f"; it may hold {run.cap_bytes / 2**20:,.0f} MiB of its device, which it shares"


def exit_text(code: int) -> str:
    """
    Return an exit code as people write it.

    Examples
    --------
    >>> exit_text(1), exit_text(139)
    ('exit code 1', 'signal SIGSEGV (exit code 139)')
    """
    try:
        return f"signal {signal.Signals(code - 128).name} (exit code {code})"
    except ValueError:
        return f"exit code {code}"
