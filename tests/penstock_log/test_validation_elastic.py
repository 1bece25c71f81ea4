"""What people write of an elastic job, what they meant by it, and what cannot be meant."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_log import Batch, JobSpec
from penstock_log.validation import BadInput, elastic_problems, settled, widened


def spec(**fields: Any) -> JobSpec:
    return JobSpec(name="job", command=("true",), **fields)


@pytest.mark.parametrize(("text", "least", "most"), [("1..8", 1, 8), (" 2 .. 16 ", 2, 16), ("4..4", 4, 4)])
def test_a_range_of_devices_is_written_out(text, least, most):
    assert widened({"gpus": text}) == {"gpus": least, "min_gpus": least, "max_gpus": most}


@pytest.mark.parametrize("raw", [{"gpus": 4}, {}, [1], None, {"gpus": None}])
def test_what_is_no_range_is_left_for_others_to_judge(raw):
    assert widened(raw) == raw


@pytest.mark.parametrize("text", ["8..1", "0..8", "1...8", "..8", "many", "1..99999"])
def test_a_range_that_cannot_be_meant_is_refused_where_it_stands(text):
    with pytest.raises(BadInput, match=r"\$\.gpus: "):
        widened({"gpus": text})


def test_a_job_begins_at_its_smallest_width_with_the_batch_that_its_rate_is_for():
    job = settled(spec(max_gpus=8, batch=Batch(min=32, max=256)))
    assert (job.gpus, job.min_gpus, job.batch_size, job.batch) == (1, 1, 32, Batch(min=32, max=256, base=32))
    job = settled(spec(min_gpus=2, max_gpus=8, batch_size=64, batch=Batch(min=32, max=256)))
    assert (job.gpus, job.batch_size, job.batch) == (2, 64, Batch(min=32, max=256, base=64))


def test_a_fixed_gang_is_settled_as_it_is():
    assert settled(spec(gpus=4, batch_size=64)) == spec(gpus=4, batch_size=64)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"min_gpus": 8, "max_gpus": 2, "batch_size": 64}, "min_gpus"),
        ({"min_gpus": 8, "max_gpus": 2, "batch": Batch(min=32, max=64, per_gpu_max=4)}, "min_gpus"),
        ({"min_gpus": 1, "max_gpus": 8}, "gpus"),
        ({"gpus": 16, "min_gpus": 1, "max_gpus": 8, "batch_size": 64}, "gpus"),
        ({"min_gpus": 4, "max_gpus": 8, "batch_size": 3}, "batch_size"),
        ({"max_gpus": 4, "batch_size": 600, "batch": Batch(min=64, max=512)}, "batch_size"),
        ({"max_gpus": 8, "batch": Batch(min=64, max=128, per_gpu_max=4)}, "batch"),
        ({"max_gpus": 8, "batch_size": 64, "sharing": "lane"}, "sharing"),
        ({"max_gpus": 8, "batch_size": 64, "processes": "node"}, "processes"),
    ],
)
def test_what_cannot_be_meant_is_told_with_its_field_first(fields, field):
    (problem,) = elastic_problems(spec(**fields))
    assert problem.startswith(f"{field}: ")


FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "gpus": st.integers(1, 9),
        "min_gpus": st.integers(0, 9),
        "max_gpus": st.integers(0, 9),
        "batch_size": st.integers(0, 20),
        "batch": st.builds(
            lambda least, more, each: Batch(min=least, max=least + more, per_gpu_max=each),
            *(st.integers(1, 9), st.integers(0, 9), st.integers(0, 4)),
        ),
    },
)


@given(FIELDS)
def test_a_job_without_problems_begins_with_a_size_that_it_takes(fields):
    job = settled(spec(**fields))
    if list(elastic_problems(job)):
        return
    assert job.gpus in job.widths
    assert job.widths[0] >= 1
    assert settled(job) == job
    if job.elastic:
        assert job.batch_size >= job.widths[0] or job.batch is not None
    if job.batch is not None:
        assert job.batch.min <= job.batch_size <= job.batch.max
        assert job.batch.base == job.batch_size or job.batch.base
