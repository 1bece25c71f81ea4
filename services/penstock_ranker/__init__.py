"""
The ranker: which job comes first, by what it has used so far and never by how long it will take.

In reading order:

* ``machine``: Settings, rankings, state, apply, decide.
* ``__main__``: The ranker on a bus.
"""
