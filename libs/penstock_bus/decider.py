"""What a deciding service is made of, whoever runs it: the live shell, the simulator or a test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from penstock_events import AnyEvent, Commit, Event

S = TypeVar("S")


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """
    Facts of one entity that the decider wants to make true, all or none.

    Attributes
    ----------
    subject : str
        The entity, from :mod:`penstock_events.subjects`; the shell adds the expected sequence from its fold.
    cause : int
        Sequence of the commit that led to it.
    """

    subject: str
    facts: tuple[AnyEvent, ...]
    cause: int = 0


class Decision(msgspec.Struct, frozen=True):
    """What to append now, and when to decide again even if nothing happens (None: only when something happens)."""

    proposals: list[Proposal] = msgspec.field(default_factory=list)
    wake_at_s: float | None = None


@dataclass(frozen=True)
class Decider(Generic[S]):
    """
    One service's pure part.

    Attributes
    ----------
    name : str
        The service, as in :data:`penstock_events.subjects.WRITERS`.
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
        Kinds of facts after which it need not be asked: they are folded in as any other, and there is nothing that it
        would propose then and would not have proposed before, nor anything that it would propose sooner.
    """

    name: str
    state: type[S]
    schema: str
    apply: Callable[[S, Event, int], None]
    decide: Callable[[S, float], Decision]
    leads: bool = True
    ignores: frozenset[type[Event]] = frozenset()

    def heeds(self, commit: Commit) -> bool:
        """Say whether it may have something new to propose after a commit."""
        return not self.ignores.issuperset(map(type, commit.facts))
