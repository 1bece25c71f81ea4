import asyncio
import contextlib

import msgspec
import pytest
from gateway_cases import NOW_S, ended, gateway, joined, placed, started, submitted
from scrapes import OPEN_METRICS, Scrape, dashboard, get

from penstock_bus import Endpoint, Reply, Request
from penstock_bus.health import Vitals
from penstock_bus.memory import MemoryBus, MemoryServer
from penstock_bus.shell import Shell
from penstock_dashboard.replica_metrics import ReplicaAnswers, merged, of_heartbeats
from penstock_dashboard.settings import DashboardSettings
from penstock_log import subjects
from penstock_log.totals import PoolTotals
from penstock_log.views import PoolStatsView, StatsView
from penstock_testing import eventually


@contextlib.asynccontextmanager
async def replicas(server, *named):
    """Run shells that serve their health."""
    async with contextlib.AsyncExitStack() as stack:
        shells = [Shell(MemoryBus(server), service, replica) for service, replica in named]
        for shell in shells:
            await stack.enter_async_context(shell.serving())
        yield shells


async def scraped(url: str, *, heard: int, **headers: str) -> Scrape:
    """Scrape until so many replicas were heard."""
    found = Scrape(0, "", "")

    async def enough() -> bool:
        nonlocal found
        found = await get(url, **headers)
        return len(found.values("penstock_replica_info")) == heard

    await eventually(enough)
    return found


async def test_every_replica_is_asked_and_labelled_by_who_it_is():
    server = MemoryServer()
    async with (
        replicas(server, ("matcher", "r1"), ("matcher", "r2"), ("ranker", "r1")) as shells,
        dashboard(MemoryBus(server)) as url,
    ):
        for count, shell in enumerate(shells, start=1):
            shell.metrics.counter("penstock_conflicts_total", "Commits refused.").inc(count)
        found = await scraped(url, heard=3)
    assert found.value("penstock_conflicts_total", service="matcher", replica="r1") == 1
    assert found.value("penstock_conflicts_total", service="matcher", replica="r2") == 2
    assert found.value("penstock_conflicts_total", service="ranker", replica="r1") == 3
    assert found.text.count("# TYPE penstock_conflicts_total counter") == 1
    assert found.values("penstock_scrape_missing_replicas", service="matcher") == [0]


async def test_a_cluster_without_replicas_has_none_ready():
    async with dashboard(MemoryBus(MemoryServer())) as url:
        found = await get(url)
    assert found.status == 200
    assert found.value("penstock_replicas_ready", service="gateway") == 0
    assert found.values("penstock_replica_info") == []


@pytest.mark.parametrize(
    ("accept", "content_type", "end"),
    [("text/plain", "text/plain; version=0.0.4", "\n"), (OPEN_METRICS, "application/openmetrics-text", "# EOF\n")],
)
async def test_the_scraper_chooses_the_form(accept, content_type, end):
    server = MemoryServer()
    async with replicas(server, ("matcher", "r1")) as (shell,), dashboard(MemoryBus(server)) as url:
        shell.metrics.counter("penstock_conflicts_total").inc(4)
        shell.metrics.histogram("penstock_append_seconds", "Time.").observe(0.2)
        found = await scraped(url, heard=1, Accept=accept)
    assert found.content_type.startswith(content_type)
    assert found.text.endswith(end)
    assert found.value("penstock_conflicts_total") == 4
    assert found.value("penstock_append_seconds_bucket", le="0.25") == 1


async def test_a_replica_that_is_heard_and_does_not_answer_is_missing():
    server, release = MemoryServer(), asyncio.Event()

    async def hang(_: Request) -> Reply:
        await release.wait()
        return Reply()

    bus = MemoryBus(server)
    silent = Endpoint(name="metrics", subject=subjects.metrics_of("ranker", "r9"), handler=hang)
    async with (
        replicas(server, ("matcher", "r1")),
        bus.serve("silent", "1", [silent]),
        dashboard(MemoryBus(server), deadline_s=0.2) as url,
    ):
        beating = asyncio.create_task(_beat(bus, Vitals(service="ranker", replica="r9", ready=True)))
        found = await scraped(url, heard=2)
        beating.cancel()
        release.set()
    assert found.value("penstock_scrape_missing_replicas", service="ranker") == 1
    assert found.value("penstock_scrape_missing_replicas", service="matcher") == 0
    assert found.value("penstock_replicas_ready", service="ranker") == 1


async def _beat(bus: MemoryBus, vitals: Vitals) -> None:
    while True:
        await bus.publish(subjects.replica(vitals.service, vitals.replica), msgspec.json.encode(vitals))
        await asyncio.sleep(0.05)


async def test_the_scrapers_own_timeout_is_kept():
    server, release = MemoryServer(), asyncio.Event()

    async def hang(_: Request) -> Reply:
        await release.wait()
        return Reply()

    bus = MemoryBus(server)
    silent = Endpoint(name="metrics", subject=subjects.metrics_of("ranker", "r9"), handler=hang)
    async with bus.serve("silent", "1", [silent]), dashboard(MemoryBus(server), deadline_s=3600.0) as url:
        beating = asyncio.create_task(_beat(bus, Vitals(service="ranker", replica="r9")))
        found = await scraped(url, heard=1, X_Prometheus_Scrape_Timeout_Seconds="0.3")
        beating.cancel()
        release.set()
    assert found.value("penstock_scrape_missing_replicas", service="ranker") == 1


def test_an_unreadable_answer_is_missing_and_spoils_no_other():
    texts = {("matcher", "r1"): "what { is this", ("matcher", "r2"): "# TYPE penstock_x gauge\npenstock_x 1\n"}
    families = {family.name: family for family in merged(ReplicaAnswers(texts=texts, missing={}))}
    assert [sample.labels["replica"] for sample in families["penstock_x"].samples] == ["r2"]
    missing = {
        sample.labels["service"]: sample.value for sample in families["penstock_scrape_missing_replicas"].samples
    }
    assert missing["matcher"] == 1


def test_a_replica_cannot_speak_for_another():
    text = '# TYPE penstock_x gauge\npenstock_x{service="gateway",replica="r7"} 1\n'
    families = merged(ReplicaAnswers(texts={("matcher", "r1"): text}, missing={}))
    assert families[0].samples[0].labels == {"service": "matcher", "replica": "r1"}


def test_replicas_that_disagree_about_a_type_leave_one_family():
    texts = {
        ("matcher", "r1"): "# TYPE penstock_x gauge\npenstock_x 1\n",
        ("matcher", "r2"): "# TYPE penstock_x histogram\npenstock_x_count 1\npenstock_x_sum 1\n",
    }
    families = merged(ReplicaAnswers(texts=texts, missing={}))
    assert (families[0].name, families[0].type, len(families[0].samples)) == ("penstock_x", "gauge", 1)


def test_odd_labels_come_through_as_they_are():
    server = Shell(MemoryBus(MemoryServer()), "matcher", "r1")
    odd = 'a"b\\c\nd<script>\x1b'
    server.metrics.gauge("penstock_x", pool=odd).set(1)
    families = merged(ReplicaAnswers(texts={("matcher", "r1"): server.metrics.render()}, missing={}))
    assert families[0].samples[0].labels["pool"] == 'a"b\\c\nd<script>\\x1b'


def test_the_event_lag_is_what_the_heartbeat_lacks_of_the_log():
    beats = [Vitals(service="matcher", replica="r1", last_seq=7), Vitals(service="dashboard", replica="r2")]
    families = {family.name: family for family in of_heartbeats(beats, 10)}
    assert [(s.labels["service"], s.value) for s in families["penstock_replica_event_lag"].samples] == [("matcher", 3)]


def test_leaders_are_counted_where_one_is_to_lead():
    beats = [
        Vitals(service="matcher", replica="r1", elected=True, leading=True),
        Vitals(service="matcher", replica="r2", elected=True),
        Vitals(service="ranker", replica="r3", elected=True),
        Vitals(service="gateway", replica="r4"),
    ]
    families = {family.name: family for family in of_heartbeats(beats, None)}
    leaders = {sample.labels["service"]: sample.value for sample in families["penstock_leaders"].samples}
    assert leaders == {"matcher": 1, "ranker": 0}


@pytest.mark.parametrize(
    ("given", "status"), [("", 401), ("Bearer wrong", 401), ("Basic secret", 401), ("Bearer secret", 200)]
)
async def test_a_token_opens_the_metrics_where_one_is_asked_for(tmp_path, given, status):
    (tmp_path / "token").write_text("secret\n")
    settings = DashboardSettings(port=0, metrics="token", metrics_token_file=str(tmp_path / "token"))
    async with dashboard(MemoryBus(MemoryServer()), settings) as url:
        found = await get(url, **({"Authorization": given} if given else {}))
    assert found.status == status


@pytest.mark.parametrize("content", [None, "", "\n"])
async def test_an_empty_or_missing_token_file_opens_nothing(tmp_path, content):
    if content is not None:
        (tmp_path / "token").write_text(content)
    settings = DashboardSettings(port=0, metrics="token", metrics_token_file=str(tmp_path / "token"))
    async with dashboard(MemoryBus(MemoryServer()), settings) as url:
        found = await get(url, Authorization="Bearer ")
    assert found.status in {401, 503}


async def test_from_elsewhere_the_metrics_are_refused_with_what_to_set():
    async with dashboard(MemoryBus(MemoryServer())) as url:
        near, proxied = await get(url), await get(url, X_Forwarded_For="192.0.2.7")
    assert near.status == 200
    assert proxied.status == 403
    assert "metrics_token_file" in proxied.text


@pytest.mark.parametrize(("metrics", "status"), [("open", 200), ("off", 404)])
async def test_metrics_can_be_open_to_all_or_off(metrics, status):
    async with dashboard(MemoryBus(MemoryServer()), DashboardSettings(port=0, metrics=metrics)) as url:
        found = await get(url, X_Forwarded_For="192.0.2.7")
    assert found.status == status


def test_a_token_without_a_file_is_refused_at_the_start():
    with pytest.raises(ValueError, match="needs metrics_token_file"):
        DashboardSettings(metrics="token")


async def test_the_clusters_figures_come_from_a_gateway_and_keep_their_names():
    bus = MemoryBus(MemoryServer())
    facts = [joined("n1", pool='p"<script>'), joined("n2"), submitted("j1", team="a\nb"), submitted("j2"), placed("j2")]
    done = [started("j2", at_s=NOW_S + 4), ended("j2", at_s=NOW_S + 64)]
    async with gateway(bus, *facts, *done), dashboard(MemoryBus(bus.server)) as url:
        found = await get(url, Accept=OPEN_METRICS)
    assert found.value("penstock_jobs", pool="default", team="a\nb", state="pending") == 1
    assert found.value("penstock_devices", pool='p"<script>', state="idle") == 2
    assert found.value("penstock_jobs_ended_total", outcome="completed", team="") == 1
    assert found.value("penstock_job_wait_seconds_sum", pool="default") == 4
    assert found.value("penstock_job_wait_seconds_bucket", pool="default", le="5.0") == 1
    assert found.value("penstock_job_completion_seconds_count", pool="default") == 1
    assert found.value("penstock_log_last_seq") >= len(facts)
    assert found.value("penstock_scrape_missing_stats") == 0


async def test_without_a_gateway_the_figures_are_missing_and_the_rest_is_there():
    server = MemoryServer()
    async with replicas(server, ("matcher", "r1")), dashboard(MemoryBus(server)) as url:
        found = await scraped(url, heard=1)
    assert found.value("penstock_scrape_missing_stats") == 1
    assert found.values("penstock_jobs") == []


async def test_a_gateway_that_is_behind_has_no_counter_fall():
    answers = [stats_of(seq=9, lost=7), stats_of(seq=8, lost=6), stats_of(seq=10, lost=8)]

    async def answer(_: Request) -> Reply:
        return Reply(body=msgspec.json.encode(answers.pop(0)))

    bus = MemoryBus(MemoryServer())
    served = Endpoint(name="stats", subject=subjects.query("stats"), handler=answer)
    async with bus.serve("gateway", "1", [served]), dashboard(MemoryBus(bus.server)) as url:
        lost = [(await get(url)).value("penstock_runs_lost_total") for _ in range(3)]
    assert lost == [7, 7, 8]


def stats_of(*, seq: int, lost: int) -> StatsView:
    pool = PoolStatsView(pool="default", totals=PoolTotals(runs={"lost": lost}))
    return StatsView(pools=(pool,), seq=seq, last_seq=seq)
