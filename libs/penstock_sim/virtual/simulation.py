"""A trace on a virtual cluster, under one policy, by the production deciders."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from penstock_bus import Decider
from penstock_events import NodeJoined
from penstock_gateway.machine import decider as gateway
from penstock_gateway.settings import Settings as GatewaySettings
from penstock_matcher.machine import decider as matcher
from penstock_profiler.machine import decider as profiler
from penstock_ranker.machine import decider as ranker
from penstock_sim.cluster import Nodes
from penstock_sim.outcome import Outcome
from penstock_sim.trace import Trace
from penstock_sim.virtual import workload
from penstock_sim.virtual.costs import Costs, Failures
from penstock_sim.virtual.engine import Engine
from penstock_sim.virtual.executors import Executors
from penstock_sim.virtual.log import Log, Written
from penstock_sim.virtual.policies import Chosen, choose
from penstock_sim.virtual.records import Records
from penstock_sim.virtual.speedups import Speed, Speedups, relative
from penstock_sim.virtual.tasks import Task
from penstock_sim.virtual.workload import Telling
from penstock_sim.virtual.world import World

_LOOK_EVERY: Final = 256
_QUIET: Final = {"max_waits": 0}
"""Where nobody reads the log, rounds need not explain who waits; it changes nothing about who runs."""


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
    length_error : float
        Standard deviation of the logarithm of declared over true length, where the policy has jobs declare it.
    profile : bool
        Whether the production profiler samples unseen workloads; otherwise their speeds are known from the beginning.
    seed : int
        Of failures and errors.
    log : Path, optional
        Where to write the log, one fact a line; the production gateway then writes its announcements as well.
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
    length_error: float = 0.0
    profile: bool = False
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
    chosen = choose(policy, {**_QUIET, **(options.settings or {})} if options.log is None else options.settings)
    with ExitStack() as stack:
        written = stack.enter_context(Written(options.log)) if options.log is not None else None
        simulation = _Simulation(trace, cluster, chosen, options, written)
        simulation.run()
    return simulation.records.outcome(policy, simulation.engine.instants, time.process_time() - began_s)


class _Simulation:
    """All parts of one simulation, put together."""

    def __init__(self, trace: Trace, cluster: Nodes, chosen: Chosen, options: Options, written: Written | None) -> None:
        ids = workload.job_ids(trace)
        rows = zip(
            ids, trace.num_gpus.tolist(), trace.models or [""] * len(trace), trace.duration_s.tolist(), strict=True
        )
        tasks = [Task(job_id, row, gpus, str(model), work_s) for row, (job_id, gpus, model, work_s) in enumerate(rows)]
        speed = relative(options.speedups, cluster)
        self._options, self._chosen = options, chosen
        self.records = Records(trace, cluster, tasks, workload.shift_s(trace))
        self.engine = Engine(self._deciders(), Log(written.add if written is not None else None))
        self._executors = Executors(
            self.engine,
            speed=speed,
            costs=options.costs,
            on_ended=self.records.note_spell if options.spells else None,
        )
        self.engine.follow(self.records.note_ranks)
        self.engine.follow(self._executors.react)
        submitted = workload.submissions(trace, ids, self._telling(trace))
        self._world = World(self.engine, self._executors, tasks, submitted)
        self._open(list(workload.nodes(cluster)), trace, cluster, speed)

    def run(self) -> None:
        """Let time pass until every job has ended, or nothing more can become of any."""
        if self._options.watch is not None:
            self._options.watch(self.engine, self._executors)
        self.engine.run(self._more)

    def _deciders(self) -> list[Decider[Any]]:
        chosen, options = self._chosen, self._options
        heard = self._heard if options.failures is not None else None
        found: list[Decider[Any]] = [profiler()] if options.profile else []
        found += [ranker(chosen.ranker, chosen.ranker.priors()), matcher(chosen.matcher, heard)]
        return [*found, gateway(GatewaySettings())] if options.log is not None else found

    def _heard(self, _nodes: Iterable[str], _now_s: float) -> Mapping[str, float]:
        return self._executors.down_s  # who is missing there is well

    def _telling(self, trace: Trace) -> Telling:
        if not self._chosen.declares:
            return Telling(None, self._options.profile)
        rng = np.random.default_rng(self._options.seed)
        return Telling(workload.declared_s(trace, self._options.length_error, rng), self._options.profile)

    def _open(self, nodes: list[NodeJoined], trace: Trace, cluster: Nodes, speed: Speed) -> None:
        for joined in nodes:
            self.records.number(joined.node_id)
        known = [] if self._options.profile else list(workload.profiles(trace, cluster, speed))
        self._world.open(nodes, known)
        if self._options.failures is not None:
            self._world.fail(nodes, self._options.failures, self._options.seed)

    def _more(self) -> bool:
        engine, progress = self.engine, self._options.progress
        if self._options.timeline:
            self.records.note_instant(engine.now_s, self._executors.busy, self._world.waiting)
        if progress is not None and engine.instants % _LOOK_EVERY == 0 and not progress(self._executors.ended):
            return False
        return self._world.more()
