"""Recorded learning curves: of each point, what it reached after how much training, and how long that takes."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from penstock_events.spec import Choice, Param, SweepSpec, Uniform

Floats = npt.NDArray[np.float64]
UNIT: Final = "unit_s"


class BadCurves(ValueError):
    """A file of curves that cannot be used; the message says where, what was expected and what to do."""


class Curves(msgspec.Struct, frozen=True):
    """
    C curves over B budgets.

    Attributes
    ----------
    points : list of dict
        The hyper-parameters of each curve, as text.
    unit_s : (C,) float array, seconds
        What one unit of budget takes on one device.
    budgets : (B,) float array
        Ascending.
    values : (C, B) float array
        NaN where a trial had diverged.
    """

    points: list[dict[str, str]]
    unit_s: Floats
    budgets: Floats
    values: Floats

    def value(self, curve: int, budget: float) -> float | None:
        """Return what a curve has reached at a budget, between two records on the line between them."""
        found = float(np.interp(budget, self.budgets, self.values[curve]))
        return found if math.isfinite(found) else None

    def nearest(self, spec: SweepSpec, params: dict[str, Param]) -> int:
        """Return the curve whose point comes nearest in the sweep's space; choices that differ are one apart."""
        away = np.zeros(len(self.points))
        for name in spec.space:
            away += self._distances(spec, name, params[name])
        return int(np.argmin(away))

    def _distances(self, spec: SweepSpec, name: str, value: Param) -> Floats:
        dimension, column = spec.space[name], [point[name] for point in self.points]
        if isinstance(dimension, Choice):
            return np.array([text != str(value) for text in column], dtype=np.float64)
        scale = np.log if isinstance(dimension, Uniform) and dimension.log else np.asarray
        span = scale(float(dimension.high)) - scale(float(dimension.low))
        where = (scale(np.array(column, dtype=np.float64)) - scale(float(value))) / span
        return np.asarray(where**2, dtype=np.float64)


def read(lines: Iterable[str], name: str, spec: SweepSpec) -> Curves:
    """
    Read curves from CSV: a column for each hyper-parameter, ``unit_s``, and one for each budget.

    Raises
    ------
    BadCurves
        If a hyper-parameter of the sweep has no column, or a cell holds no number where one is expected.
    """
    rows = list(csv.DictReader(lines))
    columns = list(rows[0]) if rows else []
    if missing := [column for column in (*sorted(spec.space), UNIT) if column not in columns]:
        raise BadCurves(f"{name} has no column {', '.join(missing)}; expected one for each dimension, and {UNIT}")
    budgets = [column for column in columns if column.replace(".", "", 1).isdigit()]
    if not budgets:
        raise BadCurves(f"{name} has no column that is a number; expected one for each budget, with the value there")
    try:
        curves = Curves(
            points=[{column: row[column] for column in spec.space} for row in rows],
            unit_s=np.array([float(row[UNIT]) for row in rows]),
            budgets=np.array([float(budget) for budget in budgets]),
            values=np.array([[float(row[budget] or "nan") for budget in budgets] for row in rows]),
        )
        _check(curves, name, spec)
    except (TypeError, ValueError) as error:
        if isinstance(error, BadCurves):
            raise
        raise BadCurves(
            f"{name} has a cell that is no number ({error}); expected numbers in {UNIT}, budgets and dimensions"
        ) from error
    return curves


def _check(curves: Curves, name: str, spec: SweepSpec) -> None:
    """Refuse numbers that a simulation would make nonsense of."""
    if not np.all(np.isfinite(curves.unit_s) & (curves.unit_s > 0)):
        raise BadCurves(f"{name} has a {UNIT} that is not above 0; expected seconds for one unit of budget")
    if np.any(np.diff(curves.budgets) <= 0):
        raise BadCurves(f"{name} has budgets that do not ascend; expected their columns from the least to the most")
    for dimension, kind in spec.space.items():
        if isinstance(kind, Choice):
            continue
        least = 0.0 if isinstance(kind, Uniform) and kind.log else -math.inf
        found = np.array([point[dimension] for point in curves.points], dtype=np.float64)
        if not np.all(np.isfinite(found) & (found > least)):
            expected = "numbers above 0, as its scale is logarithmic" if least == 0.0 else "finite numbers"
            raise BadCurves(f"{name} has a {dimension} out of range; expected {expected}")
