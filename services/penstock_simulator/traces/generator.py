"""
Made-up workloads, from a recipe and a seed.

A :class:`Recipe` is the TOML that ``penstock trace generate`` takes, as types: how jobs arrive, how many devices they
ask for, how long they run, which models and users they have. :func:`generate` makes a trace of it; the same recipe
gives the same trace.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, assert_never

import msgspec
import numpy as np
from msgspec import Meta

from penstock_log import validation
from penstock_simulator.trace import Floats, Ints, Trace, TraceError

_HOUR_S: Final = 3600.0


def generate(recipe: Recipe) -> Trace:
    """
    Return a trace made up as a recipe says; the same recipe gives the same trace.

    Each part of a job is drawn from a stream of its own, so that changing one part leaves the others as they are.

    References
    ----------
    Device time of training jobs is heavy-tailed and does not depend much on the number of devices: Hu et al., SC 2021;
    Jeon et al., USENIX ATC 2019.
    """
    streams = [np.random.default_rng(seed) for seed in np.random.SeedSequence(recipe.seed).spawn(7)]
    arriving, sizing, lasting, modelling, using, placing, batching = streams
    gpus = _gpus(recipe, sizing)
    gpu_s = _gpu_time_s(recipe.gpu_time, recipe.jobs, lasting)
    names = [model.name for model in recipe.models]
    models = _drawn(names, [model.weight for model in recipe.models], recipe.jobs, modelling)
    return Trace(
        name=recipe.name,
        job_ids=[f"g{i}" for i in range(recipe.jobs)],
        submit_s=_arrivals_s(recipe.arrivals, recipe.jobs, arriving),
        num_gpus=gpus,
        duration_s=np.clip(gpu_s / gpus, recipe.least_s, recipe.most_s),
        batch_sizes=_batches(recipe, models, gpus, batching),
        models=models,
        users=_names(recipe.users, "user", recipe.jobs, using),
        vcs=_names(recipe.vcs, "vc", recipe.jobs, placing),
    )


def speedups(recipe: Recipe) -> Mapping[str, Mapping[str, float]]:
    """Return each model's speed on each kind of device, as ``penstock sim --speedups`` takes them."""
    return {model.name: dict(model.speeds) for model in recipe.models if model.speeds}


def _arrivals_s(process: Poisson | Bursty | Diurnal, jobs: int, rng: np.random.Generator) -> Floats:
    """Return rising times of submission, (J,), in seconds from 0."""
    match process:
        case Poisson():
            return np.cumsum(rng.exponential(_HOUR_S / process.rate_per_h, jobs))
        case Bursty():
            return _bursty_s(process, jobs, rng)
        case Diurnal():
            return _diurnal_s(process, jobs, rng)
        case _:
            assert_never(process)


def _bursty_s(process: Bursty, jobs: int, rng: np.random.Generator) -> Floats:
    """Draw lengths of calm and burst in turn, and arrivals in each of them."""
    found: list[Floats] = []
    have, from_s = 0, 0.0
    while have < jobs:
        for rate_per_h, mean_s in ((process.rate_per_h, process.calm_s), (process.burst_rate_per_h, process.burst_s)):
            to_s = from_s + rng.exponential(mean_s)
            found.append(_within_s(from_s, to_s, rate_per_h / _HOUR_S, jobs - have, rng))
            have, from_s = have + found[-1].size, to_s
    return np.concatenate(found)[:jobs]


def _within_s(from_s: float, to_s: float, rate_per_s: float, most: int, rng: np.random.Generator) -> Floats:
    """Return the arrivals of a Poisson process between two times, at most so many of the first ones."""
    if rate_per_s * (to_s - from_s) > 2 * most + 100:
        at_s = from_s + np.cumsum(rng.exponential(1 / rate_per_s, most))
        return at_s[at_s < to_s]
    return np.sort(rng.uniform(from_s, to_s, rng.poisson(rate_per_s * (to_s - from_s))))[:most]


def _diurnal_s(process: Diurnal, jobs: int, rng: np.random.Generator) -> Floats:
    """Thin a Poisson process of the highest rate (Lewis and Shedler, 1979)."""
    highest_per_s = process.rate_per_h * (1 + process.swing) / _HOUR_S
    found: list[Floats] = []
    have, from_s = 0, 0.0
    while have < jobs:
        at_s = from_s + np.cumsum(rng.exponential(1 / highest_per_s, jobs + 16))
        turn = np.cos(2 * np.pi * (at_s - process.peak_s) / process.period_s)
        kept = at_s[rng.uniform(0, 1 + process.swing, at_s.size) < 1 + process.swing * turn]
        found.append(kept)
        have, from_s = have + kept.size, float(at_s[-1])
    return np.concatenate(found)[:jobs]


def _gpus(recipe: Recipe, rng: np.random.Generator) -> Ints:
    weights = np.array(recipe.gpus.weights)
    return rng.choice(np.array(recipe.gpus.counts, np.int64), recipe.jobs, p=weights / weights.sum())


def _batches(recipe: Recipe, models: Sequence[str], gpus: Ints, rng: np.random.Generator) -> Ints | None:
    """Return batches over all devices, (J,), 0 where a model's users say none; None where no model has any."""
    choices = {model.name: model.batches for model in recipe.models}
    if not any(choices.values()):
        return None
    drawn = rng.random(recipe.jobs)
    local = [
        choices[model][int(at * len(choices[model]))] if choices[model] else 0
        for model, at in zip(models, drawn.tolist(), strict=True)
    ]
    return np.array(local, dtype=np.int64) * gpus


def _gpu_time_s(distribution: Lognormal | Pareto | Mixture, jobs: int, rng: np.random.Generator) -> Floats:
    """Return device-seconds, (J,)."""
    match distribution:
        case Lognormal():
            return distribution.median_s * np.exp(distribution.sigma * rng.standard_normal(jobs))
        case Pareto():
            return distribution.least_s * (1 - rng.random(jobs)) ** (-1 / distribution.alpha)
        case Mixture():
            weights = np.array([part.weight for part in distribution.parts])
            which = rng.choice(weights.size, jobs, p=weights / weights.sum())
            drawn = np.stack([_gpu_time_s(part, jobs, rng) for part in distribution.parts])
            return drawn[which, np.arange(jobs)]
        case _:
            assert_never(distribution)


def _names(mix: NameMix, what: str, jobs: int, rng: np.random.Generator) -> list[str]:
    weights = np.arange(1, mix.count + 1, dtype=np.float64) ** -mix.zipf
    return _drawn([f"{what}{i}" for i in range(mix.count)], weights.tolist(), jobs, rng)


def _drawn(names: Sequence[str], weights: Sequence[float], jobs: int, rng: np.random.Generator) -> list[str]:
    if not names:
        return []
    share = np.array(weights)
    return [names[i] for i in rng.choice(len(names), jobs, p=share / share.sum()).tolist()]


Positive = Annotated[float, Meta(gt=0, le=1e15)]
Share = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=0, le=1_000_000)]


class Poisson(msgspec.Struct, frozen=True, kw_only=True, tag="poisson", tag_field="process"):
    """Arrivals by a Poisson process: jobs come independently of each other."""

    rate_per_h: Positive


class Bursty(msgspec.Struct, frozen=True, kw_only=True, tag="bursty", tag_field="process"):
    """
    Arrivals in calm and burst by turns, each as long as an exponential draw says (a Markov-modulated Poisson process).

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
    Arrivals whose rate swings around its mean as a cosine.

    Attributes
    ----------
    swing : float
        0 is even; at 1 nobody comes at the quietest hour.
    """

    rate_per_h: Positive
    swing: Share = 0.8
    period_s: Positive = 86_400.0
    peak_s: Annotated[float, Meta(ge=0)] = 50_400.0


class GangSizeMix(msgspec.Struct, frozen=True, kw_only=True):
    """How many devices jobs ask for, and how often each number comes."""

    counts: Annotated[tuple[Annotated[int, Meta(ge=1, le=65_536)], ...], Meta(min_length=1)] = (1,)
    weights: Annotated[tuple[Annotated[float, Meta(ge=0)], ...], Meta(min_length=1)] = (1.0,)


class Lognormal(msgspec.Struct, frozen=True, kw_only=True, tag="lognormal", tag_field="distribution"):
    """Device time whose logarithm is normal."""

    median_s: Positive
    sigma: Annotated[float, Meta(ge=0, le=10)]
    weight: Positive = 1.0


class Pareto(msgspec.Struct, frozen=True, kw_only=True, tag="pareto", tag_field="distribution"):
    """Device time by a power law above ``least_s``; the smaller ``alpha``, the heavier the tail (no mean up to 1)."""

    least_s: Positive
    alpha: Positive
    weight: Positive = 1.0


class Mixture(msgspec.Struct, frozen=True, kw_only=True, tag="mixture", tag_field="distribution"):
    """Device time by one of several distributions, each as often as its weight says."""

    parts: Annotated[tuple[Lognormal | Pareto, ...], Meta(min_length=1)]


class RecipeModel(msgspec.Struct, frozen=True, kw_only=True):
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


class NameMix(msgspec.Struct, frozen=True, kw_only=True):
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
    gpus: GangSizeMix = GangSizeMix()
    least_s: Positive = 1.0
    most_s: Positive = 1e9
    models: tuple[RecipeModel, ...] = ()
    users: NameMix = NameMix()
    vcs: NameMix = NameMix()


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
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, a number of too many digits, nested too deeply
        raise TraceError(f"{path}: {error}; expected TOML") from error
    try:
        recipe = validation.convert(raw, Recipe)
    except validation.BadInput as error:
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
