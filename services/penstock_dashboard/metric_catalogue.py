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
    MetricKind("penstock_stream_bytes", "gauge", ("stream",), "What a stream holds, in bytes."),
    MetricKind("penstock_stream_max_bytes", "gauge", ("stream",), "How much a stream may hold, where that is limited."),
    MetricKind("penstock_stream_messages", "gauge", ("stream",), "Messages that a stream holds."),
    MetricKind(
        "penstock_stream_copies", "gauge", ("stream", "state"), "Copies beside the leader's: current or behind."
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
    MetricKind("penstock_round_seconds", "histogram", _WHO, "Time to decide rounds, of all pools together."),
    MetricKind("penstock_rounds_total", "counter", (*_WHO, "pool"), "Rounds decided."),
    MetricKind("penstock_placements_total", "counter", (*_WHO, "pool"), "Placements decided."),
    MetricKind("penstock_evictions_total", "counter", (*_WHO, "pool"), "Preemptions decided."),
    MetricKind("penstock_outbox_facts", "gauge", _WHO, "Facts that wait for the log."),
    MetricKind("penstock_node_runs", "gauge", _WHO, "Runs whose processes live on the node."),
    MetricKind("penstock_node_sessions", "gauge", _WHO, "Sessions of people in jobs on the node."),
    MetricKind("penstock_warm_servers", "gauge", _WHO, "Servers that are kept for warm starts."),
    MetricKind("penstock_warm_server_bytes", "gauge", _WHO, "Memory that servers for warm starts hold."),
    MetricKind("penstock_parked_runs", "gauge", _WHO, "Runs that are parked on the node."),
    MetricKind("penstock_parked_bytes", "gauge", _WHO, "Memory that parked runs hold."),
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
_ALLOCATION: Final = ("pool", "allocation")

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
        "penstock_jobs_waiting",
        "gauge",
        ("pool", "cause"),
        "Pending jobs, each once, by why they wait: `undecided` where no round has spoken; held ones too.",
    ),
    MetricKind(
        "penstock_longest_wait_seconds",
        "gauge",
        ("pool",),
        "How long the job waits now that waits longest; without held, blocked and not yet begun ones.",
    ),
    MetricKind(
        "penstock_job_wait_seconds",
        "histogram",
        ("pool",),
        "From when a job could begin to its first start; the profiler's samples are left out.",
    ),
    MetricKind(
        "penstock_job_completion_seconds",
        "histogram",
        ("pool",),
        "From a job's submission to its end, of jobs that completed (JCT).",
    ),
    MetricKind(
        "penstock_runs_ended_total",
        "counter",
        ("pool", "outcome"),
        "Runs by how they ended; `timed_out`: they were stopped for their job's time limit.",
    ),
    MetricKind("penstock_preemptions_total", "counter", ("pool",), "Runs that ended because they were preempted."),
    MetricKind("penstock_runs_lost_total", "counter", ("pool",), "Runs that ended because a node was lost."),
    MetricKind(
        "penstock_gpu_seconds_total",
        "counter",
        (*_TEAM, "use"),
        "Device time of runs that ended: used in iterations, idle while held, unmeasured or lost, as was known then.",
    ),
    MetricKind("penstock_open_gpu_seconds", "gauge", (*_TEAM, "use"), "Device time so far of runs that go on, by use."),
    MetricKind("penstock_nodes", "gauge", ("pool", "state"), "Nodes: up, draining, drained, leaving, lost or left."),
    MetricKind(
        "penstock_devices",
        "gauge",
        ("pool", "kind", "state"),
        "Devices: busy, idle, drained, failed, leaving, lost or left.",
    ),
    MetricKind(
        "penstock_pilots",
        "gauge",
        (*_ALLOCATION, "state"),
        "Pilots of an allocation: planned, waiting in the queue of their provider, starting, or running.",
    ),
    MetricKind(
        "penstock_allocation_paused", "gauge", _ALLOCATION, "1 while no pilots are submitted until somebody resumes it."
    ),
    MetricKind(
        "penstock_allocation_failures",
        "gauge",
        _ALLOCATION,
        "Pilots that were refused, or ended without a node, one after the other since the last one joined.",
    ),
    MetricKind(
        "penstock_pilots_ended_total",
        "counter",
        (*_ALLOCATION, "end"),
        "Pilots by how they ended: finished, cancelled, failed, refused (they could not be submitted) or lost.",
    ),
)
"""What the gateway says of the cluster; it is the same whichever gateway is asked, and goes on over restarts."""

_JOB: Final = ("penstock_job", "user", "team")
_DEVICE: Final = ("node", "device", "kind", "backend", "UUID")
_GPU: Final = ("gpu", "UUID", "device", "modelName", "Hostname", *_JOB)
_LANE: Final = ("node", "device", "lane")

OF_DEVICES: Final = (
    MetricKind(
        "penstock_device_utilisation_ratio",
        "gauge",
        (*_DEVICE, "source", *_JOB),
        "The part of the time in which a device computed, 0 to 1: by its driver, or an estimate.",
    ),
    MetricKind("penstock_device_memory_used_bytes", "gauge", (*_DEVICE, *_JOB), "Memory of a device that is used."),
    MetricKind("penstock_device_memory_total_bytes", "gauge", _DEVICE, "Memory of a device."),
    MetricKind("penstock_device_unreadable", "gauge", _DEVICE, "1 while a device's driver answers with an error."),
    MetricKind(
        "penstock_device_job", "gauge", ("node", "device", *_JOB), "1 for each job that has a device, or a part of it."
    ),
    MetricKind("penstock_node_sample_age_seconds", "gauge", ("node",), "How long ago a node has told of its devices."),
    MetricKind("DCGM_FI_DEV_GPU_UTIL", "gauge", _GPU, "GPU utilisation, in percent."),
    MetricKind("DCGM_FI_DEV_FB_USED", "gauge", _GPU, "Framebuffer memory used, in MiB."),
    MetricKind("DCGM_FI_DEV_FB_FREE", "gauge", _GPU, "Framebuffer memory free, in MiB."),
    MetricKind("DCGM_FI_DEV_GPU_TEMP", "gauge", _GPU, "GPU temperature, in degrees Celsius."),
    MetricKind("DCGM_FI_DEV_POWER_USAGE", "gauge", _GPU, "Power draw, in watts."),
    MetricKind("DCGM_FI_DEV_SM_CLOCK", "gauge", _GPU, "SM clock frequency, in MHz."),
    MetricKind("DCGM_FI_DEV_XID_ERRORS", "gauge", _GPU, "The last XID error since the node's executor began; 0: none."),
    MetricKind(
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        "gauge",
        _GPU,
        "Double-bit memory errors since the driver was loaded; it only rises, and OpenMetrics would rename a counter.",
    ),
)
"""What nodes say of their devices. The jobs of a device that several share are in ``penstock_device_job`` alone."""

OF_LANES: Final = (
    MetricKind("penstock_lane_members", "gauge", _LANE, "Runs that share a lane of a device."),
    MetricKind(
        "penstock_lane_turn_ratio", "gauge", _LANE, "For which part of the last second somebody had a lane's turn."
    ),
    MetricKind("penstock_lane_switches_per_second", "gauge", _LANE, "How often a lane's turn changed hands."),
    MetricKind(
        "penstock_shared_device_used_bytes",
        "gauge",
        ("node", "device"),
        "What lanes and their runs' states take of a device.",
    ),
)
"""What nodes say of devices that runs share in turns."""

CATALOGUE: Final = {kind.name: kind for kind in (*OF_CLUSTER, *OF_DEVICES, *OF_LANES, *OF_DASHBOARD, *OF_REPLICAS)}


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
