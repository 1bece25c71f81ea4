"""
A history and its replays beside each other: what really happened, how they differ, what cannot be known.

In reading order:

* ``replay``: The replay, with added nodes.
* ``history``: What the log says of the past.
* ``past_runs``: What its runs were worth.
* ``past_outcome``: What really happened, as an outcome.
* ``past_executors``: Runs that go as they went.
* ``score``: One schedule against another.
* ``report``: All that is shown.
* ``change_plot``: The part of the report that loads matplotlib.
"""
