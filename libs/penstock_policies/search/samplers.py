"""
Where new points of a space come from: the built-in samplers, and those of other libraries.

A sampler is a function ``(spec, past, count) -> points``; :data:`SAMPLERS` names the module and the function of each,
imported when first used. A further library is one file with such a function, and either a line here or, in a package of
its own, an entry point of the group :data:`GROUP`.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Final, Protocol

import numpy as np

from penstock_events.problems import nearest
from penstock_events.spec import SweepSpec
from penstock_policies.search.past import Params, Past
from penstock_policies.search.space import BadSpace, NotInstalled, points

GROUP: Final = "penstock.samplers"
SAMPLERS: Final = {
    "random": "penstock_policies.search.samplers:random",
    "grid": "penstock_policies.search.samplers:grid",
    "tpe": "penstock_policies.search.optuna_study:tpe",
    "model": "penstock_policies.search.optuna_study:model",
    "cmaes": "penstock_policies.search.optuna_study:cmaes",
}
_NEEDS: Final = {"tpe": ("optuna",), "model": ("optuna",), "cmaes": ("optuna", "cmaes")}


class Sampler(Protocol):
    """Proposes new points."""

    def __call__(self, spec: SweepSpec, past: Past, count: int) -> list[Params]:
        """
        Return points for the trials from ``past.trials`` on, fewer than ``count`` where the space has no more.

        The same specification and past give the same points: chance comes from the sweep's seed and the trial's number.
        """
        ...


def random(spec: SweepSpec, past: Past, count: int) -> list[Params]:
    """Draw each point by itself; the k-th trial of a seed is the same in all sweeps over a space."""
    return [point_of(spec, past.trials + i) for i in range(count)]


def grid(spec: SweepSpec, past: Past, count: int) -> list[Params]:
    """Walk the product of the choices."""
    return points(spec, past.trials, count, np.random.default_rng(0), whole=True)


def point_of(spec: SweepSpec, trial: int) -> Params:
    """Return the random point of a trial."""
    return points(spec, 0, 1, np.random.default_rng([spec.seed % 2**64, trial]))[0]


@cache
def sampler(name: str) -> Sampler:
    """
    Return a sampler by its name; its library is imported now.

    Raises
    ------
    BadSpace
        If there is none of that name, or its library is not installed.
    """
    expect(name)
    if name in SAMPLERS:
        module, _, function = SAMPLERS[name].partition(":")
        found: Sampler = getattr(import_module(module), function)
        return found
    (entry,) = entry_points(group=GROUP, name=name)
    installed: Sampler = entry.load()
    return installed


def expect(name: str) -> None:
    """
    Refuse a sampler that is not there; nothing is imported.

    Raises
    ------
    NotInstalled
        If its library is not installed.
    BadSpace
        If there is none of that name.
    """
    for needed in _NEEDS.get(name, ()):
        if find_spec(needed) is None:
            raise NotInstalled(
                f"sampler {name!r} needs {needed}; install it where the gateway and the tuner run: "
                "pip install 'penstock[optuna]'"
            )
    if name not in SAMPLERS and not entry_points(group=GROUP, name=name):
        known = sorted({*SAMPLERS, *(entry.name for entry in entry_points(group=GROUP))})
        raise BadSpace(f"sampler {name!r} is not known; expected one of {', '.join(known)}{nearest(name, known)}")
