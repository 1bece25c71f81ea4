"""The parts that the sharing of devices is made of: who is near whom, and which runs count as one."""

from __future__ import annotations

import pkgutil

from hypothesis import given
from hypothesis import strategies as st

from penstock_log import Device, Job, JobSpec, JobState, MemoryNeed
from penstock_policies.workload_stats import PreemptionCost
from penstock_scheduler import sharing
from penstock_scheduler.pool.pool_index import SharingIndex
from penstock_scheduler.round_types import PreemptibleRun, RankedJob, RoundContext, RoundRules
from penstock_scheduler.sharing.co_preemption import as_one, sharing_runs, tied
from penstock_scheduler.sharing.shared_devices import (
    SharedDevice,
    SharedDeviceIndex,
    SharingDemand,
    SharingGroup,
    SharingLimits,
    asking,
)

MODULES = [name for _, name, _ in pkgutil.iter_modules(sharing.__path__)]
LIMITS = SharingLimits(0.0, 8)
groups = st.builds(
    SharingGroup, st.sampled_from("ab"), st.sampled_from(["", "x", "y"]), st.sampled_from(["user", "team", "anyone"])
)


def gpu(index: int = 0, memory_bytes: int = 100) -> Device:
    return Device(index=index, kind="fast", memory_bytes=memory_bytes, backend="emulated")


ANN, SMALL = SharingGroup("a", "x", "team"), MemoryNeed(1, 0, 1)


def lane(group: SharingGroup = ANN, need: MemoryNeed = SMALL) -> SharingDemand:
    return SharingDemand("lane", group, need)


def run(name: str, *indices: int, **fields: object) -> PreemptibleRun:
    job = Job(id=name, spec=JobSpec(name=name, command=("true",), sharing="lane"), submitted_s=0.0, **fields)
    return PreemptibleRun(RankedJob(0, 0.0, name, job), "fast", tuple(("n1", gpu(index)) for index in indices))


@given(st.lists(st.lists(groups, min_size=1, max_size=3), max_size=6), groups)
def test_no_device_that_would_take_a_job_is_far_from_it(devices, group):
    """Of devices on which all suit each other, as they do wherever somebody was placed."""
    found = {}
    for index, there in enumerate(devices):
        if all(one.shares_with(other) for one in there for other in there):
            at = ("n1", gpu(index))
            found["n1", index] = SharedDevice.of(at, {str(i): lane(one) for i, one in enumerate(there)}, LIMITS)
    open_to = {shared.at[1].index for shared in SharedDeviceIndex(found).to(group)}
    assert {at[1] for at, shared in found.items() if shared.holds(lane(group))} <= open_to


def test_devices_opened_in_a_round_are_near_from_then_on():
    open_to = SharedDeviceIndex({})
    open_to.put(SharedDevice.of(("n1", gpu(0)), {"a": lane()}, LIMITS))
    open_to.put(SharedDevice.of(("n1", gpu(1)), {"b": lane()}, LIMITS))
    assert [shared.at[1].index for shared in open_to.to(SharingGroup("b", "x", "team"))] == [0, 1]
    assert [shared.at[1].index for shared in open_to.to(SharingGroup("b", "x", "team"), since=2)] == [1]
    assert list(open_to.to(SharingGroup("b", "y", "team"))) == []


@given(st.integers(1, 10_000), st.integers(0, 5_000), st.floats(0.0, 0.9))
def test_a_device_as_large_as_a_job_asks_for_holds_it(resident, ephemeral, reserve_share):
    demand = lane(need=MemoryNeed(resident, 0, ephemeral))
    spec = asking(JobSpec(name="j", command=("true",)), demand, reserve_share)
    empty = SharedDevice.of(("n1", gpu(0, spec.memory_bytes)), {}, SharingLimits(reserve_share, 8))
    assert empty.load.holds(demand.need)


@given(st.lists(st.frozensets(st.integers(0, 5), min_size=1, max_size=3), max_size=6))
def test_runs_are_tied_if_and_only_if_devices_lead_from_one_to_the_other(held):
    runs = [run(f"r{i}", *sorted(indices)) for i, indices in enumerate(held)]
    found = tied(runs)
    assert sorted(job for jobs in found.values() for job in jobs) == sorted(one.ranked.job_id for one in runs)
    of = {job: name for name, jobs in found.items() for job in jobs}
    for i, mine in enumerate(held):
        for j, other in enumerate(held):
            assert not mine & other or of[f"r{i}"] == of[f"r{j}"]
    devices = [set().union(*(held[int(job[1:])] for job in jobs)) for jobs in found.values()]
    assert sum(map(len, devices)) == len(set().union(*devices, set()))


@given(st.lists(st.integers(0, 4), max_size=8), st.sets(st.integers(0, 7)))
def test_without_gangs_jobs_are_tied_by_their_device_alone(held, stopping):
    index: SharingIndex[object] = SharingIndex({})
    runs = [run(f"r{i}", device) for i, device in enumerate(held)]
    for i, one in enumerate(runs):
        index.grant(one, stopping=i in stopping)
    assert index.ties == tied(one for i, one in enumerate(runs) if i not in stopping)
    for one in runs:
        index.release(one.ranked.job_id)
    assert index.ties == {}


def test_what_is_tied_ends_with_the_last_and_loses_what_all_lose():
    fields = {"state": JobState.RUNNING, "started_s": 10.0, "share": 0.5, "share_since_s": 10.0}
    runs = [run("a", 0, **fields), run("b", 0, **fields)]
    costs = {"a": PreemptionCost(stop_s=2.0), "b": PreemptionCost(saves=True)}
    context = RoundContext(20.0, lambda *_: 1.0, lambda _: [], RoundRules(), 60.0, lambda job: costs[job.id])
    known = sharing_runs(runs, context, [], ())
    assert [known[name].loss_gpu_s for name in "ab"] == [6.0, 0.0]  # half of 2 s to stop and 10 s not saved
    one = as_one("n1/0", [known["a"], known["b"]])
    assert (one.ranked.job_id, [device.index for _, device in one.devices], one.left_s) == ("n1/0", [0], 120.0)
