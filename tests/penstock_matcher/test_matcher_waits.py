"""Why jobs wait: the cause, its figures, and remedies that a test applies and sees to be true."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from matcher_facts import (
    GIB,
    Matcher,
    device,
    ended,
    job,
    matcher,
    node,
    profiled,
    queued,
    rounds,
    run_all,
    spec,
    where,
)

from penstock_log import (
    AnyEvent,
    Device,
    JobHeld,
    JobReleased,
    JobSubmitted,
    NodeDrained,
    NodeJoined,
    NodeLeaving,
    NodeLeft,
    NodeRemoved,
    NodeResumed,
    RoundDecided,
    Wait,
)


def waits(scenario: Matcher) -> list[Wait]:
    return list(rounds(scenario.settle())[-1].waits)


def told(scenario: Matcher) -> list[tuple[str, str, str]]:
    return [(wait.cause, wait.evidence, wait.remedy) for wait in waits(scenario)]


def resubmitted(scenario: Matcher, what: JobSubmitted, at_s: float, **changes: Any) -> dict[str, str]:
    """What starts if the same job is submitted once more with these changes."""
    changed = msgspec.structs.replace(what.spec, **changes)
    scenario.given(JobSubmitted(job_id=f"{what.job_id}-again", at_s=at_s, spec=changed)).at(at_s)
    return where(scenario.settle())


def test_who_has_the_devices_is_said_by_queue_and_what_stands_before_it():
    one = matcher().given(node("n1", fast=3), job("a"), job("b"), job("c"))
    run_all(one, 2.0)
    one.given(queued(a=0, b=0, c=1), job("x", at_s=3.0), job("y", at_s=4.0), job("z", at_s=5.0)).at(5.5)
    busy = "3 fast busy with 2 jobs of queue 0, 1 job of queue 1"
    assert told(one) == [
        ("capacity", f"{busy}; it is next", ""),
        ("capacity", f"{busy}; 1 waiting job before it", ""),
        ("capacity", f"{busy}; 2 waiting jobs before it", ""),
    ]


def test_another_kind_that_is_idle_is_offered_and_would_do():
    one = matcher().given(node("n1", fast=1, slow=2), job("a", kinds=("fast",)))
    run_all(one, 2.0)
    b = job("b", at_s=3.0, kinds=("fast",))
    one.given(b).at(3.0)
    assert told(one) == [
        ("capacity", "1 fast busy with 1 job of queue 0; it is next", "accept kind `slow` too: it starts now")
    ]
    assert resubmitted(one, b, 4.0, kinds=("fast", "slow")) == {"b-again": "slow"}


def test_a_bare_cpu_is_never_offered():
    one = matcher().given(node("n1", fast=1, cpu=1), job("a"))
    run_all(one, 2.0)
    one.given(job("b", at_s=3.0)).at(3.0)
    assert [remedy for _, _, remedy in told(one)] == [""]


def test_a_gang_hears_how_many_there_are():
    one = matcher().given(node("n1", fast=2, slow=1), job("a", kinds=("fast",)))
    run_all(one, 2.0)
    g = job("g", at_s=3.0, gpus=2)
    one.given(g).at(3.0)
    evidence = "needs 2 devices of one kind at once; idle: 1 fast, 1 slow; it is next"
    assert told(one) == [("gang", evidence, "ask for at most 1 device: it starts now on `fast`")]
    assert set(resubmitted(one, g, 4.0, gpus=1)) == {"g-again"}


def test_less_memory_is_offered_where_it_would_do():
    small, large = device(0, "fast", 8 * GIB), device(1, "fast", 24 * GIB)
    one = matcher().given(NodeJoined(node_id="n1", at_s=0.5, devices=(small, large)), job("a", memory_bytes=16 * GIB))
    run_all(one, 2.0)
    b = job("b", at_s=3.0, memory_bytes=16 * GIB)
    one.given(b).at(3.0)
    remedy = "ask for at most 8 GiB a device: it starts now on `fast`"
    assert [(w.cause, w.remedy) for w in waits(one)] == [("capacity", remedy)]
    assert set(resubmitted(one, b, 4.0, memory_bytes=8 * GIB)) == {"b-again"}


@pytest.mark.parametrize(
    ("fields", "evidence", "remedy", "changes"),
    [
        (
            {"gpus": 8},
            "needs 8 devices of one kind; pool `default` has 2 fast of up to 8 GiB, 3 slow of up to 8 GiB",
            "ask for at most 3 devices: there are 3 of one kind",
            {"gpus": 3},
        ),
        (
            {"gpus": 3, "kinds": ("fast",)},
            "needs 3 devices of kind `fast`; pool `default` has 2 fast of up to 8 GiB, 3 slow of up to 8 GiB",
            "accept kind `slow` too: there are 3",
            {"kinds": ("fast", "slow")},
        ),
        (
            {"memory_bytes": 80 * GIB},
            "needs 1 device with 80 GiB; pool `default` has 2 fast of up to 8 GiB, 3 slow of up to 8 GiB",
            "ask for at most 8 GiB a device: there are 3",
            {"memory_bytes": 8 * GIB},
        ),
        (
            {"kinds": ("tpu",)},
            "needs 1 device of kind `tpu`; pool `default` has 2 fast of up to 8 GiB, 3 slow of up to 8 GiB",
            "accept kind `fast` too: there are 2",
            {"kinds": ("tpu", "fast")},
        ),
    ],
)
def test_what_can_never_fit_hears_the_largest_there_is(fields, evidence, remedy, changes):
    one = matcher().given(node("n1", fast=2, slow=1), node("n2", slow=2))
    j = job("j", **fields)
    one.given(j).at(2.0)
    assert told(one) == [("never_fits", evidence, remedy)]
    assert set(resubmitted(one, j, 3.0, **changes)) == {"j-again"}


def test_a_later_place_names_the_device_that_would_start_it_now():
    mlp = spec(model="mlp")
    two = matcher().given(node("n1", fast=1, slow=1), profiled(mlp, fast=1.0, slow=0.1))
    two.given(job("a", model="mlp", duration_s=10.0))
    run_all(two, 2.0)
    b = job("b", at_s=8.0, model="mlp", duration_s=10.0)
    two.given(b).at(8.0)
    assert told(two) == [
        (
            "later_place",
            "`fast` is expected in 4.0 s and the job's end on it in 14.0 s; 1 `slow` idle, where it would end later",
            "accept kind `slow` only: it starts now, at 0.1x speed",
        )
    ]
    assert resubmitted(two, b, 8.5, kinds=("slow",)) == {"b-again": "slow"}


@pytest.mark.parametrize(
    ("facts", "cause", "evidence", "remedy", "cure"),
    [
        (
            [],
            "no_nodes",
            "pool `default` has no node",
            "start an executor in it, or choose another pool",
            node("n1", at_s=3.0, fast=1),
        ),
        (
            [node("n1", fast=1), NodeDrained(node_id="n1", at_s=1.0)],
            "no_nodes",
            "1 node of pool `default`, all drained",
            "penstock node resume n1",
            NodeResumed(node_id="n1", at_s=3.0),
        ),
        (
            [node("n1", fast=1), node("n2", slow=1), NodeDrained(node_id="n1", at_s=1.0)],
            "capacity",
            "needs 1, 0 left on nodes that take jobs; drained: `n1`",
            "penstock node resume n1",
            NodeResumed(node_id="n1", at_s=3.0),
        ),
        (
            [node("n1", fast=1), JobHeld(job_id="j", at_s=1.5)],
            "held",
            "it is held",
            "penstock release j",
            JobReleased(job_id="j", at_s=3.0),
        ),
    ],
)
def test_a_remedy_is_a_remedy(facts: list[AnyEvent], cause: str, evidence: str, remedy: str, cure: AnyEvent):
    one = matcher().given(job("j", kinds=("fast",)), *facts).at(2.0)
    assert told(one) == [(cause, evidence, remedy)]
    assert where(one.given(cure).at(3.0).settle()) == {"j": "fast"}


def test_held_jobs_come_last_and_the_list_has_an_end():
    one = matcher(max_waits=3).given(node("n1", fast=1), job("h", hold=True), *(job(f"j{i}") for i in range(9)))
    one.given(job("first", at_s=0.9)).at(2.0)
    assert [wait.job_id for wait in waits(one)] == ["j0", "j1", "j2"]


def test_a_price_is_what_one_more_device_would_save():
    one = matcher().given(node("n1", fast=1), *(job(name, duration_s=10.0) for name in "ab")).at(2.0)
    (fact,) = rounds(one.settle())
    assert fact.prices == {"fast": 10.0}


def test_prices_are_named_once_in_a_while_and_after_the_last_round_of_a_burst():
    one = matcher(explain_every_s=1.0).given(node("n1", fast=1), *(job(name, duration_s=10.0) for name in "ab")).at(2.0)
    assert rounds(one.settle())[-1].prices
    one.given(ended("a", at_s=2.3), job("c", at_s=2.3, duration_s=20.0)).at(2.3)
    (started,) = rounds(one.settle())
    assert [placement.job_id for placement in started.placements] == ["b"]
    assert not started.prices
    one.then_wakes_at(3.0).at(3.0)
    (priced,) = rounds(one.settle())
    assert priced.prices == {"fast": 10.0}  # b, which has not been heard of yet, is to take ten
    one.at(500.0).then()


# --- when it is said


def test_a_round_that_only_explains_is_said_once():
    one = matcher().given(node("n1", fast=1), job("a"))
    run_all(one, 2.0)
    one.given(job("b", at_s=5.0)).at(5.0)
    assert len(one.settle()) == 1
    one.at(500.0).then()


def test_and_at_most_once_a_second():
    one = matcher(explain_every_s=1.0).given(node("n1", fast=1), job("a"))
    run_all(one, 2.0)
    one.given(job("b", at_s=5.0)).at(5.0)
    one.settle()
    one.given(job("c", at_s=5.2)).at(5.2).then().then_wakes_at(6.0)
    one.at(6.0)
    assert [wait.job_id for wait in waits(one)] == ["b", "c"]


def test_a_job_that_ends_or_starts_needs_no_round_to_say_so():
    one = matcher().given(node("n1", fast=1), job("a"), job("b"))
    run_all(one, 2.0)
    one.given(ended("a", 4.0)).at(4.0)
    assert len(rounds(one.settle())) == 1
    one.at(50.0).then()


def test_a_job_that_names_no_kind_hears_that_a_bare_cpu_has_to_be_named():
    bare = Device(index=0, kind="cpu", memory_bytes=8 * GIB, backend="cpu")
    one = matcher().given(NodeJoined(node_id="n1", at_s=0.5, pool="default", devices=(bare,)))
    j = job("j")
    one.given(j).at(2.0)
    evidence = "needs 1 device other than a bare CPU; pool `default` has 1 cpu of up to 8 GiB"
    assert told(one) == [("never_fits", evidence, "ask for kind `cpu` by name: there is 1")]
    assert set(resubmitted(one, j, 3.0, kinds=("cpu",))) == {"j-again"}


def test_as_many_drained_nodes_are_named_as_it_takes():
    names = [f"n{i}" for i in range(6)]
    there = [node(name, fast=1 if name < "n5" else 2) for name in names]
    drained = [NodeDrained(node_id=name, at_s=1.0) for name in names[1:]]
    one = matcher().given(*there, *drained, job("g", at_s=2.0, gpus=6)).at(2.0)
    assert [remedy for _, _, remedy in told(one)] == ["penstock node resume n1 n2 n3 n5"]
    one.given(*(NodeResumed(node_id=name, at_s=3.0) for name in ("n1", "n2", "n3", "n5")))
    assert run_all(one, 3.0) == {"g": "fast"}


DOWN = RoundDecided(pool="default", at_s=86_400.0, lost_nodes=("n2",))


@pytest.mark.parametrize(
    ("gpus", "away", "how"),
    [
        (2, DOWN, "lost at 1970-01-02 00:00:00 UTC"),
        (2, NodeLeft(node_id="n2", at_s=61.0), "left at 1970-01-01 00:01:01 UTC"),
        (2, NodeLeaving(node_id="n2", at_s=61.0), "leaving"),
        (3, DOWN, "lost at 1970-01-02 00:00:00 UTC"),
    ],
)
def test_a_job_that_a_node_which_is_down_would_hold_waits_for_it(gpus, away, how):
    one = matcher().given(node("n1", fast=1), node("n2", fast=2), away, job("j", at_s=90_000.0, gpus=gpus)).at(90_000.0)
    evidence = f"needs {gpus}, 1 there that take jobs; down: `n2` ({how})"
    assert told(one) == [("node_down", evidence, "start the executor of `n2` again")]
    one.given(node("n2", at_s=90_001.0, fast=2))
    assert run_all(one, 90_001.0) == {"j": "fast"}


@pytest.mark.parametrize(
    "forgotten",
    [NodeRemoved(node_id="n2", at_s=3.0), RoundDecided(pool="default", at_s=3.0, forgotten_nodes=("n2",))],
)
def test_a_node_that_is_forgotten_or_removed_counts_no_more(forgotten):
    there = [node("n1", fast=1), node("n2", fast=2), NodeLeft(node_id="n2", at_s=2.0)]
    one = matcher().given(*there, forgotten, job("j", at_s=4.0, gpus=2)).at(4.0)
    assert [cause for cause, _, _ in told(one)] == ["never_fits"]


def test_a_job_that_no_node_would_hold_never_fits_though_some_are_down():
    one = matcher().given(node("n1", fast=1), node("n2", fast=2), DOWN, job("j", at_s=4.0, gpus=4)).at(90_000.0)
    assert [cause for cause, _, _ in told(one)] == ["never_fits"]


def test_of_many_nodes_that_are_down_those_that_went_last_are_named():
    there = [node(f"n{i}", fast=1) for i in range(6)]
    away = [NodeLeft(node_id=f"n{i}", at_s=10.0 + i) for i in range(6)]
    one = matcher().given(*there, *away, job("j", at_s=20.0)).at(20.0)
    ((cause, evidence, remedy),) = told(one)
    assert (cause, remedy) == ("node_down", "start their executors again")
    assert evidence.startswith("needs 1, 0 there that take jobs; down: `n5` (left at 1970-01-01 00:00:15 UTC), `n4`")
    assert evidence.endswith("and 3 more")


def of_pilot(number, at_s=1.0, **kinds):
    labels = {"allocation": "lab", "pilot": f"lab-{number}"}
    return msgspec.structs.replace(node(f"lab-{number}", at_s=at_s, **kinds), labels=labels)


def test_a_pilot_that_is_over_is_not_to_be_started_again_and_its_allocation_is_named():
    gone = [NodeLeft(node_id=f"lab-{number}", at_s=2.0) for number in (1, 2)]
    one = matcher().given(of_pilot(1, fast=2), of_pilot(2, fast=2), *gone, job("j", at_s=3.0, gpus=2)).at(3.0)
    evidence = "needs 2, 0 there that take jobs; pilots of allocation `lab` would hold it and are over"
    assert told(one) == [("node_down", evidence, "`penstock alloc show lab` says what becomes of its pilots")]


def test_pilots_that_are_over_do_not_hold_a_gang_together():
    gone = [NodeLeft(node_id=f"lab-{number}", at_s=2.0) for number in (1, 2)]
    one = matcher().given(node("n1", fast=1), of_pilot(1, fast=2), of_pilot(2, fast=2), *gone)
    one.given(job("j", at_s=3.0, gpus=4)).at(3.0)
    assert [cause for cause, _, _ in told(one)] == ["never_fits"]


def test_a_node_that_is_down_is_named_before_pilots_that_are_over():
    gone = [NodeLeft(node_id=name, at_s=2.0) for name in ("lab-1", "n1")]
    one = matcher().given(node("n1", fast=2), of_pilot(1, fast=2), *gone, job("j", at_s=3.0, gpus=2)).at(3.0)
    assert [remedy for _, _, remedy in told(one)] == ["start the executor of `n1` again"]


def test_nothing_is_placed_on_a_node_that_leaves_until_it_joins_again():
    one = matcher().given(node("n1", fast=1), NodeLeaving(node_id="n1", at_s=1.0), job("j", at_s=2.0)).at(2.0)
    assert run_all(one, 2.0) == {}
    one.given(node("n1", at_s=3.0, fast=1))
    assert run_all(one, 3.0) == {"j": "fast"}


def test_a_job_that_nodes_could_hold_is_told_when_one_of_them_has_left():
    one = matcher().given(node("n1", fast=1), node("n2", fast=2), job("a", gpus=2))
    run_all(one, 2.0)
    one.given(job("b", at_s=3.0, gpus=2)).at(3.0)
    assert [wait.cause for wait in waits(one)] == ["gang"]
    one.given(NodeLeft(node_id="n2", at_s=5.0)).at(5.0)
    assert [wait.cause for wait in waits(one) if wait.job_id == "b"] == ["node_down"]
