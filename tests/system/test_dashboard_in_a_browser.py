"""The dashboard of a real cluster with real jobs, in a real browser."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from clusters import Cluster, running, until
from dashboards import BrowserSession, browser

from penstock_log.views import SignInView

PATHS = ("/", "/queue", "/jobs", "/sign-in")
LONG = ("sleep", "600")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_EXECUTOR_DEVICES", "fast:4@1.0:16GiB,slow:2@0.4:16GiB")
        patch.setenv("PENSTOCK_DASHBOARD_PORT", "0")
        with running(tmp_path_factory.mktemp("d")) as one:
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


async def test_a_job_appears_on_its_devices_and_leaves_them_while_one_looks(
    cluster: Cluster, opened: BrowserSession
) -> None:
    async with opened.tab() as tab, cluster.client() as client:
        await tab.open("/")
        job = await client.submit(name="seen", command=LONG, gpus=2)
        await tab.page.wait_for_function(f"document.querySelectorAll('a.lane[href^=\"/jobs/{job.id}\"]').length == 2")
        assert await tab.page.locator("[data-region=counts] [data-key=busy] dd").inner_text() == "2"
        await client.cancel(job.id)
        await tab.page.wait_for_function(f"!document.querySelector('a.lane[href^=\"/jobs/{job.id}\"]')")


async def test_jobs_that_were_chosen_are_cancelled_by_a_button(cluster: Cluster, opened: BrowserSession) -> None:
    async with opened.tab(await path_of_key(cluster)) as tab, cluster.client() as client:
        holder = await client.submit(name="holder", command=LONG, gpus=4, kinds=("fast",))
        await until(client, holder.id, "run.started.v1")
        waiting = [await client.submit(name=f"w{number}", command=LONG, gpus=4, kinds=("fast",)) for number in range(3)]
        await tab.open("/queue")
        for job in waiting[:2]:
            await tab.page.check(f"input[value='{job.id}']")
        assert await tab.page.locator("[data-chosen]").inner_text() == "2 chosen jobs"
        await tab.page.click("button[value=cancel]")
        await asyncio.gather(*(until(client, job.id, "job.cancelled.v1") for job in waiting[:2]))
        await tab.page.wait_for_selector("body[data-connected]")
        rows = await tab.page.locator("[data-region=rows] tr").evaluate_all("rows => rows.map(row => row.dataset.key)")
        assert rows == [waiting[2].id]
        for job in (waiting[2], holder):
            await client.cancel(job.id)


async def test_what_was_chosen_stays_chosen_while_the_list_changes(cluster: Cluster, opened: BrowserSession) -> None:
    async with opened.tab(await path_of_key(cluster)) as tab, cluster.client() as client:
        holder = await client.submit(name="holder", command=LONG, gpus=4, kinds=("fast",))
        await until(client, holder.id, "run.started.v1")
        job = await client.submit(name="chosen", command=LONG, gpus=4, kinds=("fast",))
        await tab.open("/queue")
        await tab.page.check(f"input[value='{job.id}']")
        more = await client.submit(name="more", command=LONG, gpus=4, kinds=("fast",))
        await tab.page.wait_for_selector(f"[data-key='{more.id}']")
        await client.hold(job.id)
        await tab.page.wait_for_function(
            f"""document.querySelector("[data-key='{job.id}']").textContent.includes("on hold")"""
        )
        assert await tab.page.is_checked(f"input[value='{job.id}']")
        for one in (job, more, holder):
            await client.cancel(one.id)


async def test_lists_are_read_without_scripts(cluster: Cluster, opened: BrowserSession) -> None:
    async with cluster.client() as client:
        job = await client.submit(name="plain", command=LONG, gpus=1)
        await until(client, job.id, "run.started.v1")
    async with opened.tab(java_script_enabled=False) as tab:
        await tab.open("/jobs", live=False)
        assert await tab.page.locator(f"[data-key='{job.id}']").count() == 1
    async with cluster.client() as client:
        await client.cancel(job.id)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
async def test_pages_are_accessible(cluster: Cluster, opened: BrowserSession, width: int, scheme: str) -> None:
    async with cluster.client() as client:
        jobs = [await client.submit(name=f"a{number}", command=LONG, gpus=2) for number in range(5)]
        await until(client, jobs[0].id, "run.started.v1")
    async with opened.tab(await path_of_key(cluster), width=width, scheme=scheme) as tab:
        for path in PATHS:
            await tab.open(path, live=path != "/sign-in")
            assert await tab.violations() == [], path
            wide = await tab.page.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            assert wide <= 0, f"{path} is wider than the window by {wide} px"
    async with cluster.client() as client:
        for job in jobs:
            await client.cancel(job.id)
