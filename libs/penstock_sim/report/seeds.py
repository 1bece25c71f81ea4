"""Several seeds: each policy's figures as means over them, and how far the seeds lie apart."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import Final

import msgspec

from penstock_sim.outcome import Outcome, Summary, summary
from penstock_sim.report.comparison import Comparison
from penstock_sim.report.table import Rows, ratio

HEADERS: Final = ("POLICY", "SEEDS", "AVG", "+-", "P95", "+-", "RATIO", "+-")
COUNTS: Final = ("DONE", "+-", "DROPPED", "+-")
"""Beside them where :attr:`Comparison.counts_jobs`: jobs that finished, in the window if there is one."""
_WHOLE: Final = frozenset(name for name, kind in Summary.__annotations__.items() if kind == "int")


class Spread(msgspec.Struct, frozen=True, kw_only=True):
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
    """What ``penstock sim -o json`` prints of several seeds: ``policies`` has means, ``ratio`` is seed by seed."""

    trace: str
    cluster: str
    seeds: tuple[int, ...]
    policies: dict[str, Summary]
    spread: dict[str, dict[str, Spread]]


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
    def each(self) -> dict[str, dict[int, Summary]]:
        """Policy → seed → figures."""
        return {
            policy: {seed: summary(one, self.window_s) for seed, one in found.items()}
            for policy, found in self.by_seed.items()
        }

    @cached_property
    def summaries(self) -> dict[str, Summary]:
        """The means over the seeds, by policy."""
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
        """The form that programs read."""
        return SeedsDocument(
            trace=self.trace.name,
            cluster=self.cluster,
            seeds=tuple(dict.fromkeys(seed for found in self.by_seed.values() for seed in found)),
            policies=self.summaries,
            spread={policy: self.spreads(policy) for policy in self.each},
        )

    def spreads(self, policy: str) -> dict[str, Spread]:
        """Return how far each figure, and the ratio, lies apart over the seeds."""
        found = list(self.each[policy].values())
        of_figures = {name: spread([getattr(one, name) for one in found]) for name in Summary.__struct_fields__}
        ratios = self.ratios(policy)
        return {**of_figures, **({"ratio": spread(ratios)} if ratios else {})}


def mean(found: Sequence[Summary]) -> Summary:
    """Return the mean of each figure; counts are rounded."""
    means = {name: statistics.fmean(getattr(one, name) for one in found) for name in Summary.__struct_fields__}
    return msgspec.convert({name: round(value) if name in _WHOLE else value for name, value in means.items()}, Summary)


def spread(values: Sequence[float]) -> Spread:
    """
    Return how far values lie apart.

    Examples
    --------
    >>> spread([1.0, 3.0])
    Spread(mean=2.0, sd=1.4142135623730951, least=1.0, most=3.0)
    """
    sd = statistics.stdev(values) if len(values) > 1 else 0.0
    return Spread(mean=statistics.fmean(values), sd=sd, least=min(values), most=max(values))


def headers(comparison: SeedComparison) -> tuple[str, ...]:
    """Return what stands over :func:`rows`."""
    return (*HEADERS, *COUNTS) if comparison.counts_jobs else HEADERS


def rows(comparison: SeedComparison, span: Callable[[float], str]) -> Rows:
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
    """Return the same as a table for the page."""
    head = "".join(f"<th>{escape(name.capitalize().replace('+-', '±'))}</th>" for name in headers(comparison))
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows(comparison, span))
    return (
        "<h2>Over the seeds</h2><p>Means over the seeds, and standard deviations of the sample behind ±. "
        "Plots and files of jobs are of the first seed.</p>"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )
