"""Why a job that shares devices waits: what it needs beside others, and what there is."""

from __future__ import annotations

from penstock_events import JobSpec
from penstock_policies import waiting
from penstock_policies.cluster import fits
from penstock_policies.sharing.choice import Sharing
from penstock_policies.sharing.devices import Shared
from penstock_policies.sharing.tenants import Tenant, asking
from penstock_policies.waiting import Reason, Scene, gibibytes


def impossible(spec: JobSpec, tenant: Tenant, scene: Scene, reserve_share: float) -> Reason | None:
    """Return why the present nodes cannot take the job whatever ends; None where it only has to wait its turn."""
    if (found := waiting.impossible(spec, scene)) is not None:
        return found
    wanted = asking(spec, tenant, reserve_share)
    if max(scene.whole.kinds(wanted).values(), default=0) < tenant.gpus:
        largest = max(device.memory_bytes for _, device in scene.whole if fits(spec, device))
        evidence = f"needs {gibibytes(wanted.memory_bytes)} of each device with what is kept in reserve; the largest"
        return Reason("never_fits", f"{evidence} has {gibibytes(largest)}")
    if tenant.gpus == 1:
        return None
    most = max(
        (len(held) for kind in scene.whole.kinds(wanted) for held in scene.whole.standing(wanted, kind).values()),
        default=0,
    )
    if most >= tenant.gpus:
        return None
    evidence = f"takes turns on {tenant.gpus} devices of one node and kind; the most that one has is {most}"
    return Reason("never_fits", evidence, f"ask for at most {_count(most, 'device')}")


def capacity(spec: JobSpec, tenant: Tenant, sharing: Sharing, scene: Scene, ahead: int) -> Reason:
    """
    Return why a job finds neither room on devices that others share nor a device that nobody has.

    Parameters
    ----------
    ahead : int
        How many waiting jobs stand before it.
    """
    place = f"{_count(ahead, 'waiting job')} before it" if ahead else "it is next"
    found = sharing.survey(spec, tenant)
    parts = [f"needs {_wanted(tenant)}", *_most_room(found.most)]
    parts += [f"{_count(count, 'device')} {why}" for why, count in sorted(found.refusals.items()) if not tenant.alone]
    whole = sum(scene.whole.kinds(spec).values()) - found.number
    if whole > 0:
        parts.append(f"{_count(whole, 'device')} held by jobs that do not share")
    return Reason("capacity", "; ".join([*parts, place]))


def _wanted(tenant: Tenant) -> str:
    if tenant.alone:
        return "a device of its own until a run has measured its memory"
    return f"{tenant.needs()} on each of {tenant.gpus} devices of a node" if tenant.gpus > 1 else tenant.needs()


def _most_room(most: Shared | None) -> list[str]:
    """Return how much is taken of the device that has most room."""
    if most is None:
        return []
    node_id, device = most.at
    return [f"device {node_id}/{device.kind}{device.index}: {most.taken()}"]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
