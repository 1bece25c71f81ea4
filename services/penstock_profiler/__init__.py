"""
The profiler: how fast each workload is on each kind of device, measured once and refined ever after.

In reading order:

* ``machine``: Settings, state, apply, decide.
* ``workload_record``: What is known of one workload.
* ``answer``: The profiler's answers about a workload.
* ``__main__``: The profiler on a bus, and how replicas divide the keys.
"""
