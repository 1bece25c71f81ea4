"""State as the fold of the log: applying deliveries, and making a start faster with snapshots."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

import msgspec

from penstock_bus.decider import Decider
from penstock_bus.logger import get_logger
from penstock_bus.port import Delivery, Snapshot
from penstock_events import subjects

S = TypeVar("S")
RULES: Final = "placed"
"""What every fold leaves out of the log: a snapshot made before commits out of place were dropped may hold some."""

_log = get_logger("penstock.fold")


class Fold(Generic[S]):
    """
    A decider's state up to a sequence of the log.

    Attributes
    ----------
    state : S
        Changed in place by every :meth:`apply`.
    last_seq : int
        Sequence of the last delivery applied; 0 before the first.
    heads : dict of str to int
        Last sequence of each subject that this service writes: what an append has to expect.
    """

    def __init__(self, decider: Decider[S]) -> None:
        self.decider = decider
        self.schema = f"{decider.schema} {RULES}"
        self.state: S = decider.state()
        self.last_seq = 0
        self.heads: dict[str, int] = {}
        self._apply = decider.apply
        self._own = tuple(pattern.removesuffix("*") for pattern in subjects.writable(decider.name))

    def apply(self, delivery: Delivery) -> bool:
        """Fold one commit in; one that was folded before changes nothing and gives False."""
        if delivery.seq <= self.last_seq:
            return False
        state, seq, subject = self.state, delivery.seq, delivery.subject
        for fact in delivery.commit.facts:
            self._apply(state, fact, seq)
        if subject.startswith(self._own):
            self.heads[subject] = seq
        self.last_seq = seq
        return True

    def snapshot(self) -> Snapshot:
        """Return the state as it is now."""
        body = msgspec.msgpack.encode((self.heads, self.state))
        return Snapshot(schema=self.schema, last_seq=self.last_seq, state=body)

    def restore(self, snapshot: Snapshot | None) -> bool:
        """
        Go on from a snapshot, if there is a usable one.

        One of another schema or a damaged one is ignored with a log line: the log itself still has everything.
        """
        if snapshot is None:
            return False
        if snapshot.schema != self.schema:
            _log.info("snapshot_of_another_schema_ignored", found=snapshot.schema, expected=self.schema)
            return False
        try:
            heads, state = msgspec.msgpack.decode(snapshot.state, type=tuple[dict[str, int], self.decider.state])  # type: ignore[name-defined]
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            _log.warning("damaged_snapshot_ignored", service=self.decider.name, error=str(error))
            return False
        self.heads, self.state, self.last_seq = heads, state, snapshot.last_seq
        return True

    def encoded(self) -> bytes:
        """Return the state's bytes, equal for equal folds: for comparing a replay with the live state."""
        return msgspec.msgpack.encode((self.heads, self.state), order="deterministic")
