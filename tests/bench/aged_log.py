"""
A log as a cluster of years has it, at the speed at which a server takes it: what ``bench_age.py`` measures on.

It is made of cycles of :data:`CYCLE_JOBS` jobs: most are short and plain; others save checkpoints, fail and are
retried, are cancelled, preempted, gangs or elastic, and sixteen are the trials of a sweep. Each fact is a commit of its
own, as it mostly is in a cluster. A cycle is encoded once; ids and times have a fixed width in it and are replaced, as
one that is encoded anew each time would take longer to make than to store.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from penstock_bus.follower import until_available
from penstock_bus.nats import NatsBus
from penstock_log import (
    AnyEvent,
    Batch,
    Choice,
    Commit,
    Demand,
    Device,
    JobCancelled,
    JobFinished,
    JobRank,
    JobSpec,
    JobsRanked,
    JobSubmitted,
    KindSpeed,
    NodeJoined,
    Placement,
    Preemption,
    RoundDecided,
    RunCheckpointed,
    RunEnded,
    RunStarted,
    ScaleDecided,
    Slot,
    SweepFinished,
    SweepSpec,
    SweepSubmitted,
    Trial,
    TrialFinished,
    TrialGroupOpened,
    Wait,
    WorkloadProfiled,
    encode,
    subject_of,
    workload,
)

NODES, DEVICES = 64, 8
PLAIN, SAVING, FAILING, CANCELLED, PREEMPTED, GANGS, ELASTIC, TRIALS = 60, 10, 6, 4, 4, 4, 4, 16
CYCLE_JOBS: Final = PLAIN + SAVING + FAILING + CANCELLED + PREEMPTED + GANGS + ELASTIC + TRIALS
CYCLES_OF_MODELS: Final = 50
"""So many cycles have the same workloads; the next ones have new ones."""
OPEN: Final = 400
"""Jobs that are open at the end of the log: half of them run."""

_TICKS: Final = 100  # parts of a cycle; a fact is at one of them
_T0: Final = 1_111_110_000
_NUMBER: Final = "CCCCCCCC"
_VARYING: Final = re.compile(rb"(C{8}|11111[01][0-9]{4}\.)")
_MOST_AHEAD: Final = 5_000  # commits that are sent before the server is seen to have the ones before


class _Cycle:
    """The facts of one cycle, by tick."""

    def __init__(self, models: int) -> None:
        self.facts: list[tuple[int, AnyEvent]] = []
        self.models = models
        self._jobs = 0

    def spec(self, **more: Any) -> JobSpec:
        number, self._jobs = self._jobs, self._jobs + 1
        return JobSpec(
            id=f"j{_NUMBER}-{number:03}",
            name=f"train-{number}",
            user=f"user{number % 37}",
            team=f"team{number % 7}",
            command=("python", "train.py", "--epochs", "90", "--data", "/srv/data/images", "--workers", "8"),
            cwd=f"/home/user{number % 37}/experiments/images",
            model=f"model{self.models}-{number % 12}",
            digest="0123456789abcdef" * 4,
            env={"OMP_NUM_THREADS": "8"},
            batch_size=256,
            **more,
        )

    def add(self, tick: int, fact: AnyEvent) -> None:
        self.facts.append((tick, fact))

    def submit(self, tick: int, spec: JobSpec) -> None:
        self.add(tick, JobSubmitted(at_s=_at(tick), job_id=spec.id, spec=spec))
        self.rank(tick, spec.id, 0)

    def rank(self, tick: int, job_id: str, queue: int) -> None:
        rank = JobRank(job_id=job_id, queue=queue, position=_at(tick), attained_gpu_s=100.0 * queue)
        self.add(tick, JobsRanked(at_s=_at(tick), pool="default", ranks=(rank,)))

    def run(self, tick: int, ticks: int, spec: JobSpec, epoch: int = 1, outcome: Any = "completed") -> None:
        """Place and run it, on a node for each four devices, until so many ticks later."""
        number, width = int(spec.id[-3:]), min(spec.gpus, 4)
        first = width * (number // NODES)
        nodes = [f"n{(number + at) % NODES}" for at in range(-(-spec.gpus // 4))]
        slots = tuple(Slot(node_id=node, devices=tuple(range(first, first + width))) for node in nodes)
        waits = tuple(Wait(job_id=f"j{_NUMBER}-{n:03}", cause="capacity", evidence="8 of 8") for n in range(3))
        placement = Placement(job_id=spec.id, epoch=epoch, kind="fast", slots=slots, patience_s=15.0)
        self.add(tick, RoundDecided(at_s=_at(tick), pool="default", placements=(placement,), waits=waits))
        end = {"outcome": outcome, "steps": 900 * epoch, "loop_steps": 900, "loop_s": 90.0, "saves": True}
        for slot in slots:
            run = {"job_id": spec.id, "epoch": epoch, "node_id": slot.node_id}
            self.add(tick, RunStarted(at_s=_at(tick), devices=slot.devices, **run))
            if outcome == "preempted":
                self.add(tick + ticks, RunCheckpointed(at_s=_at(tick + ticks), step=900 * epoch, **run))
            code = {"completed": 0, "failed": 3}.get(outcome)
            metrics = {"loss": 0.25, "accuracy": 0.75}
            self.add(tick + ticks, RunEnded(at_s=_at(tick + ticks), exit_code=code, metrics=metrics, **end, **run))

    def finish(self, tick: int, spec: JobSpec, state: Any = "completed") -> None:
        end = {"run_s": 90.0, "gpu_s": 90.0, "user": spec.user, "parent": spec.parent, "steps": 900, "attempts": 1}
        fact = JobFinished(
            at_s=_at(tick), job_id=spec.id, name=spec.name, state=state, submitted_s=_at(tick - 1), **end
        )
        self.add(tick, fact)

    def preempt(self, tick: int, spec: JobSpec) -> None:
        one = Preemption(job_id=spec.id, epoch=1, reason="jobs of a higher queue wait")
        self.add(tick, RoundDecided(at_s=_at(tick), pool="default", preemptions=(one,)))


def _at(tick: int) -> float:
    return _T0 + tick + 0.5


def cycle(models: int) -> list[AnyEvent]:
    """Return the facts of a cycle in order; ids have :data:`_NUMBER` in them, and times count from :data:`_T0`."""
    made = _Cycle(models)
    for n in range(PLAIN + SAVING + GANGS):
        spec = made.spec(gpus=8 if n >= PLAIN + SAVING else 1)
        tick = 1 + n % 80
        made.submit(tick, spec)
        made.run(tick + 1, 4, spec)
        for at in (2, 3) if PLAIN <= n < PLAIN + SAVING else ():
            run = {"job_id": spec.id, "epoch": 1, "node_id": f"n{n % NODES}"}
            made.add(
                tick + at, RunCheckpointed(at_s=_at(tick + at), step=300 * at, digest="0123456789abcdef" * 4, **run)
            )
            made.rank(tick + at, spec.id, at - 1)
        made.finish(tick + 5, spec)
    for n in range(FAILING + PREEMPTED):
        spec, tick = made.spec(retries=1), 5 + 7 * n
        made.submit(tick, spec)
        made.run(tick + 1, 3, spec, outcome="failed" if n < FAILING else "preempted")
        if n >= FAILING:
            made.preempt(tick + 4, spec)
        made.run(tick + 5, 3, spec, epoch=2)
        made.finish(tick + 8, spec)
    for n in range(CANCELLED):
        spec = made.spec()
        made.submit(20 * n, spec)
        made.add(20 * n + 3, JobCancelled(at_s=_at(20 * n + 3), job_id=spec.id, by=spec.user))
        made.finish(20 * n + 3, spec, "cancelled")
    for n in range(ELASTIC):
        _elastic(made, 3 + 20 * n)
    _sweep(made)
    return [fact for _, fact in sorted(made.facts, key=lambda at: at[0])]


def _elastic(made: _Cycle, tick: int) -> None:
    spec = made.spec(min_gpus=1, max_gpus=4, batch=Batch(min=64, max=1024, step=64))
    made.submit(tick, spec)
    for at, epoch, gpus, because in ((0, 0, 1, "arrival"), (5, 2, 4, "completion")):
        demand = Demand(job_id=spec.id, epoch=epoch, gpus=gpus, batch_size=256, reason="devices are idle")
        made.add(tick + at, ScaleDecided(at_s=_at(tick + at), pool="default", demands=(demand,), because=because))  # type: ignore[arg-type]
    made.run(tick + 1, 4, spec, epoch=2, outcome="preempted")
    made.run(tick + 6, 4, msgspec.structs.replace(spec, gpus=4), epoch=3)
    made.finish(tick + 10, spec)


def _sweep(made: _Cycle) -> None:
    sweep_id = f"w{_NUMBER}"
    specs = [made.spec(parent=sweep_id, params={"lr": 0.1 / (n + 1)}) for n in range(TRIALS)]
    job = msgspec.structs.replace(specs[0], id="", params={}, parent="")
    space = {"lr": Choice(values=tuple(0.1 / (n + 1) for n in range(TRIALS)))}
    wanted = SweepSpec(name="rates", job=job, space=space, metric="accuracy", search="grid")
    made.add(2, SweepSubmitted(at_s=_at(2), sweep_id=sweep_id, spec=wanted))
    trials = tuple(Trial(job_id=spec.id, params=spec.params, number=n) for n, spec in enumerate(specs))
    made.add(3, TrialGroupOpened(at_s=_at(3), sweep_id=sweep_id, group=0, trials=trials))
    for n, spec in enumerate(specs):
        made.submit(4, spec)
        made.run(5 + n, 4, spec)
        made.finish(9 + n, spec)
        end = {"job_id": spec.id, "state": "completed", "value": 0.75}
        made.add(9 + n, TrialFinished(at_s=_at(9 + n), sweep_id=sweep_id, **end))
    best = {"best_job_id": specs[0].id, "best_value": 0.75}
    made.add(9 + TRIALS, SweepFinished(at_s=_at(9 + TRIALS), sweep_id=sweep_id, state="completed", **best))


def workloads(models: int) -> list[AnyEvent]:
    """Return what is known of the workloads of a cycle."""
    specs = [fact.spec for fact in cycle(models) if isinstance(fact, JobSubmitted)]
    speeds = (KindSpeed(kind="fast", iteration_s=0.1, speed=1.0, memory_bytes=1 << 30),)
    keys = sorted({workload.key(spec) for spec in specs})
    return [WorkloadProfiled(at_s=_at(0), key=key, speeds=speeds) for key in keys]


def nodes() -> list[AnyEvent]:
    """Return the arrival of the nodes."""
    devices = tuple(Device(index=i, kind="fast", memory_bytes=16 << 30, backend="emulated") for i in range(DEVICES))
    return [NodeJoined(at_s=_at(0), node_id=f"n{number}", devices=devices) for number in range(NODES)]


def open_jobs() -> list[AnyEvent]:
    """Return the beginning of jobs that are open at the end of the log; half of them run."""
    made = _Cycle(0)
    for n in range(OPEN):
        spec = made.spec()
        made.submit(2, spec)
        if n < OPEN // 2:
            made.run(3, 1, spec)
    return [fact for _, fact in made.facts if not isinstance(fact, RunEnded)]


class Template:
    """Facts as the server's protocol has them, to be stored again and again with other ids and times."""

    def __init__(self, facts: list[AnyEvent]) -> None:
        self.count = len(facts)
        frames = []
        for number, fact in enumerate(facts):
            body = encode(Commit(id=f"{_NUMBER}.{number:04}", actor="bench/0123abcd", facts=(fact,)))
            frames.append(b"PUB %s %d\r\n%s\r\n" % (subject_of(fact).encode(), len(body), body))
        self._parts = _VARYING.split(b"".join(frames))  # what varies is every second of them
        self._ticks = [-1 if part == _NUMBER.encode() else int(part[:-1]) - _T0 for part in self._parts[1::2]]

    def render(self, number: int, begin_s: float, span_s: float) -> bytes:
        """Return the bytes of a cycle with this number, over a span of time."""
        times = [b"%d." % int(begin_s + tick * span_s / _TICKS) for tick in range(_TICKS)]
        times.append(b"%08d" % number)  # which -1 stands for
        self._parts[1::2] = [times[tick] for tick in self._ticks]
        return b"".join(self._parts)


def stretches(facts: int, days: float, begin_s: float, parts: int) -> Iterator[tuple[float, list[tuple[int, bytes]]]]:
    """
    Yield a log of about so many facts over so many days, in parts of equal length.

    Yields
    ------
    until_s : float
        The time at which the part ends.
    chunks : list of (commits, bytes)
        A few thousand commits each, made when they are asked for.
    """
    cycles = max(1, facts // len(cycle(0)))
    span_s = days * 86_400.0 / cycles
    each = -(-cycles // parts)
    for first in range(0, cycles, each):
        last = min(first + each, cycles)
        yield begin_s + last * span_s, _Chunks(first, last, begin_s, span_s, ends=last == cycles)  # type: ignore[misc]


class _Chunks:
    def __init__(self, first: int, last: int, begin_s: float, span_s: float, *, ends: bool) -> None:
        self._range, self._begin_s, self._span_s, self._ends = range(first, last), begin_s, span_s, ends

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        models = -1
        for number in self._range:
            at_s = self._begin_s + number * self._span_s
            if number == 0:
                yield self._once(nodes(), number, at_s)
            if number // CYCLES_OF_MODELS != models:
                models = number // CYCLES_OF_MODELS
                made = Template(cycle(models))
                if number % CYCLES_OF_MODELS == 0:
                    yield self._once(workloads(models), number, at_s)
            yield made.count, made.render(number, at_s, self._span_s)
        if self._ends:
            yield self._once(open_jobs(), self._range.stop, self._begin_s + self._range.stop * self._span_s)

    def _once(self, facts: list[AnyEvent], number: int, at_s: float) -> tuple[int, bytes]:
        made = Template(facts)
        return made.count, made.render(number, at_s, 1.0)


async def store(bus: NatsBus, chunks: Any) -> int:
    """
    Store them, and return how many commits the log then has had.

    They are sent without asking for acknowledgements; the log's last sequence tells that all are there.

    Raises
    ------
    RuntimeError
        If some are not.
    """
    before = ahead = await bus.last_seq()
    for count, body in chunks:
        await bus.link.client._send_command(body)
        await bus.link.client.flush()
        ahead += count
        await _stored(bus, ahead, _MOST_AHEAD)
    await _stored(bus, ahead, 0)
    return ahead - before


async def _stored(bus: NatsBus, seq: int, most_ahead: int) -> None:
    looks = itertools.count()
    while (found := await until_available(bus.last_seq, "last_seq")) < seq - most_ahead:
        if next(looks) > 10_000:
            raise RuntimeError(f"the log is at {found}, and {seq} was sent to it")
        await asyncio.sleep(0.01)
