"""
How each job of a trace may be run, and how fast: its profile, its widths, and what its length was measured at.

A file of profiles is TOML or JSON: model → what :class:`penstock_policies.elastic.Profile` has; ``"*"`` stands for
models that have no entry of their own.

```toml
["resnet-50"]
b_min = 64
b_max = 512
per_gpu_cap = 128
batch_step = 32
t_proc_s = { 32 = 0.1, 64 = 0.18, 128 = 0.34 }
t_comm_s = { 2 = 0.02, 4 = 0.03, 8 = 0.035 }
```

Work is samples. A trace has how long a job took on the devices that it asked for, with its user's batch: that is so
many samples, whatever it is given later. Its user's batch is the trace's ``batch_size``, brought into the profile's
range; where the trace says nothing the smallest, which is also what a job's base batch is where its file names none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, assert_never, get_args

import msgspec
import numpy as np

from penstock_events import Size
from penstock_policies import elastic
from penstock_policies.elastic import Floats, Profile
from penstock_sim.counted.sizing import ANY, EXPONENT, Curves, Sizing
from penstock_sim.trace import Trace

Profiles = Mapping[str, Profile]
"""Model → how fast it is."""

Policy = Literal["elastic", "elastic-min-batch", "elastic-max-batch", "elastic-user-batch", "fixed"]
POLICIES: Final[tuple[Policy, ...]] = get_args(Policy)


def read(path: Path) -> Profiles:
    """
    Return a file's profiles.

    Raises
    ------
    ValueError
        If it cannot be read, or a model's entry is no profile.
    """
    decode = msgspec.toml.decode if path.suffix == ".toml" else msgspec.json.decode
    try:
        raw = decode(path.read_bytes(), type=dict[str, dict[str, Any]])
        for model, entry in raw.items():
            if unknown := sorted(entry.keys() - {*Profile.__struct_fields__}):
                raise msgspec.ValidationError(f"{model} has an unknown field {unknown[0]!r}")
        return msgspec.convert(raw, dict[str, Profile], strict=False)
    except OSError as error:
        raise ValueError(f"profiles {path} cannot be read: {error.strerror}; name a file that can") from error
    except msgspec.MsgspecError as error:
        known = ", ".join(Profile.__struct_fields__)
        raise ValueError(f"profiles {path}: {error}; expected a table for each model: {known}") from error


@dataclass(frozen=True)
class Shape:
    """
    How a job may be run.

    Attributes
    ----------
    profile : Profile
        With the batches that it may have.
    widths : range
        Feasible or not.
    submitted : float
        Samples a second on the devices that it asked for, with its user's batch.
    """

    profile: Profile
    widths: range
    submitted: float

    @cached_property
    def least(self) -> int:
        """The smallest feasible width."""
        feasible = np.flatnonzero(elastic.table(self.profile, self.widths)[0])
        return self.widths[int(feasible[0])]

    def progress(self, size: Size) -> float:
        """Return how fast it is, relative to what its length was measured at."""
        return float(self.profile.throughput(size.batch_size, size.gpus)) / self.submitted


def shapes(
    trace: Trace, policy: Policy, sizing: Sizing, curves: Curves | None = None, profiles: Profiles | None = None
) -> list[Shape]:
    """
    Return how each job may be run under a policy, (J,).

    Raises
    ------
    ValueError
        If a job's profile or curve says nothing of what the job asked for, or its batch fits no width that it may have.
    """
    models = trace.models or [""] * len(trace)
    batches = [0] * len(trace) if trace.batch_sizes is None else trace.batch_sizes.tolist()
    book = _Book(policy, sizing, curves or {}, profiles or {})
    known: dict[tuple[str, int, int], Shape] = {}
    found = []
    for row, key in enumerate(zip(map(str, models), trace.num_gpus.tolist(), batches, strict=True)):
        if key not in known:
            try:
                known[key] = book.shape(*key)
            except ValueError as error:
                raise ValueError(f"job {trace.job_ids[row]}: {error}") from error
        found.append(known[key])
    return found


@dataclass(frozen=True)
class _Book:
    """What is known of models, and what a policy does with it."""

    policy: Policy
    sizing: Sizing
    curves: Curves
    profiles: Profiles

    def shape(self, model: str, asked: int, batch: int) -> Shape:
        """Return how jobs of a model that ask for so many devices and have this batch, 0 for none, may be run."""
        profile, widest = self._profile(model, asked)
        users = min(max(batch if self.profiles else 0, profile.b_min), profile.b_max)
        submitted = float(profile.throughput(users, asked))
        if not submitted > 0:
            raise ValueError(
                f"a batch of {users} cannot be divided among the {asked} devices that it asks for, of at most "
                f"{profile.per_gpu_cap} samples each; expected another batch_size, or another number of devices"
            )
        widths = range(asked, asked + 1) if self.policy == "fixed" else range(1, widest + 1)
        found = Shape(_with(profile, self.policy, users), widths, submitted)
        _check_some(found, model, self.policy)
        return found

    def _profile(self, model: str, asked: int) -> tuple[Profile, int]:
        """Return a model's profile, and the most devices that a job of it may have."""
        widest = max(asked, self.sizing.most_gpus or 0)
        if not self.profiles:
            return of_curve(model, asked, widest, self.curves)
        profile = self.profiles.get(model) or self.profiles.get(ANY)
        if profile is None:
            raise ValueError(
                f'model {model!r} has no profile; expected an entry of its own, or one named "{ANY}" for all others'
            )
        return profile, widest


def _with(profile: Profile, policy: Policy, users: int) -> Profile:
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


def _check_some(shape: Shape, model: str, policy: Policy) -> None:
    profile, widest = shape.profile, shape.widths[-1]
    least = -(-profile.b_min // profile.per_gpu_cap)
    if least > widest:
        raise ValueError(
            f"under {policy} model {model!r} has batches from {profile.b_min}, of at most {profile.per_gpu_cap} a "
            f"device, so it needs {least} devices and may have {widest}; expected most_gpus to be {least} or more"
        )


def of_curve(model: str, asked: int, widest: int, curves: Curves) -> tuple[Profile, int]:
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
    return Profile(b_min=batch, b_max=batch, per_gpu_cap=cap, t_proc_s=t_proc_s), widest


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
