"""The pages of jobs and sweeps of a real cluster, in a real browser: what runs report and print arrives meanwhile."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest
import pytest_asyncio
from clusters import Cluster, cluster_with, command_of, until
from dashboards import BrowserSession, Tab, browser

import penstock
from penstock_bus import NoResponders, Timeout
from penstock_log import subjects
from penstock_log.views import SignInView

TRAINING = """
import sys, time
import penstock

with penstock.session() as session:
    print("begins with <script>document.title = 'taken'</script>", flush=True)
    print("x" * 1_000_000, flush=True)
    sys.stdout.buffer.write(bytes(range(256)) + b"\\n")
    for step in session.iterations(range(int(session.params.get("steps", 10_000)))):
        session.report(loss=1 / (1 + step))
        print(f"step {step} is done", flush=True)
        time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster_with("fast:4@1.0:16GiB", tmp_path_factory.mktemp("d")) as running:
        yield running


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The command of a training that reports and prints."""
    return command_of(TRAINING, tmp_path_factory.mktemp("job"))


@pytest_asyncio.fixture
async def client(cluster: Cluster) -> AsyncIterator[penstock.Client]:
    async with cluster.client() as connected:
        yield connected


@pytest_asyncio.fixture
async def tab(client: penstock.Client) -> AsyncIterator[Tab]:
    """A tab that is signed in; no error may be shown in it."""
    answer = await client.sign_in()
    async with browser(answer.dashboard) as session, session.tab(path_of(answer)) as opened:
        yield opened


@pytest_asyncio.fixture
async def opened(client: penstock.Client) -> AsyncIterator[BrowserSession]:
    async with browser((await client.sign_in()).dashboard) as session:
        yield session


def path_of(answer: SignInView) -> str:
    return answer.url.removeprefix(answer.dashboard)


async def test_points_and_lines_arrive_while_one_looks(
    client: penstock.Client, tab: Tab, training: tuple[str, str]
) -> None:
    job = await client.submit(name="seen", command=training, profile="off")
    await until(client, job.id, "run.started.v1")
    await tab.open(f"/jobs/{job.id}")
    await tab.page.wait_for_selector("figure[data-chart=loss][data-drawn] canvas")
    points = "JSON.parse([...document.querySelectorAll('tr[data-chart=loss]')].at(-1).dataset.points).at(-1)[0]"
    seen = await tab.page.evaluate(points)
    await tab.page.wait_for_function(f"{points} > {seen}")
    lines = "[...document.querySelectorAll('[data-output] p')].at(-1)?.textContent ?? ''"
    await tab.page.wait_for_function(f"{lines}.startsWith('step')")
    printed = await tab.page.evaluate(lines)
    await tab.page.wait_for_function(f"{lines} !== {printed!r}")
    await tab.page.check("input[name=axis][value=time]")
    assert await tab.page.title() == f"Job {job.id} · seen · Penstock"
    await client.cancel(job.id)
    await tab.page.wait_for_function("document.getElementById('output-state').textContent.endsWith('has ended')")


async def test_a_job_is_held_and_cancelled_by_the_buttons_of_its_page(
    client: penstock.Client, tab: Tab, training: tuple[str, str]
) -> None:
    job = await client.submit(name="acted", command=training, gpus=64, profile="off")
    await tab.open(f"/jobs/{job.id}")
    await tab.page.click("button[value=hold]")
    await until(client, job.id, "job.held.v1")
    await tab.page.wait_for_selector("button[value=release]")
    await tab.page.click("button[value=cancel]")
    await until(client, job.id, "job.cancelled.v1")
    await tab.page.wait_for_selector("text=cancelled")
    await tab.page.wait_for_function("!document.querySelector('button[name=verb]')")


async def test_output_is_searched_without_scripts_and_downloaded(
    client: penstock.Client, opened: BrowserSession, training: tuple[str, str]
) -> None:
    job = await client.submit(name="printed", command=training, params={"steps": 3}, profile="off")
    await until(client, job.id, "job.finished.v1")
    cookies = {}
    async with opened.tab(path_of(await client.sign_in())) as signed:
        cookies = await signed.page.context.storage_state()
        await signed.open(f"/jobs/{job.id}")
        async with signed.page.expect_download() as download:
            await signed.page.click("text=Download")
        text = Path(await (await download.value).path()).read_bytes()
    assert text.count(b"\n") >= 6
    assert b"x" * 1_000_000 in text
    assert bytes(range(256)) in text
    async with opened.tab(java_script_enabled=False, storage_state=cookies) as plain:
        await plain.open(f"/jobs/{job.id}", live=False)
        await plain.page.fill("input[name=q]", "STEP 2")
        await plain.page.click("text=Search >> nth=-1")
        assert await plain.page.locator(".log p").all_inner_texts() == ["step 2 is done"]
        await plain.open(f"/jobs/{job.id}/log", live=False)
        assert "\ufffd" in await plain.page.inner_text(".log")
        assert await plain.page.title() == f"Output of job {job.id} · printed · Penstock"


async def test_a_line_of_the_story_shows_the_page_as_it_was(
    client: penstock.Client, tab: Tab, training: tuple[str, str]
) -> None:
    job = await client.submit(name="past", command=training, params={"steps": 3}, profile="off")
    await until(client, job.id, "job.finished.v1")
    await tab.open(f"/jobs/{job.id}")
    await tab.page.click("[data-region=story] li:last-child a")
    await tab.page.wait_for_selector("text=Back to now")
    assert (await tab.page.inner_text("[data-key=state] dd")).startswith("waiting")


async def test_a_sweep_shows_its_curves_and_is_cancelled_from_its_page(
    client: penstock.Client, tab: Tab, training: tuple[str, str]
) -> None:
    sweep = await client.tune(
        name="curves",
        job={"name": "trial", "command": training, "profile": "off"},
        space={"lr": {"kind": "choice", "values": [0.1, 0.2]}},
        metric="loss",
        mode="min",
        trials=2,
    )
    await until(client, f"{sweep.id}-t000", "run.started.v1")
    await tab.open("/sweeps")
    await tab.page.click(f"text={sweep.id}")
    await tab.page.wait_for_selector("figure[data-chart=curves][data-drawn] canvas")
    await tab.page.click("button[value=cancel_sweep]")
    await until(client, sweep.id, "sweep.finished.v1")
    await tab.page.wait_for_function("document.querySelector('[data-key=state] dd').textContent === 'cancelled'")


@pytest_asyncio.fixture
async def paths(client: penstock.Client, training: tuple[str, str]) -> AsyncIterator[dict[str, str]]:
    """What it is → the path of a page, with a job that runs, one that waits, and a sweep that is over."""
    running = await client.submit(name="running", command=training, profile="off")
    waiting = await client.submit(name="waiting", command=training, gpus=64, profile="off")
    sweep = await client.tune(
        name="swept",
        job={"name": "trial", "command": training, "params": {"steps": 3}, "profile": "off"},
        space={"lr": {"kind": "choice", "values": [0.1, 0.2]}},
        metric="loss",
        mode="min",
        trials=2,
    )
    await until(client, sweep.id, "sweep.finished.v1")
    seq = (await client.job(running.id)).seq
    yield {
        "running": f"/jobs/{running.id}",
        "output": f"/jobs/{running.id}/log?lines=20",
        "facts": f"/jobs/{running.id}/events?after=0",
        "past": f"/jobs/{running.id}?at={seq}",
        "waiting": f"/jobs/{waiting.id}",
        "sweeps": "/sweeps",
        "sweep": f"/sweeps/{sweep.id}",
    }
    for job in (running, waiting):
        await client.cancel(job.id)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
async def test_pages_of_jobs_and_sweeps_are_accessible(
    client: penstock.Client, opened: BrowserSession, paths: dict[str, str], width: int, scheme: str
) -> None:
    async with opened.tab(path_of(await client.sign_in()), width=width, scheme=scheme) as signed:
        for what in ("running", "sweep", "output"):
            await look(signed, paths[what])


async def test_their_other_pages_are_accessible(
    client: penstock.Client, opened: BrowserSession, paths: dict[str, str]
) -> None:
    async with opened.tab(path_of(await client.sign_in())) as signed:
        for what in ("waiting", "sweeps", "facts", "past"):
            await look(signed, paths[what])
    async with opened.tab() as anonymous:
        await look(anonymous, paths["running"])


async def look(tab: Tab, path: str) -> None:
    await tab.open(path, live=False)
    assert await tab.page.locator("h1").count() == 1
    assert await tab.violations() == [], path
    wide = await tab.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, f"{path} is wider than the window by {wide} px"


async def test_charts_of_a_job_outlive_the_job_and_the_dashboard(
    cluster: Cluster, client: penstock.Client, training: tuple[str, str]
) -> None:
    job = await client.submit(name="kept", command=training, params={"steps": 30}, profile="off")
    await until(client, job.id, "job.finished.v1")
    [pid] = cluster.pids("dashboard")
    os.kill(pid, signal.SIGKILL)
    answer = await signed_in_to_the_next(client)
    async with browser(answer.dashboard) as session, session.tab(path_of(answer)) as tab:
        await tab.open(f"/jobs/{job.id}")
        await tab.page.wait_for_selector("figure[data-chart=loss][data-drawn] canvas")
        points = "JSON.parse([...document.querySelectorAll('tr[data-chart=loss]')].at(-1).dataset.points)"
        found = await tab.page.evaluate(points)
        assert (found[0][0], found[-1][0]) == (1, 30)


async def signed_in_to_the_next(client: penstock.Client) -> SignInView:
    """Sign in to the dashboard that is started in place of one that is gone."""
    async with aclosing(client.bus.subscribe(subjects.replicas("dashboard"))) as heartbeats:  # type: ignore[type-var]
        while True:
            try:
                return await client.sign_in()
            except (NoResponders, Timeout):
                await anext(heartbeats)
