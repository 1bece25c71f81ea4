"""The collection of scripts beside a real Slurm, where one is installed: both print the same variables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from batch_runs import BatchRun
from slurm import SlurmCluster, missing, running_slurm

COLLECTION = Path(__file__).parents[1] / "data" / "sbatch"
MACHINES = {
    "02_torchrun_single_node.sbatch": "n1:2",
    "03_torchrun_multi_node.sbatch": "n1:2 n2:2",
    "04_srun_ranks.sbatch": "n1:2 n2:2",
    "09_modules.sbatch": "n1:1",
    "13_heredoc.sbatch": "n1:1",
    "18_scratch.sbatch": "n1:1",
    "19_gpus_per_task.sbatch": "n1:2",
    "20_background_steps.sbatch": "n1:2",
    "21_cpu_only.sbatch": "n1:1",
    "22_export_list.sbatch": "n1:1",
    "23_deepspeed_hostfile.sbatch": "n1:2 n2:2",
    "30_exit_code.sbatch": "n1:1",
}
"""Scripts that need nothing but Slurm's variables and programs, and the machines that each gets."""
VARIABLES = """#!/bin/bash
#SBATCH --job-name=variables --nodes=2 --gres=gpu:2 --ntasks-per-node=2 --cpus-per-task=1
shown() { env | grep -E "^(SLURM|SLURMD)_" | grep -vE "$1" | sort | sed "s/^/$2 /"; }
export -f shown
OWN='_(CLUSTER_NAME|CONF|JOBID|JOB_ID|PARTITION|JOB_USER|SUBMIT_DIR|WORKING_CLUSTER|TASK_PID|COMM_PORT|LAUNCHER_PORT)='
OWN="$OWN|PACK_GROUP|_UMASK|_PRIO_|_DISTRIBUTION|_JOB_GPUS|_STEP_GPUS|_START_TIME|_TOPOLOGY"
shown "$OWN" batch
srun bash -c "shown '$OWN' \\$SLURM_PROCID" | sort
"""
pytestmark = pytest.mark.skipif(
    bool(missing()), reason=f"scripts were not run beside Slurm: {missing()} is not installed"
)


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmCluster]:
    with running_slurm(nodes=2, gpus=2) as found:
        yield found


def printed_by_slurm(slurm: SlurmCluster, bodies: dict[str, str], folder: Path) -> dict[str, str]:
    """Return what each script prints in Slurm."""
    ids = []
    for name, body in bodies.items():
        (folder / name).mkdir()
        (folder / name / "job.sbatch").write_text(body)
        words = ("--parsable", "--output=printed", "--error=/dev/null", "job.sbatch")
        ids.append(slurm.command("sbatch", *words, cwd=folder / name, user="ada").strip())
    behind = f"--dependency=afterany:{':'.join(ids)}"
    slurm.command("sbatch", "--wait", behind, "--output=/dev/null", "--wrap=true")
    return {name: (folder / name / "printed").read_text() for name in bodies}


def printed_by_penstock(body: str, folder: Path, nodes: str) -> str:
    """Return what it prints as nodes run it."""
    folder.mkdir()
    return BatchRun(folder, body, nodes=nodes).run().stdout


def test_both_print_the_same(slurm: SlurmCluster, tmp_path: Path) -> None:
    bodies = {name: (COLLECTION / name).read_text() for name in MACHINES} | {"variables": VARIABLES}
    (tmp_path / "slurm").mkdir()
    found = printed_by_slurm(slurm, bodies, tmp_path / "slurm")
    assert len(re.findall("^3 ", found["variables"], flags=re.MULTILINE)) > 20, "Slurm has run no fourth task"
    for name, body in bodies.items():
        ours = printed_by_penstock(body, tmp_path / f"p-{name}", MACHINES.get(name, "n1:2 n2:2"))
        assert ours.splitlines() == found[name].splitlines(), name
