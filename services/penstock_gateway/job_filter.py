"""
Job filters: the jobs that a request names by what they are.

:func:`matching` gives them in the order of their submissions, and :func:`page` a part of them. Names, models and sweeps
of jobs that the asker may not see match nothing: else they could be guessed letter by letter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock_gateway.authority import Caller
from penstock_gateway.machine import GatewayState
from penstock_gateway.past_tables import PastJobs, PastTable
from penstock_log import TERMINAL, Job
from penstock_log.request_bodies import JobFilter, JobsRequest


def matching(
    state: GatewayState,
    where: JobFilter,
    caller: Caller,
    ids: Iterable[str] = (),
    *,
    among: Iterable[Job] | None = None,
) -> Iterator[Job]:
    """
    Yield the jobs that match all filters, by submission, samples of the profiler among them.

    Parameters
    ----------
    ids : iterable of str
        Whole ids of the only jobs to look at; empty: all.
    among : iterable of Job, optional
        The only jobs to look at.
    """
    conditions = tuple(_conditions(where, caller))
    for job in _candidates(state, where, ids) if among is None else among:
        if all(holds(job) for holds in conditions):
            yield job


def page(state: GatewayState, asked: JobsRequest, caller: Caller) -> tuple[int, list[Job]]:
    """Return how many jobs a request matches, and those of the page that it asks for, in the order of submission."""
    jobs = state.jobs
    if isinstance(jobs, PastJobs) and not (asked.ids or asked.parent):
        return _past_page(state, jobs, asked, caller)
    found = matching(state, asked, caller, asked.ids)
    chosen = [
        one
        for one in found
        if (one.sample is None or asked.samples or asked.ids) and _goes_on(one, asked.since_s or 0.0)
    ]
    shown = chosen[: len(chosen) - asked.offset][-asked.limit :] if asked.offset < len(chosen) else []
    return len(chosen), shown


def _past_page(state: GatewayState, jobs: PastJobs, asked: JobsRequest, caller: Caller) -> tuple[int, list[Job]]:
    """Return the same of the past: of jobs that are over, only those of the page are read."""
    conditions = tuple(_conditions(asked, caller))

    def matches(job: Job) -> bool:
        is_shown = (job.sample is None or asked.samples) and _goes_on(job, asked.since_s or 0.0)
        return is_shown and all(holds(job) for holds in conditions)

    where = _columns(asked, caller) + ([] if asked.samples else [("NOT sample", ())])
    counted = None
    if asked.since_s:
        where.append(("finished_s >= ?", asked.since_s))
    elif not any(getattr(asked, name) for name in JobFilter.__struct_fields__ if name != "state"):
        kinds = (jobs.over, jobs.over_samples) if asked.samples else (jobs.over,)
        counts = (pair for by_state in kinds for pair in by_state.items())
        counted = sum(count for state, count in counts if not asked.state or state in asked.state)
    total = jobs.count(where, matches, counted)
    if asked.offset >= total:
        return total, []
    rows = jobs.rows(where, matches, newest=asked.offset + asked.limit)
    rows = rows[: len(rows) - asked.offset]
    jobs.table.read(row.id for row in rows)
    if isinstance(state.histories, PastTable):
        state.histories.read(row.id for row in rows)
    return total, [jobs[row.id] for row in rows]


def _goes_on(job: Job, since_s: float) -> bool:
    """Return whether a job had not ended before a time."""
    return not since_s or job.state not in TERMINAL or job.finished_s >= since_s


def _columns(where: JobFilter, caller: Caller) -> list[tuple[str, Any]]:
    """Return the filters as conditions on the columns of jobs that are over; they say what :func:`_conditions` says."""
    found: list[tuple[str, Any]] = []
    teams = ",".join("?" * len(caller.teams))
    sees = f"(user = ? OR (team != '' AND team IN ({teams})))"
    own: tuple[str, ...] = (caller.name, *caller.teams)
    if caller.sees_all:
        sees, own = "1", ()
    if where.state:
        found.append((f"state IN ({','.join('?' * len(where.state))})", where.state))
    equal = ((field, getattr(where, field)) for field in ("user", "team", "pool", "parent", "model"))
    found += [(f"{field} = ?", wanted) for field, wanted in equal if wanted]
    if where.model or where.name or where.parent or where.group or where.array:
        found.append((sees, own))
    if where.array:
        found.append(("array = ?", where.array))
    if where.group:
        found.append(('("group" = ? OR array = ?)', (where.group, where.group)))
    if where.name.endswith("*"):
        begin = where.name[:-1].encode()
        found.append(("substr(CAST(name AS BLOB), 1, ?) = ?", (len(begin), begin)))
    elif where.name:
        found.append(("name = ?", where.name))
    if where.text:  # ids and names are ASCII
        text = where.text.casefold()
        found.append((f"(instr(lower(id), ?) OR (instr(lower(name), ?) AND {sees}))", (text, text, *own)))
    return found


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
    if where.model or where.name or where.parent or where.group or where.array:
        yield lambda job: caller.sees(job.spec)
    yield from _together(where)
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


def _together(where: JobFilter) -> Iterator[Callable[[Job], bool]]:
    """Yield the conditions on what jobs belong to."""
    if array := where.array:
        yield lambda job: job.spec.array is not None and job.spec.array.id == array
    if group := where.group:
        yield lambda job: job.spec.group == group or (job.spec.array is not None and job.spec.array.id == group)


def _equal(field: str, wanted: str) -> Callable[[Job], bool]:
    return lambda job: getattr(job.spec, field) == wanted
