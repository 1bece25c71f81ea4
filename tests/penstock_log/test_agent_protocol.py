"""What a job may claim about itself: counts that every program can hold."""

from __future__ import annotations

import msgspec
import pytest

from penstock_log.agent_protocol import FromJob


@pytest.mark.parametrize("step", ["-1", str(10**30), "1.5", "1e400"])
def test_a_step_that_nobody_could_have_reached_is_no_message(step: str) -> None:
    line = f'{{"type": "progress", "step": {step}, "loop_steps": 1, "loop_s": 1.0}}'
    with pytest.raises(msgspec.MsgspecError):
        msgspec.json.decode(line, type=FromJob)
