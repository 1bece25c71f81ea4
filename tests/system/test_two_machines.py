"""
Two machines, emulated by network namespaces: joined by the documented line, a gang over both, memory of the other one,
one login revoked.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from penstock_bus.shell import REFUSED
from penstock_testing import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
PENSTOCK = str(Path(sys.executable).with_name("penstock"))
ADDRESSES = {"first": "10.213.0.1", "second": "10.213.0.2"}
DEVICES = ("--devices", "fast:2@1.0:16GiB")
LENT = {"SLAB_BYTES": str(4 << 20), "HEADROOM_BYTES": str(64 << 20), "MOST_LENT_BYTES": str(64 << 20)}
GANG = """
import os, socket
rank, address = int(os.environ["RANK"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    with socket.create_server(("", address[1])) as listener:
        print("address", address[0], *sorted(listener.accept()[0].recv(99).decode() for _ in range(3)), flush=True)
else:
    while True:
        try:
            peer = socket.create_connection(address, 5)
            break
        except ConnectionRefusedError:
            pass
    peer.sendall(f"{rank}@{socket.gethostname()}".encode())
"""
BORROWER = """
import json, os, sys, time
from penstock.memory import RemoteFile
BLOCK = 1 << 20
blocks = [bytes([1 + at]) * BLOCK for at in range(8)]
with RemoteFile(8 * BLOCK, local_bytes=0) as file:
    def look(said):
        assert [file.pread(BLOCK, at * BLOCK) for at in range(8)] == blocks
        stats = file.stats()
        shown = ("bound", "shared", "slab_bytes", "lost")
        print(said, json.dumps({name: getattr(stats, name) for name in shown}), flush=True)
        return stats
    for at, block in enumerate(blocks):
        file.pwrite(block, at * BLOCK)
    while look("reads").slab_bytes < 16 * BLOCK:
        time.sleep(0.05)
    look("borrows")
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.05)
    while look("still").bound:
        time.sleep(0.05)
    look("kept")
"""


class EmulatedMachine:
    """A network namespace with its own host name, home and data; it does not see the other machine's."""

    def __init__(self, name: str, namespace: str, folder: Path) -> None:
        self.folder = folder / name
        hidden = " && ".join(f"mount -t tmpfs none {folder / other}" for other in ADDRESSES if other != name)
        self._enter = (
            "ip",
            "netns",
            "exec",
            namespace,
            "unshare",
            "-u",
            "sh",
            "-c",
            f'hostname {name} && {hidden} && exec "$@"',
            "-",
        )
        own = {"HOME": str(self.folder), "TMPDIR": str(self.folder), "PENSTOCK_EXECUTOR_RUN_AS": "executor"}
        self._env = {**{key: os.environ[key] for key in ("PATH", "LANG", "PYTHONPATH") if key in os.environ}, **own}

    def begin(self, *words: str, **env: str) -> subprocess.Popen[str]:
        with (self.folder / "log").open("a") as log:
            return subprocess.Popen(
                [*self._enter, PENSTOCK, *words],
                cwd=self.folder,
                env={**self._env, **env},
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def run(self, *words: str, code: int = 0, **env: str) -> str:
        """Run a command to its end; return what it printed."""
        whole, env = [*self._enter, PENSTOCK, *words], {**self._env, **env}
        done = subprocess.run(
            whole,
            cwd=self.folder,
            env=env,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=90,
            check=False,
        )
        assert done.returncode == code, (words, done.stdout, done.stderr, self.log())
        return done.stdout + (done.stderr if code else "")

    def log(self) -> str:
        file = self.folder / "log"
        return file.read_text() if file.exists() else ""


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Have a process end in good order, whatever becomes of the test."""
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture
def machines() -> Iterator[dict[str, EmulatedMachine]]:
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("NOT TESTED: two machines take root, `ip` and `unshare`")
    namespaces = {name: f"pst{os.getpid()}-{name}" for name in ADDRESSES}
    with ExitStack() as made:
        # Not pytest's folder: with its long path a socket would have none in the machine's own folder.
        folder = Path(made.enter_context(tempfile.TemporaryDirectory(prefix="two-")))
        for namespace in namespaces.values():
            done = subprocess.run(["ip", "netns", "add", namespace], capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"NOT TESTED: no network namespace can be made here: {done.stderr.strip()}")
            made.callback(subprocess.run, ["ip", "netns", "del", namespace], check=True)
        ends = [part for name in ADDRESSES for part in ("name", name, "netns", namespaces[name])]
        words = ["ip", "link", "add", *ends[:4], "type", "veth", "peer", *ends[4:]]
        subprocess.run(words, check=True)
        for name, address in ADDRESSES.items():
            for rest in (("addr", "add", f"{address}/24", "dev", name), ("link", "set", name, "up")):
                subprocess.run(["ip", "-n", namespaces[name], *rest], check=True)
            subprocess.run(["ip", "-n", namespaces[name], "link", "set", "lo", "up"], check=True)
        for name in ADDRESSES:
            (folder / name).mkdir()
        yield {name: EmulatedMachine(name, namespace, folder) for name, namespace in namespaces.items()}


@pytest.mark.thorough
async def test_a_gang_runs_over_two_machines_until_one_is_revoked(
    machines: dict[str, EmulatedMachine], tmp_path: Path
) -> None:
    first, second = machines["first"], machines["second"]
    data, script = str(second.folder / "node"), tmp_path / "gang.py"
    script.write_text(GANG)
    with ended(first.begin("up", "--host", "0.0.0.0", "--data", str(first.folder / "data"), *DEVICES)):  # noqa: S104
        await eventually(lambda: "is up at" in first.log(), within_s=90)
        token = first.run("node", "token", "--valid", "10m").strip()
        with ended(second.begin("node", "join", "--data", data, *DEVICES, PENSTOCK_NODE_TOKEN=token)) as node:
            await eventually(lambda: "node_joined" in second.log(), within_s=60)
            first.run("submit", "--wait", "-g", "4", "--id", "gang", "--", sys.executable, str(script))
            met = f"address {ADDRESSES['first']} 1@first 2@second 3@second"
            assert met in first.run("logs", "gang")
            assert "used up: second (second uid 0)" in second.run("node", "join", token, "--no-start", code=1)
            first.run("node", "revoke", "second", "--reason", "sold")
            assert node.wait(60) == REFUSED
        assert "credentials_refused" in second.log()
        assert "Traceback" not in second.log()
        refused = second.begin("node", "start", "--data", data)
        assert refused.wait(60) == REFUSED
        first.run("submit", "--wait", "--id", "after", "--", "true")


@pytest.mark.thorough
async def test_a_job_borrows_memory_of_the_other_machine_until_that_is_revoked(
    machines: dict[str, EmulatedMachine], tmp_path: Path
) -> None:
    """The first machine lends nothing; the two share no folder but that of the script, so the bytes go over TCP."""
    first, second = machines["first"], machines["second"]
    data, script, revoked = second.folder / "node", tmp_path / "borrower.py", tmp_path / "revoked"
    script.write_text(BORROWER)
    settings = {f"PENSTOCK_MEMORY_{name}": value for name, value in LENT.items()}
    up = ("up", "--host", "0.0.0.0", "--data", str(first.folder / "data"), *DEVICES)  # noqa: S104
    with ended(first.begin(*up, PENSTOCK_MEMORY_LEND="false", **settings)):
        await eventually(lambda: "is up at" in first.log(), within_s=90)
        token = first.run("node", "token", "--valid", "10m").strip()
        join = second.begin("node", "join", "--data", str(data), *DEVICES, PENSTOCK_NODE_TOKEN=token, **settings)
        with ended(join) as node:
            await eventually(lambda: "node_joined" in second.log() and "memory_offered" in second.log(), within_s=60)
            first.run("node", "drain", "second")  # so that the job is on the other one
            first.run("submit", "--id", "borrower", "--", sys.executable, str(script), str(revoked))
            await eventually(lambda: "borrows" in first.run("logs", "borrower"), within_s=60)
            borrowed = told(first.run("logs", "borrower"), "borrows")
            assert (borrowed["bound"], borrowed["shared"], borrowed["lost"]) == (2, 0, 0)
            nodes = {one["id"]: one for one in json.loads(first.run("memory", "ls", "-o", "json"))}
            assert nodes["second"]["lent"] == 2
            first.run("node", "revoke", "second")
            assert node.wait(60) == REFUSED
        revoked.touch()
        await eventually(lambda: "kept" in first.run("logs", "borrower"), within_s=60)
        assert told(first.run("logs", "borrower"), "kept")["bound"] == 0
        own = {"PENSTOCK_CREDENTIALS": str(data / "memory.json"), "PENSTOCK_URL": f"tls://{ADDRESSES['first']}:4222"}
        assert second.begin("service", "memory", **own, **settings).wait(60) == REFUSED


def told(log: str, word: str) -> dict[str, int]:
    """Return the figures behind a word that a job printed."""
    found: list[dict[str, int]] = [json.loads(line.partition(word)[2]) for line in log.splitlines() if word in line]
    return found[-1]
