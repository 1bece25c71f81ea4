"""
The file of index snapshots: the read model at sequences along the log, by entries and their versions.

A :class:`SnapshotFile` is an SQLite database. At each snapshot it takes what has changed since the one before: entries
of large tables (:class:`EntryVersion`), by key and sequence, and the rest of the state as parts, of which equal ones
are stored once. So a snapshot has only what is open, the entry of a job that is over is stored once, and all of them
can be read as of any snapshot. :class:`OverJob` and :class:`OverSweep` are what is known of a job or a sweep that is
over without reading its entry: by these columns they are found and counted.

The file holds nothing that the log does not say. What cannot be read raises :class:`IndexDamaged`, and the file is
then dropped and made again. All of it is checked once, when it is opened (:meth:`SnapshotFile.check`); what is read
later is checked by its own sum. A file's name has the layout of what is in it and a number, and is never used twice.
"""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import astuple

_LAYOUT: Final = 3
_AT_ONCE: Final = 500
_WAIT_S: Final = 10.0
_SUFFIX: Final = ".past.sqlite"
_MAKE: Final = """
PRAGMA journal_mode = WAL;
CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID;
CREATE TABLE snapshots (seq INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE parts (id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, body BLOB NOT NULL);
CREATE TABLE entries (
    kind TEXT, key TEXT, seq INTEGER, place INTEGER, body BLOB, PRIMARY KEY (kind, key, seq)
) WITHOUT ROWID;
CREATE TABLE over (
    place INTEGER, seq INTEGER, change INTEGER, id TEXT, state TEXT, user TEXT, team TEXT, name TEXT, pool TEXT,
    model TEXT, parent TEXT, "group" TEXT, array TEXT, workload TEXT, sample INTEGER, finished_s REAL,
    PRIMARY KEY (place, seq)
) WITHOUT ROWID;
CREATE INDEX over_of_users ON over (user, place);
CREATE INDEX over_by_end ON over (pool, finished_s DESC, place);
CREATE TABLE over_sweeps (
    place INTEGER, seq INTEGER, change INTEGER, id TEXT, state TEXT, user TEXT, team TEXT, PRIMARY KEY (place, seq)
) WITHOUT ROWID;
"""
_COLUMNS: Final = (
    'place, id, state, user, team, name, pool, model, parent, "group", array, workload, sample, finished_s'
)

_OF_ENTRY: Final = "key, place, body, max(seq) FROM entries"


class IndexDamaged(Exception):
    """
    A file of snapshots cannot be read, or not be written: what it holds is to be made again from the log.

    Attributes
    ----------
    path : Path
        Of that file, whose name no other file ever has.
    """

    def __init__(self, path: Path, problem: object) -> None:
        """Keep the path."""
        super().__init__(f"{path}: {problem}")
        self.path = path


class EntryVersion(msgspec.Struct, frozen=True):
    """
    An entry of a table as of a snapshot.

    Attributes
    ----------
    place : int
        Orders the keys of a table as they were first set.
    raw : bytes or None
        The encoded value; None where the key was removed.
    """

    kind: str
    key: str
    place: int
    raw: bytes | None


class OverJob(msgspec.Struct, frozen=True):
    """A job that is over, by what jobs are found by; ``place`` orders all jobs by submission."""

    place: int
    id: str
    state: str
    user: str
    team: str
    name: str
    pool: str
    model: str
    parent: str
    group: str
    array: str
    workload: str
    sample: bool
    finished_s: float


class OverSweep(msgspec.Struct, frozen=True):
    """A sweep that is over, by what sweeps are found by; ``place`` orders all sweeps by submission."""

    place: int
    id: str
    state: str
    user: str
    team: str


class IndexSnapshot(msgspec.Struct, kw_only=True):
    """
    What a snapshot has beside the entries.

    Attributes
    ----------
    seq : int
        Sequence of the last commit that is folded in.
    commit_id, stored_s
        Of that commit: by its id a log is told from another one.
    parts : dict of str to int
        Field of the state → the part that it is.
    open : dict of str to list of str
        Table → keys of the entries that are open, in order.
    places : dict of str to int
        Table → the place of the next new key.
    over, over_samples : dict of str to int
        State → jobs that are over, and samples that are.
    over_sweeps : dict of str to int
        State → sweeps that are over.
    last_end_s : float
        The latest end of a job that is over; nothing later is to be looked at for this snapshot.
    entries, sum : int
        Rows that were written up to this snapshot, and the sum of their checksums.
    """

    seq: int
    commit_id: str
    stored_s: float
    parts: dict[str, int]
    open: dict[str, list[str]]
    places: dict[str, int]
    over: dict[str, int] = {}
    over_samples: dict[str, int] = {}
    over_sweeps: dict[str, int] = {}
    last_end_s: float = 0.0
    entries: int = 0
    sum: int = 0


class SnapshotFile:
    """
    One file of snapshots, open for reading and writing.

    It may be used by several threads, and by several processes.

    Parameters
    ----------
    path : Path
        Of a file that :meth:`make` has made.

    Raises
    ------
    IndexDamaged
        If it cannot be opened. So do all methods, where something cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[bytes, int] = {}
        self._last: IndexSnapshot | None = None
        with self._reading():
            if not path.exists():
                raise IndexDamaged(path, "it is not there")
            self._db = _connect(path)
            self._writer = _connect(path)  # of its own, so that nobody reads what is not committed yet
            self._inode = path.stat().st_ino
            meta = dict(self._db.execute("SELECT name, value FROM meta").fetchall())
            self._example = bytes(meta["example"])
            self.trimmed_seq = int(meta["trimmed_seq"])

    @classmethod
    def make(cls, path: Path, example: bytes, trimmed_seq: int) -> SnapshotFile:
        """
        Make a new file.

        Parameters
        ----------
        example : bytes
            Bytes like those of entries, against which these are compressed.
        trimmed_seq : int
            Sequence up to which the log has said what was removed from it.
        """
        made = path.with_name(f"{path.name}.new")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            made.touch(mode=0o600)
            db = sqlite3.connect(made, isolation_level=None)
            db.executescript(_MAKE)
            db.execute("INSERT INTO meta VALUES ('example', ?), ('trimmed_seq', ?)", (example, trimmed_seq))
            db.close()
            made.rename(path)  # nobody sees half of it
        except (OSError, sqlite3.Error) as error:
            raise IndexDamaged(path, f"it cannot be made: {error}") from error
        return cls(path)

    def close(self) -> None:
        """Close the file; what is read later raises :class:`IndexDamaged`."""
        self._db.close()
        self._writer.close()

    def is_there(self) -> bool:
        """Say whether the file is still under its name."""
        try:
            return self.path.stat().st_ino == self._inode
        except OSError:
            return False

    def size_bytes(self) -> int:
        """Return how large it is, without what SQLite has not moved into it yet."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def check(self) -> None:
        """Read all of the file, and compare it with what the last snapshot says; to be called in a thread."""
        last = self.nearest(None)
        with self._reading():
            found = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                raise IndexDamaged(self.path, found)
            if last is None:
                return
            entries, total = 0, 0
            for row in self._db.execute("SELECT * FROM entries WHERE seq <= ?", (last.seq,)):
                entries, total = entries + 1, total + _sum(row)
            for table in ("over", "over_sweeps"):
                for row in self._db.execute(f"SELECT * FROM {table} WHERE seq <= ?", (last.seq,)):  # noqa: S608 - of constants
                    entries, total = entries + 1, total + _sum(row)
            parts = set()
            for part_id, body in self._db.execute("SELECT id, body FROM parts"):
                zlib.decompress(body)  # which has a checksum of its own
                parts.add(part_id)
            for seq, body in self._db.execute("SELECT seq, body FROM snapshots"):
                one = msgspec.msgpack.decode(zlib.decompress(body), type=IndexSnapshot)
                if one.seq != seq or not parts.issuperset(one.parts.values()):
                    raise IndexDamaged(self.path, f"the snapshot of commit {seq} is not whole")
        if (entries, total) != (last.entries, last.sum):
            raise IndexDamaged(self.path, f"{entries} entries are not the {last.entries} that were written")

    def nearest(self, seq: int | None) -> IndexSnapshot | None:
        """Return the last snapshot up to a sequence, or of all; None where there is none."""
        query = "SELECT body FROM snapshots WHERE seq <= ? ORDER BY seq DESC LIMIT 1"
        return self._snapshot(query, (seq if seq is not None else 1 << 62,))

    def after(self, seq: int) -> IndexSnapshot | None:
        """Return the first snapshot after a sequence."""
        return self._snapshot("SELECT body FROM snapshots WHERE seq > ? ORDER BY seq LIMIT 1", (seq,))

    def nearest_by_time(self, time_s: float) -> IndexSnapshot | None:
        """Return the last snapshot whose commit was stored by a time; None where there is none."""
        with self._reading():
            seqs = [row[0] for row in self._db.execute("SELECT seq FROM snapshots ORDER BY seq")]
        low, high = 0, len(seqs)
        while low < high:
            middle = (low + high) // 2
            there = self.nearest(seqs[middle])
            if there is not None and there.stored_s <= time_s:
                low = middle + 1
            else:
                high = middle
        return self.nearest(seqs[low - 1]) if low else None

    def part(self, part_id: int) -> bytes:
        """Return a part's bytes."""
        with self._reading():
            row = self._db.execute("SELECT body FROM parts WHERE id = ?", (part_id,)).fetchone()
            if row is None:
                raise IndexDamaged(self.path, f"part {part_id} is missing")
            return zlib.decompress(row[0])

    def entry(self, kind: str, key: str, seq: int) -> EntryVersion | None:
        """Return an entry as of a snapshot; None where there was none."""
        query = "SELECT place, body FROM entries WHERE kind = ? AND key = ? AND seq <= ? ORDER BY seq DESC LIMIT 1"
        with self._reading():
            row = self._db.execute(query, (kind, key, seq)).fetchone()
            return None if row is None or row[1] is None else EntryVersion(kind, key, row[0], self._unpacked(row[1]))

    def some(self, kind: str, keys: Sequence[str], seq: int) -> Iterator[EntryVersion]:
        """Yield the entries of some keys as of a snapshot, in no order."""
        for at in range(0, len(keys), _AT_ONCE):
            part = keys[at : at + _AT_ONCE]
            wanted = ",".join("?" * len(part))
            query = f"SELECT {_OF_ENTRY} WHERE kind = ? AND seq <= ? AND key IN ({wanted}) GROUP BY key"
            with self._reading():
                for key, place, body, _ in self._db.execute(query, (kind, seq, *part)).fetchall():
                    if body is not None:
                        yield EntryVersion(kind, key, place, self._unpacked(body))

    def entries(self, kind: str, seq: int) -> Iterator[EntryVersion]:
        """Yield all entries of a table as of a snapshot, in no order; one by one it takes long for many."""
        query = f"SELECT {_OF_ENTRY} WHERE kind = ? AND seq <= ? GROUP BY key"
        with self._reading():
            for key, place, body, _ in self._db.execute(query, (kind, seq)):
                if body is not None:
                    yield EntryVersion(kind, key, place, self._unpacked(body))

    def keys_from(self, kind: str, begin: str, seq: int) -> Iterator[str]:
        """Yield the keys of a table as of a snapshot that have this beginning."""
        query = "SELECT key, body IS NULL, max(seq) FROM entries WHERE kind = ? AND key >= ? AND seq <= ? GROUP BY key"
        with self._reading():
            for key, is_gone, _ in self._db.execute(query, (kind, begin, seq)):
                if not key.startswith(begin):
                    return  # they come in order of keys
                if not is_gone:
                    yield key

    def count_over(self, seq: int, where: Sequence[tuple[str, Any]]) -> int:
        """Return how many jobs are over as of a snapshot of which all conditions hold; see :meth:`over`."""
        text, values = _conditions(seq, where)
        with self._reading():
            return int(self._db.execute(f"SELECT total(change) FROM over WHERE {text}", values).fetchone()[0])  # noqa: S608 - of constants

    def over(self, seq: int, where: Sequence[tuple[str, Any]], *, limit: int = -1) -> list[OverJob]:
        """
        Return jobs that are over as of a snapshot of which all conditions hold, the newest first.

        Parameters
        ----------
        where : sequence of (condition, value)
            As ``("user = ?", "ada")``.
        limit : int
            At most so many; negative for all.
        """
        text, values = _conditions(seq, where)
        query = (
            f"SELECT {_COLUMNS} FROM over WHERE {text} "  # noqa: S608 - of constants
            "GROUP BY place HAVING sum(change) > 0 ORDER BY place DESC LIMIT ?"
        )
        with self._reading():
            rows = self._db.execute(query, (*values, limit)).fetchall()
            return [msgspec.convert(row, OverJob, strict=False) for row in map(_as_struct, rows)]

    def last_over(self, seq: int, pool: str, where: Sequence[tuple[str, Any]], limit: int) -> list[OverJob]:
        """Return the jobs of a pool that ended last as of a snapshot of which all conditions hold, the last first."""
        snapshot = self.nearest(seq)
        text, values = _conditions(seq, [("pool = ?", pool), ("change > 0", ()), *where])
        query = (
            f"SELECT {_COLUMNS} FROM over AS one WHERE {text} AND finished_s <= ? AND NOT EXISTS "  # noqa: S608 - of constants
            "(SELECT 1 FROM over AS gone WHERE gone.place = one.place AND gone.seq <= ? AND gone.change < 0) "
            "ORDER BY finished_s DESC, place LIMIT ?"
        )
        last_end_s = snapshot.last_end_s if snapshot is not None else 0.0
        with self._reading():
            rows = self._db.execute(query, (*values, last_end_s, seq, limit)).fetchall()
            return [msgspec.convert(row, OverJob, strict=False) for row in map(_as_struct, rows)]

    def count_over_sweeps(self, seq: int, where: Sequence[tuple[str, Any]]) -> int:
        """Return how many sweeps are over as of a snapshot of which all conditions hold; see :meth:`over`."""
        text, values = _conditions(seq, where)
        query = f"SELECT total(change) FROM over_sweeps WHERE {text}"  # noqa: S608 - of constants
        with self._reading():
            return int(self._db.execute(query, values).fetchone()[0])

    def over_sweeps(self, seq: int, where: Sequence[tuple[str, Any]], *, limit: int = -1) -> list[OverSweep]:
        """Return sweeps that are over as of a snapshot, the newest first; parameters as :meth:`over`."""
        text, values = _conditions(seq, where)
        columns = ", ".join(OverSweep.__struct_fields__)
        query = (
            f"SELECT {columns} FROM over_sweeps WHERE {text} "  # noqa: S608 - of constants
            "GROUP BY place HAVING sum(change) > 0 ORDER BY place DESC LIMIT ?"
        )
        with self._reading():
            return [OverSweep(*row) for row in self._db.execute(query, (*values, limit)).fetchall()]

    def write(
        self,
        base_seq: int,
        snapshot: IndexSnapshot,
        parts: dict[str, bytes],
        versions: Iterable[EntryVersion],
        over: Sequence[tuple[int, OverJob]],
        *,
        over_sweeps: Sequence[tuple[int, OverSweep]] = (),
    ) -> bool:
        """
        Write a snapshot; return False if another process has written one meanwhile, and nothing is written.

        Parameters
        ----------
        base_seq : int
            The last snapshot that the writer knows of; 0 where it knows of none.
        snapshot : IndexSnapshot
            Without its parts and its sums, which are added here.
        parts : dict of str to bytes
            Field of the state → its bytes.
        versions : iterable of EntryVersion
            Entries that have changed since ``base_seq``.
        over : sequence of (change, OverJob)
            Jobs that are over since then (1), and such that were removed (-1).
        over_sweeps : sequence of (change, OverSweep)
            The same of sweeps.
        """
        with self._reading():
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                last = self._newest_written()
                if (last.seq if last is not None else 0) != base_seq:
                    self._writer.execute("ROLLBACK")
                    return False
                rows = [self._row(one, snapshot.seq) for one in versions]
                ended = [_over_row(change, one, snapshot.seq) for change, one in over]
                self._writer.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", rows)
                self._writer.executemany(f"INSERT INTO over VALUES ({','.join('?' * 16)})", ended)  # noqa: S608
                of_sweeps = [(one.place, snapshot.seq, change, *astuple(one)[1:]) for change, one in over_sweeps]
                self._writer.executemany("INSERT INTO over_sweeps VALUES (?, ?, ?, ?, ?, ?, ?)", of_sweeps)
                snapshot.parts = {name: self._part_id(raw) for name, raw in parts.items()}
                _count_on(last, snapshot, over, over_sweeps)
                written = [*rows, *ended, *of_sweeps]
                snapshot.entries += len(written)
                snapshot.sum += sum(map(_sum, written))
                body = zlib.compress(msgspec.msgpack.encode(snapshot), 1)
                self._writer.execute("INSERT INTO snapshots VALUES (?, ?)", (snapshot.seq, body))
                self._writer.execute("COMMIT")
            except BaseException:
                self._known.clear()
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise
        return True

    def _part_id(self, raw: bytes) -> int:
        """Store a part, if it is not there yet; return its number."""
        digest = blake2b(raw, digest_size=16).digest()
        if (known := self._known.get(digest)) is not None:
            return known
        row = self._writer.execute("SELECT id FROM parts WHERE digest = ?", (digest,)).fetchone()
        if row is None:
            row = self._writer.execute(
                "INSERT INTO parts (digest, body) VALUES (?, ?) RETURNING id", (digest, zlib.compress(raw, 1))
            ).fetchone()
        if len(self._known) > 1_000:
            self._known.clear()
        self._known[digest] = int(row[0])
        return int(row[0])

    def _newest_written(self) -> IndexSnapshot | None:
        """Return the last snapshot as the writer sees it: readers may still be at an older state of the file."""
        return _decoded(self._writer.execute("SELECT body FROM snapshots ORDER BY seq DESC LIMIT 1").fetchone())

    def _snapshot(self, query: str, values: tuple[Any, ...]) -> IndexSnapshot | None:
        with self._reading():
            return _decoded(self._db.execute(query, values).fetchone())

    def _row(self, one: EntryVersion, seq: int) -> tuple[Any, ...]:
        return one.kind, one.key, seq, one.place, None if one.raw is None else self._packed(one.raw)

    def _packed(self, raw: bytes) -> bytes:
        packer = zlib.compressobj(1, zdict=self._example)
        return packer.compress(raw) + packer.flush()

    def _unpacked(self, body: bytes) -> bytes:
        opener = zlib.decompressobj(zdict=self._example)
        raw = opener.decompress(body)
        if not opener.eof:
            raise IndexDamaged(self.path, "an entry ends too early")
        return raw

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, zlib.error, msgspec.MsgspecError, OSError, ValueError, KeyError, TypeError) as error:
            raise IndexDamaged(self.path, error) from error


def _decoded(row: tuple[bytes] | None) -> IndexSnapshot | None:
    return None if row is None else msgspec.msgpack.decode(zlib.decompress(row[0]), type=IndexSnapshot)


def _connect(path: Path) -> sqlite3.Connection:
    found = sqlite3.connect(path, timeout=_WAIT_S, check_same_thread=False, isolation_level=None)
    found.execute("PRAGMA synchronous=OFF")  # it may be lost with the machine: the log has it all
    found.execute("PRAGMA cache_size=-16000")
    return found


def open_newest(
    folder: Path,
    schema: str,
    example: Callable[[], bytes],
    trimmed_seq: int,
    on_damage: Callable[[IndexDamaged], None],
) -> SnapshotFile:
    """
    Return the newest file of a schema that can be read, or a new one; files of others are removed.

    To be called in a thread: the file is read as a whole.

    Raises
    ------
    IndexDamaged
        If no file can be made.
    """
    begin = _begin(schema)
    for other in folder.glob(f"*{_SUFFIX}*"):
        if not other.name.startswith(begin):
            other.unlink(missing_ok=True)
    path = _newest(folder, begin)
    if path is not None:
        try:
            found = SnapshotFile(path)
            found.check()
        except IndexDamaged as error:
            on_damage(error)
        else:
            return found
    return _replace(folder, begin, path, example(), trimmed_seq)


def make_next(file: SnapshotFile, schema: str, example: Callable[[], bytes], trimmed_seq: int) -> SnapshotFile:
    """Drop a file, and return a new one in its place, or the one that another process has made meanwhile."""
    folder, begin = file.path.parent, _begin(schema)
    newest = _newest(folder, begin)
    if newest is not None and _number(newest) > _number(file.path):
        remove(file.path)
        return SnapshotFile(newest)
    return _replace(folder, begin, file.path, example(), trimmed_seq)


def _replace(folder: Path, begin: str, path: Path | None, example: bytes, trimmed_seq: int) -> SnapshotFile:
    """Make the next file, and then remove the one before: a name is never used twice, whoever has it open."""
    number = _number(path) + 1 if path is not None else 1
    made = SnapshotFile.make(folder / f"{begin}-{number:06}-{os.urandom(4).hex()}{_SUFFIX}", example, trimmed_seq)
    if path is not None:
        remove(path)
    return made


def remove(path: Path) -> None:
    """Remove a file of snapshots, and what SQLite keeps beside it."""
    for suffix in ("", "-journal", "-wal", "-shm"):
        path.with_name(f"{path.name}{suffix}").unlink(missing_ok=True)


def _begin(schema: str) -> str:
    return blake2b(f"{_LAYOUT} {schema}".encode(), digest_size=6).hexdigest()


def _number(path: Path) -> int:
    digits = path.name.removesuffix(_SUFFIX).split("-")[1]
    return int(digits) if digits.isascii() and digits.isdigit() else 0


def _newest(folder: Path, begin: str) -> Path | None:
    return max(folder.glob(f"{begin}-*-*{_SUFFIX}"), key=lambda path: (_number(path), path.name), default=None)


def _conditions(seq: int, where: Sequence[tuple[str, Any]]) -> tuple[str, list[Any]]:
    text = " AND ".join(["seq <= ?", *(condition for condition, _ in where)])
    values: list[Any] = [seq]
    for _, value in where:
        values += value if isinstance(value, list | tuple) else [value]
    return text, values


def _count_on(
    last: IndexSnapshot | None,
    snapshot: IndexSnapshot,
    over: Iterable[tuple[int, OverJob]],
    over_sweeps: Iterable[tuple[int, OverSweep]],
) -> None:
    """Begin a snapshot's sums with those of the one before, and count the jobs and sweeps that are over since then."""
    if last is not None:
        snapshot.entries, snapshot.sum = last.entries, last.sum
        snapshot.over, snapshot.over_samples = dict(last.over), dict(last.over_samples)
        snapshot.over_sweeps, snapshot.last_end_s = dict(last.over_sweeps), last.last_end_s
    for change, one in over:
        counts = snapshot.over_samples if one.sample else snapshot.over
        counts[one.state] = counts.get(one.state, 0) + change
        snapshot.last_end_s = max(snapshot.last_end_s, float(one.finished_s))
    for change, sweep in over_sweeps:
        snapshot.over_sweeps[sweep.state] = snapshot.over_sweeps.get(sweep.state, 0) + change


def _as_struct(row: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(OverJob.__struct_fields__, row, strict=True))


def _over_row(change: int, one: OverJob, seq: int) -> tuple[Any, ...]:
    place, *rest, sample, finished_s = astuple(one)
    return place, seq, change, *rest, int(sample), float(finished_s)


def _sum(row: Sequence[Any]) -> int:
    """Return the checksum of a row; of several, the checksums are added up."""
    return zlib.crc32(repr(row).encode())
