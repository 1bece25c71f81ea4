"""
Whose the ids of archived jobs and sweeps were, so that nobody else gets what is still kept under them.

The log and every fold forget an archived job. Its output, its checkpoints on nodes and its lines in the archive stay
under its id, and would be shown or given to whoever has a job of that id. :class:`ArchivedIds` is a table on disk
beside the archive's files: memory does not grow with it, and looking an id up takes a read of a few pages.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock_bus import Unavailable

FILE: Final = "ids.sqlite"
_MAKE: Final = "CREATE TABLE IF NOT EXISTS owners (id TEXT PRIMARY KEY, user TEXT NOT NULL) WITHOUT ROWID"
_WAIT_S: Final = 5.0


class ArchivedIds:
    """
    The owners of archived ids; each call reads or writes the disk, and is to be made in a thread.

    Parameters
    ----------
    folder : Path
        The archive's.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE

    def add(self, owners: Iterable[tuple[str, str]]) -> None:
        """
        Note ``(id, user)`` of what is about to be archived; on disk when it returns.

        Raises
        ------
        Unavailable
            If it cannot be written.
        """
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file.touch(mode=0o600)
        with self._open() as table, table:
            table.execute(_MAKE)
            table.executemany("INSERT OR REPLACE INTO owners VALUES (?, ?)", owners)

    def owners(self, wanted: Iterable[str]) -> dict[str, str]:
        """
        Return whose archived ids were; those that are not archived are left out.

        Raises
        ------
        Unavailable
            If they cannot be read.
        """
        if not self._file.exists():
            return {}
        found = {}
        with self._open() as table:
            table.execute(_MAKE)
            for one in wanted:
                row = table.execute("SELECT user FROM owners WHERE id = ?", (one,)).fetchone()
                if row is not None:
                    found[one] = str(row[0])
        return found

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            table = sqlite3.connect(self._file, timeout=_WAIT_S)
            try:
                yield table
            finally:
                table.close()
        except (sqlite3.Error, UnicodeError) as error:
            advice = "make it readable; moved away, ids of archived jobs may be used by others"
            raise Unavailable(
                f"whose archived ids are cannot be said, as {self._file} cannot be used: {error}; {advice}"
            ) from error
