"""
Space of hyper-parameters: its points, which spaces make sense, and the samplers of new points.

:func:`check` refuses a space that makes no sense. :func:`points` draws random points or walks a grid.

A sampler is a function ``(spec, past, count) -> points``. :data:`SAMPLERS` names the module and the function of each,
imported when first used. A further library is one file with such a function, and either a line here or, in a package of
its own, an entry point of the group :data:`GROUP`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any, Final, Protocol, SupportsFloat, SupportsIndex, assert_never

import numpy as np

from penstock_log.spec import Choice, Dimension, Integers, Param, SweepSpec, Uniform
from penstock_log.validation import nearest
from penstock_policies.search.runs import Params, RunHistory

MOST_TRIALS: Final = 100_000
_64_BITS: Final = "whole numbers of 64 bits"


class BadSpace(ValueError):
    """The sweep's search cannot be carried out as written; the message begins with the field, and says what helps."""

    @property
    def field(self) -> tuple[str, ...]:
        """The field of the specification that is to be changed; empty where it is none in particular."""
        path = str(self).partition(" ")[0].rstrip(":").split(".", 1)
        return tuple(path) if path[0] in SweepSpec.__struct_fields__ else ()


class NotInstalled(BadSpace):
    """The sweep names a search of a library that is not installed."""


def check(spec: SweepSpec, *, grid: bool) -> None:
    """Raise :class:`BadSpace` for a space, or a number of trials of a grid over it, that makes no sense."""
    if not spec.space:
        raise BadSpace(
            "space has no dimension; expected at least one, such as lr = {kind = 'choice', values = [0.1, 0.2]}"
        )
    _expect(_is_64_bit(spec.seed), "seed", "beyond 64 bits", _64_BITS)
    _expect(spec.target is None or math.isfinite(spec.target), "target", f"{spec.target}", "a finite number, or none")
    for name, dimension in sorted(spec.space.items()):
        _check_dimension(f"space.{name}", dimension, grid=grid)
    if grid and size(spec) > MOST_TRIALS:
        raise BadSpace(f"the grid has {size(spec)} points; expected {MOST_TRIALS} at most: set trials, or fewer values")


def size(spec: SweepSpec) -> int:
    """Return how many points the sweep's grid has; it may be cut short by ``trials``."""
    product = math.prod(_length(_values(dimension)) for dimension in spec.space.values())
    return min(product, spec.trials) if spec.trials else product


def points(spec: SweepSpec, start: int, count: int, rng: np.random.Generator, *, whole: bool = False) -> list[Params]:
    """
    Return ``count`` points of the sweep's space: random ones, or those of the whole grid from the ``start``-th on.

    Parameters
    ----------
    spec : SweepSpec
        One that :func:`check` lets pass.
    start, count : int
        The first point and the number of points of a grid; it gives fewer at its end.
    rng : numpy Generator
        The same state gives the same points. A grid does not use it.
    whole : bool
        Walk the grid.

    Examples
    --------
    >>> from penstock_log import JobSpec
    >>> space = {"lr": Choice(values=(0.1, 0.2)), "width": Integers(low=1, high=2)}
    >>> job = JobSpec(name="j", command=("true",))
    >>> spec = SweepSpec(name="s", job=job, space=space, metric="acc", search="grid")
    >>> points(spec, 1, 2, np.random.default_rng(0), whole=True)
    [{'lr': 0.1, 'width': 2}, {'lr': 0.2, 'width': 1}]
    """
    names = sorted(spec.space)
    if not whole:
        columns = [_draw(spec.space[name], count, rng) for name in names]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    walks = [_values(spec.space[name]) for name in names]
    count = max(0, min(count, size(spec) - start))
    return [dict(zip(names, _grid_point(walks, i), strict=True)) for i in range(start, start + count)]


def plain(spec: SweepSpec, params: Mapping[str, object]) -> Params:
    """
    Return a point that some library proposed, in the space's own types: JSON knows no numpy numbers.

    Raises
    ------
    BadSpace
        If it is not in the space.
    """
    if params.keys() != spec.space.keys():
        given, known = (", ".join(sorted(names)) or "nothing" for names in (params, spec.space))
        raise BadSpace(f"the sampler gave {given}; expected a value for each of {known}")
    return {name: _plain(name, dimension, params[name]) for name, dimension in sorted(spec.space.items())}


def _plain(name: str, dimension: Dimension, value: Any) -> Param:
    match dimension:
        case Choice():
            same = [one for one in dimension.values if one == value]
            if same:
                return next((one for one in same if type(one) is type(value)), same[0])
            expected = f"one of {', '.join(map(str, dimension.values))}"
        case Integers():
            if isinstance(value, SupportsIndex) and dimension.low <= (number := int(value)) <= dimension.high:
                return number
            expected = f"a whole number from {dimension.low} to {dimension.high}"
        case Uniform():
            if isinstance(value, SupportsFloat) and dimension.low <= (drawn := float(value)) <= dimension.high:
                return drawn
            expected = f"a number from {dimension.low} to {dimension.high}"
        case _:
            assert_never(dimension)
    raise BadSpace(f"the sampler gave {name} = {value!r}; expected {expected}")


def _draw(dimension: Dimension, count: int, rng: np.random.Generator) -> list[Param]:
    match dimension:
        case Choice():
            return [dimension.values[i] for i in rng.integers(len(dimension.values), size=count)]
        case Integers():
            return [int(n) for n in rng.integers(dimension.low, dimension.high, size=count, endpoint=True)]
        case Uniform():
            return _draw_uniform(dimension, count, rng)
        case _:
            assert_never(dimension)


def _draw_uniform(dimension: Uniform, count: int, rng: np.random.Generator) -> list[Param]:
    low, high = dimension.low, dimension.high
    drawn = np.exp(rng.uniform(np.log(low), np.log(high), count)) if dimension.log else rng.uniform(low, high, count)
    return [float(x) for x in np.clip(drawn, low, high)]


def _grid_point(walks: list[tuple[Param, ...] | range], index: int) -> list[Param]:
    """Return the point of the product at an index; the last dimension turns fastest."""
    reversed_point: list[Param] = []
    for walk in reversed(walks):
        index, place = divmod(index, _length(walk))
        reversed_point.append(walk[place])
    return reversed_point[::-1]


def _values(dimension: Dimension) -> tuple[Param, ...] | range:
    match dimension:
        case Choice():
            return dimension.values
        case Integers():
            return range(dimension.low, dimension.high + 1)
        case Uniform():
            raise BadSpace("a grid cannot walk a uniform dimension; expected a choice of values")
        case _:
            assert_never(dimension)


def _length(walk: tuple[Param, ...] | range) -> int:
    return walk.stop - walk.start if isinstance(walk, range) else len(walk)  # len() of a range ends at 63 bits


def _check_dimension(where: str, dimension: Dimension, *, grid: bool) -> None:
    match dimension:
        case Choice():
            _expect(len(dimension.values) > 0, where, "without values", "at least one")
            whole = [value for value in dimension.values if isinstance(value, int)]
            _expect(all(map(_is_64_bit, whole)), where, "beyond 64 bits", _64_BITS)
        case Integers():
            _check_range(where, dimension.low, dimension.high)
            _expect(_is_64_bit(dimension.low) and _is_64_bit(dimension.high), where, "beyond 64 bits", _64_BITS)
        case Uniform():
            _expect(not grid, where, "continuous and search is 'grid'", "a choice or int, or search = 'random'")
            _check_uniform(where, dimension)
        case _:
            assert_never(dimension)


def _check_uniform(where: str, dimension: Uniform) -> None:
    low, high = dimension.low, dimension.high
    _expect(math.isfinite(low) and math.isfinite(high), where, "not finite", "finite low and high")
    _check_range(where, low, high)
    _expect(math.isfinite(high - low), where, "too wide", "high - low below 1.8e308")
    _expect(not dimension.log or low > 0, where, f"on a logarithmic scale from {low}", "low > 0, or log = false")


def _is_64_bit(value: int) -> bool:
    """Say whether a number fits the random generators, the snapshots and most other programs' JSON."""
    return -(2**63) <= value < 2**63


def _check_range(where: str, low: float, high: float) -> None:
    if not low < high:
        raise BadSpace(f"{where}: low {low} is not below high {high}; expected low < high")


def _expect(holds: bool, where: str, what: str, expected: str) -> None:
    if not holds:
        raise BadSpace(f"{where} is {what}; expected {expected}")


GROUP: Final = "penstock.samplers"
SAMPLERS: Final = {
    "random": "penstock_policies.search.space:random",
    "grid": "penstock_policies.search.space:grid",
    "tpe": "penstock_policies.search.optuna_bridge:tpe",
    "model": "penstock_policies.search.optuna_bridge:model",
    "cmaes": "penstock_policies.search.optuna_bridge:cmaes",
}
_NEEDS: Final = {"tpe": ("optuna",), "model": ("optuna",), "cmaes": ("optuna", "cmaes")}


class PointSampler(Protocol):
    """A function that proposes new points."""

    def __call__(self, spec: SweepSpec, past: RunHistory, count: int) -> list[Params]:
        """
        Return points for the trials from ``past.trials`` on, fewer than ``count`` where the space has no more.

        The same specification and past give the same points: chance comes from the sweep's seed and the trial's number.
        """
        ...


def random(spec: SweepSpec, past: RunHistory, count: int) -> list[Params]:
    """Draw each point by itself; the k-th trial of a seed is the same in all sweeps over a space."""
    return [point_of(spec, past.trials + i) for i in range(count)]


def grid(spec: SweepSpec, past: RunHistory, count: int) -> list[Params]:
    """Walk the product of the choices."""
    return points(spec, past.trials, count, np.random.default_rng(0), whole=True)


def point_of(spec: SweepSpec, trial: int) -> Params:
    """Return the random point of a trial."""
    return points(spec, 0, 1, np.random.default_rng([spec.seed % 2**64, trial]))[0]


@cache
def sampler(name: str) -> PointSampler:
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
        found: PointSampler = getattr(import_module(module), function)
        return found
    (entry,) = entry_points(group=GROUP, name=name)
    installed: PointSampler = entry.load()
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
