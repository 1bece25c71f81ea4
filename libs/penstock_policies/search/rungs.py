"""How many trials run for how long: successive halving, and Hyperband's brackets of it."""

from __future__ import annotations

import msgspec

from penstock_events.spec import Budget


class Rung(msgspec.Struct, frozen=True):
    """So many trials, trained up to so much."""

    trials: int
    budget: int


def halvings(budget: Budget) -> int:
    """
    Return how often a budget can be multiplied by eta from least to most.

    Examples
    --------
    >>> halvings(Budget(least=1, most=81)), halvings(Budget(least=1, most=80)), halvings(Budget(least=5, most=5))
    (4, 3, 0)
    """
    times, reached = 0, budget.least
    while reached * budget.eta <= budget.most:
        times, reached = times + 1, reached * budget.eta
    return times


def halving(trials: int, budget: Budget) -> list[Rung]:
    """
    Return the rungs of successive halving: of each, one trial in eta goes on, rounded up.

    References
    ----------
    Jamieson and Talwalkar, Non-stochastic best arm identification and hyperparameter optimization, AISTATS 2016;
    rounded as in Yu et al., Fluid, MLSys 2021.

    Examples
    --------
    >>> [(rung.trials, rung.budget) for rung in halving(10, Budget(least=1, most=9))]
    [(10, 1), (4, 3), (2, 9)]
    """
    rungs, reached = [], budget.least
    for _ in range(halvings(budget) + 1):
        rungs.append(Rung(trials, reached))
        trials, reached = -(-trials // budget.eta), reached * budget.eta
    return rungs


def hyperband(budget: Budget) -> list[list[Rung]]:
    """
    Return Hyperband's brackets, the one with the most trials first.

    Notes
    -----
    Bracket s begins with ``ceil((s_max + 1) / (s + 1) · eta^s)`` trials of ``most / eta^s`` each; rung i keeps
    ``floor(n / eta^i)`` of them. Each bracket costs about the same.

    References
    ----------
    Li et al., Hyperband: a novel bandit-based approach to hyperparameter optimization, JMLR 18(185), 2018.

    Examples
    --------
    >>> [[(rung.trials, rung.budget) for rung in bracket] for bracket in hyperband(Budget(least=1, most=9))]
    [[(9, 1), (3, 3), (1, 9)], [(5, 3), (1, 9)], [(3, 9)]]
    """
    eta, most = budget.eta, halvings(budget)
    return [_bracket(-(-(most + 1) * eta**s // (s + 1)), s, budget) for s in range(most, -1, -1)]


def _bracket(trials: int, s: int, budget: Budget) -> list[Rung]:
    eta = budget.eta
    return [Rung(trials // eta**i, max(1, round(budget.most / eta ** (s - i)))) for i in range(s + 1)]
