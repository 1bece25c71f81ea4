"""
AlloX: which waiting job runs on which machine, and how many run after it there, for the least sum of completion times.

Running the ``k``-th from last on a machine that is busy until ``w``, a job of length ``p`` adds ``w + k p`` to that sum
(every job behind it waits ``p`` longer). So the best schedule is an assignment of jobs to (machine, place) pairs.
:func:`assign` solves it exactly and proves it; :class:`KeptMatching` keeps the solution as jobs come and go;
:func:`warm` loads the compiled kernels ahead, and ``KERNELS`` says whether they are there. Numba, which takes most of a
second, loads with the first compiled kernel.

In reading order:

* ``solver``: The exact matching, kept as jobs come and go, and its proof.
* ``flow``: The flow that all of them work on: levels instead of machines.
* ``shortest_paths``: The exact part.
* ``start_prices``: Prices to begin with.
* ``matching_warmup``: The program that compiles the kernels ahead.

References
----------
Le et al., AlloX: Compute allocation in hybrid clusters, EuroSys 2020, section 4.
"""

from penstock_policies.matching.flow import KERNELS as KERNELS
from penstock_policies.matching.flow import UNFIT as UNFIT
from penstock_policies.matching.solver import KeptMatching as KeptMatching
from penstock_policies.matching.solver import MatchedSchedule as MatchedSchedule
from penstock_policies.matching.solver import assign as assign
from penstock_policies.matching.solver import warm as warm

Assignment = MatchedSchedule
"""The name under which the result of `assign` was published."""
