"""
Traces, virtual time, and what a cluster would have done with other policies.

In reading order:

* ``virtual_cluster``: The cluster of a simulation, whole and in virtual clusters.
* ``trace``: A workload in columns, its parts and figures.
* ``outcome``: What became of a trace under one policy.
* ``sweep_simulation``: A sweep over recorded curves.
* ``archive_query``: Archived jobs: their story and a list of them.
* ``log_query``: ``why`` and ``story`` from a log file.
* ``engine/``: The production deciders under virtual time: the same code that runs a cluster, with a clock that jumps.
* ``fast/``: Simulation that counts: jobs and devices, no services; fast, or true to a published simulator.
* ``replay/``: A history and its replays beside each other: what really happened, how they differ, what cannot be known.
* ``report/``: What people read of simulations: figures, tables, plots and a page.
* ``shadow/``: A shadow: the production ranker and matcher under another policy, beside a live cluster and never in its
  way.
* ``traces/``: Workloads as they are published, as we write them, and as one makes them up.
"""

from typing import Final

CONFIGURED: Final = "configured"
"""In place of a policy's name: the services' own settings, and what people set live."""
