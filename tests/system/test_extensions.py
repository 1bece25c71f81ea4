"""An extension in a package of its own beside a whole Penstock, to which its facts are unknown."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import asynccontextmanager

import pytest
from clusters import facts, running, until

from penstock_bus import Append, Unauthorized
from penstock_bus.identity.logins import read_login
from penstock_bus.nats import connect
from penstock_cli.app import write_service
from penstock_log import Commit, JobSpec, subjects

NOTED = "ext.billing.job_noted.v1"


@pytest.fixture
def cluster(tmp_path):
    config = tmp_path / "penstock.toml"
    config.write_text('[extensions]\nnames = ["billing"]\n')
    with running(tmp_path / "data", "--emulate", "fast:1@1.0:4GiB", "--config", str(config)) as it:
        yield it


def job() -> JobSpec:
    return JobSpec(name="job", command=("true",), profile="off")


@asynccontextmanager
async def billing(cluster, folder):
    """Run the service that `penstock new service` writes; it finds its own login."""
    environment = {**os.environ, "PENSTOCK_URL": cluster.url, "PENSTOCK_BILLING_PUBLISH": "true"}
    environment["PENSTOCK_BILLING_BEGIN"] = "start"
    service = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "penstock_billing", cwd=folder / "billing", env=environment
    )
    try:
        yield
        service.terminate()
        assert await service.wait() == 0
    finally:
        if service.returncode is None:
            service.kill()
            await service.wait()


@pytest.mark.thorough
async def test_an_extension_publishes_its_facts_and_everything_else_goes_on_as_without_them(cluster, tmp_path):
    write_service("billing", tmp_path)
    async with cluster.client() as client, billing(cluster, tmp_path):
        first = (await client.wait((await client.submit(job())).id)).id
        seq = await until(client, first, NOTED)
        (matcher,) = cluster.pids("matcher")
        os.kill(matcher, signal.SIGKILL)  # the next one reads the log with the extension's facts in it
        second = await client.wait((await client.submit(job())).id)
        assert second.state == "CD"
        await until(client, second.id, NOTED)
        (noted,) = await facts(client, first, NOTED)
        (finished,) = await facts(client, first, "job.finished.v1")
        assert (noted.seq, noted.cause, noted.subject) == (seq, finished.seq, subjects.extension("billing", first))
        assert noted.fact == {"job_id": first, "state": "completed"}
        assert any(NOTED in line.text for line in (await client.story(first)).lines)
        assert await client.bus.rejections() == []
    shown = json.loads(cluster.run("events", first, "-o", "json").stdout)
    assert [one["fact"] for one in shown["events"] if one["type"] == NOTED] == [noted.fact]
    assert NOTED in cluster.run("story", first).stdout

    async with cluster.client() as client:  # it is gone; its facts are not
        third = await client.wait((await client.submit(job())).id)
        assert third.state == "CD"
        assert await facts(client, third.id, NOTED) == []
        assert len(await facts(client, first, NOTED)) == 1
    other, own = (read_login(cluster.data / f"{name}.json") for name in ("extension", "extension-billing"))
    assert own.user == "billing"
    item = Append(subject=noted.subject, commit=Commit(id="forged", actor="billing", facts=()), expected=None)
    async with connect(other.url, login=other) as bus:
        with pytest.raises(Unauthorized):
            await bus.append(item)
