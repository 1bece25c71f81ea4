"""
What a new job may wait for: dependencies with whole ids, of jobs and sweeps that are there and that its user may see.

:func:`with_whole_ids` and :func:`check` serve submissions and dry runs; what becomes of a job that waits is decided in
:mod:`penstock_gateway.dependencies`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock_gateway import dependencies
from penstock_gateway.authority import Caller
from penstock_gateway.machine import GatewayState
from penstock_log import JobSpec
from penstock_log.spec import MOST_DEPENDENCIES
from penstock_log.validation import BadInput

_OF_ONE: Final = "afternotok"
"""The dependency that an array satisfies as one: all of its jobs have ended, and one of them badly."""
_MOST_SHORT: Final = 16
"""Dependencies among which ids may be short: each that is looks at all jobs."""


def as_submitted_before(before: JobSpec, asked: JobSpec) -> JobSpec:
    """Return a job that is submitted again, with the whole ids that its dependencies were taken for at first."""
    if any(_is_of_array(before, short) for short in asked.after):
        return msgspec.structs.replace(asked, after=before.after)
    after = dict.fromkeys(next((one for one in before.after if one.startswith(short)), short) for short in asked.after)
    return msgspec.structs.replace(asked, after=tuple(after)) if asked.after else asked


def with_whole_ids(state: GatewayState, spec: JobSpec, caller: Caller) -> JobSpec:
    """Return a job whose dependencies name whole ids, where a few of them name a unique beginning of one."""
    if not spec.after or len(spec.after) > _MOST_SHORT:
        return spec
    given = [each for one in spec.after for each in _of_array(state, spec, one)]
    whole = tuple(dict.fromkeys(_with_whole_id(state, one, caller) for one in given))
    if len(whole) > MOST_DEPENDENCIES:
        raise BadInput(
            f"$.after: names {len(whole):,} jobs, with those of arrays; expected {MOST_DEPENDENCIES:,} at most"
        )
    return msgspec.structs.replace(spec, after=whole) if whole != spec.after else spec


def _of_array(state: GatewayState, spec: JobSpec, dependency: str) -> list[str]:
    """Return what a dependency on an array stands for: one on each of its jobs, on that of the same index, or on it."""
    kind, _, wanted = dependency.partition(":")
    if kind == "aftercorr":
        index = spec.array.index if spec.array is not None else None
        if index is None:
            raise BadInput(f"$.after: {dependency} is for a job of an array; use afterok")
        return [f"afterok:{wanted}-{index}"]
    if wanted in state.jobs.by_id or wanted in state.sweeps or not (members := members_of(state, wanted)):
        return [dependency]
    if kind == _OF_ONE:
        return [dependency]
    members = [member for member in members if state.jobs[member].spec.user == spec.user] or members
    return [f"{kind}:{member}" for member in members]


def _is_of_array(before: JobSpec, short: str) -> bool:
    """Return whether a dependency was taken for several, or for one of another kind."""
    kind, _, wanted = short.partition(":")
    return kind == "aftercorr" or sum(one.startswith(f"{kind}:{wanted}-") for one in before.after) > 1


def members_of(state: GatewayState, array: str) -> list[str]:
    """Return the jobs of an array, in order of submission; none where there is no such array."""
    return [*state.members.get(array, ())]


def _with_whole_id(state: GatewayState, dependency: str, caller: Caller) -> str:
    kind, _, wanted = dependency.partition(":")
    if wanted in state.jobs.by_id or wanted in state.sweeps or (kind == _OF_ONE and wanted in state.members):
        return dependency
    seen = _seen(state, wanted, caller)
    return f"{kind}:{seen[0]}" if len(seen) == 1 else dependency


def check(state: GatewayState, spec: JobSpec, caller: Caller, path: str = "$") -> None:
    """
    Refuse a job that waits for something that is not there, or for what can never come.

    Raises
    ------
    BadInput
        That names the entry, and what is wrong with it.
    RequestRefused
        403 where it waits for somebody else's job, of no team of the caller's.
    """
    problems = []
    for number, one in enumerate(spec.after):
        place, target = f"{path}.after[{number}]", dependencies.target_of(one)
        if target == spec.id:
            problems.append(f"{place}: the job would wait for itself; leave it out")
            continue
        sweep = state.sweeps.get(target)
        found = state.jobs.get(target)
        if found is None and sweep is None and one.startswith(f"{_OF_ONE}:") and (of := members_of(state, target)):
            found = state.jobs[of[0]]
        there = sweep.spec.job if sweep is not None else found.spec if found is not None else None
        if there is None:
            problems.append(
                f"{place}: {_not_there(state, target, caller)}; expected the id of a job or sweep that is there"
            )
            continue
        caller.require_sight(there, f"{'sweep' if sweep is not None else 'job'} {target}")
    if not problems and (never := dependencies.why_never(spec.after, state.progress_of)):
        problems.append(f"{path}.after: {never}; leave it out")
    if problems:
        raise BadInput(*problems)


def _not_there(state: GatewayState, wanted: str, caller: Caller) -> str:
    if (count := len(_seen(state, wanted, caller))) > 1:
        return f"{count} ids begin with {wanted!r}, write more of it"
    archived = " (one that is archived cannot be waited for: it has ended)" if state.archive.jobs else ""
    return f"no job or sweep {wanted!r}{archived}"


def _seen(state: GatewayState, wanted: str, caller: Caller) -> list[str]:
    """Return the ids that begin so, of jobs and sweeps that the caller may see; trials only where nothing else does."""
    found = [job for job in state.jobs if job.id.startswith(wanted) and job.sample is None and caller.sees(job.spec)]
    jobs = [job.id for job in found if not job.spec.parent] or [job.id for job in found]
    sweeps = [one.id for one in state.sweeps.values() if one.id.startswith(wanted) and caller.sees(one.spec.job)]
    return [*jobs, *sweeps]
