"""
The accounts of a job's runs, folded from facts: what usage, timelines and metrics are drawn from.

:class:`JobAccount` has the last runs of one job as :class:`~penstock_log.usage.RunAccount`, and sums by day of those
before. :class:`LaneGrants` says who shares which device, so that a device that several lanes hold counts once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec

from penstock_log import TERMINAL, Event, Job, RunEnded, RunStarted, Slot
from penstock_log.usage import RunAccount, RunReport, Usage, by_day, total, usage
from penstock_log.views import RunView

MOST_RUNS: Final = 100
"""Runs of a job that are kept one by one."""
_NOBODY: Final[AbstractSet[str]] = frozenset()


class LaneGrants(msgspec.Struct):
    """
    The devices that are granted to lanes.

    Attributes
    ----------
    by_device : dict of str to list of str
        Device, as ``node/index`` → ids of the jobs that hold it.
    """

    by_device: dict[str, list[str]] = msgspec.field(default_factory=dict)

    def move(self, job_id: str, held: Iterable[Slot], left: Iterable[Slot] = ()) -> set[str]:
        """Note what a job holds from now on, and what it holds no more; return the others whose part that changes."""
        changed: set[str] = set()
        for device in _devices(left):
            there = self.by_device.get(device, [])
            if job_id in there:
                there.remove(job_id)
                changed.update(there)
                if not there:
                    del self.by_device[device]
        for device in _devices(held):
            there = self.by_device.setdefault(device, [])
            if job_id not in there:
                there.append(job_id)
                changed.update(there)
        changed.discard(job_id)
        return changed

    def part(self, slots: Iterable[Slot]) -> float:
        """Return how many devices a job holds that shares these."""
        return sum(1.0 / max(1, len(self.by_device.get(device, ()))) for device in _devices(slots))


class JobAccount(msgspec.Struct, kw_only=True, omit_defaults=True):
    """
    The runs of one job.

    Attributes
    ----------
    runs : list of RunAccount
        The last ones; the very last is what the job waits for, holds, or held when it ended.
    measured : bool
        Whether a run has shown iterations.
    left_out : int
        Runs before those of which only sums are kept.
    before : dict of str to dict of str to Usage
        Kind → UTC day, such as ``2026-01-31`` → sums over them.
    lanes : bool
        Whether the present run shares its devices in lanes.
    """

    runs: list[RunAccount] = msgspec.field(default_factory=list)
    measured: bool = False
    left_out: int = 0
    before: dict[str, dict[str, Usage]] = msgspec.field(default_factory=dict)
    lanes: bool = False

    def note(self, job: Job, event: Event, grants: LaneGrants) -> AbstractSet[str]:
        """
        Note a fact that changed the job.

        Returns
        -------
        set of str
            Other jobs whose part of their devices it changes: of each, :meth:`divide` is due.
        """
        if not self.runs:
            self._wait(job, job.submitted_s)
        run, beside = self.runs[-1], _NOBODY
        if run.is_over:
            pass
        elif run.is_granted:
            beside = self._note_run(run, job, event, grants)
        elif job.placement is None:
            self._note_wait(run, job, event.at_s)
        if run.is_over and run is self.runs[-1] and job.state not in TERMINAL:
            self._wait(job, run.ended_s)
        if job.placement is not None and not self.runs[-1].is_granted:
            beside = beside | self._grant(job, event.at_s, grants)
        return beside

    def divide(self, at_s: float, job: Job, grants: LaneGrants) -> None:
        """Note that others have come to the devices of the present run, or have left them."""
        run = self.runs[-1]
        if self.lanes and run.is_granted and not run.is_over:
            run.hold(at_s, grants.part(_open_slots(job, run)))

    def days(self, *, counts: bool) -> Iterator[tuple[str, str, Usage]]:
        """Yield UTC day, kind and usage of a job that is over; ``counts`` as for :func:`penstock_log.usage.usage`."""
        for kind, of_kind in self.before.items():
            yield from ((day, kind, found) for day, found in of_kind.items())
        for run in self.runs:
            for day, found in by_day(run, measured=self.measured, counts=counts):
                yield day, run.kind, found

    def leave(self, job_id: str, grants: LaneGrants) -> AbstractSet[str]:
        """Give up the devices of a job that is to be forgotten; return the jobs whose part that changes."""
        run = self.runs[-1] if self.runs else None
        return grants.move(job_id, (), run.slots) if run is not None and self.lanes and not run.is_over else _NOBODY

    def views(self, now_s: float, report: RunReport | None) -> list[RunView]:
        """Return the kept runs, oldest first; ``report`` is of the one that goes on."""
        return [
            RunView(
                pending_s=run.waits_from(now_s),
                epoch=run.epoch,
                granted_s=run.granted_s or None,
                started_s=run.started_s or None,
                ended_s=run.ended_s if run.is_over else None,
                kind=run.kind,
                devices=tuple(f"{slot.node_id}/{run.kind}{index}" for slot in run.slots for index in slot.devices),
                outcome=run.outcome,
                start=run.start,
                begun_step=run.begun_step,
                end_step=run.end_step if run.is_over else 0,
                usage=usage(run, now_s, measured=self.measured, report=None if run.is_over else report),
            )
            for run in self.runs
        ]

    def sums(self, runs: Iterable[RunView]) -> Usage:
        """Return the usage of all runs: of these, and of those before them of which only sums are kept."""
        return total(
            [*(found for days in self.before.values() for found in days.values()), *(run.usage for run in runs)]
        )

    def _wait(self, job: Job, at_s: float) -> None:
        if len(self.runs) >= MOST_RUNS:
            self._leave_out(self.runs.pop(0), counts=job.sample is None)
        is_first = not self.runs and not self.left_out
        self.runs.append(
            RunAccount(pending_s=at_s, asked=_asked(job), is_first=is_first, eligible_s=job.eligible_s),
        )

    def _leave_out(self, run: RunAccount, *, counts: bool) -> None:
        of_kind = self.before.setdefault(run.kind, {})
        for day, sums in by_day(run, measured=self.measured, counts=counts):
            of_kind.setdefault(day, Usage()).add(sums)
        self.left_out += 1

    def _note_wait(self, run: RunAccount, job: Job, at_s: float) -> None:
        """Note when the job can begin; close an account without a grant if it is over, or asks for another size."""
        run.eligible_s = job.eligible_s
        if job.state in TERMINAL:
            run.ended_s, run.outcome = max(at_s, run.pending_s), "failed" if job.state.name == "FAILED" else "cancelled"
        elif run.asked != _asked(job):
            run.ended_s, run.outcome = max(at_s, run.pending_s), "resized"
            self._wait(job, run.ended_s)

    def _grant(self, job: Job, at_s: float, grants: LaneGrants) -> AbstractSet[str]:
        placement, run = job.placement, self.runs[-1]
        assert placement is not None  # noqa: S101 - it is granted
        run.epoch, run.kind, run.slots = placement.epoch, placement.kind, placement.slots
        run.granted_s, self.lanes = max(at_s, run.pending_s), job.spec.sharing == "lane"
        beside = grants.move(job.id, run.slots) if self.lanes else _NOBODY
        run.hold(run.granted_s, self._part(job, run.slots, grants))
        return beside

    def _note_run(self, run: RunAccount, job: Job, event: Event, grants: LaneGrants) -> AbstractSet[str]:
        """Note what a fact says of the present run."""
        if isinstance(event, RunEnded) and event.epoch == run.epoch:
            self._note_end(run, event)
        if isinstance(event, RunStarted) and event.epoch == run.epoch:
            run.start = event.start or run.start
        is_whole = job.placement is not None and job.placement.epoch == run.epoch
        if not is_whole or len(job.open_nodes) < len(run.slots):
            beside = self._leave_devices(run, job, event.at_s, grants)
        else:
            beside = _NOBODY
        if job.started_s and not run.is_over and (not run.started_s or run.begun_step != job.resumed_step):
            run.started_s = run.started_s or max(job.started_s, run.granted_s)
            run.begun_step = run.end_step = run.kept_step = job.resumed_step
            self._do_again(job.resumed_step)
        return beside

    def _do_again(self, step: int) -> None:
        """Note that the present run goes on after a step: what earlier ones did behind it is done again."""
        started = [run for run in self.runs[:-1] if run.started_s]
        if started:  # which may have kept more than the log said until now
            last = started[-1]
            last.kept_step = max(last.kept_step, min(step, last.end_step))
        for run in started:
            run.kept_step = min(run.kept_step, max(step, run.begun_step))

    def _note_end(self, run: RunAccount, event: RunEnded) -> None:
        """Note what the end of a run on one of its nodes says."""
        run.loop_s = max(run.loop_s or 0.0, event.loop_s)  # of a gang, the node of its first process says so
        run.waited_s = max(run.waited_s, event.waited_s)
        run.loop_steps = max(run.loop_steps, event.loop_steps)
        run.end_step = max(run.end_step, event.steps, run.begun_step + run.loop_steps)
        run.saves |= event.saves
        self.measured |= run.loop_steps > 0

    def _leave_devices(self, run: RunAccount, job: Job, at_s: float, grants: LaneGrants) -> AbstractSet[str]:
        """Note which devices the present run holds no more; it ends with the last of them."""
        open_slots = _open_slots(job, run)
        gone = [slot for slot in run.slots if slot not in open_slots]
        beside: AbstractSet[str] = grants.move(job.id, (), gone) if self.lanes and gone else _NOBODY
        if open_slots:
            if gone:
                run.hold(at_s, self._part(job, open_slots, grants))
            return beside
        run.ended_s = max(at_s, run.parts[-1][0], run.started_s)  # clocks differ
        run.outcome = job.run_outcome if job.placement is None else "lost"  # a round has placed it anew meanwhile
        self._keep_steps(job, run)
        return beside

    def _keep_steps(self, job: Job, run: RunAccount) -> None:
        saved_step, until_saved_s = max(run.begun_step, job.checkpoint_step), job.checkpointed_s - run.started_s
        if run.loop_s is None and run.started_s and saved_step > run.begun_step and until_saved_s > 0:
            # its node was lost: it went on as fast as before its last checkpoint, as far as is known
            ran_s = max(until_saved_s, run.ended_s - run.started_s)
            run.end_step = run.begun_step + round((saved_step - run.begun_step) * ran_s / until_saved_s)
        run.end_step = max(run.end_step, run.begun_step)
        stopped = run.outcome in {"preempted", "timed_out"} and run.saves
        kept = run.outcome in {"completed", "cancelled"} or stopped
        run.kept_step = run.end_step if kept else min(run.end_step, saved_step)

    def _part(self, job: Job, slots: tuple[Slot, ...], grants: LaneGrants) -> float:
        if self.lanes:
            return grants.part(slots)
        devices = float(sum(len(slot.devices) for slot in slots))
        return devices * job.spec.fraction if job.spec.sharing == "fraction" else devices


def _devices(slots: Iterable[Slot]) -> Iterator[str]:
    return (f"{slot.node_id}/{index}" for slot in slots for index in slot.devices)


def _open_slots(job: Job, run: RunAccount) -> tuple[Slot, ...]:
    """Return the devices of a run that its job has not left."""
    if job.placement is None or job.placement.epoch != run.epoch:
        return ()
    return tuple(slot for slot in run.slots if slot.node_id in job.open_nodes)


def _asked(job: Job) -> float:
    return job.spec.gpus * (job.spec.fraction if job.spec.sharing == "fraction" else 1.0)
