"""What can be set about a counted policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from penstock_sim.refusal import said

GoOn = Callable[[int, int], bool]
"""Told now and then how many jobs are over and how many there are; the simulation ends where it says no."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    The parameters of a policy.

    Attributes
    ----------
    thresholds_gpu_s : tuple of float
        GPU-seconds at which a job leaves queue 0, 1, …, rising; seconds of execution for ``las``.
    promote_knob : float or None
        A job that has waited this many times what it has executed goes back to queue 0; None: never.
    levels : int
        ``2d-gittins`` as so many queues by attained service, served by the index of each; 0: as the ranker does it,
        with the queues of ``thresholds_gpu_s`` and the index within each.
    within : {"start", "entry"}
        Who comes first in a queue of ``las`` and ``2d-las``: who runs, then who was preempted, as published; or, as the
        ranker has it, who entered it first.
    tick_s : float or None
        Demotion and promotion come at the first multiple of it; 0: at the very moment. None: 1 for a trace in whole
        seconds, else 0.
    """

    thresholds_gpu_s: tuple[float, ...] = (3250.0, 7200.0)
    promote_knob: Annotated[float, Meta(gt=0)] | None = None
    levels: Annotated[int, Meta(ge=0)] = 25
    within: Literal["start", "entry"] = "start"
    tick_s: Annotated[float, Meta(ge=0)] | None = None

    def __post_init__(self) -> None:
        check_rising(self.thresholds_gpu_s)

    @classmethod
    def of(cls, values: Mapping[str, object]) -> Settings:
        """
        Return the settings of names and values, text among them.

        Raises
        ------
        ValueError
            If a name is unknown or a value is not what it should be.

        Examples
        --------
        >>> Settings.of({"thresholds_gpu_s": "10,20", "promote_knob": "2"}).thresholds_gpu_s
        (10.0, 20.0)
        """
        told = dict(values)
        if "thresholds_gpu_s" in told:
            told.setdefault("levels", 0)
        return converted(told, cls, "settings")


Made = TypeVar("Made", bound=msgspec.Struct)


def converted(values: Mapping[str, object], to: type[Made], what: str) -> Made:
    """
    Return settings of names and values, text among them; several thresholds stand between commas.

    Raises
    ------
    ValueError
        If a name is unknown or a value is not what it should be; it names ``what`` there is.
    """
    told = {name: _parted(name, value) for name, value in values.items()}
    try:
        return msgspec.convert(told, to, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"{said(error, values)}; {what} are {', '.join(to.__struct_fields__)}") from error


def check_rising(thresholds_gpu_s: tuple[float, ...]) -> None:
    """Raise a ``ValueError`` if thresholds do not rise from above 0."""
    if any(low >= high for low, high in pairwise((0.0, *thresholds_gpu_s))):
        raise ValueError(f"thresholds_gpu_s is {list(thresholds_gpu_s)}; expected rising numbers above 0")


def _parted(name: str, value: object) -> object:
    if name == "thresholds_gpu_s" and isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value
