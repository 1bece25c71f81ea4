"""A simulation that can start: files read, arguments checked, engine chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from penstock.cli import choosing
from penstock.cli.asking import Asked, Engine
from penstock.cli.choosing import POLICIES
from penstock.cli.errors import bad_input
from penstock_policies.lengths import read_prior
from penstock_policies.placement import PLACEMENTS as PLACED
from penstock_sim import cluster as clusters
from penstock_sim import counted, quotas
from penstock_sim.cluster import Nodes
from penstock_sim.counted import shapes, sizing
from penstock_sim.counted.settings import Settings as CountedSettings
from penstock_sim.counted.shapes import Profiles
from penstock_sim.counted.sizing import Curves, Sizing
from penstock_sim.outcome import Outcome
from penstock_sim.quotas import Quotas
from penstock_sim.trace import Floats, Trace
from penstock_sim.traces import read
from penstock_sim.traces import recipe as recipes
from penstock_sim.traces.generate import generate
from penstock_sim.traces.generate import speedups as speeds_of
from penstock_sim.traces.recipe import Recipe
from penstock_sim.virtual import policies as virtual
from penstock_sim.virtual import simulation, speedups
from penstock_sim.virtual.costs import Failures
from penstock_sim.virtual.speedups import Speedups

__all__ = ["POLICIES", "Plan", "Progress", "plan", "told"]

Progress = Callable[[int], bool]


@dataclass(frozen=True)
class Plan:
    """
    A simulation of one trace on one cluster that can start.

    Attributes
    ----------
    trace : Trace
        That of the first seed, where it is made up.
    engine : {"counted", "deciders"}
        The same for all policies but those that size jobs, which are always counted: one comparison, one set of rules.
    recipe : Recipe or None
        By which the trace is made up for each seed.
    timeline, spells : bool
        Whether the outcomes are to have these.
    """

    asked: Asked
    trace: Trace
    nodes: Nodes
    engine: Engine
    samples: Floats | None = None
    speedups: Speedups | None = None
    quotas: Quotas | None = None
    curves: Curves | None = None
    profiles: Profiles | None = None
    recipe: Recipe | None = None
    timeline: bool = False
    spells: bool = False

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of all runs of a policy, in order; the recipe's own, or 0, where none was named."""
        own = self.recipe.seed if self.recipe is not None else 0
        return self.asked.seeds or (own,)

    def seeded(self, seed: int) -> Plan:
        """Return the plan with the trace of a seed."""
        made_up = self.recipe is not None and seed != self.seeds[0]
        return replace(self, trace=_made_up(self.recipe, seed)) if made_up and self.recipe is not None else self

    def run(self, policy: str, seed: int | None = None, progress: Progress | None = None) -> Outcome:
        """Simulate one policy; ``progress`` is told how many jobs have ended, where the engine counts them."""
        one = self.seeds[0] if seed is None else seed
        with told():
            if self.engine == "counted" or policy in counted.SIZED:
                return self.seeded(one)._counted(policy, progress)
            return self.seeded(one)._decided(policy, one, progress)

    def _counted(self, policy: str, progress: Progress | None) -> Outcome:
        asked = self.asked
        return counted.simulate(
            self.trace,
            self.nodes,
            policy,
            settings=counted_settings(asked, policy),
            placement=asked.placement if asked.placement in counted.PLACEMENTS else "count",
            compat=asked.compat or None,
            gpu_time_samples=self.samples,
            scaling=self.curves,
            profiles=self.profiles,
            overhead_s=asked.overhead_s,
            timeline=self.timeline,
            quotas=self.quotas,
            go_on=lambda ended, _jobs: progress is None or progress(ended),
        )

    def _decided(self, policy: str, seed: int, progress: Progress | None) -> Outcome:
        asked = self.asked
        return simulation.simulate(
            self.trace,
            self.nodes,
            policy,
            settings=decided_settings(asked),
            overhead_s=asked.overhead_s,
            speedups=self.speedups,
            failures=Failures(asked.mtbf_s, asked.repair_s) if asked.mtbf_s else None,
            length_error=asked.length_error,
            quotas=self.quotas,
            seed=seed,
            log=asked.log,
            timeline=self.timeline,
            spells=self.spells,
            progress=progress,
        )

    @property
    def described(self) -> dict[str, str]:
        """What readers have to know of the settings, by name."""
        how = "counted" if self.engine == "counted" else "production deciders under virtual time"
        return {"engine": how, **self.asked.described()}

    @property
    def notes(self) -> list[str]:
        """What readers of the figures have to know, each one sentence."""
        found = []
        if self.engine == "counted" and "2d-gittins" in self.asked.policies and self.samples is None:
            found.append(
                "2d-gittins knows how long the jobs of this very trace are; --gpu-time-samples tells it of others"
            )
        if sized := choosing.sized(self.asked):
            file = self.asked.profiles or self.asked.scaling
            how = file.name if file is not None else f"GPUs to the power of {sizing.EXPONENT:g}"
            counting = "" if self.engine == "counted" else ", and counts devices where the others place jobs on nodes"
            others = [policy for policy in sized if policy != "fixed"]
            told = f"{', '.join(others)} may give a job other GPUs than it asks for; " if others else ""
            found.append(f"{told}throughput goes by {how}{counting}")
        if self.quotas is not None and not self.quotas.borrow:
            found.append("virtual clusters lend nothing: each is a cluster by itself")
        if self.quotas is not None and (unused := sorted(self.quotas.gpus.keys() - set(map(str, self.trace.vcs)))):
            found.append(f"no job is of virtual cluster {', '.join(unused[:5])}, which has a quota")
        if self.trace.gpu_share is not None and (parts := int((self.trace.gpu_share < 1).sum())):
            found.append(f"{parts:,} jobs ask for a part of one GPU and are given a whole one")
        return found


def plan(asked: Asked, *, timeline: bool, spells: bool) -> Plan:
    """Read and check everything; whatever makes no sense ends with a message."""
    with told():
        nodes = clusters.load(asked.cluster)
        samples = _samples(asked.gpu_time_samples) if asked.gpu_time_samples else None
        factors = speedups.read(asked.speedups) if asked.speedups else None
        curves = sizing.read(asked.scaling) if asked.scaling else None
        profiles = shapes.read(asked.profiles) if asked.profiles else None
        limits = _quotas(asked) if asked.quota else None
    choosing.check_names(asked)
    engine = choosing.engine(asked, nodes, limits, spells=spells)
    with told():
        _check_values(asked, engine)
    recipe = recipes.read(asked.trace) if asked.trace.suffix == ".toml" else None
    _check_seeds(asked, recipe)
    if recipe is not None:
        trace = _made_up(recipe, asked.seeds[0] if asked.seeds else recipe.seed)
        factors = factors or (speeds_of(recipe) if engine == "deciders" else None)
    else:
        trace = read(asked.trace, asked.format)
    found = Plan(
        asked=asked,
        trace=trace,
        nodes=nodes,
        engine=engine,
        samples=samples,
        speedups=factors or None,
        quotas=limits,
        curves=curves,
        profiles=profiles,
        recipe=recipe,
        timeline=timeline,
        spells=spells or (timeline and engine == "deciders"),
    )
    _check_fits(found)
    return found


@contextmanager
def told() -> Iterator[None]:
    """Turn what the libraries say of bad values into a message about what was typed."""
    try:
        yield
    except ValueError as error:
        bad_input(str(error))


def decided_settings(asked: Asked) -> dict[str, str]:
    """Return what ranker and matcher are told."""
    samples = {"prior_file": str(asked.gpu_time_samples)} if asked.gpu_time_samples else {}
    placed = {"placement": asked.placement} if asked.placement in PLACED else {}
    own = {name: value for name, value in asked.settings.items() if name in choosing.DECIDED}
    return {**own, **samples, **placed}


def counted_settings(asked: Asked, policy: str) -> Mapping[str, str]:
    """Return what the counting engine is told of a policy; with one that sizes jobs beside it, each is told its own."""
    if not choosing.sized(asked):
        return asked.settings
    mine = choosing.SIZED if policy in counted.SIZED else choosing.COUNTED
    return {name: value for name, value in asked.settings.items() if name in mine}


def _made_up(recipe: Recipe, seed: int) -> Trace:
    return generate(msgspec.structs.replace(recipe, seed=seed))


def _quotas(asked: Asked) -> Quotas | None:
    if asked.quota is None:
        return None
    found = quotas.read(asked.quota)
    return found if asked.borrow is None else msgspec.structs.replace(found, borrow=asked.borrow)


def _samples(path: Path) -> Floats:
    try:
        return np.array(read_prior(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError(f"--gpu-time-samples {path} cannot be read: {error.strerror}; name a file that can") from error
    except ValueError as error:
        raise ValueError(f"--gpu-time-samples {path}: {error}") from error


def _check_values(asked: Asked, engine: Engine) -> None:
    if sized := choosing.sized(asked):
        if asked.compat:
            raise ValueError(
                f"--policy {sized[0]} is no part of what was published; leave it or --compat {asked.compat} out"
            )
        Sizing.of(counted_settings(asked, sized[0]))
    others = [policy for policy in asked.policies if policy not in sized]
    if engine == "counted":
        if others:
            CountedSettings.of(counted_settings(asked, others[0]))
        if asked.placement == "yarn" and not asked.compat:
            raise ValueError("--placement yarn is part of a published simulator; give --compat tiresias-2019 with it")
    else:
        for policy in others:
            virtual.choose(policy, decided_settings(asked))


def _check_seeds(asked: Asked, recipe: Recipe | None) -> None:
    if len(asked.seeds) > 1 and recipe is None and not asked.mtbf_s and not asked.length_error:
        bad_input(
            f"nothing here goes by chance, so {len(asked.seeds)} seeds would give the same; give a recipe (.toml) as "
            "TRACE, --mtbf-s or --length-error, or leave all seeds but one out"
        )


def _check_fits(found: Plan) -> None:
    """End with a message if a gang is larger than all devices, of one kind where kinds are told apart."""
    trace, nodes = found.trace, found.nodes
    if not len(trace):
        bad_input(f"there is no job in {trace.name}; expected at least one row that asks for a GPU for some time")
    if found.quotas is not None:
        with told():
            quotas.check(found.quotas, trace, nodes)
        if not found.quotas.borrow:
            _check_parts(found, found.quotas)
    room, largest = _room(nodes, found.engine), int(trace.num_gpus.max())
    if largest > room and not set(found.asked.policies) <= {*counted.SIZED} - {"fixed"}:
        too_large = int((trace.num_gpus > room).sum())
        bad_input(
            f"{too_large:,} of {len(trace):,} jobs can never start: the largest asks for {largest:,} GPUs at once and "
            f"--cluster {found.asked.cluster} has {room:,}{' of one kind' if len(nodes.kinds) > 1 else ''}; "
            "give a larger cluster, or a trace without them"
        )


def _check_parts(found: Plan, given: Quotas) -> None:
    for part in quotas.divide(given, found.trace, found.nodes):
        asked_for = found.trace.num_gpus[part.rows]
        room = _room(part.nodes, found.engine) if part.nodes.groups else 0
        if room and int(asked_for.max()) > room:
            bad_input(
                f"{int((asked_for > room).sum()):,} of {asked_for.size:,} jobs of virtual cluster {part.name} can "
                f"never start: the largest asks for {int(asked_for.max()):,} GPUs at once and it has {room:,}; "
                "raise its quota, or lend with --borrow"
            )


def _room(nodes: Nodes, engine: Engine) -> int:
    return nodes.gpus if engine == "counted" else max(map(nodes.of_kind, nodes.kinds))
