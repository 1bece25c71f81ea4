"""
One user's flood against another user's single submissions: ``python tests/bench/bench_flood.py [N]``.

On a whole cluster of one machine, alice sends N submissions at once by request, and then carol as many by the inbox.
Meanwhile bob submits one job after the other, each under the same patience as a client has.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from clusters import Cluster

from penstock_bus import Bus, BusError, ServiceError
from penstock_log import subjects

PATIENCE_S = 10.0
SUBMIT = subjects.command("submit")
LOOK_S = 0.1
WINDOW = 256

_numbers = itertools.count()


def body(user: str, number: int) -> bytes:
    """Return a job that waits for devices which are not there."""
    name = f"{user}-{number}"
    job: dict[str, Any] = {"name": name, "id": name, "user": user, "command": ["true"], "profile": "off", "gpus": 64}
    return msgspec.json.encode(job)


async def submit(bus: Bus, user: str, number: int, patience_s: float = PATIENCE_S) -> tuple[str, float]:
    """Return what came of a submission, and after how many seconds."""
    before = time.perf_counter()
    try:
        await bus.request(SUBMIT, body(user, number), timeout_s=patience_s)
        found = "accepted"
    except ServiceError as error:
        found = str(error.code)
    except BusError as error:
        found = type(error).__name__
    return found, time.perf_counter() - before


async def beside(bus: Bus, flood: asyncio.Task[Any]) -> list[tuple[str, float]]:
    """Submit bob's jobs, one after the other, until the flood is over."""
    found = []
    while not flood.done():
        found.append(await submit(bus, "bob", next(_numbers)))
    return found


async def by_request(bus: Bus, count: int) -> list[tuple[str, float]]:
    """Send all of alice's submissions at once, and wait as long as it takes."""
    return await asyncio.gather(*(submit(bus, "alice", number, 600.0) for number in range(count)))


async def by_inbox(bus: Bus, count: int) -> list[tuple[str, float]]:
    """Publish as many submissions of carol, and wait until the last of them is a job."""
    before, numbers = time.perf_counter(), iter(range(count))

    async def publish() -> None:
        for number in numbers:
            await bus.submit(subjects.INBOX_JOBS, body("carol", number))

    await asyncio.gather(*(publish() for _ in range(WINDOW)))
    while await bus.last(subjects.job(f"carol-{count - 1}")) is None:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(LOOK_S)
    return [("accepted", time.perf_counter() - before)]


def tell(what: str, found: list[tuple[str, float]], whole_s: float) -> None:
    """Print how many were answered how, and how fast."""
    times_s = np.array([took_s for _, took_s in found])
    answers = ", ".join(f"{count:,} {answer}" for answer, count in Counter(answer for answer, _ in found).items())
    p50, p99 = np.percentile(times_s, [50, 99])
    print(f"{what}: {answers}; p50 {p50:.3f} s, p99 {p99:.3f} s, max {times_s.max():.3f} s, in {whole_s:.1f} s")


async def measure(cluster: Cluster, count: int) -> None:
    """Print both floods, from a connection of their own and bob's."""
    async with cluster.client() as alice, cluster.client() as bob:
        tell("bob alone", [await submit(bob.bus, "bob", next(_numbers)) for _ in range(50)], 0.0)
        for name, flood in (("by request", by_request), ("by the inbox", by_inbox)):
            before = time.perf_counter()
            flooding = asyncio.create_task(flood(alice.bus, count))
            await asyncio.sleep(0)
            others = await beside(bob.bus, flooding)
            whole_s = time.perf_counter() - before
            tell(f"{count:,} at once {name}", await flooding, whole_s)
            tell("bob meanwhile", others, whole_s)


def main() -> None:
    """Measure on a cluster of this machine."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder) / "data", "--emulate", "fast:4@1.0:4GiB")
        cluster.up()
        try:
            asyncio.run(measure(cluster, count))
        finally:
            cluster.down()


if __name__ == "__main__":
    main()
