"""``python -m penstock_packed members.py``, and the example."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from executor_stub import overlay, small_executor

from penstock_log.agent_protocol import SessionDone
from penstock_log.spec import JobSpec
from penstock_packed.__main__ import main

EXAMPLES = Path(__file__).parents[2] / "examples"
MEMBERS = """
class Trial:
    def __init__(self, fails): self.fails = fails
    def setup(self): pass
    def step(self, turn):
        if self.fails: raise ValueError("on purpose")
        turn.report(loss=0.5)
    def teardown(self): pass
    def save(self, folder): pass
    def load(self, folder): pass

def members(host):
    for name, fails in {names}.items():
        host.train(name, Trial(fails), steps=3)
"""


def members(tmp_path: Path, **fails: bool) -> str:
    file = tmp_path / f"members_{'_'.join(fails)}.py"
    file.write_text(MEMBERS.format(names=fails))
    return str(file)


@pytest.mark.slow
def test_the_example_trains_and_answers_by_its_own_file_of_members(tmp_path: Path) -> None:
    with small_executor(tmp_path) as executor:
        ran = subprocess.run(
            [sys.executable, "-m", "penstock_packed", "packed_digits.py"],
            cwd=EXAMPLES,
            env=overlay(os.environ) | executor.env(CHECKPOINT_DIR=str(tmp_path / "c")),
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        done = executor.wait(SessionDone)
    assert ran.returncode == 0, ran.stderr
    assert done.metrics["rate-0.3/accuracy"] > 0.95
    assert (done.metrics["members/finished"], done.metrics["members/failed"]) == (9, 1)
    assert done.metrics["pixels/answers"] == done.metrics["products/answers"] == 100
    assert "rate-inf    failed         1 steps  FloatingPointError" in ran.stdout


def test_the_examples_job_file_is_a_job() -> None:
    spec = msgspec.toml.decode((EXAMPLES / "packed.toml").read_bytes(), type=JobSpec, strict=True)
    assert spec.command == ("python", "-m", "penstock_packed", "packed_digits.py")


def test_one_failed_member_is_no_failed_job_unless_strict_and_all_failed_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = members(tmp_path, good=False, bad=True)
    assert main([file, "--memory-gib", "1"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "good  finished       3 steps  loss 0.5",
        "bad   failed         0 steps  ValueError: on purpose",
    ]
    assert main([file, "--memory-gib", "1", "--strict"]) == 1
    assert main([members(tmp_path, bad=True), "--memory-gib", "1"]) == 1


def test_a_file_that_is_not_there_or_names_no_members_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="is not a Python file that is there"):
        main([str(tmp_path / "none.py")])
    (tmp_path / "empty_members.py").write_text("")
    with pytest.raises(SystemExit, match="defines no members"):
        main([str(tmp_path / "empty_members.py")])
    (tmp_path / "idle_members.py").write_text("def members(host): pass")
    with pytest.raises(SystemExit, match="took in nobody; expected it to call"):
        main([str(tmp_path / "idle_members.py")])


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--lanes", "-1"), "-1 is out of range; expected 0 or more"),
        (("--memory-gib", "-2"), "-2 is out of range; expected 0 or more"),
        (("--memory-gib", "nan"), "nan is out of range"),
        (("--memory-gib", "much"), "invalid number value: 'much'"),
    ],
)
def test_numbers_that_make_no_sense_are_refused_before_anything_runs(
    option: tuple[str, str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([members(tmp_path, good=False), *option])
    assert message in capsys.readouterr().err


def test_a_socket_whose_path_is_too_long_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="too long for a socket; expected at most 107 bytes"):
        main([members(tmp_path, good=False), "--memory-gib", "1", "--listen", f"/tmp/{'x' * 110}"])
