"""What can be set about the profiler: table ``[profiler]`` or ``PENSTOCK_PROFILER_…``."""

from __future__ import annotations

import msgspec


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """
    How workloads are sampled.

    Attributes
    ----------
    short_iterations, long_iterations : int
        Length of the two samples on each kind of device; a line through both gives the iteration time. A sample of an
        elastic workload at one size has the greater length.
    answer_within_s : float
        Seconds after which jobs no longer wait for samples: what is not measured by then is predicted, and corrected
        when the samples end after all.
    """

    short_iterations: int = 5
    long_iterations: int = 25
    answer_within_s: float = 120.0

    def __post_init__(self) -> None:
        if not 1 <= self.short_iterations < self.long_iterations:
            found = f"short_iterations is {self.short_iterations}, long_iterations is {self.long_iterations}"
            raise ValueError(f"{found}; expected 1 <= short_iterations < long_iterations")
        if self.answer_within_s <= 0:
            raise ValueError(f"answer_within_s is {self.answer_within_s}; expected a number of seconds above 0")
