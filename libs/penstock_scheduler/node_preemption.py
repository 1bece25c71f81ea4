"""
Which runs make room on certain nodes, for a job that cannot have any devices of a kind.

Such a job takes several devices of a node at a time (``gpus_per_node``), names nodes or leaves some out, is refused by
some, has an image that not all can run, or asks for more of a host than the shares of its devices. What falls free for
it elsewhere, or in pieces on several nodes, is of no use. So victims are chosen node by node
(:func:`choose_on_nodes`), by the same measure of loss as for any job (:mod:`penstock_scheduler.preemption`), and what
they leave is kept where they leave it, with what is free there (:meth:`JobRoom.parts`).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from penstock_cluster.nodes import fits, whole_parts
from penstock_log import JobSpec
from penstock_scheduler.placement import FreeDevices, Located
from penstock_scheduler.preemption import Victim, VictimChoice, lightest
from penstock_scheduler.round_types import PreemptibleRun

VictimsOn = Mapping[str, Sequence[tuple[Victim, int]]]
"""Node → the runs that may be preempted there, and how many devices each would leave to the job."""


class JobRoom:
    """
    What a job could have of the nodes of a pool, on one kind.

    Parameters
    ----------
    spec : JobSpec
    kind : str
    free, coming, whole : FreeDevices
        Free devices, those of runs that are stopping, and all of them, as the round has them now.
    """

    def __init__(self, spec: JobSpec, kind: str, *, free: FreeDevices, coming: FreeDevices, whole: FreeDevices) -> None:
        self.spec, self.kind = spec, kind
        self._free, self._coming, self._hosts = free, coming, free.hosts
        self._idle = free.standing_without_hosts(spec, kind)
        self._stopping = coming.standing_without_hosts(spec, kind)
        self.nodes = frozenset(whole.standing(spec, kind))

    @cached_property
    def at_hand(self) -> Mapping[str, int]:
        """Node → how many of its devices the job could have once all have stopped that are stopping."""
        return {node_id: self.usable(node_id) for node_id in sorted(self.nodes)}

    @cached_property
    def _leaving(self) -> Mapping[str, Sequence[int]]:
        held = self._coming.by_node().items()
        return {node_id: [device.index for device in devices] for node_id, devices in held}

    def there(self, node_id: str) -> int:
        """Return how many devices of a node fit the job and are free or stopping, whatever its host has left."""
        return len(self._idle.get(node_id, ())) + len(self._stopping.get(node_id, ()))

    def usable(self, node_id: str, runs: Iterable[PreemptibleRun] = ()) -> int:
        """Return how many devices of a node the job could have if these runs were over too: in whole parts."""
        if node_id not in self.nodes:
            return 0
        leaving = [device for run in runs for at, device in run.devices if at == node_id]
        count = self.there(node_id) + sum(device.kind == self.kind and fits(self.spec, device) for device in leaving)
        if self._hosts is None or not self._binds(node_id):
            return whole_parts(self.spec, count)
        released = [device.index for device in leaving]
        if self._hosts.beyond:
            released += self._leaving.get(node_id, ())
        free = self._free.free_on(node_id) + self._coming.free_on(node_id) + len(leaving)
        return whole_parts(self.spec, min(count, self._hosts.fitting(node_id, free, self.spec, released)))

    def is_enough(self, runs: Iterable[PreemptibleRun] = ()) -> bool:
        """Say whether the job could have all of its devices if these runs were over too."""
        by_node: defaultdict[str, list[PreemptibleRun]] = defaultdict(list)
        for run in runs:
            for node_id in {node_id for node_id, _ in run.devices}:
                by_node[node_id].append(run)
        more = sum(self.usable(node_id, there) - self.at_hand.get(node_id, 0) for node_id, there in by_node.items())
        return sum(self.at_hand.values()) + more >= self.spec.gpus

    def parts(self) -> tuple[list[Located], list[Located]]:
        """
        Return the stopping and the free devices that the job is to have, on the nodes with most for it.

        Where hosts bind, all that it could use of such a node: others who took what is left of its devices would take
        a share of its processors and memory with each.
        """
        stopping: list[Located] = []
        free: list[Located] = []
        left = self.spec.gpus
        for node_id in sorted(self.nodes, key=lambda node_id: (-self.at_hand[node_id], node_id)):
            some = min(left, self.at_hand[node_id])
            if some < 1:
                break
            left -= some
            wanted = self.there(node_id) if self._binds(node_id) else some
            leaving = self._stopping.get(node_id, [])[:wanted]
            stopping += [(node_id, device) for device in leaving]
            free += [(node_id, device) for device in self._idle.get(node_id, [])[: wanted - len(leaving)]]
        return stopping, free

    def _binds(self, node_id: str) -> bool:
        return self._hosts is not None and (self._asks_for_more or node_id in self._hosts.beyond)

    @cached_property
    def _asks_for_more(self) -> bool:
        """Whether the job asks for more of any host than the shares of its devices."""
        return self._hosts is not None and not self._hosts.within_shares(self.spec)


def choose_on_nodes(room: JobRoom, victims: VictimsOn, *, by_position: bool = False) -> VictimChoice | None:
    """
    Return the runs to preempt so that a job can have all of its devices; None if all of them would not do.

    Parameters
    ----------
    room : JobRoom
    victims : mapping of str to sequence of (Victim, int)
    by_position : bool
        The lowest ranked go first, not the lightest.

    Notes
    -----
    For a job that one node holds, the node with the least loss is found exactly, as far as its devices go; where its
    host binds, more runs are added until it has room. For several nodes it is exact but for runs that have devices on
    several: these count on each, and what is superfluous then is left out. O(nodes · parts²) beside the choice on each
    node.
    """
    chosen = _lowest_ranked(room, victims) if by_position else _lightest_parts(room, victims)
    if chosen is None:
        return None
    for victim in sorted(chosen, reverse=True):  # the heaviest, or the highest ranked, is spared first
        others = [other for other in chosen if other is not victim]
        if room.is_enough(other.run for other in others):
            chosen = others
    return VictimChoice(sum(victim.loss_gpu_s for victim in chosen), tuple(victim.run for victim in chosen))


def _lowest_ranked(room: JobRoom, victims: VictimsOn) -> list[Victim] | None:
    """Return the lowest ranked runs that are enough; None if all are not."""
    every = {victim.run.ranked.job_id: victim for held in victims.values() for victim, _ in held}
    runs_on: defaultdict[str, list[PreemptibleRun]] = defaultdict(list)
    usable, chosen = Counter(room.at_hand), list[Victim]()
    for victim in sorted(every.values()):
        if usable.total() >= room.spec.gpus:
            break
        chosen.append(victim)
        for node_id in {node_id for node_id, _ in victim.run.devices} & room.nodes:
            runs_on[node_id].append(victim.run)
            usable[node_id] = room.usable(node_id, runs_on[node_id])
    return chosen if usable.total() >= room.spec.gpus else None


def _lightest_parts(room: JobRoom, victims: VictimsOn) -> list[Victim] | None:
    """Return the runs with the least sum of losses, each node's part of them chosen by itself."""
    each = max(1, room.spec.gpus_per_node)
    wanted = room.spec.gpus // each
    if wanted == 1:
        return _lightest_node(room, victims)
    best: dict[int, tuple[float, int, tuple[Victim, ...]]] = {0: (0.0, 0, ())}  # parts → the lightest way to have them
    for node_id, at_hand in room.at_hand.items():
        options = [(at_hand // each, ()), *_options(room, node_id, victims.get(node_id, ()), each, wanted)]
        after = dict(best)
        for have, (loss_gpu_s, number, before) in best.items():
            for parts, chosen in options:
                total = min(wanted, have + parts)
                found = (
                    loss_gpu_s + sum(victim.loss_gpu_s for victim in chosen),
                    number + len(chosen),
                    (*before, *chosen),
                )
                if total not in after or found[:2] < after[total][:2]:
                    after[total] = found
        best = after
    if wanted not in best:
        return None
    return list({victim.run.ranked.job_id: victim for victim in best[wanted][2]}.values())


def _lightest_node(room: JobRoom, victims: VictimsOn) -> list[Victim] | None:
    """
    Return the lightest runs that leave enough on one node.

    No runs of a node lose less than so many devices times the least that any of them loses for a device: nodes that
    could not be better than the best so far are not looked at closely.
    """
    best: tuple[float, int] | None = None
    found: tuple[Victim, ...] | None = None
    for node_id in room.at_hand:
        there = victims.get(node_id, ())
        if not there:
            continue
        lacking = max(1, room.spec.gpus - room.there(node_id))
        least = lacking * min(victim.loss_gpu_s / gain for victim, gain in there)
        fewest = math.ceil(lacking / max(gain for _, gain in there))
        if best is not None and (least, fewest) >= best:
            continue
        for _, chosen in _options(room, node_id, there, room.spec.gpus, 1):
            weight = sum(victim.loss_gpu_s for victim in chosen), len(chosen)
            if best is None or weight < best:
                best, found = weight, chosen
    return None if found is None else list(found)


def _options(
    room: JobRoom, node_id: str, victims: Sequence[tuple[Victim, int]], each: int, most: int
) -> Iterator[tuple[int, tuple[Victim, ...]]]:
    """Yield how many parts of a node the job could have, and the lightest runs that leave them."""
    by_job = {victim.run.ranked.job_id: victim for victim, _ in victims}
    gains = sum(gain for _, gain in victims)
    lacking = 0
    for parts in range(room.at_hand[node_id] // each + 1, most + 1):
        lacking = max(1, lacking, parts * each - room.there(node_id))
        while lacking <= gains:
            choice = lightest(victims, lacking)
            if choice is not None and room.usable(node_id, choice.runs) >= parts * each:
                yield parts, tuple(by_job[run.ranked.job_id] for run in choice.runs)
                break
            lacking += 1  # its host has no room for as many
        else:
            return
