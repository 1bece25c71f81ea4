"""Copies of a checkpoint in slabs of two donors, as a process writes and reads them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from memory_stubs import DonorStub

from penstock.memory.checkpoint_copies import LENGTH, CopiesUnavailable, archive_bytes, read_copy, write_copies

SLAB = 1 << 20


def test_a_copy_is_read_as_it_was_written_over_several_slabs(tmp_path: Path) -> None:
    content = bytes(range(256)) * (5 * SLAB // 512)
    (tmp_path / "state").write_bytes(content)
    with closing(DonorStub(tmp_path, slab_bytes=SLAB)) as donor:
        copies = [[donor.lend() for _ in range(3)] for _ in range(2)]
        write_copies(copies, tmp_path, b"manifest", ["state"])
        size = archive_bytes(b"manifest", [len(content)])
        for slabs in copies:
            assert b"".join(map(bytes, read_copy(slabs, size))) == LENGTH.pack(8) + b"manifest" + content


def test_a_checkpoint_that_has_become_larger_than_its_slabs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(bytes(2 * SLAB))
    with closing(DonorStub(tmp_path, slab_bytes=SLAB)) as donor:
        copies = [[donor.lend()], [donor.lend()]]
        with pytest.raises(CopiesUnavailable, match="larger than the slabs"):
            write_copies(copies, tmp_path, b"manifest", ["state"])
