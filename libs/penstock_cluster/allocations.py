"""
Allocations and their pilots as the log has them.

:class:`AllocationTable` folds what people ask of allocations, what the allocator says of pilots, and which nodes came
of these. An :class:`Allocation` learns from the first node of a pilot what its nodes have.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from penstock_cluster.nodes import Cluster, Node
from penstock_log import (
    TERMINAL,
    AllocationAdded,
    AllocationPaused,
    AllocationRemoved,
    AllocationResumed,
    AllocationSpec,
    Device,
    Event,
    JobTable,
    NodeJoined,
    PilotEnded,
    PilotPlanned,
    PilotsPaused,
    PilotStarted,
    PilotSubmitted,
    PilotWaits,
    PilotWithdrawn,
    RunEnded,
)
from penstock_log.allocation_spec import LABEL_ALLOCATION, LABEL_PILOT

KEPT: Final = 20
"""Ended pilots of an allocation that are remembered."""
GUESSED_BYTES: Final = 1 << 50
"""Memory of a device of which nothing is known yet: it holds any job."""
GUESSED_KIND: Final = "unknown"
_SHORTEST_MARGIN_S: Final = 10.0
_LONGEST_MARGIN_S: Final = 120.0
_MARGIN_SHARE: Final = 0.2

OF_ALLOCATIONS: Final[frozenset[type[Event]]] = frozenset(
    {
        AllocationAdded,
        AllocationPaused,
        AllocationRemoved,
        AllocationResumed,
        NodeJoined,
        PilotEnded,
        PilotPlanned,
        PilotStarted,
        PilotSubmitted,
        PilotWaits,
        PilotWithdrawn,
        PilotsPaused,
    }
)
"""Kinds of facts that may say something of allocations."""


class Pilot(msgspec.Struct, kw_only=True):
    """
    One pilot.

    Attributes
    ----------
    reason : str
        For which jobs it was planned, in words.
    provider_id, token : str
        As :class:`penstock_log.PilotSubmitted` has them.
    planned_s, submitted_s, started_s, joined_s, ended_s : float
        When, seconds since the epoch; 0 for what has not happened. It has joined when the first of its nodes has.
    nodes : tuple of str
        Its nodes that have joined.
    waits : str
        Why it has not started yet, in its provider's words; empty where that is not known.
    waits_s : float
        When the provider said so first.
    withdrawn_s : float
        Since when it is to be cancelled, unless it has started, as no job would run on it any more.
    end, end_reason : str
        How it ended, and why in words.
    """

    id: str
    planned_s: float
    reason: str = ""
    provider_id: str = ""
    token: str = ""
    hosts: tuple[str, ...] = ()
    submitted_s: float = 0.0
    started_s: float = 0.0
    joined_s: float = 0.0
    ended_s: float = 0.0
    nodes: tuple[str, ...] = ()
    waits: str = ""
    waits_s: float = 0.0
    withdrawn_s: float = 0.0
    end: str = ""
    end_reason: str = ""

    @property
    def is_withdrawn(self) -> bool:
        """Whether no node is expected of it any more, though its provider may still have it."""
        return bool(self.withdrawn_s) and not (self.started_s or self.joined_s)

    @property
    def state(self) -> Literal["planned", "waiting", "starting", "running", "ended"]:
        """What it does: ``waiting`` for its start at the provider, ``starting`` until its first node joins."""
        if self.ended_s:
            return "ended"
        if self.joined_s:
            return "running"
        if self.started_s:
            return "starting"
        return "waiting" if self.submitted_s else "planned"


class Allocation(msgspec.Struct, kw_only=True):
    """
    One allocation.

    Attributes
    ----------
    removed_s : float
        Since when it is being removed, which takes until the last pilot has ended; 0 while it is not.
    paused_s : float
        Since when no pilots are submitted; 0 while they are.
    paused_by, paused_reason : str
        Who paused it, empty for the allocator itself, and why.
    made : int
        Pilots that were planned so far.
    failures : int
        Pilots that failed one after the other since the last one joined.
    failed_s : float
        When the last one did.
    failure : str
        Why, in words.
    pilots : dict of str to Pilot
        Those that have not ended.
    ended : list of Pilot
        The last ones that have.
    ends : dict of str to int
        How pilots have ended so far → how many, since it was added.
    refused : dict of str to str
        User whose jobs a node of its pilots has refused → why, in words: further pilots would refuse them as well,
        until a person resumes the allocation.
    devices : tuple of Device
        What a node of its pilots had last; empty before the first one joined.
    cpus, host_memory_bytes, containers
        As :class:`penstock_log.NodeJoined` has them, of that node.
    """

    name: str
    spec: AllocationSpec
    added_s: float
    by: str = ""
    removed_s: float = 0.0
    paused_s: float = 0.0
    paused_by: str = ""
    paused_reason: str = ""
    made: int = 0
    failures: int = 0
    failed_s: float = 0.0
    failure: str = ""
    pilots: dict[str, Pilot] = msgspec.field(default_factory=dict)
    ended: list[Pilot] = msgspec.field(default_factory=list)
    ends: dict[str, int] = msgspec.field(default_factory=dict)
    refused: dict[str, str] = msgspec.field(default_factory=dict)
    devices: tuple[Device, ...] = ()
    cpus: float = 0.0
    host_memory_bytes: int = 0
    containers: tuple[str, ...] = ()

    @property
    def state(self) -> Literal["active", "paused", "removing"]:
        """What it does."""
        if self.removed_s:
            return "removing"
        return "paused" if self.paused_s else "active"

    @property
    def coming(self) -> list[Pilot]:
        """Its pilots that have no node yet, without those that are withdrawn."""
        return [pilot for pilot in self.pilots.values() if not pilot.joined_s and not pilot.is_withdrawn]

    @property
    def has_known_size(self) -> bool:
        """Whether it is known how many devices its pilots bring: one has shown it, or the allocation says it."""
        return bool(self.devices or self.spec.kinds or devices_asked(self.spec))

    def pilot_name(self, pilot_id: str) -> str:
        """
        Return what the provider is to call a pilot: another allocation of the same name has other names.

        Examples
        --------
        >>> lab = Allocation(name="lab", spec=AllocationSpec(provider="slurm"), added_s=5.0)
        >>> lab.pilot_name("lab-1")
        'penstock-5e6cb0f8-lab-1'
        """
        return f"penstock-{zlib.crc32(f'{self.name} {self.added_s!r}'.encode()):08x}-{pilot_id}"

    def keeps(self, pilot_id: str) -> bool:
        """
        Say whether a pilot stays though no run is there: it is one of the first ``min_pilots`` that there are.

        Examples
        --------
        >>> lab = Allocation(name="lab", spec=AllocationSpec(provider="slurm", min_pilots=1), added_s=5.0)
        >>> lab.pilots.update({name: Pilot(id=name, planned_s=6.0) for name in ("lab-1", "lab-2")})
        >>> lab.keeps("lab-1"), lab.keeps("lab-2")
        (True, False)
        """
        before = [*self.pilots, pilot_id].index(pilot_id)
        return before < self.spec.min_pilots

    def missing_nodes(self, now_s: float, join_s: float) -> Iterator[Node]:
        """
        Yield the nodes of its pilots that have not joined yet.

        Parameters
        ----------
        join_s : float
            So many seconds after the first node of a pilot, nobody expects the others any more.
        """
        for pilot in self.pilots.values():
            if pilot.is_withdrawn:
                continue
            if not pilot.joined_s or now_s < pilot.joined_s + join_s:
                yield from list(self.new_nodes(pilot.id))[len(pilot.nodes) :]

    def missing_until_s(self, now_s: float, join_s: float) -> float:
        """Return when the next of its missing nodes is not expected any more; infinite where there is none."""
        begun = (one for one in self.pilots.values() if one.joined_s and len(one.nodes) < self.spec.nodes)
        return min((one.joined_s + join_s for one in begun if now_s < one.joined_s + join_s), default=math.inf)

    def new_nodes(self, pilot_id: str) -> Iterator[Node]:
        """Yield the nodes that a pilot would bring, as the last one had them; as the allocation says before that."""
        devices = self.devices or tuple(
            Device(index=index, kind=kind, memory_bytes=GUESSED_BYTES, backend="emulated")
            for index, kind in enumerate(_guessed(self.spec))
        )
        image = self.spec.pod.image if self.spec.pod is not None else ""
        for number in range(self.spec.nodes):
            yield Node(
                id=f"{pilot_id}-{number}",
                labels={LABEL_ALLOCATION: self.name, LABEL_PILOT: pilot_id},
                pool=self.spec.pool,
                devices=devices,
                cpus=self.cpus,
                host_memory_bytes=self.host_memory_bytes,
                containers=self.containers or (("docker", "podman", "apptainer", "bubblewrap") if not image else ()),
                image=image,
            )


def margin_s(spec: AllocationSpec) -> float:
    """
    Return how many seconds before its end a pilot's nodes begin to leave: their runs save and go on elsewhere.

    Examples
    --------
    >>> [margin_s(AllocationSpec(provider="slurm", walltime_s=walltime_s)) for walltime_s in (60, 300, 3600)]
    [12.0, 60.0, 120.0]
    """
    return min(_LONGEST_MARGIN_S, max(_SHORTEST_MARGIN_S, _MARGIN_SHARE * spec.walltime_s))


def devices_asked(spec: AllocationSpec) -> int:
    """
    Return how many devices of each node the options for Slurm ask for; 0 where they do not say.

    Examples
    --------
    >>> def asked(*options, nodes=1):
    ...     return devices_asked(AllocationSpec(provider="slurm", options=options, nodes=nodes))
    >>> asked("--gres=gpu:a100:4"), asked("--gres", "tmpfs:5,gpu:2"), asked("--gres=gpu"), asked("--gpus-per-node=v:8")
    (4, 2, 1, 8)
    >>> asked("-G", "4", nodes=2), asked("--gpus=a100:3,v100:1"), asked("-G2"), asked("--partition=x"), asked("--gres")
    (2, 4, 2, 0, 0)
    """
    if spec.provider != "slurm":
        return 0
    found = 0
    for at, word in enumerate(spec.options):
        match = _ASKED.fullmatch(word)
        if match is None:
            continue
        option = match["long"] or match["short"]
        given = match["value"] if match["long"] else match["joined"]
        value = given if given is not None else "".join(spec.options[at + 1 : at + 2])
        parts = [part.split(":") for part in value.split(",") if part]
        if option == "gres":
            parts = [part[1:] for part in parts if part[0] in {"gpu", "gres/gpu"}]
        elif not parts:
            continue
        counts = [1 if not part or not part[-1].isdecimal() else int(part[-1]) for part in parts]
        found = sum(counts) // (spec.nodes if option in {"gpus", "G"} else 1)
    return found


_ASKED: Final = re.compile(r"--(?P<long>gres|gpus-per-node|gpus)(?:=(?P<value>.*))?|-(?P<short>G)(?P<joined>.+)?")


def _guessed(spec: AllocationSpec) -> list[str]:
    kinds = spec.kinds or (GUESSED_KIND,)
    return [kinds[index % len(kinds)] for index in range(max(devices_asked(spec) or spec.gpus, len(spec.kinds)))]


class AllocationTable(msgspec.Struct):
    """
    All allocations by name; one that was removed stays until its last pilot has ended.

    Attributes
    ----------
    made : dict of str to int
        Name of an allocation that is gone → how many pilots it had: another one of its name counts on.
    """

    by_name: dict[str, Allocation] = msgspec.field(default_factory=dict)
    made: dict[str, int] = msgspec.field(default_factory=dict)

    def apply(self, event: Event) -> bool:
        """Fold one fact in; return whether it said anything of an allocation that is known."""
        match event:
            case AllocationAdded():
                return self._add(event)
            case NodeJoined():
                return self._join(event)
            case AllocationRemoved() | AllocationPaused() | AllocationResumed() | PilotsPaused():
                return self._note_act(event)
            case PilotPlanned() | PilotSubmitted() | PilotStarted() | PilotWithdrawn() | PilotEnded():
                return self._note_pilot(event)
            case PilotWaits():
                self._note_pilot(event)
                return False  # nothing follows from it
            case _:
                return False

    def note_refusal(self, event: Event, cluster: Cluster, jobs: JobTable) -> None:
        """Note whose jobs a pilot's node does not run, if a run's end says so."""
        if not isinstance(event, RunEnded) or not event.refuses_user:
            return
        node, job = cluster.nodes.get(event.node_id), jobs.get(event.job_id)
        found = self.by_name.get(node.labels.get(LABEL_ALLOCATION, "")) if node is not None else None
        if found is not None and job is not None and job.state not in TERMINAL:  # others are forgotten by some folds
            found.refused[job.spec.user] = event.reason

    def _add(self, event: AllocationAdded) -> bool:
        if event.name in self.by_name:
            return False
        made = self.made.pop(event.name, 0)
        self.by_name[event.name] = Allocation(
            name=event.name, spec=event.spec, added_s=event.at_s, by=event.by, made=made
        )
        return True

    def _note_act(self, event: AllocationRemoved | AllocationPaused | AllocationResumed | PilotsPaused) -> bool:
        found = self.by_name.get(event.name)
        if found is None:
            return False
        match event:
            case AllocationRemoved():
                found.removed_s = found.removed_s or event.at_s
                self._forget_if_over(found)
            case AllocationPaused():
                found.paused_s, found.paused_by, found.paused_reason = event.at_s, event.by, event.reason
            case PilotsPaused():
                found.paused_s, found.paused_by, found.paused_reason = event.at_s, "", event.reason
            case AllocationResumed():
                found.paused_s, found.paused_by, found.paused_reason = 0.0, "", ""
                found.failures, found.failed_s = 0, 0.0
                found.refused = {}
        return True

    def _note_pilot(
        self, event: PilotPlanned | PilotSubmitted | PilotWaits | PilotStarted | PilotWithdrawn | PilotEnded
    ) -> bool:
        found = self.by_name.get(event.name)
        if found is None:
            return False
        if isinstance(event, PilotPlanned):
            found.made += 1
            found.pilots[event.pilot_id] = Pilot(id=event.pilot_id, planned_s=event.at_s, reason=event.reason)
            return True
        pilot = found.pilots.get(event.pilot_id)
        if pilot is None:
            return False
        match event:
            case PilotSubmitted():
                pilot.provider_id, pilot.token, pilot.submitted_s = event.provider_id, event.token, event.at_s
            case PilotWaits():
                pilot.waits, pilot.waits_s = event.reason, event.at_s
            case PilotStarted():
                pilot.hosts, pilot.started_s, pilot.waits = event.hosts, event.at_s, ""
            case PilotWithdrawn():
                pilot.withdrawn_s = event.at_s
            case PilotEnded():
                self._end(found, pilot, event)
        return True

    def _end(self, found: Allocation, pilot: Pilot, event: PilotEnded) -> None:
        pilot.ended_s, pilot.end, pilot.end_reason = event.at_s, event.state, event.reason
        found.ended.append(found.pilots.pop(pilot.id))
        del found.ended[:-KEPT]
        found.ends[event.state] = found.ends.get(event.state, 0) + 1
        if event.state in {"failed", "refused", "lost"} and not pilot.joined_s:
            found.failures += 1
            found.failed_s, found.failure = event.at_s, event.reason
        self._forget_if_over(found)

    def _forget_if_over(self, found: Allocation) -> None:
        if found.removed_s and not found.pilots:
            self.made[found.name] = found.made
            del self.by_name[found.name]

    def _join(self, event: NodeJoined) -> bool:
        found = self.by_name.get(event.labels.get(LABEL_ALLOCATION, ""))
        pilot = found.pilots.get(event.labels.get(LABEL_PILOT, "")) if found is not None else None
        if found is None or pilot is None:
            return False
        pilot.joined_s = pilot.joined_s or event.at_s
        pilot.nodes = (*(node for node in pilot.nodes if node != event.node_id), event.node_id)
        found.failures = 0
        found.devices, found.cpus = event.devices, event.cpus
        found.host_memory_bytes, found.containers = event.host_memory_bytes, event.containers
        return True
