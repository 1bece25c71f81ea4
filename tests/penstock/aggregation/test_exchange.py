"""Ranks that add up their vectors on real aggregators: the result is that of a plain sum in the order of ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from aggregator_harness import aggregated, in_threads, values_of

from penstock_log.aggregation_messages import VectorLayout


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("world_size", [2, 4])
def test_a_mean_is_that_of_a_plain_sum_in_the_order_of_ranks(tmp_path: Path, world_size: int, shared: bool) -> None:
    layout = VectorLayout(dtype="f4", parts=(70_001, 1, 40_000))
    elements, steps = sum(layout.parts), 12
    with aggregated(tmp_path, layout, world_size, shared=shared, aggregators=2) as run:
        exchanges = [run.exchange(rank) for rank in range(world_size)]

        def train(rank: int) -> list[bytes]:
            results = []
            for step in range(1, steps + 1):
                values = values_of(rank, step, elements)
                exchanges[rank].exchange(values)
                results.append(values.tobytes())
            return results

        found = in_threads(train, world_size)
        shares = [exchange.stats().shared_parts for exchange in exchanges]
    for step in range(1, steps + 1):
        expected = values_of(0, step, elements)
        for rank in range(1, world_size):
            expected = expected + values_of(rank, step, elements)
        expected /= np.float32(world_size)
        assert [each[step - 1] == expected.tobytes() for each in found] == [True] * world_size
    assert shares == [3 if shared else 0] * world_size
