"""A simulation that can start: files read, arguments checked, engine chosen."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from penstock.cli.asking import Asked, Engine
from penstock.cli.errors import bad_input
from penstock_matcher.settings import Settings as MatcherSettings
from penstock_policies.lengths import read_prior
from penstock_ranker.settings import Settings as RankerSettings
from penstock_sim import cluster as clusters
from penstock_sim import counted
from penstock_sim.cluster import Nodes
from penstock_sim.counted.settings import Settings as CountedSettings
from penstock_sim.outcome import Outcome
from penstock_sim.trace import Floats, Trace
from penstock_sim.traces import read
from penstock_sim.virtual import policies as virtual
from penstock_sim.virtual import simulation, speedups
from penstock_sim.virtual.costs import Failures
from penstock_sim.virtual.speedups import Speedups

Progress = Callable[[int], bool]

POLICIES: Final = tuple(dict.fromkeys((*counted.POLICIES, *virtual.POLICIES)))
_COUNTED: Final = CountedSettings.__struct_fields__
_DECIDED: Final = (*RankerSettings.__struct_fields__, *MatcherSettings.__struct_fields__)
_PLACED: Final = "best-fit"
"""How the production matcher places: gangs of skewed models together, others where least is broken up."""
PLACEMENTS: Final = tuple(dict.fromkeys((*counted.PLACEMENTS, _PLACED)))


@dataclass(frozen=True)
class Plan:
    """
    A simulation of one trace on one cluster that can start.

    Attributes
    ----------
    engine : {"counted", "deciders"}
        The same for all policies: one comparison, one set of rules.
    timeline, spells : bool
        Whether the outcomes are to have these.
    """

    asked: Asked
    trace: Trace
    nodes: Nodes
    engine: Engine
    samples: Floats | None
    speedups: Speedups | None
    timeline: bool
    spells: bool

    def run(self, policy: str, progress: Progress | None = None) -> Outcome:
        """Simulate one policy; ``progress`` is told how many jobs have ended, where the engine counts them."""
        with told():
            return self._counted(policy, progress) if self.engine == "counted" else self._decided(policy, progress)

    def _counted(self, policy: str, progress: Progress | None) -> Outcome:
        asked = self.asked
        return counted.simulate(
            self.trace,
            self.nodes,
            policy,
            settings=asked.settings,
            placement=asked.placement or "count",
            compat=asked.compat or None,
            gpu_time_samples=self.samples,
            overhead_s=asked.overhead_s,
            timeline=self.timeline,
            go_on=lambda ended, _jobs: progress is None or progress(ended),
        )

    def _decided(self, policy: str, progress: Progress | None) -> Outcome:
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
            seed=asked.seed,
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
        if self.trace.gpu_share is not None and (parts := int((self.trace.gpu_share < 1).sum())):
            found.append(f"{parts:,} jobs ask for a part of one GPU and are given a whole one")
        return found


def plan(asked: Asked, *, timeline: bool, spells: bool) -> Plan:
    """Read and check everything; whatever makes no sense ends with a message."""
    with told():
        nodes = clusters.load(asked.cluster)
        samples = _samples(asked.gpu_time_samples) if asked.gpu_time_samples else None
        factors = speedups.read(asked.speedups) if asked.speedups else None
    _check_names(asked)
    engine = _engine(asked, nodes, spells=spells)
    with told():
        _check_values(asked, engine)
    trace = read(asked.trace, asked.format)
    _check_fits(trace, nodes, engine, asked.cluster)
    return Plan(
        asked=asked,
        trace=trace,
        nodes=nodes,
        engine=engine,
        samples=samples,
        speedups=factors,
        timeline=timeline,
        spells=spells or (timeline and engine == "deciders"),
    )


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
    return {**asked.settings, **samples}


def _samples(path: Path) -> Floats:
    try:
        return np.array(read_prior(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError(f"--gpu-time-samples {path} cannot be read: {error.strerror}; name a file that can") from error
    except ValueError as error:
        raise ValueError(f"--gpu-time-samples {path}: {error}") from error


def _check_names(asked: Asked) -> None:
    if not asked.policies:
        bad_input(f"no policy is named; expected --policy with some of {', '.join(POLICIES)}")
    for policy in asked.policies:
        _check_known("policy", policy, POLICIES)
    for name in asked.settings:
        _check_known("setting", name, sorted({*_COUNTED, *_DECIDED}))
    if asked.placement:
        _check_known("placement", asked.placement, PLACEMENTS)
    if asked.compat:
        _check_known("compat mode", asked.compat, counted.COMPATS)
    if asked.log and len(asked.policies) > 1:
        bad_input("--log takes the log of one policy; name one policy, or leave --log out")


def _check_known(what: str, name: str, known: tuple[str, ...] | list[str]) -> None:
    if name not in known:
        close = [one for one in known if one.startswith(name)] or difflib.get_close_matches(name, known, n=1)
        meant = f"; did you mean {close[0]}?" if close else ""
        bad_input(f"there is no {what} {name!r}; expected one of {', '.join(known)}{meant}")


def _engine(asked: Asked, nodes: Nodes, *, spells: bool) -> Engine:
    """Return the engine: counting where that will do, for it is many times faster."""
    deciders, counting = list(_only_deciders(asked, nodes, spells=spells)), list(_only_counted(asked))
    if deciders and counting:
        bad_input(f"{counting[0]} can only be counted, and {deciders[0]} needs the deciders; leave one of them out")
    if asked.engine == "counted" and deciders:
        bad_input(f"{deciders[0]} needs the deciders; leave it out, or leave --engine counted out")
    if asked.engine == "deciders" and counting:
        bad_input(f"{counting[0]} can only be counted; leave it out, or leave --engine deciders out")
    if asked.engine != "auto":
        return asked.engine
    return "deciders" if deciders else "counted"


def _only_deciders(asked: Asked, nodes: Nodes, *, spells: bool) -> Iterator[str]:
    """Yield what was asked for and cannot be counted."""
    yield from (f"--policy {policy}" for policy in asked.policies if policy not in counted.POLICIES)
    yield from (f"--set {name}" for name in asked.settings if name not in _COUNTED)
    if asked.placement == _PLACED:
        yield f"--placement {_PLACED}"
    if len(nodes.kinds) > 1 or len({group.speed for group in nodes.groups}) > 1:
        yield f"a cluster of several device kinds ({', '.join(nodes.kinds)})"
    given = {
        "--speedups": asked.speedups,
        "--log": asked.log,
        "--gantt": spells,
        "--mtbf-s": asked.mtbf_s,
        "--length-error": asked.length_error,
    }
    yield from (option for option, value in given.items() if value)


def _only_counted(asked: Asked) -> Iterator[str]:
    """Yield what was asked for and the deciders do not know."""
    if asked.compat:
        yield f"--compat {asked.compat}"
    if asked.placement and asked.placement != _PLACED:
        yield f"--placement {asked.placement}"
    yield from (f"--policy {policy}" for policy in asked.policies if policy not in virtual.POLICIES)
    yield from (f"--set {name}" for name in asked.settings if name not in _DECIDED)


def _check_values(asked: Asked, engine: Engine) -> None:
    if engine == "counted":
        CountedSettings.of(asked.settings)
        if asked.placement == "yarn" and not asked.compat:
            raise ValueError("--placement yarn is part of a published simulator; give --compat tiresias-2019 with it")
    else:
        for policy in asked.policies:
            virtual.choose(policy, decided_settings(asked))


def _check_fits(trace: Trace, nodes: Nodes, engine: Engine, word: str) -> None:
    """End with a message if a gang is larger than all devices, of one kind where kinds are told apart."""
    if not len(trace):
        bad_input(f"there is no job in {trace.name}; expected at least one row that asks for a GPU for some time")
    largest = int(trace.num_gpus.max())
    room = nodes.gpus if engine == "counted" else max(map(nodes.of_kind, nodes.kinds))
    if largest > room:
        too_large = int((trace.num_gpus > room).sum())
        bad_input(
            f"{too_large:,} of {len(trace):,} jobs can never start: the largest asks for {largest:,} GPUs at once and "
            f"--cluster {word} has {room:,}{' of one kind' if len(nodes.kinds) > 1 else ''}; "
            "give a larger cluster, or a trace without them"
        )
