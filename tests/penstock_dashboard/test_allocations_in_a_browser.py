"""The page of allocations in a real browser: by keyboard alone, in light and dark, and narrow."""

from __future__ import annotations

from dashboards import browser, dashboard
from gateway_cases import NOW_S, gateway

from penstock_bus.memory import MemoryBus
from penstock_log import AllocationAdded, AllocationSpec, PilotEnded, PilotPlanned, PilotsPaused, UserSet

FACTS = (
    UserSet(at_s=0.0, user="olga", role="operator"),
    AllocationAdded(name="lab", spec=AllocationSpec(provider="slurm", max_pilots=4), at_s=NOW_S),
    AllocationAdded(name="here", spec=AllocationSpec(provider="local"), at_s=NOW_S),
    PilotPlanned(name="lab", pilot_id="lab-1", at_s=NOW_S),
    PilotEnded(name="lab", pilot_id="lab-1", state="refused", reason="sbatch: Invalid account", at_s=NOW_S),
    PilotsPaused(name="lab", failures=1, reason="1 pilot failed", at_s=NOW_S),
)


async def test_the_page_can_be_used_by_keyboard_and_read_by_all(memory_bus: MemoryBus) -> None:
    async with gateway(memory_bus, *FACTS) as served, dashboard(served.bus) as site, browser(site.url) as session:
        for scheme in ("light", "dark"):
            async with session.tab(await site.key("olga"), scheme=scheme, width=500) as tab:
                await tab.open("/allocations")
                assert await tab.violations() == []
        async with session.tab(await site.key("olga")) as tab:
            await tab.open("/allocations")
            await tab.page.locator("button[name=pause_allocation][value=here]").focus()
            await tab.page.keyboard.press("Enter")
            await tab.page.wait_for_selector("[data-key=here] button[name=resume_allocation]")
