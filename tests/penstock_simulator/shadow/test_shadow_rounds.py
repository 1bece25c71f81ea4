"""How alike rounds are."""

from __future__ import annotations

from shadow_cases import commits, node, placed, plan

from penstock_bus import Shadowed
from penstock_log import Commit, Preemption, RoundDecided, codec
from penstock_simulator.shadow.plan import actor_of
from penstock_simulator.shadow.shadow_score import agreement, published_rounds, real_rounds


def test_equal_rounds_agree_in_all() -> None:
    rounds = [placed("j1", 10.0), placed("j2", 20.0)]
    found = agreement(rounds, rounds)
    assert (found.same, found.rounds, found.same_starts, found.starts) == (2, 2, 2, 2)


def test_a_round_that_comes_later_than_that_or_starts_another_job_is_not_the_same() -> None:
    found = agreement([placed("j1", 10.0), placed("j2", 20.0)], [placed("j1", 14.0), placed("j2", 26.0)])
    assert (found.same, found.same_starts, found.starts) == (1, 1, 2)
    found = agreement([placed("j1", 10.0)], [placed("j2", 10.0)])
    assert (found.same, found.starts) == (0, 0)


def test_a_start_on_another_kind_is_another_start() -> None:
    (here,) = placed("j1", 10.0).placements
    elsewhere = type(here)(job_id="j1", epoch=1, kind="slow", slots=here.slots)
    found = agreement([placed("j1", 10.0)], [RoundDecided(pool="default", at_s=10.0, placements=(elsewhere,))])
    assert (found.same, found.same_starts, found.starts) == (1, 0, 1)


def test_preemptions_are_counted_and_rounds_without_starts_are_not() -> None:
    stops = RoundDecided(pool="default", at_s=5.0, preemptions=(Preemption(job_id="j1", epoch=1),))
    found = agreement([stops], [stops, stops])
    assert (found.rounds, found.preemptions, found.shadow_preemptions) == (0, 1, 2)


def test_only_rounds_since_the_shadow_began_count_and_only_its_own() -> None:
    log = commits(node(), placed("j1", 2.0), placed("j2", 3.0))
    chosen = plan("fifo", log[:2])
    assert real_rounds(log, chosen) == [placed("j2", 3.0)]

    def published(actor: str) -> Shadowed:
        body = codec.encode(Commit(id="1", actor=actor, facts=(placed("j2", 3.0),)))
        return Shadowed(seq=1, subject="penstock.shadow.test.round.default", stored_s=3.0, body=body)

    before = actor_of(plan("fifo"))
    assert published_rounds([published(before), published(actor_of(chosen))], chosen) == [placed("j2", 3.0)]
