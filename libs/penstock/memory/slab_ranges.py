"""
Which slab is bound to which range of a store: bound late, when the range is hot, and dropped at the first error.

:class:`SlabRanges` cuts a store into ranges of a slab's size. It counts how active each is, asks the node's agent for
slabs for the hot ones, binds what is lent, and lets go of what fails or is wanted back. The store reads and writes a
range under its lock; nothing here reads or writes a slab.
"""

from __future__ import annotations

import logging
import threading
from typing import Final, Optional

import msgspec

from penstock.memory.agent_link import AgentLink, agent_socket
from penstock.memory.chunk_cache import BLOCK_BYTES, CHUNK_BYTES
from penstock.memory.slab_binding import SlabBinding, SlabLost, bind_slab
from penstock_log.memory_messages import SlabAddress
from penstock_policies.slabs import is_hot, smoothed

SLAB_BYTES: Final = 64 << 20
"""Ranges have this size until an agent says how large its slabs are."""
_MOST_PATIENCE: Final = 16

_log = logging.getLogger("penstock.memory")


class StoreStats(msgspec.Struct, kw_only=True):
    """
    Counters of a store since it was opened.

    Attributes
    ----------
    cache_bytes, slab_bytes, disk_bytes : int
        What was read, by the tier that had it.
    written_bytes, filled_bytes : int
        What was written; what was read from disk and then put into a slab.
    sent_bytes : int
        What of the written bytes went to a slab too.
    bound, shared : int
        Slabs that are bound now, and those of them that are memory shared with a donor on this host.
    lost, evicted, refused : int
        Slabs that were dropped after an error, that the agent wanted back, and that were asked for in vain.
    pending_bytes : int
        What is on its way to the disk now.
    agent : bool
        Whether the node's agent is there.
    """

    cache_bytes: int = 0
    slab_bytes: int = 0
    disk_bytes: int = 0
    written_bytes: int = 0
    sent_bytes: int = 0
    filled_bytes: int = 0
    bound: int = 0
    shared: int = 0
    lost: int = 0
    evicted: int = 0
    refused: int = 0
    pending_bytes: int = 0
    agent: bool = False


class SlabRange:
    """
    A part of a store that one slab has room for; all but its activity is changed under its lock.

    Attributes
    ----------
    start, end : int
        Where it is in the store, in bytes.
    binding : SlabBinding or None
        The slab that is bound to it.
    valid : bytearray
        One byte for each block: whether the slab has what the store has there.
    retired : bool
        Whether the store is cut otherwise now; then :meth:`SlabRanges.at` gives another range.
    """

    __slots__ = (
        "activity",
        "asked",
        "binding",
        "end",
        "leaving",
        "lock",
        "number",
        "patience",
        "refusals",
        "retired",
        "start",
        "stats",
        "touched",
        "turn",
        "valid",
    )

    def __init__(self, number: int, start: int, end: int) -> None:
        self.number, self.start, self.end = number, start, end
        self.lock = threading.Lock()
        self.binding: SlabBinding | None = None
        self.valid = bytearray()
        self.activity = 0.0
        self.touched = 0
        self.asked = False
        self.turn = 0
        """Counts what makes a slab void that is on its way."""
        self.refusals = self.patience = 0
        """Seconds before a slab is asked for again: longer after each refusal."""
        self.leaving = False
        """Whether the slab is taken away just now: that it fails then is no loss."""
        self.retired = False
        self.stats = StoreStats()

    def unbind(self) -> None:
        """Let go of the slab, and of one that is on its way, with the lock held."""
        self.turn += 1
        self.asked = False
        binding, self.binding, self.valid = self.binding, None, bytearray()
        if binding is not None:
            binding.close()

    def interrupt(self) -> bool:
        """
        Have a read or write end that waits for the donor of a slab which is over, without the lock.

        Returns
        -------
        bool
            Whether a slab was bound.
        """
        binding = self.binding
        if binding is None:
            return False
        self.leaving = True
        binding.close()
        return True


class _Grid:
    """The ranges of a store, by the size of the slabs."""

    def __init__(self, size: int, slab_bytes: int) -> None:
        self.slab_bytes = slab_bytes
        starts = range(0, size, slab_bytes)
        self.ranges = [SlabRange(i, start, min(start + slab_bytes, size)) for i, start in enumerate(starts)]


class SlabRanges:
    """
    The ranges of a store, and the link to the agent that lends slabs for them (its ``LinkOwner``).

    Parameters
    ----------
    size : int
        Bytes of the store, a multiple of 4096.
    socket : str or None
        The agent's socket; see :func:`~penstock.memory.agent_link.agent_socket`.
    name : str
        What people see where the memory is listed.
    timeout_s : float
        For how long a donor may take for each answer before its slab is dropped.
    second_s : float
        How long a second is here.
    """

    def __init__(self, size: int, socket: Optional[str], name: str, *, timeout_s: float, second_s: float) -> None:
        self._size, self._timeout_s = size, timeout_s
        self._regrid_lock = threading.Lock()
        self._grid = _Grid(size, SLAB_BYTES)
        self._past = StoreStats()
        self._closed = False
        self._link: AgentLink | None = None
        found = agent_socket(socket)
        if found:
            self._link = AgentLink(found, name, self, second_s=second_s)

    def at(self, offset: int) -> SlabRange:
        """Return the range that a byte of the store is in; who has its lock then looks whether it is retired."""
        grid = self._grid
        return grid.ranges[offset // grid.slab_bytes]

    def touch(self, part: SlabRange, length: int) -> None:
        """Count pages, with the lock held; ask for a slab as soon as it is certain that the range is hot."""
        part.touched += -(-length // BLOCK_BYTES)
        if part.binding is not None or part.asked or part.patience or self._link is None:
            return
        if (is_hot(part.activity) or is_hot(smoothed(part.touched, 0.0))) and self._link.connected:
            self._ask(part)

    def drop(self, part: SlabRange, lost: SlabLost) -> None:
        """Stop using a slab that failed, with the lock held; the disk has what it had."""
        if part.leaving:  # who takes it away sees to the rest
            part.unbind()
            return
        _log.warning("memory_slab_lost slab=%s reason=%s", part.number, lost)
        part.stats.lost += 1
        part.patience = 1
        part.unbind()
        if self._link is not None:
            self._link.give_back(part.number)

    def stats(self) -> StoreStats:
        """Return the counters of all ranges together."""
        ranges = self._grid.ranges
        total = _sum([self._past, *(part.stats for part in ranges)])
        bindings = [binding for part in ranges if (binding := part.binding) is not None]
        total.bound, total.shared = len(bindings), sum(binding.kind == "shared" for binding in bindings)
        total.agent = self._link is not None and self._link.connected
        return total

    def close(self) -> None:
        """Give all slabs back; when it returns, nobody reads or writes a range that was locked before."""
        with self._regrid_lock:
            self._closed = True
            for part in self._grid.ranges:
                with part.lock:
                    part.unbind()
        if self._link is not None:
            self._link.close()

    # --- asking for slabs

    def _ask(self, part: SlabRange) -> None:
        part.turn += 1
        turn = part.turn

        def answered(address: SlabAddress | None, reason: str) -> None:
            self._answered(part, turn, address, reason)

        part.asked = self._link is not None and self._link.borrow(part.number, answered)

    def _answered(self, part: SlabRange, turn: int, address: SlabAddress | None, reason: str) -> None:
        """Take in what came of asking, in the thread of the link: connecting is left to another one."""
        if address is None:
            self._refused(part, turn, reason)
            return
        threading.Thread(
            target=self._bind, args=(part, turn, address), name="penstock-memory-bind", daemon=True
        ).start()

    def _bind(self, part: SlabRange, turn: int, address: SlabAddress) -> None:
        """Connect to a slab, in a thread of its own."""
        try:
            if address.slab_bytes < part.end - part.start:
                message = f"it has {address.slab_bytes} bytes, and {part.end - part.start} are needed"
                raise SlabLost(message)
            binding = bind_slab(address, timeout_s=self._timeout_s)
        except SlabLost as lost:
            self._refused(part, turn, str(lost), give_back=True)
            return
        if not self._is_used(part, turn, binding):
            binding.close()

    def _refused(self, part: SlabRange, turn: int, reason: str, *, give_back: bool = False) -> None:
        with part.lock:
            if part.turn != turn:
                return  # it is void already, and was given back where there was something to give
            part.asked = False
            part.refusals += 1
            part.patience = min(2**part.refusals, _MOST_PATIENCE)
            part.stats.refused += 1
            if give_back and self._link is not None:
                self._link.give_back(part.number)
        _log.info("memory_no_slab slab=%s reason=%s", part.number, reason)

    def _is_used(self, part: SlabRange, turn: int, binding: SlabBinding) -> bool:
        """Begin to use a slab, unless it has become void meanwhile; return whether it is used."""
        with part.lock:
            if self._closed or part.retired or part.turn != turn:
                return False
            part.binding, part.asked, part.refusals, part.leaving = binding, False, 0, False
            part.valid = bytearray((part.end - part.start) // BLOCK_BYTES)
            return True

    # --- what the link tells: see LinkOwner

    def agent_welcomed(self, slab_bytes: int) -> None:
        """Cut the store into ranges of this size."""
        if slab_bytes <= 0 or slab_bytes % CHUNK_BYTES:
            _log.warning(
                "memory_slab_size_unusable slab_bytes=%s; it has to be a multiple of %s", slab_bytes, CHUNK_BYTES
            )
            return
        with self._regrid_lock:
            old = self._grid
            if old.slab_bytes == slab_bytes or self._closed:
                return
            new = _Grid(self._size, slab_bytes)
            for part in old.ranges:
                part.lock.acquire()
            try:
                for part in old.ranges:
                    part.retired = True
                    part.unbind()
                self._past = _sum([self._past, *(part.stats for part in old.ranges)])
                self._grid = new
            finally:
                for part in old.ranges:
                    part.lock.release()

    def agent_gone(self) -> None:
        """Let go of all slabs."""
        for part in self._grid.ranges:
            had = part.interrupt()
            with part.lock:
                part.stats.lost += had
                part.unbind()

    def slab_evicted(self, slab: int, reason: str) -> None:
        """Let go of one slab."""
        ranges = self._grid.ranges
        if not 0 <= slab < len(ranges):
            return
        part = ranges[slab]
        had = part.interrupt()
        with part.lock:
            part.stats.evicted += had
            part.patience = 1
            part.unbind()
        _log.info("memory_slab_evicted slab=%s reason=%s", slab, reason)

    def second_over(self) -> dict[int, float]:
        """Smooth how active the ranges are, and return it of those with a slab; ask for one for those that are hot."""
        use: dict[int, float] = {}
        for part in self._grid.ranges:
            measured, part.touched = part.touched, 0
            part.patience = max(0, part.patience - 1)
            if not measured and part.activity < 1e-3 and part.binding is None:
                continue
            part.activity = smoothed(measured, part.activity)
            if part.binding is not None:
                use[part.number] = round(part.activity, 3)
            elif is_hot(part.activity) and part.lock.acquire(blocking=False):  # busy ones ask for themselves
                try:
                    if not part.retired:
                        self.touch(part, 0)
                finally:
                    part.lock.release()
        return use

    # --- forks

    def before_fork(self) -> None:
        """Keep the state as it is until after the fork, and let nobody read or write."""
        self._regrid_lock.acquire()
        for part in self._grid.ranges:
            part.lock.acquire()
        if self._link is not None:
            self._link.before_fork()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        if self._link is not None:
            self._link.after_fork_in_parent()
        for part in self._grid.ranges:
            part.lock.release()
        self._regrid_lock.release()

    def after_fork_in_child(self) -> None:
        """Let go of the link and of all slabs, which are the parent's."""
        self._regrid_lock = threading.Lock()
        if self._link is not None:
            self._link.after_fork_in_child()
            self._link = None
        for part in self._grid.ranges:
            part.lock = threading.Lock()
            if part.binding is not None:
                part.binding.detach()
                part.binding = None


def _sum(many: list[StoreStats]) -> StoreStats:
    return StoreStats(**{name: sum(getattr(one, name) for one in many) for name in StoreStats.__struct_fields__})
