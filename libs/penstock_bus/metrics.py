"""Counters, gauges and histograms, shown in Prometheus' text form by the shell's ``metrics`` endpoint."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import Final, Literal

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
        self.value = 0.0

    def set(self, value: float) -> None:
        """Replace it."""
        self.value = value


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
Kind = Literal["counter", "gauge", "histogram"]


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
        self._about: dict[str, tuple[Kind, str]] = {}
        self._metrics: dict[str, dict[Labels, Metric]] = {}

    def counter(self, name: str, help_: str = "", **labels: str) -> Counter:
        """Return the counter of this name and these labels."""
        metric = self._get(name, "counter", help_, labels, Counter())
        assert isinstance(metric, Counter)  # noqa: S101 - _get has compared the kinds
        return metric

    def gauge(self, name: str, help_: str = "", **labels: str) -> Gauge:
        """Return the gauge of this name and these labels."""
        metric = self._get(name, "gauge", help_, labels, Gauge())
        assert isinstance(metric, Gauge)  # noqa: S101 - _get has compared the kinds
        return metric

    def histogram(self, name: str, help_: str = "", **labels: str) -> Histogram:
        """Return the histogram of this name and these labels; its values are seconds."""
        metric = self._get(name, "histogram", help_, labels, Histogram())
        assert isinstance(metric, Histogram)  # noqa: S101 - _get has compared the kinds
        return metric

    def render(self) -> str:
        """Return everything in Prometheus' text exposition format, version 0.0.4."""
        lines: list[str] = []
        for name, (kind, help_) in sorted(self._about.items()):
            lines += [f"# HELP {name} {help_ or name}", f"# TYPE {name} {kind}"]
            for labels, metric in sorted(self._metrics[name].items()):
                lines += _lines(name, labels, metric)
        return "".join(line + "\n" for line in lines)

    def _get(self, name: str, kind: Kind, help_: str, labels: dict[str, str], new: Metric) -> Metric:
        known, _ = self._about.setdefault(name, (kind, help_))
        if known != kind:
            raise ValueError(f"{name} is a {known} already; give the {kind} another name")
        merged = tuple(sorted({**dict(self._labels), **labels}.items()))
        return self._metrics.setdefault(name, {}).setdefault(merged, new)


def _lines(name: str, labels: Labels, metric: Metric) -> list[str]:
    if not isinstance(metric, Histogram):
        return [f"{name}{_shown(labels)} {_number(metric.value)}"]
    bounds = [*(f"{bound:g}" for bound in metric.bounds), "+Inf"]
    counts = list(accumulate(metric.counts))
    buckets = [f"{name}_bucket{_shown((*labels, ('le', bound)))} {n}" for bound, n in zip(bounds, counts, strict=True)]
    shown = _shown(labels)
    return [*buckets, f"{name}_sum{shown} {_number(metric.total)}", f"{name}_count{shown} {counts[-1]}"]


def _number(value: float) -> str:
    """Return all digits of a number: of a counter that showed six, no rate could be told."""
    return str(int(value)) if float(value).is_integer() else repr(value)


def _shown(labels: Labels) -> str:
    if not labels:
        return ""
    escaped = ((name, value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")) for name, value in labels)
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped) + "}"
