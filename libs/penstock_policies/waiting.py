"""
Why a job waits: the one cause that dominates, its evidence in figures, and a remedy that is true.

A remedy names only what, done alone, lets a job fit that can never fit. What lets a job start that waits its turn, the
round itself has to say: see :mod:`penstock_policies.rounds.alternatives`.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from penstock_events import Cause, Device, JobSpec
from penstock_policies.cluster import Node, fits
from penstock_policies.hosts import NOTHING, Amount, need_of, share_of
from penstock_policies.order import Running
from penstock_policies.placement import Free

if TYPE_CHECKING:
    from penstock_policies.sharing.choice import Sharing


_DIGITS: Final = 4
"""How many digits of a size are told."""

_MOST_DEMANDS: Final = 15
"""How many smaller demands on hosts are looked at, and the one that all nodes can meet."""


class Reason(NamedTuple):
    """One cause, as :class:`penstock_events.Wait` has it."""

    cause: Cause
    evidence: str
    remedy: str = ""


class Scene(msgspec.Struct, frozen=True, dict=True):
    """
    How things stand after a round.

    Attributes
    ----------
    pool : str
    nodes : sequence of Node
        The pool's nodes whose executors are up, drained ones among them.
    whole, idle : Free
        Devices of nodes that take jobs: all of them, and those that nobody has or keeps.
    running : sequence of Running
        The runs that hold the others.
    kept : mapping of str to str
        Job that keeps devices → their kind.
    backfills : bool
        Whether jobs behind one that does not fit may start.
    sharing : Sharing or None
        The devices that jobs share; None where none does.
    """

    pool: str
    nodes: Sequence[Node]
    whole: Free
    idle: Free
    running: Sequence[Running] = ()
    kept: Mapping[str, str] = field(default_factory=dict)
    backfills: bool = True
    sharing: Sharing | None = None

    @cached_property
    def queues(self) -> Mapping[str, Counter[int]]:
        """Kind → how many runs of each queue have devices of it."""
        found: defaultdict[str, Counter[int]] = defaultdict(Counter)
        for run in self.running:
            found[run.kind][run.ranked.queue] += 1
        return found


def impossible(spec: JobSpec, scene: Scene) -> Reason | None:
    """
    Return why the present nodes cannot take the job whatever ends; None where it only has to wait its turn.

    Examples
    --------
    >>> empty = Scene("lab", (), Free({}), Free({}))
    >>> impossible(JobSpec(name="a", command=("true",)), empty)[:2]
    ('no_nodes', 'pool `lab` has no node')
    """
    if _largest(spec, scene.whole) >= spec.gpus:
        return None
    if not scene.nodes:
        remedy = "start an executor in it, or choose another pool"
        return Reason("no_nodes", f"pool `{scene.pool}` has no node", remedy)
    if not any(node.usable for node in scene.nodes):
        evidence = f"{_count(len(scene.nodes), 'node')} of pool `{scene.pool}`, all drained"
        return Reason("no_nodes", evidence, _resume(_lacking(spec, scene) or scene.nodes[:3]))
    present = Free({node.id: node.devices for node in scene.nodes}, hosts=scene.nodes)
    if _largest(spec, present) >= spec.gpus:
        return _drained(spec, scene)
    if max(present.kinds_without_hosts(spec).values(), default=0) >= spec.gpus:
        return Reason("never_fits", *_too_much_of_a_host(spec, scene))
    remedy = _relaxed(spec, scene.whole) or _bare(spec, scene.whole)
    return Reason("never_fits", _largest_text(spec, present, scene.pool), remedy)


def capacity(spec: JobSpec, scene: Scene, ahead: int) -> Reason:
    """
    Return why a job that could fit finds no devices; ``ahead`` is how many waiting jobs stand before it.

    Raises
    ------
    ValueError
        If devices for it are idle: then it does not wait for capacity.
    """
    idle = scene.idle.kinds(spec)
    if any(count >= spec.gpus for count in idle.values()):
        raise ValueError(f"{idle} idle devices hold the job's {spec.gpus}; expected a job that finds none")
    place = f"; {_count(ahead, 'waiting job')} before it" if ahead else "; it is next"
    if idle:
        free = ", ".join(f"{count} {kind}" for kind, count in idle.items())
        return Reason("gang", f"needs {spec.gpus} devices of one kind at once; idle: {free}{place}")
    there = scene.whole.kinds_without_hosts(spec)  # all that its runs are counted for, also where hosts bind it
    use = (_use(kind, there[kind], scene) for kind in scene.whole.kinds(spec))
    return Reason("capacity", "; ".join(use) + place)


def host(spec: JobSpec, scene: Scene, ahead: int) -> Reason | None:
    """Return why a job waits that would find idle devices if their hosts had room; None where that is not so."""
    idle = scene.idle.kinds_without_hosts(spec) if scene.idle.is_tight(spec) else {}
    idle = {kind: count for kind, count in idle.items() if count >= spec.gpus}
    if not idle or any(count >= spec.gpus for count in scene.idle.kinds(spec).values()):
        return None
    nodes = {node_id for kind in idle for node_id, device in scene.idle if device.kind == kind and fits(spec, device)}
    most = max(nodes, key=lambda node_id: (scene.idle.left_of(node_id).memory_bytes, node_id))
    left = scene.idle.left_of(most)
    share = next((share_of(node) for node in scene.nodes if node.id == most), NOTHING)
    need = need_of(spec, share)
    for_memory = left.holds(need._replace(cpus=0)) <= left.holds(need._replace(memory_bytes=0))
    has = f"{gibibytes(max(0, left.memory_bytes))} and {left.cpus / 1000:g} cpus of `{most}` are left"
    there = ", ".join(f"{count} {kind}" for kind, count in idle.items())
    wants = f"{gibibytes(need.memory_bytes)} of its host's memory and {need.cpus / 1000:g} cpus for each device"
    place = f"; {_count(ahead, 'waiting job')} before it" if ahead else "; it is next"
    evidence = f"idle: {there}, but it needs {wants}, and {has}{place}"
    return Reason("host_memory" if for_memory else "host_cpus", evidence)


def _too_much_of_a_host(spec: JobSpec, scene: Scene) -> tuple[str, str]:
    """Return what no node has room for, and with how much less the job would fit."""
    able = [node for node in scene.nodes if any(fits(spec, device) for device in node.devices)]
    memory_bytes = max((node.host_memory_bytes for node in able), default=0)
    cpus = max((node.cpus for node in able), default=0.0)
    wants = []
    if spec.host_memory_bytes:
        wants.append(f"{gibibytes(spec.host_memory_bytes)} of the host's memory")
    if spec.cpus:
        wants.append(f"{spec.cpus:g} cpus")
    each = " for each of its devices" if spec.gpus > 1 else ""
    has = f"the largest node of pool `{scene.pool}` with such devices has {gibibytes(memory_bytes)} and {cpus:g} cpus"
    return f"needs {' and '.join(wants)}{each}; {has}", _less_of_a_host(spec, scene.whole)


def _less_of_a_host(spec: JobSpec, devices: Free) -> str:
    """Return the single change with which a job that asks for too much of a host would fit; empty if there is none."""
    for change, say in less_of_a_host(spec, devices):
        if _largest(msgspec.structs.replace(spec, **change), devices) >= spec.gpus:
            return say
    return ""


def less_of_a_host(spec: JobSpec, devices: Free) -> Iterator[tuple[dict[str, int | float], str]]:
    """
    Yield smaller demands on the host that some nodes can meet, and how they are said: memory, then processors.

    Parameters
    ----------
    spec : JobSpec
    devices : Free
        The devices whose hosts are looked at: what is left of a node, for one device of the job there or for several.

    Notes
    -----
    The largest come first: whoever takes the first with which the job fits says the most that it may ask for. Of nodes
    that are all different, the smallest share is looked at as well, which all of them have.
    """
    if devices.hosts is None:
        return
    shares = devices.hosts.shares.values()
    least = Amount(*(min((share[part] for share in shares), default=0) for part in range(len(Amount._fields))))
    rooms = {
        (devices.left_of(node_id), count)
        for node_id, held in devices.by_node().items()
        for count in range(1, min(len(held), spec.gpus) + 1)
    }
    if spec.host_memory_bytes:
        parts = {rounded_down(left.memory_bytes // count) for left, count in rooms}
        for size in _largest_below(parts, rounded_down(least.memory_bytes), spec.host_memory_bytes):
            yield {"host_memory_bytes": size}, f"ask for at most {gibibytes(size)} of the host's memory a device"
    if spec.cpus:
        parts = {left.cpus // count for left, count in rooms}
        for cpus in _largest_below(parts, least.cpus, round(spec.cpus * 1000)):
            yield {"cpus": cpus / 1000}, f"ask for at most {cpus / 1000:g} cpus a device"


def _largest_below(parts: Iterable[int], least: int, asked: int) -> list[int]:
    """Return the largest amounts that are less than what is asked, and the least."""
    below = {part for part in parts if 0 < part < asked}
    found = heapq.nlargest(_MOST_DEMANDS, below)
    return found if not 0 < least < asked or least in found else [*found, least]


def passed_by(idle: Mapping[str, int], scene: Scene, first: str) -> Reason:
    """
    Return why a job waits although devices for it are idle, and it does not wait for better ones.

    Parameters
    ----------
    idle : mapping of str to int
        Kind → idle devices, where they are enough for it.
    first : str
        The first of the jobs before it that wait for devices; empty if there is none.
    """
    there = ", ".join(f"{count} {kind}" for kind, count in idle.items())
    if first and not scene.backfills:
        return Reason("order", f"`{first}` comes before it, and in this order nobody overtakes; idle: {there}")
    return Reason("order", f"those before it have the first call on what is idle: {there}")


def keeping(spec: JobSpec, scene: Scene, kind: str) -> Reason:
    """Return how far a job is for whom devices of a kind are kept as they fall free."""
    evidence = f"what falls free of {kind} is kept for it; it needs {spec.gpus}"
    if list(scene.kept.values()).count(kind) == 1:
        busy = sum(device.kind == kind and fits(spec, device) for run in scene.running for _, device in run.devices)
        free = scene.whole.count(spec, kind) - busy - scene.idle.count(spec, kind)
        evidence += f" and has {max(0, free)} so far"
    return Reason("capacity", evidence)


def _use(kind: str, count: int, scene: Scene) -> str:
    """Say who has a kind's devices, such as ``3 fast busy with 1 sample, 1 job of queue 0, 1 job of queue 2``."""
    queues: Mapping[int, int] = scene.queues.get(kind, {})
    parts = ", ".join(
        f"{_count(n, 'job')} of queue {queue}" if queue >= 0 else _count(n, "sample")
        for queue, n in sorted(queues.items())
    )
    text = f"{count} {kind} busy with {parts or 'no job'}"
    keepers = [job_id for job_id, of in scene.kept.items() if of == kind]
    return text + (f", or kept free for `{keepers[0]}`" if keepers else "")


def _drained(spec: JobSpec, scene: Scene) -> Reason:
    drained = [n for n in scene.nodes if n.drained and any(fits(spec, d) for d in n.devices)]
    names = ", ".join(f"`{node.id}`" for node in drained[:3])
    left = _largest(spec, scene.whole)
    evidence = f"needs {spec.gpus}, {left} left on nodes that take jobs; drained: {names}"
    return Reason("capacity", evidence, _resume(_lacking(spec, scene)))


def _lacking(spec: JobSpec, scene: Scene) -> list[Node]:
    """Return the fewest drained nodes with which the job fits; none if it does not fit even then."""
    drained = {node.id: node for node in scene.nodes if node.drained}
    held = Free({node_id: node.devices for node_id, node in drained.items()})
    choices: list[list[Node]] = []
    for kind, count in held.kinds(spec).items():
        missing = spec.gpus - scene.whole.count(spec, kind)
        if count >= missing:
            chosen = held.choose(spec, kind, missing, together=True)
            choices.append([drained[node_id] for node_id in sorted({node_id for node_id, _ in chosen})])
    return min(choices, key=len, default=[])


def _resume(nodes: Sequence[Node]) -> str:
    return f"penstock node resume {' '.join(node.id for node in nodes)}"


def _largest(spec: JobSpec, devices: Free) -> int:
    return max(devices.kinds(spec).values(), default=0)


def _largest_text(spec: JobSpec, present: Free, pool: str) -> str:
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


def _relaxed(spec: JobSpec, devices: Free) -> str:
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


def _accepted(spec: JobSpec, devices: Free) -> bool:
    """Say whether any device is of a kind that the job accepts, however little memory it has."""
    return bool(devices.kinds(msgspec.structs.replace(spec, memory_bytes=0)))


def _bare(spec: JobSpec, devices: Free) -> str:
    """Return the kind of bare CPU that would hold a job that names no kind, and so gets none."""
    for kind in () if spec.kinds else sorted({device.kind for _, device in devices}):
        if (count := _largest(msgspec.structs.replace(spec, kinds=(kind,)), devices)) >= spec.gpus:
            return f"ask for kind `{kind}` by name: {_there(count)}"
    return ""


def _less_memory(spec: JobSpec, devices: Free) -> str:
    """Return the most memory a device may be asked for such that enough devices of one kind have it."""
    fitting = msgspec.structs.replace(spec, memory_bytes=0)
    sizes = sorted({device.memory_bytes for _, device in devices if fits(fitting, device)}, reverse=True)
    for size in sizes:
        count = _largest(msgspec.structs.replace(spec, memory_bytes=size), devices)
        if count >= spec.gpus:
            return f"ask for at most {gibibytes(size)} a device: {_there(count)}"
    return ""


def gibibytes(size_bytes: int) -> str:
    """
    Return a size for people.

    Examples
    --------
    >>> gibibytes(8 * 2**30), gibibytes(600)
    ('8 GiB', '600 B')
    """
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= size:
            return f"{size_bytes / size:.4g} {unit}"
    return f"{size_bytes} B"


def rounded_down(size_bytes: int) -> int:
    """
    Return the largest size not above another of which :func:`gibibytes` says all, so that it may be copied.

    Examples
    --------
    >>> size = rounded_down(23_128_000_000)
    >>> gibibytes(23_128_000_000), gibibytes(size), size == int(21.53 * 2**30)
    ('21.54 GiB', '21.53 GiB', True)
    """
    for unit in (2**30, 2**20, 2**10):
        if size_bytes >= unit:
            scale: int = 10 ** max(0, _DIGITS - len(str(size_bytes // unit)))
            return (size_bytes * scale // unit) * unit // scale
    return size_bytes


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
