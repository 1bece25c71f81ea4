"""How a device is shared: what an operator may set."""

from __future__ import annotations

from dataclasses import dataclass

from penstock_policies.lanes.turns import POLICIES, Name


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """
    How a device is shared.

    Attributes
    ----------
    policy : {"fifo", "srtf", "las", "fair", "round-robin", "priority"}
        Whose turn it is in a lane.
    patience_s : float or None
        Who has asked for a turn for so long gets one, whatever the policy; None: the policy alone decides.
    overtakes : int
        Jobs that stood behind a waiting one and may enter before it.
    least_gain : float
        Gain in throughput below which one more lane is not worth it: 0.05 is 5 %.
    retry_s : float
        For how long a number of lanes that was not worth it is not tried again.
    most_lanes : int or None
        Most lanes of the device; 1 is time-sharing alone.
    merges : bool
        Whether lanes close where a waiting job would fit if there were fewer.
    spreads : bool
        Whether members move to new or emptier lanes while nobody waits.

    Raises
    ------
    ValueError
        If one of them is out of range.
    """

    policy: Name = "fair"
    patience_s: float | None = 30.0
    overtakes: int = 8
    least_gain: float = 0.05
    retry_s: float = 600.0
    most_lanes: int | None = None
    merges: bool = True
    spreads: bool = True

    def __post_init__(self) -> None:
        _expect(self.policy in POLICIES, f"policy {self.policy!r}", f"one of {', '.join(POLICIES)}")
        _expect(self.patience_s is None or self.patience_s >= 0, f"patience_s {self.patience_s}", "0 or more, or None")
        _expect(self.overtakes >= 0, f"overtakes {self.overtakes}", "0 or more")
        _expect(self.retry_s >= 0, f"retry_s {self.retry_s}", "0 or more")
        _expect(self.most_lanes is None or self.most_lanes >= 1, f"most_lanes {self.most_lanes}", "1 or more, or None")


def _expect(holds: bool, given: str, expected: str) -> None:
    if not holds:
        raise ValueError(f"{given} is out of range; expected {expected}")
