"""The jobs of a pool that share devices, as rounds look at them: kept by the roster, which knows all others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from penstock_events import Job, MemoryNeed, workload
from penstock_policies.order import Running
from penstock_policies.placement import Located
from penstock_policies.sharing.devices import Limits, Shared
from penstock_policies.sharing.near import At
from penstock_policies.sharing.tenants import Tenant, tenant_of
from penstock_policies.sharing.tied import tied

G = TypeVar("G")


class Index(Generic[G]):
    """
    The sharing jobs of one pool.

    Parameters
    ----------
    needs : mapping of str to MemoryNeed
        What runs of each workload have needed; it may change.

    Attributes
    ----------
    tenants : dict of str to Tenant
        All of them, by id.
    runs : dict of str to Running
        Those that have devices, as far as these are on nodes that take jobs.
    stopping : dict of str to None
        Those of them that are stopping.
    waiting : dict of Tenant to G
        Those that wait, in groups that the roster keeps.

    Notes
    -----
    Noting a job is O(devices that it has).
    """

    def __init__(self, needs: Mapping[str, MemoryNeed]) -> None:
        self._needs = needs
        self.tenants: dict[str, Tenant] = {}
        self.runs: dict[str, Running] = {}
        self.stopping: dict[str, None] = {}
        self.waiting: dict[Tenant, G] = {}
        self._on: dict[At, dict[str, Located]] = {}
        self._shared: dict[At, Shared] = {}
        self._limits: Limits | None = None
        self._tied: dict[str, tuple[str, ...]] | None = None
        self._untold: set[str] = set()
        self._gangs = 0

    def __bool__(self) -> bool:
        return bool(self.tenants)

    @property
    def unmeasured(self) -> list[str]:
        """The jobs whose need nobody has told of themselves: other runs of their workloads may tell it."""
        self._untold &= self.tenants.keys()
        return sorted(self._untold)

    def tenant(self, job: Job) -> Tenant | None:
        """Return how a job shares; None for one that has its devices to itself."""
        if job.spec.sharing == "lane" and job.need is None and job.spec.memory is None:
            self._untold.add(job.id)
        else:
            self._untold.discard(job.id)
        return tenant_of(job, self._measured)

    def lease(self, run: Running, *, stopping: bool) -> None:
        """Note that a job has devices."""
        job_id = run.ranked.job_id
        self.runs[job_id] = run
        self._gangs += len(run.devices) > 1
        if stopping:
            self.stopping[job_id] = None
        for node_id, device in run.devices:
            self._on.setdefault((node_id, device.index), {})[job_id] = node_id, device
        self._forget(run)

    def release(self, job_id: str) -> None:
        """Note that a job has no devices any more."""
        run = self.runs.pop(job_id)
        self._gangs -= len(run.devices) > 1
        self.stopping.pop(job_id, None)
        for node_id, device in run.devices:
            there = self._on[node_id, device.index]
            del there[job_id]
            if not there:
                del self._on[node_id, device.index]
        self._forget(run)

    def leaving(self) -> Iterator[Located]:
        """Yield the devices that all of their jobs are leaving."""
        if self.stopping:
            for there in self._on.values():
                if there.keys() <= self.stopping.keys():
                    yield next(iter(there.values()))

    def parts(self) -> dict[str, float]:
        """
        Return as how many devices each job counts: its fraction, or one for each lane that it has, over those there.

        Those who are stopping do not count among them. Of a lane job that waits, nobody knows yet whom it will join:
        it counts as whole devices.
        """
        found = {job_id: tenant.fraction * tenant.gpus for job_id, tenant in self.tenants.items()}
        going_on = {at: len(there.keys() - self.stopping.keys()) for at, there in self._on.items()}
        for job_id, run in self.runs.items():
            if self.tenants[job_id].mode == "lane" and job_id not in self.stopping and run.devices:
                found[job_id] = sum(1.0 / going_on[node_id, device.index] for node_id, device in run.devices)
        return found

    def shared(self, limits: Limits) -> dict[At, Shared]:
        """Return the devices that jobs share, but for those that all of their jobs are leaving."""
        if limits != self._limits:
            self._limits = limits
            self._shared.clear()
        for at, there in self._on.items():
            if at not in self._shared:
                tenants = {job_id: self.tenants[job_id] for job_id in there}
                self._shared[at] = Shared.of(next(iter(there.values())), tenants, limits)
        if not self.stopping:
            return self._shared
        return {at: shared for at, shared in self._shared.items() if not self._on[at].keys() <= self.stopping.keys()}

    @property
    def ties(self) -> dict[str, tuple[str, ...]]:
        """The runs that are tied to each other, as :func:`penstock_policies.sharing.tied.tied` has it."""
        if self._tied is None and self._gangs:
            self._tied = tied(run for job_id, run in self.runs.items() if job_id not in self.stopping)
        elif self._tied is None:  # no device is tied to another
            going_on = ((at, self._on[at].keys() - self.stopping.keys()) for at in sorted(self._on))
            self._tied = {f"{node_id}/{index}": tuple(sorted(jobs)) for (node_id, index), jobs in going_on if jobs}
        return self._tied

    def _measured(self, job: Job) -> MemoryNeed | None:
        return self._needs.get(job.profile_key or workload.key(job.spec)) if self._needs else None

    def _forget(self, run: Running) -> None:
        """Let be worked out anew what depends on a run."""
        self._tied = None
        for node_id, device in run.devices:
            self._shared.pop((node_id, device.index), None)
