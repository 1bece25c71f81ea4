"""
The copies of checkpoints that this node keeps for jobs: which leases each has, and which of them may go.

A copy is kept by job, step and digest, whole or not at all, until the log has a newer checkpoint of its job or the job
is over. Pure: the donor has the slabs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from penstock_log import TERMINAL, Job

MOST_OF_ONE: Final = 3
"""Copies for one job of one account: the newest, the one before that, and one that the log has not heard of."""

FindJob = Callable[[str], "Job | None"]
"""The job of an id, as far as the log is folded; None where it is over, or unknown."""
_Name = tuple[str, int, str]


class KeepingRefused(Exception):
    """A copy is not kept, or not shown; the message says why."""


class KeptCopy(msgspec.Struct, frozen=True, kw_only=True):
    """
    A copy of a checkpoint.

    Attributes
    ----------
    user : str
        The account that wrote it.
    generation, step, digest : int, int, str
        Epoch of the run that wrote it, the step after which it was, and the SHA-256 of its manifest.
    size : int
        How many bytes of its slabs count.
    leases : tuple of str
        Its slabs, in order.
    """

    job_id: str
    user: str
    generation: int
    step: int
    digest: str
    size: int
    leases: tuple[str, ...]

    @property
    def name(self) -> _Name:
        """What it is asked for by."""
        return self.job_id, self.step, self.digest


class KeptCopies:
    """The copies on one node."""

    def __init__(self, find_job: FindJob) -> None:
        self._find_job = find_job
        self._by_name: dict[_Name, KeptCopy] = {}
        self._of_lease: dict[str, KeptCopy] = {}

    def __contains__(self, lease: str) -> bool:
        return lease in self._of_lease

    def __len__(self) -> int:
        return len(self._by_name)

    def add_copy(self, copy: KeptCopy) -> None:
        """
        Keep a copy.

        Raises
        ------
        KeepingRefused
            If its job does not ask for it, or has too many copies here.
        """
        job = self._find_job(copy.job_id)
        if job is None:
            raise KeepingRefused(f"the log has no job {copy.job_id} that is not over")
        if job.spec.checkpoint_tier != "memory":
            raise KeepingRefused(f"job {copy.job_id} does not ask for checkpoints in memory")
        if copy.name in self._by_name:
            raise KeepingRefused(f"the checkpoint after step {copy.step} of job {copy.job_id} is kept here already")
        of_one = [other for other in self._by_name.values() if (other.job_id, other.user) == (copy.job_id, copy.user)]
        if len(of_one) >= MOST_OF_ONE:
            raise KeepingRefused(f"{len(of_one)} copies for job {copy.job_id} are here already, which is the most")
        self._by_name[copy.name] = copy
        self._of_lease.update(dict.fromkeys(copy.leases, copy))

    def find_copy(self, job_id: str, step: int, digest: str, user: str) -> KeptCopy:
        """
        Return a copy for an account; empty: for who may have those of all.

        Raises
        ------
        KeepingRefused
            If there is none, or it is another account's.
        """
        copy = self._by_name.get((job_id, step, digest))
        if copy is None or (user and user != copy.user):  # the same words for both: nobody learns of others' copies
            raise KeepingRefused(f"it has no copy of the checkpoint after step {step} of job {job_id} for this account")
        return copy

    def drop(self, leases: Iterable[str]) -> set[str]:
        """Drop the copies that have one of these leases; return all leases of these, and the others as they are."""
        found = set(leases)
        for copy in {self._of_lease[lease].name: self._of_lease[lease] for lease in found if lease in self}.values():
            found.update(copy.leases)
            del self._by_name[copy.name]
            for lease in copy.leases:
                del self._of_lease[lease]
        return found

    def over(self) -> list[str]:
        """Return the leases of copies that the log does not need: of older checkpoints, and of jobs that are over."""
        return [lease for copy in self._by_name.values() if self._is_over(copy) for lease in copy.leases]

    def least_needed(self, count: int) -> list[str]:
        """Return at least so many leases to evict, of whole copies: those first whose checkpoint is on a disk too."""
        found: list[str] = []
        for copy in sorted(self._by_name.values(), key=lambda copy: not self.is_on_disk(copy)):
            if len(found) >= count:
                break
            found += copy.leases
        return found

    def on_memory_only(self, leases: Iterable[str]) -> list[KeptCopy]:
        """Return the copies of these leases whose checkpoints are not on a disk, as far as the log says."""
        copies = {self._of_lease[lease].name: self._of_lease[lease] for lease in leases if lease in self}
        return [copy for copy in copies.values() if not self.is_on_disk(copy)]

    def is_on_disk(self, copy: KeptCopy) -> bool:
        """Return whether the log has the copy's checkpoint on a disk, or a newer one."""
        job = self._find_job(copy.job_id)
        last = job.checkpoint if job is not None else None
        if last is None or (last.generation, last.step) < (copy.generation, copy.step):
            return job is None
        return last.tier == "disk" or last.digest != copy.digest

    def _is_over(self, copy: KeptCopy) -> bool:
        job = self._find_job(copy.job_id)
        if job is None or job.state in TERMINAL:
            return True
        last = job.checkpoint
        return last is not None and (copy.generation, copy.step) < (last.generation, last.step)
