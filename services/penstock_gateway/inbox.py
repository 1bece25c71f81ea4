"""Submissions that were published to the inbox and wait for no answer: the same rules, errors go to REJECTED."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable

import structlog

from penstock_bus import Bus, Conflict, TooLarge, Unavailable, Work
from penstock_events import subjects
from penstock_events.strict import BadInput
from penstock_events.views import SubmitAnswer
from penstock_gateway.bodies import job_asked, sweep_asked
from penstock_gateway.commands import Commands
from penstock_gateway.find import Refused

_QUEUE = "gateway"
_log = structlog.get_logger("penstock.gateway")


async def take_jobs(bus: Bus, commands: Commands, retry_s: float) -> None:
    """Accept jobs from the inbox, for ever."""

    async def accept(work: Work) -> SubmitAnswer:
        asked = job_asked(work.body, commands.most_bytes)
        return await commands.submit_job(asked.spec, strict=asked.strict, new_id=given_id(work))

    async for work in bus.work(f"{_QUEUE}-jobs", [subjects.INBOX_JOBS]):
        await _take(work, accept, retry_s)


async def take_sweeps(bus: Bus, commands: Commands, retry_s: float) -> None:
    """Accept sweeps from the inbox, for ever."""

    async def accept(work: Work) -> SubmitAnswer:
        asked = sweep_asked(work.body, commands.most_bytes)
        return await commands.submit_sweep(asked.spec, strict=asked.strict, new_id=given_id(work))

    async for work in bus.work(f"{_QUEUE}-sweeps", [subjects.INBOX_SWEEPS]):
        await _take(work, accept, retry_s)


def given_id(work: Work) -> str:
    """Return the id of a submission that names none: the same at every delivery of the same message."""
    return f"q{work.seq}-{hashlib.sha256(work.body).hexdigest()[:6]}"


async def _take(work: Work, accept: Callable[[Work], Awaitable[SubmitAnswer]], retry_s: float) -> None:
    """
    Accept or reject one submission, however long the log is away or full.

    It is held meanwhile and not put back: deliveries are counted, and what was stored once must not be given up for
    want of room. Those behind it wait too; the log would not take them either.
    """
    while True:
        try:
            await _decide(work, accept)
            return
        except (Unavailable, Conflict) as error:
            _log.warning("submission_waits", subject=work.subject, error=str(error), retry_s=retry_s)
        await asyncio.sleep(retry_s)
        await work.hold()


async def _decide(work: Work, accept: Callable[[Work], Awaitable[SubmitAnswer]]) -> None:
    try:
        answer = await accept(work)
    except (BadInput, Refused, TooLarge) as error:
        _log.info("submission_rejected", subject=work.subject, reason=str(error))
        await work.reject(str(error))
    else:
        _log.debug("submission_taken", id=answer.id, created=answer.created)
        await work.ack()
