"""Pilots at their providers: submitted once, adopted after a crash, cancelled, and left alone while nobody answers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from matcher_facts import job, node

from penstock_allocator import keeper, runner
from penstock_allocator.machine import AllocatorSettings
from penstock_allocator.pilot_script import PilotFolder
from penstock_allocator.providers import ProviderJob, ProviderSilent, SubmissionRefused
from penstock_bus import Append, Endpoint, Reply
from penstock_bus.identity.logins import Login, node_token_text
from penstock_bus.memory import MemoryBus
from penstock_bus.port import Request
from penstock_bus.shell import Shell
from penstock_cluster.allocations import Allocation
from penstock_log import (
    AllocationAdded,
    AllocationPaused,
    AllocationRemoved,
    AllocationSpec,
    AnyEvent,
    Commit,
    JobCancelled,
    PilotEnded,
    PilotPlanned,
    PilotsPaused,
    PilotStarted,
    PilotSubmitted,
    PilotWaits,
    PilotWithdrawn,
    subjects,
)
from penstock_log.allocation_spec import LABEL_ALLOCATION, LABEL_PILOT
from penstock_testing import eventually, subject_of

LOGIN = Login(url="nats://127.0.0.1:9", user="join", user_jwt="a.eyJuYW1lIjogIjBmIn0.c")


class FakeProvider:
    """A provider that has what a test says."""

    def __init__(self) -> None:
        self.jobs: dict[str, ProviderJob] = {}
        self.submissions: list[str] = []
        self.cancelled: list[str] = []
        self.refuses = ""
        self.first_state: str = "waiting"
        self.silent = self.full = self.broken = self.keeps = False
        self.asked = 0
        self.cleared: list[str] = []
        self.tokens: list[str] = []

    async def submit(self, _spec: AllocationSpec, name: str, place: PilotFolder, _others: Collection[str]) -> str:
        self._answer()
        if self.full:
            raise ProviderSilent("each of its hosts has a pilot")
        self.submissions.append(name)
        if self.refuses:
            raise SubmissionRefused(self.refuses)
        self.tokens.append(oct(place.token.stat().st_mode)[-3:])
        self.jobs[name] = ProviderJob(str(len(self.submissions)), self.first_state)  # type: ignore[arg-type]
        return self.jobs[name].id

    async def list_jobs(self, _spec: AllocationSpec, pilots: Mapping[str, PilotFolder]) -> Mapping[str, ProviderJob]:
        self._answer()
        return {name: found for name, found in self.jobs.items() if name in pilots}

    async def cancel(self, one: ProviderJob, _place: PilotFolder, *, only_waiting: bool = False) -> None:
        self._answer()
        if only_waiting and one.state != "waiting":
            return
        self.cancelled.append(one.id)
        self.jobs = {name: found for name, found in self.jobs.items() if found.id != one.id}

    async def clear(self, _spec: AllocationSpec, name: str, _place: PilotFolder) -> None:
        self._answer()
        if self.keeps:
            raise ProviderSilent("it clears nothing now")
        self.cleared.append(name)

    async def try_out(self, _spec: AllocationSpec, _place: PilotFolder) -> str:
        return "it would start at once"

    def _answer(self) -> None:
        self.asked += 1
        if self.broken:
            raise ZeroDivisionError("of one provider")
        if self.silent:
            raise ProviderSilent("no controller")

    def move(self, state: str) -> None:
        self.jobs = {name: found._replace(state=state) for name, found in self.jobs.items()}  # type: ignore[arg-type]


class Issuer:
    """What gives tokens, and takes them back."""

    def __init__(self) -> None:
        self.issued, self.revoked = 0, 0
        self.refuses = ""

    async def token(self, _request: Request) -> Reply:
        if self.refuses:
            return Reply(code=503, error=self.refuses)
        self.issued += 1
        return Reply(body=msgspec.json.encode(LOGIN))

    async def revoke(self, _request: Request) -> Reply:
        self.revoked += 1
        return Reply(body=b"{}")


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> FakeProvider:
    found = FakeProvider()
    monkeypatch.setattr(runner, "providers", lambda _shell, _settings: {"slurm": found})
    return found


@asynccontextmanager
async def issuing(bus: MemoryBus) -> AsyncIterator[Issuer]:
    issuer = Issuer()
    handlers = {"token": issuer.token, "revoke": issuer.revoke}
    endpoints = [
        Endpoint(name=name, subject=subjects.command(name, "issuer"), handler=handler)
        for name, handler in handlers.items()
    ]
    async with bus.serve("issuer", "1.0.0", endpoints):
        yield issuer


@asynccontextmanager
async def allocator(bus: MemoryBus, folder: Path, **settings: float) -> AsyncIterator[Shell]:
    async with issuing(bus), alone(bus, folder, **settings) as shell:
        yield shell


@asynccontextmanager
async def alone(bus: MemoryBus, folder: Path, **settings: float) -> AsyncIterator[Shell]:
    shell = Shell(bus, "allocator", "r1")
    chosen = {"look_s": 0.001, "poll_s": 0.01, "backoff_s": 0.0, **settings}
    task = asyncio.create_task(runner.run(shell, AllocatorSettings(data_dir=str(folder), **chosen)))  # type: ignore[arg-type]
    try:
        yield shell
    finally:
        shell.stopping.set()
        await task


async def tell(bus: MemoryBus, *facts: AnyEvent) -> None:
    for fact in facts:
        commit = Commit(id=uuid.uuid4().hex, actor="test", facts=(fact,))
        await bus.append(Append(subject=subject_of(fact), commit=commit, expected=None))


async def told(bus: MemoryBus, kind: type[AnyEvent]) -> list[AnyEvent]:
    deliveries = await bus.read(subjects.pilots("lab"))
    return [fact for one in deliveries for fact in one.commit.facts if isinstance(fact, kind)]


def count_of(bus: MemoryBus, kind: type[AnyEvent], count: int) -> Callable[[], Awaitable[bool]]:
    async def reached() -> bool:
        return len(await told(bus, kind)) >= count

    return reached


async def asked_twice_more(provider: FakeProvider) -> None:
    before = provider.asked
    await eventually(lambda: provider.asked >= before + 2)


async def asked_more(provider: FakeProvider) -> None:
    before = provider.asked
    await eventually(lambda: provider.asked > before)


ADDED = AllocationAdded(name="lab", spec=AllocationSpec(provider="slurm", max_pilots=2), at_s=1.0)
NAMED = Allocation(name="lab", spec=ADDED.spec, added_s=ADDED.at_s)


async def test_a_planned_pilot_is_submitted_once_and_followed_to_its_end(
    memory_bus: MemoryBus, provider: FakeProvider, tmp_path: Path
) -> None:
    async with allocator(memory_bus, tmp_path):
        await tell(memory_bus, ADDED, job("j"))
        await eventually(count_of(memory_bus, PilotSubmitted, 1))
        assert provider.tokens == ["600"]
        provider.move("running")
        await eventually(count_of(memory_bus, PilotStarted, 1))
        assert provider.submissions == list(provider.jobs)
        await tell(memory_bus, AllocationRemoved(name="lab", at_s=2.0))
        await eventually(count_of(memory_bus, PilotEnded, 1))
    assert [fact.state for fact in await told(memory_bus, PilotEnded)] == ["cancelled"]  # type: ignore[union-attr]
    assert provider.cancelled == ["1"]
    assert not (tmp_path / "pilots" / "lab-1" / "token").exists()


async def test_a_pilot_that_starts_at_once_is_seen_to_start_long_before_the_next_regular_look(
    memory_bus: MemoryBus, provider: FakeProvider, tmp_path: Path
) -> None:
    async with allocator(memory_bus, tmp_path, poll_s=3_600.0):
        await tell(memory_bus, ADDED, job("j"))
        await eventually(count_of(memory_bus, PilotSubmitted, 1))
        provider.move("running")
        await eventually(count_of(memory_bus, PilotStarted, 1))


async def test_a_pilot_that_an_earlier_allocator_has_submitted_is_adopted(
    memory_bus: MemoryBus, provider: FakeProvider, tmp_path: Path
) -> None:
    await tell(memory_bus, ADDED, job("j"), PilotPlanned(name="lab", pilot_id="lab-1", at_s=2.0))
    name = Allocation(name="lab", spec=ADDED.spec, added_s=ADDED.at_s).pilot_name("lab-1")
    provider.jobs[name] = ProviderJob("17", "waiting")
    async with allocator(memory_bus, tmp_path):
        await eventually(count_of(memory_bus, PilotSubmitted, 1))
    assert [fact.provider_id for fact in await told(memory_bus, PilotSubmitted)] == ["17"]  # type: ignore[union-attr]
    assert not provider.submissions


async def test_nothing_is_concluded_while_the_provider_does_not_answer(
    memory_bus: MemoryBus, provider: FakeProvider, tmp_path: Path
) -> None:
    async with allocator(memory_bus, tmp_path) as shell:
        await tell(memory_bus, ADDED, job("j"))
        await eventually(count_of(memory_bus, PilotSubmitted, 1))
        assert not shell.vitals.note
        provider.silent, provider.jobs = True, {}
        await tell(memory_bus, job("k"), job("l"))
        await asked_twice_more(provider)
        assert not await told(memory_bus, PilotEnded)
        assert shell.vitals.note == "gets no answer about pilots of lab: no controller"
        provider.silent = False
        await eventually(lambda: not shell.vitals.note)
        await eventually(count_of(memory_bus, PilotEnded, 1))
    assert len(provider.submissions) <= 3


async def test_an_error_that_nobody_foresaw_is_told_and_the_allocator_goes_on(
    memory_bus: MemoryBus, provider: FakeProvider, tmp_path: Path
) -> None:
    provider.broken = True
    async with allocator(memory_bus, tmp_path) as shell:
        await tell(memory_bus, ADDED, job("j"))
        await eventually(lambda: "ZeroDivisionError: of one provider" in shell.vitals.note)
        await asked_twice_more(provider)
        provider.broken = False
        await eventually(count_of(memory_bus, PilotSubmitted, 1))


async def test_nobody_is_told_of_a_silence_that_matters_to_no_pilot_any_more(
    memory_bus: MemoryBus, provider: FakeProvider, tmp_path: Path
) -> None:
    provider.silent = True
    async with allocator(memory_bus, tmp_path) as shell:
        await tell(memory_bus, ADDED, job("j"))
        await eventually(lambda: bool(shell.vitals.note))
        ended = PilotEnded(name="lab", pilot_id="lab-1", state="cancelled", at_s=3.0)
        await tell(memory_bus, AllocationRemoved(name="lab", at_s=2.0), ended)
        await eventually(lambda: not shell.vitals.note)


async def test_refused_submissions_pause_the_allocation_and_are_not_repeated(
    memory_bus: MemoryBus, provider: FakeProvider, tmp_path: Path
) -> None:
    provider.refuses = "sbatch: Invalid account"
    async with allocator(memory_bus, tmp_path, most_failures=3):
        await tell(memory_bus, ADDED, job("j"))
        await eventually(count_of(memory_bus, PilotsPaused, 1))
        other = AllocationAdded(name="other", spec=AllocationSpec(provider="slurm"), at_s=2.0)
        await tell(memory_bus, job("k"), other)
        await eventually(lambda: any("other" in name for name in provider.submissions))
        assert sum("other" not in name for name in provider.submissions) == 3
    [paused] = await told(memory_bus, PilotsPaused)
    assert "Invalid account" in paused.reason  # type: ignore[union-attr]


async def test_a_pilot_that_ends_before_a_node_joins_has_failed_with_what_it_printed(
    memory_bus: MemoryBus, provider: FakeProvider, tmp_path: Path
) -> None:
    async with allocator(memory_bus, tmp_path):
        await tell(memory_bus, ADDED, job("j"))
        await eventually(count_of(memory_bus, PilotSubmitted, 1))
        (tmp_path / "pilots" / "lab-1" / "output.txt").write_text("module: command not found\n")
        provider.move("ended")
        await eventually(count_of(memory_bus, PilotEnded, 1))
    first = (await told(memory_bus, PilotEnded))[0]
    assert first.state == "failed"  # type: ignore[union-attr]
    assert "module: command not found" in first.reason  # type: ignore[union-attr]


async def test_pilots_that_somebody_else_takes_away_before_a_node_joins_pause_the_allocation(
    memory_bus: MemoryBus, provider: FakeProvider, tmp_path: Path
) -> None:
    provider.first_state = "cancelled"
    async with allocator(memory_bus, tmp_path, most_failures=2):
        await tell(memory_bus, ADDED, job("j"))
        await eventually(count_of(memory_bus, PilotsPaused, 1))
    assert [fact.state for fact in await told(memory_bus, PilotEnded)] == ["failed"] * 2  # type: ignore[union-attr]
    assert len(provider.submissions) == 2


async def test_a_pilot_that_is_withdrawn_as_its_node_joins_has_done_its_work(
    memory_bus: MemoryBus, provider: FakeProvider, tmp_path: Path
) -> None:
    async with allocator(memory_bus, tmp_path):
        await tell(memory_bus, ADDED, AllocationPaused(name="lab", at_s=1.5))
        await tell(memory_bus, PilotPlanned(name="lab", pilot_id="lab-1", at_s=2.0))
        await eventually(count_of(memory_bus, PilotSubmitted, 1))
        provider.silent = True
        labels = {LABEL_ALLOCATION: "lab", LABEL_PILOT: "lab-1"}
        joined = msgspec.structs.replace(node("lab-1", a=1), labels=labels)
        await tell(memory_bus, PilotWithdrawn(name="lab", pilot_id="lab-1", at_s=3.0), joined)
        await asked_twice_more(provider)  # by then the allocator has read both
        provider.move("ended")
        provider.silent = False
        await eventually(count_of(memory_bus, PilotEnded, 1))
    assert [fact.state for fact in await told(memory_bus, PilotEnded)] == ["finished"]  # type: ignore[union-attr]


async def test_a_pilot_has_one_token_however_often_its_submission_is_tried(
    memory_bus: MemoryBus, provider: FakeProvider, tmp_path: Path
) -> None:
    provider.full = True
    async with issuing(memory_bus) as issuer, alone(memory_bus, tmp_path):
        await tell(memory_bus, ADDED, job("j"))
        await eventually(lambda: issuer.issued == 1)
        await asked_twice_more(provider)
        await asked_twice_more(provider)
        assert issuer.issued == 1
        await tell(memory_bus, AllocationRemoved(name="lab", at_s=2.0))
        await eventually(lambda: issuer.revoked == 1)


async def test_an_issuer_that_is_away_is_waited_for_and_one_that_refuses_is_a_failure(
    memory_bus: MemoryBus, provider: FakeProvider, tmp_path: Path
) -> None:
    async with alone(memory_bus, tmp_path):
        await tell(memory_bus, ADDED, job("j"))
        await eventually(count_of(memory_bus, PilotPlanned, 1))
        await asked_twice_more(provider)
        assert not await told(memory_bus, PilotEnded)
        async with issuing(memory_bus) as issuer:
            issuer.refuses = "no keys"
            await eventually(count_of(memory_bus, PilotEnded, 1))
    ended = (await told(memory_bus, PilotEnded))[0]
    assert (ended.state, "no keys" in ended.reason) == ("refused", True)  # type: ignore[union-attr]


async def test_a_pilot_whose_host_is_silent_keeps_no_other_from_its_submission(
    memory_bus: MemoryBus, provider: FakeProvider, tmp_path: Path
) -> None:
    async with allocator(memory_bus, tmp_path):
        await tell(memory_bus, ADDED, job("j"))
        await eventually(count_of(memory_bus, PilotSubmitted, 1))
        provider.move("silent")
        await tell(memory_bus, PilotPlanned(name="lab", pilot_id="lab-2", at_s=3.0))
        await eventually(count_of(memory_bus, PilotSubmitted, 2))
        assert not await told(memory_bus, PilotEnded)


async def test_the_folders_of_pilots_that_ended_long_ago_are_removed_and_no_others(
    memory_bus: MemoryBus, provider: FakeProvider, tmp_path: Path
) -> None:
    kept = ("lab-25", "lab-6", "lab-99", "lab-1-2", "other-1")
    for name in (*kept, "lab-1", "lab-5"):
        (tmp_path / "pilots" / name).mkdir(parents=True)
    paused = AllocationPaused(name="lab", at_s=1.5)
    await tell(memory_bus, ADDED, paused)
    for number in range(1, 26):
        pilot_id = f"lab-{number}"
        await tell(memory_bus, PilotPlanned(name="lab", pilot_id=pilot_id, at_s=2.0))
        await tell(memory_bus, PilotEnded(name="lab", pilot_id=pilot_id, state="finished", reason="", at_s=2.0))
    await tell(memory_bus, PilotPlanned(name="lab", pilot_id="lab-26", at_s=2.0))
    async with allocator(memory_bus, tmp_path):
        await eventually(lambda: not (tmp_path / "pilots" / "lab-5").exists())
        await asked_twice_more(provider)
    assert sorted(folder.name for folder in (tmp_path / "pilots").iterdir()) == sorted((*kept, "lab-26"))


async def test_a_pilot_that_is_stuck_is_cancelled_and_has_failed(
    memory_bus: MemoryBus, provider: FakeProvider, tmp_path: Path
) -> None:
    async with allocator(memory_bus, tmp_path, most_failures=1):
        await tell(memory_bus, ADDED, job("j"))
        await eventually(count_of(memory_bus, PilotSubmitted, 1))
        provider.jobs = {name: one._replace(state="stuck", reason="no image") for name, one in provider.jobs.items()}
        await eventually(count_of(memory_bus, PilotsPaused, 1))
    assert [fact.state for fact in await told(memory_bus, PilotEnded)] == ["failed"]  # type: ignore[union-attr]
    assert provider.cancelled == ["1"]
    assert len(provider.submissions) == 1


async def test_a_pilot_whose_job_is_cancelled_while_it_waits_is_taken_back_from_the_provider(
    memory_bus: MemoryBus, provider: FakeProvider, tmp_path: Path
) -> None:
    async with issuing(memory_bus) as issuer, alone(memory_bus, tmp_path, withdraw_s=0.02):
        await tell(memory_bus, ADDED, job("j"))
        await eventually(count_of(memory_bus, PilotSubmitted, 1))
        await tell(memory_bus, JobCancelled(job_id="j", at_s=2.0))
        await eventually(count_of(memory_bus, PilotEnded, 1))
        assert (provider.cancelled, issuer.revoked) == (["1"], 1)
    [end] = await told(memory_bus, PilotEnded)
    assert (end.state, end.reason) == ("cancelled", "no job would run on it any more")  # type: ignore[union-attr]


async def test_a_withdrawn_pilot_that_has_started_by_then_goes_on(
    memory_bus: MemoryBus, provider: FakeProvider, tmp_path: Path
) -> None:
    async with allocator(memory_bus, tmp_path, poll_s=60.0):
        await tell(memory_bus, ADDED, job("j"))
        await eventually(count_of(memory_bus, PilotSubmitted, 1))
        provider.move("running")
        await tell(memory_bus, PilotWithdrawn(name="lab", pilot_id="lab-1", at_s=2.0))
        await eventually(count_of(memory_bus, PilotStarted, 1))
        await asked_twice_more(provider)
        assert not provider.cancelled


async def test_a_withdrawn_pilot_that_was_never_submitted_is_not_submitted_any_more(
    memory_bus: MemoryBus, provider: FakeProvider, tmp_path: Path
) -> None:
    planned = PilotPlanned(name="lab", pilot_id="lab-1", at_s=2.0)
    await tell(memory_bus, ADDED, planned, PilotWithdrawn(name="lab", pilot_id="lab-1", at_s=3.0))
    async with allocator(memory_bus, tmp_path):
        await eventually(count_of(memory_bus, PilotEnded, 1))
    assert not provider.submissions


async def test_why_a_pilot_waits_is_noted_once_and_not_at_each_look(
    memory_bus: MemoryBus, provider: FakeProvider, tmp_path: Path
) -> None:
    async with allocator(memory_bus, tmp_path):
        await tell(memory_bus, ADDED, job("j"))
        await eventually(count_of(memory_bus, PilotSubmitted, 1))
        provider.jobs = {name: found._replace(reason="Resources") for name, found in provider.jobs.items()}
        await eventually(count_of(memory_bus, PilotWaits, 1))
        provider.jobs = {name: found._replace(reason="Priority") for name, found in provider.jobs.items()}
        await asked_twice_more(provider)
        await asked_twice_more(provider)
    assert [fact.reason for fact in await told(memory_bus, PilotWaits)] == ["Resources"]  # type: ignore[union-attr]


async def test_what_an_ended_pilot_has_left_at_its_provider_is_cleared(
    memory_bus: MemoryBus, provider: FakeProvider, tmp_path: Path
) -> None:
    async with allocator(memory_bus, tmp_path):
        await tell(memory_bus, ADDED, AllocationPaused(name="lab", at_s=1.5))
        await tell(memory_bus, PilotPlanned(name="lab", pilot_id="lab-1", at_s=2.0))
        await eventually(count_of(memory_bus, PilotSubmitted, 1))
        provider.move("ended")
        await eventually(count_of(memory_bus, PilotEnded, 1))
    assert provider.cleared == [NAMED.pilot_name("lab-1")]


async def test_a_pilot_has_not_ended_until_its_provider_has_cleared_what_it_left(
    memory_bus: MemoryBus, provider: FakeProvider, tmp_path: Path
) -> None:
    await tell(memory_bus, ADDED, AllocationPaused(name="lab", at_s=1.5))
    await tell(memory_bus, PilotPlanned(name="lab", pilot_id="lab-1", at_s=2.0))
    async with allocator(memory_bus, tmp_path) as shell:
        await eventually(count_of(memory_bus, PilotSubmitted, 1))
        provider.keeps = True
        provider.move("ended")
        await eventually(lambda: "it clears nothing now" in shell.vitals.note)
        assert not await told(memory_bus, PilotEnded)
    provider.keeps = False
    async with allocator(memory_bus, tmp_path):  # another one, of which none was told that it ended
        await eventually(count_of(memory_bus, PilotEnded, 1))
    assert provider.cleared == [NAMED.pilot_name("lab-1")]


async def test_what_is_cleared_and_gone_before_its_end_is_told_has_ended_nevertheless(
    memory_bus: MemoryBus, provider: FakeProvider, tmp_path: Path
) -> None:
    labels = {LABEL_ALLOCATION: "lab", LABEL_PILOT: "lab-1"}
    planned = PilotPlanned(name="lab", pilot_id="lab-1", at_s=2.0)
    submitted = PilotSubmitted(name="lab", pilot_id="lab-1", provider_id="1", at_s=2.5)
    joined = msgspec.structs.replace(node("lab-1", a=1), labels=labels)
    await tell(memory_bus, ADDED, AllocationPaused(name="lab", at_s=1.5), planned, submitted, joined)
    async with allocator(memory_bus, tmp_path):  # an earlier one was killed after it had cleared
        await eventually(count_of(memory_bus, PilotEnded, 1))
    assert [fact.state for fact in await told(memory_bus, PilotEnded)] == ["finished"]  # type: ignore[union-attr]


async def test_a_pilot_whose_submission_was_not_answered_is_cleared_when_its_allocation_is_removed(
    memory_bus: MemoryBus, provider: FakeProvider, tmp_path: Path
) -> None:
    provider.full = True
    async with allocator(memory_bus, tmp_path):
        await tell(memory_bus, ADDED, job("j"))
        await asked_twice_more(provider)
        await tell(memory_bus, AllocationRemoved(name="lab", at_s=2.0))
        await eventually(count_of(memory_bus, PilotEnded, 1))
    assert NAMED.pilot_name("lab-1") in provider.cleared


async def test_the_token_of_an_adopted_pilot_is_revoked_at_its_end(
    memory_bus: MemoryBus, provider: FakeProvider, tmp_path: Path
) -> None:
    await tell(memory_bus, ADDED, AllocationPaused(name="lab", at_s=1.5))
    await tell(memory_bus, PilotPlanned(name="lab", pilot_id="lab-1", at_s=2.0))
    provider.jobs[NAMED.pilot_name("lab-1")] = ProviderJob("17", "waiting")
    (tmp_path / "pilots" / "lab-1").mkdir(parents=True)
    (tmp_path / "pilots" / "lab-1" / "token").write_text(node_token_text(LOGIN))
    async with issuing(memory_bus) as issuer, alone(memory_bus, tmp_path):
        await eventually(count_of(memory_bus, PilotSubmitted, 1))
        await tell(memory_bus, AllocationRemoved(name="lab", at_s=2.0))
        await eventually(count_of(memory_bus, PilotEnded, 1))
        assert issuer.revoked == 1
    assert [fact.token for fact in await told(memory_bus, PilotSubmitted)] == ["0f"]  # type: ignore[union-attr]


async def test_a_long_reason_of_waiting_is_noted_once(
    memory_bus: MemoryBus, provider: FakeProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "_NOTE_S", 0.0)
    async with allocator(memory_bus, tmp_path):
        await tell(memory_bus, ADDED, job("j"))
        await eventually(count_of(memory_bus, PilotSubmitted, 1))
        provider.jobs = {name: found._replace(reason="x" * 5_000) for name, found in provider.jobs.items()}
        await eventually(count_of(memory_bus, PilotWaits, 1))
        await asked_twice_more(provider)
        await asked_twice_more(provider)
    assert len(await told(memory_bus, PilotWaits)) == 1


async def test_another_reason_of_waiting_is_noted_after_a_while(
    memory_bus: MemoryBus, provider: FakeProvider, tmp_path: Path
) -> None:
    async with allocator(memory_bus, tmp_path) as shell:
        now_s = shell.now_s
        await tell(memory_bus, ADDED, job("j"))
        await eventually(count_of(memory_bus, PilotSubmitted, 1))
        for reason in ("Resources", "Priority"):
            provider.jobs = {name: found._replace(reason=reason) for name, found in provider.jobs.items()}
            await eventually(count_of(memory_bus, PilotWaits, 1 if reason == "Resources" else 2))
            shell.now_s = lambda: now_s() + keeper._NOTE_S  # type: ignore[method-assign]
    assert [fact.reason for fact in await told(memory_bus, PilotWaits)] == ["Resources", "Priority"]  # type: ignore[union-attr]


async def test_a_provider_that_tells_of_many_changes_is_looked_at_once_for_all_of_them(
    memory_bus: MemoryBus, provider: FakeProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keepers: list[keeper.PilotKeeper] = []

    class Kept(keeper.PilotKeeper):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            keepers.append(self)

    monkeypatch.setattr(runner, "PilotKeeper", Kept)
    async with allocator(memory_bus, tmp_path, poll_s=3_600.0) as shell:
        await tell(memory_bus, ADDED, AllocationPaused(name="lab", at_s=1.5))
        await tell(memory_bus, PilotPlanned(name="lab", pilot_id="lab-1", at_s=2.0))
        await eventually(count_of(memory_bus, PilotSubmitted, 1))
        stands_s = shell.monotonic() + 1_000.0
        shell.monotonic = lambda: stands_s  # type: ignore[method-assign]
        keepers[0].look_again("slurm")
        await eventually(lambda: keepers[0]._looked_s.get("lab") == stands_s and not keepers[0]._looking)
        before = provider.asked
        for _ in range(50):
            keepers[0].look_again("slurm")
            await asyncio.sleep(0)
        assert provider.asked == before
        shell.monotonic = lambda: stands_s + 1.0  # type: ignore[method-assign]
        await asked_more(provider)


async def test_folders_are_looked_through_only_after_another_pilot_has_ended(
    memory_bus: MemoryBus, provider: FakeProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleaned: list[int] = []

    class Kept(keeper.PilotKeeper):
        def _remove_folders(self, name: str, made: int, kept: Collection[str]) -> None:
            cleaned.append(made)
            super()._remove_folders(name, made, kept)

    monkeypatch.setattr(runner, "PilotKeeper", Kept)
    async with allocator(memory_bus, tmp_path):
        await tell(memory_bus, ADDED, job("j"))
        await eventually(count_of(memory_bus, PilotSubmitted, 1))
        for _ in range(4):
            await asked_twice_more(provider)
    assert cleaned == [1]
