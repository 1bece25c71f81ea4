"""Pods of pilots on an API server: made once, watched, explained, and gone with what they belong to."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from kube_server import GPUS, NAMESPACE, Key, KubeServer, Object, Refused

from penstock_allocator.pilot_script import PilotFolder, write_pilot
from penstock_allocator.providers import KubernetesProvider, ProviderJob, ProviderSilent, SubmissionRefused
from penstock_allocator.providers.kubernetes_api import KubernetesApi
from penstock_allocator.providers.pod_manifest import pod_name
from penstock_cluster.allocations import Allocation
from penstock_log import AllocationSpec
from penstock_log.allocation_spec import PodOptions
from penstock_testing import eventually

pytest.importorskip("kr8s")
TOKEN = "penstock-node-secret"
RESTRICTED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
DOCS = Path(__file__).parents[2] / "docs"


class Clock:
    later_s = 0.0

    def __call__(self) -> float:
        return datetime.now(UTC).timestamp() + self.later_s


class Pilots:
    """A provider, and pilots `lab-1`, `lab-2` … of one allocation."""

    def __init__(self, provider: KubernetesProvider, folder: Path, clock: Clock, **pod: Any) -> None:
        self.provider, self.folder, self.clock = provider, folder, clock
        options = PodOptions(**{"image": "penstock", **pod})
        spec = AllocationSpec(provider="kubernetes", max_pilots=8, walltime_s=3600.0, runs=1, pod=options)
        self.allocation = Allocation(name="lab", spec=spec, added_s=1.0)

    def place(self, number: int) -> PilotFolder:
        return PilotFolder(self.folder / f"lab-{number}", self.folder / "checkpoints")

    def name(self, number: int) -> str:
        return self.allocation.pilot_name(f"lab-{number}")

    def pod(self, number: int = 1) -> Key:
        return Key("pods", NAMESPACE, pod_name(self.name(number)))

    def secret(self, number: int = 1) -> Key:
        return self.pod(number)._replace(resource="secrets")

    async def submit(self, number: int = 1, token: str = TOKEN) -> str:
        write_pilot(self.place(number), self.allocation, f"lab-{number}", token)
        return await self.provider.submit(self.allocation.spec, self.name(number), self.place(number), ())

    async def clear(self, number: int = 1) -> None:
        await self.provider.clear(self.allocation.spec, self.name(number), self.place(number))

    async def job(self, number: int = 1) -> ProviderJob | None:
        found = await self.provider.list_jobs(self.allocation.spec, {self.name(number): self.place(number)})
        return found.get(self.name(number))

    async def until(self, state: str, said: str = "", number: int = 1) -> ProviderJob:
        async def reached() -> bool:
            found = await self.job(number)
            return found is not None and found.state == state and said in found.reason

        await eventually(reached)
        found = await self.job(number)
        assert found is not None
        return found


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubeServer]:
    with KubeServer().serving() as found:
        found.add_node("machine", gpus=2)
        monkeypatch.setenv("KUBECONFIG", str(found.kubeconfig(tmp_path / "kubeconfig")))
        yield found


@asynccontextmanager
async def pilots(
    folder: Path, owner: str = "", namespace: str = "", pod_namespace: str = "", **pod: Any
) -> AsyncIterator[Pilots]:
    clock = Clock()
    provider = KubernetesProvider(clock, owner, namespace)
    try:
        yield Pilots(provider, folder, clock, namespace=pod_namespace, **pod)
    finally:
        await provider.close()


def ran(server: KubeServer, key: Key, container: Object, **status: Any) -> None:
    """Have the kubelet say what became of a Pod's container."""
    server.change(key, {"status": {"containerStatuses": [{"name": "pilot", "state": container}], **status}})


def verbs(server: KubeServer, resource: str) -> list[str]:
    return [verb for verb, of, _ in server.asked if of == resource]


async def test_a_pilot_that_is_submitted_again_is_adopted_with_the_newer_token(
    server: KubeServer, tmp_path: Path
) -> None:
    async with pilots(tmp_path) as first, pilots(tmp_path) as second:
        assert await first.submit() == f"lab/{first.pod().name}"
        uid = server.get(first.pod())["metadata"]["uid"]
        assert await second.submit(token="another") == await first.submit(token="another")
        assert [pod["metadata"]["uid"] for pod in server.pods()] == [uid]
        [secret] = [one for key, one in server.objects.items() if key.resource == "secrets"]
        assert base64.b64decode(secret["data"]["token"]) == b"another"
        assert [owner["uid"] for owner in secret["metadata"]["ownerReferences"]] == [uid]
        assert not [pod for pod in server.pods() if "another" in json.dumps(pod)]


async def test_a_secret_without_owner_is_given_to_its_pod_by_the_next_allocator(
    server: KubeServer, tmp_path: Path
) -> None:
    async with pilots(tmp_path) as first:
        await first.submit()
        server.change(first.secret(), {"metadata": {"ownerReferences": []}})
    async with pilots(tmp_path) as second:
        await second.job()
        assert server.get(second.secret())["metadata"]["ownerReferences"][0]["name"] == second.pod().name
        server.delete(second.pod(), 0)
        assert second.secret() not in server.objects


async def test_looks_ask_for_nothing_and_changes_are_told(server: KubeServer, tmp_path: Path) -> None:
    async with pilots(tmp_path) as lab:
        changed = asyncio.Event()
        lab.provider.on_change = changed.set
        await lab.submit()
        await lab.until("waiting")
        before = len(server.asked)
        changed.clear()
        ran(server, lab.pod(), {"running": {}}, phase="Running")
        await changed.wait()
        assert await lab.until("running") == ProviderJob(f"lab/{lab.pod().name}", "running", ("machine",))
        for _ in range(20):
            await lab.job()
        assert len(server.asked) == before


async def test_a_watch_goes_on_from_its_version_and_a_forgotten_one_is_listed_anew(
    server: KubeServer, tmp_path: Path
) -> None:
    async with pilots(tmp_path) as lab:
        await lab.submit()
        await lab.submit(2)
        await lab.until("waiting")
        server.break_watches()
        ran(server, lab.pod(), {"running": {}}, phase="Running")
        await lab.until("running")
        assert verbs(server, "pods").count("list") == 1
        server.away = True
        await asyncio.to_thread(server.wait_for, lambda: server.watching == 0, "the watch breaks")
        server.delete(lab.pod(2), 0)
        ran(server, lab.pod(), {"terminated": {"exitCode": 0}}, phase="Succeeded")
        server.compact()
        assert (await lab.until("running")).state == "running", "it counts what was said last"
        server.away = False
        assert (await lab.until("ended")).reason == "it has ended in good order"
        assert (await lab.until("cancelled", number=2)).reason == "its Pod was deleted"
        assert verbs(server, "pods").count("list") == 2


async def test_a_pod_that_no_list_has_shown_yet_is_not_taken_for_gone(server: KubeServer, tmp_path: Path) -> None:
    async with pilots(tmp_path) as lab:
        await lab.job()
        server.broken += 1
        server.rules["pilots"] = {("create", "pods"), ("create", "secrets"), ("patch", "secrets")}
        await lab.submit()
        assert (await lab.job() or ProviderJob("", "ended")).state == "waiting"
        del server.rules["pilots"]
        server.compact()
        await lab.until("waiting")


async def test_a_quota_or_a_policy_refuses_a_pilot_and_nothing_of_it_is_left(
    server: KubeServer, tmp_path: Path
) -> None:
    async with pilots(tmp_path) as lab:
        server.pod_quota = 1
        await lab.submit()
        with pytest.raises(SubmissionRefused, match="exceeded quota: lab-quota"):
            await lab.submit(2)
        server.pod_quota = None
    bold = {"spec": {"containers": [{"securityContext": {"allowPrivilegeEscalation": True}}]}}
    async with pilots(tmp_path, template=bold) as other:
        with pytest.raises(SubmissionRefused, match="violates PodSecurity"):
            await other.submit(3)
    assert {key.name for key in server.objects if key.resource in {"pods", "secrets"}} == {lab.pod().name}


async def test_a_quota_that_is_being_counted_by_others_is_asked_again(server: KubeServer, tmp_path: Path) -> None:
    async with pilots(tmp_path) as lab:
        server.is_quota_busy = True
        with pytest.raises(ProviderSilent, match="could not make it now: Operation cannot be fulfilled"):
            await lab.submit()
        server.is_quota_busy = False
        await lab.submit()
        await lab.until("waiting")


async def test_a_login_whose_own_program_fails_is_a_cluster_that_is_silent(
    server: KubeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = server.kubeconfig(tmp_path / "with-a-program")
    config = json.loads(file.read_text())
    program = {"apiVersion": "client.authentication.k8s.io/v1", "command": "false", "args": [], "env": []}
    config["users"][0]["user"] = {"exec": program}
    file.write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(file))
    async with pilots(tmp_path) as lab:
        with pytest.raises(ProviderSilent, match="there is no login to a cluster"):
            await lab.submit()


async def test_a_server_that_is_overloaded_is_left_alone_for_as_long_as_it_says(
    server: KubeServer, tmp_path: Path
) -> None:
    async with pilots(tmp_path) as lab:
        await lab.job()
        server.failing = (429, 30)
        with pytest.raises(ProviderSilent, match="429"):
            await lab.submit()
        server.failing = None
        before = len(server.asked)
        with pytest.raises(ProviderSilent, match="wants to be asked again in"):
            await lab.submit()
        assert verbs(server, "secrets") == ["create"]
        assert len(server.asked) == before
        lab.clock.later_s = 31.0
        await lab.submit()
        server.failing = (500, 0)
        found = await lab.job()
        assert found is not None
        with pytest.raises(ProviderSilent, match="500"):
            await lab.provider.cancel(found, lab.place(1))


async def test_what_a_pod_waits_for_and_why_it_ended_is_told_in_words(server: KubeServer, tmp_path: Path) -> None:
    async with pilots(tmp_path) as lab:
        for number in (1, 2, 3):
            await lab.submit(number)
        await lab.until(
            "waiting", f"no node has room for it (Unschedulable): 0/1 nodes are available: 1 Insufficient {GPUS}", 3
        )
        back_off = {"reason": "ImagePullBackOff", "message": "Back-off pulling image <script>\n"}
        ran(server, lab.pod(1), {"waiting": back_off})
        await lab.until("stuck", "its image cannot be pulled (ImagePullBackOff): Back-off pulling image <script>")
        ran(server, lab.pod(2), {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}, phase="Failed")
        await lab.until("ended", "it took more memory than its limit (OOMKilled)", 2)
        server.change(lab.pod(3), {"status": {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}})
        await lab.until("ended", "the kubelet evicted it, as its node runs short: low on memory", 3)


async def test_a_pod_that_is_evicted_or_deleted_is_told_as_that(server: KubeServer, tmp_path: Path) -> None:
    async with pilots(tmp_path) as lab:
        await lab.submit()
        ran(server, lab.pod(), {"running": {}}, phase="Running")
        server.answer("POST", f"/api/v1/namespaces/lab/pods/{lab.pod().name}/eviction", {}, "admin")
        await lab.until("running")
        server.delete(lab.pod(), 0)
        await lab.until("cancelled", "it was evicted, as by a drain of its node")


async def test_a_pilot_that_is_withdrawn_stays_if_its_pod_has_started_by_then(
    server: KubeServer, tmp_path: Path
) -> None:
    async with pilots(tmp_path) as lab:
        for number in (1, 2, 3):
            await lab.submit(number)
        waiting = await lab.until("waiting", number=3)
        ran(server, lab.pod(1), {"running": {}}, phase="Running")
        await lab.provider.cancel(await lab.until("running"), lab.place(1), only_waiting=True)
        await lab.provider.cancel(waiting, lab.place(3), only_waiting=True)
        await lab.provider.cancel(waiting, lab.place(3), only_waiting=True)  # it is there no more
        assert {pod["metadata"]["name"] for pod in server.pods()} == {lab.pod(1).name, lab.pod(2).name}
        seen = {"preconditions": {"resourceVersion": "1"}}
        with pytest.raises(Refused, match="resourceVersion in the precondition is 1"):
            server.answer("DELETE", f"/api/v1/namespaces/lab/pods/{lab.pod(2).name}", seen, "admin")


async def test_a_pod_of_a_node_that_does_not_answer_is_given_up(server: KubeServer, tmp_path: Path) -> None:
    async with pilots(tmp_path) as lab:
        await lab.submit()
        ran(server, lab.pod(), {"running": {}}, phase="Running")
        await lab.provider.cancel(await lab.until("running"), lab.place(1))
        await asyncio.to_thread(
            server.wait_for, lambda: "deletionTimestamp" in server.get(lab.pod())["metadata"], "a mark"
        )
        assert (await lab.job() or ProviderJob("", "ended")).state == "running"
        lab.clock.later_s = 1_000.0
        await lab.until("cancelled", "machine does not say that it has stopped")


async def test_pilots_go_with_what_they_belong_to(server: KubeServer, tmp_path: Path) -> None:
    server.create("deployments", NAMESPACE, {"metadata": {"name": "penstock-allocator"}, "spec": {}})
    async with pilots(tmp_path, "Deployment/penstock-allocator") as lab:
        await lab.submit()
        server.delete(Key("deployments", NAMESPACE, "penstock-allocator"))
        assert [key.resource for key in server.objects] == ["nodes", "secrets", "pods"], "its node ends it first"
        server.delete(lab.pod(), 0)
        assert [key.resource for key in server.objects] == ["nodes"]
    async with pilots(tmp_path, "Job/x") as other:
        with pytest.raises(SubmissionRefused, match="kubernetes_owner is 'Job/x'"):
            await other.submit()


async def test_a_service_accounts_namespace_is_that_of_its_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with KubeServer(tmp_path / "account").serving() as server:
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
        assert await KubernetesApi(tmp_path / "account").namespace() == "lab"


async def test_pods_are_in_the_namespace_of_the_settings_where_their_allocation_names_none(
    server: KubeServer, tmp_path: Path
) -> None:
    async with pilots(tmp_path, namespace="pilots") as lab:
        assert (await lab.submit()).startswith("pilots/")
    async with pilots(tmp_path, namespace="pilots", pod_namespace="others") as lab:
        assert (await lab.submit()).startswith("others/")


async def test_a_template_is_laid_over_the_pod(server: KubeServer, tmp_path: Path) -> None:
    template = {
        "metadata": {"labels": {"team": "vision"}},
        "spec": {
            "nodeSelector": {"gpu": "a100"},
            "tolerations": [{"key": GPUS, "operator": "Exists"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            "containers": [{"name": "pilot", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
            "runtimeClassName": "nvidia",
        },
    }
    async with pilots(tmp_path, template=template, claim="saved") as lab:
        await lab.submit()
    pod = server.get(lab.pod())
    assert pod["metadata"]["labels"]["team"] == "vision"
    assert [volume["name"] for volume in pod["spec"]["volumes"]] == ["login", "shared-memory", "checkpoints", "data"]
    [container] = pod["spec"]["containers"]
    assert container["volumeMounts"][-1] == {"name": "data", "mountPath": "/data"}
    assert container["resources"] == {"limits": {GPUS: "1"}}
    assert (pod["spec"]["runtimeClassName"], pod["spec"]["nodeSelector"]) == ("nvidia", {"gpu": "a100"})


async def test_a_template_takes_nothing_away_that_makes_a_pod_a_pilots(server: KubeServer, tmp_path: Path) -> None:
    mine = {"name": "pilot", "command": None, "volumeMounts": None, "workingDir": "/tmp"}
    beside = {"name": "beside", "image": "x", "securityContext": RESTRICTED}
    template = {"metadata": {"labels": None}, "spec": {"volumes": None, "containers": [mine, beside]}}
    async with pilots(tmp_path, template=template) as lab:
        await lab.submit()
        await lab.until("waiting")
        pod = server.get(lab.pod())
    assert pod["metadata"]["labels"]["penstock.dev/pilot"] == lab.pod().name
    assert [volume["name"] for volume in pod["spec"]["volumes"]] == ["login", "shared-memory"]
    first, second = pod["spec"]["containers"]
    assert first["command"][:2] == ["bash", "-c"]
    assert [mount["name"] for mount in first["volumeMounts"]] == ["login", "shared-memory"]
    assert (first["workingDir"], second["name"]) == ("/tmp", "beside")


async def test_a_trial_leaves_nothing(server: KubeServer, tmp_path: Path) -> None:
    async with pilots(tmp_path) as lab:
        write_pilot(lab.place(1), lab.allocation, "lab-1", TOKEN)
        assert "would be made in namespace lab" in await lab.provider.try_out(lab.allocation.spec, lab.place(1))
    assert not server.pods()


async def test_the_role_in_the_docs_is_all_that_is_needed(server: KubeServer, tmp_path: Path) -> None:
    blocks = (DOCS / "kubernetes.md").read_text().split("```yaml\n")[1:]
    [role] = [found for block in blocks if (found := yaml.safe_load(block.partition("```")[0])).get("kind") == "Role"]
    server.rules["pilots"] = {
        (verb, resource) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]
    }
    server.create("deployments", NAMESPACE, {"metadata": {"name": "penstock"}, "spec": {}})
    async with pilots(tmp_path, "Deployment/penstock") as lab, pilots(tmp_path, "Deployment/penstock") as later:
        await lab.submit()
        await later.submit()
        server.break_watches()
        await lab.provider.try_out(lab.allocation.spec, lab.place(1))
        ran(server, lab.pod(), {"terminated": {"exitCode": 0}}, phase="Succeeded")
        await lab.until("ended")
        await lab.clear()
    assert not server.pods()
    used = {(verb, resource) for verb, resource, _ in server.asked}
    assert used | {("delete", "secrets")} == server.rules["pilots"], "and no more than that"


async def test_what_a_submission_has_left_that_nobody_answered_is_cleared_by_its_name(
    server: KubeServer, tmp_path: Path
) -> None:
    async with pilots(tmp_path) as lab:
        server.is_quota_busy = True
        with pytest.raises(ProviderSilent):
            await lab.submit()
        assert [key for key in server.objects if key.resource == "secrets"] == [lab.secret()]
    async with pilots(tmp_path) as later:
        await later.clear()
        assert not [key for key in server.objects if key.resource in {"pods", "secrets"}]
        await later.clear()  # it may be asked for twice


async def test_a_login_that_has_ended_is_read_again(server: KubeServer, tmp_path: Path) -> None:
    async with pilots(tmp_path) as lab:
        await lab.submit()
        server.unknown.add("pilots")
        server.break_watches()
        with pytest.raises(ProviderSilent):
            await lab.submit(2)
        server.kubeconfig(tmp_path / "kubeconfig", "renewed")

        async def submitted() -> bool:
            with suppress(ProviderSilent):  # the watch logs in anew, too, and closes what it finds open
                return bool(await lab.submit(2))
            return False

        await eventually(submitted)
        ran(server, lab.pod(), {"running": {}}, phase="Running")
        await lab.until("running")


async def test_a_cluster_that_cannot_be_reached_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    async with pilots(tmp_path) as lab:
        with pytest.raises(ProviderSilent, match="there is no login to a cluster"):
            await lab.job()
    with KubeServer().serving() as server:
        server.away = True
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path / "kubeconfig")))
        async with pilots(tmp_path) as lab:
            with pytest.raises(ProviderSilent, match="the API server is not reached"):
                await lab.job()
