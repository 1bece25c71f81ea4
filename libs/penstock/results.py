"""What came of a sweep's trials, as they end, and as a study that Optuna can plot."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, assert_never

from penstock_bus import Bus
from penstock_events import (
    Choice,
    Dimension,
    Integers,
    SweepFinished,
    Trial,
    TrialFinished,
    TrialGroupOpened,
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
                case TrialFinished() if fact.job_id in opened:
                    yield _view(*opened[fact.job_id], fact)
                case SweepFinished():
                    return
                case _:
                    pass


def study(sweep: views.SweepView) -> optuna.Study:
    """
    Return an Optuna study of a sweep's trials, each with its last value and those on the way there.

    For ``optuna.visualization``; nothing is asked of it. Trials that ended without a value, or were cancelled, have
    failed; what they reported on the way is no result.

    Raises
    ------
    ImportError
        If Optuna is not installed: ``pip install 'penstock[optuna]'``.
    """
    import optuna  # noqa: PLC0415 - an extra, and half a second
    from optuna.trial import TrialState, create_trial  # noqa: PLC0415

    made = optuna.create_study(study_name=sweep.name, direction="maximize" if sweep.mode == "max" else "minimize")
    space = {name: _distribution(dimension) for name, dimension in sweep.spec.space.items()}
    for number in dict.fromkeys(trial.number for trial in sweep.trials):
        runs = [trial for trial in sweep.trials if trial.number == number]
        values = {run.budget: run.value for run in runs if run.value is not None and run.state == "CD"}
        last = values.get(runs[-1].budget) if runs[-1].state == "CD" else None
        over = last is not None or runs[-1].state in {"CD", "F", "CA"} or runs[-1].problem
        state = (TrialState.COMPLETE if last is not None else TrialState.FAIL) if over else TrialState.RUNNING
        params = {name: runs[0].params[name] for name in space}
        made.add_trial(
            create_trial(state=state, value=last, params=params, distributions=space, intermediate_values=values)
        )
    return made


def _view(group: int, trial: Trial, end: TrialFinished) -> views.TrialView:
    return views.TrialView(
        job_id=trial.job_id,
        params=trial.params,
        gpus=trial.gpus,
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
