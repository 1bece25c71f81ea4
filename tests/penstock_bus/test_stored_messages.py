"""Snapshots in pieces: every damage is noticed."""

from __future__ import annotations

import zlib
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from release_decider import DECIDER

from penstock_bus import Snapshot, TooLarge
from penstock_bus.decider import Fold
from penstock_bus.stored_messages import SnapshotChunk, SnapshotDamaged, join, split

ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
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
    with pytest.raises(SnapshotDamaged):
        join(pieces)


@given(SNAPSHOTS, st.data())
def test_a_changed_byte_is_noticed_or_harmless(snapshot: Snapshot, data: st.DataObject) -> None:
    pieces = split(snapshot, 20)
    i = data.draw(st.integers(0, len(pieces) - 1))
    at = data.draw(st.integers(0, len(pieces[i]) - 1))
    pieces[i] = pieces[i][:at] + bytes([pieces[i][at] ^ data.draw(st.integers(1, 255))]) + pieces[i][at + 1 :]
    with suppress(SnapshotDamaged):
        assert join(pieces) == snapshot


def test_pieces_of_two_snapshots_do_not_join() -> None:
    one, other = (split(Snapshot(schema="s", last_seq=n, state=bytes(range(256))), 100) for n in (1, 2))
    with pytest.raises(SnapshotDamaged):
        join([one[0], *other[1:]])


def test_no_pieces_are_no_snapshot() -> None:
    with pytest.raises(SnapshotDamaged, match="0 pieces of 1"):
        join([])


@pytest.mark.parametrize("count", [-1, 0, 2, 2**62])
def test_a_piece_of_however_many_is_no_whole(count: int) -> None:
    with pytest.raises(SnapshotDamaged, match=f"1 pieces of {count}"):
        join([msgspec.msgpack.encode(SnapshotChunk(0, count, 0, b""))])


@given(st.binary(max_size=200) | ODD.map(msgspec.msgpack.encode))
def test_random_bytes_are_damaged_pieces_and_nothing_worse(body: bytes) -> None:
    with suppress(SnapshotDamaged):
        join([body])
    packed = zlib.compress(body)
    with suppress(SnapshotDamaged):
        join([msgspec.msgpack.encode(SnapshotChunk(0, 1, zlib.crc32(packed), packed))])


@given(st.binary(max_size=200) | ODD.map(msgspec.msgpack.encode))
def test_a_state_of_random_bytes_is_ignored(body: bytes) -> None:
    fold = Fold(DECIDER)
    assert fold.restore(Snapshot(schema=fold.schema, last_seq=3, state=body)) == (fold.last_seq == 3)


def test_a_few_bytes_that_stand_for_more_than_any_state_are_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock_bus.stored_messages._MOST_BYTES", 1000)
    packed = zlib.compress(bytes(10_000))
    with pytest.raises(SnapshotDamaged, match="it is larger than 1000 bytes"):
        join([msgspec.msgpack.encode(SnapshotChunk(0, 1, zlib.crc32(packed), packed))])


def test_a_state_that_could_not_be_joined_again_is_not_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock_bus.stored_messages._MOST_BYTES", 2000)
    with pytest.raises(TooLarge, match="the snapshot has 1000 bytes and may have 976"):
        split(Snapshot(schema="s", last_seq=1, state=bytes(1000)), 100)
