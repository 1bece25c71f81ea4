"""What came of a sweep's trials, as they end, and as a study that Optuna can plot."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from typing import TYPE_CHECKING, Any, Literal, assert_never

from penstock_bus import Bus
from penstock_events import (
    Choice,
    Dimension,
    Integers,
    SweepFinished,
    Trial,
    TrialFinished,
    TrialGroupOpened,
    TrialRetried,
    Uniform,
    subjects,
    views,
)

if TYPE_CHECKING:
    import optuna


class Tuning:
    """
    A sweep that is being submitted: awaited, it is the gateway's answer; iterated over, its results as they come.

    It is submitted once, however often it is awaited.
    """

    def __init__(
        self,
        submitting: Coroutine[Any, Any, views.SubmitAnswer],
        results: Callable[[str], AsyncIterator[views.TrialView]],
    ) -> None:
        self._submitting, self._results = submitting, results
        self._answer: views.SubmitAnswer | None = None

    def __await__(self) -> Generator[Any, Any, views.SubmitAnswer]:
        if self._answer is None:
            self._answer = yield from self._submitting.__await__()
        return self._answer

    async def __aiter__(self) -> AsyncIterator[views.TrialView]:
        answer = await self
        async for result in self._results(answer.id):
            yield result


async def results(bus: Bus, sweep_id: str) -> AsyncIterator[views.TrialView]:
    """Yield each run of a sweep's trials when it is over, from the sweep's beginning to its end."""
    opened: dict[str, tuple[int, Trial]] = {}
    async for delivery in bus.follow(subjects=[subjects.sweep(sweep_id)]):
        for fact in delivery.commit.facts:
            match fact:
                case TrialGroupOpened():
                    opened.update({trial.job_id: (fact.group, trial) for trial in fact.trials})
                case TrialRetried() if fact.job_id in opened:
                    opened[fact.trial.job_id] = (opened[fact.job_id][0], fact.trial)
                case TrialFinished() if fact.job_id in opened:
                    yield _view(*opened[fact.job_id], fact)
                case SweepFinished():
                    return
                case _:
                    pass


def study(
    sweep: views.SweepView, *, stopped: Literal["pruned", "complete"] = "pruned", storage: Any = None
) -> optuna.Study:
    """
    Return an Optuna study of a sweep's trials, each with its last value and those on the way there.

    Nothing is asked of it. Trials that ended without a value, or were cancelled, have failed; what they reported on the
    way is no result.

    Parameters
    ----------
    stopped : {"pruned", "complete"}
        What Optuna is told of trials that were stopped below the largest budget. Its ``best_trial`` and its samplers do
        not compare the pruned ones with the others; its pictures leave them out.
    storage : str or optuna.storages.BaseStorage, optional
        Where the study is kept, under the sweep's name and id; in memory, where it is left out.

    Raises
    ------
    ImportError
        If Optuna is not installed: ``pip install 'penstock[optuna]'``.
    optuna.exceptions.DuplicatedStudyError
        If the storage has it already.
    """
    import optuna  # noqa: PLC0415 - an extra, and half a second

    made = optuna.create_study(
        study_name=f"{sweep.name}-{sweep.id}",
        direction="maximize" if sweep.mode == "max" else "minimize",
        storage=storage,
    )
    space = {name: _distribution(dimension) for name, dimension in sweep.spec.space.items()}
    below = max((run.budget for run in sweep.trials if _gave(run)), default=0) if stopped == "pruned" else 0
    made.add_trials(_trials(sweep, space, below))
    return made


def _trials(sweep: views.SweepView, space: dict[str, Any], below: int) -> Iterator[optuna.trial.FrozenTrial]:
    from optuna.trial import TrialState, create_trial  # noqa: PLC0415 - an extra

    runs_of: dict[int, list[views.TrialView]] = {}
    for run in sweep.trials:
        runs_of.setdefault(run.number, []).append(run)
    for runs in runs_of.values():
        last = runs[-1]
        if _gave(last):
            state = TrialState.PRUNED if last.budget < below else TrialState.COMPLETE
        else:
            over = last.state in {"CD", "F", "CA"} or last.problem
            state = TrialState.FAIL if over else TrialState.RUNNING
        yield create_trial(
            state=state,
            value=last.value if _gave(last) else None,
            params={name: runs[0].params[name] for name in space},
            distributions=space,
            intermediate_values={run.budget: run.value for run in runs if run.value is not None and _gave(run)},
            user_attrs={"job_ids": [run.job_id for run in runs], "gpus": [run.gpus for run in runs]},
        )


def _gave(run: views.TrialView) -> bool:
    """Say whether a run gave a value to the search."""
    return run.value is not None and run.state == "CD"


def _view(group: int, trial: Trial, end: TrialFinished) -> views.TrialView:
    return views.TrialView(
        job_id=trial.job_id,
        params=trial.params,
        gpus=trial.gpus,
        packed=trial.packed,
        group=group,
        state={"completed": "CD", "failed": "F", "cancelled": "CA"}[end.state],
        value=end.value,
        number=trial.number,
        bracket=trial.bracket,
        rung=trial.rung,
        budget=trial.budget,
        problem=end.problem,
    )


def _distribution(dimension: Dimension) -> Any:
    from optuna.distributions import (  # noqa: PLC0415 - an extra
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    match dimension:
        case Choice():
            return CategoricalDistribution(dimension.values)
        case Integers():
            return IntDistribution(dimension.low, dimension.high)
        case Uniform():
            return FloatDistribution(dimension.low, dimension.high, log=dimension.log)
        case _:
            assert_never(dimension)
