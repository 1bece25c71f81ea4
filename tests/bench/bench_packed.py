"""
The packed host against what it replaces: ``bench_packed.py``. Times are of this machine, ratios of this run.

1. What a turn costs beside a bare loop.
2. One thread against several, for three kinds of steps: the reason for the default.
3. A sweep of small trials: in one process, and in one process each, one after the other.
4. 42 models on one processor: in one process, and in 42 that the system gives slices of time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import packed_serving as serving  # isort: skip  # before numpy: one thread

import numpy as np

from penstock_packed import CpuDevice, MemoryNeed, PackedHost

NEED = MemoryNeed(2**20, 0, 2**20)
SPACE = 2**32
LENGTH_S, ROUNDS = 4.0, 3
LOADS = (("light", 0.2, 0), ("heavy", 0.7, 0), ("light, 4 trainings", 0.2, 4))
SERVERS = {"packed": serving.packed, "processes": serving.processes}
SWEEP = 20


class Steps:
    """A trial whose step is a function; ``over`` is called at its end."""

    def __init__(self, step: Callable[[], object], over: Callable[[], object] = lambda: None) -> None:
        self._step, self._over = step, over

    def setup(self) -> None:
        pass

    def step(self, _: object) -> None:
        self._step()

    def teardown(self) -> None:
        self._over()

    def save(self, folder: Path) -> None:
        pass

    def load(self, folder: Path) -> None:
        pass


def cost_of_a_turn() -> None:
    """Print what the host adds to a step, in CPU time."""
    for trials in (1, 50):
        host, steps = PackedHost(CpuDevice(SPACE)), 20_000 // trials
        for number in range(trials):
            host.train(f"t{number}", Steps(lambda: None), steps=steps, memory=NEED)
        before = time.process_time()
        host.run()
        spent_us = 1e6 * (time.process_time() - before) / (trials * steps)
        print(f"a turn among {trials:2d} trials: {spent_us:5.1f} us; of a step of 10 ms {spent_us / 100:.2f} %")


def in_python() -> None:
    sum(i * i for i in range(20_000))


def in_numpy(matrix: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> Callable[[], object]:
    return lambda: matrix @ matrix


def threads() -> None:
    """Print the throughput of several lanes over that of one, and what a model's requests wait for beside them."""
    rng = np.random.default_rng(0)
    waiting = threading.Event()
    kinds: dict[str, Callable[[], object]] = {
        "Python": in_python,
        "numpy": in_numpy(rng.standard_normal((400, 400))),
        "waiting": lambda: waiting.wait(0.002),
    }
    print(f"\nsteps of some 2 ms, 8 trials, {os.cpu_count()} processors: steps a second, and p99 of a model's answers")
    for kind, step in kinds.items():
        found = [side_by_side(step, lanes) for lanes in (1, 2, 4)]
        base = found[0][0]
        row = "  ".join(f"{rate:6.0f}/s x{rate / base:4.2f} {p99_ms:5.1f} ms" for rate, p99_ms in found)
        print(f"{kind:8} 1, 2, 4 threads: {row}")


def side_by_side(step: Callable[[], object], lanes: int) -> tuple[float, float]:
    """Return steps a second, and the 99th percentile of answers in ms, of 8 trials and a model."""
    host, over, left = PackedHost(CpuDevice(SPACE, lanes)), threading.Event(), list(range(8))

    def leave() -> None:
        left.pop()
        if not left:
            over.set()

    def ask() -> None:
        while not over.wait(0.01):
            endpoint.ask([0.1] * 16).result()
        endpoint.close()

    for number in range(8):
        host.train(f"t{number}", Steps(step, leave), steps=100, memory=NEED)
    endpoint = host.serve("m", serving.Dense(0), target_s=0.1, memory=NEED)
    threading.Thread(target=ask).start()
    begun = time.perf_counter()
    outcomes = host.run()
    return 800 / (time.perf_counter() - begun), outcomes["m"].metrics["p99_ms"]


TRIAL = """
import sys, numpy as np
rng = np.random.default_rng(int(sys.argv[1]))
w = rng.standard_normal((256, 256))
for _ in range(100):
    w = np.tanh(w @ w) / 16
"""


class Small:
    """The same trial as :data:`TRIAL`, as a member."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def setup(self) -> None:
        self._w = np.random.default_rng(self._seed).standard_normal((256, 256))

    def step(self, _: object) -> None:
        self._w = np.tanh(self._w @ self._w) / 16

    def teardown(self) -> None:
        pass

    def save(self, folder: Path) -> None:
        np.save(folder / "w.npy", self._w)

    def load(self, folder: Path) -> None:
        self._w = np.load(folder / "w.npy")


def sweep() -> None:
    """Print how long small trials take, packed and one process after the other."""
    begun = time.perf_counter()
    for seed in range(SWEEP):
        subprocess.run([sys.executable, "-c", TRIAL, str(seed)], check=True)
    apart_s = time.perf_counter() - begun
    begun = time.perf_counter()
    host = PackedHost(CpuDevice(SPACE))
    for seed in range(SWEEP):
        host.train(f"t{seed}", Small(seed), steps=100, memory=NEED)
    host.run()
    together_s = time.perf_counter() - begun
    print(f"\n{SWEEP} trials of 100 steps: one process each {apart_s:.2f} s, packed {together_s:.2f} s")
    print(f"  packed takes x{together_s / apart_s:.2f} of the time, without its own start of one process")


def models() -> None:
    """Print each model's latencies, packed and in processes of their own."""
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) > 1:
        os.sched_setaffinity(0, processors[1:])  # the first one is the device
    computing = serving.computing_s()
    targets_s = [serving.LATE_S + serving.LATE_TIMES * took_s for took_s in computing]
    print(f"\n{serving.MODELS} models, computing {1e3 * min(computing):.2f} to {1e3 * max(computing):.2f} ms", end="")
    print(f", on average {1e3 * np.mean(computing):.2f} ms; medians over the models, in ms")
    found: dict[tuple[str, str], list[list[float]]] = {}
    for name, load, trials in LOADS:
        rates = dict.fromkeys(SERVERS, 0.0)
        for number in range(ROUNDS):  # in turn, so that both see the same of what else the machine does
            requests = serving.arrivals(computing, load, LENGTH_S, seed=number)
            for kind, serve in SERVERS.items():
                with tempfile.TemporaryDirectory() as folder, serve(Path(folder), targets_s, trials) as served:
                    before, begun = served.steps(), time.perf_counter()
                    times = serving.latencies(served.connections, requests)
                    rates[kind] += (served.steps() - before) / (time.perf_counter() - begun) / ROUNDS
                pooled = found.setdefault((name, kind), [[] for _ in times])
                for model, more in zip(pooled, times, strict=True):
                    model.extend(more)
        for kind in SERVERS:
            print(summary(name, kind, found[name, kind], targets_s, rates[kind]))
        print(ratios(name, found), flush=True)
    each(computing, targets_s, found)


def percentiles(latencies: list[list[float]], share: float) -> list[float]:
    return [1e3 * float(np.percentile(times, share)) for times in latencies if times]


def summary(name: str, kind: str, latencies: list[list[float]], targets_s: list[float], rate: float) -> str:
    p50, p99 = percentiles(latencies, 50), percentiles(latencies, 99)
    late = sum(took_s > targets_s[model] for model, times in enumerate(latencies) for took_s in times)
    count = sum(map(len, latencies))
    return (
        f"{name:18} {kind:9} p50 {np.median(p50):7.2f}  p99 {np.median(p99):7.2f}  worst p99 {max(p99):7.1f}"
        f"  late {late / count:6.2%} of {count}" + (f"  trained {rate:.0f} steps/s" if rate else "")
    )


def ratios(name: str, found: dict[tuple[str, str], list[list[float]]]) -> str:
    one, many = found[name, "packed"], found[name, "processes"]
    p50 = np.median(percentiles(one, 50)) / np.median(percentiles(many, 50))
    p99 = np.median(percentiles(one, 99)) / np.median(percentiles(many, 99))
    return f"{name:18} packed / processes: p50 x{p50:.2f}, p99 x{p99:.2f}"


def each(computing: list[float], targets_s: list[float], found: dict[tuple[str, str], list[list[float]]]) -> None:
    """Print one line for each model."""
    loads = [name for name, _, trials in LOADS if not trials]
    print(
        f"\nms: {'computing':>9} {'target':>7}   "
        + "   ".join(f"{n}: packed p50 p99, processes p50 p99" for n in loads)
    )
    for model in range(serving.MODELS):
        times = [found[name, kind][model] for name in loads for kind in ("packed", "processes")]
        cells = "  ".join(f"{1e3 * np.percentile(t, 50):7.2f} {1e3 * np.percentile(t, 99):7.2f}" for t in times)
        print(f"m{model:<3} {1e3 * computing[model]:8.2f} {1e3 * targets_s[model]:7.1f}   {cells}")


def main() -> None:
    """Print all four."""
    if os.getloadavg()[0] > 1.0:
        print(
            f"this machine is busy (load {os.getloadavg()[0]:.1f}): latencies are worse and vary more than they need to"
        )
    cost_of_a_turn()
    threads()
    sweep()
    models()


if __name__ == "__main__":
    main()
