"""
Health of replicas: readiness and liveness, heartbeats, and metrics.

A replica reports its :class:`Vitals` by heartbeats (:func:`beat`) and at its endpoints ``ready``, ``live`` and
``metrics`` (:func:`endpoints`). :class:`DecisionLag` measures how far its decisions are behind its fold.
:class:`Peers` has the replicas whose heartbeats are fresh. :class:`Metrics` has counters, gauges and histograms, and
renders them in Prometheus' text form.
"""

from __future__ import annotations

import asyncio
import os
import socket
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import Final, TypeVar, cast

import msgspec

from penstock_bus.port import BusError, Endpoint, Reply, Request, TelemetryPort
from penstock_log import subjects
from penstock_log.text import escaped_lines

HEARTBEAT_S: Final = 1.0
GONE_AFTER_S: Final = 3.5
_LOOK_S: Final = 0.1
VERSION: Final = version("penstock")


class Vitals(msgspec.Struct, kw_only=True):
    """
    A replica's report: the body of its heartbeats and of ``ready`` and ``live``.

    Attributes
    ----------
    ready : bool
        Whether it has caught up with the log and does its work.
    leading : bool
        Whether it is the one replica that decides; always True where all decide.
    now_s : float
        The time by which it decides.
    last_seq : int
        The sequence of its fold.
    decided_seq : int
        The sequence of its fold when it last decided.
    undecided_s : float
        How long the oldest fact that matters to it has waited for a decision; 0 where none does, or others decide.
    elected : bool
        Whether one replica of this service leads, by a lease; otherwise all decide.
    term_s : float
        For how long it has led without a gap; 0 while it does not lead.
    lease_s : float or None
        How long ago it asked for the lease that was last confirmed; None where it has none.
    note : str
        A note for people about its present state, or empty.
    """

    service: str
    replica: str
    version: str = VERSION
    host: str = msgspec.field(default_factory=socket.gethostname)
    pid: int = msgspec.field(default_factory=os.getpid)
    ready: bool = False
    leading: bool = False
    now_s: float = 0.0
    last_seq: int = 0
    decided_seq: int = 0
    undecided_s: float = 0.0
    elected: bool = False
    term_s: float = 0.0
    lease_s: float | None = None
    note: str = ""


class DecisionLag:
    """
    How far a replica's decisions are behind what it has read.

    Examples
    --------
    >>> now = [0.0]
    >>> progress = DecisionLag(Vitals(service="matcher", replica="r1"), lambda: now[0])
    >>> progress.read(7, matters=True)
    >>> now[0] = 3.0
    >>> progress.undecided_s()
    3.0
    >>> progress.decided(7)
    >>> progress.undecided_s()
    0.0
    """

    def __init__(self, vitals: Vitals, clock: Callable[[], float]) -> None:
        self._vitals, self._clock = vitals, clock
        self._since: float | None = None

    def read(self, seq: int, *, matters: bool) -> None:
        """Note that the fold has a fact; if it ``matters``, there may be something to decide."""
        self._vitals.last_seq = seq
        if matters and self._since is None:
            self._since = self._clock()

    def decided(self, seq: int) -> None:
        """Note that the replica decides with the fold at ``seq``."""
        self._vitals.decided_seq, self._since = seq, None

    def undecided_s(self) -> float:
        """Return how long the oldest fact that matters has waited for a decision."""
        return 0.0 if self._since is None else self._clock() - self._since


def endpoints(report: Callable[[], Vitals], metrics: Metrics) -> list[Endpoint]:
    """
    Return ``ready`` (503 until caught up), ``live`` and ``metrics`` of a service.

    Replicas share these three; each also has a subject of its own, on which it alone is asked for its metrics.
    """

    async def ready(_: Request) -> Reply:
        vitals = report()
        body = msgspec.json.encode(vitals)
        if vitals.ready:
            return Reply(body=body)
        return Reply(body=body, code=503, error=f"{vitals.service}/{vitals.replica} is still catching up; ask again")

    async def live(_: Request) -> Reply:
        return Reply(body=msgspec.json.encode(report()))

    async def metrics_(_: Request) -> Reply:
        return Reply(body=metrics.render().encode())

    handlers = {"ready": ready, "live": live, "metrics": metrics_}
    service, replica = report().service, report().replica
    own = Endpoint(name="metrics_of_replica", subject=subjects.metrics_of(service, replica), handler=metrics_)
    return [
        *(
            Endpoint(name=name, subject=subjects.query(name, service), handler=handler)
            for name, handler in handlers.items()
        ),
        own,
    ]


class Peers:
    """The replicas of one service whose heartbeats are fresh."""

    def __init__(self, clock: Callable[[], float], gone_after_s: float = GONE_AFTER_S) -> None:
        self._clock = clock
        self._gone_after_s = gone_after_s
        self._seen: dict[str, tuple[float, Vitals]] = {}

    def see(self, vitals: Vitals) -> None:
        """Note a heartbeat."""
        self._seen[vitals.replica] = (self._clock(), vitals)

    def alive(self) -> list[Vitals]:
        """Return the last heartbeat of each live replica, by its id."""
        now_s = self._clock()
        self._seen = {name: seen for name, seen in self._seen.items() if now_s - seen[0] < self._gone_after_s}
        return [vitals for _, (_, vitals) in sorted(self._seen.items())]

    async def listen(self, bus: TelemetryPort, service: str) -> AsyncIterator[Vitals]:
        """Note the heartbeats of a service's replicas and yield them, for ever."""
        async for _, body in bus.subscribe(subjects.replicas(service)):
            if (vitals := parse_vitals(body)) is not None:
                self.see(vitals)
                yield vitals


def parse_vitals(body: bytes) -> Vitals | None:
    """Return the heartbeat in a body; None where the body is something else."""
    try:
        return msgspec.json.decode(body, type=Vitals)
    except (ValueError, RecursionError):  # malformed, of another shape, not UTF-8, or nested without end
        return None


async def beat(bus: TelemetryPort, report: Callable[[], Vitals]) -> None:
    """
    Send this replica's heartbeat every second, and whenever it becomes ready or wins or loses the lead, for ever.

    A heartbeat that cannot be sent is dropped.
    """
    sent, sent_ago_s = (False, False), HEARTBEAT_S
    while True:
        vitals = report()
        now = (vitals.ready, vitals.leading)
        if now != sent or sent_ago_s >= HEARTBEAT_S:
            sent, sent_ago_s = now, 0.0
            with suppress(BusError):  # the bus is away; the peers see that by themselves
                await bus.publish(subjects.replica(vitals.service, vitals.replica), msgspec.json.encode(vitals))
        await asyncio.sleep(_LOOK_S)
        sent_ago_s += _LOOK_S


def mark(ready_file: Path, vitals: Vitals) -> None:
    """
    Touch a file for a heartbeat of a replica that is ready, and remove it for one that is not.

    Health checks look at the file's age. The caller marks it when the heartbeat comes back over the bus: a replica that
    the bus does not hear is not ready.
    """
    with suppress(OSError):  # a file that grows old says enough
        if vitals.ready:
            ready_file.touch()
        else:
            ready_file.unlink(missing_ok=True)


Labels = tuple[tuple[str, str], ...]
BUCKETS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Counter:
    """A number that only rises."""

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, by: float = 1.0) -> None:
        """Add to it."""
        self.value += by


class Gauge:
    """A number that rises and falls."""

    def __init__(self) -> None:
        self._value = 0.0
        self._read: Callable[[], float] | None = None

    @property
    def value(self) -> float:
        """The number by now."""
        return self._value if self._read is None else self._read()

    def set(self, value: float) -> None:
        """Replace it."""
        self._value = value

    def follow(self, read: Callable[[], float]) -> None:
        """Read it from somewhere whenever somebody asks."""
        self._read = read


class Histogram:
    """How often a value fell below each of the bounds."""

    def __init__(self, bounds: tuple[float, ...] = BUCKETS_S) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


Metric = Counter | Gauge | Histogram
M = TypeVar("M", Counter, Gauge, Histogram)


class Metrics:
    """
    A service's metrics; asking for the same name and labels again gives the same one.

    Examples
    --------
    >>> metrics = Metrics(service="matcher")
    >>> metrics.counter("penstock_rounds_total", "Rounds decided.").inc()
    >>> print(metrics.render(), end="")
    # HELP penstock_rounds_total Rounds decided.
    # TYPE penstock_rounds_total counter
    penstock_rounds_total{service="matcher"} 1
    """

    def __init__(self, **labels: str) -> None:
        self._labels = tuple(sorted(labels.items()))
        self._about: dict[str, tuple[type[Metric], str]] = {}
        self._metrics: dict[str, dict[Labels, Metric]] = {}

    def counter(self, name: str, help_: str = "", **labels: str) -> Counter:
        """Return the counter of this name and these labels."""
        return self._get(name, Counter, help_, labels)

    def gauge(self, name: str, help_: str = "", **labels: str) -> Gauge:
        """Return the gauge of this name and these labels."""
        return self._get(name, Gauge, help_, labels)

    def histogram(self, name: str, help_: str = "", **labels: str) -> Histogram:
        """Return the histogram of this name and these labels; its values are seconds."""
        return self._get(name, Histogram, help_, labels)

    def render(self) -> str:
        """Return everything in Prometheus' text exposition format, version 0.0.4."""
        lines: list[str] = []
        for name, (kind, help_) in sorted(self._about.items()):
            lines += [f"# HELP {name} {help_ or name}", f"# TYPE {name} {_type_name(kind)}"]
            for labels, metric in sorted(self._metrics[name].items()):
                lines += _lines(name, labels, metric)
        return "".join(line + "\n" for line in lines)

    def _get(self, name: str, kind: type[M], help_: str, labels: dict[str, str]) -> M:
        known, _ = self._about.setdefault(name, (kind, help_))
        if known is not kind:
            raise ValueError(f"{name} is a {_type_name(known)} already; give the {_type_name(kind)} another name")
        merged = tuple(sorted({**dict(self._labels), **labels}.items()))
        metric = self._metrics.setdefault(name, {}).setdefault(merged, kind())
        return cast("M", metric)


def _type_name(kind: type[Metric]) -> str:
    return kind.__name__.lower()


def _lines(name: str, labels: Labels, metric: Metric) -> list[str]:
    if not isinstance(metric, Histogram):
        return [f"{name}{_shown(labels)} {_number(metric.value)}"]
    bounds = [*(f"{bound:g}" for bound in metric.bounds), "+Inf"]
    counts = list(accumulate(metric.counts))
    buckets = [f"{name}_bucket{_shown((*labels, ('le', bound)))} {n}" for bound, n in zip(bounds, counts, strict=True)]
    shown = _shown(labels)
    return [*buckets, f"{name}_sum{shown} {_number(metric.total)}", f"{name}_count{shown} {counts[-1]}"]


def _number(value: float) -> str:
    """Return all digits of a number: six digits of a counter would be too few to tell its rate."""
    return str(int(value)) if float(value).is_integer() else repr(value)


def _shown(labels: Labels) -> str:
    if not labels:
        return ""
    quoted = ((name, escaped_lines(value).replace("\\", r"\\").replace('"', r"\"")) for name, value in labels)
    return "{" + ",".join(f'{name}="{value}"' for name, value in quoted).replace("\n", r"\n") + "}"
