"""What can be set about the ranker: table ``[ranker]`` or ``PENSTOCK_RANKER_…``."""

from __future__ import annotations

from itertools import pairwise

import msgspec


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """
    The order's parameters.

    Attributes
    ----------
    thresholds_gpu_s : tuple of float
        GPU-seconds at which a job leaves queue 0, 1, …; rising. Empty: one queue, first come, first served.
    promote_knob : float or None
        A job that has waited this many times what it has executed goes back to queue 0; None: never.
    """

    thresholds_gpu_s: tuple[float, ...] = (3_600.0, 36_000.0)
    promote_knob: float | None = None

    def __post_init__(self) -> None:
        if any(low >= high for low, high in pairwise((0.0, *self.thresholds_gpu_s))):
            raise ValueError(
                f"thresholds_gpu_s is {list(self.thresholds_gpu_s)}; expected rising numbers of GPU-seconds above 0"
            )
        if self.promote_knob is not None and self.promote_knob <= 0:
            raise ValueError(f"promote_knob is {self.promote_knob}; expected a number above 0, or leave it out")
