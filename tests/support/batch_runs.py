"""Scripts of sbatch run as nodes run them, by their uploaded folder alone: one process for each machine, no cluster."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from penstock_cli.sbatch import spool
from penstock_cli.sbatch.job import translate
from penstock_cli.sbatch.options import read_words
from penstock_cli.sbatch.script import of_text

_LONGEST_S = 30.0


@contextlib.contextmanager
def ended_with(*processes: subprocess.Popen[str]) -> Iterator[None]:
    """End what still runs of some machines' processes behind a test."""
    try:
        yield
    finally:
        for one in processes:
            if one.poll() is None:
                one.kill()
                one.communicate()


class BatchRun:
    """
    A run of a script on some machines.

    Parameters
    ----------
    folder : Path
        Where the script is submitted, and runs.
    nodes : str
        The machines with their devices, as ``PENSTOCK_NODES`` has them.
    """

    def __init__(self, folder: Path, body: str, *, nodes: str = "n1:1", options: str = "", **environ: str) -> None:
        self.folder, self._nodes, self._environ = folder, nodes.split(), environ
        self.code = folder / "code"
        self.code.mkdir()
        script = of_text(str(folder / "job.sbatch"), body.encode())
        job = translate([*script.given, *read_words(options.split(), "the test")[0]])
        own = spool.submitter(str(folder), "ada")
        self.plan: dict[str, Any] = {**job.plan, **own, "export": "ALL", "name": job.plan.get("name", script.name)}
        _, exported = spool.exported(job.export, "", {"TOLD": "yes", "USER": "ada"})
        limit_s = job.fields.get("time_limit_s", 0)
        spool.write(self.code, script, {**self.plan, "time_limit_s": limit_s}, exported)
        with socket.create_server(("", 0)) as server:
            self._port = server.getsockname()[1]

    def begin(self, *words: str, job_id: str = "123456789") -> list[subprocess.Popen[str]]:
        """Start the processes of all machines."""
        return [self.begin_machine(rank, words, job_id) for rank in range(len(self._nodes))]

    def begin_machine(self, rank: int, words: Sequence[str] = (), job_id: str = "123456789") -> subprocess.Popen[str]:
        """Start the process of one machine."""
        name, _, devices = self._nodes[rank].rpartition(":")
        listed = ",".join(map(str, range(int(devices))))
        kept = {key: os.environ[key] for key in ("HOME", "LANG", "TMPDIR") if key in os.environ}
        env = {
            **kept,
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "PENSTOCK_CODE_DIR": str(self.code),
            "PENSTOCK_PYTHON": sys.executable,
            "PENSTOCK_JOB_ID": job_id,
            "PENSTOCK_EPOCH": "1",
            "PENSTOCK_NODE": name,
            "PENSTOCK_NODES": " ".join(self._nodes),
            "PENSTOCK_RANK": str(rank),
            "PENSTOCK_DEVICES": listed,
            "CUDA_VISIBLE_DEVICES": listed,
            "RANK": str(rank),
            "WORLD_SIZE": str(len(self._nodes)),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._port),
            **self._environ,
        }
        command = ["/bin/sh", str(self.code / "bin" / "penstock-batch"), *words]
        out = subprocess.PIPE
        return subprocess.Popen(command, cwd=self.folder, env=env, stdout=out, stderr=out, text=True)

    def run(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """
        Run all machines' processes to their ends; return what the first one's did.

        Where the first one fails, the others are ended at once, as nodes end a run of which a process has failed.
        """
        first, *others = self.begin(*words, **more)
        with ended_with(first, *others):
            output, errors = first.communicate(timeout=_LONGEST_S)
            for other in others if not first.returncode else ():
                said = other.communicate(timeout=_LONGEST_S)
                assert other.returncode == 0, said
        return subprocess.CompletedProcess(first.args, first.returncode, output, errors)
