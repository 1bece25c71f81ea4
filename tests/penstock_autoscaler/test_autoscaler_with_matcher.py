"""Ranker, autoscaler and matcher on one log, and executors that do as they are told."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from scaling_facts import LINEAR, elastic, fixed, job, node, scaled

from penstock_autoscaler import machine as autoscaler
from penstock_log import (
    AnyEvent,
    Demand,
    JobSpec,
    JobState,
    RoundDecided,
    RunCheckpointed,
    RunEnded,
    RunStarted,
    ScaleDecided,
    Slot,
)
from penstock_matcher import machine as matcher
from penstock_ranker import machine as ranker
from penstock_scheduler.sizing.problem import SizingSettings
from penstock_testing import Scenario


class Together:
    """A cluster of one node; time passes only when a test says so, and a run takes 1 s to start and 1 s to stop."""

    def __init__(self, devices: int, **settings: Any) -> None:
        self.sizes = Scenario(autoscaler.decider(SizingSettings(**settings)))
        self.services: list[Scenario[Any]] = [Scenario(ranker.decider()), self.sizes, Scenario(matcher.decider())]
        self.now_s = 1.0
        self.demands: list[Demand] = []
        self.reasons: Counter[str] = Counter()
        self.tell(node(fast=devices), scaled(elastic()))

    def tell(self, *facts: AnyEvent) -> None:
        for fact in facts:
            if isinstance(fact, ScaleDecided):
                self.demands += fact.demands
                self.reasons[fact.because] += 1
            for service in self.services:
                service.given(fact)

    def submit(self, job_id: str, spec: JobSpec | None = None) -> None:
        self.tell(job(job_id, spec, self.now_s))
        self.settle()

    def end(self, job_id: str) -> None:
        for node_id in sorted(self.sizes.state.jobs[job_id].open_nodes):
            self._ended(job_id, node_id, "completed")
        self.settle()

    def wait(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while (next_s := self._next_s()) < until_s:
            self.now_s = max(self.now_s, next_s)
            self.settle()
        self.now_s = until_s
        self.settle()

    def _next_s(self) -> float:
        wakes = [service.at(self.now_s).decision().wake_at_s for service in self.services]
        return min([at_s for at_s in wakes if at_s is not None and at_s > self.now_s], default=float("inf"))

    def settle(self) -> None:
        """Let everybody decide and executors act until nobody does any more."""
        for _ in range(60):
            facts = self._decided()
            self.tell(*facts)
            acts = self._acts()
            self.tell(*acts)
            if not facts and not acts:
                return
        raise AssertionError("they never come to rest")

    def _decided(self) -> list[AnyEvent]:
        for service in self.services:
            proposals = service.at(self.now_s).decision().proposals
            if proposals and not self._only_explains(proposals[0].facts):
                return list(proposals[0].facts)
        return []

    @staticmethod
    def _only_explains(facts: tuple[AnyEvent, ...]) -> bool:
        return all(isinstance(fact, RoundDecided) and not fact.placements and not fact.preemptions for fact in facts)

    def _acts(self) -> list[AnyEvent]:
        for each in list(self.sizes.state.jobs):
            if each.placement is not None and each.state is JobState.PREEMPTING:
                self.now_s += 1.0
                self._ended(each.id, each.placement.slots[0].node_id, "preempted")
            elif each.placement is not None and not each.started_s:
                self.now_s += 1.0
                return [fact for slot in each.placement.slots for fact in self._starts(each.id, each.epoch, slot)]
        return []

    def _starts(self, job_id: str, epoch: int, slot: Slot) -> list[AnyEvent]:
        of = {"at_s": self.now_s, "job_id": job_id, "epoch": epoch, "node_id": slot.node_id}
        step = self.sizes.state.jobs[job_id].checkpoint_step + 10
        return [RunStarted(devices=slot.devices, **of), RunCheckpointed(step=step, **of)]

    def _ended(self, job_id: str, node_id: str, outcome: Any) -> None:
        found = self.sizes.state.jobs[job_id]
        did = {"steps": found.checkpoint_step, "loop_steps": 10, "loop_s": 1.0, "saves": True, "batch_size": 64}
        of = {"at_s": self.now_s, "job_id": job_id, "epoch": found.epoch, "node_id": node_id}
        self.tell(RunEnded(outcome=outcome, **of, **did))

    def width(self, job_id: str) -> int:
        """How many devices a job runs on; 0 where it does not."""
        found = self.sizes.state.jobs.get(job_id)
        if found is None or found.placement is None or not found.started_s:
            return 0
        return sum(len(slot.devices) for slot in found.placement.slots)


@pytest.mark.slow
def test_a_job_grows_when_the_others_end_and_shrinks_when_one_comes() -> None:
    it = Together(4)
    for number in range(3):
        it.submit(f"f{number}", fixed())
    it.submit("a")
    assert it.width("a") == 1
    for number in range(3):
        it.wait(60.0)
        it.end(f"f{number}")
    assert it.width("a") == 4
    it.wait(60.0)
    it.submit("b")
    assert (it.width("a"), it.width("b")) == (2, 2)
    it.wait(60.0)
    it.end("b")
    assert it.width("a") == 4
    before = len(it.demands)
    it.wait(1_000.0)
    assert len(it.demands) == before
    assert sum(demand.job_id == "a" for demand in it.demands) <= 6  # first size, three times more, down, up


def test_a_fixed_gang_gets_its_devices_from_a_job_that_can_do_with_fewer() -> None:
    it = Together(4)
    it.submit("a")
    it.wait(60.0)
    assert it.width("a") == 4
    it.submit("g", fixed(3))
    assert (it.width("a"), it.width("g")) == (1, 3)
    it.wait(60.0)
    it.end("g")
    assert it.width("a") == 4


@pytest.mark.slow
def test_jobs_that_come_together_settle_without_moving_anybody_twice() -> None:
    it = Together(8)
    for number in range(4):
        it.submit(f"e{number}")
        it.wait(1.0)
    it.wait(120.0)
    assert [it.width(f"e{number}") for number in range(4)] == [2, 2, 2, 2]
    moved = Counter(demand.job_id for demand in it.demands)
    assert max(moved.values()) <= 4
    before = len(it.demands)
    it.wait(2_000.0)
    assert len(it.demands) == before


def test_noise_in_what_is_measured_moves_nobody() -> None:
    it = Together(4)
    it.submit("a")
    it.submit("b")
    it.wait(60.0)
    before = len(it.demands)
    for number in range(8):
        noisy = {gpus: time_s * (1.01 if (gpus + number) % 2 else 0.99) for gpus, time_s in LINEAR.items()}
        it.tell(scaled(elastic(), it.now_s, noisy))
        it.wait(30.0)
    assert len(it.demands) == before


def test_a_job_waits_in_vain_for_a_profile_no_longer_than_is_set() -> None:
    it = Together(4)
    it.submit("a", elastic(command=("python", "unseen.py")))
    assert it.width("a") == 0
    it.wait(9.0)
    assert it.width("a") == 1
    assert it.reasons["arrival"] == 1
