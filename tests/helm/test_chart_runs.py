"""The chart's containers, run as their manifests say: every service at once, and jobs to their end."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helm_chart import NAMESPACE, Object, needs_helm, of_kind, rendered, values_of
from kube_server import Key, KubeServer
from rendered_pods import PodWaits, RenderedCluster, RunningPod, login_file, needs_root

from penstock_bus.identity.certificates import ensured
from penstock_bus.servers.server import binary

pytestmark = [needs_helm, needs_root, pytest.mark.helm, pytest.mark.timeout(900)]
SINGLE = [f"--set=services.{name}.replicas=1" for name in ("gateway", "ranker", "matcher")]
"""Two of a kind are one manifest."""
EMULATED = {"name": "emulated", "devices": "fast:2@1.0:16GiB", "shmSize": "64Mi", "scratchSize": "1Gi"}


def start_job_of_keys(cluster: RenderedCluster) -> None:
    """Run the job that fills the Secrets."""
    (owner,) = of_kind(cluster.objects, "Job")
    (job,) = cluster.start("Job", owner["metadata"]["name"])
    assert job.run().wait() == 0, job.said()


def start_all(cluster: RenderedCluster, *kinds: str) -> None:
    """Start all pods of these kinds of workloads, one kind after the other, and wait until each is ready."""
    for kind in kinds:
        started = [
            pod for one in of_kind(cluster.objects, kind) for pod in cluster.start(kind, one["metadata"]["name"])
        ]
        for pod in started:
            pod.run()
        for pod in started:
            pod.wait_ready()


def run_test_pod(cluster: RenderedCluster, tries: int = 1) -> str:
    """Run what `helm test` runs, again while it fails and there are tries left; return what it printed."""
    for left in reversed(range(tries)):
        (pod,) = cluster.start("Pod", "demo-penstock-test")
        status = pod.run().wait()
        cluster.remove(pod)
        if status == 0:
            break
        assert left, pod.said()
    return pod.said()


def outside(pod: RunningPod, folder: Path, *words: str) -> str:
    """Type a command of penstock on a machine to which the ports of a pod are forwarded."""
    folder.mkdir(exist_ok=True)
    enter = ["nsenter", "--net", f"--target={pod.namespace}", sys.executable, "-m", "penstock", *words]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    done = subprocess.run(
        enter, capture_output=True, text=True, check=False, cwd=folder, env={**environment, "HOME": str(folder)}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pod_of(cluster: RenderedCluster, component: str) -> RunningPod:
    return next(pod for pod in cluster.pods if pod.labels["app.kubernetes.io/component"] == component)


def every_container_ends_in_good_order_within_its_time(cluster: RenderedCluster) -> None:
    """End all pods, the server as the last, which leaves nothing for a test."""
    components = {pod: pod.labels["app.kubernetes.io/component"] for pod in reversed(cluster.pods)}
    running = [pod for pod, component in components.items() if component not in {"keys", "test"}]
    ends = {pod.name: pod.end() for pod in sorted(running, key=lambda pod: components[pod] == "nats")}
    assert set(ends.values()) == {0}, ends


def jobs_of(pod: RunningPod, folder: Path) -> set[str]:
    """Return the ids of all jobs, as the owner who is logged in sees them by a forwarded port."""
    return {one["id"] for one in json.loads(outside(pod, folder, "ps", "-a", "-o", "json"))["jobs"]}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RenderedCluster]:
    """Start everything of the minimal values, in the order in which the pods' Secrets let them start."""
    settings = '--set-json=config="[gateway]\\nopen_jobs = 77\\n"'
    objects = rendered("--values", str(values_of("minimal")), *SINGLE, settings)
    made = RenderedCluster(tmp_path_factory.mktemp("cluster"), objects, {})
    with made.running():
        with pytest.raises(PodWaits, match=r"has no keys\.json yet"):  # as the kubelet: it tries again later
            made.start("StatefulSet", "demo-penstock-nats")[0].run()
        made.remove(made.pods[0])
        start_job_of_keys(made)
        start_all(made, "StatefulSet", "Deployment", "DaemonSet")
        yield made
        every_container_ends_in_good_order_within_its_time(made)


def test_every_container_is_ready_by_its_probes_and_a_job_runs_to_its_end(cluster: RenderedCluster) -> None:
    assert "a job ran on demo-penstock-executor-emulated-0" in run_test_pod(cluster)


def test_nothing_that_doctor_looks_for_is_missing_and_the_agents_of_a_node_run(
    cluster: RenderedCluster, tmp_path: Path
) -> None:
    server, node = pod_of(cluster, "nats"), pod_of(cluster, "executor")
    (tmp_path / "client.json").write_bytes(cluster.secret("demo-penstock-login-client")["client.json"])
    outside(server, tmp_path / "owner", "login", str(tmp_path / "client.json"))
    assert "1 up with 2 devices" in outside(server, tmp_path / "owner", "doctor")
    (agent,) = json.loads(outside(server, tmp_path / "owner", "memory", "ls", "-o", "json"))
    assert agent["id"] == "ip-10-0-0-7-ec2-internal"
    events = [json.loads(line) for line in node.log.read_text().splitlines() if line.startswith("{")]
    assert sorted(one["agent"] for one in events if one["event"] == "agent_started") == ["aggregator", "memory"]
    assert not [one for one in events if one["event"] in {"process_died", "node_without_agent"}]


def test_settings_of_the_config_are_read(cluster: RenderedCluster) -> None:
    pod = pod_of(cluster, "gateway")
    assert pod.execute("cat", "/etc/penstock/penstock.toml").stdout == "[gateway]\nopen_jobs = 77\n"
    assert pod.execute("sh", "-c", "touch /etc/penstock/x /auth/gateway/x /x").returncode != 0


def test_the_owner_logs_in_by_a_forwarded_port_and_adds_somebody_who_does_too(
    cluster: RenderedCluster, tmp_path: Path
) -> None:
    server = pod_of(cluster, "nats")
    (tmp_path / "client.json").write_bytes(cluster.secret("demo-penstock-login-client")["client.json"])
    outside(server, tmp_path / "owner", "login", str(tmp_path / "client.json"))
    whoami = outside(server, tmp_path / "owner", "whoami")
    assert "owner" in whoami
    outside(server, tmp_path / "owner", "user", "add", "jane", "--out", str(tmp_path / "jane.json"))
    outside(server, tmp_path / "jane", "login", str(tmp_path / "jane.json"))
    outside(server, tmp_path / "jane", "run", "--profile", "off", "--cwd", "/tmp", "--", "true")
    (node,) = json.loads(outside(server, tmp_path / "owner", "nodes", "-o", "json"))["nodes"]
    assert node["id"] == "ip-10-0-0-7-ec2-internal"  # the cluster's name for it, without dots


def test_a_second_job_of_the_keys_changes_nothing_and_the_log_outlives_the_servers_pod(
    cluster: RenderedCluster, tmp_path: Path
) -> None:
    run_test_pod(cluster)
    (tmp_path / "client.json").write_bytes(cluster.secret("demo-penstock-login-client")["client.json"])
    outside(pod_of(cluster, "nats"), tmp_path / "owner", "login", str(tmp_path / "client.json"))
    jobs = jobs_of(pod_of(cluster, "nats"), tmp_path / "owner")
    before = dict(cluster.api.versions)
    (owner,) = of_kind(cluster.objects, "Job")
    again = cluster.pod(owner, "-again").run()
    assert again.wait() == 0, again.said()
    assert cluster.api.versions == before
    old = pod_of(cluster, "nats")
    old.end()
    cluster.remove(old)
    new = cluster.start("StatefulSet", "demo-penstock-nats")[0]
    new.run().wait_ready()
    pod_of(cluster, "gateway").wait_ready()
    assert "a job ran on" in run_test_pod(cluster, tries=20)  # until its gateway has found the server
    assert jobs
    assert jobs < jobs_of(new, tmp_path / "owner")


def test_three_servers_by_a_certificate_of_somebodys_own_keep_one_log(tmp_path: Path) -> None:
    """One of three pods goes, the log is written on; with the owner's and an extension's logins."""
    executors = f"--set-json=executors={json.dumps([EMULATED])}"
    objects = rendered("--values", str(values_of("production")), *SINGLE, executors, "--set=checkpoints.enabled=false")
    service = f"demo-penstock-nats.{NAMESPACE}.svc"
    tls = ensured(tmp_path / "tls", [service, "localhost"])
    secret = {
        "tls.crt": tls.certificate.read_bytes(),
        "tls.key": tls.key.read_bytes(),
        "ca.crt": tls.authority.encode(),
    }
    given = {"penstock-nats-tls": secret, "penstock-metrics": {"token": b"t0ken"}, "wandb": {"key": b"k"}}
    made = RenderedCluster(tmp_path / "cluster", objects, given)
    with made.running():
        start_job_of_keys(made)
        assert "extension-billing.json" in made.secret("demo-penstock-login-extension-billing")
        start_all(made, "StatefulSet")
        for service in ("gateway", "ranker", "matcher"):
            made.start("Deployment", f"demo-penstock-{service}")[0].run()
        made.start("DaemonSet", "demo-penstock-executor-emulated")[0].run()
        for pod in made.pods:
            if pod.labels["app.kubernetes.io/component"] != "keys":
                pod.wait_ready()
        assert "a job ran on" in run_test_pod(made)
        servers = [pod for pod in made.pods if pod.labels["app.kubernetes.io/component"] == "nats"]
        made.remove(servers[0])  # the first, which made the streams
        assert "a job ran on" in run_test_pod(made, tries=20)  # until its gateway has found another server


def test_services_log_in_at_a_server_that_is_not_penstocks_by_one_file(tmp_path: Path) -> None:
    objects = rendered("--values", str(values_of("external-nats")), *SINGLE)
    made = RenderedCluster(tmp_path / "cluster", objects, {})
    config = {
        "port": 4222,
        "jetstream": {"store_dir": str(tmp_path / "store")},
        "authorization": {"users": [{"user": "penstock", "password": "s3cret"}]},
    }
    (tmp_path / "server.conf").write_text(json.dumps(config))
    login = login_file(url="nats://nats.messaging.svc:4222", user="penstock", password="s3cret")
    made.give("penstock-nats-login", {"login.json": login})
    made.names["nats.messaging.svc"] = made.gateway
    with made.running():
        server = subprocess.Popen([binary(), "-c", str(tmp_path / "server.conf"), "--addr", made.gateway])
        try:
            start_all(made, "Deployment", "DaemonSet")
            assert "a job ran on" in run_test_pod(made)
        finally:
            server.kill()
            server.wait()


def roles_of(objects: list[Object], account: str) -> list[Object]:
    """Return the Roles that are bound to a service account."""
    bound = [
        (one["roleRef"]["name"], one["metadata"]["namespace"])
        for one in of_kind(objects, "RoleBinding")
        if {"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE} in one["subjects"]
    ]
    return [
        one for one in of_kind(objects, "Role") if (one["metadata"]["name"], one["metadata"].get("namespace")) in bound
    ]


@pytest.mark.parametrize("place", [NAMESPACE, "gpu-pods"])
def test_a_job_that_waits_brings_a_pod_by_the_charts_own_rights_and_runs_there(tmp_path: Path, place: str) -> None:
    """The Pod finds the server by the address in its token, and trusts it by the authority that is there, too."""
    pytest.importorskip("kr8s")
    objects = rendered("--values", str(values_of("pilots")), *SINGLE, f"--set=pilots.namespace={place}")
    made, account = RenderedCluster(tmp_path / "cluster", objects, {}), "demo-penstock-allocator"
    with made.running():
        start_job_of_keys(made)
        api = made.servers[account] = KubeServer(tmp_path / "token", made.gateway)
        api.roles["token"] = roles_of(objects, account)
        api.add_node("machine")
        for kind, resource, name in (
            ("Deployment", "deployments", account),
            ("ConfigMap", "configmaps", "demo-penstock-pilots"),
        ):
            for one in of_kind(objects, kind):
                if one["metadata"]["name"] == name:
                    api.create(resource, one["metadata"].get("namespace", NAMESPACE), one)
        with api.serving():
            start_all(made, "StatefulSet")
            for service in ("gateway", "ranker", "matcher", "allocator"):
                made.start("Deployment", f"demo-penstock-{service}")[0].run()
            for pod in made.pods[1:]:
                pod.wait_ready()
            server, folder = pod_of(made, "nats"), tmp_path / "owner"
            (tmp_path / "client.json").write_bytes(made.secret("demo-penstock-login-client")["client.json"])
            outside(server, folder, "login", str(tmp_path / "client.json"))
            words = ["--max-pilots=1", "--walltime=10m", "--image=penstock", "--gpu-resource=", "--one-run"]
            outside(server, folder, "alloc", "add", "kubernetes", "--name=k8s", *words, "--devices=fast:1@1.0:4GiB")
            outside(server, folder, "submit", "--profile=off", "--cwd=/tmp", "--", "true")
            found = api.wait_for(
                lambda: [one for one in api.pods() if one["metadata"]["namespace"] == place], "a Pod", 300.0
            )
            name = found[0]["metadata"]["name"]
            secret = api.get(Key("secrets", place, name))["data"]
            made.give(name, {file: base64.b64decode(text) for file, text in secret.items()})
            pilot = made.pod(found[0]).run()
            began = {"containerStatuses": [{"name": "pilot", "state": {"running": {}}}], "phase": "Running"}
            api.change(Key("pods", place, name), {"status": began})
            assert pilot.wait() == 0, pilot.said()  # its node leaves when the log has the end of the run
            (job,) = json.loads(outside(server, folder, "ps", "-a", "-o", "json"))["jobs"]
            assert job["state"] == "CD", pilot.said()
            (owner,) = found[0]["metadata"]["ownerReferences"]
            assert owner["kind"] == ("Deployment" if place == NAMESPACE else "ConfigMap")
