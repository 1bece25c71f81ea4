"""
Decider and fold: a service's pure part, and the state that it decides on.

A :class:`Decider` is the same for everything that runs it: the live shell, the simulator or a test. It applies facts
and proposes facts (:class:`Decision`, :class:`Proposal`). A :class:`Fold` is the decider's state as the result of all
deliveries of the log up to a sequence. A snapshot makes the start of a fold faster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, Optional, TypeVar

import msgspec

from penstock_bus.logger import get_logger
from penstock_bus.port import Delivery, Snapshot
from penstock_log import AnyEvent, Commit, Event, UnknownFact, read_as, subjects, tag_of

S = TypeVar("S")


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """
    Facts of one entity that the decider proposes to append, all or none.

    Attributes
    ----------
    subject : str
        The entity, from :mod:`penstock_log.subjects`; the shell adds the expected sequence from its fold.
    cause : int
        Sequence of the commit that led to it.
    """

    subject: str
    facts: tuple[AnyEvent, ...]
    cause: int = 0


class Decision(msgspec.Struct, frozen=True):
    """The proposals to append now, and when to decide again though nothing happens; None: only after a new fact."""

    proposals: list[Proposal] = msgspec.field(default_factory=list)
    wake_at_s: Optional[float] = None


@dataclass(frozen=True)
class Decider(Generic[S]):
    """
    One service's pure part.

    Attributes
    ----------
    name : str
        The service, as in :data:`penstock_log.services.WRITERS`.
    state : type
        A mutable ``msgspec.Struct`` whose ``state()`` is the empty state; snapshots are its MessagePack.
    schema : str
        Changes when the state's layout or the fold changes; older snapshots are then ignored.
    apply : callable
        ``apply(state, event, seq)`` folds one fact in, in place; never refuses, reads no clock.
    decide : callable
        ``decide(state, now_s)``; never awaits. The shell calls it again only after its own facts have come back.
    leads : bool
        True where only one replica may decide (the others keep a hot fold); False where all decide, and conflicts
        sort it out.
    ignores : frozenset of type
        Kinds of facts after which the shell need not call ``decide``. They are folded in as any other, but they bring
        about no new proposal, and none sooner.
    reads : frozenset of type, or None
        Kinds of facts that ``apply`` takes in: any other would change nothing, so it is not called with one. None:
        all that are known.
    extends : tuple of type
        Facts of extensions that the fold reads; it ignores all others that are unknown.
    """

    name: str
    state: type[S]
    schema: str
    apply: Callable[[S, Event, int], None]
    decide: Callable[[S, float], Decision]
    leads: bool = True
    ignores: frozenset[type[Event]] = frozenset()
    reads: Optional[frozenset[type[Event]]] = None
    extends: tuple[type[Event], ...] = ()
    _ignored: frozenset[type[Event]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Ignore facts that are unknown, but for those in ``extends``."""
        object.__setattr__(self, "_ignored", self.ignores | {UnknownFact})

    def heeds(self, commit: Commit) -> bool:
        """Say whether the decider may have something new to propose after a commit."""
        if not self._ignored.issuperset(map(type, commit.facts)):
            return True
        return bool(self.extends) and any(map(self._reads, commit.facts))

    def _reads(self, fact: Event) -> bool:
        return any(tag_of(kind) == tag_of(fact) for kind in self.extends)


def read_extended(fact: UnknownFact, reads: Mapping[str, type[Event]]) -> Event | None:
    """Return an extension's fact, if it is one of those that are read; None for others, and for one of another form."""
    kind = reads.get(fact.tag)
    if kind is None:
        return None
    found = read_as(fact, kind)
    if found is None:
        _log.warning("fact_of_another_form_ignored", tag=fact.tag)
    return found


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
        self._reads = decider.reads or frozenset()
        self._reads_all = decider.reads is None
        self._extends = {tag_of(kind): kind for kind in decider.extends}
        written = subjects.writable(decider.name) or [subjects.extended(decider.name)]
        self._own = tuple(pattern.removesuffix("*") for pattern in written)

    def apply(self, delivery: Delivery) -> bool:
        """Fold one commit in; return False for one that was folded before, which changes nothing."""
        if delivery.seq <= self.last_seq:
            return False
        state, seq, subject = self.state, delivery.seq, delivery.subject
        for fact in delivery.commit.facts:
            if type(fact) in self._reads:
                self._apply(state, fact, seq)
            elif isinstance(fact, UnknownFact):
                if (found := read_extended(fact, self._extends)) is not None:
                    self._apply(state, found, seq)
            elif self._reads_all:
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

        A snapshot of another schema, or a damaged one, is ignored with a log line: the log itself still has everything.
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
