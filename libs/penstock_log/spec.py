"""
Specifications: what people ask for as jobs and sweeps, what a device is, and the published schemas.

:class:`JobSpec` and :class:`SweepSpec` are what users write. :func:`job_schema` and :func:`sweep_schema` make the JSON
Schemas from these Structs and their docstrings.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Optional, Union

import msgspec
from msgspec import Meta

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$", description="letters, digits, - and _")]
GroupName = Annotated[
    str,
    Meta(pattern=r"^([A-Za-z0-9][A-Za-z0-9_-]{0,62})?$", description="letters, digits, - and _; empty: in no group"),
]
ClassName = Annotated[
    str,
    Meta(pattern=r"^([A-Za-z0-9][A-Za-z0-9_-]{0,62})?$", description="letters, digits, - and _; empty: of no class"),
]
EntityId = Annotated[
    str,
    Meta(
        pattern=r"^([a-z0-9][a-z0-9_-]{0,62})?$",
        description="lower-case letters, digits, - and _; empty: given by the gateway",
    ),
]
Param = Union[str, int, float, bool]
Setting = Optional[Union[str, bool, int, float, list[Union[str, float]]]]
"""A value as TOML has it; None where a setting is to be off."""
Role = Literal["viewer", "user", "operator", "admin"]
"""Roles of people, each with the rights of those before it: docs/access.md has the table."""
MOST_GPUS: Final = 65_536
MOST_SAMPLES: Final = 2**31
Gpus = Annotated[int, Meta(ge=1, le=MOST_GPUS)]
Size = Annotated[int, Meta(ge=0, le=2**53)]
"""Beyond 53 bits, programs that read JSON numbers as floats see another number."""
Share = Annotated[float, Meta(ge=0, le=1)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
"""Thirty years; sums and doublings of it stay finite."""
Dependency = Annotated[
    str,
    Meta(
        pattern=r"^(after|afterok|afterany|afternotok|aftercorr):[a-z0-9][a-z0-9_-]*$",
        max_length=80,
        description="after:ID, afterok:ID, afterany:ID or afternotok:ID, with the id of a job, an array or a sweep",
    ),
]
"""What a job waits for, in Slurm's words: that another has started, completed, ended, or ended without completing."""
Module = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$",
        max_length=200,
        description="the name of a Python module, such as torch or torch.optim",
    ),
]
Outcome = Literal["completed", "failed", "preempted", "cancelled", "lost"]
NotifyKind = Literal["started", "completed", "failed", "timed_out", "cancelled", "preempted"]
"""What becomes of a job that people may want to be told."""
WarnSignal = Literal["", "HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "TERM", "URG", "WINCH"]
CheckpointTier = Literal["disk", "memory"]
"""Where a checkpoint is that counts as saved: on a disk, or in the memory of two peers."""
AggregationMode = Literal["shared", "own", "none"]
"""Whether a job's aggregators are shared with others, its own, or none."""
ContainerRuntime = Literal["docker", "podman", "apptainer", "bubblewrap"]
"""What runs images on a node: the engines of containers, and the programs that need none."""
Image = Annotated[
    str,
    Meta(
        pattern=r"^(/[^\x00-\x1f]*|[A-Za-z0-9][A-Za-z0-9._:/@-]*)?$(?!\n)",
        max_length=512,
        description="the name of an image, such as pytorch/pytorch:2.4.0, or the full path of a folder or a .sif file",
    ),
]
NodeShape = tuple[int, tuple[str, ...], tuple[str, ...]]
"""Of how many devices a node gives a multiple, on which nodes alone, and on which not."""
HostDemand = tuple[float, int, int, str, tuple[str, ...], NodeShape]
"""Processors, bytes in two ways, its image, nodes that refuse its user, and what it asks of its nodes."""
MOST_NODES_NAMED: Final = 1_000
NodeName = Annotated[str, Meta(min_length=1, max_length=128)]
MOST_SERVERS: Final = 64
MOST_DEFAULT_WARNING_S: Final = 60.0
MOST_DEPENDENCIES: Final = 1_000
MOST_MODULES: Final = 100
BESIDE_LOCAL_BYTES: Final = 2**30
"""Of its host's memory beside ``local_memory_bytes``, for the program: no less than one that asks for nothing has."""


class MemoryNeed(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    What a job needs of one device's memory.

    Attributes
    ----------
    persistent_bytes : int
        Held from the first iteration to the last (P): model, optimizer.
    framework_bytes : int
        Held beside what the framework's allocator sees (F): its context, its libraries.
    ephemeral_bytes : int
        The most that an iteration takes and gives back at its end (E).

    Raises
    ------
    ValueError
        If one of them is negative.
    """

    persistent_bytes: Size = 0
    framework_bytes: Size = 0
    ephemeral_bytes: Size = 0

    def __post_init__(self) -> None:
        if min(self.persistent_bytes, self.framework_bytes, self.ephemeral_bytes) < 0:
            raise ValueError(f"{self} has a negative part; expected 0 or more bytes of each")

    @property
    def resident_bytes(self) -> int:
        """Held between iterations too: P + F."""
        return self.persistent_bytes + self.framework_bytes

    @property
    def alone_bytes(self) -> int:
        """What it takes to run at all: P + F + E."""
        return self.persistent_bytes + self.framework_bytes + self.ephemeral_bytes


class Batch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    Which batch sizes a job may be given; all of them over all of its devices together.

    Attributes
    ----------
    min, max : int
        The smallest and the largest.
    step : int
        Between two that are tried: ``min``, ``min + step``, … up to ``max``.
    per_gpu_max : int
        Most samples that one device holds; 0: as its memory allows, as measured.
    base : int
        The batch size for which the script's learning rate is meant; 0: the job's ``batch_size``, or else ``min``.
    lr : {"keep", "linear", "sqrt", "callback"}
        What becomes of the learning rate at another batch size: nothing; it goes with the batch size, or with its
        square root; or the script's own function says.

    Raises
    ------
    ValueError
        If the smallest is larger than the largest, or ``base`` lies outside of them.
    """

    min: Annotated[int, Meta(ge=1, le=MOST_SAMPLES)]
    max: Annotated[int, Meta(ge=1, le=MOST_SAMPLES)]
    step: Annotated[int, Meta(ge=1, le=MOST_SAMPLES)] = 1
    per_gpu_max: Annotated[int, Meta(ge=0, le=MOST_SAMPLES)] = 0
    base: Annotated[int, Meta(ge=0, le=MOST_SAMPLES)] = 0
    lr: Literal["keep", "linear", "sqrt", "callback"] = "keep"

    def __post_init__(self) -> None:
        if self.min > self.max:
            raise ValueError(f"min is {self.min} and max {self.max}; expected the smallest batch first")
        if self.base and not self.min <= self.base <= self.max:
            raise ValueError(f"base is {self.base}; expected one from min ({self.min}) to max ({self.max})")


class ArrayMember(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    Which job of an array one is.

    Attributes
    ----------
    id : str
        Of the array; that of the job is this, a hyphen and its index.
    index : int
    count : int
        How many jobs the array has.
    min, max, step : int
        Its smallest and its largest index, and what lies between two; 1 where that is not always the same.
    most : int
        Most of its jobs that run at a time; 0: any number.
    """

    id: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,52}$")]
    index: Annotated[int, Meta(ge=0, le=10**9)]
    count: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    min: Annotated[int, Meta(ge=0, le=10**9)] = 0
    max: Annotated[int, Meta(ge=0, le=10**9)] = 0
    step: Annotated[int, Meta(ge=1, le=10**9)] = 1
    most: Annotated[int, Meta(ge=0, le=1_000_000)] = 0


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    One job, as its user describes it. Nothing here asks how long it will run.

    Attributes
    ----------
    name : str
        For people; need not be unique.
    command : tuple of str
        The program and its arguments; started once on every device (see ``processes``).
    id : str
        Wished id. The same id with equal content is the same job; with other content it is a conflict.
    user, team : str
        Whose job it is; filled in by the client.
    pool : str
        The set of nodes it may run on.
    gpus : int
        Devices, all of one kind and all at once (a gang where more than one). Of an elastic job, as many as it has at
        present. ``"1..8"`` is short for 1, with ``min_gpus = 1`` and ``max_gpus = 8``.
    min_gpus, max_gpus : int
        Between how many devices an elastic job may be given; both 0: always ``gpus``.
    gpus_per_node : int
        Of its devices, a node gives a whole multiple of so many, so that two of four are not spread as three and five;
        as many as ``gpus``: all on one node. 0: any number.
    nodes, exclude : tuple of str
        Nodes on which alone it may run, and nodes on which it may not; both empty: all of its pool.
    kinds : tuple of str
        Accepted device kinds; empty means every kind that is not a bare CPU.
    memory_bytes : int
        Least memory of each device; 0 where any will do.
    cpus : float
        Processors of the host for each of its devices; 0: the device's share of its node.
    host_memory_bytes : int
        The host's memory for each of its devices, which it is held to; 0: the device's share of its node.
    local_memory_bytes, spill_bytes : int
        For each of its devices, of files and arrays in borrowed memory (``penstock.memory``): what they may keep in the
        host's own memory, and how large they are where the script does not say. In a file
        ``memory = { local = "2GiB", spill = "16GiB" }``; 0: as the script has it. A job with devices to itself that
        does not say ``host_memory_bytes`` gets no less of the host than the first of these and a GiB for its program.
    model, batch_size
        Name the workload for the profiler. With a model named, arguments do not tell workloads apart. The batch size is
        that of one step over all devices; of an elastic job, the present one.
    batch : Batch or None
        Which other batch sizes it may be given; None: always ``batch_size``.
    digest : str
        Digest of the script, filled in by the client where it can read it.
    opaque : bool
        No file of the command line mentions Penstock, as far as the client can read them: it cannot be sampled. Filled
        in by the client.
    profile : {"auto", "on", "off"}
        Whether an unseen workload is sampled, by short runs of its script on each kind of device, if that script uses
        :func:`penstock.session`. ``auto``: where its ``model`` is named, it is a sweep's, or it is elastic; of any
        other its real runs are measured. ``on``: in any case. ``off``: never.
    processes : {"device", "node"}
        One process for each device, or one for all of a node's devices.
    retries : int
        How often a failed run is tried again.
    backoff_s : float
        Wait before the first retry, in seconds; doubles with each further one.
    grace_s : float
        Seconds between asking a run to stop and TERM, and again between TERM and KILL.
    checkpoint_s : float
        Least seconds between two periodic checkpoints; 0 leaves only those asked for by a preemption.
    checkpoint_tier : {"disk", "memory"}
        Where a checkpoint has to be before it counts as saved. ``memory``: in the memory of two other nodes, and on the
        disk behind; where that is not to be had, on the disk. Short: ``checkpoint = { tier = "memory" }``.
    aggregation : {"shared", "own", "none"}
        How aggregators add up what its processes push, where its script asks for that (``session.aggregate()``).
        ``shared``: on aggregators of its own until it is measured, then on some that it shares with other jobs, as long
        as that costs it no more than a tenth of its speed. ``own``: on its own. ``none``: the script is refused.
    servers : int
        Aggregators that it has as its own; it begins only if so many can be had. In a file both may be said as
        ``aggregation = { mode = "own", servers = 2 }``.
    duration_s : float
        Exclusive run time, if the user happens to know it; 0 where unknown. Used by the matcher, never required.
    skew : float
        Share of the model's largest tensor in all of its tensors, if known; 0 where not. Gangs whose model is skewed
        suffer from being spread over nodes. ``session.describe(model)`` tells it as well.
    env, cwd, params
        Environment, working directory, and hyper-parameters (``session.params``).
    workdir : str
        Folder of the submitter's in which it runs. A client uploads what is in it and names it as ``code``; ``cwd`` is
        then relative to it.
    code : str
        Digest of an uploaded folder, filled in by the client; the same content has the same digest.
    sharing : {"exclusive", "lane", "fraction"}
        ``lane``: the script uses :func:`penstock.session` and takes turns with others on its devices, iteration by
        iteration. ``fraction``: the command runs beside others, in a part of one device's memory.
    fraction : float
        That part, for ``fraction``.
    memory : MemoryNeed or None
        For ``lane``: what it needs of each device, where its user knows; None: it is measured.
    share_with : {"user", "team", "anyone"}
        With whose jobs it may share a device.
    sharers : int
        For ``lane``: most jobs on one of its devices, itself among them; 0: as many as its pool allows.
    priority : int
        The higher, the sooner its turn, on devices whose turns go by priority.
    priority_class : str
        One of the pool's priority classes (``penstock class ls``): it says whether the job comes before others, whom it
        preempts, and how many devices its user's jobs of the class may hold. Empty: none, with weight 0.
    idle : {"rule", "allow"}
        What is done while it holds devices and does nothing. ``rule``: what its pool's rule says. ``allow``: nothing,
        as for a notebook that waits for its user.
    group : str
        A name for jobs that belong together: one request cancels, holds, releases, extends or retries all of them.
    array : ArrayMember or None
        Which job of an array it is; ``penstock submit --array`` fills it in.
    retry_of : str
        The job that failed or was cancelled, and in whose place it runs; filled in by ``penstock retry``.
    secrets : dict of str to str
        Variable of the environment → name of a secret, whose value is read on the node when a run starts, and is never
        in the log. ``secrets = ["wandb"]`` is short for ``secrets = { WANDB = "wandb" }``.
    secret_files : dict of str to str
        The same for secrets that are files: the variable holds the path of a file with the value.
    notify : tuple of NotifyKind
        Of what its user is to be told, by all of the user's rules that are about all jobs (``penstock notify``), beside
        what these say themselves.
    begins_from : str
        Id of a job whose last checkpoint it begins from, as long as it has none of its own. Loops that had ended there
        go on where they ended, if they are longer now.
    keep_checkpoint : bool
        Save a checkpoint at its end too; kept until its sweep is over, or for good where it belongs to none.
    time_limit_s : float
        How long it may run, in seconds over all of its runs; waiting does not count. Then it is asked to save a
        checkpoint and is ended, and has failed; 0: as long as it likes.
    warn_s : float or None
        How long before its time limit it is warned, in seconds: its session saves a checkpoint and tells the script.
        None: a minute, or a tenth of the limit where that is less. 0: not at all.
    warn_signal : str
        A signal that its processes get with the warning, for programs that do not use :func:`penstock.session`.
    hold : bool
        Accept the job, but do not start it before ``penstock release``.
    begin_s : float
        Do not start it before this time, in seconds since the Unix epoch; 0: at once.
    after : tuple of Dependency
        Other jobs or sweeps that it waits for, all of them: ``after:ID`` until that has started, ``afterok:ID`` until
        it has completed, ``afterany:ID`` until it has ended in whatever way, ``afternotok:ID`` until it has failed or
        was cancelled. A job for which that can never come is cancelled. The id of an array stands for all of its jobs,
        and ``afternotok`` comes where all have ended and one of them has failed or was cancelled; ``aftercorr:ID`` is
        ``afterok`` for that job of the array which has the same index.
    image : str
        The image whose files its processes see in place of the node's: the name of one that docker or podman has or
        pulls, or the full path of a folder with a root file system, or of a ``.sif`` file of Apptainer. Its command is
        run in place of the image's own, and its entry point is not. Empty: they see the node's files.
    preload : tuple of Module
        Installed Python modules that its executors keep imported, so that its processes start warm, with these already
        there; where they cannot, they start as always. Without them executors go by what earlier runs have imported.
    parent : str
        The sweep this job is a trial of.
    refused_by : tuple of str
        Nodes that run no jobs of its user, as the log says by now; what is submitted says nothing of it.
    """

    name: Name
    command: Annotated[tuple[str, ...], Meta(min_length=1)]
    id: EntityId = ""
    user: str = ""
    team: str = ""
    pool: Name = "default"
    gpus: Gpus = 1
    kinds: tuple[Name, ...] = ()
    memory_bytes: Size = 0
    cpus: Annotated[float, Meta(ge=0, le=MOST_GPUS)] = 0.0
    host_memory_bytes: Size = 0
    local_memory_bytes: Size = 0
    spill_bytes: Size = 0
    gpus_per_node: Annotated[int, Meta(ge=0, le=MOST_GPUS)] = 0
    nodes: Annotated[tuple[NodeName, ...], Meta(max_length=MOST_NODES_NAMED)] = ()
    exclude: Annotated[tuple[NodeName, ...], Meta(max_length=MOST_NODES_NAMED)] = ()
    min_gpus: Annotated[int, Meta(ge=0, le=MOST_GPUS)] = 0
    max_gpus: Annotated[int, Meta(ge=0, le=MOST_GPUS)] = 0
    model: str = ""
    batch_size: Size = 0
    batch: Optional[Batch] = None
    digest: str = ""
    opaque: bool = False
    profile: Literal["auto", "on", "off"] = "auto"
    processes: Literal["device", "node"] = "device"
    retries: Annotated[int, Meta(ge=0, le=100)] = 0
    backoff_s: Seconds = 1.0
    grace_s: Seconds = 10.0
    checkpoint_s: Seconds = 60.0
    checkpoint_tier: CheckpointTier = "disk"
    aggregation: AggregationMode = "shared"
    servers: Annotated[int, Meta(ge=1, le=MOST_SERVERS)] = 1
    duration_s: Seconds = 0.0
    skew: Share = 0.0
    env: dict[str, str] = {}
    cwd: str = ""
    workdir: str = ""
    code: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?$", description="a SHA-256; a client fills it in")] = ""
    params: dict[str, Param] = {}
    sharing: Literal["exclusive", "lane", "fraction"] = "exclusive"
    fraction: Annotated[float, Meta(gt=0, le=1)] = 1.0
    memory: Optional[MemoryNeed] = None
    share_with: Literal["user", "team", "anyone"] = "team"
    sharers: Annotated[int, Meta(ge=0, le=1000)] = 0
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    priority_class: ClassName = ""
    idle: Literal["rule", "allow"] = "rule"
    group: GroupName = ""
    array: Optional[ArrayMember] = None
    retry_of: EntityId = ""
    secrets: dict[str, Name] = {}
    secret_files: dict[str, Name] = {}
    notify: tuple[NotifyKind, ...] = ()
    begins_from: EntityId = ""
    keep_checkpoint: bool = False
    time_limit_s: Seconds = 0.0
    warn_s: Optional[Seconds] = None
    warn_signal: WarnSignal = ""
    hold: bool = False
    begin_s: Annotated[float, Meta(ge=0, le=1e11)] = 0.0
    after: Annotated[tuple[Dependency, ...], Meta(max_length=MOST_DEPENDENCIES)] = ()
    image: Image = ""
    preload: Annotated[tuple[Module, ...], Meta(max_length=MOST_MODULES)] = ()
    parent: str = ""
    refused_by: tuple[str, ...] = ()

    def warning_s(self, limit_s: float) -> float:
        """Return how long before the end of a time limit it is warned; 0: not at all."""
        return min(MOST_DEFAULT_WARNING_S, limit_s / 10) if self.warn_s is None else self.warn_s

    @property
    def elastic(self) -> bool:
        """Whether its number of devices, or its batch size, is for the autoscaler to choose."""
        return self.max_gpus > 0 or self.batch is not None

    @property
    def least_host_bytes(self) -> int:
        """Least of its host's memory for each device, where it says no more than how much of it its files keep."""
        if not self.local_memory_bytes or self.host_memory_bytes or self.sharing != "exclusive":
            return 0
        return self.local_memory_bytes + BESIDE_LOCAL_BYTES

    @property
    def host_demand(self) -> HostDemand:
        """What tells jobs apart that ask for different parts of a host or programs on it, or may not have some."""
        shape = self.gpus_per_node, self.nodes, self.exclude
        return self.cpus, self.host_memory_bytes, self.least_host_bytes, self.image, self.refused_by, shape

    def may_be_on(self, node_id: str) -> bool:
        """Say whether a node is one on which it may run, as far as its own words go."""
        return node_id not in self.exclude and (not self.nodes or node_id in self.nodes)

    @property
    def widths(self) -> range:
        """The numbers of devices that it may be given, feasible or not."""
        least = self.least_gpus
        return range(least, max(least, self.max_gpus or self.gpus) + 1)

    @property
    def least_gpus(self) -> int:
        """The fewest devices that it may be given: one at least, whatever a foreign fact says."""
        return max(1, self.min_gpus if self.max_gpus else self.gpus)


def runtimes_of(image: str) -> tuple[ContainerRuntime, ...]:
    """
    Return what can run an image, the preferred first; nothing where there is no image.

    Examples
    --------
    >>> runtimes_of("pytorch/pytorch:2.4.0"), runtimes_of("/images/torch.sif"), runtimes_of("/images/torch")
    (('docker', 'podman', 'apptainer'), ('apptainer',), ('bubblewrap', 'apptainer'))
    """
    if not image.startswith("/"):
        return ("docker", "podman", "apptainer") if image else ()
    return ("apptainer",) if image.endswith(".sif") else ("bubblewrap", "apptainer")


class Choice(msgspec.Struct, frozen=True, kw_only=True, tag="choice", tag_field="kind"):
    """One of the listed values."""

    values: Annotated[tuple[Param, ...], Meta(min_length=1)]


class Uniform(msgspec.Struct, frozen=True, kw_only=True, tag="uniform", tag_field="kind"):
    """A number between ``low`` and ``high``; evenly in its logarithm where ``log`` is set."""

    low: float
    high: float
    log: bool = False


class Integers(msgspec.Struct, frozen=True, kw_only=True, tag="int", tag_field="kind"):
    """A whole number between ``low`` and ``high``, both included."""

    low: int
    high: int


Dimension = Union[Choice, Uniform, Integers]


class Budget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    How long trials train, for searches that stop early: in whatever their script counts.

    Attributes
    ----------
    param : str
        The hyper-parameter that says how far a trial's script trains, counted from its very beginning.
    least, most : int
        What a trial gets before it can be stopped, and what the best get. In population-based training ``least`` is the
        length of a generation.
    eta : int
        One trial in so many goes on, with so many times the budget.
    """

    most: Annotated[int, Meta(ge=1, le=10**9)]
    param: str = "steps"
    least: Annotated[int, Meta(ge=1, le=10**9)] = 1
    eta: Annotated[int, Meta(ge=2, le=1000)] = 3


class SweepSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    A search over hyper-parameters: one job template, one space, one metric.

    Attributes
    ----------
    name, id
        As for a job.
    job : JobSpec
        What each trial runs; its ``params`` are overlaid with the trial's point of the space.
    space : dict of str to Dimension
        Name of each hyper-parameter and where its values come from.
    metric, mode
        What ``session.report`` calls the result, and which end of it is better.
    target : float or None
        A value that is good enough: the sweep reports how long it took to reach it. Nothing stops there.
    search : str
        ``random``, ``grid``, ``tpe`` or ``cmaes`` train each trial to its end. ``halving``, ``hyperband``, ``asha``,
        ``bohb``, ``bohb-async`` and ``pbt`` stop early and need a ``budget``. Or the name of an installed sampler.
    sampler : str
        Where new points come from, if not as the search has it: ``random``, ``grid``, ``tpe``, ``cmaes``, ``model``.
    pruner : str
        ``median``, ``percentile`` or ``halving``: stops single trials early, with any sampler; needs a ``budget``.
    budget : Budget or None
        How long trials train.
    trials : int
        How many points are tried; 0: a whole grid, or as many as the brackets of the search have. Of ``pbt``, the
        population.
    concurrency : int
        Trials open at a time; 0: a batch or an asynchronous search takes as many as there are devices.
    max_gpus : int
        Most devices for one trial (Fluid's d).
    filling : {"water", "one", "fixed"}
        How devices are given to trials: by water-filling; or, to compare with, one each, or an equal part for each.
    packing : int
        Of water-filling: most trials side by side on one device; fewer where that has been seen to bring nothing.
    intra, inter, dynamic : bool
        Of water-filling, each of which can be switched off alone: pack several trials on one device; spread one over
        several; move running ones to other widths.
    on_memory : {"retry", "fail"}
        What becomes of a trial that has exceeded its memory: it is tried once more with a device to itself, or fails.
    leftover : bool
        Of water-filling: hand the devices that rounding down leaves over to the trials that gain most.
    seed : int
        The same seed gives the same trials.
    """

    name: Name
    job: JobSpec
    space: dict[str, Dimension]
    metric: str
    id: EntityId = ""
    mode: Literal["max", "min"] = "max"
    target: Optional[float] = None
    search: Name = "random"
    sampler: Annotated[str, Meta(max_length=63)] = ""
    pruner: Annotated[str, Meta(max_length=63)] = ""
    budget: Optional[Budget] = None
    trials: Annotated[int, Meta(ge=0, le=100_000)] = 0
    concurrency: Annotated[int, Meta(ge=0, le=100_000)] = 0
    max_gpus: Gpus = 1
    filling: Literal["water", "one", "fixed"] = "water"
    packing: Annotated[int, Meta(ge=1, le=64)] = 4
    intra: bool = True
    inter: bool = True
    dynamic: bool = True
    on_memory: Literal["retry", "fail"] = "retry"
    leftover: bool = False
    seed: int = 0


class Device(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True):
    """
    One device of a node.

    Attributes
    ----------
    index : int
        Its number within the node.
    kind : str
        What the matcher tells devices apart by, such as ``h100`` or ``fast``.
    memory_bytes : int
    backend : str
        One of :data:`penstock_cluster.device_backend.BACKENDS`, or one that this version does not know.
    uuid : str
        The driver's own name for it, if it has one.
    speed : float
        Of an emulated device: its speed relative to this host, shown as emulated everywhere.
    mig : str
        Profile of a MIG instance, such as ``1g.10gb``; empty for a whole device.
    parent : str
        Of a MIG instance: the driver's name for the GPU that it is a part of.
    mps : bool
        The operator runs NVIDIA's multi-process service on it.
    """

    index: int
    kind: str
    memory_bytes: int
    backend: str
    uuid: str = ""
    speed: float = 1.0
    mig: str = ""
    parent: str = ""
    mps: bool = False


BASE: Final = "https://penstock.example/schemas"
AMOUNT: Final = r"^\s*(\d+(?:\.\d+)?)\s*([KMGTkmgt]?)([Ii]?[Bb])?\s*$"
RANGE: Final = r"^\s*[1-9]\d{0,4}\s*\.\.\s*[1-9]\d{0,4}\s*$"
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_ATTRIBUTE: Final = r"(?m)^(\w[\w, ]*?)(?: : .*)?\n((?:    .*\n?)+)"


def job_schema() -> dict[str, Any]:
    """Return the JSON Schema of a job specification."""
    made = _published(JobSpec, "job", "Penstock job")
    _take_ranges(made["properties"])
    _take_amounts(made)
    _take_tier(made["properties"])
    _take_aggregation(made["properties"])
    _take_secrets(made["properties"])
    return made


def sweep_schema() -> dict[str, Any]:
    """Return the JSON Schema of a sweep specification."""
    made = _published(SweepSpec, "sweep", "Penstock sweep")
    made["$defs"]["JobSpec"]["required"].remove("name")  # it has the sweep's, where it has none of its own
    _take_amounts(made)
    _take_tier(made["$defs"]["JobSpec"]["properties"])
    _take_aggregation(made["$defs"]["JobSpec"]["properties"])
    _take_secrets(made["$defs"]["JobSpec"]["properties"])
    return made


def _take_ranges(fields: dict[str, Any]) -> None:
    """Have ``gpus`` take ``"1..8"`` too: how people write it, which is written out before it is decoded."""
    number = fields["gpus"]
    about = {name: number.pop(name) for name in ("description", "default") if name in number}
    ranged = {"type": "string", "pattern": RANGE, "examples": ["1..8"]}
    fields["gpus"] = {**about, "anyOf": [number, ranged]}


def _take_amounts(made: dict[str, Any]) -> None:
    """Have ``memory`` take ``local`` and ``spill`` too, which are written out as fields of the job."""
    size = {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 2**53}, {"type": "string", "pattern": AMOUNT}]}
    for name, field in (("local", "local_memory_bytes"), ("spill", "spill_bytes")):
        about = f'Short for the job\'s `{field}`, as people write it, such as "2GiB", or in bytes.'
        made["$defs"]["MemoryNeed"]["properties"][name] = {"description": about, **size}


def _take_tier(fields: dict[str, Any]) -> None:
    """Have the job take ``checkpoint = { tier = "memory" }`` too, which is written out as a field of the job."""
    tier = {name: value for name, value in fields["checkpoint_tier"].items() if name != "default"}
    about = "Short for the job's `checkpoint_tier`."
    fields["checkpoint"] = {
        "description": about,
        "type": "object",
        "properties": {"tier": tier},
        "additionalProperties": False,
    }


def _take_aggregation(fields: dict[str, Any]) -> None:
    """Have ``aggregation`` take ``{ mode = "own", servers = 2 }`` too, which is written out as two fields."""
    mode = fields["aggregation"]
    about = {name: mode.pop(name) for name in ("description", "default") if name in mode}
    servers = {name: value for name, value in fields["servers"].items() if name not in {"default", "description"}}
    table = {"type": "object", "properties": {"mode": dict(mode), "servers": servers}, "additionalProperties": False}
    fields["aggregation"] = {**about, "anyOf": [mode, table]}


def _take_secrets(fields: dict[str, Any]) -> None:
    """Have ``secrets`` take a list of names too: each in the variable that is called as it is."""
    table = fields["secrets"]
    about = {name: table.pop(name) for name in ("description", "default") if name in table}
    names = {"type": "array", "items": dict(table["additionalProperties"])}
    fields["secrets"] = {**about, "anyOf": [table, names]}


def _published(type_: type[msgspec.Struct], name: str, title: str) -> dict[str, Any]:
    made = msgspec.json.decode(msgspec.json.encode(msgspec.json.schema(type_)))  # defaults may be tuples
    definitions: dict[str, Any] = made["$defs"]
    for defined, schema in definitions.items():
        _document(schema, globals()[defined])
    top = definitions.pop(type_.__name__)
    rest = {"$defs": definitions} if definitions else {}
    return {"$schema": DIALECT, "$id": f"{BASE}/{name}.json", **top, "title": title, **rest}


def _document(schema: dict[str, Any], type_: type) -> None:
    import inspect  # noqa: PLC0415 - who submits a job describes none, and it takes long to load

    doc = inspect.cleandoc(type_.__doc__ or "")
    schema["description"] = _joined(doc.partition("\n\nAttributes\n")[0])
    schema["additionalProperties"] = False
    described = _attributes(doc)
    for name, field in schema["properties"].items():
        if name in described:
            field["description"] = described[name]


def _attributes(doc: str) -> dict[str, str]:
    import re  # noqa: PLC0415

    _, _, section = doc.partition("\n\nAttributes\n----------\n")
    return {
        name.strip(): _joined(text)
        for names, text in re.findall(_ATTRIBUTE, f"{section}\n")
        for name in names.split(",")
    }


def _joined(text: str) -> str:
    return " ".join(text.split()).replace("``", "`")
