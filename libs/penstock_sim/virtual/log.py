"""The one log of a virtual cluster: sequences, expected sequences, and what is written of it."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, cast

from penstock_bus import Delivery
from penstock_events import AnyEvent, Commit
from penstock_sim.virtual import lines

_AT_ONCE: Final = 2_000


class Overtaken(RuntimeError):
    """A proposal that expected another sequence: under virtual time nobody comes between, so this is a defect."""


class Log:
    """
    Appends commits and gives them sequences.

    Parameters
    ----------
    keep : callable, optional
        Is given every delivery, such as :meth:`Written.add`.
    """

    def __init__(self, keep: Callable[[Delivery], None] | None = None) -> None:
        self.last_seq = 0
        self._heads: dict[str, int] = {}
        self._keep = keep

    def append(
        self,
        subject: str,
        facts: tuple[AnyEvent, ...],
        *,
        actor: str,
        at_s: float,
        cause: int = 0,
        expected: int | None = None,
    ) -> Delivery:
        """
        Store a commit as the bus would, and return its delivery.

        Raises
        ------
        Overtaken
            If the subject's last sequence is not the expected one; None takes any.
        """
        if expected is not None and expected != self._heads.get(subject, 0):
            raise Overtaken(f"{subject} is at {self._heads.get(subject, 0)}; {actor} expected {expected}")
        self.last_seq = seq = self.last_seq + 1
        self._heads[subject] = seq
        commit = Commit(id=f"{seq:x}", actor=actor, facts=facts, cause=cause)
        delivery = Delivery(seq=seq, subject=subject, stored_s=at_s, pending=0, commit=commit)
        if self._keep is not None:
            self._keep(delivery)
        return delivery


class Written:
    """A log's file of JSON lines, written in batches, compressed where its name ends in ``.gz``; a context manager."""

    def __init__(self, path: Path) -> None:
        self._raw = path.open("wb")
        self._file = _compressed(self._raw) if path.suffix == ".gz" else self._raw
        self._batch: list[Delivery] = []

    def add(self, delivery: Delivery) -> None:
        """Write a commit, soon."""
        self._batch.append(delivery)
        if len(self._batch) >= _AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        self._file.write(lines.encode(*self._batch))
        self._batch.clear()

    def __enter__(self) -> Written:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._flush()
        self._file.close()
        self._raw.close()


def _compressed(raw: BinaryIO) -> BinaryIO:
    """Return what compresses into a file: the same bytes for the same log, so without a name or a time."""
    return cast("BinaryIO", gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=raw, mtime=0))
