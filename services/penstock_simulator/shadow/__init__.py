"""
A shadow: the production ranker and matcher under another policy, beside a live cluster and never in its way.

In reading order:

* ``plan``: The plan of a shadow, and its settings.
* ``shadow_follower``: A cluster that follows the log of another one and decides for itself.
* ``live_work``: The work that the live log tells of.
* ``runner``: A shadow on a bus.
* ``shadow_score``: A shadow against what really happened.
* ``__main__``: ``python -m penstock_simulator.shadow``.
"""
