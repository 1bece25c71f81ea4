"""The walk through the order: who gets devices, who makes room, who keeps what."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock_events import Device, Job, JobSpec
from penstock_policies.admission import Admission, admit
from penstock_policies.order import Outlook, Ranked, Rules, Running, Supply
from penstock_policies.placement import Free

NOW_S = 100.0


def device(index: int, kind: str = "fast") -> Device:
    return Device(index=index, kind=kind, memory_bytes=8, backend="emulated")


def waiting(job_id: str, queue: int = 0, gpus: int = 1, since_s: float = NOW_S) -> Ranked:
    spec = JobSpec(name=job_id, command=("true",), gpus=gpus)
    return Ranked(queue, since_s, job_id, Job(id=job_id, spec=spec, submitted_s=since_s, pending_since_s=since_s))


def running(job_id: str, queue: int, *devices: int, started_s: float = 1.0) -> Running:
    spec = JobSpec(name=job_id, command=("true",), gpus=len(devices))
    job = Job(id=job_id, spec=spec, submitted_s=0.0, started_s=started_s)
    return Running(Ranked(queue, 0.0, job_id, job), "fast", tuple(("n1", device(index)) for index in devices))


def walk(jobs: list[Ranked], runs: list[Running] = [], idle: int = 0, coming: int = 0) -> Admission:  # noqa: B006
    """Devices 0… are idle, then come those that are stopping; runs name their own."""
    free = Free({"n1": [device(i) for i in range(idle)]})
    stopping = Free({"n1": [device(idle + i) for i in range(coming)]})
    held = {d.index: d for run in runs for _, d in run.devices}
    whole = Free({"n1": [*(device(i) for i in range(idle + coming)), *held.values()]})
    outlook = Outlook(NOW_S, lambda _job, _kind: 1.0, lambda jobs: [1.0] * len(jobs), Rules())
    return admit(sorted(jobs), runs, Supply(free, stopping, whole), outlook)


def gangs(found: Admission) -> list[str]:
    return [ranked.job_id for ranked, _, _ in found.gangs]


def victims(found: Admission) -> list[str]:
    return [run.ranked.job_id for run, _ in found.preempted]


def test_a_gang_does_not_take_the_device_of_a_single_before_it():
    found = walk([waiting("a", since_s=1.0), waiting("g", gpus=2)], idle=2)
    assert (gangs(found), [r.job_id for r in found.singles]) == ([], ["a"])


def test_devices_that_are_being_freed_are_kept_before_anybody_is_preempted():
    found = walk([waiting("g", gpus=3)], [running("r", 1, 7)], idle=1, coming=2)
    assert (found.keeps, victims(found), len(found.kept)) == ({"g": "fast"}, [], 1)


def test_a_victim_that_a_larger_one_makes_superfluous_is_spared():
    runs = [running("small", 2, 5), running("large", 1, 6, 7)]
    assert victims(walk([waiting("g", gpus=2)], runs)) == ["large"]
    assert victims(walk([waiting("g", gpus=3)], runs)) == ["small", "large"]


def test_nothing_is_preempted_in_vain():
    assert victims(walk([waiting("g", gpus=3)], [running("a", 1, 5), running("b", 0, 6, 7)])) == []


def test_two_gangs_do_not_keep_devices_of_one_kind():
    found = walk([waiting("g", gpus=3, since_s=1.0), waiting("h", gpus=3, since_s=2.0)], [running("r", 0, 7)], idle=2)
    assert found.keeps == {"g": "fast"}


queues = st.integers(0, 2)


@given(
    st.lists(st.tuples(queues, st.integers(1, 4)), max_size=6),
    st.lists(st.tuples(queues, st.integers(1, 3), st.sampled_from([1.0, 99.0])), max_size=4),
    st.integers(0, 4),
    st.integers(0, 3),
)
def test_the_walk_keeps_its_word(jobs, runs, idle, coming):
    base, held = idle + coming, []
    for i, (queue, count, started_s) in enumerate(runs):
        first = base + sum(n for _, n, _ in runs[:i])
        held.append(running(f"r{i}", queue, *range(first, first + count), started_s=started_s))
    ranked = [waiting(f"w{i}", queue, gpus, since_s=50.0 + i) for i, (queue, gpus) in enumerate(jobs)]
    found = walk(ranked, held, idle, coming)
    for run, for_whom in found.preempted:
        assert run.ranked.queue > for_whom.queue
        assert run.ranked.job.started_s + 5.0 <= NOW_S
    assert len(victims(found)) == len(set(victims(found)))
    given_out = [located for _, _, devices in found.gangs for located in devices] + found.kept
    assert len(given_out) == len(set(given_out)) <= idle
    assert all(len(devices) == ranked.job.spec.gpus for ranked, _, devices in found.gangs)
    assert not set(gangs(found)) & set(found.keeps)
