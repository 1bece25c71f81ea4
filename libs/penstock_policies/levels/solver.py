"""The exact matching: begin with prices, balance, read off machines and the proof."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock_policies.levels.answer import Assignment, bound_us, seat_on_machines, total_us
from penstock_policies.levels.paths import TOO_DEEP, balance
from penstock_policies.levels.start import idle_prices, seat_all
from penstock_policies.levels.state import UNFIT, Flow, Ints, new_flow, new_paths


def assign(processing_us: Ints, ready_us: Sequence[Ints]) -> Assignment:
    """Return the schedule with the least sum of completion times; among equals one with the least sum of places."""
    reach = 16
    while True:
        flow = _begun(processing_us, ready_us, reach, scale=1024)
        if balance(flow, new_paths(flow.first.size)) != TOO_DEEP:
            return _read_off(processing_us, ready_us, flow, scale=1024)
        reach *= 2


def _begun(processing_us: Ints, ready_us: Sequence[Ints], reach: int, scale: int) -> Flow:
    machines = np.array([len(ready) for ready in ready_us], dtype=np.int64)
    ready = np.zeros((len(ready_us), machines.max(initial=1)), dtype=np.int64)
    for kind, times in enumerate(ready_us):
        ready[kind, : len(times)] = np.sort(times) * scale
    length = np.where(processing_us == UNFIT, UNFIT, (processing_us % UNFIT) * scale + 1)
    flow = new_flow(length, ready, machines, reach)
    idle_prices(flow)
    seat_all(flow)
    return flow


def _read_off(processing_us: Ints, ready_us: Sequence[Ints], flow: Flow, scale: int) -> Assignment:
    kinds = len(ready_us)
    reach = flow.first.size // kinds
    matched = flow.level >= 0
    kind = np.where(matched, flow.level // reach, -1)
    place = np.where(matched, flow.level % reach + 1, 0)
    rank = np.full(kind.size, -1, dtype=np.int64)
    seat_on_machines(flow.length, flow.ready, flow.level, reach, rank)
    machine = np.full(kind.size, -1, dtype=np.int64)
    for t, ready in enumerate(ready_us):
        here = kind == t
        machine[here] = np.argsort(ready, kind="stable")[rank[here]]
    prices = []
    for t in range(kinds):
        price = flow.price[t * reach : t * reach + flow.depth[t]] - flow.price[-1]
        prices.append((price + np.arange(1, price.size + 1)) // scale)
    total = total_us(processing_us, ready_us, kind, place, machine)
    gap = total - bound_us(processing_us, ready_us, prices)
    return Assignment(kind=kind, place=place, machine=machine, total_us=total, price_us=tuple(prices), gap_us=gap)
