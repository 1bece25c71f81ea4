"""Runs as they are noted in their folders, and where the fields of records and facts about runs come from."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from penstock_executor import run_folders
from penstock_executor.run_folders import RunRecord, StopRecord
from penstock_executor.run_state import LocalRun, RunProcess
from penstock_log import RunEnded, RunStarted
from penstock_log.agent_protocol import LoopReport
from penstock_log.request_bodies import RunProgress

NOTED = LocalRun(
    job_id="j1",
    epoch=3,
    devices=(0, 2),
    world_size=4,
    ranks={1: RunProcess(), 2: RunProcess()},
    started_s=5.0,
    sharing="fraction",
    resumed_step=7,
    resumed_generation=2,
    resumed_digest="d",
    begun_from="j0",
    copied_from="n2",
    ending="preempted",
    asked_s=8.0,
    termed_s=9.0,
    killed_s=10.0,
    stop_step=11,
    why="others lack 3 MiB",
)


def test_a_run_is_found_in_its_folder_as_it_was_noted(tmp_path: Path) -> None:
    run_folders.create(tmp_path, NOTED)
    run_folders.note_stopping(tmp_path, NOTED)
    run_folders.note_mark(tmp_path, NOTED, 2, "hello")
    (found,) = run_folders.scan(tmp_path)
    ranks = {1: RunProcess(), 2: RunProcess(greeted=True)}
    assert found == msgspec.structs.replace(NOTED, ranks=ranks)


def test_a_run_begins_while_the_earlier_one_of_its_job_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir, folder, removed = os.mkdir, run_folders.path_of(tmp_path, NOTED.key), list[Path]()

    def mkdir_after_removal(path: Path, mode: int = 0o777) -> None:
        if Path(path) == folder and folder.parent.exists() and not removed:
            removed.append(folder.parent)
            folder.parent.rmdir()
        mkdir(path, mode)

    monkeypatch.setattr(os, "mkdir", mkdir_after_removal)
    run_folders.create(tmp_path, NOTED)
    assert removed
    assert [found.key for found in run_folders.scan(tmp_path)] == [NOTED.key]


@pytest.mark.parametrize(
    ("kind", "sources", "own"),
    [
        (RunRecord, (LocalRun,), ""),
        (StopRecord, (LocalRun,), ""),
        (RunProgress, (LocalRun, LoopReport), ""),
        (RunStarted, (LocalRun,), "node_id at_s"),
        (
            RunEnded,
            (LocalRun, LoopReport),
            "node_id at_s outcome exit_code reason steps peak_memory_bytes out_of_memory killed",
        ),
    ],
)
def test_no_field_keeps_its_default_because_its_source_has_another_name(
    kind: type[msgspec.Struct], sources: tuple[type[msgspec.Struct], ...], own: str
) -> None:
    found = {name for source in sources for name in source.__struct_fields__}
    assert set(kind.__struct_fields__) - found == set(own.split())
