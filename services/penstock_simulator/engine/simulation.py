"""
A trace in, an outcome out.

:func:`simulate` runs a trace on a virtual cluster, under one policy, by the production deciders;
:class:`SimulationOptions` has everything that may differ from a plain run. The same arguments give the same log, to the
byte. :func:`partitioned` serves virtual clusters that lend nothing: each becomes a pool of its own, as in a real
cluster that is run so.
"""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from penstock_autoscaler.machine import decider as autoscaler
from penstock_bus import Decider
from penstock_gateway.dependencies import unblocker
from penstock_gateway.machine import GatewaySettings, announcer
from penstock_gateway.machine import decider as gateway
from penstock_log import JobsRanked, JobSubmitted, RoundDecided, SamplesRequested, SweepCancelled
from penstock_matcher.machine import decider as matcher
from penstock_profiler.machine import decider as profiler
from penstock_ranker.machine import decider as ranker
from penstock_scheduler.sizing.problem import SizingSettings
from penstock_simulator import virtual_cluster
from penstock_simulator.engine import cluster_script
from penstock_simulator.engine.cluster_script import (
    Failures,
    RunCosts,
    Script,
    Speedups,
    of_trace,
    relative,
)
from penstock_simulator.engine.elastic_executors import ElasticExecutors, ElasticTrace, elastic
from penstock_simulator.engine.engine import DecisionDelays, EventEngine, LogFileWriter, VirtualLog
from penstock_simulator.engine.executors import Environment, VirtualExecutors
from penstock_simulator.engine.policies import PolicySettings, choose
from penstock_simulator.engine.tasks import OutcomeRecorder
from penstock_simulator.fast.fast_settings import JobShape
from penstock_simulator.outcome import Outcome
from penstock_simulator.trace import Trace
from penstock_simulator.virtual_cluster import NodeGroup, SimulatedNodes, VirtualClusterPart, VirtualClusterQuotas

_LOOK_EVERY: Final = 256
_QUIET: Final = {"max_waits": 0}
"""
Rounds need not explain who waits: whoever asks a log has it worked out.

It decides nothing about who runs, but who explains is asked more often, and a round also goes by expectations that
change with time alone: a job that waits for a faster device may start some moments sooner with explanations.
"""

_SELDOM: Final = (200_000, 50, 1_000)
"""Of collecting garbage: a hundred thousand jobs are not looked at again and again; hardly any is part of a ring."""


@dataclass(frozen=True)
class SimulationOptions:
    """
    Options of a simulation: what may differ from a plain run.

    Attributes
    ----------
    settings : mapping of str to value
        Settings of ranker and matcher, beside those of the policy.
    costs : RunCosts
    speedups : mapping, optional
        Model → kind → speed; the cluster's own speeds where not given.
    failures : Failures, optional
    quotas : VirtualClusterQuotas, optional
        Quotas of virtual clusters: those that lend are teams of one pool, the others are pools of their own.
    length_error : float
        Standard deviation of the logarithm of declared over true length, where the policy has jobs declare lengths.
    profile : bool
        Whether the production profiler samples unseen workloads; otherwise their speeds are known from the beginning.
    elastic : ElasticTrace, optional
        If given, all jobs are elastic and the production autoscaler sizes them.
    autoscaler : settings of the autoscaler, optional
        If given, the autoscaler sizes those jobs of the script that are elastic by themselves.
    delays : mapping of str to DecisionDelays
        Service → the delays of its decisions.
    seed : int
        Seed of failures and errors.
    log : Path, optional
        Where to write the log, one fact a line, compressed where the name ends in ``.gz``; the production gateway's
        announcements are then written as well. Rounds do not say why jobs wait, unless ``max_waits`` is set.
    timeline, spells : bool
        Whether the outcome has a timeline, and the spells in which devices were held.
    progress : callable, optional
        Called now and then with the number of ended jobs; False ends the simulation with the results so far.
    watch : callable, optional
        Called with engine and executors before they start; a checker of invariants, for example.
    """

    settings: Mapping[str, Any] | None = None
    costs: RunCosts = field(default_factory=RunCosts)
    speedups: Speedups | None = None
    failures: Failures | None = None
    quotas: VirtualClusterQuotas | None = None
    length_error: float = 0.0
    profile: bool = False
    elastic: ElasticTrace | None = None
    autoscaler: SizingSettings | None = None
    delays: Mapping[str, DecisionDelays] = field(default_factory=dict)
    seed: int = 0
    log: Path | None = None
    timeline: bool = False
    spells: bool = False
    progress: Callable[[int], bool] | None = None
    watch: Callable[[EventEngine, VirtualExecutors], None] | None = None


def simulate(
    trace: Trace, cluster: SimulatedNodes, policy: str, *, overhead_s: float | None = None, **options: Any
) -> Outcome:
    """
    Return the outcome of a trace on a cluster that the production ranker and matcher run.

    Parameters
    ----------
    trace : Trace
    cluster : SimulatedNodes
    policy : str
        One of :data:`penstock_simulator.engine.policies.SIMULATED_POLICIES`.
    overhead_s : float, optional
        Seconds at the beginning of every run in which nothing advances: short for ``costs=RunCosts(start_s=…)``.
    **options
        Fields of :class:`SimulationOptions`.

    Notes
    -----
    The same arguments give the same outcome and the same log, to the byte. ``wall_s`` is the CPU time of all but the
    reading of the trace, the writing of the log included.

    Raises
    ------
    ValueError
        If the policy or a setting is not known.
    """
    began_s, chosen = time.process_time(), SimulationOptions(**options)
    if overhead_s is not None:
        chosen = replace(chosen, costs=replace(chosen.costs, start_s=overhead_s))
    declared_s = None
    if choose(policy, chosen.settings).declares:
        declared_s = cluster_script.declared_s(trace, chosen.length_error, np.random.default_rng(chosen.seed))
    speed = relative(chosen.speedups, cluster)
    script = of_trace(trace, cluster, speed, chosen.costs, declared_s, profile=chosen.profile)
    if (quotas := chosen.quotas) is not None:
        virtual_cluster.check(quotas, trace, cluster)
        if quotas.borrow:
            chosen = replace(chosen, settings={**(chosen.settings or {}), "quotas": quotas.gpus})
        else:
            script = partitioned(script, virtual_cluster.divide(quotas, trace, cluster))
    return play(script, policy, chosen, began_s)


def play(script: Script, policy: str, options: SimulationOptions, began_s: float | None = None) -> Outcome:
    """Return the outcome of a script under the deciders; CPU time counts from ``began_s``, or from now."""
    began_s = time.process_time() if began_s is None else began_s
    chosen = choose(policy, {**_QUIET, **(options.settings or {})})
    with ExitStack() as stack:
        stack.enter_context(_garbage_seldom())
        written = stack.enter_context(LogFileWriter(options.log)) if options.log is not None else None
        simulation = _Simulation(script, chosen, options, written)
        simulation.run()
    return simulation.records.outcome(policy, simulation.engine.instants, time.process_time() - began_s)


@contextmanager
def _garbage_seldom() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*_SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class _Simulation:
    """All parts of one simulation, put together."""

    def __init__(
        self, script: Script, chosen: PolicySettings, options: SimulationOptions, written: LogFileWriter | None
    ) -> None:
        self._options, self._chosen = options, chosen
        self._cancels_sweeps = any(isinstance(fact, SweepCancelled) for _, fact, _ in script.facts)
        self._unblocks = script.unblocks
        self._silence = options.failures is not None or bool(script.outages)
        shapes: Mapping[str, JobShape] = {}
        if options.elastic is not None:
            script, shapes = elastic(script, options.elastic)
        resizes = bool(shapes) or options.autoscaler is not None
        self.records = OutcomeRecorder(script.trace, script.tasks, script.sizes, script.shift_s, resizes=resizes)
        self.engine = EventEngine(
            self._deciders(), VirtualLog(written.add if written is not None else None), options.delays
        )
        make = script.executors or (partial(ElasticExecutors, shapes=shapes) if shapes else VirtualExecutors)
        self._executors: VirtualExecutors = make(
            self.engine,
            speed=script.speed,
            costs=options.costs,
            sampled=script.sampled,
            on_ended=self.records.note_spell if options.spells else None,
        )
        self.engine.follow(JobsRanked, self.records.note_ranks)
        self.engine.follow(RoundDecided, self._executors.follow)
        self.engine.follow(SamplesRequested, self._executors.expect)
        self._environment = Environment(self.engine, self._executors, script)
        if options.failures is not None:
            self._environment.fail(script.nodes, options.failures, options.seed)

    def run(self) -> None:
        """Let time pass until every job has ended, or nothing more can become of any."""
        if self._options.watch is not None:
            self._options.watch(self.engine, self._executors)
        self.engine.run(self._more)

    def _deciders(self) -> list[Decider[Any]]:
        chosen, options = self._chosen, self._options
        found: list[Decider[Any]] = [profiler()] if options.profile else []
        found += [
            ranker(chosen.ranker, chosen.ranker.priors()),
            matcher(chosen.matcher, self._heard if self._silence else None),
        ]
        if options.elastic is not None:
            found.append(autoscaler(options.elastic.settings, chosen.matcher))
        elif options.autoscaler is not None:
            found.append(autoscaler(options.autoscaler, chosen.matcher))
        if self._unblocks and (options.log is None or not self._cancels_sweeps):
            found.append(unblocker())
        if options.log is None:
            return found
        return [*found, gateway(GatewaySettings()) if self._cancels_sweeps else announcer()]

    def _heard(self, _nodes: Iterable[str], _now_s: float) -> Mapping[str, float]:
        return self._executors.down_s  # who is missing there is well

    def _more(self) -> bool:
        engine, options = self.engine, self._options
        progress = options.progress
        if options.timeline:
            self.records.note_instant(engine.now_s, self._executors.busy, self._environment.waiting)
        if progress is not None and engine.instants % _LOOK_EVERY == 0 and not progress(self._executors.ended):
            return False
        return self._environment.more()


_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


def partitioned(script: Script, parts: Sequence[VirtualClusterPart]) -> Script:
    """Return the script of a cluster whose nodes and jobs are those of the parts, each in a pool of its own."""
    pools = [part.name if _NAME.fullmatch(part.name) else f"vc{at}" for at, part in enumerate(parts)]
    pool_of = {row: pool for part, pool in zip(parts, pools, strict=True) for row in part.rows.tolist()}
    groups: list[NodeGroup] = []
    owners: list[str] = []
    for part, pool in zip(parts, pools, strict=True):
        groups += part.nodes.groups
        owners += [pool] * len(part.nodes.sizes)
    nodes = zip(cluster_script.nodes(SimulatedNodes(groups)), owners, strict=True)

    def submitted(row: int) -> JobSubmitted:
        fact = script.submitted(row)
        return msgspec.structs.replace(fact, spec=msgspec.structs.replace(fact.spec, pool=pool_of[row]))

    return replace(
        script, submitted=submitted, nodes=[msgspec.structs.replace(node, pool=pool) for node, pool in nodes]
    )
