"""
Ranks and environment of a run's processes, whatever launcher starts them.

:func:`members` turns a placement into processes with ranks, and :func:`environment_of` gives the variables of each.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from penstock.submission import beginning_of
from penstock_cluster import environment
from penstock_cluster.device_backend import CAPABILITIES
from penstock_executor.checkpoint_transfer import Resume
from penstock_executor.code_cache import WorkFolders
from penstock_executor.fence import fence_of
from penstock_executor.launchers import image_folder, sandbox
from penstock_executor.launchers.confinement import TEMPORARY, Confinement
from penstock_executor.launchers.containers import Container
from penstock_executor.launchers.launcher import RunFence
from penstock_executor.run_identity import RunIdentity
from penstock_executor.run_state import sharing_of
from penstock_executor.settings import SandboxName
from penstock_log import Device, Job, JobSpec, Placement, Slot, workload
from penstock_log.agent_protocol import AgentEnv
from penstock_log.aggregation_messages import run_token

MPS_FOLDERS: Final = ("/tmp/nvidia-mps", "/tmp/nvidia-log")  # noqa: S108 - where NVIDIA's service listens by default
ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class GangMember(msgspec.Struct, frozen=True):
    """One process of a gang: its rank, its number within its node, and its devices there."""

    rank: int
    local_rank: int
    node_id: str
    devices: tuple[int, ...]


class LaunchSite(msgspec.Struct, frozen=True, kw_only=True):
    """
    The part of the environment that is the same for all runs of a node.

    Attributes
    ----------
    memory : str
        The socket of the node's memory agent; empty where there is none.
    aggregation : str
        The same of the node's aggregation agent.
    aggregation_secret : bytes
        By which that agent knows the tokens of runs.
    checkpoint_memory : Path or None
        Holds a folder for each job whose checkpoints may be in memory.
    temporary : Path or None
        Holds a temporary folder for each run that has one of its own.
    keeps_apart : bool
        Whether all runs have one; else those have one whose image a program mounts for each process anew.
    image : str
        The image in which all of them run that ask for it, as the executor does.
    work : Path or None
        Holds the folders of runs whose code was uploaded.
    new_privileges, most_tasks, sandbox, writable : bool, int, str, tuple of str
        As in the settings.
    """

    node_id: str
    devices: tuple[Device, ...]
    socket: str
    checkpoints: Path
    cwd: str
    checkpoint_memory: Path | None = None
    pass_env: tuple[str, ...] = ()
    lanes: str = ""
    memory: str = ""
    aggregation: str = ""
    aggregation_secret: bytes = b""
    temporary: Path | None = None
    keeps_apart: bool = False
    new_privileges: bool = False
    most_tasks: int = 0
    sandbox: SandboxName = "none"
    writable: tuple[str, ...] = ()
    image: str = ""
    work: Path | None = None
    heard: str = ""
    held_s: float = 3600.0

    def fence(self, placement: Placement | None) -> RunFence | None:
        """Return within what time the run of a grant is kept; None where nobody answers this node's heartbeats."""
        return fence_of(placement, Path(self.heard), self.held_s) if self.heard else None


def members(placement: Placement, processes: str) -> list[GangMember]:
    """
    Return all processes of a placement in the order of their ranks.

    Examples
    --------
    >>> slots = (Slot(node_id="n1", devices=(0, 1)), Slot(node_id="n2", devices=(3,)))
    >>> placement = Placement(job_id="j", epoch=1, kind="fast", slots=slots)
    >>> [(m.rank, m.node_id, m.devices) for m in members(placement, "device")]
    [(0, 'n1', (0,)), (1, 'n1', (1,)), (2, 'n2', (3,))]
    """
    each = [(slot, i, devices) for slot in placement.slots for i, devices in enumerate(_shares(slot, processes))]
    return [GangMember(rank, i, slot.node_id, devices) for rank, (slot, i, devices) in enumerate(each)]


def _shares(slot: Slot, processes: str) -> list[tuple[int, ...]]:
    return [slot.devices] if processes == "node" else [(index,) for index in slot.devices]


def environment_of(
    job: Job, member: GangMember, site: LaunchSite, rendezvous: Mapping[str, str], resume: Resume | None = None
) -> dict[str, str]:
    """
    Return what a process's environment has beyond the launcher's; the job's own variables yield to Penstock's.

    ``resume`` is what the process goes on from, if it is known; otherwise the process takes what it finds.
    """
    spec, placement = job.spec, placement_of(job)
    devices = [device for device in site.devices if device.index in member.devices]
    threads = ONE_THREAD if any(CAPABILITIES[device.backend].declared_speed for device in devices) else {}
    if spec.cpus and not threads:
        threads = {"OMP_NUM_THREADS": str(max(1, int(spec.cpus * len(devices))))}
    ours = {
        **({AgentEnv.MEMORY_SOCKET: site.memory} if site.memory else {}),
        **_aggregation(job, placement.epoch, site),
        AgentEnv.JOB_ID: job.id,
        AgentEnv.EPOCH: str(placement.epoch),
        AgentEnv.STARTS: str(job.attempts - bool(job.started_s)),  # it may have begun on another node already
        AgentEnv.EXECUTED_S: f"{job.executed_s:.3f}",
        AgentEnv.NODE: site.node_id,
        AgentEnv.RANK: str(member.rank),
        AgentEnv.LOCAL_RANK: str(member.local_rank),
        AgentEnv.SOCKET: site.socket,
        AgentEnv.CHECKPOINT_DIR: str(site.checkpoints / job.id),
        AgentEnv.CHECKPOINT_S: repr(spec.checkpoint_s),
        AgentEnv.PARAMS: msgspec.json.encode(spec.params).decode(),
        AgentEnv.BATCH_SIZE: str(spec.batch_size),
        AgentEnv.DEVICE_KIND: placement.kind,
        AgentEnv.DEVICES: ",".join(map(str, member.devices)),
        AgentEnv.NODES: " ".join(f"{slot.node_id}:{len(slot.devices)}" for slot in placement.slots),
        AgentEnv.PYTHON: sys.executable,
        AgentEnv.BACKEND: devices[0].backend if devices else "cpu",
        "RANK": str(member.rank),
        "LOCAL_RANK": str(member.local_rank),
    }
    if spec.batch is not None:
        ours[AgentEnv.BASE_BATCH_SIZE] = str(spec.batch.base)
        ours[AgentEnv.LR_RULE] = spec.batch.lr
    if folder := _code_folder(job, site):
        ours[AgentEnv.CODE_DIR] = folder
    ours |= _of_checkpoints(spec, site, resume)
    if spec.keep_checkpoint:
        ours[AgentEnv.SAVE_AT_END] = "1"
    if sharing_of(job) == "lane":
        ours[AgentEnv.LANES] = site.lanes
    if (fence := site.fence(placement)) is not None:
        ours |= {AgentEnv.HEARD: site.heard, AgentEnv.HOLD_S: repr(fence.hold_s)}
    if job.sample:
        ours[AgentEnv.SAMPLE_ITERATIONS] = str(job.sample.iterations)
    ours |= _of_array(spec)
    borrowed = _borrowed_memory(spec, len(member.devices))
    return {**threads, **spec.env, **ours, **borrowed, **rendezvous, **environment(devices)}


def _of_checkpoints(spec: JobSpec, site: LaunchSite, resume: Resume | None) -> dict[str, str]:
    """Return from which checkpoints a process may go on."""
    found = {}
    if spec.begins_from:
        found[AgentEnv.BEGIN_DIR] = str(site.checkpoints / spec.begins_from)
    if resume is not None:
        found[AgentEnv.RESUME_STEP] = str(resume.held.step if resume.held is not None else 0)
    if resume is not None and spec.begins_from:
        found[AgentEnv.BEGIN_STEP] = str(resume.begun.step if resume.begun is not None else 0)
    return found


def _of_array(spec: JobSpec) -> dict[str, str]:
    """Return what says to a job of an array which one it is."""
    if (array := spec.array) is None:
        return {}
    return {
        workload.ARRAY_ID: array.id,
        workload.ARRAY_INDEX: str(array.index),
        workload.ARRAY_COUNT: str(array.count),
        workload.ARRAY_MIN: str(array.min),
        workload.ARRAY_MAX: str(array.max),
        workload.ARRAY_STEP: str(array.step),
    }


def _aggregation(job: Job, epoch: int, site: LaunchSite) -> dict[str, str]:
    """Return how a process aggregates, and its node's agent, if its job may; a sample is summed with nobody."""
    if job.sample:
        return {}
    said = {AgentEnv.AGGREGATION: job.spec.aggregation, AgentEnv.AGGREGATION_SERVERS: str(job.spec.servers)}
    if not site.aggregation or job.spec.aggregation == "none":
        return said
    token = run_token(site.aggregation_secret, job.id, epoch)
    return {**said, AgentEnv.AGGREGATION_SOCKET: site.aggregation, AgentEnv.AGGREGATION_TOKEN: token}


def _borrowed_memory(spec: JobSpec, devices: int) -> dict[str, str]:
    """Return what a process on so many devices finds of borrowed memory; nothing of what its job does not say."""
    said = {AgentEnv.MEMORY_LOCAL: spec.local_memory_bytes, AgentEnv.MEMORY_SPILL: spec.spill_bytes}
    return {name: str(size * devices) for name, size in said.items() if size}


def confinement_of(
    job: Job,
    member: GangMember,
    identity: RunIdentity,
    site: LaunchSite,
    *,
    cwd: str,
    tmp: Path | None = None,
    cgroup: str = "",
    container: Container | None = None,
    passed: Sequence[str] = (),
) -> Confinement:
    """
    Return what a process gives up before its program begins.

    ``container`` is that of its job's image; folders that are ``passed`` stay where they are.
    """
    shared = [
        os.path.dirname(path) for path in (site.socket, site.lanes, site.heard, site.memory, site.aggregation) if path
    ]
    in_memory = memory_folder_of(job, site)
    above = [] if in_memory is None else [str(in_memory.parent)]
    folder = _code_folder(job, site) or cwd
    needed = {os.path.realpath(path) for path in (cwd, folder, str(site.checkpoints), *above, *shared, *passed)}
    is_hosts = container is None and bool(needed & set(TEMPORARY))  # what is needed is in the host's own
    own = os.fspath(tmp) if tmp is not None and not is_hosts else ""
    confinement = Confinement(new_privileges=site.new_privileges, tmp=own, cgroup=cgroup)
    if identity.switches:
        confinement = confinement._replace(
            user=identity.name,
            uid=identity.uid,
            gid=identity.gid,
            groups=identity.groups,
            kept=tuple(sorted(needed | set(filter(os.path.isdir, MPS_FOLDERS)))),
            most_tasks=site.most_tasks,
        )
    home = identity.home if identity.switches else os.path.expanduser("~")
    writable = [path.replace("~", home, 1) if path.startswith("~") else path for path in site.writable]
    if container is not None:
        outside = () if _is_below(cwd, folder) or os.path.realpath(cwd) in NOT_ATTACHED else (cwd,)
        folders, hidden = _folders_in_container(job, site, folder, [*writable, *passed, *outside])
        return _in_container(container, confinement, folders, hidden, (site, member, cwd))
    if site.sandbox == "none":
        return confinement
    wrapper = sandbox.bubblewrap(
        tmp=own or "/tmp",  # noqa: S108 - the working directory is in the host's own
        passed=(*needed, *MPS_FOLDERS),
        writable=(
            str(site.checkpoints / job.id),
            *([] if in_memory is None else [str(in_memory)]),
            *sandbox.own_folder(folder, identity.uid),
            *(sandbox.own_folder(cwd, identity.uid) if folder != cwd and not _is_below(cwd, folder) else ()),
            *writable,
        ),
        devices=[device for device in site.devices if device.index in member.devices],
    )
    return confinement._replace(wrapper=wrapper, tmp="", kept=())


def _is_below(path: str, folder: str) -> bool:
    return os.path.normpath(path) == folder or os.path.normpath(path).startswith(f"{folder}/")


def _code_folder(job: Job, site: LaunchSite) -> str:
    """Return the folder of a run whose code was uploaded, which is its whole, wherever in it the run begins."""
    if not job.spec.code or site.work is None:
        return ""
    return str(WorkFolders(site.work).path((job.id, job.epoch)))


def _folders_in_container(
    job: Job, site: LaunchSite, folder: str, writable: Sequence[str]
) -> tuple[set[str], set[str]]:
    """Return the folders of the host that a process finds in its container, and those in these that are hidden."""
    sockets = {
        os.path.dirname(os.path.realpath(path))
        for path in (site.socket, site.lanes, site.heard, site.memory, site.aggregation)
        if path
    }
    in_memory = memory_folder_of(job, site)
    own = [
        str(site.checkpoints / job.id),
        *([str(site.checkpoints / job.spec.begins_from)] if job.spec.begins_from else []),
        *([] if in_memory is None else [str(in_memory)]),
        *writable,
        *([] if os.path.realpath(folder) in NOT_ATTACHED else [folder]),
    ]
    hidden = {folder.path for where in sockets for folder in os.scandir(where) if folder.is_dir()}
    return {where for where in (*sockets, *MPS_FOLDERS, *own) if os.path.exists(where)}, hidden


def _in_container(
    container: Container,
    confinement: Confinement,
    folders: Collection[str],
    hidden: Collection[str],
    at: tuple[LaunchSite, GangMember, str],
) -> Confinement:
    """Return the confinement of a process whose files are those of an image, and of the host what it needs alone."""
    site, member, cwd = at
    mounts = {where: where for where in folders}
    if confinement.tmp:
        mounts |= dict.fromkeys(TEMPORARY, confinement.tmp)
    if container.namespace:
        attached = tuple(sorted((dict.fromkeys(hidden, "") | mounts).items()))
        return confinement._replace(namespace=container.namespace, attached=attached, kept=())
    devices = [device for device in site.devices if device.index in member.devices]
    if container.runtime == "apptainer":
        wrapper = image_folder.apptainer(container.image, folders=mounts, cwd=cwd, devices=devices)
    else:
        wrapper = image_folder.bubblewrap(container.image, folders=mounts, hidden=hidden, devices=devices)
    return confinement._replace(wrapper=wrapper, tmp="", kept=())


NOT_ATTACHED: Final = frozenset(
    {
        *("/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib32", "/lib64", "/opt", "/proc", "/root", "/run"),
        *("/sbin", "/sys", "/usr", "/var", *TEMPORARY),
    }
)
"""Working directories that an image has itself, or that hold more than one's own: they are those of the image."""


def memory_folder_of(job: Job, site: LaunchSite) -> Path | None:
    """Return the folder for a job's checkpoints in memory; None where it does not ask for that, or there is none."""
    if site.checkpoint_memory is None or job.spec.checkpoint_tier != "memory" or job.sample:
        return None
    return site.checkpoint_memory / job.id if site.checkpoint_memory.is_dir() else None


def placement_of(job: Job) -> Placement:
    """Return the placement of a job that has one."""
    if job.placement is None:
        raise ValueError(f"job {job.id} has no placement; only placed jobs are started")
    return job.placement


def opaque(command: Sequence[str], cwd: str) -> str:
    """Return why a command must not be sampled; empty where its script mentions Penstock."""
    if not workload.is_opaque(command, lambda path: beginning_of(Path(cwd, path))):
        return ""
    return "opaque: no file of its command line mentions penstock, so that a sample could have side effects"
