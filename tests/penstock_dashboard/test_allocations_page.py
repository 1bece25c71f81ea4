"""The page of allocations, over real HTTP: pilots, failures, and who may pause and resume."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from dashboards import RunningDashboard, dashboard
from gateway_cases import NOW_S, Gateway, gateway

from penstock_bus.memory import MemoryBus
from penstock_dashboard.pages import allocations_page
from penstock_log import (
    AllocationAdded,
    AllocationSpec,
    PilotEnded,
    PilotPlanned,
    PilotsPaused,
    PilotSubmitted,
    PilotWaits,
    UserSet,
)

ODD = "sbatch: <script>alert(1)</script>"
FACTS = (
    UserSet(at_s=0.0, user="alice", role="user"),
    UserSet(at_s=0.0, user="olga", role="operator"),
    AllocationAdded(name="lab", spec=AllocationSpec(provider="slurm", max_pilots=4), at_s=NOW_S),
    AllocationAdded(name="here", spec=AllocationSpec(provider="local", pool="own"), at_s=NOW_S),
    PilotPlanned(name="lab", pilot_id="lab-1", at_s=NOW_S),
    PilotEnded(name="lab", pilot_id="lab-1", state="refused", reason=ODD, at_s=NOW_S),
    PilotsPaused(name="lab", failures=1, reason=f"1 pilot failed: {ODD}", at_s=NOW_S),
    PilotPlanned(name="here", pilot_id="here-1", reason="1 job would start: j", at_s=NOW_S),
    PilotSubmitted(name="here", pilot_id="here-1", provider_id="4711", at_s=NOW_S),
    PilotWaits(name="here", pilot_id="here-1", reason="Resources", at_s=NOW_S),
)


@pytest_asyncio.fixture
async def served(memory_bus: MemoryBus) -> AsyncIterator[Gateway]:
    async with gateway(memory_bus, *FACTS) as running:
        yield running


@pytest_asyncio.fixture
async def site(served: Gateway) -> AsyncIterator[RunningDashboard]:
    async with dashboard(served.bus) as running:
        yield running


async def test_allocations_and_pilots_are_shown_with_what_failed_and_why_they_wait(site: RunningDashboard) -> None:
    page = await (await site.visitor("alice")).get("/allocations")
    assert page.rows["lab"].startswith("lab slurm paused default none at most 4 pilots of 1 h 0 min not known yet")
    assert page.rows["lab"].endswith(f"1 pilot failed: {ODD}")
    assert "<script>alert" not in page.text
    assert "1 waiting" in page.rows["here"]
    assert page.rows["here-1"].startswith("here-1 waiting 4711")
    assert page.rows["here-1"].endswith("waits: Resources; 1 job would start: j")
    assert list(page.rows).index("here-1") < list(page.rows).index("lab-1")


async def test_who_may_not_pause_an_allocation_has_no_button_and_is_refused(site: RunningDashboard) -> None:
    alice = await site.visitor("alice")
    assert "<button name=" not in (await alice.get("/allocations")).text
    form = {"token": alice.form_token, "back": "/allocations", "pause_allocation": "here"}
    assert (await alice.post("/act", form)).status == 403


async def test_an_operator_resumes_and_pauses_by_buttons(site: RunningDashboard) -> None:
    olga = await site.visitor("olga")
    page = await olga.get("/allocations")
    assert 'name="resume_allocation" value="lab"' in page.text
    assert 'name="pause_allocation" value="here"' in page.text
    for command, name in (("resume_allocation", "lab"), ("pause_allocation", "here")):
        form = {"token": olga.form_token, "back": "/allocations", command: name}
        assert (await olga.post("/act", form)).status == 303
    page = await olga.get("/allocations")
    assert "allocation here is paused; its 1 pilot goes on" in page.text
    assert page.rows["lab"].startswith("lab slurm active")
    assert page.rows["here"].startswith("here local paused")


async def test_of_the_past_there_is_what_was_and_no_button(site: RunningDashboard) -> None:
    page = await (await site.visitor("olga")).get("/allocations?at=4")
    assert page.rows["lab"].startswith("lab slurm active")
    assert "<button name=" not in page.text


async def test_of_a_thousand_pilots_the_first_are_shown(
    site: RunningDashboard, served: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocations_page, "MOST_PILOTS", 2)
    await served.told(PilotPlanned(name="here", pilot_id="here-2", at_s=NOW_S))
    page = await (await site.visitor("alice")).get("/allocations")
    assert page.rows["more"] == "1 more; penstock alloc show has all."
    assert "lab-1" not in page.rows


async def test_an_empty_cluster_says_how_one_is_added(memory_bus: MemoryBus) -> None:
    async with gateway(memory_bus) as empty, dashboard(empty.bus) as alone:
        page = await (await alone.visitor("olga")).get("/allocations")
    assert "There is no allocation" in page.text
