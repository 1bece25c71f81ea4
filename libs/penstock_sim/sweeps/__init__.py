"""
Sweeps over recorded learning curves, in virtual time: what each way of filling devices would have made of them.

The searches are those of :mod:`penstock_policies.search` and the widths those of :mod:`penstock_policies.waterfill`, as
the tuner uses them. How long a trial takes on a width is the published model, with penalties that are given.
"""

from penstock_sim.sweeps.curves import BadCurves, Curves, read
from penstock_sim.sweeps.filling import FILLINGS, Filling, Model
from penstock_sim.sweeps.outcome import Outcome
from penstock_sim.sweeps.play import play

__all__ = ["FILLINGS", "BadCurves", "Curves", "Filling", "Model", "Outcome", "play", "read"]
