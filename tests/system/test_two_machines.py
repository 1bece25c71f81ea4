"""Two machines, emulated by network namespaces: joined by the documented line, a gang over both, one login revoked."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
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


class EmulatedMachine:
    """A network namespace with its own host name, home and data."""

    def __init__(self, name: str, namespace: str, folder: Path) -> None:
        self.folder = folder / name
        self.folder.mkdir()
        self._enter = (
            "ip",
            "netns",
            "exec",
            namespace,
            "unshare",
            "-u",
            "sh",
            "-c",
            f'hostname {name}; exec "$@"',
            "-",
        )
        own = {"HOME": str(self.folder), "PENSTOCK_EXECUTOR_RUN_AS": "executor"}
        self._env = {**{key: os.environ[key] for key in ("PATH", "LANG") if key in os.environ}, **own}

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
def machines(tmp_path: Path) -> Iterator[dict[str, EmulatedMachine]]:
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("NOT TESTED: two machines take root, `ip` and `unshare`")
    namespaces = {name: f"pst{os.getpid()}-{name}" for name in ADDRESSES}
    with ExitStack() as made:
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
        yield {name: EmulatedMachine(name, namespace, tmp_path) for name, namespace in namespaces.items()}


async def test_a_gang_runs_over_two_machines_until_one_is_revoked(machines: dict[str, EmulatedMachine]) -> None:
    first, second = machines["first"], machines["second"]
    data, script = str(second.folder / "node"), second.folder / "gang.py"
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
