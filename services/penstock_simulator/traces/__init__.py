"""
Workloads as they are published, as we write them, and as one makes them up.

In reading order:

* ``formats``: The registry of formats; reading and writing by name.
* ``columns``: Delimited files in columns.
* ``plain_formats``: Our own form, plain CSV, Tiresias, Gavel.
* ``philly``: Philly in its three forms.
* ``alibaba``: Alibaba's PAI and openb.
* ``slurm``: Slurm's accounting: Helios and sacct.
* ``log_file``: A cluster's log as text and as a trace.
* ``generator``: Made-up workloads.
"""

from penstock_simulator.trace import TraceError
from penstock_simulator.traces.alibaba import read_nodes
from penstock_simulator.traces.formats import READERS, WRITERS, read, write

__all__ = ["READERS", "WRITERS", "TraceError", "read", "read_nodes", "write"]
