from __future__ import annotations

from itertools import count, islice

import pytest
from profiler_facts import spec

from penstock_profiler.answer import MOST_OTHERS, answer
from penstock_profiler.workload_record import WorkloadRecord


def measured(key: str, **iteration_s: float) -> WorkloadRecord:
    return WorkloadRecord(key=key, spec=spec(), iteration_s=iteration_s)


def test_a_workload_measured_everywhere_needs_no_other():
    others = (pytest.fail("another workload was looked at") for _ in count())
    said = answer(measured("k", fast=1.0, slow=4.0), others, ["fast", "slow"], 1.0)
    assert [(speed.kind, speed.speed, speed.predicted) for speed in said.speeds] == [
        ("fast", 1.0, False),
        ("slow", 0.25, False),
    ]


def test_a_prediction_looks_at_a_bounded_number_of_workloads_that_tell_kinds_apart():
    seen = count()
    others = (measured(f"k{i}", fast=1.0, slow=2.0) for i in seen)
    said = answer(measured("k", fast=3.0), others, ["fast", "slow"], 1.0)
    assert [(speed.kind, speed.speed, speed.predicted) for speed in said.speeds] == [
        ("fast", 1.0, False),
        ("slow", 0.5, True),
    ]
    assert next(seen) <= MOST_OTHERS + 1


def test_workloads_known_on_one_kind_alone_tell_nothing_and_take_no_place():
    alone = [measured(f"a{i}", fast=float(i + 1)) for i in range(MOST_OTHERS)]
    telling = islice((measured(f"t{i}", fast=1.0, slow=2.0) for i in count()), 1)
    said = answer(measured("k", fast=3.0), [*alone, *telling], ["fast", "slow"], 1.0)
    assert said.speeds[1].speed == 0.5
    assert said.note == "slow: predicted from other workloads; not sampled, what runs there is measured"
