"""Settings of an executor: ``[executor]`` in the settings file or ``PENSTOCK_EXECUTOR_*``."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from penstock_executor.run_credentials import SharedSecret
from penstock_executor.run_identity import IdentityRule, RunAs
from penstock_log.spec import Image, Name
from penstock_sharing.lanes.turn_policy import TurnPolicyName as Policy

_MIB: Final = 1 << 20
LauncherName = Literal["process"]
SandboxName = Literal["none", "bubblewrap"]
ContainersName = Literal["auto", "docker", "podman", "apptainer", "bubblewrap", "none"]


class ExecutorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """
    One node's executor.

    Attributes
    ----------
    node_id : str
        Unique in the cluster and the same at every start; dots become dashes. Empty takes the host's name.
    pool : str
        The set of nodes that this one belongs to.
    devices : str
        ``auto``, ``cuda``, ``cpu``, ``cpu:8GiB`` or emulated devices such as ``fast:2@1.0:16GiB``; with commas.
    labels : dict of str to str
        For people, and for placement rules.
    cpus : float
        Processors for jobs; 0: those that the executor may use. They are shared by the devices.
    host_memory : str
        Memory of the host for jobs, such as ``64GiB``; empty: what the executor may use less a tenth, 2 GiB at most.
        Executors that share a host should each say their part of both.
    cgroup : str
        A control group (version 2) that is the executor's own, to hold runs to their memory with; empty: the one that
        the executor runs in, if it was delegated to it.
    launcher : {"process"}
        What starts the processes of runs.
    address : str
        Where the other nodes reach this one: ``MASTER_ADDR`` of gangs whose rank 0 is here. A name or an address, or a
        network such as ``10.0.0.0/8``: this machine's address there. Empty: the address of the network interface that
        leads to the bus; where the bus is on this machine, of the one that leads elsewhere.
    run_as : {"user", "executor"}
        As whom jobs run: as the user who submitted them, by the account of that name on this node, or all as the
        executor's own user, which is for one who trusts everybody that may submit. ``docs/isolation.md`` has the rule.
    users : dict of str to str
        User of Penstock → account of this node, where they differ: ``[executor.users]``.
    allow_root : bool
        Whether jobs may run as root.
    least_uid : int
        Accounts below it are the system's: jobs run as one only where ``users`` names it.
    new_privileges : bool
        Whether programs with set-user-ID bits work in jobs, such as ``sudo``, and Apptainer where it is installed so.
    most_tasks : int
        The most processes and threads that the user of a job may have on this node; 0: no limit. It holds where jobs
        run as other users than the executor.
    sandbox : {"none", "bubblewrap"}
        What is around each process of a job. ``bubblewrap``: it sees the node read-only, a ``/tmp`` of its own, and the
        nodes of the GPUs that it was given, and writes to its checkpoint folder, and to its working directory if that
        is its user's.
    writable : tuple of str
        Folders that a job may write to in a sandbox, beside these, and that it finds in the container of its image;
        ``~`` is its user's home.
    containers : {"auto", "docker", "podman", "apptainer", "bubblewrap", "none"}
        What runs the jobs that have an ``image``. ``auto``: docker where its daemon answers, else podman, and beside
        them apptainer and bubblewrap where they are installed. ``none``: such jobs do not come to this node.
    image : str
        The image in which the executor itself runs, as in a Pod. Jobs of this very name run here without a container.
    image_pull_s : float
        The longest time that getting an image from its registry may take, in seconds.
    warm_starts : {"learn", "preload", "off"}
        Which Python programs are forked from a server that has imported their modules, and not executed: those whose
        command comes again, with what its earlier runs have imported; those alone whose job names modules; none.
        ``docs/warm-starts.md`` says which can.
    warm_servers : int
        The most such servers. Where they are all used, a command that comes often enough has the place of another.
    warm_bytes : int
        The most memory that they may hold together, and an eighth of the host's at most.
    warm_user_servers : int
        The most such servers of one user other than the executor's, such as 2; 0: programs of other users start cold.
    warm_idle_s : float
        A server of such a user ends when it was not used for so long, in seconds.
    park_bytes : int
        The most memory that runs may hold together which were preempted and stay in memory, stopped, to go on without a
        load; the one that was parked first ends first. 0: none is parked. -1: a quarter of the host's memory that no
        running job has asked for.
    secrets_dir : str
        Holds values of secrets that jobs name, put there by an operator: ``users/USER/NAME`` and ``teams/TEAM/NAME``,
        files that nobody but the executor's user, or that user, may read. A user's own are in
        ``~/.config/penstock/secrets``. Empty: there are no others.
    secrets : dict of str to SharedSecret
        Name of a secret → the executor's own variable that holds it, and whose jobs may have it:
        ``[executor.secrets.wandb]``, ``env = "WANDB_API_KEY"``, ``teams = ["vision"]``.
    data_dir : str
        Holds run folders and the agents' socket; must survive a restart of the executor.
    checkpoint_dir : str
        Holds one folder for each job. Shared between the nodes of a cluster, nothing has to be copied. Empty:
        ``checkpoints`` in ``data_dir``; a job that goes on on another node has its checkpoint copied there first.
    checkpoint_copy_bytes : int
        The largest checkpoint that is copied here from another node; 0 copies none. A job whose checkpoint is larger
        begins from the start, and says so.
    checkpoint_copy_s : float
        The longest time that copying one may take, in seconds. Meanwhile the job's devices are idle.
    checkpoint_memory_dir : str
        Holds the checkpoints of jobs that ask for memory (``checkpoint = { tier = "memory" }``), one folder for each;
        in a file system in memory. Empty: a folder of the executor's own in ``/dev/shm``.
    checkpoint_memory_bytes : int
        The largest checkpoint that may be there; 0: none, and such jobs save to the disk.
    code_cache_bytes : int
        The most that files of jobs' folders may take that are kept for the next job (docs/code.md); what was not used
        for the longest time goes first.
    workdir_age_s : float
        How long the folder of a run whose code was uploaded stays after its end, in seconds, with what the job wrote
        there.
    memory_dir : str
        The ``data_dir`` of this node's memory agent (``penstock_memory``), whose socket jobs are told of in
        ``PENSTOCK_MEMORY_SOCKET``; empty: there is none.
    aggregator_dir : str
        The ``data_dir`` of this node's aggregation agent (``penstock_aggregator``), whose socket jobs are told of in
        ``PENSTOCK_AGGREGATION_SOCKET``, and which knows each run by its ``PENSTOCK_AGGREGATION_TOKEN``; empty: there is
        none.
    pass_env : tuple of str
        Names or patterns of the executor's own variables that jobs get beside the usual ones (``INHERITED``).
    keep_checkpoints : bool
        Keep a job's checkpoints when it is over; otherwise they go with it.
    on_shutdown : {"preempt", "leave"}
        What becomes of running jobs when the executor is stopped in good order: they are preempted (checkpoint, then
        elsewhere), or they go on and are adopted at the next start.
    leave_at_s : float
        When this node begins to leave, in seconds since the epoch: its runs are preempted, and its executor ends. 0:
        never by itself. For a node that another cluster has lent for a while; shortly before, no job begins there.
    leave_idle_s : float
        The executor ends after so many seconds in which no run was on this node; 0: it stays.
    leave_after_runs : int
        Once so many runs have ended here, this node takes no more, and its executor ends when none is left; 0: it
        takes one after the other.
    sample_limit_s : float
        Longest time for a profiler's sample, in seconds.
    device_sample_s : float
        Time between two samples of how busy the devices are, in seconds.
    device_health_s : float
        Seconds between two looks at whether the devices are fit for jobs; 0: nobody looks.
    output_bytes : int
        The most that is kept of a process's standard output, and of its standard error; of more, the end is kept, with
        a line that says how much was dropped.
    output_stream_bytes : int
        Bytes of the beginning of each that are streamed to the log, where they survive the node; the rest is read from
        the node's disk.
    output_disk_bytes : int
        The most that the output of all jobs may take on this node's disk; the oldest output of ended jobs goes first.
    output_age_s : float
        How long the output of a job that is over is kept on the disk, in seconds.
    heartbeat_s : float
        The most seconds between two heartbeats; they come as often as the matcher's ``node_timeout_s`` needs it.
    held_s : float
        Seconds for which a run is kept that was stopped because the matcher does not hear this node; then it is ended.
    lane_policy : str
        Whose turn it is where jobs take turns: the name of a turn policy, which ``docs/lanes.md`` lists.
    lane_patience_s : float
        Seconds of waiting after which a run gets its turn, whatever the policy.
    lane_most : int
        Most lanes of one device that run side by side; 0: as many as there is memory for.
    lane_turn_ms : float
        The shortest turn, in milliseconds. Handing over costs some 30 microseconds, 2 % of 1.5 ms.
    lane_reserve : float
        Share of a shared device's memory that is left alone; the matcher's ``lane_reserve_share`` should be the same.
    lane_warn_s, lane_hang_s : float
        Seconds in one iteration, while others wait for its end, after which a run gets a warning, or loses its turn.
    lane_hang : {"park", "kill"}
        What happens to a run that loses its turn. ``park``: all that it may hold counts as kept, and others go on
        beside it if that is safe; if not, the run has to leave. ``kill``: the run is ended.
    """

    node_id: str = ""
    pool: Name = "default"
    devices: str = "auto"
    labels: dict[str, str] = {}
    cpus: Annotated[float, Meta(ge=0)] = 0.0
    host_memory: str = ""
    cgroup: str = ""
    launcher: LauncherName = "process"
    address: str = ""
    run_as: RunAs = "user"
    users: dict[str, str] = {}
    allow_root: bool = False
    least_uid: Annotated[int, Meta(ge=1)] = 1000
    new_privileges: bool = False
    most_tasks: Annotated[int, Meta(ge=0)] = 16_384
    sandbox: SandboxName = "none"
    writable: tuple[str, ...] = ()
    containers: ContainersName = "auto"
    image: Image = ""
    image_pull_s: Annotated[float, Meta(gt=0)] = 1800.0
    warm_starts: Literal["learn", "preload", "off"] = "learn"
    warm_servers: Annotated[int, Meta(ge=0)] = 4
    warm_bytes: Annotated[int, Meta(ge=0)] = 4 * 2**30
    warm_user_servers: Annotated[int, Meta(ge=0)] = 0
    warm_idle_s: Annotated[float, Meta(gt=0)] = 600.0
    park_bytes: Annotated[int, Meta(ge=-1)] = -1
    secrets_dir: str = ""
    secrets: dict[str, SharedSecret] = {}
    data_dir: str = "penstock-data/executor"
    checkpoint_dir: str = ""
    checkpoint_copy_bytes: Annotated[int, Meta(ge=0)] = 16 * 2**30
    checkpoint_copy_s: Annotated[float, Meta(ge=0)] = 600.0
    checkpoint_memory_dir: str = ""
    checkpoint_memory_bytes: Annotated[int, Meta(ge=0)] = 4 * 2**30
    code_cache_bytes: Annotated[int, Meta(ge=0)] = 10 * 2**30
    workdir_age_s: Annotated[float, Meta(ge=0)] = 24 * 3600.0
    memory_dir: str = ""
    aggregator_dir: str = ""
    pass_env: tuple[str, ...] = ()
    keep_checkpoints: bool = True
    on_shutdown: Literal["preempt", "leave"] = "preempt"
    leave_at_s: Annotated[float, Meta(ge=0)] = 0.0
    leave_idle_s: Annotated[float, Meta(ge=0)] = 0.0
    leave_after_runs: Annotated[int, Meta(ge=0)] = 0
    sample_limit_s: Annotated[float, Meta(gt=0)] = 60.0
    device_sample_s: Annotated[float, Meta(ge=0.1)] = 5.0
    device_health_s: Annotated[float, Meta(ge=0)] = 2.0
    output_bytes: Annotated[int, Meta(gt=0)] = 1024 * _MIB
    output_stream_bytes: Annotated[int, Meta(ge=0)] = 64 * _MIB
    output_disk_bytes: Annotated[int, Meta(gt=0)] = 16 * 1024 * _MIB
    output_age_s: Annotated[float, Meta(gt=0)] = 14 * 24 * 3600.0
    heartbeat_s: Annotated[float, Meta(gt=0)] = 1.0
    held_s: Annotated[float, Meta(gt=0)] = 3600.0
    lane_policy: Policy = "fair"
    lane_patience_s: Annotated[float, Meta(gt=0)] = 30.0
    lane_most: Annotated[int, Meta(ge=0)] = 0
    lane_turn_ms: Annotated[float, Meta(gt=0)] = 1.5
    lane_reserve: Annotated[float, Meta(ge=0, lt=1)] = 0.05
    lane_warn_s: Annotated[float, Meta(gt=0)] = 10.0
    lane_hang_s: Annotated[float, Meta(gt=0)] = 60.0
    lane_hang: Literal["park", "kill"] = "park"

    def identities(self, node_id: str) -> IdentityRule:
        """Return the rule by which jobs get their accounts."""
        return IdentityRule(
            node_id=node_id,
            run_as=self.run_as,
            users=self.users,
            allow_root=self.allow_root,
            least_uid=self.least_uid,
        )
