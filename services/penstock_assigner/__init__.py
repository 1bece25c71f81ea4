"""
The assigner: which part of which run is on which aggregator.

In reading order:

* ``machine``: State, apply, decide.
* ``__main__``: The assigner on a bus.
"""
