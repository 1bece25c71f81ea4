"""
Job filters: the jobs that a request names by what they are.

:func:`matching` gives them in the order of their submissions. Names, models and sweeps of jobs that the asker may not
see match nothing: else they could be guessed letter by letter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from penstock_gateway.authority import Caller
from penstock_gateway.machine import GatewayState
from penstock_log import Job
from penstock_log.request_bodies import JobFilter


def matching(state: GatewayState, where: JobFilter, caller: Caller, ids: Iterable[str] = ()) -> Iterator[Job]:
    """
    Yield the jobs that match all filters, by submission, samples of the profiler among them.

    Parameters
    ----------
    ids : iterable of str
        Whole ids of the only jobs to look at; empty: all.
    """
    conditions = tuple(_conditions(where, caller))
    for job in _candidates(state, where, ids):
        if all(holds(job) for holds in conditions):
            yield job


def _candidates(state: GatewayState, where: JobFilter, ids: Iterable[str]) -> Iterable[Job]:
    if ids:
        return [job for job_id in ids if (job := state.jobs.get(job_id)) is not None]
    if where.parent:
        return [state.jobs[job_id] for job_id in state.children.get(where.parent, ())]
    return state.jobs


def _conditions(where: JobFilter, caller: Caller) -> Iterator[Callable[[Job], bool]]:
    """Yield the conditions that are given, the cheapest first."""
    if where.state:
        states = frozenset(where.state)
        yield lambda job: job.state in states
    for field in ("user", "team", "pool", "parent"):
        if wanted := getattr(where, field):
            yield _equal(field, wanted)
    if where.model or where.name:
        yield lambda job: caller.sees(job.spec)
    if where.model:
        yield _equal("model", where.model)
    if where.name.endswith("*"):
        beginning = where.name[:-1]
        yield lambda job: job.spec.name.startswith(beginning)
    elif where.name:
        yield _equal("name", where.name)
    if where.text:
        text = where.text.casefold()
        yield lambda job: text in job.id.casefold() or (text in job.spec.name.casefold() and caller.sees(job.spec))


def _equal(field: str, wanted: str) -> Callable[[Job], bool]:
    return lambda job: getattr(job.spec, field) == wanted
