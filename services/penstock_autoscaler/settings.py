"""What can be set about the autoscaler: table ``[autoscaler]`` or ``PENSTOCK_AUTOSCALER_…``."""

from __future__ import annotations

from penstock_policies.autoscale.settings import Settings

__all__ = ["Settings"]
