"""The asynchronous client, against a gateway that speaks the real types on a bus in memory."""

from __future__ import annotations

import asyncio
import getpass
import hashlib
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from fake_gateway import FakeGateway, job_view

import penstock
from penstock.client import Client
from penstock_bus import BusError, NoResponders, Reply, ServiceError
from penstock_bus.memory import MemoryBus
from penstock_log import (
    Choice,
    JobHeld,
    JobSpec,
    SweepSpec,
    Trial,
    TrialFinished,
    TrialGroupOpened,
    Uniform,
    validation,
)


@pytest.mark.parametrize("fields", [{}, {"secrets": {"KEY": "key"}}])
async def test_what_is_no_specification_is_refused_with_what_one_is(fields: dict[str, Any]) -> None:
    gateway = FakeGateway()
    async with gateway.client() as client:
        with pytest.raises(TypeError) as refused:
            await client.submit("train.py", **fields)  # type: ignore[arg-type]
        assert str(refused.value) == (
            """expected a JobSpec, or its fields by name: command=("python", "train.py"); got 'train.py'"""
        )
        with pytest.raises(TypeError, match="expected a JobSpec, or its fields by name"):
            await client.dry_run("train.py")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="expected a JobSpec, or its fields by name"):
            await client.submit_all(["train.py"])  # type: ignore[list-item]
    assert gateway.specs == {}


async def test_a_submitted_job_carries_user_folder_script_digest_and_the_shells_search_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("print()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/venv/bin:/bin")
    monkeypatch.setenv("SECRET_TOKEN", "hidden")
    gateway = FakeGateway()
    async with gateway.client() as client:
        answer = await client.submit(name="train", command=("python", "train.py"), env={"LANG": "C", "X": "1"})
    spec = gateway.specs[answer.id]
    assert spec.user == getpass.getuser()
    assert spec.cwd == str(tmp_path)
    assert spec.digest == hashlib.sha256(b"print()").hexdigest()
    assert spec.env["PATH"] == "/venv/bin:/bin"
    assert (spec.env["LANG"], spec.env["X"]) == ("C", "1")
    assert "SECRET_TOKEN" not in spec.env


async def test_what_a_job_borrows_is_said_as_in_a_file() -> None:
    gateway = FakeGateway()
    async with gateway.client() as client:
        answer = await client.submit(name="a", command=("true",), memory={"local": "2GiB", "spill": "16GiB"})
    spec = gateway.specs[answer.id]
    assert (spec.local_memory_bytes, spec.spill_bytes, spec.memory) == (2 << 30, 16 << 30, None)


async def test_what_the_specification_says_itself_is_kept() -> None:
    gateway = FakeGateway()
    spec = JobSpec(name="a", command=("true",), user="ben", cwd="/data", digest="d", id="mine")
    async with gateway.client() as client:
        answer = await client.submit(spec, strict=True)
    assert answer.id == "mine"
    sent = gateway.specs["mine"]
    assert (sent.user, sent.cwd, sent.digest) == ("ben", "/data", "d")


async def test_a_mistyped_field_is_refused_before_anything_is_sent() -> None:
    gateway = FakeGateway()
    async with gateway.client() as client:
        with pytest.raises(validation.BadInput, match="did you mean `gpus`"):
            await client.submit(name="a", command=["true"], gpu=2)
    assert gateway.asked == []


async def test_waiting_returns_the_job_once_its_end_is_announced() -> None:
    gateway = FakeGateway(job_view("j1"))
    async with gateway.client() as client:
        waiting = asyncio.ensure_future(client.wait("j1"))
        await gateway.append(JobHeld(at_s=2.0, job_id="j1"))
        await gateway.finish("j1", "F", 3, "exit code 3")
        job = await asyncio.wait_for(waiting, 60)
    assert (job.state, job.exit_code) == ("F", 3)


async def test_waiting_for_a_job_that_has_ended_returns_at_once() -> None:
    gateway = FakeGateway(job_view("j1", state="CD"))
    async with gateway.client() as client:
        assert (await client.wait("j1")).state == "CD"


@pytest.mark.parametrize(
    ("view", "doing"),
    [
        ({"state": "PD"}, r"waited 0 s: j1 \(\w+\) waits \(\w+\): "),
        ({"state": "R", "placed_on": ("n1/fast0",), "steps": 7}, r"j1 \(\w+\) runs on n1/fast0, after step 7$"),
    ],
)
async def test_who_waits_no_longer_is_told_what_the_job_is_doing(view: dict[str, Any], doing: str) -> None:
    gateway = FakeGateway(job_view("j1", **view))
    async with gateway.client() as client:
        with pytest.raises(TimeoutError, match=doing):
            await client.wait("j1", timeout=0)
        await gateway.finish("j1")
        assert (await client.wait("j1", timeout=60)).state == "CD"


async def test_nobody_waits_for_a_sample() -> None:
    gateway = FakeGateway(job_view("j1", sample=True))
    async with gateway.client() as client:
        with pytest.raises(ValueError, match="sample of the profiler"):
            await client.wait("j1")


async def test_followed_logs_end_with_the_job_and_miss_nothing() -> None:
    gateway = FakeGateway(job_view("j1", state="R"))
    async with gateway.client() as client:
        await gateway.bus.write_output("j1", 0, b"one\n")
        found = []
        async for line in client.logs("j1", follow=True):
            found.append(line.data)
            if line.data == b"one\n":
                await gateway.bus.write_output("j1", 0, b"two\n")
            elif line.data == b"two\n":
                await gateway.finish("j1")
                await gateway.bus.write_output("j1", 0, b"three\n")
    assert found[:2] == [b"one\n", b"two\n"]
    assert found == sorted(set(found), key=found.index)


async def test_whoever_stops_following_leaves_nothing_behind() -> None:
    gateway = FakeGateway(job_view("j1", state="R"))
    async with gateway.client() as client:
        await gateway.bus.write_output("j1", 0, b"one\n")
        before = asyncio.all_tasks()
        async with aclosing(client.logs("j1", follow=True)) as lines:
            assert (await anext(lines)).data == b"one\n"
        assert asyncio.all_tasks() <= before


async def test_the_tail_of_a_finished_jobs_output_is_what_was_asked_for() -> None:
    gateway = FakeGateway(job_view("j1", state="CD"))
    async with gateway.client() as client:
        for i in range(5):
            await gateway.bus.write_output("j1", 0, b"%d\n" % i)
        assert [line.data async for line in client.logs("j1", tail=2)] == [b"3\n", b"4\n"]
        assert len([line async for line in client.logs("j1", follow=True)]) == 5


async def test_followed_events_of_a_job_are_its_own_and_those_that_name_it() -> None:
    gateway = FakeGateway()
    async with gateway.client() as client:
        await client.submit(name="a", command=("true",), id="a")
        await client.submit(name="b", command=("true",), id="b")
        await gateway.finish("a")
        found = []
        async for event in client.follow_events("a"):
            found.append(event.type)
            if len(found) == 2:
                break
    assert found == ["job.submitted.v1", "job.finished.v1"]


async def test_waiting_for_a_sweep_returns_its_best_trial() -> None:
    gateway = FakeGateway()
    spec = SweepSpec(
        name="s", job=JobSpec(name="a", command=("true",)), space={"lr": Choice(values=(0.1,))}, metric="accuracy"
    )
    async with gateway.client() as client:
        answer = await client.tune(spec)
        with pytest.raises(TimeoutError, match=r"sweep \w+ \(s\) is running: 0 of \d+ trials are done"):
            await client.wait_sweep(answer.id, timeout=0)
        waiting = asyncio.ensure_future(client.wait_sweep(answer.id))
        await gateway.finish_sweep(answer.id)
        assert (await asyncio.wait_for(waiting, 60)).best_job_id == "s1-3"


async def test_a_space_and_a_script_are_a_sweep_whose_results_can_be_gone_over() -> None:
    gateway = FakeGateway()
    async with gateway.client() as client:
        tuning = client.tune({"lr": Uniform(low=0.1, high=1.0)}, "train.py", metric="acc", trials=2)
        answer = await tuning
        assert await tuning is answer, "it is submitted once"
        spec = gateway.sweeps[answer.id].spec
        assert (spec.name, spec.job.name, spec.job.command) == ("train", "train", ("python", "train.py"))
        assert (spec.space, spec.trials) == ({"lr": Uniform(low=0.1, high=1.0)}, 2)
        trials = (Trial(job_id="t0", params={"lr": 0.5}),)
        await gateway.append(TrialGroupOpened(at_s=1.0, sweep_id=answer.id, group=0, trials=trials))
        end = TrialFinished(at_s=2.0, sweep_id=answer.id, job_id="t0", state="completed", value=0.7)
        await gateway.append(end)
        await gateway.finish_sweep(answer.id)
        assert [(result.params, result.value) async for result in tuning] == [({"lr": 0.5}, 0.7)]


async def test_a_space_without_a_script_is_refused() -> None:
    async with FakeGateway().client() as client:
        with pytest.raises(TypeError, match=r"a space was given without a script; expected tune\(space, 'train.py'"):
            client.tune({"lr": Uniform(low=0.1, high=1.0)}, metric="acc")


@pytest.mark.parametrize(("code", "text"), [(404, "there is no job"), (409, "another job has that id")])
async def test_what_the_gateway_refuses_keeps_its_code_and_words(code: int, text: str) -> None:
    gateway = FakeGateway()
    gateway.refusal = Reply(code=code, error=text)
    async with gateway.client() as client:
        with pytest.raises(ServiceError, match=text) as caught:
            await client.job("x")
    assert caught.value.code == code


async def test_an_answer_of_another_version_is_said_to_be_one() -> None:
    gateway = FakeGateway()
    gateway.refusal = Reply(body=b'{"pools": 3}')
    async with gateway.client() as client:
        with pytest.raises(BusError, match=r"qry\.gateway\.jobs what this version cannot read: .*use the version"):
            await client.jobs()


async def test_without_a_gateway_nobody_responds() -> None:
    async with MemoryBus() as bus, Client(bus=bus, nobody_s=0.0) as client:
        with pytest.raises(NoResponders):
            await client.jobs()


async def test_a_client_that_is_not_connected_says_so() -> None:
    with pytest.raises(RuntimeError, match="async with"):
        await Client("nats://127.0.0.1:1").jobs()


async def test_a_specification_beside_fields_is_a_mistake() -> None:
    async with FakeGateway().client() as client:
        with pytest.raises(TypeError, match="one or the other"):
            await client.submit(JobSpec(name="a", command=("true",)), gpus=2)


def test_the_client_is_what_users_import() -> None:
    exported: Any = penstock.Client
    assert exported is Client
