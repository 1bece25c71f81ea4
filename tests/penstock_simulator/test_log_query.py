"""What people ask a log in a file, by the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from penstock_cli.app import app
from penstock_simulator.engine.simulation import simulate
from penstock_simulator.trace import Trace
from penstock_simulator.virtual_cluster import parse


@pytest.fixture
def log(tmp_path: Path) -> str:
    """Return the log of two jobs that share one device: the second preempts the first."""
    jobs = Trace(
        name="two",
        job_ids=["first", "second"],
        submit_s=np.array([0.0, 50.0]),
        num_gpus=np.array([1, 1]),
        duration_s=np.array([100.0, 10.0]),
    )
    path = tmp_path / "log"
    simulate(jobs, parse("1x1"), "2d-las", settings={"thresholds_gpu_s": [20.0]}, log=path)
    return str(path)


def asked(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.output


def test_a_simulated_job_tells_its_story(log: str) -> None:
    code, text = asked("story", "first", "--log", log)
    assert code == 0
    told = [line.split(maxsplit=1)[1] for line in text.splitlines()[1:]]
    assert told[0] == "submitted: 1 device"
    assert "ranked in queue 1 after 20.0 GPU-seconds" in told
    assert "to be preempted: for job second of queue 0; this one is of queue 1" in told
    assert told[-1].startswith("completed (ran 1 min 40 s in 2 runs, 100 steps)")


def test_why_a_simulated_job_waited_is_asked_at_a_time_or_a_sequence(log: str) -> None:
    code, text = asked("why", "first", "--log", log, "--at", "55.0")
    assert code == 0
    assert "is PD for 4.0s: capacity" in text
    assert "1 gpu busy with 1 job of queue 0" in text
    assert "is CD" in asked("why", "first", "--log", log)[1]
    assert "no job 'second'" in asked("why", "second", "--log", log, "--at", "3")[1]


def test_a_job_or_a_file_that_is_not_there_is_said(log: str, tmp_path: Path) -> None:
    assert asked("story", "third", "--log", log)[0] == 4
    other = tmp_path / "other"
    other.write_text("{}\n")
    code, text = asked("why", "first", "--log", str(other))
    assert (code, "line 1 is no fact of a log" in text) == (2, True)
