"""The walk through the order: who gets devices, who makes room, who keeps what."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from run_rows import columns_of

from penstock_log import Device, Job, JobSpec
from penstock_policies.queue_policies import BY_QUEUE, DispatchMode
from penstock_scheduler.admission import Admission, admit
from penstock_scheduler.assignment import DeviceSupply
from penstock_scheduler.placement import FreeDevices
from penstock_scheduler.pool.run_columns import NONE
from penstock_scheduler.round_types import PreemptibleRun, RankedJob, RoundContext, RoundRules

NOW_S = 100.0


def device(index: int, kind: str = "fast") -> Device:
    return Device(index=index, kind=kind, memory_bytes=8, backend="emulated")


def waiting(job_id: str, queue: int = 0, gpus: int = 1, since_s: float = NOW_S) -> RankedJob:
    spec = JobSpec(name=job_id, command=("true",), gpus=gpus)
    return RankedJob(queue, since_s, job_id, Job(id=job_id, spec=spec, submitted_s=since_s, pending_since_s=since_s))


def running(job_id: str, queue: int, *devices: int, started_s: float = 1.0) -> PreemptibleRun:
    spec = JobSpec(name=job_id, command=("true",), gpus=len(devices))
    job = Job(id=job_id, spec=spec, submitted_s=0.0, started_s=started_s)
    return PreemptibleRun(RankedJob(queue, 0.0, job_id, job), "fast", tuple(("n1", device(index)) for index in devices))


def walk(
    jobs: list[RankedJob],
    runs: list[PreemptibleRun] = [],  # noqa: B006
    idle: int = 0,
    coming: int = 0,
    *,
    mode: DispatchMode = BY_QUEUE,
) -> Admission:
    """Devices 0… are idle, then come those that are stopping; runs name their own."""
    free = FreeDevices({"n1": [device(i) for i in range(idle)]})
    stopping = FreeDevices({"n1": [device(idle + i) for i in range(coming)]})
    held = {d.index: d for run in runs for _, d in run.devices}
    whole = FreeDevices({"n1": [*(device(i) for i in range(idle + coming)), *held.values()]})
    context = RoundContext(NOW_S, lambda _job, _kind: 1.0, lambda jobs: [1.0] * len(jobs), RoundRules(), mode=mode)
    return admit(sorted(jobs), lambda: columns_of(runs, context), DeviceSupply(free, stopping, whole), context)


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


def of_two_kinds(free: dict[str, int], reserved_before: dict[str, str]) -> Admission:
    """A gang of 3 whose patience is over; three devices of each kind, of which some are free."""
    spec = JobSpec(name="g", command=("true",), gpus=3)
    gang = RankedJob(0, 1.0, "g", Job(id="g", spec=spec, submitted_s=1.0, pending_since_s=1.0))
    held = {kind: [device(i, kind) for i in range(3)] for kind in ("fast", "slow")}
    context = RoundContext(NOW_S, lambda _job, _kind: 1.0, lambda jobs: [1.0] * len(jobs), RoundRules())
    supply = DeviceSupply(
        FreeDevices({kind: held[kind][:n] for kind, n in free.items()}), FreeDevices({}), FreeDevices(held)
    )
    return admit([gang], lambda: NONE, supply, context, reserved_before)


def test_a_patient_gang_keeps_the_kind_that_has_most_and_then_stays_with_it():
    assert of_two_kinds({"fast": 1, "slow": 2}, {}).reserved == {"g": "slow"}
    stayed = of_two_kinds({"fast": 1, "slow": 2}, {"g": "fast"})
    assert (stayed.reserved, [d.kind for _, d in stayed.kept]) == ({"g": "fast"}, ["fast"])
    assert of_two_kinds({"slow": 2}, {"g": "fast"}).reserved == {"g": "fast"}  # also where none of it is free


def test_a_gang_starts_on_whatever_kind_has_enough_though_it_stays_with_another():
    found = of_two_kinds({"fast": 2, "slow": 3}, {"g": "fast"})
    assert [(ranked.job_id, kind) for ranked, kind, _ in found.gangs] == [("g", "slow")]
    assert not found.reserved


def test_what_is_kept_can_be_undone():
    supply = DeviceSupply(
        FreeDevices({"n": [device(0)]}), FreeDevices({"n": [device(1)]}), FreeDevices({"n": [device(0), device(1)]})
    )
    context = RoundContext(NOW_S, lambda _job, _kind: 1.0, lambda jobs: [1.0] * len(jobs), RoundRules())
    found = admit([waiting("g", gpus=2)], lambda: NONE, supply, context)
    assert (found.keeps, len(supply.free), len(supply.coming)) == ({"g": "fast"}, 0, 0)
    found.undo(supply)
    assert (len(supply.free), len(supply.coming)) == (1, 1)


def test_where_the_order_forbids_backfill_nobody_passes_a_job_that_waits():
    jobs = [waiting("a", since_s=1.0), waiting("g", gpus=3, since_s=2.0), waiting("b", since_s=3.0)]
    assert [r.job_id for r in walk(jobs, idle=2).singles] == ["a", "b"]
    assert [r.job_id for r in walk(jobs, idle=2, mode=DispatchMode(backfills=False)).singles] == ["a"]


def test_what_a_large_victim_leaves_goes_to_the_next_who_wait():
    found = walk([waiting("a"), waiting("b"), waiting("c")], [running("r", 1, 5, 6)])
    assert victims(found) == ["r"]
    assert set(found.keeps) == {"a", "b"}


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


KINDS = st.lists(st.sampled_from(["fast", "slow"]), max_size=6)
WANTED = st.lists(st.sampled_from([(), ("fast",), ("slow",), ("fast", "slow")]), max_size=4)


@given(KINDS, WANTED)
def test_jobs_of_one_device_find_what_they_find_before_a_gang_that_finds_nothing(kinds, wanted):
    def admitted(*behind: RankedJob) -> tuple[list[str], dict[str, list[Device]]]:
        free = FreeDevices({"n1": [device(index, kind) for index, kind in enumerate(kinds)]})
        jobs = [waiting(f"j{at}", since_s=float(at)) for at in range(len(wanted))]
        for ranked, accepted in zip(jobs, wanted, strict=True):
            ranked.job.spec = msgspec.structs.replace(ranked.job.spec, kinds=accepted)
        mode = DispatchMode(preempts="position")  # only who has found one comes to the matching
        context = RoundContext(NOW_S, lambda _job, _kind: 1.0, lambda jobs: [1.0] * len(jobs), RoundRules(), mode=mode)
        found = admit([*jobs, *behind], lambda: NONE, DeviceSupply(free, FreeDevices({}), free), context)
        return [ranked.job_id for ranked in found.singles], free.by_node()

    assert admitted() == admitted(waiting("g", gpus=9))
