"""Windows of the matching: nobody is given a device twice, and no device idles that somebody would take."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from matching_oracle import assign_lsa

from penstock_log import Device, Job, JobSpec
from penstock_scheduler.assignment import (
    LOOKED_AT,
    Busy,
    DeviceSchedule,
    DeviceSupply,
    MatchedJobs,
    lengths_us,
    match,
    prices_s,
)
from penstock_scheduler.placement import FreeDevices
from penstock_scheduler.round_types import RankedJob, RoundContext, RoundRules
from sweeps import examples

SLOW = 0.5


def device(index: int, kind: str) -> Device:
    return Device(index=index, kind=kind, memory_bytes=8, backend="emulated")


def single(number: int, queue: int = 0, length_s: float = 10.0, kinds: tuple[str, ...] = ()) -> RankedJob:
    spec = JobSpec(name="a", command=("true",), kinds=kinds, duration_s=length_s)
    job = Job(id=f"j{number:03}", spec=spec, submitted_s=float(number), pending_since_s=float(number))
    return RankedJob(queue, float(number), job.id, job)


def context(now_s: float = 0.0, window: int = 64) -> RoundContext:
    def speed(_: Job, kind: str) -> float:
        return SLOW if kind == "slow" else 1.0

    def remaining(jobs: list[Job]) -> list[float]:
        return [job.spec.duration_s for job in jobs]

    return RoundContext(now_s, speed, remaining, RoundRules(window=window, patience_s=1e9))


def supplied(fast: int, slow: int, busy_s: list[float]) -> tuple[DeviceSupply, Busy]:
    """Idle devices of both kinds, and busy fast ones."""
    idle = {"n1": [device(i, "fast" if i < fast else "slow") for i in range(fast + slow)]}
    busy = [(device(100 + i, "fast"), in_s) for i, in_s in enumerate(busy_s)]
    whole = {**idle, "n2": [held for held, _ in busy]}
    return DeviceSupply(free=FreeDevices(idle), coming=FreeDevices({}), whole=FreeDevices(whole)), lambda: {
        device(0, "fast"): busy_s
    }


def matched(
    jobs: list[RankedJob], fast: int, slow: int, busy_s: list[float], window: int = 64
) -> tuple[MatchedJobs, FreeDevices]:
    supply, busy = supplied(fast, slow, busy_s)
    return match(sorted(jobs), supply, busy, context(window=window)), supply.free


jobs = st.lists(
    st.tuples(st.integers(0, 2), st.floats(0.5, 100.0), st.sampled_from([(), ("fast",), ("slow",)])), max_size=12
)


@settings(deadline=None)
@given(jobs, st.integers(0, 3), st.integers(0, 3), st.lists(st.floats(0.1, 50.0), max_size=3), st.integers(1, 8))
def test_a_device_that_idles_is_one_that_no_job_wants_now(specs, fast, slow, busy_s, window):
    waiting = [single(i, queue, length, kinds) for i, (queue, length, kinds) in enumerate(specs)]
    found, free = matched(waiting, fast, slow, busy_s, window)
    started = {ranked.job_id for ranked, _, _ in found.starts}
    taken = [(n, d.index) for _, _, devices in found.starts for n, d in devices]
    assert len(taken) == len(set(taken)) == len(started)
    assert not started & set(found.later)
    assert len(taken) + len(free) == fast + slow
    for ranked in waiting:  # who could start now and does not, waits for a device that is expected
        if ranked.job_id not in started and free.kinds(ranked.job.spec):
            assert ranked.job_id in found.later


@settings(deadline=None)
@given(jobs, st.integers(1, 3))
def test_on_one_kind_no_device_goes_to_a_higher_queue_number_first(specs, fast):
    waiting = [single(i, queue, length) for i, (queue, length, _) in enumerate(specs)]
    found, _ = matched(waiting, fast, 0, [])
    started = [ranked.queue for ranked, _, _ in found.starts]
    left = [r.queue for r in waiting if r.job_id not in {s.job_id for s, _, _ in found.starts}]
    assert max(started, default=0) <= min(left, default=9)


def test_the_next_window_takes_what_the_first_left():
    found, free = matched([single(i) for i in range(5)], 5, 0, [], window=2)
    assert len(found.starts) == 5
    assert len(free) == 0


def test_what_higher_ranked_jobs_wait_for_is_not_promised_twice():
    first, second = single(0, 0, 10.0), single(1, 1, 10.0)
    found, _ = matched([first, second], 0, 1, [5.0])  # fast in 5 s, then 10; slow now, 20
    assert found.later["j000"].kind == "fast"
    assert [ranked.job_id for ranked, _, _ in found.starts] == ["j001"]  # behind it fast would end at 25


def test_prices_need_jobs_and_devices():
    supply, busy = supplied(0, 0, [])
    assert prices_s([], supply, busy, context()) == {}
    assert prices_s([single(0)], supply, busy, context()) == {}


def test_a_price_is_what_one_more_device_saves():
    supply, busy = supplied(0, 1, [5.0])
    waiting = [single(i, length_s=10.0) for i in range(2)]  # 15 and 20; with one more fast 10 and 15
    assert prices_s(waiting, supply, busy, context()) == {"fast": 10.0, "slow": 0.0}


@settings(deadline=None, max_examples=examples(40))
@given(jobs, st.integers(0, 3), st.integers(0, 3), st.lists(st.floats(0.1, 50.0), max_size=3))
def test_what_starts_is_part_of_a_schedule_that_nothing_betters(specs, fast, slow, busy_s):
    waiting = [single(i, 0, length, kinds) for i, (_, length, kinds) in enumerate(specs)]
    supply, busy = supplied(fast, slow, busy_s)
    classes = list(supply.whole.classes())
    ready = DeviceSchedule(classes, supply.free, busy()).ready_us
    view = context()
    lengths = lengths_us([ranked.job for ranked in waiting], classes, view)
    found = match(waiting, supply, busy, view)
    if not classes:
        return
    best = assign_lsa(lengths, ready)
    seats = {like.kind: column for column, like in enumerate(classes)}
    rows = {ranked.job_id: row for row, ranked in enumerate(waiting)}
    fixed = [(rows[ranked.job_id], seats[kind]) for ranked, kind, _ in found.starts]
    spent = sum(int(lengths[row, column]) for row, column in fixed)
    for row, column in fixed:  # each on an idle device of its own, the others behind them as well as can be
        ready[column] = np.sort(np.append(ready[column][1:], lengths[row, column]))
    others = [row for row in range(len(waiting)) if row not in dict(fixed)]
    assert spent + assign_lsa(lengths[others], ready).total_us == best.total_us


def test_a_device_that_thousands_cannot_use_goes_to_the_one_behind_them_that_can():
    waiting = [single(i, kinds=("other",)) for i in range(LOOKED_AT + 1)] + [single(9_999, queue=1)]
    found, _ = matched(waiting, 1, 0, [])
    assert [ranked.job_id for ranked, _, _ in found.starts] == ["j9999"]
