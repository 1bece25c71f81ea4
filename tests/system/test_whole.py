"""The main job on the real thing: NATS, every service a process, real processes as jobs."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest
from clusters import Cluster, facts, running, until

from penstock_bus.identity.logins import read_login
from penstock_bus.nats import connect
from penstock_log import JobSpec, subjects

DEVICES = ("--emulate", "fast:2@1.0:4GiB")
LEADERS = ("ranker", "autoscaler", "matcher", "tuner", "assigner")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """One for all tests that leave it running, whatever they did to it meanwhile."""
    with running(tmp_path_factory.mktemp("whole") / "data", *DEVICES) as it:
        yield it


@pytest.fixture(scope="module")
def doubled(tmp_path_factory):
    """One with a standby of every service that has a leader."""
    leaders = [word for service in LEADERS for word in ("--replicas", f"{service}=2")]
    with running(tmp_path_factory.mktemp("doubled") / "data", *DEVICES, *leaders) as it:
        yield it


def python(code: str, **more: object) -> JobSpec:
    """A job that runs a line of Python without looking at its speed first."""
    spec = {"name": "job", "command": (sys.executable, "-c", code), "profile": "off", **more}
    return JobSpec(**spec)  # type: ignore[arg-type]


def counting(folder, steps: int, **more: object) -> JobSpec:
    """A job that notes every step in a file, saves checkpoints, and takes about 10 ms a step."""
    script = folder / "count.py"
    script.write_text(
        "import json, pathlib, time\n"
        "import penstock\n"
        "state = {'done': 0}\n"
        "with penstock.session() as s:\n"
        "    s.on_checkpoint(lambda p: (p / 'state.json').write_text(json.dumps(state)),\n"
        "                    lambda p: state.update(json.loads((p / 'state.json').read_text())))\n"
        f"    with open({str(folder / 'steps')!r}, 'a') as notes:\n"
        f"        for i in s.iterations(range({steps})):\n"
        "            time.sleep(0.01)\n"
        "            state['done'] += 1\n"
        "            print(i, file=notes, flush=True)\n"
        "            s.report(done=state['done'])\n"
    )
    spec = {"name": "count", "command": (sys.executable, str(script)), "profile": "off", "checkpoint_s": 0.3, **more}
    return JobSpec(**spec)  # type: ignore[arg-type]


async def test_a_job_goes_all_the_way_and_its_output_is_kept(cluster):
    async with cluster.client() as client:
        answer = await client.submit(python("print('hello from the job')"))
        job = await client.wait(answer.id)
        assert (job.state, job.exit_code, job.attempts) == ("CD", 0, 1)
        assert b"hello from the job" in b"".join([line.data async for line in client.logs(job.id)])
        story = [line.text for line in (await client.story(job.id)).lines]
        assert any("submitted" in text for text in story)
    shown = cluster.run("ps", "-a", "-o", "json").stdout
    assert job.id in [row["id"] for row in json.loads(shown)["jobs"]]


async def test_a_plain_request_and_a_plain_publish_submit_jobs(cluster):
    async with cluster.client() as client:
        body = json.dumps({"name": "plain", "command": ["true"], "profile": "off", "id": "plain-1"}).encode()
        answer = json.loads(await client.bus.request(subjects.command("submit"), body))
        assert answer["id"] == "plain-1"
        await client.bus.submit(subjects.INBOX_JOBS, body.replace(b"plain-1", b"plain-2"))
        for job_id in ("plain-1", "plain-2"):
            await until(client, job_id, "job.finished.v1")
            assert (await client.job(job_id)).job.state == "CD"


async def test_a_failing_job_is_tried_again_and_its_exit_code_reaches_the_shell(cluster):
    async with cluster.client() as client:
        answer = await client.submit(python("raise SystemExit(7)", retries=1, backoff_s=0.1))
        job = await client.wait(answer.id)
        assert (job.state, job.exit_code, job.attempts) == ("F", 7, 2)


async def test_after_kill_9_of_everything_every_accepted_job_still_ends_exactly_once(cluster, tmp_path):
    async with cluster.client() as client:
        ids = [(await client.submit(counting(_made(tmp_path / f"job{i}"), 150))).id for i in range(4)]
        await until(client, ids[0], "run.checkpointed.v1")
    cluster.kill_all()
    cluster.up()
    async with cluster.client() as client:
        for i, job_id in enumerate(ids):
            job = await client.wait(job_id)
            assert (job.state, job.steps, job.metrics["done"]) == ("CD", 150, 150.0)
            assert len(await facts(client, job_id, "job.finished.v1")) == 1
            noted = [int(line) for line in (tmp_path / f"job{i}/steps").read_text().split()]
            assert sorted(set(noted)) == list(range(150))


async def test_an_executor_killed_and_restarted_neither_loses_nor_doubles_a_running_job(cluster, tmp_path):
    async with cluster.client() as client:
        job_id = (await client.submit(counting(_made(tmp_path / "job"), 200))).id
        await until(client, job_id, "run.checkpointed.v1")
        (executor,) = cluster.pids("executor")
        joined = await client.bus.last_seq()
        os.kill(executor, signal.SIGKILL)
        await until(client, (await client.nodes()).nodes[0].id, "node.joined.v2", after=joined)
        job = await client.wait(job_id)
        assert (job.state, job.attempts, job.steps) == ("CD", 1, 200)
        noted = [int(line) for line in (tmp_path / "job/steps").read_text().split()]
        assert noted == list(range(200))


@pytest.mark.thorough
async def test_a_preempted_job_goes_on_after_its_last_step(tmp_path):
    cluster = Cluster(tmp_path / "data", "--emulate", "fast:1@1.0:4GiB", "--config", str(_quick(tmp_path)))
    cluster.up()
    try:
        async with cluster.client() as client:
            long = (await client.submit(counting(_made(tmp_path / "long"), 400))).id
            await until(client, long, "run.checkpointed.v1", count=2)
            short = (await client.submit(python("print('short')"))).id
            short_job, long_job = await client.wait(short), await client.wait(long)
            assert (long_job.state, long_job.preemptions, long_job.steps) == ("CD", 1, 400)
            assert short_job.finished_s < long_job.finished_s
            noted = [int(line) for line in (tmp_path / "long/steps").read_text().split()]
            assert noted == list(range(400))
    finally:
        cluster.kill_all()


@pytest.mark.parametrize("service", LEADERS)
async def test_a_hot_standby_takes_over_from_a_leader_killed_with_9(doubled, service):
    async with doubled.client() as client:
        await client.wait((await client.submit(python("pass"))).id)
        before = doubled.pids(service)
        assert len(before) == 2
        leader = await _leader(client, service)
        assert leader in before
        os.kill(leader, signal.SIGKILL)
        job = await client.wait((await client.submit(python("pass"))).id)
        assert job.state == "CD"
        assert await _leader(client, service) != leader


@pytest.mark.thorough
async def test_a_node_that_is_cut_off_loses_its_jobs_to_another(tmp_path):
    config = tmp_path / "penstock.toml"
    config.write_text("[matcher]\nnode_timeout_s = 3.0\n")
    devices = ("--emulate", "fast:1@1.0:4GiB", "--replicas", "executor=2")
    cluster = Cluster(tmp_path / "data", *devices, "--config", str(config))
    cluster.up()
    try:
        async with cluster.client() as client:
            job_id = (await client.submit(counting(_made(tmp_path / "job"), 300))).id
            await until(client, job_id, "run.checkpointed.v1")
            (first,) = (await client.job(job_id)).job.placed_on
            node_id = first.split("/")[0]
            executors = dict(zip(_node_ids(await client.nodes()), sorted(cluster.pids("executor")), strict=True))
            os.kill(executors[node_id], signal.SIGSTOP)
            job = await client.wait(job_id)
            assert (job.state, job.attempts, job.steps) == ("CD", 2, 300)
            assert {device.split("/")[0] for device in job.devices} == set(executors)
            os.kill(executors[node_id], signal.SIGCONT)
            await until(client, node_id, "node.joined.v2", count=2)
            assert (await client.job(job_id)).job.state == "CD"
    finally:
        cluster.kill_all()


@pytest.mark.thorough
async def test_without_any_snapshot_everything_comes_back_the_same(cluster):
    async with cluster.client() as client:
        ids = [(await client.submit(python(f"print({i})"))).id for i in range(4)]
        for job_id in ids:
            await client.wait(job_id)
        before = (await client.jobs()).jobs
        await _delete_snapshots(cluster)
    cluster.kill_all()
    cluster.up()
    async with cluster.client() as client:
        assert (await client.jobs()).jobs == before
        assert (await client.wait((await client.submit(python("pass"))).id)).state == "CD"


async def test_a_sweep_tries_every_point_and_knows_the_best(cluster, tmp_path):
    script = tmp_path / "trial.py"
    script.write_text("import penstock\nwith penstock.session() as s:\n    s.report(score=s.params['x'] ** 2)\n")
    sweep = tmp_path / "sweep.toml"
    sweep.write_text(
        'name = "squares"\nmetric = "score"\nmode = "min"\nsearch = "grid"\n'
        f'[job]\nname = "trial"\ncommand = [{json.dumps(sys.executable)}, {json.dumps(str(script))}]\nprofile = "off"\n'
        '[space.x]\nkind = "choice"\nvalues = [-2, 1, 3]\n'
    )
    sweep_id = cluster.run("tune", str(sweep)).stdout.strip()
    async with cluster.client() as client:
        finished_seq = await until(client, sweep_id, "sweep.finished.v1")
        view = await client.sweep(sweep_id, at=finished_seq)
        assert (view.state, view.best_value, len(view.trials)) == ("completed", 1.0, 3)


def _made(folder):
    folder.mkdir()
    return folder


def _quick(folder):
    config = folder / "penstock.toml"
    config.write_text("[ranker]\nthresholds_gpu_s = [1.0]\n\n[matcher]\nmin_run_s = 0.5\n")
    return config


async def _leader(client, service: str) -> int:
    async for _, body in client.bus.subscribe(subjects.replicas(service)):
        vitals = json.loads(body)
        if vitals["leading"]:
            return int(vitals["pid"])
    raise AssertionError("listening does not end")


def _node_ids(nodes) -> list[str]:
    """The ids of one machine's nodes in the order of their executors' numbers: `host`, `host-2`."""
    return [node.id for node in sorted(nodes.nodes, key=lambda node: (len(node.id), node.id))]


async def _delete_snapshots(cluster) -> None:
    login = read_login(cluster.data / "nats/logins/admin.json")
    async with connect(cluster.url, login=login, name="test") as admin:
        await admin.delete_snapshots()
        assert await admin.load_snapshot("gateway") is None
