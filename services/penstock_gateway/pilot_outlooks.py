"""
What allocations could do for a job: bring a pilot that holds it, or not, and why not.

:class:`PilotOutlooks` looks at each allocation of the job's pool. Whether a pilot is submitted at all, the allocator
decides by the matcher's round; here it is only said what its pilots have, and what keeps them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Final, NamedTuple, TypeVar

import msgspec

from penstock_cluster.allocations import GUESSED_KIND, Allocation, Pilot, margin_s
from penstock_cluster.nodes import Cluster, Node, fits
from penstock_gateway.machine import GatewayState
from penstock_log import JobSpec
from penstock_log.decision_facts import FOR_DEVICES
from penstock_log.text import count, duration, gibibytes, listed
from penstock_log.views import DryRunView, PilotOutlook, WhyView
from penstock_scheduler import wait_causes
from penstock_scheduler.pool.pool_settings import MatcherSettings, rules_of

PILOT: Final = "pilot"
"""The cause of a job that no present node holds, where an allocation may bring one that does."""
NO_NODE: Final = frozenset({"never_fits", "no_nodes", "node_down"})
"""Causes of jobs that no present node could start, whatever ends."""
_View = TypeVar("_View", WhyView, DryRunView)
MOST_NAMED: Final = 3
"""Allocations that one sentence names."""
PROVIDERS: Final = {"slurm": "Slurm", "ssh": "SSH", "kubernetes": "Kubernetes", "local": "this machine"}


class PilotsAwaited(NamedTuple):
    """
    What a job that no present node holds waits for.

    Attributes
    ----------
    evidence : str
        Which allocations may bring what it needs, and how far they are.
    remedy : str
        What has to be done for it; empty where nothing has.
    """

    evidence: str
    remedy: str = ""


class PilotOutlooks:
    """
    What the allocations could do for jobs, for many jobs one after the other.

    Each demand is looked at once: use it only while the state does not change. :meth:`at` moves the time on.
    """

    def __init__(self, state: GatewayState, now_s: float, settings: MatcherSettings | None = None) -> None:
        self._state, self._now_s, self._settings = state, now_s, settings or MatcherSettings()
        self._obstacles: dict[tuple[object, ...], tuple[str, ...]] = {}
        self._missing: dict[tuple[object, ...], str] = {}

    def at(self, now_s: float) -> PilotOutlooks:
        """Return the outlooks of the same state at another time, which share what they have looked at."""
        found = PilotOutlooks(self._state, now_s, self._settings)
        found._obstacles, found._missing = self._obstacles, self._missing
        return found

    def of(self, spec: JobSpec) -> tuple[PilotOutlook, ...]:
        """Return the outlook of each allocation of a job's pool, those that may bring something first."""
        found = [one for one in self._state.allocations.by_name.values() if one.spec.pool == spec.pool]
        if not found:
            return ()
        user = spec.user if any(spec.user in one.refused for one in found) else None
        key = (spec.pool, user, spec.kinds, spec.memory_bytes, spec.gpus, spec.host_demand, spec.image)
        if key not in self._obstacles:
            self._obstacles[key] = tuple(self._obstacle(allocation, spec) for allocation in found)
        looks = map(self._look, found, self._obstacles[key])
        return tuple(sorted(looks, key=lambda one: (_ORDER[one.state], one.name)))

    def may_come(self, spec: JobSpec) -> bool:
        """Return whether any allocation may bring a node that holds a job, if need be once somebody resumes it."""
        return any(one.state != "unable" for one in self.of(spec))

    def awaited(self, spec: JobSpec) -> PilotsAwaited | None:
        """Return what a job waits for that no present node holds; None where no allocation may bring it."""
        able = [one for one in self.of(spec) if one.state != "unable"]
        if not able:
            return None
        active = [one for one in able if one.is_hopeful]
        shown = listed_outlooks(active or able)
        remedy = "" if active else f"penstock alloc resume {able[0].name}"
        return PilotsAwaited(f"{self._what_is_missing(spec)}; {shown}", remedy)

    def told(self, view: _View, spec: JobSpec) -> _View:
        """Return why a job waits, with what allocations could do where it waits for nodes or for devices."""
        if view.cause not in NO_NODE | FOR_DEVICES:
            return view
        found = msgspec.structs.replace(view, allocations=self.of(spec))
        if view.cause not in NO_NODE or not found.allocations:
            return found
        if (awaited := self.awaited(spec)) is not None:
            return msgspec.structs.replace(found, cause=PILOT, evidence=awaited.evidence, remedy=awaited.remedy)
        return msgspec.structs.replace(found, evidence=f"{view.evidence}; {listed_outlooks(found.allocations)}")

    def _what_is_missing(self, spec: JobSpec) -> str:
        """Say what no present node has."""
        key = (spec.pool, spec.kinds)
        if key not in self._missing:
            self._missing[key] = self._missing_text(spec)
        return self._missing[key]

    def _missing_text(self, spec: JobSpec) -> str:
        usable = [node for node in self._state.cluster.staying(spec.pool) if node.usable]
        if spec.kinds and not any(device.kind in spec.kinds for node in usable for device in node.devices):
            return f"no node has {' or '.join(f'`{kind}`' for kind in spec.kinds)} now"
        return f"no node of pool `{spec.pool}` holds it now" if usable else f"pool `{spec.pool}` has no node now"

    def _look(self, allocation: Allocation, obstacle: str) -> PilotOutlook:
        state = "unable" if obstacle else _state(allocation)
        said = f"cannot help: {obstacle}" if obstacle else _SENTENCES[state](allocation, self._now_s)
        return PilotOutlook(
            name=allocation.name,
            provider=allocation.spec.provider,
            state=state,
            pilots=len(allocation.pilots),
            text=f"allocation {allocation.name} ({allocation.spec.provider}) {said}",
        )

    def _obstacle(self, allocation: Allocation, spec: JobSpec) -> str:
        """Return why no pilot of an allocation could run a job; empty if one could."""
        if allocation.removed_s:
            return "it is being removed"
        if spec.user in allocation.refused:
            why = f" because {allocation.refused[spec.user]}" if allocation.refused[spec.user] else ""
            again = f"once that is mended, `penstock alloc resume {allocation.name}` has it try again"
            return f"user {spec.user or 'nobody'} is refused there{why} ({again})"
        left_s = allocation.spec.walltime_s - margin_s(allocation.spec)
        least_s = rules_of(self._state, spec.pool, self._settings).least_left_s
        if left_s <= least_s:
            whole = duration(allocation.spec.walltime_s)
            return (
                f"its walltime leaves too little: of {whole}, jobs have {duration(left_s)}, and none is begun in the "
                f"last {duration(least_s)}"
            )
        return self._too_small(allocation, spec)

    def _too_small(self, allocation: Allocation, spec: JobSpec) -> str:
        """Return what pilots lack for a job, also beside the nodes that there are; empty if nothing."""
        at_once = min(allocation.spec.max_pilots, allocation.spec.backlog, spec.gpus)
        nodes = [node for number in range(at_once) for node in _new_nodes(allocation, f"more-{number}", spec)]
        alone = wait_causes.impossible_cause(spec, _as_pool(spec.pool, nodes))
        if alone is None:
            return ""
        devices = [device for node in nodes for device in node.devices]
        accepted = [device for device in devices if fits(spec, device)]
        if not accepted:
            largest = max(device.memory_bytes for device in devices)
            if spec.memory_bytes > largest:
                return f"a device of its pilots has {gibibytes(largest)}, and it needs {gibibytes(spec.memory_bytes)}"
            return f"its pilots bring {listed(sorted({device.kind for device in devices}))}"
        there = self._state.cluster.staying(spec.pool)
        coming = (node for pilot in allocation.coming for node in _new_nodes(allocation, pilot.id, spec))
        if wait_causes.impossible_cause(spec, _as_pool(spec.pool, [*there, *coming, *nodes])) is None:
            return ""
        most = max(Counter(device.kind for device in accepted).values())
        if most < spec.gpus:
            them = "its pilots hold" if at_once == 1 else f"{at_once} pilots, as many as come at once, hold"
            return f"{them} at most {count(most, 'device')} that it accepts, and it needs {spec.gpus}"
        return f"its pilots have devices for it, but {alone.evidence}"


def listed_outlooks(outlooks: Sequence[PilotOutlook]) -> str:
    """Return the first outlooks as one sentence."""
    more = [f"and {len(outlooks) - MOST_NAMED} more allocations"] if len(outlooks) > MOST_NAMED else []
    return "; ".join([*(one.text for one in outlooks[:MOST_NAMED]), *more])


def _as_pool(pool: str, nodes: Iterable[Node]) -> wait_causes.RoundAftermath:
    return wait_causes.without_runs(Cluster(nodes={node.id: node for node in nodes}), pool)


def _new_nodes(allocation: Allocation, pilot_id: str, spec: JobSpec) -> Iterator[Node]:
    """Yield the nodes of a pilot; where nothing is known of its devices, they are what the job asks for."""
    for node in allocation.new_nodes(pilot_id):
        devices = node.devices
        if not allocation.has_known_size:
            devices = tuple(msgspec.structs.replace(devices[0], index=index) for index in range(spec.gpus))
        if spec.kinds and devices[0].kind == GUESSED_KIND:
            devices = tuple(msgspec.structs.replace(one, kind=spec.kinds[0]) for one in devices)
        yield msgspec.structs.replace(node, devices=devices)


def _state(allocation: Allocation) -> str:
    if allocation.coming:
        return "coming"
    if allocation.paused_s:
        return "paused"
    if len(allocation.pilots) >= allocation.spec.max_pilots:
        return "full"
    return "failing" if allocation.failures else "able"


def _coming(allocation: Allocation, now_s: float) -> str:
    coming, spec = allocation.coming, allocation.spec
    first = coming[0]
    paused = f"; it is {paused_text(allocation)}" if allocation.paused_s else ""
    many = f"has {count(len(coming), 'pilot')} of {spec.max_pilots} on {'its' if len(coming) == 1 else 'their'} way"
    return f"{many}, {_whereabouts(first, spec.provider, now_s)}{paused}"


def _whereabouts(pilot: Pilot, provider: str, now_s: float) -> str:
    """Say how far a pilot is that has no node yet."""
    if pilot.started_s:
        at = f" on {listed(pilot.hosts)}" if pilot.hosts else ""
        return f"{pilot.id} started{at} {_ago(pilot.started_s, now_s)}, and its node has not joined yet"
    if not pilot.submitted_s:
        return f"{pilot.id} planned {_ago(pilot.planned_s, now_s)}, and not submitted yet"
    waits = f", waiting in {PROVIDERS.get(provider, provider)}: {pilot.waits}" if pilot.waits else ""
    return f"submitted {_ago(pilot.submitted_s, now_s)}{waits}"


def _ago(then_s: float, now_s: float) -> str:
    return f"{duration(max(0.0, now_s - then_s))} ago"


def paused_text(allocation: Allocation) -> str:
    """Say since what an allocation is paused, and how it goes on."""
    again = f"; resume with `penstock alloc resume {allocation.name}`"
    if allocation.failures and not allocation.paused_by:
        row = list(
            takewhile(lambda end: end in {"refused", "failed", "lost"}, (one.end for one in allocation.ended[::-1]))
        )
        what = "refused submission" if row and all(end == "refused" for end in row) else "pilot that failed"
        number = count(allocation.failures, what) if what[0] == "r" else f"{allocation.failures} pilots that failed"
        return f"paused after {number}: {allocation.failure}{again}"
    by = f" by {allocation.paused_by}" if allocation.paused_by else ""
    why = f": {allocation.paused_reason}" if allocation.paused_reason else ""
    return f"paused{by}{why}{again}"


def _paused(allocation: Allocation, now_s: float) -> str:  # noqa: ARG001 - all sentences are called alike
    return f"is {paused_text(allocation)}"


def _full(allocation: Allocation, now_s: float) -> str:  # noqa: ARG001 - all sentences are called alike
    most = count(allocation.spec.max_pilots, "pilot")
    return f"has as many pilots as it may, {most}: another comes when one of them has ended"


def _failing(allocation: Allocation, now_s: float) -> str:
    tried = f"the last pilot failed {_ago(allocation.failed_s, now_s)}: {allocation.failure}"
    return f"may bring it, and soon tries again; {tried}"


def _able(allocation: Allocation, now_s: float) -> str:  # noqa: ARG001 - all sentences are called alike
    has = f"it has {len(allocation.pilots)} of at most {count(allocation.spec.max_pilots, 'pilot')}"
    return f"may bring it: {has}, and submits one where the job would start"


_SENTENCES: Final = {"coming": _coming, "paused": _paused, "full": _full, "failing": _failing, "able": _able}
_ORDER: Final = {name: place for place, name in enumerate(("coming", "able", "failing", "full", "paused", "unable"))}
