"""A pool put in order from scratch, all jobs at once: the oracle of what keeps it in order as things happen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock_policies import gittins
from penstock_policies.queue_policies import NOTHING, UNKNOWN_S, JobFigures, LengthKnowledge, QueuePolicy

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def columns(
    gpus: npt.ArrayLike,
    submitted_s: npt.ArrayLike,
    executed_s: npt.ArrayLike,
    *,
    length_s: npt.ArrayLike = UNKNOWN_S,
    served_s: npt.ArrayLike | None = None,
    entered_s: npt.ArrayLike | None = None,
) -> JobFigures:
    """Return J jobs as figures that are arrays; those left out mean: not declared, never promoted, never demoted."""
    submitted, executed = np.asarray(submitted_s, dtype=np.float64), np.asarray(executed_s, dtype=np.float64)
    devices = np.asarray(gpus, dtype=np.float64)
    return JobFigures(
        gpus=devices,
        least=devices,
        submitted_s=submitted,
        entered_s=submitted if entered_s is None else np.asarray(entered_s, dtype=np.float64),
        executed_s=executed,
        served_s=executed if served_s is None else np.asarray(served_s, dtype=np.float64),
        length_s=np.broadcast_to(np.asarray(length_s, dtype=np.float64), executed.shape),
        queue=np.zeros(executed.shape),
    )


def rank(
    order: QueuePolicy,
    jobs: JobFigures,
    thresholds_gpu_s: Sequence[float] = (),
    learnt: LengthKnowledge = NOTHING,
) -> tuple[Ints, Floats, Ints]:
    """
    Put jobs in order from scratch.

    Parameters
    ----------
    order : QueuePolicy
    jobs : JobFigures
        As :func:`columns` makes it; ``queue`` is set.
    thresholds_gpu_s : (K - 1,) floats, GPU-seconds, rising; seconds for an order that demotes by time
    learnt : LengthKnowledge

    Returns
    -------
    queue : (J,) int array
    position : (J,) float array
    first : (J,) int array
        Numbers of the jobs, the one to be served first first; those that are equal in all keep their order.

    Notes
    -----
    O(J log J).

    """
    if order.demotes_by == "nothing":
        queue = np.zeros(jobs.gpus.shape, dtype=np.int64)
    else:
        queue = np.searchsorted(thresholds_gpu_s, order.weight(jobs.gpus) * jobs.served_s, side="right")
    jobs.queue = queue.astype(np.float64)
    position = merits(learnt, jobs) if order.key == "index" else order.position(jobs, learnt)
    return queue, position, np.lexsort((jobs.entered_s, position, queue))


def merits(learnt: LengthKnowledge, jobs: JobFigures) -> Floats:
    """Return the positions of jobs by the index, as `LengthKnowledge.merit` gives each of them."""
    attained_gpu_s, found = jobs.gpus * jobs.served_s, np.ones(jobs.gpus.shape)
    for number, curve in enumerate(learnt._curves):
        here = np.flatnonzero(jobs.queue == number)
        attained = np.maximum(attained_gpu_s[here], learnt._entries[number])
        index = gittins.index(learnt._samples, attained, curve.quantum_gpu_s)
        found[here] = (index + learnt._floors[number]) / learnt._units[number]
    return -found
