"""What a trace asks of a cluster: the first things to know before any policy is judged."""

from __future__ import annotations

from penstock_sim.report import table
from penstock_sim.report.comparison import Comparison
from penstock_sim.report.lengths import length

Pairs = list[tuple[str, str]]


def of_trace(comparison: Comparison) -> Pairs:
    """Return what is known of the trace, in words."""
    trace = comparison.trace
    if not len(trace):
        return [("name", trace.name), ("jobs", "0")]
    span_s = float(trace.submit_s[-1] - trace.submit_s[0])
    gpu_s = float((trace.num_gpus * trace.duration_s).sum())
    found = [
        ("name", trace.name),
        ("jobs", f"{len(trace):,}"),
        ("submitted within", length(span_s)),
        ("GPUs a job", f"1 to {int(trace.num_gpus.max()):,}, {float((trace.num_gpus == 1).mean()):.0%} ask for one"),
        ("run time", f"mean {length(float(trace.duration_s.mean()))}, longest {length(float(trace.duration_s.max()))}"),
        ("work", f"{gpu_s / 3600:,.0f} GPU-hours"),
    ]
    if vcs := set(trace.vcs) - {""}:
        found.append(("virtual clusters", f"{len(vcs):,}"))
    if users := set(trace.users) - {""}:
        found.append(("users", f"{len(users):,}"))
    return found


def of_cluster(comparison: Comparison) -> Pairs:
    """Return what is known of the cluster, and how much of it the trace would fill if nothing ever waited."""
    gpus = comparison.outcomes[0].gpus if comparison.outcomes else 0
    found = [("cluster", comparison.cluster), ("GPUs", table.gpus(comparison))]
    trace = comparison.trace
    span_s = float(trace.submit_s[-1] - trace.submit_s[0]) if len(trace) else 0.0
    if span_s and gpus:
        load = float((trace.num_gpus * trace.duration_s).sum()) / (gpus * span_s)
        found.append(("offered load", f"{load:.0%} of the GPUs while jobs are submitted"))
    return found


def dropped(comparison: Comparison) -> Pairs:
    """Return how many rows of the source are no jobs, by reason."""
    return [(reason, f"{count:,}") for reason, count in comparison.trace.dropped.items() if count]
