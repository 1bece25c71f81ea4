"""
What the first round of a new matcher costs, with kernels kept and with none: ``bench_first.py``.

1,024 jobs wait for 36 + 36 + 36 idle devices of three kinds. Once in a new process that folds this in and decides twice
on the same; and as the service itself, on a NATS server, from its start to its round in the log.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import structlog

from penstock_bus import Append
from penstock_bus.decider import Fold
from penstock_bus.nats import NatsBus, connect
from penstock_bus.servers.server import ServerSettings, running
from penstock_log import (
    AnyEvent,
    Commit,
    Device,
    JobSpec,
    JobSubmitted,
    KindSpeed,
    NodeJoined,
    RoundDecided,
    WorkloadProfiled,
    subjects,
    workload,
)
from penstock_log.codec import subject_of
from penstock_matcher import machine
from penstock_policies import matching
from penstock_testing import delivery

KINDS = ("v100", "p100", "k80")
EACH, JOBS, MODELS = 36, 1024, 26
ALONE = "alone"


def facts() -> Iterator[AnyEvent]:
    """Yield nodes, speeds and jobs."""
    rng, now_s = np.random.default_rng(5), 1.0
    for kind in KINDS:
        devices = tuple(Device(index=i, kind=kind, memory_bytes=2**34, backend="emulated") for i in range(EACH))
        yield NodeJoined(node_id=kind, at_s=now_s, devices=devices)
    for model in range(MODELS):
        known = tuple(KindSpeed(kind=k, iteration_s=1.0, speed=float(rng.uniform(0.1, 1.0))) for k in KINDS)
        yield WorkloadProfiled(key=workload.key(spec(model)), at_s=now_s, speeds=known)
    for number in range(JOBS):
        one = spec(int(rng.integers(MODELS)), float(rng.lognormal(7.0, 1.5)))
        yield JobSubmitted(job_id=f"j{number:04}", at_s=now_s, spec=one)


def spec(model: int, duration_s: float = 0.0) -> JobSpec:
    """Return a one-device job."""
    return JobSpec(name="train", command=("train", str(model)), profile="off", duration_s=duration_s)


def alone() -> None:
    """Be the new process: print what warming and two equal rounds cost it."""
    before_s = time.process_time()
    matching.warm()
    warmed_s, times_ms = time.process_time() - before_s, []
    for _ in range(2):
        fold = Fold(machine.decider())
        for seq, fact in enumerate(facts(), 1):
            fold.apply(delivery(seq, fact))
        before_s = time.process_time()
        (proposal,) = fold.decider.decide(fold.state, 2.0).proposals
        times_ms.append(1e3 * (time.process_time() - before_s))
        (found,) = proposal.facts
        assert isinstance(found, RoundDecided)
        assert len(found.placements) > EACH
    first_ms, second_ms = times_ms
    print(f"warming {warmed_s:.2f} s, first round {first_ms:.1f} ms, second {second_ms:.1f} ms (CPU)")


async def as_service(cache: dict[str, str]) -> str:
    """Start the matcher on a log that has all of it; return how long until its round is there."""
    with tempfile.TemporaryDirectory() as folder:
        settings = ServerSettings(data_dir=Path(folder), sync_interval="2m")
        async with running(settings) as server, connect(server.url, login=server.logins["admin"]) as bus:
            for number, fact in enumerate(facts()):
                commit = Commit(id=f"c{number}", actor="bench", facts=(fact,))
                await bus.append(Append(subject=subject_of(fact), commit=commit, expected=None))
            environment = {
                **os.environ,
                **cache,
                "PENSTOCK_URL": server.url,
                "PENSTOCK_CREDENTIALS": str(Path(folder) / "nats" / "logins" / "admin.json"),
                "PENSTOCK_LOG_FORMAT": "json",
                "PENSTOCK_MATCHER_NODE_TIMEOUT_S": "600",
            }
            return await _first_round(bus, environment)


async def _first_round(bus: NatsBus, environment: dict[str, str]) -> str:
    began_s, spent_s = time.perf_counter(), _of_ended_s()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "penstock_matcher",
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        placed = await _placed(bus)
        took_s = time.perf_counter() - began_s
    finally:
        process.terminate()
        said, _ = await process.communicate()
    lines = [json.loads(line) for line in said.decode().splitlines() if line.startswith("{")]
    warmed_s = next(line["took_s"] for line in lines if line.get("event") == "matching_warmed")
    spent_s = _of_ended_s() - spent_s
    return f"{placed} placements {took_s:.2f} s after its start, of which warming {warmed_s:.2f} s; {spent_s:.2f} s CPU"


def _of_ended_s() -> float:
    """Return the CPU time of the child processes that have ended, seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def _placed(bus: NatsBus) -> int:
    """Return how many jobs the first round places, when it is in the log."""
    async for found in bus.follow(subjects=[subjects.round_("default")]):
        for fact in found.commit.facts:
            if isinstance(fact, RoundDecided):
                return len(fact.placements)
    raise RuntimeError("the log ended, which it never does")


def main() -> None:
    """Print both with kernels kept, and the service with none."""
    if sys.argv[1:] == [ALONE]:
        return alone()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("warning"))
    print(f"{JOBS} jobs, {' + '.join([str(EACH)] * len(KINDS))} idle devices")
    done = subprocess.run([sys.executable, __file__, ALONE], capture_output=True, text=True, check=True)
    print(f"a new process, kernels kept: {done.stdout.strip()}", flush=True)
    print(f"the service, kernels kept: {asyncio.run(as_service({}))}", flush=True)
    with tempfile.TemporaryDirectory() as empty:
        print(f"the service, none kept: {asyncio.run(as_service({'NUMBA_CACHE_DIR': empty}))}")
    return None


if __name__ == "__main__":
    main()
