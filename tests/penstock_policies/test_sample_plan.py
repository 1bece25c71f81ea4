"""Who waits for samples: the profiler's rule, which all others go by."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_log import Batch, Job, JobSpec
from penstock_policies import sample_plan


def job(**fields: Any) -> Job:
    return Job(id="j1", spec=JobSpec(**{"name": "a", "command": ("python", "a.py"), **fields}), submitted_s=0.0)


@pytest.mark.parametrize(
    ("fields", "waits"),
    [
        ({}, False),
        ({"model": "mlp"}, True),
        ({"parent": "sweep"}, True),
        ({"profile": "on"}, True),
        ({"model": "mlp", "opaque": True}, False),
        ({"model": "mlp", "profile": "off"}, False),
        ({"model": "mlp", "kinds": ("a",)}, True),
    ],
)
def test_only_a_job_that_is_sampled_waits_for_its_speeds(fields: dict[str, Any], waits: bool) -> None:
    assert sample_plan.awaits_speeds(job(**fields), ("a", "b"), known=False) is waits
    assert not sample_plan.awaits_speeds(job(**fields), ("a", "b"), known=True)
    assert not sample_plan.awaits_speeds(job(**fields), ("a",), known=False)


@pytest.mark.parametrize(("fields", "waits"), [({}, True), ({"opaque": True}, False), ({"profile": "off"}, False)])
def test_only_an_elastic_job_that_is_sampled_waits_for_its_first_size(fields: dict[str, Any], waits: bool) -> None:
    elastic = job(**fields, max_gpus=4, batch=Batch(min=4, max=64))
    assert sample_plan.awaits_scaling(elastic, known=False) is waits
    assert not sample_plan.awaits_scaling(elastic, known=True)
    assert not sample_plan.awaits_scaling(job(**fields), known=False)


def test_a_job_that_has_run_waits_for_neither() -> None:
    again = job(max_gpus=4, model="mlp", batch=Batch(min=4, max=64))
    again.epoch = 1
    assert not sample_plan.awaits_speeds(again, ("a", "b"), known=False)
    assert not sample_plan.awaits_scaling(again, known=False)
