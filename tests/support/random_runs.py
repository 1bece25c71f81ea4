"""Histories of runs as services might write them, at random: shared devices, gangs, losses, rewinds and resizes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock_log import (
    AnyEvent,
    Demand,
    JobCancelled,
    JobSpec,
    JobSubmitted,
    JobTimedOut,
    JobUnblocked,
    Placement,
    Preemption,
    RoundDecided,
    RunCheckpointed,
    RunEnded,
    RunRewound,
    RunStarted,
    ScaleDecided,
    Slot,
)

T0 = 1_700_000_000.0
NODES = ("n1", "n2")
DEVICES = 2


class RandomRuns:
    """
    A cluster that does something at random each time.

    Parameters
    ----------
    rng : numpy.random.Generator
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng, self._now_s = rng, T0
        self._specs: dict[str, JobSpec] = {}
        self._epochs: dict[str, int] = {}
        self._gpus: dict[str, int] = {}
        self._over: set[str] = set()
        self._failures: defaultdict[str, int] = defaultdict(int)
        self._open: dict[str, dict[str, bool]] = {}
        """Job → nodes that it still holds, and whether it has started there."""
        self._slots: dict[str, tuple[Slot, ...]] = {}
        self._steps: defaultdict[str, int] = defaultdict(int)
        self._begun: dict[str, int] = {}
        self._saved: dict[str, tuple[int, int]] = {}
        self._outcomes: defaultdict[str, set[str]] = defaultdict(set)
        self._blocked: set[str] = set()
        self._timed_out: set[str] = set()

    def facts(self, count: int) -> Iterator[AnyEvent]:
        """Yield facts in the order of their times."""
        for _ in range(count):
            self._now_s += float(self._rng.exponential(5000.0 if self._rng.random() < 0.05 else 20.0))
            yield from self._act()

    def _act(self) -> Iterator[AnyEvent]:
        actions = (self._submit, self._place, self._place, self._start, self._start, self._save, self._end, self._end)
        rare = (self._lose, self._cancel, self._resize, self._time_out, self._unblock, self._unblock)
        chosen = rare if self._rng.random() < 0.1 else actions
        yield from chosen[self._rng.integers(len(chosen))]()

    def _at_s(self) -> float:
        self._now_s += 0.01
        return self._now_s

    def _one(self, names: Any) -> str:
        known = sorted(names)
        return known[self._rng.integers(len(known))] if known else ""

    def _submit(self) -> Iterator[AnyEvent]:
        job_id = f"j{len(self._specs)}"
        sharing: Any = self._one(("exclusive", "lane", "fraction"))
        gpus = 1 if sharing == "fraction" else int(self._rng.integers(1, 4))
        spec = JobSpec(
            id=job_id,
            name="r",
            command=("x",),
            gpus=gpus,
            user=f"u{self._rng.integers(3)}",
            sharing=sharing,
            fraction=0.25 if sharing == "fraction" else 0.0,
            retries=int(self._rng.integers(3)),
            begin_s=self._now_s + float(self._rng.exponential(200.0)) if self._rng.random() < 0.2 else 0.0,
            after=("after:j0",) if self._specs and self._rng.random() < 0.2 else (),
        )
        if spec.after:
            self._blocked.add(job_id)
        self._specs[job_id], self._epochs[job_id], self._gpus[job_id] = spec, 0, gpus
        yield JobSubmitted(at_s=self._at_s(), job_id=job_id, spec=spec)

    def _place(self) -> Iterator[AnyEvent]:
        job_id = self._one(self._specs.keys() - self._open.keys() - self._over - self._blocked)
        if not job_id or self._specs[job_id].begin_s > self._now_s:
            return
        sharing = self._specs[job_id].sharing
        taken = {
            (slot.node_id, index): self._specs[other].sharing
            for other, nodes in self._open.items()
            for slot in self._slots[other]
            for index in slot.devices
            if slot.node_id in nodes
        }
        fits = [
            (node, index)
            for node in NODES
            for index in range(DEVICES)
            if taken.get((node, index)) in ({None} if sharing == "exclusive" else {None, sharing})
        ]
        if len(fits) < self._gpus[job_id]:
            return
        chosen = sorted(fits[i] for i in self._rng.permutation(len(fits))[: self._gpus[job_id]])
        nodes = sorted({node for node, _ in chosen})
        slots = tuple(Slot(node_id=node, devices=tuple(i for at, i in chosen if at == node)) for node in nodes)
        self._epochs[job_id] += 1
        self._slots[job_id], self._open[job_id] = slots, dict.fromkeys(nodes, False)
        placement = Placement(job_id=job_id, epoch=self._epochs[job_id], kind=self._one(("fast", "slow")), slots=slots)
        yield RoundDecided(at_s=self._at_s(), pool="default", placements=(placement,))

    def _start(self) -> Iterator[AnyEvent]:
        job_id = self._one(job_id for job_id, nodes in self._open.items() if not all(nodes.values()))
        if not job_id:
            return
        nodes, epoch = self._open[job_id], self._epochs[job_id]
        node = self._one(node for node, started in nodes.items() if not started)
        step, generation = self._saved.get(job_id, (0, 0))
        if not any(nodes.values()) and not self._outcomes[job_id]:
            if step and self._rng.random() < 0.3:
                back = int(self._rng.integers(step + 1))
                lost: dict[str, Any] = {"lost_step": step, "lost_generation": generation}
                kept = 1 if back else 0
                yield RunRewound(
                    at_s=self._at_s(), job_id=job_id, epoch=epoch, node_id=node, step=back, generation=kept, **lost
                )
                self._saved[job_id] = (back, kept)
                step = back
            self._begun[job_id] = self._steps[job_id] = step
        nodes[node] = True
        devices = next(slot.devices for slot in self._slots[job_id] if slot.node_id == node)
        begun = self._begun.get(job_id, 0)
        yield RunStarted(
            at_s=self._at_s(), job_id=job_id, epoch=epoch, node_id=node, devices=devices, resumed_step=begun
        )

    def _save(self) -> Iterator[AnyEvent]:
        job_id = self._one(job_id for job_id, nodes in self._open.items() if any(nodes.values()))
        if not job_id or self._specs[job_id].sharing == "fraction":
            return
        self._steps[job_id] += int(self._rng.integers(1, 50))
        node = self._one(node for node, started in self._open[job_id].items() if started)
        self._saved[job_id] = (self._steps[job_id], self._epochs[job_id])
        yield RunCheckpointed(
            at_s=self._at_s(), job_id=job_id, epoch=self._epochs[job_id], node_id=node, step=self._steps[job_id]
        )

    def _end(self) -> Iterator[AnyEvent]:
        job_id = self._one(job_id for job_id, nodes in self._open.items() if any(nodes.values()))
        if not job_id:
            return
        node = self._one(node for node, started in self._open[job_id].items() if started)
        outcome: Any = self._one(("completed", "failed", "preempted", "preempted"))
        if outcome == "preempted" and job_id not in self._timed_out:
            preemption = Preemption(job_id=job_id, epoch=self._epochs[job_id], reason="order")
            yield RoundDecided(at_s=self._at_s(), pool="default", preemptions=(preemption,))
        ended: dict[str, Any] = {"steps": 0}
        if self._specs[job_id].sharing != "fraction":
            self._steps[job_id] += int(self._rng.integers(0, 30))
            loop_steps = self._steps[job_id] - self._begun.get(job_id, 0)
            loop_s = float(self._rng.exponential(30.0)) if loop_steps else 0.0
            ended = {"steps": self._steps[job_id], "loop_steps": loop_steps, "loop_s": loop_s}
            saves = job_id in self._timed_out and bool(self._rng.random() < 0.5)
            ended |= {"waited_s": float(self._rng.exponential(5.0)), "saves": saves}
        yield RunEnded(
            at_s=self._at_s(), job_id=job_id, epoch=self._epochs[job_id], node_id=node, outcome=outcome, **ended
        )
        self._leave(job_id, node, outcome)

    def _leave(self, job_id: str, node: str, outcome: str) -> None:
        self._outcomes[job_id].add(outcome)
        del self._open[job_id][node]
        if self._open[job_id]:
            return
        del self._open[job_id]
        outcomes = self._outcomes.pop(job_id)
        self._failures[job_id] += "failed" in outcomes and "lost" not in outcomes
        failed = "failed" in outcomes and "lost" not in outcomes
        if (
            job_id in self._timed_out
            or outcomes == {"completed"}
            or (failed and self._failures[job_id] > self._specs[job_id].retries)
        ):
            self._over.add(job_id)

    def _lose(self) -> Iterator[AnyEvent]:
        node = self._one(NODES)
        yield RoundDecided(at_s=self._at_s(), pool="default", lost_nodes=(node,))
        for job_id in [job_id for job_id, nodes in self._open.items() if node in nodes]:
            self._leave(job_id, node, "lost")

    def _cancel(self) -> Iterator[AnyEvent]:
        job_id = self._one(self._specs.keys() - self._open.keys() - self._over)
        if job_id:
            self._over.add(job_id)
            if self._rng.random() < 0.3:
                yield JobTimedOut(at_s=self._at_s(), job_id=job_id, limit_s=1.0, executed_s=1.0)
            else:
                yield JobCancelled(at_s=self._at_s(), job_id=job_id)

    def _time_out(self) -> Iterator[AnyEvent]:
        job_id = self._one(self._open.keys() - self._timed_out)
        if job_id:
            self._timed_out.add(job_id)
            yield JobTimedOut(at_s=self._at_s(), job_id=job_id, limit_s=1.0, executed_s=1.0)

    def _unblock(self) -> Iterator[AnyEvent]:
        job_id = self._one(self._blocked - self._over)
        if job_id:
            self._blocked.discard(job_id)
            yield JobUnblocked(at_s=self._at_s(), job_id=job_id, met=("j0",))

    def _resize(self) -> Iterator[AnyEvent]:
        job_id = self._one(self._specs.keys() - self._open.keys() - self._over)
        if not job_id or self._specs[job_id].sharing != "exclusive":
            return
        gpus = int(self._rng.integers(1, 4))
        demand = Demand(job_id=job_id, epoch=self._epochs[job_id], gpus=gpus)
        self._gpus[job_id] = gpus
        self._epochs[job_id] += 1
        yield ScaleDecided(at_s=self._at_s(), pool="default", demands=(demand,))
