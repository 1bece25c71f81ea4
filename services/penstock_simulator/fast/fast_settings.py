"""
Settings of counted policies, and shapes of elastic jobs.

:class:`FastSettings` are the parameters of a policy, :class:`FastSizingSettings` those of ``elastic`` and its
relatives. :func:`shapes` returns how each job of a trace may be run, and how fast: its profile, its widths, and the
size at which its length was measured. What is known of models comes from one of two files; both are TOML or JSON, and
in both ``"*"`` stands for models that have no entry of their own.

A file of scaling curves (:func:`read_curves`) serves jobs whose batch stays: model → devices → throughput, in any unit.
Between the widths that it names a curve is straight; beyond the widest it is not defined.

```toml
["resnet-50"]
1 = 95.0
2 = 171.0
4 = 262.0

["*"]
1 = 1.0
8 = 5.3
```

A file of profiles (:func:`read_profiles`) serves jobs whose batch may change: model → the fields of
:class:`penstock_policies.elastic.ThroughputProfile`.

```toml
["resnet-50"]
b_min = 64
b_max = 512
per_gpu_cap = 128
batch_step = 32
t_proc_s = { 32 = 0.1, 64 = 0.18, 128 = 0.34 }
t_comm_s = { 2 = 0.02, 4 = 0.03, 8 = 0.035 }
```

Work is samples. A trace says how long a job took on the devices that it asked for, with its user's batch: this gives
its number of samples, whatever size it has later. The user's batch is the trace's ``batch_size``, brought into the
profile's range; where the trace says nothing it is the smallest. The smallest is also a job's base batch where its file
names none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, assert_never, get_args

import msgspec
import numpy as np
from msgspec import Meta

from penstock_log import Size
from penstock_policies import elastic
from penstock_policies.elastic import Floats, ThroughputProfile
from penstock_scheduler.sizing.problem import DEFAULT, SizingRules
from penstock_simulator.trace import Trace
from penstock_simulator.virtual_cluster import read_table

GoOn = Callable[[int, int], bool]
"""Told now and then how many jobs are over and how many there are; the simulation ends where it says no."""


class FastSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    The parameters of a policy.

    Attributes
    ----------
    thresholds_gpu_s : tuple of float
        GPU-seconds at which a job leaves queue 0, 1, …, rising; seconds of execution for ``las``.
    promote_knob : float or None
        A job that has waited this many times as long as it has executed goes back to queue 0; None: never.
    levels : int
        Number of queues of ``2d-gittins`` by attained service, served by the index of each; 0: as in the ranker, the
        queues of ``thresholds_gpu_s`` with the index within each.
    within : {"start", "entry"}
        Which job comes first in a queue of ``las`` and ``2d-las``. ``start``: a running one, then a preempted one, as
        published. ``entry``: the one that entered the queue first, as in the ranker.
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
    def of(cls, values: Mapping[str, object]) -> FastSettings:
        """
        Return the settings of names and values, text among them.

        Raises
        ------
        ValueError
            If a name is unknown or a value is not what it should be.

        Examples
        --------
        >>> FastSettings.of({"thresholds_gpu_s": "10,20", "promote_knob": "2"}).thresholds_gpu_s
        (10.0, 20.0)
        """
        return converted({"levels": 0, **values} if "thresholds_gpu_s" in values else values, cls, "settings")


Settings = TypeVar("Settings", bound=msgspec.Struct)


def converted(values: Mapping[str, object], to: type[Settings], what: str = "") -> Settings:
    """
    Return settings of names and values, text among them; several numbers stand between commas.

    Raises
    ------
    ValueError
        If a name is unknown or a value is not what it should be; it lists the names where it is said ``what`` they are.
    """
    try:
        return msgspec.convert({name: _parts(name, value) for name, value in values.items()}, to, strict=False)
    except msgspec.ValidationError as error:
        known = f"; {what} are {', '.join(to.__struct_fields__)}" if what else ""
        raise ValueError(explained(error, values) + known) from error


def _parts(name: str, value: object) -> object:
    if isinstance(value, str) and value != "learnt" and (name.endswith("_gpu_s") or "," in value):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def check_rising(thresholds_gpu_s: tuple[float, ...]) -> None:
    """Raise a ``ValueError`` if thresholds do not rise from above 0."""
    if any(low >= high for low, high in pairwise((0.0, *thresholds_gpu_s))):
        raise ValueError(f"thresholds_gpu_s is {list(thresholds_gpu_s)}; expected rising numbers above 0")


Curves = Mapping[str, Mapping[int, float]]
"""Model → devices → throughput."""

ANY: Final = "*"

EXPONENT: Final = 0.8
"""
Without a file, throughput goes with the number of devices to this power: 1.74, 3.03 and 5.28 on 2, 4 and 8. The medians
of 19 models measured on three kinds of devices by Narayanan et al. (*Gavel*, OSDI 2020) are 1.66 to 1.81, 2.28 to 2.99
and 3.96 to 6.48.
"""


class FastSizingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    The parameters of the policy ``elastic``, of its relatives with a fixed batch, and of ``fixed``.

    Attributes
    ----------
    admit : {"fifo", "2d-las"}
        The order in which jobs are admitted: by submission, or by attained device time in queues.
    thresholds_gpu_s : tuple of float
        Device-seconds at which a job leaves queue 0, 1, … of ``2d-las``; rising.
    most_gpus : int or None
        Most devices that a job may have; a job that asked for more may have as many as it asked for. None: as many as
        it asked for.
    horizon_s : float
        A size changes for throughput alone only if the gain in this time exceeds what resizing costs.
    least_gain : float
        Nor does it change for a gain below this share of the job's present throughput.
    drop : bool
        Whether a job that finds no room when it comes is over, instead of waiting.
    """

    admit: Literal["fifo", "2d-las"] = "fifo"
    thresholds_gpu_s: tuple[float, ...] = (3250.0, 7200.0)
    most_gpus: Annotated[int, Meta(ge=1)] | None = None
    horizon_s: Annotated[float, Meta(gt=0)] = 3600.0
    least_gain: Annotated[float, Meta(ge=0, lt=1)] = DEFAULT.least_gain
    drop: bool = False

    def __post_init__(self) -> None:
        check_rising(self.thresholds_gpu_s)

    @classmethod
    def of(cls, values: Mapping[str, object]) -> FastSizingSettings:
        """Return the settings of names and values, text among them; raise as :meth:`FastSettings.of` does."""
        return converted(values, cls, "settings of elastic")

    @property
    def rules(self) -> SizingRules:
        """The bounds of resizing, in the autoscaler's form."""
        return SizingRules(horizon_s=self.horizon_s, least_gain=self.least_gain, drop=self.drop)


def read_curves(path: Path) -> Curves:
    """
    Return a file's curves.

    Raises
    ------
    ValueError
        If it cannot be read, or does not hold a number above 0 for each model and number of devices.
    """
    expected = "expected a table for each model: devices = throughput"
    found = read_table(path, dict[str, dict[int, float]], "scaling", expected, strict=False)
    for model, curve in found.items():
        for gpus, throughput in curve.items():
            if gpus < 1 or not (throughput > 0 and math.isfinite(throughput)):
                raise ValueError(
                    f"scaling {path}: {model} on {gpus} devices is {throughput}; expected numbers above 0 on 1 or more"
                )
        if not curve:
            raise ValueError(f"scaling {path}: {model} has no width; expected devices = throughput")
    return found


Profiles = Mapping[str, ThroughputProfile]
"""Model → how fast it is."""

Policy = Literal["elastic", "elastic-min-batch", "elastic-max-batch", "elastic-user-batch", "fixed"]
SIZED_POLICIES: Final[tuple[Policy, ...]] = get_args(Policy)
"""The policies that may give jobs other numbers of devices than they ask for, and other batches."""


def read_profiles(path: Path) -> Profiles:
    """
    Return a file's profiles.

    Raises
    ------
    ValueError
        If it cannot be read, or a model's entry is no profile.
    """
    known = ThroughputProfile.__struct_fields__
    expected = f"expected a table for each model: {', '.join(known)}"
    raw = read_table(path, dict[str, dict[str, Any]], "profiles", expected)
    for model, entry in raw.items():
        if unknown := sorted(entry.keys() - {*known}):
            raise ValueError(f"profiles {path}: {model} has an unknown field {unknown[0]!r}; {expected}")
    try:
        return msgspec.convert(raw, dict[str, ThroughputProfile], strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"profiles {path}: {error}; {expected}") from error


@dataclass(frozen=True)
class JobShape:
    """
    The shape of a job: how it may be run, and how fast.

    Attributes
    ----------
    profile : ThroughputProfile
        With the batches that it may have.
    widths : range
        Widths that it may have, feasible or not.
    submitted : float
        Samples a second on the devices that the job asked for, with its user's batch.
    """

    profile: ThroughputProfile
    widths: range
    submitted: float

    @cached_property
    def least(self) -> int:
        """The smallest feasible width."""
        feasible = np.flatnonzero(elastic.table(self.profile, self.widths)[0])
        return self.widths[int(feasible[0])]

    def progress(self, size: Size) -> float:
        """Return the job's speed with a size, relative to the size at which its length was measured."""
        return float(self.profile.throughput(size.batch_size, size.gpus)) / self.submitted


def shapes(
    trace: Trace,
    policy: Policy,
    sizing: FastSizingSettings,
    curves: Curves | None = None,
    profiles: Profiles | None = None,
) -> list[JobShape]:
    """
    Return how each job may be run under a policy, (J,).

    Raises
    ------
    ValueError
        If a job's profile or curve says nothing of what the job asked for, or its batch fits no width that it may have.
    """

    @cache
    def shape(model: str, asked: int, batch: int) -> JobShape:
        widest = max(asked, sizing.most_gpus or 0)
        profile = (profiles.get(model) or profiles.get(ANY)) if profiles else None
        if profiles and profile is None:
            raise ValueError(
                f'model {model!r} has no profile; expected an entry of its own, or one named "{ANY}" for all others'
            )
        if profile is None:
            profile, widest = _of_curve(model, asked, widest, curves or {})
        users = min(max(batch if profiles else 0, profile.b_min), profile.b_max)
        submitted = float(profile.throughput(users, asked))
        if not submitted > 0:
            raise ValueError(
                f"a batch of {users} cannot be divided among the {asked} devices that it asks for, of at most "
                f"{profile.per_gpu_cap} samples each; expected another batch_size, or another number of devices"
            )
        widths = range(asked, asked + 1) if policy == "fixed" else range(1, widest + 1)
        chosen = _with(profile, policy, users)
        least = -(-chosen.b_min // chosen.per_gpu_cap)
        if least > widths[-1]:
            raise ValueError(
                f"under {policy} model {model!r} has batches from {chosen.b_min}, of at most {chosen.per_gpu_cap} a "
                f"device, so it needs {least} devices and may have {widths[-1]}; expected most_gpus to be {least} or "
                "more"
            )
        return JobShape(chosen, widths, submitted)

    models = trace.models or [""] * len(trace)
    batches = [0] * len(trace) if trace.batch_sizes is None else trace.batch_sizes.tolist()
    found = []
    for row, key in enumerate(zip(map(str, models), trace.num_gpus.tolist(), batches, strict=True)):
        try:
            found.append(shape(*key))
        except ValueError as error:
            raise ValueError(f"job {trace.job_ids[row]}: {error}") from error
    return found


def _with(profile: ThroughputProfile, policy: Policy, users: int) -> ThroughputProfile:
    """Return the profile with the batches that a policy chooses from."""
    match policy:
        case "elastic":
            return profile
        case "elastic-min-batch":
            only = profile.b_min
        case "elastic-max-batch":
            only = profile.b_max - (profile.b_max - profile.b_min) % profile.batch_step
        case "elastic-user-batch" | "fixed":
            only = users
        case _:
            assert_never(policy)
    return msgspec.structs.replace(profile, b_min=only, b_max=only)


def _of_curve(model: str, asked: int, widest: int, curves: Curves) -> tuple[ThroughputProfile, int]:
    """
    Return a curve over devices as the profile of a job whose batch cannot change, and the widest width that it knows.

    The batch is so large that each width has a local batch of its own, at which the time is the curve's.
    """
    speeds = _curve(model, asked, widest, curves)
    known = np.flatnonzero(~np.isnan(speeds)) + 1
    widest = int(known[-1])
    batch = widest * (widest + 1)
    t_proc_s = {-(-batch // int(width)): batch / float(speeds[width - 1]) for width in known}
    cap = max(t_proc_s)
    t_proc_s[cap + 1] = t_proc_s[cap]  # never looked up: so that all others are known points, to the last bit
    return ThroughputProfile(b_min=batch, b_max=batch, per_gpu_cap=cap, t_proc_s=t_proc_s), widest


def _curve(model: str, asked: int, widest: int, curves: Curves) -> Floats:
    """Return the speeds on 1 to ``widest`` devices relative to that on those asked for; nan where it is not known."""
    widths = np.arange(1, widest + 1, dtype=np.float64)
    given = curves.get(model) or curves.get(ANY)
    found: Floats
    if given is None:
        found = np.power(widths / asked, EXPONENT)
        return found
    at, throughput = np.array(sorted(given.items()), dtype=np.float64).T
    found = np.interp(widths, at, throughput, left=np.nan, right=np.nan)
    if np.isnan(found[asked - 1]):
        raise ValueError(
            f"the scaling of model {model!r} is given for {at[0]:.0f} to {at[-1]:.0f} devices, and it asks for "
            f"{asked}; expected a throughput there too"
        )
    relative: Floats = found / found[asked - 1]
    return relative


def explained(error: msgspec.ValidationError, values: Mapping[str, object]) -> str:
    """
    Return what is wrong with one of some named values, with the value as it was given.

    Examples
    --------
    >>> explained(msgspec.ValidationError("Expected `float` > 0.0 - at `$.promote_knob`"), {"promote_knob": "-2"})
    "promote_knob is '-2': Expected `float` > 0.0"
    """
    wrong, _, place = str(error).partition(" - at `$.")
    name = place.rstrip("`").partition("[")[0]
    return f"{name} is {values[name]!r}: {wrong}" if name in values else str(error)
