"""
Simulation that counts: jobs and devices, no services; fast, or true to a published simulator.

In reading order:

* ``fast_path``: A trace in, an outcome out.
* ``fast_settings``: Settings of counted policies, and shapes of elastic jobs.
* ``kernel_state``: The kernels' arrays.
* ``kernel_events``: The kernels' events.
* ``tiresias_2019``: The published simulator, for ``--compat tiresias-2019``.
* ``fast_warmup``: Compiles the kernels ahead.
"""

from penstock_simulator.fast.fast_path import COMPATS, FAST_POLICIES, PLACEMENTS, simulate
from penstock_simulator.fast.fast_settings import SIZED_POLICIES

__all__ = ["COMPATS", "FAST_POLICIES", "PLACEMENTS", "SIZED_POLICIES", "simulate"]
