"""
What happens in one schedule and when: a cluster, its jobs, and the faults that befall it. Made from a seed; no I/O.

:func:`schedule` of the same seed and number is the same schedule, whatever was run before. Times are seconds after the
cluster was ready. Targets that exist only at run time (the processes of jobs) are given as a fraction: the third of
nine that run is 0.3.
"""

from __future__ import annotations

import random  # noqa: TID251 - everything here is drawn from a seed
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

SERVICES: Final = ("gateway", "profiler", "ranker", "autoscaler", "matcher", "tuner", "assigner")
SERVER: Final = "server-"
"""Begins the name of one server among several, or of one that is alone."""
LEASE_S: Final = 3.0
"""How long a leader's lease lasts: pauses are drawn from below it and from above it."""
ELECTION_S: Final = 6.0
"""About how long servers wait for one that led before they elect another."""
FIRST_FAULT_S: Final = 0.5
LAST_FAULT_S: Final = 9.0
LAST_SUBMISSION_S: Final = 7.0
LONGEST_JOB_S: Final = 7.0

FaultKind = Literal[
    "kill", "stop", "restart", "cut", "isolate", "power", "full", "freeze", "clock", "snapshots", "drain"
]
CutMode = Literal["refuse", "stall", "blackhole", "half", "delay"]
RouteMode = Literal["refuse", "stall", "blackhole", "half", "mute"]
JobKind = Literal["command", "retried", "session", "lane", "gang", "sweep"]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """
    One fault.

    Attributes
    ----------
    target : str
        ``server`` (one of them), ``server-1`` (that one: its clock), ``leader`` (the server that leads the log), a
        process such as ``matcher-1`` or ``executor-2``, ``client``, ``node-2`` (an executor with all that it runs),
        ``job`` or ``shim`` (one of those that run), ``penstock`` (all but jobs and their shims); empty where it befalls
        all.
    at_s, for_s : float
        When it begins, and how long it lasts.
    amount : float
        Which job or which server, as a fraction; seconds of delay; seconds by which a clock jumps.
    how : str
        The mode of a cut or an isolation; what becomes of snapshots.
    """

    kind: FaultKind
    at_s: float
    target: str = ""
    for_s: float = 0.0
    amount: float = 0.0
    how: str = ""

    def __str__(self) -> str:
        words = [self.kind, *filter(None, (self.how, self.target)), f"@{self.at_s:.1f}"]
        if self.kind == "clock":
            words.append(f"by {self.amount:+.0f} s")
        return " ".join([*words, f"for {self.for_s:.1f}"] if self.for_s else words)

    @property
    def end_s(self) -> float:
        """When it is over."""
        return self.at_s + self.for_s


@dataclass(frozen=True, kw_only=True)
class PlannedJob:
    """
    One submission.

    Attributes
    ----------
    length_s : float
        How long it works, if nothing befalls it.
    code : int
        Its own exit code.
    failures : int
        How often it fails by itself before that.
    cancel_at_s : float
        When it is cancelled; 0: never.
    inbox : bool
        Whether it is published to the inbox, which accepts it before the gateway has seen it.
    flags : tuple of str
        Of ``jobs/command_job.py``.
    """

    id: str
    kind: JobKind
    at_s: float
    length_s: float
    code: int = 0
    failures: int = 0
    retries: int = 0
    gpus: int = 1
    checkpoint_s: float = 60.0
    cancel_at_s: float = 0.0
    inbox: bool = False
    flags: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        """How many steps a session has."""
        return max(1, round(self.length_s / STEP_S))


STEP_S: Final = 0.05


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """One schedule: replayed by its seed and number."""

    seed: int
    number: int
    replicas: dict[str, int]
    executors: int
    jobs: tuple[PlannedJob, ...]
    faults: tuple[Fault, ...]
    servers: int = 1

    @property
    def clocks(self) -> bool:
        """Whether services need clocks that can be set."""
        return any(fault.kind == "clock" and not fault.target.startswith(SERVER) for fault in self.faults)

    @property
    def server_clocks(self) -> bool:
        """Whether servers do."""
        return any(fault.kind == "clock" and fault.target.startswith(SERVER) for fault in self.faults)

    @property
    def last_fault_s(self) -> float:
        """When the last fault is over."""
        return max((fault.end_s for fault in self.faults), default=0.0)


def schedule(seed: int, number: int) -> Schedule:
    """Return one schedule of a seed; those with numbers below 1 are :func:`findings`, whatever the seed."""
    if number < 1:
        return findings()[-number]
    rng = random.Random(f"{seed}/{number}")  # noqa: S311 - no secret
    replicas = {service: rng.choice((1, 1, 2)) for service in SERVICES}
    if number % _EVERYTHING_TWICE == 0:
        replicas = dict.fromkeys(SERVICES, 2)
    executors, servers = rng.choice((2, 2, 2, 3)), rng.choice((1, 1, 3))
    jobs = _jobs(rng, f"c{seed}-{number}")
    draw = _Draw(rng, [*(f"{name}-{i + 1}" for name, count in replicas.items() for i in range(count))], executors)
    routes = random.Random(f"{seed}/{number}/routes")  # noqa: S311 - of its own, so that it changes nothing else
    clocks = random.Random(f"{seed}/{number}/clocks")  # noqa: S311 - likewise
    faults = _faults(rng, draw, [*(_isolations(routes) if servers > 1 else ()), *_server_clock(clocks, servers)])
    return Schedule(
        seed=seed, number=number, replicas=replicas, executors=executors, servers=servers, jobs=jobs, faults=faults
    )


# --- jobs
def _jobs(rng: random.Random, prefix: str) -> tuple[PlannedJob, ...]:
    kinds: list[JobKind] = ["session", "session", "command", "command", "retried", "gang"]
    kinds += rng.choices(("session", "command", "retried"), k=rng.randint(0, 3))
    kinds += ["lane", "lane"] * (rng.random() < 0.3)
    if rng.random() < 0.15:
        kinds.append("sweep")
    rng.shuffle(kinds)
    made = [_job(rng, kind, f"{prefix}-{number}-{kind}") for number, kind in enumerate(kinds)]
    return tuple(sorted(made, key=lambda job: job.at_s))


def _job(rng: random.Random, kind: JobKind, job_id: str) -> PlannedJob:
    at_s, length_s = rng.uniform(0, LAST_SUBMISSION_S), rng.uniform(0.5, LONGEST_JOB_S)
    job = PlannedJob(id=job_id, kind=kind, at_s=at_s, length_s=length_s, inbox=rng.random() < 0.2)
    if kind == "sweep":
        return replace(job, length_s=1.0, retries=20, inbox=False)
    if kind == "gang":
        job = replace(job, gpus=rng.choice((2, 3, 3)), retries=20, checkpoint_s=rng.choice((1.0, 60.0)))
    elif kind in {"session", "lane"}:
        job = replace(job, retries=rng.choice((0, 20, 20)), checkpoint_s=rng.choice((0.5, 1.0, 60.0)))
    elif kind == "retried":
        job = replace(job, retries=20, failures=rng.randint(1, 2), code=rng.choice((0, 0, 5)))
        job = replace(job, failures=job.failures if job.code == 0 else 0, retries=20 if job.code == 0 else 1)
    else:
        flags = tuple(flag for flag in ("leaves", "stubborn") if rng.random() < 0.2)
        job = replace(job, code=rng.choice((0, 0, 3, 77)), flags=flags)
    if rng.random() < 0.1:
        job = replace(job, cancel_at_s=job.at_s + rng.uniform(0.2, 4.0))
    return job


# --- faults
@dataclass
class _Draw:
    """What is drawn from: the processes of this schedule, and whom a fault may befall."""

    rng: random.Random
    services: Sequence[str]
    count: int
    executors: Sequence[str] = field(init=False)

    def __post_init__(self) -> None:
        self.executors = [f"executor-{i + 1}" for i in range(self.count)]

    def process(self) -> str:
        """Return a process: the server, a service or an executor, each about as often."""
        return self.rng.choice((self.rng.choice(self.services), self.rng.choice(self.executors), "server"))

    def anybody(self) -> str:
        """Return a process, or one of those that jobs are made of, or all that is not a job's."""
        if self.rng.random() < _ALL_AT_ONCE:
            return "penstock"
        return self.rng.choice((self.process(), self.process(), "job", "shim"))

    def pause_s(self) -> float:
        """Return a pause shorter than a lease, or one longer than that and than the patience with a node."""
        return self.rng.uniform(0.2, 0.8 * LEASE_S) if self.rng.random() < 0.5 else self.rng.uniform(1.2, 3.0) * LEASE_S


def _kill(draw: _Draw, at_s: float) -> Fault:
    return Fault(kind="kill", at_s=at_s, target=draw.anybody(), amount=draw.rng.random())


def _stop(draw: _Draw, at_s: float) -> Fault:
    target = draw.rng.choice((draw.anybody(), f"node-{draw.rng.randint(1, draw.count)}"))
    return Fault(kind="stop", at_s=at_s, target=target, for_s=draw.pause_s(), amount=draw.rng.random())


def _restart(draw: _Draw, at_s: float) -> Fault:
    return Fault(kind="restart", at_s=at_s, target=draw.rng.choice((*draw.services, *draw.executors)))


def _cut(draw: _Draw, at_s: float) -> Fault:
    modes: tuple[CutMode, ...] = ("refuse", "stall", "blackhole", "half", "delay")
    mode = draw.rng.choice(modes)
    target = draw.rng.choice((draw.rng.choice(draw.services), draw.rng.choice(draw.executors), "client"))
    amount = draw.rng.uniform(0.02, 0.5) if mode == "delay" else 0.0
    return Fault(kind="cut", at_s=at_s, target=target, for_s=draw.pause_s(), how=mode, amount=amount)


def _power(draw: _Draw, at_s: float) -> Fault:
    return Fault(kind="power", at_s=at_s, for_s=draw.rng.uniform(0.1, 2.0))


def _full(draw: _Draw, at_s: float) -> Fault:
    return Fault(kind="full", at_s=at_s, for_s=draw.rng.uniform(0.5, 4.0))


def _freeze(draw: _Draw, at_s: float) -> Fault:
    """Return a disk that hangs: once for long, or again and again for short, which makes a slow one."""
    if draw.rng.random() < 0.5:
        return Fault(kind="freeze", at_s=at_s, for_s=draw.pause_s())
    return Fault(kind="freeze", at_s=at_s, for_s=draw.rng.uniform(1.0, 4.0), how="slow", amount=0.1)


def _clock(draw: _Draw, at_s: float) -> Fault:
    target = draw.rng.choice((*draw.services, *draw.executors))
    return Fault(kind="clock", at_s=at_s, target=target, amount=_jump_s(draw.rng))


def _snapshots(draw: _Draw, at_s: float) -> Fault:
    return Fault(kind="snapshots", at_s=at_s, how=draw.rng.choice(("deleted", "torn")))


def _drain(draw: _Draw, at_s: float) -> Fault:
    return Fault(kind="drain", at_s=at_s, target=f"node-{draw.rng.randint(1, draw.count)}", for_s=draw.pause_s())


_KINDS: Final[dict[Callable[[_Draw, float], Fault], int]] = {
    _kill: 6,
    _stop: 6,
    _restart: 2,
    _cut: 5,
    _full: 1,
    _freeze: 1,
    _clock: 1,
    _snapshots: 1,
    _drain: 1,
}
"""What befalls a cluster, and how often beside the others."""
_SERVER_CLOCKS: Final = 0.15
_POWER_CUTS: Final = 0.2
_STORMS: Final = 0.15
_ALL_AT_ONCE: Final = 0.1


def _isolations(rng: random.Random) -> list[Fault]:
    """Return what cuts servers off from the others: one that leads, or any, for less than an election or for more."""
    modes: tuple[RouteMode, ...] = ("refuse", "stall", "blackhole", "half", "mute")
    return [
        Fault(
            kind="isolate",
            at_s=rng.uniform(FIRST_FAULT_S, LAST_FAULT_S),
            target=rng.choice(("leader", "leader", "server")),
            for_s=rng.uniform(0.5, 3.0) if rng.random() < 0.5 else rng.uniform(1.5, 3.0) * ELECTION_S,
            amount=rng.random(),
            how=rng.choice(modes),
        )
        for _ in range(rng.choice((0, 1, 2)))
    ]


def _server_clock(rng: random.Random, servers: int) -> list[Fault]:
    """Return a jump of a server's clock, for some schedules."""
    if rng.random() >= _SERVER_CLOCKS:
        return []
    at_s, number = rng.uniform(FIRST_FAULT_S, LAST_FAULT_S), rng.randint(1, servers)
    return [Fault(kind="clock", at_s=at_s, target=f"{SERVER}{number}", amount=_jump_s(rng))]


def _jump_s(rng: random.Random) -> float:
    return rng.choice((-1, 1)) * rng.choice((2.0, 30.0, 3600.0, 86400.0))


def _faults(rng: random.Random, draw: _Draw, others: Sequence[Fault]) -> tuple[Fault, ...]:
    makers = rng.choices(list(_KINDS), weights=list(_KINDS.values()), k=rng.randint(2, 8))
    faults = [make(draw, rng.uniform(FIRST_FAULT_S, LAST_FAULT_S)) for make in makers]
    if rng.random() < _STORMS:
        at_s = rng.uniform(FIRST_FAULT_S, LAST_FAULT_S - 3.0)
        faults += [_kill(draw, at_s + rng.uniform(0.0, 3.0)) for _ in range(rng.randint(5, 10))]
    faults += others
    if rng.random() < _POWER_CUTS:
        power = _power(draw, rng.uniform(2.0, LAST_FAULT_S))
        faults = [fault for fault in faults if fault.end_s < power.at_s or fault.kind == "clock"]
        faults = [*(replace(fault, at_s=min(fault.at_s, power.at_s - 0.5)) for fault in faults), power]
    return tuple(sorted(_apart(faults), key=lambda fault: fault.at_s))


def _apart(faults: Sequence[Fault]) -> list[Fault]:
    """Leave out what would need a disk that another fault has: it cannot be filled while it hangs."""
    kept: list[Fault] = []
    for fault in sorted(faults, key=lambda fault: fault.at_s):
        disk = [one for one in kept if one.kind in _ON_DISK]
        if fault.kind not in _ON_DISK or all(one.end_s < fault.at_s for one in disk):
            kept.append(fault)
    return kept


_EVERYTHING_TWICE: Final = 10
"""Each schedule of a number that this divides has two replicas of every service."""
_ON_DISK: Final = ("full", "freeze", "power")


# --- what was found once
def findings() -> tuple[Schedule, ...]:
    """
    Return the schedules of violations that have been seen, as numbers 0, -1, -2, …

    Each has one cause: executors that stand still, nodes that do, executors that are cut off or deaf, each for longer
    than the matcher waits for a node, with runs that would go on; a power cut in the middle of submissions; each of
    three servers killed in turn; and services that log in over a network that stalls. The last two have found nothing,
    and are for what is rarely drawn: servers cut off from the others while they lead, for longer than an election takes
    and for longer than a leader's lease lasts there; and a server whose clock is set back by an hour while everybody
    who holds a lease dies, then forth by a day.
    """
    long_s, longer_s = 12.0, 18.0
    two = (1, 2)
    return (
        _finding(0, *(Fault(kind="stop", at_s=3.0, target=f"executor-{n}", for_s=long_s) for n in two)),
        _finding(1, *(Fault(kind="stop", at_s=3.0, target=f"node-{n}", for_s=long_s) for n in two)),
        _finding(2, *(Fault(kind="cut", at_s=3.0, target=f"executor-{n}", for_s=long_s, how="blackhole") for n in two)),
        _finding(3, *(Fault(kind="cut", at_s=3.0, target=f"executor-{n}", for_s=long_s, how="half") for n in two)),
        _finding(4, Fault(kind="power", at_s=1.2, for_s=0.5)),
        _finding(
            5, *(Fault(kind="kill", at_s=0.8 + 4 * n, target="server", amount=n / 3) for n in range(3)), servers=3
        ),
        _finding(6, *(fault for name in ("executor-1", "gateway-1", "matcher-1") for fault in _slow_login(name))),
        _finding(
            7,
            Fault(kind="isolate", at_s=2.0, target="leader", for_s=long_s, how="stall"),
            Fault(kind="isolate", at_s=16.0, target="leader", for_s=longer_s, how="half"),
            servers=3,
        ),
        _finding(
            8,
            Fault(kind="clock", at_s=3.0, target=f"{SERVER}1", amount=-3600.0),
            Fault(kind="kill", at_s=3.0, target="penstock"),
            Fault(kind="clock", at_s=10.0, target=f"{SERVER}1", amount=86400.0),
        ),
    )


def _slow_login(name: str) -> tuple[Fault, Fault]:
    """Return a new start over a network that stalls for longer than the server waits for a login."""
    return Fault(kind="cut", at_s=3.0, target=name, for_s=3.2, how="stall"), Fault(kind="kill", at_s=3.1, target=name)


def _finding(number: int, *faults: Fault, servers: int = 1) -> Schedule:
    """Return a cluster of three nodes, two of which have work for long, with what befalls it."""
    prefix, length_s = f"f{number}", 12.0
    jobs = (
        PlannedJob(id=f"{prefix}-1-session", kind="session", at_s=0.0, length_s=length_s, retries=20),
        PlannedJob(id=f"{prefix}-2-command", kind="command", at_s=0.2, length_s=length_s, code=3),
        PlannedJob(id=f"{prefix}-3-session", kind="session", at_s=0.4, length_s=length_s, checkpoint_s=1.0),
        PlannedJob(id=f"{prefix}-4-command", kind="command", at_s=0.6, length_s=length_s),
        PlannedJob(id=f"{prefix}-5-command", kind="command", at_s=1.0, length_s=1.0, inbox=True),
    )
    return Schedule(seed=0, number=-number, replicas={}, executors=3, jobs=jobs, faults=faults, servers=servers)
