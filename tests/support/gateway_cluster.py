"""
A cluster under virtual time with a random past: production deciders, and executors that do as rounds say.

The same seed gives the same past, so that one can ask the gateway what would happen, and then see whether it does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import msgspec
import numpy as np

from penstock_autoscaler.machine import decider as autoscaler
from penstock_bus import Decider, Decision
from penstock_bus.decider import Fold
from penstock_gateway import machine
from penstock_gateway.machine import GatewaySettings
from penstock_log import (
    AnyEvent,
    Batch,
    Device,
    DeviceFailed,
    Job,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobSpec,
    JobSubmitted,
    MemoryNeed,
    NodeDrained,
    NodeJoined,
    NodeResumed,
    PolicySet,
    ProfileSample,
    ReservationMade,
    RoundDecided,
    RunCheckpointed,
    RunMeasured,
    SamplesRequested,
    subjects,
    validation,
)
from penstock_matcher.machine import decider as matcher
from penstock_profiler.machine import decider as profiler
from penstock_ranker.machine import RankerSettings
from penstock_ranker.machine import decider as ranker
from penstock_scheduler.pool.pool_settings import MatcherSettings
from penstock_scheduler.round_types import PriorityClass
from penstock_scheduler.sizing.problem import SizingSettings
from penstock_simulator.engine.cluster_script import RunCosts
from penstock_simulator.engine.engine import EventEngine, VirtualLog
from penstock_simulator.engine.executors import VirtualExecutors
from penstock_simulator.engine.tasks import VirtualRun, VirtualTask
from penstock_testing import subject_of

T = TypeVar("T")

BEGIN_S: Final = 1_700_000_000.0
GIB: Final = 2**30
ITERATION_S: Final = 0.02
SPEEDS: Final = {"fast": 1.0, "slow": 0.4, "old": 0.2, "cpu": 0.1, "tpu": 2.0}
POOL: Final = "default"


class Workers(VirtualExecutors):
    """Executors that also tell what jobs need of memory, and that elastic ones can save."""

    def __init__(self, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, **more)
        self.needs: dict[str, MemoryNeed] = {}
        self.elastic: set[str] = set()

    def cancel(self, job_id: str) -> None:
        """End a run whose job was cancelled, if it has one."""
        if (run := self.runs.get(job_id)) is not None:
            self._end_all(run, "cancelled")

    def _start(self, run: VirtualRun) -> None:
        super()._start(run)
        now_s, job_id = self._engine.now_s, run.task.id
        if run.missing or run.halted or not run.open or not self._is_on(run):
            return
        if job_id in self.needs:
            self._event_queue.at(now_s + 1.0, self._measure, run)
        if job_id in self.elastic:
            self._event_queue.at(now_s + 1.0, self._checkpoint, run)

    def _measure(self, run: VirtualRun) -> None:
        for node_id in run.open if self._is_on(run) and not run.halted else ():
            need = self.needs[run.task.id]
            self._tell(
                RunMeasured(
                    at_s=self._engine.now_s,
                    job_id=run.task.id,
                    epoch=run.epoch,
                    node_id=node_id,
                    need=need,
                    iterations=8,
                )
            )

    def _checkpoint(self, run: VirtualRun) -> None:
        if self._is_on(run) and not run.halted and run.open:
            now_s = self._engine.now_s
            step = run.task.steps(run.task.kept_s + run.worked_s(now_s))
            self._tell(
                RunCheckpointed(
                    at_s=now_s, job_id=run.task.id, epoch=run.epoch, node_id=next(iter(run.open)), step=step
                )
            )

    def _tell(self, fact: RunMeasured | RunCheckpointed) -> None:
        self._append(subjects.run(fact.job_id), fact, f"executor/{fact.node_id}")

    def _said(self, run: VirtualRun) -> dict[str, Any]:
        return {"saves": True} if run.task.id in self.elastic else {}


@dataclass(frozen=True)
class Settings:
    """What a cluster is run by."""

    ranker: RankerSettings = field(default_factory=RankerSettings)
    matcher: MatcherSettings = field(default_factory=MatcherSettings)
    autoscaler: SizingSettings = field(default_factory=SizingSettings)


class VirtualCluster:
    """
    Deciders on one log, time that passes when told so, and the gateway's read model.

    All services hear of a submission at one time, so the matcher is asked first: what the others make of it, such as
    ranks and sizes, is there for its next round.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        deciders: list[Decider[Any]] = [
            self._matcher(),
            ranker(self.settings.ranker),
            autoscaler(self.settings.autoscaler, self.settings.matcher),
            profiler(),
        ]
        self.engine = EventEngine(deciders, VirtualLog())
        self._gateway = Fold(machine.decider(GatewaySettings()))
        self.engine.witness(self._gateway.apply)
        self.workers = Workers(
            self.engine, speed=lambda _model, kind: SPEEDS[kind], costs=RunCosts(stop_s=0.5), sampled=self._sampled
        )
        self.engine.follow(RoundDecided, self.workers.follow)
        self.engine.follow(SamplesRequested, self.workers.expect)
        self.rounds: list[RoundDecided] = []
        self.engine.follow(RoundDecided, self.rounds.append)
        self.run_until(BEGIN_S)

    def _matcher(self) -> Decider[Any]:
        """Return the matcher, which goes by the settings of the moment."""
        made = {id(self.settings.matcher): self._matcher_by(self.settings.matcher)}

        def decide(state: Any, now_s: float) -> Decision:
            chosen = self.settings.matcher
            if id(chosen) not in made:
                made[id(chosen)] = self._matcher_by(chosen)
            return made[id(chosen)].decide(state, now_s)

        return replace(self._matcher_by(self.settings.matcher), decide=decide)

    def _matcher_by(self, settings: MatcherSettings) -> Decider[Any]:
        return matcher(settings, lambda _nodes, _now_s: self.workers.down_s)

    def rule_by(self, **rules: Any) -> None:
        """Have rounds decided by other rules from now on."""
        chosen = msgspec.structs.replace(self.settings.matcher, **rules)
        self.settings = replace(self.settings, matcher=chosen)
        self.engine.wake()
        self.run_until(self.now_s)

    @property
    def state(self) -> machine.GatewayState:
        """What the gateway knows."""
        return self._gateway.state

    @property
    def now_s(self) -> float:
        """The time."""
        return self.engine.now_s

    def at(self, at_s: float, *facts: AnyEvent) -> None:
        """Let facts be true at a time."""
        for fact in facts:
            self.engine.event_queue.at(at_s, self._happen, fact)

    def submit_at(self, at_s: float, spec: JobSpec, work_s: float, **more: Any) -> None:
        """Let a job be submitted at a time, which needs so much work on the fastest kind."""
        self.engine.event_queue.at(at_s, self._submit, spec, work_s, more)

    def fail_at(self, at_s: float, node_id: str) -> None:
        """Let a node fall silent."""
        self.engine.event_queue.at(at_s, self._fail, node_id)

    def run_until(self, until_s: float) -> None:
        """Let time pass, and all that happens at its end be decided."""
        self.engine.event_queue.at(until_s, lambda: None)
        self.engine.run(lambda: self.engine.now_s < until_s)

    def now(self, *facts: AnyEvent) -> None:
        """Let facts be true now, and what follows from them be decided."""
        self.at(self.now_s, *facts)
        self.run_until(self.now_s)

    def submit(self, spec: JobSpec, work_s: float = 50.0, **more: Any) -> Job:
        """Submit a job now; return it as it is once what follows from that is decided."""
        self.submit_at(self.now_s, spec, work_s, **more)
        self.run_until(self.now_s)
        return self.state.jobs[spec.id]

    def _submit(self, spec: JobSpec, work_s: float, more: Mapping[str, Any]) -> None:
        spec = validation.settled(spec)
        task = VirtualTask(spec.id, 0, spec.gpus, spec.model, work_s, iteration_s=ITERATION_S, **more)
        self.workers.tasks[spec.id] = task
        if spec.sharing == "lane":
            self.workers.needs[spec.id] = spec.memory or MemoryNeed(persistent_bytes=GIB, ephemeral_bytes=GIB)
        if spec.elastic:
            self.workers.elastic.add(spec.id)
        self._happen(JobSubmitted(at_s=self.now_s, job_id=spec.id, spec=spec))

    def _happen(self, fact: AnyEvent) -> None:
        self.engine.append(subject_of(fact), fact, "test")
        if isinstance(fact, JobCancelled):
            self.engine.event_queue.at(self.now_s + 0.5, self.workers.cancel, fact.job_id)

    def _fail(self, node_id: str) -> None:
        self.workers.fail(node_id)
        self.engine.wake()

    def _sampled(self, asked: SamplesRequested, sample: ProfileSample) -> VirtualTask:
        work_s = sample.iterations * ITERATION_S
        return VirtualTask(sample.sample_id, -1, sample.gpus, asked.spec.model, work_s, iteration_s=ITERATION_S)


def node(node_id: str, memory_gib: int = 16, pool: str = POOL, at_s: float = BEGIN_S, **kinds: int) -> NodeJoined:
    """Return a node with so many devices of each kind."""
    named = [kind for kind, count in kinds.items() for _ in range(count)]
    devices = tuple(
        Device(index=index, kind=kind, memory_bytes=memory_gib * GIB, backend="cpu" if kind == "cpu" else "emulated")
        for index, kind in enumerate(named)
    )
    return NodeJoined(at_s=at_s, node_id=node_id, devices=devices, pool=pool, incarnation="1")


def job(job_id: str = "new", **fields: Any) -> JobSpec:
    """Return a job that is sampled by nobody."""
    return JobSpec(**{"name": "job", "command": ("true",), "user": "ann", "profile": "off", "id": job_id, **fields})


# --- random ones
class Dice:
    """
    Chance.

    Parameters
    ----------
    seed : int
    stream : int
        Another one gives other chances for the same seed.
    """

    def __init__(self, seed: int, stream: int = 0) -> None:
        self._rng = np.random.default_rng((seed, stream))

    def one(self, options: Sequence[T], weights: Sequence[float] = ()) -> T:
        """Return one of some options, equally likely ones where no weights are given."""
        if not weights:
            return options[int(self._rng.integers(len(options)))]
        return options[int(self._rng.choice(len(options), p=np.array(weights) / sum(weights)))]

    def below(self, limit: int) -> int:
        """Return a number from 0 on that is below a limit."""
        return int(self._rng.integers(limit))

    def between(self, low: float, high: float) -> float:
        """Return a number between two."""
        return float(self._rng.uniform(low, high))

    def happens(self, probability: float) -> bool:
        """Say whether something happens."""
        return bool(self._rng.random() < probability)


def random_cluster(
    seed: int, *, quotas: bool | None = None, fair: bool | None = None, reserved: bool = False, classed: bool = False
) -> VirtualCluster:
    """
    Return a cluster in the midst of its life.

    Parameters
    ----------
    quotas, fair : bool, optional
        Whether there are quotas, and whether fairness counts; None: by chance.
    reserved : bool
        Whether devices are reserved for teams.
    classed : bool
        Whether jobs have priority classes (:func:`random_class`).
    """
    rng, of_classes = Dice(seed), Dice(seed, stream=3)
    settings = _random_settings(rng, quotas=quotas, fair=fair)
    if classed:
        rules = msgspec.structs.replace(settings.matcher, classes=CLASSES)
        settings = replace(settings, matcher=rules)
    cluster = VirtualCluster(settings)
    nodes = list(_random_nodes(rng))
    cluster.at(BEGIN_S, *nodes)
    until_s = BEGIN_S + rng.between(1.0, 120.0)
    if reserved:
        cluster.at(BEGIN_S, *_random_reservations(Dice(seed, stream=2)))
    jobs = [f"j{number}" for number in range(rng.below(16))]
    for job_id in jobs:
        at_s = rng.between(BEGIN_S + 0.5, until_s)
        spec, work_s = random_job(rng, job_id)
        spec = random_class(of_classes, spec) if classed else spec
        failures = [(work_s * rng.between(0.0, 1.0), 0.0)] if rng.happens(0.1) else []
        cluster.submit_at(at_s, spec, work_s, failures=failures)
        cluster.at(at_s + rng.between(0.0, 60.0), *_random_acts(rng, job_id))
    for joined in nodes:
        _random_fate(rng, cluster, joined, until_s)
    if rng.happens(0.15):
        live = rng.one([{"order": "fifo"}, {"alpha": 1.0}, {"placement": "first-fit"}, {"patience_s": 1.0}])
        cluster.at(rng.between(BEGIN_S, until_s), PolicySet(at_s=BEGIN_S, pool=POOL, settings=live))
    cluster.run_until(until_s)
    return cluster


def _random_reservations(rng: Dice) -> Iterator[ReservationMade]:
    for number in range(1 + rng.below(3)):
        from_s, team = BEGIN_S + rng.between(0.0, 200.0), rng.one(["vision", "speech"])
        yield ReservationMade(
            at_s=BEGIN_S,
            pool=POOL,
            reservation_id=f"{team}-{number}",
            team=team,
            gpus=1 + rng.below(3),
            from_s=from_s,
            until_s=from_s + rng.between(1.0, 200.0),
            kind="fast" if number == 1 else "",
        )


CLASSES: Final = {
    "urgent": PriorityClass(weight=10, preempts=True),
    "gold": PriorityClass(weight=5, most_gpus=2),
    "night": PriorityClass(weight=-5, most_gpus=3),
}


def random_class(rng: Dice, spec: JobSpec) -> JobSpec:
    """Return a job with a class, or with none, or with one that there is not."""
    return msgspec.structs.replace(spec, priority_class=rng.one(["urgent", "gold", "night", "", "gone"]))


def random_job(rng: Dice, job_id: str, **fixed: Any) -> tuple[JobSpec, float]:
    """Return a job, and the seconds of work that it really is."""
    work_s = rng.one([2.0, 20.0, 60.0, 200.0]) * rng.between(0.5, 1.5)
    fields: dict[str, Any] = {
        "user": rng.one(["ann", "bob", "eve"]),
        "team": rng.one(["", "vision", "speech"]),
        "gpus": rng.one([1, 2, 3, 5], [12, 3, 2, 0.5]),
        "kinds": rng.one([(), ("fast",), ("slow",), ("fast", "slow"), ("cpu",), ("tpu",)], [20, 3, 3, 2, 0.7, 0.2]),
        "memory_bytes": rng.one([0, 8 * GIB, 16 * GIB, 32 * GIB], [16, 3, 1, 0.3]),
        "model": rng.one(["", "cnn", "mlp", "lm"]),
        "profile": rng.one(["auto", "on", "off"], [3, 2, 2]),
        "opaque": rng.happens(0.4),
        "duration_s": work_s if rng.happens(0.5) else 0.0,
        "retries": rng.one([0, 0, 2]),
        "backoff_s": rng.one([1.0, 15.0]),
        "hold": rng.happens(0.05),
        "command": ("python", f"{rng.one(['train', 'eval', job_id])}.py"),
    }
    match rng.one(["exclusive", "lane", "fraction", "elastic"], [12, 2, 1, 3]):
        case "lane":
            need = MemoryNeed(persistent_bytes=rng.one([1, 4, 12]) * GIB, ephemeral_bytes=GIB)
            declared = {"memory": need} if rng.happens(0.6) else {}
            fields |= {"sharing": "lane", "share_with": rng.one(["anyone", "team", "user"]), **declared}
        case "fraction":
            fields |= {"sharing": "fraction", "fraction": rng.one([0.25, 0.5]), "gpus": 1}
            fields |= {"share_with": rng.one(["anyone", "team", "user"])}
        case "elastic":
            most = rng.one([2, 4])
            fields |= {"gpus": 1, "min_gpus": rng.one([1, 1, 2]), "max_gpus": most, "batch_size": 64}
            fields |= {"batch": Batch(min=32, max=256)} if rng.happens(0.5) else {}
    return job(job_id, **{**fields, **fixed}), work_s


def _random_settings(rng: Dice, *, quotas: bool | None, fair: bool | None) -> Settings:
    order = rng.one(
        ["2d-las", "fifo", "fifo-backfill", "fewest-gpus", "srtf", "srsf", "las", "2d-gittins"],
        [8, 2, 2, 1, 1, 1, 1, 2],
    )
    with_quotas = rng.happens(0.4) if quotas is None else quotas
    with_alpha = rng.happens(0.6) if fair is None else fair
    return Settings(
        RankerSettings(
            order=order,
            thresholds_gpu_s=rng.one([(20.0, 100.0), (3_600.0, 36_000.0), ()]),
            promote_knob=rng.one([None, 2.0]),
        ),
        MatcherSettings(
            alpha=rng.one([0.5, 0.34]) if with_alpha else 1.0,
            assign=rng.one(["allox", "first-fit", "load-balance"], [5, 1, 1]),
            placement=rng.one(["best-fit", "consolidate", "first-fit"], [4, 1, 1]),
            patience_s=rng.one([2.0, 30.0]),
            min_run_s=rng.one([0.0, 5.0]),
            quotas={"vision": rng.below(4), "speech": rng.below(3)} if with_quotas else {},
            explain_every_s=0.0,
            max_tries=0,
        ),
    )


def _random_nodes(rng: Dice) -> Iterator[NodeJoined]:
    mixed = rng.happens(0.7)
    for number in range(1 + rng.below(4)):
        kinds = {"fast": rng.below(3) + (not number)}
        if mixed:
            kinds |= {"slow": rng.below(3), "old": rng.one([0, 0, 1]), "cpu": rng.one([0, 0, 1])}
        if any(kinds.values()):
            pool = "lab" if number and rng.happens(0.15) else POOL
            yield node(f"n{number}", rng.one([8, 16]), pool, **kinds)


def _random_acts(rng: Dice, job_id: str) -> Iterator[AnyEvent]:
    act = rng.one(["none", "hold", "hold and release", "cancel"], [12, 1, 1, 1])
    if act.startswith("hold"):
        yield JobHeld(at_s=BEGIN_S, job_id=job_id)
    if act.endswith("release"):
        yield JobReleased(at_s=BEGIN_S, job_id=job_id)
    if act == "cancel":
        yield JobCancelled(at_s=BEGIN_S, job_id=job_id)


def _random_fate(rng: Dice, cluster: VirtualCluster, joined: NodeJoined, until_s: float) -> None:
    at_s, node_id = rng.between(BEGIN_S + 1.0, until_s), joined.node_id
    match rng.one(["none", "drain", "empty", "drain and resume", "device", "fail"], [16, 1, 1, 1, 1, 1]):
        case "drain":
            cluster.at(at_s, NodeDrained(at_s=at_s, node_id=node_id))
        case "empty":
            cluster.at(at_s, NodeDrained(at_s=at_s, node_id=node_id, preempt=True))
        case "drain and resume":
            cluster.at(at_s, NodeDrained(at_s=at_s, node_id=node_id))
            cluster.at(at_s + 5.0, NodeResumed(at_s=at_s, node_id=node_id))
        case "device":
            cluster.at(at_s, DeviceFailed(at_s=at_s, node_id=node_id, index=0, code="xid 79", reason="XID 79"))
        case "fail":
            cluster.fail_at(at_s, node_id)
