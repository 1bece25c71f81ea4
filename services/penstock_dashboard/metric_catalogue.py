"""
The catalogue of all metrics: name, type, labels and meaning.

``/metrics`` builds its own families from it, with :func:`gauge`, :func:`counter` and :func:`histogram`. What replicas
count themselves is in it for ``docs/metrics.md``, which is generated from it; a test compares it with the code.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

Type = Literal["counter", "gauge", "histogram"]


class MetricKind(NamedTuple):
    """
    One metric.

    Attributes
    ----------
    name : str
        As queries have it; a histogram's without ``_bucket``, ``_sum`` and ``_count``.
    help : str
        As ``# HELP`` has it.
    """

    name: str
    type: Type
    labels: tuple[str, ...]
    help: str


_WHO: Final = ("service", "replica")

OF_DASHBOARD: Final = (
    MetricKind(
        "penstock_scrape_missing_replicas", "gauge", ("service",), "Replicas that are heard and did not answer."
    ),
    MetricKind("penstock_scrape_missing_stats", "gauge", (), "1 while no gateway tells the cluster's figures."),
    MetricKind("penstock_replica_ready", "gauge", _WHO, "1 while the replica has caught up and does its work."),
    MetricKind("penstock_replica_leading", "gauge", _WHO, "1 for the replica that decides, where one leads."),
    MetricKind("penstock_leaders", "gauge", ("service",), "Replicas that lead, of services of which one leads."),
    MetricKind("penstock_replicas_ready", "gauge", ("service",), "Replicas that are ready."),
    MetricKind("penstock_replica_info", "gauge", (*_WHO, "version", "host"), "1, with the replica's version and host."),
    MetricKind(
        "penstock_replica_undecided_seconds",
        "gauge",
        _WHO,
        "How long the oldest fact that matters to the replica has waited for a decision.",
    ),
    MetricKind(
        "penstock_replica_event_lag",
        "gauge",
        _WHO,
        "Commits of the log that the replica had not folded in at its last heartbeat, up to a second ago.",
    ),
)
"""What the dashboard says of replicas, by their heartbeats and by whether they answer."""

OF_REPLICAS: Final = (
    MetricKind("penstock_decide_seconds", "histogram", _WHO, "Time to work out a decision."),
    MetricKind("penstock_append_seconds", "histogram", _WHO, "Time to append a commit."),
    MetricKind("penstock_conflicts_total", "counter", _WHO, "Commits refused for being out of date."),
    MetricKind("penstock_last_seq", "gauge", _WHO, "Sequence of the last commit folded in."),
    MetricKind(
        "penstock_snapshot_too_large",
        "gauge",
        _WHO,
        "1 while the state is too large for a snapshot: a start reads the whole log.",
    ),
)
"""What replicas say of themselves."""

_TEAM: Final = ("pool", "team")

OF_CLUSTER: Final = (
    MetricKind("penstock_log_last_seq", "gauge", (), "Sequence of the log's last commit."),
    MetricKind(
        "penstock_jobs",
        "gauge",
        (*_TEAM, "state"),
        "Jobs that are not over: pending, held, running, preempting or completing.",
    ),
    MetricKind(
        "penstock_jobs_ended_total", "counter", (*_TEAM, "outcome"), "Jobs that completed, failed or were cancelled."
    ),
    MetricKind(
        "penstock_jobs_waiting", "gauge", ("pool", "cause"), "Jobs that wait, by the cause that the last round gave."
    ),
    MetricKind(
        "penstock_longest_wait_seconds", "gauge", ("pool",), "For how long the job has waited that has waited longest."
    ),
    MetricKind(
        "penstock_job_wait_seconds",
        "histogram",
        ("pool",),
        "From a job's submission to its first start; the profiler's samples are left out.",
    ),
    MetricKind(
        "penstock_job_completion_seconds",
        "histogram",
        ("pool",),
        "From a job's submission to its end, of jobs that completed (JCT).",
    ),
    MetricKind("penstock_runs_ended_total", "counter", ("pool", "outcome"), "Runs by how they ended."),
    MetricKind("penstock_preemptions_total", "counter", ("pool",), "Runs that ended because they were preempted."),
    MetricKind("penstock_runs_lost_total", "counter", ("pool",), "Runs that ended because a node was lost."),
    MetricKind("penstock_nodes", "gauge", ("pool", "state"), "Nodes: up, draining, drained, lost or left."),
    MetricKind("penstock_devices", "gauge", ("pool", "kind", "state"), "Devices: busy, idle, drained, lost or left."),
)
"""What the gateway says of the cluster; it is the same whichever gateway is asked, and goes on over restarts."""

CATALOGUE: Final = {kind.name: kind for kind in (*OF_CLUSTER, *OF_DASHBOARD, *OF_REPLICAS)}


def gauge(name: str) -> GaugeMetricFamily:
    """Return an empty family of a gauge of the catalogue; KeyError for a name that is none."""
    kind = _of_type(name, "gauge")
    return GaugeMetricFamily(name, kind.help, labels=kind.labels)


def counter(name: str) -> CounterMetricFamily:
    """Return an empty family of a counter of the catalogue; KeyError for a name that is none."""
    kind = _of_type(name, "counter")
    return CounterMetricFamily(name, kind.help, labels=kind.labels)


def histogram(name: str) -> HistogramMetricFamily:
    """Return an empty family of a histogram of the catalogue; KeyError for a name that is none."""
    kind = _of_type(name, "histogram")
    return HistogramMetricFamily(name, kind.help, labels=kind.labels)


def _of_type(name: str, type_: Type) -> MetricKind:
    kind = CATALOGUE[name]
    if kind.type != type_:
        raise KeyError(f"{name} is a {kind.type}, and no {type_}")
    return kind
