"""The chart's rights and networks for pilots in Pods, as it is rendered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_chart import (
    CASES,
    CHART,
    NAMESPACE,
    RELEASE,
    ROOT,
    Object,
    named,
    needs_helm,
    objects_of,
    of_kind,
    pods,
    rendered,
    tried,
    values_of,
)
from test_chart_policies import allows, env_of, labels_of, policies_for

from penstock_allocator.machine import AllocatorSettings
from penstock_allocator.pilot_script import PilotFolder
from penstock_allocator.providers.pod_manifest import labels_of as labels_of_pilot

pytestmark = needs_helm
APART = "gpu-pods"
PILOT = labels_of_pilot("penstock-5e6cb0f8-k8s-1", PilotFolder(Path("k8s-1"), Path("checkpoints")))
PLACES = (NAMESPACE, APART)
"""The namespace of the release, and another one."""


def with_pilots(namespace: str) -> list[Object]:
    if namespace == APART:
        return objects_of("pilots")
    return rendered("--values", str(values_of("pilots")), f"--set=pilots.namespace={namespace}")


@pytest.fixture(scope="module", params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def objects(place: str) -> list[Object]:
    return with_pilots(place)


def role_of_the_docs() -> list[dict[str, Any]]:
    blocks = (ROOT / "docs" / "kubernetes.md").read_text().split("```yaml\n")[1:]
    [role] = [found for block in blocks if (found := yaml.safe_load(block.partition("```")[0])).get("kind") == "Role"]
    return list(role["rules"])


def test_the_allocator_has_the_role_of_the_docs_and_its_owner_by_name(objects: list[Object], place: str) -> None:
    role = named(objects, "Role", "demo-penstock-pilots")
    assert role["metadata"]["namespace"] == place
    *rules, of_owner = role_of_the_docs()
    if place == NAMESPACE:
        assert role["rules"] == [*rules, {**of_owner, "resourceNames": ["demo-penstock-allocator"]}]
    else:
        of_map = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}
        assert role["rules"] == [*rules, {**of_map, "resourceNames": ["demo-penstock-pilots"]}]
    assert not of_kind(objects, "ClusterRole", "ClusterRoleBinding")


def test_the_role_is_bound_to_the_allocators_account_which_nothing_else_has(objects: list[Object], place: str) -> None:
    binding = named(objects, "RoleBinding", "demo-penstock-pilots")
    assert binding["metadata"]["namespace"] == place
    assert binding["roleRef"]["name"] == "demo-penstock-pilots"
    account = "demo-penstock-allocator"
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}]
    assert named(objects, "ServiceAccount", account)["automountServiceAccountToken"] is False
    found = {name for name, pod in pods(objects).items() if pod["spec"]["serviceAccountName"] == account}
    assert found == {"demo-penstock-allocator"}


def test_the_allocator_and_the_job_of_the_keys_alone_have_tokens(objects: list[Object]) -> None:
    with_token = {name for name, pod in pods(objects).items() if pod["spec"]["automountServiceAccountToken"]}
    (job,) = of_kind(objects, "Job")
    assert with_token == {"demo-penstock-allocator", job["metadata"]["name"]}


@pytest.mark.parametrize("case", [case for case in CASES if case != "pilots"])
def test_without_pilots_the_allocator_has_no_token_no_rights_and_no_way_to_the_api_server(case: str) -> None:
    objects = objects_of(case)
    pod = pods(objects)["demo-penstock-allocator"]["spec"]
    assert (pod["automountServiceAccountToken"], pod["serviceAccountName"]) == (False, "demo-penstock")
    assert not [one for one in objects if one["metadata"]["name"].endswith("-pilots")]
    assert "penstock.dev/allocation" not in str(of_kind(objects, "NetworkPolicy"))


def test_pods_belong_to_what_is_there_in_their_own_namespace(objects: list[Object], place: str) -> None:
    (container,) = pods(objects)["demo-penstock-allocator"]["spec"]["containers"]
    said = env_of(container)
    names = {f"PENSTOCK_ALLOCATOR_{field}".upper() for field in AllocatorSettings.__struct_fields__}
    assert {name for name in said if name.startswith("PENSTOCK_ALLOCATOR_")} <= names
    assert said["PENSTOCK_ALLOCATOR_KUBERNETES_NAMESPACE"] == place
    kind, _, name = str(said["PENSTOCK_ALLOCATOR_KUBERNETES_OWNER"]).partition("/")
    assert named(objects, kind, name)["metadata"].get("namespace", NAMESPACE) == place
    rule = named(objects, "Role", "demo-penstock-pilots")["rules"][-1]
    assert (rule["resources"], rule["resourceNames"]) == ([f"{kind.lower()}s"], [name])


def test_pods_of_pilots_reach_the_server_and_other_nodes_alone(objects: list[Object], place: str) -> None:
    for component, labels in labels_of(objects).items():
        for port in (4222, 6222, 8484, 31_000):
            there = allows(objects, PILOT, labels, port, source_in=place)
            assert there is (component == "executor" or (component, port) == ("nats", 4222)), (component, port)
            assert allows(objects, labels, PILOT, port, target_in=place) is (component == "executor"), component
    assert allows(objects, PILOT, PILOT, 31_000, source_in=place, target_in=place)
    assert policies_for(objects, PILOT, "Ingress", place)


def test_other_pods_of_their_namespace_and_their_like_elsewhere_reach_nothing(
    objects: list[Object], place: str
) -> None:
    stranger = {name: value for name, value in PILOT.items() if name != "penstock.dev/allocation"}
    for labels in labels_of(objects).values():
        for port in (4222, 31_000):
            assert not allows(objects, stranger, labels, port, source_in=place)
            assert not allows(objects, PILOT, labels, port, source_in="elsewhere")


def test_pods_of_pilots_have_names_and_the_internet_as_executors_have(objects: list[Object], place: str) -> None:
    executor = labels_of(objects)["executor"]
    rules = [
        [rule for spec in policies_for(objects, one, "Egress", where) for rule in spec.get("egress", ())]
        for one, where in ((executor, NAMESPACE), (PILOT, place))
    ]
    outside = [[rule for rule in some if "ipBlock" in str(rule) or "kube-dns" in str(rule)] for some in rules]
    assert sorted(map(str, outside[0])) == sorted(map(str, outside[1]))
    assert len(outside[0]) == 2


def test_without_network_policies_there_are_none_for_pilots() -> None:
    found = rendered("--values", str(values_of("pilots")), "--set=networkPolicy.enabled=false")
    assert not of_kind(found, "NetworkPolicy")


@pytest.mark.parametrize("place", PLACES)
def test_notes_say_how_jobs_get_pods_and_what_is_unsafe(place: str) -> None:
    words = ("install", RELEASE, str(CHART), "--namespace", NAMESPACE, "--dry-run=client")
    done = tried(*words, "--set=pilots.enabled=true", f"--set=pilots.namespace={place}")
    assert done.returncode == 0, done.stderr
    assert "penstock alloc add kubernetes" in done.stdout
    assert "no job will run" not in done.stdout
    assert ("can read its keys" in done.stdout) is (place == NAMESPACE)


def test_the_address_that_tokens_name_is_the_servers_in_its_namespace() -> None:
    (server,) = pods(objects_of("pilots"))["demo-penstock-nats"]["spec"]["containers"]
    assert f"--url=tls://demo-penstock-nats.{NAMESPACE}.svc:4222" in server["args"]
    (names,) = [word for word in server["args"] if word.startswith("--names=")]
    assert f"demo-penstock-nats.{NAMESPACE}.svc" in names.removeprefix("--names=").split(",")
