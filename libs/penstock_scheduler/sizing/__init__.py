"""
How many devices each elastic job of a pool gets, of which kind, and with which batch size: one decision.

In reading order:

* ``problem``: What a decision takes and gives.
* ``pool_sizes``: A pool as a decision sees it.
* ``decision``: One decision, from admission to reasons.
* ``kind_search``: On which kind each job goes.
* ``smallest_size``: The smallest size that holds a job's smallest batch.
"""
