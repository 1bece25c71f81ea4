"""The page of allocations: what may be taken of other clusters, the pilots there, and what failed last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from penstock_dashboard.gateway_port import PageRefused
from penstock_dashboard.page import TEMPLATES, PageContent, PageRequest, pieces
from penstock_log import request_bodies
from penstock_log.text import count, duration
from penstock_log.views import PILOT_STATES, AllocationsView, AllocationView, PilotView, UserView

MOST_PILOTS: Final = 200
"""So many pilots are shown, those that have not ended first."""
_MAY_ACT: Final = frozenset({"operator", "admin"})
_NONE: Final = "There is no allocation; penstock alloc add slurm --name NAME adds one."
_NO_PILOTS: Final = "There is no pilot, and there was none."


async def allocations_page(visit: PageRequest) -> PageContent:
    """Show all allocations and their pilots."""
    asked = request_bodies.AllRequest(at=visit.moment)
    view = await visit.gateway.query(visit.visitor, "allocations", asked, AllocationsView)
    acts = await _may_act(visit)
    rows = [(one.name, {"one": one, "acts": acts, **_words(one)}) for one in view.allocations]
    pilots = [(one.name, pilot) for one in view.allocations for pilot in one.pilots]
    pilots.sort(key=lambda of: of[1].ended_s is not None)
    shown = [(pilot.id, {"allocation": name, "pilot": pilot, "said": _said(pilot)}) for name, pilot in pilots]
    none = TEMPLATES.render("pieces/no_rows.html", key="none", columns=7 + acts, text=_NONE)
    no_pilots = TEMPLATES.render("pieces/no_rows.html", key="none", columns=7, text=_NO_PILOTS)
    left = len(shown) - MOST_PILOTS
    more = f"{left} more; penstock alloc show has all." if left > 0 else ""
    return PageContent(
        title="Allocations",
        template="allocations.html",
        regions={
            "allocations": pieces("pieces/allocation_row.html", rows) or {"none": none},
            "pilots": pieces("pieces/pilot_row.html", shown[:MOST_PILOTS]) or {"none": no_pilots},
            "more": {"more": TEMPLATES.render("pieces/note.html", key="more", text=more)} if more else {},
        },
        values={"acts": acts},
    )


async def _may_act(visit: PageRequest) -> bool:
    """Return whether a visitor may pause and resume allocations, now and not in the past."""
    if not visit.visitor.signed_in or visit.at:
        return False
    try:
        who = await visit.gateway.query(visit.visitor, "whoami", request_bodies.EmptyRequest(), UserView)
    except PageRefused:
        return False
    return who.role in _MAY_ACT


def _words(one: AllocationView) -> dict[str, Any]:
    states = Counter(pilot.state for pilot in one.pilots if pilot.ended_s is None)
    found = [f"{states[state]} {state}" for state in PILOT_STATES if states[state]]
    each = f", {one.spec.nodes} nodes each" if one.spec.nodes > 1 else ""
    return {
        "pilots": ", ".join(found) or "none",
        "most": f"at most {count(one.spec.max_pilots, 'pilot')} of {duration(one.spec.walltime_s)}{each}",
        "reason": " ".join(_reasons(one)),
    }


def _reasons(one: AllocationView) -> Iterator[str]:
    if one.reason:
        yield one.reason
    elif one.failure:
        yield f"{count(one.failures, 'failure')} in a row, the last one: {one.failure}"
    for user, why in one.refused.items():
        yield f"Jobs of {user or 'nobody'} are refused{f': {why}' if why else ''}."


def _said(pilot: PilotView) -> str:
    if pilot.ended_s is None and pilot.waits:
        return f"waits: {pilot.waits}; {pilot.reason}" if pilot.reason else f"waits: {pilot.waits}"
    return pilot.reason
