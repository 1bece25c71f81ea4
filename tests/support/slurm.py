"""A real Slurm for tests: slurmctld, munge, and several slurmd with emulated GPUs, all on this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

NEEDED = ("slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "sinfo", "munged")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_CONFIG = """
ClusterName=pilots
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={home}/munge.sock
SlurmctldPort={port}
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd-%n.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd-%n.log
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdTimeout=10
SlurmdParameters=config_overrides
GresTypes=gpu
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Return which program of Slurm is not installed here; empty if all are."""
    return next((name for name in NEEDED if shutil.which(name, path=_PATH) is None), "")


class SlurmCluster:
    """
    A Slurm of one machine.

    Parameters
    ----------
    home : Path
        A short path: munge's socket is in it.
    nodes : int
        Each with four processors and one emulated GPU.
    """

    def __init__(self, home: Path, nodes: int) -> None:
        self.home, self.nodes = home, [f"n{number}" for number in range(1, nodes + 1)]
        self.environment = {"SLURM_CONF": str(home / "slurm.conf"), "PATH": _PATH}

    def up(self) -> None:
        """Start everything, and wait until each node is idle."""
        home, host = self.home, socket.gethostname().partition(".")[0]
        for folder in ("state", "dev", *(f"spool-{node}" for node in self.nodes)):
            (home / folder).mkdir()
        (home / "dev" / "gpu").write_text("")
        (home / "key").write_bytes(os.urandom(32))
        (home / "key").chmod(0o600)
        user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
        ports = _free_ports(1 + len(self.nodes))
        lines = [
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=4000 Gres=gpu:1"
            for node, port in zip(self.nodes, ports[1:], strict=True)
        ]
        text = _CONFIG.format(host=host, user=user, home=home, port=ports[0], nodes="\n".join(lines))
        (home / "slurm.conf").write_text(text)
        gres = [f"NodeName={node} Name=gpu File={home}/dev/gpu\n" for node in self.nodes]
        (home / "gres.conf").write_text("".join(gres))
        names = {"key": "key-file", "munge.sock": "socket", "munged.pid": "pid-file", "seed": "seed-file"}
        options = [f"--{option}={home / name}" for name, option in names.items()]
        self.command("munged", "--force", *options, f"--log-file={home / 'munged.log'}")
        self.command("slurmctld", "-c")
        for node in self.nodes:
            self.start_node(node)
        self.until("sinfo", "-h", "-N", "-p", "main", "-t", "idle", "-o", "%N", lines=len(self.nodes))

    def down(self) -> None:
        """Stop everything, pilots included."""
        with contextlib.suppress(subprocess.CalledProcessError, subprocess.TimeoutExpired):
            self.command("scancel", "--user", str(os.getuid()), "--signal=KILL", "--full")
        for name in (*(f"slurmd-{node}" for node in self.nodes), "slurmctld", "munged"):
            with contextlib.suppress(OSError, ValueError):
                os.kill(int((self.home / f"{name}.pid").read_text()), signal.SIGKILL)

    def command(self, *words: str) -> str:
        """Run a command of Slurm, and return what it prints."""
        environment = {**os.environ, **self.environment}
        path = shutil.which(words[0], path=_PATH) or words[0]
        done = subprocess.run(
            [path, *words[1:]], capture_output=True, text=True, env=environment, timeout=60, check=True
        )
        return done.stdout

    def start_node(self, node: str) -> None:
        """Start a node's slurmd."""
        self.command("slurmd", "-N", node)

    def kill_node(self, node: str) -> None:
        """Kill -9 a node's slurmd, and what it runs, as a machine's loss does."""
        pid = int((self.home / f"slurmd-{node}.pid").read_text())
        os.kill(pid, signal.SIGKILL)
        mine = f"SLURMD_NODENAME={node}\0".encode(), self.environment["SLURM_CONF"].encode()
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                variables = (entry / "environ").read_bytes() if entry.name.isdigit() else b""
                if all(own in variables for own in mine):
                    os.kill(int(entry.name), signal.SIGKILL)

    def restart_controller(self) -> None:
        """Kill -9 slurmctld and start it again: it goes on from its files."""
        os.kill(int((self.home / "slurmctld.pid").read_text()), signal.SIGKILL)
        self.command("slurmctld")

    def jobs(self) -> list[tuple[str, str, str]]:
        """Return number, state and node of each job that has not ended."""
        return [tuple(line.split("|")) for line in self.command("squeue", "-h", "-o", "%i|%T|%N").splitlines()]  # type: ignore[misc]

    def until(self, *words: str, lines: int) -> None:
        """Wait until a command prints so many lines."""
        for _ in range(600):
            if len(found := self.command(*words).splitlines()) >= lines:
                return
            time.sleep(0.1)
        raise AssertionError((words, found))


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextlib.contextmanager
def running_slurm(home: Path, nodes: int) -> Iterator[SlurmCluster]:
    """Run a Slurm on a folder, and leave nothing of it."""
    found = SlurmCluster(home, nodes)
    try:
        found.up()
        yield found
    finally:
        found.down()
