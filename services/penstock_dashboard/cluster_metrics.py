"""The cluster's figures, as the gateway counts them, as families of metrics."""

from __future__ import annotations

from itertools import accumulate

from prometheus_client import Metric
from prometheus_client.core import HistogramMetricFamily

from penstock_dashboard.metric_catalogue import counter, gauge, histogram
from penstock_log.totals import BOUNDS_S, DeviceTime, Spread
from penstock_log.views import AllocationStatsView, PoolStatsView, StatsView, StreamsView

_ENDED = ("completed", "failed", "cancelled")


def of_stats(stats: StatsView) -> list[Metric]:
    """Return the families of what a gateway has answered."""
    last_seq = gauge("penstock_log_last_seq")
    last_seq.add_metric([], stats.last_seq)
    pools = stats.pools
    return [
        last_seq,
        *_of_jobs(pools),
        *_of_past(pools),
        *_of_time(pools),
        *_of_nodes(pools),
        *_of_pilots(stats.allocations),
    ]


def of_streams(view: StreamsView) -> list[Metric]:
    """Return the families of the server's streams."""
    held, most = gauge("penstock_stream_bytes"), gauge("penstock_stream_max_bytes")
    messages, copies = gauge("penstock_stream_messages"), gauge("penstock_stream_copies")
    for stream in view.streams:
        if stream.error:
            continue
        held.add_metric([stream.name], stream.bytes)
        messages.add_metric([stream.name], stream.messages)
        if stream.max_bytes:
            most.add_metric([stream.name], stream.max_bytes)
        current = sum(copy.current and not copy.offline for copy in stream.copies)
        copies.add_metric([stream.name, "current"], current)
        copies.add_metric([stream.name, "behind"], len(stream.copies) - current)
    return [held, most, messages, copies]


def _of_jobs(pools: tuple[PoolStatsView, ...]) -> list[Metric]:
    jobs, waiting = gauge("penstock_jobs"), gauge("penstock_jobs_waiting")
    longest = gauge("penstock_longest_wait_seconds")
    for one in pools:
        longest.add_metric([one.pool], one.longest_wait_s)
        for team, states in one.jobs.items():
            for state, count in states.items():
                jobs.add_metric([one.pool, team, state], count)
        for cause, count in one.waits.items():
            waiting.add_metric([one.pool, cause], count)
    return [jobs, waiting, longest]


def _of_past(pools: tuple[PoolStatsView, ...]) -> list[Metric]:
    ended, runs = counter("penstock_jobs_ended_total"), counter("penstock_runs_ended_total")
    preempted, lost = counter("penstock_preemptions_total"), counter("penstock_runs_lost_total")
    waits, completions = histogram("penstock_job_wait_seconds"), histogram("penstock_job_completion_seconds")
    for one in pools:
        for team, totals in sorted(one.totals.teams.items()):
            for outcome in _ENDED:
                ended.add_metric([one.pool, team, outcome], totals.ended.get(outcome, 0))
        for outcome, count in sorted(one.totals.runs.items()):
            runs.add_metric([one.pool, outcome], count)
        preempted.add_metric([one.pool], one.totals.runs.get("preempted", 0))
        lost.add_metric([one.pool], one.totals.runs.get("lost", 0))
        _add_spread(waits, one.pool, one.totals.waits)
        _add_spread(completions, one.pool, one.totals.completions)
    return [ended, runs, preempted, lost, waits, completions]


def _of_time(pools: tuple[PoolStatsView, ...]) -> list[Metric]:
    ended, going_on = counter("penstock_gpu_seconds_total"), gauge("penstock_open_gpu_seconds")
    for one in pools:
        for team, totals in sorted(one.totals.teams.items()):
            for use, time_ms in _uses(totals.time):
                ended.add_metric([one.pool, team, use], time_ms / 1000)
        for team, time in sorted(one.open_time.items()):
            for use, time_ms in _uses(time):
                going_on.add_metric([one.pool, team, use], time_ms / 1000)
    return [ended, going_on]


def _uses(time: DeviceTime) -> tuple[tuple[str, int], ...]:
    """Return the columns into which all held time falls."""
    return ("used", time.used_ms), ("idle", time.idle_ms), ("unmeasured", time.unmeasured_ms), ("lost", time.lost_ms)


def _of_nodes(pools: tuple[PoolStatsView, ...]) -> list[Metric]:
    nodes, devices = gauge("penstock_nodes"), gauge("penstock_devices")
    for one in pools:
        for state, count in one.nodes.items():
            nodes.add_metric([one.pool, state], count)
        for kind, states in one.devices.items():
            for state, count in states.items():
                devices.add_metric([one.pool, kind, state], count)
    return [nodes, devices]


def _of_pilots(allocations: tuple[AllocationStatsView, ...]) -> list[Metric]:
    pilots, ended = gauge("penstock_pilots"), counter("penstock_pilots_ended_total")
    paused, failures = gauge("penstock_allocation_paused"), gauge("penstock_allocation_failures")
    for one in allocations:
        whose = [one.pool, one.name]
        for state, count in one.pilots.items():
            pilots.add_metric([*whose, state], count)
        for end, count in one.ended.items():
            ended.add_metric([*whose, end], count)
        paused.add_metric(whose, one.paused)
        failures.add_metric(whose, one.failures)
    return [pilots, paused, failures, ended]


def _add_spread(to: HistogramMetricFamily, pool: str, spread: Spread) -> None:
    counts = accumulate(spread.counts or [0] * (len(BOUNDS_S) + 1))
    bounds = [*(f"{bound:.1f}" for bound in BOUNDS_S), "+Inf"]
    to.add_metric([pool], list(zip(bounds, counts, strict=True)), spread.total_ms / 1000)
