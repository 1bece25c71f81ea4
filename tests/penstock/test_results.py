"""What came of a sweep's trials, one by one, and as a study."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import msgspec
import pytest

from penstock import results
from penstock_bus import Append
from penstock_bus.memory import MemoryBus
from penstock_log import (
    AnyEvent,
    Budget,
    Choice,
    Commit,
    Integers,
    JobSpec,
    SweepFinished,
    SweepSpec,
    Trial,
    TrialFinished,
    TrialGroupOpened,
    TrialRetried,
    Uniform,
    subjects,
    views,
)

NUMBERS = count()
POINTS = ({"lr": 0.1, "n": 0, "act": "relu"}, {"lr": 0.2, "n": 1, "act": "relu"})
TRIALS = tuple(Trial(job_id=f"s1-t00{i}", params=point, number=i, budget=1) for i, point in enumerate(POINTS))
LATER = Trial(job_id="s1-t001-r1", params=TRIALS[1].params, number=1, rung=1, budget=3, origin="s1-t001")


async def store(bus: MemoryBus, sweep_id: str, *facts: AnyEvent) -> None:
    for fact in facts:
        commit = Commit(id=f"{sweep_id}-{next(NUMBERS)}", actor="tuner/1", facts=(fact,))
        await bus.append(Append(subject=subjects.sweep(sweep_id), commit=commit, expected=None))


def ended(job_id: str, value: float | None, sweep_id: str = "s1") -> TrialFinished:
    state, problem = ("completed", "") if value is not None else ("failed", "crashed")
    return TrialFinished(at_s=1.0, sweep_id=sweep_id, job_id=job_id, state=state, value=value, problem=problem)


async def test_each_run_is_yielded_when_it_is_over_until_the_sweep_is(memory_bus: MemoryBus) -> None:
    opened = TrialGroupOpened(at_s=1.0, sweep_id="s1", group=0, trials=TRIALS)
    await store(memory_bus, "s1", opened, ended("s1-t001", 0.9), ended("s1-t000", None))
    await store(memory_bus, "s2", ended("s1-t000", 0.1, "s2"), SweepFinished(at_s=1.0, sweep_id="s2", state="failed"))
    second = TrialGroupOpened(at_s=1.0, sweep_id="s1", group=1, trials=(LATER,))
    await store(memory_bus, "s1", second, ended(LATER.job_id, 0.95))
    await store(memory_bus, "s1", SweepFinished(at_s=1.0, sweep_id="s1", state="completed"))
    found = [result async for result in results.results(memory_bus, "s1")]
    assert [(r.job_id, r.group, r.budget, r.value, r.problem) for r in found] == [
        ("s1-t001", 0, 1, 0.9, ""),
        ("s1-t000", 0, 1, None, "crashed"),
        ("s1-t001-r1", 1, 3, 0.95, ""),
    ]


async def test_a_trial_that_runs_once_more_as_another_job_is_yielded_as_that(memory_bus: MemoryBus) -> None:
    again = msgspec.structs.replace(TRIALS[0], job_id="s1-t000-a")
    await store(
        memory_bus,
        "s1",
        TrialGroupOpened(at_s=1.0, sweep_id="s1", group=0, trials=TRIALS[:1]),
        TrialRetried(at_s=1.0, sweep_id="s1", job_id="s1-t000", trial=again, reason="it wanted more"),
        ended("s1-t000-a", 0.9),
        SweepFinished(at_s=1.0, sweep_id="s1", state="completed"),
    )
    found = [result async for result in results.results(memory_bus, "s1")]
    assert [(r.job_id, r.params, r.value) for r in found] == [("s1-t000-a", TRIALS[0].params, 0.9)]


def seen(*trials: views.TrialView) -> views.SweepView:
    space = {"lr": Uniform(low=0.01, high=1.0, log=True), "n": Integers(low=0, high=3), "act": Choice(values=("relu",))}
    spec = SweepSpec(
        name="s", job=JobSpec(name="t", command=("x",)), space=space, metric="acc", budget=Budget(most=3), trials=2
    )
    return views.SweepView(
        id="s1",
        name="s",
        state="completed",
        metric="acc",
        mode="max",
        submitted_s=0.0,
        finished_s=9.0,
        wanted=3,
        done=3,
        best_job_id=LATER.job_id,
        best_value=0.95,
        reason="",
        trials=trials,
        spec=spec,
    )


def shown(trial: Trial, value: float | None, state: str = "CD") -> views.TrialView:
    about = {"job_id": trial.job_id, "params": trial.params, "number": trial.number, "budget": trial.budget}
    return views.TrialView(**about, gpus=1, group=0, state=state, value=value)


def test_optuna_sees_the_trials_with_their_values_and_those_on_the_way() -> None:
    optuna = pytest.importorskip("optuna")
    study = results.study(seen(shown(TRIALS[0], None), shown(TRIALS[1], 0.9), shown(LATER, 0.95)))
    assert (study.best_value, study.best_params) == (0.95, {"lr": 0.2, "n": 1, "act": "relu"})
    assert study.best_trial.intermediate_values == {1: 0.9, 3: 0.95}
    assert [trial.state for trial in study.trials] == [optuna.trial.TrialState.FAIL, optuna.trial.TrialState.COMPLETE]


def test_optuna_takes_a_cancelled_trial_for_no_result_and_one_that_runs_for_running() -> None:
    optuna = pytest.importorskip("optuna")
    study = results.study(seen(shown(TRIALS[0], 0.99, "CA"), shown(TRIALS[1], 0.9), shown(LATER, None, "R")))
    assert [trial.state for trial in study.trials] == [optuna.trial.TrialState.FAIL, optuna.trial.TrialState.RUNNING]
    assert [trial.intermediate_values for trial in study.trials] == [{}, {1: 0.9}]


def test_trials_that_were_stopped_below_the_largest_budget_are_pruned_and_never_the_best() -> None:
    optuna = pytest.importorskip("optuna")
    sweep = seen(shown(TRIALS[0], 0.99), shown(TRIALS[1], 0.9), shown(LATER, 0.95))
    states = optuna.trial.TrialState
    assert [trial.state for trial in results.study(sweep).trials] == [states.PRUNED, states.COMPLETE]
    assert results.study(sweep).best_value == 0.95
    assert results.study(sweep, stopped="complete").best_value == 0.99
    assert results.study(sweep).best_trial.user_attrs["job_ids"] == ["s1-t001", "s1-t001-r1"]


def test_a_study_that_is_kept_can_be_gone_on_with(tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    kept_in = f"sqlite:///{tmp_path}/studies.db"
    results.study(seen(shown(TRIALS[0], 0.5), shown(TRIALS[1], 0.9)), storage=kept_in)
    loaded = optuna.load_study(study_name="s-s1", storage=kept_in)
    assert [trial.value for trial in loaded.trials] == [0.5, 0.9]
    asked = loaded.ask(loaded.trials[0].distributions)
    assert set(asked.params) == {"lr", "n", "act"}
    with pytest.raises(optuna.exceptions.DuplicatedStudyError):
        results.study(seen(shown(TRIALS[0], 0.5)), storage=kept_in)
