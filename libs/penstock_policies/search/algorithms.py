"""The searches by the names that people write, and what each needs of a sweep's specification."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock_log.spec import Budget, SweepSpec
from penstock_log.validation import nearest
from penstock_policies.search import drivers, space
from penstock_policies.search.drivers import Driver, check_pruner, climbing, generations, planned
from penstock_policies.search.runs import Params, RunHistory, WantedRun
from penstock_policies.search.space import BadSpace, NotInstalled


class Algorithm(msgspec.Struct, frozen=True, kw_only=True):
    """
    A search: where new points come from, and a driver.

    Attributes
    ----------
    sampler : str
        Unless the sweep names another one.
    drive : Driver
    staged : bool
        Needs a budget: its trials run in rungs or generations.
    looks_back : bool
        Depends on what was tried before.
    trials : bool
        Has to be told how many trials there are.
    """

    sampler: str
    drive: Driver
    staged: bool = True
    looks_back: bool = True
    trials: bool = False


ALGORITHMS: Final = {
    "random": Algorithm(sampler="random", drive=drivers.at_once, staged=False, looks_back=False, trials=True),
    "grid": Algorithm(sampler="grid", drive=drivers.at_once, staged=False, looks_back=False),
    "tpe": Algorithm(sampler="tpe", drive=drivers.in_batches, staged=False, trials=True),
    "cmaes": Algorithm(sampler="cmaes", drive=drivers.in_batches, staged=False, trials=True),
    "halving": Algorithm(sampler="random", drive=drivers.successive_halving),
    "hyperband": Algorithm(sampler="random", drive=drivers.all_brackets),
    "asha": Algorithm(sampler="random", drive=drivers.asynchronous, trials=True),
    "bohb": Algorithm(sampler="model", drive=drivers.bracket_by_bracket),
    "bohb-async": Algorithm(sampler="model", drive=drivers.asynchronous_brackets, trials=True),
    "pbt": Algorithm(sampler="random", drive=generations, trials=True),
}
_BLIND: Final = ("random", "grid")  # samplers that learn nothing from what was tried


def algorithm(spec: SweepSpec) -> Algorithm:
    """
    Return a sweep's search, with the sampler and the pruner that it names.

    A name that is no search but that of an installed sampler is that sampler, in batches.

    Raises
    ------
    BadSpace
        If there is none of that name.
    """
    found = ALGORITHMS.get(spec.search)
    if found is None:
        found = _installed(spec.search)
    if spec.pruner:
        found = msgspec.structs.replace(found, drive=climbing, staged=True, looks_back=True, trials=True)
    if spec.sampler and not found.looks_back and spec.sampler not in _BLIND:
        found = msgspec.structs.replace(found, drive=drivers.in_batches, looks_back=True)
    return msgspec.structs.replace(found, sampler=spec.sampler) if spec.sampler else found


def next_runs(spec: SweepSpec, past: RunHistory, devices: int) -> list[WantedRun]:
    """
    Return the runs that a sweep opens now; with none of them and nothing running, it is over.

    Parameters
    ----------
    spec : SweepSpec
        One that :func:`check` lets pass.
    past : RunHistory
    devices : int
        That the sweep could use: what an asynchronous search keeps busy unless the sweep says otherwise.

    Raises
    ------
    BadSpace
        If the sampler is not there, fails, or proposes what is not in the space.

    Examples
    --------
    >>> from penstock_log import Choice, JobSpec
    >>> job = JobSpec(name="j", command=("true",))
    >>> spec = SweepSpec(name="s", job=job, space={"lr": Choice(values=(0.1, 0.2))}, metric="acc", search="grid")
    >>> [wanted.params for wanted in next_runs(spec, RunHistory(), devices=4)]
    [{'lr': 0.1}, {'lr': 0.2}]
    """
    chosen = algorithm(spec)
    draw = space.sampler(chosen.sampler)

    def sample(count: int) -> list[Params]:
        try:
            return [space.plain(spec, point) for point in draw(spec, past, count)]
        except BadSpace:
            raise
        except Exception as error:  # of some library: it is this sweep's trouble, not that of all of them
            raise BadSpace(f"sampler {chosen.sampler!r} raised {type(error).__name__}: {error}") from error

    return chosen.drive(spec, past, devices, sample)


def check(spec: SweepSpec) -> None:
    """
    Refuse a sweep that cannot be carried out as written.

    Raises
    ------
    BadSpace
        Naming the field, what it was, and what was expected.

    Examples
    --------
    >>> from penstock_log import JobSpec, Uniform
    >>> job = JobSpec(name="j", command=("true",))
    >>> try:
    ...     check(SweepSpec(name="s", job=job, space={"lr": Uniform(low=1.0, high=0.0)}, metric="acc", trials=3))
    ... except BadSpace as error:
    ...     error
    BadSpace('space.lr: low 1.0 is not below high 0.0; expected low < high')
    """
    chosen = algorithm(spec)
    if spec.pruner:
        check_pruner(spec.pruner)
        space.expect("tpe")  # the pruners are Optuna's
    space.check(spec, grid=chosen.sampler == "grid")
    space.expect(chosen.sampler)
    if chosen.trials and spec.trials == 0 and chosen.sampler != "grid":
        raise BadSpace(f"trials is 0; expected 1 or more for search = {spec.search!r}")
    if chosen.staged:
        _check_budget(spec, drivers.budget_of(spec))
    if spec.search == "pbt" and spec.trials < 2:
        raise BadSpace(f"trials is {spec.trials}; expected a population of 2 or more for search = 'pbt'")


def _check_budget(spec: SweepSpec, budget: Budget) -> None:
    if budget.least > budget.most:
        raise BadSpace(f"budget.least is {budget.least}, above most = {budget.most}; expected least <= most")
    if budget.param in spec.space:
        raise BadSpace(f"space.{budget.param} is the budget as well; expected it in one of them: rename budget.param")
    if not drivers.limit(spec) and (plan := planned(spec)) is not None and plan.trials > space.MOST_TRIALS:
        raise BadSpace(
            f"budget: from {budget.least} to {budget.most} by {budget.eta}, search = {spec.search!r} begins "
            f"{plan.trials} trials; expected {space.MOST_TRIALS} at most: set trials, or raise least or eta"
        )


def _installed(name: str) -> Algorithm:
    try:
        space.expect(name)
    except NotInstalled:
        raise
    except BadSpace as error:
        known = ", ".join(ALGORITHMS)
        raise BadSpace(
            f"search {name!r} is not known; expected one of {known}, or the name of an installed sampler"
            f"{nearest(name, ALGORITHMS)}"
        ) from error
    return Algorithm(sampler=name, drive=drivers.in_batches, staged=False, trials=True)
