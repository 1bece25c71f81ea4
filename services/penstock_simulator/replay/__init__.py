"""
A history and its replays beside each other: what really happened, how they differ, what cannot be known.

In reading order:

* ``replay``: A history once more, under the same or another policy, with added nodes.
* ``history``: What the log says of the past.
* ``past_runs``: The runs of a history as work for a simulation.
* ``past_outcome``: What really happened, as an outcome.
* ``past_executors``: The executors of a replay: their runs go as past runs went.
* ``score``: One schedule against another.
* ``report``: All that is shown of a replay.
* ``change_plot``: The part of the report that loads matplotlib.
"""
