"""
What `penstock top` costs with 10,000 jobs on 2,000 devices: ``python tests/bench/bench_top.py [SECONDS]``.

A real server, a gateway whose log says that 1,000 jobs run and 9,000 wait, and `penstock top` in a terminal of 80 by 24
and of 200 by 60. For each pane: the part of a core that `penstock top` takes at one refresh a second, and what the
gateway takes more than where nobody looks, by the processes' own times.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from gateway_cases import placed, started
from top_screens import job

from penstock.client import Client
from penstock_bus import Append, Bus, BusError
from penstock_bus.identity.logins import Login
from penstock_bus.servers.server import Server, ServerSettings
from penstock_log import AnyEvent, Commit, Device, NodeJoined, subject_of
from penstock_testing.fixtures import NatsTestServer

JOBS, NODES, PER_NODE, RUN = 10_000, 250, 8, 1_000
SIZES = ((80, 24), (200, 60))
PANES = {
    "queue": b"2",
    "queue, at its end": b"G",
    "queue, sorted by name": b"ss",
    "queue, filtered": b"/train-99\r",
    "devices": b"1",
    "a waiting job": b"2\x1bg" + b"j" * 1_005 + b"\r",
}
SETTLE_S = 6.0


def facts(now_s: float) -> Iterator[AnyEvent]:
    """Yield the log."""
    for number in range(NODES):
        devices = tuple(
            Device(index=i, kind="h100", memory_bytes=80 << 30, backend="emulated") for i in range(PER_NODE)
        )
        yield NodeJoined(at_s=now_s, node_id=f"n{number:03}", devices=devices, pool="default")
    for number in range(JOBS):
        yield job(f"j{number:05}", at_s=now_s, name=f"train-{number}", user=f"user{number % 40}", gpus=1)
    for number in range(RUN):
        node_id = f"n{number // PER_NODE:03}"
        yield placed(f"j{number:05}", number % PER_NODE, node=node_id, kind="h100", at_s=now_s)
        yield started(f"j{number:05}", node=node_id, at_s=now_s)


async def write_log(bus: Bus) -> None:
    """Append all facts."""
    now_s = time.time() - 3_600  # noqa: TID251 - a benchmark's past
    for number, fact in enumerate(facts(now_s)):
        commit = Commit(id=f"b{number}", actor="bench", facts=(fact,))
        await bus.append(Append(subject=subject_of(fact), commit=commit, expected=None))


async def answers(login: Login) -> None:
    """Wait until the gateway answers."""
    async with Client(login.url, login=login) as client:
        while True:
            with contextlib.suppress(BusError):
                assert sum((await client.status()).jobs.values()) == JOBS
                return
            await asyncio.sleep(0.5)


class Terminal:
    """`penstock top` in a terminal of a size, of which nobody reads the screen."""

    def __init__(self, size: tuple[int, int], environment: dict[str, str]) -> None:
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        command = [sys.executable, "-m", "penstock", "top"]
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
        os.close(slave)
        self._master = master
        self.read_bytes = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self._master, 65_536):
                self.read_bytes += len(data)

    def press(self, keys: bytes) -> None:
        for key in keys:
            os.write(self._master, bytes([key]))
            if key != ord("j"):
                time.sleep(0.3)  # as a person does; an escape is told from a sequence by what does not follow

    def close(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.kill()
        self.process.wait()


def cpu_s(pid: int) -> float:
    """Return the seconds of a core that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def shares(pids: dict[str, int], seconds: float) -> dict[str, float]:
    """Return the part of a core that each process takes over some seconds."""
    before, begin_s = {name: cpu_s(pid) for name, pid in pids.items()}, time.perf_counter()
    time.sleep(seconds)
    lasted_s = time.perf_counter() - begin_s
    return {name: (cpu_s(pid) - before[name]) / lasted_s for name, pid in pids.items()}


def measure(gateway: subprocess.Popen[bytes], environment: dict[str, str], seconds: float) -> None:
    """Print the figures of each size and pane."""
    idle = shares({"gateway": gateway.pid}, seconds)["gateway"]
    print(f"nobody looks: gateway {idle:.1%} of a core")
    for size in SIZES:
        terminal = Terminal(size, environment)
        try:
            time.sleep(SETTLE_S)
            for pane, keys in PANES.items():
                terminal.press(keys)
                time.sleep(SETTLE_S)
                written = terminal.read_bytes
                found = shares({"gateway": gateway.pid, "top": terminal.process.pid}, seconds)
                per_s = (terminal.read_bytes - written) / seconds
                status = Path(f"/proc/{terminal.process.pid}/status").read_text()
                resident_mb = int(status.partition("VmRSS:")[2].split()[0]) / 1024
                print(
                    f"{size[0]}x{size[1]} {pane}: top {found['top']:.1%}, gateway {found['gateway'] - idle:+.1%}, "
                    f"{per_s / 1024:.1f} KiB/s to the terminal, {resident_mb:.0f} MiB",
                    flush=True,
                )
        finally:
            terminal.close()


def main() -> None:
    """Run the benchmark."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        user = {"user": "t0", "password": "test"}
        settings = ServerSettings(data_dir=Path(folder), sync_interval="2m")
        server = Server(settings, {"accounts": {"T0": {"jetstream": "enabled", "users": [user]}}})
        runner.run(server.start())
        try:
            account = NatsTestServer(server).account()
            login = Login(url=account.url, user=account.user, password=account.password)

            async def fill() -> None:
                async with account.connect() as bus:
                    await write_log(bus)

            runner.run(fill())
            environment = {**os.environ, **account.environment, "LANG": "C.UTF-8", "TERM": "xterm-256color"}
            environment |= {"PENSTOCK_METRICS_PORT": "0", "PENSTOCK_LOG_LEVEL": "warning"}
            gateway = subprocess.Popen([sys.executable, "-m", "penstock_gateway"], env=environment, cwd=folder)
            try:
                runner.run(answers(login))
                measure(gateway, environment, seconds)
            finally:
                gateway.terminate()
                gateway.wait()
        finally:
            runner.run(server.stop())


if __name__ == "__main__":
    main()
