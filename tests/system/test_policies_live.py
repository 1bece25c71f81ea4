"""Policies that are set while everything runs: the ranker and the matcher heed them, and kill -9 loses none."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from clusters import Cluster, facts, signal_all, until

import penstock
from penstock_bus import BusError, ServiceError
from penstock_log import JobSpec
from penstock_testing import eventually

NOT_FOUND = 4
DEVICES = "a:2@1.0:1GiB,b:2@1.0:1GiB"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two pools, `default` and `lab`, of two devices of each of two kinds."""
    it = Cluster(tmp_path_factory.mktemp("policies") / "data", "--emulate", DEVICES)
    it.up()
    lab = subprocess.Popen([sys.executable, "-m", "penstock_executor"], env=_of_lab(it), stderr=subprocess.DEVNULL)
    yield it
    it.kill_all()
    lab.wait()


def _of_lab(cluster: Cluster) -> dict[str, str]:
    login = cluster.data / "nats" / "logins" / "executor.json"
    own = {"PENSTOCK_URL": cluster.url, "PENSTOCK_CREDENTIALS": str(login)}
    settings = {"NODE_ID": "n2", "POOL": "lab", "DEVICES": DEVICES, "RUN_AS": "executor"}
    settings["DATA_DIR"] = str(cluster.data / "lab")
    return {**os.environ, **own, **{f"PENSTOCK_EXECUTOR_{name}": value for name, value in settings.items()}}


async def submit(client: penstock.Client, job_id: str, **more: object) -> None:
    fields = {"id": job_id, "name": "job", "command": ("sleep", "600"), "profile": "off", **more}
    await client.submit(JobSpec(**fields))  # type: ignore[arg-type]


async def kind_of(client: penstock.Client, job_id: str, pool: str) -> str:
    """Submit a job for one device; return the kind that it runs on."""
    await submit(client, job_id, pool=pool)
    await until(client, job_id, "run.started.v1")
    (device,) = (await client.job(job_id)).job.placed_on
    return device.rpartition("/")[2].rstrip("0123456789")


async def end(client: penstock.Client, *job_ids: str) -> None:
    for job_id in job_ids:
        await client.cancel(job_id)
    for job_id in job_ids:
        await client.wait(job_id)


async def told(client: penstock.Client, job_id: str, cause: str) -> bool:
    """Say whether the matcher's last word on a job is that it waits for this reason."""
    rounds = await facts(client, "default", "round.decided.v1")
    return bool(rounds) and any(w["job_id"] == job_id and w["cause"] == cause for w in rounds[-1].fact.get("waits", ()))


async def answers(client: penstock.Client) -> bool:
    with contextlib.suppress(BusError):
        return bool(await client.policies())
    return False


async def test_how_kinds_are_given_out_changes_from_one_job_to_the_next_in_that_pool_alone(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await until(client, "n2", "node.joined.v2")
        assert await kind_of(client, "l0", "lab") == "a"
        assert await kind_of(client, "d0", "default") == "a"
        cluster.run("policy", "set", "assign=load-balance", "--pool", "lab", "--reason", "spread them")
        assert await kind_of(client, "l1", "lab") == "b"
        assert await kind_of(client, "d1", "default") == "a"
        cluster.run("policy", "set", "assign=first-fit", "--pool", "lab")
        assert await kind_of(client, "l2", "lab") == "a"
        shown = json.loads(cluster.run("policy", "show", "-o", "json").stdout)
        learnt = {"learnt_gpu_s": [3600.0, 36000.0], "reservations": []}
        assert shown["pools"] == [
            {"pool": "default", "settings": {}, "quotas": {}, "classes": {}, "alpha": 0.5, **learnt},
            {"pool": "lab", "settings": {"assign": "first-fit"}, "quotas": {}, "classes": {}, "alpha": 0.5, **learnt},
        ]
        (first, _) = await facts(client, "lab", "policy.set.v1")
        assert first.fact["reason"] == "spread them"
        cluster.run("policy", "reset", "--pool", "lab")
        await end(client, "l0", "l1", "l2", "d0", "d1")


async def test_an_order_that_is_set_is_heeded_at_once_and_outlives_kill_9_of_all_who_heed_it(cluster: Cluster) -> None:
    async with cluster.client() as client:
        for number in range(3):
            await kind_of(client, f"run-{number}", "default")
        cluster.run("policy", "set", "order=fifo")
        await submit(client, "wide", gpus=2)
        await submit(client, "small")
        await eventually(lambda: told(client, "small", "order"), why="in fifo nobody overtakes `wide`")

        before = {name: cluster.pids(name) for name in ("ranker", "matcher", "gateway")}
        signal_all([pid for pids in before.values() for pid in pids], signal.SIGKILL)
        await eventually(lambda: all(cluster.pids(name) != pids for name, pids in before.items()), why="they are back")
        await eventually(lambda: answers(client), why="the gateway answers again")
        await submit(client, "later")
        await eventually(lambda: told(client, "later", "order"), why="it is fifo still")
        assert [job.state for job in (await client.jobs()).jobs if job.id in {"wide", "small", "later"}] == ["PD"] * 3

        cluster.run("policy", "set", "order=fewest-gpus")
        await until(client, "small", "run.started.v1")
        rank = (await client.why("wide")).rank
        assert rank is not None
        assert rank.ahead == 1  # `later` is smaller
        cluster.run("policy", "reset")
        assert "nothing is set live" in cluster.run("policy", "show").stdout
        await end(client, "wide", "small", "later", *(f"run-{number}" for number in range(3)))


WRONG: list[tuple[dict[str, Any], int, str]] = [
    ({"order": "by-mood"}, 400, "$.set: order is 'by-mood': expected one of fifo, "),
    ({"ordre": "fifo"}, 400, "$.set: no setting of a pool is called 'ordre'; did you mean 'order'?"),
    ({"assign": "best"}, 400, "$.set: assign is 'best'; expected one of allox, first-fit, load-balance"),
    ({"alpha": 7}, 400, "$.set: alpha: expected a finite number above 0 and of at most 1, got 7"),
    ({"thresholds_gpu_s": [9, 3]}, 400, "$.set: thresholds_gpu_s is [9.0, 3.0]; expected rising numbers"),
]


async def has_lab(client: penstock.Client) -> bool:
    return any(node.pool == "lab" for node in (await client.nodes()).nodes)


async def test_what_cannot_be_set_is_told_what_was_expected(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await eventually(lambda: has_lab(client))
        for settings, code, said in WRONG:
            with pytest.raises(ServiceError) as refused:
                await client.set_policy("default", settings)
            assert (refused.value.code, str(refused.value)[: len(said)]) == (code, said)
    done = cluster.tried("policy", "set", "order=fifo", "--pool", "lba")
    assert (done.returncode, done.stdout) == (NOT_FOUND, "")
    assert "no pool is called 'lba': expected default, lab; one is there once" in done.stderr
    assert "nothing is set live" in cluster.run("policy", "show").stdout
