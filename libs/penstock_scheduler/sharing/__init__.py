"""
Jobs that share devices: with whom, on which, who makes way for whom, and why one waits.

In reading order:

* ``shared_devices``: Shared devices and what jobs ask of them.
* ``shared_placement``: Where sharing jobs go; reservation, negative cache.
* ``co_preemption``: Who makes way together.
"""
