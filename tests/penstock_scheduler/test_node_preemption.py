"""Who makes room on certain nodes: the lightest runs that leave whole parts, and no run more."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import combinations

import pytest
from call_counts import calls_of
from hypothesis import assume, given
from hypothesis import strategies as st
from run_rows import columns_of

from penstock_cluster.nodes import Node
from penstock_log import Device, Job, JobSpec
from penstock_policies.workload_stats import PreemptionCost
from penstock_scheduler.node_preemption import JobRoom, choose_on_nodes
from penstock_scheduler.placement import FreeDevices
from penstock_scheduler.preemption import PreemptionCandidates, VictimChoice
from penstock_scheduler.round_types import PreemptibleRun, RankedJob, RoundContext, RoundRules

NOW_S = 1000.0
GIB = 2**30
NODES = {"a": 4, "b": 3, "c": 2}


def device(index: int) -> Device:
    return Device(index=index, kind="fast", memory_bytes=8, backend="emulated")


class Nodes:
    """Nodes whose devices runs hold; what is left of them is free."""

    def __init__(
        self,
        runs: list[tuple[float, dict[str, int]]],
        counts: dict[str, int] = NODES,
        *,
        memory_gib: int = 0,
        asking_gib: int = 0,
    ) -> None:
        held = {name: [device(index) for index in range(count)] for name, count in counts.items()}
        nodes = [Node(id=name, devices=tuple(some), host_memory_bytes=memory_gib * GIB) for name, some in held.items()]
        self.whole = FreeDevices(held, hosts=nodes)
        self.free = FreeDevices(held, hosts=nodes)
        self.runs = []
        for number, (unsaved_s, wanted) in enumerate(runs):
            devices = tuple((name, held[name].pop()) for name, count in wanted.items() for _ in range(count))
            spec = JobSpec(
                name="old", command=("true",), gpus=len(devices), host_memory_bytes=asking_gib * GIB, priority_class=""
            )
            job = Job(
                id=f"r{number}",
                spec=spec,
                submitted_s=0.0,
                started_s=NOW_S - 500.0,
                checkpointed_s=NOW_S - unsaved_s,
            )
            self.runs.append(PreemptibleRun(RankedJob(1, float(number), job.id, job), "fast", devices, math.inf))
            self.free.take(devices, spec)

    def room(self, spec: JobSpec) -> JobRoom:
        return JobRoom(spec, "fast", free=self.free, coming=FreeDevices({}), whole=self.whole)

    def chosen(self, spec: JobSpec) -> list[str] | None:
        choice = self.choose(spec)
        return None if choice is None else sorted(run.ranked.job_id for run in choice.runs)

    def choose(self, spec: JobSpec) -> VictimChoice | None:
        context = RoundContext(NOW_S, lambda *_: 1.0, lambda jobs: [1.0] * len(jobs), RoundRules())
        context = type(context)(
            context.now_s, context.speed, context.remaining, context.rules, cost=lambda _: PreemptionCost()
        )
        victims = PreemptionCandidates(columns_of(self.runs, context), context)
        ranked = RankedJob(0, 0.0, "new", Job(id="new", spec=spec, submitted_s=0.0))
        room = self.room(spec)
        return choose_on_nodes(room, victims.on_nodes(ranked, "fast", room.nodes, lent=False))

    def loss(self, names: list[str]) -> float:
        return sum(
            len(run.devices) * run.ranked.job.unsaved_by(NOW_S) for run in self.runs if run.ranked.job_id in names
        )


def job(gpus: int, each: int = 0, **fields: object) -> JobSpec:
    return JobSpec(name="a", command=("true",), gpus=gpus, gpus_per_node=each, **fields)  # type: ignore[arg-type]


ALL_BUSY = [
    *((10.0 + n, {"a": 1}) for n in range(4)),  # r0 to r3
    *((1.0 + n, {"b": 1}) for n in range(3)),  # r4 to r6
    (5.0, {"c": 2}),  # r7
]


@pytest.mark.parametrize(
    ("spec", "chosen"),
    [
        (job(2, 2), ["r4", "r5"]),
        (job(3, 3), ["r4", "r5", "r6"]),
        (job(4, 4), ["r0", "r1", "r2", "r3"]),
        (job(5, 5), None),
        (job(4, 2), ["r4", "r5", "r7"]),
        (job(6, 3), ["r0", "r1", "r2", "r4", "r5", "r6"]),
        (job(8, 2), ["r0", "r1", "r2", "r3", "r4", "r5", "r7"]),
        (job(1, nodes=("a",)), ["r0"]),
        (job(1, exclude=("b", "c")), ["r0"]),
        (job(3, exclude=("a",)), ["r4", "r5", "r6"]),
    ],
)
def test_what_the_lightest_runs_of_a_job_s_nodes_leave_is_in_whole_parts(
    spec: JobSpec, chosen: list[str] | None
) -> None:
    assert Nodes(ALL_BUSY).chosen(spec) == chosen


def test_what_is_free_on_a_node_counts_there_alone() -> None:
    nodes = Nodes([(10.0, {"a": 1}), (1.0, {"b": 1}), (1.0, {"b": 1}), (5.0, {"c": 1})])  # free: a 3, b 1, c 1
    assert nodes.chosen(job(4, 4)) == ["r0"]
    assert nodes.chosen(job(4, 2)) == ["r2"]


def test_where_a_host_binds_more_runs_go_until_it_has_room() -> None:
    busy = [(1.0 + n, {"a": 1}) for n in range(4)]
    nodes = Nodes(busy, memory_gib=40, asking_gib=10)
    assert nodes.chosen(job(1, nodes=("a",), host_memory_bytes=10 * GIB)) == ["r0"]
    assert nodes.chosen(job(1, nodes=("a",), host_memory_bytes=25 * GIB)) == ["r0", "r1", "r2"]
    assert nodes.chosen(job(1, nodes=("a",), host_memory_bytes=41 * GIB)) is None


on_one_node = st.tuples(
    st.integers(0, 30).map(float), st.dictionaries(st.sampled_from("abc"), st.integers(1, 2), min_size=1, max_size=1)
)
anywhere = st.tuples(
    st.integers(0, 30).map(float), st.dictionaries(st.sampled_from("abc"), st.integers(1, 2), min_size=1)
)
wanted = st.sampled_from([job(2, 2), job(4, 2), job(6, 2), job(3, 3), job(6, 3), job(4, 4), job(2, nodes=("b", "c"))])


def fitting(
    runs: list[tuple[float, dict[str, int]]], counts: dict[str, int] = NODES
) -> list[tuple[float, dict[str, int]]]:
    """Return the first runs that have room together."""
    left, found = dict(counts), []
    for unsaved_s, devices in runs:
        if all(left[name] >= count for name, count in devices.items()):
            found.append((unsaved_s, devices))
            left = {name: count - devices.get(name, 0) for name, count in left.items()}
    return found


def leaves_room(nodes: Nodes, spec: JobSpec, names: Sequence[str]) -> bool:
    """Say, by counting, whether the job could begin without these runs."""
    free: defaultdict[str, int] = defaultdict(int)
    for name, _ in nodes.free:
        free[name] += 1
    for run in nodes.runs:
        for name, _ in run.devices if run.ranked.job_id in names else ():
            free[name] += 1
    each = max(1, spec.gpus_per_node)
    return sum(count // each * each for name, count in free.items() if spec.may_be_on(name)) >= spec.gpus


PAIRS = dict.fromkeys("abcdef", 2)
on_pairs = st.tuples(
    st.integers(0, 30).map(float),
    st.dictionaries(st.sampled_from(sorted(PAIRS)), st.integers(1, 2), min_size=1, max_size=1),
)
over_pairs = st.tuples(
    st.integers(0, 30).map(float), st.dictionaries(st.sampled_from(sorted(PAIRS)), st.integers(1, 2), min_size=1)
)


@given(st.lists(on_one_node, max_size=9).map(fitting), wanted)
def test_no_other_set_of_runs_leaves_room_at_a_lighter_loss(
    runs: list[tuple[float, dict[str, int]]], spec: JobSpec
) -> None:
    no_other_is_lighter(Nodes(runs), spec)


@given(
    st.lists(on_pairs, min_size=4, max_size=10).map(lambda runs: fitting(runs, PAIRS)),
    st.sampled_from([job(2, 2), job(4, 2), job(6, 2), job(8, 2), job(10, 2)]),
)
def test_where_more_nodes_have_enough_than_a_job_needs_no_other_set_is_lighter_either(
    runs: list[tuple[float, dict[str, int]]], spec: JobSpec
) -> None:
    no_other_is_lighter(Nodes(runs, PAIRS), spec)


@given(
    st.lists(over_pairs, min_size=2, max_size=8).map(lambda runs: fitting(runs, PAIRS)),
    st.sampled_from(
        [job(2, exclude=("a",)), job(5, exclude=("a", "b")), job(10, exclude=("a",)), job(1, nodes=("c",))]
    ),
)
def test_for_a_job_of_any_devices_on_its_nodes_that_holds_of_runs_on_several_too(
    runs: list[tuple[float, dict[str, int]]], spec: JobSpec
) -> None:
    no_other_is_lighter(Nodes(runs, PAIRS), spec)


TRIPLES = {"a": 3, "b": 3, "c": 3}


@given(
    st.lists(st.tuples(st.integers(0, 30).map(float), st.sampled_from("abc")), min_size=6, max_size=9),
    st.integers(1, 6),
    st.sampled_from([10, 15, 25]),
)
def test_where_hosts_bind_no_other_set_is_lighter_either(
    runs: list[tuple[float, str]], gpus: int, asked_gib: int
) -> None:
    held = fitting([(unsaved_s, {name: 1}) for unsaved_s, name in runs], TRIPLES)
    nodes = Nodes(held, TRIPLES, memory_gib=30, asking_gib=10)

    def enough(some: Sequence[str]) -> bool:
        left = Counter(name for run in nodes.runs if run.ranked.job_id not in some for name, _ in run.devices)
        rooms = (min(count - left[name], (30 - 10 * left[name]) // asked_gib) for name, count in TRIPLES.items())
        return sum(rooms) >= gpus

    no_other_is_lighter(nodes, job(gpus, host_memory_bytes=asked_gib * GIB), enough)


def no_other_is_lighter(nodes: Nodes, spec: JobSpec, is_enough: Callable[[Sequence[str]], bool] | None = None) -> None:
    """Compare what is chosen with all sets of runs."""

    def enough(names: Sequence[str]) -> bool:
        return leaves_room(nodes, spec, names) if is_enough is None else is_enough(names)

    if enough(()):
        return
    chosen = nodes.chosen(spec)
    names = [run.ranked.job_id for run in nodes.runs]
    able = [some for n in range(len(names) + 1) for some in combinations(names, n) if enough(some)]
    if chosen is None:
        assert not able
    else:
        assert enough(chosen)
        assert nodes.loss(chosen) == min(nodes.loss(list(some)) for some in able)


@given(st.lists(anywhere, max_size=9).map(fitting), wanted)
def test_where_runs_are_on_several_nodes_enough_are_found_and_none_is_superfluous(
    runs: list[tuple[float, dict[str, int]]], spec: JobSpec
) -> None:
    nodes = Nodes(runs)
    assume(not leaves_room(nodes, spec, ()))
    chosen = nodes.chosen(spec)
    assert (chosen is not None) == leaves_room(nodes, spec, [run.ranked.job_id for run in nodes.runs])
    if chosen is not None:
        assert leaves_room(nodes, spec, chosen)
        assert not any(leaves_room(nodes, spec, [one for one in chosen if one != spared]) for spared in chosen)


MANY = {f"n{number:03}": 8 for number in range(125)}


def many_busy() -> Nodes:
    """A thousand devices, each with a run of its own."""
    return Nodes([(float((7 * n) % 250), {f"n{n // 8:03}": 1}) for n in range(1000)], MANY, memory_gib=80)


@pytest.mark.parametrize(
    ("spec", "runs"),
    [
        (job(200, exclude=("n000",)), 200),
        (job(200, 2), 200),
        (job(200, 8), 200),
        (job(200, host_memory_bytes=20 * GIB), 400),
    ],
    ids=["any devices", "pairs", "whole nodes", "two shares of a host each"],
)
def test_a_choice_for_a_large_gang_does_not_cost_its_size_times_all_runs(spec: JobSpec, runs: int) -> None:
    nodes = many_busy()
    found: list[VictimChoice | None] = []
    calls = calls_of(lambda: found.append(nodes.choose(spec)))
    assert found[0] is not None
    assert len(found[0].runs) == runs
    assert calls.total() < 330 * len(nodes.runs)


def test_what_is_refused_is_refused_before_any_choice_is_made() -> None:
    nodes = many_busy()
    found: list[VictimChoice | None] = []
    calls = calls_of(lambda: found.append(nodes.choose(job(993, exclude=("n000",)))))
    assert found == [None]
    assert not calls["lightest"]
    assert not calls["lightest_for_each"]
