"""How a made-up workload is described: the TOML that ``penstock trace generate`` takes, as types."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from penstock_events import strict
from penstock_sim.traces.errors import TraceError

Positive = Annotated[float, Meta(gt=0, le=1e15)]
Share = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=0, le=1_000_000)]


class Poisson(msgspec.Struct, frozen=True, kw_only=True, tag="poisson", tag_field="process"):
    """Jobs come independently of each other."""

    rate_per_h: Positive


class Bursty(msgspec.Struct, frozen=True, kw_only=True, tag="bursty", tag_field="process"):
    """
    Calm and burst take turns, each as long as an exponential draw says (a Markov-modulated Poisson process).

    Attributes
    ----------
    rate_per_h, burst_rate_per_h : float
        Jobs an hour while it is calm, and in a burst.
    calm_s, burst_s : float
        Mean lengths.
    """

    rate_per_h: Positive
    burst_rate_per_h: Positive
    calm_s: Positive
    burst_s: Positive


class Diurnal(msgspec.Struct, frozen=True, kw_only=True, tag="diurnal", tag_field="process"):
    """
    The rate swings around its mean as a cosine.

    Attributes
    ----------
    swing : float
        0 is even; at 1 nobody comes at the quietest hour.
    """

    rate_per_h: Positive
    swing: Share = 0.8
    period_s: Positive = 86_400.0
    peak_s: Annotated[float, Meta(ge=0)] = 50_400.0


class Gpus(msgspec.Struct, frozen=True, kw_only=True):
    """How many devices jobs ask for, and how often each number comes."""

    counts: Annotated[tuple[Annotated[int, Meta(ge=1, le=65_536)], ...], Meta(min_length=1)] = (1,)
    weights: Annotated[tuple[Annotated[float, Meta(ge=0)], ...], Meta(min_length=1)] = (1.0,)


class Lognormal(msgspec.Struct, frozen=True, kw_only=True, tag="lognormal", tag_field="distribution"):
    """The logarithm is normal."""

    median_s: Positive
    sigma: Annotated[float, Meta(ge=0, le=10)]
    weight: Positive = 1.0


class Pareto(msgspec.Struct, frozen=True, kw_only=True, tag="pareto", tag_field="distribution"):
    """A power law above ``least_s``; the smaller ``alpha``, the heavier the tail (no mean at 1 and below)."""

    least_s: Positive
    alpha: Positive
    weight: Positive = 1.0


class Mixture(msgspec.Struct, frozen=True, kw_only=True, tag="mixture", tag_field="distribution"):
    """One of several, each as often as its weight says."""

    parts: Annotated[tuple[Lognormal | Pareto, ...], Meta(min_length=1)]


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """
    A model, how often it comes, and its speed on each kind of device.

    Attributes
    ----------
    speeds : dict of str to float
        In any unit; lengths are those on the fastest.
    batches : tuple of int
        Batch sizes on each of the devices that they ask for, which its users choose equally often; none: a job says
        nothing of its batch.
    """

    name: Annotated[str, Meta(min_length=1)]
    weight: Positive = 1.0
    speeds: dict[str, Positive] = {}
    batches: tuple[Annotated[int, Meta(ge=1, le=2**31)], ...] = ()


class Parties(msgspec.Struct, frozen=True, kw_only=True):
    """Users or virtual clusters: the k-th largest comes in proportion to k to the power of -``zipf``; 0: none."""

    count: Count = 0
    zipf: Annotated[float, Meta(ge=0, le=10)] = 1.0


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """
    A workload to make up.

    Attributes
    ----------
    jobs : int
    seed : int
        The same recipe and seed give the same trace.
    gpu_time : distribution of a job's devices times its length, in device-seconds
    least_s, most_s : float
        Lengths are cut to these.
    """

    jobs: Annotated[int, Meta(ge=1, le=100_000_000)]
    arrivals: Poisson | Bursty | Diurnal
    gpu_time: Lognormal | Pareto | Mixture
    name: str = "generated"
    seed: Annotated[int, Meta(ge=0)] = 0
    gpus: Gpus = Gpus()
    least_s: Positive = 1.0
    most_s: Positive = 1e9
    models: tuple[Model, ...] = ()
    users: Parties = Parties()
    vcs: Parties = Parties()


def read(path: Path) -> Recipe:
    """
    Read a recipe.

    Raises
    ------
    TraceError
        If it cannot be read, or a key is unknown, missing, or out of range; the message names the key.
    """
    try:
        raw = tomllib.loads(path.read_text())
    except FileNotFoundError as error:
        raise TraceError(f"there is no file {path}; check the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: {error}; expected TOML") from error
    try:
        recipe = strict.convert(raw, Recipe)
    except strict.BadInput as error:
        raise TraceError(*(f"{path}: {problem.removeprefix('$.')}" for problem in error.problems)) from error
    return _checked(path, recipe)


def _checked(path: Path, recipe: Recipe) -> Recipe:
    """Refuse what no single key shows to be wrong."""
    counts, weights = recipe.gpus.counts, recipe.gpus.weights
    if len(counts) != len(weights):
        raise TraceError(f"{path}: gpus.weights has {len(weights)} numbers; expected {len(counts)}, as gpus.counts has")
    if not sum(weights):
        raise TraceError(f"{path}: gpus.weights are all 0; expected one above 0")
    if recipe.least_s > recipe.most_s:
        raise TraceError(f"{path}: least_s is {recipe.least_s:g}; expected at most most_s, {recipe.most_s:g}")
    return recipe
