"""
Whose a device's time is while several jobs share it: what makes the service of a sharing job less than its run time.

Of ``k`` jobs that take turns on a device, each is reckoned to have ``1 / k`` of its time while, by the log, so many
runs are under way there, whatever the turns really were; a gang, which takes its turns on all of its devices together,
what it has of the fullest one. A job with a fraction of a device has this fraction of its time. All of it follows from
``run.started`` and ``run.ended`` facts and from lost nodes: each changes the shares of those beside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from penstock_events.base import Event
from penstock_events.run import RunEnded, RunStarted

if TYPE_CHECKING:
    from penstock_events.lifecycle import Jobs
    from penstock_events.states import Job

Sharers = dict[str, list[str]]
"""Node → the sharing jobs whose runs are under way there."""


def enter(jobs: Jobs, job: Job, node_id: str, at_s: float) -> None:
    """Note that a sharing job's run is under way on a node."""
    there = jobs.sharers.setdefault(node_id, [])
    if job.id not in there:
        there.append(job.id)
        _divide(jobs, node_id, at_s)


def leave(jobs: Jobs, job: Job, node_id: str, at_s: float) -> None:
    """Note that a sharing job's run on a node is over."""
    there = jobs.sharers.get(node_id, [])
    if job.id not in there:
        return
    there.remove(job.id)
    if there:
        _divide(jobs, node_id, at_s)
    else:
        del jobs.sharers[node_id]


def beside(jobs: Jobs, event: Event) -> list[Job]:
    """Return the jobs whose shares a start or an end of another's run has changed, once it is folded in."""
    if not jobs.sharers or not isinstance(event, RunStarted | RunEnded):
        return []
    there = (jobs[job_id] for job_id in jobs.sharers.get(event.node_id, ()) if job_id != event.job_id)
    return [job for job in there if job.share_since_s == event.at_s]


def _divide(jobs: Jobs, node_id: str, at_s: float) -> None:
    """Give each job with a run on a node its share, from now on."""
    there = [jobs[job_id] for job_id in jobs.sharers[node_id]]
    turns = Counter(at for job in there if job.spec.sharing == "lane" for at in _devices(job))
    for job in there:
        share = _share(job, turns, node_id)
        if share != job.share:
            job.forgone_s, job.share, job.share_since_s = job.forgone_by(at_s), share, at_s


def _share(job: Job, turns: Mapping[tuple[str, int], int], node_id: str) -> float:
    if job.spec.sharing == "fraction":
        return job.spec.fraction
    most = max((turns[at] for at in _devices(job) if at[0] == node_id), default=1)
    return 1.0 / max(1, most)


def _devices(job: Job) -> Iterable[tuple[str, int]]:
    slots = job.placement.slots if job.placement is not None else ()
    return ((slot.node_id, index) for slot in slots for index in slot.devices)
