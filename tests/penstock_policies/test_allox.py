"""Windows of the matching: nobody is given a device twice, and no device idles that somebody would take."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_events import Device, Job, JobSpec
from penstock_policies.allox import Machines, Matched, match, prices_s
from penstock_policies.order import Outlook, Ranked, Rules
from penstock_policies.placement import Free

SLOW = 0.5


def device(index: int, kind: str) -> Device:
    return Device(index=index, kind=kind, memory_bytes=8, backend="emulated")


def single(number: int, queue: int = 0, length_s: float = 10.0, kinds: tuple[str, ...] = ()) -> Ranked:
    spec = JobSpec(name="a", command=("true",), kinds=kinds, duration_s=length_s)
    job = Job(id=f"j{number:03}", spec=spec, submitted_s=float(number), pending_since_s=float(number))
    return Ranked(queue, float(number), job.id, job)


def outlook(now_s: float = 0.0, window: int = 64) -> Outlook:
    def speed(_: Job, kind: str) -> float:
        return SLOW if kind == "slow" else 1.0

    def remaining(jobs: list[Job]) -> list[float]:
        return [job.spec.duration_s for job in jobs]

    return Outlook(now_s, speed, remaining, Rules(window=window, patience_s=1e9))


def matched(jobs: list[Ranked], fast: int, slow: int, busy_s: list[float], window: int = 64) -> tuple[Matched, Free]:
    free = Free({"n1": [device(i, "fast" if i < fast else "slow") for i in range(fast + slow)]})
    machines = Machines(free, [(device(100 + i, "fast"), in_s) for i, in_s in enumerate(busy_s)])
    return match(sorted(jobs), free, machines, outlook(window=window)), free


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
    assert prices_s([], Machines(Free({}), []), outlook()) == {}
    assert prices_s([single(0)], Machines(Free({}), []), outlook()) == {}
