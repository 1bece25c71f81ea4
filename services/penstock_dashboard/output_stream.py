"""
A job's output over HTTP: its lines as they come, as server-sent events, and all of it to download.

Both begin with the gateway's word that the visitor may see the job. A stream that goes on for long asks again from time
to time. Where nobody answers for a while it says so, and begins anew after a pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, Final, NamedTuple

import msgspec

from penstock_bus import BusError
from penstock_dashboard.gateway_port import PageRefused
from penstock_dashboard.job_output import OutputLine, OutputQuery
from penstock_dashboard.page import PageRequest
from penstock_log import request_bodies
from penstock_log.job_state import TERMINAL, JobState
from penstock_log.views import JobDetail

_CHECKED_S: Final = 15.0
AGAIN_S: Final = 5.0
"""Pause after something could not be read, in seconds."""
_TOO_MANY: Final = 429
_SERVERS: Final = 500
"""From this status on, it is no fault of who asks."""


class OutputEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    One message to the browser.

    Attributes
    ----------
    begin : bool
        Whether these are the first lines: what the browser shows of an earlier connection goes.
    end : str
        Why no more will come; empty where it goes on.
    wait : str
        Why nothing comes at present; it is tried again.
    """

    lines: list[OutputLine] = []
    begin: bool = False
    end: str = ""
    wait: str = ""


async def follow(
    visit: PageRequest, now_s: Callable[[], float], again_s: float = AGAIN_S
) -> AsyncIterator[dict[str, Any]]:
    """
    Return a job's last lines and those that come, as events.

    Parameters
    ----------
    again_s : float
        Pause after something could not be read, in seconds.

    Raises
    ------
    PageRefused
        If the visitor may not see the job, or has too many outputs read already.
    """
    return _events(visit, await _begun(visit), now_s, again_s)


class _Begun(NamedTuple):
    job_id: str
    first: list[OutputLine]
    batches: AsyncGenerator[list[OutputLine], None]


async def _begun(visit: PageRequest) -> _Begun:
    """Begin to follow a job; errors as for :func:`follow`."""
    asked, detail = visit.asked(OutputQuery), await _seen(visit)
    ended = JobState(detail.job.state) in TERMINAL
    batches = visit.jobs.outputs.follow(visit.visitor, detail.job.id, asked, ended=ended)
    try:
        return _Begun(detail.job.id, await anext(batches), batches)
    except BusError as error:
        raise PageRefused(503, f"the output could not be read: {error}; try again") from error


async def _events(
    visit: PageRequest, begun: _Begun | None, now_s: Callable[[], float], again_s: float
) -> AsyncIterator[dict[str, Any]]:
    while True:
        try:
            job_id, first, batches = begun or await _begun(visit)
            checked_s, begun = now_s(), None
            async with aclosing(batches):
                yield _event(OutputEvent(lines=first, begin=True))
                async for lines in batches:
                    if now_s() - checked_s > _CHECKED_S:
                        await _seen(visit)
                        checked_s = now_s()
                    yield _event(OutputEvent(lines=lines))
            yield _event(OutputEvent(end=f"job {job_id} has ended"))
            return
        except (PageRefused, BusError) as error:
            if isinstance(error, PageRefused) and error.status < _SERVERS and error.status != _TOO_MANY:
                yield _event(OutputEvent(end=f"no more is shown: {error}"))
                return
            yield _event(OutputEvent(wait=f"nothing comes at present: {error}; it is tried again in {again_s:g} s"))
        await asyncio.sleep(again_s)


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
