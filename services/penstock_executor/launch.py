"""From a placement to processes: which ranks are here, and the environment that each of them finds."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import msgspec

from penstock_devices import environment
from penstock_events import Device, Job, Placement, Slot
from penstock_events.agent import Env
from penstock_executor.checkpoints import Resume
from penstock_executor.local import sharing_of

INHERITED: Final = (
    *("HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV"),
    *("CUDA_*", "NVIDIA_*", "NCCL_*", "GLOO_*", "SSL_CERT_*", "REQUESTS_CA_BUNDLE"),
    *("http_proxy", "https_proxy", "no_proxy"),
)
"""What a job gets of the executor's own environment: what a machine is like, never what its operator holds."""
ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Member(msgspec.Struct, frozen=True):
    """One process of a gang: its rank, its number within its node, and its devices there."""

    rank: int
    local_rank: int
    node_id: str
    devices: tuple[int, ...]


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same for all runs of a node."""

    node_id: str
    devices: tuple[Device, ...]
    socket: str
    checkpoints: Path
    cwd: str
    pass_env: tuple[str, ...] = ()
    lanes: str = ""


def members(placement: Placement, processes: str) -> list[Member]:
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
    return [Member(rank, i, slot.node_id, devices) for rank, (slot, i, devices) in enumerate(each)]


def _shares(slot: Slot, processes: str) -> list[tuple[int, ...]]:
    return [slot.devices] if processes == "node" else [(index,) for index in slot.devices]


def environment_of(
    job: Job, member: Member, site: Site, rendezvous: Mapping[str, str], resume: Resume | None = None
) -> dict[str, str]:
    """
    Return the whole environment of one process; the job's own variables yield to Penstock's.

    ``resume`` is what it is to go on from, where that has been found out; otherwise it takes what it finds.
    """
    spec, placement = job.spec, placement_of(job)
    devices = [device for device in site.devices if device.index in member.devices]
    threads = ONE_THREAD if any(device.backend == "emulated" for device in devices) else {}
    if spec.cpus and not threads:
        threads = {"OMP_NUM_THREADS": str(max(1, int(spec.cpus * len(devices))))}
    ours = {
        Env.JOB_ID: job.id,
        Env.EPOCH: str(placement.epoch),
        Env.NODE: site.node_id,
        Env.RANK: str(member.rank),
        Env.LOCAL_RANK: str(member.local_rank),
        Env.SOCKET: site.socket,
        Env.CHECKPOINT_DIR: str(site.checkpoints / job.id),
        Env.CHECKPOINT_S: repr(spec.checkpoint_s),
        Env.PARAMS: msgspec.json.encode(spec.params).decode(),
        Env.BATCH_SIZE: str(spec.batch_size),
        Env.DEVICE_KIND: placement.kind,
        Env.DEVICES: ",".join(map(str, member.devices)),
        Env.BACKEND: devices[0].backend if devices else "cpu",
        "RANK": str(member.rank),
        "LOCAL_RANK": str(member.local_rank),
    }
    if spec.batch is not None:
        ours[Env.BASE_BATCH_SIZE] = str(spec.batch.base)
        ours[Env.LR_RULE] = spec.batch.lr
    if spec.begins_from:
        ours[Env.BEGIN_DIR] = str(site.checkpoints / spec.begins_from)
    if resume is not None:
        ours[Env.RESUME_STEP] = str(resume.held.step if resume.held is not None else 0)
    if resume is not None and spec.begins_from:
        ours[Env.BEGIN_STEP] = str(resume.begun.step if resume.begun is not None else 0)
    if spec.keep_checkpoint:
        ours[Env.SAVE_AT_END] = "1"
    if sharing_of(job) == "lane":
        ours[Env.LANES] = site.lanes
    if job.sample:
        ours[Env.SAMPLE_ITERATIONS] = str(job.sample.iterations)
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
    """Return the lease of a job that has one."""
    if job.placement is None:
        raise ValueError(f"job {job.id} has no placement; only placed jobs are started")
    return job.placement
