"""
A cluster's own history once more, under the same or another policy, by the production deciders.

Every job of the log is submitted when it was, with the specification that it had, also those outside a window: they
compete with those within. What it is worth is taken from its measured runs: iterations times the time of one on each
kind of device that it ran on, and by the profiler's ratios on others. Its first run begins with what its own first run
took beside iterating, and so on; a preempted one ends with what preemptions took, and keeps what it has done if its
workload did (:mod:`penstock_sim.saving`); one that failed fails again at the same step. The profiler samples as it did,
nodes come and go as they did, and what people set is set again.

What stays unknown, and how it is handled:

* Jobs that were cancelled, failed or still ran have no true length. They run as long as they did, which is the least
  that it could be, and are marked in :attr:`Replay.censored`: averages leave them out.
* Jobs that never ran are left out; :attr:`Replay.never_ran` has them.
* Whoever waits for an answer before asking again (a sweep's tuner, a person) is taken to ask when he did.
* How fast an elastic job is with sizes that it did not have, and what the autoscaler would have given it under another
  policy: it is replayed as a gang of the size that it had for longest (:mod:`penstock_sim.replaying.sized`).
* A job that failed in the end is one without a true length; here it completes where it failed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from penstock_events import (
    AnyEvent,
    Job,
    JobSubmitted,
    NodeDrained,
    NodeJoined,
    NodeLeft,
    NodeResumed,
    PolicySet,
    subjects,
)
from penstock_sim.cluster import Nodes
from penstock_sim.history import History, read_log
from penstock_sim.outcome import Outcome
from penstock_sim.replaying import measured as past
from penstock_sim.replaying.rows import only
from penstock_sim.replaying.sized import as_gang
from penstock_sim.replaying.worth import Book
from penstock_sim.trace import Floats
from penstock_sim.virtual import workload
from penstock_sim.virtual.policies import POLICIES, choose
from penstock_sim.virtual.script import Outage, Script
from penstock_sim.virtual.simulation import Options, play

__all__ = ["CONFIGURED", "History", "Replay", "read_log", "replay"]

CONFIGURED: Final = "configured"
"""The policy of the services' own settings; what was set live is set again."""


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
    jobs = [as_gang(job, history.runs[job.id]) for job in history.replayable()]
    rows = np.array([row for row, job in enumerate(jobs) if from_s <= job.submitted_s < to_s], dtype=np.int64)
    if not rows.size:
        raise ValueError("no job of the log ran in this window; take a longer one")
    chosen = Options(**{"profile": True, **options})
    book = Book(history, jobs)
    silence_s = choose(policy, chosen.settings).matcher.node_timeout_s
    script = _script(book, jobs, policy, _nodes(history, added, without), silence_s)
    costs = replace(
        chosen.costs,
        stop_s=chosen.costs.stop_s or book.stop_s,
        checkpoint_s=chosen.costs.checkpoint_s or median(job.spec.checkpoint_s for job in jobs),
    )
    told = [jobs[row] for row in rows]
    return Replay(
        measured=only(past.measured(history, jobs, script.trace), rows),
        replayed=only(play(script, policy, replace(chosen, costs=costs)), rows),
        censored=past.censored(told),
        left_s=np.array([job.finished_s or history.last_s for job in told]),
        names=tuple(job.spec.name for job in told),
        never_ran=tuple(history.never_ran(from_s, to_s)),
    )


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

    def submitted(row: int) -> JobSubmitted:
        job, task = jobs[row], book.tasks[row]
        spec = msgspec.structs.replace(job.spec, duration_s=task.work_s) if declares else job.spec
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
            *_departures(history, known, shift_s),
        ],
        outages=[
            Outage(node_id, max(0.0, at_s - silence_s + shift_s), _moved(back, shift_s) if back is not None else None)
            for at_s, node_id, back, orderly in history.gone
            if not orderly and node_id in known
        ],
    )


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
