"""Sweeps as people see them: their rungs, the best so far, how long still, and what became of the devices."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from penstock_events import Job, Trial, workload
from penstock_events.views import GoodputView, RungView, SweepsView, SweepView, TrialView
from penstock_gateway.show import Scene
from penstock_gateway.sweeps import Sweep, TrialRow
from penstock_policies import search
from penstock_policies.search.spending import Account, Use, account


def sweep(scene: Scene, sweep: Sweep, *, whole: bool = True) -> SweepView:
    """Return one sweep, with its runs, rungs and goodput, or without them."""
    finished, best, plan = sweep.finished, sweep.best, _plan(sweep)
    rows = list(sweep.trials.values())
    counted = [row for row in rows if not row.retried]
    failed = sorted((row for row in counted if row.failed), key=lambda row: row.ended_s)
    spent = _account(scene, sweep, rows) if whole else None
    end_s = finished.at_s if finished is not None else max(scene.now_s, sweep.submitted_s)
    return SweepView(
        id=sweep.id,
        name=sweep.spec.name,
        state=sweep.state,
        metric=sweep.spec.metric,
        mode=sweep.spec.mode,
        submitted_s=sweep.submitted_s,
        finished_s=finished.at_s if finished is not None else None,
        wanted=plan.runs if plan is not None else 0,
        done=sum(row.finished is not None for row in counted),
        opened=len({row.trial.number if row.trial.budget else row.trial.job_id for row in counted}),
        best_job_id=best.trial.job_id if best is not None else "",
        best_value=best.value if best is not None else None,
        reason=finished.reason if finished is not None else "",
        eta_s=_eta_s(scene, sweep, plan),
        failed=len(failed),
        failed_promotions=sum(bool(row.trial.origin) for row in failed),
        first_failed=failed[0].trial.job_id if failed else "",
        first_error=failed[0].error if failed else "",
        trials=tuple(_trials(scene, rows)) if whole else (),
        rungs=tuple(_rungs(sweep, counted)) if whole else (),
        goodput=_goodput(spent) if spent is not None else None,
        makespan_s=end_s - sweep.submitted_s,
        target_s=_since(sweep, spent.target_s if spent is not None else None),
        utilisation=_utilisation(scene, sweep, spent) if spent is not None else None,
        spec=sweep.spec,
    )


def sweeps(scene: Scene) -> SweepsView:
    """Return all sweeps without their trials."""
    return SweepsView(
        sweeps=tuple(sweep(scene, one, whole=False) for one in scene.state.sweeps.values()), seq=scene.seq
    )


def _plan(sweep: Sweep) -> search.Plan | None:
    try:
        return search.planned(sweep.spec)
    except search.BadSpace:  # it was accepted by a gateway that knew more searches
        return None


def _eta_s(scene: Scene, sweep: Sweep, plan: search.Plan | None) -> float | None:
    """Return the seconds that are left if what is left goes as fast as what is done: starting runs, and training."""
    over = [row for row in sweep.trials.values() if row.finished is not None and not row.retried]
    done = sum(_work(sweep, row) for row in over)
    if plan is None or not done or sweep.finished is not None:
        return None
    training_s = sum(row.spent.loop_gpu_s for row in over)
    starting_s = sum(row.spent.held_gpu_s for row in over) - training_s
    if training_s + starting_s > 0:
        whole_s = starting_s * plan.runs / len(over) + training_s * plan.work / done
        left = whole_s / (training_s + starting_s) - 1.0
    else:
        left = plan.work / done - 1.0
    return max(0.0, (scene.now_s - sweep.submitted_s) * left)


def _work(sweep: Sweep, row: TrialRow) -> int:
    if not row.trial.budget:
        return 1
    origin = sweep.trials.get(row.trial.origin)
    return row.trial.budget - (origin.trial.budget if origin is not None else 0)


def _trials(scene: Scene, rows: Iterable[TrialRow]) -> Iterable[TrialView]:
    rows = list(rows)
    origins = {row.trial.origin for row in rows}
    for row in rows:
        trial, finished, job = row.trial, row.finished, scene.state.jobs.get(row.trial.job_id)
        yield TrialView(
            job_id=trial.job_id,
            params=trial.params,
            gpus=job.spec.gpus if job is not None else trial.gpus,
            packed=_packed(job, trial),
            group=row.group,
            state=str(job.state) if job is not None else "",
            value=finished.value if finished is not None else None,
            number=trial.number,
            bracket=trial.bracket,
            rung=trial.rung,
            budget=trial.budget,
            promoted=trial.job_id in origins,
            problem=finished.problem if finished is not None else "",
            reason=row.error,
        )


def _packed(job: Job | None, trial: Trial) -> int:
    """Return how many trials may be on its device: as it was opened with, or was moved to since."""
    if job is None:
        return trial.packed
    return max(1, job.spec.sharers) if job.spec.sharing == "lane" else 1


def _rungs(sweep: Sweep, rows: list[TrialRow]) -> Iterable[RungView]:
    """Yield the groups of a search that stops early, bracket by bracket."""
    origins = {row.trial.origin for row in rows}
    better = max if sweep.spec.mode == "max" else min
    for bracket, rung in sorted({(row.trial.bracket, row.trial.rung) for row in rows if row.trial.budget}):
        of = [row for row in rows if (row.trial.bracket, row.trial.rung) == (bracket, rung)]
        values = [row.value for row in of if row.value is not None]
        yield RungView(
            bracket=bracket,
            rung=rung,
            budget=of[0].trial.budget,
            opened=len(of),
            over=sum(row.finished is not None for row in of),
            promoted=sum(row.trial.job_id in origins for row in of),
            best_value=better(values, default=None),
        )


def _account(scene: Scene, sweep: Sweep, rows: list[TrialRow]) -> Account:
    """Return what the devices were held for, the profiler's samples of its workload included."""
    uses = [_use(scene, row) for row in rows]
    ids = scene.state.samples.get(workload.key(sweep.spec.job), ())
    end_s = sweep.finished.at_s if sweep.finished is not None else scene.now_s
    samples = [job for job in map(scene.state.jobs.get, ids) if job is not None]
    sampled_s = [job.executed_s for job in samples if sweep.submitted_s <= job.submitted_s <= end_s]
    return account(uses, sweep.spec.mode, target=sweep.spec.target, profile_gpu_s=sum(sampled_s))


def _use(scene: Scene, row: TrialRow) -> Use:
    finished, job = row.finished, scene.state.jobs.get(row.trial.job_id)
    spent = row.spent
    if finished is None and job is not None and job.started_s:
        held_gpu_s = row.devices * max(0.0, job.served_by(scene.now_s) - row.served_s)
        spent = replace(spent, held_gpu_s=spent.held_gpu_s + held_gpu_s)
    return Use(
        key=row.trial.job_id,
        origin=row.trial.origin,
        budget=row.trial.budget,
        ended_s=finished.at_s if finished is not None else None,
        value=row.value,
        spent=spent,
    )


def _goodput(spent: Account) -> GoodputView:
    names = (name for name in GoodputView.__struct_fields__)
    return GoodputView(**{name: getattr(spent, name) for name in names})


def _since(sweep: Sweep, at_s: float | None) -> float | None:
    return None if at_s is None else max(0.0, at_s - sweep.submitted_s)


def _utilisation(scene: Scene, sweep: Sweep, spent: Account) -> float | None:
    there_gpu_s = sweep.there_by_gpu_s(scene.now_s)
    return min(1.0, (spent.allocated_gpu_s + spent.running_gpu_s) / there_gpu_s) if there_gpu_s else None
