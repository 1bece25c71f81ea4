"""
Jobs on several devices of one node: a gang enters them, and takes its turns on them, in the order of the devices.

A gang needs a lane on each of its devices at once. If two gangs took them in any order, each could hold what the other
waits for. So all take them in one order, lowest device first, and ask for the next only when they have the one before:
whoever has the highest of those that are held waits for nobody. The same goes for entering, one level out: entering
waits for turns and for ends, and turns never wait for anybody who is entering.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import msgspec

from penstock_log import MemoryNeed
from penstock_sharing.lanes.device_lanes import DeviceLanes
from penstock_sharing.lanes.lane import (
    Change,
    LaneEntered,
    LaneRefused,
    MemberEvicted,
    MemberParked,
    MemberUnparked,
    TurnGranted,
)


class GangComplete(msgspec.Struct, frozen=True):
    """A job is in a lane on each of its devices: it may start."""

    job_id: str


class GangTurn(msgspec.Struct, frozen=True):
    """A job has the turn on each of its devices, until its next ``boundary``."""

    job_id: str


class DeviceChange(NamedTuple):
    """What has changed on one device."""

    device: int
    change: Change


NodeChange: TypeAlias = DeviceChange | GangComplete | GangTurn


@dataclass(slots=True)
class _Gang:
    """One job, and how far it has come."""

    job_id: str
    needs: dict[int, MemoryNeed]
    standing: dict[str, float]
    priority: int
    devices: tuple[int, ...]
    entered: int = 0
    wants: bool = False
    parked: set[int] = field(default_factory=set)
    leaving: bool = False

    @property
    def may_ask(self) -> bool:
        """Whether it is to begin to take its next turn, if it holds none."""
        return self.wants and not self.parked and not self.leaving and self.is_complete

    @property
    def is_complete(self) -> bool:
        """Whether it has entered all of its devices."""
        return self.entered == len(self.devices)


class LaneGangs:
    """
    The jobs of a node over the lanes of its devices; a job on one device is a gang of one.

    Parameters
    ----------
    lanes_of : mapping of int to DeviceLanes
        By device.

    Notes
    -----
    A gang that is parked on one device gives up its turns on all, and asks again when it is parked on none. One that is
    evicted from one has to leave all: whoever stops it calls ``finish``.

    Examples
    --------
    >>> gangs = LaneGangs({0: DeviceLanes(100), 1: DeviceLanes(100)})
    >>> gangs.arrive("a", {0: MemoryNeed(10, 0, 40), 1: MemoryNeed(10, 0, 40)}, now_s=0.0)[-1]
    GangComplete(job_id='a')
    >>> gangs.want("a", now_s=1.0)[-1]
    GangTurn(job_id='a')
    """

    def __init__(self, lanes_of: Mapping[int, DeviceLanes]) -> None:
        self.lanes_of = lanes_of
        self._gangs: dict[str, _Gang] = {}

    def arrive(
        self,
        job_id: str,
        needs: Mapping[int, MemoryNeed],
        now_s: float,
        *,
        service_s: float = 0.0,
        remaining_s: float = math.inf,
        priority: int = 0,
    ) -> list[NodeChange]:
        """A job wants lanes on some devices, with what it needs on each."""
        if job_id in self._gangs or not needs or not needs.keys() <= self.lanes_of.keys():
            raise ValueError(f"job {job_id} on devices {sorted(needs)}; expected a new job, on devices of this node")
        standing = {"service_s": service_s, "remaining_s": remaining_s}
        gang = _Gang(job_id, dict(needs), standing, priority, tuple(sorted(needs)))
        self._gangs[job_id] = gang
        return self._follow(self._enter(gang, now_s), now_s)

    def want(self, job_id: str, now_s: float) -> list[NodeChange]:
        """A job is ready for its next turn; ``GangTurn`` says when it has it."""
        gang = self._gang(job_id)
        gang.wants = True
        return self._follow(self._ask(gang, now_s), now_s)

    def boundary(
        self, job_id: str, now_s: float, *, needs: Mapping[int, MemoryNeed] | None = None, wants: bool = True
    ) -> list[NodeChange]:
        """A job's turn is over on all of its devices; ``needs`` says what has been measured, by device."""
        gang = self._gang(job_id)
        if not self.has_turn(job_id):
            raise ValueError(f"it is not the turn of job {job_id}; expected a boundary only after Turn")
        gang.wants = wants
        changes: list[DeviceChange] = []
        for device in reversed(gang.devices):
            need = (needs or {}).get(device)
            changes += _on(device, self.lanes_of[device].boundary(job_id, now_s, need=need, wants=False))
        return [*self._follow(changes, now_s), *self._follow(self._ask(gang, now_s), now_s)]

    def rest(self, job_id: str, now_s: float) -> list[NodeChange]:
        """A job that has no turn asks for none any more; what it has of one on some devices, it gives up."""
        gang, changes = self._gang(job_id), list[DeviceChange]()
        gang.wants = False
        for device in reversed(gang.devices):
            if self.lanes_of[device].has_turn(job_id):
                changes += _on(device, self.lanes_of[device].boundary(job_id, now_s, wants=False))
            elif job_id in self.lanes_of[device]:
                self.lanes_of[device].rest(job_id)
        return self._follow(changes, now_s)

    def passed(self, job_id: str, to: str, now_s: float, *, wants: bool = False) -> list[NodeChange]:
        """A job on one device has handed its turn there straight to another such job (:meth:`DeviceLanes.passed`)."""
        gang, other = self._gang(job_id), self._gang(to)
        if len(gang.devices) > 1 or gang.devices != other.devices:
            raise ValueError(f"job {job_id} cannot hand its turn to {to}; expected two jobs on the same single device")
        gang.wants, other.wants = wants, False
        (device,) = gang.devices
        return self._follow(_on(device, self.lanes_of[device].passed(job_id, to, now_s, wants=wants)), now_s)

    def measured(self, job_id: str, needs: Mapping[int, MemoryNeed], now_s: float) -> list[NodeChange]:
        """A job that has no turn on any device turns out to need something else on some of them."""
        gang = self._gang(job_id)
        if self.holds(job_id):
            raise ValueError(f"job {job_id} has a turn; expected its need at the boundary")
        gang.needs.update(needs)
        changes: list[DeviceChange] = []
        for device, need in sorted(needs.items()):
            if job_id in self.lanes_of[device]:
                changes += _on(device, self.lanes_of[device].measured(job_id, need, now_s))
        return self._follow(changes, now_s)

    def has_turn(self, job_id: str) -> bool:
        """Return whether a job has the turn on all of its devices."""
        return all(self.lanes_of[device].has_turn(job_id) for device in self._gang(job_id).devices)

    def holds(self, job_id: str) -> bool:
        """Return whether a job has its turn, or a part of its next one: on some of its devices."""
        return any(self.lanes_of[device].has_turn(job_id) for device in self._gang(job_id).devices)

    def hurry(self, job_id: str) -> None:
        """A job is to stop at a boundary: its requests go before those of others, on all of its devices."""
        for device in self._gang(job_id).devices:
            if job_id in self.lanes_of[device]:
                self.lanes_of[device].hurry(job_id)

    def gained(self, device: int, lanes: int, ratio: float, now_s: float) -> list[NodeChange]:
        """Running side by side has been measured on one device (:meth:`DeviceLanes.gained`)."""
        return self._follow(_on(device, self.lanes_of[device].gained(lanes, ratio, now_s)), now_s)

    def finish(self, job_id: str, now_s: float) -> list[NodeChange]:
        """A job is over on all of its devices."""
        return self._follow(self._withdraw(self._gang(job_id), now_s), now_s)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._gangs

    def _follow(self, found: list[DeviceChange], now_s: float) -> list[NodeChange]:
        """Carry on with what has changed: who has entered one device enters the next, and so with turns."""
        queue, changes = deque(found), list[NodeChange]()
        while queue:
            on = queue.popleft()
            changes.append(on)
            queue.extend(self._next(on, changes, now_s))
        return changes

    def _next(self, on: DeviceChange, changes: list[NodeChange], now_s: float) -> list[DeviceChange]:
        match on.change:
            case LaneEntered(job_id):
                gang = self._gang(job_id)
                gang.entered += 1
                if not gang.is_complete:
                    return self._enter(gang, now_s)
                changes.append(GangComplete(job_id))
                return self._ask(gang, now_s)
            case TurnGranted(job_id):
                gang = self._gang(job_id)
                following = gang.devices[gang.devices.index(on.device) + 1 :]
                if following:
                    return _on(following[0], self.lanes_of[following[0]].want(job_id, now_s))
                gang.wants = False
                changes.append(GangTurn(job_id))
            case MemberParked(job_id):
                self._gang(job_id).parked.add(on.device)
            case MemberUnparked(job_id):
                self._gang(job_id).parked.discard(on.device)
                return self._ask(self._gang(job_id), now_s)
            case MemberEvicted(job_id):
                self._gang(job_id).leaving = True
            case LaneRefused(job_id):
                return self._withdraw(self._gang(job_id), now_s)
        return []

    def _enter(self, gang: _Gang, now_s: float) -> list[DeviceChange]:
        device = gang.devices[gang.entered]
        changes = self.lanes_of[device].arrive(
            gang.job_id, gang.needs[device], now_s, priority=gang.priority, **gang.standing
        )
        return _on(device, changes)

    def _ask(self, gang: _Gang, now_s: float) -> list[DeviceChange]:
        """Ask for the turn on the first device, if nothing speaks against it."""
        if not gang.may_ask or self.holds(gang.job_id):
            return []
        return _on(gang.devices[0], self.lanes_of[gang.devices[0]].want(gang.job_id, now_s))

    def _withdraw(self, gang: _Gang, now_s: float) -> list[DeviceChange]:
        del self._gangs[gang.job_id]
        changes: list[DeviceChange] = []
        for device in gang.devices:
            if gang.job_id in self.lanes_of[device]:
                changes += _on(device, self.lanes_of[device].finish(gang.job_id, now_s))
        return changes

    def _gang(self, job_id: str) -> _Gang:
        if job_id not in self._gangs:
            raise ValueError(f"job {job_id} is not here; expected one that has arrived and has not finished")
        return self._gangs[job_id]


def _on(device: int, changes: list[Change]) -> list[DeviceChange]:
    return [DeviceChange(device, change) for change in changes]
