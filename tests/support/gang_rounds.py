"""What the rounds that the matcher runs make of an instance with gangs, on a clock that jumps from event to event."""

from __future__ import annotations

import math
from heapq import heappop, heappush

from penstock_log import (
    Device,
    Event,
    JobRank,
    JobSpec,
    JobsRanked,
    JobSubmitted,
    JobTable,
    KindSpeed,
    NodeJoined,
    Placement,
    RunEnded,
    RunStarted,
    WorkloadProfiled,
)
from penstock_scheduler.pool.scheduler_state import SchedulerState, fold
from penstock_scheduler.round import decide_pool
from penstock_scheduler.round_types import RoundRules

RULES = RoundRules(alpha=1.0)


def total_of_rounds(p, gpus, ready, unit_s=1.0):
    """
    Return the sum of completion times, in the instance's units of ``unit_s`` seconds.

    Lengths are declared and speeds known; jobs come by rising GPU-time on the kind where that is least. A machine that
    is busy at first runs a job of its own until it is free.
    """
    return _Rounds(p, gpus, ready, unit_s).run()


class _Rounds:
    def __init__(self, p, gpus, ready, unit_s):
        self.known, self.jobs, self.seq = SchedulerState(), JobTable(), 0
        self.p, self.unit_s, self.now_s, self.ends, self.total_s = p, unit_s, 0.0, [], 0.0
        for kind, times in enumerate(ready):
            devices = tuple(
                Device(index=i, kind=str(kind), memory_bytes=8, backend="emulated") for i in range(len(times))
            )
            self.tell(NodeJoined(node_id=str(kind), at_s=0.0, devices=devices))
        fillers = [(kind, int(until)) for kind, times in enumerate(ready) for until in times if until > 0]
        for number, (kind, until) in enumerate(fillers):
            self.submit(f"busy-{number}-{until}", kinds=(str(kind),), duration_s=until * unit_s)
        self.round()
        order = (p * gpus[:, None]).min(axis=1).argsort(kind="stable").tolist()
        for job in order:
            own = [float(p[job].min() / length) for length in p[job]]
            fields = {"model": f"m{job}", "gpus": int(gpus[job]), "duration_s": float(p[job].min()) * unit_s}
            self.submit(f"job-{job}", **fields)
            speeds = tuple(KindSpeed(kind=str(t), iteration_s=1 / speed, speed=speed) for t, speed in enumerate(own))
            key = self.known.keys[f"job-{job}"]
            self.tell(WorkloadProfiled(key=key, at_s=0.0, speeds=speeds))
        ranks = tuple(JobRank(job_id=f"job-{job}", queue=0, position=float(place)) for place, job in enumerate(order))
        self.tell(JobsRanked(pool="default", at_s=0.0, ranks=ranks))

    def run(self):
        while True:
            wake_s = self.round()
            if not self.ends:
                assert not any(self.known.live.values()), "a job waits beside idle devices"
                return self.total_s / self.unit_s
            if wake_s < self.ends[0][0]:
                self.now_s = max(self.now_s, wake_s)
                continue
            self.now_s, job_id = heappop(self.ends)
            self.tell(
                RunEnded(job_id=job_id, epoch=1, node_id=self.kind_of(job_id), outcome="completed", at_s=self.now_s)
            )
            if job_id.startswith("job-"):
                self.total_s += self.now_s

    def round(self):
        """Decide until nothing changes; return when to decide again."""
        wake_s = math.inf
        for _ in range(20):
            found, wake_s = decide_pool(self.known.pool("default", self.jobs), self.now_s, RULES)
            reserved = self.known.history.reservations.get("default", {})
            if found is None or not (found.placements or found.keeps != reserved):
                break
            self.tell(found)
            for placement in found.placements:
                self.start(placement)
        return wake_s

    def start(self, placement: Placement):
        (slot,) = placement.slots
        name, epoch = placement.job_id, placement.epoch
        self.tell(RunStarted(job_id=name, epoch=epoch, node_id=slot.node_id, devices=slot.devices, at_s=self.now_s))
        what, number, *until = name.split("-")
        length = int(until[0]) if what == "busy" else int(self.p[int(number), int(placement.kind)])
        heappush(self.ends, (self.now_s + length * self.unit_s, name))

    def kind_of(self, job_id):
        return self.jobs[job_id].placement.kind

    def submit(self, job_id, **fields):
        spec = JobSpec(**{"name": "j", "command": ("true",), "profile": "off", "id": job_id, **fields})
        self.tell(JobSubmitted(job_id=job_id, at_s=self.now_s, spec=spec))

    def tell(self, event: Event):
        self.seq += 1
        fold(self.known, self.jobs, event)
