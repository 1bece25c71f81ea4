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
from functools import partial
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


def rank_of_aggregation(pipe: Any, rank: int, where: PartsAt, layout: VectorLayout, steps: int) -> None:
    exchange = VectorExchange(layout, UpdateRule(), rank=rank, world_size=WORLD, on_lost=print, timeout_s=120)
    exchange.placed(where)
    values = np.ones(sum(layout.parts), "f4")
    pipe.send(timed(lambda: exchange.exchange(values), steps))
    exchange.close()


def rank_of_gloo(pipe: Any, rank: int, store: str, elements: int, steps: int) -> None:
    import torch  # noqa: PLC0415 - the bench runs without it, too
    from torch import distributed  # noqa: PLC0415

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    values = torch.ones(elements)

    def reduce() -> None:
        distributed.all_reduce(values)
        values.div_(WORLD)

    pipe.send(timed(reduce, steps))
    distributed.destroy_process_group()


def in_processes(target: Callable[..., None], arguments: Callable[[int], tuple[Any, ...]]) -> float:
    """Return the median seconds of one exchange, of the slower rank."""
    context = get_context("spawn")
    pipes = []
    for rank in range(WORLD):
        mine, theirs = context.Pipe()
        context.Process(target=target, args=(theirs, rank, *arguments(rank)), daemon=True).start()
        pipes.append(mine)
    return max(median(pipe.recv()) for pipe in pipes)


def aggregation_s(elements: int, steps: int, *, shared: bool) -> float:
    layout = layout_of(elements)
    with tempfile.TemporaryDirectory() as folder:
        run = AggregatedRun(Path(folder), layout, WORLD, shared=shared)
        try:
            return in_processes(rank_of_aggregation, lambda rank: (run.where(rank), layout, steps))
        finally:
            run.close()


def gloo_s(elements: int, steps: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return in_processes(rank_of_gloo, lambda _: (f"{folder}/store", elements, steps))


def sum_s(elements: int, steps: int) -> float:
    vectors = [np.ones(elements, "f4") for _ in range(WORLD)]
    out = np.ones(elements, "f4")
    return median(timed(lambda: mean_of(vectors, out), steps))


def ways() -> dict[str, Callable[[int, int], float]]:
    """Return what is measured, by name; each takes elements and steps."""
    found: dict[str, Callable[[int, int], float]] = {
        "plain sum": sum_s,
        "shared memory": partial(aggregation_s, shared=True),
        "TCP": partial(aggregation_s, shared=False),
    }
    if importlib.util.find_spec("torch") is not None:
        found["gloo"] = gloo_s
    return found


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    for name, (elements, steps) in SIZES.items():
        found: dict[str, list[float]] = {way: [] for way in ways()}
        for _ in range(rounds):
            for way, measure in ways().items():
                found[way].append(measure(elements, steps))
        for way, times in found.items():
            line = f"{name}  {way:<14} {1000 * median(times):9.2f} ms"
            for other in {"plain sum", "gloo"} & found.keys() - {way}:
                ratio = median(one / base for one, base in zip(times, found[other], strict=True))
                line += f"  {ratio:6.2f} x {other}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
