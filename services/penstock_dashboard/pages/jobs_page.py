"""The page of all jobs, newest first."""

from __future__ import annotations

from typing import Final

from penstock_dashboard.page import STATES, TEMPLATES, PageContent, PageRequest, pieces
from penstock_log import request_bodies
from penstock_log.views import JobsView

_SHOWN: Final = 200


async def jobs_page(visit: PageRequest) -> PageContent:
    """Show the newest jobs that match."""
    state = visit.query.get("state", "")
    own = {"at": visit.moment, "limit": _SHOWN, "state": (state,) if state else ()}
    asked = visit.asked(request_bodies.JobsRequest, **own)
    view = await visit.gateway.query(visit.visitor, "jobs", asked, JobsView)
    rows = [(job.id, {"job": job, "at": visit.at}) for job in reversed(view.jobs)]
    total = TEMPLATES.render("pieces/jobs_total.html", key="total", shown=len(rows), total=view.total)
    none = {"none": TEMPLATES.render("pieces/no_rows.html", key="none", columns=13, text="No job is like that.")}
    return PageContent(
        title="Jobs",
        template="jobs.html",
        regions={"counts": {"total": total}, "rows": pieces("pieces/job_row.html", rows) or none},
        values={
            "asked": asked,
            "state": state,
            "states": [("", "all"), *((str(one), text) for one, text in STATES.items())],
        },
        now_s=0.0,
    )
