"""
How fast models are at each batch and width, from Gavel's measurements of steps a second.

A model was measured with several batch sizes on one device and, with the same batch on each device, on several; steps
are summed over the devices. (Were they steps of one batch that is divided, ResNet-18 on eight K80s would do a batch of
128 in 0.06 s, and 16 samples alone take 0.21 s on one.) So an iteration of local batch b takes ``1 / steps(b, 1)`` on
one device, and ``k / steps(b, k)`` on k, of which all that is above the former is communication.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from statistics import median
from typing import Final

from penstock_policies.elastic import ThroughputProfile

_NAME: Final = re.compile(r"(.+) \(batch size (\d+)\)")

LEAST_S: Final = 1e-6
"""Where several devices were measured to be faster than as many alone, communication is taken to be free."""

WIDTHS_OF_LARGEST: Final = 4
"""The largest batch of a model fills so many devices; nobody measured with which batches models still learn."""


def profiles(steps_per_s: Mapping[tuple[str, int], float]) -> dict[str, ThroughputProfile]:
    """
    Return the profile of each model that was measured with several batches and on several devices.

    The communication at a width is the median over the batches; batches are multiples of the smallest that was
    measured, a device holds the largest that was, and the largest over all devices is :data:`WIDTHS_OF_LARGEST` times
    that.

    Parameters
    ----------
    steps_per_s : mapping of (model with its batch size, devices) to float
        On one kind of device, as :func:`penstock_simulator.traces.plain_formats.throughputs` returns them.

    Examples
    --------
    >>> steps = {("net (batch size 4)", 1): 2.0, ("net (batch size 8)", 1): 1.0, ("net (batch size 8)", 2): 1.6}
    >>> profiles(steps)["net"].t_comm_s
    {2: 0.25}
    """
    found: defaultdict[str, dict[int, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for (name, gpus), steps in steps_per_s.items():
        if (named := _NAME.fullmatch(name)) is not None and steps > 0:
            found[named[1]][int(named[2])][gpus] = gpus / steps
    return {
        model: _profile(alone)
        for model, iteration_s in found.items()
        if len(alone := {batch: by_gpus for batch, by_gpus in sorted(iteration_s.items()) if 1 in by_gpus}) > 1
        and any(len(by_gpus) > 1 for by_gpus in alone.values())
    }


def _profile(iteration_s: Mapping[int, Mapping[int, float]]) -> ThroughputProfile:
    """Return the profile of a model, from batch → devices → seconds of an iteration."""
    over: defaultdict[int, list[float]] = defaultdict(list)
    for by_gpus in iteration_s.values():
        for gpus, time_s in by_gpus.items():
            if gpus > 1:
                over[gpus].append(time_s - by_gpus[1])
    smallest, largest = min(iteration_s), max(iteration_s)
    return ThroughputProfile(
        b_min=smallest,
        b_max=WIDTHS_OF_LARGEST * largest,
        per_gpu_cap=largest,
        batch_step=smallest,
        t_proc_s={batch: by_gpus[1] for batch, by_gpus in iteration_s.items()},
        t_comm_s={gpus: max(median(times_s), LEAST_S) for gpus, times_s in sorted(over.items())},
    )
