import asyncio
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

import msgspec
import pytest
from release_decider import DECIDER, ReleaseState, submitted

from penstock_bus import Append, Delivery, Snapshot, Timeout, TooLarge, follower
from penstock_bus.follower import FoldFollower, background
from penstock_bus.memory import MemoryBus
from penstock_bus.port import Gathering
from penstock_log import Commit, Event, subjects
from penstock_testing import eventually


async def submit(bus: MemoryBus, job_id: str) -> int:
    commit = Commit(id=f"submit-{job_id}", actor="test", facts=(submitted(job_id),))
    return await bus.append(Append(subject=subjects.job(job_id), commit=commit, expected=0))


async def test_it_catches_up_with_what_the_log_holds(memory_bus: MemoryBus) -> None:
    for i in range(2500):
        await submit(memory_bus, f"j{i}")
    async with FoldFollower(memory_bus, DECIDER) as live:
        await live.caught_up()
        assert (len(live.state.seen), live.last_seq, live.pending) == (2500, 2500, 0)


async def test_an_empty_log_is_caught_up_with_at_once(memory_bus: MemoryBus) -> None:
    async with FoldFollower(memory_bus, DECIDER) as live:
        await live.caught_up()
        assert live.last_seq == 0


async def test_it_says_when_a_sequence_is_reached(memory_bus: MemoryBus) -> None:
    async with FoldFollower(memory_bus, DECIDER) as live:
        waiting = asyncio.create_task(live.reached(2))
        await submit(memory_bus, "j1")
        await live.reached(1)
        assert not waiting.done()
        await submit(memory_bus, "j2")
        await waiting
        assert live.heads == {subjects.job("j1"): 1, subjects.job("j2"): 2}


async def test_waiting_for_a_sequence_that_does_not_come_ends_in_time(memory_bus: MemoryBus) -> None:
    async with FoldFollower(memory_bus, DECIDER) as live:
        with pytest.raises(Timeout, match=r"the fold is at 0, not yet at 1, after 0\.01 s"):
            await live.reached(1, timeout_s=0.01)


async def test_changed_wakes_and_each_delivery_is_shown(memory_bus: MemoryBus) -> None:
    seen: list[Delivery] = []
    async with FoldFollower(memory_bus, DECIDER, on_delivery=seen.append) as live:
        await submit(memory_bus, "j1")
        await live.changed.wait()
    assert [delivery.subject for delivery in seen] == [subjects.job("j1")]


async def test_a_later_start_goes_on_from_the_snapshot(memory_bus: MemoryBus) -> None:
    await submit(memory_bus, "j1")
    async with FoldFollower(memory_bus, DECIDER) as live:
        await live.caught_up()
        assert await live.save_snapshot()
        assert not await live.save_snapshot()
    await submit(memory_bus, "j2")
    seen: list[Delivery] = []
    async with FoldFollower(memory_bus, DECIDER, on_delivery=seen.append) as resumed:
        await resumed.caught_up()
        assert resumed.state.seen == {"j1": 1, "j2": 2}
    assert [delivery.seq for delivery in seen] == [2]


async def test_a_snapshot_ahead_of_the_log_is_ignored(memory_bus: MemoryBus) -> None:
    await submit(memory_bus, "j1")
    async with FoldFollower(memory_bus, DECIDER) as live:
        await live.caught_up()
        ahead = msgspec.structs.replace(live.fold.snapshot(), last_seq=99)
    await memory_bus.save_snapshot(DECIDER.name, ahead)
    async with FoldFollower(memory_bus, DECIDER) as live:
        await live.caught_up()
        assert live.last_seq == 1


class SmallBus(MemoryBus):
    """A bus on which no snapshot has room."""

    tries = 0

    async def save_snapshot(self, name: str, snapshot: Snapshot) -> None:
        self.tries += 1
        raise TooLarge(f"the snapshot of {name} at {snapshot.last_seq} has 2000 pieces and a batch takes 1000")


async def test_a_state_too_large_for_a_snapshot_is_told_and_not_tried_at_every_look() -> None:
    async with SmallBus() as bus, FoldFollower(bus, DECIDER) as live:
        await submit(bus, "j1")
        await live.reached(1)
        for _ in range(3):
            assert not await live.save_snapshot()
        assert (bus.tries, live.unsaved, live.is_too_large) == (1, 0, True)
        await submit(bus, "j2")
        await live.reached(2)
        assert live.unsaved == 1


async def test_an_error_in_the_fold_ends_the_context_with_it(memory_bus: MemoryBus) -> None:
    def broken(state: ReleaseState, event: Event, seq: int) -> None:
        raise ZeroDivisionError(seq)

    await submit(memory_bus, "j1")
    with pytest.RaisesGroup(ZeroDivisionError):
        async with FoldFollower(memory_bus, dataclasses.replace(DECIDER, apply=broken)) as live:
            await live.reached(1)


async def test_it_waits_for_a_server_that_is_away_at_the_start() -> None:
    async with MemoryBus(timeout_s=0.01) as bus:
        await submit(bus, "j1")
        bus.server.stop()
        asyncio.get_running_loop().call_later(0.1, bus.server.start)
        async with FoldFollower(bus, DECIDER) as live:
            await live.caught_up()
            assert live.state.seen == {"j1": 1}


async def test_whoever_waits_before_it_is_open_need_not_wait_for_what_the_snapshot_covers(
    memory_bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "STALL_S", 600.0)
    await submit(memory_bus, "j1")
    async with FoldFollower(memory_bus, DECIDER) as first:
        await first.caught_up()
        await first.save_snapshot()
    again = FoldFollower(memory_bus, DECIDER)
    waiting = asyncio.create_task(again.caught_up())
    for _ in range(10):  # long enough to ask the log how far it is
        await asyncio.sleep(0)
    async with again:
        await asyncio.wait_for(waiting, 60.0)


class Watched(MemoryBus):
    """A bus that notes at each delivery whether nothing may gather, since somebody waits for a certain one."""

    def __init__(self) -> None:
        super().__init__()
        self.gatherings: set[Gathering | None] = set()
        self.hurried: list[bool] = []

    async def follow(
        self, after_seq: int = 0, subjects: Sequence[str] = (), gathering: Gathering | None = None
    ) -> AsyncGenerator[Delivery, None]:
        self.gatherings.add(gathering)
        async for delivery in super().follow(after_seq, subjects):
            self.hurried.append(gathering is not None and gathering.hurry.is_set())
            yield delivery


async def test_nothing_gathers_while_somebody_waits_for_a_certain_sequence() -> None:
    async def submitted_as(seq: int) -> None:
        await submit(bus, f"j{seq}")
        await eventually(lambda: live.last_seq == seq)

    decider = dataclasses.replace(DECIDER, gather_s=lambda state: 60.0 * len(state.seen))
    async with Watched() as bus, FoldFollower(bus, decider) as live:
        await submitted_as(1)
        waiting = asyncio.create_task(live.reached(3))
        await asyncio.sleep(0)
        await submitted_as(2)
        await submitted_as(3)
        await waiting
        await submitted_as(4)
        assert bus.hurried == [False, True, True, False]
        await live.reached(2)  # it is there, and nobody waits
        await submitted_as(5)
        assert not bus.hurried[-1]
        (gathering,) = bus.gatherings
        assert gathering is not None
        assert gathering.most_s() == 300.0


async def test_nothing_gathers_for_a_decider_that_says_nothing_of_it() -> None:
    async with Watched() as bus, FoldFollower(bus, DECIDER) as live:
        await submit(bus, "j1")
        await live.reached(1)
        assert bus.gatherings == {None}


class Stalled(MemoryBus):
    """A bus whose log does not come, and that notes how much of it is read at once."""

    def __init__(self) -> None:
        super().__init__()
        self.widths: list[int] = []

    async def follow(self, *_: int | Sequence[str], **__: int | Sequence[str]) -> AsyncIterator[Delivery]:
        await asyncio.Event().wait()
        yield (await self.read("", 0))[0]

    async def read(self, subject: str, after_seq: int = 0, until_seq: int | None = None) -> list[Delivery]:
        self.widths.append((until_seq or 1 << 30) - after_seq)
        return await super().read(subject, after_seq, until_seq)


async def test_looking_for_what_does_not_come_never_reads_the_whole_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "STALL_S", 0.01)
    bus = Stalled()
    for i in range(2 * follower.YIELD_EVERY):
        await submit(bus, f"j{i}")
    async with FoldFollower(bus, DECIDER) as live, background(live.caught_up()):
        await eventually(lambda: len(bus.widths) >= 2)
    assert max(bus.widths) <= follower.YIELD_EVERY
