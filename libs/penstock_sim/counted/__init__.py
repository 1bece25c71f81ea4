"""Simulation that counts: jobs and devices, no services; fast, or true to a published simulator."""

from penstock_sim.counted.simulate import COMPATS, ELASTIC, PLACEMENTS, POLICIES, simulate

__all__ = ["COMPATS", "ELASTIC", "PLACEMENTS", "POLICIES", "simulate"]
