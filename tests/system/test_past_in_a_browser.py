"""The past, what if, and accounts on the dashboard of a real cluster with real jobs, in a real browser."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from clusters import Cluster, running, until
from dashboards import BrowserSession, browser

from penstock_log.views import SignInView

PATHS = ("/timeline", "/users", "/what-if", "/queue?at=1", "/timeline?at=3", "/users?at=3")
LONG = ("sleep", "600")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_EXECUTOR_DEVICES", "fast:4@1.0:16GiB,slow:2@0.4:16GiB")
        patch.setenv("PENSTOCK_DASHBOARD_PORT", "0")
        with running(tmp_path_factory.mktemp("p")) as one:
            yield one


async def key(cluster: Cluster) -> SignInView:
    async with cluster.client() as client:
        return await client.sign_in()


@pytest_asyncio.fixture
async def opened(cluster: Cluster) -> AsyncIterator[BrowserSession]:
    async with browser((await key(cluster)).dashboard) as session:
        yield session


async def path_of_key(cluster: Cluster) -> str:
    answer = await key(cluster)
    return answer.url.removeprefix(answer.dashboard)


async def test_the_slider_shows_the_past_and_leads_back_to_now(cluster: Cluster, opened: BrowserSession) -> None:
    async with opened.tab(await path_of_key(cluster)) as tab, cluster.client() as client:
        job = await client.submit(name="past", command=("true",), gpus=4, kinds=("fast",))
        await until(client, job.id, "job.finished.v1")
        row = f"[data-region=rows] [data-key='{job.id}']"
        await tab.open("/jobs")
        await tab.page.wait_for_selector(row)
        await tab.page.evaluate("window.same = true")
        await tab.page.focus("#slider")
        await tab.page.keyboard.press("Home")
        await tab.page.wait_for_selector("form.moment.past")
        await tab.page.wait_for_selector(row, state="detached")
        assert "at=" in tab.page.url
        assert await tab.page.evaluate("document.activeElement.id") == "slider"
        assert await tab.page.locator("#liveness").inner_text() == "a past moment"
        links = await tab.page.locator("header nav a").evaluate_all("links => links.map(link => link.search)")
        assert all("at=" in link for link in links)
        await tab.page.keyboard.press("End")
        await tab.page.wait_for_selector("form.moment:not(.past)")
        await tab.page.wait_for_selector(row)
        await tab.page.wait_for_selector("body[data-connected]")
        assert "at=" not in tab.page.url
        await tab.page.go_back()
        await tab.page.wait_for_selector("form.moment.past")
        assert await tab.page.evaluate("window.same"), "the page was loaded anew"


async def test_the_past_is_reached_without_scripts(cluster: Cluster, opened: BrowserSession) -> None:
    async with opened.tab(java_script_enabled=False) as tab:
        await tab.open("/jobs", live=False)
        assert not await tab.page.is_visible("#slider")
        await tab.page.fill("input[name=at]", "1")
        await tab.page.click("form.moment button")
        await tab.page.wait_for_selector("form.moment.past")
        await tab.page.click("text=Back to now")
        await tab.page.wait_for_selector("form.moment:not(.past)")


async def test_the_timeline_shows_a_job_while_it_runs_and_opens_it(cluster: Cluster, opened: BrowserSession) -> None:
    async with opened.tab(await path_of_key(cluster)) as tab, cluster.client() as client:
        await tab.open("/timeline")
        job = await client.submit(name="drawn", command=LONG, gpus=2, kinds=("fast",))
        bars = f".drawing a[href^='/jobs/{job.id}']"
        await tab.page.wait_for_function(f'document.querySelectorAll("{bars}").length == 2')
        await tab.page.locator(bars).first.focus()
        assert f"{job.id} drawn" in await tab.page.locator("#detail").inner_text()
        await tab.page.keyboard.press("-")
        await tab.page.wait_for_url("**/timeline?**since=**")
        await tab.page.wait_for_selector(bars)
        await client.cancel(job.id)
        await tab.page.locator(bars).first.press("Enter")
        await tab.page.wait_for_url(f"**/jobs/{job.id}")


async def test_a_replay_ends_with_the_comparison(cluster: Cluster, opened: BrowserSession) -> None:
    async with opened.tab(await path_of_key(cluster)) as tab, cluster.client() as client:
        for number in range(3):
            job = await client.submit(name=f"r{number}", command=("sleep", "1"), gpus=4, kinds=("fast",))
        await until(client, job.id, "job.finished.v1")
        await tab.open("/what-if")
        await tab.page.select_option("select[name=policy]", "fifo")
        await tab.page.fill("input[name=more]", "4")
        await tab.page.select_option("select[name=kind]", "fast")
        await tab.page.click("button.primary")
        await tab.page.wait_for_selector("section[aria-label=Comparison]")
        rows = await tab.page.locator("section[aria-label=Comparison] table").first.inner_text()
        assert "as it was" in rows
        assert "fifo" in rows
        assert await tab.violations() == []


async def test_the_file_of_device_time_is_that_of_the_command_line(cluster: Cluster, opened: BrowserSession) -> None:
    async with cluster.client() as client:
        at = (await client.status()).last_seq
    async with opened.tab(await path_of_key(cluster)) as tab:
        await tab.open(f"/users?by=user&since=all&at={at}", live=False)
        async with tab.page.expect_download() as loading:
            await tab.page.click("text=CSV")
        found = (await (await loading.value).path()).read_text()
    printed = cluster.run("usage", "--by", "user", "--since", "all", "--at", str(at), "-o", "csv").stdout
    assert found == printed
    assert list(csv.DictReader(io.StringIO(found)))


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
async def test_the_pages_are_accessible(cluster: Cluster, opened: BrowserSession, width: int, scheme: str) -> None:
    async with cluster.client() as client:
        jobs = [await client.submit(name=f"a{number}", command=LONG, gpus=2) for number in range(5)]
        await until(client, jobs[0].id, "run.started.v1")
    async with opened.tab(await path_of_key(cluster), width=width, scheme=scheme) as tab:
        for path in PATHS:
            await tab.open(path, live=False)
            assert await tab.violations() == [], path
            wide = await tab.page.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            assert wide <= 0, f"{path} is wider than the window by {wide} px"
    async with cluster.client() as client:
        for job in jobs:
            await client.cancel(job.id)
