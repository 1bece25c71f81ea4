"""
Decider and fold: a service's pure part, and the state that it decides on.

A :class:`Decider` is the same for everything that runs it: the live shell, the simulator or a test. It applies facts
and proposes facts (:class:`Decision`, :class:`Proposal`). A :class:`Fold` is the decider's state as the result of all
deliveries of the log up to a sequence. A snapshot makes the start of a fold faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, Optional, TypeVar

import msgspec

from penstock_bus.logger import get_logger
from penstock_bus.port import Delivery, Snapshot
from penstock_log import (
    AnyEvent,
    Commit,
    Event,
    JobsArchived,
    JobTable,
    LogTrimmed,
    UnknownFact,
    lifecycle,
    read_as,
    subjects,
    tag_of,
)

S = TypeVar("S")


UNHURRIED_S: Final = 0.05
"""For so long facts gather before a decider whom nobody waits for: people and jobs do not notice."""


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
    reads : frozenset of type, or None
        Kinds of facts that ``apply`` takes in: any other would change nothing, so it is not called with one, and the
        shell need not call ``decide`` after one. None: all that are known.
    ignores : frozenset of type
        Kinds of facts that ``apply`` takes in as any other, but that bring about no new proposal, and none sooner: the
        shell need not call ``decide`` after these either.
    extends : tuple of type
        Facts of extensions that the fold reads; it ignores all others that are unknown.
    gather_s : callable, optional
        For how long new facts may gather before they are folded in together and decided on, in a state; seconds. 0:
        somebody waits for each decision now. None: always so.
    """

    name: str
    state: type[S]
    schema: str
    apply: Callable[[S, Event, int], None]
    decide: Callable[[S, float], Decision]
    leads: bool = True
    reads: Optional[frozenset[type[Event]]] = None
    ignores: frozenset[type[Event]] = frozenset()
    extends: tuple[type[Event], ...] = ()
    gather_s: Optional[Callable[[S], float]] = None

    def __post_init__(self) -> None:
        """
        Check that each kind of fact is declared once.

        Raises
        ------
        ValueError
            If a kind that is not read is to be ignored as well: it is ignored already.
        """
        if self.reads is not None and (twice := self.ignores - self.reads):
            names = ", ".join(sorted(kind.__name__ for kind in twice))
            raise ValueError(
                f"{self.name} ignores {names}, which it does not read; expected kinds in `reads`: leave out others"
            )

    def heeds(self, commit: Commit) -> bool:
        """Say whether the decider may have something new to propose after a commit."""
        return any(map(self._heeds_fact, commit.facts))

    def heeds_kind(self, kind: type[Event]) -> bool:
        """Say whether the decider may have something new to propose after a fact of a kind that is known."""
        if kind is JobsArchived:  # which may end jobs, whoever reads it
            return True
        return (self.reads is None or kind in self.reads) and kind not in self.ignores

    def _heeds_fact(self, fact: Event) -> bool:
        if isinstance(fact, UnknownFact):
            return any(tag_of(kind) == fact.tag for kind in self.extends)
        return self.heeds_kind(type(fact))


def read_extended(fact: UnknownFact, reads: Mapping[str, type[Event]]) -> Event | None:
    """Return an extension's fact, if it is one of those that are read; None for others, and for one of another form."""
    kind = reads.get(fact.tag)
    if kind is None:
        return None
    found = read_as(fact, kind)
    if found is None:
        _log.warning("fact_of_another_form_ignored", tag=fact.tag)
    return found


_OF_ARCHIVE: Final = frozenset({JobsArchived, LogTrimmed})

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
        self._extends = {tag_of(kind): kind for kind in decider.extends}
        self._reads_others = decider.reads is None or bool(decider.extends)
        written = subjects.writable(decider.name) or [subjects.extended(decider.name)]
        self._own = tuple(pattern.removesuffix("*") for pattern in written)

    def apply(self, delivery: Delivery) -> bool:
        """Fold one commit in; return False for one that was folded before, which changes nothing."""
        return self.apply_all((delivery,)) > 0

    def apply_all(self, deliveries: Iterable[Delivery]) -> int:
        """Fold commits in, in the log's order; return how many of them had not been folded before."""
        state, apply, reads, own, folded = self.state, self._apply, self._reads, self._own, 0
        for delivery in deliveries:
            seq = delivery.seq
            if seq <= self.last_seq:
                continue
            for fact in delivery.commit.facts:
                kind = type(fact)
                if kind in _OF_ARCHIVE:
                    self._apply_archive(fact, seq)
                if kind in reads:
                    apply(state, fact, seq)
                elif self._reads_others:
                    self._apply_other(fact, seq)
            if delivery.subject.startswith(own):
                self.heads[delivery.subject] = seq
            self.last_seq = seq
            folded += 1
        return folded

    def _apply_other(self, fact: Event, seq: int) -> None:
        """Fold in a fact of a kind that is not named: an extension's, or any where all kinds are read."""
        if not isinstance(fact, UnknownFact):
            if self.decider.reads is None:
                self._apply(self.state, fact, seq)
        elif (found := read_extended(fact, self._extends)) is not None:
            self._apply(self.state, found, seq)

    def _apply_archive(self, fact: Event, seq: int) -> None:
        """
        Drop what is kept here of archived jobs, and end those whose end this fold has missed.

        A fold that was away for longer than ended jobs are kept finds their ends removed from the log.
        """
        if isinstance(fact, LogTrimmed):
            self._drop_heads(fact.nodes)
        if not isinstance(fact, JobsArchived):
            return
        self._drop_heads((*fact.job_ids, *fact.sweep_ids, *fact.workloads))
        jobs = getattr(self.state, "jobs", None)
        if not isinstance(jobs, JobTable):
            return
        missed = [job for job_id in fact.job_ids if (job := jobs.get(job_id)) is not None]
        for ending in [one for job in missed for one in lifecycle.endings(job, fact.at_s)]:
            self._apply(self.state, ending, seq)

    def _drop_heads(self, entity_ids: Iterable[str]) -> None:
        for entity_id in entity_ids:
            for begin in self._own:
                self.heads.pop(begin + entity_id, None)

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
