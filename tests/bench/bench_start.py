"""
How long from a submission to the started process, on an idle cluster: ``python tests/bench/bench_start.py [N]``.

Until the client hears that it has started: the times of facts are the cluster's, which need not be this process's.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from clusters import Cluster, until

import penstock
from penstock_log import subjects


async def measure(client: penstock.Client, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return seconds from submission to start, and of a bare round trip to the gateway, for each job."""
    started_s, bare_s = [], []
    for _ in range(count):
        before = time.perf_counter()
        answer = await client.submit(name="start", command=("true",), profile="off")
        await until(client, answer.id, "run.started.v1", after=answer.seq)
        started_s.append(time.perf_counter() - before)
        await client.wait(answer.id)
        before = time.perf_counter()
        await client.bus.request(subjects.query("live", "gateway"), b"")
        bare_s.append(time.perf_counter() - before)
    return np.array(started_s), np.array(bare_s)


def main() -> None:
    """Print the percentiles and the ratio to a bare request."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder) / "data", "--emulate", "fast:4@1.0:4GiB")
        cluster.up()

        async def run() -> tuple[np.ndarray, np.ndarray]:
            async with cluster.client() as client:
                return await measure(client, count)

        try:
            started_s, bare_s = asyncio.run(run())
        finally:
            cluster.down()
    p50, p99 = np.percentile(started_s * 1e3, [50, 99])
    bare = float(np.median(bare_s) * 1e3)
    print(f"submit -> process known to have started, idle cluster, {count} jobs: p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    print(f"a bare request to the gateway in the same run: p50 {bare:.2f} ms; ratio {p50 / bare:.1f}")


if __name__ == "__main__":
    main()
