"""
A fold of the gateway that begins at an index snapshot.

The state of a :class:`PastFold` is exactly what a fold of the log from its beginning has at that sequence. Its large
tables (:data:`_TABLES`) are read as they are asked for; all other fields are parts of each snapshot as a whole, of
which equal ones are stored once. So a field that is added to the state needs nothing here, unless it grows with the
jobs that are over. :meth:`PastFold.save` writes the next snapshot, from the entries that have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final, TypeVar, get_type_hints

import msgspec

from penstock_bus import Delivery
from penstock_bus.decider import Decider, Fold
from penstock_gateway.job_history import JobHistory
from penstock_gateway.machine import GatewayState
from penstock_gateway.past_tables import PastJobs, PastTable, over_job
from penstock_gateway.snapshot_file import EntryVersion, IndexSnapshot, SnapshotFile
from penstock_gateway.sweep_filter import PastSweeps, over_sweep
from penstock_gateway.sweep_table import SweepRecord, TrialRow
from penstock_log import TERMINAL, Job, JobRank, JobSpec, JobState, Placement, RunEnded, Slot, Trial
from penstock_log.lifecycle import ArrayWindow, SharingJobs

V = TypeVar("V")
Columns = TypeVar("Columns")
_TABLES: Final[dict[str, Any]] = {
    "jobs": Job,
    "histories": JobHistory,
    "sweeps": SweepRecord,
    "children": list[str],
    "members": list[str],
}
"""Table → type of its values: those that grow with the jobs that are over. Keys are ids of jobs, sweeps or arrays."""
_OF_JOBS: Final = ("jobs", "histories")
_LARGE: Final = 20_000
"""A table of which so many entries were read is not kept in memory."""
OF_JOB_TABLE: Final[dict[str, Any]] = {
    "sharers": SharingJobs,
    "arrays": dict[str, ArrayWindow],
    "parked": dict[str, list[str]],
    "refusals": dict[str, dict[str, float]],
}
"""What the table of jobs has beside them → its type."""
_PREFIX: Final = "jobs."


class PastFold:
    """
    A fold of the gateway as of a snapshot, or of an empty log; it is told further commits as any fold.

    Parameters
    ----------
    file : SnapshotFile
    decider : Decider
    snapshot : IndexSnapshot or None
        Of the file; None for the beginning of the log.

    Raises
    ------
    IndexDamaged
        If it cannot be read; so do the tables later, where an entry cannot.
    """

    def __init__(self, file: SnapshotFile, decider: Decider[GatewayState], snapshot: IndexSnapshot | None) -> None:
        self._file = file
        self.fold = Fold(decider)
        self.stored_s, self.commit_id = 0.0, ""
        seq, places = 0, dict[str, int]()
        state = self.fold.state
        if snapshot is not None:
            seq, places = snapshot.seq, snapshot.places
            self.stored_s, self.commit_id = snapshot.stored_s, snapshot.commit_id
            for name, part_id in snapshot.parts.items():
                _set_part(state, name, file.part(part_id))
        self.base_seq = self.fold.last_seq = seq
        tables = {kind: _table(file, kind, seq, places.get(kind, 0)) for kind in _TABLES}
        tables["sweeps"] = self._sweeps = PastSweeps.of_snapshot(file, seq, places.get("sweeps", 0))
        self._tables = tables
        beside = {name: getattr(state.jobs, name) for name in OF_JOB_TABLE}
        state.jobs = self._jobs = PastJobs(by_id=tables["jobs"], **beside)
        if snapshot is not None:
            self._note_over(snapshot)
        for kind in _TABLES.keys() - {"jobs"}:
            setattr(state, kind, tables[kind])
        for kind, keys in snapshot.open.items() if snapshot is not None else ():
            tables[kind].read(keys)

    @property
    def state(self) -> GatewayState:
        """The state as of the last commit that was folded in."""
        return self.fold.state

    @property
    def is_large(self) -> bool:
        """Whether so much of it was read that it is not to be kept in memory."""
        return any(dict.__len__(table) > _LARGE for table in self._tables.values())

    @property
    def loaded(self) -> int:
        """How many entries of its tables were read so far."""
        return sum(map(dict.__len__, self._tables.values()))

    def apply(self, delivery: Delivery) -> None:
        """Fold one commit in."""
        self.fold.apply(delivery)
        self.stored_s, self.commit_id = delivery.stored_s, delivery.commit.id

    def save(self) -> bool:
        """
        Write the state as the file's next snapshot, and go on from it; to be called in a thread.

        Returns
        -------
        bool
            False if another process has written one since this fold's own: then it is to be begun anew.
        """
        state, tables = self.state, self._tables
        opened = {
            kind: [key for key, one in tables[kind].loaded() if not is_over(one)] for kind, is_over in _IS_OVER.items()
        }
        versions, hashes = [], dict[tuple[str, str], int]()
        for kind, table in tables.items():
            for key, value in table.loaded():
                raw = _ENCODER.encode(value)
                if table.stored.get(key) != (found := hash(raw)):
                    versions.append(EntryVersion(kind, key, table.places[key], raw))
                    hashes[kind, key] = found
            gone = (key for key in table.removed if not dict.__contains__(table, key))
            versions += [EntryVersion(kind, key, table.removed[key].place, None) for key in gone]
        over, over_sweeps = (
            list(_ended(tables["jobs"], "jobs", over_job)),
            list(_ended(self._sweeps, "sweeps", over_sweep)),
        )
        snapshot = IndexSnapshot(
            seq=self.fold.last_seq,
            commit_id=self.commit_id,
            stored_s=self.stored_s,
            parts={},
            open=opened,
            places={kind: table.next_place for kind, table in tables.items()},
        )
        parts = {name: _ENCODER.encode(part) for name, part in _parts(state)}
        if not self._file.write(self.base_seq, snapshot, parts, versions, over, over_sweeps=over_sweeps):
            return False
        for (kind, key), found in hashes.items():
            tables[kind].stored[key] = found
        self.base_seq = snapshot.seq
        self._note_over(snapshot)
        open_jobs, open_sweeps = set(opened["jobs"]), set(opened["sweeps"])
        for kind, table in tables.items():
            table.move_on(snapshot.seq, (open_jobs if kind in _OF_JOBS else open_sweeps).__contains__)
        self.fold.heads.clear()  # nothing is appended by it
        return True

    def _note_over(self, snapshot: IndexSnapshot) -> None:
        self._jobs.over, self._jobs.over_samples = snapshot.over, snapshot.over_samples
        self._sweeps.over_by_state = snapshot.over_sweeps


def example() -> bytes:
    """Return bytes like those of entries, for their compression: most of these are the names of fields."""
    spec = JobSpec(name="job", command=("python", "train.py"))
    slots = (Slot(node_id="node", devices=(0, 1)),)
    placement = Placement(job_id="job", epoch=1, kind="cuda", slots=slots)
    rank = JobRank(job_id="job", queue=0, position=0.0)
    ended = RunEnded(at_s=0.0, job_id="job", epoch=1, node_id="node", outcome="completed")
    history = JobHistory(seq=1, last_seq=1, state=JobState.RUNNING, since_s=0.0, rank=rank, run_end=ended)
    values = (
        TrialRow(trial=Trial(job_id="job", params={}), group=0),
        history,
        Job(id="job", spec=spec, submitted_s=0.0, placement=placement),
        Job(id="job", spec=spec, submitted_s=0.0, state=JobState.COMPLETED),
    )
    return b"".join(map(_ENCODER.encode, values))


def _ended(table: PastTable[V], kind: str, columns: Callable[[int, V], Columns]) -> Iterator[tuple[int, Columns]]:
    """Yield what is over since the last snapshot (1), and what was and is removed (-1), by its columns."""
    for key, one in table.loaded():
        if _IS_OVER[kind](one) and key not in table.over:
            yield 1, columns(table.places[key], one)
    for gone in table.removed.values():
        if gone.was_over:
            yield -1, columns(gone.place, gone.value)


def _parts(state: GatewayState) -> Iterator[tuple[str, Any]]:
    """Yield what each snapshot has as a whole."""
    for name in state.__struct_fields__:
        if name not in _TABLES:
            yield name, getattr(state, name)
    for name in OF_JOB_TABLE:
        yield f"{_PREFIX}{name}", getattr(state.jobs, name)


def _set_part(state: GatewayState, name: str, raw: bytes) -> None:
    of_jobs = name.startswith(_PREFIX)
    setattr(state.jobs if of_jobs else state, name.removeprefix(_PREFIX), _part_decoder(name).decode(raw))


def _table(file: SnapshotFile, kind: str, seq: int, next_place: int) -> PastTable[Any]:
    is_over = _IS_OVER.get(kind, _never)
    return PastTable(file, kind, seq, next_place, decoder=_decoder(kind), is_over=is_over)


@cache
def _decoder(kind: str) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(_TABLES[kind])


@cache
def _part_decoder(name: str) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(OF_JOB_TABLE.get(name.removeprefix(_PREFIX)) or _types()[name])


@cache
def _types() -> dict[str, Any]:
    return get_type_hints(GatewayState)


def _never(_value: Any) -> bool:
    return False


_IS_OVER: Final[dict[str, Callable[[Any], bool]]] = {
    "jobs": lambda job: job.state in TERMINAL,
    "sweeps": lambda sweep: sweep.finished is not None,
}
"""Table of which the open entries are read with a snapshot → whether one is over."""
_ENCODER: Final = msgspec.msgpack.Encoder()
