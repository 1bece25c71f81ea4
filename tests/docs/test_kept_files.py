"""What is kept in the repository: nothing that slipped in from the machine of somebody who worked on it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
AT_THE_TOP = {
    *(".dockerignore", ".editorconfig", ".gitignore", ".pre-commit-config.yaml", "CHANGELOG.md", "CONTRIBUTING.md"),
    *("Dockerfile", "LICENSE", "Makefile", "README.md", "SECURITY.md", "compose.yaml", "pyproject.toml"),
}
OF_ONE_MACHINE = re.compile(r"/root/\.pyenv|/home/[a-z]+/\.venv|/work/(?:main|wt|\w+env)\b|sys\.path\[:0\] = \[\"/")


@pytest.fixture(scope="module")
def kept() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("this is no clone: nothing says which files are kept")
    return [name for name in listed.stdout.decode().split("\0") if name]


def test_at_the_top_is_what_people_look_for(kept: list[str]) -> None:
    assert {name for name in kept if "/" not in name} == AT_THE_TOP


def test_no_program_names_a_folder_of_one_machine(kept: list[str]) -> None:
    programs = [
        name for name in kept if name.endswith((".py", ".sh", ".toml", ".yaml", ".c")) and name != "pyproject.toml"
    ]
    found = {
        name: sorted(set(OF_ONE_MACHINE.findall((ROOT / name).read_text(encoding="utf-8"))))
        for name in programs
        if ROOT / name != Path(__file__) and (ROOT / name).is_file()
    }
    assert {name: marks for name, marks in found.items() if marks} == {}
