"""How many devices each elastic job of a pool gets, of which kind, and with which batch size: one decision."""

from penstock_policies.autoscale.decide import decide
from penstock_policies.autoscale.wish import Fixed, Rules, Sized, Sizing, Wish

__all__ = ["Fixed", "Rules", "Sized", "Sizing", "Wish", "decide"]
