"""What becomes of a release when its chart or its values change, and what other clusters ask for, without a cluster."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from helm_chart import CHART, Object, named, needs_helm, objects_of, of_kind, pods, rendered, values_of

pytestmark = needs_helm
MINIMAL = ["--values", str(values_of("minimal"))]


def other_chart(folder: Path, file: str, old: str, new: str) -> Path:
    """Return a copy of the chart where one text of a file is another."""
    chart = folder / "chart"
    shutil.copytree(CHART, chart)
    text = (chart / file).read_text()
    assert old in text
    (chart / file).write_text(text.replace(old, new))
    return chart


def job_of(objects: list[Object]) -> Object:
    """Return the job of the keys."""
    (job,) = of_kind(objects, "Job")
    return job


# --- the job of the keys
@pytest.mark.parametrize(
    "change",
    [
        ("Chart.yaml", 'appVersion: "0.1.0"', 'appVersion: "0.2.0"'),
        ("Chart.yaml", "version: 0.1.0\n", "version: 0.1.1\n"),
        ("templates/keys.yaml", "cpu: 50m", "cpu: 60m"),
    ],
)
def test_a_changed_job_of_the_keys_has_another_name_where_nobody_counts_revisions(
    change: tuple[str, str, str], tmp_path: Path
) -> None:
    before = job_of(objects_of("minimal"))
    after = job_of(rendered(*MINIMAL, chart=other_chart(tmp_path, *change)))
    assert after["metadata"]["name"] != before["metadata"]["name"]


def test_a_job_of_the_keys_that_failed_leaves_its_pods_and_what_they_said() -> None:
    assert job_of(objects_of("minimal"))["spec"]["template"]["spec"]["restartPolicy"] == "Never"


# --- volumes that one node at a time may have
def test_a_gateway_whose_archive_one_node_may_mount_ends_before_the_next_one_begins() -> None:
    alone = [
        "--set=services.gateway.replicas=1",
        "--set=archive.enabled=true",
        "--set=archive.accessMode=ReadWriteOnce",
    ]
    gateway = named(rendered(*MINIMAL, *alone), "Deployment", "demo-penstock-gateway")
    assert gateway["spec"]["strategy"] == {"type": "Recreate"}
    assert "strategy" not in named(objects_of("production"), "Deployment", "demo-penstock-gateway")["spec"]


# --- `helm test`
@pytest.mark.parametrize(("pool", "said"), [("a100", "a100"), (None, "default")])
def test_the_job_of_helm_test_runs_in_a_pool_that_has_executors(pool: str | None, said: str) -> None:
    executors = [{"name": "one", "devices": "cpu", **({"pool": pool} if pool else {})}, {"name": "two", "gpus": 1}]
    (test,) = of_kind(rendered(f"--set-json=executors={json.dumps(executors)}"), "Pod")
    args = test["spec"]["containers"][0]["args"]
    assert args[args.index("--pool") + 1] == said
    assert args.index("--pool") < args.index("--")


# --- the environment
def test_a_variable_that_is_set_for_all_and_for_one_is_there_once_and_is_that_of_the_one() -> None:
    twice = [
        {"name": "A", "value": "all"},
        {"name": "B", "value": "$(A)"},
        {"name": "PENSTOCK_LOG_FORMAT", "value": "x"},
    ]
    own = [{"name": "A", "value": "own"}, {"name": "C", "valueFrom": {"secretKeyRef": {"name": "c", "key": "c"}}}]
    executors = [{"name": "one", "devices": "cpu", "env": [*own, {"name": "PENSTOCK_DRAIN_S", "value": "7"}]}]
    objects = rendered(
        f"--set-json=env={json.dumps(twice)}",
        f"--set-json=services.gateway.env={json.dumps([*own, *own])}",
        f"--set-json=nats.env={json.dumps([*own, {'name': 'MEMBER', 'value': '2'}])}",
        f"--set-json=executors={json.dumps(executors)}",
    )
    by_workload = {name: pod["spec"]["containers"][0]["env"] for name, pod in pods(objects).items()}
    for name, variables in by_workload.items():
        names = [one["name"] for one in variables]
        assert len(names) == len(set(names)), name
    last = {name: {one["name"]: one for one in variables} for name, variables in by_workload.items()}
    gateway, executor = last["demo-penstock-gateway"], last["demo-penstock-executor-one"]
    assert gateway["A"]["value"] == executor["A"]["value"] == "own"
    assert [one["name"] for one in by_workload["demo-penstock-gateway"] if one["name"] in "AB"] == ["A", "B"]
    assert gateway["C"] == own[1]
    assert last["demo-penstock-matcher"]["A"]["value"] == "all"
    assert gateway["PENSTOCK_LOG_FORMAT"]["value"] == "x"
    assert executor["PENSTOCK_DRAIN_S"]["value"] == "7"
    assert last["demo-penstock-nats"]["MEMBER"] == {"name": "MEMBER", "value": "2"}


# --- what an upgrade replaces
def pod_specs(objects: list[Object], *kinds: str) -> dict[str, Object]:
    """Return what the pods of long-lived workloads are: where it changes, they are replaced."""
    kinds = kinds or ("Deployment", "StatefulSet", "DaemonSet")
    return {one["metadata"]["name"]: one["spec"]["template"] for one in of_kind(objects, *kinds)}


def test_a_new_version_of_the_chart_alone_replaces_no_pod(tmp_path: Path) -> None:
    other = other_chart(tmp_path, "Chart.yaml", "version: 0.1.0\n", "version: 0.1.1\n")
    assert pod_specs(rendered(*MINIMAL, chart=other)) == pod_specs(objects_of("minimal"))


def test_other_words_in_the_config_replace_the_server_and_services_and_no_executor() -> None:
    before, after = (rendered(*MINIMAL, f"--set=config=[gateway]\nopen_jobs = {count}\n") for count in (7, 8))
    assert pod_specs(before, "DaemonSet") == pod_specs(after, "DaemonSet")
    others = pod_specs(before, "Deployment", "StatefulSet"), pod_specs(after, "Deployment", "StatefulSet")
    assert [name for name in others[0] if others[0][name] == others[1][name]] == []


@pytest.mark.parametrize(
    "words", [["--set=nats.tls.mode=none"], ["--set=nats.tls.mode=secret", "--set=nats.tls.secretName=t"]]
)
def test_services_start_anew_where_the_server_has_another_authority_and_executors_run_on(words: list[str]) -> None:
    before, after = objects_of("minimal"), rendered(*MINIMAL, *words)
    old, new = (
        {one: pod["metadata"] for one, pod in pod_specs(objects, "Deployment").items()} for objects in (before, after)
    )
    assert [name for name in old if old[name] == new[name]] == []
    old, new = (
        {one: pod["metadata"] for one, pod in pod_specs(objects, "DaemonSet").items()} for objects in (before, after)
    )
    assert old == new


def test_executors_are_replaced_by_hand_where_that_is_chosen() -> None:
    executors = [{"name": "one", "devices": "cpu", "updateStrategy": "OnDelete"}, {"name": "two", "devices": "cpu"}]
    one, two = of_kind(rendered(f"--set-json=executors={json.dumps(executors)}"), "DaemonSet")
    assert one["spec"]["updateStrategy"] == {"type": "OnDelete"}
    assert two["spec"]["updateStrategy"]["type"] == "RollingUpdate"


# --- how people come in
@pytest.mark.parametrize(("kind", "said"), [("LoadBalancer", "Local"), ("NodePort", "Local"), ("ClusterIP", None)])
def test_the_server_sees_the_addresses_of_its_clients_where_that_is_asked(kind: str, said: str | None) -> None:
    objects = rendered("--set=nats.service.externalTrafficPolicy=Local", f"--set=nats.service.type={kind}")
    spec = named(objects, "Service", "demo-penstock-nats")["spec"]
    assert spec.get("externalTrafficPolicy") == said


@pytest.mark.parametrize(
    ("words", "url"),
    [
        ([], "http://127.0.0.1:8484"),
        (["--set=dashboard.ingress.enabled=true"], "http://gpus.example.org"),
        (["--set=dashboard.ingress.enabled=true", "--set=dashboard.ingress.tlsSecret=t"], "https://gpus.example.org"),
        (["--set=dashboard.ingress.enabled=true", "--set=dashboard.url=https://x.org"], "https://x.org"),
    ],
)
def test_the_dashboard_knows_the_address_of_its_ingress(words: list[str], url: str) -> None:
    reached = ['--set-json=networkPolicy.dashboard=[{"podSelector":{}}]']
    objects = rendered("--set=dashboard.ingress.host=gpus.example.org", *reached, *words)
    (container,) = pods(objects)["demo-penstock-dashboard"]["spec"]["containers"]
    said = {one["name"]: one["value"] for one in container["env"]}
    assert said["PENSTOCK_DASHBOARD_URL"] == url
    kept = said["PENSTOCK_DASHBOARD_SECRET_FILE"].rpartition("/")[0]
    (volume,) = [mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == kept]
    assert {"name": volume, "emptyDir": {"sizeLimit": "4Gi"}} in pods(objects)["demo-penstock-dashboard"]["spec"][
        "volumes"
    ]


# --- what other clusters ask for
def test_all_pods_have_the_labels_annotations_and_priority_of_the_values() -> None:
    own = ["--set-string=podLabels.mesh=on", r"--set-string=podAnnotations.karpenter\.sh/do-not-disrupt=true"]
    objects = rendered(*MINIMAL, *own, "--set=priorityClassName=high")
    for name, pod in pods(objects).items():
        assert pod["metadata"]["labels"]["mesh"] == "on", name
        assert pod["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] == "true", name
        assert pod["spec"]["priorityClassName"] == "high", name
    (test,) = of_kind(objects, "Pod")
    assert test["metadata"]["annotations"]["helm.sh/hook"] == "test"


def test_pods_name_no_user_where_the_cluster_chooses_one() -> None:
    for name, pod in pods(rendered(*MINIMAL, "--set=clusterChoosesUser=true")).items():
        said = pod["spec"]["securityContext"]
        assert said["runAsNonRoot"] is True, name
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(said), name


def test_names_are_resolved_at_the_ports_of_the_values() -> None:
    policy = named(rendered("--set=networkPolicy.dnsPorts={5353}"), "NetworkPolicy", "demo-penstock-clients")
    ports = policy["spec"]["egress"][0]["ports"]
    assert ports == [{"protocol": "UDP", "port": 5353}, {"protocol": "TCP", "port": 5353}]


def test_the_server_and_the_dashboard_listen_on_ipv6_where_that_is_asked() -> None:
    workloads = pods(rendered("--set=listen=::"))
    assert "--host=::" in workloads["demo-penstock-nats"]["spec"]["containers"][0]["args"]
    dashboard = workloads["demo-penstock-dashboard"]["spec"]["containers"][0]["env"]
    assert {"name": "PENSTOCK_DASHBOARD_HOST", "value": "::"} in dashboard


# --- a server with a large log
def test_the_startup_probe_waits_longer_than_the_server_may_take_to_read_its_log() -> None:
    (server,) = pods(rendered("--set=nats.startSeconds=1200"))["demo-penstock-nats"]["spec"]["containers"]
    assert "--start-s=1200" in server["args"]
    assert server["startupProbe"]["failureThreshold"] * server["startupProbe"]["periodSeconds"] > 1200


def test_servers_of_several_are_replaced_no_faster_than_one_catches_up() -> None:
    many, one = (
        named(objects_of(case), "StatefulSet", "demo-penstock-nats")["spec"] for case in ("production", "minimal")
    )
    assert many["minReadySeconds"] == 30
    assert "minReadySeconds" not in one
