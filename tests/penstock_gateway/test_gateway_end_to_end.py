"""The gateway on the bus in memory, asked as any program that speaks JSON would ask it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import jsonschema
import msgspec
import pytest
import pytest_asyncio
from gateway_cases import (
    NOW_S,
    Gateway,
    answer_or_error,
    ended,
    gateway,
    joined,
    placed,
    preempted,
    ranked,
    refusal,
    spec,
    started,
    submitted,
    sweep_spec,
)
from structlog.testing import capture_logs

from penstock_bus import Bus
from penstock_bus.follower import background
from penstock_bus.memory import MemoryBus, MemoryServer
from penstock_bus.shell import Shell
from penstock_gateway.machine import GatewaySettings
from penstock_gateway.runner import run
from penstock_log import (
    DeviceFailed,
    JobFinished,
    JobSubmitted,
    NodeLeft,
    RoundDecided,
    Trial,
    TrialGroupOpened,
    subjects,
)
from penstock_testing.fixtures import eventually

JOB = {"name": "mnist", "command": ["python", "train.py"]}


@pytest.fixture(params=["memory", "nats"])
def bus(request: pytest.FixtureRequest) -> Bus:
    return cast("Bus", request.getfixturevalue(f"{request.param}_bus"))


@pytest_asyncio.fixture
async def served(bus: Bus) -> AsyncIterator[Gateway]:
    async with gateway(bus, joined(fast=2, slow=2, cpu=1)) as running:
        yield running


@pytest.mark.slow
async def test_a_bare_job_is_accepted_under_a_short_id_and_stands_in_the_log(served: Gateway) -> None:
    answer = await served.command("submit", JOB)
    assert answer["created"] is True
    assert answer["warnings"] == []
    assert len(answer["id"]) == 8
    stored = await served.bus.last(subjects.job(answer["id"]))
    assert stored is not None
    assert stored.seq == answer["seq"]
    (fact,) = stored.commit.facts
    assert isinstance(fact, JobSubmitted)
    assert fact.spec.id == fact.job_id == answer["id"]


async def test_a_submitted_job_is_known_to_the_very_next_question(served: Gateway) -> None:
    for number in range(20):
        answer = await served.command("submit", {**JOB, "id": f"j{number}"})
        assert (await served.query("job", {"id": answer["id"]}))["job"]["state"] == "PD"


async def test_the_same_id_with_equal_content_gets_the_same_answer(served: Gateway) -> None:
    first = await served.command("submit", {**JOB, "id": "j1"})
    again = await served.command("submit", {"spec": {**JOB, "id": "j1", "gpus": 1}, "strict": True})
    assert (again["id"], again["seq"], again["created"]) == (first["id"], first["seq"], False)


async def test_the_same_id_with_other_content_is_a_conflict_that_says_what_differs(served: Gateway) -> None:
    await served.command("submit", {**JOB, "id": "j1"})
    code, message = await refusal(served.command("submit", {**JOB, "id": "j1", "gpus": 2, "name": "cifar"}))
    assert code == 409
    assert message == (
        'job j1 is there already with other content: name ("mnist", now "cifar"), gpus (1, now 2); '
        "choose another id, or leave the id out"
    )


async def test_many_submissions_of_one_id_at_once_make_one_job(served: Gateway) -> None:
    answers = await asyncio.gather(*(served.command("submit", {**JOB, "id": "j1"}) for _ in range(10)))
    assert sorted(answer["created"] for answer in answers) == [False] * 9 + [True]
    assert len({answer["seq"] for answer in answers}) == 1


async def test_two_gateways_accept_one_id_once(memory_bus: MemoryBus) -> None:
    async with gateway(memory_bus, joined()) as one, gateway(MemoryBus(memory_bus.server)) as other:
        asked = [which.command("submit", {**JOB, "id": f"j{i}"}) for i in range(20) for which in (one, other)]
        answers = await asyncio.gather(*asked)
        assert sum(answer["created"] for answer in answers) == 20
        assert len(await memory_bus.read("penstock.evt.job.*")) == 20


async def test_what_one_gateway_accepted_every_other_knows_at_once(memory_bus: MemoryBus) -> None:
    async with gateway(memory_bus, joined()) as one, gateway(MemoryBus(memory_bus.server)):
        for i in range(20):  # the requests go to the two in turn
            await one.command("submit", {**JOB, "id": f"j{i}"})
            assert (await one.command("hold", {"id": f"j{i}"}))["changed"]
            assert (await one.query("job", {"id": f"j{i}"}))["job"]["held"]


@pytest.mark.slow
async def test_while_the_log_is_away_nothing_is_accepted_and_the_answer_says_so(memory_bus: MemoryBus) -> None:
    quick = GatewaySettings(append_timeout_s=0.5)
    async with gateway(MemoryBus(memory_bus.server), joined(), settings=quick) as served:
        served.bus, away = memory_bus, cast("MemoryBus", served.bus)
        away.disconnect()
        code, message = await refusal(served.command("submit", {**JOB, "id": "j1"}))
        assert code == 503
        assert message.startswith(
            "the log did not answer in time (nothing was confirmed within 0.5 s: its servers elect"
        )
        assert "try again, with the same id" in message
        away.reconnect()
        assert (await served.command("submit", {**JOB, "id": "j1"}))["created"] is True


@pytest.mark.slow
async def test_while_the_log_elects_a_leader_questions_are_answered_by_what_is_known(memory_bus: MemoryBus) -> None:
    async with gateway(MemoryBus(memory_bus.server), joined()) as served:
        await served.command("submit", {**JOB, "id": "j1"})
        served.bus, away = memory_bus, cast("MemoryBus", served.bus)
        away.disconnect()
        assert (await served.query("job", {"id": "j1"}))["job"]["state"] == "PD"
        away.reconnect()


async def test_a_submission_of_the_inbox_waits_there_however_long_the_log_is_full() -> None:
    async with (
        MemoryBus(max_deliver=2) as bus,
        gateway(bus, joined(), settings=GatewaySettings(retry_s=0.01)) as served,
    ):
        await served.bus.submit(subjects.INBOX_JOBS, msgspec.json.encode({**JOB, "id": "j1"}))
        bus.server.max_store_bytes = 1
        with capture_logs() as logs:
            await eventually(lambda: sum(line["event"] == "submission_waits" for line in logs) > 5)
        assert not await _has_job(served, "j1")
        bus.server.max_store_bytes = None
        await eventually(lambda: _has_job(served, "j1"))
        assert (await served.query("rejected"))["rejected"] == []


async def test_a_bad_submission_is_rejected_with_its_reason_once_there_is_room() -> None:
    async with MemoryBus() as bus, gateway(bus, joined(), settings=GatewaySettings(retry_s=0.01)) as served:
        await served.bus.submit(subjects.INBOX_JOBS, msgspec.json.encode({**JOB, "gpus": 0}))
        bus.server.max_store_bytes = 1
        with capture_logs() as logs:
            await eventually(lambda: any(line["event"] == "submission_waits" for line in logs))
        bus.server.max_store_bytes = None
        await eventually(lambda: _rejected(served, 1))
        (rejected,) = (await served.query("rejected"))["rejected"]
        assert rejected["reason"] == "$.gpus: expected a whole number from 1 to 65536, got 0"


async def test_a_job_that_can_never_fit_waits_with_a_warning_or_is_refused_when_strict(served: Gateway) -> None:
    answer = await served.command("submit", {**JOB, "id": "big", "gpus": 8})
    assert answer["warnings"] == [
        "it can never fit now: needs 8 devices of one kind; pool `default` has 1 cpu of up to 1 GiB, "
        "2 fast of up to 1 GiB, 2 slow of up to 1 GiB (ask for at most 2 devices: there are 2 of one kind)"
    ]
    assert (await served.query("why", {"id": "big"}))["cause"] == "never_fits"
    code, message = await refusal(served.command("submit", {"spec": {**JOB, "gpus": 8}, "strict": True}))
    assert code == 400
    assert message.startswith("refused, as `strict` asks: it can never fit now: needs 8 devices")


async def test_an_unknown_device_kind_is_named_beside_the_known_ones(served: Gateway) -> None:
    answer = await served.command("submit", {**JOB, "kinds": ["h100"]})
    assert answer["warnings"][0] == "unknown device kind h100; known kinds: cpu, fast, slow"
    code, message = await refusal(served.command("submit", {"spec": {**JOB, "kinds": ["h100"]}, "strict": True}))
    assert code == 400
    assert "unknown device kind h100; known kinds: cpu, fast, slow" in message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body is empty; expected a JSON object"),
        (b'{"name": "a" "command": []}', "malformed JSON at line 1, column 14: expected ',' or '}'"),
        (b'{"name": "a", "command": ["x"], "gpu": 2}', "$.gpu: unknown field; did you mean `gpus`?"),
        (
            b'{"name": "a", "command": ["x"], "gpus": "2"}',
            '$.gpus: expected a whole number from 1 to 65536, or a range such as "1..8", got "2"',
        ),
        (b'{"name": "a", "command": ["x"], "gpus": 0}', "$.gpus: expected a whole number from 1 to 65536, got 0"),
        (b'{"name": "a", "command": ["x"], "gpus": -1}', "$.gpus: expected a whole number from 1 to 65536, got -1"),
        (b'{"command": ["x"]}', "$.name: missing; it is required"),
        (b'{"name": "a", "command": []}', "$.command: expected at least 1 element, got 0"),
        (b'{"name": "a", "command": [" "]}', '$.command[0]: expected a program, got " "'),
        (
            b'{"name": "a", "command": ["x"], "id": "A b"}',
            '$.id: expected 1 to 63 lower-case letters, digits, - and _, got "A b"',
        ),
        (
            b'{"name": "a", "command": ["x"], "env": {"A=B": "1"}}',
            '$.env: a variable\'s name is not empty and has no `=`, got "A=B"',
        ),
        (
            b'{"spec": {"name": "a", "command": ["x"], "gpus": 0}}',
            "$.spec.gpus: expected a whole number from 1 to 65536, got 0",
        ),
        (
            b'{"spec": {"name": "a", "command": ["x"]}, "strikt": true}',
            "$.strikt: unknown field; did you mean `strict`?",
        ),
    ],
)
async def test_bad_input_is_answered_with_400_and_what_to_correct(served: Gateway, body: bytes, message: str) -> None:
    before = await served.bus.last_seq()
    assert await refusal(served.command("submit", body)) == (400, message)
    assert await served.bus.last_seq() == before


async def test_a_name_that_is_too_long_is_refused(served: Gateway) -> None:
    code, message = await refusal(served.command("submit", {**JOB, "name": "a" * 64}))
    assert code == 400
    assert message.startswith("$.name: expected 1 to 63 letters, digits, - and _, got ")
    code, message = await refusal(served.command("submit", {**JOB, "user": "u" * 129}))
    assert (code, message) == (400, "$.user: expected 128 printable characters at most, got 129")


async def test_a_body_over_the_limit_is_answered_with_413(served: Gateway) -> None:
    body = msgspec.json.encode({**JOB, "params": {"x": "y" * 300_000}})
    code, message = await refusal(served.command("submit", body))
    assert code == 413
    assert message == f"the body has {len(body)} bytes, and 262144 are accepted at most; send less"


async def test_a_full_disk_is_answered_with_503_and_nothing_acknowledged_is_lost() -> None:
    server = MemoryServer(max_store_bytes=2_000)
    async with gateway(MemoryBus(server), joined()) as served:
        accepted: list[str] = []
        while (refused := await answer_or_error(served.command("submit", {**JOB, "id": f"j{len(accepted)}"}))) is None:
            accepted.append(f"j{len(accepted)}")
        assert refused[0] == 503
        assert refused[1].startswith("the log has no room left, and nothing was accepted")
        assert accepted
        assert [job["id"] for job in (await served.query("jobs"))["jobs"]] == accepted


async def test_cancel_hold_and_release_say_what_happened_and_do_it_once(served: Gateway) -> None:
    await served.command("submit", {**JOB, "id": "abc"})
    held = await served.command("hold", {"id": "ab", "by": "ada"})
    assert (held["id"], held["changed"], held["message"]) == ("abc", True, "job abc is held")
    assert (await served.command("hold", {"id": "abc"}))["message"] == "job abc is held already"
    assert (await served.query("why", {"id": "abc"}))["remedy"] == "penstock release abc"
    assert (await served.command("release", {"id": "abc"}))["message"] == "job abc may start again"
    assert (await served.command("release", {"id": "abc"}))["changed"] is False
    assert (await served.command("cancel", {"id": "abc", "reason": "no need"}))["state"] == "CA"
    again = await served.command("cancel", {"id": "abc"})
    assert (again["changed"], again["message"]) == (False, "job abc was cancelled before")
    assert await refusal(served.command("hold", {"id": "abc"})) == (
        409,
        "job abc was cancelled already; there is nothing to hold",
    )


async def test_an_unknown_id_is_404_with_the_nearest_and_a_short_one_must_be_unique(served: Gateway) -> None:
    for job_id in ("train-1", "train-2"):
        await served.command("submit", {**JOB, "id": job_id})
    assert await refusal(served.command("cancel", {"id": "trian-1"})) == (
        404,
        "no job 'trian-1'; did you mean train-1, train-2?",
    )
    assert await refusal(served.query("why", {"id": "train"})) == (
        409,
        "2 jobs begin with 'train': train-1, train-2; write more of the id",
    )
    assert await refusal(served.query("job", {"id": "mnist"})) == (
        404,
        "no job 'mnist'; that is a name, its ids are train-1, train-2",
    )
    assert await refusal(served.command("drain", {"id": "n9"})) == (404, "no node 'n9'; did you mean n1?")


async def test_a_sweeps_id_where_a_job_is_asked_for_is_told_from_its_trials(served: Gateway) -> None:
    space = {"lr": {"kind": "choice", "values": [0.1]}}
    sweep = {"name": "s", "job": JOB, "space": space, "metric": "acc", "search": "grid", "id": "digits"}
    assert (await served.command("tune", sweep))["created"]
    await served.command("submit", {**JOB, "id": "digits-t000", "parent": "digits"})
    code, told = await refusal(served.query("why", {"id": "digits"}))
    assert (code, told.partition(":")[0]) == (404, "digits is a sweep; expected a job")
    assert "`penstock sweep show digits`" in told


async def test_a_node_is_drained_and_resumed(served: Gateway) -> None:
    drained = await served.command("drain", {"id": "n1", "by": "ops"})
    assert (drained["changed"], drained["state"]) == (True, "drained")
    assert (await served.query("nodes"))["nodes"][0]["state"] == "drained"
    assert (await served.command("drain", {"id": "n1"}))["changed"] is False
    assert (await served.command("drain", {"id": "n1", "preempt": True}))["changed"] is True
    assert (await served.command("resume", {"id": "n1"}))["message"] == "node n1 takes jobs again"
    assert (await served.query("nodes"))["nodes"][0]["state"] == "up"


async def test_one_device_is_drained_and_resumed_and_its_neighbour_is_not(served: Gateway) -> None:
    ask = {"id": "n1", "device": 1, "by": "ops", "reason": "a loud fan"}
    drained = await served.command("drain", ask)
    assert (drained["changed"], drained["message"]) == (True, "device n1/fast1 takes no new jobs; none runs there")
    (node,) = (await served.query("nodes"))["nodes"]
    assert (node["state"], node["devices"][1]["state"], node["devices"][1]["reason"]) == ("up", "drained", "a loud fan")
    assert node["devices"][0]["state"] == ""
    assert (await served.query("status"))["devices"]["fast"]["drained"] == 1
    (view,) = (await served.query("devices"))["nodes"]
    assert view["devices"][1][5:] == ["drained", "a loud fan"]
    assert (await served.command("drain", ask))["changed"] is False
    assert (await served.command("drain", {**ask, "preempt": True}))["changed"] is True
    told = (await served.command("resume", {"id": "n1"}))["message"]
    assert told == "node n1 is not drained, but its device fast1 is: `penstock node resume n1 --device fast1`"
    assert (await served.command("resume", {"id": "n1", "device": 0}))["changed"] is False
    assert (await served.command("resume", {"id": "n1", "device": 1}))["changed"] is True
    assert (await served.query("status"))["devices"]["fast"]["drained"] == 0


async def test_a_device_that_a_node_has_not_got_is_not_drained(served: Gateway) -> None:
    answer = await refusal(served.command("drain", {"id": "n1", "device": 7}))
    assert answer == (404, "$.device: node n1 has no device 7; expected 0 to 4")


async def test_a_failed_device_counts_as_failed_and_an_operator_may_resume_it(served: Gateway) -> None:
    reason = "XID 79: the GPU has fallen off the bus"
    await served.told(DeviceFailed(at_s=NOW_S, node_id="n1", index=0, code="xid 79", reason=reason))
    assert (await served.query("status"))["devices"]["fast"] == {
        "busy": 0,
        "idle": 1,
        "lost": 0,
        "leaving": 0,
        "drained": 0,
        "failed": 1,
    }
    answer = await served.command("resume", {"id": "n1", "device": 0})
    assert answer["message"].startswith(f"device n1/fast0 takes jobs again, although it had failed ({reason})")


@pytest.mark.parametrize(
    ("running", "preempt", "said"),
    [
        (0, False, "none runs there"),
        (1, False, "1 running job ends there"),
        (2, False, "2 running jobs end there"),
        (1, True, "1 running job is moved"),
        (2, True, "2 running jobs are moved"),
    ],
)
async def test_what_a_drain_does_is_told_in_the_right_number(
    served: Gateway, running: int, preempt: bool, said: str
) -> None:
    for job_id in ("a", "b")[:running]:
        await served.command("submit", {**JOB, "id": job_id})
        await served.told(placed(job_id), started(job_id))
    answer = await served.command("drain", {"id": "n1", "preempt": preempt})
    assert answer["message"] == f"node n1 takes no new jobs; {said}"


async def test_a_sweeps_job_has_the_sweeps_name_where_it_has_none(served: Gateway) -> None:
    space = {"lr": {"kind": "choice", "values": [0.1]}}
    job = {name: value for name, value in JOB.items() if name != "name"}
    await served.command(
        "tune", {"name": "s", "job": job, "space": space, "metric": "acc", "id": "digits", "trials": 1}
    )
    assert (await served.query("sweep", {"id": "digits"}))["spec"]["job"]["name"] == "s"


async def test_a_node_is_removed_once_it_is_gone_and_nothing_runs_there(served: Gateway) -> None:
    code, told = await refusal(served.command("remove", {"id": "n1"}))
    assert (code, told) == (
        409,
        "node n1 is up; stop its executor first, or keep jobs off it with `penstock node drain n1`",
    )
    await served.command("submit", {**JOB, "id": "a"})
    await served.told(placed("a"), started("a"), NodeLeft(at_s=NOW_S + 3, node_id="n1"))
    code, told = await refusal(served.command("remove", {"id": "n1"}))
    assert (code, told) == (409, "1 run on node n1 may still go on; try again once the node is lost")
    await served.told(RoundDecided(at_s=NOW_S + 4, pool="default", lost_nodes=("n1",)))
    removed = await served.command("remove", {"id": "n1", "by": "ops", "reason": "scrapped"})
    assert (removed["changed"], removed["state"]) == (True, "removed")
    assert (await served.query("nodes"))["nodes"] == []
    assert await refusal(served.command("remove", {"id": "n1"})) == (404, "no node 'n1'; there is none at all")
    await served.told(joined())
    assert [(node["id"], node["state"]) for node in (await served.query("nodes"))["nodes"]] == [("n1", "up")]


async def test_a_sweep_is_accepted_checked_and_cancelled_with_its_trials(served: Gateway) -> None:
    answer = await served.command("tune", sweep_spec(id="s1"))
    assert (answer["id"], answer["created"]) == ("s1", True)
    assert (await served.command("tune", {"spec": sweep_spec(id="s1")}))["created"] is False
    opened = TrialGroupOpened(at_s=NOW_S, sweep_id="s1", group=0, trials=(Trial(job_id="s1-0", params={"lr": 0.5}),))
    await served.told(opened)
    await served.bus.submit(subjects.INBOX_JOBS, msgspec.json.encode(spec(id="s1-0", parent="s1")))
    await eventually(lambda: _has_job(served, "s1-0"))
    cancelled = await served.command("cancel_sweep", {"id": "s1", "by": "ada"})
    assert cancelled["message"] == "sweep s1 is being cancelled, and 1 trial with it"
    await eventually(lambda: _state(served, "s1-0", "CA"))
    sweep = await served.query("sweep", {"id": "s1"})
    assert sweep["state"] == "cancelling"
    assert sweep["trials"][0]["state"] == "CA"
    assert (await served.command("cancel_sweep", {"id": "s1"}))["changed"] is False


async def test_a_sweep_whose_trials_would_be_refused_is_refused_itself(served: Gateway) -> None:
    padding = 262_144 - len(msgspec.json.encode(sweep_spec())) - len('"env":{"P":"","Q":""},') - 10
    env = {"P": "x" * (padding // 2), "Q": "x" * (padding - padding // 2)}  # one variable may not be as long
    code, message = await refusal(served.command("tune", sweep_spec(job=spec(env=env))))
    assert code == 400
    assert message.startswith("$.job: with a point of the space, it would be refused as a trial: the body has 26")
    assert message.endswith(" bytes, and 262144 are accepted at most; send less")
    assert (await served.query("sweeps"))["sweeps"] == []


async def test_a_sweep_whose_space_makes_no_sense_is_refused(served: Gateway) -> None:
    body = {**msgspec.to_builtins(sweep_spec()), "space": {"lr": {"kind": "uniform", "low": 1.0, "high": 0.1}}}
    assert await refusal(served.command("tune", body)) == (
        400,
        "$.space.lr: low 1.0 is not below high 0.1; expected low < high",
    )
    body["space"] = {"lr": {"kind": "unifrom", "low": 0.1, "high": 1.0}}
    code, message = await refusal(served.command("tune", body))
    assert code == 400
    assert message.startswith('$.space.lr.kind: expected one of "choice", "uniform", "int", got "unifrom"')


async def test_the_inbox_takes_good_jobs_and_rejects_bad_ones_with_the_reason(served: Gateway) -> None:
    await served.bus.submit(subjects.INBOX_JOBS, b'{"name": "a", "command": ["x"], "id": "good"}')
    await served.bus.submit(subjects.INBOX_JOBS, b'{"name": "a", "command": ["x"], "gpus": 0}')
    await served.bus.submit(subjects.INBOX_JOBS, b'{"name": "a", "command": ["x"], "id": "good"}')
    await served.bus.submit(subjects.INBOX_JOBS, b'{"name": "b", "command": ["x"], "id": "good"}')
    await served.bus.submit(subjects.INBOX_SWEEPS, b"{")
    await eventually(lambda: _rejected(served, 3))
    reasons = sorted(one["reason"] for one in (await served.query("rejected"))["rejected"])
    assert reasons[0] == "$.gpus: expected a whole number from 1 to 65536, got 0"
    assert reasons[1].startswith("job good is there already with other content: name")
    assert reasons[2] == "malformed JSON: it ends too early"
    assert len(await served.bus.read(subjects.job("good"))) == 1


async def test_a_job_without_id_in_the_inbox_is_one_job_and_two_messages_are_two(served: Gateway) -> None:
    for _ in range(2):
        await served.bus.submit(subjects.INBOX_JOBS, msgspec.json.encode(JOB))
    await eventually(lambda: _has_jobs(served, 2))


async def test_the_end_of_a_job_is_announced_once(served: Gateway) -> None:
    await served.command("submit", {**JOB, "id": "j1", "user": "ada"})
    await served.told(placed("j1", 0), started("j1"), ended("j1", steps=30, metrics={"accuracy": 0.9}))
    await eventually(lambda: _announced(served, "j1"))
    (fact,) = (await served.bus.read(subjects.job("j1")))[-1].commit.facts
    assert isinstance(fact, JobFinished)
    assert (fact.state, fact.steps, fact.metrics, fact.user) == ("completed", 30, {"accuracy": 0.9}, "ada")
    view = (await served.query("job", {"id": "j1"}))["job"]
    assert (view["state"], view["devices"], view["run_s"]) == ("CD", ["n1/fast0"], 3.0)


async def test_two_gateways_announce_the_end_of_a_job_once(memory_bus: MemoryBus) -> None:
    async with gateway(memory_bus, joined()) as one, gateway(MemoryBus(memory_bus.server)):
        await one.told(*(submitted(f"j{i}") for i in range(10)))
        for i in range(10):
            await one.command("cancel", {"id": f"j{i}"})
        await eventually(lambda: _announced(one, *(f"j{i}" for i in range(10))))
        facts = [fact for d in await memory_bus.read("penstock.evt.job.*") for fact in d.commit.facts]
        assert sum(isinstance(fact, JobFinished) for fact in facts) == 10


async def test_questions_about_the_past_are_answered_as_of_then(served: Gateway) -> None:
    seq = (await served.command("submit", {**JOB, "id": "j1"}))["seq"]
    running_at = await served.told(placed("j1", 0), started("j1"))
    await served.told(ended("j1"))
    await eventually(lambda: _announced(served, "j1"))
    assert (await served.query("job", {"id": "j1", "at": seq}))["job"]["state"] == "PD"
    assert (await served.query("job", {"id": "j1", "at": running_at}))["job"]["state"] == "R"
    assert (await served.query("nodes", {"at": running_at}))["nodes"][0]["devices"][0]["job_id"] == "j1"
    assert (await served.query("jobs", {"at": str(seq - 1)}))["total"] == 0
    stored = await served.bus.read(subjects.run("j1"))
    then = (await served.query("status", {"at": stored[0].stored_s}))["jobs"]
    assert sum(then.values()) == 1
    assert (await served.query("status", {"at": "2001-02-03T04:05:06Z"}))["last_seq"] == 0
    code, message = await refusal(served.query("jobs", {"at": 10_000}))
    assert code == 400
    assert "behind the end of the log" in message
    code, message = await refusal(served.query("jobs", {"at": "yesterday"}))
    assert message == (
        "at='yesterday' is no moment; expected a sequence (120), seconds (1.7e9) or 2026-01-31T12:00:00Z"
    )


async def test_the_story_of_a_job_is_told_from_its_submission_to_its_end(served: Gateway) -> None:
    await served.command("submit", {**JOB, "id": "j1", "user": "ada"})
    await served.told(
        ranked("j1", at_s=NOW_S + 101),
        placed("j1", 0),
        started("j1"),
        preempted("j1", reason="j2 ranks higher"),
        ended("j1", "preempted", steps=10),
        placed("j1", 1, epoch=2, at_s=NOW_S + 6),
        started("j1", epoch=2, at_s=NOW_S + 7),
        ended("j1", epoch=2, steps=30, at_s=NOW_S + 9),
    )
    await eventually(lambda: _announced(served, "j1"))
    lines = (await served.query("story", {"id": "j1"}))["lines"]
    assert [line["text"] for line in lines] == [
        "submitted by ada: 1 device",
        "ranked in queue 0",
        "placed on n1/fast0 (run 1)",
        "started on n1",
        "to be preempted: j2 ranks higher",
        "run preempted on n1 after step 10",
        "placed on n1/fast1 (run 2)",
        "started on n1",
        "run completed on n1 after step 30",
        "completed (ran 5.0 s in 2 runs, 30 steps)",
    ]
    assert lines[0]["after_s"] == 0.0
    assert lines[-1]["cause"] == lines[-2]["seq"]


async def test_events_are_the_raw_facts_of_one_entity_or_of_all(served: Gateway) -> None:
    await served.command("submit", {**JOB, "id": "j1"})
    await served.command("submit", {**JOB, "id": "j2"})
    await served.told(placed("j1", 0), started("j1"))
    one = await served.query("events", {"id": "j1"})
    assert [event["type"] for event in one["events"]] == ["job.submitted.v1", "run.started.v1"]
    everything = await served.query("events", {"after": 0, "limit": 2})
    assert [event["type"] for event in everything["events"]] == ["node.joined.v2", "job.submitted.v1"]
    rest = await served.query("events", {"after": everything["seq"], "limit": 100})
    assert len(rest["events"]) == 3
    newest = await served.query("events", {"limit": 1})
    assert [event["type"] for event in newest["events"]] == ["run.started.v1"]
    assert (await served.query("events", {"after": newest["seq"]}))["events"] == []


async def test_jobs_can_be_filtered(served: Gateway) -> None:
    await served.command("submit", {**JOB, "id": "a1", "user": "ada"})
    await served.command("submit", {**JOB, "id": "a2", "user": "ada", "name": "other"})
    await served.command("submit", {**JOB, "id": "b1", "user": "bob"})
    await served.command("cancel", {"id": "b1"})

    async def ids(**filters: object) -> list[str]:
        return [job["id"] for job in (await served.query("jobs", filters))["jobs"]]

    assert await ids() == ["a1", "a2", "b1"]
    assert await ids(user="ada") == ["a1", "a2"]
    assert await ids(state=["CA"]) == ["b1"]
    assert await ids(name="mn*", user="ada") == ["a1"]
    assert await ids(ids=["b1", "nobody"]) == ["b1"]
    assert await ids(limit=1) == ["b1"]
    code, message = await refusal(served.query("jobs", {"usr": "ada"}))
    assert (code, message) == (400, "$.usr: unknown field; did you mean `user`?")


async def test_a_dry_run_says_where_the_job_would_start_or_why_not(served: Gateway) -> None:
    assert (await served.query("dryrun", {**JOB, "gpus": 2, "kinds": ["slow"]}))["devices"] == ["n1/slow2", "n1/slow3"]
    await served.command("submit", {**JOB, "id": "j1"})
    await served.told(placed("j1", 0))
    await eventually(lambda: _state(served, "j1", "R"))
    would = await served.query("dryrun", {**JOB, "gpus": 2, "kinds": ["fast"], "profile": "off"})
    assert (would["starts"], would["cause"]) == (False, "gang")
    assert would["evidence"] == "needs 2 devices of one kind at once; idle: 1 fast; it is next"
    assert (await served.query("dryrun", {**JOB, "gpus": 9}))["cause"] == "never_fits"
    assert len((await served.query("jobs"))["jobs"]) == 1


async def test_status_counts_jobs_and_devices_and_names_the_services(served: Gateway) -> None:
    await served.command("submit", {**JOB, "id": "j1"})
    await served.told(placed("j1", 0))
    await eventually(lambda: _state(served, "j1", "R"))
    await served.bus.publish(subjects.replica("matcher", "m1"), b"{}")
    await eventually(lambda: _sees(served, "matcher"))
    status = await served.query("status")
    assert status["jobs"] == {"R": 1}
    assert status["devices"]["fast"] == {"busy": 1, "idle": 1, "lost": 0, "leaving": 0, "drained": 0, "failed": 0}
    assert status["nodes"] == {"up": 1}
    assert status["backlog"] == 0


async def test_a_running_jobs_progress_shows_at_once(served: Gateway) -> None:
    await served.command("submit", {**JOB, "id": "j1"})
    await served.told(placed("j1", 0), started("j1"))
    await eventually(lambda: _state(served, "j1", "R"))
    await served.bus.publish(subjects.progress("j1"), b'{"step": 99, "metrics": {"\xff": 0.5}}')  # no progress at all
    await served.bus.publish(subjects.progress("j1"), b'{"step": 17, "metrics": {"loss": 0.5}}')
    await eventually(lambda: _steps(served, "j1", 17))


class LateToServe(MemoryBus):
    """A bus that takes its time to let a service be asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.lets = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def serve(self, *args: Any, **more: Any) -> AsyncIterator[None]:
        self.asked.set()
        await self.lets.wait()
        async with super().serve(*args, **more):
            yield


async def test_a_gateway_is_ready_when_it_can_be_asked_and_not_before() -> None:
    bus = LateToServe()
    shell = Shell(bus, "gateway")
    async with background(run(shell, GatewaySettings())):
        await bus.asked.wait()
        await eventually(lambda: bool(shell.vitals.leading))  # it has caught up, and decides
        assert not shell.vitals.ready
        bus.lets.set()
        await eventually(lambda: shell.vitals.ready)
        await bus.request(subjects.query("status"), b"")


async def test_the_schema_that_is_published_accepts_what_the_gateway_accepts(served: Gateway) -> None:
    schema = await served.query("schema")
    jsonschema.validate(JOB, schema["job"])
    jsonschema.validate(json.loads(msgspec.json.encode(sweep_spec())), schema["sweep"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**JOB, "gpu": 2}, schema["job"])


async def test_deleting_the_snapshots_and_starting_again_gives_the_same_answers(bus: Bus) -> None:
    async with gateway(bus, joined()) as served:
        for i in range(5):
            await served.command("submit", {**JOB, "id": f"j{i}"})
        await served.command("hold", {"id": "j3"})
        before = await served.query("jobs", {"at": await bus.last_seq()})
        live = await served.query("jobs")
    assert await bus.load_snapshot("gateway") is not None
    await bus.delete_snapshots()
    async with gateway(bus) as served:
        assert await served.query("jobs", {"at": before["seq"]}) == before
        after = await served.query("jobs")
        assert [(job["id"], job["held"]) for job in after["jobs"]] == [(j["id"], j["held"]) for j in live["jobs"]]
        assert (await served.command("submit", {**JOB, "id": "j1"}))["created"] is False


async def _has_job(served: Gateway, job_id: str) -> bool:
    return any(job["id"] == job_id for job in (await served.query("jobs"))["jobs"])


async def _has_jobs(served: Gateway, number: int) -> bool:
    return (await served.query("jobs"))["total"] == number


async def _state(served: Gateway, job_id: str, state: str) -> bool:
    return any(job["id"] == job_id and job["state"] == state for job in (await served.query("jobs"))["jobs"])


async def _steps(served: Gateway, job_id: str, steps: int) -> bool:
    return bool((await served.query("job", {"id": job_id}))["job"]["steps"] == steps)


async def _rejected(served: Gateway, number: int) -> bool:
    return len((await served.query("rejected"))["rejected"]) == number


async def _announced(served: Gateway, *job_ids: str) -> bool:
    for job_id in job_ids:
        last = await served.bus.last(subjects.job(job_id))
        if last is None or not any(isinstance(fact, JobFinished) for fact in last.commit.facts):
            return False
    return not (await served.query("status"))["backlog"]


async def _sees(served: Gateway, service: str) -> bool:
    return any(replica["service"] == service for replica in (await served.query("status"))["services"])


async def test_a_command_that_is_asked_of_two_gateways_at_once_is_carried_out_once(memory_bus: MemoryBus) -> None:
    sweep = {
        "name": "s",
        "metric": "x",
        "trials": 1,
        "job": JOB,
        "space": {"lr": {"kind": "uniform", "low": 0, "high": 1}},
    }
    asked = [
        ("submit", {"spec": {**JOB, "id": "j1"}}),
        ("hold", {"id": "j1"}),
        ("release", {"id": "j1"}),
        ("cancel", {"id": "j1"}),
        ("tune", {"spec": {**sweep, "id": "s1"}}),
        ("cancel_sweep", {"id": "s1"}),
        ("drain", {"id": "n1"}),
        ("resume", {"id": "n1"}),
        ("policy", {"pool": "default", "set": {"order": "fifo"}}),
    ]
    async with gateway(memory_bus, joined()) as one, gateway(MemoryBus(memory_bus.server)):
        for name, body in asked:
            before = await memory_bus.last_seq()
            answers = await asyncio.gather(*(one.command(name, body) for _ in range(6)))
            assert len({answer["id"] for answer in answers}) == 1
            stored = [type(fact) for d in await memory_bus.read("penstock.evt.>", before) for fact in d.commit.facts]
            assert len(stored) == len(set(stored)), name
            assert sum(answer.get("created", answer.get("changed")) for answer in answers) == 1
