"""
How long nothing is accepted when the server that leads the log is killed: ``python tests/bench/bench_failover.py``.

`penstock up --servers 3` runs as anybody runs it, without executors, so that jobs only wait. Three clients submit, each
the next job once the last one is accepted, while one bare nats-py client publishes to a stream on the same three
servers, led by the same one, and tries again under the same message id. In each round that server is killed (SIGKILL);
the supervisor starts it again. A gap is the longest time between two confirmations, over all clients of a kind. At the
end every id is looked for in the log: none that was confirmed may be missing, and none may be there twice.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import nats.errors
import nats.js.errors
import structlog

import penstock
from penstock_bus.identity.logins import read_login
from penstock_bus.nats import NatsBus, connect, direct_get
from penstock_cli.local import data_folder
from penstock_log import JobSubmitted, subjects

ROUNDS = int(os.environ.get("ROUNDS", "5"))
SUBMITTERS = 3
BARE = "BARE"
QUIET_S = 3.0
"""Undisturbed work before each kill, and after everybody has gone on."""
TRY_S = 1.0
NAMES = {f"penstock-{number}": f"nats-{number}" if number > 1 else "nats" for number in (1, 2, 3)}


class Confirmations:
    """When something was confirmed, by the loop's clock, and under which id."""

    def __init__(self) -> None:
        self.at_s: list[float] = []
        self.ids: list[str] = []

    def note(self, name: str) -> None:
        """Note that something was confirmed just now."""
        self.at_s.append(asyncio.get_running_loop().time())
        self.ids.append(name)

    def gap_s(self, since_s: float) -> float:
        """Return the longest time between two confirmations of which the later came after a moment."""
        return max(late - early for early, late in zip(self.at_s, self.at_s[1:], strict=False) if late > since_s)


async def publish_bare(bus: NatsBus, noted: Confirmations) -> None:
    """Publish one message after the other by nats-py alone."""
    jetstream = bus.link.client.jetstream()
    while True:
        name = f"b{len(noted.ids)}"
        while True:
            try:
                await jetstream.publish("bare.x", b"x" * 280, timeout=TRY_S, headers={"Nats-Msg-Id": name})
                break
            except (nats.errors.Error, nats.js.errors.Error):
                await asyncio.sleep(0.05)
        noted.note(name)


async def submit(client: penstock.Client, number: int, noted: Confirmations) -> None:
    """Submit one job after the other."""
    count = 0
    while True:
        name = f"s{number}x{count}"
        answer = await client.submit(id=name, name="waits", command=("true",), profile="off")
        noted.note(answer.id)
        count += 1


async def leader_of(bus: NatsBus, stream: str) -> str:
    """Return the server that leads a stream, once it has one and all copies are current."""
    while True:
        info = await bus.link.api(f"STREAM.INFO.{stream}")
        copies = info["cluster"].get("replicas", [])
        if info["cluster"].get("leader") and len(copies) == 2 and all(copy["current"] for copy in copies):
            return str(info["cluster"]["leader"])
        await asyncio.sleep(0.1)


async def led_by_one(bus: NatsBus) -> str:
    """Have the server that leads the log lead the bare stream too, and return it."""
    while (leader := await leader_of(bus, subjects.EVT)) != await leader_of(bus, BARE):
        await bus.link.api(f"STREAM.LEADER.STEPDOWN.{BARE}", {"placement": {"preferred": leader}})
        await asyncio.sleep(0.5)
    return leader


async def kill_leader(bus: NatsBus, folder: Path, *both: Confirmations) -> list[float]:
    """Kill the leader, wait until everybody has gone on, and return the gaps."""
    leader = await led_by_one(bus)
    await asyncio.sleep(QUIET_S)
    record = data_folder.read(folder)
    assert record is not None
    killed_s = asyncio.get_running_loop().time()
    os.kill(record.processes[NAMES[leader]].pid, signal.SIGKILL)
    await leader_of(bus, subjects.EVT)
    await asyncio.sleep(QUIET_S)
    while any(noted.at_s[-1] < killed_s + QUIET_S for noted in both):  # noqa: ASYNC110 - nobody tells of the clock
        await asyncio.sleep(0.1)
    return [noted.gap_s(killed_s) for noted in both]


def lost_and_doubled(confirmed: list[str], stored: Counter[str]) -> str:
    """Return how many ids of those that were confirmed are not stored, and how many are stored twice."""
    lost = sum(name not in stored for name in confirmed)
    return f"{len(confirmed):6} confirmed, {lost} lost, {sum(count > 1 for count in stored.values())} doubled"


async def stored_bare(bus: NatsBus) -> Counter[str]:
    """Return how often each id is in the bare stream."""
    stored = direct_get.stored(bus.link, BARE, "bare.>")
    return Counter([message.headers["Nats-Msg-Id"] async for message in stored])


async def stored_jobs(bus: NatsBus) -> Counter[str]:
    """Return how often each job was submitted, as the log has it."""
    deliveries = await bus.read(subjects.STREAM_SUBJECTS[subjects.EVT])
    return Counter(fact.job_id for one in deliveries for fact in one.commit.facts if isinstance(fact, JobSubmitted))


async def command(*words: str) -> None:
    """Run the command line; what goes wrong is on standard error."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "penstock", *words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    _, said = await process.communicate()
    if process.returncode:
        raise RuntimeError(said.decode())


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[NatsBus]:
    """Run three servers and all services but executors; give an administrator's connection."""
    up = ["up", "--detach", "--servers", "3", "--port", "-1", "--replicas", "executor=0", "--data", str(folder)]
    await command(*up)
    try:
        record = data_folder.read(folder)
        assert record is not None
        login = read_login(data_folder.login_file(folder, "admin"))
        async with connect(record.url, login=login, timeout_s=60.0) as bus:
            yield bus
    finally:
        await command("down", "--data", str(folder))


async def main() -> None:
    """Print the gaps of both kinds, and what is in the log."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())  # the connections say that they were lost
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "data")
        async with cluster(folder) as bus, AsyncExitStack() as stack:
            await bus.link.api(
                f"STREAM.CREATE.{BARE}", {"name": BARE, "subjects": ["bare.>"], "num_replicas": 3, "allow_direct": True}
            )
            bare, ours = Confirmations(), Confirmations()
            clients = [
                await stack.enter_async_context(penstock.Client(data_folder.read(folder).url))
                for _ in range(SUBMITTERS)
            ]
            work = [publish_bare(bus, bare), *(submit(client, i, ours) for i, client in enumerate(clients))]
            tasks = [asyncio.ensure_future(one) for one in work]
            print(
                f"{'round':>5}  {'bare nats-py':>12}  {'submissions':>11}   seconds without a confirmation", flush=True
            )
            gaps = []
            for number in range(ROUNDS):
                gaps.append(await kill_leader(bus, folder, bare, ours))
                print(f"{number + 1:5}  {gaps[-1][0]:12.2f}  {gaps[-1][1]:11.2f}", flush=True)
            for task in tasks:
                if task.done():
                    task.result()  # raises what it was
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            medians = [statistics.median(column) for column in zip(*gaps, strict=True)]
            print(f"median {medians[0]:11.2f}  {medians[1]:11.2f}   ratio {medians[1] / medians[0]:.2f}", flush=True)
            print("bare        ", lost_and_doubled(bare.ids, await stored_bare(bus)))
            print("submissions ", lost_and_doubled(ours.ids, await stored_jobs(bus)))


if __name__ == "__main__":
    asyncio.run(main())
