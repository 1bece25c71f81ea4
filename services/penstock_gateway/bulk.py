"""
Many jobs by one request: submissions, and acts on all that ids or a filter name.

Each job is decided on and stored by itself, as its own command would be, with the same rights; one that is refused does
not keep the others. :class:`BulkCommands` takes a turn for each job, so that the commands of other users go in between.
A request that comes again finds what the first one did, and changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec
import structlog

from penstock_bus import Conflict, Endpoint, TooLarge, Unavailable
from penstock_gateway import acceptance, job_filter
from penstock_gateway.authority import Admit, Caller
from penstock_gateway.commands import Commands
from penstock_gateway.endpoints import BAD, UNAVAILABLE, RequestRefused, endpoint, job_of, jobs_asked, unavailable
from penstock_gateway.user_queues import UserQueues, asker
from penstock_log import Job, request_bodies, subjects, validation
from penstock_log.request_bodies import BulkRequest
from penstock_log.validation import BadInput
from penstock_log.views import BulkAnswer, BulkView, SubmittedJob, SubmittedJobsView

T = TypeVar("T")
A = TypeVar("A")
_TOO_LARGE: Final = 413
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

    def endpoints(self) -> list[Endpoint]:
        """Return the commands as endpoints."""
        return [
            endpoint(name, subjects.command(name), self._admit, handler, self._most_bytes, concurrent=True)
            for name, handler in (("submit_all", self.submit_all), ("bulk", self.act_on_all))
        ]

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

        async def submit(raw: Any) -> SubmittedJob:
            answer = await self._commands.submit_spec(job_of(raw), caller, strict=strict)
            return SubmittedJob.of(answer)

        def refused(raw: Any, code: int, error: str) -> SubmittedJob:
            named = raw.get("id") if isinstance(raw, dict) else None
            return SubmittedJob(id=named if isinstance(named, str) else "", code=code, error=error)

        async with self._commands.submissions.queued(user, len(body), len(given)):
            answers = await _each(self._commands.submissions, user, given, submit, refused)
        return SubmittedJobsView(answers=tuple(answers))

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
            raise BadInput("$: expected either `ids` or `where`; send `where` as {} for all jobs")
        await self._commands.catch_up()
        chosen, matched, left = list(dict.fromkeys(asked.ids)), len(set(asked.ids)), 0
        if asked.where is not None:
            found = self._matching(asked, asked.where, caller)
            chosen, matched = [job.id for job in found[: asked.limit]], len(found)
            left = self._submitted_seq(found[asked.limit - 1]) if matched > asked.limit else 0
        if asked.dry_run:
            answers = [self._preview(asked, job_id, caller) for job_id in chosen]
        else:
            answers = await self._act_on(asked, chosen, caller, len(body))
        changed, refused = sum(one.changed for one in answers), sum(one.code > 0 for one in answers)
        return BulkView(answers=tuple(answers), matched=matched, changed=changed, refused=refused, next=left)

    def _matching(self, asked: BulkRequest, where: request_bodies.JobFilter, caller: Caller) -> list[Job]:
        """Return the jobs that a filter chooses, by submission."""
        matching = job_filter.matching(self._commands.state, where, caller)
        changing = (job for job in matching if acceptance.would_change(asked.verb, job))
        return [job for job in changing if self._submitted_seq(job) > asked.after]

    def _submitted_seq(self, job: Job) -> int:
        return self._commands.state.histories[job.id].seq

    async def _act_on(self, asked: BulkRequest, chosen: list[str], caller: Caller, size_bytes: int) -> list[BulkAnswer]:
        act, user = acceptance.JOB_ACTS[asked.verb], caller.name or asked.by

        async def carry_out(job_id: str) -> BulkAnswer:
            return BulkAnswer.of(await self._commands.act(act, _about(asked, job_id, caller), caller))

        async with self._commands.acts.queued(user, size_bytes, max(len(chosen), 1)):
            answers = await _each(self._commands.acts, user, chosen, carry_out, _refused)
        _log.info("acted_on_many", verb=asked.verb, by=user, jobs=len(answers))
        return answers

    def _preview(self, asked: BulkRequest, job_id: str, caller: Caller) -> BulkAnswer:
        """Return what would become of a job."""
        try:
            done = acceptance.JOB_ACTS[asked.verb](self._commands.state, _about(asked, job_id, caller), 0.0, caller)
        except RequestRefused as error:
            return _refused(job_id, error.code, str(error))
        return BulkAnswer.of(done, changed=done.fact is not None)


def _about(asked: BulkRequest, job_id: str, caller: Caller) -> request_bodies.ActRequest:
    """Return the request about one of the jobs."""
    by = asked.by if caller.is_service else caller.name
    return request_bodies.ActRequest(id=job_id, by=by, reason=asked.reason)


def _refused(job_id: str, code: int, error: str) -> BulkAnswer:
    return BulkAnswer(id=job_id, code=code, error=error)


async def _each(
    queues: UserQueues,
    user: str,
    items: Sequence[T],
    carry_out: Callable[[T], Awaitable[A]],
    refused: Callable[[T, int, str], A],
) -> list[A]:
    """Carry something out for each item, as many at a time as there are slots; return the answers in order."""

    async def in_turn(item: T) -> A:
        try:
            async with queues.turn(user):
                return await carry_out(item)
        except BadInput as error:
            return refused(item, BAD, str(error))
        except RequestRefused as error:
            return refused(item, error.code, str(error))
        except TooLarge as error:
            return refused(item, _TOO_LARGE, str(error))
        except (Unavailable, Conflict) as error:
            return refused(item, UNAVAILABLE, unavailable(error))

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(in_turn(item)) for item in items]
    return [task.result() for task in tasks]
