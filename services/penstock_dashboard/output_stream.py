"""
A job's output over HTTP: its lines as they come, as server-sent events, and all of it to download.

Both begin with the gateway's word that the visitor may see the job. A stream that goes on for long asks again from time
to time.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, Final

import msgspec

from penstock_bus import BusError
from penstock_dashboard.gateway_port import PageRefused
from penstock_dashboard.job_output import OutputLine, OutputQuery
from penstock_dashboard.page import PageRequest
from penstock_log import request_bodies
from penstock_log.job_state import TERMINAL, JobState
from penstock_log.views import JobDetail

_CHECKED_S: Final = 15.0


class OutputEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    One message to the browser.

    Attributes
    ----------
    begin : bool
        Whether these are the first lines: what the browser shows of an earlier connection goes.
    end : str
        Why no more will come; empty where it goes on.
    """

    lines: list[OutputLine] = []
    begin: bool = False
    end: str = ""


async def follow(visit: PageRequest, now_s: Callable[[], float]) -> AsyncIterator[dict[str, Any]]:
    """
    Return a job's last lines and those that come, as events.

    Raises
    ------
    PageRefused
        If the visitor may not see the job, or has too many outputs read already.
    """
    asked, detail = visit.asked(OutputQuery), await _seen(visit)
    ended = JobState(detail.job.state) in TERMINAL
    batches = visit.jobs.outputs.follow(visit.visitor, detail.job.id, asked, ended=ended)
    try:
        first = await anext(batches)
    except BusError as error:
        raise PageRefused(503, f"the output could not be read: {error}; try again") from error
    return _events(visit, detail.job.id, first, batches, now_s)


async def _events(
    visit: PageRequest,
    job_id: str,
    first: list[OutputLine],
    batches: AsyncGenerator[list[OutputLine], None],
    now_s: Callable[[], float],
) -> AsyncIterator[dict[str, Any]]:
    checked_s = now_s()
    async with aclosing(batches):
        yield _event(OutputEvent(lines=first, begin=True))
        try:
            async for lines in batches:
                if now_s() - checked_s > _CHECKED_S:
                    await _seen(visit)
                    checked_s = now_s()
                yield _event(OutputEvent(lines=lines))
        except (PageRefused, BusError) as error:
            yield _event(OutputEvent(end=f"no more is shown: {error}"))
        else:
            yield _event(OutputEvent(end=f"job {job_id} has ended"))


def _event(event: OutputEvent) -> dict[str, Any]:
    return {"data": msgspec.json.encode(event).decode()}


async def download(visit: PageRequest) -> tuple[str, AsyncIterator[bytes]]:
    """Return a name for a file, and its bytes; errors as for :func:`follow`."""
    asked, detail = visit.asked(OutputQuery), await _seen(visit)
    parts = visit.jobs.outputs.raw(visit.visitor, detail.job.id, asked)
    try:
        first = await anext(parts, b"")
    except BusError as error:
        raise PageRefused(503, f"the output could not be read: {error}; try again") from error
    rank = f"-{asked.rank}" if asked.rank is not None else ""
    stream = f"-{asked.stream}" if asked.stream else ""
    return f"{detail.job.id}{rank}{stream}.log", _whole(first, parts)


async def _whole(first: bytes, parts: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    async with aclosing(parts):
        yield first
        async for part in parts:
            yield part


async def _seen(visit: PageRequest) -> JobDetail:
    asked = request_bodies.OneRequest(id=visit.params["id"])
    return await visit.gateway.query(visit.visitor, "job", asked, JobDetail)
