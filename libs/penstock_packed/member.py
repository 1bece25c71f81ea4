"""
Members of a packed host, and the part of the host's checkpoint that keeps them.

:class:`PackedMember` is what is known of one member; it is pure: no clock, no device. The checkpoint has one list of
all members (:class:`MemberList`), and a folder for each trial that is under way.
"""

from __future__ import annotations

import math
import os
import shutil
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final, Literal

import msgspec

from penstock_log import MemoryNeed
from penstock_sharing.lanes import MemoryEstimate, MemoryReading

Stage = Literal["new", "running", "finished", "failed"]
NOTHING: Final = MemoryNeed(0, 0, 0)
MOST_WAITING: Final = 1024
"""By default; the last of them waits for a thousand answers, and there is no end to memory without a bound."""
REMEMBERED: Final = 9
"""Turns whose median is taken for the length of the next: one that the host's system held up does not count."""


@dataclass(slots=True, eq=False)
class PackedMember:
    """
    One member.

    Attributes
    ----------
    name : str
    declared : MemoryNeed
        What the user knows of its need; measured parts that are larger count instead.
    steps : int or None
        After which a trial is finished; None: when it says so.
    target_s : float or None
        In which a model answers; None for a trial.
    batch : int
        Most requests of one step of a model.
    most_waiting : int
        Most requests that wait for a model; more are refused.
    priority : int
        Of a trial, for the policy ``priority``.
    stage : {"new", "running", "finished", "failed"}
        New until its setup is done in this process.
    done : int
        Steps of a trial since its very beginning.
    service_s : float
        Time of all of its turns since its very beginning.
    reason : str
        Why it has failed.
    held_bytes : int
        What it holds of the device between its turns, as measured.
    """

    name: str
    declared: MemoryNeed
    steps: int | None = None
    target_s: float | None = None
    batch: int = 1
    most_waiting: int = MOST_WAITING
    priority: int = 0
    stage: Stage = "new"
    done: int = 0
    service_s: float = 0.0
    reason: str = ""
    held_bytes: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    estimate: MemoryEstimate = field(default_factory=MemoryEstimate)
    _lengths_s: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    @property
    def trains(self) -> bool:
        """Whether it is a trial."""
        return self.target_s is None

    @property
    def over(self) -> bool:
        """Whether it gets no turn any more."""
        return self.stage in ("finished", "failed")

    @property
    def turn_s(self) -> float:
        """How long its next turn may be expected to take; 0 before its first step."""
        return median(self._lengths_s) if self._lengths_s else 0.0

    @property
    def remaining_s(self) -> float:
        """How long its other steps may be expected to take; infinite where nobody knows how many there are."""
        return math.inf if self.steps is None else (self.steps - self.done) * self.turn_s

    @property
    def need(self) -> MemoryNeed:
        """What it needs as far as is known: of each part, the larger one of what was declared and what was measured."""
        measured = self.estimate.need or NOTHING
        return MemoryNeed(
            max(self.declared.persistent_bytes, measured.persistent_bytes, self.held_bytes),
            max(self.declared.framework_bytes, measured.framework_bytes),
            max(self.declared.ephemeral_bytes, measured.ephemeral_bytes),
        )

    def ran(self, took_s: float) -> None:
        """Count a turn as service."""
        self.service_s += took_s
        if self.stage == "running":
            self._lengths_s.append(took_s)

    def grew(self, by_bytes: int, peak_bytes: int | None) -> None:
        """
        Take in what a turn has shown.

        Parameters
        ----------
        by_bytes : int
            By which what it holds is more than before.
        peak_bytes : int or None
            The most that was held during the turn, beyond what was held before it; None: not measured.
        """
        before_bytes = self.held_bytes
        self.held_bytes = max(0, before_bytes + by_bytes)
        if self.stage == "running" and peak_bytes is not None:
            self.estimate.see(MemoryReading(self.held_bytes, max(self.held_bytes, before_bytes + peak_bytes)))


FORMAT: Final = 1
LIST: Final = "members.json"


class SavedMember(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of one member; ``folder`` is empty where its state is not."""

    name: str
    stage: Stage
    done: int
    service_s: float
    reason: str
    metrics: dict[str, float]
    folder: str


class MemberList(msgspec.Struct, frozen=True, kw_only=True):
    """The list."""

    format: int
    members: list[SavedMember]


class ForeignCheckpoint(Exception):
    """The checkpoint was not written by a packed host, or by a newer one."""


def read(folder: Path) -> list[SavedMember]:
    """
    Return the list of a checkpoint.

    Raises
    ------
    ForeignCheckpoint
        If it has none, or one of another format.
    """
    try:
        found = msgspec.json.decode((folder / LIST).read_bytes(), type=MemberList)
    except (OSError, msgspec.MsgspecError) as error:
        raise ForeignCheckpoint(
            f"{folder} has no list of members that can be read ({error}); was it another job's?"
        ) from error
    if found.format != FORMAT:
        raise ForeignCheckpoint(f"{folder / LIST} has format {found.format}, this version of penstock reads {FORMAT}")
    return found.members


def copy(source: Path, target: Path) -> None:
    """Copy a folder by links, or byte by byte where the file system has none."""
    shutil.copytree(source, target, copy_function=_link)


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target
