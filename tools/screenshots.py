"""
Screenshots of the dashboard's pages, for the documentation: ``python tools/screenshots.py [FOLDER]``.

A cluster of four emulated devices runs real jobs of several people and a sweep; Chromium shows each page once there is
something to see on it. Needs what `make test` needs, and Debian's ``chromium``.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import msgspec  # noqa: E402
from clusters import Cluster, until  # noqa: E402
from playwright.async_api import async_playwright  # noqa: E402

import penstock  # noqa: E402
from penstock_log import Dimension, JobSpec, SweepSpec, Uniform  # noqa: E402

CHROMIUM: Final = "/usr/bin/chromium"
DEVICES: Final = "fast:2@1.0:16GiB,slow:2@0.4:16GiB"
EXAMPLE: Final = ROOT / "examples" / "digits_mlp.py"
LONG: Final = ("job", "sweep")
"""Pages of which all is shown, however far down it goes."""
PEOPLE: Final = (("ada", "vision"), ("grace", "speech"), ("alan", "vision"))


def training(folder: Path, number: int, steps: int, gpus: int = 1) -> JobSpec:
    """Return a training of a small network."""
    user, team = PEOPLE[number % len(PEOPLE)]
    return JobSpec(
        name=f"digits-{number}",
        command=("python", EXAMPLE.name),
        cwd=str(folder),
        user=user,
        team=team,
        model="mlp",
        profile="off",
        gpus=gpus,
        params={"steps": steps, "lr": 0.05 * (1 + number % 3)},
    )


async def work(client: penstock.Client, folder: Path) -> dict[str, str]:
    """Have the cluster work; return the ids of a job that has ended, one that runs, one that waits, and of a sweep."""
    ended = await client.submit(training(folder, 0, 400))
    if (done := await client.wait(ended.id)).state != "CD":
        raise SystemExit(f"the first job ended as {done.state}: {done.reason}")
    space: dict[str, Dimension] = {"lr": Uniform(low=0.01, high=0.3, log=True)}
    job = msgspec.structs.replace(training(folder, 1, 300), name="trial")
    sweep = await client.tune(SweepSpec(name="rates", job=job, space=space, metric="accuracy", mode="max", trials=6))
    running = await client.submit(training(folder, 1, 20_000))
    await until(client, running.id, "run.started.v1")
    waiting = [await client.submit(training(folder, number, 20_000, gpus=1 + number % 2)) for number in range(2, 9)]
    return {"ended": ended.id, "running": running.id, "waiting": waiting[-1].id, "sweep": sweep.id}


async def shoot(cluster: Cluster, jobs_folder: Path, folder: Path) -> None:
    """Take the pictures of a cluster whose jobs work in a folder."""
    async with cluster.client() as client:
        ids = await work(client, jobs_folder)
        key = await client.sign_in()
        pages = {
            "devices": "/",
            "queue": "/queue",
            "jobs": "/jobs",
            "job": f"/jobs/{ids['running']}",
            "sweep": f"/sweeps/{ids['sweep']}",
            "timeline": "/timeline",
            "users": "/users",
        }
        async with async_playwright() as driver:
            chromium = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page = await chromium.new_page(viewport={"width": 1280, "height": 800})
            await page.goto(key.url)
            await page.click("form[action='/sign-in'] button")
            await page.wait_for_url(f"{key.dashboard}/")
            for name, address in pages.items():
                answer = await page.goto(key.dashboard + address)
                if answer is None or answer.status != 200:
                    raise SystemExit(f"{address} was answered with {answer.status if answer else 'nothing'}")
                await page.wait_for_selector("body[data-connected], body:not([data-live])")
                await page.wait_for_timeout(3000)  # charts fill with what comes meanwhile
                path = folder / f"dashboard-{name}.png"
                await page.screenshot(path=str(path), full_page=name in LONG, animations="disabled")
                print(path)
            await chromium.close()


def main(folder: Path) -> None:
    """Bring a cluster up, take the pictures and take it down."""
    if not Path(CHROMIUM).exists():
        raise SystemExit(f"needs {CHROMIUM}: apt-get install chromium")
    folder.mkdir(parents=True, exist_ok=True)
    python = str(Path(sys.executable).parent)
    os.environ.update(PENSTOCK_DASHBOARD_PORT="0", LOGNAME="ada", PATH=f"{python}:{os.environ['PATH']}")
    with tempfile.TemporaryDirectory(prefix="ps-") as data:
        jobs_folder = Path(data) / "digits"
        jobs_folder.mkdir()
        for script in EXAMPLE.parent.glob("*.py"):
            shutil.copy(script, jobs_folder)
        cluster = Cluster(Path(data) / "data", "--emulate", DEVICES)
        cluster.up()
        try:
            asyncio.run(shoot(cluster, jobs_folder, folder))
        finally:
            cluster.down()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "pictures")
