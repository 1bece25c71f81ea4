"""Simulation that counts: jobs and devices, no services; fast, or true to a published simulator."""

from penstock_sim.counted.simulate import COMPATS, PLACEMENTS, POLICIES, SIZED, simulate

__all__ = ["COMPATS", "PLACEMENTS", "POLICIES", "SIZED", "simulate"]
