import asyncio
import dataclasses
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from release_decider import DECIDER, ReleaseState, apply, decide, submitted
from structlog.testing import capture_logs

from penstock_bus import Append, Conflict, Decider, Decision, Lease, Unavailable
from penstock_bus.memory import MemoryBus, MemoryServer
from penstock_bus.replica import LeaderElection, Replica, ReplicaPace, run_decider
from penstock_bus.shell import Shell
from penstock_log import Commit, Event, JobHeld, JobReleased, JobSubmitted, encode, subjects
from penstock_testing import eventually

FAST = ReplicaPace(lease_ttl_s=0.3, renew_s=0.1)
STEADY = ReplicaPace(lease_ttl_s=3_600.0)  # the lead is not lost, however slow the machine
ALL_DECIDE = dataclasses.replace(DECIDER, leads=False)


class FlakyBus(MemoryBus):
    """Stores, but loses the first answers; or is told of a rival's commit just before its own."""

    lost_answers = 0
    rival: Append | None = None

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []

    async def append(self, item: Append) -> int:
        await self._append_rival()
        seq = await super().append(item)
        self._lose_answer()
        return seq

    async def append_all(self, items: Sequence[Append]) -> list[int]:
        await self._append_rival()
        seqs = await super().append_all(items)
        self.batches.append(len(items))
        self._lose_answer()
        return seqs

    async def _append_rival(self) -> None:
        rival, self.rival = self.rival, None
        if rival is not None:
            await super().append(rival)

    def _lose_answer(self) -> None:
        if self.lost_answers:
            self.lost_answers -= 1
            raise Unavailable("the answer was lost")


async def submit(bus: MemoryBus, job_id: str) -> None:
    commit = Commit(id=f"submit-{job_id}", actor="test", facts=(submitted(job_id),))
    await bus.append(Append(subject=subjects.job(job_id), commit=commit, expected=0))


async def facts(bus: MemoryBus, job_id: str) -> list[str]:
    return [type(fact).__name__ for d in await bus.read(subjects.job(job_id)) for fact in d.commit.facts]


@asynccontextmanager
async def running(
    bus: MemoryBus, decider: Decider[ReleaseState] = ALL_DECIDE, replica_id: str = "r1", pace: ReplicaPace = FAST
) -> AsyncIterator[Replica[ReleaseState]]:
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


async def test_a_decision_of_many_proposals_is_appended_as_one_even_if_answers_are_lost() -> None:
    async with FlakyBus() as bus:
        for i in range(20):
            await submit(bus, f"j{i}")
        bus.lost_answers = 2
        async with running(bus):
            await released(bus, "j19")
            await eventually(lambda: not bus.lost_answers)
        assert bus.batches[:3] == [20, 20, 20]
        for i in range(20):
            assert await facts(bus, f"j{i}") == ["JobSubmitted", "JobReleased"]


async def test_of_many_proposals_of_which_one_was_overtaken_each_becomes_true_once() -> None:
    async with FlakyBus() as bus:
        for i in range(20):
            await submit(bus, f"j{i}")
        rival = Commit(id="rival", actor="test", facts=(JobReleased(job_id="j7", at_s=0.0),))
        bus.rival = Append(subject=subjects.job("j7"), commit=rival, expected=8)
        async with running(bus) as replica:
            await released(bus, "j19")
            assert replica._conflicts.value == 1
        for i in range(20):
            assert await facts(bus, f"j{i}") == ["JobSubmitted", "JobReleased"]
        assert bus.batches == [12]  # behind the seven that were appended before the conflict was met


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

    def later(state: ReleaseState, now_s: float) -> Decision:
        asked.append(now_s)
        if len(asked) == 3:
            enough.set()
            return Decision()
        return Decision(wake_at_s=now_s + 0.02)

    async with running(memory_bus, dataclasses.replace(ALL_DECIDE, decide=later)):
        await enough.wait()
    assert asked[1] >= asked[0] + 0.02
    assert asked[2] >= asked[1] + 0.02


@pytest.mark.slow
async def test_changes_within_the_debounce_make_one_decision(memory_bus: MemoryBus) -> None:
    decisions: list[int] = []

    def counted(state: ReleaseState, now_s: float) -> Decision:
        decisions.append(len(state.seen))
        return decide(state, now_s)

    pace = ReplicaPace(debounce_s=1.0)
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


@pytest.mark.slow
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


@pytest.mark.slow
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


async def test_who_leads_works_again_and_again_and_the_other_takes_over_when_it_stops() -> None:
    server, done = MemoryServer(), list[str]()
    stopping = {name: asyncio.Event() for name in ("r1", "r2")}

    async def serve(bus: MemoryBus, name: str) -> None:
        election = LeaderElection(bus, "chores", name, lambda: None, ttl_s=3_600.0, renew_s=0.01)

        async def work() -> None:
            done.append(name)

        async with election.kept():
            await election.repeat(0.001, stopping[name], work)

    async with MemoryBus(server) as bus_1, MemoryBus(server) as bus_2, asyncio.TaskGroup() as group:
        group.create_task(serve(bus_1, "r1"))
        await eventually(lambda: done.count("r1") >= 3)
        group.create_task(serve(bus_2, "r2"))
        stopping["r1"].set()
        await eventually(lambda: done.count("r2") >= 3)
        assert done == sorted(done)
        stopping["r2"].set()


class Clock:
    """A clock of the test's own, for the server's leases and the replicas' alike."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@asynccontextmanager
async def led(
    bus: MemoryBus, clock: Clock, decider: Decider[ReleaseState] = DECIDER, name: str = "r1"
) -> AsyncIterator[tuple[Replica[ReleaseState], Shell]]:
    """A replica by the test's clock, whose lease of three seconds is asked for again every twentieth of one."""
    shell = Shell(bus, decider.name, name, monotonic=clock)
    replica = Replica(shell, decider, pace=ReplicaPace(lease_ttl_s=3.0, renew_s=0.05))
    task = asyncio.create_task(replica.run())
    try:
        yield replica, shell
    finally:
        shell.stopping.set()
        await task


def put(server: MemoryServer, job_id: str) -> None:
    """Store a submission without giving anybody a turn, as while a process is stopped."""
    commit = Commit(id=f"submit-{job_id}", actor="test", facts=(submitted(job_id),))
    server.put(subjects.EVT, subjects.job(job_id), encode(commit), commit.id, 0)


async def test_a_leader_that_was_paused_for_longer_than_its_lease_decides_on_what_came_meanwhile() -> None:
    clock = Clock()
    server = MemoryServer(now=clock)
    async with MemoryBus(server) as bus, led(bus, clock) as (replica, shell):
        await eventually(lambda: replica.leading)
        for i in range(5):
            clock.now_s += 5.0
            put(server, f"j{i}")
            assert not replica.leading
            await released(bus, f"j{i}")
        await eventually(lambda: shell.report().undecided_s == 0.0)
        assert shell.report().leading


async def test_a_lead_that_returns_under_the_same_lease_is_noticed_too() -> None:
    clock, server = Clock(), MemoryServer()  # the server's lease has not run out, only the leader's own time has
    async with MemoryBus(server) as bus, led(bus, clock) as (replica, _):
        await eventually(lambda: replica.leading)
        clock.now_s += 5.0
        put(server, "j1")
        await released(bus, "j1")


class LateBus(MemoryBus):
    """Answers one renewal as late as it is told, with a fact before the answer."""

    clock: Clock
    late = False

    async def renew(self, lease: Lease) -> bool:
        renewed = await super().renew(lease)
        if self.late:
            self.late = False
            self.clock.now_s += 2.5  # since the question; and since the one before, more than the lease lasts
            put(self.server, "j1")
            await eventually(lambda: self.seen() == 1)
        return renewed

    def seen(self) -> int:
        return 0


async def test_a_gap_within_the_question_for_the_lease_is_noticed_although_it_is_held_before_and_after() -> None:
    clock = Clock()
    async with LateBus(MemoryServer()) as bus, led(bus, clock) as (replica, _):
        bus.clock, bus.seen = clock, lambda: replica.live.last_seq  # type: ignore[method-assign]
        await eventually(lambda: replica.leading)
        clock.now_s += 1.0
        bus.late = True
        await released(bus, "j1")


async def test_a_timer_that_was_due_while_the_lead_was_lost_is_kept() -> None:
    clock, asked = Clock(), []

    def later(state: ReleaseState, now_s: float) -> Decision:
        asked.append(now_s)
        if len(asked) > 1:
            return Decision()
        clock.now_s += 5.0
        return Decision(wake_at_s=now_s + 0.01)

    server = MemoryServer(now=clock)
    async with MemoryBus(server) as bus, led(bus, clock, dataclasses.replace(DECIDER, decide=later)):
        await eventually(lambda: len(asked) >= 2)


async def test_a_leader_paused_amid_its_decision_appends_no_more_of_it() -> None:
    clock = Clock()
    server = MemoryServer(now=clock)

    class Pausing(MemoryBus):
        async def append(self, item: Append) -> int:
            seq = await super().append(item)
            if item.subject == subjects.job("j1") and item.expected:
                clock.now_s += 5.0
                assert await other.acquire(DECIDER.name, "r2", 3.0) is not None
                rival = Commit(id="rival", actor="test", facts=(JobHeld(job_id="j2", at_s=0.0),))
                await other.append(Append(subject=subjects.job("j2"), commit=rival, expected=None))
            return seq

    put(server, "j1")
    put(server, "j2")
    async with Pausing(server) as bus, MemoryBus(server) as other, led(bus, clock) as (replica, _):
        await eventually(lambda: replica.live.last_seq == 4)
        assert await facts(other, "j2") == ["JobSubmitted", "JobHeld"]
        assert not replica.leading
        clock.now_s += 5.0
        await released(other, "j2")


@pytest.mark.slow
async def test_health_says_how_long_facts_have_waited_for_a_decision_and_for_how_long_it_leads() -> None:
    clock = Clock()
    server = MemoryServer(now=clock)

    class Stuck(MemoryBus):
        stuck = True

        async def append(self, item: Append) -> int:
            if self.stuck and item.expected:
                raise Unavailable("it does not answer")
            return await super().append(item)

    async with Stuck(server) as bus, led(bus, clock) as (replica, shell):
        await eventually(lambda: replica.leading)
        clock.now_s += 2.0
        assert (shell.report().elected, shell.report().term_s) == (True, 2.0)
        put(server, "j1")
        await eventually(lambda: shell.report().decided_seq == 1)
        put(server, "j2")
        await eventually(lambda: shell.report().last_seq == 2)
        for _ in range(10):
            await eventually(lambda: (shell.report().lease_s or 0.0) < 0.9)
            clock.now_s += 1.0
        vitals = shell.report()
        assert (vitals.leading, vitals.decided_seq, vitals.undecided_s >= 10.0) == (True, 1, True)
        bus.stuck = False
        await released(bus, "j2")
        await eventually(lambda: shell.report().undecided_s == 0.0)


async def test_an_orderly_end_gives_the_lead_away_at_once_and_saves_a_snapshot() -> None:
    async with MemoryBus() as bus:
        async with running(bus, DECIDER, "r1", ReplicaPace(lease_ttl_s=60.0)) as first:
            await submit(bus, "j1")
            await released(bus, "j1")
            assert first.leading
        assert await bus.acquire(DECIDER.name, "somebody", 1.0) is not None
        snapshot = await bus.load_snapshot(DECIDER.name)
        assert snapshot is not None
        assert snapshot.last_seq == 2


async def test_snapshots_are_taken_on_the_way_and_only_when_something_changed(memory_bus: MemoryBus) -> None:
    async with running(memory_bus, pace=ReplicaPace(check_s=0.01, snapshot_s=0.02)) as replica:
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
    def broken(state: ReleaseState, now_s: float) -> Decision:
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
    def apply_too_large(state: ReleaseState, event: Event, seq: int) -> None:
        apply(state, event, 10**30 if isinstance(event, JobSubmitted) else seq)

    broken = dataclasses.replace(ALL_DECIDE, apply=apply_too_large)
    with capture_logs() as logs:
        async with running(memory_bus, broken, pace=ReplicaPace(check_s=0.01, snapshot_s=0.01)):
            await submit(memory_bus, "j1")
            await eventually(lambda: any(line["event"] == "snapshot_not_encoded" for line in logs))
            await submit(memory_bus, "j2")
            await released(memory_bus, "j2")
    (first, *_) = [line for line in logs if line["event"] == "snapshot_not_encoded"]
    assert (first["log_level"], first["name"]) == ("error", DECIDER.name)
    assert await memory_bus.load_snapshot(DECIDER.name) is None
