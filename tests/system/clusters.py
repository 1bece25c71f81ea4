"""A real Penstock for tests: `penstock up` on a folder of its own, killed and brought up again at will."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import penstock
from penstock_events import views

EXAMPLES = Path(__file__).parents[2] / "examples"


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
        environment = {**os.environ, "NO_COLOR": "1"}
        if (self.data / "penstock.json").exists():
            environment["PENSTOCK_URL"] = self.url
        command = [sys.executable, "-m", "penstock", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=60)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done

    @property
    def running(self) -> dict:
        """What `penstock up` wrote about itself."""
        return json.loads((self.data / "penstock.json").read_text())

    @property
    def url(self) -> str:
        """Where its NATS server listens."""
        return self.running["url"]

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[penstock.Client]:
        """Connect as everybody does."""
        async with penstock.Client(self.url) as client:
            yield client

    def pids(self, marker: str) -> list[int]:
        """Return the processes of this cluster whose command line holds the marker."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and (words := command_line(entry)) and marker in words and self._ours(entry):
                found.append(int(entry.name))
        return sorted(found)

    def kill_all(self) -> None:
        """Kill -9 everything that belongs to this folder, jobs included, as a power cut would."""
        for _ in range(5):  # children of what is being killed may still appear
            for pid in self.pids(""):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _ours(self, entry: Path) -> bool:
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:
            return False
        mine = str(self.data)
        return entry.name != str(os.getpid()) and (mine in command_line(entry) or mine.encode() in environment)


def command_line(entry: Path) -> str:
    """Return a process's command line; empty if it is gone."""
    try:
        return (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


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


async def retrying(call: Callable, *errors: type[Exception]):
    """Call until it stops raising these errors."""
    while True:
        try:
            return await call()
        except errors:
            await asyncio.sleep(0.1)
