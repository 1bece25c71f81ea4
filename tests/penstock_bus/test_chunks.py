"""Snapshots in pieces: every damage is noticed."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_bus import Snapshot
from penstock_bus.chunks import Damaged, join, split

SNAPSHOTS = st.builds(
    Snapshot, schema=st.text(max_size=5), last_seq=st.integers(0, 2**60), state=st.binary(max_size=2000)
)


@given(SNAPSHOTS, st.integers(1, 500))
def test_a_snapshot_survives_being_split_and_joined(snapshot: Snapshot, chunk_bytes: int) -> None:
    pieces = split(snapshot, chunk_bytes)
    assert pieces
    assert join(pieces) == snapshot


@given(SNAPSHOTS, st.data())
def test_a_missing_piece_is_noticed(snapshot: Snapshot, data: st.DataObject) -> None:
    pieces = split(snapshot, 20)
    del pieces[data.draw(st.integers(0, len(pieces) - 1))]
    with pytest.raises(Damaged):
        join(pieces)


@given(SNAPSHOTS, st.data())
def test_a_changed_byte_is_noticed_or_harmless(snapshot: Snapshot, data: st.DataObject) -> None:
    pieces = split(snapshot, 20)
    i = data.draw(st.integers(0, len(pieces) - 1))
    at = data.draw(st.integers(0, len(pieces[i]) - 1))
    pieces[i] = pieces[i][:at] + bytes([pieces[i][at] ^ data.draw(st.integers(1, 255))]) + pieces[i][at + 1 :]
    with suppress(Damaged):
        assert join(pieces) == snapshot


def test_pieces_of_two_snapshots_do_not_join() -> None:
    one, other = (split(Snapshot(schema="s", last_seq=n, state=bytes(range(256))), 100) for n in (1, 2))
    with pytest.raises(Damaged):
        join([one[0], *other[1:]])


def test_no_pieces_are_no_snapshot() -> None:
    with pytest.raises(Damaged, match="0 pieces of 1"):
        join([])
