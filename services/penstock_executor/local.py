"""What this node knows of its own runs: processes, what they said, and how far their end has come."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from penstock_events import Job
from penstock_events.agent import EXIT_PREEMPTED
from penstock_executor.checkpoints import Resume

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
    """Return how a job's run has its devices; a sample has them alone, since it is to show how fast the job can be."""
    return "exclusive" if job.sample else job.spec.sharing


class Rank(msgspec.Struct, kw_only=True):
    """
    One process of a run.

    Attributes
    ----------
    exit_code : int or None
        As the shell counts: 128 + the signal's number where a signal ended it. None while it runs, and for ever if
        it vanished without one.
    ended_s : float
        When the executor learned of its end; 0 while it runs.
    greeted : bool
        It speaks the agent protocol.
    step, loop_steps, loop_s, waited_s, metrics, diverged, skew, batch_size, samples, iteration_s, error_s
        From its last words.
    saves : bool
        It can save a checkpoint when it is asked to stop.
    peak_bytes : int
        The most memory that it said it held of one device.
    saved_step, saved_samples : int
        Of its last complete checkpoint in this run.
    leaving : bool
        It saved a checkpoint because it was asked to stop.
    done : bool
        It said that it left its session in good order, all steps done.
    crowded : bool
        It reported more metrics, or longer names, than are kept.
    last_line : str
        Last line of its standard error.
    """

    exit_code: int | None = None
    ended_s: float = 0.0
    greeted: bool = False
    step: int = 0
    loop_steps: int = 0
    loop_s: float = 0.0
    waited_s: float = 0.0
    metrics: dict[str, float] = {}
    diverged: tuple[str, ...] = ()
    skew: float = 0.0
    batch_size: int = 0
    samples: int = 0
    iteration_s: float = 0.0
    error_s: float = 0.0
    saves: bool = False
    peak_bytes: int = 0
    saved_step: int = 0
    saved_samples: int = 0
    leaving: bool = False
    done: bool = False
    crowded: bool = False
    last_line: str = ""

    @property
    def alive(self) -> bool:
        """Whether its process is still there."""
        return not self.ended_s

    @property
    def failed(self) -> bool:
        """Whether it ended in anything but success; that its last output found no room is no failure."""
        return not self.alive and self.exit_code != 0 and not self.unflushed

    @property
    def unflushed(self) -> bool:
        """Whether all it failed in was to write the end of its output: the work was done before."""
        return self.done and self.exit_code == EXIT_UNFLUSHED


class Run(msgspec.Struct, kw_only=True):
    """
    One epoch of a job on this node.

    Attributes
    ----------
    world_size : int
        Processes of the whole gang, on all of its nodes.
    ranks : dict of int to Rank
        Those of this node.
    refused : str
        Why nothing was started; empty where something was.
    asked_s, termed_s, killed_s : float
        When it was asked to stop, got TERM, and got KILL; 0 where not yet.
    resumed_step, resumed_generation, resumed_digest : int, int, str
        Of the checkpoint that its processes are to load; 0 where there is none.
    begun_from : str
        The other job whose checkpoint that is.
    copied_from : str
        The node from which it was copied for this run.
    ending : Ending
        Why it got them.
    answers : dict of int to int
        Steps done by each rank of the gang when asked to stop, as far as known.
    held : set of int
        Ranks of this node that begin no further step before they hear where to stop.
    absent : set of int
        Ranks on other nodes that have ended, by the log.
    stop_step : int or None
        The step that the gang agreed to stop after.
    sharing : {"exclusive", "lane", "fraction"}
        How it has its devices.
    cap_bytes : int
        The most that it may hold of a device; 0 where nothing says so.
    why : str
        Why this node ends it, in one sentence, where neither the log nor ``ending`` says.
    told : set of str
        Facts already on their way to the log: ``started``, ``ended``, ``rewound``, and warnings that are given once.
    """

    job_id: str
    epoch: int
    devices: tuple[int, ...] = ()
    world_size: int = 1
    ranks: dict[int, Rank] = {}
    started_s: float = 0.0
    refused: str = ""
    asked_s: float = 0.0
    termed_s: float = 0.0
    killed_s: float = 0.0
    resumed_step: int = 0
    resumed_generation: int = 0
    resumed_digest: str = ""
    begun_from: str = ""
    copied_from: str = ""
    ending: Ending = ""
    answers: dict[int, int] = {}
    held: set[int] = set()
    absent: set[int] = set()
    stop_step: int | None = None
    sharing: Sharing = "exclusive"
    why: str = ""
    cap_bytes: int = 0
    told: set[str] = msgspec.field(default_factory=set)

    @property
    def key(self) -> Key:
        """Its name on this node."""
        return self.job_id, self.epoch

    @property
    def devices_of(self) -> dict[int, tuple[int, ...]]:
        """Each process's devices: one each where there are as many, all of them where it is one process."""
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
        """Whether any of its processes ended badly by itself: before TERM, and not because it was asked to leave."""
        return any(
            rank.failed
            and not (rank.leaving or rank.exit_code == EXIT_PREEMPTED)
            and (not self.termed_s or rank.ended_s < self.termed_s)
            for rank in self.ranks.values()
        )

    @property
    def greeted(self) -> bool:
        """Whether any of its processes can be asked to stop."""
        return any(rank.greeted for rank in self.ranks.values())


class Seat(msgspec.Struct, frozen=True):
    """
    How far a run has come that is to share its devices.

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


class Observed(msgspec.Struct, kw_only=True):
    """
    What the node sees of itself when it decides.

    Attributes
    ----------
    incarnation : str
        Of this start of the executor.
    runs : dict of (job id, epoch) to Run
    draining : bool
        The executor is being stopped, and its runs are to go elsewhere.
    postponed : dict of (job id, epoch) to float
        Runs that could not be started for want of room on the disk, and when to try again.
    seats : dict of (job id, epoch) to Seat
        Of the runs that take turns with others.
    resumes : dict of (job id, epoch) to Resume
        Of the runs that are to start: what they go on from, as far as that is known and here.
    """

    incarnation: str
    runs: dict[Key, Run] = {}
    draining: bool = False
    postponed: dict[Key, float] = {}
    seats: dict[Key, Seat] = {}
    resumes: dict[Key, Resume] = {}

    def busy_devices(self) -> dict[int, Sharing]:
        """Return the devices that a process is on, and how it has them."""
        return {index: run.sharing for run in self.runs.values() if run.alive for index in run.devices}
