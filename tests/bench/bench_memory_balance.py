"""
Balance of memory in a simulated cluster: what slabs do for 32 nodes of uneven use: ``bench_memory_balance.py``.

The load is made so that it begins as the evaluation of Infiniswap does (Gu et al., NSDI 2017): the nodes use 40.8 % of
their memory in the mean, and the fullest one 2.36 times as much as the median one. What jobs want beyond that lies on
disks until there are slabs; it is 19.2 % of the cluster's memory, with which the mean would be 60 %. Who wants it is
drawn at random. So the mean before, its spread, and how much is wanted are given; what comes out is how much of it
finds a donor, and how the cluster is balanced with it.

Donors offer what :func:`slabs_to_offer` says, and each slab goes where :func:`donor_choices` and :func:`better_donor`
say, as in the agent. A node's memory is not lent to its own jobs, as in the paper.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from penstock_policies.slabs import better_donor, donor_choices, slabs_to_offer

GIB: Final = 1 << 30
NODES: Final = 32
NODE_BYTES: Final = 64 * GIB
HEADROOM_BYTES: Final = 8 * GIB
CLIENTS: Final = 90
"""Containers of the paper's evaluation; each wants a part of the memory that is lacking."""
MEAN_USE: Final = 0.408
MAX_TO_MEDIAN: Final = 2.36
WANTED_USE: Final = 0.6
SEEDS: Final = range(100)
Floats = npt.NDArray[np.float64]


class Balance(NamedTuple):
    """Mean use of the nodes, the fullest to the median one, deviation to mean, and which part of the slabs is lent."""

    use: float
    max_to_median: float
    deviation: float
    lent: float


class Way(NamedTuple):
    """How donors are chosen, and the size of a slab."""

    name: str
    choices: int
    fresh_first: bool
    slab_bytes: int


WAYS: Final = (
    Way("one choice, slabs of 1 GiB", 1, False, GIB),
    Way("two choices, slabs of 1 GiB", 2, False, GIB),
    Way("two choices, new donors first, 1 GiB", 2, True, GIB),
    Way("two choices, new donors first, 256 MiB", 2, True, GIB // 4),
)
"""The last but one is the paper's, and the last two are what agents do."""


def uses(rng: np.random.Generator) -> Floats:
    """Return the share of each node's memory in use, (NODES,): log-normal, stretched to the given mean and spread."""
    drawn = rng.standard_normal(NODES)

    def spread(stretch: float) -> float:
        found = np.exp(stretch * drawn)
        return float(found.max() / np.median(found)) - MAX_TO_MEDIAN

    stretched = np.exp(brentq(spread, 0.0, 10.0) * drawn)
    return np.asarray(stretched * MEAN_USE / stretched.mean(), dtype=np.float64)


def wanted(slabs: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Return ``(client, node)`` of each slab that is wanted, in the order in which they get hot."""
    of_client = rng.multinomial(slabs, rng.dirichlet(np.ones(CLIENTS)))
    nodes = rng.integers(0, NODES, CLIENTS)
    clients = rng.permutation(np.repeat(np.arange(CLIENTS), of_client)).tolist()
    return [(client, int(nodes[client])) for client in clients]


def placed(way: Way, used: Floats, rng: np.random.Generator) -> Balance:
    """Lend the slabs that are wanted, one after the other, and return how the cluster is balanced then."""
    free_bytes = {str(node): int((1.0 - share) * NODE_BYTES) for node, share in enumerate(used)}
    offered = {
        name: slabs_to_offer(free, HEADROOM_BYTES, way.slab_bytes, 0, hysteresis=0) for name, free in free_bytes.items()
    }
    lent = dict.fromkeys(free_bytes, 0)
    lending: dict[int, set[str]] = {}
    asked_for = wanted(round((WANTED_USE - MEAN_USE) * NODES * NODE_BYTES / way.slab_bytes), rng)
    for client, node in asked_for:
        mine = lending.setdefault(client, set())
        donors = {name: offered[name] - lent[name] for name in lent if name != str(node)}
        asked = donor_choices(donors, mine if way.fresh_first else (), rng, way.choices)
        donor = better_donor({name: free_bytes[name] - lent[name] * way.slab_bytes for name in asked})
        if donor is not None:
            lent[donor] += 1
            mine.add(donor)
    after = used + np.array(list(lent.values())) * way.slab_bytes / NODE_BYTES
    return balance(after, sum(lent.values()) / len(asked_for))


def balance(used: Floats, lent: float = 0.0) -> Balance:
    """Return how a cluster is balanced whose nodes use such shares of their memory."""
    mean, largest = used.mean(), used.max()
    return Balance(float(mean), float(largest / np.median(used)), float(used.std() / mean), lent)


def told(name: str, runs: list[Balance]) -> None:
    """Print means over the seeds, with their standard errors."""
    found = np.array(runs)
    mean, error = found.mean(axis=0), found.std(axis=0, ddof=1) / len(runs) ** 0.5
    print(
        f"{name:40} {100 * mean[0]:5.1f} ± {100 * error[0]:.2f} %  {mean[1]:5.2f} ± {error[1]:.3f}"
        f"  {mean[2]:5.3f} ± {error[2]:.4f}  {100 * mean[3]:6.1f} ± {100 * error[3]:.2f} %"
    )


def main() -> None:
    print(f"{NODES} nodes of {NODE_BYTES // GIB} GiB, {HEADROOM_BYTES // GIB} GiB head-room; seeds 0 to {SEEDS[-1]}")
    print(f"{'':40} {'in use':>14}  {'max/median':>12}  {'deviation/mean':>14}  {'slabs lent':>14}")
    loads = [uses(np.random.default_rng(seed)) for seed in SEEDS]
    told("before (given)", [balance(load) for load in loads])
    for way in WAYS:
        runs = zip(SEEDS, loads, strict=True)
        told(way.name, [placed(way, load, np.random.default_rng((seed, 1))) for seed, load in runs])
    print("paper (Infiniswap, NSDI 2017): 40.8 % and 2.36 before, 60 % and 1.6 after")


if __name__ == "__main__":
    main()
