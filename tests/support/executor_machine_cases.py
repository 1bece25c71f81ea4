"""An executor's node as its machine sees it: a log, runs, and facts for both; for tests of what it decides."""

from __future__ import annotations

from penstock_executor import machine
from penstock_executor.machine import Action, AskToStop, KillRun, ReportFact, TerminateRun
from penstock_executor.run_state import LocalRun, NodeObservation, RunProcess
from penstock_log import (
    AnyEvent,
    Device,
    JobCancelled,
    JobSpec,
    JobSubmitted,
    NodeJoined,
    NodeLeaving,
    Placement,
    Preemption,
    RoundDecided,
    RunEnded,
    RunStarted,
    Slot,
)
from penstock_testing import Scenario

FAST = tuple(Device(index=i, kind="fast", memory_bytes=1, backend="emulated") for i in range(2))


class Node:
    """Node n1 with its log and its runs; ``then`` states what it does."""

    def __init__(self) -> None:
        self.log = Scenario(machine.decider())
        self.observed = NodeObservation(incarnation="boot", runs={}, shared={})
        self.now_s = 100.0

    def given(self, *facts: AnyEvent) -> Node:
        self.log.given(*facts)
        return self

    def running(
        self, job_id: str = "j1", epoch: int = 1, *, device: int = 0, ranks: int = 1, world: int = 1
    ) -> LocalRun:
        run = LocalRun(
            job_id=job_id,
            epoch=epoch,
            devices=(device,),
            world_size=max(world, ranks),
            ranks={i: RunProcess() for i in range(ranks)},
            started_s=self.now_s,
            reported={"started"},
        )
        self.observed.runs[run.key] = run
        return run

    def plan(self) -> machine.NodePlan:
        plan = machine.decide(self.log.state, "n1", self.observed, self.now_s)
        assert plan == machine.decide(self.log.state, "n1", self.observed, self.now_s), "deciding changed something"
        return plan

    def then(self, *actions: Action) -> Node:
        assert self.plan().actions == list(actions)
        return self

    def fact(self) -> RunEnded:
        """Return the one fact that it reports: the end of a run."""
        (action,) = self.plan().actions
        assert isinstance(action, ReportFact)
        assert isinstance(action.fact, RunEnded)
        return action.fact


def joined(node_id: str = "n1", incarnation: str = "boot-1") -> NodeJoined:
    return NodeJoined(node_id=node_id, devices=FAST, incarnation=incarnation, at_s=0.0)


def leaving(node_id: str = "n1", reason: str = "shutdown") -> NodeLeaving:
    return NodeLeaving(node_id=node_id, incarnation="boot-1", reason=reason, at_s=4.0)


def submitted(job_id: str = "j1", **spec: object) -> JobSubmitted:
    given = {"name": job_id, "command": ("true",), "grace_s": 5.0, **spec}
    return JobSubmitted(job_id=job_id, spec=JobSpec(**given), at_s=1.0)  # type: ignore[arg-type]


def placed(
    job_id: str = "j1", epoch: int = 1, device: int = 0, nodes: tuple[str, ...] = ("n1",), patience_s: float = 0.0
) -> RoundDecided:
    slots = tuple(Slot(node_id=node_id, devices=(device,)) for node_id in nodes)
    placement = Placement(job_id=job_id, epoch=epoch, kind="fast", slots=slots, patience_s=patience_s)
    return RoundDecided(pool="default", placements=(placement,), at_s=2.0)


def started(job_id: str = "j1", epoch: int = 1, node_id: str = "n1") -> RunStarted:
    return RunStarted(job_id=job_id, epoch=epoch, node_id=node_id, devices=(0,), at_s=3.0)


def ended(job_id: str = "j1", epoch: int = 1, node_id: str = "n1", outcome: str = "completed") -> RunEnded:
    return RunEnded(job_id=job_id, epoch=epoch, node_id=node_id, outcome=outcome, at_s=9.0)  # type: ignore[arg-type]


def preempted(job_id: str = "j1", epoch: int = 1) -> RoundDecided:
    preemption = Preemption(job_id=job_id, epoch=epoch, reason="outranked")
    return RoundDecided(pool="default", preemptions=(preemption,), at_s=4.0)


def cancelled(job_id: str = "j1") -> JobCancelled:
    return JobCancelled(job_id=job_id, by="alice", at_s=5.0)


def lost(node_id: str = "n1") -> RoundDecided:
    return RoundDecided(pool="default", lost_nodes=(node_id,), at_s=6.0)


def ask() -> AskToStop:
    return AskToStop(job_id="j1", epoch=1, ending="preempted")


def term(ending: str) -> TerminateRun:
    return TerminateRun(job_id="j1", epoch=1, ending=ending)  # type: ignore[arg-type]


KILL = KillRun(job_id="j1", epoch=1)
