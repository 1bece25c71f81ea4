"""Given, when, then over a decider: no bus, no clock, and the invariants that must hold for all of them."""

from __future__ import annotations

from typing import Generic, TypeVar

from penstock_bus import Decider, Decision, Delivery
from penstock_bus.decider import Fold
from penstock_log import AnyEvent, Commit, codec, subject_of, subjects

__all__ = ["delivery", "subject_of"]


S = TypeVar("S")


class Scenario(Generic[S]):
    """
    One decider and the log it has seen.

    Each question about the decision also checks that deciding changes nothing, that the same state gives the same
    decision, that replaying the log gives the live state, and that a snapshot in its middle makes no difference.

    Examples
    --------
    ``Scenario(decider).given(node_joined).at(5.0).when(job_submitted).then(round_decided)``
    """

    def __init__(self, decider: Decider[S]) -> None:
        self.decider = decider
        self.fold = Fold(decider)
        self.log: list[Delivery] = []
        self.now_s = 0.0

    @property
    def state(self) -> S:
        """The live state."""
        return self.fold.state

    def given(self, *facts: AnyEvent) -> Scenario[S]:
        """Fold facts in, each as a commit of its own."""
        for fact in facts:
            self._append(fact)
        return self

    def at(self, now_s: float) -> Scenario[S]:
        """Set the clock."""
        self.now_s = now_s
        return self

    def when(self, *facts: AnyEvent) -> Scenario[S]:
        """Fold in the facts that the next :meth:`then` is about; the same as :meth:`given`, but reads better."""
        return self.given(*facts)

    def decision(self) -> Decision:
        """Return what the decider decides now, without making it true."""
        before = self.fold.encoded()
        decision = self.decider.decide(self.state, self.now_s)
        assert self.fold.encoded() == before, "deciding changed the state; only apply may"
        again = self.decider.decide(self.state, self.now_s)
        assert again == decision, f"the same state gave two decisions: {decision} and {again}"
        for proposal in decision.proposals:
            writer = subjects.writer_of(proposal.subject)
            assert writer == self.decider.name, f"{proposal.subject} is written by {writer or 'nobody'}"
        check_replay(self.decider, self.log, self.fold)
        return decision

    def facts(self) -> list[AnyEvent]:
        """Return the facts of the present decision in order."""
        return [fact for proposal in self.decision().proposals for fact in proposal.facts]

    def then(self, *expected: AnyEvent) -> Scenario[S]:
        """Assert that the decision is exactly these facts, and make them true; no arguments: that it is none."""
        decision = self.decision()
        facts = [fact for proposal in decision.proposals for fact in proposal.facts]
        assert facts == list(expected)
        return self._make_true(decision)

    def then_wakes_at(self, now_s: float | None) -> Scenario[S]:
        """Assert when the decider wants to be asked again."""
        assert self.decision().wake_at_s == now_s
        return self

    def settle(self, rounds: int = 100) -> list[AnyEvent]:
        """
        Make decisions true until there are none; return their facts.

        Raises
        ------
        AssertionError
            If the decider still proposes after ``rounds``: it would never come to rest.
        """
        settled: list[AnyEvent] = []
        for _ in range(rounds):
            decision = self.decision()
            if not decision.proposals:
                return settled
            settled += [fact for proposal in decision.proposals for fact in proposal.facts]
            self._make_true(decision)
        raise AssertionError(f"{self.decider.name} still proposes after {rounds} rounds: {settled[-3:]}")

    def _make_true(self, decision: Decision) -> Scenario[S]:
        for proposal in decision.proposals:
            self._append(*proposal.facts, subject=proposal.subject)
        return self

    def _append(self, *facts: AnyEvent, subject: str = "") -> None:
        stored = delivery(self.fold.last_seq + 1, *facts, subject=subject)
        assert codec.decode(codec.encode(stored.commit)) == stored.commit, "the codec changed a fact"
        self.log.append(stored)
        self.fold.apply(stored)


def check_replay(decider: Decider[S], log: list[Delivery], live: Fold[S] | None = None) -> None:
    """
    Assert that folding the log gives one state, however often snapshots interrupt it.

    Parameters
    ----------
    decider : Decider
    log : list of Delivery
        In order of their sequences.
    live : Fold, optional
        A fold of the same log, to be compared as well.
    """
    whole = Fold(decider)
    for stored in log:
        whole.apply(stored)
    if live is not None:
        assert whole.encoded() == live.encoded(), "replaying the log gives another state than the live one"
    for cut in sorted({0, len(log) // 2, len(log)}):
        resumed = _resumed(decider, log, cut)
        assert resumed.encoded() == whole.encoded(), f"a snapshot after {cut} commits changes the state"


def _resumed(decider: Decider[S], log: list[Delivery], cut: int) -> Fold[S]:
    before, after = Fold(decider), Fold(decider)
    for stored in log[:cut]:
        before.apply(stored)
    assert after.restore(before.snapshot()), "the snapshot could not be restored"
    for stored in log:
        after.apply(stored)
    return after


def delivery(seq: int, *facts: AnyEvent, subject: str = "", pending: int = 0) -> Delivery:
    """Return the facts as one commit of the log, under the first one's subject where none is given."""
    return Delivery(
        seq=seq,
        subject=subject or subject_of(facts[0]),
        stored_s=facts[0].at_s if facts else 0.0,
        pending=pending,
        commit=Commit(id=f"c{seq}", actor="test", facts=facts),
    )
