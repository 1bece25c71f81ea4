"""What runs turn out to need of their devices, and when their boards are told. Pure."""

from __future__ import annotations

from penstock_events import MemoryNeed, RunMeasured
from penstock_executor.sharing.party import Party
from penstock_executor.sharing.table import Table
from penstock_policies.lanes import Sample, differs


class Needs:
    """The needs of the runs at a table."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def see(self, party: Party, rank: int, sample: Sample, iterations: int) -> None:
        """A process says what it holds after so many iterations."""
        party.meter.see(rank, sample, iterations)
        self._tell(party)
        need = party.meter.need
        if need is None or party.stopped is not None:
            return
        known = party.pending or self._table.boards[party.sharer.devices[0]].need(party.job_id)
        if not party.known or differs(known, need):
            self._take(party, need)

    def stop(self, party: Party) -> None:
        """A process was stopped in the middle of a turn: all that it may hold counts as kept."""
        if party.stopped is not None:
            return
        board = self._table.boards[party.sharer.devices[0]]
        party.stopped = need = board.need(party.job_id)
        kept_bytes = board.cap_bytes(party.job_id) - need.framework_bytes
        self._table.warn(party, "it did not give its turn back, so that was taken; all that it may hold counts as kept")
        self._take(party, MemoryNeed(kept_bytes, need.framework_bytes, need.ephemeral_bytes))

    def go_on(self, party: Party) -> None:
        """One that was stopped is between two iterations: it needs what it needed before."""
        if party.stopped is not None:
            need, party.stopped = party.stopped, None
            self._take(party, need)

    def framework_bytes(self, party: Party) -> int:
        """Return what of a run's memory no allocator sees, as far as is known: the most of its devices."""
        boards = (self._table.boards[device] for device in party.sharer.devices)
        return max((board.need(party.job_id).framework_bytes for board in boards if party.job_id in board), default=0)

    def rest_of(self, device: int) -> MemoryNeed:
        """Return the largest need that a device has room for beside what others keep."""
        board = self._table.boards[device]
        lanes_bytes = sum(view.size_bytes for view in board.lanes)
        return MemoryNeed(0, 0, max(0, board.free_bytes + lanes_bytes))

    def _tell(self, party: Party) -> None:
        need = party.meter.news()
        if need is None:
            return
        fact = RunMeasured(
            job_id=party.sharer.job_id,
            epoch=party.sharer.epoch,
            node_id=self._table.node_id,
            need=need,
            iterations=party.meter.iterations,
            at_s=self._table.now_s,
        )
        self._table.orders.facts.append(fact)

    def _take(self, party: Party, need: MemoryNeed) -> None:
        """Take a need into account: now, or at the end of the turn that is under way, or has begun on some devices."""
        party.pending = need
        if self._table.gangs.holds(party.job_id):
            self._table.touch(party)
            return
        needs, party.pending = party.pending_needs() or {}, None
        self._table.digest(self._table.gangs.measured(party.job_id, needs, self._table.now_s))
