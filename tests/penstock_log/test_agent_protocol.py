"""What a job may claim about itself: counts that every program can hold."""

from __future__ import annotations

import msgspec
import pytest

from penstock_log.agent_protocol import FromJob, LoopReport
from penstock_log.records import compose
from penstock_log.request_bodies import RunProgress


@pytest.mark.parametrize("step", ["-1", str(10**30), "1.5", "1e400"])
def test_a_step_that_nobody_could_have_reached_is_no_message(step: str) -> None:
    line = f'{{"type": "progress", "step": {step}, "loop_steps": 1, "loop_s": 1.0}}'
    with pytest.raises(msgspec.MsgspecError):
        msgspec.json.decode(line, type=FromJob)


def test_the_progress_of_a_run_says_how_long_it_waited_for_turns() -> None:
    report = LoopReport(step=3, loop_steps=3, loop_s=1.0, waited_s=2.0)
    assert compose(RunProgress, report, job_id="j1").waited_s == 2.0
