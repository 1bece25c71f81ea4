"""The allocator on a bus: it decides which pilots there are to be, and looks after them at their providers."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial

from penstock_allocator.keeper import PilotKeeper
from penstock_allocator.machine import AllocatorSettings, decider
from penstock_allocator.providers import HostProvider, KubernetesProvider, PilotProvider, SlurmProvider
from penstock_bus import Delivery, Endpoint
from penstock_bus.follower import background
from penstock_bus.health import VERSION
from penstock_bus.replica import Replica
from penstock_bus.settings import load
from penstock_bus.shell import Shell
from penstock_log import subjects
from penstock_scheduler.pool.pool_settings import MatcherSettings


def providers(shell: Shell, settings: AllocatorSettings) -> dict[str, PilotProvider]:
    """Return the providers by name."""
    return {
        "slurm": SlurmProvider(),
        "kubernetes": KubernetesProvider(shell.now_s, settings.kubernetes_owner, settings.kubernetes_namespace),
        "local": HostProvider(over_ssh=False),
        "ssh": HostProvider(over_ssh=True),
    }


async def run(shell: Shell, settings: AllocatorSettings) -> None:
    """Keep pilots until the shell is stopping; they go on when this process ends, and the next one takes them on."""

    def on_delivery(delivery: Delivery) -> None:
        if delivery.subject.startswith(_ABOUT):
            keeper.moved.set()

    matcher = load(MatcherSettings, "matcher")
    replica = Replica(shell, decider(settings, matcher), on_delivery=on_delivery)
    found = providers(shell, settings)
    keeper = PilotKeeper(shell, replica, settings, found, matcher)
    trial = Endpoint(name="try_pilot", subject=subjects.query("try_pilot", "allocator"), handler=keeper.answer_trial)
    async with AsyncExitStack() as stack:
        if isinstance(pods := found.get("kubernetes"), KubernetesProvider):
            pods.on_change = partial(keeper.look_again, "kubernetes")
            stack.push_async_callback(pods.close)
        await stack.enter_async_context(shell.bus.serve("penstock-allocator-trials", VERSION, [trial]))
        await stack.enter_async_context(background(keeper.keep()))
        await replica.run()


_ABOUT = (subjects.prefix("alloc"), subjects.prefix("pilot"))
