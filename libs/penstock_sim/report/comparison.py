"""One trace on one cluster under several policies: what every report is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from penstock_sim.outcome import Outcome, Summary, summary
from penstock_sim.trace import Trace


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """What ``penstock sim -o json`` prints."""

    trace: str
    cluster: str
    policies: dict[str, Summary]


@dataclass(frozen=True)
class Comparison:
    """
    Outcomes of one trace on one cluster; the first is what the others are measured against.

    Attributes
    ----------
    cluster : str
        As it was typed: ``3x4`` or the file's name.
    settings : mapping of str to str
        What was set, by name, in words.
    command : sequence of str
        The words of the command line that made it.
    versions : mapping of str to str
    notes : sequence of str
        What readers have to know, each one sentence.
    tells_unfinished : bool
        Whether readers are told of jobs that did not finish; otherwise the notes do that in words of their own.
    window_s : float
        From the first submission on: jobs that finish in it are counted; infinite where nobody asked for a window.
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
    def summaries(self) -> dict[str, Summary]:
        """The figures of each policy, in the order of the outcomes."""
        return {outcome.policy: summary(outcome, self.window_s) for outcome in self.outcomes}

    @property
    def counts_jobs(self) -> bool:
        """Whether it is news how many jobs finished: there was a window, or jobs were dropped."""
        return math.isfinite(self.window_s) or any(one.dropped for one in self.summaries.values())

    @property
    def document(self) -> Document:
        """The form that programs read."""
        return Document(trace=self.trace.name, cluster=self.cluster, policies=self.summaries)

    @property
    def from_s(self) -> float:
        """First submission, on the trace's clock."""
        return float(self.trace.submit_s[0]) if len(self.trace) else 0.0

    def ratio(self, policy: str) -> float | None:
        """
        Return a policy's average JCT over that of the first policy: less is better.

        None where the two finished different numbers of jobs, or none: averages over different jobs are no ratio.
        """
        one, first = self.summaries[policy], next(iter(self.summaries.values()))
        comparable = one.finished == first.finished and first.avg_jct_s > 0
        return one.avg_jct_s / first.avg_jct_s if comparable else None
