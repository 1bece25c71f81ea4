"""
How many identical jobs a device admits: by the rule in the Salus paper, by the rule in its code, and by ours.

Yu and Chowdhury, Salus: Fine-Grained GPU Sharing Primitives for Deep Learning Applications, MLSys 2020; algorithm 1,
and ``lanemgr.cpp`` and ``tfinstance.cpp`` of the published code (Apache-2.0), restated here.
"""

from __future__ import annotations

from penstock_sharing.lanes import DeviceLanes, LaneRules, MemoryNeed

MIB = 2**20
CAPACITY = 15_981 * MIB
P, E = round(60.4 * MIB), 993 * MIB
NEED = MemoryNeed(P, 0, E)


def by_the_paper() -> tuple[int, int]:
    """Open a lane while that is safe, then join the best-fitting one; return jobs and lanes."""
    jobs = lanes = 0
    while True:
        if (jobs + 1) * P + (lanes + 1) * E <= CAPACITY:
            lanes += 1
        elif (jobs + 1) * P + lanes * E > CAPACITY:
            return jobs, lanes
        jobs += 1


def by_the_code() -> tuple[int, int]:
    """A lane holds its jobs' persistent memory too, with 10 % added to that and 5 % to all; return jobs and lanes."""
    persistent = int(P * 1.1)
    lane_size = int((persistent + E) * 1.05)
    free, left_in_lanes = CAPACITY, []
    jobs = 0
    while True:
        roomy = [at for at, left in enumerate(left_in_lanes) if persistent + E <= left]
        if free >= lane_size:
            free -= lane_size
            left_in_lanes.append(lane_size - persistent)
        elif roomy:
            left_in_lanes[roomy[0]] -= persistent
        else:
            return jobs, len(left_in_lanes)
        jobs += 1


def ours(jobs: int, rules: LaneRules) -> tuple[int, int]:
    """Let jobs come one by one; return those inside, and lanes."""
    device = DeviceLanes(CAPACITY, rules=rules)
    for at in range(jobs):
        device.arrive(f"j{at}", NEED, 0.0)
    return sum(len(lane.members) for lane in device.lanes), len(device.lanes)


def test_the_rule_of_the_paper_admits_17_jobs_in_15_lanes():
    assert by_the_paper() == (17, 15)


def test_the_rule_of_the_code_admits_14_jobs_in_14_lanes():
    assert by_the_code() == (14, 14)


def test_without_merging_ours_admits_what_the_paper_does():
    assert ours(40, LaneRules(merges=False)) == (17, 15)


def test_ours_has_as_many_lanes_as_the_paper_while_its_jobs_fit():
    assert ours(17, LaneRules()) == (17, 15)
    assert ours(18, LaneRules()) == (18, 14)


def test_ours_admits_as_many_as_one_lane_holds():
    assert (CAPACITY - E) // P == 248
    assert ours(260, LaneRules()) == (248, 1)


def test_jobs_that_wait_together_share_lanes_so_that_all_of_them_get_in():
    device = DeviceLanes(CAPACITY)
    device.arrive("whole", MemoryNeed(CAPACITY, 0, 0), 0.0)
    for at in range(100):
        device.arrive(f"j{at}", NEED, 0.0)
    assert len(device.waiting) == 100
    device.finish("whole", 1.0)
    lanes = len(device.lanes)
    assert not device.waiting
    assert lanes == (CAPACITY - 100 * P) // E == 10
