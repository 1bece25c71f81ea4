"""Answers and facts that take over the fields of records by their names."""

from __future__ import annotations

import msgspec
import pytest

from penstock_bus.health import Vitals
from penstock_cluster.nodes import Node
from penstock_gateway.acceptance import Acceptable
from penstock_gateway.job_history import JobHistory
from penstock_log import Demand, Job, JobFinished, JobSpec, Trial
from penstock_log.views import GoodputView, JobView, NodeView, ReplicaView, ResizeView, SubmitAnswer, TrialView, WhyView
from penstock_policies.search.runs import SweepGoodput, TrialUse

OF_A_SPECIFICATION = {"model", "sharing", "min_gpus", "max_gpus", "batch_size", "cpus", "host_memory_bytes"}
OF_VITALS = {"ready", "elected", "leading", "term_s", "lease_s", "last_seq", "decided_seq", "undecided_s"}
OF_AN_END = {"reason", "exit_code", "preemptions", "attempts", "steps", "metrics"}


@pytest.mark.parametrize(
    ("made", "record", "names"),
    [
        (JobView, Job, {"epoch", "share"}),
        (JobView, JobSpec, OF_A_SPECIFICATION),
        (WhyView, JobHistory, {"since_s"}),
        (NodeView, Node, {"labels", "cpus", "host_memory_bytes", "held_by", "containers"}),
        (ReplicaView, Vitals, OF_VITALS),
        (ResizeView, Demand, {"kinds", "reason", "gives"}),
        (GoodputView, SweepGoodput, {"rescale_gpu_s", "profile_gpu_s", "running_gpu_s"}),
        (TrialView, Trial, {"number", "bracket", "rung", "budget"}),
        (TrialUse, Trial, {"origin", "budget"}),
        (SubmitAnswer, Acceptable, {"warnings"}),
        (JobFinished, Job, OF_AN_END),
        (JobFinished, JobSpec, {"user", "parent"}),
    ],
)
def test_no_field_that_is_taken_over_by_name_falls_back_to_its_default(
    made: type[msgspec.Struct], record: type[msgspec.Struct], names: set[str]
) -> None:
    assert names <= {*made.__struct_fields__} & {*record.__struct_fields__}
