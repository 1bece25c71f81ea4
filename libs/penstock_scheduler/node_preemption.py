"""
Which runs make room on certain nodes, for a job that cannot have any devices of a kind.

Such a job takes several devices of a node at a time (``gpus_per_node``), names nodes or leaves some out, is refused by
some, has an image that not all can run, or asks for more of a host than the shares of its devices. What falls free for
it elsewhere, or in pieces on several nodes, is of no use. So victims are chosen node by node
(:func:`choose_on_nodes`), by the same measure of loss as for any job (:mod:`penstock_scheduler.preemption`), and what
they leave is kept where they leave it, with what is free there (:meth:`JobRoom.parts`).
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from penstock_cluster.nodes import fits, whole_parts
from penstock_log import JobSpec
from penstock_scheduler.placement import FreeDevices, Located
from penstock_scheduler.pool.run_columns import Ints
from penstock_scheduler.preemption import Victim, VictimChoice, lightest, lightest_for_each
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
        self.nodes = whole.nodes(spec, kind)

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

    def could_be_enough(self, victims: VictimsOn) -> bool:
        """Say whether the job could have all of its devices if all of these runs were over. O(nodes)."""
        left = self.spec.gpus - sum(self.at_hand.values())
        for node_id, there in victims.items():
            if left <= 0:
                break
            if self._binds(node_id):
                usable = self.usable(node_id, (victim.run for victim, _ in there))
            else:
                usable = whole_parts(self.spec, self.there(node_id) + sum([gain for _, gain in there]))
            left -= usable - self.at_hand.get(node_id, 0)
        return left <= 0

    @cached_property
    def is_plain(self) -> bool:
        """Whether each device counts for the job, on whichever of its nodes and however many of them are there."""
        hosts = self._hosts
        return self.spec.gpus_per_node < 2 and (
            hosts is None or not (self._asks_for_more or not self.nodes.isdisjoint(hosts.beyond))
        )

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
    Where it does not matter on which of its nodes devices fall free, the least loss is that of :func:`lightest` among
    all runs on these nodes. For a job that one node holds, the node with the least loss is found exactly, as far as its
    devices go; where its host binds, more runs are added until it has room. For several nodes it is exact but for runs
    that have devices on several: these count on each, and what is superfluous then is left out.

    Whether all runs would be enough is found first, in O(nodes). For L parts that are lacking the choice is
    O(nodes · parts of a node) for what each node offers, and O(L²) for each of the sizes of offers.
    """
    if not room.could_be_enough(victims):
        return None
    if by_position:
        chosen = _lowest_ranked(room, victims)
    elif room.is_plain:
        return _lightest_devices(room, victims)
    else:
        chosen = _lightest_parts(room, victims)
    if chosen is None:
        return None
    chosen = _needed(room, chosen)
    return VictimChoice(sum(victim.loss_gpu_s for victim in chosen), tuple(victim.run for victim in chosen))


def _needed(room: JobRoom, chosen: Sequence[Victim]) -> list[Victim]:
    """Return the runs without those that are superfluous: the heaviest, or the highest ranked, is spared first."""
    runs_on: defaultdict[str, list[PreemptibleRun]] = defaultdict(list)
    nodes = {id(victim): {node_id for node_id, _ in victim.run.devices} & room.nodes for victim in chosen}
    for victim in chosen:
        for node_id in nodes[id(victim)]:
            runs_on[node_id].append(victim.run)
    usable = dict(room.at_hand) | {node_id: room.usable(node_id, runs) for node_id, runs in runs_on.items()}
    spare = sum(usable.values()) - room.spec.gpus
    needed = list(chosen)
    for victim in sorted(chosen, reverse=True):
        without = {node_id: [run for run in runs_on[node_id] if run is not victim.run] for node_id in nodes[id(victim)]}
        left = {node_id: room.usable(node_id, runs) for node_id, runs in without.items()}
        fewer = sum(usable[node_id] - count for node_id, count in left.items())
        if fewer <= spare:
            needed = [other for other in needed if other is not victim]
            spare -= fewer
            usable.update(left)
            runs_on.update(without)
    return needed


def _lightest_devices(room: JobRoom, victims: VictimsOn) -> VictimChoice | None:
    """Return the lightest of all runs on a job's nodes that leave as many devices as it lacks."""
    found: dict[str, tuple[Victim, int]] = {}
    for node_id, there in victims.items():
        for victim, gain in there if node_id in room.nodes else ():
            before = found.get(victim.run.ranked.job_id)
            found[victim.run.ranked.job_id] = victim, gain + (before[1] if before is not None else 0)
    lacking = room.spec.gpus - sum(room.at_hand.values())
    return lightest(found.values(), lacking) if lacking > 0 else VictimChoice(0.0, ())


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


class _Offer(NamedTuple):
    """Runs of a node that leave a job more parts of it; the lightest that do, then the fewest."""

    loss_gpu_s: float
    number: int
    node_id: str
    parts: int
    runs: tuple[Victim, ...]


def _lightest_parts(room: JobRoom, victims: VictimsOn) -> list[Victim] | None:
    """Return the runs with the least sum of losses, each node's part of them chosen by itself."""
    each = max(1, room.spec.gpus_per_node)
    if room.spec.gpus == each:
        return _lightest_node(room, victims)
    lacking = room.spec.gpus // each - sum(at_hand // each for at_hand in room.at_hand.values())
    offers = (
        _Offer(sum(victim.loss_gpu_s for victim in runs), len(runs), node_id, parts, runs)
        for node_id, there in victims.items()
        if node_id in room.nodes
        for parts, runs in _options(room, node_id, there, each, lacking)
    )
    chosen = _lightest_offers(_useful_offers(offers, lacking), lacking)
    if chosen is None:
        return None
    return list({victim.run.ranked.job_id: victim for offer in chosen for victim in offer.runs}.values())


def _useful_offers(offers: Iterable[_Offer], lacking: int) -> Mapping[str, Sequence[_Offer]]:
    """
    Return node → the offers among which the lightest choice is.

    A choice with an offer of p parts has at most lacking - p others, else one of them would be superfluous. So of the
    lightest lacking - p + 1 nodes that offer p parts, one is left that would do as well.
    """
    by_parts: defaultdict[int, list[_Offer]] = defaultdict(list)
    for offer in offers:
        by_parts[offer.parts].append(offer)
    found: defaultdict[str, list[_Offer]] = defaultdict(list)
    for parts in sorted(by_parts):
        for offer in heapq.nsmallest(max(1, lacking - parts + 1), by_parts[parts], key=lambda offer: offer[:3]):
            found[offer.node_id].append(offer)
    return {node_id: found[node_id] for node_id in sorted(found)}


def _lightest_offers(by_node: Mapping[str, Sequence[_Offer]], lacking: int) -> list[_Offer] | None:
    """Return at most one offer of each node, with the least loss, then the fewest runs; None if all are not enough."""
    loss, number = np.full(lacking + 1, np.inf), np.zeros(lacking + 1, dtype=np.int64)  # to have at least so many parts
    loss[0] = 0.0
    counts = np.arange(lacking + 1)
    taken: list[Ints] = []
    for offers in by_node.values():
        best_loss, best_number, which = loss.copy(), number.copy(), np.full(lacking + 1, -1)
        for at, offer in enumerate(offers):
            before = np.maximum(0, counts - offer.parts)
            with_it, more = loss[before] + offer.loss_gpu_s, number[before] + offer.number
            better = (with_it < best_loss) | ((with_it == best_loss) & (more < best_number) & np.isfinite(with_it))
            better[0] = False
            best_loss, best_number = np.where(better, with_it, best_loss), np.where(better, more, best_number)
            which[better] = at
        loss, number = best_loss, best_number
        taken.append(which)
    if not np.isfinite(loss[lacking]):
        return None
    chosen, count = [], lacking
    for offers, which in zip(reversed([*by_node.values()]), reversed(taken), strict=True):
        if which[count] >= 0:
            offer = offers[which[count]]
            chosen.append(offer)
            count = max(0, count - offer.parts)
    return chosen[::-1]


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
    """Yield how many parts more of a node the job could have, and the lightest runs that leave them."""
    has, there = room.at_hand[node_id] // each, room.there(node_id)
    choices = lightest_for_each(victims, sum(gain for _, gain in victims))
    lacking = 0
    for parts in range(has + 1, has + most + 1):
        lacking = max(1, lacking, parts * each - there)
        while lacking <= len(choices):
            runs = choices[lacking - 1]
            if room.usable(node_id, (victim.run for victim in runs)) >= parts * each:
                yield parts - has, runs
                break
            lacking += 1  # its host has no room for as many
        else:
            return
