"""
The autoscaler: how many devices and which batch size each elastic job has.

In reading order:

* ``machine``: Settings, state, apply, decide.
* ``__main__``: The autoscaler on a bus.
"""
