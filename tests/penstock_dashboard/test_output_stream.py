"""A job's output that is followed while others come and go."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest

from penstock_bus import Unavailable
from penstock_dashboard import output_stream
from penstock_dashboard.gateway_port import PageRefused, Visitor
from penstock_dashboard.job_output import OutputLine
from penstock_dashboard.page import PageRequest


class JobThatRuns:
    """A gateway and the output of a job; each reading of it ends by the next of ``ends``, or the job's end."""

    def __init__(self, *ends: Exception) -> None:
        self.ends, self.now_s = list(ends), 0.0
        self.refusals: list[PageRefused] = []
        self.asked = self.read = 0

    async def query(self, *_asked: Any) -> Any:
        self.asked += 1
        if self.asked > 1 and self.refusals:
            raise self.refusals.pop(0)
        job = msgspec.defstruct("Job", ["id", "state"])("j1", "R")
        return msgspec.defstruct("Detail", ["job"])(job)

    async def follow(self, *_asked: Any, **_ended: Any) -> AsyncGenerator[list[OutputLine], None]:
        self.read += 1
        yield [OutputLine(0, "stdout", f"reading {self.read}")]
        self.now_s += 60.0
        yield [OutputLine(0, "stdout", "more")]
        if self.ends:
            raise self.ends.pop(0)

    @property
    def visit(self) -> PageRequest:
        sources = msgspec.defstruct("Sources", ["outputs"])(self)
        return PageRequest(
            visitor=Visitor(name="alice", session="s"),
            path="/jobs/j1/log/live",
            query={},
            params={"id": "j1"},
            gateway=self,  # type: ignore[arg-type] # it answers what is asked here
            jobs=sources,  # type: ignore[arg-type] # as above
            nodes=None,  # type: ignore[arg-type] # nobody asks it
        )


async def events(job: JobThatRuns) -> list[tuple[str, str]]:
    """Return what the reader is told: kind and words."""
    found = []
    async for event in await output_stream.follow(job.visit, lambda: job.now_s, again_s=0.0):
        told = msgspec.json.decode(event["data"], type=output_stream.OutputEvent)
        kind = "end" if told.end else "wait" if told.wait else "begin" if told.begin else "lines"
        found.append((kind, told.end or told.wait or told.lines[0].text))
    return found


async def test_a_gateway_that_is_away_for_a_while_ends_nothing_and_the_reader_is_told() -> None:
    job = JobThatRuns()
    job.refusals = [PageRefused(503, "no gateway runs"), PageRefused(503, "no gateway runs")]
    told = await events(job)
    assert [kind for kind, _ in told] == ["begin", "wait", "wait", "begin", "lines", "end"]
    assert told[1][1] == "nothing comes at present: no gateway runs; it is tried again in 0 s"
    assert told[3:] == [("begin", "reading 2"), ("lines", "more"), ("end", "job j1 has ended")]


async def test_a_log_that_cannot_be_read_for_a_while_ends_nothing_either() -> None:
    told = await events(JobThatRuns(Unavailable("no leader")))
    assert [kind for kind, _ in told] == ["begin", "lines", "wait", "begin", "lines", "end"]


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_who_may_not_see_the_job_any_more_is_shown_no_more(status: int) -> None:
    job = JobThatRuns()
    job.refusals = [PageRefused(status, "not yours")]
    assert await events(job) == [("begin", "reading 1"), ("end", "no more is shown: not yours")]
