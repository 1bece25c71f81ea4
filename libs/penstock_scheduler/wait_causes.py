"""
Causes for which jobs wait: for each job the one cause that dominates, its evidence in figures, and a remedy.

A remedy is true: it names only what, done alone, lets a job fit that can never fit. What would let a job start that
waits its turn, only the round itself can say: see :mod:`penstock_scheduler.what_if`.

:func:`hindered` finds, before a round, the jobs that no device could start: they are held, can never fit, back off,
wait for their speeds or size, would run into a reservation, or are beyond the limit of their class. :func:`waits`
explains, after the round, the jobs that it did not start, from the :class:`RoundAftermath`. Jobs that share devices
have causes of their own: what they need beside others, and what there is.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from datetime import UTC, datetime
from functools import cached_property
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from penstock_cluster.nodes import NOTHING, Cluster, HostAmount, Node, fits, need_of, runs, share_of
from penstock_log import Cause, Device, Job, JobSpec, Wait
from penstock_log.allocation_spec import LABEL_ALLOCATION, LABEL_PILOT
from penstock_log.spec import BESIDE_LOCAL_BYTES, runtimes_of
from penstock_log.text import gibibytes, listed, rounded_down
from penstock_policies import sample_plan
from penstock_scheduler import class_limits, reservations
from penstock_scheduler.assignment import DeferredJob
from penstock_scheduler.placement import FreeDevices, Located
from penstock_scheduler.pool.pool_view import PoolView
from penstock_scheduler.round_types import PreemptibleRun, RankedJob, RoundRules
from penstock_scheduler.sharing.shared_devices import SharingDemand, asking
from penstock_scheduler.sharing.shared_placement import SharedPlacement

_MOST_NAMED: Final = 3
_SMALLER: Final = "ask for fewer devices, or submit it in another class"
_LIMIT: Final = "wait for the others, submit it in another class, or have the class' --most-gpus raised"
_SHORTER: Final = "set a time limit that ends before it, or have the script save checkpoints"
_MOST_DEMANDS: Final = 15
"""How many smaller demands on hosts are looked at, and the one that all nodes can meet."""


class WaitCause(NamedTuple):
    """One cause, as :class:`penstock_log.Wait` has it."""

    cause: Cause
    evidence: str
    remedy: str = ""


class RoundAftermath(msgspec.Struct, frozen=True, dict=True):
    """
    A pool after a round.

    Attributes
    ----------
    pool : str
    nodes : sequence of Node
        The pool's nodes whose executors are up and stay, including drained ones.
    whole, idle : FreeDevices
        Devices of nodes that take jobs: all of them, and those that nobody has or keeps.
    running : sequence of PreemptibleRun
        The runs that hold the other devices.
    kept : mapping of str to str
        Job that keeps devices → their kind.
    backfills : bool
        Whether jobs behind one that does not fit may start.
    sharing : SharedPlacement or None
        The devices that jobs share; None where none does.
    away : sequence of Node
        The pool's nodes that left, were lost or are leaving, and are not forgotten.
    """

    pool: str
    nodes: Sequence[Node]
    whole: FreeDevices
    idle: FreeDevices
    running: Sequence[PreemptibleRun] = ()
    kept: Mapping[str, str] = field(default_factory=dict)
    backfills: bool = True
    sharing: SharedPlacement | None = None
    away: Sequence[Node] = ()

    @cached_property
    def queues(self) -> Mapping[str, Counter[tuple[int, str]]]:
        """Kind → how many runs of each class and queue have devices of it; as they come in the order."""
        found: defaultdict[str, Counter[tuple[int, str]]] = defaultdict(Counter)
        for run in self.running:
            ranked, name = run.ranked, run.ranked.job.spec.priority_class
            whose = f" of class `{name}`" if name else f" of queue {ranked.own_queue}"
            found[run.kind][ranked.queue, "" if ranked.sample else whose] += 1
        return found


def without_runs(cluster: Cluster, pool: str) -> RoundAftermath:
    """Return a pool's nodes as if nothing ran on them."""
    nodes = tuple(sorted(cluster.staying(pool), key=lambda node: node.id))
    away = tuple(sorted(cluster.away(pool), key=lambda node: node.id))
    usable = [node for node in nodes if node.usable]
    whole = FreeDevices({node.id: node.schedulable for node in usable}, hosts=usable)
    return RoundAftermath(pool=pool, nodes=nodes, whole=whole, idle=FreeDevices({}), away=away)


def impossible_cause(
    spec: JobSpec, aftermath: RoundAftermath, demand: SharingDemand | None = None, reserve_share: float = 0.0
) -> WaitCause | None:
    """
    Return why the present nodes cannot take the job whatever ends; None where it only has to wait its turn.

    Parameters
    ----------
    demand : SharingDemand, optional
        How the job shares, if it does.
    reserve_share : float
        Of a device's memory: what jobs that share leave alone.

    Examples
    --------
    >>> empty = RoundAftermath("lab", (), FreeDevices({}), FreeDevices({}))
    >>> impossible_cause(JobSpec(name="a", command=("true",)), empty)[:2]
    ('no_nodes', 'pool `lab` has no node')
    """
    if _largest(spec, aftermath.whole) >= spec.gpus:
        return None if demand is None else _never_shares(spec, demand, aftermath.whole, reserve_share)
    return _out_of_reach(spec, aftermath)


def _out_of_reach(spec: JobSpec, aftermath: RoundAftermath) -> WaitCause:
    """Return why the nodes that take jobs cannot hold a job: others that are away or drained could, or none."""
    present = FreeDevices({node.id: node.devices for node in aftermath.nodes}, hosts=aftermath.nodes)
    fits_here = _largest(spec, present) >= spec.gpus
    if not fits_here and (down := _down(spec, aftermath)) is not None:
        return down
    if not aftermath.nodes:
        remedy = "start an executor in it, or choose another pool"
        return WaitCause("no_nodes", f"pool `{aftermath.pool}` has no node", remedy)
    if not any(node.usable for node in aftermath.nodes):
        evidence = f"{_count(len(aftermath.nodes), 'node')} of pool `{aftermath.pool}`, all drained"
        some = [(node.id, device) for node in aftermath.nodes[:3] for device in node.devices[:1]]
        return WaitCause("no_nodes", evidence, _resume(_lacking(spec, aftermath) or some, aftermath))
    if fits_here:
        return _drained(spec, aftermath)
    if max(present.kinds_without_hosts(spec).values(), default=0) >= spec.gpus:
        return WaitCause("never_fits", *_kept_by_hosts(spec, aftermath, present))
    remedy = _relaxed(spec, aftermath.whole) or _bare(spec, aftermath.whole)
    return WaitCause("never_fits", _largest_text(spec, present, aftermath.pool), remedy)


def _down(spec: JobSpec, aftermath: RoundAftermath) -> WaitCause | None:
    """
    Return which nodes that are down would hold the job, with those that are up; None where even these would not.

    A pilot that is over does not come back; its allocation may have another one. So the nodes of one pilot count at a
    time, and after all others.
    """
    able = [node for node in aftermath.away if runs(spec, node) and any(fits(spec, device) for device in node.devices)]
    of_pilots: defaultdict[str, list[Node]] = defaultdict(list)
    for node in able:
        of_pilots[node.labels.get(LABEL_PILOT, "")].append(node)
    able = of_pilots.pop("", [])
    there = f"{_largest(spec, aftermath.whole)} there {_that_take_jobs(aftermath)}"
    if not _hold_with(spec, aftermath, able):
        gone = [nodes[0] for nodes in of_pilots.values() if _hold_with(spec, aftermath, nodes)]
        names = sorted({node.labels.get(LABEL_ALLOCATION, "") for node in gone})
        if not names:
            return None
        whose = f"allocation{'s' * (len(names) > 1)} {listed([f'`{name}`' for name in names])}"
        remedy = f"`penstock alloc show {names[0]}` says what becomes of its pilots"
        return WaitCause(
            "node_down", f"needs {spec.gpus}, {there}; pilots of {whose} would hold it and are over", remedy
        )
    latest = sorted(able, key=lambda node: (-node.gone_s, node.id))
    more = f" and {len(able) - _MOST_NAMED} more" if len(able) > _MOST_NAMED else ""
    evidence = f"needs {spec.gpus}, {there}; down: {', '.join(map(_absence, latest[:_MOST_NAMED]))}{more}"
    remedy = f"start the executor of `{able[0].id}` again" if len(able) == 1 else "start their executors again"
    return WaitCause("node_down", evidence, remedy)


def _hold_with(spec: JobSpec, aftermath: RoundAftermath, more: Sequence[Node]) -> bool:
    """Say whether the nodes that are there, and some of those that are not, would hold a job."""
    known = [*aftermath.nodes, *more]
    return bool(more) and _largest(spec, FreeDevices({n.id: n.devices for n in known}, hosts=known)) >= spec.gpus


def _absence(node: Node) -> str:
    """Say how a node is away, and since when."""
    if not node.gone:
        return f"`{node.id}` (leaving)"
    return f"`{node.id}` ({node.gone} at {datetime.fromtimestamp(node.gone_s, UTC):%Y-%m-%d %H:%M:%S} UTC)"


def _that_take_jobs(aftermath: RoundAftermath) -> str:
    return "on nodes that take jobs" if any(node.drained for node in aftermath.nodes) else "that take jobs"


def _kept_by_hosts(spec: JobSpec, aftermath: RoundAftermath, present: FreeDevices) -> tuple[str, str]:
    """Return why a job cannot have devices that would do, and what to do: their hosts refuse it, or lack something."""
    if spec.refused_by and _largest(msgspec.structs.replace(spec, refused_by=()), present) >= spec.gpus:
        return _refusing(spec, aftermath), _ONCE_MENDED
    anywhere = _anywhere(spec)
    if anywhere != spec and _largest(anywhere, present) >= spec.gpus:
        return f"pool `{aftermath.pool}` has {_largest(anywhere, present)} devices for it, but {_nodes_text(spec)}", (
            "ask for fewer devices of a node (gpus_per_node, --nodes), or for other nodes"
        )
    for_image = spec.image and _largest(msgspec.structs.replace(spec, image=""), present) >= spec.gpus
    return (_no_containers if for_image else _too_much_of_a_host)(spec, aftermath)


def _never_shares(spec: JobSpec, demand: SharingDemand, whole: FreeDevices, reserve_share: float) -> WaitCause | None:
    wanted = asking(spec, demand, reserve_share)
    if _largest(wanted, whole) < demand.gpus:
        largest = max(device.memory_bytes for _, device in whole if fits(spec, device))
        evidence = f"needs {gibibytes(wanted.memory_bytes)} of each device with what is kept in reserve; the largest"
        return WaitCause("never_fits", f"{evidence} has {gibibytes(largest)}")
    standing = (held for kind in whole.kinds(wanted) for held in whole.standing(wanted, kind).values())
    if demand.gpus == 1 or (most := max(map(len, standing), default=0)) >= demand.gpus:
        return None
    evidence = f"takes turns on {demand.gpus} devices of one node and kind; the most that one has is {most}"
    return WaitCause("never_fits", evidence, f"ask for at most {_count(most, 'device')}")


def capacity_cause(spec: JobSpec, aftermath: RoundAftermath, ahead: int) -> WaitCause:
    """
    Return why a job that could fit finds no devices; ``ahead`` is how many waiting jobs stand before it.

    Raises
    ------
    ValueError
        If devices for it are idle: then it does not wait for capacity.
    """
    idle = aftermath.idle.kinds(spec)
    if any(count >= spec.gpus for count in idle.values()):
        raise ValueError(f"{idle} idle devices hold the job's {spec.gpus}; expected a job that finds none")
    if idle:
        free = ", ".join(f"{count} {kind}" for kind, count in idle.items())
        return WaitCause("gang", f"needs {spec.gpus} devices of one kind at once; idle: {free}; {_place(ahead)}")
    there = aftermath.whole.kinds_without_hosts(spec)  # all that its runs are counted for, also where hosts bind it
    use = (_use(kind, there[kind], aftermath) for kind in aftermath.whole.kinds(spec))
    return WaitCause("capacity", "; ".join([*use, _place(ahead)]))


def late_cause(
    spec: JobSpec, kept_off: Collection[str], aftermath: RoundAftermath, *, now_s: float, switch_s: float
) -> WaitCause | None:
    """
    Return that idle devices are on nodes which leave too soon for a job; None where it does not wait for that.

    Parameters
    ----------
    kept_off : collection of str
        The nodes on which it is not to begin now.
    switch_s : float
        Seconds that starting and saving a run of its workload take, as measured.
    """
    idle = {kind: count for kind, count in aftermath.idle.kinds(spec).items() if count >= spec.gpus}
    elsewhere = msgspec.structs.replace(spec, refused_by=(*spec.refused_by, *sorted(kept_off)))
    if not idle or any(count >= spec.gpus for count in aftermath.idle.kinds(elsewhere).values()):
        return None
    there = ", ".join(f"{count} {kind}" for kind, count in idle.items())
    able = {node_id for node_id, device in aftermath.idle if device.kind in idle and fits(spec, device)}
    leaving = sorted((n.until_s - now_s, n.id) for n in aftermath.nodes if n.id in able and n.id in kept_off)
    named = listed([f"node `{node_id}` leaves in {left_s:.0f} s" for left_s, node_id in leaving[-_MOST_NAMED:]])
    more = f" and {len(leaving) - _MOST_NAMED} more sooner" if len(leaving) > _MOST_NAMED else ""
    return WaitCause(
        "capacity", f"idle: {there}, but {named}{more}, and a start and a save of its workload take {switch_s:.0f} s"
    )


def _host_capacity(spec: JobSpec, aftermath: RoundAftermath, ahead: int) -> WaitCause | None:
    """Return why a job waits for room on hosts whose devices are idle; None where it does not wait for that."""
    idle = aftermath.idle.kinds_without_hosts(spec) if aftermath.idle.is_tight(spec) else {}
    idle = {kind: count for kind, count in idle.items() if count >= spec.gpus}
    if not idle or any(count >= spec.gpus for count in aftermath.idle.kinds(spec).values()):
        return None
    nodes = {
        node_id for kind in idle for node_id, device in aftermath.idle if device.kind == kind and fits(spec, device)
    }
    most = max(nodes, key=lambda node_id: (aftermath.idle.left_of(node_id).memory_bytes, node_id))
    left = aftermath.idle.left_of(most)
    share = next((share_of(node) for node in aftermath.nodes if node.id == most), NOTHING)
    need = need_of(spec, share)
    for_memory = left.holds(need._replace(cpus=0)) <= left.holds(need._replace(memory_bytes=0))
    has = f"{gibibytes(max(0, left.memory_bytes))} and {left.cpus / 1000:g} cpus of `{most}` are left"
    there = ", ".join(f"{count} {kind}" for kind, count in idle.items())
    wants = f"{gibibytes(need.memory_bytes)} of its host's memory and {need.cpus / 1000:g} cpus for each device"
    evidence = f"idle: {there}, but it needs {wants}, and {has}; {_place(ahead)}"
    return WaitCause("host_memory" if for_memory else "host_cpus", evidence)


def _no_containers(spec: JobSpec, aftermath: RoundAftermath) -> tuple[str, str]:
    """Return what runs a job's image, and that too few nodes have it; and what to do."""
    needs = " or ".join(runtimes_of(spec.image))
    able = [node for node in aftermath.nodes if any(fits(spec, device) for device in node.devices)]
    some = [node.id for node in able if runs(spec, node)]
    has = f"only {listed(some[:_MOST_NAMED])} of pool" if some else "no node of pool"
    evidence = f"its image `{spec.image}` needs {needs}; {has} `{aftermath.pool}` with such devices has it"
    if some:
        return evidence, "ask for fewer devices, or install it on more nodes"
    return evidence, f"install {needs} there ([executor] containers), or choose another pool"


_ONCE_MENDED: Final = (
    "`penstock story` of the job says why they refused it; once that is mended, start their executors again or say "
    "`penstock node resume`, or submit as another user"
)


def _refusing(spec: JobSpec, aftermath: RoundAftermath) -> str:
    """Return which of a pool's nodes have refused jobs of a job's user."""
    refusing = [node.id for node in aftermath.nodes if node.id in spec.refused_by]
    who = f"user `{spec.user}`" if spec.user else "nobody"
    more = ", …" if len(refusing) > _MOST_NAMED else ""
    does = "runs" if len(refusing) == 1 else "run"
    return f"{listed(refusing[:_MOST_NAMED])}{more} {does} no jobs of {who}"


def _anywhere(spec: JobSpec) -> JobSpec:
    """Return a job without what it asks of its nodes."""
    return msgspec.structs.replace(spec, gpus_per_node=0, nodes=(), exclude=())


def _nodes_text(spec: JobSpec) -> str:
    """Return what a job asks of its nodes, in words."""
    said = []
    if spec.gpus_per_node > 1:
        said.append(f"it takes them {spec.gpus_per_node} at a time of a node")
    for names, where in ((spec.nodes, "runs only on"), (spec.exclude, "does not run on")):
        if names:
            more = ", …" if len(names) > _MOST_NAMED else ""
            said.append(f"it {where} {listed(names[:_MOST_NAMED])}{more}")
    return " and ".join(said)


def _nodes_capacity(spec: JobSpec, aftermath: RoundAftermath, ahead: int) -> WaitCause | None:
    """Return that idle devices are not as a job asks of its nodes; None where it does not wait for that."""
    anywhere = _anywhere(spec)
    idle = aftermath.idle.kinds(anywhere) if anywhere != spec else {}
    if not any(count >= spec.gpus for count in idle.values()):
        return None
    there = ", ".join(f"{count} {kind}" for kind, count in idle.items())
    return WaitCause("capacity", f"idle: {there}, but {_nodes_text(spec)}; {_place(ahead)}")


def _refusal_capacity(spec: JobSpec, aftermath: RoundAftermath, ahead: int) -> WaitCause | None:
    """Return that idle devices are on nodes which refuse a job's user; None where it does not wait for that."""
    welcome = msgspec.structs.replace(spec, refused_by=())
    idle = aftermath.idle.kinds(welcome) if spec.refused_by else {}
    if not any(count >= spec.gpus for count in idle.values()):
        return None
    there = ", ".join(f"{count} {kind}" for kind, count in idle.items())
    return WaitCause("capacity", f"idle: {there}, but {_refusing(spec, aftermath)}; {_place(ahead)}")


def _image_capacity(spec: JobSpec, aftermath: RoundAftermath, ahead: int) -> WaitCause | None:
    """Return that idle devices are on nodes which cannot run a job's image; None where it does not wait for that."""
    bare = msgspec.structs.replace(spec, image="")
    if not spec.image or not any(count >= spec.gpus for count in aftermath.idle.kinds(bare).values()):
        return None
    there = ", ".join(f"{count} {kind}" for kind, count in aftermath.idle.kinds(bare).items())
    needs = " or ".join(runtimes_of(spec.image))
    where = sorted({node_id for node_id, device in aftermath.idle if fits(spec, device)})
    evidence = f"idle: {there}, on {listed(where[:_MOST_NAMED])}; its image `{spec.image}` needs {needs}"
    return WaitCause("image", f"{evidence}, and too few of these nodes have it; {_place(ahead)}")


def _too_much_of_a_host(spec: JobSpec, aftermath: RoundAftermath) -> tuple[str, str]:
    """Return the demand for which no node has room, and the smaller one with which the job would fit."""
    able = [node for node in aftermath.nodes if any(fits(spec, device) for device in node.devices)]
    memory_bytes = max((node.host_memory_bytes for node in able), default=0)
    cpus = max((node.cpus for node in able), default=0.0)
    wants = []
    if spec.host_memory_bytes:
        wants.append(f"{gibibytes(spec.host_memory_bytes)} of the host's memory")
    if spec.least_host_bytes:
        wants.append(f"{gibibytes(spec.least_host_bytes)} of the host's memory, which its memory.local asks for")
    if spec.cpus:
        wants.append(f"{spec.cpus:g} cpus")
    each = " for each of its devices" if spec.gpus > 1 else ""
    has = (
        f"the largest node of pool `{aftermath.pool}` with such devices has {gibibytes(memory_bytes)} and {cpus:g} cpus"
    )
    return f"needs {' and '.join(wants)}{each}; {has}", _less_of_a_host(spec, aftermath.whole)


def _less_of_a_host(spec: JobSpec, devices: FreeDevices) -> str:
    """Return the single change with which a job that asks for too much of a host would fit; empty if there is none."""
    for change, say in less_of_a_host(spec, devices):
        if _largest(msgspec.structs.replace(spec, **change), devices) >= spec.gpus:
            return say
    return ""


def less_of_a_host(spec: JobSpec, devices: FreeDevices) -> Iterator[tuple[dict[str, int | float], str]]:
    """
    Yield smaller demands on the host that some nodes can meet, each with its wording: memory, then processors.

    Parameters
    ----------
    spec : JobSpec
    devices : FreeDevices
        The devices whose hosts are looked at: what is left of each node, for one or several of the job's devices there.

    Notes
    -----
    The largest come first, so the first demand with which the job fits is the most that it may ask for. Where all nodes
    differ, the smallest share, which all of them have, is among the demands.
    """
    if devices.hosts is None:
        return
    shares = devices.hosts.shares.values()
    least = HostAmount(*(min((share[part] for share in shares), default=0) for part in range(len(HostAmount._fields))))
    rooms = {
        (devices.left_of(node_id), count)
        for node_id, held in devices.by_node().items()
        for count in range(1, min(len(held), spec.gpus) + 1)
    }
    if spec.host_memory_bytes:
        parts = {rounded_down(left.memory_bytes // count) for left, count in rooms}
        for size in _largest_below(parts, rounded_down(least.memory_bytes), spec.host_memory_bytes):
            yield {"host_memory_bytes": size}, f"ask for at most {gibibytes(size)} of the host's memory a device"
    if spec.least_host_bytes:
        parts = {rounded_down(left.memory_bytes // count) - BESIDE_LOCAL_BYTES for left, count in rooms}
        for size in _largest_below(parts, 0, spec.local_memory_bytes):
            yield {"local_memory_bytes": size}, f"keep at most {gibibytes(size)} of borrowed memory's files on the host"
    if spec.cpus:
        parts = {left.cpus // count for left, count in rooms}
        for cpus in _largest_below(parts, least.cpus, round(spec.cpus * 1000)):
            yield {"cpus": cpus / 1000}, f"ask for at most {cpus / 1000:g} cpus a device"


def _largest_below(parts: Iterable[int], least: int, asked: int) -> list[int]:
    """Return the largest amounts below what is asked, and the least."""
    below = {part for part in parts if 0 < part < asked}
    found = heapq.nlargest(_MOST_DEMANDS, below)
    return found if not 0 < least < asked or least in found else [*found, least]


def _kept_so_far(spec: JobSpec, aftermath: RoundAftermath, kind: str) -> WaitCause:
    evidence = f"what falls free of {kind} is kept for it; it needs {spec.gpus}"
    if list(aftermath.kept.values()).count(kind) == 1:
        busy = sum(device.kind == kind and fits(spec, device) for run in aftermath.running for _, device in run.devices)
        free = aftermath.whole.count(spec, kind) - busy - aftermath.idle.count(spec, kind)
        evidence += f" and has {max(0, free)} so far"
    return WaitCause("capacity", evidence)


def _use(kind: str, count: int, aftermath: RoundAftermath) -> str:
    """Say what holds a kind's devices, such as ``3 fast busy with 1 sample, 1 job of queue 0, 1 job of queue 2``."""
    queues: Mapping[tuple[int, str], int] = aftermath.queues.get(kind, {})
    parts = ", ".join(
        f"{_count(n, 'job')}{whose}" if whose else _count(n, "sample") for (_, whose), n in sorted(queues.items())
    )
    text = f"{count} {kind} busy with {parts or 'no job'}"
    keepers = [job_id for job_id, of in aftermath.kept.items() if of == kind]
    return text + (f", or kept free for `{keepers[0]}`" if keepers else "")


def _drained(spec: JobSpec, aftermath: RoundAftermath) -> WaitCause:
    left = _largest(spec, aftermath.whole)
    evidence = "; ".join(
        [f"needs {spec.gpus}, {left} left {_that_take_jobs(aftermath)}", *_out_of_service(spec, aftermath)]
    )
    return WaitCause("capacity", evidence, _resume(_lacking(spec, aftermath), aftermath))


def _out_of_service(spec: JobSpec, aftermath: RoundAftermath) -> Iterator[str]:
    """Yield in words the drained nodes, and of the others the failed and drained devices, that a job would fit."""
    drained = [n for n in aftermath.nodes if n.drained and any(fits(spec, d) for d in n.devices)]
    if drained:
        yield f"drained: {', '.join(f'`{node.id}`' for node in drained[:_MOST_NAMED])}"
    found: defaultdict[str, list[str]] = defaultdict(list)
    for node in (node for node in aftermath.nodes if node.usable and node.outages):
        for device in (device for device in node.devices if fits(spec, device)):
            if (outage := node.outage(device.index)) is not None:
                reason = f" ({outage.reason})" if outage.reason else ""
                found[outage.state].append(f"{node.id}/{device.kind}{device.index}{reason}")
    for state, names in sorted(found.items(), reverse=True):
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        yield f"{'devices ' if state == 'drained' else ''}{state}: {', '.join(names[:_MOST_NAMED])}{more}"


def _lacking(spec: JobSpec, aftermath: RoundAftermath) -> list[Located]:
    """Return devices of the fewest nodes, out of service now, with which the job fits; none if it does not even so."""
    out = {node.id: _devices_out(node) for node in aftermath.nodes}
    held = FreeDevices({node_id: devices for node_id, devices in out.items() if devices})
    choices: list[list[Located]] = []
    for kind, count in held.kinds(spec).items():
        missing = spec.gpus - aftermath.whole.count(spec, kind)
        if count >= missing:
            choices.append(held.choose(spec, kind, missing, together=True))
    return min(choices, key=lambda chosen: len({node_id for node_id, _ in chosen}), default=[])


def _devices_out(node: Node) -> list[Device]:
    return [device for device in node.devices if node.drained or node.outage(device.index) is not None]


def _resume(chosen: Sequence[Located], aftermath: RoundAftermath) -> str:
    """Return the commands that give devices jobs again: those of their nodes, and their own where they are out too."""
    nodes = {node.id: node for node in aftermath.nodes}
    names = sorted({node_id for node_id, _ in chosen if nodes[node_id].drained})
    commands = [f"penstock node resume {' '.join(names)}"] if names else []
    devices: defaultdict[str, list[int]] = defaultdict(list)
    for node_id, device in chosen:
        if nodes[node_id].outage(device.index) is not None:
            devices[node_id].append(device.index)
    for node_id, numbers in sorted(devices.items()):
        flags = " ".join(f"--device {number}" for number in sorted(numbers))
        commands.append(f"penstock node resume {node_id} {flags}")
    return " and ".join(commands)


def _largest(spec: JobSpec, devices: FreeDevices) -> int:
    return max(devices.kinds(spec).values(), default=0)


def _largest_text(spec: JobSpec, present: FreeDevices, pool: str) -> str:
    wanted = f"needs {_count(spec.gpus, 'device')}"
    if spec.kinds:
        wanted += f" of kind {' or '.join(f'`{kind}`' for kind in spec.kinds)}"
    else:
        wanted += (" of one kind" if spec.gpus > 1 else "") + (
            " other than a bare CPU" if not _accepted(spec, present) else ""
        )
    if spec.memory_bytes:
        wanted += f" with {gibibytes(spec.memory_bytes)}{' each' if spec.gpus > 1 else ''}"
    all_kinds = _by_kind(device for _, device in present)
    offered = ", ".join(f"{n} {kind} of up to {gibibytes(memory)}" for kind, (n, memory) in sorted(all_kinds.items()))
    return f"{wanted}; pool `{pool}` has {offered}"


def _by_kind(devices: Iterable[Device]) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for device in devices:
        count, memory = found.get(device.kind, (0, 0))
        found[device.kind] = (count + 1, max(memory, device.memory_bytes))
    return found


def _there(number: int, what: str = "") -> str:
    return f"there {'is' if number == 1 else 'are'} {number}{what}"


def _relaxed(spec: JobSpec, devices: FreeDevices) -> str:
    """Return the first single change of the specification with which the devices hold the job; empty if none does."""
    if spec.kinds:
        anything = devices.kinds(msgspec.structs.replace(spec, kinds=()))
        for kind, count in anything.items():
            if kind not in spec.kinds and count >= spec.gpus:
                return f"accept kind `{kind}` too: {_there(count)}"
    if spec.gpus > 1 and (most := _largest(spec, devices)):
        return f"ask for at most {_count(most, 'device')}: {_there(most, ' of one kind')}"
    if spec.memory_bytes:
        return _less_memory(spec, devices)
    return ""


def _accepted(spec: JobSpec, devices: FreeDevices) -> bool:
    """Say whether any device is of a kind that the job accepts, however little memory it has."""
    return bool(devices.kinds(msgspec.structs.replace(spec, memory_bytes=0)))


def _bare(spec: JobSpec, devices: FreeDevices) -> str:
    """Return the kind of bare CPU that would hold a job; a job that names no kind gets none."""
    for kind in () if spec.kinds else sorted({device.kind for _, device in devices}):
        if (count := _largest(msgspec.structs.replace(spec, kinds=(kind,)), devices)) >= spec.gpus:
            return f"ask for kind `{kind}` by name: {_there(count)}"
    return ""


def _less_memory(spec: JobSpec, devices: FreeDevices) -> str:
    """Return the most memory a device may be asked for such that enough devices of one kind have it."""
    fitting = msgspec.structs.replace(spec, memory_bytes=0)
    sizes = sorted({device.memory_bytes for _, device in devices if fits(fitting, device)}, reverse=True)
    for size in sizes:
        count = _largest(msgspec.structs.replace(spec, memory_bytes=size), devices)
        if count >= spec.gpus:
            return f"ask for at most {gibibytes(size)} a device: {_there(count)}"
    return ""


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


class HinderedJobs(msgspec.Struct):
    """
    The waiting jobs that no device could start now.

    Attributes
    ----------
    reasons : dict of str to WaitCause
    wake_s : float
        When the first of these causes ends by itself.
    """

    reasons: dict[str, WaitCause] = {}
    wake_s: float = math.inf


class PoolMoment(msgspec.Struct, frozen=True, dict=True):
    """A pool as a round finds it."""

    pool: PoolView
    aftermath: RoundAftermath
    now_s: float
    rules: RoundRules

    @cached_property
    def held_back(self) -> Mapping[str, WaitCause]:
        """The waiting jobs that would run into a reservation or a limit of their class, and why each is not started."""
        devices = Counter(device.kind for _, device in self.aftermath.whole) if self.pool.team_reservations else {}
        early = reservations.held_back(self.pool, devices, self.now_s, self.rules.reserve_ahead_s)
        found = {job_id: WaitCause("reservation", evidence, _SHORTER) for job_id, evidence in early.items()}
        beyond = class_limits.beyond(self.pool, self.rules.classes, lambda ranked: self._could_start(ranked, found))
        for job_id, evidence in beyond.items():
            spec = self.pool.index.entries[job_id].ranked.job.spec
            remedy = _SMALLER if class_limits.too_large(spec, self.rules.classes) else _LIMIT
            found.setdefault(job_id, WaitCause("class_quota", evidence, remedy))
        return found

    @cached_property
    def impossible(self) -> dict[tuple[object, ...], WaitCause | None]:
        """Why the nodes can never take jobs of each demand that was looked at; None where they can."""
        return {}

    def never(self, ranked: RankedJob) -> WaitCause | None:
        """Return why the nodes can never take a job; worked out once for all that ask for the same."""
        spec, demand = ranked.job.spec, self.pool.index.sharing.demands.get(ranked.job_id)
        key = (spec.kinds, spec.memory_bytes, spec.gpus, spec.host_demand, demand)
        if key not in self.impossible:
            found = impossible_cause(spec, self.aftermath, demand, self.rules.lane_reserve_share)
            self.impossible[key] = found
        return self.impossible[key]

    def _could_start(self, ranked: RankedJob, held_back: Mapping[str, WaitCause]) -> bool:
        job = ranked.job
        if _own_hindrance(job) is not None or job.not_before_s > self.now_s or job.id in held_back:
            return False
        return self.never(ranked) is None and _unprofiled(job, self)[0] is None


def hindered(waiting: Sequence[RankedJob], moment: PoolMoment) -> HinderedJobs:
    """Return the waiting jobs that are held, can never fit, back off, are held back, or lack speeds."""
    found = HinderedJobs()
    for ranked in waiting:
        reason, until_s = _hindrance(ranked.job, moment.never(ranked), moment)
        if reason is not None:
            found.reasons[ranked.job_id] = reason
            found.wake_s = min(found.wake_s, until_s)
    return found


def waits(
    left: Sequence[RankedJob],
    known: Mapping[str, WaitCause],
    later: Mapping[str, DeferredJob],
    aftermath: RoundAftermath,
    most: int,
    *,
    late: Mapping[str, WaitCause] = MappingProxyType({}),
    only: str = "",
) -> tuple[Wait, ...]:
    """
    Return the causes of the first ``most`` jobs that a round did not start, in rank order, and last those that
    are held or blocked.

    Parameters
    ----------
    known : mapping of str to WaitCause
        Job that nothing could have started → its cause.
    later : mapping of str to DeferredJob
        Job that waits for a better device → its later place.
    late : mapping of str to WaitCause
        Job that is kept off idle devices of nodes that leave → its cause, as of :func:`late_cause`.
    only : str
        The one of these jobs of which the cause is wanted; empty: of all.
    """
    found = []
    ahead, first = 0, ""
    for ranked in sorted(left, key=lambda ranked: not ranked.job.startable)[:most]:
        reason = known.get(ranked.job_id)
        wanted = not only or ranked.job_id == only
        if reason is None:
            if wanted:
                reason = late.get(ranked.job_id)
                reason = reason or _for_devices(ranked.job, later.get(ranked.job_id), aftermath, ahead, first)
            first = first or ranked.job_id
            ahead += ranked.job.sample is None  # whom people look for in `penstock ps`
        if not wanted or reason is None:
            continue
        found.append(Wait(job_id=ranked.job_id, cause=reason.cause, evidence=reason.evidence, remedy=reason.remedy))
    return tuple(found)


def _own_hindrance(job: Job) -> WaitCause | None:
    """Return why a job may not start whatever the cluster is like, as long as nothing is said about it."""
    if job.held:
        return WaitCause("held", "it is held", f"penstock release {job.id}")
    if job.blocked:
        return WaitCause("dependency", f"it waits for {', '.join(job.spec.after)}")
    if job.in_line and job.spec.array is not None:
        return WaitCause("array", f"{job.spec.array.most} jobs of its array {job.spec.array.id} run at a time")
    return None


def _hindrance(job: Job, impossible: WaitCause | None, moment: PoolMoment) -> tuple[WaitCause | None, float]:
    now_s = moment.now_s
    if (never := _own_hindrance(job) or impossible) is not None:
        return never, math.inf
    if job.not_before_s > now_s:
        return _too_early(job, now_s), job.not_before_s
    if job.id in moment.held_back:
        return moment.held_back[job.id], math.inf  # a round follows at its begin in any case
    return _unprofiled(job, moment)


def _unprofiled(job: Job, moment: PoolMoment) -> tuple[WaitCause | None, float]:
    """Return what of a new job is still being measured, and until when it waits for that."""
    now_s = moment.now_s
    until_s = job.eligible_s + moment.rules.await_profile_s
    if until_s <= now_s:
        return None, math.inf
    more = f"{until_s - now_s:.1f} s more at most"
    if job.spec.elastic and job.sample is None and not job.epoch:  # a demand gives it an epoch
        return WaitCause("profiling", f"its first size is being worked out; it waits for that {more}"), until_s
    kinds, pool = moment.aftermath.whole.kinds(job.spec), moment.pool
    if sample_plan.awaits_speeds(job, kinds, known=pool.speeds.knows(pool.keys[job.id])):
        sampled = f"by samples, since {sample_plan.why_sampled(job.spec)}"
        evidence = f"its speeds on {' and '.join(kinds)} are being measured {sampled}; it waits for them {more}"
        return WaitCause("profiling", evidence), until_s
    return None, math.inf


def _too_early(job: Job, now_s: float) -> WaitCause:
    left_s = job.not_before_s - now_s
    if not job.failures:
        return WaitCause("begin", f"it is to begin in {left_s:.1f} s, not before")
    tries = f"failed {job.failures} of {job.spec.retries + 1} times"
    return WaitCause("backoff", f"{tries}; its next try is in {left_s:.1f} s")


def _for_devices(job: Job, later: DeferredJob | None, aftermath: RoundAftermath, ahead: int, first: str) -> WaitCause:
    idle = {kind: count for kind, count in aftermath.idle.kinds(job.spec).items() if count >= job.spec.gpus}
    if idle:
        return _beside_idle(idle, later, "" if aftermath.backfills else first)
    if aftermath.sharing is not None and (demand := aftermath.sharing.demands.get(job.id)) is not None:
        return _sharing_capacity(job.spec, demand, aftermath.sharing, aftermath, ahead)
    looks = (_refusal_capacity, _nodes_capacity, _image_capacity, _host_capacity)
    if reason := next((found for look in looks if (found := look(job.spec, aftermath, ahead))), None):
        return reason
    if job.id in aftermath.kept:
        return _kept_so_far(job.spec, aftermath, aftermath.kept[job.id])
    return capacity_cause(job.spec, aftermath, ahead)


def _beside_idle(idle: Mapping[str, int], later: DeferredJob | None, first: str) -> WaitCause:
    """Return why a job waits beside idle devices; ``first`` is a job before it that nobody overtakes."""
    if later is not None:
        kind = min(idle)
        evidence = f"`{later.kind}` is expected in {later.start_s:.1f} s and the job's end on it in {later.end_s:.1f} s"
        return WaitCause("later_place", f"{evidence}; {idle[kind]} `{kind}` idle, where it would end later")
    there = ", ".join(f"{count} {kind}" for kind, count in idle.items())
    if first:
        return WaitCause("order", f"`{first}` comes before it, and in this order nobody overtakes; idle: {there}")
    return WaitCause("order", f"those before it have the first call on what is idle: {there}")


def _sharing_capacity(
    spec: JobSpec, demand: SharingDemand, sharing: SharedPlacement, aftermath: RoundAftermath, ahead: int
) -> WaitCause:
    """Return why a job finds neither room on devices that others share nor a device that nobody has."""
    found, needs = sharing.survey(spec, demand), demand.needs()
    if demand.alone:
        needs = "a device of its own until a run has measured its memory"
    elif demand.gpus > 1:
        needs = f"{needs} on each of {demand.gpus} devices of a node"
    parts = [f"needs {needs}"]
    if found.most is not None:
        node_id, device = found.most.at
        parts.append(f"device {node_id}/{device.kind}{device.index}: {found.most.taken()}")
    parts += [f"{_count(count, 'device')} {why}" for why, count in sorted(found.refusals.items()) if not demand.alone]
    whole = sum(aftermath.whole.kinds(spec).values()) - found.number
    if whole > 0:
        parts.append(f"{_count(whole, 'device')} held by jobs that do not share")
    return WaitCause("capacity", "; ".join([*parts, _place(ahead)]))


def _place(ahead: int) -> str:
    return f"{_count(ahead, 'waiting job')} before it" if ahead else "it is next"
