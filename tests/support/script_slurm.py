"""A real Slurm on this machine, of two nodes with two emulated GPUs each, to run scripts beside Penstock."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

NEEDED = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol", "sinfo", "munged")
NODES = ("n1", "n2")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_CONFIG = """
ClusterName=scripts
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={home}/munge.sock
SlurmctldPort={ports[0]}
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
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 RealMemory=4000 Gres=gpu:2
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 RealMemory=4000 Gres=gpu:2
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Return which program of Slurm is not installed here; empty if all are."""
    return next((name for name in NEEDED if shutil.which(name, path=_PATH) is None), "")


class ScriptSlurm:
    """
    A Slurm that runs scripts.

    Parameters
    ----------
    home : Path
        A short path: munge's socket is in it.
    """

    def __init__(self, home: Path) -> None:
        self.home = home

    def up(self) -> None:
        """Start everything; jobs that are submitted before the nodes are there wait for them."""
        home = self.home
        for folder in ("state", "dev", *(f"spool-{node}" for node in NODES)):
            (home / folder).mkdir()
        for number in range(2):
            (home / "dev" / f"nvidia{number}").write_text("")
        (home / "key").write_bytes(os.urandom(32))
        (home / "key").chmod(0o600)
        user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
        host, ports = socket.gethostname().partition(".")[0], _free_ports(1 + len(NODES))
        (home / "slurm.conf").write_text(_CONFIG.format(host=host, user=user, home=home, ports=ports))
        (home / "gres.conf").write_text(f"NodeName=n[1-2] Name=gpu File={home}/dev/nvidia[0-1]\n")
        names = {"key": "key-file", "munge.sock": "socket", "munged.pid": "pid-file", "seed": "seed-file"}
        options = [f"--{option}={home / name}" for name, option in names.items()]
        self.command("munged", "--force", *options, f"--log-file={home / 'munged.log'}")
        self.command("slurmctld", "-c")
        for node in NODES:
            self.command("slurmd", "-N", node)

    def down(self) -> None:
        """Stop everything."""
        for name in (*(f"slurmd-{node}" for node in NODES), "slurmctld", "munged"):
            with contextlib.suppress(OSError, ValueError):
                os.kill(int((self.home / f"{name}.pid").read_text()), signal.SIGKILL)

    def command(self, *words: str, cwd: Path | None = None) -> str:
        """Run a command of Slurm, and return what it prints."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "PENSTOCK_"))}
        environment = {**kept, "SLURM_CONF": str(self.home / "slurm.conf"), "PATH": _PATH, "USER": "ada"}
        path = shutil.which(words[0], path=_PATH) or words[0]
        done = subprocess.run(
            [path, *words[1:]], capture_output=True, text=True, env=environment, timeout=110, check=False, cwd=cwd
        )
        return done.stdout


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
