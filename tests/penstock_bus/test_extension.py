"""The loop of an extension, and extensions that read each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from fact_factories import submitted
from structlog.testing import capture_logs

from penstock_bus import Append, Decider, Decision, Delivery
from penstock_bus.decider import Fold
from penstock_bus.extension import Extension, Statements, run_extension
from penstock_bus.memory import MemoryBus
from penstock_bus.shell import Shell
from penstock_log import Commit, Event, JobSubmitted, decode_at, fields_of, subjects
from penstock_testing import eventually


class Priced(Event, frozen=True, kw_only=True, tag="ext.billing.priced.v1"):
    """What billing says."""

    cents: int


class Approved(Event, frozen=True, kw_only=True, tag="ext.audit.approved.v1"):
    """What audit says of that."""

    cents: int


class State(msgspec.Struct):
    """What either knows."""

    seen: list[str] = []


def noting(state: State, event: Event) -> list[Event]:
    state.seen.append(type(event).__name__)
    return [event]


def billing(*, fails: int = 0) -> Extension[State]:
    """Price submitted jobs; know what was approved."""
    failures = iter(range(fails))

    async def react(event: Event) -> Statements | None:
        if next(failures, None) is not None:
            raise ConnectionError("not now")
        return [(event.job_id, Priced(at_s=1.0, cents=5))] if isinstance(event, JobSubmitted) else None

    return Extension(name="billing", state=State, schema="1", apply=noting, react=react, facts=(Priced, Approved))


def audit() -> Extension[State]:
    """Approve prices."""

    async def react(event: Event) -> Statements | None:
        return [("j1", Approved(at_s=2.0, cents=event.cents))] if isinstance(event, Priced) else None

    return Extension(name="audit", state=State, schema="1", apply=noting, react=react, facts=(Priced, Approved))


@asynccontextmanager
async def running(bus: MemoryBus, extension: Extension[State]) -> AsyncIterator[None]:
    shell = Shell(bus, extension.name)
    task = asyncio.create_task(run_extension(shell, extension, begin="start", retry_s=0.0))
    try:
        yield
    finally:
        shell.stopping.set()
        await task


async def submit(bus: MemoryBus, job_id: str = "j1") -> None:
    commit = Commit(id=job_id, actor="gateway/1", facts=(submitted(job_id),))
    await bus.append(Append(subject=subjects.job(job_id), commit=commit, expected=0))


async def state_of(bus: MemoryBus, name: str, seq: int) -> list[str]:
    """Return what an extension has seen, once it has saved that up to a sequence."""

    async def is_there() -> bool:
        snapshot = await bus.load_snapshot(name)
        return snapshot is not None and snapshot.last_seq >= seq

    await eventually(is_there)
    snapshot = await bus.load_snapshot(name)
    assert snapshot is not None
    return msgspec.msgpack.decode(snapshot.state, type=State).seen


async def test_two_extensions_read_each_other(memory_bus: MemoryBus) -> None:
    async with running(memory_bus, billing()), running(memory_bus, audit()):
        await submit(memory_bus)
        seen = ["JobSubmitted", "Priced", "Approved"]
        assert await state_of(memory_bus, "billing", 3) == seen
        assert await state_of(memory_bus, "audit", 3) == seen
    log = await memory_bus.read("penstock.evt.>")
    assert [(one.subject, one.commit.cause) for one in log] == [
        (subjects.job("j1"), 0),
        (subjects.extension("billing", "j1"), 1),
        (subjects.extension("audit", "j1"), 2),
    ]


async def test_a_reaction_that_fails_is_tried_again_and_its_fact_is_stored_once(memory_bus: MemoryBus) -> None:
    async with running(memory_bus, billing(fails=3)):
        await submit(memory_bus)
        assert await state_of(memory_bus, "billing", 2) == ["JobSubmitted", "Priced"]
    assert await memory_bus.last_seq() == 2


async def test_a_fact_of_another_form_than_its_reader_knows_is_ignored_and_said_to_be(memory_bus: MemoryBus) -> None:
    raw = {"type": "ext.billing.priced.v1", "at_s": 1.0, "cents": "five"}
    body = msgspec.json.encode({"id": "c", "actor": "billing", "facts": [raw]})
    subject = subjects.extension("billing", "j1")
    with capture_logs() as logs:
        async with running(memory_bus, audit()):
            await memory_bus.append(Append(subject=subject, commit=decode_at(subject, body), expected=None))
            assert await state_of(memory_bus, "audit", 1) == []
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == ["fact_of_another_form_ignored"]


def apply(state: State, event: Event, seq: int) -> None:
    state.seen.append(f"{type(event).__name__} {seq}")


def nothing(_: State, now_s: float) -> Decision:
    return Decision(wake_at_s=now_s)


def decider(*extends: type[Event]) -> Decider[State]:
    return Decider(name="billing", state=State, schema="1", apply=apply, decide=nothing, extends=extends)


def delivered(seq: int, fact: Event) -> Delivery:
    subject = subjects.extension(fact.__struct_config__.tag.split(".")[1], "j1")  # type: ignore[union-attr]
    body = msgspec.json.encode({"id": str(seq), "actor": "a", "facts": [fields_of(fact)]})
    return Delivery(seq=seq, subject=subject, stored_s=1.0, pending=0, commit=decode_at(subject, body))


def test_a_decider_folds_the_extensions_that_it_names_and_no_others() -> None:
    first, second = delivered(1, Priced(at_s=1.0, cents=5)), delivered(2, Approved(at_s=2.0, cents=5))
    for extends, seen, heeds in (((Priced,), ["Priced 1"], [True, False]), ((), [], [False, False])):
        fold = Fold(decider(*extends))
        assert fold.apply(first)
        assert fold.apply(second)
        assert (fold.state.seen, fold.last_seq, fold.heads) == (seen, 2, {first.subject: 1})
        assert [fold.decider.heeds(one.commit) for one in (first, second)] == heeds
