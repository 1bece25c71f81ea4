"""
The executors of a replay: their runs go as the runs of the history went.

Each run of a replay takes the turn of a run of the history
(:meth:`penstock_simulator.replay.past_runs.PastTask.take`). Its processes start, and iterate, after the same time; it
reports checkpoints and memory as long after its placement; and if it ends in the same way, its end says what the past
run's end said.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final, cast

import msgspec

from penstock_log import (
    TERMINAL,
    JobCancelled,
    Outcome,
    Placement,
    Preemption,
    RunCheckpointed,
    RunEnded,
    RunMeasured,
    subjects,
)
from penstock_simulator.engine.engine import EventEngine
from penstock_simulator.engine.executors import VirtualExecutors, followed_jobs
from penstock_simulator.engine.tasks import VirtualRun
from penstock_simulator.replay.past_runs import PastAttempt, PastRunLedger, PastTask

_NEAR_S: Final = 0.25
_IDENTITY: Final = ("at_s", "epoch", "node_id")
"""What the end of a run says of which run it is."""
_NEEDS: Final = ("saves", "batch_size", "peak_memory_bytes", "skew")
"""What a run needs does not depend on how it ends."""
_ABOUT: Final = 1.1
"""What a run is taken to have done more, at most, than was reckoned: its node was lost before it could say."""


class PastExecutors(VirtualExecutors):
    """Executors whose runs go as those of a history went, by its ledger."""

    def __init__(self, engine: EventEngine, *, ledger: PastRunLedger, **parts: Any) -> None:
        super().__init__(engine, **parts)
        self._ledger, self._jobs = ledger, followed_jobs(engine)
        self._placed_s: dict[str, float] = {}
        self.tasks.update({task.id: task for task in ledger.others})

    # --- the beginning of a run
    def _place(self, placement: Placement) -> None:
        _past(self.tasks[placement.job_id]).take()
        self._placed_s[placement.job_id] = self._engine.now_s
        super()._place(placement)

    def _pace(self, task: Any, kind: str) -> float:
        job = self._jobs[task.id]
        return self._ledger.per_s(_past(task), kind, job.size)

    def _launch_s(self, run: VirtualRun) -> float:
        attempt = _past(run.task).attempt
        if attempt is None:
            return run.task.starting_s
        return attempt.run.held_s if attempt.run.refused else attempt.launch_s

    def _start(self, run: VirtualRun) -> None:
        attempt = _past(run.task).attempt
        if attempt is not None and attempt.run.refused:
            self._refuse(run, attempt)
            return
        before_s = run.begins_s
        super()._start(run)
        if attempt is not None and math.isinf(before_s) and math.isfinite(run.begins_s):
            placed_s = self._placed_s[run.task.id]
            for fact in attempt.run.facts:
                at_s = placed_s + max(0.0, fact.at_s - attempt.run.placed_s)
                self._event_queue.at(max(at_s, self._engine.now_s), self._repeat, run, attempt, fact)

    def _refuse(self, run: VirtualRun, attempt: PastAttempt) -> None:
        """End a run of which no process is started, as its executor did."""
        if not self._is_on(run) or run.asked:
            return
        run.done_s = 0.0
        task = _past(run.task)
        failed = attempt.run.outcome == "failed"
        if failed and task.failures:
            task.failures.pop(0)
        for node_id in [node_id for node_id in run.open if node_id not in self.down_s]:
            self._end(run, node_id, attempt.run.outcome)

    def _repeat(self, run: VirtualRun, attempt: PastAttempt, fact: RunCheckpointed | RunMeasured) -> None:
        """Report of a run what was reported of its past run."""
        if not self._is_on(run) or not run.open:
            return
        now_s, task, node_id = self._engine.now_s, run.task, next(iter(run.open))
        repeated: RunCheckpointed | RunMeasured
        if isinstance(fact, RunCheckpointed):
            begun = task.kept_s if not run.halted else task.kept_s - run.done_s
            step = max(0, fact.step - attempt.run.resumed_step) + task.steps(max(0.0, begun))
            repeated = msgspec.structs.replace(fact, at_s=now_s, epoch=run.epoch, node_id=node_id, step=step)
        else:
            repeated = msgspec.structs.replace(fact, at_s=now_s, epoch=run.epoch, node_id=node_id)
        self._append(subjects.run(task.id), repeated, f"executor/{node_id}")

    # --- its end
    def _complete(self, run: VirtualRun) -> None:
        task = _past(run.task)
        if not self._is_on(run) or run.halted:
            return
        if task.cut and not task.failures:
            run.done_s, task.kept_s = task.work_s - task.kept_s, task.work_s
            self.cancel(JobCancelled(at_s=self._engine.now_s, job_id=task.id))
            return
        super()._complete(run)

    def _preempt(self, preemption: Preemption) -> None:
        run = self.runs.get(preemption.job_id)
        if run is None or run.asked or run.epoch != preemption.epoch or not self._ends_anyway(run):
            super()._preempt(preemption)

    def _ends_anyway(self, run: VirtualRun) -> bool:
        """Say whether a run is so near its end that it comes to it before it stops, as that of the history did."""
        attempt = _past(run.task).attempt
        if attempt is None or not attempt.run.asked_s or attempt.run.outcome not in {"completed", "failed"}:
            return False
        if run.halted or math.isinf(run.begins_s):
            return False
        now_s, task = self._engine.now_s, run.task
        left_s = max(0.0, run.begins_s - now_s) + (task.next_s - task.kept_s - run.worked_s(now_s)) / run.speed
        return left_s <= _NEAR_S + attempt.run.ended_s - attempt.run.asked_s

    def _stop_s(self, run: VirtualRun) -> float:
        attempt = _past(run.task).attempt
        if attempt is not None and attempt.run.asked_s and attempt.run.stop_s:
            return attempt.run.stop_s
        return self.costs.stop_s

    def _halt(self, run: VirtualRun, now_s: float, *, saved: bool) -> None:
        task = _past(run.task)
        kept, attempt = task.kept_s, task.attempt
        super()._halt(run, now_s, saved=saved)
        if saved and task.saves and attempt is not None and attempt.run.outcome == "preempted" and attempt.worked:
            share = min(1.0, max(0.0, (attempt.kept - attempt.begun) / attempt.worked))  # its last save was earlier
            task.lost_s += (1.0 - share) * run.done_s
            task.kept_s = kept + share * run.done_s
        if saved or not task.saves or attempt is None or attempt.run.outcome != "lost":
            return
        near = kept + _ABOUT * run.done_s  # it had saved what that of the history had, if it came as far
        task.lost_s += task.kept_s
        task.kept_s = min(near, max(kept, attempt.kept))
        task.lost_s -= task.kept_s

    def _ended(self, run: VirtualRun, node_id: str, outcome: Outcome, reason: str) -> RunEnded:
        now, task, attempt = super()._ended(run, node_id, outcome, reason), _past(run.task), _past(run.task).attempt
        if task.unit == "seconds":
            now = msgspec.structs.replace(now, loop_steps=0, loop_s=0.0)
        past = attempt.run.end_on(node_id, list(run.open).index(node_id)) if attempt is not None else None
        if attempt is None or past is None:
            return now
        share = min(1.0, run.done_s / attempt.worked) if attempt.worked and run.done_s == run.done_s else 0.0
        own = {"loop_s": past.loop_s * share} | ({"samples": round(task.kept_s)} if task.unit == "samples" else {})
        if past.outcome != outcome:
            return _with(now, past, _NEEDS, **own)
        if outcome != "preempted":
            return _with(past, now, _IDENTITY)
        counted = [name for name in ("steps", "loop_steps") if getattr(past, name)]
        return _with(past, now, (*_IDENTITY, *counted), **own, reason=reason or past.reason)

    def _conclude(self, run: VirtualRun, now_s: float) -> None:
        task = _past(run.task)
        super()._conclude(run, now_s)
        if run.outcome == "failed":
            task.failed, task.placed = task.failed + 1, 0
        job = self._jobs.get(task.id)
        if job is not None and job.state in TERMINAL and not task.over:  # it has failed for good
            self._note_over(task)


def _past(task: Any) -> PastTask:
    return cast("PastTask", task)


def _with(end: RunEnded, other: RunEnded, names: Iterable[str], **values: Any) -> RunEnded:
    """Return a run's end with some fields of another one's, and with further values."""
    return msgspec.structs.replace(end, **{name: getattr(other, name) for name in names}, **values)
