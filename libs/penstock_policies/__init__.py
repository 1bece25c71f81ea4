"""
Scheduling algorithms on numbers: no cluster, no clock, no I/O.

In reading order:

* ``queue_policies``: Queue policies by name: the registry.
* ``gittins``: The Gittins index.
* ``ranking``: One pool's jobs kept in order.
* ``job_lengths``: How long jobs were, and what follows for those that run.
* ``queue_thresholds``: Thresholds between queues, worked out from how long jobs were.
* ``workload_stats``: What is known of a workload: speeds, cost of stopping.
* ``sample_plan``: Which samples a workload needs, and who waits for them.
* ``idleness``: What a pool does about runs that hold devices and do nothing.
* ``elastic``: The allocation of devices to elastic jobs.
* ``scaling_model``: Throughput at any batch and width, from timings.
* ``waterfill``: Water-filling of trials.
* ``slabs``: Slabs of borrowed memory: how many a node offers, whom to ask, which to take back.
* ``aggregation``: Shared aggregators: which jobs share one, what moves, and whose turn it is.
* ``kernels``: Compiled kernels and where they are kept.
* ``kernel_cache``: The part of it that loads numba.
* ``matching/``: Exact matching of jobs to devices of several kinds: which job gets which kind, and in which order.
* ``search/``: What a sweep tries next: which points of its space, each for how long, and which of them go on.
"""
