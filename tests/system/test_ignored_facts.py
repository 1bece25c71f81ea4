"""After a fact that it ignores a decider has nothing new to propose: nobody need ask it because of such a fact."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_clusters import facts

from penstock_assigner import machine as assigner
from penstock_autoscaler import machine as autoscaler
from penstock_bus import Decider, Decision
from penstock_bus.decider import Fold
from penstock_gateway.machine import announcer
from penstock_log import AnyEvent, JobFinished
from penstock_matcher import machine as matcher
from penstock_ranker import machine as ranker
from penstock_testing import delivery
from sweeps import examples

DECIDERS: dict[str, Callable[[], Decider[Any]]] = {
    "announcer": announcer,
    "assigner": assigner.decider,
    "autoscaler": autoscaler.decider,
    "matcher": matcher.decider,
    "ranker": ranker.decider,
}
TIMES_S = (1.0, 1e3, 1e6)


@pytest.mark.parametrize("name", DECIDERS)
def test_some_of_the_facts_are_ignored(name: str) -> None:
    assert not all(DECIDERS[name]().heeds_kind(type(fact)) for fact in facts())


@pytest.mark.parametrize("name", [name for name in DECIDERS if DECIDERS[name]().ignores])
def test_what_a_decider_declares_to_ignore_it_folds(name: str) -> None:
    decider = DECIDERS[name]()
    assert {type(fact) for fact in facts()} & decider.ignores
    assert decider.reads is None or decider.ignores < decider.reads


def test_a_kind_that_is_not_read_need_not_be_ignored_as_well() -> None:
    with pytest.raises(ValueError, match="ranker ignores JobFinished, which it does not read"):
        dataclasses.replace(ranker.decider(), ignores=frozenset({JobFinished}))


@pytest.mark.parametrize("name", DECIDERS)
@settings(max_examples=examples(40), deadline=None)
@given(history=st.permutations(facts()), in_order=st.booleans())
def test_after_a_fact_that_is_ignored_there_is_nothing_new_to_propose(
    name: str, history: list[AnyEvent], in_order: bool
) -> None:
    decider = DECIDERS[name]()
    fold, before = Fold(decider), list[Decision]()
    for seq, fact in enumerate(facts() if in_order else history, start=1):
        ignored = not decider.heeds(delivery(seq, fact).commit)
        if ignored and not before:
            before = decisions(decider, fold)
        fold.apply(delivery(seq, fact))
        after = decisions(decider, fold) if ignored else []
        for then, now in zip(before, after, strict=False):
            assert all(proposal in then.proposals for proposal in now.proposals), f"{fact} made a difference"
            assert (now.wake_at_s or math.inf) >= (then.wake_at_s or math.inf), f"{fact} made it wake sooner"
        before = after


def decisions(decider: Decider[Any], fold: Fold[Any]) -> list[Decision]:
    return [decider.decide(fold.state, now_s) for now_s in TIMES_S]


@pytest.mark.parametrize("name", DECIDERS)
def test_a_fact_that_a_fold_does_not_read_changes_nothing(name: str) -> None:
    decider = DECIDERS[name]()
    fold = Fold(decider)
    for seq, fact in enumerate(facts(), start=1):
        if decider.reads is None or type(fact) in decider.reads:
            fold.apply(delivery(seq, fact))
        else:
            before = fold.encoded()
            decider.apply(fold.state, fact, seq)
            assert fold.encoded() == before
