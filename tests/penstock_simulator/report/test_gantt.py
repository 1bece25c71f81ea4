"""Gantt charts in letters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from outcome_rows import outcome_of, random_trace, trace_of

from penstock_simulator.outcome import DeviceSpells
from penstock_simulator.report import device_timeline

THREE = outcome_of(trace_of([(0.0, 2, 120.0), (0.0, 1, 60.0), (60.0, 3, 120.0)]), 3)


def test_a_tiny_schedule_in_letters() -> None:
    assert device_timeline.lines(THREE, width=31) == [
        "fifo: 3 GPUs; one column is 10s; a letter is a job, . is idle",
        "gpu 0  AAAAAAAAAAAACCCCCCCCCCCC",
        "gpu 1  AAAAAAAAAAAACCCCCCCCCCCC",
        "gpu 2  BBBBBB......CCCCCCCCCCCC",
        "       0     1m    2m    3m  4m",
        "A=j0 B=j1 C=j2",
    ]


def test_a_cell_is_the_job_that_held_the_gpu_longest_and_idle_if_that_was_longer() -> None:
    spells = DeviceSpells(
        job=np.array([0, 1, 0, 2]),
        device=np.array([0, 0, 0, 0]),
        from_s=np.array([0.0, 3.0, 7.0, 10.0]),
        to_s=np.array([3.0, 7.0, 9.0, 14.0]),
    )
    assert device_timeline.holders(spells, 1, device_timeline.edges(0, 20, 2)).tolist() == [[0, -1]]


def test_a_job_has_the_same_letter_under_every_policy() -> None:
    shortest = outcome_of(THREE.trace, 3, "srtf", key=lambda job: float(THREE.trace.duration_s[job]))
    assert device_timeline.lines(shortest)[-1] == device_timeline.lines(THREE)[-1]


def test_many_gpus_share_lines_evenly_and_no_line_is_too_wide() -> None:
    lines = device_timeline.lines(outcome_of(random_trace(200, seed=1), 100), width=80)
    assert len(lines) == 1 + 34 + 1
    assert all(len(line) <= 80 for line in lines[1:])
    assert lines[1].startswith("gpus 0-2   ")
    assert lines[34].startswith("gpu 99     ")


def test_who_held_what_has_to_be_known() -> None:
    with pytest.raises(ValueError, match="nobody kept who held which GPU"):
        device_timeline.lines(replace(THREE, spells=None))
