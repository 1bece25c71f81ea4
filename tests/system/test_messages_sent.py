"""Notifications on a real cluster, to a real mail server and a real webhook: what comes, and what is kept."""

from __future__ import annotations

import asyncio
import getpass
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import Cluster, running
from message_servers import mail_server, webhook

TOKEN = "tok-never-in-the-log"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("GATHER_S", "1"), ("EVERY_S", "0.2"), ("TIMEOUT_S", "100"), ("REFUSED", "[]")):
            patch.setenv(f"PENSTOCK_GATEWAY_NOTIFY_{name}", value)
        with running(tmp_path_factory.mktemp("cluster"), "--devices", "fast:2") as one:
            yield one
    kept = [path for path in _files(one.data) if TOKEN.encode() in path.read_bytes()]
    assert {path.parent.name for path in kept} <= {"notify"}


def _files(folder: Path) -> list[Path]:
    return [Path(at, name) for at, _, names in os.walk(folder) for name in names if Path(at, name).is_file()]


def rule_of(cluster: Cluster, *words: str) -> str:
    return cluster.run("notify", "add", *words).stdout.partition(":")[0]


def test_a_webhook_and_a_mail_tell_of_a_failed_job_with_its_last_words(cluster: Cluster) -> None:
    with webhook() as hook, mail_server() as mails:
        to_hook = rule_of(
            cluster, f"json://127.0.0.1:{hook.port}/{TOKEN}", "--on", "failed,completed", "--name", "hook"
        )
        address = f"mailto://127.0.0.1:{mails.port}?from=penstock@example.org&to=ada@example.org"
        to_mail = rule_of(cluster, address, "--on", "failed")
        script = "import sys; print('<b>no such file</b>', file=sys.stderr); sys.exit(3)"
        cluster.tried("run", "--id", "boom", "--name", "train", "--", "python", "-c", script)
        ((title, body),) = hook.wait(1)
        assert title == "Penstock: train (boom) failed"
        assert "exit code 3: <b>no such file</b>" in body
        assert "penstock show boom" in body
        ((title, body),) = mails.wait(1)
        assert title == "ada@example.org: Penstock: train (boom) failed"
        assert "<b>no such file</b>" in body.replace("&lt;", "<").replace("&gt;", ">")

        assert len(cluster.run("notify", "list").stdout.splitlines()) == 3  # whatever the client had to ask again
        cluster.run("notify", "test", to_hook)
        assert hook.wait(2)[1][0] == "Penstock: a test"
        assert "hook" in (listed := cluster.run("notify", "list").stdout)
        assert TOKEN not in listed
        for rule in (to_hook, to_mail):
            cluster.run("notify", "remove", rule)
        assert to_hook not in cluster.run("notify", "list").stdout


def listed_with(cluster: Cluster, word: str) -> None:
    """Wait until the list of rules has a word, asking again and again, each time by a process of its own."""
    for _ in range(200):
        shown = " ".join(cluster.run("notify", "list").stdout.split())
        if word in shown:
            return
    raise AssertionError(f"{word!r} is not in {shown}")


@pytest.mark.thorough
def test_many_ends_are_one_message_and_a_target_that_is_down_is_tried_again(cluster: Cluster) -> None:
    with webhook() as down, webhook() as good:
        down.status = 503
        rule = rule_of(cluster, f"json://127.0.0.1:{down.port}/{TOKEN}", "--on", "completed")
        other = rule_of(cluster, f"json://127.0.0.1:{good.port}", "--on", "completed")

        async def submitted() -> None:
            async with cluster.client() as client:
                answers = await client.submit_all([{"name": f"j{i}", "command": ["true"]} for i in range(40)])
                for answer in answers:
                    await client.wait(answer.id)

        asyncio.run(submitted())
        told, seen = 0, 0
        while told < 40:
            title, _ = good.wait(seen + 1)[seen]
            seen += 1
            told += int(title.split()[1]) if "jobs" in title else 1
        assert told == 40
        assert seen < 20
        listed_with(cluster, "failure")
        assert down.tries >= 1
        for one in (rule, other):
            cluster.run("notify", "remove", one)


def test_what_waits_for_long_and_what_a_job_asks_for_itself_is_told(cluster: Cluster) -> None:
    warned = cluster.run("submit", "--notify", "started", "--", "true").stderr
    assert f"nobody is told, as {getpass.getuser()} has no address" in " ".join(warned.split())
    with webhook() as hook:
        waits = rule_of(cluster, f"json://127.0.0.1:{hook.port}", "--on", "waiting>1s")
        cluster.run("submit", "--id", "never", "--gpus", "64", "--", "true")
        ((title, _),) = hook.wait(1)
        assert title.startswith("Penstock: true (never) has been waiting for ")
        cluster.run("cancel", "never")
        cluster.run("notify", "remove", waits)
        cluster.run("notify", "add", f"json://127.0.0.1:{hook.port}", "--by-job")
        cluster.run("submit", "--id", "asks", "--notify", "completed", "--", "true")
        cluster.run("submit", "--id", "asks-not", "--", "true")
        assert hook.wait(2)[1][0] == "Penstock: true (asks) completed"


@pytest.mark.thorough
async def test_another_gateway_tells_what_the_one_that_was_killed_did_not(tmp_path: Path) -> None:
    with webhook() as hook, pytest.MonkeyPatch.context() as patch:
        for name, value in (("GATHER_S", "0.5"), ("EVERY_S", "0.2"), ("TIMEOUT_S", "100"), ("REFUSED", "[]")):
            patch.setenv(f"PENSTOCK_GATEWAY_NOTIFY_{name}", value)
        two = Cluster(tmp_path / "data", "--emulate", "fast:2", "--replicas", "gateway=2")
        two.up()
        try:
            rule_of(two, f"json://127.0.0.1:{hook.port}", "--on", "completed")
            ids = []
            for pid in two.pids("gateway"):  # one of them is the one that sends
                async with two.client() as client:
                    answers = await client.submit_all([{"name": "j", "command": ["true"]} for _ in range(10)])
                    ids += [answer.id for answer in answers]
                    for answer in answers:
                        await client.wait(answer.id)
                os.kill(pid, signal.SIGKILL)
            seen = 0
            while len({one for one in ids if any(f"({one})" in body for _, body in hook.wait(seen))}) < len(ids):
                seen += 1
        finally:
            two.down()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("syslog://", "no message goes to syslog:// here"),
        ("slack", "expected an address as apprise has it"),
        ("slack://x", "$.url:"),
        ("json://127.0.0.1?template=/etc/passwd", "reads a file of the gateway's machine"),
        ("json://127.0.0.1/a\nb", "expected an address"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_with_the_reason(cluster: Cluster, url: str, why: str) -> None:
    done = cluster.tried("notify", "add", url)
    assert done.returncode != 0
    assert why in " ".join(done.stderr.split())
