"""
The rule of the command ``enter``: who may enter which process of a running job.

Whoever may cancel a job may enter it. The decision becomes a fact, and the fact is the ticket: the executor of the node
reads it in the log, which nobody but the gateway can write.
"""

from __future__ import annotations

import hashlib

import msgspec

from penstock_gateway import acceptance
from penstock_gateway.acceptance import JobAction
from penstock_gateway.authority import SERVICE, Caller
from penstock_gateway.endpoints import CONFLICT, NOT_FOUND, RequestRefused
from penstock_gateway.machine import GatewayState
from penstock_log import TERMINAL, Job, JobEntered, Placement, request_bodies, subjects
from penstock_log.job_state import JobState


class JobEntry(JobAction, frozen=True, kw_only=True):
    """A decision on a request to enter: besides what a command is answered, where the process is."""

    session_id: str
    node_id: str
    epoch: int
    rank: int

    @property
    def commit_id(self) -> str:
        """Return the same for the same entry, whenever it is asked for: the log has it once."""
        entry = msgspec.structs.replace(self.fact, at_s=0.0) if self.fact is not None else None
        return hashlib.sha256(b"enter " + msgspec.json.encode(entry)).hexdigest()


def enter(state: GatewayState, ask: request_bodies.EnterRequest, now_s: float, caller: Caller = SERVICE) -> JobEntry:
    """
    Let somebody into a process of a job.

    Raises
    ------
    RequestRefused
        403 where the job is not the caller's, 404 where it has no such rank, 409 where it does not run.
    """
    job = acceptance.job_named(state, ask.id, caller)
    if job.sample is not None:
        raise RequestRefused(CONFLICT, f"{job.id} is a sample of the profiler, which ends by itself; name a job")
    caller.require_own(job.spec, f"job {job.id}")
    placement = _running(job)
    nodes = nodes_of(placement, job.spec.processes)
    if ask.rank >= len(nodes):
        has = f"{len(nodes)} processes" if len(nodes) > 1 else "one process"
        last = f"0 to {len(nodes) - 1}" if len(nodes) > 1 else "0"
        raise RequestRefused(NOT_FOUND, f"job {job.id} has {has}; expected --rank {last}, not {ask.rank}")
    node_id = nodes[ask.rank]
    if node_id not in job.open_nodes:
        raise RequestRefused(CONFLICT, f"rank {ask.rank} of job {job.id} has ended on node {node_id}; name another one")
    fact = JobEntered(
        job_id=job.id,
        session_id=ask.session_id,
        epoch=placement.epoch,
        rank=ask.rank,
        node_id=node_id,
        purpose=ask.purpose,
        by=ask.by,
        at_s=now_s,
    )
    return JobEntry(
        id=job.id,
        state=job.state,
        message=f"job {job.id} was entered on node {node_id}",
        subject=subjects.job(job.id),
        fact=fact,
        session_id=ask.session_id,
        node_id=node_id,
        epoch=placement.epoch,
        rank=ask.rank,
    )


def nodes_of(placement: Placement, processes: str) -> list[str]:
    """
    Return the node of each process of a placement, by rank.

    Examples
    --------
    >>> from penstock_log import Slot
    >>> slots = (Slot(node_id="n1", devices=(0, 1)), Slot(node_id="n2", devices=(3,)))
    >>> placement = Placement(job_id="j", epoch=1, kind="fast", slots=slots)
    >>> nodes_of(placement, "device"), nodes_of(placement, "node")
    (['n1', 'n1', 'n2'], ['n1', 'n2'])
    """
    return [slot.node_id for slot in placement.slots for _ in (slot.devices if processes != "node" else (0,))]


def _running(job: Job) -> Placement:
    """Return the placement of a job that can be entered now."""
    if job.state in TERMINAL:
        raise RequestRefused(CONFLICT, f"job {job.id} is over; what it printed is in `penstock logs {job.id}`")
    if job.state is JobState.PENDING or job.placement is None:
        raise RequestRefused(
            CONFLICT,
            f"job {job.id} waits, and only a running job can be entered; `penstock why {job.id}` says for what",
        )
    if job.state is not JobState.RUNNING:
        how = "is being preempted, and goes on later" if job.state is JobState.PREEMPTING else "is being stopped"
        raise RequestRefused(CONFLICT, f"job {job.id} {how}; only a running job can be entered")
    return job.placement
