"""The page of one job, over real HTTP, as a gateway on the same bus knows it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import msgspec
import pytest
import pytest_asyncio
from dashboards import RunningDashboard, WebVisitor, dashboard, first
from gateway_cases import NOW_S, Gateway, ended, gateway, joined, placed, preempted, started, submitted, waits

from penstock_bus import Endpoint, Reply, Request
from penstock_bus.memory import MemoryBus
from penstock_log import JobFinished, RunCheckpointed, UserSet, Wait, subjects
from penstock_log.agent_protocol import LoopReport
from penstock_log.decision_facts import RoundDecided
from penstock_log.request_bodies import OutputAnswer, OutputChannel, OutputEnd, OutputOffset, OutputRequest, RunProgress
from penstock_log.run_series import RunSeries

PEOPLE = (
    UserSet(at_s=0.0, user="alice", role="user", teams=("vision",)),
    UserSet(at_s=0.0, user="bob", role="user", teams=("speech",)),
)
HOSTILE = "<script>alert('x')</script>\x1b]0;mine\x07\n\u202eexe"
STDOUT = OutputChannel(1, "n1", 0, "stdout")


@pytest_asyncio.fixture
async def served(memory_bus: MemoryBus) -> AsyncIterator[Gateway]:
    async with gateway(memory_bus, joined("n1", fast=2), *PEOPLE) as running:
        # What a waiting job waits for is worked out by kernels, which a new machine compiles first: that may take
        # longer than a page waits for an answer.
        await running.query("dryrun", {"name": "first", "command": ["true"]})
        yield running


@pytest_asyncio.fixture
async def site(served: Gateway) -> AsyncIterator[RunningDashboard]:
    async with dashboard(served.bus) as running:
        yield running


async def wrote(served: Gateway, data: bytes, offset: int = 0) -> None:
    await served.bus.write_output("j1", 0, data, OutputOffset(STDOUT, offset))


async def ended_with(served: Gateway, size: int) -> None:
    await served.bus.write_output("j1", 0, b"", OutputEnd(1, "n1", 0, size, 0))


@asynccontextmanager
async def node_keeps(served: Gateway, data: bytes) -> AsyncIterator[list[str]]:
    """Answer what the node is asked for output; yields in whose names."""
    users: list[str] = []

    async def answer(request: Request) -> Reply:
        asked = msgspec.json.decode(request.body, type=OutputRequest)
        users.append(request.user)
        found = OutputAnswer(data=data[asked.offset :], sizes=[(STDOUT, len(data))])
        return Reply(body=msgspec.msgpack.encode(found))

    endpoint = Endpoint(name="output", subject=subjects.output("n1"), handler=answer)
    async with served.bus.serve("executor", "1", [endpoint]):
        yield users


async def reported(served: Gateway, site: RunningDashboard, visitor: WebVisitor, *reports: RunProgress) -> str:
    """Report progress, and return the page once it shows the last of it."""
    for report in reports:
        await served.bus.publish(subjects.progress("j1"), msgspec.json.encode(report))
    last = f"[{reports[-1].step},"
    while last not in (page := (await visitor.get("/jobs/j1")).text):
        assert site.url
    return page


async def test_a_job_shows_its_state_why_its_story_and_what_it_runs(served: Gateway, site: RunningDashboard) -> None:
    await served.told(submitted("j1", user="alice", name="mine", env={"SEED": "7"}), placed("j1"), started("j1"))
    page = await (await site.visitor("alice")).get("/jobs/j1")
    assert page.status == 200
    assert "Job j1 · mine" in page.text
    assert page.rows["state"].startswith("state running for")
    assert page.rows["devices"] == "devices n1/fast0"
    assert page.rows["cause"] == "cause it runs"
    assert "SEED" in page.text
    story = [text for key, text in page.rows.items() if key[0].isdigit()]
    assert "placed on n1/fast0 (run 1)" in story[-2]
    assert "started on n1" in story[-3] or "started on n1" in story[0]


async def test_a_line_of_the_story_leads_to_the_page_as_it_was_then(served: Gateway, site: RunningDashboard) -> None:
    seq = await served.told(submitted("j1", user="alice"))
    await served.told(placed("j1"), started("j1"))
    visitor = await site.visitor("alice")
    assert f'href="/jobs/j1?at={seq}"' in (await visitor.get("/jobs/j1")).text
    past = await visitor.get(f"/jobs/j1?at={seq}")
    assert past.rows["state"].startswith("state waiting")
    assert "Back to now" in past.text
    assert "data-output" not in past.text
    assert 'name="verb"' not in past.text


async def test_a_waiting_job_says_what_a_device_would_save_and_what_is_ruled_out(
    served: Gateway, site: RunningDashboard
) -> None:
    wait = Wait(job_id="j1", cause="capacity", evidence="2 of 2 devices are taken")
    await served.told(submitted("j1", user="alice", gpus=2), submitted("j2", gpus=2), placed("j2", 0, 1), started("j2"))
    await served.told(msgspec.structs.replace(waits(wait), prices={"fast": 90.0}))
    rows = (await (await site.visitor("alice")).get("/jobs/j1")).rows
    assert rows["cause"] == "cause no device is free"
    assert rows["one more device would save"].endswith("fast: 1 min 30 s")
    assert "it is not held" in rows["ruled out"]


async def test_prices_stay_those_of_the_last_round_that_worked_them_out(
    served: Gateway, site: RunningDashboard
) -> None:
    await served.told(submitted("j1", user="alice"))
    await served.told(RoundDecided(at_s=NOW_S + 1, pool="default", prices={"fast": 4.0}))
    await served.told(RoundDecided(at_s=NOW_S + 2, pool="default"))
    assert "fast: 4.0 s" in (await (await site.visitor("alice")).get("/jobs/j1")).rows["one more device would save"]


async def test_a_job_of_others_shows_no_more_than_the_list_of_jobs(served: Gateway, site: RunningDashboard) -> None:
    await served.told(submitted("j1", user="alice", name="secret-plan", env={"TOKEN": "hush"}), placed("j1"))
    for visitor in (await site.visitor(), await site.visitor("bob")):
        page = await visitor.get("/jobs/j1")
        assert page.status == 200
        assert page.rows["user"] == "user alice"
        assert page.rows["devices"] == "devices n1/fast0"
        assert "secret-plan" not in page.text
        assert "hush" not in page.text
    assert "penstock dashboard" in (await (await site.visitor()).get("/jobs/j1")).text


@pytest.mark.parametrize("path", ["log", "log/live", "log/download", "events"])
async def test_output_and_facts_of_others_jobs_are_refused(served: Gateway, site: RunningDashboard, path: str) -> None:
    await served.told(submitted("j1", user="alice"), placed("j1"), started("j1"))
    await wrote(served, b"hush\n")
    for visitor in (await site.visitor(), await site.visitor("bob")):
        answer = await visitor.get(f"/jobs/j1/{path}")
        assert answer.status == 403
        assert "hush" not in answer.text


async def test_there_is_no_page_of_a_job_that_is_not_there(site: RunningDashboard) -> None:
    for path in ("/jobs/none", "/jobs/%3Cscript%3E", "/jobs/none/log", "/jobs/none/log/download"):
        answer = await (await site.visitor("alice")).get(path)
        assert answer.status == 404, path
        assert "<script>" not in answer.text.replace('<script src="/static', "")


async def test_hostile_words_are_shown_and_not_obeyed(served: Gateway, site: RunningDashboard) -> None:
    await served.told(
        submitted("j1", user="alice", env={"X": HOSTILE}, params={"note": HOSTILE}, command=(HOSTILE,)),
        placed("j1"),
        started("j1"),
        ended("j1", "failed", reason=HOSTILE),
    )
    await wrote(served, HOSTILE.encode() + bytes(range(256)) + b"\n")
    await ended_with(served, len(HOSTILE.encode()) + 257)
    visitor = await site.visitor("alice")
    for path in ("/jobs/j1", "/jobs/j1/log", "/jobs/j1/events", f"/jobs/j1/log?q={HOSTILE[:8]}"):
        page = await visitor.get(path.replace("<", "%3C"))
        assert page.status == 200, path
        assert "&lt;script&gt;" in page.text, path
        assert "<script>alert" not in page.text, path
        assert not {"\x1b", "\x07", "\u202e", "\x00"} & set(page.text), path


async def test_runs_and_their_device_time_are_those_of_the_accounts(served: Gateway, site: RunningDashboard) -> None:
    await served.told(
        submitted("j1", user="alice", gpus=2),
        placed("j1", 0, 1),
        started("j1"),
        ended("j1", "completed", at_s=NOW_S + 61, loop_steps=10, loop_s=30.0, steps=10),
    )
    rows = (await (await site.visitor("alice")).get("/jobs/j1")).rows
    (used,) = (await served.query("usage", {"by": "job"}))["rows"]
    assert rows["held"] == f"held {used['usage']['held_gpu_s']:.0f} GPU-seconds" == "held 120 GPU-seconds"
    assert rows["used in iterations"] == "used in iterations 60 GPU-seconds"
    assert rows["run 1"].endswith("completed 0 to 10 120 GPU-seconds 50 %")


async def test_a_job_that_was_preempted_fifty_times_has_a_page(served: Gateway, site: RunningDashboard) -> None:
    await served.told(submitted("j1", user="alice"))
    for epoch in range(1, 52):
        at_s = NOW_S + epoch
        await served.told(placed("j1", epoch=epoch, at_s=at_s), started("j1", epoch=epoch, at_s=at_s + 0.1))
        if epoch < 51:
            out = preempted("j1", epoch=epoch, at_s=at_s + 0.5, reason="for j2")
            await served.told(out, ended("j1", "preempted", epoch=epoch, at_s=at_s + 0.6, saves=True))
    page = await (await site.visitor("alice")).get("/jobs/j1")
    assert page.rows["runs"] == "runs 51, preempted 50 times"
    assert [key for key in page.rows if key.startswith("run ")][:2] == ["run 51", "run 50"]
    assert page.text.count('class="preempted"') == 50
    assert len(page.text) < 300_000


async def test_checkpoints_say_after_which_step_and_where(served: Gateway, site: RunningDashboard) -> None:
    saved = RunCheckpointed(at_s=NOW_S + 3, job_id="j1", epoch=1, node_id="n1", step=40, tier="memory", peers=("n2",))
    await served.told(submitted("j1", user="alice"), placed("j1"), started("j1"), saved)
    await served.told(msgspec.structs.replace(saved, step=30, tier="disk", peers=()))
    page = await (await site.visitor("alice")).get("/jobs/j1")
    assert page.rows["1 40 memory n1 0"].startswith("40 memory of n2")
    assert page.rows["1 30 disk n1 0"].startswith("30 disk of n1")


async def test_what_a_run_reports_is_drawn_and_sent_on(served: Gateway, site: RunningDashboard) -> None:
    await served.told(submitted("j1", user="alice"), placed("j1"), started("j1"))
    visitor = await site.visitor("alice")
    reports = [
        RunProgress(job_id="j1", epoch=1, step=step, metrics={"loss": 1 / step, "<b>": 1.0}) for step in range(1, 101)
    ]
    page = await reported(served, site, visitor, *reports)
    assert 'data-chart="loss"' in page
    assert "&lt;b&gt;" in page
    version = page.partition('data-version="')[2].partition('"')[0]
    later = RunProgress(job_id="j1", epoch=1, step=101, metrics={"loss": 0.001})
    async with aclosing(visitor.updates(f"/live/jobs/j1?version={version}")) as updates:  # type: ignore[type-var]
        await served.bus.publish(subjects.progress("j1"), msgspec.json.encode(later))
        async for update in updates:
            changed = update.get("regions", {}).get("points", {}).get("put", {})
            if any("[101," in row for row in changed.values()):
                break
    assert [key.split("\n")[2] for key in changed if key.startswith("loss\n")] == ["1"]  # and not the first 64 points


async def test_series_are_not_shown_of_the_past(served: Gateway, site: RunningDashboard) -> None:
    seq = await served.told(submitted("j1", user="alice"), placed("j1"), started("j1"))
    visitor = await site.visitor("alice")
    await reported(served, site, visitor, RunProgress(job_id="j1", epoch=1, step=3, metrics={"loss": 0.5}))
    assert 'data-chart="loss"' not in (await visitor.get(f"/jobs/j1?at={seq}")).text


async def test_charts_begin_with_the_kept_series_and_go_on_with_what_is_heard(
    served: Gateway, site: RunningDashboard
) -> None:
    await served.told(submitted("j1", user="alice"), placed("j1"), started("j1"))
    await kept(served, range(1, 40))
    visitor = await site.visitor("alice")
    page = await reported(served, site, visitor, RunProgress(job_id="j1", epoch=1, step=50, metrics={"loss": 0.5}))
    assert all(f"[{step}," in page for step in (1, 2, 39, 50))
    assert 'data-chart="steps/s"' in page


async def test_a_job_that_is_over_has_its_charts_also_as_of_the_past(served: Gateway, site: RunningDashboard) -> None:
    seq = await served.told(submitted("j1", user="alice"), placed("j1"), started("j1"))
    await kept(served, range(1, 40))
    finished = JobFinished(at_s=NOW_S + 9, job_id="j1", name="job", state="completed", submitted_s=NOW_S)
    await served.told(ended("j1"), finished)
    visitor = await site.visitor("alice")
    for address in ("/jobs/j1", f"/jobs/j1?at={seq}"):
        page = (await visitor.get(address)).text
        assert 'data-chart="loss"' in page, address
        assert "[39," in page, address
    assert "penstock metrics j1 -o csv" in page
    assert 'data-chart="loss"' not in (await (await site.visitor("bob")).get("/jobs/j1")).text


async def kept(served: Gateway, steps: range) -> None:
    """Store the series of a run, as its executor does."""
    series = RunSeries(job_id="j1", epoch=1)
    for step in steps:
        report = LoopReport(step=step, loop_steps=step, loop_s=1.0, metrics={"loss": 1.0 / step})
        series.add(report, NOW_S + 2 * step)
    await served.bus.write_series("j1", 1, series.encode(1 << 20))


async def test_output_is_searched_and_downloaded(served: Gateway, site: RunningDashboard) -> None:
    await served.told(submitted("j1", user="alice"), placed("j1"), started("j1"))
    text = b"".join(b"step %d\n" % number for number in range(100)) + b"x" * 1_000_000 + b"\nWarning: hot"
    await wrote(served, text)
    await ended_with(served, len(text))
    visitor = await site.visitor("alice")
    page = (await visitor.get("/jobs/j1/log?lines=50")).text
    assert "The last 50 of 102 lines of output." in page
    assert "998000 characters" in page
    assert len(page) < 20_000
    found = (await visitor.get("/jobs/j1/log?q=WARN")).text
    assert "1 line with &#39;WARN&#39;." in found
    assert "Warning: hot" in found
    assert "No line with &#39;nowhere&#39; is there." in (await visitor.get("/jobs/j1/log?q=nowhere")).text
    got = await visitor.get("/jobs/j1/log/download")
    assert got.text == text.decode()
    assert got.headers["content-disposition"] == 'attachment; filename="j1.log"'
    assert got.headers["content-type"].startswith("text/plain")


@pytest.mark.parametrize("query", ["lines=0", "lines=99999", "rank=-1", "stream=other", "lines=x"])
async def test_questions_for_output_that_make_no_sense_are_refused(
    served: Gateway, site: RunningDashboard, query: str
) -> None:
    await served.told(submitted("j1", user="alice"))
    assert (await (await site.visitor("alice")).get(f"/jobs/j1/log?{query}")).status == 400


async def test_lines_come_as_they_are_written_until_the_job_ends(served: Gateway, site: RunningDashboard) -> None:
    await served.told(submitted("j1", user="alice"), placed("j1"), started("j1"))
    await wrote(served, b"one\ntw")
    visitor, lines, begun = await site.visitor("alice"), [], 0
    async with (
        node_keeps(served, b"one\ntw"),
        aclosing(visitor.updates("/jobs/j1/log/live")) as updates,  # type: ignore[type-var]
    ):
        async for update in updates:
            begun += update.get("begin", False)
            lines += [text for _, _, text, _ in update.get("lines", [])]
            if update.get("begin"):
                await wrote(served, b"o\nthree\n", offset=6)
            if "three" in lines:
                await ended_with(served, 14)
                await served.told(ended("j1", at_s=NOW_S + 9))
                break
        async for update in updates:
            if update.get("end"):
                break
    assert (begun, lines) == (1, ["one", "two", "three"])
    assert update["end"] == "job j1 has ended"


async def test_what_the_stream_does_not_have_is_asked_of_the_node_in_the_visitors_name(
    served: Gateway, site: RunningDashboard
) -> None:
    await served.told(submitted("j1", user="alice"), placed("j1"), started("j1"))
    async with node_keeps(served, b"kept\n") as users:
        assert "kept" in (await (await site.visitor("alice")).get("/jobs/j1/log")).text
    assert users == ["alice", "alice"]


async def test_the_output_of_a_job_that_has_ended_comes_whole(served: Gateway, site: RunningDashboard) -> None:
    await served.told(submitted("j1", user="alice"), placed("j1"), started("j1"))
    await wrote(served, b"all\n")
    await ended_with(served, 4)
    await served.told(ended("j1"))
    assert (await served.query("job", {"id": "j1"}))["job"]["state"] == "CD"
    updates = (await site.visitor("alice")).updates("/jobs/j1/log/live")
    update = await first(updates, lambda update: update.get("begin"))
    assert [line[2] for line in update["lines"]] == ["all"]


async def test_only_so_many_outputs_are_read_for_one_visitor(served: Gateway, site: RunningDashboard) -> None:
    await served.told(submitted("j1", user="alice"), placed("j1"), started("j1"))
    await wrote(served, b"one\n")
    async with node_keeps(served, b"one\n"):
        visitor = await site.visitor("alice")
        streams = [visitor.updates("/jobs/j1/log/live") for _ in range(8)]
        for stream in streams:
            assert (await anext(stream))["begin"]
        refused = await visitor.get("/jobs/j1/log/live")
        assert refused.status == 429
        assert "close a page that shows one" in refused.text
        for stream in streams:
            await stream.aclose()  # type: ignore[attr-defined]
        while (again := await visitor.get("/jobs/j1/log")).status == 429:
            assert "close a page that shows one" in again.text  # until the dashboard has seen that they are gone
        assert again.status == 200


async def test_a_job_is_held_released_and_cancelled_from_its_page(served: Gateway, site: RunningDashboard) -> None:
    await served.told(submitted("j1", user="alice"))
    visitor = await site.visitor("alice")
    for verb, shown in (("hold", "on hold"), ("release", "waiting"), ("cancel", "cancelled")):
        page = await visitor.get("/jobs/j1")
        assert f'value="{verb}"' in page.text
        answer = await visitor.post("/act", {"token": visitor.form_token, "verb": verb, "id": "j1", "back": "/jobs/j1"})
        assert (answer.status, answer.headers["location"]) == (303, "/jobs/j1")
        assert shown in (await visitor.get("/jobs/j1")).rows["state"]
    assert 'name="verb"' not in (await visitor.get("/jobs/j1")).text


async def test_facts_are_shown_as_the_log_has_them(served: Gateway, site: RunningDashboard) -> None:
    await served.told(submitted("j1", user="alice"), placed("j1"), started("j1"))
    await served.told(JobFinished(at_s=NOW_S + 9, job_id="j1", state="completed", submitted_s=NOW_S, name="job"))
    visitor = await site.visitor("alice")
    page = await visitor.get("/jobs/j1/events?after=0&limit=1")
    (row,) = [text for key, text in page.rows.items() if key.endswith(" 0")]
    assert "job.submitted.v1" in row
    assert json.loads(row[row.index("{") :])["job_id"] == "j1"
    assert 'rel="next"' in page.text
