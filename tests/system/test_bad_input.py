"""Bad input on the real thing: what people are told, with which exit code, and that nothing is lost by it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from clusters import Cluster, facts, running, until

import penstock
from penstock_bus import BusError, ServiceError
from penstock_bus.identity.logins import user_name
from penstock_log import JobSpec, subjects
from penstock_testing import eventually

FAILED, USAGE, UNREACHABLE, CONFLICT, NOT_FOUND = 1, 2, 3, 5, 127
MOST_BYTES = 256 * 1024
GOOD = {"name": "good", "command": ["true"], "profile": "off"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("bad-input") / "data", "--emulate", "fast:2@1.0:4GiB") as it:
        yield it


async def refused(client: penstock.Client, body: bytes, command: str = "submit") -> tuple[int, str]:
    """Send a plain request; return the code and the message with which it is refused."""
    with pytest.raises(ServiceError) as answer:
        await client.bus.request(subjects.command(command), body)
    return answer.value.code, str(answer.value)


# --- what is wrong in itself

WRONG = [
    (b'{"name": "a", "command": ["true"', "malformed JSON: it ends too early"),
    (b'{"name": "a" "command": ["true"]}', "malformed JSON at line 1, column 14: expected ',' or '}'"),
    (b'{"name": "a", "command": ["true"], "gpu": 2}', "$.gpu: unknown field; did you mean `gpus`?"),
    (
        b'{"name": "a", "command": ["true"], "gpus": "2"}',
        '$.gpus: expected a whole number from 1 to 65536, or a range such as "1..8", got "2"',
    ),
    (b'{"name": "a", "command": "true"}', '$.command: expected an array, got "true"'),
    (b'{"name": "a", "command": ["true"], "gpus": 0}', "$.gpus: expected a whole number from 1 to 65536, got 0"),
    (b'{"name": "a", "command": ["true"], "gpus": -1}', "$.gpus: expected a whole number from 1 to 65536, got -1"),
    (
        b'{"name": "a", "command": ["true"], "params": {"n": 1%s}}' % (b"0" * 30),
        f"$.params.n: expected text, a finite number, true or false; whole numbers fit 64 bits, got {10**30}",
    ),
    (
        b'{"name": "a", "command": ["true"], "params": {"lr": NaN}}',
        "malformed JSON at line 1, column 53: invalid character (JSON has no word for NaN; numbers are finite)",
    ),
]


async def test_a_plain_request_with_bad_input_is_refused_with_what_to_correct(cluster: Cluster) -> None:
    async with cluster.client() as client:
        before = await client.bus.last_seq()
        for body, message in WRONG:
            assert await refused(client, body) == (400, message)
        jobs = [
            d for d in await client.bus.read(subjects.STREAM_SUBJECTS[subjects.EVT], before) if ".job." in d.subject
        ]
        assert jobs == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"name": "a",\n "command": ["true"', "bad.json:2 is not valid JSON: Expecting ',' delimiter at column 20"),
        ('{"name": "a", "command": ["true"],\n "gpu": 2}', "bad.json:2: gpu: unknown field; did you mean `gpus`?"),
        (
            '{"name": "a", "command": ["true"], "gpus": "2"}',
            "bad.json:1: gpus: expected a whole number from 1 to 65536",
        ),
        ('{"name": "a", "command": ["true"], "gpus": 0}', "bad.json:1: gpus: expected a whole number from 1 to 65536"),
        ('{"name": "a", "command": ["true"], "gpus": -1}', "bad.json:1: gpus: expected a whole number from 1 to 65536"),
    ],
)
def test_a_file_with_bad_input_is_refused_with_its_line(
    cluster: Cluster, tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "bad.json").write_text(text)
    done = cluster.tried("submit", "bad.json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert done.stderr.startswith(f"penstock: {message}")
    assert done.stderr.count("\n") == 1


# --- what does not fit this cluster


async def test_a_gang_larger_than_the_cluster_waits_and_why_says_that_it_can_never_fit_now(cluster: Cluster) -> None:
    done = cluster.tried("submit", "--id", "huge", "--gpus", "9", "--", "true")
    assert (done.returncode, done.stdout) == (0, "huge\n")
    assert "it can never fit now: needs 9 devices of one kind; pool `default` has 2 fast" in done.stderr
    async with cluster.client() as client:
        why = await client.why("huge")
        assert (why.state, why.cause) == ("PD", "never_fits")
        assert "needs 9 devices of one kind" in why.evidence
        assert "ask for at most 2 devices" in why.remedy
        shown = cluster.run("why", "huge").stdout
        assert "never fits" in shown
        assert "ask for at most 2 devices" in shown
        await client.cancel("huge")


def test_a_gang_larger_than_the_cluster_is_refused_when_strict(cluster: Cluster) -> None:
    done = cluster.tried("submit", "--id", "huger", "--gpus", "9", "--strict", "--", "true")
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert done.stderr.startswith("penstock: refused, as `strict` asks: it can never fit now: needs 9 devices")


async def test_an_unknown_device_kind_is_named_beside_the_known_ones(cluster: Cluster) -> None:
    done = cluster.tried("submit", "--id", "exotic", "--kind", "h100", "--", "true")
    assert (done.returncode, done.stdout) == (0, "exotic\n")
    assert "penstock: unknown device kind h100; known kinds: fast\n" in done.stderr
    strict = cluster.tried("submit", "--kind", "h100", "--strict", "--", "true")
    assert strict.returncode == USAGE
    assert "refused, as `strict` asks: unknown device kind h100; known kinds: fast" in strict.stderr
    async with cluster.client() as client:
        assert (await client.why("exotic")).cause == "never_fits"
        await client.cancel("exotic")


async def test_a_missing_script_is_refused_at_once_or_fails_with_where_it_was_looked_for(
    cluster: Cluster, tmp_path: Path
) -> None:
    done = cluster.tried("submit", "--", "python", "nope.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert done.stderr.startswith(
        f"penstock: there is no script {tmp_path}/nope.py; check the path, or give --no-check"
    )
    waited = cluster.tried(
        "submit", "--no-check", "--wait", "--id", "scriptless", "--", "python", "nope.py", cwd=tmp_path
    )
    assert waited.returncode == NOT_FOUND
    assert (
        f"scriptless failed: script 'nope.py' was not found; looked in {tmp_path}; submit from the folder"
        in waited.stderr
    )


# --- what was there before


async def test_the_same_id_is_the_same_job_with_equal_content_and_a_conflict_with_other(cluster: Cluster) -> None:
    command = ("submit", "--id", "twice", "-o", "json", "--hold", "--", "true")
    first, again = (cluster.tried(*command) for _ in range(2))
    assert (first.returncode, again.returncode) == (0, 0)
    one, other = json.loads(first.stdout), json.loads(again.stdout)
    assert (one["created"], other) == (True, {**one, "created": False})
    assert "twice was submitted before, with equal content; it is the same job" in again.stderr
    conflict = cluster.tried("submit", "--id", "twice", "--gpus", "2", "--hold", "--", "true")
    assert (conflict.returncode, conflict.stdout) == (CONFLICT, "")
    assert conflict.stderr == (
        "penstock: job twice is there already with other content: gpus (1, now 2); "
        "choose another id, or leave the id out\n"
    )
    async with cluster.client() as client:
        assert (await client.job("twice")).job.gpus == 1
        assert len(await facts(client, "twice", "job.submitted.v1")) == 1
        await client.cancel("twice")


# --- too much


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (MOST_BYTES, rf"the body has \d+ bytes, and {MOST_BYTES} are accepted at most; send less"),
        (
            2 << 20,
            r"large\.json is larger than 1,048,576 bytes; a job is a few lines, so pass the rest by a file's path",
        ),
    ],
)
def test_a_body_over_the_limit_is_refused_with_the_limit(
    cluster: Cluster, tmp_path: Path, size: int, message: str
) -> None:
    (tmp_path / "large.json").write_text(json.dumps({**GOOD, "params": {"x": "y" * size}}))
    done = cluster.tried("submit", "large.json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert re.match(f"penstock: {message}", done.stderr)


async def test_a_body_that_the_server_does_not_take_is_refused_before_it_is_sent(cluster: Cluster) -> None:
    said = r"the body for penstock\.cmd\.gateway\.submit has \d+ bytes and the server takes \d+; send less"
    async with cluster.client() as client:
        with pytest.raises(BusError, match=said):
            await submit(client, "too-large", params={"x": "y" * (2 << 20)})
        assert (await submit(client, "behind-it")).created
        assert "too-large" not in {job.id for job in (await client.jobs()).jobs}


FLOOD = """
import sys
for _ in range(1100):
    sys.stdout.write("x" * 65535 + chr(10))
print("the end")
"""
NEIGHBOUR = """
import time
for i in range(100):
    print(i, flush=True)
    time.sleep(0.01)
"""


async def test_all_that_a_job_prints_is_read_also_what_only_its_node_has_and_it_slows_no_neighbour(
    cluster: Cluster,
) -> None:
    async with cluster.client() as client:
        flood, neighbour = [
            (await client.submit(name=name, command=(sys.executable, "-c", code), profile="off")).id
            for name, code in (("flood", FLOOD), ("neighbour", NEIGHBOUR))
        ]
        digest, size = hashlib.sha256(), 0
        async for line in client.logs(flood, follow=True):
            digest.update(line.data)
            size += len(line.data)
        ended = [await client.wait(neighbour), await client.wait(flood)]
        assert [(job.state, job.exit_code, job.attempts) for job in ended] == [("CD", 0, 1)] * 2
        assert size == 1100 * 65_536 + len("the end\n")
        assert digest.hexdigest() == hashlib.sha256((b"x" * 65_535 + b"\n") * 1100 + b"the end\n").hexdigest()
        assert b"".join([line.data async for line in client.logs(neighbour)]) == b"".join(
            b"%d\n" % i for i in range(100)
        )
        assert await facts(client, flood, "run.warned.v1") == []
    assert cluster.run("logs", "--tail", "1", flood).stdout == "the end\n"


# --- what cannot be written

SAVING = """
import pathlib, time
import penstock
with penstock.session() as session:
    session.on_checkpoint(lambda folder: (folder / "state").write_text("x"), lambda folder: None)
    for _ in session.iterations(range(60)):
        time.sleep(0.01)
"""


async def test_a_job_whose_checkpoint_cannot_be_written_goes_on_is_warned_and_completes(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "saving.py").write_text(SAVING)
    checkpoints = cluster.data / "checkpoints"
    checkpoints.mkdir(exist_ok=True)
    (checkpoints / "unsaved").write_text("a file where the folder of the checkpoints is to be")
    async with cluster.client() as client:
        spec = JobSpec(
            name="unsaved",
            id="unsaved",
            command=(sys.executable, str(tmp_path / "saving.py")),
            profile="off",
            checkpoint_s=0.1,
        )
        await client.submit(spec)
        job = await client.wait("unsaved")
        assert (job.state, job.exit_code, job.attempts, job.steps) == ("CD", 0, 1, 60)
        warned = await facts(client, "unsaved", "run.warned.v1")
        assert warned
        assert re.search(r"the checkpoint after step \d+ could not be written: ", warned[0].fact["warning"])
    assert "could not be written" in cluster.run("story", "unsaved").stdout


# --- through the work queue


async def test_bad_submissions_to_the_inbox_end_among_the_rejected_with_the_reason(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.submit(name="taken", id="taken", command=("true",), profile="off")
        await client.wait("taken")
        bad = [
            *WRONG[:3],
            (msgspec.json.encode({**GOOD, "id": "taken"}), "job taken is there already with other content: "),
            (msgspec.json.encode({"spec": {**GOOD, "gpus": 9}, "strict": True}), "refused, as `strict` asks: "),
            (msgspec.json.encode({**GOOD, "params": {"x": "y" * MOST_BYTES}}), "the body has "),
        ]
        for body, _ in bad:
            await client.bus.submit(subjects.INBOX_JOBS, body)
        await client.bus.submit(subjects.INBOX_JOBS, msgspec.json.encode({**GOOD, "id": "behind-them"}))
        await until(client, "behind-them", "job.finished.v1")
        rejections = (await client.rejected()).rejected[-len(bad) :]
        assert [r.reason.startswith(reason) for r, (_, reason) in zip(rejections, bad, strict=True)] == [True] * len(
            bad
        )
        assert {r.origin for r in rejections} == {f"INBOX {subjects.INBOX_JOBS} by {user_name()}"}
    listed = cluster.run("rejected").stdout
    assert "$.gpu: unknown field; did you mean `gpus`?" in listed


def test_a_sweep_without_sense_is_refused_with_the_dimension(cluster: Cluster, tmp_path: Path) -> None:
    sweep = {
        "name": "s",
        "metric": "m",
        "trials": 2,
        "job": GOOD,
        "space": {"lr": {"kind": "uniform", "low": 1, "high": 0}},
    }
    (tmp_path / "sweep.json").write_text(json.dumps(sweep))
    done = cluster.tried("tune", "sweep.json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert "space.lr: low 1.0 is not below high 0.0; expected low < high" in done.stderr


# --- no server, the wrong one, one too many


PATIENCE_S = 60.0
"""A busy machine may take a while to start an interpreter; the connection itself is given up after two seconds."""
OTHERS = {"silence": b"", "a web server": b"HTTP/1.1 400 Bad Request\r\n\r\n", "noise": b"\xff\xfe\x00"}
WRONG_ADDRESSES = {
    "http://127.0.0.1:4222": "cannot connect to http://127.0.0.1:4222: no such scheme or no host; expected nats://HOST",
    "nats://127.0.0.1:port": "cannot connect to nats://127.0.0.1:port: ",
    "nats://no-such-host.invalid:4222": "no NATS server at nats://no-such-host.invalid:4222: ",
    "nats://127.0.0.1:1": "no NATS server at nats://127.0.0.1:1: ",
}


Told = dict[str, tuple[str, int, str, float]]


@contextlib.contextmanager
def listening(banner: bytes) -> Iterator[str]:
    """Something else that listens, and says this to everybody; gives its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        kept: list[socket.socket] = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    kept.append(connection)
                    connection.sendall(banner)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"nats://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in kept:
                connection.close()


def ask(url: str) -> tuple[int, str, float]:
    """Return exit code, message and seconds of a `penstock ps` at an address."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
    started = time.monotonic()  # noqa: TID251 - how long people wait is what is tested
    command = [sys.executable, "-m", "penstock", "ps", "--url", url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, timeout=110)
    assert done.stdout == ""
    return done.returncode, done.stderr, time.monotonic() - started  # noqa: TID251


@pytest.fixture(scope="module")
def told() -> Iterator[Told]:
    """What is said at each wrong address, asked all at once: address, exit code, message, seconds."""
    with contextlib.ExitStack() as stack:
        urls = {name: stack.enter_context(listening(banner)) for name, banner in OTHERS.items()}
        urls |= {url: url for url in WRONG_ADDRESSES}
        with ThreadPoolExecutor(len(urls)) as pool:
            answers = pool.map(ask, urls.values())
            yield {name: (url, *answer) for (name, url), answer in zip(urls.items(), answers, strict=True)}


@pytest.mark.parametrize("url", WRONG_ADDRESSES)
def test_a_wrong_or_absent_address_is_named_soon(told: Told, url: str) -> None:
    _, code, said, took_s = told[url]
    assert code == UNREACHABLE
    assert said.startswith(f"penstock: {WRONG_ADDRESSES[url]}")
    assert said.count("\n") == 1
    assert took_s < PATIENCE_S


def test_where_no_server_is_people_are_told_how_to_start_one(told: Told) -> None:
    said = told["nats://127.0.0.1:1"][2]
    assert said.endswith("Start one with 'penstock up', or set PENSTOCK_URL to the address of yours\n")


@pytest.mark.parametrize("other", OTHERS)
def test_something_else_at_the_address_is_no_server(told: Told, other: str) -> None:
    url, code, said, took_s = told[other]
    assert code == UNREACHABLE
    assert said.startswith(f"penstock: no NATS server at {url}: ")
    assert took_s < PATIENCE_S


async def test_a_second_up_on_the_same_folder_is_refused_and_disturbs_nothing(cluster: Cluster) -> None:
    done = cluster.tried("up", "--detach", "--data", str(cluster.data), "--port", "-1")
    assert (done.returncode, done.stdout) == (FAILED, "")
    assert done.stderr == (
        f"penstock: the data folder {cluster.data} is in use by the supervisor with process id "
        f"{cluster.running['pid']}; stop it with 'penstock down --data {cluster.data}', "
        "or choose another folder with --data\n"
    )
    async with cluster.client() as client:
        answer = await client.submit(name="still", command=("true",), profile="off")
        assert (await client.wait(answer.id)).state == "CD"


# --- no room


@pytest.mark.thorough
async def test_what_was_accepted_before_the_store_was_full_ends_once_there_is_room(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "data", "--emulate", "fast:2@1.0:4GiB", "--max-store", "8MiB")
    cluster.up()
    try:
        accepted = await fill(
            cluster, env={f"PADDING_{i}": "x" * 120_000 for i in range(2)}
        )  # the kernel's most: 128 KiB
        cluster.down()
        cluster.options = ("--emulate", "fast:2@1.0:4GiB")
        cluster.up()
        await each_ends_once(cluster, accepted)
    finally:
        cluster.kill_all()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 48 MiB; skips where none may be mounted."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48m", "none", str(path)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.mark.thorough
async def test_on_a_full_disk_nothing_is_accepted_or_lost_and_all_goes_on_by_itself_once_there_is_room(
    small_disk: Path,
) -> None:
    config = small_disk / "penstock.toml"
    config.write_text("[gateway]\nappend_timeout_s = 1.0\n")
    cluster = Cluster(small_disk / "data", "--emulate", "fast:2@1.0:4GiB", "--config", str(config))
    cluster.up()
    try:
        async with cluster.client() as client:
            accepted = [(await submit(client, f"before-{i}", command=("sleep", "0.2"))).id for i in range(6)]
            use_up(small_disk / "ballast")
            accepted += await fill(cluster, env={"PADDING": "x" * 5_000})
            (small_disk / "ballast").unlink()
            await eventually(lambda: accepts(client))
        await each_ends_once(cluster, [*accepted, "after"])
        cluster.kill_all()
        cluster.up()
        await each_ends_once(cluster, [*accepted, "after"])
    finally:
        cluster.kill_all()


def use_up(ballast: Path) -> None:
    """Fill the disk to its last byte, as other programs might."""
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 65536)


async def submit(client: penstock.Client, job_id: str, **more: object) -> penstock.SubmitAnswer:
    spec = {"id": job_id, "name": "job", "command": ("true",), "profile": "off", **more}
    return await client.submit(JobSpec(**spec))  # type: ignore[arg-type]


async def fill(cluster: Cluster, **more: object) -> list[str]:
    """Submit until the gateway says that there is no room; return what it accepted."""
    accepted: list[str] = []
    full = r"the log has no room left|the log did not answer .* disk full\?"
    async with cluster.client(timeout_s=6.0) as client:  # else it would go on asking for a minute
        with pytest.raises(ServiceError, match=full) as refused:
            await submit_until_refused(client, accepted, **more)
    assert refused.value.code == 503
    return accepted


async def submit_until_refused(client: penstock.Client, accepted: list[str], **more: object) -> None:
    while True:
        accepted.append((await submit(client, f"during-{len(accepted)}", **more)).id)


async def accepts(client: penstock.Client) -> bool:
    try:
        await submit(client, "after")
    except BusError:
        return False
    return True


async def each_ends_once(cluster: Cluster, ids: list[str]) -> None:
    async with cluster.client() as client, asyncio.timeout(110):
        for job_id in ids:
            assert (await client.wait(job_id)).state == "CD"
            assert len(await facts(client, job_id, "job.finished.v1")) == 1
