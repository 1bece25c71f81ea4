"""
What shared aggregators save in a simulated cluster over a week of Philly: ``bench_aggregation_saving.py``.

The distributed jobs of a week (2 GPUs or more) start when the trace says, and take as long as it says if nothing holds
them up. It does not say what they trained: models are drawn, equally likely, from those whose speed on 2, 4 and 8 V100
was measured for Gavel, and a job of another width is as fast as one of the next narrower width. Each GPU is a worker:
an iteration takes the number of GPUs over the measured steps a second, in which those of all workers count.

Aggregation takes processor time: for each MiB of the model, one sum for each worker and one update by SGD with
momentum, in numpy, as measured on this machine at the beginning. Models are cut into parts of 8 MiB. A server is one
core. Networks are not simulated.

* *Own*: a job reserves servers of its own for all of its time; how many, is varied. If these cannot keep up with the
  job's GPUs, its iteration takes as long as they need.
* *Shared*: it does so for 100 iterations, in which it is measured. Then :func:`assign` packs its parts, and its own
  servers are free. When a job leaves, :func:`rebalance` and :func:`recycle` move what has to or may move; an aggregator
  without tasks is free. A job that turns out to lose more than the limit goes back to servers of its own for good: that
  is checked after 100 iterations, and every hour.

How much a job loses is simulated in two ways. *Hidden*: by its turns in the cycle alone, as the assignment takes it.
What aggregators do for a job goes on while its GPUs compute, however few aggregators there are. *Exposed*: nothing is
hidden. A job waits for the aggregator that is last with its parts, and that one may be busy with a run of another job,
half of which is left in the mean. The truth lies between the two. *Spread* packs with a limit for the time that one
aggregator works on a job in an iteration: what the busiest of its own servers took. Each way is simulated with the
paper's limit of the loss, and with a lower one.

A job runs on for the time that it lost. Not simulated: admission (the cluster is large enough for all), and the time
that a move or a new aggregator takes. Two of the four rules for a job's own servers are simulated by default: each
takes five minutes.

References
----------
Jeon et al., Analysis of large-scale multi-tenant GPU clusters, ATC 2019: the trace. Narayanan et al., OSDI 2020: the
speeds. Gu, Systems for deep learning clusters (dissertation, University of Michigan, 2021), chapter IV: 52.7 % less
processor time in a cluster, 25 to 75 % fewer servers.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from penstock_policies.aggregation import (
    LOSS_LIMIT,
    AggregatorLoad,
    Task,
    TaskMove,
    assign,
    lost_more,
    rebalance,
    recycle,
)
from penstock_simulator.traces import read
from penstock_simulator.traces.plain_formats import throughputs

TESTS: Final = Path(__file__).parents[1]
PHILLY: Final = TESTS.parents[1] / "shared" / "traces" / "philly_12vc_109532.csv.gz"
MEASURED: Final = TESTS / "data" / "reference" / "gavel_throughputs.json"
WEEK_S: Final = 7 * 86_400.0
HOUR_S: Final = 3_600.0
WIDTHS: Final = (8, 4, 2)
PART_MIB: Final = 8.0
PROFILED: Final = 100
"""Iterations in which a job is measured, alone and again with others."""

PARAMETERS: Final[Mapping[str, int]] = {
    "ResNet-18": 11_173_962,  # for CIFAR-10: He et al., CVPR 2016, 64 to 512 channels, no max-pooling; by its shapes
    "ResNet-50": 25_557_032,  # torchvision.models.resnet50, its documentation
    "Transformer": 47_200_000,  # Vaswani et al., 2017, base: 44.1 M, and 6,061 words of Multi30k with 512 each
    "LM": 13_987_678,  # pytorch/examples, word_language_model: defaults of its LSTM (200, 200, 2), 33,278 words
}
"""Numbers of float32 parameters of the models whose speed on several devices was measured."""


class Cost(NamedTuple):
    """Processor time for a MiB, in seconds: summing one worker's update, and updating parameters."""

    sum_s: float
    update_s: float


class ServerRule(NamedTuple):
    """How many servers of its own a job asks for: so many for a GPU, or as few as keep up with half of their time."""

    name: str
    per_gpu: float | None


class Way(NamedTuple):
    """How jobs are packed, and what they lose."""

    name: str
    loss_limit: float
    exposed: bool
    spread: bool


RULES: Final = (
    ServerRule("one for each GPU", 1.0),
    ServerRule("one for two GPUs", 0.5),
    ServerRule("one for four GPUs", 0.25),
    ServerRule("as few as are half busy", None),
)
WAYS: Final = tuple(
    Way(f"{name}, {limit:.0%}", limit, exposed, spread)
    for limit in (LOSS_LIMIT, 0.02)
    for name, exposed, spread in (
        ("hidden", False, False),
        ("hidden, spread", False, True),
        ("exposed", True, False),
        ("exposed, spread", True, True),
    )
)


@dataclass(frozen=True)
class Training:
    """
    A distributed job.

    Attributes
    ----------
    arrives_s, exits_s : float, seconds
        Since the week began; the exit is that of a job that nothing holds up.
    servers : int
        Of its own.
    iteration_s : float, seconds
        With these.
    tasks : tuple of Task
    """

    name: str
    arrives_s: float
    exits_s: float
    gpus: int
    servers: int
    iteration_s: float
    tasks: tuple[Task, ...]

    @property
    def cost_s(self) -> float:
        """Processor time for the aggregation of an iteration."""
        return sum(task.cost_s for task in self.tasks)

    @property
    def longest_run_s(self) -> float:
        """What the busiest of its own servers takes for an iteration."""
        return math.ceil(len(self.tasks) / self.servers) * self.tasks[0].cost_s

    @property
    def hours_in_week(self) -> float:
        """Hours of the week in which it runs, if nothing holds it up."""
        return (min(self.exits_s, WEEK_S) - max(self.arrives_s, 0.0)) / HOUR_S


class Saving(NamedTuple):
    """
    What came out of a week.

    Attributes
    ----------
    own_h, shared_h : float, server-hours that are reserved
    own_peak, shared_peak : int, servers
    lost_gpu_h : float, GPU-hours
        By which jobs ran longer.
    mean_loss, p99_loss : float
        Of the jobs that run, every hour.
    moves, packed, reverted : int
        Tasks that moved, jobs that were packed, and jobs that went back to servers of their own.
    """

    own_h: float
    shared_h: float
    own_peak: int
    shared_peak: int
    lost_gpu_h: float
    mean_loss: float
    p99_loss: float
    moves: int
    packed: int
    reverted: int


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("--trace", type=Path, default=PHILLY, help="Philly, in the plain form")
    parser.add_argument("--week", type=int, default=9, help="of the trace, from 0; 9 is the busiest")
    parser.add_argument("--seed", type=int, default=0, help="of the models that are drawn")
    parser.add_argument("--rules", type=int, nargs="+", default=[0, 3], help="by number, from 0 to 3")
    parser.add_argument("--cost", type=float, nargs=2, metavar="MS", help="to sum and to update a MiB, not measured")
    given = parser.parse_args()
    if not given.trace.exists():
        print(f"NOT MEASURED: {given.trace} is not there")
        return
    cost = Cost(given.cost[0] / 1e3, given.cost[1] / 1e3) if given.cost else measured_cost()
    print(f"a MiB on one core: sum {cost.sum_s * 1e3:.3f} ms for each worker, update {cost.update_s * 1e3:.3f} ms")
    for rule in (RULES[at] for at in given.rules):
        jobs = trainings(given.trace, given.week, rule, cost, given.seed)
        used_h = sum(job.hours_in_week * job.cost_s / job.iteration_s for job in jobs)
        gpu_h = sum(job.hours_in_week * job.gpus for job in jobs)
        print(
            f"\nservers of its own: {rule.name}; week {given.week}, seed {given.seed}: {len(jobs)} jobs,"
            f" {gpu_h:,.0f} GPU-hours, {used_h:,.0f} core-hours of aggregation"
        )
        for way in WAYS:
            began = time.process_time()
            told(way, simulated(jobs, way), time.process_time() - began)
    print("\npaper (AutoPS, 2021): 52.7 % less processor time in a cluster, 25 to 75 % fewer servers")


def told(way: Way, found: Saving, took_s: float) -> None:
    """Print what came out of a week."""
    print(
        f"  {way.name:20} server-hours {found.own_h:9,.0f} own {found.shared_h:9,.0f} shared,"
        f" {100 * (1 - found.shared_h / found.own_h):5.1f} % less; peak {found.own_peak:5,} {found.shared_peak:5,};"
        f" loss {100 * found.mean_loss:4.1f} % mean {100 * found.p99_loss:4.1f} % p99,"
        f" {found.lost_gpu_h:6,.0f} GPU-hours;"
        f" {found.packed:,} packed {found.reverted:,} reverted {found.moves:,} moves  [{took_s:.0f} s]",
        flush=True,
    )


def measured_cost(mib: int = 64, repeats: int = 9) -> Cost:
    """Measure what a MiB of float32 costs in numpy on this machine, in arrays that no cache holds: the median."""
    rng = np.random.default_rng(0)
    total, update, momentum = (rng.random(mib << 18, np.float32) for _ in range(3))
    scratch = np.empty_like(total)

    def add() -> None:
        np.add(total, update, out=total)

    def step() -> None:
        np.multiply(momentum, np.float32(0.9), out=momentum)
        np.add(momentum, update, out=momentum)
        np.multiply(momentum, np.float32(-0.1), out=scratch)
        np.add(total, scratch, out=total)

    def seconds(work: Callable[[], None]) -> float:
        taken = []
        for _ in range(repeats):
            began = time.process_time()
            work()
            taken.append(time.process_time() - began)
        return float(np.median(taken)) / mib

    return Cost(seconds(add), seconds(step))


def trainings(path: Path, week: int, rule: ServerRule, cost: Cost, seed: int) -> list[Training]:
    """Return the distributed jobs that run in a week of the trace, with the servers that a rule gives them."""
    trace, speeds = read(path, "csv"), throughputs(MEASURED, "v100")
    models = [model for model, gpus in speeds if gpus == max(WIDTHS) and all((model, g) in speeds for g in WIDTHS)]
    starts = trace.submit_s - trace.submit_s[0] - week * WEEK_S
    rows = np.flatnonzero((trace.num_gpus > 1) & (starts < WEEK_S) & (starts + trace.duration_s > 0))
    drawn = np.random.default_rng(seed).integers(0, len(models), len(rows))
    found = []
    for row, at in zip(rows.tolist(), drawn.tolist(), strict=True):
        name, gpus, model = trace.job_ids[row], int(trace.num_gpus[row]), models[at]
        width = next(width for width in WIDTHS if width <= gpus)
        computing_s = width / speeds[model, width]
        mib = PARAMETERS[model.split(" (")[0]] * 4 / (1 << 20)
        cost_s = mib * (gpus * cost.sum_s + cost.update_s)
        servers = math.ceil(2 * cost_s / computing_s if rule.per_gpu is None else gpus * rule.per_gpu)
        parts = max(math.ceil(mib / PART_MIB), servers)
        tasks = tuple(Task(name, part, cost_s / parts) for part in range(parts))
        busiest_s = math.ceil(parts / servers) * tasks[0].cost_s
        begins_s = float(starts[row])
        ends_s = begins_s + float(trace.duration_s[row])
        found.append(Training(name, begins_s, ends_s, gpus, servers, max(computing_s, busiest_s), tasks))
    return found


@dataclass
class Cluster:
    """Servers of a cluster while jobs come, share and leave."""

    way: Way
    own: dict[str, Training] = field(default_factory=dict)
    shared: dict[str, Training] = field(default_factory=dict)
    aggregators: dict[str, tuple[Task, ...]] = field(default_factory=dict)
    iteration_s: dict[str, float] = field(default_factory=dict)
    run_limit_s: dict[str, float] = field(default_factory=dict)
    late_s: dict[str, float] = field(default_factory=dict)
    """Work that a job has lost and not made up for, in seconds of its own iterations."""
    losses: list[float] = field(default_factory=list)
    lost_gpu_s: float = 0.0
    moves: int = 0
    packed: int = 0
    reverted: int = 0

    def __post_init__(self) -> None:
        self._numbers = count()
        self._rates: dict[str, tuple[float, float]] = {}

    @property
    def servers(self) -> int:
        """Servers that are reserved."""
        return sum(job.servers for job in self.own.values()) + len(self.aggregators)

    def arrive(self, job: Training) -> None:
        """Give a job servers of its own."""
        self.own[job.name] = job
        self.iteration_s[job.name] = job.iteration_s
        if self.way.spread:
            self.run_limit_s[job.name] = job.longest_run_s

    def pack(self, job: Training) -> None:
        """Place a job's tasks on shared aggregators, after it was measured."""
        found = assign(
            job.tasks,
            self.iteration_s,
            self.aggregators,
            loss_limit=self.way.loss_limit,
            run_limit_s=self.run_limit_s,
            new_ids=map(str, self._numbers),
        )
        if found is None:
            raise RuntimeError(f"{job.name} cannot be placed; expected no task to take longer than an iteration")
        for task, name in found.placements.items():
            self.aggregators[name] = (*self.aggregators.get(name, ()), task)
        self.shared[job.name] = self.own.pop(job.name)
        self.packed += 1

    def exit(self, job: Training) -> None:
        """Let a job leave."""
        if self.own.pop(job.name, None) is None:
            del self.shared[job.name]
            self._withdraw(job)
        del self.iteration_s[job.name]

    def check(self, jobs: Sequence[Training], now_s: float) -> list[float]:
        """Give those that lost more than the limit their own servers, and return what each of the others loses."""
        loads = self._loads()
        after = {job.name: self._measured_s(job, loads) for job in jobs}
        for job in jobs:
            self.note_lost(job, now_s)
            if lost_more(job.iteration_s, after[job.name], self.way.loss_limit):
                self.own[job.name] = self.shared.pop(job.name)
                self.reverted += 1
                self._withdraw(job)
            else:
                self._rates[job.name] = (now_s, 1 - job.iteration_s / after[job.name])
        return [self._rates[job.name][1] for job in jobs if job.name in self.shared]

    def note_lost(self, job: Training, now_s: float) -> None:
        """Charge a job what it lost since it was checked last."""
        since_s, rate = self._rates.pop(job.name, (now_s, 0.0))
        self.late_s[job.name] = self.late_s.get(job.name, 0.0) + rate * (now_s - since_s)
        self.lost_gpu_s += rate * (now_s - max(since_s, 0.0)) * job.gpus if now_s > 0 else 0.0
        if job.name in self.shared:
            self._rates[job.name] = (now_s, rate)

    def _loads(self) -> dict[str, list[AggregatorLoad]]:
        """Return the loads that each job is part of."""
        found: dict[str, list[AggregatorLoad]] = {}
        for tasks in self.aggregators.values():
            load = AggregatorLoad(tasks, self.iteration_s)
            for job in load.cost_s:
                found.setdefault(job, []).append(load)
        return found

    def _measured_s(self, job: Training, loads: Mapping[str, Sequence[AggregatorLoad]]) -> float:
        """Return how long an iteration of a job takes with shared aggregators."""
        turn_s = max(load.shared_iteration_s(job.name) for load in loads[job.name])
        if not self.way.exposed:
            return turn_s
        last_s = max(load.cost_s[job.name] + found_busy_s(job.name, load) for load in loads[job.name])
        return max(turn_s, job.iteration_s + last_s - job.longest_run_s)

    def _withdraw(self, job: Training) -> None:
        """Take a job's tasks off the aggregators, and move what has to or may move then."""
        held = {name: tuple(task for task in tasks if task.job != job.name) for name, tasks in self.aggregators.items()}
        limits: dict[str, Any] = {"loss_limit": self.way.loss_limit, "run_limit_s": self.run_limit_s}
        found = rebalance(held, self.iteration_s, **limits, new_ids=map(str, self._numbers))
        if found.unplaced:
            raise RuntimeError(f"no place for {found.unplaced}; expected one, as nothing was measured anew")
        held = moved(held, found.moves)
        moves = recycle(held, self.iteration_s, **limits)
        self.aggregators = {name: tasks for name, tasks in moved(held, moves).items() if tasks}
        self.moves += len(found.moves) + len(moves)


def found_busy_s(job: str, load: AggregatorLoad) -> float:
    """Return how long a push waits in the mean for a run of another job that it finds under way: half of it."""
    others = [(load.runs_of(other), cost_s) for other, cost_s in load.cost_s.items() if other != job]
    return sum(runs * cost_s / load.cycle_s * cost_s / 2 for runs, cost_s in others)


def moved(aggregators: Mapping[str, tuple[Task, ...]], moves: Sequence[TaskMove]) -> dict[str, tuple[Task, ...]]:
    """Return what aggregators hold after moves."""
    gone = {move.task for move in moves}
    found = {name: tuple(task for task in tasks if task not in gone) for name, tasks in aggregators.items()}
    for move in moves:
        found[move.target] = (*found.get(move.target, ()), move.task)
    return found


def simulated(jobs: Sequence[Training], way: Way) -> Saving:
    """Run a week, and return what it took; jobs that came before it fill the cluster."""
    cluster, order = Cluster(way), count()
    events = [(job.arrives_s, next(order), "arrive", job) for job in jobs]
    events += [(HOUR_S * hour, next(order), "hour", jobs[0]) for hour in range(int(WEEK_S / HOUR_S) + 1)]
    heapify(events)
    before_s, server_s, peak = 0.0, 0.0, 0
    while events and events[0][0] <= WEEK_S:
        now_s, _, what, job = heappop(events)
        if now_s > 0:
            server_s += cluster.servers * (now_s - before_s)
            peak, before_s = max(peak, cluster.servers), now_s
        for at_s, follows in happened(cluster, what, job, now_s):
            heappush(events, (at_s, next(order), follows, job))
    return Saving(
        own_h=sum(job.hours_in_week * job.servers for job in jobs),
        shared_h=server_s / HOUR_S,
        own_peak=most_at_once(jobs),
        shared_peak=peak,
        lost_gpu_h=cluster.lost_gpu_s / HOUR_S,
        mean_loss=float(np.mean(cluster.losses)),
        p99_loss=float(np.quantile(cluster.losses, 0.99)),
        moves=cluster.moves,
        packed=cluster.packed,
        reverted=cluster.reverted,
    )


def happened(cluster: Cluster, what: str, job: Training, now_s: float) -> list[tuple[float, str]]:
    """Change the cluster by an event, and return what follows for the job, and when."""
    measured_s = now_s + PROFILED * job.iteration_s
    if what == "arrive":
        cluster.arrive(job)
        return [(job.exits_s, "exit"), (measured_s, "pack")]
    if what == "pack" and job.name in cluster.own:
        cluster.pack(job)
        return [(measured_s, "check")]
    if what == "check" and job.name in cluster.shared:
        cluster.check([job], now_s)
    if what == "hour":
        cluster.losses += cluster.check(list(cluster.shared.values()), now_s) + [0.0] * len(cluster.own)
    if what == "exit":
        cluster.note_lost(job, now_s)
        late_s = cluster.late_s.pop(job.name)
        if late_s >= 1.0:
            return [(now_s + late_s, "exit")]
        cluster.exit(job)
    return []


def most_at_once(jobs: Sequence[Training]) -> int:
    """Return the most servers at once in the week, where each job has its own for all of its time."""
    changes = [(max(job.arrives_s, 0.0), job.servers) for job in jobs]
    changes += [(job.exits_s, -job.servers) for job in jobs if job.exits_s <= WEEK_S]
    return int(np.cumsum([change for _, change in sorted(changes)]).max())


if __name__ == "__main__":
    main()
