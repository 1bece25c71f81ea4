"""
The aggregation agent: runs its node's aggregators, and speaks for the runs with processes there.

In reading order:

* ``__main__``: ``python -m penstock_aggregator``.
* ``machine``: Settings, the fold, and which orders an aggregator is still owed. Pure.
* ``runner``: The agent at work.
* ``local_runs``: Runs with processes on this node: who is admitted, and what each is told.
* ``client_listener``: The socket that these processes talk to.
* ``supervisor``: The processes of aggregators: start, orders, liveness, end.
* ``fact_queue``: Facts on their way to the log, in order.
"""
