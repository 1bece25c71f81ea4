"""Processors and memory of hosts: who is placed where, who waits for them, and that no host is given twice."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from matcher_facts import GIB, Matcher, causes, ended, job, matcher, node, queued, rounds, run_all

from penstock_cluster.nodes import HostAmount, need_of, of_node, share_of
from penstock_log import ACTIVE, NodeJoined, RoundDecided
from sweeps import examples


def hosted(node_id: str, cpus: float = 8.0, memory_gib: float = 32.0, **kinds: int) -> NodeJoined:
    """A node that tells what its host has for jobs."""
    joined = node(node_id, **kinds)
    return msgspec.structs.replace(joined, cpus=float(cpus), host_memory_bytes=int(memory_gib * GIB))


def big(job_id: str, gib: float = 20.0, **fields: Any) -> Any:
    return job(job_id, host_memory_bytes=int(gib * GIB), **fields)


asked = st.fixed_dictionaries(
    {
        "gpus": st.integers(1, 3),
        "cpus": st.sampled_from([0.0, 0.0, 1.0, 2.5, 7.0]),
        "host_memory_bytes": st.sampled_from([0, 0, 2 * GIB, 12 * GIB, 30 * GIB]),
        "local_memory_bytes": st.sampled_from([0, 0, GIB, 12 * GIB]),
        "kinds": st.sampled_from([(), ("fast",), ("slow",)]),
        "user": st.sampled_from(["ann", "bob"]),
    }
)


def evidence(one: Matcher) -> dict[str, str]:
    """Job → what the last round that said anything said of it."""
    found = [fact for fact in one.settle() if isinstance(fact, RoundDecided)]
    return {wait.job_id: wait.evidence for fact in found for wait in fact.waits}


def test_two_jobs_that_ask_for_most_of_a_hosts_memory_run_one_after_the_other() -> None:
    one = matcher().given(hosted("n1", fast=4), big("a"), big("b"))
    assert run_all(one, 2.0) == {"a": "fast"}
    assert causes(one) == {"b": "host_memory"}
    one.given(ended("a", 5.0))
    assert run_all(one, 5.0) == {"b": "fast"}


def test_what_is_asked_beyond_a_share_is_missing_for_those_that_ask_for_nothing() -> None:
    one = matcher().given(hosted("n1", fast=4), big("a"), *(job(f"j{i}", at_s=2.0) for i in range(3)))
    assert set(run_all(one, 2.0)) == {"a", "j0"}
    assert set(causes(one).values()) == {"host_memory"}


def test_what_is_asked_less_than_a_share_is_left_for_others() -> None:
    small = [big(f"s{i}", gib=2.0) for i in range(3)]
    one = matcher().given(hosted("n1", fast=4), *small, big("a", gib=26.0, at_s=2.0))
    assert set(run_all(one, 2.0)) == {"s0", "s1", "s2", "a"}


def test_a_job_goes_to_the_node_whose_host_has_room() -> None:
    one = matcher().given(hosted("n1", memory_gib=16, fast=4), hosted("n2", memory_gib=64, fast=4), big("a", gib=40.0))
    (fact,) = rounds(one.at(2.0).settle())
    assert [slot.node_id for slot in fact.placements[0].slots] == ["n2"]


def test_processors_bind_as_memory_does_and_are_named() -> None:
    one = matcher().given(hosted("n1", cpus=8, fast=4), job("a", cpus=6.0), job("b", cpus=4.0, at_s=2.0))
    assert run_all(one, 2.0) == {"a": "fast"}
    assert causes(one) == {"b": "host_cpus"}


def test_a_gang_is_spread_where_each_host_has_room() -> None:
    one = matcher().given(hosted("n1", fast=4), hosted("n2", fast=4), big("a", gib=12.0, gpus=4))
    (fact,) = rounds(one.at(2.0).settle())
    assert [len(slot.devices) for slot in fact.placements[0].slots] == [2, 2]


def test_a_job_that_no_host_can_hold_is_told_how_much_less_would_do() -> None:
    one = matcher().given(hosted("n1", fast=4), big("a", gib=40.0)).at(2.0)
    (fact,) = rounds(one.settle())
    (wait,) = fact.waits
    assert wait.cause == "never_fits"
    assert wait.evidence == (
        "needs 40 GiB of the host's memory; the largest node of pool `default` with such devices has 32 GiB and 8 cpus"
    )
    assert wait.remedy == "ask for at most 32 GiB of the host's memory a device"


def test_what_a_job_keeps_on_its_host_of_borrowed_memory_is_taken_of_the_host() -> None:
    one = matcher().given(hosted("n1", fast=4), *(job(f"j{i}", local_memory_bytes=13 * GIB) for i in range(3)))
    assert set(run_all(one, 2.0)) == {"j0", "j1"}
    assert causes(one) == {"j2": "host_memory"}


def test_a_job_that_keeps_less_than_its_share_on_the_host_takes_a_share() -> None:
    share = HostAmount(cpus=2000, memory_bytes=8 * GIB)
    small = need_of(job("a", local_memory_bytes=GIB).spec, share)
    assert small == need_of(job("b").spec, share) == share


def test_a_job_that_says_its_host_memory_takes_that_whatever_it_keeps_there() -> None:
    one = matcher().given(
        hosted("n1", fast=4), *(big(f"j{i}", gib=16.0, local_memory_bytes=15 * GIB) for i in range(2))
    )
    assert set(run_all(one, 2.0)) == {"j0", "j1"}


def test_a_job_that_would_keep_more_than_any_host_has_is_told_how_much_less_would_do() -> None:
    one = matcher().given(hosted("n1", fast=4), job("a", local_memory_bytes=40 * GIB)).at(2.0)
    (fact,) = rounds(one.settle())
    (wait,) = fact.waits
    assert wait.cause == "never_fits"
    assert "needs 41 GiB of the host's memory, which its memory.local asks for; the largest node" in wait.evidence
    assert wait.remedy == "keep at most 31 GiB of borrowed memory's files on the host"
    fits = matcher().given(hosted("n1", fast=4), job("a", local_memory_bytes=31 * GIB))
    assert set(run_all(fits, 2.0)) == {"a"}


def test_a_gang_that_no_hosts_can_hold_is_told_how_much_each_of_its_devices_may_have() -> None:
    one = matcher(max_tries=0).given(hosted("n1", fast=4), hosted("n2", fast=2), job("a", cpus=9.0, gpus=5)).at(2.0)
    (fact,) = rounds(one.settle())
    assert fact.waits[0].remedy == "ask for at most 2.666 cpus a device"


@settings(max_examples=examples(60))
@given(
    fields=asked,
    nodes=st.lists(st.tuples(st.sampled_from([0.0, 2.0, 7.5]), st.sampled_from([0.0, 7.3, 21.54]), st.integers(1, 4))),
)
def test_what_a_remedy_says_may_be_asked_of_a_host_fits_and_no_more_does(fields: Any, nodes: Any) -> None:
    joined = [hosted(f"n{i}", cpus, gib, fast=count) for i, (cpus, gib, count) in enumerate(nodes)]
    one = matcher(max_tries=0).given(*joined, job("a", **{**fields, "kinds": ()})).at(2.0)
    waits = [wait for fact in rounds(one.settle()) for wait in fact.waits if "a device" in wait.remedy]
    for wait in waits:
        number, unit = re.fullmatch(r"ask for at most (\S+) (GiB|MiB|cpus) .*a device", wait.remedy).groups()
        for more, starts in ((0.0, True), (0.02, False)):
            size = float(number) + more
            change = {"cpus": size} if unit == "cpus" else {"host_memory_bytes": int(size * 2**30)}
            again = matcher(max_tries=0).given(*joined, job("a", **{**fields, "kinds": (), **change}))
            assert bool(run_all(again, 2.0)) is starts


def test_who_asks_much_of_its_host_is_told_who_has_all_devices_that_it_waits_for() -> None:
    one = matcher(max_tries=0).given(hosted("n1", fast=2), job("a"), job("b"))
    run_all(one, 2.0)
    found = evidence(one.given(big("c", at_s=3.0, gib=30.0)).at(3.0))
    assert found["c"] == "2 fast busy with 2 jobs of queue 0; it is next"


def test_the_evidence_says_what_is_left_where() -> None:
    one = matcher(max_tries=0).given(hosted("n1", fast=4), big("a"), big("b", at_s=2.0)).at(2.0)
    assert evidence(one)["b"] == (
        "idle: 3 fast, but it needs 20 GiB of its host's memory and 2 cpus for each device, and 12 GiB and 6 cpus of "
        "`n1` are left; it is next"
    )


def test_an_alternative_with_less_of_the_host_is_named_because_it_starts() -> None:
    one = matcher().given(hosted("n1", fast=4), big("a"))
    run_all(one, 2.0)
    (fact,) = rounds(one.given(big("b", at_s=3.0)).at(3.0).settle())
    (wait,) = fact.waits
    assert wait.alternative is not None
    assert wait.alternative.change == {"host_memory_bytes": 12 * GIB}


def test_a_node_that_tells_nothing_of_its_host_takes_all_who_find_a_device() -> None:
    one = matcher().given(node("n1", fast=4), *(big(f"j{i}", gib=500.0) for i in range(4)))
    assert len(run_all(one, 2.0)) == 4


def test_nobody_is_preempted_for_more_of_a_host_than_its_runs_leave() -> None:
    one = matcher().given(hosted("n1", fast=2), job("a"), job("b"))
    run_all(one, 2.0)
    one.given(big("c", at_s=3.0, gib=30.0), queued(a=1, b=1, c=0)).at(100.0)
    assert not any(fact.preemptions for fact in rounds(one.settle()))


def test_who_waits_for_a_host_past_its_patience_has_it_kept_free() -> None:
    one = matcher(patience_s=30.0).given(hosted("n1", fast=2), job("a"), job("b"))
    run_all(one, 2.0)
    one.given(big("c", at_s=3.0, gib=30.0), *(job(f"j{i}", at_s=40.0) for i in range(2)))
    one.given(ended("a", 41.0))
    assert run_all(one, 41.0) == {}
    one.given(ended("b", 50.0))
    assert run_all(one, 50.0) == {"c": "fast"}


@settings(max_examples=examples(40))
@given(fields=st.lists(asked, min_size=1, max_size=10), order=st.randoms(use_true_random=False))
def test_no_host_is_given_twice_and_all_that_fit_run_in_the_end(fields: list[dict[str, Any]], order: Any) -> None:
    one = matcher(patience_s=5.0).given(hosted("n1", fast=3, slow=1), hosted("n2", cpus=4, memory_gib=24, fast=2))
    one.given(*(job(f"j{i}", **field) for i, field in enumerate(fields)))
    now_s, ran = 2.0, set()
    while True:
        ran |= set(run_all(one, now_s))
        _check(one)
        running = [job for job in one.state.jobs if job.state in ACTIVE]
        if not running:
            break
        now_s += 10.0
        over = order.choice(running)
        for slot in over.placement.slots:
            one.given(ended(over.id, now_s, slot.node_id, over.epoch))
    waiting = {job_id: cause for job_id, cause in causes(one).items() if job_id not in ran}
    assert set(waiting.values()) <= {"never_fits"}
    assert ran | set(waiting) == {f"j{i}" for i in range(len(fields))}


def _check(one: Matcher) -> None:
    used: Counter[tuple[str, str]] = Counter()
    for held in one.state.jobs:
        for slot in held.placement.slots if held.placement is not None else ():
            need = need_of(held.spec, share_of(one.state.cluster.nodes[slot.node_id]))
            used[slot.node_id, "cpus"] += need.cpus * len(slot.devices)
            used[slot.node_id, "memory"] += need.memory_bytes * len(slot.devices)
    for held_node in one.state.cluster.nodes.values():
        most: HostAmount = of_node(held_node)
        assert used[held_node.id, "cpus"] <= most.cpus
        assert used[held_node.id, "memory"] <= most.memory_bytes
