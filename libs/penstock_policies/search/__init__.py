"""
What a sweep tries next: which points of its space, each for how long, and which of them go on.

Two questions with two answers. A *sampler* (:mod:`.space`) says which new points are tried; a *driver*
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

from penstock_policies.search.algorithms import ALGORITHMS as ALGORITHMS
from penstock_policies.search.algorithms import Algorithm as Algorithm
from penstock_policies.search.algorithms import algorithm as algorithm
from penstock_policies.search.algorithms import check as check
from penstock_policies.search.algorithms import next_runs as next_runs
from penstock_policies.search.drivers import SearchPlan as SearchPlan
from penstock_policies.search.drivers import limit as limit
from penstock_policies.search.drivers import planned as planned
from penstock_policies.search.runs import Params as Params
from penstock_policies.search.runs import RunHistory as RunHistory
from penstock_policies.search.runs import TriedRun as TriedRun
from penstock_policies.search.runs import WantedRun as WantedRun
from penstock_policies.search.space import MOST_TRIALS as MOST_TRIALS
from penstock_policies.search.space import BadSpace as BadSpace
from penstock_policies.search.space import NotInstalled as NotInstalled
from penstock_policies.search.space import points as points
from penstock_policies.search.space import size as size
