"""
The rules of commands about jobs, sweeps, nodes and pools: what people may do.

All functions are pure: from the read model and a request to the fact that is to be appended. They give the same answer
whichever way a request came, and a repeated request changes nothing.

:func:`job` and :func:`sweep` accept new specifications. The functions that return a :class:`JobAction` act on jobs,
sweeps, nodes and pools that are there. :func:`job_named` and its neighbours find what a request names.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Container, Iterator
from typing import Any, Final, assert_never

import msgspec

from penstock_cluster.nodes import Node
from penstock_gateway import dependencies, endpoints, job_classes, job_dependencies, job_fit
from penstock_gateway.authority import SERVICE, Caller
from penstock_gateway.endpoints import BAD, CONFLICT, NOT_FOUND, RequestRefused
from penstock_gateway.job_fit import NodeFit
from penstock_gateway.machine import GatewayState
from penstock_gateway.past_tables import PastJobs
from penstock_gateway.pilot_outlooks import PilotOutlooks
from penstock_gateway.sweep_table import SweepRecord
from penstock_log import (
    ACTIVE,
    TERMINAL,
    AnyEvent,
    Choice,
    Device,
    DeviceDrained,
    DeviceResumed,
    Integers,
    Job,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobSpec,
    JobSubmitted,
    JobTimeSet,
    NodeDrained,
    NodeRemoved,
    NodeResumed,
    PolicySet,
    SweepCancelled,
    SweepSpec,
    SweepSubmitted,
    Uniform,
    code_tree,
    request_bodies,
    subjects,
    validation,
    workload,
)
from penstock_log.agent_protocol import AgentEnv
from penstock_log.job_state import JobState
from penstock_log.spec import Dimension, Param
from penstock_log.text import count, duration, gibibytes, listed, pairs
from penstock_log.validation import BadInput
from penstock_policies import search
from penstock_scheduler.aggregation.aggregator_choice import room_of
from penstock_scheduler.pool import pool_settings
from penstock_scheduler.pool.pool_settings import MatcherSettings

_MOST_CHARACTERS: Final = 128
_VOLATILE: Final = frozenset({"id", "refused_by"})
_READ: Final = frozenset({"digest", "opaque"})
"""Fields that a client fills in from the script; empty where it cannot read it."""
_LONGEST_NAME: Final = 63
MOST_STRING_BYTES: Final = 128 * 1024
"""The longest argument or variable of a program under Linux, its final zero included (``MAX_ARG_STRLEN``)."""
_HASH: Final = 12
_OF_ARRAY: Final = re.compile(r"(.+)-\d+")
_RETRY: Final = re.compile(r"(.+)-r(\d{1,6})")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_MOST_SECRETS: Final = 64
_HOLDS_A_SECRET: Final = re.compile(r"(TOKEN|PASSWORD|PASSWD|SECRET|APIKEY|CREDENTIALS|(^|_)KEY)$")
_LONGEST_FLOAT: Final = -2.2250738585072014e-308


class Acceptable(msgspec.Struct, frozen=True, kw_only=True):
    """
    A specification that is accepted.

    Attributes
    ----------
    subject, fact
        What to append; ``fact`` is None if the specification was accepted before.
    seq : int
        Sequence of the commit that submitted it before; 0 otherwise.
    warnings : tuple of str
        What will keep it waiting, and what its user may not have meant.
    """

    id: str
    subject: str = ""
    fact: JobSubmitted | SweepSubmitted | None = None
    seq: int = 0
    warnings: tuple[str, ...] = ()


def job(
    state: GatewayState,
    spec: JobSpec,
    *,
    strict: bool,
    now_s: float,
    caller: Caller = SERVICE,
    fit: NodeFit | None = None,
    outlooks: PilotOutlooks | None = None,
    settings: MatcherSettings | None = None,
) -> Acceptable:
    """
    Accept a job whose id is given.

    Parameters
    ----------
    fit : NodeFit, optional
        Of the state's nodes, where others have looked at them before.
    outlooks : PilotOutlooks, optional
        Of the state's allocations at this time, where others have looked at them before.
    settings : MatcherSettings, optional
        Settings of the matcher, which may have priority classes.

    Raises
    ------
    BadInput
        If the specification contradicts itself.
    RequestRefused
        409 if the id belongs to something else; with ``strict``, 400 if the job could not run on the present nodes.
    """
    check(spec)
    asked = validation.settled(msgspec.structs.replace(spec, refused_by=()))
    spec = job_dependencies.with_whole_ids(state, asked, caller)
    welcome = state.jobs.with_refusals(spec, now_s)
    fit, outlooks = fit or NodeFit(state.cluster), outlooks or PilotOutlooks(state, now_s, settings)
    warnings = job_fit.warnings(fit, welcome, job_fit.caps(state, spec), outlooks)
    warnings += tuple(_too_many_servers(state, spec, now_s))
    there = state.jobs.get(spec.id)
    if there is not None:
        if there.sample is not None:
            raise RequestRefused(CONFLICT, f"the id {spec.id} belongs to a sample of the profiler; choose another id")
        past = state.histories[spec.id]
        _check_own_id(caller, there.spec, spec.id)
        before = past.asked(there)
        _same(before, job_dependencies.as_submitted_before(before, asked), f"job {spec.id}")
        return Acceptable(id=spec.id, seq=past.seq, warnings=warnings)
    _check_free_id(state, spec.id, state.sweeps, caller)
    check_parent(spec, caller)
    check_array(state, spec)
    _strictly(strict, warnings)
    check_beginning(state, spec)
    job_dependencies.check(state, spec, caller)
    job_classes.check(state, spec, settings or MatcherSettings(), caller)
    fact = JobSubmitted(job_id=spec.id, spec=spec, at_s=now_s)
    warnings += job_fit.awaited_pilots(fit, welcome, outlooks)
    warnings += (*without_checkpoint(state, spec), *_values_to_hide(spec))
    if spec.notify and not state.notifications.is_told(spec.user):
        whom = spec.user or "nobody"
        warnings += (f"nobody is told, as {whom} has no address for it; give one: penstock notify add URL",)
    return Acceptable(id=spec.id, subject=subjects.job(spec.id), fact=fact, warnings=warnings)


def sweep(
    state: GatewayState,
    spec: SweepSpec,
    *,
    strict: bool,
    now_s: float,
    caller: Caller = SERVICE,
    settings: MatcherSettings | None = None,
) -> Acceptable:
    """Accept a sweep whose id is given; errors as for :func:`job`."""
    check(spec.job, "$.job")
    if spec.job.array is not None:
        raise BadInput("$.job.array: trials are no jobs of an array; leave it out")
    validation.check(spec)
    try:
        search.check(spec)
    except search.BadSpace as error:
        raise BadInput(f"$.{error}" if error.field else str(error)) from error
    fit, outlooks = NodeFit(state.cluster), PilotOutlooks(state, now_s, settings)
    warnings = job_fit.warnings(fit, spec.job, outlooks=outlooks)
    asked, spec = spec, msgspec.structs.replace(spec, job=job_dependencies.with_whole_ids(state, spec.job, caller))
    there = state.sweeps.get(spec.id)
    if there is not None:
        _check_own_id(caller, there.spec.job, spec.id)
        spec = msgspec.structs.replace(asked, job=job_dependencies.as_submitted_before(there.spec.job, asked.job))
        _same(there.spec, spec, f"sweep {spec.id}")
        return Acceptable(id=spec.id, seq=there.seq, warnings=warnings)
    _check_free_id(state, spec.id, state.jobs.by_id, caller)
    _strictly(strict, warnings)
    job_dependencies.check(state, spec.job, caller, "$.job")
    job_classes.check(state, spec.job, settings or MatcherSettings(), caller, "$.job")
    fact = SweepSubmitted(sweep_id=spec.id, spec=spec, at_s=now_s)
    warnings += (*job_fit.awaited_pilots(fit, spec.job, outlooks), *_values_to_hide(spec.job))
    return Acceptable(id=spec.id, subject=subjects.request(spec.id), fact=fact, warnings=warnings)


def largest_trial(spec: SweepSpec) -> JobSpec:
    """
    Return a job as the tuner would submit it for a trial, with the longest values of the space.

    Examples
    --------
    >>> from penstock_log import Choice
    >>> job = JobSpec(name="j", command=("x",), params={"a": 1})
    >>> space = {"b": Choice(values=(1, 22))}
    >>> largest_trial(SweepSpec(name="s", id="s1", job=job, space=space, metric="m")).params
    {'a': 1, 'b': 22}
    """
    point: dict[str, Param] = {name: _longest(dimension) for name, dimension in spec.space.items()}
    if spec.budget is not None:
        point[spec.budget.param] = spec.budget.most
    longest = "x" * _LONGEST_NAME
    return msgspec.structs.replace(
        spec.job, id=longest, name=longest, parent=spec.id, params={**spec.job.params, **point}
    )


def _longest(dimension: Dimension) -> Param:
    match dimension:
        case Choice():
            return max(dimension.values, key=lambda value: len(msgspec.json.encode(value)))
        case Integers():
            return max(dimension.low, dimension.high, key=lambda value: len(str(value)))
        case Uniform():
            return _LONGEST_FLOAT
        case _:
            assert_never(dimension)


def differences(before: msgspec.Struct, now: msgspec.Struct) -> list[str]:
    """
    Return the fields in which two specifications differ, as ``gpus (1, now 2)``.

    The id does not count, nor what a client has read in the script if only one of the two could read it.

    Examples
    --------
    >>> differences(JobSpec(name="a", command=("x",)), JobSpec(name="a", command=("x",), gpus=2))
    ['gpus (1, now 2)']
    """
    found = []
    for field in now.__struct_fields__:
        old, new = getattr(before, field), getattr(now, field)
        if isinstance(old, JobSpec) and isinstance(new, JobSpec):
            found += [f"{field}.{text}" for text in differences(old, new)]
        elif old != new and field not in _VOLATILE and not (field in _READ and not (old and new)):
            found.append(f"{field} ({_shown(old)}, now {_shown(new)})")
    return found


def _check_own_id(caller: Caller, before: JobSpec, wanted: str) -> None:
    """Refuse an id of somebody else's, and say nothing of what it belongs to."""
    if not caller.sees(before):
        raise id_taken(wanted)


def id_taken(wanted: str) -> RequestRefused:
    """Return the refusal of an id that is somebody else's; it says nothing of what it belongs to."""
    return RequestRefused(CONFLICT, f"the id {wanted} is taken; choose another id, or leave the id out")


def _check_free_id(state: GatewayState, wanted: str, others: Container[str], caller: Caller) -> None:
    """Refuse an id that something of another kind has: facts about it would be taken for one another's."""
    sweep_id = next((one for one in state.sweeps if wanted.startswith(f"{one}-")), "")
    if sweep_id and not caller.is_service:
        raise RequestRefused(CONFLICT, f"ids that begin with {sweep_id}- are of that sweep's trials; choose another id")
    if wanted in others or wanted in state.members or _names_what_is_no_job(state, wanted):
        raise id_of_something_else(wanted)


def _names_what_is_no_job(state: GatewayState, wanted: str) -> bool:
    return wanted in state.cluster.nodes or wanted in state.pools() or wanted in state.users.by_name


def id_of_something_else(wanted: str) -> RequestRefused:
    """Return the refusal of an id that a job, an array, a sweep, a node, a pool or a person has."""
    return RequestRefused(
        CONFLICT, f"the id {wanted} is that of something else here; choose another id, or leave the id out"
    )


def check_parent(spec: JobSpec, caller: Caller) -> None:
    """Refuse a trial that its sweep has not made."""
    if spec.parent and not caller.is_service:
        raise RequestRefused(BAD, f"$.parent: trials are submitted by the sweep {spec.parent} itself; leave it out")


def _same(before: msgspec.Struct, now: msgspec.Struct, what: str) -> None:
    if different := differences(before, now):
        advice = "choose another id, or leave the id out"
        raise RequestRefused(CONFLICT, f"{what} is there already with other content: {', '.join(different)}; {advice}")


def _too_many_servers(state: GatewayState, spec: JobSpec, now_s: float) -> Iterator[str]:
    """Yield what would come of a job that says how many aggregators it has, if there were never so many."""
    if spec.servers == 1 or spec.aggregation == "none":
        return
    most = room_of(state.aggregation, state.cluster, spec.pool, now_s).most
    if most < spec.servers:
        asked = f"it asks for {count(spec.servers, 'aggregator')}"
        there = f"the nodes of pool {spec.pool!r} run {most} at most (--servers)"
        yield f"its script would be refused aggregation: {asked}, and {there}"


def _strictly(strict: bool, warnings: tuple[str, ...]) -> None:
    if strict and warnings:
        raise RequestRefused(BAD, f"refused, as `strict` asks: {'; '.join(warnings)}")


def check_array(state: GatewayState, spec: JobSpec) -> None:
    """
    Refuse a job of an array whose id is another than its own there, or whose array's id is of something else.

    A job of no array has no id that one of another user's array may have.
    """
    if (array := spec.array) is None:
        found = _OF_ARRAY.fullmatch(spec.id) if not spec.parent else None
        others = state.members.get(found[1]) if found is not None else None
        if others and state.jobs[others[0]].spec.user != spec.user:
            raise id_taken(spec.id)
        return
    own = f"{array.id}-{array.index}"
    before = state.jobs.get(spec.retry_of) if spec.retry_of else None
    is_retry = before is not None and before.spec.array == array and spec.id == _id_of_retry(state, before)
    if spec.id and spec.id != own and not is_retry:
        raise BadInput(
            f"$.array: job {array.index} of the array {array.id} has the id {own}, got {spec.id}; leave `array` out"
        )
    members = state.members.get(array.id, ())
    if members and state.jobs[members[0]].spec.user != spec.user:
        raise RequestRefused(CONFLICT, f"the id {array.id} is that of another array; choose another id")
    if not members and (
        array.id in state.jobs.by_id or array.id in state.sweeps or _names_what_is_no_job(state, array.id)
    ):
        raise id_of_something_else(array.id)


def check_beginning(state: GatewayState, spec: JobSpec) -> None:
    """Refuse a job that would begin with the checkpoint of a job that is not there, or is another user's."""
    if not spec.begins_from:
        return
    origin = state.jobs.get(spec.begins_from)
    if origin is None or origin.spec.user != spec.user:
        whose = "is not there" if origin is None else f"is {origin.spec.user or 'nobody'}'s"
        raise BadInput(
            f"$.begins_from: job {spec.begins_from} {whose}; expected a job of the same user, of which a "
            "checkpoint is kept (keep_checkpoint = true)"
        )


def without_checkpoint(state: GatewayState, spec: JobSpec) -> Iterator[str]:
    """Yield what is to be known of a job that begins from one which has no checkpoint, and never will."""
    origin = state.jobs.get(spec.begins_from) if spec.begins_from else None
    if origin is None or origin.checkpoint is not None or (origin.state not in TERMINAL and not origin.spec.opaque):
        return  # one that is not over may still save
    why = "saves none, as its command does not use penstock.session" if origin.spec.opaque else "has ended without one"
    yield f"there is no checkpoint to begin from: job {origin.id} {why}; this job begins from its own beginning"


def check(spec: JobSpec, path: str = "$") -> None:
    """Raise :class:`BadInput` for a job whose fields have the right types but make no sense."""
    problems = [
        f"{path}.{field}: expected {_MOST_CHARACTERS} printable characters at most, got {len(getattr(spec, field))}"
        for field in ("user", "team", "model", "digest", "parent")
        if len(getattr(spec, field)) > _MOST_CHARACTERS or not getattr(spec, field).isprintable()
    ]
    problems += [
        f"{path}.env: a variable's name is not empty and has no `=`, got {json.dumps(name)}"
        for name in spec.env
        if not name or "=" in name
    ]
    problems += [f"{path}.{problem}" for problem in (*_too_long(spec), *_unusable_secrets(spec), *_late_warning(spec))]
    if not spec.command[0].strip():
        problems.append(f"{path}.command[0]: expected a program, got {json.dumps(spec.command[0])}")
    if len(set(spec.kinds)) < len(spec.kinds):
        problems.append(f"{path}.kinds: names a kind twice")
    problems += [f"{path}.{problem}" for problem in _code_problems(spec)]
    problems += [f"{path}.{problem}" for problem in (*_sharing(spec), *validation.elastic_problems(spec))]
    if problems:
        raise BadInput(*problems)


def _too_long(spec: JobSpec) -> Iterator[str]:
    """Yield the arguments and variables with which the kernel starts no program."""
    params = msgspec.json.encode(spec.params).decode()
    strings = [(f"command[{number}]", text) for number, text in enumerate(spec.command)]
    strings += [(f"env: `{name[:_MOST_CHARACTERS]}`", f"{name}={value}") for name, value in spec.env.items()]
    strings.append((f"params: `{AgentEnv.PARAMS}`", f"{AgentEnv.PARAMS}={params}"))
    for what, text in strings:
        if (size := len(text.encode()) + 1) > MOST_STRING_BYTES:
            yield (
                f"{what} takes {size} bytes, and the kernel starts no program with an argument or a variable (as "
                f"`NAME=value`) of more than {MOST_STRING_BYTES}; write it to a file, and pass the file's path"
            )


def _code_problems(spec: JobSpec) -> Iterator[str]:
    if spec.workdir:
        yield (
            f"workdir: {json.dumps(spec.workdir)} is a folder where you are; a client uploads it and says `code` "
            "instead (`penstock submit --workdir`, or the Python client)"
        )
    cwd = posixpath.normpath(spec.cwd)
    if spec.code and cwd != "." and not cwd.startswith("/") and not code_tree.is_inside(cwd.encode(errors="replace")):
        yield (
            "cwd: expected a folder of the uploaded code, relative to it, or the full path of one that nodes have, got "
            f"{json.dumps(spec.cwd)}"
        )


def _late_warning(spec: JobSpec) -> Iterator[str]:
    """Yield what is wrong with a warning before a time limit."""
    if not spec.time_limit_s and (spec.warn_signal or spec.warn_s):
        yield "warn_s: there is no time limit to warn of; give one (time_limit_s, --time), or leave the warning out"
    if spec.time_limit_s and spec.warn_s is not None and spec.warn_s >= spec.time_limit_s:
        yield (
            f"warn_s: expected less than the time limit of {spec.time_limit_s:g} s, got {spec.warn_s:g}: the job would "
            "be warned as it starts"
        )


_LOGIN: Final = "secret_files", "PENSTOCK_CREDENTIALS"
"""Of Penstock's own variables the only one: a job's user may let it ask Penstock in their name."""


def _unusable_secrets(spec: JobSpec) -> Iterator[str]:
    """Yield what is wrong with the variables that are to hold secrets."""
    for field, others in (("secrets", (spec.env, spec.secret_files)), ("secret_files", (spec.env,))):
        for variable in getattr(spec, field):
            shown = json.dumps(variable[:_MOST_CHARACTERS])
            if not _VARIABLE.fullmatch(variable):
                yield f"{field}: expected a variable's name, of letters, digits and _, got {shown}"
            elif variable.startswith("PENSTOCK_") and (field, variable) != _LOGIN:
                yield f"{field}: {shown} is one of Penstock's own variables; choose another"
            elif any(variable in other for other in others):
                yield f"{field}: {shown} has a value already, by `env` or `secret_files`; leave one of them out"
    if len(spec.secrets) + len(spec.secret_files) > _MOST_SECRETS:
        yield f"secrets: expected {_MOST_SECRETS} at most, got {len(spec.secrets) + len(spec.secret_files)}"


def _values_to_hide(spec: JobSpec) -> Iterator[str]:
    """Yield a sentence about variables whose names say that their values should not be in the log."""
    found = [
        name
        for name, value in spec.env.items()
        if value and value.lower() not in {"true", "false"} and _HOLDS_A_SECRET.search(name.upper())
    ]
    if found:
        yield (
            f"the {'value' if len(found) == 1 else 'values'} of {listed(sorted(found))} in `env` will stay in the log, "
            "for all who may see the job; if that is a secret, keep it on the nodes and name it: "
            f"--secret {found[0]}=NAME (docs/secrets.md)"
        )


def _sharing(spec: JobSpec) -> Iterator[str]:
    if spec.sharing == "fraction" and spec.gpus > 1:
        yield f'gpus: a fraction is of one device, got {spec.gpus}; use `sharing = "lane"`, or one device'
    if spec.sharing != "fraction" and spec.fraction != 1.0:
        yield f'fraction: is for `sharing = "fraction"`, got {spec.fraction:g} with `{spec.sharing}`'
    if spec.sharers and spec.sharing != "lane":
        yield f'sharers: is for `sharing = "lane"`, got {spec.sharers} with `{spec.sharing}`'
    if spec.sharing != "exclusive" and (spec.cpus or spec.host_memory_bytes):
        field = "cpus" if spec.cpus else "host_memory_bytes"
        yield f"{field}: is for a job that has its devices to itself; leave it out, or `sharing`"
    if spec.host_memory_bytes and spec.local_memory_bytes >= spec.host_memory_bytes:
        yield (
            f"local_memory_bytes: {gibibytes(spec.local_memory_bytes)} do not fit beside a program in "
            f"host_memory_bytes, {gibibytes(spec.host_memory_bytes)}; keep less on the host (memory.local), or ask for "
            "more of it"
        )
    if spec.image and spec.sharing != "exclusive":
        yield f"image: is for a job that has its devices to itself, got `{spec.sharing}`; leave it out, or `sharing`"
    if spec.memory is not None and spec.sharing == "exclusive":
        yield "memory: is for a job that shares its device; leave it out, or set `sharing`"


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:40]}…"


_ENDINGS: Final = {
    JobState.COMPLETED: "has completed",
    JobState.FAILED: "has failed",
    JobState.CANCELLED: "was cancelled",
}


class JobAction(msgspec.Struct, frozen=True, kw_only=True):
    """
    A decision on a command: what to append, and what to answer then.

    Attributes
    ----------
    subject, fact
        What to append; ``fact`` is None if the command changes nothing.
    state : str
        State of the job, sweep or node afterwards.
    """

    id: str
    state: str
    message: str
    subject: str = ""
    fact: AnyEvent | None = None


def cancel(state: GatewayState, ask: request_bodies.ActRequest, now_s: float, caller: Caller = SERVICE) -> JobAction:
    """End a job; 409 where it ended by itself."""
    job = _job(state, ask.id, caller)
    caller.require_own(job.spec, f"job {job.id}")
    if job.state in {JobState.COMPLETING, JobState.CANCELLED}:
        how = "is being cancelled already" if job.state is JobState.COMPLETING else "was cancelled before"
        return _job_action(job, how)
    _not_over(job, "cancel")
    running = job.state in ACTIVE
    after = JobState.COMPLETING if running else JobState.CANCELLED
    fact = JobCancelled(job_id=job.id, by=ask.by, reason=ask.reason, at_s=now_s)
    return _job_action(job, "is being stopped" if running else "is cancelled; it was not running", fact, after)


def hold(state: GatewayState, ask: request_bodies.ActRequest, now_s: float, caller: Caller = SERVICE) -> JobAction:
    """Keep a job from being started; 409 where it is over."""
    job = _job(state, ask.id, caller)
    caller.require_own(job.spec, f"job {job.id}")
    _not_over(job, "hold")
    if job.held:
        return _job_action(job, "is held already")
    goes_on = "; it runs on, and will not be started again after a preemption" if job.state in ACTIVE else ""
    return _job_action(job, f"is held{goes_on}", JobHeld(job_id=job.id, by=ask.by, at_s=now_s))


def release(state: GatewayState, ask: request_bodies.ActRequest, now_s: float, caller: Caller = SERVICE) -> JobAction:
    """Let a held job be started; 409 where it is over."""
    job = _job(state, ask.id, caller)
    caller.require_own(job.spec, f"job {job.id}")
    _not_over(job, "release")
    if not job.held:
        return _job_action(job, "is not held")
    still = f" once it waits for nothing else: {dependencies.why_text(job.spec.after, state.progress_of)}"
    may = f"may start again{still if job.blocked else ''}"
    return _job_action(job, may, JobReleased(job_id=job.id, by=ask.by, at_s=now_s))


def extend(state: GatewayState, ask: request_bodies.ExtendRequest, now_s: float, caller: Caller = SERVICE) -> JobAction:
    """
    Let a job run for another time.

    Raises
    ------
    RequestRefused
        409 where it is over, or its time is.
    """
    job = _job(state, ask.id, caller)
    caller.require_own(job.spec, f"job {job.id}")
    _not_over(job, "extend")
    if job.timed_out or job.state is JobState.COMPLETING:
        why = job.reason if job.timed_out else "it was cancelled"
        raise RequestRefused(CONFLICT, f"job {job.id} is being stopped: {why}; submit it again with more time")
    may = f"may run for {duration(ask.limit_s)}" if ask.limit_s else "may run as long as it likes"
    if ask.limit_s == job.limit_s:
        return _job_action(job, f"{may} already")
    ran_s = job.executed_by(now_s)
    if ask.limit_s and ran_s >= ask.limit_s:
        may += f"; it has run for {duration(ran_s)}, so its time is over and it is being stopped"
    elif ask.limit_s and ran_s:
        may += f", of which {duration(ran_s)} is over"
    return _job_action(job, may, JobTimeSet(job_id=job.id, limit_s=ask.limit_s, by=ask.by, at_s=now_s))


JOB_ACTS: Final = {"cancel": cancel, "hold": hold, "release": release}
"""Verb → the decision on it, of the commands about one job each."""


def would_change(state: GatewayState, asked: request_bodies.BulkRequest, job: Job) -> bool:
    """Return whether a request about many would change something in a job, whoever gives it."""
    if job.sample is not None:
        return False
    if asked.verb == "retry":
        states = asked.where.state if asked.where is not None else asked.state or ("F", "CA")
        failed = job.state is JobState.FAILED or (job.state is JobState.CANCELLED and "CA" in states)
        return failed and _id_of_retry(state, job) not in state.jobs.by_id
    if job.state in TERMINAL or job.state is JobState.COMPLETING:
        return False
    if asked.verb == "extend":
        return not job.timed_out and job.limit_s != asked.limit_s
    return asked.verb == "cancel" or job.held is (asked.verb == "release")


def retry_id(job_id: str) -> str:
    """
    Return the id of the job that runs in the place of one that failed.

    Where it is too long, a hash of the id before stands for its end.

    Examples
    --------
    >>> retry_id("train"), retry_id("train-r1"), len(retry_id("x" * 63))
    ('train-r1', 'train-r2', 63)
    """
    found = _RETRY.fullmatch(job_id)
    root, number = (found[1], int(found[2]) + 1) if found is not None else (job_id, 1)
    ending = f"-r{number}"
    if len(root) + len(ending) > _LONGEST_NAME:
        ending = f"-{hashlib.sha256(root.encode()).hexdigest()[:_HASH]}{ending}"
    return f"{root[: _LONGEST_NAME - len(ending)]}{ending}"


def _id_of_retry(state: GatewayState, job: Job) -> str:
    """Return the id of the job that runs in the place of one, or would: other jobs may have ids that look so."""
    found = retry_id(job.id)
    while (other := state.jobs.get(found)) is not None and other.spec.retry_of != job.id:
        found = retry_id(found)
    return found


def retried(state: GatewayState, wanted: str, caller: Caller = SERVICE) -> JobSpec:
    """
    Return the job that runs in the place of one that failed or was cancelled.

    It is submitted as the one before was, in its groups; it goes on from that one's last checkpoint, where there is
    one. What a run has waited for has come. In the place of a trial it is a job of its own, of which its sweep knows
    nothing.

    Raises
    ------
    RequestRefused
        409 where the job has not failed and was not cancelled.
    """
    job = _job(state, wanted, caller)
    caller.require_own(job.spec, f"job {job.id}")
    if job.state not in {JobState.FAILED, JobState.CANCELLED}:
        what = _ENDINGS.get(job.state, "is not over")
        raise RequestRefused(CONFLICT, f"job {job.id} {what}; those that failed or were cancelled are retried")
    asked = state.histories[job.id].asked(job)
    begins_from = asked.begins_from if asked.begins_from in state.jobs.by_id else ""
    return msgspec.structs.replace(
        asked,
        id=_id_of_retry(state, job),
        retry_of=job.id,
        parent="",
        hold=False,
        after=() if job.attempts else asked.after,
        begin_s=0.0,
        begins_from=job.id if job.checkpoint is not None else begins_from,
    )


def drain(
    state: GatewayState,
    ask: request_bodies.DrainRequest,
    now_s: float,
    caller: Caller = SERVICE,  # noqa: ARG001 - all commands are called alike
) -> JobAction:
    """Give a node, or one of its devices, no new jobs; with ``preempt`` move the running ones too."""
    node = node_named(state, ask.id)
    if ask.device is not None:
        return _drain_device(state, node, _device_of(node, ask.device), ask, now_s)
    running = sum(node.id in job.open_nodes for job in state.jobs)
    after = "draining" if running else "drained"
    if node.drained and (node.evicting or not ask.preempt):
        return _node_action(node, "is drained already", after)
    fact = NodeDrained(node_id=node.id, by=ask.by, reason=ask.reason, preempt=ask.preempt, at_s=now_s)
    one = running == 1
    what = ("is moved" if one else "are moved") if ask.preempt else ("ends there" if one else "end there")
    runs = f"{count(running, 'running job')} {what}" if running else "none runs there"
    return _node_action(node, f"takes no new jobs; {runs}", after, fact)


def resume(
    state: GatewayState,
    ask: request_bodies.NodeResumeRequest,
    now_s: float,
    caller: Caller = SERVICE,  # noqa: ARG001 - all commands are called alike
) -> JobAction:
    """Give a drained node jobs again, or one device that was drained or has failed."""
    node = node_named(state, ask.id)
    if ask.device is not None:
        return _resume_device(node, _device_of(node, ask.device), ask, now_s)
    after = node.gone or "up"
    refused = [user or "nobody" for user, nodes in state.jobs.refusals.items() if node.id in nodes]
    if not node.drained and not refused:
        return _node_action(node, f"is not drained{_drained_devices(node)}", after)
    whose = "jobs again" if node.drained else f"jobs of {' and '.join(sorted(refused))} again, which it had refused"
    return _node_action(node, f"takes {whose}", after, NodeResumed(node_id=node.id, by=ask.by, at_s=now_s))


def remove(
    state: GatewayState,
    ask: request_bodies.ActRequest,
    now_s: float,
    caller: Caller = SERVICE,  # noqa: ARG001 - all commands are called alike
) -> JobAction:
    """Remove a node that is gone for good; 409 if it is up, or if a run on it has not ended in the log."""
    node = node_named(state, ask.id)
    if node.present:
        raise RequestRefused(
            CONFLICT,
            f"node {node.id} is up; stop its executor first, or keep jobs off it with `penstock node drain {node.id}`",
        )
    if open_ := sum(node.id in job.open_nodes for job in state.jobs):
        raise RequestRefused(
            CONFLICT, f"{count(open_, 'run')} on node {node.id} may still go on; try again once the node is lost"
        )
    fact = NodeRemoved(node_id=node.id, by=ask.by, reason=ask.reason, at_s=now_s)
    return _node_action(node, "is removed; if its executor starts again, it joins as a new node", "removed", fact)


def cancel_sweep(
    state: GatewayState, ask: request_bodies.ActRequest, now_s: float, caller: Caller = SERVICE
) -> JobAction:
    """End a sweep; its trials are cancelled one by one from here on. 409 where it ended by itself."""
    sweep = sweep_named(state, ask.id, caller)
    caller.require_own(sweep.spec.job, f"sweep {sweep.id}")
    if sweep.cancelled is not None:
        return JobAction(id=sweep.id, state=sweep.state, message=f"sweep {sweep.id} was cancelled before")
    if sweep.finished is not None:
        raise RequestRefused(
            CONFLICT, f"sweep {sweep.id} has {sweep.finished.state} already; there is nothing to cancel"
        )
    left = sum(state.jobs[job_id].state not in TERMINAL for job_id in state.children.get(sweep.id, ()))
    fact = SweepCancelled(sweep_id=sweep.id, by=ask.by, at_s=now_s)
    message = f"sweep {sweep.id} is being cancelled, and {count(left, 'trial')} with it"
    return JobAction(id=sweep.id, state="cancelling", message=message, subject=subjects.request(sweep.id), fact=fact)


def set_policy(
    state: GatewayState,
    ask: request_bodies.PolicyRequest,
    now_s: float,
    caller: Caller = SERVICE,  # noqa: ARG001 - all commands are called alike
    settings: MatcherSettings | None = None,
) -> JobAction:
    """
    Change a pool's settings from now on, or return to those of its services.

    Raises
    ------
    RequestRefused
        404 if there is no such pool, 400 if nobody is in a team that is given a quota, 409 if it would lose a priority
        class that jobs name.
    """
    check_pool(state, ask.pool)
    before = state.policies.get(ask.pool, {})
    known = pool_settings.names()
    if unknown := [name for name in ask.unset if not pool_settings.is_live(name)]:
        raise RequestRefused(
            BAD, f"$.unset: no setting of a pool is called {listed(unknown)}; expected {listed(known)}"
        )
    try:
        chosen = pool_settings.checked(ask.set)
    except ValueError as error:
        raise RequestRefused(BAD, f"$.set: {error}") from error
    for name in chosen.keys() - before.keys():
        if name.startswith(pool_settings.QUOTA):
            check_team(state, name.removeprefix(pool_settings.QUOTA), "$.set")
    kept = {} if ask.reset else {name: value for name, value in before.items() if name not in ask.unset}
    live = {**kept, **chosen}
    if live == before:
        return JobAction(id=ask.pool, state="unchanged", message=f"pool {ask.pool} is run so already")
    job_classes.check_change(state, ask.pool, live, settings or MatcherSettings())
    fact = PolicySet(pool=ask.pool, settings=live, by=ask.by, reason=ask.reason, at_s=now_s)
    unset = [name for name in before if name not in live]
    changes = [f"{pairs(chosen)} set live"] if chosen else []
    changes += [f"{listed(unset)} no longer set live"] if unset else []
    message = f"pool {ask.pool}: {'; '.join(changes)}"
    return JobAction(id=ask.pool, state="set", message=message, subject=subjects.policy(ask.pool), fact=fact)


def check_team(state: GatewayState, team: str, place: str) -> None:
    """Refuse, with 400, a team that nobody is in, where people are in teams; ``place`` is its field of the request."""
    teams = sorted({team for person in state.users.by_name.values() for team in person.teams})
    if teams and team not in teams:
        raise RequestRefused(BAD, f"{place}: nobody is in a team called {team}; expected one of {listed(teams)}")


def job_named(state: GatewayState, wanted: str, caller: Caller = SERVICE) -> Job:
    """Return the job that an id or its unique beginning names; samples only by their whole id."""
    if (job := state.jobs.get(wanted)) is not None:
        return job
    if wanted in state.sweeps:
        advice = f"`penstock sweep show {wanted}` lists its trials, `penstock sweep cancel {wanted}` ends them"
        raise RequestRefused(NOT_FOUND, f"{wanted} is a sweep; expected a job: {advice}")
    if isinstance(state.jobs, PastJobs) and wanted and (job := state.jobs.only_from(wanted)) is not None:
        return job
    jobs = {job.id: job for job in state.jobs if job.sample is None}
    members = [job.id for job in jobs.values() if job.spec.array is not None and job.spec.array.id == wanted]
    if len(members) > 1:
        which = f"name one of them, such as {members[0]}; `penstock ps --group {wanted}` lists them"
        raise RequestRefused(CONFLICT, f"{wanted} is an array of {len(members):,} jobs; {which}")
    names = ((job.spec.name, job.id) for job in jobs.values() if caller.sees(job.spec))
    try:
        return endpoints.one(jobs, wanted, "job", names=names)
    except RequestRefused as refused:
        if refused.code != NOT_FOUND or not state.archive.jobs:
            raise
        advice = f"`penstock story --archive {wanted}` looks among those that are archived"
        raise RequestRefused(NOT_FOUND, f"{refused}; {advice}") from None


def workload_named(state: GatewayState, wanted: str, caller: Caller = SERVICE) -> str:
    """
    Return the key of a workload that is named by its own key, or by the id or name of a job or a sweep.

    Only jobs and sweeps that the caller sees count: others' names say nothing, and are no suggestions.
    """
    if (sweep := state.sweeps.get(wanted)) is not None:
        caller.require_sight(sweep.spec.job, f"sweep {wanted}")
        return workload.key(sweep.spec.job)
    if (job := state.jobs.get(wanted)) is not None:
        caller.require_sight(job.spec, f"job {wanted}")
        return _workload(job)
    named = [(job.spec.name, _workload(job)) for job in state.jobs if job.sample is None and caller.sees(job.spec)]
    seen = (sweep for sweep in state.sweeps.values() if caller.sees(sweep.spec.job))
    named += [(sweep.spec.name, workload.key(sweep.spec.job)) for sweep in seen]
    if len(found := {key for name, key in named if name == wanted}) == 1:
        return found.pop()
    learnt = (*state.profiles, *state.scaled, *state.measured) if caller.sees_all else ()
    known = (*learnt, *(key for _, key in named))
    return endpoints.one({key: key for key in known}, wanted, "workload", names=dict.fromkeys(named))


def sweep_named(state: GatewayState, wanted: str, caller: Caller = SERVICE) -> SweepRecord:
    """Return the sweep that an id or its unique beginning names."""
    seen = (one for one in state.sweeps.values() if caller.sees(one.spec.job))
    return endpoints.one(state.sweeps, wanted, "sweep", names=((one.spec.name, one.id) for one in seen))


def node_named(state: GatewayState, wanted: str) -> Node:
    """Return the node that an id or its unique beginning names."""
    return endpoints.one(state.cluster.nodes, wanted, "node")


def _job_action(job: Job, what: str, fact: AnyEvent | None = None, after: JobState | None = None) -> JobAction:
    message = f"job {job.id} {what}"
    return JobAction(id=job.id, state=after or job.state, message=message, subject=subjects.job(job.id), fact=fact)


def _drain_device(
    state: GatewayState, node: Node, device: Device, ask: request_bodies.DrainRequest, now_s: float
) -> JobAction:
    outage = node.outage(device.index)
    holders = job_fit.holders(state.jobs).get((node.id, device.index), [])
    after = "draining" if holders else "drained"
    if outage is not None and outage.drained and (outage.moves or not ask.preempt):
        return _device_action(node, device, "is drained already", after)
    fact = DeviceDrained(
        node_id=node.id, index=device.index, by=ask.by, reason=ask.reason, preempt=ask.preempt, at_s=now_s
    )
    one, moved = len(holders) == 1, ask.preempt or (outage is not None and outage.evicting)
    what = ("is moved" if one else "are moved") if moved else ("ends there" if one else "end there")
    runs = f"{count(len(holders), 'running job')} {what}" if holders else "none runs there"
    return _device_action(node, device, f"takes no new jobs; {runs}", after, fact)


def _resume_device(node: Node, device: Device, ask: request_bodies.NodeResumeRequest, now_s: float) -> JobAction:
    after = node.gone or ("drained" if node.drained else "up")
    if (outage := node.outage(device.index)) is None:
        return _device_action(node, device, "is not drained, and has not failed", after)
    fact = DeviceResumed(node_id=node.id, index=device.index, by=ask.by, at_s=now_s)
    what = "takes jobs again" if not node.drained else "takes jobs again once its node does"
    if outage.failed:
        what += f", although it had failed ({outage.failure}); what is measured still drains it again"
    return _device_action(node, device, what, after, fact)


def _drained_devices(node: Node) -> str:
    """Return which devices of a node are drained, and how they are resumed; empty where none is."""
    drained = [
        f"{device.kind}{device.index}"
        for device in node.devices
        if (outage := node.outage(device.index)) is not None and outage.drained
    ]
    if not drained:
        return ""
    what = f"device {drained[0]} is" if len(drained) == 1 else f"devices {', '.join(drained)} are"
    flags = " ".join(f"--device {name}" for name in drained)
    return f", but its {what}: `penstock node resume {node.id} {flags}`"


def _device_of(node: Node, index: int) -> Device:
    if (device := node.device(index)) is None:
        numbers = f"0 to {len(node.devices) - 1}" if node.devices else "none: it has no device"
        raise RequestRefused(NOT_FOUND, f"$.device: node {node.id} has no device {index}; expected {numbers}")
    return device


def _device_action(node: Node, device: Device, what: str, after: str, fact: AnyEvent | None = None) -> JobAction:
    message = f"device {node.id}/{device.kind}{device.index} {what}"
    return JobAction(id=node.id, state=after, message=message, subject=subjects.request(node.id), fact=fact)


def _node_action(node: Node, what: str, after: str, fact: AnyEvent | None = None) -> JobAction:
    message = f"node {node.id} {what}"
    return JobAction(id=node.id, state=after, message=message, subject=subjects.request(node.id), fact=fact)


def check_pool(state: GatewayState, wanted: str) -> None:
    """Refuse a pool that nothing is known of: 404."""
    known = sorted({*state.pools(), *state.policies})
    if wanted not in known:
        there = f"expected {listed(known)}" if known else "there is none yet"
        raise RequestRefused(
            NOT_FOUND, f"no pool is called {wanted!r}: {there}; one is there once a node or a job is in it"
        )


def _workload(job: Job) -> str:
    return job.profile_key or workload.key(job.spec)


def _job(state: GatewayState, wanted: str, caller: Caller) -> Job:
    job = job_named(state, wanted, caller)
    if job.sample is not None:
        raise RequestRefused(CONFLICT, f"{job.id} is a sample of the profiler, which ends by itself; name a job")
    return job


def _not_over(job: Job, what: str) -> None:
    if job.state in TERMINAL:
        raise RequestRefused(CONFLICT, f"job {job.id} {_ENDINGS[job.state]} already; there is nothing to {what}")
