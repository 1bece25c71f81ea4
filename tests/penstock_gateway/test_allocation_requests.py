"""Commands about allocations: what is accepted, what is refused, and what is answered."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock_gateway import allocation_requests
from penstock_gateway.answers import ReadModel
from penstock_gateway.authority import SERVICE, Caller
from penstock_gateway.endpoints import RequestRefused
from penstock_gateway.machine import GatewayState
from penstock_log import AllocationSpec, PilotPlanned
from penstock_log.allocation_spec import PodOptions
from penstock_log.request_bodies import ActRequest, AllocationRequest


def asked(name: str = "lab", **fields: Any) -> AllocationRequest:
    return AllocationRequest(name=name, spec=AllocationSpec(**{"provider": "slurm", **fields}), by="ada")


def pods(template: dict[str, Any]) -> dict[str, Any]:
    return {"provider": "kubernetes", "pod": PodOptions(image="x", template=template)}


def with_one() -> GatewayState:
    state = GatewayState()
    fact = allocation_requests.add(state, asked(), 1.0).fact
    assert fact is not None
    state.allocations.apply(fact)
    return state


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"provider": "ssh"}, "expected at least one"),
        ({"hosts": ("a",)}, "have no hosts"),
        ({"provider": "local", "options": ("--x",)}, "takes no arguments"),
        ({"provider": "local", "nodes": 2}, "has one node"),
        ({"min_pilots": 2}, "more than max_pilots"),
        ({"environment": {"A B": "c"}}, "names no variable"),
        ({"options": ("--time=5",)}, "allocator's to set"),
        ({"options": ("-t5",)}, "allocator's to set"),
        ({"options": ("--array=0-9",)}, "allocator's to set"),
        ({"options": ("--job-na=x",)}, "--job-na is the allocator's to set"),
        ({"options": ("-M", "other")}, "-M is the allocator's to set"),
        ({"options": ("--clusters=all",)}, "allocator's to set"),
        ({"options": ("-HJname",)}, "-J is the allocator's to set"),
        ({"options": ("job.sh",)}, "'job.sh' is no argument, and sbatch would take it for its script"),
        ({"options": ("--exclusive", "job.sh")}, "'job.sh' is no argument"),
        ({"options": ("--partition=gpu", "job.sh")}, "'job.sh' is no argument"),
        ({"options": ("-pgpu", "-")}, "'-' is no argument"),
        ({"provider": "kubernetes"}, "expected what Pods are like"),
        ({"pod": PodOptions(image="x")}, "it is for pilots of kubernetes; leave it out"),
        (pods({"spec": {"hostNetwork": True}}), "template.spec.hostNetwork: it is the allocator's to set"),
        (pods({"spec": {"restartPolicy": "Always"}}), "template.spec.restartPolicy: it is the allocator's to set"),
        (pods({"metadata": {"name": "x"}}), "template.metadata.name: it is the allocator's to set"),
        (pods({"metadata": {"labels": None}}), "template.metadata.labels: expected a mapping"),
        (pods({"metadata": {"labels": {"team": None}}}), "'team' cannot be set to None; expected text"),
        (pods({"metadata": {"labels": {"penstock.dev/pilot": "x"}}}), "which are the allocator's"),
        (pods({"metadata": {"annotations": {"a": 1}}}), "'a' cannot be set to 1"),
        (pods({"spec": {"containers": None}}), "template.spec.containers: expected a list of mappings"),
        (pods({"spec": {"containers": ["pilot"]}}), "template.spec.containers: expected a list of mappings"),
        (pods({"spec": {"volumes": {}}}), "template.spec.volumes: expected a list of mappings"),
        (pods({"spec": {"schedulerName": 5}}), "template.spec.schedulerName: expected a word"),
        (pods({"spec": {"shareProcessNamespace": "yes"}}), "shareProcessNamespace: expected true or false"),
        (pods({"spec": {"terminationGracePeriodSeconds": "60"}}), "Seconds: expected a whole number"),
        (pods({"status": {}}), "template.status: expected metadata or spec"),
        (pods({"spec": ["x"]}), "template.spec: expected metadata or spec, and a mapping"),
        (pods({"spec": {"nodeSelector": {"a": "b" * 100_000}}}), "expected 100000 bytes at most"),
        ({"provider": "ssh", "hosts": ("a", "b"), "max_pilots": 3}, "one pilot at a time; expected 2 or fewer"),
    ],
)
def test_an_allocation_that_could_not_work_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestRefused, match=said):
        allocation_requests.add(GatewayState(), asked(**fields), 1.0)


@pytest.mark.parametrize(
    "options",
    [
        ("-p", "gpu", "--gres", "gpu:1", "-A", "-odd"),
        ("--nodelist=n1", "--no-requeue", "--time-min=1", "-pgpu", "--exclusive"),
        ("-Hp", "gpu", "--exclusive=user", "--cluster-constraint=a"),
    ],
)
def test_other_arguments_of_sbatch_are_taken_as_they_are(options: tuple[str, ...]) -> None:
    assert allocation_requests.add(GatewayState(), asked(options=options), 1.0).fact is not None


def test_a_name_is_taken_until_the_last_pilot_of_it_has_ended() -> None:
    state = with_one()
    with pytest.raises(RequestRefused, match="there already"):
        allocation_requests.add(state, asked(), 2.0)
    state.allocations.apply(PilotPlanned(name="lab", pilot_id="lab-1", at_s=2.0))
    removed = allocation_requests.remove(state, ActRequest(id="lab"), 3.0)
    assert removed.fact is not None
    state.allocations.apply(removed.fact)
    with pytest.raises(RequestRefused, match="being removed"):
        allocation_requests.add(state, asked(), 4.0)
    assert allocation_requests.remove(state, ActRequest(id="lab"), 5.0).fact is None


def test_pausing_twice_changes_nothing_and_resuming_goes_on() -> None:
    state = with_one()
    for act, state_then in ((allocation_requests.pause, "paused"), (allocation_requests.resume, "active")):
        first = act(state, ActRequest(id="lab"), 2.0)
        assert first.fact is not None
        state.allocations.apply(first.fact)
        assert state.allocations.by_name["lab"].state == state_then
        assert act(state, ActRequest(id="lab"), 3.0).fact is None


def test_an_allocation_that_refuses_a_user_is_resumed_for_that_user() -> None:
    state = with_one()
    state.allocations.by_name["lab"].refused["ann"] = "no account"
    again = allocation_requests.resume(state, ActRequest(id="lab"), 2.0)
    assert again.fact is not None
    state.allocations.apply(again.fact)
    assert state.allocations.by_name["lab"].refused == {}


@pytest.mark.parametrize(
    ("caller", "seen"),
    [
        (Caller(name="bob", role="user"), {"bob": "no account"}),
        (Caller(name="cy", role="viewer"), {}),
        (Caller(name="oskar", role="operator"), {"ann": "wrong key", "bob": "no account"}),
        (SERVICE, {"ann": "wrong key", "bob": "no account"}),
    ],
)
def test_people_are_told_whom_an_allocation_refuses_only_of_themselves(caller: Caller, seen: dict[str, str]) -> None:
    state = with_one()
    state.allocations.by_name["lab"].refused |= {"ann": "wrong key", "bob": "no account"}
    (view,) = allocation_requests.answer(ReadModel(state=state, now_s=2.0, seq=1), caller).allocations
    assert view.refused == seen


def test_an_allocation_that_nobody_knows_is_not_found() -> None:
    with pytest.raises(RequestRefused, match="no allocation is called 'x'; known: lab"):
        allocation_requests.pause(with_one(), ActRequest(id="x"), 2.0)


@pytest.mark.parametrize("field", ["image", "namespace", "gpu_resource", "claim"])
def test_a_name_of_kubernetes_that_ends_with_a_line_is_refused(field: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=f"pod.{field}"):
        msgspec.convert({"provider": "kubernetes", "pod": {"image": "x", field: "lab\n"}}, AllocationSpec)


def test_an_argument_that_ends_with_a_line_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="options"):
        msgspec.convert({"provider": "slurm", "options": ["--partition=gpu\n"]}, AllocationSpec)


def test_who_does_not_see_all_sees_no_template_of_pods() -> None:
    state = GatewayState()
    template = {"spec": {"containers": [{"env": [{"name": "KEY", "value": "secret"}]}]}}
    fact = allocation_requests.add(state, asked(**pods(template)), 1.0).fact
    assert fact is not None
    state.allocations.apply(fact)
    model = ReadModel(state=state, now_s=2.0, seq=1)
    [seen] = allocation_requests.answer(model, Caller(name="bob", role="user")).allocations
    assert (seen.spec.pod or PodOptions(image="")).template == {}
    assert (seen.spec.pod or PodOptions(image="")).image == "x"
    [seen] = allocation_requests.answer(model, SERVICE).allocations
    assert seen.spec.pod == PodOptions(image="x", template=template)
