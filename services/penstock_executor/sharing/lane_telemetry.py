"""
Telemetry of lanes, and the gain of running side by side.

:func:`lanes_view` tells who has the turn on each shared device and what everyone holds; :class:`TurnShares` measures
how the time is divided. :class:`ParallelGain` compares how long iterations take with more lanes and with fewer; it is
pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock_executor.sharing.shared_run import NodeLane, SharedRun
from penstock_executor.sharing.sharing_state import SharingState
from penstock_log import Device
from penstock_log.views import LanesView, SharedDeviceView, SharedLaneView, SharedRunView
from penstock_sharing.lanes import LaneView
from penstock_sharing.token import LaneClientId, LaneTokenView


class TurnShares:
    """
    How the time of each lane was divided since the last look.

    Attributes
    ----------
    held : dict of LaneClientId to float
        Process → share of the time in which it had the turn, 0 to 1; with several devices, the largest share.
    switches_per_s : dict of NodeLane to float
    """

    def __init__(self) -> None:
        self.held: dict[LaneClientId, float] = {}
        self.switches_per_s: dict[NodeLane, float] = {}
        self._at_ns = 0
        self._views: Mapping[NodeLane, LaneTokenView] = {}

    def measure(self, views: Mapping[NodeLane, LaneTokenView], now_ns: int) -> None:
        """Read the counters of the pages; ``now_ns`` is by their clock, ``CLOCK_MONOTONIC``."""
        before, before_ns = self._views, self._at_ns
        self._views, self._at_ns = views, now_ns
        span_ns = max(1, now_ns - before_ns)
        self.held, self.switches_per_s = {}, {}
        for place, view in views.items():
            earlier, by_now_ns = before.get(place), _held_ns(view, now_ns)
            then_ns = by_now_ns if earlier is None else _held_ns(earlier, before_ns)
            spent_ns = {who: max(0, ns - then_ns.get(who, ns)) for who, ns in by_now_ns.items()}
            whole_ns = max(span_ns, sum(spent_ns.values()))  # not all is read at the same moment
            for who, ns in spent_ns.items():
                self.held[who] = max(self.held.get(who, 0.0), ns / whole_ns)
            self.switches_per_s[place] = 1e9 * (view.turn - (earlier or view).turn) / span_ns


def _held_ns(view: LaneTokenView, now_ns: int) -> dict[LaneClientId, int]:
    """Return how long each member has had the turn by now; a holder that has not woken up yet does not count."""
    held_ns = {member.who: member.held_ns for member in view.members}
    if view.begun and view.holder in held_ns:
        held_ns[view.holder] += max(0, now_ns - view.since_ns)
    return held_ns


def lanes_view(
    sharing: SharingState,
    devices: Iterable[Device],
    shares: TurnShares,
    fractions: Mapping[int, list[SharedRunView]],
    at_s: float,
) -> LanesView | None:
    """
    Return the view of all shared devices; None if no device is shared.

    Parameters
    ----------
    fractions : mapping of int to list of SharedRunView
        Device → runs that have a part of its memory.
    """
    views = tuple(_device(sharing, device, shares, fractions.get(device.index, [])) for device in devices)
    shared = tuple(view for view in views if view.lanes or view.outside)
    return LanesView(node_id=sharing.node_id, at_s=at_s, devices=shared) if shared else None


def _device(
    sharing: SharingState, device: Device, shares: TurnShares, fractions: list[SharedRunView]
) -> SharedDeviceView:
    on_device = sharing.lanes_of[device.index]
    outside = [
        _member(sharing, run, device.index, _outside(run, device.index), shares)
        for run in sharing.shared_runs.values()
        if device.index in run.request.devices and device.index not in run.lanes and run.job_id in on_device
    ]
    parts_bytes = sum(part.cap_bytes for part in fractions)
    return SharedDeviceView(
        device=device.index,
        kind=device.kind,
        memory_bytes=device.memory_bytes,
        used_bytes=on_device.used_bytes + parts_bytes,
        lanes=tuple(_lane(sharing, device.index, lane, shares) for lane in on_device.lanes),
        outside=(*outside, *fractions),
    )


def _lane(sharing: SharingState, device: int, lane: LaneView, shares: TurnShares) -> SharedLaneView:
    shared_runs = [sharing.shared_runs[job_id] for job_id in lane.members]
    return SharedLaneView(
        lane=lane.lane,
        size_bytes=lane.size_bytes,
        holder=lane.holder or "",
        switches_per_s=shares.switches_per_s.get(NodeLane(device, lane.lane), 0.0),
        members=tuple(
            _member(sharing, run, device, "turn" if run.job_id == lane.holder else "idle", shares)
            for run in shared_runs
        ),
    )


def _member(sharing: SharingState, run: SharedRun, device: int, state: str, shares: TurnShares) -> SharedRunView:
    on_device = sharing.lanes_of[device]
    return SharedRunView(
        job_id=run.job_id,
        epoch=run.request.epoch,
        state=state,
        need=on_device.need(run.job_id) if run.known else None,
        cap_bytes=on_device.cap_bytes(run.job_id),
        share=max((shares.held.get(who, 0.0) for who in run.whos_on(device)), default=0.0),
        reason=on_device.why(run.job_id),
    )


def _outside(run: SharedRun, device: int) -> str:
    if run.progress.at == "leaving":
        return "leaving"
    return "parked" if device in run.slot_lanes else "waits"


LEAST_ITERATIONS: Final = 5
"""Of each job, in one look, for its iterations' mean to count."""
LEAST_LOOKS: Final = 4
"""With so many lanes, before they are compared with fewer."""
MOST_LOOKS: Final = 64
"""The last ones count."""


@dataclass(slots=True)
class _Device:
    """The measurements of one device: lanes at work → job → seconds of an iteration, at the last looks."""

    counted: dict[tuple[NodeLane, str], tuple[int, int]] = field(default_factory=dict)
    times_s: dict[int, dict[str, deque[float]]] = field(default_factory=dict)
    reported: set[tuple[int, frozenset[str]]] = field(default_factory=set)


class ParallelGain:
    """
    The gain in throughput of lanes that work side by side.

    With ``k`` lanes at work where each job's iterations take ``t_k``, against ``t_(k-1)`` with one fewer, throughput is
    ``k / (k - 1)`` times the mean of ``t_(k-1) / t_k`` of what it was: 2 with two lanes that do not disturb each other,
    1 where the device was busy with one already. Only jobs that were measured with both are compared, each with itself.

    Examples
    --------
    >>> ParallelGain.ratio(2, {"a": 0.010, "b": 0.020}, {"a": 0.012, "c": 0.003})
    1.6666666666666667
    """

    def __init__(self) -> None:
        self._devices: dict[int, _Device] = {}

    @staticmethod
    def ratio(lanes: int, fewer_s: Mapping[str, float], more_s: Mapping[str, float]) -> float | None:
        """Return the throughput with ``lanes`` over that with one fewer; None where no job was measured with both."""
        both = fewer_s.keys() & more_s.keys()
        if not both:
            return None
        return lanes / (lanes - 1) * sum(fewer_s[job] / more_s[job] for job in both) / len(both)

    def look(self, views: Mapping[NodeLane, LaneTokenView]) -> list[tuple[int, int, float]]:
        """
        Read the counters of the pages; return the gains that were found since the last look.

        Returns
        -------
        list of (device, lanes, ratio)
            For :meth:`penstock_sharing.lanes.DeviceLanes.gained`; each number of lanes once for the same jobs.
        """
        found = []
        for device in {place.device for place in views} | self._devices.keys():
            here = {place: view for place, view in views.items() if place.device == device}
            known = self._devices.setdefault(device, _Device())
            lanes = self._measure(known, here)
            ratio = self._judge(known, lanes)
            if ratio is not None:
                found.append((device, lanes, ratio))
        return found

    def _measure(self, known: _Device, views: Mapping[NodeLane, LaneTokenView]) -> int:
        """Note how long iterations took since the last look; return the lanes at work, 0 if their number changed."""
        counted = {(p, m.who.job_id): (m.iterations, m.held_ns) for p, view in views.items() for m in view.members}
        before, known.counted = known.counted, counted
        if counted.keys() != before.keys():
            return 0
        times_s = dict[tuple[NodeLane, str], float]()
        for key, (iterations, held_ns) in counted.items():
            done, spent_ns = iterations - before[key][0], held_ns - before[key][1]
            if done >= LEAST_ITERATIONS and spent_ns > 0:
                times_s[key] = spent_ns / done / 1e9
        at_work = {place for place, _ in times_s}
        if len(at_work) == len(views):
            for (_, job_id), time_s in times_s.items():
                known.times_s.setdefault(len(views), {}).setdefault(job_id, deque(maxlen=MOST_LOOKS)).append(time_s)
        return len(at_work) if len(at_work) == len(views) else 0

    def _judge(self, known: _Device, lanes: int) -> float | None:
        more_s, fewer_s = _means(known.times_s.get(lanes, {})), _means(known.times_s.get(lanes - 1, {}))
        jobs = frozenset(more_s.keys() & fewer_s.keys())
        if lanes < 2 or not jobs or (lanes, jobs) in known.reported:
            return None
        known.reported.add((lanes, jobs))
        return self.ratio(lanes, fewer_s, more_s)

    def forget(self, job_id: str) -> None:
        """Drop the measurements of a job that is over."""
        for known in self._devices.values():
            for times_s in known.times_s.values():
                times_s.pop(job_id, None)
            known.reported = {(lanes, jobs) for lanes, jobs in known.reported if job_id not in jobs}


def _means(times_s: Mapping[str, deque[float]]) -> dict[str, float]:
    """Return the mean of each job with enough measurements."""
    return {job: sum(each) / len(each) for job, each in times_s.items() if len(each) >= LEAST_LOOKS}
