"""A trace on a virtual cluster, under one policy, by the production deciders."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from penstock_autoscaler.machine import decider as autoscaler
from penstock_autoscaler.settings import Settings as AutoscalerSettings
from penstock_bus import Decider
from penstock_events import JobsRanked, RoundDecided, SamplesRequested, SweepCancelled
from penstock_gateway.announcements import announcer
from penstock_gateway.machine import decider as gateway
from penstock_gateway.settings import Settings as GatewaySettings
from penstock_matcher.machine import decider as matcher
from penstock_profiler.machine import decider as profiler
from penstock_ranker.machine import decider as ranker
from penstock_sim import quotas
from penstock_sim.cluster import Nodes
from penstock_sim.counted.shapes import Shape
from penstock_sim.outcome import Outcome
from penstock_sim.quotas import Quotas
from penstock_sim.trace import Trace
from penstock_sim.virtual import workload
from penstock_sim.virtual.costs import Costs, Failures
from penstock_sim.virtual.engine import Engine
from penstock_sim.virtual.executors import Executors
from penstock_sim.virtual.log import Log, Written
from penstock_sim.virtual.policies import Chosen, choose
from penstock_sim.virtual.pools import partitioned
from penstock_sim.virtual.records import Records
from penstock_sim.virtual.resizing import Elastic, ElasticExecutors, elastic
from penstock_sim.virtual.script import Script, of_trace
from penstock_sim.virtual.speedups import Speedups, relative
from penstock_sim.virtual.station import Delays
from penstock_sim.virtual.workload import Telling
from penstock_sim.virtual.world import World

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
class Options:
    """
    What may be otherwise than in a plain run.

    Attributes
    ----------
    settings : mapping of str to value
        Of ranker and matcher, beside those of the policy.
    costs : Costs
    speedups : mapping, optional
        Model → kind → speed; the cluster's own speeds where not given.
    failures : Failures, optional
    quotas : Quotas, optional
        Of virtual clusters: those that lend are teams of one pool, those that do not are pools of their own.
    length_error : float
        Standard deviation of the logarithm of declared over true length, where the policy has jobs declare it.
    profile : bool
        Whether the production profiler samples unseen workloads; otherwise their speeds are known from the beginning.
    elastic : Elastic, optional
        Makes all jobs elastic, for the production autoscaler to size.
    autoscaler : settings of the autoscaler, optional
        Has it size those of the script's jobs that are elastic by themselves.
    delays : mapping of str to Delays
        By service: what keeps it from deciding at once.
    seed : int
        Of failures and errors.
    log : Path, optional
        Where to write the log, one fact a line, compressed where the name ends in ``.gz``; the production gateway's
        announcements are then written as well. What rounds say of those who wait is not, unless ``max_waits`` is set.
    timeline, spells : bool
        Whether the outcome has these.
    progress : callable, optional
        Is told now and then how many jobs have ended; False ends the simulation with the results so far.
    watch : callable, optional
        Is given engine and executors before they start, such as a checker of invariants.
    """

    settings: Mapping[str, Any] | None = None
    costs: Costs = field(default_factory=Costs)
    speedups: Speedups | None = None
    failures: Failures | None = None
    quotas: Quotas | None = None
    length_error: float = 0.0
    profile: bool = False
    elastic: Elastic | None = None
    autoscaler: AutoscalerSettings | None = None
    delays: Mapping[str, Delays] = field(default_factory=dict)
    seed: int = 0
    log: Path | None = None
    timeline: bool = False
    spells: bool = False
    progress: Callable[[int], bool] | None = None
    watch: Callable[[Engine, Executors], None] | None = None


def simulate(trace: Trace, cluster: Nodes, policy: str, *, overhead_s: float | None = None, **options: Any) -> Outcome:
    """
    Return what a cluster run by the production ranker and matcher would have made of a trace.

    Parameters
    ----------
    trace : Trace
    cluster : Nodes
    policy : str
        One of :data:`penstock_sim.virtual.policies.POLICIES`.
    overhead_s : float, optional
        Seconds at the beginning of every run in which nothing advances: short for ``costs=Costs(start_s=…)``.
    **options
        Fields of :class:`Options`.

    Notes
    -----
    The same arguments give the same outcome and the same log, to the byte. ``wall_s`` is the CPU time of all but the
    reading of the trace, the writing of the log included.

    Raises
    ------
    ValueError
        If the policy or a setting is not known.
    """
    chosen = Options(**options)
    if overhead_s is not None:
        chosen = replace(chosen, costs=replace(chosen.costs, start_s=overhead_s))
    return run(trace, cluster, policy, chosen)


def run(trace: Trace, cluster: Nodes, policy: str, options: Options) -> Outcome:
    """Return what :func:`simulate` does, with the options as one value."""
    began_s = time.process_time()
    chosen = choose(policy, options.settings)
    rng = np.random.default_rng(options.seed)
    declared_s = workload.declared_s(trace, options.length_error, rng) if chosen.declares else None
    speed = relative(options.speedups, cluster)
    script = of_trace(trace, cluster, speed, Telling(declared_s, options.profile), options.costs)
    if options.quotas is not None:
        script, options = _with_quotas(script, cluster, options, options.quotas)
    return play(script, policy, options, began_s)


def _with_quotas(script: Script, cluster: Nodes, options: Options, given: Quotas) -> tuple[Script, Options]:
    quotas.check(given, script.trace, cluster)
    if given.borrow:
        return script, replace(options, settings={**(options.settings or {}), "quotas": given.gpus})
    return partitioned(script, quotas.divide(given, script.trace, cluster)), options


def play(script: Script, policy: str, options: Options, began_s: float | None = None) -> Outcome:
    """Return what the deciders make of a script; CPU time counts from ``began_s``, or from now."""
    began_s = time.process_time() if began_s is None else began_s
    chosen = choose(policy, {**_QUIET, **(options.settings or {})})
    with ExitStack() as stack:
        stack.enter_context(_garbage_seldom())
        written = stack.enter_context(Written(options.log)) if options.log is not None else None
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

    def __init__(self, script: Script, chosen: Chosen, options: Options, written: Written | None) -> None:
        self._options, self._chosen = options, chosen
        self._cancels_sweeps = any(isinstance(fact, SweepCancelled) for _, fact, _ in script.facts)
        self._silence = options.failures is not None or bool(script.outages)
        shapes: Mapping[str, Shape] = {}
        if options.elastic is not None:
            script, shapes = elastic(script, options.elastic)
        self.records = Records(script, resizes=bool(shapes) or options.autoscaler is not None)
        self.engine = Engine(self._deciders(), Log(written.add if written is not None else None), options.delays)
        make = script.executors or (partial(ElasticExecutors, shapes=shapes) if shapes else Executors)
        self._executors: Executors = make(
            self.engine,
            speed=script.speed,
            costs=options.costs,
            sampled=script.sampled,
            on_ended=self.records.note_spell if options.spells else None,
        )
        self.engine.follow(JobsRanked, self.records.note_ranks)
        self.engine.follow(RoundDecided, self._executors.follow)
        self.engine.follow(SamplesRequested, self._executors.expect)
        self._world = World(self.engine, self._executors, script)
        if options.failures is not None:
            self._world.fail(script.nodes, options.failures, options.seed)

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
            found.append(autoscaler(options.elastic.settings))
        elif options.autoscaler is not None:
            found.append(autoscaler(options.autoscaler))
        if options.log is None:
            return found
        return [*found, gateway(GatewaySettings()) if self._cancels_sweeps else announcer()]

    def _heard(self, _nodes: Iterable[str], _now_s: float) -> Mapping[str, float]:
        return self._executors.down_s  # who is missing there is well

    def _more(self) -> bool:
        engine, options = self.engine, self._options
        progress = options.progress
        if options.timeline:
            self.records.note_instant(engine.now_s, self._executors.busy, self._world.waiting)
        if progress is not None and engine.instants % _LOOK_EVERY == 0 and not progress(self._executors.ended):
            return False
        return self._world.more()
