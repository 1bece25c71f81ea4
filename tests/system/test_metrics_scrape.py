"""A real Prometheus that scrapes a real cluster, and evaluates every alert rule and every query of the dashboard."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
import urllib.parse
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from clusters import Cluster, running
from scrapes import Scrape, get

import penstock
from penstock_bus.health import parse_vitals
from penstock_bus.identity.logins import read_login
from penstock_bus.nats import connect
from penstock_dashboard.metric_catalogue import CATALOGUE, OF_REPLICAS
from penstock_log import AllocationSpec, JobSpec, subjects
from penstock_log.device_samples import DeviceReading, DeviceSample, DevicesSampled, DeviceUser
from penstock_testing import eventually, free_port

pytestmark = pytest.mark.thorough

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus/alerts.yaml"
GRAFANA = DEPLOY / "grafana/penstock.json"
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None,
    reason="no `prometheus` is installed: neither the alert rules nor the dashboard's queries were tried on one",
)
WAIT_S = 60.0


def panels() -> list[dict[str, Any]]:
    return [panel for panel in json.loads(GRAFANA.read_text())["panels"] if panel["type"] != "row"]


def queries() -> list[tuple[str, str]]:
    """The queries of all panels, as Grafana asks them of Prometheus."""
    found = [(panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]]
    return [(title, expr.replace("$pool", ".*").replace("$__rate_interval", "1m")) for title, expr in found]


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


class Prometheus:
    """A server of its own, with the deployed rules, that scrapes one address."""

    def __init__(self, folder: Path, target: str) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yaml").read_text())
        config["global"] = {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(RULES)]
        config["scrape_configs"][0] |= {"static_configs": [{"targets": [target]}], "scrape_timeout": "2s"}
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
        self.command = ["prometheus", f"--config.file={folder / 'prometheus.yaml'}", "--log.level=warn"]
        self.command += [f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address={self.url[7:]}"]

    @contextlib.contextmanager
    def running(self) -> Iterator[Prometheus]:
        process = subprocess.Popen(self.command)
        try:
            yield self
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)

    async def ask(self, path: str, **arguments: str) -> Any:
        """Return what its HTTP interface answers; an error fails the test with its text."""
        answer = await get(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(arguments)}")
        assert answer.status == 200, f"{arguments}: {answer.text}"
        return json.loads(answer.text)["data"]

    async def query(self, expr: str) -> list[dict[str, Any]]:
        return (await self.ask("query", query=expr))["result"]

    async def has(self, expr: str) -> bool:
        return bool(await self.query(expr))

    async def is_ready(self) -> bool:
        try:
            return (await get(f"{self.url}/-/ready")).status == 200
        except OSError:  # it does not listen yet
            return False


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_DASHBOARD_PORT", "0")
        patch.setenv("PENSTOCK_EXECUTOR_DEVICE_SAMPLE_S", "0.5")
        with running(tmp_path_factory.mktemp("scrape") / "data", "--emulate", "fast:3@1.0:4GiB") as it:
            yield it


async def address(cluster: Cluster) -> str:
    """Return where the cluster's dashboard listens, as its heartbeats say."""
    async with connect(cluster.url, login=read_login(cluster.data / "nats/logins/dashboard.json")) as bus:
        async for _, body in bus.subscribe(subjects.replicas("dashboard")):
            vitals = parse_vitals(body)
            if vitals is not None and (found := re.search(r"http://(\S+)", vitals.note)):
                return found[1]
    raise AssertionError("the subscription does not end")


def python(code: str, **more: Any) -> JobSpec:
    command = (sys.executable, "-c", code)
    return JobSpec(**{"name": "job", "command": command, "profile": "off", "team": "vision", **more})


LOOP = "import penstock, time\nwith penstock.session() as s:\n for i in s.iterations(range(100000)): time.sleep(0.01)\n"


async def busy(client: penstock.Client) -> None:
    """Have jobs that completed, failed, run, share a device, and wait, and an allocation that nobody needs."""
    await client.add_allocation("lab", AllocationSpec(provider="local", pool="elsewhere"))
    done = [await client.submit(python("print(1)")) for _ in range(3)]
    failed = await client.submit(python("raise SystemExit(3)", retries=0))
    for one in (*done, failed):
        await client.wait(one.id)
    await client.submit(python("while True: pass"))
    for _ in range(2):
        await client.submit(python(LOOP, sharing="lane", team="text"))
    await client.submit(python("print(1)", gpus=3, team=""))


@contextlib.asynccontextmanager
async def gpu_node(cluster: Cluster) -> AsyncIterator[None]:
    """Tell of a node with a GPU, as its executor would: there is none here."""
    reading = DeviceReading(
        source="driver", model="NVIDIA H100", minor=0, utilisation=0.9, memory_used_bytes=1 << 34, xid=79,
        memory_free_bytes=1 << 34, memory_total_bytes=1 << 35, temperature_c=60.0, power_w=300.0, sm_clock_mhz=1980.0,
        ecc_double_bit=1,
    )  # fmt: skip
    sample = DeviceSample(
        index=0, kind="h100", backend="cuda", uuid="GPU-1", users=(DeviceUser("j", "ann", "vision"),), reading=reading
    )
    told = msgspec.json.encode(DevicesSampled(node_id="gpu1", host="gpu1", at_s=0.0, devices=(sample,)))

    async def tell() -> None:
        async with connect(cluster.url, login=read_login(cluster.data / "nats/logins/executor.json")) as bus:
            while True:
                await bus.publish(subjects.devices("gpu1"), told)
                await asyncio.sleep(0.5)

    telling = asyncio.create_task(tell())
    try:
        yield
    finally:
        telling.cancel()


@needs_prometheus
async def test_every_rule_and_every_query_is_answered_by_a_real_prometheus(cluster: Cluster, tmp_path: Path) -> None:
    async with cluster.client() as client, gpu_node(cluster):
        await busy(client)
        with Prometheus(tmp_path, await address(cluster)).running() as prometheus:
            await eventually(prometheus.is_ready, within_s=WAIT_S)
            await eventually(lambda: prometheus.has("up == 1"), within_s=WAIT_S)
            await eventually(lambda: prometheus.has("sum(penstock_lane_members) == 2"), within_s=WAIT_S)
            await eventually(lambda: prometheus.has("rate(penstock_append_seconds_count[1m]) >= 0"), within_s=WAIT_S)
            await eventually(lambda: prometheus.has('penstock_jobs{state="pending",team=""} == 1'), within_s=WAIT_S)
            answers = [(title, expr, await prometheus.query(expr)) for title, expr in queries()]
            assert [(title, expr) for title, expr, found in answers if not found] == []
            for rule in rules():
                await prometheus.query(rule["expr"])

            async def evaluated() -> bool:
                groups = (await prometheus.ask("rules"))["groups"]
                return all(rule["health"] != "unknown" for group in groups for rule in group["rules"])

            await eventually(evaluated, within_s=WAIT_S)
            groups = (await prometheus.ask("rules"))["groups"]
            told = {rule["name"]: rule for group in groups for rule in group["rules"]}
            assert told.keys() == {rule["alert"] for rule in rules()}
            assert [rule["lastError"] for rule in told.values() if rule["health"] != "ok"] == []
            firing = {name for name, rule in told.items() if rule["alerts"]}
            assert {"PenstockXidError", "PenstockDoubleBitErrors"} <= firing
            assert {"PenstockDown", "PenstockServiceNotReady", "PenstockNoLeader", "PenstockFiguresMissing"}.isdisjoint(
                firing
            )


async def test_every_metric_of_a_real_cluster_is_in_the_catalogue_with_its_labels(cluster: Cluster) -> None:
    async with cluster.client(), gpu_node(cluster):
        url = f"http://{await address(cluster)}/metrics"
        scrape = Scrape(0, "", "")

        async def told() -> bool:
            nonlocal scrape
            scrape = await get(url)
            return bool(scrape.values("DCGM_FI_DEV_GPU_UTIL") and scrape.values("penstock_outbox_facts"))

        await eventually(told, within_s=WAIT_S)
    found = {}
    for family in scrape.families.values():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        kind = CATALOGUE[name]
        assert (name, kind.type, kind.help) == (name, family.type, family.documentation)
        found[name] = {frozenset(sample.labels) - {"le"} for sample in family.samples}
        assert found[name] <= {frozenset(kind.labels)}, name
    of_decisions = {kind.name for kind in OF_REPLICAS if "pool" in kind.labels}
    assert {name for name in CATALOGUE if name not in found} <= of_decisions


@needs_prometheus
def test_promtool_finds_nothing_wrong_with_rules_and_configuration() -> None:
    for command in (["rules", RULES], ["config", DEPLOY / "prometheus/prometheus.yaml"]):
        done = subprocess.run(["promtool", "check", *map(str, command)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
