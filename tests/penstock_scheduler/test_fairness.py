"""Whose jobs enter a round, and that nobody starves."""

from __future__ import annotations

import math
from fractions import Fraction

import msgspec
import numpy as np
import pytest
from fair_runs import SPEEDS, Pool, spec
from hypothesis import given
from hypothesis import strategies as st

from penstock_log import Device, Job, JobSubmitted, JobTable, NodeJoined, RoundDecided, RunStarted
from penstock_scheduler.fairness import HALF_LIFE_S, FairnessProgress, least_progressed, turns
from penstock_scheduler.pool.scheduler_state import SchedulerState, fold
from penstock_scheduler.round import decide_pool
from penstock_scheduler.round_types import RankedJob, RoundRules
from sweeps import sampled

progress = st.lists(st.floats(0.0, 1e6), min_size=1, max_size=30)


@given(progress, st.floats(0.001, 1.0))
def test_a_share_of_the_users_enters_and_nobody_who_stays_out_has_had_less(had, alpha):
    inside = least_progressed(np.array(had), alpha)
    assert alpha * len(had) - 1e-6 <= inside.sum() <= alpha * len(had) + 1
    assert inside.any()
    out = [h for h, is_in in zip(had, inside, strict=True) if not is_in]
    assert all(h <= min(out, default=math.inf) for h, is_in in zip(had, inside, strict=True) if is_in)


@pytest.mark.parametrize(("alpha", "users", "count"), [(0.1, 10, 1), (0.1, 30, 3), (0.7, 10, 7), (1e-9, 5, 1)])
def test_rounding_takes_no_user_too_many(alpha, users, count):
    assert least_progressed(np.zeros(users), alpha).sum() == count


def ready(*users: str) -> list[RankedJob]:
    jobs = [Job(id=f"j{i}", spec=spec(0, user), submitted_s=0.0) for i, user in enumerate(users)]
    return [RankedJob(0, float(i), job.id, job) for i, job in enumerate(jobs)]


def book(**had_s: float) -> FairnessProgress:
    found = FairnessProgress()
    for user in had_s:
        found.arrive(user, 0.0)
    for user, progress_s in had_s.items():
        found.active[user].progress_s = progress_s
    return found


def test_the_share_doubles_until_everybody_is_in():
    some, had = ready(*"abcdea"), book(a=5.0, b=1.0, c=4.0, d=2.0, e=3.0)
    tried = list(turns(some, had, (), 0.2, 0.0))
    assert [[r.job.spec.user for r in turn.entering] for turn in tried] == [
        ["b"],
        ["b", "d"],
        list("bcde"),
        list("abcdea"),
    ]
    assert tried[0].left_out == {"d": 1, "e": 2, "c": 3, "a": 4}
    assert not tried[-1].left_out


def test_jobs_for_which_devices_are_freed_enter_whoever_their_users_are():
    first = next(turns(ready("a", "b", "a"), book(a=9.0, b=0.0), {"j2"}, 0.5, 0.0))
    assert [r.job_id for r in first.entering] == ["j1", "j2"]


def test_one_user_has_nobody_to_be_fair_to():
    assert [len(turn.entering) for turn in turns(ready("a", "a"), book(a=9.0), (), 0.1, 0.0)] == [2]


# --- rounds


def cluster(fast: int, slow: int) -> tuple[SchedulerState, JobTable]:
    known, jobs = SchedulerState(), JobTable()
    kinds = ["fast"] * fast + ["slow"] * slow
    held = tuple(Device(index=i, kind=kind, memory_bytes=8, backend="emulated") for i, kind in enumerate(kinds))
    fold(known, jobs, NodeJoined(node_id="n1", at_s=0.0, devices=held))
    return known, jobs


def submit(known: SchedulerState, jobs: JobTable, job_id: str, user: str, at_s: float, *, gpus: int = 1) -> None:
    wanted = msgspec.structs.replace(spec(0, user), gpus=gpus)
    fold(known, jobs, JobSubmitted(job_id=job_id, at_s=at_s, spec=wanted))


def decided(known: SchedulerState, jobs: JobTable, now_s: float, alpha: float) -> RoundDecided | None:
    found, _ = decide_pool(known.pool("default", jobs), now_s, RoundRules(alpha=alpha, max_tries=0))
    return found


def starts(found: RoundDecided | None) -> set[str]:
    return {placement.job_id for placement in found.placements} if found else set()


def run(known: SchedulerState, jobs: JobTable, found: RoundDecided | None, at_s: float) -> None:
    assert found is not None
    fold(known, jobs, found)
    for p in found.placements:
        fold(known, jobs, RunStarted(job_id=p.job_id, epoch=p.epoch, node_id="n1", devices=(0,), at_s=at_s))


def test_of_two_users_the_one_who_has_had_less_comes_first_though_he_came_last():
    known, jobs = cluster(fast=2, slow=0)
    submit(known, jobs, "a0", "ann", 0.0)
    run(known, jobs, decided(known, jobs, 0.0, 0.5), 0.5)
    for i in range(3):
        submit(known, jobs, f"a{i + 1}", "ann", 1.0 + i)
    submit(known, jobs, "b0", "bob", 9.0)
    known.history.progress["default"].active["bob"].progress_s = 0.0  # came when ann had had nothing
    fair = decided(known, jobs, 10.0, 0.5)
    assert starts(fair) == {"b0"}
    assert starts(decided(known, jobs, 10.0, 1.0)) == {"a1"}
    assert fair is not None
    # One device is left for whoever comes first: without fairness it would be a1's, and the others' nevertheless not.
    assert {w.job_id: w.cause for w in fair.waits} == {"a1": "fairness", "a2": "capacity", "a3": "capacity"}
    assert fair.waits[0].evidence == (
        "its user has had more than 1 other whose jobs wait; the least-progressed 50% of users come first (alpha 0.5)"
    )


def test_where_the_first_users_start_nothing_the_next_ones_do():
    known, jobs = cluster(fast=2, slow=0)
    submit(known, jobs, "a0", "ann", 0.0)
    run(known, jobs, decided(known, jobs, 0.0, 0.5), 0.5)
    submit(known, jobs, "gang", "bob", 1.0, gpus=2)
    known.history.progress["default"].active["bob"].progress_s = 0.0
    submit(known, jobs, "a1", "ann", 2.0)
    assert starts(decided(known, jobs, 10.0, 0.5)) == {"a1"}


users = st.lists(st.sampled_from("abc"), min_size=1, max_size=12)


@given(users, st.lists(st.integers(1, 3), min_size=12, max_size=12), st.integers(1, 4), st.integers(0, 3))
def test_with_alpha_1_the_rounds_are_those_without_fairness(owners, gpus, fast, slow):
    (fair, fair_jobs), (plain, plain_jobs) = cluster(fast, slow), cluster(fast, slow)
    for i, user in enumerate(owners):
        submit(fair, fair_jobs, f"j{i}", user, float(i), gpus=gpus[i])
        submit(plain, plain_jobs, f"j{i}", "", float(i), gpus=gpus[i])  # of one user, who has nobody to be fair to
        if i % 3 == 2:
            one = decided(fair, fair_jobs, float(i), 1.0)
            other = decided(plain, plain_jobs, float(i), 0.5)
            assert one == other
            if one is not None:
                run(fair, fair_jobs, one, i + 0.5)
                run(plain, plain_jobs, other, i + 0.5)


# --- starvation


USERS = 6


def bound_s(pool: Pool) -> float:
    """
    Return the longest that a user with jobs waiting can go without a start, where one user enters at a time.

    Let ``n`` users always have one-device jobs waiting, and ``O`` be the most progress that jobs started at one moment
    bring: as many as there are devices, of ``length_s`` each. When a user ``u`` starts a job he is the least, so when
    his run ends, the others are at most ``O`` behind him. While he waits, others start only when they are behind, so
    they come to be at most ``O`` ahead. Together they advance at the rate ``r`` of a full pool at its slowest, less
    what the lead of at most ``O`` fades by. So ``u`` is the least again after his run and ``2 (n - 1) O`` of it.
    """
    kinds, length_s = ("fast", "slow"), pool.length_s
    relative = [{kind: speeds[kind] / max(speeds.values()) for kind in kinds} for speeds in SPEEDS]
    ahead_s = len(kinds) * length_s
    rate = sum(min(of[kind] for of in relative) for kind in kinds)
    faded = (USERS - 1) * ahead_s * math.log(2) / HALF_LIFE_S
    slowest = min(min(speeds.values()) for speeds in SPEEDS)
    return length_s / slowest + 2 * (USERS - 1) * ahead_s / (rate - faded)


def crowd(alpha: float, assign: str, backlog: int = 20) -> Pool:
    """Five users with two jobs waiting and one who floods the pool."""
    wanted = {**{f"u{i}": 2 for i in range(USERS - 1)}, "flood": backlog}
    return Pool(RoundRules(alpha=alpha, assign=assign, max_waits=0), wanted, np.random.default_rng(7), devices=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("assign", "rounds"), [*sampled([("first-fit", 2_500), ("first-fit", 10_000)]), ("allox", 500)]
)
def test_no_user_starves(assign, rounds, record_property):
    pool = crowd(1 / USERS, assign)
    while pool.rounds < rounds:
        pool.step()
    waits_s = {user: pool.longest_wait(user)[0] for user in pool.backlog}
    record_property("longest waits, seconds", waits_s)
    assert max(waits_s.values()) <= bound_s(pool), (waits_s, bound_s(pool))


def test_without_fairness_the_bound_does_not_hold():
    pool = crowd(1.0, "first-fit", backlog=400)
    while pool.rounds < 1000:
        pool.step()
    assert max(pool.longest_wait(user)[0] for user in pool.backlog) > bound_s(pool)


def test_with_the_default_no_user_gets_more_than_his_share_by_submitting_more():
    pool = crowd(RoundRules().alpha, "first-fit")
    while pool.rounds < 1000:
        pool.step()
    counts = {user: len(starts) for user, starts in pool.started.items()}
    assert max(counts.values()) <= 1.2 * min(counts.values()), counts


# --- the impossibility


def fair_and_efficient(fast_1: Fraction, fast_2: Fraction) -> tuple[Fraction, Fraction]:
    """
    Return the least and the largest share of a fast device for user 1 that Pareto efficiency and the incentive allow.

    One fast and one slow device; user ``i`` is ``fast_i`` times as fast on the fast one, ``fast_1 > fast_2 > 1``.
    """
    return (fast_1 + 1) / (2 * fast_1), (fast_2 + 1) / (2 * fast_2)


def allowed_on_grid(fast_1: float, fast_2: float, steps: int = 40) -> list[tuple[float, float]]:
    """Return user 1's shares (fast, slow) of all grid points that are efficient and better than halves for both."""
    x, y = (axis.ravel() for axis in np.meshgrid(*[np.linspace(0.0, 1.0, steps + 1)] * 2))
    one, two = fast_1 * x + y, fast_2 * (1 - x) + (1 - y)
    eps = 1e-9
    beaten = [
        bool(np.any((one >= a - eps) & (two >= b - eps) & ((one > a + eps) | (two > b + eps))))
        for a, b in zip(one, two, strict=True)
    ]
    better = (one >= (fast_1 + 1) / 2 - eps) & (two >= (fast_2 + 1) / 2 - eps)
    return [(float(x[i]), float(y[i])) for i in np.flatnonzero(better) if not beaten[i]]


def test_the_range_is_the_one_that_a_search_finds():
    found = allowed_on_grid(4.0, 2.0)
    assert max(slow for _, slow in found) <= 1 / 40 + 1e-9  # none, but for the grid
    shares = [fast for fast, slow in found if not slow]
    assert (min(shares), max(shares)) == pytest.approx([float(s) for s in fair_and_efficient(Fraction(4), Fraction(2))])


def test_whatever_an_efficient_and_fair_rule_gives_somebody_gains_by_a_lie():
    """The example of docs/fairness.md: speed-ups 4 and 2; lies 2.1 and 3.9."""
    least, most = fair_and_efficient(Fraction(4), Fraction(2))
    least_if_1_lies, _ = fair_and_efficient(Fraction(21, 10), Fraction(2))
    _, most_if_2_lies = fair_and_efficient(Fraction(4), Fraction(39, 10))
    assert (least, most) == (Fraction(5, 8), Fraction(3, 4))
    assert (round(float(least_if_1_lies), 3), round(float(most_if_2_lies), 3)) == (0.738, 0.628)
    for share in (least + (most - least) * Fraction(i, 100) for i in range(101)):
        gain_1, gain_2 = 4 * (least_if_1_lies - share), 2 * (share - most_if_2_lies)
        assert max(gain_1, gain_2) > 0


def test_with_equal_speed_ups_halves_are_efficient_and_fair_and_lies_are_of_no_use():
    least, most = fair_and_efficient(Fraction(4), Fraction(4))
    assert least == most  # of the fast device, if the other user has all of the slow one: as good as halves for both
    assert 4 * least == Fraction(4 + 1, 2)
    assert (0.5, 0.5) in allowed_on_grid(4.0, 4.0)
