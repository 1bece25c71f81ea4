"""What can be set about the tuner: table ``[tuner]`` or ``PENSTOCK_TUNER_…``."""

from __future__ import annotations

import msgspec


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """
    How trials are submitted.

    Attributes
    ----------
    resubmit_s : float
        A trial that the gateway has not accepted after so many seconds is submitted again, under the same id.
    """

    resubmit_s: float = 5.0

    def __post_init__(self) -> None:
        if self.resubmit_s <= 0:
            raise ValueError(f"resubmit_s is {self.resubmit_s}; expected a number of seconds above 0")
