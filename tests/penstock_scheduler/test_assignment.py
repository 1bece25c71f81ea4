"""Assignments by name: what each looks at, and which names there are."""

from __future__ import annotations

import msgspec
import pytest

from penstock_log import Device, Job, JobSpec
from penstock_scheduler.assignment import ASSIGNMENTS, DeviceSupply
from penstock_scheduler.placement import FreeDevices
from penstock_scheduler.round_types import RankedJob, RoundContext, RoundRules


def device(index: int, kind: str) -> Device:
    return Device(index=index, kind=kind, memory_bytes=8, backend="emulated")


def single(number: int, length_s: float, kinds: tuple[str, ...] = ()) -> RankedJob:
    spec = JobSpec(name="a", command=("true",), kinds=kinds, duration_s=length_s)
    return RankedJob(0, float(number), f"j{number}", Job(id=f"j{number}", spec=spec, submitted_s=0.0))


def assigned(name: str, jobs: list[RankedJob], idle: list[str], busy: list[tuple[str, float]]) -> dict[str, str]:
    """Job → kind of what starts."""
    free = {"n1": [device(i, kind) for i, kind in enumerate(idle)]}
    taken = [(device(100 + i, kind), in_s) for i, (kind, in_s) in enumerate(busy)]
    supply = DeviceSupply(
        free=FreeDevices(free), coming=FreeDevices({}), whole=FreeDevices({**free, "n2": [held for held, _ in taken]})
    )
    view = RoundContext(
        0.0, lambda _, kind: {"a": 0.5, "b": 1.0}[kind], lambda js: [j.spec.duration_s for j in js], RoundRules()
    )
    ends = {device(0, kind): [in_s for of, in_s in busy if of == kind] for kind, _ in busy}
    found = ASSIGNMENTS[name].assign(jobs, supply, lambda: ends, view)
    return {ranked.job_id: kind for ranked, kind, _ in found.starts}


def test_first_fit_takes_the_first_kind_that_is_idle_however_slow():
    assert assigned("first-fit", [single(0, 9.0)], ["b", "a"], []) == {"j0": "a"}
    assert assigned("allox", [single(0, 9.0)], ["b", "a"], []) == {"j0": "b"}


def test_first_fit_goes_by_rank_and_passes_over_what_does_not_fit():
    jobs = [single(0, 9.0, ("b",)), single(1, 1.0, ("b",)), single(2, 5.0)]
    assert assigned("first-fit", jobs, ["b", "a"], []) == {"j0": "b", "j2": "a"}


def test_load_balance_takes_the_idle_kind_whose_devices_have_least_to_do():
    jobs = [single(0, 8.0), single(1, 8.0)]
    assert assigned("load-balance", jobs, ["a", "b", "b"], [("a", 9.0)]) == {"j0": "b", "j1": "b"}
    assert assigned("load-balance", jobs, ["a", "b", "b"], [("a", 7.0)]) == {"j0": "b", "j1": "a"}


@pytest.mark.parametrize("name", ["first-fit", "load-balance"])
def test_those_who_know_no_speeds_leave_nobody_beside_an_idle_device(name):
    assert assigned(name, [single(0, 9.0)], ["a"], [("b", 0.1)]) == {"j0": "a"}
    assert assigned("allox", [single(0, 9.0)], ["a"], [("b", 0.1)]) == {}


def test_an_unknown_name_is_refused_with_those_that_are_known():
    with pytest.raises(msgspec.ValidationError, match="'best'; expected one of allox, first-fit, load-balance"):
        msgspec.convert({"assign": "best"}, RoundRules)
