"""
What a job's process and its node's executor say to each other, over a Unix socket, one JSON object a line.

The executor listens; every process of a job connects, says :class:`Hello` and goes on. To preempt a gang without losing
or repeating a step, all of its processes must stop after the same one although none may wait for the others inside a
collective operation: the executor asks (:class:`StopRequest`), each answers (:class:`StepReached`) and goes on for at
most ``STOP_MARGIN`` steps; with all answers in, the executor names the step (:class:`StopAtStep`): the largest answer
plus the margin, which nobody can have passed.

Each answers as soon as it is asked, from within a step too: a process that waits inside a collective operation for a
peer that waits at its margin would reach no boundary. Only before its first step it answers when the loop begins.

A process that takes turns on its device may wait for one for long, or for ever, where there is no memory for it any
more. So between two steps it may answer that it is ``held``: it begins none before it hears the verdict, and needs no
margin. If all of a gang are, they leave after the step that they have done.
Rank 0 alone sends :class:`CheckpointSaved`; the last message of the others is :class:`StepProgress`.

A process that is a gang by itself may be parked in place of leaving. It is told so with the step; having saved its
checkpoint it says :class:`ReadyToPark` and waits. It is stopped then, and hears :class:`GoOn` when it goes on as a
later run of its job: it says :class:`Hello` on a new connection, and has nothing to load. If it hears
:class:`StopAtStep` once more, or the connection ends, it leaves.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Annotated, Final, Optional, Union

import msgspec
from msgspec import Meta

from penstock_log.spec import CheckpointTier

VERSION: Final = 1
Count = Annotated[int, Meta(ge=0, le=2**53)]
Seconds = Annotated[float, Meta(ge=0)]
Digest = Annotated[str, Meta(max_length=64)]
NodeName = Annotated[str, Meta(max_length=256)]
Share = Annotated[float, Meta(ge=0, le=1)]
MOST_METRICS: Final = 256
LONGEST_METRIC: Final = 128
"""A session keeps so many metrics, by names of so many characters; what is more is left out, and that is said once."""
STOP_MARGIN: Final = 2
"""Steps a process may go on after answering; two, because processes of one gang are at most one step apart."""


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """First line of a process, at every connection."""

    version: int
    job_id: str
    epoch: int
    rank: int
    pid: int
    step: Count = 0


class MemoryReport(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a process holds of its device's memory, measured between two steps.

    Attributes
    ----------
    allocated_bytes : int
        What stays from step to step: P, once optimizer state is there.
    peak_bytes : int
        The most that was allocated since the last measurement: P + E.
    reserved_bytes : int
        What the framework's allocator has taken from the device. What the device says that the process holds, less
        this, is F.
    on_device : bool
        Whether it was measured on a device; else it is the process's resident memory on the host.
    """

    allocated_bytes: Count
    peak_bytes: Count
    reserved_bytes: Count = 0
    on_device: bool = False


class LoopReport(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a process says of its loop; of a run's first process it goes on, whole, to the end of the run in the log.

    Fields that :class:`penstock_log.RunEnded` has by the same name are carried there.

    Attributes
    ----------
    step : int
        Counted from the job's very beginning.
    loop_steps, loop_s : int, float
        Iterations of this run, and the seconds that they took.
    waited_s : float
        What it waited for its turns, between its iterations.
    saves : bool
        Whether it can save a checkpoint.
    diverged : tuple of str
        Metrics whose last value is no finite number.
    batch_size : int
        Of one step over all processes, as the script uses it; 0 where it has not asked.
    samples : int
        Those that its sampler has handed out and that were done, over all runs and epochs.
    iteration_s, error_s : float
        Mean of the measured iterations of this run, and its standard error.
    """

    step: Count
    loop_steps: Count
    loop_s: Seconds
    waited_s: Seconds = 0.0
    saves: bool = False
    metrics: dict[str, float] = {}
    diverged: tuple[str, ...] = ()
    skew: Share = 0.0
    memory: Optional[MemoryReport] = None
    batch_size: Count = 0
    samples: Count = 0
    iteration_s: Seconds = 0.0
    error_s: Seconds = 0.0


class StepProgress(LoopReport, frozen=True, kw_only=True, tag="progress"):
    """Where the process is; sent a few times a second at most."""


class StepReached(msgspec.Struct, frozen=True, kw_only=True, tag="at"):
    """
    Answer to :class:`StopRequest`: this many steps are done; ``held``: none is begun before :class:`StopAtStep` is
    heard.
    """

    step: Count
    held: bool = False


class CheckpointSaved(msgspec.Struct, frozen=True, kw_only=True, tag="saved"):
    """
    A checkpoint after this step, and so many samples, is complete; ``leaving`` where the process exits next.

    ``digest`` is the SHA-256 of its manifest; empty where it has none. ``tier`` says where it is complete, ``peers``
    which nodes have a copy each in memory, and ``fallback`` why it is on the disk where memory was asked for.
    """

    step: Count
    leaving: bool = False
    samples: Count = 0
    digest: Digest = ""
    tier: CheckpointTier = "disk"
    peers: Annotated[tuple[NodeName, ...], Meta(max_length=8)] = ()
    fallback: Annotated[str, Meta(max_length=1000)] = ""


class SaveFailed(msgspec.Struct, frozen=True, kw_only=True, tag="save_failed"):
    """The checkpoint could not be written; the one before is untouched, and the process goes on."""

    step: Count
    error: str


class ReadyToPark(msgspec.Struct, frozen=True, kw_only=True, tag="parks"):
    """The checkpoint after this step is complete, and the process waits to be stopped with its memory kept."""

    step: Count


class SessionDone(LoopReport, frozen=True, kw_only=True, tag="done"):
    """The session was left in good order: last step and last metrics."""


class StopRequest(msgspec.Struct, frozen=True, kw_only=True, tag="stop"):
    """Answer with the steps that are done: the run is about to be preempted."""


class StopAtStep(msgspec.Struct, frozen=True, kw_only=True, tag="stop_at"):
    """
    Save a checkpoint after this step, say :class:`CheckpointSaved` with ``leaving``, and exit with
    :data:`EXIT_PREEMPTED`.

    A process that is a gang by itself may leave after an earlier one. Where it may ``park``, it may say
    :class:`ReadyToPark` in place of exiting.
    """

    step: Count
    park: bool = False


class GoOn(msgspec.Struct, frozen=True, kw_only=True, tag="go_on"):
    """Go on as the run of this epoch, where the process has stopped: the last line on the earlier run's connection."""

    epoch: Count


class HoldMemory(msgspec.Struct, frozen=True, kw_only=True, tag="hold"):
    """
    Have the framework's allocator hold no more than this share of each device's memory, from a boundary soon.

    Said at each connection and whenever it changes, to processes that share GPUs; what they begin with is in their
    environment. On devices whose memory is the host's, the kernel's limit is set instead.
    """

    fraction: Annotated[float, Meta(gt=0, le=1)]


class TimeLeft(msgspec.Struct, frozen=True, kw_only=True, tag="time_left"):
    """
    How long the job may still run, in seconds; None: as long as it likes.

    Said at each connection of a job with a time limit, whenever that changes, and as a ``warning`` once it is short.
    """

    left_s: Optional[Seconds] = None
    warning: bool = False


def kept_metrics(names: Iterable[str]) -> list[str]:
    """
    Return which of the metrics are kept, in their order.

    Examples
    --------
    >>> kept_metrics(["loss", "x" * 129, "accuracy"])
    ['loss', 'accuracy']
    """
    return list(islice((name for name in names if len(name) <= LONGEST_METRIC), MOST_METRICS))


class ConnectionRefused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The last line to a process that may not speak for the run that it names, and why."""

    reason: str


FromJob = Union[Hello, StepProgress, StepReached, CheckpointSaved, SaveFailed, ReadyToPark, SessionDone]
ToJob = Union[StopRequest, StopAtStep, GoOn, HoldMemory, TimeLeft, ConnectionRefused]

EXIT_PREEMPTED: Final = 75
"""``EX_TEMPFAIL``: the process stopped because it was asked to, and will go on elsewhere."""


class AgentEnv:
    """Environment variables that a job's processes find."""

    JOB_ID: Final = "PENSTOCK_JOB_ID"
    EPOCH: Final = "PENSTOCK_EPOCH"
    STARTS: Final = "PENSTOCK_STARTS"  # how many runs of the job have begun before this one
    EXECUTED_S: Final = "PENSTOCK_EXECUTED_S"  # for how many seconds these ran, which count for its time limit
    NODE: Final = "PENSTOCK_NODE"
    RANK: Final = "PENSTOCK_RANK"
    LOCAL_RANK: Final = "PENSTOCK_LOCAL_RANK"
    WORLD_SIZE: Final = "PENSTOCK_WORLD_SIZE"
    SOCKET: Final = "PENSTOCK_SOCKET"
    PROCESS: Final = "PENSTOCK_PROCESS"  # path of the process's folder on its node; all that it starts ends with it
    HEARD: Final = "PENSTOCK_HEARD"  # path of the page with the time of the node's last heartbeat that was answered
    HOLD_S: Final = "PENSTOCK_HOLD_S"  # seconds after it at which the process must not go on
    LANES: Final = "PENSTOCK_LANES"  # path of the token broker's socket; only where the job takes turns on its devices
    MEMORY_SOCKET: Final = "PENSTOCK_MEMORY_SOCKET"  # path of the socket of the node's memory agent, where there is one
    AGGREGATION: Final = "PENSTOCK_AGGREGATION"  # shared, own or none, as the job has it
    AGGREGATION_SERVERS: Final = "PENSTOCK_AGGREGATION_SERVERS"  # aggregators that it has as its own
    AGGREGATION_SOCKET: Final = "PENSTOCK_AGGREGATION_SOCKET"  # path of the socket of the node's aggregation agent
    AGGREGATION_TOKEN: Final = "PENSTOCK_AGGREGATION_TOKEN"  # noqa: S105 - a name; what proves to it of which run one is
    CHECKPOINT_DIR: Final = "PENSTOCK_CHECKPOINT_DIR"
    CHECKPOINT_S: Final = "PENSTOCK_CHECKPOINT_S"
    CHECKPOINT_MEMORY: Final = "PENSTOCK_CHECKPOINT_MEMORY"  # folder in memory; only where the job has that tier
    CHECKPOINT_MOST: Final = "PENSTOCK_CHECKPOINT_MOST"  # bytes of a checkpoint that may be in that folder
    RESUME_STEP: Final = "PENSTOCK_RESUME_STEP"  # of the checkpoint to load; 0: none; unset: the newest there is
    BEGIN_DIR: Final = "PENSTOCK_BEGIN_DIR"  # another job's checkpoints, to begin from where there are none
    BEGIN_STEP: Final = "PENSTOCK_BEGIN_STEP"  # of the one to load of those; 0: none; unset: the newest there is
    SAVE_AT_END: Final = "PENSTOCK_SAVE_AT_END"  # 1: save a checkpoint when all is done as well
    SESSION: Final = "PENSTOCK_SESSION"  # only of what somebody runs beside the program: their session
    PARAMS: Final = "PENSTOCK_PARAMS"  # a JSON object
    BATCH_SIZE: Final = "PENSTOCK_BATCH_SIZE"
    BASE_BATCH_SIZE: Final = "PENSTOCK_BASE_BATCH_SIZE"  # for which the script's learning rate is meant
    LR_RULE: Final = "PENSTOCK_LR_RULE"  # keep, linear, sqrt or callback
    SAMPLE_ITERATIONS: Final = "PENSTOCK_SAMPLE_ITERATIONS"  # only in a profiler's sample
    DEVICE_KIND: Final = "PENSTOCK_DEVICE_KIND"
    NODES: Final = "PENSTOCK_NODES"  # the run's nodes in the order of its ranks, as `n1:4 n2:4`: with its devices there
    CODE_DIR: Final = "PENSTOCK_CODE_DIR"  # the run's copy of the uploaded folder, if there is one
    PYTHON: Final = "PENSTOCK_PYTHON"  # the executor's interpreter
    DEVICES: Final = "PENSTOCK_DEVICES"  # this process's device numbers, with commas
    BACKEND: Final = "PENSTOCK_BACKEND"
    EMULATED_SPEED: Final = "PENSTOCK_EMULATED_SPEED"  # only on an emulated device
    MEMORY_BYTES: Final = "PENSTOCK_MEMORY_BYTES"  # most of each device's memory; only of a job that shares it
    MEMORY_LOCAL: Final = "PENSTOCK_MEMORY_LOCAL"  # bytes that borrowed memory's files may keep on the host, if said
    MEMORY_SPILL: Final = "PENSTOCK_MEMORY_SPILL"  # bytes of a file in borrowed memory that says no size, if said
    MEMORY_FRACTION: Final = "PENSTOCK_MEMORY_FRACTION"  # the same for torch's allocator, as part of the device
