"""Stories of jobs: asked again once a job has changed, and more rarely where answers are slow."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock_dashboard.gateway_port import PageRefused, Visitor
from penstock_dashboard.job_story import JobStories
from penstock_log import JobSpec
from penstock_log.views import EventsView, JobDetail, JobView, StoryView, View, WhyView

ALICE = Visitor(name="alice", session="s")
SPEC = JobSpec(name="a", command=("x",))


class SlowGateway:
    """Answers with empty stories, each of which takes so many seconds."""

    def __init__(self, takes_s: float = 0.0) -> None:
        self.now_s, self.takes_s = 0.0, takes_s
        self.asked: list[str] = []
        self.refusal: PageRefused | None = None

    async def query(self, visitor: Visitor, name: str, asked: Any, answer: type[View]) -> View:
        assert answer in {StoryView, EventsView}
        assert visitor == ALICE
        assert asked.id == "j1"
        self.asked.append(name)
        if name == "events":
            return EventsView(events=(), seq=1)
        self.now_s += self.takes_s
        if self.refusal is not None:
            raise self.refusal
        return StoryView(id="j1", name="a", lines=())


def detail(last_seq: int = 1, state: str = "R") -> JobDetail:
    blank = {
        "id": "j1", "name": "a", "state": state, "user": "alice", "team": "", "parent": "", "pool": "default",
        "gpus": 1, "kinds": (), "submitted_s": 0.0, "started_s": None, "finished_s": None, "wait_s": 0.0, "run_s": 0.0,
        "jct_s": None, "devices": (), "placed_on": (), "preemptions": 0, "attempts": 0, "steps": 0, "metrics": {},
        "reason": "", "exit_code": None, "queue": None, "held": False, "cause": "",
    }  # fmt: skip
    why = WhyView(
        id="j1", name="a", state=state, cause="running", evidence="", remedy="", not_causes=(), since_s=0.0, rank=None
    )
    job = JobView(**blank)  # type: ignore[arg-type]
    return JobDetail(job=job, spec=SPEC, why=why, workload="w", speeds=(), seq=9, last_seq=last_seq)


@pytest.fixture
def gateway() -> SlowGateway:
    return SlowGateway()


@pytest.fixture
def stories(gateway: SlowGateway) -> JobStories:
    return JobStories(gateway, lambda: gateway.now_s)  # type: ignore[arg-type]


async def test_a_job_that_has_not_changed_is_asked_about_after_a_while(
    gateway: SlowGateway, stories: JobStories
) -> None:
    for now_s, asked in ((0.0, 2), (1.9, 2), (2.1, 4)):
        gateway.now_s = now_s
        await stories.of(ALICE, detail(), "")
        assert len(gateway.asked) == asked


async def test_a_job_that_has_changed_is_asked_about_at_once(gateway: SlowGateway, stories: JobStories) -> None:
    await stories.of(ALICE, detail(last_seq=1), "")
    await stories.of(ALICE, detail(last_seq=2), "")
    assert gateway.asked == ["story", "events"] * 2


async def test_a_job_that_is_over_is_asked_about_once(gateway: SlowGateway, stories: JobStories) -> None:
    for now_s in (0.0, 1000.0):
        gateway.now_s = now_s
        await stories.of(ALICE, detail(state="CD"), "")
    assert gateway.asked == ["story", "events"]


async def test_slow_answers_are_asked_for_rarely_whatever_changes(gateway: SlowGateway, stories: JobStories) -> None:
    gateway.takes_s = 1.0
    for seq in range(40):
        await stories.of(ALICE, detail(last_seq=seq), "")
        gateway.now_s += 0.5
    assert gateway.asked.count("story") <= 7  # within some 27 seconds


async def test_a_moment_is_asked_about_by_itself(gateway: SlowGateway, stories: JobStories) -> None:
    await stories.of(ALICE, detail(), "")
    await stories.of(ALICE, detail(), "5")
    assert gateway.asked == ["story", "events"] * 2


async def test_a_story_that_cannot_be_read_is_told_and_asked_for_again(
    gateway: SlowGateway, stories: JobStories
) -> None:
    gateway.refusal = PageRefused(503, "story took longer than 10 s")
    past = await stories.of(ALICE, detail(), "")
    assert (past.story, past.trouble) == (None, "story took longer than 10 s")
    gateway.refusal = None
    assert (await stories.of(ALICE, detail(), "")).story is not None


async def test_nothing_is_left_of_questions_that_were_given_up_or_failed(
    gateway: SlowGateway, stories: JobStories
) -> None:
    go_on = asyncio.Event()

    async def query(*_asked: Any) -> View:
        await go_on.wait()
        raise RuntimeError("of a form that nobody expected")

    gateway.query = query  # type: ignore[method-assign, assignment] # one that does not answer yet
    asking = [asyncio.create_task(stories.of(ALICE, detail(), "")) for _ in range(3)]
    await asyncio.sleep(0)
    for task in asking[:2]:
        task.cancel()
    await asyncio.wait(asking[:2])
    assert len(stories._asking) == 1
    go_on.set()
    with pytest.raises(RuntimeError):
        await asking[2]
    assert not stories._asking
