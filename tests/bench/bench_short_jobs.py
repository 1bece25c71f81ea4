"""
Short jobs on four devices, by Penstock and by Slurm in one run: ``bench_short_jobs.py [JOBS] [SEED]``.

The same programs, loops over ``penstock.session``, are submitted at the same times to both; their lengths are lognormal
with a median of 2.5 s. Penstock orders them by 2D-LAS, once with thresholds that are set (3 and 12 GPU-s) and once with
those that it learns; the ideal is 2D-LAS where starting, stopping and going on take no time. Slurm is the one that
``SLURM_CONF`` names, with four devices; without it, this benchmark says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from clusters import Cluster
from short_jobs import DEVICES, JOBS, SCRIPT, SEED, SET, ShortJob, by_penstock, by_slurm, ideal_s, mean_s, workload


def has_slurm() -> bool:
    """Say whether there is a Slurm that answers."""
    if "SLURM_CONF" not in os.environ or shutil.which("sbatch") is None:
        return False
    return subprocess.run(["squeue"], capture_output=True, check=False, timeout=60).returncode == 0


@contextlib.contextmanager
def cluster_of(folder: Path, *thresholds: str) -> Iterator[Cluster]:
    """Give a cluster of four emulated devices."""
    cluster = Cluster(folder, "--emulate", f"fast:{DEVICES}@1.0:4GiB")
    cluster.up()
    try:
        for setting in thresholds:
            cluster.run("policy", "set", setting)
        yield cluster
    finally:
        cluster.down()


async def on_cluster(cluster: Cluster, script: Path, jobs: Sequence[ShortJob]) -> float:
    """Return the mean completion time by Penstock, seconds."""
    async with cluster.client() as client:
        return mean_s(await by_penstock(client, script, jobs))


def main() -> None:
    """Print mean completion times and their ratios."""
    given = [int(word) for word in sys.argv[1:3]]
    count, seed = (*given, *(JOBS, SEED)[len(given) :])
    jobs = workload(count, seed)
    lengths_s = [job.length_s for job in jobs]
    print(f"{count} jobs: median {statistics.median(lengths_s):.1f} s, mean {statistics.mean(lengths_s):.1f} s")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = folder / "loop.py"
        script.write_text(SCRIPT)
        ideal = statistics.mean(ideal_s(jobs, SET))
        fifo = statistics.mean(ideal_s(jobs, ()))
        print(f"ideal 2D-LAS, thresholds {SET}: mean {ideal:.2f} s; first come, first served: {fifo:.2f} s")
        slurm = None
        if has_slurm():
            slurm = mean_s(asyncio.run(by_slurm(script, jobs, folder / "ends", os.environ)))
        print(f"Slurm: mean {slurm:.2f} s" if slurm else "no Slurm answers: SLURM_CONF names none", flush=True)
        limits = ",".join(map(str, SET))
        for what, thresholds in ((f"set, {limits}", (f"thresholds_gpu_s={limits}",)), ("learnt", ())):
            with cluster_of(folder / what.partition(",")[0], *thresholds) as cluster:
                ours = asyncio.run(on_cluster(cluster, script, jobs))
            beside = f"; ratio to Slurm {ours / slurm:.2f}" if slurm else ""
            print(
                f"Penstock, thresholds {what}: mean {ours:.2f} s; ratio to ideal {ours / ideal:.2f}{beside}", flush=True
            )


if __name__ == "__main__":
    main()
