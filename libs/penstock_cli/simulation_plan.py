"""
A simulation that can start: files read, arguments checked, engine and seeds chosen.

The counting engine is chosen where it will do, because it is many times faster.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from penstock_cli.invocation import bad_input
from penstock_cli.simulation_arguments import Engine, SimulationArguments
from penstock_policies.job_lengths import read_prior
from penstock_policies.queue_policies import QUEUE_POLICIES
from penstock_ranker.machine import RankerSettings
from penstock_scheduler.placement import PLACEMENTS as PLACED
from penstock_scheduler.pool.pool_settings import MatcherSettings
from penstock_simulator import fast, virtual_cluster
from penstock_simulator.engine import cluster_script, simulation
from penstock_simulator.engine import policies as virtual
from penstock_simulator.engine.cluster_script import Failures, RunCosts, Speedups
from penstock_simulator.fast import fast_settings
from penstock_simulator.fast.fast_settings import Curves, FastSettings, FastSizingSettings, Profiles
from penstock_simulator.outcome import Outcome
from penstock_simulator.trace import Floats, Trace
from penstock_simulator.traces import generator, read
from penstock_simulator.traces.generator import Recipe, generate
from penstock_simulator.traces.generator import speedups as speeds_of
from penstock_simulator.virtual_cluster import SimulatedNodes, VirtualClusterQuotas

__all__ = ["ALL_POLICIES", "Progress", "SimulationPlan", "explained_values", "plan"]


ALL_POLICIES: Final = tuple(dict.fromkeys((*fast.FAST_POLICIES, *virtual.SIMULATED_POLICIES, *fast.SIZED_POLICIES)))
PLACEMENTS: Final = tuple(dict.fromkeys((*fast.PLACEMENTS, *PLACED)))
COUNTED: Final = FastSettings.__struct_fields__
DECIDED: Final = (*RankerSettings.__struct_fields__, *MatcherSettings.__struct_fields__)
SIZED_SETTINGS: Final = FastSizingSettings.__struct_fields__
_ANY_SIZED: Final = " or ".join((", ".join(fast.SIZED_POLICIES[:-1]), fast.SIZED_POLICIES[-1]))


def sizing_option(asked: SimulationArguments) -> list[str]:
    """Return the policies asked for that may give jobs other sizes."""
    return [policy for policy in asked.policies if policy in fast.SIZED_POLICIES]


def check_names(asked: SimulationArguments) -> None:
    """End with a message where a policy, setting, placement or mode is not known, or options contradict each other."""
    if not asked.policies:
        bad_input(f"no policy is named; expected --policy with some of {', '.join(ALL_POLICIES)}")
    for policy in asked.policies:
        _check_known("policy", policy, ALL_POLICIES)
    for name in asked.chosen:
        _check_known("setting", name, sorted({*COUNTED, *DECIDED, *SIZED_SETTINGS}))
        if name in {*SIZED_SETTINGS} - {*COUNTED, *DECIDED} and not sizing_option(asked):
            bad_input(f"--set {name} is of policy {_ANY_SIZED}, none of which is named; add one, or leave it out")
    if asked.placement:
        _check_known("placement", asked.placement, PLACEMENTS)
    if asked.compat:
        _check_known("compat mode", asked.compat, fast.COMPATS)
    if asked.log and (len(asked.policies) > 1 or len(asked.seeds) > 1):
        bad_input("--log takes the log of one policy and seed; name one of each, or leave --log out")
    if asked.borrow is not None and asked.quota is None:
        bad_input("--borrow and --no-borrow are about quotas; give --quota FILE with them, or leave them out")
    _check_speeds(asked)


def _check_speeds(asked: SimulationArguments) -> None:
    for option, file in (("--scaling", asked.scaling), ("--profiles", asked.profiles)):
        if file is not None and not sizing_option(asked):
            bad_input(f"{option} is for policy {_ANY_SIZED}, none of which is named; add one, or leave {option} out")
    if asked.scaling is not None and asked.profiles is not None:
        bad_input("--scaling and --profiles both say how fast models are; give one of them")


def _check_known(what: str, name: str, known: tuple[str, ...] | list[str]) -> None:
    if name not in known:
        close = [one for one in known if one.startswith(name)] or difflib.get_close_matches(name, known, n=1)
        meant = f"; did you mean {close[0]}?" if close else ""
        bad_input(f"there is no {what} {name!r}; expected one of {', '.join(known)}{meant}")


def choose_engine(
    asked: SimulationArguments, nodes: SimulatedNodes, quotas: VirtualClusterQuotas | None, *, spells: bool
) -> Engine:
    """Return the engine of all policies but those that size jobs, which are always counted; tell if none will do."""
    needs, known = list(_needs_deciders(asked, nodes, quotas, spells=spells)), list(_known_to_deciders(asked))
    if sizing_option(asked) and needs:
        bad_input(
            f"--policy {sizing_option(asked)[0]} can only be counted, and {needs[0]} needs the deciders; leave one out"
        )
    deciders, counting = [*known, *needs], list(_only_counted(asked))
    if deciders and counting:
        bad_input(f"{counting[0]} can only be counted, and {deciders[0]} needs the deciders; leave one of them out")
    if asked.engine == "counted" and deciders:
        bad_input(f"{deciders[0]} needs the deciders; leave it out, or leave --engine counted out")
    if asked.engine == "deciders" and counting:
        bad_input(f"{counting[0]} can only be counted; leave it out, or leave --engine deciders out")
    if asked.engine != "auto":
        return asked.engine
    return "deciders" if deciders else "counted"


def _known_to_deciders(asked: SimulationArguments) -> Iterator[str]:
    """Yield what only the deciders know, for the policies that they run."""
    known = (*fast.FAST_POLICIES, *fast.SIZED_POLICIES)
    yield from (f"--policy {policy}" for policy in asked.policies if policy not in known)
    yield from (f"--set {name}" for name in asked.chosen if name not in COUNTED and name not in SIZED_SETTINGS)
    if asked.placement in PLACED:
        yield f"--placement {asked.placement}"


def _needs_deciders(
    asked: SimulationArguments, nodes: SimulatedNodes, quotas: VirtualClusterQuotas | None, *, spells: bool
) -> Iterator[str]:
    """Yield what is asked for of the cluster that cannot be counted."""
    if len(nodes.kinds) > 1 or len({group.speed for group in nodes.groups}) > 1:
        yield f"a cluster of several device kinds ({', '.join(nodes.kinds)})"
    if quotas is not None and quotas.borrow:
        yield "--quota with borrowing"
    given = {
        "--speedups": asked.speedups,
        "--log": asked.log,
        "--gantt": spells,
        "--mtbf-s": asked.mtbf_s,
        "--parked-s": asked.parked_s is not None,
        "--length-error": asked.length_error,
    }
    yield from (option for option, value in given.items() if value)


def _only_counted(asked: SimulationArguments) -> Iterator[str]:
    """Yield what was asked for and the deciders do not know."""
    if asked.compat:
        yield f"--compat {asked.compat}"
    if asked.placement and asked.placement not in PLACED:
        yield f"--placement {asked.placement}"
    known = (*virtual.SIMULATED_POLICIES, *fast.SIZED_POLICIES)
    yield from (f"--policy {policy}" for policy in asked.policies if policy not in known)
    yield from (f"--set {name}" for name in asked.chosen if name not in DECIDED and name not in SIZED_SETTINGS)


Progress = Callable[[int], bool]


@dataclass(frozen=True)
class SimulationPlan:
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

    asked: SimulationArguments
    trace: Trace
    nodes: SimulatedNodes
    engine: Engine
    samples: Floats | None = None
    speedups: Speedups | None = None
    quotas: VirtualClusterQuotas | None = None
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

    def seeded(self, seed: int) -> SimulationPlan:
        """Return the plan with the trace of a seed."""
        made_up = self.recipe is not None and seed != self.seeds[0]
        return replace(self, trace=_made_up(self.recipe, seed)) if made_up and self.recipe is not None else self

    def run(self, policy: str, seed: int | None = None, progress: Progress | None = None) -> Outcome:
        """Simulate one policy; ``progress`` is called with the number of jobs that have ended."""
        one = self.seeds[0] if seed is None else seed
        with explained_values():
            if self.engine == "counted" or policy in fast.SIZED_POLICIES:
                return self.seeded(one)._counted(policy, progress)
            return self.seeded(one)._decided(policy, one, progress)

    def _counted(self, policy: str, progress: Progress | None) -> Outcome:
        asked = self.asked
        return fast.simulate(
            self.trace,
            self.nodes,
            policy,
            settings=counted_settings(asked, policy),
            placement=asked.placement if asked.placement in fast.PLACEMENTS else "count",
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
            costs=RunCosts(start_s=asked.overhead_s, parked_start_s=asked.parked_s),
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
        """The engine and what was set otherwise than by default, by name."""
        how = "counted" if self.engine == "counted" else "production deciders under virtual time"
        return {"engine": how, **self.asked.described()}

    @property
    def notes(self) -> list[str]:
        """What readers of the figures have to know, each one sentence."""
        found = []
        learning = [
            policy for policy in self.asked.policies if policy in QUEUE_POLICIES and QUEUE_POLICIES[policy].learns
        ]
        if self.engine == "counted" and self.samples is None:
            found += [
                f"{policy} knows how long the jobs of this very trace are; --gpu-time-samples tells it of others"
                for policy in learning
            ]
        if sized := sizing_option(self.asked):
            file = self.asked.profiles or self.asked.scaling
            how = file.name if file is not None else f"GPUs to the power of {fast_settings.EXPONENT:g}"
            counting = "" if self.engine == "counted" else ", and counts devices where the others place jobs on nodes"
            others = [policy for policy in sized if policy != "fixed"]
            resizing = f"{', '.join(others)} may give a job other GPUs than it asks for; " if others else ""
            found.append(f"{resizing}throughput goes by {how}{counting}")
        if self.quotas is not None and not self.quotas.borrow:
            found.append("virtual clusters lend nothing: each is a cluster by itself")
        if self.quotas is not None and (unused := sorted(self.quotas.gpus.keys() - set(map(str, self.trace.vcs)))):
            found.append(f"no job is of virtual cluster {', '.join(unused[:5])}, which has a quota")
        if self.trace.gpu_share is not None and (parts := int((self.trace.gpu_share < 1).sum())):
            found.append(f"{parts:,} jobs ask for a part of one GPU and are given a whole one")
        return found


def plan(asked: SimulationArguments, *, timeline: bool, spells: bool) -> SimulationPlan:
    """Read and check everything; whatever makes no sense ends with a message."""
    with explained_values():
        nodes = virtual_cluster.load(asked.cluster)
        samples = _samples(asked.gpu_time_samples) if asked.gpu_time_samples else None
        factors = cluster_script.read(asked.speedups) if asked.speedups else None
        curves = fast_settings.read_curves(asked.scaling) if asked.scaling else None
        profiles = fast_settings.read_profiles(asked.profiles) if asked.profiles else None
        limits = _quotas(asked) if asked.quota else None
    check_names(asked)
    engine = choose_engine(asked, nodes, limits, spells=spells)
    with explained_values():
        _check_values(asked, engine)
    recipe = generator.read(asked.trace) if asked.trace.suffix == ".toml" else None
    _check_seeds(asked, recipe)
    if recipe is not None:
        trace = _made_up(recipe, asked.seeds[0] if asked.seeds else recipe.seed)
        factors = factors or (speeds_of(recipe) if engine == "deciders" else None)
    else:
        trace = read(asked.trace, asked.format)
    found = SimulationPlan(
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
def explained_values() -> Iterator[None]:
    """Turn what the libraries say of bad values into a message about what was typed."""
    try:
        yield
    except ValueError as error:
        bad_input(str(error))


def decided_settings(asked: SimulationArguments) -> dict[str, str]:
    """Return the settings of ranker and matcher."""
    samples = {"prior_file": str(asked.gpu_time_samples)} if asked.gpu_time_samples else {}
    placed = {"placement": asked.placement} if asked.placement in PLACED else {}
    own = {name: value for name, value in asked.chosen.items() if name in DECIDED}
    return {**own, **samples, **placed}


def counted_settings(asked: SimulationArguments, policy: str) -> Mapping[str, str]:
    """Return the counting engine's settings for a policy; beside one that sizes jobs, each gets its own."""
    if not sizing_option(asked):
        return asked.chosen
    mine = SIZED_SETTINGS if policy in fast.SIZED_POLICIES else COUNTED
    return {name: value for name, value in asked.chosen.items() if name in mine}


def _made_up(recipe: Recipe, seed: int) -> Trace:
    return generate(msgspec.structs.replace(recipe, seed=seed))


def _quotas(asked: SimulationArguments) -> VirtualClusterQuotas | None:
    if asked.quota is None:
        return None
    found = virtual_cluster.read_quotas(asked.quota)
    return found if asked.borrow is None else msgspec.structs.replace(found, borrow=asked.borrow)


def _samples(path: Path) -> Floats:
    try:
        return np.array(read_prior(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError(f"--gpu-time-samples {path} cannot be read: {error.strerror}; name a file that can") from error
    except ValueError as error:
        raise ValueError(f"--gpu-time-samples {path}: {error}") from error


def _check_values(asked: SimulationArguments, engine: Engine) -> None:
    if sized := sizing_option(asked):
        if asked.compat:
            raise ValueError(
                f"--policy {sized[0]} is no part of what was published; leave it or --compat {asked.compat} out"
            )
        FastSizingSettings.of(counted_settings(asked, sized[0]))
    others = [policy for policy in asked.policies if policy not in sized]
    if engine == "counted":
        if others:
            FastSettings.of(counted_settings(asked, others[0]))
        if asked.placement == "yarn" and not asked.compat:
            raise ValueError("--placement yarn is part of a published simulator; give --compat tiresias-2019 with it")
    else:
        for policy in others:
            virtual.choose(policy, decided_settings(asked))


def _check_seeds(asked: SimulationArguments, recipe: Recipe | None) -> None:
    if len(asked.seeds) > 1 and recipe is None and not asked.mtbf_s and not asked.length_error:
        bad_input(
            f"nothing here goes by chance, so {len(asked.seeds)} seeds would give the same; give a recipe (.toml) as "
            "TRACE, --mtbf-s or --length-error, or leave all seeds but one out"
        )


def _check_fits(found: SimulationPlan) -> None:
    """End with a message if a gang is larger than all devices, of one kind where kinds are told apart."""
    trace, nodes = found.trace, found.nodes
    if not len(trace):
        bad_input(f"there is no job in {trace.name}; expected at least one row that asks for a GPU for some time")
    if found.quotas is not None:
        with explained_values():
            virtual_cluster.check(found.quotas, trace, nodes)
        if not found.quotas.borrow:
            _check_parts(found, found.quotas)
    most, largest = _largest_gang(nodes, found.engine), int(trace.num_gpus.max())
    if largest > most and not set(found.asked.policies) <= {*fast.SIZED_POLICIES} - {"fixed"}:
        too_large = int((trace.num_gpus > most).sum())
        bad_input(
            f"{too_large:,} of {len(trace):,} jobs can never start: the largest asks for {largest:,} GPUs at once and "
            f"--cluster {found.asked.cluster} has {most:,}{' of one kind' if len(nodes.kinds) > 1 else ''}; "
            "give a larger cluster, or a trace without them"
        )


def _check_parts(found: SimulationPlan, given: VirtualClusterQuotas) -> None:
    for part in virtual_cluster.divide(given, found.trace, found.nodes):
        asked_for = found.trace.num_gpus[part.rows]
        most = _largest_gang(part.nodes, found.engine) if part.nodes.groups else 0
        if most and int(asked_for.max()) > most:
            bad_input(
                f"{int((asked_for > most).sum()):,} of {asked_for.size:,} jobs of virtual cluster {part.name} can "
                f"never start: the largest asks for {int(asked_for.max()):,} GPUs at once and it has {most:,}; "
                "raise its quota, or lend with --borrow"
            )


def _largest_gang(nodes: SimulatedNodes, engine: Engine) -> int:
    return nodes.gpus if engine == "counted" else max(map(nodes.of_kind, nodes.kinds))
