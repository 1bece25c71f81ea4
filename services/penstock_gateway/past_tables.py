"""
Tables of the read model as of a snapshot, which are read from the file as they are asked for.

:class:`PastTable` is a dict that finds in the file what it has not read yet, and :class:`PastJobs` a job table on top
of one, which answers some questions about all jobs without reading them. Both have what a fold of the log from its
beginning has at that sequence, and facts are folded into them as into a dict and a job table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from penstock_gateway.snapshot_file import EntryVersion, IndexDamaged, OverJob, SnapshotFile
from penstock_log import TERMINAL, Job, JobState, JobTable, workload

V = TypeVar("V")
Conditions = Sequence[tuple[str, Any]]


class RemovedEntry(msgspec.Struct, Generic[V], frozen=True):
    """An entry that was removed since the snapshot, with its place, and whether it is over in the file."""

    place: int
    value: V
    was_over: bool


class PastTable(dict[str, V], Generic[V]):
    """
    A table as of a snapshot, and with what was folded in since.

    As a dict it has what was read or set; what else there is, it reads from the file when it is asked for.

    Parameters
    ----------
    file, kind, seq
        The table's name in the file, and the snapshot's sequence.
    next_place : int
        The place of the next new key.
    decoder : Decoder
        Of the values.
    is_over : callable
        Says whether an entry is over.

    Attributes
    ----------
    places : dict of str to int
        Key → its place in the order of the table, of what was read or set.
    stored_places : int
        All places in the file are below it.
    stored : dict of str to int
        Key → hash of the bytes that the file has of it, of what was read.
    over : set of str
        Keys of what was read and is over in the file.
    removed : dict of str to RemovedEntry
        What is in the file and was removed since.
    """

    def __init__(
        self,
        file: SnapshotFile,
        kind: str,
        seq: int,
        next_place: int,
        *,
        decoder: msgspec.msgpack.Decoder[V],
        is_over: Callable[[V], bool],
    ) -> None:
        super().__init__()
        self.file, self._kind, self.seq = file, kind, seq
        self.next_place = self.stored_places = next_place
        self._decoder, self._is_over = decoder, is_over
        self._missing: set[str] = set()
        self.places: dict[str, int] = {}
        self.stored: dict[str, int] = {}
        self.over: set[str] = set()
        self.removed: dict[str, RemovedEntry[V]] = {}
        self._is_whole = False

    @property
    def is_whole(self) -> bool:
        """Whether all of it was read."""
        return self._is_whole

    def read_whole(self) -> None:
        """Read all that is in the file."""
        if self._is_whole:
            return
        for version in self.file.entries(self._kind, self.seq):
            if not dict.__contains__(self, version.key) and version.key not in self._missing:
                self._take(version)
        self._is_whole = True

    def read(self, keys: Iterable[str]) -> None:
        """Read some entries at once, all of which must be there."""
        wanted = [key for key in keys if not dict.__contains__(self, key)]
        found = {version.key: version for version in self.file.some(self._kind, wanted, self.seq)}
        for key in wanted:
            if key not in found:
                raise IndexDamaged(self.file.path, f"{self._kind} {key} is missing")
            self._take(found[key])

    def loaded(self) -> list[tuple[str, V]]:
        """Return what was read or set so far."""
        return [*dict.items(self)]

    def move_on(self, seq: int, keep: Callable[[str], bool]) -> None:
        """Go on from the next snapshot, which has all that is here; forget the entries that need not be kept."""
        self.seq, self.stored_places, self._is_whole = seq, self.next_place, False
        self._missing.clear()
        self.over.clear()
        self.removed.clear()
        for key in [key for key in dict.keys(self) if not keep(key)]:
            dict.__delitem__(self, key)
            del self.places[key]
            self.stored.pop(key, None)

    def _take(self, version: EntryVersion) -> V:
        raw = version.raw or b""
        try:
            value: V = self._decoder.decode(raw)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise IndexDamaged(self.file.path, f"{self._kind} {version.key}: {error}") from error
        dict.__setitem__(self, version.key, value)
        self.places[version.key], self.stored[version.key] = version.place, hash(raw)
        if self._is_over(value):
            self.over.add(version.key)
        return value

    def _find(self, key: str) -> V | None:
        if dict.__contains__(self, key):
            return dict.__getitem__(self, key)
        if self._is_whole or key in self._missing:
            return None
        version = self.file.entry(self._kind, key, self.seq)
        if version is None:
            self._missing.add(key)
            return None
        return self._take(version)

    def __missing__(self, key: str) -> V:
        found = self._find(key)
        if found is None:
            raise KeyError(key)
        return found

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._find(key) is not None

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value, or the default where there is none."""
        found = self._find(key)
        return default if found is None else found

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Return the value; where there is none, set it."""
        found = self._find(key)
        if found is None:
            self[key] = found = default
        return found

    def __setitem__(self, key: str, value: V) -> None:
        if self._find(key) is None:
            self._missing.discard(key)
            self.places[key] = self.next_place
            self.next_place += 1
        dict.__setitem__(self, key, value)

    def __delitem__(self, key: str) -> None:
        found = self._find(key)
        if found is None:
            raise KeyError(key)
        dict.__delitem__(self, key)
        self._missing.add(key)
        place, was_stored = self.places.pop(key), self.stored.pop(key, None) is not None
        if was_stored:
            self.removed[key] = RemovedEntry(place, found, was_over=key in self.over)
        self.over.discard(key)

    def pop(self, key: str, *default: Any) -> Any:
        """Remove a key and return its value, or the default where there is none."""
        found = self._find(key)
        if found is None:
            if default:
                return default[0]
            raise KeyError(key)
        del self[key]
        return found

    def __iter__(self) -> Iterator[str]:
        self.read_whole()
        return iter(sorted(dict.keys(self), key=self.places.__getitem__))

    def __len__(self) -> int:
        self.read_whole()
        return dict.__len__(self)

    def __bool__(self) -> bool:
        return dict.__len__(self) > 0 or len(self) > 0

    def keys(self) -> Any:
        """Return all keys, in the order in which they were set."""
        return [*self]

    def values(self) -> Any:
        """Return all values, in the order in which their keys were set."""
        return [dict.__getitem__(self, key) for key in self]

    def items(self) -> Any:
        """Return all keys and values, in the order in which the keys were set."""
        return [(key, dict.__getitem__(self, key)) for key in self]


class PastJobs(JobTable):
    """
    All jobs as of a moment, read as they are asked for.

    Those that are not over have been read. For the others the file has columns, by which jobs are found and counted.
    What was read or folded in since counts by its values here, and not by the file.

    Attributes
    ----------
    over, over_samples : dict of str to int
        State → jobs that are over in the file, and samples that are.
    """

    over: dict[str, int] = {}
    over_samples: dict[str, int] = {}

    @property
    def table(self) -> PastTable[Job]:
        """The jobs by id."""
        if not isinstance(self.by_id, PastTable):
            raise TypeError("the jobs of the past are a PastTable")
        return self.by_id

    def not_over(self) -> Iterator[Job]:
        """Yield the jobs that are not over, in order of submission."""
        return (job for _, job in self.table.loaded() if job.state not in TERMINAL)

    def count(self, where: Conditions, matches: Callable[[Job], bool], over: int | None = None) -> int:
        """
        Return how many jobs match.

        Parameters
        ----------
        where : sequence of (condition, value)
            As :meth:`penstock_gateway.snapshot_file.SnapshotFile.over` takes them.
        matches : callable
            Says the same of a job.
        over : int or None
            How many match of those that are over in the file; None: they are counted.
        """
        table = self.table
        found = table.file.count_over(table.seq, self._bounded(where)) if over is None else over
        found += sum(matches(job) for job_id, job in table.loaded() if job_id not in table.over)
        return found - sum(matches(one.value) for one in table.removed.values() if one.was_over)

    def rows(self, where: Conditions, matches: Callable[[Job], bool], newest: int | None = None) -> list[OverJob]:
        """Return the jobs that match, or the newest of them, in order of submission; parameters as :meth:`count`."""
        table = self.table
        read = table.over | {job_id for job_id, one in table.removed.items() if one.was_over}
        limit = -1 if newest is None else newest + len(read)
        found = [row for row in table.file.over(table.seq, self._bounded(where), limit=limit) if row.id not in read]
        found += [over_job(table.places[job.id], job) for _, job in table.loaded() if matches(job)]
        found.sort(key=lambda row: row.place)
        return found if newest is None else found[max(0, len(found) - newest) :]

    def count_by_state(self) -> dict[str, int]:
        """Return the number of jobs by state, without samples."""
        table = self.table
        found = Counter(self.over)
        found.update(
            str(job.state) for job_id, job in table.loaded() if job.sample is None and job_id not in table.over
        )
        for one in table.removed.values():
            if one.value.sample is None and one.was_over:
                found[str(one.value.state)] -= 1
        return {state: count for state, count in found.items() if count}

    def last_completed(self, pool: str, most: int) -> list[Job]:
        """Return the jobs of a pool that completed last, at least so many if there are, in order of submission."""
        table = self.table
        where = self._bounded([("state = ?", str(JobState.COMPLETED)), ("NOT sample", ())])
        limit = most + len(table.over) + len(table.removed)
        rows = table.file.last_over(table.seq, pool, where, limit)
        table.read(row.id for row in rows if row.id not in table.removed)
        done = [job_id for job_id, job in table.loaded() if job.state is JobState.COMPLETED]
        return [table[job_id] for job_id in sorted(done, key=table.places.__getitem__)]

    def _bounded(self, where: Conditions) -> Conditions:
        """Return the conditions, and that the job had been submitted by then: later ones are not even looked at."""
        return [("place < ?", self.table.stored_places), *where]

    def since(self, since_s: float, histories: PastTable[Any]) -> list[Job]:
        """Return the jobs that are not over or ended since a time, by submission; and read their histories."""
        rows = self.rows(
            [("finished_s >= ?", since_s)], lambda job: job.state not in TERMINAL or job.finished_s >= since_s
        )
        ids = [row.id for row in rows]
        self.table.read(ids)
        histories.read(ids)
        return [self.table[job_id] for job_id in ids]

    def only_from(self, begin: str) -> Job | None:
        """Return the one job, but for samples, whose id has this beginning; None where there is none, or several."""
        table = self.table
        new = [job_id for job_id, _ in table.loaded() if job_id.startswith(begin)]
        found: Job | None = None
        for job_id in (*new, *table.file.keys_from("jobs", begin, table.seq)):
            job = table.get(job_id)
            if job is None or job.sample is not None or job is found:
                continue
            if found is not None:
                return None
            found = job
        return found


def over_job(place: int, job: Job) -> OverJob:
    """Return a job by what jobs are found by."""
    spec = job.spec
    return OverJob(
        place=place,
        id=job.id,
        state=str(job.state),
        user=spec.user,
        team=spec.team,
        name=spec.name,
        pool=spec.pool,
        model=spec.model,
        parent=spec.parent,
        workload=job.profile_key or workload.key(spec),
        sample=job.sample is not None,
        finished_s=job.finished_s,
        group=spec.group,
        array=spec.array.id if spec.array is not None else "",
    )
