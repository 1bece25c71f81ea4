"""What can be set about decisions on sizes."""

from __future__ import annotations

from penstock_policies.autoscale.wish import Rules
from penstock_policies.order import Seconds


class Settings(Rules, frozen=True, kw_only=True):
    """
    What bounds resizing, as :class:`penstock_policies.autoscale.Rules` has it, and the autoscaler's own.

    Attributes
    ----------
    await_profile_s : float
        A new job of which it is not known yet how it goes with devices and batch sizes is sized by assumption once it
        has waited this long. Keep it below the matcher's setting of the same name: with the end of that one, the job
        starts at its smallest width, sized or not.
    unseen_cost_s : float
        What resizing a job is taken to cost at least, in seconds, until runs of its workload have shown it.
    """

    await_profile_s: Seconds = 8.0
    unseen_cost_s: Seconds = 10.0
