"""The time by which services decide: it never jumps, whatever becomes of the clocks of the machines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from penstock_bus import Append
from penstock_bus.clock import RATE, Clock, cluster_time, newest
from penstock_bus.memory import MemoryBus, MemoryServer
from penstock_bus.shell import Shell
from penstock_log import Commit, JobHeld, subjects

HOUR_S = 3600.0
T = 1_700_000_000.0


class Hands:
    """A machine's clocks: one that people set, and one that only ticks."""

    def __init__(self, wall_s: float = T) -> None:
        self.wall_s, self.ticked_s = wall_s, 7.0

    def pass_time(self, seconds: float) -> None:
        self.wall_s += seconds
        self.ticked_s += seconds

    def clock(self) -> Clock:
        return Clock(wall=lambda: self.wall_s, ticking=lambda: self.ticked_s)


async def store(bus: MemoryBus, at_s: float, job_id: str = "j1") -> None:
    commit = Commit(id=f"{job_id}-{at_s}", actor="test", facts=(JobHeld(job_id=job_id, at_s=at_s),))
    await bus.append(Append(subject=subjects.job(job_id), commit=commit, expected=None))


@asynccontextmanager
async def service(server: MemoryServer, hands: Hands, name: str = "matcher") -> AsyncIterator[Shell]:
    """A service that has just started on a machine."""
    async with MemoryBus(server) as bus:
        shell = Shell(bus, name, clock=hands.clock())
        await shell.take_time(["gateway", "matcher"])
        async with shell.serving():
            yield shell


@pytest.mark.parametrize("jump_s", [-2 * HOUR_S, -1.0, 1.0, HOUR_S])
def test_a_clock_that_is_set_changes_no_duration(jump_s: float) -> None:
    hands = Hands()
    clock = hands.clock()
    began_s = clock()
    hands.pass_time(2.0)
    hands.wall_s += jump_s
    hands.pass_time(2.0)
    assert clock() - began_s == pytest.approx(4.0)


def test_it_never_goes_back_and_follows_the_server_by_half_a_percent_at_most() -> None:
    hands = Hands()
    clock, last_s = hands.clock(), 0.0
    for server_s in (T + HOUR_S, T - HOUR_S, T):
        for _ in range(10):
            hands.pass_time(30.0)
            began_s = clock()
            clock.steer(server_s)
            assert abs(clock() - began_s) <= 30.0 * RATE + 1e-6
            assert clock() > last_s
            last_s = clock()


def test_a_drift_is_made_up() -> None:
    hands = Hands()
    clock = hands.clock()
    clock.start(T + 1.0)
    for _ in range(20):
        hands.pass_time(30.0)
        clock.steer(hands.wall_s)
    assert clock() == pytest.approx(hands.wall_s, abs=1e-3)


@pytest.mark.parametrize("off_s", [-HOUR_S, HOUR_S])
async def test_machines_whose_clocks_differ_decide_by_one_time(off_s: float) -> None:
    server = MemoryServer(now=lambda: T)
    async with service(server, Hands(T + off_s), "gateway") as one, service(server, Hands(T - off_s)) as other:
        assert one.now_s() == pytest.approx(T)
        assert other.now_s() == pytest.approx(T)


@pytest.mark.parametrize("jump_s", [-HOUR_S, HOUR_S])
async def test_a_service_that_starts_after_the_clock_was_set_takes_over_the_others_time(jump_s: float) -> None:
    hands = Hands()
    server = MemoryServer(now=lambda: hands.wall_s)
    async with service(server, hands, "gateway") as first:
        hands.pass_time(10.0)
        hands.wall_s += jump_s
        async with service(server, hands) as second:
            assert second.now_s() == pytest.approx(first.now_s()) == pytest.approx(T + 10.0)


async def test_after_all_have_stopped_it_begins_no_earlier_than_the_newest_facts() -> None:
    hands = Hands()
    server = MemoryServer(now=lambda: hands.wall_s)
    async with MemoryBus(server) as bus:
        await store(bus, T)
        hands.wall_s -= HOUR_S
        await store(bus, T + 5.0)  # by a service that went on, after the server's clock was set back
        assert await cluster_time(bus, ["gateway"]) == T + 5.0
        hands.wall_s += 2 * HOUR_S
        assert await cluster_time(bus, ["gateway"]) == T + HOUR_S


async def test_a_fact_from_far_ahead_is_no_time_to_begin_at() -> None:
    async with MemoryBus(MemoryServer(now=lambda: T)) as bus:
        assert await newest(bus) == 0.0
        await store(bus, 1e300)
        await store(bus, T - 5.0)
        assert await newest(bus) == T


async def test_where_nobody_can_be_asked_the_machine_says_what_time_it_is() -> None:
    hands = Hands()
    async with MemoryBus(MemoryServer(now=lambda: T - HOUR_S), timeout_s=0.01) as bus:
        bus.disconnect()
        shell = Shell(bus, "matcher", clock=hands.clock())
        await shell.take_time(["gateway"])
        assert shell.now_s() == T


async def test_a_service_that_serves_says_its_time_and_steers_by_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock_bus.clock.LOOK_S", 0.001)
    steered = asyncio.Event()

    class Watched(Clock):
        def steer(self, server_s: float) -> None:
            super().steer(server_s)
            assert server_s == pytest.approx(T, abs=1.0)
            steered.set()

    async with MemoryBus(MemoryServer(now=lambda: T)) as bus:
        shell = Shell(bus, "matcher", clock=Watched())
        async with shell.serving():
            await steered.wait()
            assert shell.report().now_s == pytest.approx(shell.now_s(), abs=5.0)
