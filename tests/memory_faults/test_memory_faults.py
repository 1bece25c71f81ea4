"""
Borrowed memory under faults: some histories of real agents and clients, and what the verifier finds when broken.

A client that ignores the generation of shared memory is found only where a slab goes and is lent again while it reads:
that is tried by hand, with ``--break ignore_generation``.
"""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from memory_faults.history import ClientProcess, run_history
from memory_faults.machines import READY_SLABS, why_no_network, world
from memory_faults.plan import LEASE_S, HistoryPlan, MemoryFault, history_plan
from penstock_testing import eventually

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.timeout(300)]
SHORT = (3, 6, 7, 8)
"""Of seed 1: kills of agents and of clients, cuts, evictions and forks, and none that outlasts a lease."""

SLOW_S = 5.0
"""What a busy machine may add."""


async def test_no_byte_is_lost_stale_or_torn_whatever_happens_to_donors_and_clients(tmp_path: Path) -> None:
    why = why_no_network()
    async with world(tmp_path / "world", network=not why) as made:
        verdicts = [await run_history(history_plan(1, number), made) for number in SHORT]
        assert [str(verdict) for verdict in verdicts if verdict.problems] == []
        assert sum(verdict.total("slab_bytes") for verdict in verdicts) > 50 << 20
        assert why or any(verdict.total("tcp_seen") for verdict in verdicts)
        assert await made.close() == []
    if why:
        pytest.skip(f"NOT TESTED: cuts, evictions and slabs over TCP; no network namespaces can be made here: {why}")


@pytest.mark.parametrize(
    ("break_by", "finds"),
    [
        pytest.param("keep_bitmap", "words wrong", id="it_keeps_the_bitmap_of_a_slab_that_is_lost"),
        pytest.param("acknowledge_early", "words wrong", id="it_acknowledges_before_it_sends"),
    ],
)
async def test_the_verifier_finds_what_is_broken_on_purpose(break_by: str, finds: str, tmp_path: Path) -> None:
    if why := why_no_network():
        pytest.skip(f"NOT TESTED: what is broken is found on four machines: {why}")
    async with world(tmp_path / "world", 1) as made:
        verdict = await run_history(evicting(), made, break_by=break_by)
        assert any(finds in problem for problem in verdict.problems), str(verdict)


def evicting() -> HistoryPlan:
    """Return a history whose donors take all slabs back, of clients that do not keep what they read."""
    plan = history_plan(1, 3)
    faults = [MemoryFault(0.5, "evict", node, 1.5, 1) for node in ("n1", "n2", "n3", "n4")]
    clients = [replace(client, local_bytes=0, disk_bytes=0, shares_with="") for client in plan.clients]
    return replace(plan, load_s=6.0, faults=tuple(faults), clients=tuple(clients))


async def test_slabs_of_a_client_that_is_killed_come_back_at_once_and_by_lease_where_its_agent_is_killed_too(
    tmp_path: Path,
) -> None:
    plan = replace(history_plan(1, 3).clients[0], disk_bytes=0, shares_with="", kept=False)
    async with world(tmp_path / "world", 2, network=not why_no_network()) as made:
        home = made.machines[plan.home]
        for number, also_agent in enumerate((False, True)):
            client = ClientProcess(plan, home, made, tmp_path / f"client{number}", "")
            await client.start()
            await eventually(
                lambda: sum(machine.slabs() for machine in made.machines.values()) > 4 * READY_SLABS,
                within_s=60,
                why="the client has borrowed slabs",
            )
            if also_agent:
                await home.end(signal.SIGKILL)
            client.discard()
            back_s = await made.slabs_back_s()
            assert back_s is not None
            assert back_s <= (LEASE_S + SLOW_S if also_agent else SLOW_S)
