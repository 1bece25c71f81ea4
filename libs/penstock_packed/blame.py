"""
Who was in its turn when the process died.

A segmentation fault ends the process and with it all members; the next process goes on from the checkpoint, and would
die in the same turn again. So each turn is noted before it begins, in a file mapped into memory, which outlives the
process. A member in whose very same step the process has died twice has failed, also where the next process dies before
its checkpoint says so. A process that is killed from outside
dies in somebody's turn too, but hardly twice in the same step of the same member.

Turns of models are not noted: the request that did it is gone with the process.
"""

from __future__ import annotations

import mmap
import os
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

TURNS: Final = "packed-turns"
SUSPECTS: Final = "packed-suspects.json"
SLOT: Final = 512
"""Bytes for each thread's turn."""
NAME: Final = 400
"""Bytes of a name that are compared."""


class Suspect(NamedTuple):
    """A turn in which the process has died."""

    name: str
    what: str
    step: int


class Blame:
    """
    The turns of one host, on disk.

    Parameters
    ----------
    place : Path
        The folder of the job's checkpoints; made where it is not there.
    slots : int
        Turns at a time.
    """

    def __init__(self, place: Path, slots: int) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self._turns, self._suspects = place / TURNS, place / SUSPECTS
        died_in = self._left_over()
        deaths = Counter([*self._suspected(), *died_in])
        self.guilty: set[str] = {suspect.name for suspect, times in deaths.items() if times > 1}
        if died_in:
            self._suspects.write_bytes(msgspec.json.encode(sorted(deaths.elements())))
        self._turns.write_bytes(bytes(SLOT * slots))
        with self._turns.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), SLOT * slots)

    def begin(self, slot: int, name: str, what: str, step: int) -> None:
        """Note that a turn begins."""
        line = f"{what} {step} {_short(name)}\n".encode()
        self._map[SLOT * slot : SLOT * slot + len(line)] = line

    def end(self, slot: int) -> None:
        """Note that it is over, and the process lives."""
        self._map[SLOT * slot] = 0

    def accuses(self, name: str) -> bool:
        """Say whether the process has died twice in the same step of a member."""
        return _short(name) in self.guilty

    def _left_over(self) -> list[Suspect]:
        try:
            data = self._turns.read_bytes()
        except OSError:
            return []
        noted = (data[start : start + SLOT].split(b"\n")[0] for start in range(0, len(data), SLOT))
        suspects = (_suspect(line.decode(errors="replace")) for line in noted if line[:1] not in (b"", b"\0"))
        return [suspect for suspect in suspects if suspect is not None]

    def _suspected(self) -> list[Suspect]:
        try:
            return msgspec.json.decode(self._suspects.read_bytes(), type=list[Suspect])
        except (OSError, msgspec.MsgspecError):
            return []


def _suspect(line: str) -> Suspect | None:
    """Return whom a line names; None where it was torn when the process was killed, or the machine."""
    what, _, rest = line.partition(" ")
    step, _, name = rest.partition(" ")
    return Suspect(name, what, int(step)) if step.isascii() and step.isdigit() and name else None


def _short(name: str) -> str:
    return os.fsencode(name.replace("\n", " "))[:NAME].decode(errors="ignore")
