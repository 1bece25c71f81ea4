"""Workloads as they are published, as we write them, and as one makes them up."""

from penstock_sim.traces.errors import TraceError
from penstock_sim.traces.formats import READERS, read

__all__ = ["READERS", "TraceError", "read"]
