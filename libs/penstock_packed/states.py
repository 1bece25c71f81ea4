"""
The members' part of the host's checkpoint: one list of all, and a folder for each trial that is under way.

A trial that has to wait for room after a restart has not loaded its state yet when the next checkpoint is due, and the
checkpoint from which it should do so may be gone when its turn comes. So a restart links the folders of all trials to a
place of its own first; from there each is loaded, or goes into the next checkpoint.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import msgspec

from penstock_packed.member import Member, Stage

FORMAT: Final = 1
LIST: Final = "members.json"
RESUME: Final = "packed-resume"


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of one member; ``folder`` is empty where its state is not."""

    name: str
    stage: Stage
    done: int
    service_s: float
    reason: str
    metrics: dict[str, float]
    folder: str


class Members(msgspec.Struct, frozen=True, kw_only=True):
    """The list."""

    format: int
    members: list[Saved]


class NotOurs(Exception):
    """The checkpoint was not written by a packed host, or by a newer one."""


def write(folder: Path, entries: list[Saved]) -> None:
    """Write the list into a checkpoint."""
    (folder / LIST).write_bytes(msgspec.json.encode(Members(format=FORMAT, members=entries)))


def entry(member: Member, folder: str) -> Saved:
    """Return what is kept of a member. One that has not begun in this process is new, whatever it was before."""
    return Saved(
        name=member.name,
        stage=member.stage,
        done=member.done,
        service_s=member.standing.service_s,
        reason=member.reason if member.stage == "failed" else "",
        metrics=dict(member.metrics),
        folder=folder,
    )


def read(folder: Path) -> list[Saved]:
    """
    Return the list of a checkpoint.

    Raises
    ------
    NotOurs
        If it has none, or one of another format.
    """
    try:
        found = msgspec.json.decode((folder / LIST).read_bytes(), type=Members)
    except (OSError, msgspec.MsgspecError) as error:
        raise NotOurs(f"{folder} has no list of members that can be read ({error}); was it another job's?") from error
    if found.format != FORMAT:
        raise NotOurs(f"{folder / LIST} has format {found.format}, this version of penstock reads {FORMAT}")
    return found.members


class Resumable:
    """
    States that trials have not loaded yet.

    Parameters
    ----------
    place : Path
        Made and emptied by :meth:`keep`; on the file system of the checkpoints, so that links suffice.
    """

    def __init__(self, place: Path) -> None:
        self._place = place
        self._folders: dict[str, Path] = {}

    def keep(self, checkpoint: Path, entries: list[Saved]) -> None:
        """Link the states of a checkpoint."""
        shutil.rmtree(self._place, ignore_errors=True)
        self._folders = {}
        for saved in entries:
            if saved.folder:
                self._folders[saved.name] = self._place / saved.folder
                copy(checkpoint / saved.folder, self._folders[saved.name])

    def of(self, name: str) -> Path | None:
        """Return the folder that a trial has to load, if there is one."""
        return self._folders.get(name)

    def taken(self, name: str) -> None:
        """It is loaded, or will never be."""
        folder = self._folders.pop(name, None)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def copy(source: Path, target: Path) -> None:
    """Copy a folder by links, or byte by byte where the file system has none."""
    shutil.copytree(source, target, copy_function=_link)


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target
