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
    gangs_within_s : float
        Seconds after the end of the last other sample in which gangs of samples find devices, or are no longer waited
        for: the job itself may have begun meanwhile, and hold what they wait for.
    """

    short_iterations: int = 5
    long_iterations: int = 25
    answer_within_s: float = 120.0
    gangs_within_s: float = 10.0

    def __post_init__(self) -> None:
        if not 1 <= self.short_iterations < self.long_iterations:
            found = f"short_iterations is {self.short_iterations}, long_iterations is {self.long_iterations}"
            raise ValueError(f"{found}; expected 1 <= short_iterations < long_iterations")
        for name in ("answer_within_s", "gangs_within_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected a number of seconds above 0")
