"""
Aggregation on a node: its agent, and the aggregators that it runs, which sum up what the ranks of jobs push.

In reading order:

* ``__main__``: ``python -m penstock_aggregator``, the agent.
* ``machine``: Settings, the fold, and which orders an aggregator is still owed. Pure.
* ``runner``: The agent at work.
* ``local_runs``: Runs with processes on this node: who is admitted, and what each is told.
* ``client_listener``: The socket that these processes talk to.
* ``supervisor``: The processes of aggregators: start, orders, liveness, end.
* ``fact_queue``: Facts on their way to the log, in order.
* ``process``: The process of an aggregator, which follows its agent's orders.
* ``rank_connection``: One connection: frames of a rank, or of the aggregator that a part comes from.
* ``parts``: One part: who has joined, who has pushed, what is answered to whom. Pure.
* ``hosted_run``: The parts of a run, and what is measured of them.
* ``turns``: Turns of the runs in a cycle.
* ``part_copy``: The state of a part on its way to another aggregator.
"""
