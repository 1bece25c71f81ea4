"""Settings of a memory agent, and what of its node's memory is promised to jobs. Pure: no clock, no socket."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from penstock_bus import UNHURRIED_S, Decider, Decision
from penstock_log import TERMINAL, Event, Job, JobTable, RunStarted, lifecycle

GRACE_S: Final = 30.0
"""So long after its start a run counts as not having taken the memory yet that it has declared."""
_MIB: Final = 1 << 20
_PAGE_BYTES: Final = 4096


class MemorySettings(msgspec.Struct, frozen=True, kw_only=True):
    """
    One node's memory agent: ``[memory]`` in the settings file or ``PENSTOCK_MEMORY_*``.

    Attributes
    ----------
    data_dir : str
        Holds the sockets for this node's clients, and is this agent's alone.
    node_id : str
        The node's name, as its executor has it; empty takes the host's name.
    host, port : str, int
        Where the data port listens: empty is every address, and 0 takes a free port.
    address : str
        Where the other nodes reach this one, as in ``[executor]``: a name, an address, or a network such as
        ``10.0.0.0/8``. Empty: the address of the network interface that leads to the bus.
    slab_bytes : int
        Size of a slab, a multiple of 4096, the same on all nodes that are to lend to each other; 1 GiB at most.
    headroom_bytes : int
        What of the node's memory stays free; 0: a tenth of it, and 1 GiB at least.
    lend : bool
        Whether this node lends its memory. Its clients may borrow from others in any case.
    most_lent_bytes : int
        The most that it lends; 0: all that is free beyond the head-room.
    lend_to_own_node : bool
        Whether it lends to clients of its own node too.
    user_bytes : int
        The most that the processes of one account on this node may have borrowed; 0: no limit.
    ready_slabs : int
        Slabs whose memory is taken before they are asked for.
    """

    data_dir: str = "penstock-data/memory"
    node_id: str = ""
    host: str = ""
    port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    address: str = ""
    slab_bytes: Annotated[int, Meta(ge=_MIB, le=1024 * _MIB)] = 64 * _MIB
    headroom_bytes: Annotated[int, Meta(ge=0)] = 0
    lend: bool = True
    most_lent_bytes: Annotated[int, Meta(ge=0)] = 0
    lend_to_own_node: bool = True
    user_bytes: Annotated[int, Meta(ge=0)] = 0
    ready_slabs: Annotated[int, Meta(ge=0, le=64)] = 1

    def __post_init__(self) -> None:
        """Refuse a slab that is not made of pages."""
        if self.slab_bytes % _PAGE_BYTES:
            raise ValueError(
                f"slab_bytes is {self.slab_bytes}; expected a multiple of {_PAGE_BYTES}, such as {64 * _MIB}"
            )


class Promise(msgspec.Struct):
    """
    Host memory that a grant on this node has declared.

    Attributes
    ----------
    started_s : float
        When its run began here; 0 while it has not.
    """

    epoch: int
    memory_bytes: int
    started_s: float = 0.0


class MemoryState(msgspec.Struct):
    """
    The fold of the log that an agent yields to jobs by.

    Attributes
    ----------
    promises : dict of str to Promise
        Job with a grant on this node that declares host memory → how much.
    """

    jobs: JobTable = msgspec.field(default_factory=JobTable)
    promises: dict[str, Promise] = msgspec.field(default_factory=dict)

    def promised_bytes(self, now_s: float) -> int:
        """Return what grants on this node have declared and may not have taken yet."""
        return sum(
            promise.memory_bytes
            for promise in self.promises.values()
            if not promise.started_s or now_s < promise.started_s + GRACE_S
        )


def decider(node_id: str) -> Decider[MemoryState]:
    """Return the fold of a node's agent; it proposes nothing, since what it decides needs the node's memory too."""
    return Decider(
        name="memory",
        state=MemoryState,
        schema=f"memory.v3 {node_id}",
        apply=partial(apply, node_id),
        decide=lambda state, now_s: Decision(),  # noqa: ARG005 - what a decider is called with
        leads=False,
        reads=lifecycle.OF_JOBS,
        gather_s=lambda _: UNHURRIED_S,
    )


def apply(node_id: str, state: MemoryState, event: Event, seq: int) -> None:  # noqa: ARG001 - what a fold is called with
    """Fold one fact in; jobs that are over promise nothing."""
    for job in state.jobs.apply(event):
        _note_job(node_id, state, job)
        if job.state in TERMINAL:
            state.jobs.forget(job.id)
    if isinstance(event, RunStarted) and event.node_id == node_id:
        promise = state.promises.get(event.job_id)
        if promise is not None and promise.epoch == event.epoch and not promise.started_s:
            promise.started_s = event.at_s


def _note_job(node_id: str, state: MemoryState, job: Job) -> None:
    slots = job.placement.slots if job.placement is not None else ()
    devices = sum(len(slot.devices) for slot in slots if slot.node_id == node_id)
    declared = devices * (job.spec.host_memory_bytes or job.spec.least_host_bytes)
    if not declared or job.state in TERMINAL or not job.may_run(job.epoch, node_id):
        state.promises.pop(job.id, None)
        return
    known = state.promises.get(job.id)
    if known is None or known.epoch != job.epoch:
        state.promises[job.id] = Promise(epoch=job.epoch, memory_bytes=declared)
