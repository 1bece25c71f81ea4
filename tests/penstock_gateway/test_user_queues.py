"""Many users' commands: each user in turn, with a bound for each, and what is told to whom it is too much."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from gateway_cases import Gateway, ended, gateway, joined, placed, refusal, spec, started, submitted, sweep_spec

from penstock_bus import Append, Request, ServiceError
from penstock_bus.fair_semaphore import FairSemaphore
from penstock_bus.memory import MemoryBus, MemoryServer
from penstock_gateway import commands, endpoints
from penstock_gateway.endpoints import RequestRefused
from penstock_gateway.machine import GatewaySettings
from penstock_gateway.user_queues import UserQueues, asker
from penstock_log import JobSubmitted, SweepCancelled, SweepSubmitted, subjects
from penstock_log.views import StatusView
from penstock_testing import eventually

JOB: dict[str, Any] = {"name": "a", "command": ["true"], "profile": "off"}


class SlowLog(MemoryBus):
    """A log that stores nothing before it is released."""

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server)
        self.released = asyncio.Event()
        self.asked = 0

    async def append(self, item: Append) -> int:
        self.asked += 1
        await self.released.wait()
        return await super().append(item)


def job(user: str, job_id: str = "", **fields: Any) -> dict[str, Any]:
    return {**JOB, "user": user, **({"id": job_id} if job_id else {}), **fields}


def settings(**fields: Any) -> GatewaySettings:
    return GatewaySettings(append_timeout_s=60.0, **fields)


async def users_of_stored_jobs(served: Gateway) -> list[str]:
    stored = await served.bus.read("penstock.evt.job.*")
    facts = [fact for delivery in stored for fact in delivery.commit.facts]
    return [fact.spec.user for fact in facts if isinstance(fact, JobSubmitted)]


async def test_a_free_slot_goes_to_each_user_who_waits_in_turn() -> None:
    slots, order = FairSemaphore(1), []

    async def use(user: str) -> None:
        await slots.acquire(user)
        order.append(user)
        await asyncio.sleep(0)
        slots.release(user)

    await slots.acquire("first")
    waiting = [asyncio.create_task(use(user)) for user in ["alice"] * 5 + ["bob"] * 2 + ["carol"]]
    await asyncio.sleep(0)
    slots.release("first")
    await asyncio.gather(*waiting)
    assert order == ["alice", "bob", "carol", "alice", "bob", "alice", "alice", "alice"]


async def test_a_user_who_keeps_all_slots_that_one_may_hold_leaves_the_rest_to_others() -> None:
    slots = FairSemaphore(3, each=2)
    for _ in range(2):
        await slots.acquire("alice")
    more = [asyncio.create_task(slots.acquire("alice")) for _ in range(100)]
    await asyncio.sleep(0)
    await asyncio.wait_for(slots.acquire("bob"), 60)
    carol = asyncio.create_task(slots.acquire("carol"))
    await asyncio.sleep(0)
    slots.release("bob")
    await carol
    slots.release("alice")
    await more[0]
    slots.release("carol")
    await asyncio.sleep(0)
    assert not any(one.done() for one in more[1:])


async def test_a_waiter_that_gives_up_takes_no_slot_with_it() -> None:
    slots = FairSemaphore(1)
    await slots.acquire("alice")
    gone, stays = asyncio.create_task(slots.acquire("bob")), asyncio.create_task(slots.acquire("bob"))
    late = asyncio.create_task(slots.acquire("carol"))
    await asyncio.sleep(0)
    gone.cancel()
    slots.release("alice")
    late.cancel()  # carol is not served before bob, and gives up before the slot reaches her
    await stays
    slots.release("bob")
    await asyncio.wait_for(slots.acquire("dave"), 60)


async def test_a_slot_that_comes_as_its_waiter_gives_up_goes_to_the_next() -> None:
    slots = FairSemaphore(1)
    await slots.acquire("alice")
    gone = asyncio.create_task(slots.acquire("bob"))
    await asyncio.sleep(0)
    slots.release("alice")  # bob's now, who is cancelled before he runs again
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    await asyncio.wait_for(slots.acquire("carol"), 60)


@pytest.mark.parametrize(
    ("body", "user"),
    [
        (job("alice"), "alice"),
        ({"spec": job("alice"), "strict": True}, "alice"),
        ({"name": "s", "job": job("alice")}, "alice"),
        ({"spec": {"name": "s", "job": job("alice")}}, "alice"),
        ({"id": "j1", "by": "alice"}, "alice"),
        ({"user": 7}, ""),
        ([], ""),
        ("alice", ""),
    ],
)
def test_the_asker_of_a_request_is_found_in_its_body(body: Any, user: str) -> None:
    assert asker(json.dumps(body).encode()) == user


@pytest.mark.parametrize(
    "body", [b"", b"\xff", b"[" * 200_000, b'{"user": "' + b"a" * 300 + b'"}', b'{"user": "\xed"}']
)
def test_a_body_that_is_no_request_is_nobodys_or_a_shortened_name(body: bytes) -> None:
    assert asker(body) in {"", "a" * 128}


async def test_a_user_who_comes_after_a_flood_is_stored_next(memory_bus: MemoryBus) -> None:
    log = SlowLog(memory_bus.server)
    async with gateway(log, settings=settings(concurrent_commands=2)) as served:
        served.bus = memory_bus
        flood = [asyncio.create_task(served.command("submit", job("alice"))) for _ in range(200)]
        await eventually(lambda: log.asked == 2)
        single = asyncio.create_task(served.command("submit", job("bob")))
        await asyncio.sleep(0)
        log.released.set()
        await asyncio.gather(single, *flood)
        stored = await users_of_stored_jobs(served)
        assert (len(stored), stored.index("bob")) == (201, pytest.approx(3, abs=1))  # the two under way, one of alice


async def test_a_users_single_submission_to_the_inbox_does_not_wait_for_anothers_flood(memory_bus: MemoryBus) -> None:
    for user in ["alice"] * 200 + ["bob"]:
        await memory_bus.submit(subjects.INBOX_JOBS, json.dumps(job(user)).encode())
    log = SlowLog(memory_bus.server)
    async with gateway(log, settings=settings(concurrent_commands=2)) as served:
        served.bus = memory_bus
        await eventually(lambda: log.asked == 2)
        await eventually(
            lambda: (memory_bus.server.work.next_due_s() or 0.0) > memory_bus.server.now()
        )  # all have come
        log.released.set()
        await eventually(lambda: len(memory_bus.server.work) == 0)
        stored = await users_of_stored_jobs(served)
        assert len(stored) == 201
        assert stored.index("bob") <= 4


async def test_a_flood_of_acts_of_one_user_does_not_keep_anothers_from_being_carried_out(memory_bus: MemoryBus) -> None:
    log = SlowLog(memory_bus.server)
    facts = [submitted(f"j{i}") for i in range(100)]
    async with gateway(memory_bus, *facts), gateway(log, settings=settings(concurrent_commands=1)) as served:
        acting = [asyncio.create_task(served.command("hold", {"id": f"j{i}", "by": "alice"})) for i in range(99)]
        await eventually(lambda: log.asked == 1)
        single = asyncio.create_task(served.command("cancel", {"id": "j99", "by": "bob"}))
        log.released.set()
        await asyncio.gather(single, *acting)


async def test_what_waits_of_one_user_is_bounded_and_another_user_still_comes_in(memory_bus: MemoryBus) -> None:
    log = SlowLog(memory_bus.server)
    async with gateway(log, settings=settings(concurrent_commands=1, waiting_commands=3)) as served:
        served.bus = memory_bus
        asked = [asyncio.create_task(served.command("submit", job("alice"))) for _ in range(4)]
        await eventually(lambda: log.asked == 1)
        code, message = await refusal(served.command("submit", job("alice")))
        size = len(json.dumps(job("alice"), separators=(",", ":")))
        assert code == 429
        assert message == (
            f"alice has 3 submissions of {3 * size} bytes waiting already, and 3 of 67,108,864 bytes are the most for "
            "one user; try again once some are answered"
        )
        other = asyncio.create_task(served.command("submit", job("bob")))
        log.released.set()
        assert all(answer["created"] for answer in await asyncio.gather(other, *asked))
        assert (await served.command("submit", job("alice")))["created"]  # nothing waits any more


async def test_copies_of_a_submission_wait_once_and_are_told_of_one_job(
    memory_bus: MemoryBus,
) -> None:
    log = SlowLog(memory_bus.server)
    async with gateway(log, settings=settings(concurrent_commands=1, waiting_commands=2)) as served:
        served.bus = memory_bus
        bodies = [job("alice", f"j{number}") for number in range(3)]
        asked = [asyncio.create_task(served.command("submit", body)) for body in bodies * 5]
        await eventually(lambda: log.asked == 1)
        log.released.set()
        answers = await asyncio.gather(*asked)
        assert [answer["created"] for answer in answers] == [True] * 3 + [False] * 12
        assert len({(answer["id"], answer["seq"]) for answer in answers}) == 3
        assert len(await users_of_stored_jobs(served)) == 3


async def test_submissions_without_an_id_are_as_many_jobs_however_alike_they_are(memory_bus: MemoryBus) -> None:
    async with gateway(memory_bus, settings=settings()) as served:
        await asyncio.gather(*(served.command("submit", job("alice")) for _ in range(3)))
        assert len(await users_of_stored_jobs(served)) == 3


async def test_a_submission_that_is_asked_again_counts_for_the_rate(memory_bus: MemoryBus) -> None:
    log = SlowLog(memory_bus.server)
    async with gateway(log, settings=settings(commands_at_once=2, commands_per_s=0.01)) as served:
        served.bus = memory_bus
        asked = [asyncio.create_task(served.command("submit", job("alice", "j1"))) for _ in range(2)]
        await eventually(lambda: log.asked == 1)
        code, message = await refusal(served.command("submit", job("alice", "j1")))
        assert (code, message.split(";")[0]) == (429, "alice has sent too many commands of late")
        log.released.set()
        await asyncio.gather(*asked)


async def test_large_bodies_of_one_user_that_wait_are_bounded_by_their_bytes(memory_bus: MemoryBus) -> None:
    log = SlowLog(memory_bus.server)
    large = job("alice", params={"text": "x" * 10_000})
    async with gateway(log, settings=settings(concurrent_commands=1, waiting_bytes=25_000)) as served:
        served.bus = memory_bus
        asked = [asyncio.create_task(served.command("submit", large)) for _ in range(3)]
        await eventually(lambda: log.asked == 1)
        code, message = await refusal(served.command("submit", large))
        assert (code, "alice has 2 submissions of 20," in message) == (429, True)
        log.released.set()
        await asyncio.gather(*asked)


async def test_who_sends_too_many_commands_is_told_how_long_to_wait(memory_bus: MemoryBus) -> None:
    async with gateway(memory_bus, settings=settings(commands_at_once=3, commands_per_s=0.01)) as served:
        for _ in range(3):
            await served.command("submit", job("alice"))
        code, message = await refusal(served.command("cancel", {"id": "a", "by": "alice"}))
        assert code == 429
        assert message.startswith("alice has sent too many commands of late; try again in ")
        assert (await served.command("submit", job("bob")))["created"]


async def test_open_jobs_are_limited_for_each_user_until_some_are_over(memory_bus: MemoryBus) -> None:
    async with gateway(memory_bus, joined(), settings=settings(open_jobs=2)) as served:
        for job_id in ("j1", "j2"):
            await served.command("submit", job("alice", job_id))
        assert await refusal(served.command("submit", job("alice", "j3"))) == (
            429,
            "alice has 2 open jobs, and 2 are the most for one user; wait until some are over, cancel some, or ask an "
            "operator to raise `open_jobs` in [gateway], or an admin to give you more (`penstock user set`)",
        )
        assert not (await served.command("submit", job("alice", "j1")))["created"]  # said again: not one more
        await served.command("submit", job("bob", "j4"))
        await served.told(placed("j1"), started("j1"), ended("j1"))
        await served.command("cancel", {"id": "j2"})
        for job_id in ("j3", "j5"):
            assert (await served.command("submit", job("alice", job_id)))["created"]
        assert (await refusal(served.command("submit", job("alice", "j6"))))[0] == 429


async def test_submissions_that_are_being_stored_count_too(memory_bus: MemoryBus) -> None:
    log = SlowLog(memory_bus.server)
    async with gateway(log, settings=settings(open_jobs=5)) as served:
        served.bus = memory_bus
        asked = [asyncio.create_task(refusal_or_id(served, job("alice"))) for _ in range(20)]
        await eventually(lambda: log.asked == 5)
        log.released.set()
        assert sorted(await asyncio.gather(*asked)) == ["429"] * 15 + ["created"] * 5


async def refusal_or_id(served: Gateway, body: Any) -> str:
    try:
        await served.command("submit", body)
    except ServiceError as error:
        return str(error.code)
    return "created"


async def test_a_sweep_counts_its_trials_and_they_are_not_refused(memory_bus: MemoryBus) -> None:
    def trial(number: int) -> dict[str, Any]:
        return job("alice", f"s1-{number}", parent="s1")

    sweep = {**msgspec.to_builtins(sweep_spec(id="s1", trials=3)), "job": job("alice")}
    async with gateway(memory_bus, joined(), settings=settings(open_jobs=4)) as served:
        code, message = await refusal(served.command("tune", {**sweep, "trials": 5}))
        assert (code, message) == (
            429,
            "alice has 0 open jobs, this sweep may have 5 trials open at a time, and 4 jobs are the most for one user; "
            "give it a lower `concurrency`, wait until some are over, cancel some, or ask an operator to raise "
            "`open_jobs` in [gateway], or an admin to give you more (`penstock user set`)",
        )
        assert (await served.command("tune", {**sweep, "id": "s0", "trials": 50, "concurrency": 1}))["created"]
        await served.command("cancel_sweep", {"id": "s0"})
        assert (await served.command("tune", sweep))["created"]
        assert (await served.command("submit", job("alice", "j1")))["created"]
        assert (await refusal(served.command("submit", job("alice", "j2"))))[0] == 429
        for number in range(3):
            assert (await served.command("submit", trial(number)))["created"]
        assert (await refusal(served.command("submit", trial(3))))[0] == 429  # a name of its own is no way around
        await served.command("cancel", {"id": "s1-0"})
        assert (await served.command("submit", trial(3)))["created"]  # one that is tried again
        await served.command("cancel_sweep", {"id": "s1"})
        await eventually_created(served, job("alice", "j2"))


async def eventually_created(served: Gateway, body: Any) -> None:
    async def created() -> bool:
        return await refusal_or_id(served, body) == "created"

    await eventually(created)


async def test_what_the_inbox_holds_beyond_a_users_limit_is_kept_with_the_reason(memory_bus: MemoryBus) -> None:
    async with gateway(memory_bus, settings=settings(open_jobs=1)):
        for number in range(2):
            await memory_bus.submit(subjects.INBOX_JOBS, json.dumps(job("alice", f"j{number}")).encode())
        await eventually(lambda: len(memory_bus.server.work) == 0)
        (rejection,) = await memory_bus.rejections()
        assert rejection.reason.startswith("alice has 1 open job, and 1 are the most for one user")
        assert json.loads(rejection.body)["id"] == "j1"


async def test_a_job_may_begin_from_one_that_is_being_stored(memory_bus: MemoryBus) -> None:
    log = SlowLog(memory_bus.server)
    async with gateway(log, settings=settings()) as served:
        served.bus = memory_bus
        first = asyncio.create_task(served.command("submit", job("alice", "j1", keep_checkpoint=True)))
        await eventually(lambda: log.asked == 1)
        second = asyncio.create_task(served.command("submit", job("alice", "j2", begins_from="j1")))
        await asyncio.sleep(0)
        log.released.set()
        assert (await first)["created"]
        assert (await second)["created"]


async def test_a_gateway_that_stops_answers_what_waits_that_nothing_was_accepted(memory_bus: MemoryBus) -> None:
    log = SlowLog(memory_bus.server)
    async with gateway(log, settings=settings(concurrent_commands=1)) as served:
        served.bus = memory_bus
        asked = [asyncio.create_task(refusal_or_id(served, job("alice"))) for _ in range(5)]
        await eventually(lambda: log.asked == 1)
        served.shell.stopping.set()
        log.released.set()
        answers = await asyncio.gather(*asked)
    assert answers.count("503") >= 4
    assert len(await memory_bus.read("penstock.evt.job.*")) <= 1


async def test_submissions_that_a_stopping_gateway_had_looked_at_go_to_another(memory_bus: MemoryBus) -> None:
    log = SlowLog(memory_bus.server)
    async with gateway(log, settings=settings(concurrent_commands=1)):
        for number in range(20):
            await memory_bus.submit(subjects.INBOX_JOBS, json.dumps(job("alice", f"j{number}")).encode())
        await eventually(lambda: log.asked == 1)
    async with gateway(memory_bus) as other:
        await eventually(lambda: len(memory_bus.server.work) == 0)
        assert len(await users_of_stored_jobs(other)) == 20


async def test_the_count_of_open_jobs_survives_a_snapshot_and_a_cancelled_sweep(memory_bus: MemoryBus) -> None:
    facts = [
        SweepSubmitted(at_s=1.0, sweep_id="s1", spec=sweep_spec(id="s1", trials=2, job=spec(user="alice"))),
        submitted("t1", user="alice", parent="s1"),
        SweepCancelled(at_s=2.0, sweep_id="s1"),
        submitted("j1", user="alice"),
    ]
    async with gateway(memory_bus, *facts, settings=settings(open_jobs=1)) as served:
        code, message = await refusal(served.command("submit", job("alice", "j2")))
        assert (code, message.split(",")[0] in {"alice has 1 open job", "alice has 2 open jobs"}) == (429, True)
    snapshot = await memory_bus.load_snapshot("gateway")
    assert snapshot is not None
    async with gateway(memory_bus, settings=settings(open_jobs=1)) as again:
        assert (await refusal(again.command("submit", job("alice", "j2"))))[0] == 429
        await again.command("cancel", {"id": "j1"})
        await eventually_created(again, job("alice", "j2"))


async def test_submissions_that_wait_long_for_their_turn_are_held_and_taken_once(
    memory_bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "_HOLD_S", 0.01)
    server, log = memory_bus.server, SlowLog(memory_bus.server)
    log.ack_wait_s = 1.0
    for number in range(20):
        await memory_bus.submit(subjects.INBOX_JOBS, json.dumps(job("alice", f"j{number}")).encode())
    async with gateway(log, settings=settings(concurrent_commands=1)) as served:
        served.bus = memory_bus
        await eventually(lambda: log.asked == 1)
        begun_s = server.now()
        await eventually(lambda: server.now() - begun_s > 1.2)  # unheld, each would be delivered again by now
        assert {message.deliveries for message in server.work._messages.values()} == {1}
        log.released.set()
        await eventually(lambda: len(server.work) == 0)
        assert len(await users_of_stored_jobs(served)) == 20


async def test_questions_of_one_kind_are_answered_one_at_a_time_of_all_users_in_turn() -> None:
    queues = UserQueues("queries of this kind", slots=1, most=5, most_bytes=1_000, rate=None, now_s=lambda: 0.0)
    release, order = asyncio.Event(), []

    async def admit(_: str, user: str) -> str:
        return user

    async def answer(_: bytes, caller: str) -> StatusView:
        order.append(caller)
        await release.wait()
        raise RequestRefused(404, "there is none")

    made = endpoints.endpoint(
        "jobs", "penstock.qry.gateway.jobs", admit, answer, 1_000, most_s=60.0, in_turn=queues.slot
    )
    assert made.concurrent
    asked = [
        asyncio.create_task(made.handler(Request(body=b"{}", user=u))) for u in ["alice"] * 5 + ["bob"] + ["alice"]
    ]
    await eventually(lambda: order == ["alice"])
    release.set()
    assert [(await one).code for one in asked] == [404] * 7
    assert order == ["alice", "alice", "bob", "alice", "alice", "alice", "alice"]


async def test_too_many_questions_of_one_user_are_refused_and_another_still_asks() -> None:
    queues = UserQueues("queries of this kind", slots=1, most=1, most_bytes=1_000, rate=None, now_s=lambda: 0.0)
    async with queues.slot("alice", 2):
        waiting = asyncio.create_task(held_by(queues, "alice"))
        await eventually(lambda: queues.waiting("alice") == 1)
        with pytest.raises(
            RequestRefused, match="alice has 1 queries of this kind of 2 bytes waiting already, and 1 of"
        ):
            await held_by(queues, "alice")
        other = asyncio.create_task(held_by(queues, "bob"))
        await eventually(lambda: queues.waiting("bob") == 1)
    await asyncio.gather(waiting, other)


async def held_by(queues: UserQueues, user: str) -> None:
    async with queues.slot(user, 2):
        pass


async def test_what_an_admin_sets_for_a_user_counts_in_place_of_the_settings(memory_bus: MemoryBus) -> None:
    async with gateway(memory_bus, settings=settings(open_jobs=2, owner="olga")) as served:
        olga, alice, bob = (
            Gateway(MemoryBus(memory_bus.server, user=who), served.shell) for who in ("olga", "alice", "bob")
        )
        for user in ("alice", "bob"):
            await olga.command("set_user", {"user": user})
        said = (await olga.command("set_user", {"user": "alice", "open_jobs": 3}))["message"]
        assert said == "alice is a user in no team, with 3 open jobs at most"
        assert (await alice.query("whoami"))["open_jobs"] == 3
        for _ in range(3):
            await alice.command("submit", JOB)
        code, message = await refusal(alice.command("submit", JOB))
        assert (code, message) == (
            429,
            "alice has 3 open jobs, and 3 are the most that an admin has set for alice; wait until some are over, "
            "cancel some, or ask an admin for more (`penstock user set --open-jobs`)",
        )
        await olga.command("set_user", {"user": "bob", "open_jobs": 0})
        assert (await refusal(bob.command("submit", JOB)))[0] == 429
        await olga.command("set_user", {"user": "bob", "role": "viewer"})  # which leaves the rest as it was
        (_, seen, _) = (await olga.query("users"))["users"]
        assert (seen["name"], seen["open_jobs"]) == ("bob", 0)
        said = (await olga.command("set_user", {"user": "bob", "role": "user", "unset": ["open_jobs"]}))["message"]
        assert said == "bob is a user in no team"
        for _ in range(2):
            await bob.command("submit", JOB)
        code, message = await refusal(bob.command("submit", JOB))
        assert (code, "2 are the most for one user; wait" in message) == (429, True)


async def test_a_rate_of_ones_own_is_told_when_it_is_exceeded_and_stays_over_rotations(memory_bus: MemoryBus) -> None:
    async with gateway(
        memory_bus, settings=settings(owner="olga", commands_per_s=100.0, commands_at_once=200)
    ) as served:
        olga, alice = (Gateway(MemoryBus(memory_bus.server, user=who), served.shell) for who in ("olga", "alice"))
        said = (await olga.command("set_user", {"user": "alice", "commands_per_s": 0.001}))["message"]
        assert said == "alice is a user in no team, with 0.001 commands a second at most"
        await olga.command("set_user", {"user": "alice", "revoke": True})
        await alice.command("submit", JOB)
        code, message = await refusal(alice.command("submit", JOB))
        assert (code, message.partition(": ")[2]) == (
            429,
            "0.001 a second for long are what an admin has set for alice (`penstock user set --rate`)",
        )
        code, message = await refusal(olga.command("set_user", {"user": "a", "open_jobs": 1, "unset": ["open_jobs"]}))
        assert (code, message) == (400, "$.unset: open_jobs cannot be set and unset at once; leave one of them out")
