"""Philly: Microsoft's jobs of late 2017, in each of the forms in which they go about."""

from __future__ import annotations

from penstock_sim.trace import Trace
from penstock_sim.traces import philly_log, philly_sia, plain
from penstock_sim.traces.source import Source


def read(source: Source) -> Trace:
    """
    Read the job log itself (JSON), the form with time stamps that was published with Sia, or the plain one.

    References
    ----------
    Jeon et al., Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads, USENIX ATC 2019.
    """
    head = source.head(256)
    if head.lstrip().startswith("["):
        return philly_log.read(source)
    return philly_sia.read(source) if head.startswith("timestamp,") else plain.read(source)
