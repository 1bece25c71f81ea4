"""
One trace on one cluster under several policies, in figures and rows.

Every report shows a :class:`Comparison`. A :class:`SeedComparison` is one whose figures are means over several seeds,
with how far the seeds lie apart. :func:`rows` and :func:`seed_rows` return the figures as rows of text, for terminals
and pages. :func:`of_trace` and :func:`of_cluster` say what the trace asks of the cluster: a reader has to know this
before he judges a policy. :func:`length` returns a length of time in words.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import Final

import msgspec

from penstock_simulator.outcome import Outcome, OutcomeSummary, summary
from penstock_simulator.trace import Trace


class ComparisonDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON document of ``penstock sim -o json`` of one seed: a summary a policy."""

    trace: str
    cluster: str
    policies: dict[str, OutcomeSummary]


@dataclass(frozen=True)
class Comparison:
    """
    Outcomes of one trace on one cluster; the first is what the others are measured against.

    Attributes
    ----------
    cluster : str
        The cluster as it was typed: ``3x4`` or the file's name.
    settings : mapping of str to str
        Name → what was set, in words.
    command : sequence of str
        The words of the command line that made it.
    versions : mapping of str to str
    notes : sequence of str
        What readers have to know, each one sentence.
    tells_unfinished : bool
        Whether the report mentions jobs that did not finish; otherwise the notes do so in words of their own.
    window_s : float
        Length of the window, from the first submission on, in which finished jobs count; infinite without a window.
    """

    trace: Trace
    cluster: str
    outcomes: Sequence[Outcome]
    settings: Mapping[str, str] = field(default_factory=dict)
    command: Sequence[str] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    tells_unfinished: bool = True
    window_s: float = math.inf

    @cached_property
    def summaries(self) -> dict[str, OutcomeSummary]:
        """The figures of each policy, in the order of the outcomes."""
        return {outcome.policy: summary(outcome, self.window_s) for outcome in self.outcomes}

    @property
    def counts_jobs(self) -> bool:
        """Whether the number of finished jobs says something: there is a window, or jobs were dropped."""
        return math.isfinite(self.window_s) or any(one.dropped for one in self.summaries.values())

    @property
    def document(self) -> ComparisonDocument:
        """The comparison as the JSON document that programs read."""
        return ComparisonDocument(trace=self.trace.name, cluster=self.cluster, policies=self.summaries)

    @property
    def from_s(self) -> float:
        """Time of the first submission, on the trace's clock, in seconds."""
        return float(self.trace.submit_s[0]) if len(self.trace) else 0.0

    def ratio(self, policy: str) -> float | None:
        """
        Return a policy's average JCT over that of the first policy: less is better.

        None if the two finished different numbers of jobs, or none: averages over different jobs give no ratio.
        """
        one, first = self.summaries[policy], next(iter(self.summaries.values()))
        comparable = one.finished == first.finished and first.avg_jct_s > 0
        return one.avg_jct_s / first.avg_jct_s if comparable else None


SEED_HEADERS: Final = ("POLICY", "SEEDS", "AVG", "+-", "P95", "+-", "RATIO", "+-")
COUNTS: Final = ("DONE", "+-", "DROPPED", "+-")
"""Beside them where :attr:`Comparison.counts_jobs`: jobs that finished, in the window if there is one."""
_WHOLE_FIGURES: Final = frozenset(name for name, kind in OutcomeSummary.__annotations__.items() if kind == "int")


class SeedSpread(msgspec.Struct, frozen=True, kw_only=True):
    """
    How far a figure's values lie apart over the seeds.

    Attributes
    ----------
    sd : float
        Standard deviation of the sample; 0 for a single seed.
    """

    mean: float
    sd: float
    least: float
    most: float


class SeedsDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON of ``penstock sim -o json`` with several seeds: ``policies`` has means, ``ratio`` is seed by seed."""

    trace: str
    cluster: str
    seeds: tuple[int, ...]
    policies: dict[str, OutcomeSummary]
    spread: dict[str, dict[str, SeedSpread]]


@dataclass(frozen=True)
class SeedComparison(Comparison):
    """
    A comparison whose figures are means over seeds; outcomes, and all that is drawn, are of the first seed.

    Attributes
    ----------
    by_seed : mapping of str to mapping of int to Outcome
        Policy → seed → what became of it.
    """

    by_seed: Mapping[str, Mapping[int, Outcome]] = field(default_factory=dict)

    @cached_property
    def each(self) -> dict[str, dict[int, OutcomeSummary]]:
        """The summaries of all runs: policy → seed → figures."""
        return {
            policy: {seed: summary(one, self.window_s) for seed, one in found.items()}
            for policy, found in self.by_seed.items()
        }

    @cached_property
    def summaries(self) -> dict[str, OutcomeSummary]:
        """Each policy's figures, as means over the seeds."""
        return {policy: mean(list(found.values())) for policy, found in self.each.items()}

    def ratios(self, policy: str) -> list[float]:
        """Return a policy's average JCT over that of the first, seed by seed, where equally many jobs ended."""
        first = next(iter(self.each.values()))
        pairs = [(one, first[seed]) for seed, one in self.each[policy].items() if seed in first]
        return [a.avg_jct_s / b.avg_jct_s for a, b in pairs if a.finished == b.finished and b.avg_jct_s > 0]

    def ratio(self, policy: str) -> float | None:
        """Return the mean of :meth:`ratios`; None where there are none."""
        found = self.ratios(policy)
        return statistics.fmean(found) if found else None

    @property
    def seeds_document(self) -> SeedsDocument:
        """The comparison over seeds as the JSON document that programs read."""
        return SeedsDocument(
            trace=self.trace.name,
            cluster=self.cluster,
            seeds=tuple(dict.fromkeys(seed for found in self.by_seed.values() for seed in found)),
            policies=self.summaries,
            spread={policy: self.spreads(policy) for policy in self.each},
        )

    def spreads(self, policy: str) -> dict[str, SeedSpread]:
        """Return how far each figure, and the ratio, lies apart over the seeds."""
        found = list(self.each[policy].values())
        of_figures = {name: spread([getattr(one, name) for one in found]) for name in OutcomeSummary.__struct_fields__}
        ratios = self.ratios(policy)
        return {**of_figures, **({"ratio": spread(ratios)} if ratios else {})}


def mean(found: Sequence[OutcomeSummary]) -> OutcomeSummary:
    """Return a summary whose figures are the means of those of several; counts are rounded."""
    means = {name: statistics.fmean(getattr(one, name) for one in found) for name in OutcomeSummary.__struct_fields__}
    return msgspec.convert(
        {name: round(value) if name in _WHOLE_FIGURES else value for name, value in means.items()}, OutcomeSummary
    )


def spread(values: Sequence[float]) -> SeedSpread:
    """
    Return mean, standard deviation, least and most of some values.

    Examples
    --------
    >>> spread([1.0, 3.0])
    SeedSpread(mean=2.0, sd=1.4142135623730951, least=1.0, most=3.0)
    """
    sd = statistics.stdev(values) if len(values) > 1 else 0.0
    return SeedSpread(mean=statistics.fmean(values), sd=sd, least=min(values), most=max(values))


def headers(comparison: SeedComparison) -> tuple[str, ...]:
    """Return the headers of the table over seeds; with counts of jobs where these differ."""
    return (*SEED_HEADERS, *COUNTS) if comparison.counts_jobs else SEED_HEADERS


def seed_rows(comparison: SeedComparison, span: Callable[[float], str]) -> Rows:
    """Return cells under :func:`headers`: means, and their standard deviations over the seeds."""
    found: Rows = []
    for policy, one in comparison.summaries.items():
        spreads = comparison.spreads(policy)
        ratios = spreads.get("ratio")
        counts = (spreads["in_window"], spreads["dropped"]) if comparison.counts_jobs else ()
        found.append(
            (
                policy,
                str(len(comparison.each[policy])),
                span(one.avg_jct_s),
                span(spreads["avg_jct_s"].sd),
                span(one.p95_jct_s),
                span(spreads["p95_jct_s"].sd),
                ratio(comparison.ratio(policy)),
                "-" if ratios is None else f"{ratios.sd:.2g}",
                *(cell for count in counts for cell in (f"{count.mean:.1f}", f"{count.sd:.1f}")),
            )
        )
    return found


def section(comparison: SeedComparison, span: Callable[[float], str]) -> str:
    """Return the table over seeds as HTML for the page."""
    head = "".join(f"<th>{escape(name.capitalize().replace('+-', '±'))}</th>" for name in headers(comparison))
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in seed_rows(comparison, span)
    )
    return (
        "<h2>Over the seeds</h2><p>Means over the seeds, and standard deviations of the sample behind ±. "
        "Plots and files of jobs are of the first seed.</p>"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


Rows = list[tuple[str, ...]]
HEADERS: Final = ("POLICY", "AVG", "RATIO", "MEDIAN", "P95", "QUEUE", "MAKESPAN", "UTIL", "PREEMPT")
WIDE: Final = ("POLICY", "RATIO", *(name.upper() for name in OutcomeSummary.__struct_fields__))
_DIGITS: Final = {"utilisation": 4, "wall_s": 3, "jobs_per_s": 0}


def rows(comparison: Comparison, span: Callable[[float], str]) -> Rows:
    """Return cells under :data:`HEADERS`; ``span`` says how lengths of time read."""
    return [
        (
            policy,
            span(one.avg_jct_s),
            ratio(comparison.ratio(policy)),
            span(one.median_jct_s),
            span(one.p95_jct_s),
            span(one.avg_queue_s),
            span(one.makespan_s),
            f"{one.utilisation:.0%}",
            str(one.preemptions),
        )
        for policy, one in comparison.summaries.items()
    ]


def wide_rows(comparison: Comparison) -> Rows:
    """Return cells under :data:`WIDE`: every figure, in seconds."""
    return [
        (policy, ratio(comparison.ratio(policy)), *(_figure(one, name) for name in OutcomeSummary.__struct_fields__))
        for policy, one in comparison.summaries.items()
    ]


def _figure(one: OutcomeSummary, name: str) -> str:
    value = getattr(one, name)
    return str(value) if name in _WHOLE_FIGURES else f"{value:.{_DIGITS.get(name, 1)}f}"


def ratio(value: float | None) -> str:
    """
    Return a ratio, the smaller the more digits; a dash for none.

    Examples
    --------
    >>> [ratio(value) for value in (None, 1.0, 0.0502, 0.00123, 12.34)]
    ['-', '1.00', '0.050', '0.0012', '12.3']
    """
    if value is None:
        return "-"
    if value >= 10:
        return f"{value:.1f}"
    if value >= 0.01:
        return f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"
    return f"{value:.2g}"


def gpu_count(comparison: Comparison) -> str:
    """Return the number of GPUs in words, as a range if outcomes differ in it."""
    counts = sorted({outcome.gpus for outcome in comparison.outcomes}) or [0]
    return f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"


def notes(comparison: Comparison) -> list[str]:
    """Return the sentences that readers of the table have to know."""
    found = [*comparison.notes]
    if len(comparison.outcomes) > 1:
        first = comparison.outcomes[0].policy
        found.insert(0, f"ratio: average JCT over that of {first}, on {gpu_count(comparison)} GPUs; less is better")
    for policy, one in comparison.summaries.items():
        left = one.jobs - one.finished - one.dropped
        if comparison.tells_unfinished and left:
            found.append(f"{policy}: {left:,} of {one.jobs:,} jobs did not finish; JCTs leave them out")
        if one.dropped:
            found.append(f"{policy}: {one.dropped:,} of {one.jobs:,} jobs found no room and were dropped")
    if math.isfinite(comparison.window_s):
        done = ", ".join(f"{policy} {one.in_window:,}" for policy, one in comparison.summaries.items())
        found.append(f"jobs that finished within {length(comparison.window_s)} of the first submission: {done}")
    dropped = sum(comparison.trace.dropped.values())
    if dropped:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in comparison.trace.dropped.items() if count)
        found.append(f"{dropped:,} rows of the trace are no jobs: {reasons}")
    return found


Pairs = list[tuple[str, str]]


def of_trace(comparison: Comparison) -> Pairs:
    """Return the trace's name, size, time span, sizes of jobs and work as labels and texts."""
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
    """Return the cluster, its GPUs, and the share of them that the trace would fill if nothing ever waited."""
    gpus = comparison.outcomes[0].gpus if comparison.outcomes else 0
    found = [("cluster", comparison.cluster), ("GPUs", gpu_count(comparison))]
    trace = comparison.trace
    span_s = float(trace.submit_s[-1] - trace.submit_s[0]) if len(trace) else 0.0
    if span_s and gpus:
        load = float((trace.num_gpus * trace.duration_s).sum()) / (gpus * span_s)
        found.append(("offered load", f"{load:.0%} of the GPUs while jobs are submitted"))
    return found


def dropped(comparison: Comparison) -> Pairs:
    """Return how many rows of the source are no jobs, by reason."""
    return [(reason, f"{count:,}") for reason, count in comparison.trace.dropped.items() if count]


def length(seconds: float) -> str:
    """
    Return a length of time in words.

    Examples
    --------
    >>> length(40), length(5400), length(86_400 * 129.4)
    ('40 s', '1.5 h', '129.4 d')
    """
    for unit_s, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= unit_s:
            return f"{seconds / unit_s:,.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.3g} s"
