"""Workloads as they are published, as we write them, and as one makes them up."""

from penstock_sim.traces.errors import TraceError
from penstock_sim.traces.formats import READERS, read
from penstock_sim.traces.machines import read_nodes
from penstock_sim.traces.writing import WRITERS, write

__all__ = ["READERS", "WRITERS", "TraceError", "read", "read_nodes", "write"]
