"""Shared aggregators: the published cases, the limits on random ones, the gap to the optimum, and whose turn it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import count
from statistics import mean
from typing import Any

import numpy as np
import published
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_policies.aggregation import (
    AggregatorLoad,
    CycleSlots,
    Task,
    TaskMove,
    admits,
    assign,
    lost_more,
    rebalance,
    recycle,
)

REFERENCE = published.reference("autops.json")
CASES = {case["name"]: case for case in REFERENCE["cases"]}
ASSIGNED = [name for name, case in CASES.items() if "assignments" in case]
LIMIT = Fraction(REFERENCE["LossLimit"])
Aggregators = dict[str, tuple[Task, ...]]


def names() -> Iterator[str]:
    """Return names of aggregators, from "0" on."""
    return (str(number) for number in count())


def moved(aggregators: Mapping[str, Sequence[Task]], moves: Sequence[TaskMove]) -> Aggregators:
    """Return what aggregators hold after moves, each from where its task is."""
    found = {name: list(tasks) for name, tasks in aggregators.items()}
    for move in moves:
        found[move.source].remove(move.task)
        found.setdefault(move.target, []).append(move.task)
    return {name: tuple(tasks) for name, tasks in found.items()}


def placed(case: dict[str, Any], number: type[Fraction] | type[float]) -> tuple[Aggregators, dict[str, Any]]:
    """Place the tasks of a published case job by job, check where each one goes, and return the aggregators."""
    iteration_s = {job: number(seconds) for job, seconds in case["D"].items()}
    there: Aggregators = {}
    for job in case["D"]:
        rows = [row for row in case["assignments"] if row[0] == job]
        tasks = [Task(job, part, number(cost)) for _, part, cost, _ in rows]
        limit = LIMIT if number is Fraction else float(LIMIT)
        found = assign(tasks, iteration_s, there, loss_limit=limit, new_ids=names(), strict=case["strict"])
        assert found is not None
        assert [found.placements[task] for task in tasks] == [str(row[3]) for row in rows]
        for task in tasks:
            name = found.placements[task]
            there[name] = (*there.get(name, ()), task)
    return there, iteration_s


def check(load: AggregatorLoad, expected: dict[str, Any]) -> None:
    """Check an aggregator against what is published of it."""
    assert load.cycle_s == Fraction(expected["cycle"])
    assert load.busy_s == Fraction(expected["busy"])
    assert round(float(load.utilisation), 6) == expected["utilisation"]
    assert {job: round(float(load.loss_of(job)), 6) for job in load.cost_s} == expected["loss"]
    assert {job: [task.part for task in load.tasks if task.job == job] for job in load.cost_s} == expected["tasks"]


@pytest.mark.parametrize("number", [Fraction, float])
@pytest.mark.parametrize("name", ASSIGNED)
def test_tasks_go_where_the_reference_says(name, number):
    aggregators, iteration_s = placed(CASES[name], number)
    assert len(aggregators) == len(CASES[name]["final"])
    for at, expected in enumerate(CASES[name]["final"]):
        check(AggregatorLoad(aggregators[str(at)], iteration_s), expected)


def test_all_cases_of_the_reference_are_tested():
    assert [*ASSIGNED, "exit_P_then_recycle"] == list(CASES)


@pytest.mark.parametrize("number", [Fraction, float])
def test_an_exit_frees_the_aggregator_that_the_reference_says(number):
    case = CASES["exit_P_then_recycle"]
    iteration_s = {job: number(10) for job in "PQR"}
    p, q, r = (Task(job, job.lower() + "1", number(cost)) for job, cost in zip("PQR", (6, 6, 3), strict=True))
    there: Aggregators = {}
    for task in (p, q, r):
        found = assign([task], iteration_s, there, new_ids=names())
        assert found is not None
        there[found.placements[task]] = (*there.get(found.placements[task], ()), task)
    loads = [AggregatorLoad(tasks, iteration_s) for tasks in there.values()]
    for load, expected in zip(loads, case["before"], strict=True):
        check(load, expected)
    exited = [load.without_job("P") for load in loads]
    for load, expected in zip(exited, case["after_exit"], strict=True):
        check(load, expected)
    left = {name: load.tasks for name, load in zip(there, exited, strict=True)}
    moves = recycle(left, iteration_s)
    assert len({move.source for move in moves}) == case["recycled"]
    after = [tasks for tasks in moved(left, moves).values() if tasks]
    for tasks, expected in zip(after, case["after"], strict=True):
        check(AggregatorLoad(tasks, iteration_s), expected)


def test_a_loss_at_the_limit_is_refused_in_floats_as_in_exact_numbers():
    there = {"a": [Task("J0", "x", 0.1)]}
    assert (1.0 - 0.9) / 1.0 < 0.1, "a float below the limit that exactly is at it"
    assert assign([Task("J2", "b", 0.1)], {"J0": 0.9, "J2": 1.0}, there) is None
    assert assign([Task("J2", "b", 0.1)], {"J0": 0.91, "J2": 1.0}, there) is not None


def test_a_cycle_that_is_full_to_the_last_second_is_filled_in_floats():
    tasks = [Task("J", part, 0.1) for part in range(10)]
    assert sum(task.cost_s for task in tasks[:3]) > 0.3, "a float above what it exactly is"
    found = assign(tasks[:3], {"J": 0.3}, {"a": []})
    assert found is not None
    assert set(found.placements.values()) == {"a"}


def test_runs_in_a_cycle_are_whole_though_their_quotient_is_not_in_floats():
    assert 0.3 / 0.1 < 3
    load = AggregatorLoad((Task("long", 0, 0.0), Task("short", 0, 0.01)), {"long": 0.3, "short": 0.1})
    assert load.runs_of("short") == 3
    assert load.loss_of("short") == pytest.approx(0.0, abs=1e-9)


def test_the_costliest_task_of_a_job_is_placed_first():
    small, large = Task("J", "small", 3.0), Task("J", "large", 5.0)
    found = assign([small, large], {"J": 10.0, "K": 10.0}, {"a": [Task("K", 0, 5.0)]}, new_ids=["b"])
    assert found is not None
    assert found.placements == {large: "a", small: "b"}


def test_no_more_aggregators_are_allocated_than_may_be():
    tasks = [Task("J", part, 6.0) for part in range(3)]
    assert assign(tasks, {"J": 10.0}, {}, new_ids=names(), may_allocate=2) is None
    assert assign(tasks, {"J": 10.0}, {}, new_ids=["a", "b"]) is None
    found = assign(tasks, {"J": 10.0}, {}, new_ids=names(), may_allocate=3)
    assert found is not None
    assert found.allocated == ("0", "1", "2")


def test_names_in_use_are_not_given_to_new_aggregators():
    found = assign([Task("J", 0, 6.0)], {"J": 10.0, "K": 10.0}, {"0": [Task("K", 0, 6.0)]}, new_ids=names())
    assert found is not None
    assert found.allocated == ("1",)
    found = assign(
        [Task("J", 0, 6.0)], {"J": 10.0, "K": 10.0}, {"0": [Task("K", 0, 6.0)]}, new_ids=names(), may_allocate=1
    )
    assert found is not None, "a name in use counts for none that may be allocated"


def test_an_idle_aggregator_is_used_before_a_new_one_is_allocated():
    found = assign([Task("J", 0, 6.0)], {"J": 10.0}, {"idle": []}, new_ids=["new"])
    assert found is not None
    assert (set(found.placements.values()), found.allocated) == ({"idle"}, ())


def test_a_task_that_takes_longer_than_its_jobs_iteration_cannot_be_placed():
    assert assign([Task("J", 0, 10.5)], {"J": 10.0}, {}, new_ids=names()) is None


@pytest.mark.parametrize(
    ("tasks", "iteration_s", "limit", "message"),
    [
        (
            [Task("J", 0, 1.0), Task("J", 0, 2.0)],
            {"J": 9.0},
            0.1,
            "J/0 is there twice; expected each part of a job once",
        ),
        ([Task("K", 1, 1.0)], {"J": 9.0, "K": 9.0}, 0.1, "K/1 is there twice"),
        ([Task("J", 0, 1.0)], {"K": 9.0}, 0.1, "J has a task but no iteration time"),
        ([Task("J", 0, -1.0)], {"J": 9.0}, 0.1, "cost_s of J/0 is -1.0; expected seconds, finite and not negative"),
        ([Task("J", 0, float("nan"))], {"J": 9.0}, 0.1, "cost_s of J/0 is nan"),
        ([Task("J", 0, 1.0)], {"J": 0.0}, 0.1, "iteration_s of J is 0.0; expected seconds above 0, finite"),
        ([Task("J", 0, 1.0)], {"J": float("inf")}, 0.1, "iteration_s of J is inf"),
        ([Task("J", 0, 1.0)], {"J": 9.0}, 0.0, "loss_limit is 0.0; expected a share above 0, at most 1"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(tasks, iteration_s, limit, message):
    with pytest.raises(ValueError, match=message):
        assign(tasks, {"K": 9.0, **iteration_s}, {"a": [Task("K", 1, 1.0)]}, loss_limit=limit)


def test_a_negative_number_of_new_aggregators_is_refused():
    with pytest.raises(ValueError, match="may_allocate is -1; expected 0 or more aggregators, or None"):
        assign([], {}, {}, may_allocate=-1)


def test_an_emptied_aggregator_is_no_target_and_a_task_moves_once():
    there = {name: [Task(name, 0, cost)] for name, cost in (("a", 1.0), ("b", 2.0), ("c", 3.0), ("idle", 4.0))}
    there["idle"] = []
    moves = recycle(there, dict.fromkeys("abc", 10.0))
    assert {(move.source, move.target) for move in moves} == {("a", "c"), ("b", "c")}


def test_nothing_is_recycled_where_an_aggregator_would_only_be_emptied_in_part():
    there = {"a": [Task("a", 0, 1.0), Task("a", 1, 5.0)], "b": [Task("b", 0, 8.0)]}
    assert recycle(there, {"a": 10.0, "b": 10.0}) == ()


def test_jobs_whose_iterations_do_not_go_together_are_not_recycled_onto_one_aggregator():
    there = {"a": [Task("a", 0, 1.0)], "b": [Task("b", 0, 1.0)]}
    assert recycle(there, {"a": 9.0, "b": 10.0}) == ()
    assert len(recycle(there, {"a": 5.0, "b": 10.0})) == 1


def test_aggregators_that_are_nearly_full_are_not_emptied():
    there = {"a": [Task("a", part, 4.0) for part in range(2)]}
    there |= {name: [Task(name, 0, 6.0)] for name in ("b", "c")}
    iteration_s = dict.fromkeys("abc", 10.0)
    assert recycle(there, iteration_s, up_to=0.5) == ()
    assert recycle(there, iteration_s) == ()
    assert {move.source for move in recycle(there, iteration_s, up_to=0.8)} == {"a"}


def test_a_job_goes_to_several_aggregators_where_a_run_would_take_too_long_on_one():
    tasks = [Task("J", part, 1.0) for part in range(4)]
    found = assign(tasks, {"J": 10.0}, {}, new_ids=names(), run_limit_s={"J": 2.0})
    assert found is not None
    assert sorted(found.placements.values()) == ["0", "0", "1", "1"]
    found = assign([Task("J", 0, 3.0)], {"J": 10.0}, {}, new_ids=names(), run_limit_s={"J": 2.0})
    assert found is not None, "a single task cannot be divided"


def test_recycling_keeps_to_the_longest_run_of_a_job_too():
    there = {"a": [Task("J", 0, 1.0)], "b": [Task("J", 1, 1.0)]}
    assert recycle(there, {"J": 10.0}, run_limit_s={"J": 1.5}) == ()
    assert len(recycle(there, {"J": 10.0}, run_limit_s={"J": 2.0})) == 1


def test_nothing_moves_where_no_limit_is_broken():
    there = {"a": [Task("a", 0, 1.0)], "b": [Task("b", 0, 1.0)], "idle": []}
    assert rebalance(there, {"a": 9.0, "b": 9.0}, new_ids=names()) == ((), (), ())


def test_a_job_that_became_slower_leaves_those_whom_it_would_hold_up():
    there = {"a": [Task("p", 0, 1.0), Task("q", 0, 1.0), Task("slow", 0, 1.0)], "b": [Task("r", 0, 1.0)]}
    found = rebalance(there, {"p": 10.0, "q": 10.0, "slow": 13.0, "r": 13.0})
    assert found.moves == (TaskMove(Task("slow", 0, 1.0), "a", "b"),)


def test_jobs_that_went_together_only_with_one_that_left_are_parted():
    iteration_s = {"six": 6.0, "three": 3.0, "two": 2.0}
    tasks = [Task(job, 0, 0.1) for job in iteration_s]
    there = assigned([[task] for task in tasks], iteration_s)
    assert there == {"0": tuple(tasks)}
    left = {"0": tasks[1:]}
    assert recycle(left, iteration_s) == ()
    assert len(rebalance(left, iteration_s, new_ids=["1"]).moves) == 1


def test_of_an_overloaded_aggregator_one_task_leaves_where_one_suffices():
    there = {"a": [Task("p", part, cost) for part, cost in enumerate((1.0, 2.0, 4.0, 5.0))], "b": []}
    found = rebalance(there, {"p": 10.0})
    assert found.moves == (TaskMove(Task("p", 1, 2.0), "a", "b"),)


def test_tasks_without_a_place_are_told():
    there = {"a": [Task("p", 0, 6.0), Task("q", 0, 6.0), Task("too long", 0, 12.0)]}
    found = rebalance(there, dict.fromkeys(("p", "q", "too long"), 10.0), new_ids=names(), may_allocate=0)
    assert found.moves == ()
    assert {task.job for task in found.unplaced} == {"too long", "p"}
    found = rebalance(there, dict.fromkeys(("p", "q", "too long"), 10.0), new_ids=names())
    assert (len(found.moves), found.allocated) == (1, ("0",))
    assert [task.job for task in found.unplaced] == ["too long"]


@st.composite
def workloads(draw: st.DrawFn) -> tuple[list[list[Task]], dict[str, float]]:
    """Draw jobs with their tasks, none of which takes longer than its job's iteration."""
    jobs = draw(st.integers(1, 6))
    iteration_s = {f"j{job}": draw(st.integers(1, 60)) / draw(st.sampled_from([1, 3, 10])) for job in range(jobs)}
    shares = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=5)
    return [
        [Task(job, part, share * seconds) for part, share in enumerate(draw(shares))]
        for job, seconds in iteration_s.items()
    ], iteration_s


def check_limits(aggregators: Mapping[str, Sequence[Task]], iteration_s: Mapping[str, float]) -> None:
    """Check the limits as they are written, with no more than rounding let go."""
    for tasks in aggregators.values():
        jobs = {task.job for task in tasks}
        cycle_s = max((iteration_s[job] for job in jobs), default=0.0)
        runs = {job: int(cycle_s / iteration_s[job] * (1 + 1e-9)) for job in jobs}
        assert sum(runs[task.job] * task.cost_s for task in tasks) <= cycle_s * (1 + 2e-9)
        for job in jobs:
            shared_s = max(iteration_s[job], cycle_s / runs[job])
            assert (shared_s - iteration_s[job]) / shared_s < 0.1


def assigned(jobs: Sequence[Sequence[Task]], iteration_s: Mapping[str, float]) -> Aggregators:
    """Place jobs one after the other."""
    there: Aggregators = {}
    for tasks in jobs:
        found = assign(tasks, iteration_s, there, new_ids=names())
        assert found is not None
        assert set(found.placements) == set(tasks)
        assert set(found.allocated) == set(found.placements.values()) - set(there)
        for task, name in found.placements.items():
            there[name] = (*there.get(name, ()), task)
    return there


def tasks_of(aggregators: Mapping[str, Sequence[Task]]) -> list[Task]:
    return sorted((task for tasks in aggregators.values() for task in tasks), key=repr)


@pytest.mark.slow
@given(workloads())
def test_no_assignment_breaks_a_limit_and_each_task_is_placed_once(workload):
    jobs, iteration_s = workload
    there = assigned(jobs, iteration_s)
    check_limits(there, iteration_s)
    assert tasks_of(there) == tasks_of(dict(enumerate(jobs)))


@pytest.mark.slow
@given(workloads(), st.data())
def test_recycling_frees_whole_aggregators_and_breaks_no_limit(workload, data):
    jobs, iteration_s = workload
    gone = data.draw(st.sets(st.sampled_from(sorted(iteration_s))))
    exited = {
        name: tuple(task for task in tasks if task.job not in gone)
        for name, tasks in assigned(jobs, iteration_s).items()
    }
    left = moved(exited, rebalance(exited, iteration_s, new_ids=(f"new{number}" for number in count())).moves)
    moves = recycle(left, iteration_s)
    after = moved(left, moves)
    check_limits(after, iteration_s)
    assert tasks_of(after) == tasks_of(left)
    assert all(not after[move.source] for move in moves)
    assert {move.target for move in moves} <= {name for name, tasks in left.items() if tasks}
    assert len({move.task for move in moves}) == len(moves)
    assert recycle(after, iteration_s) == ()


@pytest.mark.slow
@given(workloads(), st.data())
def test_rebalancing_restores_the_limits_and_loses_no_task(workload, data):
    jobs, before_s = workload
    iteration_s = {
        job: seconds * data.draw(st.sampled_from([0.5, 0.95, 1.0, 1.2])) for job, seconds in before_s.items()
    }
    factor = data.draw(st.sampled_from([0.5, 1.0, 1.5, 3.0]))
    there = {
        name: tuple(task._replace(cost_s=task.cost_s * factor) for task in tasks)
        for name, tasks in assigned(jobs, before_s).items()
    }
    found = rebalance(there, iteration_s, new_ids=(f"new{number}" for number in count()))
    after = moved(there, found.moves)
    held = {name: [task for task in tasks if task not in found.unplaced] for name, tasks in after.items()}
    check_limits(held, iteration_s)
    assert tasks_of(after) == tasks_of(there)
    assert set(after) - set(there) == set(found.allocated)
    for task in found.unplaced:
        assert task.cost_s > iteration_s[task.job]


@pytest.mark.slow
@given(workloads(), st.integers(1, 3))
def test_the_fewest_tasks_leave_an_aggregator_that_breaks_its_limits(workload, factor):
    jobs, iteration_s = workload
    tasks = [task._replace(cost_s=task.cost_s * factor / 4) for job in jobs for task in job][:9]
    found = rebalance({"a": tasks}, iteration_s, new_ids=names())
    most = max(
        (len(kept) for kept in subsets(tasks) if AggregatorLoad(tuple(kept), iteration_s).within()),
    )
    assert len(found.moves) + len(found.unplaced) == len(tasks) - most


def subsets(tasks: Sequence[Task]) -> Iterator[list[Task]]:
    for bits in range(1 << len(tasks)):
        yield [task for at, task in enumerate(tasks) if bits >> at & 1]


def fewest(tasks: Sequence[Task], iteration_s: Mapping[str, float]) -> int:
    """Return the least number of aggregators that hold all tasks within their limits, over all partitions."""
    whole = (1 << len(tasks)) - 1
    fit = [AggregatorLoad(tuple(kept), iteration_s).within() for kept in subsets(tasks)]
    best = [0] + [len(tasks)] * whole
    for bits in range(1, whole + 1):
        part = bits
        while part:
            if fit[part]:
                best[bits] = min(best[bits], best[bits ^ part] + 1)
            part = (part - 1) & bits
    return best[whole]


def small_case(rng: np.random.Generator) -> tuple[list[list[Task]], dict[str, float]]:
    """Return up to 4 jobs with 7 tasks together; iterations of 1 to 12 s, tasks of 5 to 60 % of one."""
    jobs = int(rng.integers(2, 5))
    iteration_s = {f"j{job}": float(rng.integers(1, 13)) for job in range(jobs)}
    owners = [*range(jobs), *rng.integers(0, jobs, 7 - jobs).tolist()]
    return [
        [Task(job, part, float(rng.integers(1, 13)) / 20 * seconds) for part in range(owners.count(at))]
        for at, (job, seconds) in enumerate(iteration_s.items())
    ], iteration_s


@pytest.mark.slow
def test_best_fit_is_near_the_fewest_aggregators_on_small_cases():
    rng = np.random.default_rng(17)
    used, best = [], []
    for _ in range(400):
        jobs, iteration_s = small_case(rng)
        used.append(len(assigned(jobs, iteration_s)))
        best.append(fewest([task for tasks in jobs for task in tasks], iteration_s))
    assert all(mine >= least for mine, least in zip(used, best, strict=True))
    assert max(mine - least for mine, least in zip(used, best, strict=True)) <= 1
    assert sum(mine == least for mine, least in zip(used, best, strict=True)) >= 374
    assert mean(mine / least for mine, least in zip(used, best, strict=True)) <= 1.0243


def test_a_job_is_admitted_only_if_all_its_servers_could_be_had():
    assert admits(2, 2)
    assert not admits(1, 2)
    with pytest.raises(ValueError, match="wanted is 0; expected 1 or more servers"):
        admits(1, 0)


def test_a_job_that_lost_more_than_the_limit_is_told():
    assert not lost_more(9.0, 10.0)
    assert lost_more(8.99, 10.0)
    assert not lost_more(10.0, 9.0)
    assert not lost_more(8.0, 10.0, limit=0.2)
    with pytest.raises(ValueError, match=r"iteration times are 0.0 and 1.0; expected seconds above 0"):
        lost_more(0.0, 1.0)


def slots_of(*jobs: tuple[str, float, float]) -> CycleSlots:
    """Return the turns of jobs, each with its iteration time and the cost of a run."""
    return CycleSlots(load_of(*jobs))


def load_of(*jobs: tuple[str, float, float]) -> AggregatorLoad:
    return AggregatorLoad(tuple(Task(job, 0, cost) for job, _, cost in jobs), {job: each for job, each, _ in jobs})


def test_a_job_has_as_many_runs_in_a_cycle_as_its_iteration_fits_into_it():
    slots = slots_of(("short", 4.0, 1.0), ("long", 12.0, 9.0))
    for at in (0.0, 1.0, 2.0):
        assert slots.may_run("short", at) == 0.0
        slots.ran("short", at, 1.0)
    assert slots.may_run("short", 3.0) == 9.0
    assert slots.may_run("long", 3.0) == 0.0


def test_a_run_beyond_its_slots_takes_what_is_left_of_the_cycle():
    slots = slots_of(("a", 10.0, 3.0), ("b", 10.0, 2.0))
    slots.ran("a", 0.0, 3.0)
    assert slots.may_run("a", 3.0) == 0.0
    slots.ran("a", 3.0, 3.0)
    assert slots.may_run("a", 6.0) == 4.0, "2 s are left for extra runs"
    assert slots.may_run("b", 6.0) == 0.0, "its own run"
    slots.ran("b", 6.0, 2.0)
    assert slots.may_run("b", 8.0) == 0.0, "2 s are left for extra runs"


def test_a_run_that_takes_longer_than_measured_leaves_less_for_extra_runs():
    slots = slots_of(("a", 10.0, 3.0), ("b", 10.0, 2.0))
    slots.ran("a", 0.0, 5.5)
    assert slots.may_run("a", 6.0) == 4.0
    assert slots.may_run("b", 6.0) == 0.0


def test_the_next_cycle_gives_each_job_its_runs_again():
    slots = slots_of(("a", 10.0, 6.0), ("b", 10.0, 4.0))
    slots.ran("a", 5.0, 6.0)
    wait_s = slots.may_run("a", 12.0)
    assert wait_s == 3.0
    assert slots.may_run("a", 12.0 + wait_s) == 0.0
    slots.ran("a", 15.0, 6.0)
    assert slots.may_run("a", 47.0) == 0.0, "cycles that nobody used are over"
    slots.ran("a", 47.0, 6.0)
    assert slots.may_run("a", 48.0) == 7.0


def test_a_job_that_is_alone_never_waits():
    slots = slots_of(("a", 10.0, 9.0))
    for at in range(20):
        assert slots.may_run("a", float(at)) == 0.0
        slots.ran("a", float(at), 9.0)


def test_a_run_that_is_recorded_after_its_cycle_counts_for_none():
    slots = slots_of(("a", 10.0, 5.0), ("b", 10.0, 5.0))
    assert slots.may_run("a", 0.0) == 0.0
    assert slots.may_run("b", 11.0) == 0.0
    slots.ran("a", 9.0, 5.0)
    assert slots.may_run("a", 12.0) == 0.0


def test_runs_of_the_cycle_still_count_once_the_load_changes():
    slots = slots_of(("a", 10.0, 5.0))
    slots.ran("a", 0.0, 5.0)
    slots.change_load(load_of(("a", 10.0, 5.0), ("b", 10.0, 5.0)))
    assert slots.may_run("a", 6.0) == 4.0
    assert slots.may_run("b", 6.0) == 0.0


def test_a_job_without_a_task_on_the_aggregator_is_refused():
    slots = slots_of(("a", 10.0, 5.0))
    with pytest.raises(ValueError, match="b has no task on this aggregator; expected one of a"):
        slots.may_run("b", 0.0)
    with pytest.raises(ValueError, match="b has no task on this aggregator"):
        slots.ran("b", 0.0, 1.0)


@pytest.mark.slow
@given(workloads(), st.data())
def test_no_job_starves_and_no_cycle_is_overfull(workload, data):
    jobs, iteration_s = workload
    tasks = max(assigned(jobs, iteration_s).values(), key=len)
    load = AggregatorLoad(tasks, iteration_s)
    slots, now_s = CycleSlots(load), 1_000.0
    assert slots.may_run(tasks[0].job, now_s) == 0.0, "the first cycle begins"
    taken: dict[int, float] = {}
    for _ in range(data.draw(st.integers(1, 60))):
        now_s += data.draw(st.floats(0.0, 1.0)) * load.cycle_s / 4
        job = data.draw(st.sampled_from(sorted(load.cost_s)))
        wait_s = slots.may_run(job, now_s)
        assert 0.0 <= wait_s <= load.cycle_s * (1 + 1e-9)
        if wait_s:
            now_s += wait_s
            assert slots.may_run(job, now_s) == 0.0
        slots.ran(job, now_s, load.cost_s[job])
        cycle = int((now_s - 1_000.0) / load.cycle_s + 1e-6)
        taken[cycle] = taken.get(cycle, 0.0) + load.cost_s[job]
    if len(load.cost_s) > 1:
        assert max(taken.values()) <= load.cycle_s * (1 + 1e-6)
