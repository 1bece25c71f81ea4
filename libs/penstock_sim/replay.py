"""
A cluster's own history once more, under the same or another policy, by the production deciders.

Every job of the log is submitted when it was, with the specification that it had, also those outside a window: they
compete with those within. Ranker, matcher and autoscaler decide anew. What a job is worth is taken from its runs: each
of its runs in the replay takes the turn of one that it had (:mod:`penstock_sim.replaying.worth`), takes as long to
start, is as fast, fails or is refused where that one was, and says what that one said. What the profiler and the tuner
said is said again once it has come to what they went by (:mod:`penstock_sim.replaying.statements`). Nodes come and go
as they did, what people set, held, drained and cancelled they do again at the same time, and services decide as long
after the facts that they go by as they did.

What stays unknown, and how it is handled:

* Jobs that were cancelled while they ran, or still ran, have no true length. They are cancelled once they have run as
  long as they did, which is the least that it could be, and are marked in :attr:`Replay.censored`, as are those that
  failed in the end and fail there again: averages leave them out.
* Jobs that never ran, or waited when they were cancelled, wait in the replay, and are cancelled when they were, or with
  the log's end; :attr:`Replay.never_ran` has those that never ran.
* Whoever waits for an answer before asking again (a sweep's tuner, a person) is taken to ask when he did.
* How fast a job is on a kind, or an elastic one with a size, that it never had: as its workload's profile says.
* How fast a job that shares a device is beside others than it had: as it was.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from penstock_autoscaler.settings import Settings as AutoscalerSettings
from penstock_events import (
    AnyEvent,
    Job,
    JobCancelled,
    JobSubmitted,
    NodeDrained,
    NodeJoined,
    NodeLeft,
    NodeResumed,
    PolicySet,
    subjects,
)
from penstock_matcher.settings import Settings as MatcherSettings
from penstock_sim.cluster import Nodes
from penstock_sim.history import History, read_log
from penstock_sim.outcome import Outcome
from penstock_sim.replaying import measured as past
from penstock_sim.replaying.executors import PastExecutors
from penstock_sim.replaying.rows import only
from penstock_sim.replaying.statements import Statements
from penstock_sim.replaying.worth import Book
from penstock_sim.trace import Floats
from penstock_sim.virtual import workload
from penstock_sim.virtual.policies import POLICIES, choose
from penstock_sim.virtual.script import Outage, Script
from penstock_sim.virtual.simulation import Options, play
from penstock_sim.virtual.station import Delays

__all__ = ["CONFIGURED", "AutoscalerSettings", "History", "Replay", "read_log", "replay"]

CONFIGURED: Final = "configured"
"""The policy of the services' own settings; what was set live is set again."""

_LONG_S: Final = 0.02
_AFTER_S: Final = 1e-3
"""A node that said something was there at that moment."""
_APART_S: Final = 5.0
"""Clocks that differ by more are not of one time."""


@dataclass(frozen=True)
class Replay:
    """
    What really happened, and what would have happened.

    Attributes
    ----------
    measured, replayed : Outcome
        Of one trace of J jobs, on the log's clock.
    censored : (J,) bool array
        Jobs without a true length.
    left_s : (J,) float array, seconds
        When each job was really over: completed, failed or cancelled; the log's end for one that was not.
    names : tuple of str, (J,)
    never_ran : tuple of Job
        Jobs that are left out.
    """

    measured: Outcome
    replayed: Outcome
    censored: npt.NDArray[np.bool_]
    left_s: Floats
    names: tuple[str, ...]
    never_ran: tuple[Job, ...]

    @property
    def known(self) -> npt.NDArray[np.bool_]:
        """Which jobs completed in both, (J,)."""
        return ~self.censored & self.measured.finished & self.replayed.finished

    def average_jct_s(self) -> tuple[float, float]:
        """Return the average completion times, measured and replayed, of the jobs that completed in both."""
        both = self.known
        submit_s = self.measured.trace.submit_s[both]
        return float((self.measured.end_s[both] - submit_s).mean()), float(
            (self.replayed.end_s[both] - submit_s).mean()
        )


def replay(
    history: History,
    policy: str = CONFIGURED,
    *,
    added: Nodes | None = None,
    without: Collection[str] = (),
    from_s: float = -np.inf,
    to_s: float = np.inf,
    **options: Any,
) -> Replay:
    """
    Run a cluster's history again.

    Parameters
    ----------
    history : History
    policy : str
        One of :data:`penstock_sim.virtual.policies.POLICIES`.
    added : Nodes, optional
        Nodes that there were not, from the beginning.
    without : collection of str
        Nodes that there were and are not to be.
    from_s, to_s : float
        Only jobs submitted in this window, on the log's clock, are told of; all are run again.
    **options
        Fields of :class:`penstock_sim.virtual.simulation.Options`: ``settings`` are those that the cluster had in its
        file, for the log does not hold them. What is 0 in ``costs`` is as measured, or as most jobs asked for.

    Raises
    ------
    ValueError
        If no job in the window ever ran, or the policy or a setting is not known.
    """
    jobs = history.replayable()
    rows = np.array([row for row, job in enumerate(jobs) if from_s <= job.submitted_s < to_s], dtype=np.int64)
    if not rows.size:
        raise ValueError("no job of the log ran in this window; take a longer one")
    chosen = _as_configured(Options(**options), history, policy)
    rules = choose(policy, chosen.settings).matcher
    book = Book(history, jobs, rules.node_timeout_s, rules.await_profile_s)
    script = _script(book, jobs, policy, _nodes(history, added, without), rules.node_timeout_s)
    costs = replace(
        chosen.costs,
        stop_s=chosen.costs.stop_s or book.stop_s,
        checkpoint_s=chosen.costs.checkpoint_s or median(job.spec.checkpoint_s for job in jobs),
    )
    statements = Statements(history.statements, script.shift_s)
    chosen = replace(chosen, costs=costs, watch=statements.attach, delays=_delays(history, statements, script.shift_s))
    told = [jobs[row] for row in rows]
    return Replay(
        measured=only(past.measured(history, jobs, script.trace), rows),
        replayed=only(play(script, policy, chosen), rows),
        censored=past.censored(told),
        left_s=np.array([job.finished_s or history.last_s for job in told]),
        names=tuple(job.spec.name for job in told),
        never_ran=tuple(history.never_ran(from_s, to_s)),
    )


def _as_configured(options: Options, history: History, policy: str) -> Options:
    """Return the options with the services that the history had, and with the matcher explaining where it did."""
    elastic = any(spec.elastic for spec in history.specs.values())
    autoscaler = options.autoscaler or (AutoscalerSettings() if elastic else None)
    if history.explained and policy == CONFIGURED:
        settings = {"max_waits": MatcherSettings().max_waits, **(options.settings or {})}
        return replace(options, autoscaler=autoscaler, settings=settings)
    return replace(options, autoscaler=autoscaler)


def _delays(history: History, statements: Statements, shift_s: float) -> dict[str, Delays]:
    """
    Return how long after what they went by the services decided, and when they were kept from it.

    What took long to get into the log kept its service from deciding anew. By how much its clock and that of the bus
    differ, most decisions tell; where that is much, nobody knows what took long.
    """
    found = {}
    for name in {*history.lags_s, *history.underway}:
        usual_s = median(stored_s - at_s for at_s, stored_s in history.underway[name])
        stalls = [
            (at_s + shift_s, stored_s - usual_s + shift_s)
            for at_s, stored_s in history.underway[name]
            if abs(usual_s) < _APART_S and stored_s - usual_s - at_s > _LONG_S
        ]
        after_s = partial(statements.lag_s, history.lags_after_s[name])
        found[name] = Delays(median(history.lags_s[name] or [0.0]), sorted(stalls), after_s)
    return found


def _nodes(history: History, added: Nodes | None, without: Collection[str]) -> list[NodeJoined]:
    """Return the nodes of the replay: those of the log at their times, new ones at its beginning."""
    found = [joined for joined in history.joined if joined.node_id not in without]
    pools = {device.kind: joined.pool for joined in reversed(history.joined) for device in joined.devices}
    for joined in workload.nodes(added) if added is not None else ():
        pool = pools.get(joined.devices[0].kind, joined.pool)
        found.append(msgspec.structs.replace(joined, node_id=f"added-{joined.node_id}", pool=pool, at_s=-np.inf))
    return found


def _script(book: Book, jobs: list[Job], policy: str, nodes: list[NodeJoined], silence_s: float) -> Script:
    history = book.history
    trace = past.trace_of(history, jobs)
    first_s = min([*(joined.at_s for joined in history.joined), float(trace.submit_s[0])])
    shift_s = workload.ORIGIN_S - first_s
    declares = POLICIES[policy].declares
    kinds = sorted({device.kind for joined in nodes for device in joined.devices})

    def submitted(row: int) -> JobSubmitted:
        job, task = jobs[row], book.tasks[row]
        spec = book.spec(job)
        spec = msgspec.structs.replace(spec, duration_s=book.length_s(task, kinds)) if declares else spec
        return JobSubmitted(at_s=job.submitted_s + shift_s, job_id=job.id, spec=spec)

    known = {joined.node_id for joined in nodes}
    said = [(subject, fact, "gateway/sim") for subject, fact in history.said if _again(fact, policy, known)]
    return Script(
        trace=trace,
        tasks=book.tasks,
        submitted=submitted,
        nodes=[_moved(joined, shift_s) for joined in nodes],
        speed=book.speed,
        sampled=book.sampled,
        shift_s=shift_s,
        facts=[
            *((subject, _moved(fact, shift_s), actor) for subject, fact, actor in said),
            *_others(history, book, shift_s),
            *_cancels(history, book, shift_s),
            *_departures(history, known, shift_s),
        ],
        outages=[
            _outage(history, departure, silence_s, shift_s)
            for departure in history.gone
            if not departure[3] and departure[1] in known
        ],
        executors=partial(PastExecutors, book=book),
    )


def _outage(
    history: History, departure: tuple[float, str, NodeJoined | None, bool], silence_s: float, shift_s: float
) -> Outage:
    """Return the failure of a node: it was last heard of so long before it was lost, and may have said more since."""
    lost_s, node_id, back, _ = departure
    heard_s = max(0.0, lost_s - silence_s + shift_s)
    spoke_s = history.spoke_s.get((node_id, lost_s), 0.0) + shift_s
    return Outage(
        node_id, max(heard_s, spoke_s + _AFTER_S), _moved(back, shift_s) if back is not None else None, heard_s
    )


def _others(history: History, book: Book, shift_s: float) -> list[tuple[str, AnyEvent, str]]:
    """Return the submissions of jobs that never ran: they wait in the replay as well."""
    return [
        (
            subjects.job(task.id),
            JobSubmitted(at_s=history.jobs[task.id].submitted_s + shift_s, job_id=task.id, spec=history.specs[task.id]),
            "gateway/sim",
        )
        for task in book.others
        if task.id in history.specs
    ]


def _cancels(history: History, book: Book, shift_s: float) -> Iterator[tuple[str, AnyEvent, str]]:
    """Yield who is cancelled at a time of the log's: those that waited then, or at its end."""
    for task in (*book.tasks, *book.others):
        if math.isinf(task.work_s):
            at_s = history.cancelled_s.get(task.id, history.last_s)
            yield subjects.job(task.id), JobCancelled(at_s=at_s + shift_s, job_id=task.id), "gateway/sim"


def _again(fact: AnyEvent, policy: str, known: Collection[str]) -> bool:
    if isinstance(fact, NodeDrained | NodeResumed):
        return fact.node_id in known
    return policy == CONFIGURED or not isinstance(fact, PolicySet)


def _moved(fact: Any, shift_s: float) -> Any:
    return msgspec.structs.replace(fact, at_s=max(0.0, fact.at_s + shift_s))


def _departures(history: History, known: Collection[str], shift_s: float) -> list[tuple[str, AnyEvent, str]]:
    found: list[tuple[str, AnyEvent, str]] = []
    for at_s, node_id, back, orderly in history.gone:
        if orderly and node_id in known:
            left = NodeLeft(at_s=at_s + shift_s, node_id=node_id)
            found.append((subjects.node(node_id), left, ""))
            if back is not None:
                found.append((subjects.node(node_id), _moved(back, shift_s), ""))
    return found
