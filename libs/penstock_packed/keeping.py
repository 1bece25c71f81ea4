"""Saving and loading all members at once."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from penstock_packed.member import Member
from penstock_packed.states import RESUME, Resumable, copy, entry, read, write
from penstock_packed.work import LOG, DeviceLost, Job, reason

NOT_THE_MEMBERS: Final = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS}
"""Errors of the file system: the checkpoint as a whole is not written then, and no member is to blame."""


class Keeping:
    """
    The members' states, in the host's checkpoint and out of it.

    Parameters
    ----------
    members, jobs : dict
        The host's own, read when saved and filled when loaded.
    place : Path or None
        The folder of the job's checkpoints.
    lost : callable
        Says whether after an error nothing on the device works any more.
    """

    def __init__(
        self,
        members: dict[str, Member],
        jobs: dict[str, Job],
        place: Path | None,
        lost: Callable[[BaseException], bool],
    ) -> None:
        self._members, self._jobs, self._lost = members, jobs, lost
        self._resumable = Resumable(place / RESUME) if place else None

    def save(self, folder: Path) -> dict[str, str]:
        """
        Write a checkpoint; return the members that could not be saved, and why: they have failed.

        Raises
        ------
        OSError
            If the file system takes no more.
        DeviceLost
            If the device works no more: all that are to be saved would fail, and none of them is to blame.
        """
        failed: dict[str, str] = {}
        entries = []
        for number, member in enumerate(self._members.values()):
            try:
                kept = self._save_state(member, folder / f"{number}")
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                if isinstance(error, OSError) and error.errno in NOT_THE_MEMBERS:
                    raise
                if self._lost(error):
                    raise DeviceLost(f"{reason(error)} while {member.name} was saved") from error
                failed[member.name] = f"its state could not be saved: {reason(error)}"
                member.stage, member.reason, kept = "failed", failed[member.name], False
            entries.append(entry(member, f"{number}" if kept else ""))
        write(folder, entries)
        return failed

    def load(self, folder: Path) -> None:
        """Take over where the members were; trials load their states when they are set up."""
        entries = read(folder)
        for saved in entries:
            member = self._members.get(saved.name)
            if member is None:
                LOG.warning("member_gone member=%s: it is in the checkpoint, and not among the members now", saved.name)
                continue
            member.stage = saved.stage if saved.stage in ("finished", "failed") else "new"
            member.done, member.reason, member.metrics = saved.done, saved.reason, dict(saved.metrics)
            member.standing.service_s = saved.service_s
            if member.over:
                self._jobs[saved.name].body = None
        if self._resumable is not None:
            self._resumable.keep(folder, [saved for saved in entries if saved.name in self._members])
            for name, job in self._jobs.items():
                job.resume = self._resumable.of(name)

    def taken(self, name: str) -> None:
        """A member has been set up, and has loaded its state."""
        self._jobs[name].resume = None
        if self._resumable is not None:
            self._resumable.taken(name)

    def _save_state(self, member: Member, folder: Path) -> bool:
        """Write one trial's state; False where there is none."""
        if member.over or not member.trains:
            return False
        job = self._jobs[member.name]
        if member.stage == "running":
            folder.mkdir()
            body: Any = job.body
            body.save(folder)
            return True
        if job.resume is not None:
            copy(job.resume, folder)
            return True
        return False
