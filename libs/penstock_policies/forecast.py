"""When a job that is submitted now may expect to start, from how long the runs and the jobs before it still take."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class Need(NamedTuple):
    """
    What one waiting job asks for.

    Attributes
    ----------
    gpus : int
        Devices at once, all of one kind.
    run_s : mapping of str to float
        Kind that it may run on → expected run time there, seconds; infinite where nothing tells.
    """

    gpus: int
    run_s: Mapping[str, float]


def start_in_s(ready_s: Mapping[str, Iterable[float]], queue: Sequence[Need], *, in_order: bool = False) -> float:
    """
    Return in how many seconds the last job of a queue is expected to start.

    Parameters
    ----------
    ready_s : mapping of str to iterable of float
        Kind → in how many seconds each of its devices is free: 0 for an idle one, infinite where nothing tells.
    queue : sequence of Need
        In the order of their turn; not empty.
    in_order : bool
        Whether nobody starts before whoever is before him.

    Returns
    -------
    float, seconds; infinite where no kind will ever have enough devices, as far as is known

    Notes
    -----
    List scheduling: each job in its turn takes the devices with which it ends first, or starts first where its run time
    is not known. O(J (T + m)) at worst, with T kinds and m devices. Preemption is left out: it would only be sooner.

    Examples
    --------
    >>> ahead, own = Need(1, {"fast": 10.0}), Need(2, {"fast": 5.0, "slow": 8.0})
    >>> start_in_s({"fast": [0.0, 3.0], "slow": [1.0]}, [ahead, own])
    10.0
    """
    ready = {kind: sorted(times) for kind, times in ready_s.items()}
    start_s = floor_s = 0.0
    for need in queue:
        starts = {kind: ready[kind][need.gpus - 1] for kind in need.run_s if len(ready.get(kind, ())) >= need.gpus}
        if not starts:
            start_s = math.inf
            continue
        kind = min(starts, key=lambda kind: (starts[kind] + need.run_s[kind], starts[kind], kind))
        start_s = floor_s = max(starts[kind], floor_s if in_order else 0.0)
        del ready[kind][: need.gpus]
        for _ in range(need.gpus):
            insort(ready[kind], start_s + need.run_s[kind])
    return start_s
