"""The page of a job's output: its last lines, or those that hold a text."""

from __future__ import annotations

from typing import Final

from penstock_bus import BusError
from penstock_dashboard.gateway_port import PageRefused
from penstock_dashboard.job_output import FoundLines, OutputQuery
from penstock_dashboard.page import PageContent, PageRequest
from penstock_log import request_bodies
from penstock_log.text import count
from penstock_log.views import JobDetail

_NOT_REACHED: Final = 503


async def log_page(visit: PageRequest) -> PageContent:
    """Show a part of a job's output to whom the gateway shows the job."""
    asked = visit.asked(OutputQuery)
    detail = await visit.gateway.query(
        visit.visitor, "job", request_bodies.OneRequest(id=visit.params["id"]), JobDetail
    )
    try:
        found = await visit.jobs.outputs.search(visit.visitor, detail.job.id, asked)
    except BusError as error:
        raise PageRefused(_NOT_REACHED, f"the output could not be read: {error}; try again") from error
    return PageContent(
        title=f"Output of job {detail.job.id}{f' · {detail.job.name}' if detail.job.name else ''}",
        template="log.html",
        values={
            "job": detail.job,
            "asked": asked,
            "rank": "" if asked.rank is None else str(asked.rank),
            "found": found,
            "summary": _summary(asked, found),
            "ranks": detail.job.gpus > 1,
        },
        live=False,
    )


def _summary(asked: OutputQuery, found: FoundLines) -> str:
    what = f"with {asked.q!r}" if asked.q else "of output"
    if not found.matched:
        return f"No line {what} is there." if asked.q else "There is no output yet."
    shown = len(found.lines)
    which = f"The last {shown} of " if shown < found.matched else ""
    cut = "; there is more than is searched at once: download it" if found.cut_off else ""
    return f"{which}{count(found.matched, 'line')} {what}{cut}."
