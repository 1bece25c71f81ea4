"""
Aggregators: processes that sum up what the ranks of jobs push.

In reading order:

* ``process``: The process of an aggregator, which follows its agent's orders.
* ``rank_connection``: One connection: frames of a rank, or of the aggregator that a part comes from.
* ``parts``: One part: who has joined, who has pushed, what is answered to whom. Pure.
* ``hosted_run``: The parts of a run, and what is measured of them.
* ``turns``: Turns of the runs in a cycle.
* ``part_copy``: The state of a part on its way to another aggregator.
"""
