"""Pictures of a sweep, and a sweep as an Optuna study, on the command line."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_gateway import FakeGateway, sweep_view

from penstock import results
from penstock.results import study
from penstock_log import Budget, Choice, Integers, JobSpec, SweepSpec, Uniform, views

# Imported by the tests themselves: each process that collects tests would wait half a second for them.
pytestmark = pytest.mark.skipif(
    not all(map(find_spec, ("optuna", "matplotlib"))), reason="optuna or matplotlib is not here"
)

Run = Callable[..., tuple[int, str, str]]
SPACE = {
    "lr": Uniform(low=0.01, high=1.0, log=True),
    "n": Integers(low=0, high=3),
    "act": Choice(values=("relu", "tanh")),
}


def ran(number: int, value: float | None, budget: int = 1) -> views.TrialView:
    return views.TrialView(
        job_id=f"s1-t00{number}-{budget}",
        params={"lr": 0.02 * (number + 1), "n": number, "act": ("relu", "tanh")[number % 2]},
        gpus=1,
        group=0,
        state="CD",
        value=value,
        number=number,
        budget=budget,
        problem="" if value is not None else "diverged",
    )


def swept(*trials: views.TrialView, mode: str = "max", rungs: tuple[int, ...] = (1, 3)) -> views.SweepView:
    job = JobSpec(name="j", command=("x",))
    budget = Budget(param="epochs", least=1, most=3)
    spec = SweepSpec(name="s", job=job, space=SPACE, metric="acc", mode=mode, budget=budget, trials=3)
    rows = [
        views.RungView(bracket=0, rung=i, budget=at, opened=1, over=1, promoted=0, best_value=None)
        for i, at in enumerate(rungs)
    ]
    best = max(trials, key=lambda trial: (trial.budget, trial.value or 0.0)).job_id if trials else ""
    return msgspec.structs.replace(sweep_view(spec), trials=trials, rungs=tuple(rows), best_job_id=best)


STAGED = swept(ran(0, 0.3), ran(1, 0.6), ran(2, None), ran(1, 0.9, budget=3))


@pytest.fixture
def shown(penstock: Run, gateway: FakeGateway, tmp_path: Path) -> Run:
    (tmp_path / "sweep.yaml").write_text(
        "{name: s, metric: acc, trials: 1, job: {name: j, command: ['true']}, space: {n: {kind: int, low: 0, high: 3}}}"
    )
    penstock("tune", str(tmp_path / "sweep.yaml"), "--no-check")
    gateway.on_sweep = lambda _: STAGED
    return penstock


@pytest.mark.slow
def test_pictures_are_written_into_the_folder_that_is_named(shown: Run, tmp_path: Path) -> None:
    code, out, err = shown("sweep", "plot", "s1", "--out", str(tmp_path / "new" / "plots"))
    assert (code, err) == (0, "")
    written = [Path(line) for line in out.splitlines()]
    assert [path.name for path in written] == ["history.png", "parallel.png", "budgets.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)


@pytest.mark.slow
def test_a_sweep_without_budgets_or_with_the_least_as_the_best_has_pictures_too(tmp_path: Path) -> None:
    flat = swept(ran(0, 0.3, budget=0), ran(1, 0.6, budget=0), mode="min", rungs=())
    written = results.draw(flat, tmp_path, "svg")
    assert [path.name for path in written] == ["history.svg", "parallel.svg"]
    assert "<svg" in written[0].read_text()[:1000]


@pytest.mark.slow
def test_drawing_leaves_matplotlib_as_it_was(tmp_path: Path) -> None:
    mpl, plt, optuna = map(import_module, ("matplotlib", "matplotlib.pyplot", "optuna"))
    before = dict(mpl.rcParams), mpl.get_backend(), optuna.logging.get_verbosity()
    results.draw(STAGED, tmp_path)
    assert (dict(mpl.rcParams), mpl.get_backend(), optuna.logging.get_verbosity()) == before
    assert plt.get_fignums() == []


def test_the_best_trial_stands_in_front_of_the_others(tmp_path: Path) -> None:
    with results._quietly(), results._drawing():
        axes = results._budgets(study(STAGED, stopped="complete"), STAGED)
        front = [line for line in axes.lines if line.get_color() == results.BEST]
        assert [list(line.get_xdata()) for line in front] == [[1, 3]]
        assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "3"]


def test_a_sweep_without_a_value_has_nothing_to_draw(shown: Run, gateway: FakeGateway, tmp_path: Path) -> None:
    gateway.on_sweep = lambda _: swept(ran(0, None))
    code, _, err = shown("sweep", "plot", "s1", "--out", str(tmp_path / "plots"))
    assert (code, err) == (1, "penstock: no trial of sweep s1 has given a value yet: there is nothing to draw\n")
    assert not (tmp_path / "plots").exists()


@pytest.mark.slow
def test_a_sweep_is_exported_as_an_optuna_study_once(shown: Run, tmp_path: Path) -> None:
    kept_in = f"sqlite:///{tmp_path}/studies.db"
    assert shown("sweep", "export", "s1", "--optuna", kept_in) == (0, f"s-s1: 3 trials in {kept_in}\n", "")
    loaded: Any = import_module("optuna").load_study(study_name="s-s1", storage=kept_in)
    assert loaded.best_value == 0.9
    code, _, err = shown("sweep", "export", "s1", "--optuna", kept_in)
    assert (code, "has a study s-s1 already; name another storage" in err) == (1, True)


@pytest.mark.parametrize("storage", ["nowhere://x", "sqlite:////no/such/folder/studies.db"])
def test_a_storage_that_cannot_be_opened_is_told(shown: Run, storage: str) -> None:
    code, _, err = shown("sweep", "export", "s1", "--optuna", storage)
    assert code == 1
    assert err.startswith(f"penstock: --optuna {storage}: ")
    assert err.endswith("; expected a storage such as sqlite:///studies.db\n")
