"""
What a sweep tries next: which points of its space, each for how long, and which of them go on.

Two questions with two answers. A *sampler* (:mod:`.samplers`) says which new points are tried; a *driver*
(:mod:`.drivers`) says when, in which groups, with which budget, and who is promoted. :mod:`.algorithms` joins them
under the names that people write: ``tpe``, ``hyperband``, ``bohb`` … All are pure functions of the specification and of
what was tried, so a tuner that takes over from another goes on with the same trials.

In reading order:

* ``algorithms``: Searches by name.
* ``drivers``: Which runs are opened next, and who goes on.
* ``runs``: Runs, rungs, and what became of their device time.
* ``space``: The space and its samplers.
* ``optuna_bridge``: The part that loads Optuna.
"""

from penstock_policies.search.algorithms import ALGORITHMS, Algorithm, algorithm, check, next_runs
from penstock_policies.search.drivers import SearchPlan, planned
from penstock_policies.search.runs import Params, RunHistory, TriedRun, WantedRun
from penstock_policies.search.space import MOST_TRIALS, BadSpace, NotInstalled, points, size

__all__ = [
    "ALGORITHMS",
    "MOST_TRIALS",
    "Algorithm",
    "BadSpace",
    "NotInstalled",
    "Params",
    "RunHistory",
    "SearchPlan",
    "TriedRun",
    "WantedRun",
    "algorithm",
    "check",
    "next_runs",
    "planned",
    "points",
    "size",
]
