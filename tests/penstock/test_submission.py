"""What a submitting client fills in."""

from __future__ import annotations

import hashlib
from pathlib import Path

from penstock import submission
from penstock_log import JobSpec


def job(*command: str, cwd: Path) -> JobSpec:
    return JobSpec(name="a", command=command, cwd=str(cwd))


def test_the_digest_is_of_the_script_and_not_of_the_interpreter(tmp_path: Path) -> None:
    (tmp_path / "python").write_bytes(b"\x7fELF binary")
    (tmp_path / "train.py").write_text("one")
    digest = submission.digest((str(tmp_path / "python"), "train.py", "--epochs", "3"), tmp_path)
    assert digest == hashlib.sha256(b"one").hexdigest()


def test_a_changed_script_is_another_workload(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("one")
    before = submission.fill(job("python", "train.py", cwd=tmp_path)).digest
    (tmp_path / "train.py").write_text("two")
    assert submission.fill(job("python", "train.py", cwd=tmp_path)).digest != before


def test_a_command_without_a_file_has_no_digest(tmp_path: Path) -> None:
    assert submission.digest(("echo", "x" * 5000, "a\0b"), tmp_path) == ""


def test_filling_twice_changes_nothing(tmp_path: Path) -> None:
    once = submission.fill(job("echo", "hi", cwd=tmp_path), {"PATH": "/bin"})
    assert submission.fill(once, {"PATH": "/elsewhere"}) == once


def test_a_missing_script_is_found_where_it_should_be(tmp_path: Path) -> None:
    assert submission.missing_script(job("python", "nope.py", cwd=tmp_path)) == tmp_path / "nope.py"
    (tmp_path / "nope.py").write_text("")
    assert submission.missing_script(job("python", "nope.py", cwd=tmp_path)) is None
    assert submission.missing_script(job("python", "-m", "nope.py", cwd=tmp_path)) is None
    assert submission.missing_script(job("echo", "hi", cwd=tmp_path)) is None


def test_a_command_is_opaque_where_it_is_certain_that_it_does_not_use_penstock(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("import torch")
    (tmp_path / "session.py").write_text("#!/opt/penstock/bin/python\nimport penstock")
    commands = [("sleep", "1"), ("python", "plain.py"), ("python", "session.py"), ("python", "elsewhere.py")]
    filled = [submission.fill(job(*command, cwd=tmp_path)) for command in commands]
    assert [spec.opaque for spec in filled] == [True, True, False, False]
