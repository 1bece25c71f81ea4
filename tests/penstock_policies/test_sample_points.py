"""At which sizes an elastic workload is sampled."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiler_facts import spec

from penstock_log import Batch, JobSpec
from penstock_policies.sample_plan import MOST_ALONE, MOST_WIDTHS, SamplePoint, batches, between, missing, most, points


@st.composite
def elastic_jobs(draw: Any) -> JobSpec:
    least = draw(st.integers(1, 8))
    low = draw(st.integers(1, 300))
    high = low * draw(st.integers(1, 64))
    batch = draw(st.sampled_from([None, Batch(min=low, max=high, per_gpu_max=draw(st.sampled_from([0, 32])))]))
    return spec(batch_size=low, batch=batch, min_gpus=least, max_gpus=least * draw(st.integers(1, 9)))


def sizes(found: list[SamplePoint]) -> list[tuple[int, int]]:
    return [(point.gpus, point.local_batch) for point in found]


@given(elastic_jobs(), st.integers(0, 40))
def test_the_sizes_that_a_job_may_have_lie_among_those_that_are_sampled(job: JobSpec, devices: int) -> None:
    found = points(job, devices)
    if devices < job.widths[0]:
        assert not found
        return
    alone = [point.local_batch for point in found if point.gpus == 1]
    smallest, largest = batches(job)
    limit = job.batch.per_gpu_max if job.batch is not None and job.batch.per_gpu_max else largest
    assert alone[0] <= max(1, math.ceil(smallest / most(job, devices)))
    assert alone[-1] == min(math.ceil(largest / job.widths[0]), limit)
    assert 1 <= len(alone) <= 3
    assert alone == sorted(set(alone))


@given(elastic_jobs(), st.integers(0, 40))
def test_no_sample_is_wider_than_the_pool_or_larger_than_the_job_allows(job: JobSpec, devices: int) -> None:
    for point in points(job, devices):
        assert point.gpus <= devices
        assert point.gpus == 1 or point.gpus in job.widths
        assert point.gpus <= point.batch_size <= max(batches(job)[1], point.gpus)


@given(elastic_jobs(), st.integers(0, 40))
def test_gangs_are_few_and_begin_with_the_smallest(job: JobSpec, devices: int) -> None:
    gangs = [point.gpus for point in points(job, devices) if point.gpus > 1]
    assert len(gangs) <= MOST_WIDTHS
    assert gangs == sorted(set(gangs))
    if devices >= max(2, job.widths[0]) and job.widths[-1] > 1:
        assert gangs[0] == max(2, job.widths[0]) or gangs[0] in (2, 4, 8)
        assert 2 * gangs[-1] > most(job, devices)


@given(elastic_jobs(), st.integers(0, 40))
def test_nothing_is_missing_once_it_was_asked_for(job: JobSpec, devices: int) -> None:
    assert not missing(job, devices, points(job, devices))


@pytest.mark.parametrize(
    ("fields", "devices", "expected"),
    [
        ({"max_gpus": 4}, 8, [(1, 16), (1, 64), (2, 16), (4, 16)]),
        ({"max_gpus": 4}, 1, [(1, 64)]),
        ({"batch": Batch(min=64, max=128)}, 8, [(1, 64), (1, 128)]),
        ({"batch": Batch(min=64, max=128), "gpus": 4}, 8, [(1, 16), (1, 32), (4, 16)]),
        ({"batch": Batch(min=32, max=4096, per_gpu_max=256), "max_gpus": 2}, 2, [(1, 16), (1, 64), (1, 256), (2, 64)]),
        (
            {"max_gpus": 64, "batch_size": 4096},
            64,
            [(1, 64), (1, 512), (1, 4096), (2, 512), (8, 512), (16, 64), (64, 64)],
        ),
    ],
    ids=["fixed batch", "one device", "one width", "a fixed gang", "a cap", "many devices"],
)
def test_what_is_sampled(fields: dict[str, Any], devices: int, expected: list[tuple[int, int]]) -> None:
    gangs = {"min_gpus": 1} if "max_gpus" in fields else {}
    assert sizes(points(spec(**({"batch_size": 64} | gangs | fields)), devices)) == expected


def test_a_wider_range_of_batches_is_sampled_at_its_new_ends_alone() -> None:
    narrow = spec(batch_size=64, batch=Batch(min=64, max=128))
    wide = spec(batch_size=64, batch=Batch(min=32, max=1024))
    assert sizes(missing(wide, 1, points(narrow, 1))) == [(1, 32), (1, 181), (1, 1024)]
    assert missing(narrow, 1, points(wide, 1)) == []


def test_a_device_more_or_less_is_no_reason_to_sample_again() -> None:
    job = spec(batch_size=800, min_gpus=1, max_gpus=16)
    assert missing(job, 9, points(job, 8)) == []
    assert sizes(missing(job, 16, points(job, 8))) == [(1, 50), (16, 50)]


def test_what_a_device_holds_is_sought_in_the_middle_a_few_times() -> None:
    asked = [SamplePoint(1, 16), SamplePoint(1, 128), SamplePoint(1, 1024)]
    assert between(128, 1024, asked) == [SamplePoint(1, 362)]
    asked.append(SamplePoint(1, 362))
    assert between(128, 362, asked) == [SamplePoint(1, 215)]
    asked.append(SamplePoint(1, 215))
    assert len(asked) == MOST_ALONE
    assert between(128, 215, asked) == []


@pytest.mark.parametrize(("fits", "too_large"), [(0, 64), (64, 0), (64, 90)])
def test_nothing_is_sought_where_nothing_fits_or_all_does_or_it_is_near_enough(fits: int, too_large: int) -> None:
    assert between(fits, too_large, [SamplePoint(1, 64)]) == []


def test_a_size_reads_well() -> None:
    assert [str(point) for point in (SamplePoint(1, 1), SamplePoint(4, 64))] == [
        "one device with 1 sample",
        "4 devices with 16 samples each",
    ]
