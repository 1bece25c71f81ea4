"""Questions that look far back in the log: right, bounded, and in nobody's way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest
from gateway_cases import NOW_S, ended, gateway, joined, placed, ranked, refusal, started, submitted, waits
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from penstock_bus import Append, Bus, Delivery, Gathering, ServiceError
from penstock_bus.memory import MemoryBus, MemoryServer
from penstock_gateway import log_reader, queries, story
from penstock_gateway.machine import GatewaySettings
from penstock_log import Commit, Job, JobSpec, NodeLeaving, RoundDecided, Wait, subjects
from penstock_testing import eventually

JOB = {"name": "mnist", "command": ["python", "train.py"]}


@pytest.fixture(params=["memory", "nats"])
def bus(request: pytest.FixtureRequest) -> Bus:
    return request.getfixturevalue(f"{request.param}_bus")


class Stalling(MemoryBus):
    """A bus whose log stops coming to those who begin to read it while it stalls."""

    stalls = False

    def __init__(self) -> None:
        super().__init__()
        self.stalled = asyncio.Event()

    async def follow(
        self, after_seq: int = 0, subjects: Sequence[str] = (), gathering: Gathering | None = None
    ) -> AsyncIterator[Delivery]:
        if self.stalls:
            self.stalled.set()
            await asyncio.Event().wait()
        async for delivery in super().follow(after_seq, subjects, gathering):
            yield delivery


class HeldClock:
    """The event loop's clock, held: however slow the machine, time passes only when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        self.now_s = loop.time()
        monkeypatch.setattr(loop, "time", lambda: self.now_s)

    async def advance(self, by_s: float) -> None:
        """Let time pass, and whoever waited for it have as many turns as an answer takes, and more."""
        self.now_s += by_s
        for _ in range(100):
            await asyncio.sleep(0)


async def test_a_question_that_takes_too_long_is_given_up_and_commands_do_not_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bus = Stalling()
    async with gateway(bus, joined(), submitted("j1"), settings=GatewaySettings(query_timeout_s=3.0)) as served:
        with monkeypatch.context() as patched:
            clock = HeldClock(patched)
            bus.stalls = True
            stuck = asyncio.create_task(refusal(served.query("jobs", {"at": 1})))
            await bus.stalled.wait()
            also = asyncio.create_task(refusal(served.query("job", {"id": "j1", "at": 2})))
            assert (await served.command("submit", {**JOB, "id": "j2"}))["created"]
            assert (await served.query("why", {"id": "j2"}))["state"] == "PD"
            assert not stuck.done()
            await clock.advance(3.5)
            assert stuck.done()
            assert also.done()
            assert await stuck == (
                503,
                "jobs took longer than 3 s and was given up; ask about an earlier moment, or for less, or raise "
                "PENSTOCK_GATEWAY_QUERY_TIMEOUT_S",
            )
            assert (await also)[0] == 503
        bus.stalls = False
        assert (await served.query("jobs", {"at": 2}))["total"] == 1


async def test_others_get_a_turn_while_somebody_looks_back(memory_bus: MemoryBus) -> None:
    for i in range(5 * log_reader.SLICE):
        await store(memory_bus, submitted(f"j{i}"))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    found = [one.seq async for one in log_reader.stretch(memory_bus, 0, 5 * log_reader.SLICE)]
    counting.cancel()
    assert found == list(range(1, 5 * log_reader.SLICE + 1))
    assert turns >= 4


async def store(bus: Bus, fact: Any, subject: str = "") -> int:
    subject = subject or subjects.job(fact.job_id)
    commit = Commit(id=f"{subject}-{await bus.last_seq()}", actor="test", facts=(fact,))
    return await bus.append(Append(subject=subject, commit=commit, expected=None))


@given(stored_s=st.lists(st.integers(0, 9), min_size=1, max_size=30).map(sorted), time_s=st.integers(-1, 10))
def test_a_time_is_the_last_sequence_that_was_stored_by_then(stored_s: list[int], time_s: int) -> None:
    async def found() -> int:
        times = iter(stored_s)
        bus = MemoryBus(MemoryServer(now=lambda: float(next(times))))
        for i in range(len(stored_s)):
            await store(bus, submitted(f"j{i}"))
        return await log_reader.seq_at(bus, float(time_s))

    assert asyncio.run(found()) == sum(one <= time_s for one in stored_s)


async def test_events_as_of_a_time_are_the_newest_of_then() -> None:
    now = [NOW_S]
    async with gateway(MemoryBus(MemoryServer(now=lambda: now[0])), joined()) as served:
        for i in range(10):
            now[0] = NOW_S + i
            await served.told(submitted(f"j{i}"))
        then = await served.query("events", {"at": NOW_S + 4.5, "limit": 2})
        assert [event["fact"]["job_id"] for event in then["events"]] == ["j3", "j4"]
        of_one = await served.query("events", {"at": NOW_S + 4.5, "id": "j9"})
        assert of_one["events"] == []


async def test_the_newest_events_of_an_entity_are_found_wherever_they_are(bus: Bus) -> None:
    async with gateway(bus, joined()) as served:
        for i in range(3):
            await served.told(waits(at_s=NOW_S + i))
        await served.told(*(submitted(f"j{i}") for i in range(40)))
        rounds = await served.query("events", {"id": "default", "limit": 2})
        assert [event["at_s"] for event in rounds["events"]] == [NOW_S + 1, NOW_S + 2]
        first = await served.query("events", {"id": "default", "limit": 2, "after": 0})
        assert [event["at_s"] for event in first["events"]] == [NOW_S, NOW_S + 1]
        rest = await served.query("events", {"id": "default", "after": first["seq"]})
        assert [event["at_s"] for event in rest["events"]] == [NOW_S + 2]
        assert (await served.query("events", {"id": "default", "after": rest["seq"]}))["events"] == []
        assert (await served.query("events", {"id": "nobody"}))["events"] == []


async def test_an_id_that_nothing_can_have_is_refused(memory_bus: MemoryBus) -> None:
    async with gateway(memory_bus, joined()) as served:
        code, message = await refusal(served.query("events", {"id": "a.b"}))
        assert (code, message.partition(";")[0]) == (400, "$.id: 'a.b' cannot be part of a subject")


async def test_the_story_of_an_old_job_does_not_read_what_its_pool_did_since(bus: Bus) -> None:
    async with gateway(bus, joined()) as served:
        await served.told(submitted("j1"), ranked("j1"), placed("j1"), started("j1"), ended("j1"))
        later = Wait(job_id="j1", cause="capacity", evidence="said of a job that is over")
        await served.told(*(waits(later, at_s=NOW_S + 10 + i) for i in range(3)))
        lines = [line["text"] for line in (await served.query("story", {"id": "j1"}))["lines"]]
        assert lines == [
            "submitted: 1 device",
            "ranked in queue 0",
            "placed on n1/fast0 (run 1)",
            "started on n1",
            "run completed on n1",
            "completed (ran 3.0 s in 1 run)",
        ]


async def test_the_story_of_a_job_says_that_its_node_was_lost(memory_bus: MemoryBus) -> None:
    async with gateway(memory_bus, joined(), joined("n2")) as served:
        lost = RoundDecided(at_s=NOW_S + 9, pool="default", lost_nodes=("n1",))
        again = placed("j1", epoch=2, node="n2", at_s=NOW_S + 9)
        await served.told(submitted("j1"), placed("j1"), started("j1"), lost, again, lost)
        lines = [line["text"] for line in (await served.query("story", {"id": "j1"}))["lines"]]
        assert lines[-2:] == [
            "lost with its node n1, which was no longer heard of",
            "placed on n2/fast0 (run 2)",
        ]


async def test_the_story_of_a_job_says_that_its_node_leaves_and_nothing_of_others(bus: Bus) -> None:
    async with gateway(bus, joined(), joined("n2")) as served:
        leaving = (NodeLeaving(node_id=name, reason="shutdown", at_s=NOW_S + 4) for name in ("n2", "n1"))
        end = ended("j1", "preempted", reason="node n1 is shutting down")
        again = placed("j1", epoch=2, node="n2", at_s=NOW_S + 9)
        await served.told(submitted("j1"), placed("j1"), started("j1"), *leaving, end, again)
        lines = [line["text"] for line in (await served.query("story", {"id": "j1"}))["lines"]]
        assert lines[2:] == [
            "started on n1",
            "its node n1 begins to leave: shutdown",
            "run preempted on n1: node n1 is shutting down",
            "placed on n2/fast0 (run 2)",
        ]


async def test_the_story_says_of_a_run_that_completed_after_it_was_given_up_that_this_does_not_count(
    memory_bus: MemoryBus,
) -> None:
    async with gateway(memory_bus, joined(), joined("n2")) as served:
        lost = RoundDecided(at_s=NOW_S + 9, pool="default", lost_nodes=("n1",))
        again, late = placed("j1", epoch=2, node="n2", at_s=NOW_S + 9), ended("j1", at_s=NOW_S + 10)
        await served.told(submitted("j1"), placed("j1"), started("j1"), lost, late, again, late)
        whole = msgspec.structs.replace(ended("j1", epoch=2, at_s=NOW_S + 20), node_id="n2")
        await served.told(started("j1", epoch=2, node="n2"), whole)

        async def is_over() -> bool:
            found = await served.query("story", {"id": "j1"})
            return str(found["lines"][-1]["text"]).startswith("completed")

        await eventually(is_over)
        await served.told(late)
        lines = [line["text"] for line in (await served.query("story", {"id": "j1"}))["lines"]]
        what = "run 1 completed on n1, after it had been given up as lost"
        assert lines[3:] == [
            "lost with its node n1, which was no longer heard of",
            f"{what}: this does not count, and its next run does it again from the last checkpoint that is known",
            "placed on n2/fast0 (run 2)",
            f"{what}: this does not count, and run 2 does it again from the last checkpoint that is known",
            "started on n2",
            "run completed on n2",
            "completed (ran 25.0 s in 2 runs)",
            f"{what}: the job was over by then, and this changes nothing",
        ]


async def test_what_fails_within_a_question_is_logged_with_its_place(
    memory_bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("of the test")

    monkeypatch.setattr(queries.answers, "sweeps", broken)
    async with gateway(memory_bus, joined()) as served:
        with capture_logs() as logs, pytest.raises(ServiceError, match="ZeroDivisionError") as failed:
            await served.query("sweeps")
    assert failed.value.code == 500
    assert [(line["endpoint"], line["exc_info"]) for line in logs if line["event"] == "request_failed"] == [
        ("sweeps", True)
    ]


async def test_a_reason_that_would_fill_every_list_is_refused(memory_bus: MemoryBus) -> None:
    async with gateway(memory_bus, submitted("j1")) as served:
        code, message = await refusal(served.command("cancel", {"id": "j1", "reason": "why " * 1000}))
        assert code == 400
        assert message.startswith("$.reason: expected text of at most 1000 characters, got ")


COMMANDS = ("submit", "tune", "cancel", "hold", "release", "drain", "resume", "remove", "cancel_sweep")


@pytest.mark.parametrize("body", [b"", b"  \n", b"null", b"[]", b'"j1"', b"7", b"{}", b'{"id": 7}', b"\xff", b"["])
async def test_a_command_whose_body_says_nothing_useful_is_refused(memory_bus: MemoryBus, body: bytes) -> None:
    async with gateway(memory_bus, joined()) as served:
        before = await memory_bus.last_seq()
        for name in COMMANDS:
            code, message = await refusal(served.command(name, body))
            assert code == 400, (name, message)
            assert body.strip() or message == "the body is empty; expected a JSON object"
            assert any(word in message for word in ("missing", "expected", "malformed", "empty", "UTF-8")), message
        assert await memory_bus.last_seq() == before


def test_a_job_whose_parent_is_no_sweep_has_a_story_like_any_other():
    of_group = Job(id="j1", spec=JobSpec(name="j", command=("true",), parent="our group. All of it"), submitted_s=0.0)
    of_nobody = Job(id="j1", spec=JobSpec(name="j", command=("true",)), submitted_s=0.0)
    assert story.shared_subjects(of_group) == story.shared_subjects(of_nobody)
