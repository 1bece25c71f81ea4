"""Facts on their way to the log: in order, in commits that a server takes, and no more than matter."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock_executor.fact_outbox import MOST_UNPACED, MOST_WAITING, FactOutbox, RunFact
from penstock_log import AnyEvent, RunCheckpointed, RunEnded, RunStarted, RunWarned, encode


def saved(step: int, epoch: int = 1) -> RunCheckpointed:
    return RunCheckpointed(job_id="j1", epoch=epoch, node_id="n1", step=step, at_s=1.0)


def warned(text: str) -> RunWarned:
    return RunWarned(job_id="j1", epoch=1, node_id="n1", warning=text, at_s=1.0)


STARTED = RunStarted(job_id="j1", epoch=1, node_id="n1", devices=(0,), resumed_step=0, at_s=0.0)
ENDED = RunEnded(
    job_id="j1",
    epoch=1,
    node_id="n1",
    outcome="completed",
    reason="r" * 9_000,
    metrics={f"m{i}": 0.5 for i in range(96_000)},
    at_s=2.0,
)


def sent(outbox: FactOutbox, most_bytes: int) -> list[AnyEvent]:
    facts: list[AnyEvent] = []
    while (commit := outbox.next()) is not None:
        assert outbox.next() == commit
        assert len(encode(commit)) <= most_bytes + 1000
        facts += commit.facts
        outbox.done()
    return facts


def test_of_twenty_thousand_checkpoints_that_wait_the_first_and_the_last_are_told_in_commits_that_fit() -> None:
    outbox = FactOutbox("executor/n1", 20_000)
    outbox.put(STARTED, 7)
    for step in range(20_000):
        outbox.put(saved(step), 7)
    outbox.put(ENDED, 7)
    first, *steps, last = sent(outbox, 20_000)
    assert first == STARTED
    told = [fact.step for fact in steps if isinstance(fact, RunCheckpointed)]
    assert told == [*range(MOST_WAITING - 1), 19_999]
    assert isinstance(last, RunEnded)
    assert (last.outcome, len(last.reason), last.metrics) == ("completed", 200, {})


def test_who_has_said_the_same_a_thousand_times_is_heard_less_often_and_its_end_at_once() -> None:
    outbox = FactOutbox("executor/n1")
    for step in range(MOST_UNPACED):
        outbox.put(saved(step), 7)
    assert len(sent(outbox, 1 << 20)) == MOST_UNPACED
    for step in range(5_000):
        outbox.put(saved(step), 7)
    assert sent(outbox, 1 << 20) == [saved(4_999)]
    assert outbox.has_time
    outbox.put(saved(1, epoch=2), 7)
    assert not outbox.has_time
    assert sent(outbox, 1 << 20) == [saved(1, epoch=2)]
    outbox.put(saved(6_000), 7)
    outbox.put(ENDED, 7)
    assert not outbox.has_time
    assert [type(fact) for fact in sent(outbox, 1 << 20)] == [RunCheckpointed, RunEnded]
    assert not outbox.has_time


def test_a_fact_that_comes_while_another_is_appended_waits_for_its_own_commit() -> None:
    outbox = FactOutbox("executor/n1")
    outbox.put(saved(1), 7)
    assert outbox.next() is not None
    outbox.put(saved(1), 7)  # equal, and another
    outbox.done()
    assert sent(outbox, 1 << 20) == [saved(1)]


@given(st.lists(st.builds(warned, st.text(max_size=300)) | st.builds(saved, st.integers(0, 9), st.integers(1, 2))))
def test_all_facts_of_a_run_are_told_once_and_in_order(facts: list[RunFact]) -> None:
    outbox = FactOutbox("executor/n1", 1_500)
    for fact in facts:
        outbox.put(fact, 7)
    told = sent(outbox, 1_500)
    for epoch in (1, 2):
        assert [fact for fact in told if getattr(fact, "epoch", 0) == epoch] == [
            fact for fact in facts if fact.epoch == epoch
        ]
