"""
The matcher: who runs where, who is preempted for it, and why the others wait.

In reading order:

* ``machine``: Settings, state, apply, decide; a round is ``penstock_scheduler.round``.
* ``liveness``: Which nodes are alive, and which heartbeats are answered.
* ``__main__``: The matcher on a bus, with the nodes' heartbeats.
"""
