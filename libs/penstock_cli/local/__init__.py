"""
What ``penstock up`` is made of: the folder's lock and record, the children, and waiting until all are ready.

In reading order:

* ``supervisor``: ``penstock up``: the server and all services as children, kept running until told to stop.
* ``service_template``: The process that services are forked from.
* ``data_folder``: The data folder: its lock, its record, its options.
* ``node_processes``: ``penstock node start``: the executor of a machine that has joined, and its memory agent.
* ``lane_bench``: What turns cost on this machine.
* ``memory_bench``: What borrowed memory is worth on this machine.
"""
