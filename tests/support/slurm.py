"""A real Slurm for tests: slurmctld, munge, and several slurmd with emulated GPUs, all on this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

NEEDED = ("slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo", "munged")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_NOT_PASSED = ("SLURM_", "PENSTOCK_")
_CONFIG = """
ClusterName=lab
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
        Each with four processors.
    gpus : int
        Emulated ones of each node.
    """

    def __init__(self, home: Path, nodes: int, gpus: int = 1) -> None:
        self.home, self.nodes, self.gpus = home, [f"n{number}" for number in range(1, nodes + 1)], gpus
        self.environment = {"SLURM_CONF": str(home / "slurm.conf"), "PATH": _PATH}

    def up(self) -> None:
        """Start everything, and wait until each node is idle."""
        home, host = self.home, socket.gethostname().partition(".")[0]
        for folder in ("state", "dev", *(f"spool-{node}" for node in self.nodes)):
            (home / folder).mkdir()
        devices = [home / "dev" / f"nvidia{number}" for number in range(self.gpus)]
        for device in devices:
            device.write_text("")
        (home / "key").write_bytes(os.urandom(32))
        (home / "key").chmod(0o600)
        user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
        ports = _free_ports(1 + len(self.nodes))
        common = f"NodeHostname={host} NodeAddr=127.0.0.1 CPUs=4 RealMemory=4000 Gres=gpu:{self.gpus}"
        lines = [f"NodeName={node} Port={port} {common}" for node, port in zip(self.nodes, ports[1:], strict=True)]
        text = _CONFIG.format(host=host, user=user, home=home, port=ports[0], nodes="\n".join(lines))
        (home / "slurm.conf").write_text(text)
        gres = [f"NodeName={node} Name=gpu File={device}\n" for node in self.nodes for device in devices]
        (home / "gres.conf").write_text("".join(gres))
        names = {"key": "key-file", "munge.sock": "socket", "munged.pid": "pid-file", "seed": "seed-file"}
        options = [f"--{option}={home / name}" for name, option in names.items()]
        self.command("munged", "--force", *options, f"--log-file={home / 'munged.log'}")
        self.command("slurmctld", "-c")
        for node in self.nodes:
            self.start_node(node)
        self.until("sinfo", "-h", "-N", "-p", "main", "-t", "idle", "-o", "%N", lines=len(self.nodes))

    def down(self) -> None:
        """Stop everything, jobs included."""
        with contextlib.suppress(subprocess.CalledProcessError, subprocess.TimeoutExpired, OSError):
            self.command("scancel", "--user", str(os.getuid()), "--signal=KILL", "--full")
        while pids := [pid for pid, _, _ in self._processes()]:  # children of what is being killed may still appear
            _kill(pids)

    def command(self, *words: str, cwd: Path | None = None, user: str = "") -> str:
        """
        Run a command of Slurm, and return what it prints.

        Parameters
        ----------
        user : str
            The name that it has in its environment; empty: as here.

        Raises
        ------
        subprocess.CalledProcessError
            If it fails.
        """
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_PASSED)}
        environment = {**kept, **self.environment, **({"USER": user} if user else {})}
        path = shutil.which(words[0], path=_PATH) or words[0]
        done = subprocess.run(
            [path, *words[1:]], capture_output=True, text=True, env=environment, timeout=110, check=True, cwd=cwd
        )
        return done.stdout

    def start_node(self, node: str) -> None:
        """Start a node's slurmd."""
        self.command("slurmd", "-N", node)

    def kill_node(self, node: str) -> None:
        """Kill -9 a node's slurmd, and what it runs, as a machine's loss does."""
        mine = [f"slurmstepd: [{number}." for number, _, at in self.jobs() if at == node]
        of_node = f"SLURMD_NODENAME={node}\0".encode()
        _kill(
            pid
            for pid, command, variables in self._processes()
            if command.endswith(f"slurmd -N {node}") or command.startswith(tuple(mine)) or of_node in variables
        )

    def restart_controller(self) -> None:
        """Kill -9 slurmctld and start it again: it goes on from its files."""
        _kill(pid for pid, command, _ in self._processes() if "slurmctld" in command)
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

    def _processes(self) -> Iterator[tuple[int, str, bytes]]:
        """Yield number, command and environment of what has this SLURM_CONF: daemons, jobs, and what these started."""
        mine = f"SLURM_CONF={self.environment['SLURM_CONF']}\0".encode()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                variables = (entry / "environ").read_bytes()  # empty of a dead one
                if mine in variables:
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                    yield int(entry.name), command.strip(), variables


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextlib.contextmanager
def running_slurm(nodes: int, gpus: int = 1) -> Iterator[SlurmCluster]:
    """Run a Slurm on a folder of its own, and leave nothing of it."""
    with tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as folder:
        found = SlurmCluster(Path(folder), nodes, gpus)
        try:
            found.up()
            yield found
        finally:
            found.down()
