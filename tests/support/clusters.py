"""A real Penstock for tests: `penstock up` on a folder of its own, killed and brought up again at will."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path

import pytest

import penstock
from penstock_log import views

PATIENCE_S = 60.0
"""How long the services of a test may take to answer: the machine may be busy."""


class Cluster:
    """
    One data folder and whatever runs on it.

    Parameters
    ----------
    data : Path
    options : str
        Further words for `penstock up`.
    """

    def __init__(self, data: Path, *options: str) -> None:
        self.data = data
        self.options = options

    def up(self) -> None:
        """Start everything; returns when every service is ready."""
        command = ["up", "--detach", "--data", str(self.data), "--port", "-1", *self.options]
        self.run(*command)

    def down(self) -> None:
        """Stop everything in good order."""
        self.run("down", "--data", str(self.data))

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command line; a failure shows what it printed and the services' log."""
        done = self.tried(*arguments)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done

    def tried(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run the command line, whatever becomes of it."""
        environment = {**os.environ, "NO_COLOR": "1", "PENSTOCK_GATEWAY_QUERY_TIMEOUT_S": str(PATIENCE_S)}
        if (self.data / "penstock.json").exists():
            environment["PENSTOCK_URL"] = self.url
        command = [sys.executable, "-m", "penstock", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, timeout=110, cwd=cwd
        )

    @property
    def running(self) -> dict:
        """What `penstock up` wrote about itself."""
        return json.loads((self.data / "penstock.json").read_text())

    @property
    def url(self) -> str:
        """Where its NATS server listens."""
        return self.running["url"]

    @contextlib.asynccontextmanager
    async def client(self, timeout_s: float = PATIENCE_S) -> AsyncIterator[penstock.Client]:
        """Connect as everybody does."""
        async with penstock.Client(self.url, timeout_s=timeout_s) as client:
            yield client

    def pids(self, service: str) -> list[int]:
        """Return the processes of a service that run on this folder, as `penstock up` wrote them down."""
        named = self.running["processes"]
        return [entry["pid"] for name, entry in named.items() if name.rpartition("-")[0] == service]

    def kill_all(self) -> None:
        """
        Kill -9 everything that belongs to this folder, jobs included, as a power cut would.

        All are stopped before the first is killed, so that nobody lives to see another die and note it.
        """
        pids = set(self._with_our_folder())  # those of one that did not become ready, too
        if (self.data / "penstock.json").exists():
            pids |= {self.running["pid"], *(entry["pid"] for entry in self.running["processes"].values())}
        stopped: set[int] = set()
        while fresh := pids - stopped:  # children of what is being stopped may still appear
            signal_all(fresh, signal.SIGSTOP)
            stopped |= fresh
            pids = set(self._with_our_folder())
        signal_all(stopped, signal.SIGKILL)
        while pids := set(self._with_our_folder()):
            signal_all(pids, signal.SIGKILL)

    def _with_our_folder(self) -> Iterator[int]:
        """Yield processes that name the folder in their command or environment: jobs, and what they started."""
        mine = os.fsencode(self.data)
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid() and mine in identity(entry):
                yield int(entry.name)


@contextlib.contextmanager
def cluster_with(devices: str, folder: Path) -> Iterator[Cluster]:
    """Run a cluster whose node has these devices, and whose dashboard has any port."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_EXECUTOR_DEVICES", devices)
        patch.setenv("PENSTOCK_DASHBOARD_PORT", "0")
        with running(folder) as cluster:
            yield cluster


def command_of(script: str, folder: Path) -> tuple[str, str]:
    """Write a script, and return the command that runs it."""
    path = folder / "training.py"
    path.write_text(script)
    return sys.executable, str(path)


def signal_all(pids: Iterable[int], signum: signal.Signals) -> None:
    """Signal those that are still there; 0, which stands for a process not started yet, would be ourselves."""
    for pid in filter(None, pids):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)


def identity(entry: Path) -> bytes:
    """Return a process's command line and environment; empty if it is gone or dead."""
    try:
        return (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
    except OSError:
        return b""


@contextlib.contextmanager
def running(data: Path, *options: str) -> Iterator[Cluster]:
    """Start a cluster on a folder, and leave nothing of it, not even where it did not become ready."""
    cluster = Cluster(data, *options)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.kill_all()


async def until(client: penstock.Client, entity_id: str, tag: str, count: int = 1, *, after: int = 0) -> int:
    """Wait until the log holds `count` facts of this tag about an entity; return the sequence of the last."""
    async for event in client.follow_events(entity_id, after=after):
        if event.type == tag:
            count -= 1
        if count == 0:
            return event.seq
    raise AssertionError("a followed log does not end")


async def facts(client: penstock.Client, entity_id: str, tag: str) -> list[views.EventView]:
    """Return the facts of one tag about an entity."""
    events = (await client.events(entity_id, after=0, limit=1000)).events
    return [event for event in events if event.type == tag]
