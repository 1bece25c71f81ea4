"""
What ``penstock up`` is made of: the folder's lock and record, the children, and waiting until all are ready.

In reading order:

* ``supervisor``: ``penstock up``: the server and all services as children, kept running until told to stop.
* ``service_template``: The process that services are forked from.
* ``configuration_check``: Everything that is wrong with ``penstock.toml`` and the environment, before they are used.
* ``data_folder``: The data folder: its lock, its record, its options.
* ``node_processes``: ``penstock node start``: the executor of a machine that has joined, and its memory agent.
* ``lane_bench``: What turns cost on this machine.
* ``bench_services``: What the benches share: a NATS server of their own, and the environment of services.
* ``memory_bench``: What borrowed memory is worth on this machine.
* ``aggregation_bench``: What shared aggregation gives on this machine, and what it costs.
* ``aggregation_worker``: A process of the jobs of that bench.
"""
