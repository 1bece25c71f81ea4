"""Amounts of memory as people write them: what a job borrows, and what is none."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_log import JobSpec, MemoryNeed, SweepSpec
from penstock_log.spec import BESIDE_LOCAL_BYTES, job_schema, sweep_schema
from penstock_log.validation import BadInput, amount, convert, widened, written_out

GIB = 2**30
JOB = {"name": "prepare", "command": ["true"]}
BORROWED = {"local": "2GiB", "spill": "16GiB"}


def job(memory: Any, **fields: Any) -> JobSpec:
    return convert(widened({**JOB, "memory": memory, **fields}), JobSpec)


def refused(memory: Any, **fields: Any) -> str:
    with pytest.raises(BadInput) as error:
        job(memory, **fields)
    return str(error.value)


def test_what_a_job_borrows_is_written_out():
    spec = job(BORROWED)
    assert (spec.local_memory_bytes, spec.spill_bytes) == (2 * GIB, 16 * GIB)


def test_amounts_are_texts_or_bytes():
    assert job({"local": 2 * GIB, "spill": "16g"}) == job(BORROWED)
    assert job({"spill": "1.5GB"}).spill_bytes == 1_500_000_000
    assert job({"spill": 0}) == job(None)


def test_who_says_only_what_it_borrows_has_said_nothing_of_its_devices_memory():
    assert job(BORROWED).memory is None


def test_what_a_lane_needs_may_stand_beside_what_it_borrows():
    spec = job({**BORROWED, "persistent_bytes": 3, "ephemeral_bytes": 4}, sharing="lane")
    assert spec.memory == MemoryNeed(3, 0, 4)
    assert spec.spill_bytes == 16 * GIB


def test_an_empty_need_is_what_it_was():
    assert job({}).memory == MemoryNeed()


def test_the_job_of_a_sweep_borrows_too():
    space = {"lr": {"kind": "choice", "values": [1, 2]}}
    raw = {"name": "s", "metric": "loss", "space": space, "job": {"command": ["true"], "memory": BORROWED}}
    assert convert(written_out(raw, SweepSpec), SweepSpec).job.spill_bytes == 16 * GIB


@pytest.mark.parametrize(
    ("memory", "said"),
    [
        ({"local": "much"}, "$.memory.local: 'much' is no amount of memory; expected a number and a unit"),
        ({"spill": "-1GiB"}, "$.memory.spill: '-1GiB' is no amount of memory"),
        ({"spill": -1}, "$.memory.spill: expected an amount of memory"),
        ({"spill": True}, "$.memory.spill: expected an amount of memory"),
        ({"spill": None}, "$.memory.spill: expected an amount of memory"),
        ({"spill": 2**53 + 1}, "$.memory.spill: expected an amount of memory"),
        ({"spill": "9" * 400}, "is more memory than can be meant; expected 8 PiB at most"),
        ({"spil": "1GiB"}, "$.memory.spil: unknown field; did you mean `spill`?"),
        ({"width": 1, "spill": 1}, "$.memory.width: unknown field"),
        ({"local": "1GiB", "persistent_bytes": -1}, "$.memory.persistent_bytes: "),
    ],
)
def test_what_is_no_amount_is_refused_where_it_stands(memory: Any, said: str):
    assert said in refused(memory)


def test_one_amount_is_said_once():
    assert "$.spill_bytes: 1 stands beside memory.spill; leave one of them out" in refused(BORROWED, spill_bytes=1)
    assert job(BORROWED, spill_bytes=16 * GIB) == job(BORROWED)


def test_a_negative_amount_in_bytes_is_refused_with_its_path():
    assert "$.spill_bytes: " in refused(None, spill_bytes=-1)
    assert "$.local_memory_bytes: " in refused(None, local_memory_bytes=-1)


@pytest.mark.parametrize("memory", [BORROWED, {"local": 5}, {"spill": "1.5 GB", "persistent_bytes": 3}])
def test_the_schemas_take_the_short_form(memory: Any):
    jsonschema.validate({**JOB, "memory": memory}, job_schema())
    space = {"lr": {"kind": "choice", "values": [1, 2]}}
    jsonschema.validate(
        {"name": "s", "metric": "loss", "space": space, "job": {**JOB, "memory": memory}}, sweep_schema()
    )


@pytest.mark.parametrize("memory", [{"local": "much"}, {"local": -1}, {"spil": "1GiB"}])
def test_the_schema_refuses_what_the_gateway_refuses(memory: Any):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**JOB, "memory": memory}, job_schema())


def test_a_job_in_an_older_log_borrows_nothing():
    old = b'{"name":"prepare","command":["true"],"sharing":"lane","memory":{"persistent_bytes":3}}'
    spec = msgspec.json.decode(old, type=JobSpec)
    assert (spec.local_memory_bytes, spec.spill_bytes, spec.memory) == (0, 0, MemoryNeed(3))
    assert json.loads(msgspec.json.encode(spec)) == json.loads(old)


def test_a_job_that_borrows_nothing_is_stored_as_before():
    assert json.loads(msgspec.json.encode(convert(JOB, JobSpec))) == JOB


def test_what_stays_on_the_host_is_asked_of_it_with_room_for_a_program():
    assert job(BORROWED).least_host_bytes == 2 * GIB + BESIDE_LOCAL_BYTES
    assert job({"spill": "16GiB"}).least_host_bytes == 0


def test_a_job_that_says_its_host_memory_or_shares_its_device_asks_no_more_of_the_host():
    assert job(BORROWED, host_memory_bytes=3 * GIB).least_host_bytes == 0
    assert job(BORROWED, sharing="lane").least_host_bytes == 0


@pytest.mark.slow
@given(st.integers(0, 2**53))
def test_a_number_of_bytes_is_itself(size: int):
    assert amount(str(size)) == size
