"""
The gateway: takes commands, answers queries, and says why.

In reading order:

* ``__main__``: ``python -m penstock_gateway``.
* ``machine``: Settings, state, apply, decide.
* ``job_history``: A job's past and its sizes.
* ``sweep_table``: Sweeps as the log has them.
* ``acceptance``: What people may do: rules of all commands.
* ``commands``: Commands, by request and by inbox.
* ``queries``: Queries, and what is heard outside of the log.
* ``views``: From the read model to views.
* ``why``: Why a job waits, what is ruled out, when it may start.
* ``dry_run``: What would happen to a job.
* ``job_fit``: A job against the nodes there are.
* ``story``: One job's life.
* ``log_reader``: Looking back in the log.
* ``endpoints``: Bodies in, answers and error codes out.
* ``runner``: The gateway on a bus.
"""
