"""Many jobs by one request: submissions, and acts on all that ids or a filter name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest
import pytest_asyncio
from gateway_cases import (
    NOW_S,
    Gateway,
    ended,
    gateway,
    joined,
    placed,
    refusal,
    spec,
    started,
    submitted,
    sweep_spec,
)

from penstock.client import Client
from penstock_bus import Append, BatchRefused, ServiceError, Unavailable
from penstock_bus.memory import MemoryBus
from penstock_cli.commands import acts
from penstock_cluster.allocations import Allocation
from penstock_gateway.machine import GatewaySettings
from penstock_gateway.pilot_outlooks import PilotOutlooks
from penstock_log import (
    AllocationAdded,
    AllocationSpec,
    Job,
    JobCancelled,
    JobHeld,
    JobsArchived,
    JobSpec,
    JobTable,
    UserSet,
    subjects,
)
from penstock_log.spec import ArrayMember

JOB = {"name": "mnist", "command": ["python", "train.py"]}
PEOPLE = [
    UserSet(user="uma", role="user", teams=("vision",), at_s=NOW_S),
    UserSet(user="bob", role="user", at_s=NOW_S),
    UserSet(user="oskar", role="operator", at_s=NOW_S),
]


@pytest_asyncio.fixture
async def served() -> AsyncIterator[Gateway]:
    of_bob = [submitted(f"b{i}", user="bob", name="secret", pool="big") for i in range(2)]
    of_uma = [submitted(f"u{i}", user="uma", team="vision", name=f"train-{i % 2}", model="m") for i in range(4)]
    facts = (*PEOPLE, *of_bob, *of_uma, placed("u3"), JobHeld(job_id="u0", at_s=NOW_S))
    async with MemoryBus() as bus, gateway(bus, joined(), *facts) as running:
        yield running


def as_user(served: Gateway, name: str) -> Gateway:
    return Gateway(MemoryBus(served.bus.server, user=name), served.shell)  # type: ignore[attr-defined]


def told(answer: dict[str, Any]) -> list[tuple[str, object]]:
    """Return each job with what became of it: its state, or the code with which it was refused."""
    return [(one["id"], one.get("code") or one["state"]) for one in answer["answers"]]


def member_of_exp(index: int) -> dict[str, Any]:
    return {"id": "exp", "index": index, "count": 4, "max": 3}


async def submit_array(served: Gateway) -> None:
    for index in range(4):
        await served.command("submit", {**JOB, "id": f"exp-{index}", "array": member_of_exp(index), "retries": 0})


async def test_many_jobs_are_cancelled_each_by_a_fact_of_its_own(served: Gateway) -> None:
    answer = await served.command("bulk", {"verb": "cancel", "ids": ["u0", "u1", "u3"], "by": "uma", "reason": "late"})
    assert told(answer) == [("u0", "CA"), ("u1", "CA"), ("u3", "CG")]
    assert (answer["matched"], answer["changed"], answer["refused"]) == (3, 3, 0)
    for job_id in ("u0", "u1", "u3"):
        facts = [fact for stored in await served.bus.read(subjects.job(job_id)) for fact in stored.commit.facts]
        cancelled = [fact for fact in facts if isinstance(fact, JobCancelled)]
        assert [(fact.by, fact.reason) for fact in cancelled] == [("uma", "late")]


async def test_the_same_request_again_changes_nothing(served: Gateway) -> None:
    for changed in (2, 0):
        answer = await served.command("bulk", {"verb": "cancel", "ids": ["u0", "u1"]})
        assert (answer["changed"], answer["refused"], told(answer)) == (changed, 0, [("u0", "CA"), ("u1", "CA")])


async def test_one_job_that_is_refused_keeps_no_other(served: Gateway) -> None:
    answer = await as_user(served, "uma").command("bulk", {"verb": "hold", "ids": ["u1", "b0", "nope", "u", "u2"]})
    assert told(answer) == [("u1", "PD"), ("b0", 403), ("nope", 404), ("u", 409), ("u2", "PD")]
    assert (answer["changed"], answer["refused"]) == (2, 3)
    assert answer["answers"][1]["error"] == "job b0 is bob's, and uma is no operator; ask its owner"


async def test_who_acts_is_who_the_server_says(served: Gateway) -> None:
    await as_user(served, "oskar").command("bulk", {"verb": "cancel", "ids": ["b0"], "by": "bob"})
    assert "cancelled by oskar" in str(await served.query("story", {"id": "b0"}))


async def test_a_filter_chooses_what_the_verb_would_change(served: Gateway) -> None:
    for verb, where, expected in (
        ("hold", {"user": "uma"}, ["u1", "u2", "u3"]),
        ("release", {"name": "*"}, ["u0"]),
        ("cancel", {"team": "vision", "state": ["PD"]}, ["u0", "u1", "u2"]),
        ("cancel", {"pool": "big"}, ["b0", "b1"]),
        ("cancel", {"name": "train-1"}, ["u1", "u3"]),
        ("cancel", {"name": "train*", "text": "U2"}, ["u2"]),
        ("cancel", {"model": "m", "text": "AIN-1"}, ["u1", "u3"]),
        ("cancel", {"parent": "none"}, []),
    ):
        answer = await served.command("bulk", {"verb": verb, "where": where, "dry_run": True})
        assert [one["id"] for one in answer["answers"]] == expected, where
        assert (answer["matched"], answer["changed"]) == (len(expected), len(expected))
    assert (await served.query("jobs", {"state": ["CA", "CG"]}))["total"] == 0


async def test_a_filter_is_worked_off_in_pages(served: Gateway) -> None:
    after, pages = 0, []
    while True:
        answer = await served.command("bulk", {"verb": "cancel", "where": {"name": "*"}, "limit": 4, "after": after})
        pages.append((answer["matched"], [one["id"] for one in answer["answers"]]))
        if not (after := answer["next"]):
            break
    assert pages == [(6, ["b0", "b1", "u0", "u1"]), (2, ["u2", "u3"])]


async def test_jobs_of_others_that_a_filter_chooses_are_refused_and_left_behind(served: Gateway) -> None:
    uma = as_user(served, "uma")
    first = await uma.command("bulk", {"verb": "cancel", "where": {"state": ["PD", "R"]}, "limit": 2})
    assert told(first) == [("b0", 403), ("b1", 403)]
    rest = await uma.command("bulk", {"verb": "cancel", "where": {"state": ["PD", "R"]}, "after": first["next"]})
    assert (rest["changed"], rest["refused"], rest["next"]) == (4, 0, 0)


async def test_a_name_cannot_be_guessed_by_a_filter(served: Gateway) -> None:
    uma = as_user(served, "uma")
    for where in ({"name": "sec*"}, {"text": "secret"}, {"model": "m", "user": "bob"}):
        assert (await uma.command("bulk", {"verb": "cancel", "where": where, "dry_run": True}))["matched"] == 0
        assert (await uma.query("jobs", where))["total"] == 0
    assert (await uma.query("jobs", {"text": "b0"}))["total"] == 1


async def test_a_request_that_says_nothing_of_which_jobs_is_refused(served: Gateway) -> None:
    for body in ({"verb": "cancel"}, {"verb": "cancel", "ids": ["u0"], "where": {}}):
        code, message = await refusal(served.command("bulk", body))
        assert (code, message.startswith("$: expected either `ids` or `where`")) == (400, True)
    assert (await refusal(served.command("bulk", {"verb": "stop", "ids": ["u0"]})))[0] == 400


async def test_many_jobs_are_submitted_each_by_itself(served: Gateway) -> None:
    fields: list[dict[str, Any]] = [{"id": "m1"}, {"id": "m2", "gpus": "many"}, {"id": "b0"}, {"id": "m3", "gpus": 64}]
    specs = [*({**JOB, **one} for one in fields), 7]
    answer = await as_user(served, "uma").command("submit_all", {"specs": specs})
    assert [(one.get("id", ""), one.get("created", False), one.get("code", 0)) for one in answer["answers"]] == [
        ("m1", True, 0), ("m2", False, 400), ("b0", False, 409), ("m3", True, 0), ("", False, 400),
    ]  # fmt: skip
    assert "$.gpus: expected a whole number" in answer["answers"][1]["error"]
    assert "64" in answer["answers"][3]["warnings"][0]
    job = (await served.query("job", {"id": "m1"}))["job"]
    assert (job["user"], job["team"], job["state"]) == ("uma", "vision", "PD")


async def test_many_submissions_that_come_twice_are_stored_once(served: Gateway) -> None:
    asked = {"specs": [{**JOB, "id": f"k{i}"} for i in range(50)]}
    both = await asyncio.gather(served.command("submit_all", asked), served.command("submit_all", asked))
    created = [sum(one.get("created", False) for one in answer["answers"]) for answer in both]
    assert sum(created) == 50
    assert both[0]["answers"][7]["seq"] == both[1]["answers"][7]["seq"]
    assert (await served.query("jobs", {"name": "mnist"}))["total"] == 50


async def test_submissions_beyond_a_users_open_jobs_are_refused_and_those_before_are_not() -> None:
    settings = GatewaySettings(open_jobs=3)
    async with MemoryBus() as bus, gateway(bus, joined(), settings=settings) as served:
        answer = await served.command(
            "submit_all", {"specs": [{**JOB, "id": f"k{i}", "user": "uma"} for i in range(5)]}
        )
        assert [one.get("code", 0) for one in answer["answers"]] == [0, 0, 0, 429, 429]


class FaultyLog(MemoryBus):
    """A log that takes no commits as one; or takes them, and does not say so of some."""

    refuses = False
    lost: int | None = None
    """How many are taken before the first whose answer is lost; None: no answer is."""

    async def append_all(self, items: Sequence[Append]) -> list[int]:
        if self.refuses:
            raise BatchRefused("no batches here")
        seqs = await super().append_all(items)
        if self.lost is not None:
            self.lost -= 1
            if self.lost < 0:
                raise Unavailable("the answer was lost")
        return seqs


@pytest.mark.parametrize("verb", ["cancel", "hold", "release", "retry"])
@pytest.mark.parametrize("where", [{}, {"array": ""}, {"user": "uma", "group": ""}, {"user": "uma", "state": []}])
async def test_a_filter_in_which_a_value_is_missing_does_not_mean_all_jobs(
    served: Gateway, verb: str, where: dict[str, Any]
) -> None:
    code, message = await refusal(served.command("bulk", {"verb": verb, "where": where}))
    assert (code, message.startswith("$.where")) == (400, True)
    assert {one["state"] for one in (await served.query("jobs", {}))["jobs"]} == {"PD", "R"}


@pytest.mark.parametrize("job_id", ["", " ", "*"])
async def test_an_empty_id_names_no_job_and_no_array(served: Gateway, job_id: str) -> None:
    for command in ("cancel", "hold", "release"):
        assert (await refusal(served.command(command, {"id": job_id})))[0] == 404
        answer = await served.command("bulk", {"verb": command, "ids": [job_id]})
        assert told(answer) == [(job_id, 404)]


async def test_a_log_that_takes_nothing_as_one_gets_each_job_by_itself() -> None:
    asked = {"specs": [{**JOB, "id": f"k{i}"} for i in range(40)]}
    async with FaultyLog() as log, gateway(log, joined()) as served:
        log.refuses = True
        answer = await served.command("submit_all", asked)
        assert [(one["id"], one["created"]) for one in answer["answers"]] == [(f"k{i}", True) for i in range(40)]
        answer = await served.command("bulk", {"verb": "cancel", "where": {"name": "*"}})
        assert (answer["changed"], answer["refused"]) == (40, 0)


async def test_jobs_of_which_it_is_unknown_whether_they_are_stored_are_told_and_may_be_asked_for_again() -> None:
    asked = {"specs": [{**JOB, "id": f"k{i}"} for i in range(600)]}
    async with FaultyLog() as log, gateway(log, joined()) as served:
        log.lost = 1
        codes = [one.get("code", 0) for one in (await served.command("submit_all", asked))["answers"]]
        assert codes.index(503) > 0
        assert set(codes) == {0, 503}
        log.lost = None
        again = (await served.command("submit_all", asked))["answers"]
        assert not any(one.get("code") for one in again)
        assert (await served.query("jobs", {"limit": 1}))["total"] == 600
        stored = [fact for one in await log.read("penstock.evt.job.*") for fact in one.commit.facts]
        assert len(stored) == 600
        log.lost = 1
        some = await served.command("bulk", {"verb": "cancel", "where": {"name": "*"}})
        assert 0 < some["refused"] < 600
        log.lost = None
        rest = await served.command("bulk", {"verb": "cancel", "ids": [f"k{i}" for i in range(600)]})
        assert (rest["refused"], {one["state"] for one in rest["answers"]}) == (0, {"CA"})


async def test_jobs_of_one_request_may_depend_on_each_other_and_repeat_an_id(served: Gateway) -> None:
    one = {"id": "m0", "keep_checkpoint": True}
    more = [{"id": f"m{i}", "begins_from": f"m{i - 1}", "keep_checkpoint": True} for i in range(1, 5)]
    specs = [*({**JOB, **fields} for fields in (one, one, *more)), *({**JOB, "id": f"p{i}"} for i in range(10))]
    answers = (await as_user(served, "uma").command("submit_all", {"specs": specs}))["answers"]
    assert [answer.get("code", 0) for answer in answers] == [0] * len(specs)
    assert [answer.get("created", False) for answer in answers[:2]] == [True, False]
    assert answers[0]["seq"] == answers[1]["seq"]
    assert all(answer["created"] for answer in answers[2:])


@pytest.mark.parametrize("refuses", [False, True])
@pytest.mark.parametrize("others", [0, 400])
async def test_jobs_of_one_request_may_wait_for_those_before_them(others: int, *, refuses: bool) -> None:
    chain = [{"id": f"c{i}", "after": [f"afterok:c{i - 1}"] if i else []} for i in range(5)]
    many = [{"id": f"d{i}", "after": ["afterok:c4", "afterany:c0"]} for i in range(others)]
    circle = [{"id": "e0", "after": ["afterok:e1"]}, {"id": "e1", "after": ["afterok:e0"]}]
    specs = [{**JOB, "user": "uma", **fields} for fields in (*chain, *many, *circle)]
    async with FaultyLog() as log, gateway(log, joined()) as served:
        log.refuses = refuses
        answers = (await served.command("submit_all", {"specs": specs}))["answers"]
        assert [one.get("code", 0) for one in answers] == [0] * (5 + others) + [400, 400]
        assert (await served.query("jobs", {"limit": 1}))["total"] == 5 + others


async def test_many_submissions_beyond_a_users_open_jobs_are_refused_and_those_before_are_not() -> None:
    async with MemoryBus() as bus, gateway(bus, joined(), settings=GatewaySettings(open_jobs=300)) as served:
        specs = [{**JOB, "id": f"k{i}", "user": ("uma", "bob")[i % 2]} for i in range(700)]
        answer = await served.command("submit_all", {"specs": specs})
        assert [one.get("code", 0) for one in answer["answers"]] == [0] * 600 + [429] * 100


async def test_a_request_that_comes_again_while_it_is_carried_out_gets_the_same_answer(served: Gateway) -> None:
    ids = [f"u{i}" for i in range(4)]
    both = await asyncio.gather(*(served.command("bulk", {"verb": "cancel", "ids": ids}) for _ in range(2)))
    assert both[0] == both[1]
    assert both[0]["changed"] == 4


async def test_many_submissions_without_ids_are_as_many_jobs_however_alike_they_are(served: Gateway) -> None:
    asked = {"specs": [JOB] * 20}
    both = await asyncio.gather(served.command("submit_all", asked), served.command("submit_all", asked))
    assert len({one["id"] for answer in both for one in answer["answers"]}) == 40
    assert all(one["created"] for answer in both for one in answer["answers"])


async def test_a_request_without_jobs_or_with_too_many_is_refused(served: Gateway) -> None:
    assert (await refusal(served.command("submit_all", {"specs": JOB})))[0] == 400
    assert (await refusal(served.command("submit_all", [JOB])))[0] == 400
    assert (await refusal(served.command("submit_all", {"specs": []})))[0] == 413
    assert (await refusal(served.command("submit_all", {"specs": [JOB] * 1001})))[0] == 413
    assert (await refusal(served.command("submit_all", {"specs": [JOB], "strikt": True})))[0] == 400


async def test_the_list_comes_in_pages_of_rows(served: Gateway) -> None:
    newest = await served.query("jobs", {"rows": True, "limit": 4})
    oldest = await served.query("jobs", {"rows": True, "limit": 4, "offset": 4})
    assert [row[0] for row in oldest["rows"] + newest["rows"]] == ["b0", "b1", "u0", "u1", "u2", "u3"]
    assert (newest["total"], newest["jobs"], (await served.query("jobs", {"offset": 9}))["jobs"]) == (6, [], [])
    assert (await refusal(served.query("jobs", {"limit": 5000})))[1].startswith("$.limit: expected 1000 at most")


async def test_a_row_says_no_more_of_others_jobs_than_the_list(served: Gateway) -> None:
    spec_fields = {"user": "bob", "batch_size": 32}
    await served.command("submit", spec(id="s1", **spec_fields))
    for row in (await as_user(served, "uma").query("jobs", {"rows": True, "user": "bob"}))["rows"]:
        assert (row[1], row[2], row[10], row[16]) == ("", "bob", "", 0)


async def test_of_an_array_what_failed_is_retried_and_the_rest_is_left_alone(served: Gateway) -> None:
    await submit_array(served)
    for index, outcome in ((0, "completed"), (1, "failed")):
        job_id = f"exp-{index}"
        await served.told(placed(job_id), started(job_id), ended(job_id, outcome))
    await served.command("cancel", {"id": "exp-2"})
    retry = {"verb": "retry", "ids": ["exp"], "dry_run": True}
    assert told(await served.command("bulk", {**retry, "state": ["F", "CA"]})) == [("exp-1", "PD"), ("exp-2", "PD")]
    assert told(await served.command("bulk", {**retry, "ids": ["exp-0", "exp-1"], "state": ["F"]})) == [("exp-1", "PD")]
    assert told(await served.command("bulk", {**retry, "ids": ["exp-0"]})) == [("exp-0", 409)]
    for state, expected in ((["F"], "exp-1"), (["F"], ""), ([], "exp-2"), ([], "")):
        found = told(await served.command("bulk", {"verb": "retry", "ids": ["exp"], "state": state}))
        assert found == [(job_id, "PD") for job_id in expected.split()]
    assert (await refusal(served.command("bulk", {"verb": "retry", "where": {}, "state": ["F"]})))[0] == 400


async def test_a_job_is_retried_although_others_have_the_ids_that_its_retry_would_have(served: Gateway) -> None:
    for job_id in ("lr", "lr-r1", "lr-r2"):
        await served.command("submit", spec(id=job_id))
    await served.command("cancel", {"id": "lr-r1"})
    asked = {"verb": "retry", "where": {"state": ["CA"]}}
    for how in ({"dry_run": True}, {}):
        (one,) = (await served.command("bulk", {**asked, **how}))["answers"]
        assert one["message"] == "job lr-r1 is retried as lr-r3"
    assert told(await served.command("bulk", asked)) == [], "it was retried"
    await served.command("cancel", {"id": "lr"})
    (one,) = (await served.command("bulk", asked))["answers"]
    assert one["message"] == "job lr is retried as lr-r4"
    (again,) = (await served.command("bulk", {"verb": "retry", "ids": ["lr-r1"]}))["answers"]
    assert again["message"] == "job lr-r1 was retried before, as lr-r3"


async def test_an_array_where_one_job_is_asked_for_is_said_to_be_one(served: Gateway) -> None:
    await submit_array(served)
    said = "exp is an array of 4 jobs; name one of them, such as exp-0; `penstock ps --group exp` lists them"
    for name in ("job", "why", "story", "series"):
        assert await refusal(served.query(name, {"id": "exp"})) == (409, said)
    assert await refusal(served.command("extend", {"id": "exp", "limit_s": 60.0})) == (409, said)
    assert (await refusal(served.query("job", {"id": "ex"})))[1].startswith("4 jobs begin with 'ex': ")


async def test_a_command_about_an_array_in_which_nothing_changes_says_so(served: Gateway) -> None:
    await submit_array(served)
    client = Client(bus=served.bus)  # type: ignore[arg-type]
    for verb, said in (
        ("release", "of array exp no job is held"),
        ("cancel", "4 jobs of array exp cancelled"),
        ("cancel", "of array exp all jobs are over"),
        ("hold", "of array exp no job is left that can be held"),
    ):
        assert (await acts._one(client, verb, "exp", "")).message == said  # type: ignore[arg-type]
    with pytest.raises(ServiceError, match="no job 'nope'"):
        await acts._one(client, "cancel", "nope", "")


def of_array(array: str, index: int, most: int = 0, **fields: Any) -> dict[str, Any]:
    member = {"id": array, "index": index, "count": 10, "max": 9, "most": most}
    return {**JOB, "id": f"{array}-{index}", "array": member, **fields}


async def test_ids_that_name_nothing_look_at_all_jobs_once(served: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    await served.command("submit_all", {"specs": [of_array("exp", i, user="uma") for i in range(3)]})
    looks = 0
    each = JobTable.__iter__

    def counted(table: JobTable) -> Iterator[Job]:
        nonlocal looks
        looks += 1
        return each(table)

    monkeypatch.setattr(JobTable, "__iter__", counted)
    ids = ["exp", "u", "exp-", "b1", *(f"nope-{i}" for i in range(40))]
    answer = await served.command("bulk", {"verb": "hold", "ids": ids})
    assert told(answer)[:6] == [
        ("exp-0", "PD"), ("exp-1", "PD"), ("exp-2", "PD"), ("u", 409), ("exp-", 409), ("b1", "PD"),
    ]  # fmt: skip
    assert told(answer)[6:] == [(f"nope-{i}", 404) for i in range(40)]
    assert looks == 1


async def test_an_archived_array_is_forgotten(served: Gateway) -> None:
    await served.command("submit_all", {"specs": [of_array("exp", i) for i in range(3)]})
    await served.command("bulk", {"verb": "cancel", "ids": ["exp"]})
    await served.told(JobsArchived(at_s=NOW_S + 9, archive="log", job_ids=("exp-0", "exp-2")))
    assert told(await served.command("bulk", {"verb": "cancel", "ids": ["exp"]})) == [("exp-1", "CA")]


@pytest.mark.parametrize("jobs", [1, 10])
async def test_who_has_left_a_team_cannot_retry_jobs_in_it(served: Gateway, jobs: int) -> None:
    ids = [f"t{i}" for i in range(jobs)]
    await served.command("submit_all", {"specs": [{**JOB, "id": i, "user": "uma", "team": "vision"} for i in ids]})
    await served.command("bulk", {"verb": "cancel", "ids": ids})
    await served.told(UserSet(user="uma", role="user", at_s=NOW_S))
    for dry_run in (True, False):
        asked = {"verb": "retry", "ids": ids, "dry_run": dry_run}
        answer = await as_user(served, "uma").command("bulk", asked)
        assert told(answer) == [(job_id, 403) for job_id in ids]
        assert "uma is not in team vision" in answer["answers"][0]["error"]


async def test_one_job_with_code_that_makes_no_sense_keeps_no_other(served: Gateway) -> None:
    wrong = {**JOB, "id": "w0", "code": "0" * 64, "cwd": "../b"}
    specs = [*({**JOB, "id": f"m{i}"} for i in range(10)), wrong]
    answer = await as_user(served, "uma").command("submit_all", {"specs": specs})
    assert [one.get("code", 0) for one in answer["answers"]] == [0] * 10 + [400]
    assert "cwd: expected a folder of the uploaded code" in answer["answers"][10]["error"]


async def test_a_job_of_an_array_has_its_id_there_and_the_same_user_as_the_others(served: Gateway) -> None:
    uma, bob = as_user(served, "uma"), as_user(served, "bob")
    await uma.command("submit_all", {"specs": [of_array("exp", i, most=8) for i in range(3)]})
    for body, code, what in (
        (of_array("exp", 7, most=1), 409, "the id exp is that of another array"),
        ({**of_array("exp", 7), "id": "mine"}, 400, "has the id exp-7, got mine"),
        ({**of_array("mine", 7), "id": "mine-8"}, 400, "has the id mine-7, got mine-8"),
    ):
        found = await refusal(bob.command("submit", body))
        assert (found[0], what in found[1]) == (code, True), found
        assert (await refusal(bob.query("dryrun", body)))[0] == code
    assert (await bob.command("submit", of_array("mine", 8)))["created"]
    assert (await uma.command("submit", {**JOB, "id": "next", "after": ["afterok:exp"]}))["created"]
    sweep = {"name": "s", "job": of_array("x", 0), "space": {"lr": {"kind": "uniform", "low": 0.1, "high": 1.0}}}
    assert "$.job.array" in (await refusal(uma.command("tune", {**sweep, "metric": "loss", "trials": 2})))[1]


async def test_jobs_of_an_array_are_retried_in_it(served: Gateway) -> None:
    await served.command("submit_all", {"specs": [of_array("exp", i, user="uma", most=2) for i in range(9)]})
    await served.command("bulk", {"verb": "cancel", "ids": ["exp"]})
    answer = await as_user(served, "uma").command("bulk", {"verb": "retry", "ids": ["exp"]})
    assert told(answer) == [(f"exp-{i}", "PD") for i in range(9)]
    await served.command("bulk", {"verb": "cancel", "ids": ["exp-8-r1"]})
    assert told(await as_user(served, "uma").command("bulk", {"verb": "retry", "ids": ["exp-8-r1"]})) == [
        ("exp-8-r1", "PD")
    ]
    assert (await served.query("job", {"id": "exp-8-r2"}))["job"]["state"] == "PD"


async def test_a_dependency_on_an_array_is_on_ones_own_jobs(served: Gateway) -> None:
    await served.told(
        *(submitted(job_id, user=user, array=ArrayMember(id="exp", index=int(job_id[-1])))
        for job_id, user in (("exp-0", "bob"), ("exp-1", "uma"), ("exp-2", "uma")))
    )  # fmt: skip
    uma = as_user(served, "uma")
    assert (await uma.command("submit", {**JOB, "id": "next", "after": ["afterok:exp"]}))["created"]
    assert (await uma.query("job", {"id": "next"}))["spec"]["after"] == ["afterok:exp-1", "afterok:exp-2"]


@pytest.mark.parametrize(("verb", "stopped"), [("cancel", JobCancelled), ("hold", JobHeld)])
async def test_an_array_that_is_stopped_lets_no_job_start_meanwhile(served: Gateway, verb: str, stopped: type) -> None:
    await served.command("submit_all", {"specs": [of_array("exp", i, most=2) for i in range(600)]})
    before = await served.bus.last_seq()
    answer = await served.command("bulk", {"verb": verb, "where": {"array": "exp"}})
    assert [one["id"] for one in answer["answers"]] == [f"exp-{i}" for i in range(600)]
    facts = [
        fact for one in await served.bus.read("penstock.evt.job.*") if one.seq > before for fact in one.commit.facts
    ]
    order = [fact.job_id for fact in facts if isinstance(fact, stopped)]
    assert (len(order), set(order[-2:])) == (600, {"exp-0", "exp-1"})


async def test_the_jobs_of_an_array_that_wait_are_stopped_on_earlier_pages(served: Gateway) -> None:
    await served.command("submit_all", {"specs": [of_array("exp", i, most=2) for i in range(10)]})
    after, pages = 0, []
    while not pages or after:
        asked = {"verb": "cancel", "where": {"array": "exp"}, "limit": 4, "after": after}
        answer = await served.command("bulk", asked)
        pages.append((answer["matched"], [int(one["id"][4:]) for one in answer["answers"]]))
        after = answer["next"]
    assert pages == [(10, [6, 7, 8, 9]), (6, [2, 3, 4, 5]), (2, [0, 1])]


async def test_an_id_is_either_a_jobs_or_an_arrays(served: Gateway) -> None:
    taken = "the id {} is that of something else here; choose another id, or leave the id out"
    await submit_array(served)
    assert await refusal(served.command("submit", {**JOB, "id": "exp"})) == (409, taken.format("exp"))
    assert (await refusal(served.command("tune", sweep_spec(id="exp", job=spec()))))[0] == 409
    of_u1 = {**JOB, "id": "u1-0", "array": {"id": "u1", "index": 0, "count": 1, "max": 0}}
    assert await refusal(served.command("submit", of_u1)) == (409, taken.format("u1"))
    assert await refusal(served.query("dryrun", of_u1)) == (409, taken.format("u1"))
    again = await served.command("submit", {**JOB, "id": "exp-0", "array": member_of_exp(0), "retries": 0})
    assert not again["created"]


@pytest.mark.parametrize("count", [2, 9])
async def test_a_job_and_an_array_of_one_id_are_not_accepted_in_one_request(served: Gateway, count: int) -> None:
    of_array = [
        {**JOB, "id": f"both-{i}", "array": {"id": "both", "index": i, "count": count, "max": 0}} for i in range(count)
    ]
    one = {**JOB, "id": "both"}
    for specs, refused in (([one, *of_array], count), ([*of_array, one], count)):
        answers = (await served.command("submit_all", {"specs": specs}))["answers"]
        assert sum(answer.get("code") == 409 for answer in answers) >= refused
    created = {job["id"] for job in (await served.query("jobs", {}))["jobs"] if job["id"].startswith("both")}
    assert created == {"both"}


async def test_nobody_else_takes_the_id_of_an_array_or_one_that_its_jobs_have(served: Gateway) -> None:
    uma, bob = as_user(served, "uma"), as_user(served, "bob")
    for index in range(2):
        member = {"id": "run", "index": index, "count": 2, "max": 0}
        await uma.command("submit", {**JOB, "id": f"run-{index}", "array": member})
    for wanted in ("run", "run-9"):
        assert (await refusal(bob.command("submit", {**JOB, "id": wanted})))[0] == 409
    assert (await uma.command("submit", {**JOB, "id": "run-9"}))["created"]
    assert (await bob.command("submit", {**JOB, "id": "run-x"}))["created"]


async def test_all_jobs_of_one_demand_are_told_of_pilots_by_one_look_at_the_allocations(
    served: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, look = list[str](), PilotOutlooks._too_small

    def counting(outlooks: PilotOutlooks, allocation: Allocation, spec: JobSpec) -> str:
        looked.append(allocation.name)
        return look(outlooks, allocation, spec)

    monkeypatch.setattr(PilotOutlooks, "_too_small", counting)
    lab = AllocationSpec(provider="slurm", max_pilots=8, gpus=8)
    await served.told(AllocationAdded(name="lab", spec=lab, at_s=NOW_S))
    users = ("uma", "bob", "cy")
    specs = [{**JOB, "id": f"k{i}", "user": users[i % 3], "gpus": 64} for i in range(20)]
    answers = (await served.command("submit_all", {"specs": specs}))["answers"]
    assert all("may bring it: it has 0 of at most 8 pilots" in str(one["warnings"]) for one in answers)
    assert looked == ["lab"]
