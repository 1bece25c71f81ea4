"""Short words for the facts that scenarios of aggregation are made of."""

from __future__ import annotations

from typing import Any

from fact_factories import ended, placed, submitted

from penstock_assigner import machine
from penstock_log import (
    AggregationAsked,
    AggregationAssigned,
    AggregationMeasured,
    AggregatorEnded,
    AggregatorsOffered,
    AggregatorStarted,
    AggregatorUnreachable,
    AnyEvent,
    Device,
    NodeJoined,
    PartMoved,
    RoundDecided,
)
from penstock_log.aggregation_facts import node_of
from penstock_scheduler.aggregation.aggregation_table import AggregationRun
from penstock_scheduler.aggregation.assignment_step import AssignerSettings
from penstock_testing import Scenario

MIB = 1 << 20

__all__ = ["ended", "placed", "submitted"]


class AssignerScenario(Scenario[machine.AssignerState]):
    """The assigner, and agents that make true what it decides."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(machine.decider(AssignerSettings(**settings)))

    def run(self, job_id: str) -> AggregationRun:
        """Return a run that is not over."""
        return self.state.table.runs[job_id]

    def where(self, job_id: str) -> list[str]:
        """Return the aggregator of each part of a job's run."""
        return [one.aggregator for one in self.run(job_id).placed]

    def nodes(self, **most: int) -> AssignerScenario:
        """Add nodes, each with an agent that runs so many aggregators at most."""
        for node_id, count in most.items():
            self.given(node(node_id), offered(node_id, count))
        return self

    def runs(self, job_id: str, *, nodes: tuple[str, ...] = ("n1",), **asks: Any) -> AssignerScenario:
        """Add a job that runs on these nodes and asks for aggregation."""
        self.given(submitted(job_id), placed(job_id, nodes=nodes), asked(job_id, nodes=nodes, **asks))
        return self

    def measure(
        self, job_id: str, iteration_s: float, cost_s: float, steps: int = 100, held_s: float = 0.0
    ) -> AssignerScenario:
        """Have all aggregators of a run measure it; each part costs the same."""
        for fact in measured(self.run(job_id), iteration_s, cost_s, steps, held_s):
            self.given(fact)
        return self

    def copy_all(self) -> AssignerScenario:
        """Have all parts arrive that are on their way."""
        for run in list(self.state.table.runs.values()):
            self.given(*arrivals(run))
        return self

    def start_all(self) -> AssignerScenario:
        """Have all aggregators run that are to."""
        waiting = [name for name, one in self.state.table.aggregators.items() if one.serves and not one.started_s]
        self.given(*map(running, waiting))
        return self

    def packed(self, job_id: str, iteration_s: float = 1.0, cost_s: float = 0.1, **asks: Any) -> AssignerScenario:
        """Add a job that is measured and packed."""
        self.runs(job_id, **asks)
        self.settle()
        self.start_all()
        self.measure(job_id, iteration_s, cost_s, steps=20)
        self.settle()
        self.copy_all()
        self.settle()
        return self

    def assigned(self, facts: list[AnyEvent]) -> list[AggregationAssigned]:
        """Return the assignments among facts."""
        return [fact for fact in facts if isinstance(fact, AggregationAssigned)]


def node(node_id: str, at_s: float = 0.0) -> NodeJoined:
    device = Device(index=0, kind="fast", memory_bytes=1 << 30, backend="emulated")
    return NodeJoined(at_s=at_s, node_id=node_id, devices=(device,), incarnation="i")


def offered(node_id: str, most: int = 1, incarnation: str = "a") -> AggregatorsOffered:
    return AggregatorsOffered(at_s=0.0, node_id=node_id, pool="default", most=most, incarnation=incarnation)


def asked(
    job_id: str, *, epoch: int = 1, parts: int = 2, nodes: tuple[str, ...] = ("n1",), **more: Any
) -> AggregationAsked:
    fields: dict[str, Any] = {"world_size": 2, "parts": (MIB,) * parts, **more}
    return AggregationAsked(
        at_s=0.0, node_id=nodes[0], job_id=job_id, epoch=epoch, pool="default", nodes=nodes, **fields
    )


def measured(
    run: AggregationRun, iteration_s: float, cost_s: float, steps: int = 100, held_s: float = 0.0
) -> list[AggregationMeasured]:
    """What all aggregators of a run measure."""
    return [
        AggregationMeasured(
            at_s=1.0,
            node_id=node_of(name),
            aggregator=name,
            job_id=run.job_id,
            epoch=run.epoch,
            generation=run.generation,
            steps=steps,
            iteration_s=iteration_s,
            costs_s={one.part: cost_s for one in run.placed if one.aggregator == name},
            held_s=held_s,
        )
        for name in run.aggregators
    ]


def arrivals(run: AggregationRun) -> list[PartMoved]:
    """Copies of a run that are whole now."""
    return [
        PartMoved(
            at_s=2.0,
            node_id=node_of(run.placed[part].aggregator),
            aggregator=run.placed[part].aggregator,
            before=before,
            job_id=run.job_id,
            epoch=run.epoch,
            part=part,
            generation=run.placed[part].generation,
            step=7,
            copied_bytes=run.parts[part],
            pause_s=0.02,
        )
        for part, before in enumerate(run.sources)
        if before
    ]


def running(name: str) -> AggregatorStarted:
    return AggregatorStarted(at_s=0.5, node_id=node_of(name), aggregator=name, incarnation="a")


def gone(name: str, why: str = "killed", at_s: float = 3.0) -> AggregatorEnded:
    return AggregatorEnded(at_s=at_s, node_id=node_of(name), aggregator=name, why=why)


def unreachable(name: str, job_id: str, generation: int, node_id: str = "n1") -> AggregatorUnreachable:
    return AggregatorUnreachable(
        at_s=3.0, node_id=node_id, aggregator=name, job_id=job_id, epoch=1, generation=generation, reason="timed out"
    )


def lost(*node_ids: str) -> RoundDecided:
    return RoundDecided(at_s=4.0, pool="default", lost_nodes=node_ids)
