"""What a job is told that no present node holds, where allocations may bring pilots that do."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from gateway_cases import NOW_S, ended, joined, placed, spec, started, submitted

from penstock_gateway import acceptance, machine
from penstock_gateway.dry_run import dry_run
from penstock_gateway.endpoints import RequestRefused
from penstock_gateway.machine import GatewaySettings
from penstock_gateway.why import WaitExplainer
from penstock_log import (
    AllocationAdded,
    AllocationPaused,
    AllocationRemoved,
    AllocationResumed,
    AllocationSpec,
    NodeLeft,
    PilotEnded,
    PilotPlanned,
    PilotsPaused,
    PilotStarted,
    PilotSubmitted,
    PilotWaits,
    PilotWithdrawn,
)
from penstock_log.views import WhyView
from penstock_scheduler.pool.pool_settings import MatcherSettings
from penstock_testing import Scenario

Log = Scenario[machine.GatewayState]


@pytest.fixture
def log() -> Log:
    return Scenario(machine.decider(GatewaySettings())).at(NOW_S)


def added(name: str = "lab", **fields: Any) -> AllocationAdded:
    return AllocationAdded(
        name=name, spec=AllocationSpec(**{"provider": "slurm", "max_pilots": 4, **fields}), at_s=NOW_S
    )


def planned(number: int, at_s: float = NOW_S) -> PilotPlanned:
    return PilotPlanned(name="lab", pilot_id=f"lab-{number}", at_s=at_s)


def sent(number: int, at_s: float = NOW_S) -> PilotSubmitted:
    return PilotSubmitted(name="lab", pilot_id=f"lab-{number}", provider_id=str(number), at_s=at_s)


def refused(number: int) -> tuple[PilotPlanned, PilotEnded]:
    said = "sbatch: Invalid account"
    return planned(number), PilotEnded(
        name="lab", pilot_id=f"lab-{number}", state="refused", reason=said, at_s=NOW_S + 1
    )


def shown(log: Log, *, gone: bool = True, **kinds: int) -> None:
    """Let a pilot of `lab` show what it has, and end."""
    node = joined("lab-1", **kinds)
    labels = {"allocation": "lab", "pilot": "lab-1"}
    log.given(planned(1), sent(1), PilotStarted(name="lab", pilot_id="lab-1", at_s=NOW_S))
    log.given(msgspec.structs.replace(node, labels=labels))
    if gone:
        log.given(NodeLeft(node_id="lab-1", at_s=NOW_S))
        log.given(PilotEnded(name="lab", pilot_id="lab-1", state="finished", at_s=NOW_S))


def why(log: Log, job_id: str = "j1") -> WhyView:
    explainer = WaitExplainer(log.state, log.now_s)
    view = explainer.explain(log.state.jobs[job_id])
    assert explainer.cause(log.state.jobs[job_id]) == view.cause
    return view


def warned(log: Log, *, strict: bool = False, **fields: Any) -> tuple[str, ...]:
    return acceptance.job(log.state, spec(id="new", **fields), strict=strict, now_s=log.now_s).warnings


def test_a_job_that_only_an_allocation_may_hold_is_accepted_and_told_which_one(log: Log) -> None:
    log.given(added(kinds=("a100",)))
    said = (
        "it waits for a pilot: no node has `a100` now; allocation lab (slurm) may bring it: it has 0 of at most "
        "4 pilots, and submits one where the job would start"
    )
    assert warned(log, strict=True, kinds=("a100",)) == (said,)


def test_without_an_allocation_it_is_told_what_it_was_before(log: Log) -> None:
    unknown, never = warned(log, kinds=("a100",))
    assert (unknown, never) == (
        "unknown device kind a100; known kinds: none",
        "it cannot start now: pool `default` has no node (start an executor in it, or choose another pool)",
    )


def test_a_waiting_job_is_told_how_far_the_pilots_are(log: Log) -> None:
    log.given(added(kinds=("a100",)), submitted(kinds=("a100",)), planned(1), planned(2), sent(1), sent(2))
    log.given(PilotWaits(name="lab", pilot_id="lab-1", reason="Resources", at_s=NOW_S + 5)).at(NOW_S + 180)
    view = why(log)
    assert (view.cause, view.remedy) == ("pilot", "")
    assert view.evidence == (
        "no node has `a100` now; allocation lab (slurm) has 2 pilots of 4 on their way, submitted 3 min 0 s ago, "
        "waiting in Slurm: Resources"
    )
    assert [(one.name, one.provider, one.state, one.pilots) for one in view.allocations] == [
        ("lab", "slurm", "coming", 2)
    ]


def test_a_pilot_that_has_started_is_on_its_way_until_its_node_joins(log: Log) -> None:
    log.given(added(), submitted(), planned(1), sent(1))
    log.given(PilotStarted(name="lab", pilot_id="lab-1", hosts=("gpu-3",), at_s=NOW_S + 60)).at(NOW_S + 63)
    assert "lab-1 started on gpu-3 3.0 s ago, and its node has not joined yet" in why(log).evidence


def test_a_withdrawn_pilot_is_not_on_its_way(log: Log) -> None:
    log.given(added(), submitted(), planned(1), sent(1))
    log.given(PilotWithdrawn(name="lab", pilot_id="lab-1", at_s=NOW_S + 1))
    assert [one.state for one in why(log).allocations] == ["able"]


def test_an_allocation_that_paused_itself_says_after_what_and_how_it_goes_on(log: Log) -> None:
    log.given(added(), submitted(), *refused(1), *refused(2), *refused(3))
    log.given(PilotsPaused(name="lab", failures=3, reason="3 pilots failed", at_s=NOW_S + 2))
    view = why(log)
    assert view.evidence == (
        "pool `default` has no node now; allocation lab (slurm) is paused after 3 refused submissions: sbatch: Invalid "
        "account; resume with `penstock alloc resume lab`"
    )
    assert (view.cause, view.remedy) == ("pilot", "penstock alloc resume lab")
    log.given(AllocationResumed(name="lab", at_s=NOW_S + 3))
    assert (why(log).cause, why(log).remedy) == ("pilot", "")


def test_who_asks_for_strictness_is_refused_where_somebody_has_to_resume_the_allocation(log: Log) -> None:
    log.given(added(), AllocationPaused(name="lab", by="ada", reason="for the night", at_s=NOW_S))
    with pytest.raises(RequestRefused, match="is paused by ada: for the night; resume with"):
        warned(log, strict=True)
    assert warned(log)


def test_an_allocation_whose_last_pilot_failed_says_so(log: Log) -> None:
    log.given(added(), submitted(), *refused(1)).at(NOW_S + 5)
    said = "may bring it, and soon tries again; the last pilot failed 4.0 s ago: sbatch: Invalid account"
    assert why(log).evidence.endswith(said)


@pytest.mark.parametrize(
    ("fields", "asks", "obstacle"),
    [
        ({"kinds": ("v100",)}, {"kinds": ("a100",)}, "its pilots bring v100"),
        (
            {"kinds": ("a",), "gpus": 2, "max_pilots": 1},
            {"gpus": 3},
            "its pilots hold at most 2 devices that it accepts, and it needs 3",
        ),
        (
            {"options": ("--gres=gpu:1",), "backlog": 2},
            {"gpus": 3},
            "2 pilots, as many as come at once, hold at most 2 devices that it accepts, and it needs 3",
        ),
        (
            {"walltime_s": 20.0},
            {},
            "its walltime leaves too little: of 20.0 s, jobs have 10.0 s, and none is begun in the last 15.0 s",
        ),
    ],
)
def test_an_allocation_that_cannot_help_says_why(
    log: Log, fields: dict[str, Any], asks: dict[str, Any], obstacle: str
) -> None:
    log.given(added(**fields), submitted(**asks))
    settings = MatcherSettings(least_left_s=15.0)
    view = WaitExplainer(log.state, log.now_s, settings).explain(log.state.jobs["j1"])
    assert view.cause == "no_nodes"
    assert view.evidence == (f"pool `default` has no node; allocation lab (slurm) cannot help: {obstacle}")
    with pytest.raises(RequestRefused, match="cannot help"):
        acceptance.job(log.state, spec(id="new", **asks), strict=True, now_s=log.now_s, settings=settings)


def test_what_the_last_pilot_has_shown_counts_and_not_what_was_said_of_it(log: Log) -> None:
    log.given(added(kinds=("a100",), gpus=8), submitted("j1", kinds=("a100",)), submitted("j2", kinds=("fast",)))
    shown(log, fast=2)
    assert why(log, "j1").evidence.endswith("allocation lab (slurm) cannot help: its pilots bring fast")
    assert why(log, "j2").cause == "pilot"


def test_memory_that_no_device_of_a_pilot_has_is_named(log: Log) -> None:
    log.given(added(), submitted(memory_bytes=1 << 45))
    shown(log, fast=2)
    assert "cannot help: a device of its pilots has " in why(log).evidence


def test_a_gang_may_wait_for_a_pilot_beside_the_nodes_that_there_are(log: Log) -> None:
    log.given(added(), joined("own", fast=1), submitted(gpus=3))
    shown(log, fast=2)
    assert why(log).cause == "pilot"


def test_a_user_whom_the_pilots_refuse_is_told_why_until_the_allocation_is_resumed(log: Log) -> None:
    log.given(added(), submitted(user="ann"))
    shown(log, gone=False, fast=1)
    log.given(placed("j1", 0, node="lab-1"))
    said = "the executor runs jobs of its own user alone"
    end = msgspec.structs.replace(ended("j1", "preempted", reason=said), node_id="lab-1", refuses_user=True)
    log.given(end, NodeLeft(node_id="lab-1", at_s=NOW_S + 9))
    log.given(PilotEnded(name="lab", pilot_id="lab-1", state="finished", at_s=NOW_S + 9)).at(NOW_S + 10)
    assert f"cannot help: user ann is refused there because {said}" in why(log).evidence
    log.given(submitted("own", user="bob"))
    assert why(log, "own").cause == "pilot"
    log.given(AllocationResumed(name="lab", at_s=NOW_S + 11))
    assert why(log).cause == "pilot"


def test_allocations_that_could_bring_the_same_job_are_all_named_those_on_their_way_first(log: Log) -> None:
    log.given(*(added(name) for name in ("a", "b", "c", "d")), added("lab"), submitted(), planned(1))
    found = why(log)
    assert [one.name for one in found.allocations] == ["lab", "a", "b", "c", "d"]
    assert found.evidence.endswith("and 2 more allocations")


def test_an_allocation_of_another_pool_and_one_that_is_being_removed_are_no_help(log: Log) -> None:
    log.given(added("other", pool="elsewhere"), added(), planned(1), sent(1), submitted())
    log.given(AllocationRemoved(name="lab", at_s=NOW_S + 1))
    view = why(log)
    assert (view.cause, [one.name for one in view.allocations]) == ("no_nodes", ["lab"])
    assert view.evidence.endswith("allocation lab (slurm) cannot help: it is being removed")


def test_an_allocation_of_a_pool_that_does_not_exist_yet_takes_jobs_for_it(log: Log) -> None:
    log.given(joined("own", fast=1), added(pool="new"), submitted(pool="new"))
    assert why(log).cause == "pilot"
    assert why(log).evidence.startswith("pool `new` has no node now; allocation lab (slurm) may bring it")


def test_a_dry_run_says_the_same(log: Log) -> None:
    log.given(added(kinds=("a100",)))
    view = dry_run(log.state, spec(kinds=("a100",)), log.now_s)
    assert (view.starts, view.cause, view.warnings) == (False, "pilot", ())
    assert view.evidence.startswith("no node has `a100` now; allocation lab (slurm) may bring it")
    log.given(AllocationPaused(name="lab", by="ada", at_s=NOW_S + 1))
    assert dry_run(log.state, spec(kinds=("a100",)), log.now_s).remedy == "penstock alloc resume lab"


def test_a_job_that_waits_for_a_taken_device_is_told_of_pilots_too(log: Log) -> None:
    log.given(joined("own", fast=1), added(), submitted("first"), placed("first", 0, node="own"))
    log.given(started("first", node="own"), submitted("j1"))
    view = dry_run(log.state, spec(), log.now_s)
    assert (view.cause, [one.state for one in view.allocations]) == ("capacity", ["able"])


def test_an_odd_reason_of_the_provider_is_told_as_it_is(log: Log) -> None:
    log.given(added(), submitted(), planned(1), sent(1))
    log.given(PilotWaits(name="lab", pilot_id="lab-1", reason="<script>\nReqNodeNotAvail", at_s=NOW_S))
    assert why(log).evidence.endswith("waiting in Slurm: <script>\nReqNodeNotAvail")
