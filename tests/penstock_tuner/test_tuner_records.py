"""Facts and records of the tuner that take over the fields of others by their names."""

from __future__ import annotations

import msgspec
import pytest

from penstock_log import SweepSpec, Trial, TrialFinished, TrialRetried
from penstock_policies.search.runs import WantedRun
from penstock_policies.waterfill import Mechanisms
from penstock_tuner.sweep_state import EndedTrial


@pytest.mark.parametrize(
    ("kind", "source", "own"),
    [
        (Trial, WantedRun, "job_id number gpus packed"),
        (WantedRun, Trial, "trial"),
        (TrialFinished, EndedTrial, "at_s sweep_id job_id"),
        (TrialFinished, TrialRetried, "state problem value"),
        (Mechanisms, SweepSpec, ""),
    ],
)
def test_no_field_keeps_its_default_because_its_source_has_another_name(
    kind: type[msgspec.Struct], source: type[msgspec.Struct], own: str
) -> None:
    assert set(kind.__struct_fields__) - set(source.__struct_fields__) == set(own.split())
