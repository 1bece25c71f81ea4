"""
Many jobs by one request: submissions, and acts on all that ids or a filter name.

Each job is decided on by itself, as by its own command, with the same rights, and has a fact of its own; one that is
refused does not keep the others. :class:`BulkCommands` has the facts appended many at a time, and takes a turn for each
such part, so that the commands of other users go in between. What cannot be stored so is done one by one. A request
that comes again finds what the first one did, and changes nothing.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
import structlog

from penstock_bus import Conflict, Endpoint, TooLarge, Unavailable
from penstock_gateway import acceptance, endpoints, job_dependencies, job_filter
from penstock_gateway.authority import Admit, Caller
from penstock_gateway.commands import Commands
from penstock_gateway.endpoints import (
    BAD,
    NOT_FOUND,
    UNAVAILABLE,
    RequestRefused,
    endpoint,
    job_of,
    jobs_asked,
    unavailable,
)
from penstock_gateway.machine import GatewayState
from penstock_gateway.user_queues import RepeatedRequests, UserQueues, asker, names_itself
from penstock_log import Job, JobSpec, request_bodies, subjects, validation
from penstock_log.request_bodies import BulkRequest, JobFilter
from penstock_log.validation import BadInput
from penstock_log.views import ActAnswer, BulkAnswer, BulkView, SubmitAnswer, SubmittedJob, SubmittedJobsView

T = TypeVar("T")
A = TypeVar("A")
Act = Callable[[GatewayState, Any, float, Caller], acceptance.JobAction]
_TOO_LARGE: Final = 413
_PART: Final = 250
"""Facts that are appended as one: the commands of others wait for so many at most."""
_FEW: Final = 8
"""Fewer than these are not worth being appended as one."""
_STOPS: Final = frozenset({"cancel", "hold"})
_AT_A_STRETCH: Final = 25
"""Specifications that are read before others have their turn."""
_BEHIND_ALL: Final = "~"
"""Sorts behind whatever an id has."""
_log = structlog.get_logger("penstock.gateway")


class BulkCommands:
    """
    The commands about many jobs.

    Parameters
    ----------
    commands : Commands
        The commands about one each, by which these are carried out.
    admit : Admit
        Says who asks, or refuses them.
    most_bytes : int
        Size of the largest answer.
    """

    def __init__(self, commands: Commands, admit: Admit, most_bytes: int) -> None:
        self._commands, self._admit, self._most_bytes = commands, admit, most_bytes
        self._submissions: RepeatedRequests[SubmittedJobsView] = RepeatedRequests(commands.submissions)
        self._acts: RepeatedRequests[BulkView] = RepeatedRequests(commands.acts)

    def endpoints(self) -> list[Endpoint]:
        """Return the commands as endpoints."""
        return [
            endpoint(name, subjects.command(name), self._admit, handler, self._most_bytes, concurrent=True)
            for name, handler in (("submit_all", self._submitted), ("bulk", self._acted))
        ]

    async def _submitted(self, body: bytes, caller: Caller) -> SubmittedJobsView:
        if not names_itself(body):
            return await self.submit_all(body, caller)
        found, is_copy = await self._submissions.answer(caller.name, body, lambda: self.submit_all(body, caller))
        if not is_copy:
            return found
        return SubmittedJobsView(answers=tuple(msgspec.structs.replace(one, created=False) for one in found.answers))

    async def _acted(self, body: bytes, caller: Caller) -> BulkView:
        found, _ = await self._acts.answer(caller.name, body, lambda: self.act_on_all(body, caller))
        return found

    async def submit_all(self, body: bytes, caller: Caller) -> SubmittedJobsView:
        """
        Store the jobs that a body holds, each unless it is stored already.

        Raises
        ------
        BadInput, RequestRefused
            If the body is no such request; what is wrong with one job stands in its answer.
        """
        given, strict = jobs_asked(body, self._commands.most_bytes)
        user = caller.name or asker(msgspec.json.encode(given[0]))

        async def submit_together(part: Sequence[JobSpec]) -> list[SubmittedJob | Exception | None]:
            found = await self._commands.submit_specs(part, caller, strict=strict)
            return [SubmittedJob.of(one) if isinstance(one, SubmitAnswer) else one for one in found]

        async def submit_alone(spec: JobSpec) -> SubmittedJob:
            return SubmittedJob.of(await self._commands.submit_spec(spec, caller, strict=strict))

        specs: dict[int, JobSpec] = {}
        answers: dict[int, SubmittedJob] = {}
        ids, arrays = set[str](), set[str]()
        async with self._commands.submissions.queued(user, len(body), len(given)):
            for place, raw in enumerate(given):
                if place % _AT_A_STRETCH == _AT_A_STRETCH - 1:
                    await asyncio.sleep(0)
                try:
                    spec = self._commands.named(caller.stamp(job_of(raw)))
                    _note_ids(spec, ids, arrays)
                    specs[place] = spec
                except (BadInput, RequestRefused) as error:
                    answers[place] = _refused_job(raw, *_reason(error))
            work = _Work(submit_together, submit_alone, _refused_spec)
            done = await _each(self._commands.submissions, user, list(specs.values()), work)
        answers |= zip(specs, done, strict=True)
        return SubmittedJobsView(answers=tuple(answers[place] for place in range(len(given))))

    async def act_on_all(self, body: bytes, caller: Caller) -> BulkView:
        """
        Cancel, hold or release the jobs that a body names.

        Raises
        ------
        BadInput, RequestRefused
            If the body is no such request; why one job is refused stands in its answer.
        """
        asked = validation.decode(body, BulkRequest)
        if bool(asked.ids) == (asked.where is not None):
            raise BadInput("$: expected either `ids` or `where`; one of them says which jobs")
        _check_filter(asked, body)
        if asked.state and asked.where is not None:
            raise BadInput("$.state: goes with `ids`; send the states of `where` in it")
        await self._commands.catch_up()
        if (asked.verb == "extend") != (asked.limit_s is not None):
            raise BadInput("$.limit_s: is for `extend`, and `extend` needs it; 0: no limit")
        given = self._named(asked)
        if len(given) > request_bodies.MOST_AT_ONCE:
            raise BadInput(f"$.ids: names {len(given):,} jobs, with those of arrays; send `where` with `array` instead")
        chosen, matched, left = list(given), len(given), 0
        if asked.where is not None:
            found = self._matching(asked, asked.where, caller)
            page = found[: asked.limit]
            chosen, matched = [job.id for job in (page[::-1] if _last_first(asked, asked.where) else page)], len(found)
            left = self._submitted_seq(found[asked.limit - 1]) if matched > asked.limit else 0
        if asked.dry_run:
            answers = [given.get(job_id) or self._preview(asked, job_id, caller) for job_id in chosen]
        else:
            there = self._in_line_first(asked, [job_id for job_id in chosen if given.get(job_id) is None])
            done = dict(zip(there, await self._act_on(asked, there, caller, len(body)), strict=True))
            answers = [given.get(job_id) or done[job_id] for job_id in chosen]
        changed, refused = sum(one.changed for one in answers), sum(one.code > 0 for one in answers)
        return BulkView(answers=tuple(answers), matched=matched, changed=changed, refused=refused, next=left)

    def _named(self, asked: BulkRequest) -> dict[str, BulkAnswer | None]:
        """
        Return the jobs that ids name, in order, and those of an array that one names, in the states that are asked for.

        An id that names none has its refusal; all of them together look at all jobs once.
        """
        state = self._commands.state
        found: dict[str, BulkAnswer | None] = {}
        known: list[str] | None = None
        for wanted in asked.ids:
            if wanted in state.jobs.by_id or wanted in state.sweeps:
                found.setdefault(wanted)
            elif members := job_dependencies.members_of(state, wanted):
                if asked.verb == "retry":
                    members = [one for one in members if acceptance.would_change(state, asked, state.jobs[one])]
                found.update(dict.fromkeys(members))
            else:
                known = sorted(job.id for job in state.jobs if job.sample is None) if known is None else known
                job_id, refused = _beginning(known, wanted)
                found.setdefault(job_id, refused)
        if asked.state:
            there = {job_id: state.jobs.get(job_id) for job_id in found}
            return {one: found[one] for one, job in there.items() if job is None or job.state in asked.state}
        return found

    def _in_line_first(self, asked: BulkRequest, chosen: list[str]) -> list[str]:
        """Return the jobs in the order of the acts: none that is stopped is to let one start that is stopped next."""
        if asked.verb not in _STOPS:
            return chosen
        jobs = self._commands.state.jobs
        return sorted(chosen, key=lambda job_id: (job := jobs.get(job_id)) is None or not job.in_line)

    def _matching(self, asked: BulkRequest, where: JobFilter, caller: Caller) -> list[Job]:
        """Return the jobs that a filter chooses, in the order of its pages."""
        matching = job_filter.matching(self._commands.state, where, caller)
        changing = (job for job in matching if acceptance.would_change(self._commands.state, asked, job))
        if not _last_first(asked, where):
            return [job for job in changing if self._submitted_seq(job) > asked.after]
        return [job for job in reversed(list(changing)) if not asked.after or self._submitted_seq(job) < asked.after]

    def _submitted_seq(self, job: Job) -> int:
        return self._commands.state.histories[job.id].seq

    async def _act_on(self, asked: BulkRequest, chosen: list[str], caller: Caller, size_bytes: int) -> list[BulkAnswer]:
        act, user = _act_of(asked), caller.name or asked.by

        async def act_together(part: Sequence[str]) -> list[BulkAnswer | Exception | None]:
            found = await self._commands.act_all(act, [_about(asked, job_id, caller) for job_id in part], caller)
            return [BulkAnswer.of(one) if isinstance(one, ActAnswer) else one for one in found]

        async def act_alone(job_id: str) -> BulkAnswer:
            return BulkAnswer.of(await self._commands.act(act, _about(asked, job_id, caller), caller))

        work = self._retries(caller) if asked.verb == "retry" else _Work(act_together, act_alone, _refused)
        async with self._commands.acts.queued(user, size_bytes, max(len(chosen), 1)):
            answers = await _each(self._commands.acts, user, chosen, work)
        _log.info("acted_on_many", verb=asked.verb, by=user, jobs=len(answers))
        return answers

    def _retries(self, caller: Caller) -> _Work[str, BulkAnswer]:
        """Return what submits a job in the place of each that failed."""

        def spec_of(job_id: str) -> JobSpec:
            return self._retry_of(job_id, caller)

        async def together(part: Sequence[str]) -> list[BulkAnswer | Exception | None]:
            specs: dict[int, JobSpec] = {}
            found: list[BulkAnswer | Exception | None] = [None] * len(part)
            for place, job_id in enumerate(part):
                try:
                    specs[place] = spec_of(job_id)
                except RequestRefused as error:
                    found[place] = error
            done = await self._commands.submit_specs(list(specs.values()), caller, strict=False)
            for (place, spec), one in zip(specs.items(), done, strict=True):
                found[place] = _retried(spec, one) if isinstance(one, SubmitAnswer) else one
            return found

        async def alone(job_id: str) -> BulkAnswer:
            spec = spec_of(job_id)
            return _retried(spec, await self._commands.submit_spec(spec, caller, strict=False))

        return _Work(together, alone, _refused)

    def _retry_of(self, job_id: str, caller: Caller) -> JobSpec:
        """Return what is submitted in the place of a job: by who retries it, with the rights that he has now."""
        return caller.stamp(acceptance.retried(self._commands.state, job_id, caller))

    def _preview(self, asked: BulkRequest, job_id: str, caller: Caller) -> BulkAnswer:
        """Return what would become of a job."""
        try:
            if asked.verb == "retry":
                spec = self._retry_of(job_id, caller)
                return _retried(
                    spec, SubmitAnswer(id=spec.id, seq=0, created=spec.id not in self._commands.state.jobs.by_id)
                )
            done = _act_of(asked)(self._commands.state, _about(asked, job_id, caller), 0.0, caller)
        except RequestRefused as error:
            return _refused(job_id, error.code, str(error))
        return BulkAnswer.of(done, changed=done.fact is not None)


def _note_ids(spec: JobSpec, ids: set[str], arrays: set[str]) -> None:
    """Note the ids of one of many jobs that are submitted; refuse one that another has for something else."""
    if spec.id in arrays:
        raise acceptance.id_of_something_else(spec.id)
    if spec.array is not None:
        if spec.array.id in ids:
            raise acceptance.id_of_something_else(spec.array.id)
        arrays.add(spec.array.id)
    ids.add(spec.id)


def _check_filter(asked: BulkRequest, body: bytes) -> None:
    """Refuse an empty filter, and one that has an empty value: that of an unset variable is not to mean all jobs."""
    if asked.where is None:
        return
    given = msgspec.json.decode(body, type=_GivenFilter).where
    known = JobFilter.__struct_fields__
    if empty := [name for name in known if name in given and given[name] in ("", [])]:
        raise BadInput(*(f"$.where.{name}: expected a value, got an empty one; leave it out" for name in empty))
    if asked.where == JobFilter():
        raise BadInput(f'$.where: expected one of {", ".join(known)}; for all jobs, send {{"name": "*"}}')


class _GivenFilter(msgspec.Struct):
    """The filter of a request, with what stands in it though it says nothing."""

    where: dict[str, Any]


def _last_first(asked: BulkRequest, where: JobFilter) -> bool:
    """Return whether later jobs come on earlier pages: those that wait in line for the first jobs of an array do."""
    return asked.verb in _STOPS and bool(where.array or where.group)


def _beginning(known: Sequence[str], wanted: str) -> tuple[str, BulkAnswer | None]:
    """Return the one of some sorted ids that begins so, or else what was wanted with its refusal."""
    begin = known[bisect_left(known, wanted) : bisect_left(known, wanted + _BEHIND_ALL)] if wanted else ()
    if not begin:
        return wanted, _refused(wanted, NOT_FOUND, f"no job {wanted!r}; `penstock ps -a` lists those that are there")
    try:
        return endpoints.one(dict(zip(begin, begin, strict=True)), wanted, "job"), None
    except RequestRefused as error:
        return wanted, _refused(wanted, error.code, str(error))


def _act_of(asked: BulkRequest) -> Act:
    """Return the decision about one of the jobs; of a retry it is never asked for."""
    if asked.verb == "extend":
        return acceptance.extend
    return acceptance.JOB_ACTS.get(asked.verb, acceptance.release)


def _about(asked: BulkRequest, job_id: str, caller: Caller) -> Any:
    """Return the request about one of the jobs."""
    by = asked.by if caller.is_service else caller.name
    if asked.verb == "extend":
        return request_bodies.ExtendRequest(id=job_id, limit_s=asked.limit_s or 0.0, by=by)
    return request_bodies.ActRequest(id=job_id, by=by, reason=asked.reason)


def _retried(spec: JobSpec, answer: SubmitAnswer) -> BulkAnswer:
    how = "is retried as" if answer.created else "was retried before, as"
    message = f"job {spec.retry_of} {how} {spec.id}"
    return BulkAnswer(id=spec.retry_of, seq=answer.seq, changed=answer.created, state="PD", message=message)


def _refused(job_id: str, code: int, error: str) -> BulkAnswer:
    return BulkAnswer(id=job_id, code=code, error=error)


def _refused_job(raw: Any, code: int, error: str) -> SubmittedJob:
    named = raw.get("id") if isinstance(raw, dict) else None
    return SubmittedJob(id=named if isinstance(named, str) else "", code=code, error=error)


def _refused_spec(spec: JobSpec, code: int, error: str) -> SubmittedJob:
    return SubmittedJob(id=spec.id, code=code, error=error)


class _Work(NamedTuple, Generic[T, A]):
    """
    What is to be done for each of many items.

    Attributes
    ----------
    together : callable
        Does it for many, and returns of each its answer, or its refusal, or None where it is to be done alone.
    alone : callable
        Does it for one, or raises the refusal.
    refused : callable
        Makes an item's answer of the code and the sentence of its refusal.
    """

    together: Callable[[Sequence[T]], Awaitable[list[A | Exception | None]]]
    alone: Callable[[T], Awaitable[A]]
    refused: Callable[[T, int, str], A]


async def _each(queues: UserQueues, user: str, items: Sequence[T], work: _Work[T, A]) -> list[A]:
    """
    Do some work for each item, and return the answers in order.

    It is done for a part of them together in one turn; what is left of the part then has a turn of its own each, before
    the next part, which may depend on it.
    """

    async def in_turn(item: T) -> A | Exception:
        try:
            async with queues.turn(user):
                return await work.alone(item)
        except (BadInput, RequestRefused, TooLarge, Unavailable, Conflict) as error:
            return error

    answers: list[A] = []
    for start in range(0, len(items), _PART):
        part = items[start : start + _PART]
        found = await _together(queues, user, part, work)
        async with asyncio.TaskGroup() as group:
            left = {place: group.create_task(in_turn(part[place])) for place, one in enumerate(found) if one is None}
        for place, one in enumerate(found):
            done = left[place].result() if one is None else one
            answers.append(work.refused(part[place], *_reason(done)) if isinstance(done, Exception) else done)
    return answers


async def _together(queues: UserQueues, user: str, part: Sequence[T], work: _Work[T, A]) -> list[A | Exception | None]:
    if len(part) < _FEW:
        return [None] * len(part)
    try:
        async with queues.turn(user):
            return await work.together(part)
    except (Unavailable, RequestRefused) as error:
        return [error] * len(part)


def _reason(error: Exception) -> tuple[int, str]:
    """Return the code and the sentence with which an item is refused."""
    match error:
        case RequestRefused():
            return error.code, str(error)
        case TooLarge():
            return _TOO_LARGE, str(error)
        case Unavailable() | Conflict():
            return UNAVAILABLE, unavailable(error)
        case _:
            return BAD, str(error)
