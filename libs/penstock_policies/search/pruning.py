"""Trials that climb one by one, each stopped where one of Optuna's pruners says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock_events.problems import nearest
from penstock_events.spec import SweepSpec
from penstock_policies.search.drivers import Sample, budget_of, limit, promoted, room
from penstock_policies.search.past import Past, Wanted
from penstock_policies.search.rungs import halvings
from penstock_policies.search.space import BadSpace

if TYPE_CHECKING:
    import optuna

    from penstock_policies.search.judging import Judge

PRUNERS: Final = ("median", "percentile", "halving")
JUDGES: Final = 16
"""Sweeps whose judges are kept between questions: forgetting one changes nothing but what the next question costs."""


_KEPT: Final[dict[int, tuple[Past, SweepSpec, Judge]]] = {}


def climbing(spec: SweepSpec, past: Past, devices: int, sample: Sample) -> list[Wanted]:
    """
    Let each trial train to the next budget unless it is pruned; where there is room, begin another one.

    Each is judged once: a trial that was stopped stays so, whatever becomes of the others.
    """
    budget = budget_of(spec)
    top, wanted = halvings(budget), []
    judged = max((run.after for run in past.runs), default=0)  # whoever ended before the last opening was judged then
    for number, run in enumerate(past.runs):
        if run.ended > judged and run.value is not None and run.rung < top and not _pruned(spec, past, number, top):
            wanted.append(promoted(past, number, run.rung + 1, budget.least * budget.eta ** (run.rung + 1)))
    fresh = min(room(spec, past, devices) - len(wanted), limit(spec) - past.trials)
    drawn = sample(fresh) if fresh > 0 else []
    return wanted + [Wanted(trial=past.trials + i, params=p, budget=budget.least) for i, p in enumerate(drawn)]


def check_pruner(name: str) -> None:
    """Refuse a pruner that is not known."""
    if name not in PRUNERS:
        raise BadSpace(f"pruner {name!r} is not known; expected one of {', '.join(PRUNERS)}{nearest(name, PRUNERS)}")


def _pruned(spec: SweepSpec, past: Past, number: int, top: int) -> bool:
    return _judge(spec, past, top).stops(past, number)


def _judge(spec: SweepSpec, past: Past, top: int) -> Judge:
    """Return the judge of this very past, the one that was kept or another who hears all of it."""
    from penstock_policies.search.judging import Judge  # noqa: PLC0415 - an extra, and half a second

    kept = _KEPT.pop(id(past), None)
    if kept is None or kept[0] is not past or kept[1] != spec:
        kept = (past, spec, Judge(spec, _made(spec), top))
    _KEPT[id(past)] = kept
    while len(_KEPT) > JUDGES:
        del _KEPT[next(iter(_KEPT))]
    return kept[2]


def _made(spec: SweepSpec) -> optuna.pruners.BasePruner:
    import optuna  # noqa: PLC0415 - an extra, and half a second

    match spec.pruner:
        case "percentile":
            return optuna.pruners.PercentilePruner(25.0, n_startup_trials=4)
        case "halving":
            budget = budget_of(spec)
            return optuna.pruners.SuccessiveHalvingPruner(budget.least, budget.eta)
        case _:
            return optuna.pruners.MedianPruner(n_startup_trials=4)
