"""
Ranks, environment and checks for every launcher.

:func:`members` turns a placement into processes with ranks, and :func:`environment_of` gives the variables of each.
:func:`problem` and :func:`opaque` find what is known to go wrong before anything is started, and say what to do.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import msgspec

from penstock_cluster import environment
from penstock_cluster.device_backend import CAPABILITIES
from penstock_executor.checkpoint_transfer import Resume
from penstock_executor.run_state import sharing_of
from penstock_log import Device, Job, Placement, Slot, workload
from penstock_log.agent_protocol import AgentEnv

INHERITED: Final = (
    *("HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV"),
    *("CUDA_*", "NVIDIA_*", "NCCL_*", "GLOO_*", "SSL_CERT_*", "REQUESTS_CA_BUNDLE"),
    *("http_proxy", "https_proxy", "no_proxy"),
)
"""What a job gets of the executor's own environment: what a machine is like, never what its operator holds."""
ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class GangMember(msgspec.Struct, frozen=True):
    """One process of a gang: its rank, its number within its node, and its devices there."""

    rank: int
    local_rank: int
    node_id: str
    devices: tuple[int, ...]


class LaunchSite(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the environment that is the same for all runs of a node."""

    node_id: str
    devices: tuple[Device, ...]
    socket: str
    checkpoints: Path
    cwd: str
    pass_env: tuple[str, ...] = ()
    lanes: str = ""


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
    Return the whole environment of one process; the job's own variables yield to Penstock's.

    ``resume`` is what the process goes on from, if it is known; otherwise the process takes what it finds.
    """
    spec, placement = job.spec, placement_of(job)
    devices = [device for device in site.devices if device.index in member.devices]
    threads = ONE_THREAD if any(CAPABILITIES[device.backend].declared_speed for device in devices) else {}
    if spec.cpus and not threads:
        threads = {"OMP_NUM_THREADS": str(max(1, int(spec.cpus * len(devices))))}
    ours = {
        AgentEnv.JOB_ID: job.id,
        AgentEnv.EPOCH: str(placement.epoch),
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
        AgentEnv.BACKEND: devices[0].backend if devices else "cpu",
        "RANK": str(member.rank),
        "LOCAL_RANK": str(member.local_rank),
    }
    if spec.batch is not None:
        ours[AgentEnv.BASE_BATCH_SIZE] = str(spec.batch.base)
        ours[AgentEnv.LR_RULE] = spec.batch.lr
    if spec.begins_from:
        ours[AgentEnv.BEGIN_DIR] = str(site.checkpoints / spec.begins_from)
    if resume is not None:
        ours[AgentEnv.RESUME_STEP] = str(resume.held.step if resume.held is not None else 0)
    if resume is not None and spec.begins_from:
        ours[AgentEnv.BEGIN_STEP] = str(resume.begun.step if resume.begun is not None else 0)
    if spec.keep_checkpoint:
        ours[AgentEnv.SAVE_AT_END] = "1"
    if sharing_of(job) == "lane":
        ours[AgentEnv.LANES] = site.lanes
    if job.sample:
        ours[AgentEnv.SAMPLE_ITERATIONS] = str(job.sample.iterations)
    return {**inherited(site.pass_env), **threads, **spec.env, **ours, **rendezvous, **environment(devices)}


def inherited(pass_env: Iterable[str] = ()) -> dict[str, str]:
    """
    Return what a job gets of the executor's own environment: :data:`INHERITED`, and what the operator lets through.

    Whoever starts an executor may have tokens in the shell; jobs are other people's programs.

    The executor's Python comes first on ``PATH``, so that ``python`` is one that has Penstock; a job that wants
    another sets ``PATH`` or names it in full.
    """
    patterns = (*INHERITED, *pass_env)
    env = {name: value for name, value in os.environ.items() if any(fnmatchcase(name, p) for p in patterns)}
    return {**env, "PATH": f"{os.path.dirname(sys.executable)}:{os.environ.get('PATH', os.defpath)}"}


def placement_of(job: Job) -> Placement:
    """Return the placement of a job that has one."""
    if job.placement is None:
        raise ValueError(f"job {job.id} has no placement; only placed jobs are started")
    return job.placement


_INTERPRETERS: Final = {"python": ".py", "python3": ".py", "sh": ".sh", "bash": ".sh"}
_TAKES_VALUE: Final = {"-W", "-X", "--check-hash-based-pycs", "-o", "-O"}
_READ_BYTES: Final = 2**20


def problem(command: Sequence[str], cwd: str, path: str) -> str:
    """
    Return why a command cannot start; empty where nothing is known against it.

    Parameters
    ----------
    command : sequence of str
    cwd : str
        Absolute working directory.
    path : str
        The ``PATH`` that the command will have.
    """
    if not os.path.isdir(cwd):
        return f"the working directory {cwd} does not exist on this node; create it or set cwd to one that does"
    if not _program(command[0], cwd, path):
        if os.path.isfile(os.path.join(cwd, command[0])):
            return _not_started(command, cwd, path)
        where = cwd if "/" in command[0] else f"PATH ({path})"
        return f"program {command[0]!r} was not found; looked in {where}; install it on this node or give its full path"
    script = _script(command)
    if script and not os.path.isfile(os.path.join(cwd, script)):
        return (
            f"script {script!r} was not found; looked in {cwd}; "
            "submit from the folder that holds it, set cwd, or give its full path"
        )
    return ""


def _not_started(command: Sequence[str], cwd: str, path: str) -> str:
    """Return why an existing file cannot be started as a program, and what would start it."""
    name = command[0]
    is_executable = os.access(os.path.join(cwd, name), os.X_OK)
    wrong = "is not executable" if "/" in name else f"is a file in {cwd}, and was not found on PATH ({path})"
    words = workload.run_by(command, is_executable=is_executable)
    other = f"chmod +x it in {cwd}" if "/" in name else "give its path, such as ./program"
    advice = f"submit it with what runs it: penstock submit -- {shlex.join(words)}" if words else other
    return f"program {name!r} {wrong}; {advice}"


def _program(name: str, cwd: str, path: str) -> str | None:
    return shutil.which(os.path.join(cwd, name) if "/" in name else name, path=path)


def _script(command: Sequence[str]) -> str:
    """Return the script that an interpreter is to run; empty if there is none, or if it is not certain."""
    name = os.path.basename(command[0])
    suffix = _INTERPRETERS.get("python" if name.startswith("python") else name)
    if suffix is None:
        return ""
    arguments = iter(command[1:])
    for argument in arguments:
        if not argument.startswith("-"):
            return argument if argument.endswith(suffix) else ""
        if argument in {"-", "-c", "-m"} or (suffix == ".sh" and "c" in argument):
            return ""
        if argument in _TAKES_VALUE and suffix == ".py":
            next(arguments, "")
    return ""


def opaque(command: Sequence[str], cwd: str) -> str:
    """Return why a command must not be sampled; empty where its script says that it uses Penstock."""
    if not workload.is_opaque(command, lambda path: _beginning(Path(cwd, path))):
        return ""
    return "opaque: no file of its command line mentions penstock, so that a sample could have side effects"


def _beginning(path: Path) -> bytes:
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            return file.read(_READ_BYTES)
    except (OSError, ValueError):
        return b""
