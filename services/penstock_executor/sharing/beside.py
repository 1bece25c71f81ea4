"""What running side by side gains, from how long iterations take with more lanes and with fewer. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock_executor.sharing.party import Place
from penstock_lanes import View

LEAST_ITERATIONS: Final = 5
"""Of each job, in one look, for its iterations' mean to count."""
LEAST_LOOKS: Final = 4
"""With so many lanes, before they are compared with fewer."""
MOST_LOOKS: Final = 64
"""The last ones count."""


@dataclass(slots=True)
class _Device:
    """What one device has shown: lanes at work → job → seconds an iteration, over so many looks."""

    counted: dict[tuple[Place, str], tuple[int, int]] = field(default_factory=dict)
    times_s: dict[int, dict[str, deque[float]]] = field(default_factory=dict)
    told: set[tuple[int, frozenset[str]]] = field(default_factory=set)


class Beside:
    """
    Compares lanes at work side by side.

    With ``k`` lanes at work where each job's iterations take ``t_k``, against ``t_(k-1)`` with one fewer, throughput is
    ``k / (k - 1)`` times the mean of ``t_(k-1) / t_k`` of what it was: 2 with two lanes that do not disturb each other,
    1 where the device was busy with one already. Only jobs that were measured with both are compared, each with itself.

    Examples
    --------
    >>> Beside.ratio(2, {"a": 0.010, "b": 0.020}, {"a": 0.012, "c": 0.003})
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

    def look(self, views: Mapping[Place, View]) -> list[tuple[int, int, float]]:
        """
        Take in what the pages count by now; return what has been found out since.

        Returns
        -------
        list of (device, lanes, ratio)
            As :meth:`penstock_policies.lanes.Board.gained` wants them; for the same jobs each number of lanes once.
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

    def _measure(self, known: _Device, views: Mapping[Place, View]) -> int:
        """Note how long iterations took since the last look; return how many lanes were at work, 0 if that changed."""
        counted = {(p, m.who.job_id): (m.iterations, m.held_ns) for p, view in views.items() for m in view.members}
        before, known.counted = known.counted, counted
        if counted.keys() != before.keys():
            return 0
        times_s = dict[tuple[Place, str], float]()
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
        if lanes < 2 or not jobs or (lanes, jobs) in known.told:
            return None
        known.told.add((lanes, jobs))
        return self.ratio(lanes, fewer_s, more_s)

    def forget(self, job_id: str) -> None:
        """A job is over."""
        for known in self._devices.values():
            for times_s in known.times_s.values():
                times_s.pop(job_id, None)
            known.told = {(lanes, jobs) for lanes, jobs in known.told if job_id not in jobs}


def _means(times_s: Mapping[str, deque[float]]) -> dict[str, float]:
    """Return each job's mean, once it was seen often enough."""
    return {job: sum(each) / len(each) for job, each in times_s.items() if len(each) >= LEAST_LOOKS}
