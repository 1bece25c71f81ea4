"""Gangs in the matcher's rounds: how far they are from the best of all schedules."""

from __future__ import annotations

import numpy as np
from gang_cases import gang_instance, least_total
from gang_rounds import total_of_rounds


def test_half_of_what_the_matchers_rounds_make_of_gangs_is_near_the_best_of_all():
    ratios = []
    for seed in range(20):
        p, gpus, ready = gang_instance(seed, 4)
        ratios.append(total_of_rounds(p, gpus, ready, unit_s=60.0) / least_total(p, gpus, ready))
    assert min(ratios) > 0.999
    assert np.median(ratios) < 1.2  # in docs/matching.md stands how far the worst are
    assert np.mean(ratios) < 1.4
