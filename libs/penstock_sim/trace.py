"""A workload: who asked for how many devices, when, and for how long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
STATES: Final = ("completed", "failed", "cancelled", "running")
"""Of a job that was cancelled, or still ran when the record was taken, the length is but the least it could be."""


@dataclass(frozen=True)
class Trace:
    """
    J jobs in columns, by submission; jobs of one time keep the order of the source.

    Attributes
    ----------
    name : str
        What people call it: the file's name.
    job_ids : sequence of str, (J,)
    submit_s : (J,) float array, seconds
        Rising, from any origin.
    num_gpus : (J,) int array
        Whole devices at once, at least 1.
    duration_s : (J,) float array, seconds
        Exclusive run time on that many devices, of the kind they ran on or, with ``speedups``, of the fastest kind.
    gpu_share : (J,) float array or None
        Share of one device, above 0 and at most 1, that a job asks for; None if all ask for whole devices.
    vcs, users, models : sequence of str, (J,), or empty
        Virtual cluster, user and model; empty where the source has none.
    kinds : sequence of str, (J,), or empty
        Device kind that a job asks for; an empty name takes any.
    batch_sizes : (J,) int array or None
        Samples of an iteration over all devices, as the user set it; 0 where the source does not say.
    states : sequence of str, (J,), or empty
        How each job ended where it was recorded: a name of :data:`STATES`, or empty.
    dropped : mapping of str to int
        Rows of the source that are no jobs here, by reason in words.
    """

    name: str
    job_ids: Sequence[str]
    submit_s: Floats
    num_gpus: Ints
    duration_s: Floats
    gpu_share: Floats | None = None
    batch_sizes: Ints | None = None
    vcs: Sequence[str] = ()
    users: Sequence[str] = ()
    models: Sequence[str] = ()
    kinds: Sequence[str] = ()
    states: Sequence[str] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.job_ids)
