"""A sweep on a small cluster that does as it likes: whatever happens, every trial comes to one end, on free devices."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st
from tuner_facts import node, random_spec

from penstock_log import (
    Budget,
    Job,
    JobState,
    JobSubmitted,
    Placement,
    Preemption,
    RoundDecided,
    RunEnded,
    RunStarted,
    Slot,
    SweepFinished,
    SweepSubmitted,
    TrialFinished,
    TrialGroupOpened,
)
from penstock_testing import Scenario
from penstock_tuner.machine import decider, submission
from sweeps import examples


class World:
    """A gateway, a matcher and an executor, each doing one thing at a time."""

    def __init__(self, devices: int, search: str, packing: int) -> None:
        self.devices = range(devices)
        self.now_s = 0.0
        self.tuner = Scenario(decider()).given(node("n1", *"a" * devices))
        spec = random_spec(4, search=search, budget=Budget(most=4, eta=2), max_gpus=devices, packing=packing)
        self.said = self.tuner.given(SweepSubmitted(at_s=0.0, sweep_id="s1", spec=spec)).settle()

    @property
    def running(self) -> list[Job]:
        return [job for job in self.tuner.state.jobs if job.placement is not None]

    def step(self, choice: int) -> None:
        """Do one of the things that can be done, and let the tuner say what it makes of it."""
        self.now_s += 1.0 + choice % 7
        acts = [*map(self.accept, list(self.tuner.state.unaccepted)[:1]), *self.places(), *self.ends()]
        if acts:
            self.tuner.given(*acts[choice % len(acts)])
        self.said += self.tuner.at(self.now_s).settle()

    def accept(self, job_id: str) -> list[object]:
        return [JobSubmitted(at_s=self.now_s, job_id=job_id, spec=submission(self.tuner.state, job_id))]

    def places(self) -> list[list[object]]:
        """Return what the matcher could place, as it really would: nobody on devices that are not his."""
        found = []
        for job in self.tuner.state.jobs:
            if job.state is JobState.PENDING and (devices := self.room(job)):
                slots = (Slot(node_id="n1", devices=devices),)
                placement = Placement(job_id=job.id, epoch=job.epoch + 1, kind="a", slots=slots)
                about = {"at_s": self.now_s, "job_id": job.id, "epoch": job.epoch + 1, "node_id": "n1"}
                decided = RoundDecided(at_s=self.now_s, pool="default", placements=(placement,))
                found.append([decided, RunStarted(devices=devices, **about)])
        return found

    def room(self, job: Job) -> tuple[int, ...]:
        on = self.on()
        if job.spec.sharing == "lane":
            for index, there in on.items():
                if all(other.spec.sharing == "lane" for other in there) and len(there) < job.spec.sharers:
                    return (index,)
        free = [index for index in self.devices if index not in on]
        return tuple(free[: job.spec.gpus]) if len(free) >= job.spec.gpus else ()

    def on(self) -> dict[int, list[Job]]:
        found: defaultdict[int, list[Job]] = defaultdict(list)
        for job in self.running:
            for index in job.placement.slots[0].devices:
                found[index].append(job)
        return dict(found)

    def ends(self) -> list[list[object]]:
        """Return the ends of runs; those that are to be of another width are preempted."""
        found = []
        for job in self.running:
            moves = job.demand is not None
            about = {"job_id": job.id, "epoch": job.epoch, "node_id": "n1", "at_s": self.now_s, "saves": True}
            loop = {"loop_s": 0.9 * (self.now_s - job.started_s), "loop_steps": 5}
            end = RunEnded(outcome="preempted" if moves else "completed", metrics={"acc": self.now_s}, **about, **loop)
            preemption = Preemption(job_id=job.id, epoch=job.epoch)
            decided = RoundDecided(at_s=self.now_s, pool="default", preemptions=(preemption,) if moves else ())
            found.append([decided, end])
        return found


@settings(max_examples=examples(10))
@given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=20),
    st.integers(1, 4),
    st.sampled_from(["random", "halving", "hyperband", "asha"]),
    st.integers(1, 3),
)
def test_every_trial_comes_to_one_end_and_no_device_has_more_jobs_than_it_may(choices, devices, search, packing):
    world = World(devices, search, packing)
    for turn in range(200):
        if not world.tuner.state.sweeps:
            break
        world.step(choices[turn % len(choices)])
        for there in world.on().values():
            assert len(there) == 1 or all(len(there) <= job.spec.sharers <= packing for job in there)
    assert [type(fact) for fact in world.said].count(SweepFinished) == 1
    opened = [trial.job_id for fact in world.said if isinstance(fact, TrialGroupOpened) for trial in fact.trials]
    assert sorted(opened) == sorted(fact.job_id for fact in world.said if isinstance(fact, TrialFinished))
    assert world.tuner.state.grants.of_job == {}
    assert world.tuner.state.grants.jobs_on == {}
