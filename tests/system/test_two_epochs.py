"""Two runs of one job are never at work at the same time, whatever is stopped or cut off: real services, real jobs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from bus_harness import Gate

from penstock_bus import Append, Bus
from penstock_bus.health import Vitals
from penstock_bus.identity.access import ADMIN
from penstock_bus.identity.logins import SERVICE_LOGINS
from penstock_bus.nats import connect
from penstock_bus.servers.server import Server, ServerSettings
from penstock_cli.local.service_template import ServiceProcess, ServiceTemplate
from penstock_executor.launchers import shim
from penstock_log import Commit, JobSpec, JobSubmitted, RoundDecided, RunEnded, RunWarned, subjects
from penstock_testing import eventually

pytestmark = pytest.mark.faults

PATIENCE_S = 60.0
NODE_TIMEOUT_S = 3.0
WRITE = """
import os, sys, time
out = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def write(*words):
    os.write(out, (" ".join(map(str, (os.environ["PENSTOCK_EPOCH"], time.monotonic(), *words))) + "\\n").encode())
"""
SESSION = """
import penstock
with penstock.session() as session:
    session.on_checkpoint(lambda folder: (folder / "state").write_text("x"), lambda folder: None)
    for item in session.iterations(range(1_000_000)):
        write(session.step)
        time.sleep(0.01)
"""
PLAIN = """
import subprocess
if len(sys.argv) == 2:  # and one beside it
    subprocess.Popen([sys.executable, *sys.orig_argv[1:], "child"], start_new_session="apart" in sys.argv[0])
while True:
    write(os.getpid())
    time.sleep(0.01)
"""
JOBS = {"session": SESSION, "command": PLAIN, "apart": PLAIN}


@dataclass
class TwoNodes:
    """A server, a matcher, and two executors that share a folder of checkpoints."""

    server: Server
    template: ServiceTemplate
    folder: Path
    bus: Bus
    node_timeout_s: float = NODE_TIMEOUT_S
    services: dict[str, ServiceProcess] = field(default_factory=dict)
    gates: dict[str, Gate] = field(default_factory=dict)

    async def start(self, name: str, service: str = "") -> None:
        """Start a service, or an executor of this name again; return when it is ready."""
        service = service or name
        url = self.server.url if name not in self.gates else f"nats://127.0.0.1:{self.gates[name].port}"
        env = {
            "PENSTOCK_URL": url,
            "PENSTOCK_CREDENTIALS": str(self.server.settings.data_dir / SERVICE_LOGINS / f"{service}.json"),
            "PENSTOCK_MATCHER_NODE_TIMEOUT_S": str(self.node_timeout_s),
            "PENSTOCK_EXECUTOR_NODE_ID": name,
            "PENSTOCK_EXECUTOR_DATA_DIR": str(self.folder / name),
            "PENSTOCK_EXECUTOR_CHECKPOINT_DIR": str(self.folder / "checkpoints"),
            "PENSTOCK_EXECUTOR_RUN_AS": "executor",
            "PENSTOCK_EXECUTOR_DEVICES": "fast:3@1.0:1GiB",
        }
        async with asyncio.timeout(PATIENCE_S):
            ready = asyncio.create_task(self._ready(service))
            with (self.folder / f"{name}.log").open("ab") as log:
                self.services[name] = await self.template.fork(service, env, log)
            await ready

    async def _ready(self, service: str) -> None:
        async for _, body in self.bus.subscribe(subjects.replicas(service)):
            vitals = msgspec.json.decode(body, type=Vitals)
            if vitals.ready and vitals.pid in {process.pid for process in self.services.values()}:
                return

    async def submit(self, job_id: str, kind: str) -> Path:
        """Submit a job that writes down when it is at work, and return its file."""
        script, out = self.folder / f"{kind}.py", self.folder / f"{job_id}.out"
        script.write_text(WRITE + JOBS[kind])
        spec = JobSpec(
            name=job_id, command=(sys.executable, str(script), str(out)), profile="off", checkpoint_s=60.0, retries=0
        )
        commit = Commit(id=job_id, actor="gateway/test", facts=(JobSubmitted(job_id=job_id, spec=spec, at_s=1.0),))
        await self.bus.append(Append(subject=subjects.job(job_id), commit=commit, expected=0))
        return out

    async def node_of(self, job_id: str, epoch: int) -> str:
        """Return the node on which this run of a job is."""
        async with asyncio.timeout(PATIENCE_S):
            async for delivery in self.bus.follow(subjects=[subjects.round_("default")]):
                for fact in delivery.commit.facts:
                    for placed in fact.placements if isinstance(fact, RoundDecided) else ():
                        if (placed.job_id, placed.epoch) == (job_id, epoch):
                            return placed.slots[0].node_id
        raise AssertionError

    async def facts(self, job_id: str) -> list[object]:
        """Return what was said of a job's runs."""
        return [fact for one in await self.bus.read(subjects.run(job_id)) for fact in one.commit.facts]

    def send(self, names: Iterable[str], signum: signal.Signals) -> None:
        """Signal services."""
        for name in names:
            self.services[name].send_signal(signum)

    def shims(self, node: str) -> list[int]:
        """Return the shims of a node."""
        return [int(path.read_text().split()[0]) for path in self.folder.glob(f"{node}/runs/*/*/*/pid")]

    def shim(self, node: str, job_id: str) -> int:
        """Return the shim of a job's first run on a node."""
        return int((self.folder / node / "runs" / job_id / "1" / "0" / "pid").read_text().split()[0])


@asynccontextmanager
async def two_nodes(
    folder: Path, *, gated: bool = False, node_timeout_s: float = NODE_TIMEOUT_S
) -> AsyncIterator[TwoNodes]:
    server = Server(ServerSettings(data_dir=folder / "nats"))
    await server.start()
    host, _, port = server.url.removeprefix("nats://").partition(":")
    try:
        async with (
            connect(server.url, login=server.logins[ADMIN]) as bus,
            ServiceTemplate(("ranker", "matcher", "executor")) as template,
        ):
            nodes = TwoNodes(server, template, folder, bus, node_timeout_s)
            try:
                for name in ("n1", "n2") if gated else ():
                    nodes.gates[name] = Gate()
                    await nodes.gates[name].start(host, int(port))
                await nodes.start("ranker")
                await nodes.start("matcher")
                await nodes.start("n1", "executor")
                yield nodes
            finally:
                for process in nodes.services.values():
                    process.send_signal(signal.SIGKILL)
                    await process.wait()
                for node in ("n1", "n2"):
                    for pid in nodes.shims(node):
                        for one in (*shim.descendants(pid), pid):
                            with contextlib.suppress(ProcessLookupError):
                                os.kill(one, signal.SIGKILL)
                for gate in nodes.gates.values():
                    await gate.stop()
    finally:
        await server.kill()


def written(out: Path) -> dict[int, list[float]]:
    """Return when each epoch was at work."""
    found: dict[int, list[float]] = {}
    for line in out.read_text().splitlines() if out.exists() else ():
        epoch, at_s, *_ = line.split()
        found.setdefault(int(epoch), []).append(float(at_s))
    return found


def overlap_s(out: Path) -> float:
    """Return for how long an epoch went on after a later one had begun; negative: the least pause between two."""
    epochs = sorted(written(out).items())
    return max(max(times) - min(later) for i, (_, times) in enumerate(epochs) for _, later in epochs[i + 1 :])


def at_work(out: Path, epoch: int, lines: int = 1) -> Callable[[], bool]:
    return lambda: len(written(out).get(epoch, ())) >= lines


def gone(pid: int) -> Callable[[], bool]:
    return lambda: not alive(pid)


async def at_work_on_n1(nodes: TwoNodes, kinds: Iterable[str], lines: int) -> dict[str, Path]:
    """Have a job of each kind at work on the one node that there is; return its file by the job's id."""
    outs = {kind: await nodes.submit(kind, kind) for kind in kinds}
    for job_id, out in outs.items():
        assert await nodes.node_of(job_id, 1) == "n1"
        await eventually(at_work(out, 1, lines), within_s=PATIENCE_S)
    return outs


async def until_given_up(nodes: TwoNodes, job_id: str, out: Path, epoch: int) -> None:
    """Wait until the next run is at work, while the one before cannot know of it."""
    async with asyncio.timeout(PATIENCE_S):
        await nodes.node_of(job_id, epoch + 1)
        await eventually(at_work(out, epoch + 1, 50), within_s=PATIENCE_S)


@pytest.mark.parametrize(("kinds", "also"), [(JOBS, ""), (("session", "apart"), "shim"), (("session", "apart"), "all")])
async def test_an_executor_that_is_stopped_has_no_run_beside_the_next_one(
    tmp_path: Path, kinds: Iterable[str], also: str
) -> None:
    async with two_nodes(tmp_path) as nodes:
        outs = await at_work_on_n1(nodes, kinds, lines=500)  # and their groups are known to the shim
        await nodes.start("n2", "executor")
        shims = {job_id: nodes.shim("n1", job_id) for job_id in outs}
        nodes.send(["n1"], signal.SIGSTOP)
        stopped = [
            one for pid in shims.values() for one in {"": [], "shim": [pid], "all": [pid, *shim.descendants(pid)]}[also]
        ]
        for one in stopped:
            os.kill(one, signal.SIGSTOP)
        for job_id, out in outs.items():
            await until_given_up(nodes, job_id, out, 1)
        for one in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGCONT)
        nodes.send(["n1"], signal.SIGCONT)
        lines = {job_id: len(written(out)[2]) for job_id, out in outs.items()}
        for job_id, out in outs.items():
            await eventually(gone(shims[job_id]), within_s=PATIENCE_S)
            await eventually(at_work(out, 2, lines[job_id] + 100), within_s=PATIENCE_S)
            assert overlap_s(out) < 0, job_id


async def test_a_node_that_is_cut_off_has_no_run_beside_the_next_one(tmp_path: Path) -> None:
    async with two_nodes(tmp_path, gated=True) as nodes:
        outs = await at_work_on_n1(nodes, ("session", "apart"), lines=50)
        await nodes.start("n2", "executor")
        shims = {job_id: nodes.shim("n1", job_id) for job_id in outs}
        nodes.gates["n1"].shut()
        for job_id, out in outs.items():
            await until_given_up(nodes, job_id, out, 1)
        nodes.gates["n1"].unlock()
        for job_id, out in outs.items():
            await eventually(gone(shims[job_id]), within_s=PATIENCE_S)
            assert overlap_s(out) < 0, job_id


async def test_a_run_outlives_a_restart_of_its_executor_that_is_short_enough(tmp_path: Path) -> None:
    async with two_nodes(tmp_path, node_timeout_s=PATIENCE_S) as nodes:
        out = (await at_work_on_n1(nodes, ["command"], lines=1))["command"]
        nodes.send(["n1"], signal.SIGKILL)
        await nodes.services["n1"].wait()
        await nodes.start("n1", "executor")
        lines = len(written(out)[1])
        await eventually(at_work(out, 1, lines + 500), within_s=PATIENCE_S)
        assert sorted(written(out)) == [1]


async def test_a_run_that_nobody_has_given_up_goes_on_when_the_matcher_is_back(tmp_path: Path) -> None:
    """Without a matcher nothing is given away, but the node cannot know: the run is stopped, and not ended."""
    async with two_nodes(tmp_path) as nodes:
        out = (await at_work_on_n1(nodes, ["session"], lines=1))["session"]
        nodes.send(["matcher"], signal.SIGKILL)
        await nodes.services["matcher"].wait()
        pid = nodes.shim("n1", "session")
        await eventually(lambda: {state(one) for one in shim.descendants(pid)} == {"T"}, within_s=PATIENCE_S)
        lines = len(written(out)[1])
        await nodes.start("matcher")
        await eventually(at_work(out, 1, lines + 100), within_s=PATIENCE_S)
        assert sorted(written(out)) == [1]
        facts = await nodes.facts("session")
        assert not any(isinstance(fact, RunEnded) for fact in facts)
        (warned,) = (fact.warning for fact in facts if isinstance(fact, RunWarned))
        assert warned.endswith("the run was stopped meanwhile, and goes on")


def state(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "X"


def alive(pid: int) -> bool:
    return state(pid) not in "ZX"
