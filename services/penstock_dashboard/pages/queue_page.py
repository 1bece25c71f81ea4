"""
The page of the waiting jobs: in rank order, with the one cause of each and what would change it.

Below them it has the quotas of teams, the reservations and the priority classes of all pools.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from penstock_dashboard.page import TEMPLATES, PageContent, PageRequest, pieces
from penstock_log import request_bodies
from penstock_log.text import count, listed
from penstock_log.views import ClassView, PoliciesView, QueueView

_FILTERS: Final = ("user", "team", "pool", "parent", "cause", "text")
_SHOWN: Final = 12
_NO_LIMITS: Final = "No pool has any."
CAUSES: Final = {
    "capacity": "no device is free",
    "gang": "too few devices at once",
    "later_place": "waits for a better device",
    "host_cpus": "too few processors left",
    "image": "idle nodes cannot run its image",
    "host_memory": "too little memory left",
    "order": "others come first",
    "fairness": "its user has had more",
    "profiling": "is being measured",
    "backoff": "failed, and tries again",
    "dependency": "waits for other jobs",
    "array": "its array runs so many at a time",
    "begin": "is not to begin yet",
    "reservation": "would run into a reservation",
    "class_quota": "its user has all that its class allows",
    "node_down": "its node is down",
    "never_fits": "can never fit",
    "no_nodes": "its pool has no node",
    "pilot": "waits for a pilot",
    "held": "on hold",
    "undecided": "no round yet",
}
"""Causes in a few words; one that is not here is shown as it is."""


async def queue_page(visit: PageRequest) -> PageContent:
    """Show a part of the queue."""
    asked = visit.asked(request_bodies.QueueRequest, at=visit.moment)
    view = await visit.gateway.query(visit.visitor, "queue", asked, QueueView)
    policies = await visit.gateway.query(
        visit.visitor, "policies", request_bodies.AllRequest(at=visit.moment), PoliciesView
    )
    acts = visit.visitor.signed_in and not visit.at
    rows = [
        (job.id, {"job": job, "why": CAUSES.get(job.cause, job.cause), "acts": acts, "at": visit.at})
        for job in view.jobs
    ]
    return PageContent(
        title="Queue",
        template="queue.html",
        regions={
            "counts": _groups(visit, view),
            "rows": pieces("pieces/queue_row.html", rows)
            or {"none": TEMPLATES.render("pieces/no_rows.html", key="none", columns=10, text="No job waits.")},
            "pager": visit.pager(asked.offset, asked.limit, len(view.jobs), view.total),
            "limits": pieces("pieces/limit_row.html", list(_limits(policies)))
            or {"no limits": TEMPLATES.render("pieces/no_rows.html", key="no limits", columns=4, text=_NO_LIMITS)},
        },
        values={"asked": asked, "filtered": any(visit.query.get(name) for name in _FILTERS)},
        now_s=view.now_s,
    )


def _limits(policies: PoliciesView) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of quotas, reservations and classes: the classes that come first before others."""
    blank: dict[str, Any] = {"from_s": None, "until_s": None, "reason": ""}
    for one in policies.pools:
        for team, gpus in sorted(one.quotas.items()):
            says = f"{count(gpus, 'device')} of its own, with what is reserved for it now"
            yield f"quota {one.pool} {team}", {"pool": one.pool, "what": "quota", "name": team, "says": says, **blank}
        for made in one.reservations:
            devices = count(made.gpus, f"{made.kind} device".strip())
            times = {"from_s": made.from_s, "until_s": made.until_s, "reason": made.reason}
            values = {"pool": one.pool, "what": "reservation", "name": made.id}
            yield f"reservation {one.pool} {made.id}", {**values, "says": f"{devices} for {made.team}", **times}
        for name, rules in sorted(one.classes.items(), key=lambda item: (-item[1].weight, item[0])):
            values = {"pool": one.pool, "what": "class", "name": name, "says": ", ".join(_class_says(rules))}
            yield f"class {one.pool} {name}", {**values, **blank}


def _class_says(rules: ClassView) -> Iterator[str]:
    yield f"weight {rules.weight}"
    yield "runs of lower classes make way" if rules.preempts else "nobody makes way"
    if rules.most_gpus:
        yield f"at most {count(rules.most_gpus, 'device')} for each user"
    if rules.teams:
        yield f"for {listed(rules.teams)} only"


def _groups(visit: PageRequest, view: QueueView) -> dict[str, str]:
    groups = {"user": view.by_user, "team": view.by_team, "pool": view.by_pool, "cause": view.by_cause}
    found = {"total": TEMPLATES.render("pieces/queue_total.html", key="total", total=view.total, gpus=view.gpus)}
    for name, counts in groups.items():
        items = [
            (
                CAUSES.get(one, one) if name == "cause" else one or "none",
                number,
                visit.address(**{name: one, "offset": ""}),
            )
            for one, number in list(counts.items())[:_SHOWN]
        ]
        if items:
            left = len(counts) - len(items)
            found[name] = TEMPLATES.render("pieces/group.html", key=name, name=name, items=items, left=left)
    return found
