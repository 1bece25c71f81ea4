"""The orders by name: the published three-job example, ties, and what each order looks at."""

from __future__ import annotations

import math

import numpy as np
import order_oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from order_oracle import columns

from penstock_policies import queue_policies
from penstock_policies.queue_policies import QUEUE_POLICIES, LengthKnowledge
from penstock_policies.ranking import PoolRanking, QueueLadder

GPUS, LENGTHS_S = {"j1": 2, "j2": 1, "j3": 2}, {"j1": 2, "j2": 8, "j3": 6}


def finished(name: str, limits: tuple[float, ...] = (), samples: tuple[float, ...] = ()) -> dict[str, int]:
    """Run the three published jobs on two devices, looking at the order anew each second, and return when each ends."""
    ranking = PoolRanking(QueueLadder(QUEUE_POLICIES[name], limits), LengthKnowledge(limits, samples))
    for job_id, gpus in GPUS.items():
        ranking.add(job_id, gpus=gpus, submitted_s=0.0, length_s=LENGTHS_S[job_id])
    ends: dict[str, int] = {}
    for now_s in range(100):
        for job_id in [job_id for job_id in GPUS if job_id in ranking and ranking[job_id].phase == "running"]:
            ranking.stop(job_id, now_s)
            if ranking[job_id].executed_s >= LENGTHS_S[job_id]:
                ranking.remove(job_id)
                ends[job_id] = now_s
        ranking.settle(now_s)
        free = 2
        for job_id in list(ranking):
            if GPUS[job_id] <= free:
                free -= GPUS[job_id]
                ranking.start(job_id, now_s)
            elif not QUEUE_POLICIES[name].backfills:
                break
    return ends


@pytest.mark.parametrize(
    ("name", "limits", "ends", "average_s"),
    [
        ("srsf", (), (2, 10, 16), 28 / 3),
        ("2d-las", tuple(range(1, 13)), (5, 14, 16), 35 / 3),
        ("2d-gittins", (4.0,), (2, 12, 16), 10),
    ],
)
def test_the_published_three_jobs(name, limits, ends, average_s):
    found = finished(name, limits, samples=(4.0, 8.0, 12.0))
    assert (found["j1"], found["j2"], found["j3"]) == ends
    assert sum(found.values()) / 3 == pytest.approx(average_s)


@pytest.mark.parametrize("name", ["fifo", "fifo-backfill", "srtf", "fewest-gpus", "las"])
def test_every_other_order_finishes_them_too(name):
    found = finished(name, (3.0, 6.0))
    assert found.keys() == GPUS.keys()
    assert max(found.values()) == 16


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("fifo", [0, 1, 2]),
        ("fifo-backfill", [0, 1, 2]),
        ("fewest-gpus", [2, 1, 0]),
        ("srtf", [0, 2, 1]),
        ("srsf", [2, 0, 1]),
        ("las", [2, 0, 1]),
        ("2d-las", [1, 2, 0]),
    ],
)
def test_each_order_looks_at_what_its_name_says(name, first):
    table = columns([4, 2, 1], [0.0, 1.0, 2.0], [6.0, 4.0, 3.0], length_s=[8.0, 19.0, 8.0])
    limits = [4.0] if name == "las" else [10.0]
    assert order_oracle.rank(QUEUE_POLICIES[name], table, limits)[2].tolist() == first


@pytest.mark.parametrize("name", ["srtf", "srsf"])
def test_jobs_of_unknown_length_come_last_and_among_them_the_first_to_come(name):
    table = columns(
        [1, 1, 1], [0.0, 1.0, 2.0], [0.0, 0.0, 0.0], length_s=[queue_policies.UNKNOWN_S, queue_policies.UNKNOWN_S, 1e6]
    )
    assert order_oracle.rank(QUEUE_POLICIES[name], table)[2].tolist() == [2, 0, 1]


@pytest.mark.parametrize("name", sorted(QUEUE_POLICIES))
def test_jobs_that_are_equal_in_all_else_go_by_their_submission(name):
    table = columns([2] * 4, [3.0, 1.0, 2.0, 0.0], [1.0] * 4, length_s=[5.0] * 4)
    assert order_oracle.rank(QUEUE_POLICIES[name], table, [10.0], LengthKnowledge([10.0], [1.0, 7.0]))[2].tolist() == [
        3,
        1,
        2,
        0,
    ]


@given(st.lists(st.floats(0.5, 100.0), max_size=30), st.lists(st.floats(0.0, 120.0), min_size=1, max_size=20))
def test_a_merit_is_finite_the_same_alone_and_in_company_and_1_for_whoever_has_just_entered(samples, attained):
    limits = (4.0, 9.0, 30.0)
    learnt = LengthKnowledge(limits, samples)
    queue = np.searchsorted(limits, attained, side="right").astype(float)
    jobs = columns(np.ones(len(attained)), np.zeros(len(attained)), attained)
    jobs.queue = queue
    found = -order_oracle.merits(learnt, jobs)
    assert np.all(np.isfinite(found) & (found > 0))
    assert found.tolist() == [learnt.merit(float(q), a) for q, a in zip(queue, attained, strict=True)]
    for number, entry in enumerate((0.0, *limits)):
        assert learnt.merit(float(number), entry) == 1.0


@given(st.lists(st.floats(0.5, 100.0), min_size=1, max_size=30), st.floats(0.0, 3.9), st.floats(0.0, 3.9))
def test_within_a_queue_merits_order_jobs_as_the_index_does(samples, one, other):
    limits = (4.0,)
    learnt = LengthKnowledge(limits, samples)
    index = queue_policies.gittins.index(samples, [one, other], limits[0])
    merits = (learnt.merit(0.0, one), learnt.merit(0.0, other))
    if not math.isclose(index[0], index[1], rel_tol=1e-9):
        assert (merits[0] > merits[1]) == (index[0] > index[1])
