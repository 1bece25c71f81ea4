"""The synchronous client on a real cluster: in scripts, on a running loop, in threads, after a fork, and at Ctrl-C."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from clusters import Cluster

from penstock import SyncClient
from penstock_bus import ServiceError, Unavailable

SLEEPER = (sys.executable, "-c", "import time; time.sleep(600)")
PRINTER = (sys.executable, "-c", "for i in range(3): print('line', i, flush=True)")


@pytest.fixture
def client(cluster: Cluster) -> Iterator[SyncClient]:
    with SyncClient(cluster.url, timeout_s=60.0) as connected:
        yield connected
    assert not of_clients()


def of_clients() -> list[str]:
    """Return the threads of clients."""
    return [thread.name for thread in threading.enumerate() if thread.name == "penstock client"]


def submitted(client: SyncClient, command: tuple[str, ...] = PRINTER) -> str:
    return client.submit(name="sync", command=command, profile="off").id


def test_a_script_submits_follows_waits_and_reads_what_was_printed(client: SyncClient) -> None:
    job_id = submitted(client)
    printed = b"".join(line.data for line in client.logs(job_id, follow=True))
    assert printed == b"line 0\nline 1\nline 2\n"
    assert client.wait(job_id).state == "CD"
    assert client.metrics(job_id).steps == ()
    assert [job.id for job in client.jobs(ids=[job_id]).jobs] == [job_id]
    events = client.follow_events(job_id)
    assert next(events).type == "job.submitted.v1"
    assert next(event for event in events if event.type == "job.finished.v1").fact["job_id"] == job_id


def test_errors_are_those_of_the_asynchronous_client(client: SyncClient) -> None:
    with pytest.raises(ServiceError, match="no job 'nothing'") as refused:
        client.job("nothing")
    assert refused.value.code == 404


async def test_it_works_where_a_loop_runs_already(cluster: Cluster) -> None:
    assert asyncio.get_running_loop().is_running()
    with SyncClient(cluster.url) as client:
        assert client.wait(submitted(client)).state == "CD"


def test_several_threads_use_one_client(client: SyncClient) -> None:
    def runs(_: int) -> str:
        return client.wait(submitted(client)).state

    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(runs, range(16))] == ["CD"] * 16


def test_threads_that_use_it_first_at_the_same_time_connect_once(cluster: Cluster) -> None:
    client = SyncClient(cluster.url)
    with ThreadPoolExecutor(8) as pool:
        assert len({*pool.map(lambda _: client.whoami().name, range(8))}) == 1
    assert of_clients() == ["penstock client"]
    client.close()
    client.close()
    assert not of_clients()


def test_an_iterator_that_is_left_early_leaves_nothing_behind(client: SyncClient) -> None:
    for _ in range(20):
        for event in client.follow_events():
            assert event.seq
            break
    gc.collect()
    assert client.status().nodes


def test_a_closed_client_says_so_also_to_who_waits(cluster: Cluster) -> None:
    client = SyncClient(cluster.url)
    job_id = submitted(client, SLEEPER)
    with ThreadPoolExecutor(1) as pool:
        events = client.follow_events(job_id)
        next(events)
        waiting = pool.submit(client.wait, job_id)
        client.cancel(job_id)
        assert waiting.result().state == "CA"
        waiting = pool.submit(lambda: [*client.follow_events("no-such-thing")])
        while not waiting.running():
            pass
        client.close()
        with pytest.raises((RuntimeError, Unavailable)):
            waiting.result()
    with pytest.raises(RuntimeError, match="closed; make a new one"):
        client.jobs()
    never_used = SyncClient(cluster.url)
    never_used.close()
    with pytest.raises(RuntimeError, match="closed; make a new one"):
        never_used.jobs()


def test_a_client_that_is_forgotten_takes_its_thread_along(cluster: Cluster) -> None:
    client = SyncClient(cluster.url)
    assert client.status().nodes
    del client
    gc.collect()
    assert not of_clients()


def test_where_no_server_is_no_thread_is_left(tmp_path: Path) -> None:
    with pytest.raises(Unavailable), SyncClient("nats://127.0.0.1:1"):
        pass
    assert not of_clients()


def script(cluster: Cluster, tmp_path: Path, text: str) -> subprocess.Popen[str]:
    path = tmp_path / "script.py"
    path.write_text(text)
    environment = {**os.environ, "PENSTOCK_URL": cluster.url}
    return subprocess.Popen(
        [sys.executable, "-u", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


WAITING = """
import threading
import penstock

with penstock.SyncClient() as client:
    job_id = client.submit(name="long", command=("sleep", "600"), profile="off").id
    try:
        print("waiting")
        {wait}
    except KeyboardInterrupt:
        client.cancel(job_id)
        print("interrupted")
print([thread.name for thread in threading.enumerate()])
"""


@pytest.mark.parametrize("wait", ["client.wait(job_id)", "[*client.follow_events('nothing')]"])
def test_ctrl_c_ends_a_wait_and_the_client_goes_on(cluster: Cluster, tmp_path: Path, wait: str) -> None:
    running = script(cluster, tmp_path, WAITING.format(wait=wait))
    assert running.stdout is not None
    assert running.stdout.readline() == "waiting\n"
    running.send_signal(signal.SIGINT)
    out, errors = running.communicate(timeout=60)
    assert (out, errors, running.returncode) == ("interrupted\n['MainThread']\n", "", 0)


FORKED = """
import os, sys
import penstock

client = penstock.SyncClient()
client.status()
pid = os.fork()
if not pid:
    try:
        client.status()
    except RuntimeError as error:
        print(error)
    with penstock.SyncClient() as own:
        print(own.status().nodes == {"up": 1})
    sys.exit(0)
os.waitpid(pid, 0)
print(client.status().nodes == {"up": 1})
"""


def test_a_fork_is_told_to_make_a_client_of_its_own(cluster: Cluster, tmp_path: Path) -> None:
    running = script(cluster, tmp_path, FORKED)
    out, errors = running.communicate(timeout=60)
    first, *rest = out.splitlines()
    assert "is a fork" in first
    assert "make a new SyncClient here" in first
    assert (rest, errors, running.returncode) == (["True", "True"], "", 0)
