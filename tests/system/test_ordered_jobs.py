"""Pipelines on a real cluster: jobs that wait for others, for a sweep, and for a time."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import Cluster, running


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("ordered") / "data", "--emulate", "fast:3") as one:
        yield one


def submitted(cluster: Cluster, *words: str) -> str:
    return cluster.run("submit", "--profile", "off", *words).stdout.strip()


@pytest.mark.thorough
async def test_a_pipeline_runs_in_its_order_whatever_the_gateway_goes_through(cluster: Cluster, tmp_path: Path) -> None:
    """Prepare, then two trainings, then a report; what a failure makes impossible is cancelled, a cleanup runs."""
    written, go = tmp_path / "written", tmp_path / "go"

    def step(name: str, *words: str, body: str = "") -> str:
        script = f"echo {name} >> {written}; {body or 'true'}"
        return submitted(cluster, "--name", name, *words, "--", "sh", "-c", script)

    prepared = step("prepared", body=f"until test -e {go}; do sleep 0.05; done")
    trained = [step(f"trained-{number}", "--after", prepared[:5]) for number in range(2)]
    reported = step("reported", "-d", f"afterok:{':'.join(trained)}")
    broken = step("broken", "-d", f"afterany:{reported}", body="exit 3")
    never = step("never", "--after", broken)
    cleaned = step("cleaned", "-d", f"afternotok:{broken}")
    why = json.loads(cluster.run("why", reported, "-o", "json").stdout)
    assert why["cause"] == "dependency"
    assert "(dependency)" in cluster.run("ps").stdout
    cluster.down()  # what waits is in the log
    cluster.up()
    go.touch()
    async with cluster.client() as client:
        states = {job: (await client.wait(job)).state for job in (prepared, *trained, reported, broken, cleaned)}
        assert states == {**dict.fromkeys(states, "CD"), broken: "F"}
        ended = await client.wait(never)
    assert (ended.state, ended.reason) == (
        "CA",
        f"it was to wait until {broken} has completed, and {broken} has failed",
    )
    assert cluster.tried("submit", "--after", broken, "--", "true").returncode != 0
    # the first one may have been begun again, as its node was stopped
    order = list(dict.fromkeys(written.read_text().split()))
    assert order[0] == "prepared"
    assert set(order[1:3]) == {"trained-0", "trained-1"}
    assert order[3:] == ["reported", "broken", "cleaned"]


async def test_a_job_begins_at_its_time_and_another_after_a_sweep(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text(
        'name = "s"\nmetric = "loss"\ntrials = 2\n[space.lr]\nkind = "uniform"\nlow = 0.1\nhigh = 1.0\n'
        '[job]\nname = "t"\nprofile = "off"\ncommand = ["sh", "-c", "sleep 0.2"]\n'
    )
    sweep = cluster.run("tune", str(tmp_path / "sweep.toml")).stdout.split()[0]
    behind = submitted(cluster, "-d", f"afterany:{sweep}", "--", "true")
    later = submitted(cluster, "--begin", "3s", "--", "true")
    assert json.loads(cluster.run("why", later, "-o", "json").stdout)["cause"] in {"begin", "finished", "running"}
    async with cluster.client() as client:
        assert [(await client.wait(job)).state for job in (behind, later)] == ["CD", "CD"]
        facts = (await client.events(limit=1000)).events
    started_s = {event.fact["job_id"]: event.at_s for event in facts if event.type == "run.started.v1"}
    (swept_seq,) = [event.seq for event in facts if event.type == "sweep.finished.v1"]
    (behind_seq,) = [e.seq for e in facts if e.type == "run.started.v1" and e.fact["job_id"] == behind]
    specs = {event.fact["job_id"]: event.fact["spec"] for event in facts if event.type == "job.submitted.v1"}
    assert started_s[later] >= specs[later]["begin_s"] - 0.5  # by the clocks of two processes
    assert behind_seq > swept_seq


LOOP = """\
import time
import penstock

with penstock.session() as session:
    session.on_checkpoint(lambda path: (path / "w").write_text("1"), lambda path: (path / "w").read_text())
    for _ in session.iterations(range(1_000_000)):
        time.sleep(0.02)
"""


@pytest.mark.thorough
async def test_a_run_whose_time_is_over_saves_a_checkpoint_and_its_job_has_failed(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The limit is long enough for a slow machine to extend a job before it, and to begin a session."""
    (tmp_path / "loop.py").write_text(LOOP)
    go = tmp_path / "go"
    longer = submitted(cluster, "--time", "15s", "--", "sh", "-c", f"until test -e {go}; do sleep 0.1; done")
    cluster.run("extend", longer, "1h")
    saves = submitted(
        cluster, "-t", "15s", "--warn", "0", "--retries", "2", "--", sys.executable, str(tmp_path / "loop.py")
    )
    opaque = submitted(cluster, "--time", "0:15", "--", "sleep", "1000")
    async with cluster.client() as client:
        ends = {job: await client.wait(job) for job in (saves, opaque)}
        assert (await client.job(longer)).job.state == "R"
        go.touch()
        assert (await client.wait(longer)).state == "CD"
        facts = (await client.events(saves, limit=1000)).events
    assert [(ends[job].state, ends[job].reason) for job in (saves, opaque)] == [
        ("F", "its time limit of 15.0 s is over")
    ] * 2
    kinds = [event.type for event in facts]
    assert kinds.index("run.checkpointed.v1") > kinds.index("job.timed_out.v1")
    assert kinds.count("run.started.v1") == 1
    (saved,) = [event.fact["step"] for event in facts if event.type == "run.checkpointed.v1"]
    (tmp_path / "more.toml").write_text(
        f'name = "more"\nbegins_from = "{saves}"\ncommand = ["{sys.executable}", "{tmp_path / "loop.py"}"]\n'
    )
    more = submitted(cluster, "-t", "1h", str(tmp_path / "more.toml"))
    async with cluster.client() as client:
        async for event in client.follow_events(more):
            if event.type == "run.started.v1":
                begun = event
                break
        await client.cancel(more)
    assert (begun.fact["begun_from"], begun.fact["resumed_step"]) == (saves, saved)
    assert "of 1h00m at most" in cluster.run("show", longer).stdout
    assert cluster.tried("extend", opaque, "1h").returncode != 0
