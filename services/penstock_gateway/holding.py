"""Who has which device, and what those who share one hold of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from penstock_events import Device, Job
from penstock_events.views import DeviceView
from penstock_gateway.machine import State
from penstock_policies.rounds.settings import Settings, rules_of
from penstock_policies.sharing.devices import Limits
from penstock_policies.sharing.near import At


def holders(jobs: Iterable[Job]) -> dict[At, list[Job]]:
    """Return the jobs that have each device, in order of submission."""
    found: dict[At, list[Job]] = {}
    for job in jobs:
        for slot in job.placement.slots if job.placement is not None else ():
            for index in slot.devices if slot.node_id in job.open_nodes else ():
                found.setdefault((slot.node_id, index), []).append(job)
    return found


def taken(state: State, settings: Settings) -> dict[At, str]:
    """Return what is held of each device that others may join, in words."""
    pools = {job.spec.pool for job in state.jobs if job.placement is not None and job.spec.sharing != "exclusive"}
    found: dict[At, str] = {}
    for name in sorted(pools):
        rules = rules_of(state, name, settings)
        index = state.pool(name, state.jobs, rules.topology).roster.sharing
        shared = index.shared(Limits(rules.lane_reserve_share, rules.most_sharers))
        found |= {at: one.taken() for at, one in shared.items()}
    return found


def beside(jobs: Iterable[Job], job_id: str, devices: Iterable[At]) -> tuple[str, ...]:
    """Return the other jobs on some devices, in order of submission."""
    there = holders(jobs)
    found = (job.id for at in devices for job in there.get(at, ()) if job.id != job_id)
    return tuple(dict.fromkeys(found))


def device(node_id: str, device: Device, held_by: Sequence[Job], taken: Mapping[At, str]) -> DeviceView:
    """Return one device with those who have it."""
    sharing = [job.id for job in held_by if job.spec.sharing != "exclusive"]
    return DeviceView(
        name=f"{node_id}/{device.kind}{device.index}",
        device=device,
        job_id=held_by[0].id if held_by else "",
        shared_by=tuple(sharing),
        taken=taken.get((node_id, device.index), "") if sharing else "",
    )
