"""What becomes of a pilot, by its own container and by those beside it in its Pod."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_allocator.providers.pod_state import Pod, job_of


def pod(phase: str = "Running", init: dict[str, Any] | None = None, **containers: dict[str, Any]) -> Pod:
    status: dict[str, Any] = {"phase": phase, "containerStatuses": statuses(containers)}
    if init is not None:
        status["initContainerStatuses"] = statuses({"prepare": init})
    return {
        "metadata": {"namespace": "lab", "name": "pilot-1"},
        "spec": {"nodeName": "machine"},
        "status": status,
    }


def statuses(states: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"name": name, "state": state} for name, state in states.items()]


def back_off(message: str = "x") -> dict[str, Any]:
    return {"waiting": {"reason": "ImagePullBackOff", "message": message}}


RUNS: dict[str, Any] = {"running": {}}


@pytest.mark.parametrize(("code", "said"), [(0, "it has ended in good order"), (143, "exit code 143 (signal 15)")])
def test_a_pilot_has_ended_though_a_container_beside_it_runs_on(code: int, said: str) -> None:
    found = job_of(pod(beside=RUNS, pilot={"terminated": {"exitCode": code}}), 0.0)
    assert (found.state, found.reason) == ("ended", said)


def test_a_pilot_runs_though_a_container_beside_it_does_not() -> None:
    assert job_of(pod(phase="Pending", pilot=RUNS, beside=back_off()), 0.0).state == "running"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (pod(phase="Pending", pilot=back_off()), "its image cannot be pulled (ImagePullBackOff): x"),
        (
            pod(phase="Pending", pilot={"waiting": {"reason": "ContainerCreating"}}, beside=back_off()),
            "container beside: its image cannot be pulled (ImagePullBackOff): x",
        ),
        (
            pod(phase="Pending", init=back_off(), pilot={"waiting": {"reason": "PodInitializing"}}),
            "container prepare: its image cannot be pulled (ImagePullBackOff): x",
        ),
    ],
)
def test_a_pilot_is_stuck_whichever_container_keeps_it_from_starting(found: Pod, said: str) -> None:
    assert (job_of(found, 0.0).state, job_of(found, 0.0).reason) == ("stuck", said)


def test_a_pilot_that_was_told_to_go_has_not_ended_before_its_pod() -> None:
    leaving = dict(pod(beside=RUNS, pilot={"terminated": {"exitCode": 0}}))
    leaving["metadata"] = {**leaving["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert job_of(leaving, 0.0).state == "waiting"
