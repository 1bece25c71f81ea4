"""
What one exchange by an aggregator costs: ``python tests/bench/bench_aggregation.py [ROUNDS]``.

Two ranks, each a process, and one aggregator, a third. The baseline is a plain sum of the same vectors in one process,
whose pages are all there: what is above it is transport. Where torch is installed, gloo's ``all_reduce`` between two
processes runs in turn with it, and the ratio to that is printed as well.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from aggregator_harness import AggregatedRun

from penstock.aggregation import VectorExchange
from penstock.aggregation.rules import mean_of
from penstock_log.aggregation_messages import PART_BYTES, PartsAt, UpdateRule, VectorLayout

WORLD = 2
SIZES = {"1.2 MB": (300_000, 200), "100 MB": (25_000_000, 8)}
"""Elements, and exchanges in a round."""
WARM_UP = 4


def layout_of(elements: int) -> VectorLayout:
    longest = PART_BYTES // 4
    parts = [longest] * (elements // longest) + ([elements % longest] if elements % longest else [])
    return VectorLayout(dtype="f4", parts=tuple(parts))


def timed(work: Callable[[], object], steps: int) -> list[float]:
    times = []
    for step in range(WARM_UP + steps):
        begun_s = perf_counter()
        work()
        if step >= WARM_UP:
            times.append(perf_counter() - begun_s)
    return times


def rank_of_aggregation(pipe: Any, rank: int, where: PartsAt, layout: VectorLayout, steps: int, shared: bool) -> None:
    exchange = VectorExchange(
        layout, UpdateRule(), rank=rank, world_size=WORLD, on_lost=print, timeout_s=120, shares_memory=shared
    )
    exchange.placed(where)
    values = np.ones(sum(layout.parts), "f4")
    pipe.send(timed(lambda: exchange.exchange(values), steps))
    exchange.close()


def rank_of_gloo(pipe: Any, rank: int, store: str, elements: int, steps: int) -> None:
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    values = torch.ones(elements)

    def reduce() -> None:
        distributed.all_reduce(values)
        values.div_(WORLD)

    pipe.send(timed(reduce, steps))
    distributed.destroy_process_group()


def in_processes(target: Callable[..., None], *arguments: Callable[[int], Any]) -> float:
    """Return the median seconds of one exchange, of the slower rank."""
    context = get_context("spawn")
    pipes = []
    for rank in range(WORLD):
        mine, theirs = context.Pipe()
        context.Process(target=target, args=(theirs, rank, *[of(rank) for of in arguments]), daemon=True).start()
        pipes.append(mine)
    return max(median(pipe.recv()) for pipe in pipes)


def always(value: Any) -> Callable[[int], Any]:
    return lambda rank: value


def aggregation_s(elements: int, steps: int, *, shared: bool) -> float:
    layout = layout_of(elements)
    with tempfile.TemporaryDirectory() as folder:
        run = AggregatedRun(Path(folder), layout, WORLD, shared=shared)
        try:
            return in_processes(rank_of_aggregation, run.where, always(layout), always(steps), always(shared))
        finally:
            run.close()


def gloo_s(elements: int, steps: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return in_processes(rank_of_gloo, always(f"{folder}/store"), always(elements), always(steps))


def sum_s(elements: int, steps: int) -> float:
    vectors = [np.ones(elements, "f4") for _ in range(WORLD)]
    out = np.ones(elements, "f4")
    return median(timed(lambda: mean_of(vectors, out), steps))


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    has_torch = importlib.util.find_spec("torch") is not None
    for name, (elements, steps) in SIZES.items():
        ways: dict[str, Callable[[], float]] = {
            "plain sum": lambda: sum_s(elements, steps),
            "shared memory": lambda: aggregation_s(elements, steps, shared=True),
            "TCP": lambda: aggregation_s(elements, steps, shared=False),
        }
        if has_torch:
            ways["gloo"] = lambda: gloo_s(elements, steps)
        found: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way, measure in ways.items():
                found[way].append(measure())
        for way, times in found.items():
            line = f"{name}  {way:<14} {1000 * median(times):9.2f} ms  {median(times) / median(found['plain sum']):6.1f} x sum"
            if has_torch and way in {"shared memory", "TCP"}:
                ratios = [one / other for one, other in zip(times, found["gloo"], strict=True)]
                line += f"  {median(ratios):5.2f} x gloo"
            print(line, flush=True)


if __name__ == "__main__":
    main()
