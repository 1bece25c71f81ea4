import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from penstock_bus import Append, Conflict, Decider, Decision, Unavailable
from penstock_bus.context import Shell
from penstock_bus.memory import MemoryBus, MemoryServer
from penstock_bus.replica import Pace, Replica, run_decider
from penstock_events import Commit, Event, JobHeld, JobReleased, JobSubmitted, subjects
from penstock_testing import eventually
from penstock_testing.releasing import DECIDER, Released, apply, decide, submitted

FAST = Pace(lease_ttl_s=0.3, renew_s=0.1)
STEADY = Pace(lease_ttl_s=3_600.0)  # the lead is not lost, however slow the machine
ALL_DECIDE = dataclasses.replace(DECIDER, leads=False)


class FlakyBus(MemoryBus):
    """Stores, but loses the first answers; or is told of a rival's commit just before its own."""

    lost_answers = 0
    rival: Append | None = None

    async def append(self, item: Append) -> int:
        rival, self.rival = self.rival, None
        if rival is not None:
            await super().append(rival)
        seq = await super().append(item)
        if self.lost_answers:
            self.lost_answers -= 1
            raise Unavailable("the answer was lost")
        return seq


async def submit(bus: MemoryBus, job_id: str) -> None:
    commit = Commit(id=f"submit-{job_id}", actor="test", facts=(submitted(job_id),))
    await bus.append(Append(subject=subjects.job(job_id), commit=commit, expected=0))


async def facts(bus: MemoryBus, job_id: str) -> list[str]:
    return [type(fact).__name__ for d in await bus.read(subjects.job(job_id)) for fact in d.commit.facts]


@asynccontextmanager
async def running(
    bus: MemoryBus, decider: Decider[Released] = ALL_DECIDE, replica_id: str = "r1", pace: Pace = FAST
) -> AsyncIterator[Replica[Released]]:
    shell = Shell(bus, decider.name, replica_id)
    replica = Replica(shell, decider, pace=pace)
    task = asyncio.create_task(replica.run())
    try:
        yield replica
    finally:
        shell.stopping.set()
        await task


async def released(bus: MemoryBus, job_id: str) -> None:
    await eventually(lambda: _has(bus, job_id), why=f"{job_id} is released")


async def _has(bus: MemoryBus, job_id: str) -> bool:
    return "JobReleased" in await facts(bus, job_id)


async def test_it_decides_what_waits_in_the_log_and_what_comes_after(memory_bus: MemoryBus) -> None:
    await submit(memory_bus, "j1")
    async with running(memory_bus):
        await released(memory_bus, "j1")
        await submit(memory_bus, "j2")
        await released(memory_bus, "j2")
    stored = await memory_bus.last(subjects.job("j2"))
    assert stored is not None
    assert stored.commit.actor == "gateway/r1"


async def test_one_submission_is_decided_once_however_often_it_is_woken(memory_bus: MemoryBus) -> None:
    async with running(memory_bus) as replica:
        for i in range(50):
            await submit(memory_bus, f"j{i}")
            replica.wake()
        await released(memory_bus, "j49")
    for i in range(50):
        assert await facts(memory_bus, f"j{i}") == ["JobSubmitted", "JobReleased"]


async def test_a_lost_answer_is_retried_under_the_same_id_and_stored_once() -> None:
    async with FlakyBus() as bus:
        await submit(bus, "j1")
        bus.lost_answers = 2
        async with running(bus):
            await eventually(lambda: bus.lost_answers == 0)
            await submit(bus, "j2")
            await released(bus, "j2")
        assert await facts(bus, "j1") == ["JobSubmitted", "JobReleased"]


async def test_a_decision_that_was_overtaken_is_made_anew() -> None:
    async with FlakyBus() as bus:
        await submit(bus, "j1")
        rival = Commit(id="rival", actor="test", facts=(JobHeld(job_id="j1", at_s=0.0),))
        bus.rival = Append(subject=subjects.job("j1"), commit=rival, expected=1)
        async with running(bus) as replica:
            await released(bus, "j1")
            assert await facts(bus, "j1") == ["JobSubmitted", "JobHeld", "JobReleased"]
            assert replica._conflicts.value == 1


async def test_the_rest_of_an_overtaken_decision_is_decided_anew_too() -> None:
    async with FlakyBus() as bus:
        for job_id in ("j1", "j2", "j3"):
            await submit(bus, job_id)
        rival = Commit(id="rival", actor="test", facts=(JobReleased(job_id="j1", at_s=0.0),))
        bus.rival = Append(subject=subjects.job("j1"), commit=rival, expected=1)
        async with running(bus):
            await released(bus, "j3")
        for job_id in ("j1", "j2", "j3"):
            assert await facts(bus, job_id) == ["JobSubmitted", "JobReleased"]


async def test_it_decides_again_at_the_time_it_asked_for(memory_bus: MemoryBus) -> None:
    asked: list[float] = []
    enough = asyncio.Event()

    def later(state: Released, now_s: float) -> Decision:
        asked.append(now_s)
        if len(asked) == 3:
            enough.set()
            return Decision()
        return Decision(wake_at_s=now_s + 0.02)

    async with running(memory_bus, dataclasses.replace(ALL_DECIDE, decide=later)):
        await enough.wait()
    assert asked[1] >= asked[0] + 0.02
    assert asked[2] >= asked[1] + 0.02


async def test_changes_within_the_debounce_make_one_decision(memory_bus: MemoryBus) -> None:
    decisions: list[int] = []

    def counted(state: Released, now_s: float) -> Decision:
        decisions.append(len(state.seen))
        return decide(state, now_s)

    pace = Pace(debounce_s=1.0)
    async with running(memory_bus, dataclasses.replace(ALL_DECIDE, decide=counted), pace=pace):
        for i in range(10):
            await submit(memory_bus, f"j{i}")
        await released(memory_bus, "j9")
    assert [n for n in decisions if n] in ([10], [10, 10])


async def test_one_replica_leads_and_the_other_keeps_its_fold_hot() -> None:
    server = MemoryServer()
    async with (
        MemoryBus(server) as bus_1,
        MemoryBus(server) as bus_2,
        running(bus_1, DECIDER, "r1", STEADY) as first,
    ):
        await eventually(lambda: first.leading)
        async with running(bus_2, DECIDER, "r2", STEADY) as second:
            await submit(bus_1, "j1")
            await released(bus_1, "j1")
            await eventually(lambda: second.live.last_seq == 2)
            assert (first.leading, second.leading) == (True, False)


async def test_a_leader_cut_off_stops_by_its_own_clock_and_the_standby_takes_over() -> None:
    server = MemoryServer()
    async with (
        MemoryBus(server, timeout_s=0.05) as cut_off,
        MemoryBus(server) as bus,
        running(cut_off, DECIDER, "r1") as first,
    ):
        await eventually(lambda: first.leading)
        async with running(bus, DECIDER, "r2") as second:
            cut_off.disconnect()
            await eventually(lambda: second.leading)
            assert not first.leading
            await submit(bus, "j1")
            await released(bus, "j1")
            cut_off.reconnect()
            await eventually(lambda: first.live.last_seq == 2)
            stored = await bus.last(subjects.job("j1"))
            assert stored is not None
            assert stored.commit.actor == "gateway/r2"


async def test_a_leader_that_lost_the_bus_says_that_it_no_longer_leads() -> None:
    async with MemoryBus(timeout_s=0.05) as bus:
        shell = Shell(bus, "gateway", "r1")
        task = asyncio.create_task(run_decider(shell, DECIDER, pace=FAST))
        await eventually(lambda: shell.vitals.leading)
        bus.disconnect()
        await eventually(lambda: not shell.vitals.leading)
        bus.reconnect()
        await eventually(lambda: shell.vitals.leading)
        shell.stopping.set()
        await task


async def test_an_orderly_end_gives_the_lead_away_at_once_and_saves_a_snapshot() -> None:
    async with MemoryBus() as bus:
        async with running(bus, DECIDER, "r1", Pace(lease_ttl_s=60.0)) as first:
            await submit(bus, "j1")
            await released(bus, "j1")
            assert first.leading
        assert await bus.acquire(DECIDER.name, "somebody", 1.0) is not None
        snapshot = await bus.load_snapshot(DECIDER.name)
        assert snapshot is not None
        assert snapshot.last_seq == 2


async def test_snapshots_are_taken_on_the_way_and_only_when_something_changed(memory_bus: MemoryBus) -> None:
    async with running(memory_bus, pace=Pace(check_s=0.01, snapshot_s=0.02)) as replica:
        await submit(memory_bus, "j1")
        await eventually(lambda: replica.live.last_seq == 2 and not replica.live.unsaved)
        saved = await memory_bus.load_snapshot(DECIDER.name)
        assert saved is not None
        assert saved.last_seq == 2


async def test_without_any_snapshot_the_state_is_the_same(memory_bus: MemoryBus) -> None:
    async with running(memory_bus) as replica:
        await submit(memory_bus, "j1")
        await released(memory_bus, "j1")
        await replica.live.caught_up()
    before = replica.live.fold.encoded()
    await memory_bus.delete_snapshots()
    async with running(memory_bus) as again:
        await eventually(lambda: again.live.last_seq == 2)
        assert again.live.fold.encoded() == before


async def test_an_error_in_the_decider_ends_the_replica_with_it(memory_bus: MemoryBus) -> None:
    def broken(state: Released, now_s: float) -> Decision:
        raise ZeroDivisionError(now_s)

    shell = Shell(memory_bus, "gateway")
    with pytest.raises(ZeroDivisionError):
        await run_decider(shell, dataclasses.replace(ALL_DECIDE, decide=broken))


async def test_health_knows_that_it_is_ready_leads_and_how_far_it_is(memory_bus: MemoryBus) -> None:
    await submit(memory_bus, "j1")
    shell = Shell(memory_bus, "gateway", "r1")
    task = asyncio.create_task(run_decider(shell, DECIDER, pace=STEADY))
    await released(memory_bus, "j1")
    await eventually(lambda: shell.vitals.last_seq == 2)
    assert (shell.vitals.ready, shell.vitals.leading) == (True, True)
    shell.stopping.set()
    await task


def test_a_conflict_names_subject_and_sequence() -> None:
    assert str(Conflict("penstock.evt.job.j1", 3)).startswith("penstock.evt.job.j1 is no longer at sequence 3")


async def test_a_state_that_cannot_be_encoded_costs_the_snapshot_and_nothing_else(memory_bus: MemoryBus) -> None:
    def apply_too_large(state: Released, event: Event, seq: int) -> None:
        apply(state, event, 10**30 if isinstance(event, JobSubmitted) else seq)

    broken = dataclasses.replace(ALL_DECIDE, apply=apply_too_large)
    with capture_logs() as logs:
        async with running(memory_bus, broken, pace=Pace(check_s=0.01, snapshot_s=0.01)):
            await submit(memory_bus, "j1")
            await eventually(lambda: any(line["event"] == "snapshot_not_encoded" for line in logs))
            await submit(memory_bus, "j2")
            await released(memory_bus, "j2")
    (first, *_) = [line for line in logs if line["event"] == "snapshot_not_encoded"]
    assert (first["log_level"], first["name"]) == ("error", DECIDER.name)
    assert await memory_bus.load_snapshot(DECIDER.name) is None
