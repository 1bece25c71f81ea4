"""
What simulating costs: the Philly trace counted, a million jobs, the loop that rescans all jobs, and the deciders.

``bench_sim.py deciders [JOBS]`` runs the production deciders alone, with nodes and the log written, on the first so
many jobs; ``bench_sim.py deciders all`` on the whole trace, which takes minutes.
"""

from __future__ import annotations

import gzip
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from penstock_simulator.engine.simulation import simulate as simulate_deciders
from penstock_simulator.fast import simulate
from penstock_simulator.fast.fast_path import warm
from penstock_simulator.outcome import Outcome
from penstock_simulator.trace import Trace
from penstock_simulator.traces import read
from penstock_simulator.virtual_cluster import parse

GOLDEN = Path(__file__).parents[1] / "data" / "traces" / "bench_S3000_golden_256gpu.csv.gz"
PHILLY = Path(__file__).parents[3] / "shared" / "traces" / "philly_12vc_109532.csv.gz"
"""Too large for the repository: see tests/data/README.md."""
SEVEN = tuple(3600.0 * 8.0**k for k in range(6))
GPUS = (2_490, 2_000, 1_600, 1_200)
ELSEWHERE = {
    "fifo": (29_009, 30_093, 154_971, 988_461),
    "fifo-backfill": (29_009, 29_781, 59_577, 202_236),
    "srtf": (29_009, 29_096, 31_408, 46_499),
    "2d-las": (29_009, 29_077, 34_338, 80_389),
    "2d-las, 7 queues": (29_009, 29_039, 31_338, 51_894),
    "2d-gittins, 25 levels": (29_009, 29_041, 30_919, 50_152),
}
"""Mean JCT in seconds on so many GPUs, found with other programs."""

MILLION = 1_000_000
SLICE = "2000"


def run(trace: Trace, gpus: int, name: str) -> Outcome:
    """Return the outcome of a line of the table."""
    settings = {"thresholds_gpu_s": SEVEN} if "7 queues" in name else {}
    return simulate(trace, parse(f"1x{gpus}"), name.split(",", maxsplit=1)[0], settings=settings)


def report_philly(trace: Trace) -> None:
    """Print mean JCT and CPU time, with what others found."""
    print(f"{len(trace)} jobs, counted; mean JCT in s (elsewhere), CPU s, without reading and loading")
    for name in (*ELSEWHERE, "fewest-gpus", "srsf", "las"):
        cells = []
        for gpus, known in zip(GPUS, ELSEWHERE.get(name, (None,) * 4), strict=True):
            found = run(trace, gpus, name)
            beside = "" if known is None else f" ({known:,})"
            cells.append(f"{gpus}: {found.jct_s.mean():,.0f}{beside} {found.wall_s:.2f} s")
        print(f"  {name}: {'; '.join(cells)}", flush=True)


def tiled(trace: Trace, jobs: int) -> Trace:
    """Return so many jobs: the trace again and again, one after the other."""
    row, turn = np.arange(jobs) % len(trace), np.arange(jobs) // len(trace)
    span_s = float(trace.submit_s[-1] - trace.submit_s[0])
    return replace(
        trace,
        job_ids=range(jobs),  # type: ignore[arg-type] # names of a million jobs would be timed as well
        submit_s=trace.submit_s[row] + turn * span_s,
        num_gpus=trace.num_gpus[row],
        duration_s=trace.duration_s[row],
        vcs=(),
        users=(),
        models=(),
        kinds=(),
    )


def report_million(trace: Trace) -> None:
    """Print CPU time for a million jobs, and the most memory that the process has held."""
    many = tiled(trace, MILLION)
    for name in ("2d-las", "2d-gittins, 25 levels"):
        times = [f"{gpus}: {run(many, gpus, name).wall_s:.2f} s" for gpus in (2_490, 1_600, 1_200)]
        print(f"  {name}: {'; '.join(times)}", flush=True)
    print(f"  most memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


def slice_of_3000() -> Trace:
    """Return 3,000 Philly jobs with gangs of at most 16, cut at a day."""
    with gzip.open(GOLDEN, "rt") as file:
        submit_s, gpus, duration_s = np.loadtxt(file, delimiter=",", skiprows=1, usecols=(2, 3, 4)).T
    return Trace("slice", [str(n) for n in range(len(gpus))], submit_s, gpus.astype(np.int64), duration_s)


def report_rescanning() -> None:
    """Print the loop that looks at all jobs at every event beside ours; both give the same end times."""
    trace = slice_of_3000()
    print("3000 jobs on 256 GPUs: a loop that rescans all jobs, ours, ratio")
    for policy in ("fifo", "fifo-backfill", "srtf", "2d-las"):
        scanned = simulate(trace, parse("64x4"), policy, compat="tiresias-2019").wall_s
        ours = min(simulate(trace, parse("64x4"), policy).wall_s for _ in range(5))
        print(f"  {policy}: {scanned:.2f} s, {ours:.4f} s; ratio {scanned / ours:.0f}", flush=True)


def first(trace: Trace, jobs: int) -> Trace:
    """Return the first so many jobs."""
    return replace(
        trace,
        job_ids=trace.job_ids[:jobs],
        submit_s=trace.submit_s[:jobs],
        num_gpus=trace.num_gpus[:jobs],
        duration_s=trace.duration_s[:jobs],
        vcs=trace.vcs[:jobs],
        users=trace.users[:jobs],
        models=trace.models[:jobs],
        kinds=trace.kinds[:jobs],
    )


def report_deciders(trace: Trace, nodes: int) -> None:
    """Print what the production deciders take on nodes of 8, with the log written, and the most memory so far."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl.gz"
        found = simulate_deciders(trace, parse(f"{nodes}x8"), "2d-las", log=log)
        size_bytes = log.stat().st_size
    cpu_s, peak_kib = found.wall_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"  {len(trace)} jobs on {nodes}x8: {cpu_s:.1f} s, {1e4 * cpu_s / len(trace):.1f} s for 10,000;"
        f" {int(found.preemptions.sum())} preemptions; log {size_bytes / 2**20:.1f} MiB; {peak_kib / 1024:.0f} MiB",
        flush=True,
    )


def deciders(philly: Trace, jobs: str) -> int:
    """Measure the deciders on a slice of the trace, or on all of it."""
    trace = philly if jobs == "all" else first(philly, int(jobs))
    yardstick_s = simulate(slice_of_3000(), parse("64x4"), "fifo", compat="tiresias-2019").wall_s
    print(f"yardstick, the loop that rescans 3000 jobs under fifo: {yardstick_s:.2f} s")
    print("the production ranker and matcher under 2d-las, nodes best-fit, log written and compressed; CPU s")
    for nodes in (312, 200, 150):
        report_deciders(trace, nodes)
    return 0


def main() -> int:
    """Print all of it; the million in a process of its own, for its memory."""
    if not PHILLY.exists():
        print(f"NOT MEASURED: {PHILLY} is not there")
        warm()
        report_rescanning()
        return 0
    philly = read(PHILLY, "csv")
    if sys.argv[1:2] == ["deciders"]:
        return deciders(philly, sys.argv[2] if len(sys.argv) > 2 else SLICE)
    before_s = time.process_time()
    warm()
    print(f"loading the kernels, or compiling them: {time.process_time() - before_s:.1f} s")
    if sys.argv[1:] == ["million"]:
        print(f"{MILLION} jobs, counted")
        report_million(philly)
        return 0
    report_philly(philly)
    report_rescanning()
    alone = [[sys.executable, __file__, part] for part in ("million", "deciders")]
    return max(subprocess.run(command, check=False).returncode for command in alone)


if __name__ == "__main__":
    sys.exit(main())
