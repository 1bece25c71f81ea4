"""What people see of facts that no part of Penstock knows: as they are, and what they see else is as without them."""

from __future__ import annotations

from typing import Any

import msgspec
from gateway_cases import gateway, joined, placed, started, submitted

from penstock_bus import Append, Delivery
from penstock_bus.memory import MemoryBus
from penstock_log import Commit, UnknownFact, decode, decode_at, fields_of, subject_of, subjects
from penstock_simulator.replay.history import HistoryFold
from penstock_simulator.traces import log_file

PRICED = {"type": "ext.billing.priced.v1", "at_s": 2.5e12, "cents": 5, "why": {"tariff": None}}
UNTIMED = {"type": "ext.billing.noted.v1", "note": "\x1b[31mred"}


def commit(*facts: dict[str, object], actor: str = "billing/1") -> Commit:
    return decode(msgspec.json.encode({"id": msgspec.json.encode(facts).decode(), "actor": actor, "facts": facts}))


async def price(bus: MemoryBus, entity: str = "j1") -> None:
    item = Append(subject=subjects.extension("billing", entity), commit=commit(PRICED, UNTIMED), expected=None)
    await bus.append(item)


async def test_events_and_the_story_show_them_and_nothing_else_is_changed_by_them() -> None:
    bus = MemoryBus()
    async with gateway(bus, joined(), submitted("j1"), placed("j1"), started("j1")) as served:
        before = await seen(served)
        await price(bus)
        await price(bus, "j2")
        found = await served.query("events", {"id": "j1", "limit": 2})
        assert [(one["type"], one["fact"]) for one in found["events"]] == [
            ("ext.billing.priced.v1", {"cents": 5, "why": {"tariff": None}}),
            ("ext.billing.noted.v1", {"note": "\x1b[31mred"}),
        ]
        assert found["events"][0]["subject"] == "penstock.evt.ext.billing.j1"
        told = [line["text"] for line in (await served.query("story", {"id": "j1"}))["lines"]]
        assert told[-2:] == [
            'ext.billing.priced.v1 {"cents":5,"why":{"tariff":null}}',
            'ext.billing.noted.v1 {"note":"\\u001b[31mred"}',
        ]
        assert await seen(served) == before


async def seen(served: Any) -> list[object]:
    jobs = (await served.query("jobs", {}))["jobs"]
    return [[(job["id"], job["state"], job["epoch"]) for job in jobs], await served.query("why", {"id": "j1"})]


def deliveries() -> list[Delivery]:
    known = [joined(), submitted("j1"), placed("j1"), started("j1")]
    found = [(subject_of(fact), Commit(id=str(i), actor="a", facts=(fact,))) for i, fact in enumerate(known)]
    unknown = commit(PRICED, UNTIMED, {"type": "ext.billing.x", "at_s": 0})
    found.insert(2, (subjects.extension("billing", "j1"), unknown))
    return [
        Delivery(seq=seq, subject=subject, stored_s=float(seq), pending=0, commit=one)
        for seq, (subject, one) in enumerate(found, start=1)
    ]


def test_a_log_in_a_file_holds_them_and_has_them_again() -> None:
    again = list(log_file.decode(log_file.encode(*deliveries()).splitlines()))
    assert [[fields_of(fact) for fact in one.commit.facts] for one in again][2][:2] == [PRICED, UNTIMED]
    assert [one.subject for one in again] == [one.subject for one in deliveries()]
    assert log_file.encode(*again) == log_file.encode(*deliveries())


def test_a_trace_and_a_replay_of_the_log_are_as_without_them() -> None:
    with_, without = deliveries(), [one for one in deliveries() if one.commit.known]
    traces, histories = [], []
    for log in (with_, without):
        trace, history = log_file.LogTrace("log"), HistoryFold()
        for one in log:
            trace.add(one)
            history.add(one)
        traces.append(trace.trace())
        histories.append(history)
    assert traces[0].duration_s.tolist() == traces[1].duration_s.tolist()
    assert histories[0]._found.last_s == histories[1]._found.last_s


def test_a_commit_of_a_core_service_with_a_fact_of_a_later_version_is_replayed_by_the_facts_that_are_known() -> None:
    body = msgspec.json.encode(
        {"id": "c", "actor": "g", "facts": [{"type": "job.coloured.v1"}, msgspec.to_builtins(submitted("j1"))]}
    )
    subject = subjects.job("j1")
    one = Delivery(seq=1, subject=subject, stored_s=1.0, pending=0, commit=decode_at(subject, body))
    assert isinstance(one.commit.facts[0], UnknownFact)
    history = HistoryFold()
    history.add(one)
    assert history._found.last_s == submitted("j1").at_s
