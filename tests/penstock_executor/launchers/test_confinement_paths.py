"""Folders below ``/tmp`` that a run keeps: what lies there is users' own, and may be another thing by then."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock_executor.launchers import confinement


@pytest.mark.parametrize("swapped", ["above", "above/kept"])
def test_a_link_that_was_put_in_the_place_of_a_folder_is_not_followed(tmp_path: Path, swapped: str) -> None:
    (tmp_path / "above" / "kept").mkdir(parents=True)
    (tmp_path / "others" / "kept").mkdir(parents=True)
    kept = os.path.realpath(tmp_path / "above" / "kept")
    handle = confinement._open_straight(kept, confinement._FOLDER)
    assert os.path.samestat(os.fstat(handle), (tmp_path / "above" / "kept").stat())
    os.close(handle)
    before = len(os.listdir("/proc/self/fd"))
    (tmp_path / swapped).rename(tmp_path / "moved")
    (tmp_path / swapped).symlink_to(tmp_path / "others" / ("" if swapped == "above" else "kept"))
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        confinement._open_straight(kept, confinement._FOLDER)
    assert len(os.listdir("/proc/self/fd")) == before
