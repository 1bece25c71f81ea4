"""Preemption for jobs that are bound to nodes: it is for one node at a time, and what it leaves is kept there."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from call_counts import calls_of
from hypothesis import given, settings
from hypothesis import strategies as st
from matcher_facts import GIB, Matcher, ended, job, matcher, node, queued, rounds, run_all, started

from penstock_log import JobState, Placement
from penstock_scheduler import admission
from sweeps import examples


def busy(nodes: dict[str, int], **settings_of: float) -> Matcher:
    """A cluster whose devices all have a run of one device each, of queue 1, for long enough."""
    one = matcher(min_run_s=1.0, patience_s=1000.0, **settings_of)
    one.given(*(node(name, fast=count) for name, count in nodes.items()))
    names = [f"r{number}" for number in range(sum(nodes.values()))]
    one.given(*(job(name) for name in names))
    assert len(run_all(one, 2.0)) == len(names)
    return one.given(queued(3.0, **dict.fromkeys(names, 1)))


def preempted(one: Matcher, at_s: float) -> dict[str, str]:
    """Run that is asked to stop → its node; what is placed meanwhile starts."""
    found = {}
    for fact in rounds(one.at(at_s).settle()):
        for placement in fact.placements:
            one.given(*started(placement, at_s))
        for each in fact.preemptions:
            placed = one.state.jobs[each.job_id].placement
            assert placed is not None
            found[each.job_id] = placed.slots[0].node_id
    return found


def stop(one: Matcher, at_s: float, *names: str) -> None:
    """Let runs end that were asked to."""
    for name in names:
        stopping = one.state.jobs[name]
        for node_id in sorted(stopping.open_nodes):
            one.given(ended(name, at_s, node_id=node_id, epoch=stopping.epoch, outcome="preempted"))


def placement(one: Matcher, name: str) -> Placement | None:
    return one.state.jobs[name].placement


def test_a_job_of_two_devices_of_one_node_preempts_two_runs_of_one_node() -> None:
    one = busy({"n1": 2, "n2": 2})
    one.given(job("big", gpus=2, gpus_per_node=2, at_s=20.0))
    stopping = preempted(one, 20.0)
    assert len(stopping) == 2
    assert len(set(stopping.values())) == 1
    stop(one, 21.0, *stopping)
    run_all(one, 21.0)
    placed = placement(one, "big")
    assert placed is not None
    assert [(slot.node_id, len(slot.devices)) for slot in placed.slots] == [(next(iter(stopping.values())), 2)]


def test_what_falls_free_first_is_not_given_to_others_and_nobody_more_is_preempted() -> None:
    one = busy({"n1": 2, "n2": 2})
    one.given(job("big", gpus=2, gpus_per_node=2, at_s=20.0))
    first, second = preempted(one, 20.0)
    stop(one, 21.0, first)
    one.given(job("late", at_s=21.5), queued(21.5, late=2))
    assert not preempted(one, 22.0)
    assert placement(one, "late") is None
    stop(one, 23.0, second)
    assert "big" in run_all(one, 23.0)


def test_one_that_asks_for_pairs_has_them_on_two_nodes() -> None:
    one = busy({"n1": 3, "n2": 3})
    one.given(job("big", gpus=4, gpus_per_node=2, at_s=20.0))
    stopping = preempted(one, 20.0)
    assert Counter(stopping.values()) == {"n1": 2, "n2": 2}
    stop(one, 21.0, *stopping)
    assert "big" in run_all(one, 21.0)


def test_a_job_that_names_its_node_preempts_there_and_one_that_leaves_it_out_elsewhere() -> None:
    one = busy({"n1": 2, "n2": 2})
    one.given(job("here", nodes=("n2",), at_s=20.0), job("there", exclude=("n2",), at_s=20.1))
    assert sorted(preempted(one, 20.5).values()) == ["n1", "n2"]


def test_within_a_queue_nobody_makes_way() -> None:
    one = busy({"n1": 2})
    one.given(job("big", gpus=2, gpus_per_node=2, at_s=20.0), queued(20.1, big=1))
    assert not preempted(one, 21.0)


def test_who_asks_for_more_than_a_share_of_a_host_has_enough_runs_stop_for_it() -> None:
    one = matcher(min_run_s=1.0)
    joined = node("n1", fast=4)
    one.given(msgspec.structs.replace(joined, host_memory_bytes=40 * GIB), *(job(f"r{n}") for n in range(4)))
    assert len(run_all(one, 2.0)) == 4
    one.given(queued(3.0, r0=1, r1=1, r2=1, r3=1), job("big", host_memory_bytes=25 * GIB, at_s=20.0))
    stopping = preempted(one, 20.0)
    assert len(stopping) == 3
    stop(one, 21.0, *list(stopping)[:2])
    one.given(job("late", at_s=21.5), queued(21.5, late=2))
    assert not preempted(one, 22.0)
    stop(one, 23.0, *list(stopping)[2:])
    assert "big" in run_all(one, 23.0)


def test_a_round_preempts_for_so_many_such_jobs_and_the_next_ones_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission, "MOST_BOUND", 2)
    one = busy({f"n{number}": 2 for number in range(5)})
    one.given(*(job(f"big{number}", gpus=2, gpus_per_node=2, at_s=20.0) for number in range(5)))
    each = [len(fact.preemptions) for fact in rounds(one.at(20.0).settle()) if fact.preemptions]
    assert each == [4, 4, 2]


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.integers(2, 4), min_size=1, max_size=3),
    st.sampled_from([(2, 2), (4, 2), (3, 3), (4, 4), (6, 2)]),
    st.randoms(use_true_random=False),
)
def test_it_starts_once_all_have_stopped_that_were_asked_to_whatever_comes_meanwhile(nodes, wanted, rng) -> None:
    """Runs stop in any order, and jobs of lower queues arrive all the time."""
    gpus, each = wanted
    if sum(count // each * each for count in nodes) < gpus:
        return
    one = busy({f"n{number}": count for number, count in enumerate(nodes)})
    one.given(job("big", gpus=gpus, gpus_per_node=each, at_s=20.0))
    asked = preempted(one, 20.0)
    assert asked
    left, at_s = sorted(asked), 21.0
    rng.shuffle(left)
    while left:
        one.given(job(f"late{at_s:g}", at_s=at_s), queued(at_s, **{f"late{at_s:g}": rng.choice([1, 2])}))
        stop(one, at_s, left.pop())
        assert not preempted(one, at_s + 0.5)
        at_s += 1.0
    placed = placement(one, "big")
    assert placed is not None
    assert all(len(slot.devices) % each == 0 for slot in placed.slots)
    assert all(one.state.jobs[name].state is JobState.PENDING for name in asked)


def test_jobs_for_whom_too_few_would_make_way_are_refused_before_their_nodes_are_looked_at_closely() -> None:
    one = busy({f"n{number}": 2 for number in range(10)})
    one.given(queued(3.5, r0=0, r1=0, r2=0, r3=0))
    one.given(*(job(f"big{n}", gpus=18, exclude=(f"n{n}",), at_s=20.0) for n in range(10)))
    one.given(job("last", gpus=2, exclude=("n9",), at_s=20.1))
    found: list[dict[str, str]] = []
    calls = calls_of(lambda: found.append(preempted(one, 20.5)))
    assert len(found[0]) == 2
    assert 0 < calls["choose_on_nodes"] < 10
