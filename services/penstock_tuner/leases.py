"""Who holds which devices, whosever they are: what is idle, and how many share."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock_events import Job


class Leases(msgspec.Struct):
    """
    The devices that jobs hold.

    Attributes
    ----------
    of_job : dict of str to tuple of str
        Job → its devices, as ``node/index``.
    jobs_on : dict of str to int
        Device → how many jobs hold it.

    Examples
    --------
    >>> from penstock_events import JobSpec, Placement, Slot
    >>> job = Job(id="j", spec=JobSpec(name="j", command=("true",)), submitted_s=0.0)
    >>> job.placement = Placement(job_id="j", epoch=1, kind="fast", slots=(Slot(node_id="n1", devices=(0, 1)),))
    >>> job.open_nodes = {"n1"}
    >>> leases = Leases()
    >>> leases.note(job), leases.sharers("n1", 1), leases.sharers("n1", 2)
    (True, 1, 0)
    """

    of_job: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    jobs_on: dict[str, int] = msgspec.field(default_factory=dict)

    def sharers(self, node_id: str, index: int) -> int:
        """Return how many jobs hold a device."""
        return self.jobs_on.get(f"{node_id}/{index}", 0)

    def most_on(self, job_id: str) -> int:
        """Return how many jobs there are on the fullest device of a job; 0 where it has none."""
        return max((self.jobs_on[at] for at in self.of_job.get(job_id, ())), default=0)

    def note(self, job: Job) -> bool:
        """Follow a job that a fact was about; say whether its devices are others than before."""
        before, now = self.of_job.get(job.id, ()), tuple(_devices(job))
        if before == now:
            return False
        for at in before:
            self.jobs_on[at] -= 1
            if not self.jobs_on[at]:
                del self.jobs_on[at]
        for at in now:
            self.jobs_on[at] = self.jobs_on.get(at, 0) + 1
        if now:
            self.of_job[job.id] = now
        else:
            del self.of_job[job.id]
        return True


def _devices(job: Job) -> Iterable[str]:
    slots = job.placement.slots if job.placement is not None else ()
    return (f"{slot.node_id}/{index}" for slot in slots if slot.node_id in job.open_nodes for index in slot.devices)
