"""What the Helm chart is rendered to, without a cluster: schemas, security, network, secrets, names, and its list."""

from __future__ import annotations

import base64
import copy
import json
import re
from collections.abc import Iterator, Mapping
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
    WORKLOADS,
    Object,
    named,
    needs_helm,
    objects_of,
    of_kind,
    pods,
    rendered,
    template,
    tried,
    values_of,
)

from penstock_bus.identity import access
from penstock_bus.identity.logins import NODE_ROLES
from penstock_log.services import CORE, LOGINS

pytestmark = needs_helm
VERSIONS = [f"1.{minor}" for minor in range(30, 38)]
LONGEST = "r" + "x" * 51 + "z"
"""A release name of the most characters that helm takes."""
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())


# --- helm and the schemas of Kubernetes
@pytest.mark.parametrize("case", CASES)
def test_helm_finds_nothing_to_complain_of(case: str) -> None:
    done = tried("lint", "--strict", str(CHART), "--values", str(values_of(case)))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "version", [*(pytest.param(one, marks=pytest.mark.helm) for one in VERSIONS[:-1]), VERSIONS[-1]]
)
def test_every_object_is_what_kubernetes_takes(version: str, case: str) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="THE CHART WAS NOT VALIDATED: no kubernetes-validate")
    for one in objects_of(case):
        if one["kind"] != "ServiceMonitor":  # of the Prometheus operator
            validator.validate(one, version, strict=True)


def test_an_object_with_an_unknown_field_would_be_found() -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="THE CHART WAS NOT VALIDATED: no kubernetes-validate")
    spoilt = named(objects_of("minimal"), "Deployment", "demo-penstock-gateway")
    spoilt["spec"]["template"]["spec"]["enableServiceLink"] = False
    with pytest.raises(validator.ValidationError):
        validator.validate(spoilt, VERSIONS[-1], strict=True)


# --- the list of services
def test_the_chart_has_the_services_of_the_list_and_of_compose() -> None:
    services = set(CORE) - set(NODE_ROLES)
    assert set(VALUES["services"]) == services
    assert services == {name for name, one in COMPOSE["services"].items() if one["entrypoint"][1:2] == ["service"]}
    objects = objects_of("minimal")
    for name in services:
        pod = pods(objects)[f"demo-penstock-{name}"]["spec"]
        (container,) = pod["containers"]
        assert container["command"] == COMPOSE["services"][name]["entrypoint"]
        assert env_of(container)["PENSTOCK_CREDENTIALS"] == f"/auth/{name}/{name}.json"
    (executor,) = pods(objects)["demo-penstock-executor-emulated"]["spec"]["containers"]
    assert [*executor["command"], *executor["args"]] == COMPOSE["services"]["executor"]["entrypoint"]


def test_what_compose_sets_for_a_service_is_set_here_too() -> None:
    by_other_means = {
        *("PENSTOCK_MATCHER_FORGET_NODE_S", "PENSTOCK_DASHBOARD_METRICS"),  # nodes have the names of the cluster's
    }
    objects = objects_of("minimal")
    for name in [*VALUES["services"], "executor"]:
        (found,) = [one for of, one in pods(objects).items() if of.startswith(f"demo-penstock-{name}")]
        missing = set(COMPOSE["services"][name]["environment"]) - set(env_of(found["spec"]["containers"][0]))
        assert missing <= by_other_means, name


def test_each_role_has_a_secret_that_the_job_fills_and_it_has_rights_to_these_alone() -> None:
    objects = objects_of("production")
    roles = {access.ADMIN, *LOGINS, *access.users_of_roles(["billing"])}
    wanted = {"demo-penstock-keys", *(f"demo-penstock-login-{role}" for role in roles)}
    assert {one["metadata"]["name"] for one in of_kind(objects, "Secret")} == wanted
    (role,) = of_kind(objects, "Role")
    (rule,) = role["rules"]
    assert set(rule.pop("resourceNames")) == wanted
    assert rule == {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "patch"]}
    assert not of_kind(objects, "ClusterRole", "ClusterRoleBinding")
    (binding,) = of_kind(objects, "RoleBinding")
    with_token = {name for name, pod in pods(objects).items() if pod["spec"]["automountServiceAccountToken"]}
    (job,) = of_kind(objects, "Job")
    assert with_token == {job["metadata"]["name"]}
    account = job["spec"]["template"]["spec"]["serviceAccountName"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}]
    assert {pod["spec"]["serviceAccountName"] for pod in pods(objects).values()} == {account, "demo-penstock"}


def test_each_pod_mounts_its_own_login_and_nobody_elses() -> None:
    own = {"nats": set(), "keys": set(), "executor": set(NODE_ROLES), "test": {"client"}}
    for case in CASES:
        for pod in pods(objects_of(case)).values():
            component = pod["metadata"]["labels"]["app.kubernetes.io/component"]
            mounted = {
                item["path"].removesuffix(".json")
                for volume in pod["spec"]["volumes"]
                if volume["name"].startswith("login-")
                for item in volume["secret"]["items"]
            }
            assert mounted == own.get(component, {component}), component


# --- Pod Security Standards, "restricted"
RESTRICTED_VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"),
}


def breaches(pod: Mapping[str, Any]) -> Iterator[str]:
    """
    Yield what in a pod's spec is not as the level "restricted" wants it.

    References
    ----------
    https://kubernetes.io/docs/concepts/security/pod-security-standards/
    """
    yield from (f"{name} is set" for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name))
    for volume in pod.get("volumes", ()):
        (kind,) = set(volume) - {"name"}
        if kind not in RESTRICTED_VOLUMES:
            yield f"volume {volume['name']} is a {kind}"
    own = pod.get("securityContext", {})
    if own.get("sysctls"):
        yield "sysctls are set"
    for container in (*pod.get("initContainers", ()), *pod["containers"], *pod.get("ephemeralContainers", ())):
        for wrong, breach in _of_container(own, container):
            if wrong:
                yield f"{container['name']} {breach}"


def _of_container(pod: Mapping[str, Any], container: Object) -> Iterator[tuple[bool, str]]:
    said = container.get("securityContext", {})
    both = {**pod, **said}
    capabilities = said.get("capabilities", {})
    yield both.get("runAsNonRoot") is not True or both.get("runAsUser") == 0, "may be root"
    seccomp = both.get("seccompProfile", {}).get("type")
    yield seccomp not in {"RuntimeDefault", "Localhost"}, "has no seccomp profile"
    yield said.get("allowPrivilegeEscalation") is not False, "may gain privileges"
    yield bool(said.get("privileged")), "is privileged"
    yield "ALL" not in capabilities.get("drop", ()), "keeps capabilities"
    yield bool(set(capabilities.get("add", ())) - {"NET_BIND_SERVICE"}), "has more capabilities"
    yield said.get("procMount", "Default") != "Default", "sees more of /proc"
    yield any(port.get("hostPort") for port in container.get("ports", ())), "has a port of the host"


@pytest.mark.parametrize("case", CASES)
def test_every_pod_is_restricted_and_writes_to_volumes_alone(case: str) -> None:
    for name, pod in pods(objects_of(case)).items():
        assert list(breaches(pod["spec"])) == [], name
        for container in pod["spec"]["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True, name
        assert pod["spec"]["enableServiceLinks"] is False, f"{name} would find PENSTOCK_NATS_PORT, which is no setting"


@pytest.mark.parametrize(
    ("path", "value", "breach"),
    [
        (("hostNetwork",), True, "hostNetwork is set"),
        (("securityContext", "runAsNonRoot"), False, "gateway may be root"),
        (("securityContext", "seccompProfile"), {}, "gateway has no seccomp profile"),
        (("containers", 0, "securityContext", "capabilities"), {"drop": []}, "gateway keeps capabilities"),
        (("containers", 0, "securityContext", "allowPrivilegeEscalation"), True, "gateway may gain privileges"),
        (("volumes",), [{"name": "x", "hostPath": {"path": "/"}}], "volume x is a hostPath"),
    ],
)
def test_a_pod_that_is_not_restricted_would_be_found(path: tuple[Any, ...], value: object, breach: str) -> None:
    pod = copy.deepcopy(pods(objects_of("minimal"))["demo-penstock-gateway"]["spec"])
    *way, last = path
    place = pod
    for step in way:
        place = place[step]
    place[last] = value
    assert breach in list(breaches(pod))


# --- network policies
def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Say whether a selector chooses something with these labels."""
    expressions = selector.get("matchExpressions", ())
    assert {one["operator"] for one in expressions} <= {"Exists"}
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        one["key"] in labels for one in expressions
    )


def policies_for(
    objects: list[Object], labels: Mapping[str, str], direction: str, namespace: str = NAMESPACE
) -> list[Object]:
    """Return the specs of the policies that hold for a pod in a direction."""
    return [
        one["spec"]
        for one in of_kind(objects, "NetworkPolicy")
        if one["metadata"].get("namespace", NAMESPACE) == namespace
        and selects(one["spec"]["podSelector"], labels)
        and direction in one["spec"]["policyTypes"]
    ]


def allows(
    objects: list[Object],
    source: Mapping[str, str],
    target: Mapping[str, str],
    port: int,
    *,
    source_in: str = NAMESPACE,
    target_in: str = NAMESPACE,
) -> bool:
    """Say whether policies let a pod talk to another one by TCP, as Kubernetes would judge."""

    def is_peer(one: Object, here: str, other: Mapping[str, str], other_in: str) -> bool:
        if "ipBlock" in one:
            return False
        by_name = {"kubernetes.io/metadata.name": other_in}
        there = selects(one["namespaceSelector"], by_name) if "namespaceSelector" in one else here == other_in
        return there and selects(one.get("podSelector", {}), other)

    def passes(direction: str, here: tuple[Mapping[str, str], str], other: tuple[Mapping[str, str], str]) -> bool:
        (labels, place), key = here, direction.lower()
        for rule in (rule for spec in policies_for(objects, labels, direction, place) for rule in spec.get(key, ())):
            ports, peers = rule.get("ports"), rule.get("to" if key == "egress" else "from")
            by_port = not ports or any(one["port"] == port and one["protocol"] == "TCP" for one in ports)
            if by_port and (not peers or any(is_peer(one, place, *other) for one in peers)):
                return True
        return False

    here, there = (source, source_in), (target, target_in)
    return passes("Egress", here, there) and passes("Ingress", there, here)


def labels_of(objects: list[Object]) -> dict[str, dict[str, str]]:
    """Return the labels of a pod of each component."""
    return {
        pod["metadata"]["labels"]["app.kubernetes.io/component"]: pod["metadata"]["labels"]
        for pod in pods(objects).values()
    }


@pytest.mark.parametrize("case", ["minimal", "production", "pilots"])
def test_all_reach_the_server_servers_and_executors_their_like_and_nobody_anything_else(case: str) -> None:
    objects = objects_of(case)
    labels = labels_of(objects)
    for source, by in labels.items():
        for target, to in labels.items():
            assert allows(objects, by, to, 4222) is (target == "nats" or source == target == "executor"), source
            assert allows(objects, by, to, 6222) is (source == target == "nats" or source == target == "executor")
            assert allows(objects, by, to, 8484) is (source == target == "executor")
            assert allows(objects, by, to, 31_000) is (source == target == "executor")


@pytest.mark.parametrize("case", CASES)
def test_a_pod_of_another_release_reaches_nothing_and_every_pod_of_this_one_is_under_policies(case: str) -> None:
    objects = objects_of(case)
    stranger = {"app.kubernetes.io/name": "penstock", "app.kubernetes.io/instance": "other"}
    for labels in labels_of(objects).values():
        assert policies_for(objects, labels, "Egress")
        assert policies_for(objects, labels, "Ingress")
        for port in (4222, 6222, 8484, 31_000):
            assert not allows(objects, {**stranger, "app.kubernetes.io/component": "executor"}, labels, port)


@pytest.mark.parametrize("case", CASES)
def test_every_pod_resolves_names_and_who_has_a_token_reaches_the_api_server(case: str) -> None:
    objects = objects_of(case)
    for component, labels in labels_of(objects).items():
        rules = [rule for spec in policies_for(objects, labels, "Egress") for rule in spec.get("egress", ())]
        open_ports = {(one["protocol"], one["port"]) for rule in rules for one in rule.get("ports", ())}
        assert {("UDP", 53), ("TCP", 53)} <= open_ports
        talk_to_it = {"keys", "allocator"} if case == "pilots" else {"keys"}
        assert (("TCP", 6443) in open_ports) is (component in talk_to_it)


def test_a_server_elsewhere_is_reached_at_its_port_and_where_the_values_say() -> None:
    objects = objects_of("external-nats")
    rules = [
        rule
        for spec in policies_for(objects, labels_of(objects)["gateway"], "Egress")
        for rule in spec.get("egress", ())
        if rule.get("ports") == [{"protocol": "TCP", "port": 4222}]
    ]
    (peers,) = [rule["to"] for rule in rules]
    assert peers == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "messaging"}}}]
    assert not of_kind(objects, "StatefulSet", "Job", "Secret", "Role")


# --- secrets
@pytest.mark.parametrize("case", CASES)
def test_no_object_has_a_secret_in_it(case: str) -> None:
    objects = objects_of(case)
    for one in of_kind(objects, "Secret"):
        assert not {"data", "stringData"} & set(one), one["metadata"]["name"]
        assert one["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    for name, pod in pods(objects).items():
        for container in pod["spec"]["containers"]:
            for variable, value in env_of(container).items():
                secret = any(word in variable for word in ("PASSWORD", "TOKEN", "SECRET", "SEED", "API_KEY"))
                assert not secret or value is None or value.startswith("/"), f"{name}: {variable}"
    text = json.dumps(objects)
    assert "user_seed" not in text
    assert base64.b64encode(b"user_seed").decode() not in text


def env_of(container: Object) -> dict[str, str | None]:
    """Return the variables of a container; None for one that comes from elsewhere."""
    return {one["name"]: one.get("value") for one in container.get("env", ())}


# --- what goes together
@pytest.mark.parametrize("case", CASES)
def test_selectors_match_one_workload_and_ports_and_mounts_are_there(case: str) -> None:
    objects = objects_of(case)
    labels = {name: pod["metadata"]["labels"] for name, pod in pods(objects).items()}
    for one in of_kind(objects, "Deployment", "StatefulSet", "DaemonSet"):
        selector = one["spec"]["selector"]["matchLabels"].items()
        assert [name for name, own in labels.items() if selector <= own.items()] == [one["metadata"]["name"]]
    for one in of_kind(objects, "PodDisruptionBudget"):
        selector = one["spec"]["selector"]["matchLabels"].items()
        (name,) = [name for name, own in labels.items() if selector <= own.items()]
        (owner,) = [two for two in of_kind(objects, *WORKLOADS) if two["metadata"]["name"] == name]
        assert owner["spec"]["replicas"] > 1
    services = of_kind(objects, "Service")
    for one in services:
        selector = one["spec"]["selector"].items()
        chosen = [pod for pod in pods(objects).values() if selector <= pod["metadata"]["labels"].items()]
        (pod,) = chosen
        ports = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
        assert {port["targetPort"] for port in one["spec"]["ports"]} <= ports
    for name, pod in pods(objects).items():
        volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
        if case != "external-nats" and pod["metadata"]["labels"]["app.kubernetes.io/component"] == "nats":
            volumes.add("data")
        for container in pod["spec"]["containers"]:
            mounts = [mount["name"] for mount in container["volumeMounts"]]
            assert set(mounts) == volumes, name
            assert len(mounts) == len(set(mounts))


def test_two_replicas_have_a_disruption_budget() -> None:
    objects = objects_of("minimal")
    many = {one["metadata"]["name"] for one in of_kind(objects, "Deployment") if one["spec"]["replicas"] > 1}
    assert "demo-penstock-matcher" in many
    assert {one["metadata"]["name"] for one in of_kind(objects, "PodDisruptionBudget")} == many
    assert "demo-penstock-nats" in {
        one["metadata"]["name"] for one in of_kind(objects_of("production"), "PodDisruptionBudget")
    }


def test_prometheus_finds_the_port_and_the_token() -> None:
    objects = objects_of("production")
    (monitor,) = of_kind(objects, "ServiceMonitor")
    (service,) = [
        one
        for one in of_kind(objects, "Service")
        if monitor["spec"]["selector"]["matchLabels"].items() <= one["metadata"]["labels"].items()
    ]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    (dashboard,) = pods(objects)["demo-penstock-dashboard"]["spec"]["containers"]
    said = env_of(dashboard)
    assert said["PENSTOCK_DASHBOARD_METRICS"] == "token"
    mounted = {mount["mountPath"]: mount["name"] for mount in dashboard["volumeMounts"]}
    folder, _, file = str(said["PENSTOCK_DASHBOARD_METRICS_TOKEN_FILE"]).rpartition("/")
    volumes = {volume["name"]: volume for volume in pods(objects)["demo-penstock-dashboard"]["spec"]["volumes"]}
    secret = volumes[mounted[folder]]["secret"]
    assert secret["secretName"] == endpoint["authorization"]["credentials"]["name"]
    assert secret["items"] == [{"key": endpoint["authorization"]["credentials"]["key"], "path": file}]


def test_an_executor_has_time_for_checkpoints_and_its_gpus() -> None:
    objects = objects_of("production")
    a100, l4 = (pods(objects)[f"demo-penstock-executor-{name}"]["spec"] for name in ("a100", "l4"))
    for pod in (a100, l4):
        (container,) = pod["containers"]
        assert float(str(env_of(container)["PENSTOCK_DRAIN_S"])) < pod["terminationGracePeriodSeconds"]
        assert "livenessProbe" not in container
    assert a100["containers"][0]["resources"]["limits"] == {"memory": "960Gi", "nvidia.com/gpu": 8}
    assert env_of(l4["containers"][0])["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert l4["runtimeClassName"] == "nvidia"


# --- names
@pytest.mark.parametrize("case", CASES)
def test_names_are_short_enough_for_the_longest_release(case: str) -> None:
    objects = objects_of(case, LONGEST)
    for one in objects:
        name = one["metadata"]["name"]
        limit = {"StatefulSet": 52, "Secret": 253, "Deployment": 63 - len("-0123456789-01234")}.get(one["kind"], 63)
        assert len(name) <= limit, name
        for label in one["metadata"]["labels"].values():
            assert len(label) <= 63
    for pod in pods(objects).values():
        assert all(len(label) <= 63 for label in pod["metadata"]["labels"].values())


@pytest.mark.parametrize("release", ["a.b.c", "7seven", "penstock", LONGEST])
def test_services_have_names_that_services_may_have(release: str) -> None:
    for one in of_kind(objects_of("minimal", release), "Service"):
        assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", one["metadata"]["name"])


@pytest.mark.parametrize("others", [("demo", "demo2"), (LONGEST, LONGEST[:-1] + "y"), ("a.b", "a-b"), ("1a", "r1a")])
def test_two_releases_in_a_namespace_have_nothing_in_common(others: tuple[str, str]) -> None:
    first, second = (objects_of("minimal", release) for release in others)
    names = [{(one["kind"], one["metadata"]["name"]) for one in objects} for objects in (first, second)]
    assert names[0].isdisjoint(names[1])
    for one, other in ((first, second), (second, first)):
        for chosen in of_kind(one, "Service"):
            selector = chosen["spec"]["selector"].items()
            assert not [pod for pod in pods(other).values() if selector <= pod["metadata"]["labels"].items()]


# --- values that are none
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set=natss.enabled=false"], "natss"),
        (["--set=services.gateway.replica=2"], "replica"),
        (["--set=services.gatway.replicas=2"], "gatway"),
        (["--set=nats.replicas=2"], "nats/replicas"),
        (["--set=nats.tls.mode=secret"], "secretName"),
        (["--set=nats.tls.publicAuthority=true"], "publicAuthority"),
        (["--set=nats.enabled=false"], "external"),
        (["--set=logins.sharedFile=x.json"], "existingSecret"),
        (["--set=executors[0].name=Big"], "executors/0/name"),
        (["--set=executors[0].name=g", "--set=executors[0].gpu=8"], "gpu"),
        (["--set=executors[0].name=g"], "say how many GPUs a node has"),
        (['--set-json=executors=[{"name":"g","gpus":1},{"name":"g","gpus":2}]'], "two executors are called g"),
        (['--set-json=env=[{"name":"A"}]'], "env/0"),
        (["--set=owner=a b"], "owner"),
        (["--set=dashboard.ingress.enabled=true"], "networkPolicy.dashboard lists nobody"),
        (["--set=dashboard.serviceMonitor.enabled=true", "--set=networkPolicy.enabled=false"], "tokenSecret"),
        (["--set=archive.enabled=true", "--set=archive.accessMode=ReadWriteOnce"], "ReadWriteMany"),
        (["--set=checkpoints.enabled=true", "--set=checkpoints.accessMode=ReadWriteOnce"], "ReadWriteMany"),
        (["--set=nats.existingSecret=mine"], "logins.existingSecret"),
        (["--set=logins.existingSecret=mine"], "nats.existingSecret"),
        (["--set=external.url=http://x:1"], "external/url"),
        (["--set=pilots.enabled=true"], "pilots.namespace names the namespace"),
        (["--set=pilots.namespaces=x"], "namespaces"),
        (["--set=pilots.namespace=A_b"], "pilots/namespace"),
        (["--set=pilots.enabled=true,pilots.namespace=x,services.allocator.replicas=0"], "needs the allocator"),
        (
            ["--values", str(values_of("external-nats")), "--set=pilots.enabled=true,pilots.namespace=x"],
            "makes logins of nodes",
        ),
        ([r"--set=podLabels.app\.kubernetes\.io/name=x"], "podLabels: app.kubernetes.io/name is the chart's own"),
    ],
)
def test_values_that_are_none_are_refused_by_name(words: list[str], said: str) -> None:
    done = template(*words)
    assert done.returncode != 0
    assert said in done.stderr, done.stderr


def test_a_schema_knows_every_value_that_the_chart_has_and_no_object_is_open() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    free = {"affinity", "global", "volumes", "volumeMounts", "claims", "podSelector", "namespaceSelector"}
    sources = {"secretKeyRef", "configMapKeyRef", "fieldRef", "resourceFieldRef"}

    def opened(node: Any, path: str) -> Iterator[str]:
        if isinstance(node, dict):
            named_last = path.replace("/items", "").rpartition("/")[2]
            if node.get("type") == "object" and "additionalProperties" not in node and named_last not in free | sources:
                yield path
            for key, value in node.items():
                yield from opened(value, f"{path}/{key}")

    assert list(opened(schema, "")) == []
    assert set(schema["properties"]) - {"global"} == set(VALUES)


def test_the_case_of_production_uses_most_of_what_there_is() -> None:
    kinds = {one["kind"] for one in objects_of("production")}
    assert kinds >= {"ServiceMonitor", "Ingress", "PersistentVolumeClaim", "ConfigMap", "PodDisruptionBudget"}
    (server,) = pods(objects_of("production"))["demo-penstock-nats"]["spec"]["containers"]
    (members,) = [word for word in server["args"] if word.startswith("--members=")]
    assert (
        members.count(":6222")
        == named(objects_of("production"), "StatefulSet", "demo-penstock-nats")["spec"]["replicas"]
        == 3
    )


def test_notes_tell_how_to_get_in_and_what_is_missing() -> None:
    done = tried("install", RELEASE, str(CHART), "--namespace", NAMESPACE, "--dry-run=client")
    assert done.returncode == 0, done.stderr
    assert "(umask 077; kubectl -n lab get secret demo-penstock-login-client" in done.stdout
    assert "There is no executor" in done.stdout


def test_the_release_of_the_chart_is_that_of_penstock() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    versions = {line for line in Path(ROOT / "pyproject.toml").read_text().splitlines() if line.startswith("version =")}
    assert versions == {f'version = "{chart["appVersion"]}"'}


def test_a_value_of_a_list_replaces_it() -> None:
    objects = rendered("--set-json=networkPolicy.egress.executor=[]")
    assert not [
        one for one in of_kind(objects, "NetworkPolicy") if one["metadata"]["name"].endswith("executor-further")
    ]
