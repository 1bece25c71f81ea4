"""Nodes that leave while jobs run there: executors that end as the pilots of a batch system do, on the real thing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from clusters import Cluster, command_of, facts, until

import penstock
from penstock_log import JobSpec, views

STEPS = 2_000
SCRIPT = """
import json, os, sys, time
from pathlib import Path
import penstock

folder, state = Path(sys.argv[1]), {"done": 0}
with penstock.session() as session:
    session.on_checkpoint(
        lambda to: (to / "state").write_text(json.dumps(state)),
        lambda at: state.update(json.loads((at / "state").read_text())),
    )
    for step in session.iterations(range(int(sys.argv[2]))):
        state["done"] += 1
        with (folder / "notes").open("a") as notes:
            notes.write(f"{os.getpid()} {step}\\n")
        if not (folder / "hurry").exists():
            time.sleep(0.02)
"""


SLOW_START_S = 6.0
SLOW_START = f"""
import time
import penstock

time.sleep({SLOW_START_S})
with penstock.session() as session:
    for step in session.iterations(range(10)):
        pass
"""
STAY_S = 16.0
UNTIL_LATE = "import sys, time; time.sleep(max(0.0, float(sys.argv[1]) - time.time()))"


class Pilot:
    """
    An executor of its own on a cluster, in a process group of its own.

    Parameters
    ----------
    name : str
        Of its node, which has one device of kind ``pilot``.
    more : str
        Further settings of the executor.
    """

    def __init__(self, cluster: Cluster, name: str, **more: str) -> None:
        self.name = name
        login = cluster.data / "nats" / "logins" / "executor.json"
        settings = {"NODE_ID": name, "DEVICES": "pilot:1@1.0:4GiB", "RUN_AS": "executor"}
        settings |= {"DATA_DIR": str(cluster.data / name), **more}
        env = {**os.environ, "PENSTOCK_URL": cluster.url, "PENSTOCK_CREDENTIALS": str(login)}
        env |= {f"PENSTOCK_EXECUTOR_{setting}": value for setting, value in settings.items()}
        with (cluster.data / f"{name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "penstock_executor"], env=env, stderr=log, start_new_session=True
            )

    def signal(self, signum: signal.Signals) -> None:
        self._process.send_signal(signum)

    def ended(self) -> int:
        """Wait for its end, and return the exit status."""
        return self._process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    it = Cluster(tmp_path_factory.mktemp("leaving") / "data", "--emulate", "slow:1@0.1:4GiB")
    it.up()
    yield it
    it.kill_all()


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[penstock.Client]:
    async with cluster.client() as client:
        yield client


@contextlib.contextmanager
def pilots(cluster: Cluster) -> Iterator[list[Pilot]]:
    """Let a test start pilots; none of them outlives it."""
    started: list[Pilot] = []
    try:
        yield started
    finally:
        for pilot in started:
            pilot.signal(signal.SIGTERM)
        for pilot in started:
            pilot.ended()


async def join(client: penstock.Client, pilot: Pilot) -> Pilot:
    """Wait until a pilot's node has joined."""
    await until(client, pilot.name, "node.joined.v2")
    return pilot


async def pair(cluster: Cluster, client: penstock.Client, started: list[Pilot], name: str) -> None:
    """Start two pilots, and wait until they have joined."""
    started += [Pilot(cluster, f"{name}-{number}") for number in (1, 2)]
    for pilot in started:
        await join(client, pilot)


async def busy(client: penstock.Client, started: list[Pilot], folder: Path) -> tuple[str, Pilot, Pilot]:
    """
    Submit a training, and wait until it has done some steps.

    Returns
    -------
    tuple of str, Pilot, Pilot
        Its id, the pilot on which it runs, and the last of the others.
    """
    command = (*command_of(SCRIPT, folder), str(folder), str(STEPS))
    spec = JobSpec(name="training", command=command, kinds=("pilot",), profile="off", checkpoint_s=0.2, grace_s=60.0)
    job_id = (await client.submit(spec)).id
    await until(client, job_id, "run.checkpointed.v1")
    node = (await facts(client, job_id, "run.started.v1"))[0].fact["node_id"]
    (own,) = [pilot for pilot in started if pilot.name == node]
    return job_id, own, [pilot for pilot in started if pilot is not own or len(started) == 1][-1]


async def hurried(client: penstock.Client, job_id: str, folder: Path) -> views.JobView:
    """Let a training that has gone on elsewhere end; return the job."""
    await until(client, job_id, "run.started.v1", 2)
    (folder / "hurry").touch()
    return await client.wait(job_id)


async def order(client: penstock.Client, pilot: str, job_id: str) -> list[str]:
    """Return what became of a job from when a node said that it leaves, in the log's order."""
    found: list[str] = []
    leaving = (await facts(client, pilot, "node.leaving.v1"))[-1].seq
    events = await client.events(after=leaving - 1, limit=1000)
    for event in events.events:
        fact = event.fact
        if event.type in {"node.leaving.v1", "node.left.v1"}:
            found.append(f"{event.type} {fact['node_id']}")
        elif event.type in {"run.started.v1", "run.ended.v1"} and fact["job_id"] == job_id:
            found.append(f"{event.type} {fact['node_id']} {fact.get('outcome', '')}".strip())
        elif event.type == "round.decided.v1":
            placements = [one for one in fact.get("placements", ()) if one["job_id"] == job_id]
            found += [f"placed {slot['node_id']}" for one in placements for slot in one["slots"]]
    return found


def notes(folder: Path) -> list[tuple[int, int]]:
    """Return by which process each step was done, and which it was."""
    return [tuple(map(int, line.split())) for line in (folder / "notes").read_text().splitlines()]


@pytest.mark.faults
async def test_a_job_whose_start_takes_long_does_not_begin_where_the_node_leaves_before_it_would_have_worked_as_long(
    cluster, client, tmp_path
):
    slow = JobSpec(name="slow", command=command_of(SLOW_START, tmp_path), kinds=("pilot",), profile="off")
    with pilots(cluster) as started:
        started.append(await join(client, Pilot(cluster, "late-1")))
        assert (await client.wait((await client.submit(slow)).id)).state == "CD", "it is measured"
        started[0].signal(signal.SIGTERM)
        started[0].ended()
        leaves_s = time.time() + STAY_S  # noqa: TID251 - the executor's own clock
        started.append(await join(client, Pilot(cluster, "late-2", LEAVE_AT_S=str(leaves_s))))
        command = (sys.executable, "-c", UNTIL_LATE, str(leaves_s - 7.0))
        first = (await client.submit(name="first", command=command, kinds=("pilot",), profile="off")).id
        await until(client, first, "run.started.v1")
        job_id = (await client.submit(slow)).id
        await until(client, "late-2", "node.left.v1")
        assert not await facts(client, job_id, "run.started.v1")
        started.append(await join(client, Pilot(cluster, "late-3")))
        job = await client.wait(job_id)
        assert (job.state, job.attempts, job.devices) == ("CD", 1, ("late-3/pilot0",))


async def listed(client: penstock.Client, name: str) -> views.NodeView:
    return next(node for node in (await client.nodes()).nodes if node.id == name)


async def test_the_job_of_a_pilot_that_gets_term_goes_on_at_once_on_another(cluster, client, tmp_path):
    with pilots(cluster) as started:
        await pair(cluster, client, started, "term")
        job_id, own, other = await busy(client, started, tmp_path)
        own.signal(signal.SIGTERM)
        assert own.ended() == 0
        job = await hurried(client, job_id, tmp_path)
        assert (job.state, job.preemptions, job.attempts) == ("CD", 1, 2), job.reason
        happened = await order(client, own.name, job_id)
        happened.remove(f"node.left.v1 {own.name}")  # whose place among the others is nobody's concern
        assert happened == [
            f"node.leaving.v1 {own.name}",
            f"run.ended.v1 {own.name} preempted",
            f"placed {other.name}",
            f"run.started.v1 {other.name}",
            f"run.ended.v1 {other.name} completed",
        ]
        ended = (await facts(client, job_id, "run.ended.v1"))[0].fact
        assert ended["reason"] == f"node {own.name} is shutting down"
        assert [step for _, step in notes(tmp_path)] == list(range(STEPS))


async def test_a_training_that_the_same_signal_ends_before_its_pilot_stops_is_preempted_and_not_failed(
    cluster, client, tmp_path
):
    with pilots(cluster) as started:
        await pair(cluster, client, started, "group")
        job_id, own, other = await busy(client, started, tmp_path)
        os.kill(notes(tmp_path)[-1][0], signal.SIGTERM)  # as scancel signals all processes of a job, in any order
        own.signal(signal.SIGTERM)
        assert own.ended() == 0
        job = await hurried(client, job_id, tmp_path)
        assert (job.state, job.preemptions, job.attempts) == ("CD", 1, 2), job.reason
        ended = (await facts(client, job_id, "run.ended.v1"))[0].fact
        assert (ended["outcome"], ended["exit_code"]) == ("preempted", 128 + signal.SIGTERM)
        assert ended["reason"].startswith(f"node {own.name} is shutting down")
        resumed = (await facts(client, job_id, "run.started.v1"))[1].fact
        assert (resumed["node_id"], resumed["resumed_step"]) == (other.name, ended["steps"])
        assert ended["steps"] > 0


async def test_a_training_that_term_ends_alone_has_failed(cluster, client, tmp_path):
    with pilots(cluster) as started:
        started.append(await join(client, Pilot(cluster, "alone")))
        job_id, _, _ = await busy(client, started, tmp_path)
        os.kill(notes(tmp_path)[-1][0], signal.SIGTERM)
        job = await client.wait(job_id)
        assert (job.state, job.reason) == ("F", "signal SIGTERM (exit code 143)")
        assert (await listed(client, "alone")).state == "up"


async def test_a_job_waits_for_its_node_that_has_left_and_that_is_listed_no_more(cluster, client):
    with pilots(cluster) as started:
        started.append(await join(client, Pilot(cluster, "gone")))
        started[0].signal(signal.SIGTERM)
        started[0].ended()
        assert (await listed(client, "gone")).state == "left"
        assert "gone " not in cluster.run("nodes").stdout
        assert "left" in next(line for line in cluster.run("nodes", "-a").stdout.splitlines() if "gone " in line)
        submitted = cluster.run("submit", "--kind", "pilot", "--profile", "off", "--name", "waits", "--", "true")
        assert "never fit" not in submitted.stdout + submitted.stderr
        assert "`gone` (left at " in submitted.stderr
        (job,) = [job for job in (await client.jobs()).jobs if job.name == "waits"]
        why = await client.why(job.id)
        assert (why.cause, why.remedy[:6]) == ("node_down", "start "), why
        started.append(Pilot(cluster, "gone"))
        assert (await client.wait(job.id)).state == "CD"
