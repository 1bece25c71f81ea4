"""
Aggregation by shared aggregators: what the log says of it, and what is to be decided next.

In reading order:

* ``aggregation_table``: The fold: agents, aggregators, and runs with their parts and measurements.
* ``aggregator_choice``: Free aggregators of a pool, and which of them a run is given.
* ``assignment_step``: The next decision in a pool: recover, pack, give back, admit, recycle, balance.
* ``aggregation_report``: What people see: loads, losses, and why a run has its aggregators or none.
"""
