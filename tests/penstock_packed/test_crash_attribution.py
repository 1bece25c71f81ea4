"""Who was in its turn when the process died."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock_packed.member_supervisor import TURNS, CrashAttribution


def test_who_was_in_its_turn_when_the_process_was_killed_by_chance_is_not_blamed(tmp_path: Path) -> None:
    for step in (3, 9):
        blame = CrashAttribution(tmp_path, slots=1)
        blame.begin(0, "a", "step", step)
    assert not CrashAttribution(tmp_path, slots=1).accuses("a")


@pytest.mark.parametrize("torn", [b"step 1\0\0", b"setup", b"step 12x a\n", b"\xff\xff \xff \xff\n", b"step 3 "])
def test_a_note_that_was_torn_when_the_machine_died_accuses_nobody_and_keeps_no_host_from_its_start(
    tmp_path: Path, torn: bytes
) -> None:
    CrashAttribution(tmp_path, slots=2).begin(1, "a", "step", 3)
    with (tmp_path / TURNS).open("r+b") as file:
        file.write(torn)
    CrashAttribution(tmp_path, slots=2).begin(1, "a", "step", 3)
    blame = CrashAttribution(tmp_path, slots=2)
    assert blame.guilty == {"a"}


def test_who_is_accused_is_so_in_every_later_process(tmp_path: Path) -> None:
    """The one that fails the member may be killed before its checkpoint is written."""
    for _ in range(2):
        CrashAttribution(tmp_path, slots=1).begin(0, "a", "step", 7)
    for step in (3, 5):
        blame = CrashAttribution(tmp_path, slots=1)
        assert blame.guilty == {"a"}
        blame.begin(0, "b", "step", step)


def test_a_turn_that_ended_well_is_not_held_against_anybody(tmp_path: Path) -> None:
    for _ in range(3):
        blame = CrashAttribution(tmp_path, slots=2)
        blame.begin(1, "a b\nc", "step", 3)
        blame.end(1)
    assert not CrashAttribution(tmp_path, slots=2).accuses("a b\nc")
    for _ in range(2):
        CrashAttribution(tmp_path, slots=2).begin(1, "a b\nc", "setup", 0)
    assert CrashAttribution(tmp_path, slots=2).accuses("a b\nc")
