"""
A shadow: the production ranker and matcher under another policy, beside a live cluster and never in its way.

In reading order:

* ``plan``: What a shadow is, and its settings.
* ``shadow_follower``: The cluster that goes its own way.
* ``live_work``: The work that the live log tells of.
* ``runner``: A shadow on a bus.
* ``shadow_score``: What it is worth.
* ``__main__``: ``python -m penstock_simulator.shadow``.
"""
