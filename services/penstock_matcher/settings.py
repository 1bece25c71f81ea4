"""What can be set about the matcher: table ``[matcher]`` or ``PENSTOCK_MATCHER_…``."""

from __future__ import annotations

from penstock_policies.order import Rules, Seconds


class Settings(Rules, frozen=True, kw_only=True):
    """
    The parameters of its rounds, as :class:`penstock_policies.order.Rules` has them, and its own.

    Attributes
    ----------
    node_timeout_s : float
        A node whose heartbeats have stopped for this long is lost, and its jobs are placed again.
    """

    node_timeout_s: Seconds = 5.0
