"""
The dashboard of a large cluster: ``bench_dashboard.py [--keep FOLDER]``.

A NATS server, a gateway and a dashboard, each a process of its own, know 250 nodes with 2,000 devices, 2,000 running
jobs and 8,000 waiting ones; all facts are made up. Chromium loads each page; *content* is the time until the browser
has drawn what the service sent, *live* until its stream is open. Then ten jobs end and ten start each second while
somebody looks, and the processor time of the dashboard and of the gateway is counted. With ``--keep``, screenshots go
there.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from playwright.async_api import Browser, Page, async_playwright

from penstock import Client
from penstock_bus import Append, Bus
from penstock_bus.identity.logins import Login
from penstock_bus.nats import connect
from penstock_cli.local.bench_services import nats_server, service_environment
from penstock_log import (
    AnyEvent,
    Commit,
    Device,
    JobRank,
    JobSpec,
    JobsRanked,
    JobSubmitted,
    NodeJoined,
    Placement,
    RoundDecided,
    RunEnded,
    RunStarted,
    Slot,
    Wait,
)
from penstock_log.views import SignInView
from penstock_testing import subject_of

NODES: Final = 250
DEVICES: Final = 8
WAITING: Final = 8000
TURNOVER: Final = 10
WATCHED_S: Final = 20.0
CHROMIUM: Final = "/usr/bin/chromium"
TEAMS: Final = ("vision", "speech", "language", "robots", "weather")
MODELS: Final = ("resnet50", "bert-large", "gpt2", "unet", "dlrm", "whisper")
KINDS: Final = ("h100", "a100", "v100")
PAGES: Final = ("/", "/queue", "/jobs")


def user_of(number: int) -> str:
    """Return whose a job is: 40 people, some with many jobs."""
    return f"user{(number * number) % 97 % 40:02d}"


def submission(number: int, now_s: float) -> JobSubmitted:
    """Return the submission of a job."""
    spec = JobSpec(
        id=f"job{number:05d}",
        name=f"{MODELS[number % 6]}-{number}",
        command=("python", "train.py"),
        user=user_of(number),
        team=TEAMS[number % 5],
        model=MODELS[number % 6],
    )
    return JobSubmitted(at_s=now_s, job_id=spec.id, spec=spec)


def node(number: int, now_s: float) -> NodeJoined:
    """Return a node with its devices, in one of 25 racks."""
    kind = KINDS[number % 3]
    devices = tuple(Device(index=i, kind=kind, memory_bytes=80 << 30, backend="emulated") for i in range(DEVICES))
    labels = {"topology.rack": f"r{number // 10:02d}"}
    return NodeJoined(at_s=now_s, node_id=f"node{number:03d}", devices=devices, labels=labels)


def placement(job: int, device: int, epoch: int = 1) -> Placement:
    """Return the grant of a device to a job."""
    number, index = divmod(device, DEVICES)
    slot = Slot(node_id=f"node{number:03d}", devices=(index,))
    return Placement(job_id=f"job{job:05d}", epoch=epoch, kind=KINDS[number % 3], slots=(slot,))


def running(job: int, device: int, now_s: float) -> RunStarted:
    """Return the start of a job on its device."""
    number, index = divmod(device, DEVICES)
    return RunStarted(at_s=now_s, job_id=f"job{job:05d}", epoch=1, node_id=f"node{number:03d}", devices=(index,))


def history(now_s: float) -> Iterator[AnyEvent]:
    """Yield the facts of the whole cluster."""
    busy = NODES * DEVICES
    yield from (node(number, now_s - 9000) for number in range(NODES))
    yield from (submission(number, now_s - 8000 + number / 2) for number in range(busy + WAITING))
    for first in range(0, busy, 200):
        yield RoundDecided(
            at_s=now_s - 3000,
            pool="default",
            placements=tuple(placement(job, job) for job in range(first, first + 200)),
        )
    yield from (running(job, job, now_s - 2990) for job in range(busy))
    waiting = range(busy, busy + WAITING)
    for first in range(0, WAITING, 500):
        ranks = tuple(
            JobRank(job_id=f"job{job:05d}", queue=job % 3, position=float(job)) for job in waiting[first : first + 500]
        )
        yield JobsRanked(at_s=now_s - 2900, pool="default", ranks=ranks)
    waits = tuple(
        Wait(
            job_id=f"job{job:05d}",
            cause="capacity",
            evidence=f"{job - busy} waiting jobs before it",
            remedy="accept v100",
        )
        for job in waiting[:500]
    )
    yield RoundDecided(at_s=now_s - 2800, pool="default", waits=waits)


def commits(facts: Iterator[AnyEvent]) -> list[Append]:
    """Return appends of facts, as their services would make them."""
    return [
        Append(
            subject=subject_of(fact), commit=Commit(id=uuid.uuid4().hex, actor="bench", facts=(fact,)), expected=None
        )
        for fact in facts
    ]


def cpu_s(pid: int) -> float:
    """Return the processor seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(bus: dict[str, str], folder: Path, keep: Path | None) -> None:
    """Fill the log, start both services and look at the pages."""
    login = Login(url=bus["PENSTOCK_URL"], user=bus["PENSTOCK_USER"], password=bus["PENSTOCK_PASSWORD"])
    async with connect(bus["PENSTOCK_URL"], login=login, name="bench") as log:
        now_s = await log.now_s()
        before = perf_counter()
        await log.append_many(commits(history(now_s)))
        print(f"log: {await log.last_seq():,} commits, written in {perf_counter() - before:.1f} s")
        services = {name: start(name, bus, folder) for name in ("gateway", "dashboard")}
        try:
            for name, process in services.items():
                while not (folder / f"{name}.ready").exists():
                    if process.poll() is not None:
                        raise SystemExit(f"the {name} has ended; see {folder / name}.log")
                    await asyncio.sleep(0.1)
            async with Client(bus["PENSTOCK_URL"], login=login) as client:
                key = await client.sign_in()
            async with async_playwright() as driver:
                chromium = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
                await look(chromium, key, log, services=services, keep=keep)
                await chromium.close()
        finally:
            for process in services.values():
                process.terminate()
                process.wait()


def start(name: str, bus: dict[str, str], folder: Path) -> subprocess.Popen[bytes]:
    """Start a service."""
    settings = {"PENSTOCK_DASHBOARD_PORT": "0"}
    environment = service_environment(bus, settings, folder / f"{name}.ready")
    with (folder / f"{name}.log").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", f"penstock_{name}"], env=environment, stdout=output, stderr=output
        )


async def look(
    chromium: Browser, key: SignInView, log: Bus, *, services: dict[str, subprocess.Popen[bytes]], keep: Path | None
) -> None:
    """Time each page, then watch the devices while jobs come and go."""
    base = key.dashboard
    context = await chromium.new_context(viewport={"width": 1600, "height": 1000})
    page = await context.new_page()
    await page.goto(key.url)
    await page.click("form[action='/sign-in'] button")
    await page.wait_for_url(f"{base}/")
    for path in PAGES:
        drawn, live, sizes = [], [], []
        for _ in range(5):
            begun = perf_counter()
            answer = await page.goto(base + path, wait_until="domcontentloaded")
            await page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
            drawn.append(perf_counter() - begun)
            await page.wait_for_selector("body[data-connected]")
            live.append(perf_counter() - begun)
            sizes.append(len(await answer.body()) if answer is not None else 0)
        print(
            f"{path}: content {1e3 * median(drawn):.0f} ms, live {1e3 * median(live):.0f} ms (medians of 5), "
            f"{max(sizes) / 1e3:.0f} kB of HTML"
        )
        if keep is not None:
            await page.screenshot(path=str(keep / f"busy-{path.strip('/') or 'devices'}.png"))
    await page.goto(f"{base}/")
    await page.wait_for_selector("body[data-connected]")
    await watch(page, log, services)
    await context.close()


async def watch(page: Page, log: Bus, services: dict[str, subprocess.Popen[bytes]]) -> None:
    """Have jobs end and start while the page of devices is open; print what that costs."""
    before = {name: cpu_s(process.pid) for name, process in services.items()}
    busy, begun, turn = NODES * DEVICES, perf_counter(), 0
    while perf_counter() - begun < WATCHED_S:
        now_s = await log.now_s()
        facts: list[AnyEvent] = []
        for number in range(TURNOVER):
            old = turn * TURNOVER + number
            facts.append(
                RunEnded(
                    at_s=now_s,
                    job_id=f"job{old:05d}",
                    epoch=1,
                    node_id=f"node{old // DEVICES:03d}",
                    outcome="completed",
                )
            )
        new = [busy + turn * TURNOVER + number for number in range(TURNOVER)]
        pairs = [(job, turn * TURNOVER + number) for number, job in enumerate(new)]
        facts.append(
            RoundDecided(at_s=now_s, pool="default", placements=tuple(placement(job, at) for job, at in pairs))
        )
        facts += [running(job, at, now_s) for job, at in pairs]
        await log.append_many(commits(iter(facts)))
        last = f"job{new[-1]:05d}"
        await page.wait_for_selector(f"a.lane[href='/jobs/{last}']")
        turn += 1
        await asyncio.sleep(max(0.0, begun + turn - perf_counter()))
    lasted_s = perf_counter() - begun
    shares = {name: (cpu_s(process.pid) - before[name]) / lasted_s for name, process in services.items()}
    print(
        f"{turn} updates of {2 * TURNOVER} devices in {lasted_s:.1f} s, each seen in the browser: the dashboard took "
        f"{shares['dashboard']:.0%} of a core, the gateway {shares['gateway']:.0%}"
    )


def main(arguments: Sequence[str]) -> None:
    """Run the bench."""
    keep = Path(arguments[arguments.index("--keep") + 1]) if "--keep" in arguments else None
    if not Path(CHROMIUM).exists():
        raise SystemExit(f"NOT MEASURED: needs {CHROMIUM}: apt-get install chromium")
    with tempfile.TemporaryDirectory(prefix="pb-") as name:
        folder = Path(name)
        with nats_server(folder / "nats") as bus:
            asyncio.run(measure(bus, folder, keep))


if __name__ == "__main__":
    main(sys.argv[1:])
