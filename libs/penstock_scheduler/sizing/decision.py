"""
One decision about the sizes of a pool's elastic jobs, from admission to reasons.

:func:`decide` says who is admitted, on which kind, with how many devices and which batch. Its steps are the parts of
this module, in this order: :func:`admit` walks the jobs in their order and admits each at its smallest feasible width;
the exact programme then shares what is left; :func:`explained` says in one sentence why a job has its size;
:func:`given` says who gets the devices that a job gives up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from penstock_policies import elastic
from penstock_policies.queue_policies import BY_QUEUE, DispatchMode
from penstock_scheduler.sizing import kind_search
from penstock_scheduler.sizing.kind_search import SizeRow, rows
from penstock_scheduler.sizing.problem import (
    DEFAULT,
    Asking,
    FixedSizeJob,
    SizeGrant,
    SizeRequest,
    SizingDecision,
    SizingRules,
)

ROUNDS: Final = 8
"""Kinds are chosen anew at most so often, each time as if what was decided last was there."""

Table = Mapping[str, Mapping[str, SizeRow]]


def decide(
    order: Sequence[Asking], devices: Mapping[str, int], rules: SizingRules = DEFAULT, mode: DispatchMode = BY_QUEUE
) -> SizingDecision:
    """
    Return what each elastic job of a pool is to have.

    Parameters
    ----------
    order : sequence of SizeRequest or FixedSizeJob
        The jobs of a pool, elastic ones and others, in rank order.
    devices : mapping of str to int
        Kind → devices on nodes that take jobs, whoever holds them.
    mode : DispatchMode
        For whom a running job makes way, and whether jobs may pass one that does not fit.

    Notes
    -----
    With one kind the programme is exact, and a second call on its own result changes nothing. With several kinds, a
    heuristic chooses them, and from its own result it may find more; where a running job has to leave, another may come
    before it then. So the decision is repeated until it changes nothing. Each repetition is better than the sizes at
    first, too.

    Examples
    --------
    >>> from penstock_policies.elastic import ThroughputProfile
    >>> fast = ThroughputProfile(b_min=64, b_max=64, per_gpu_cap=64, t_proc_s={8: 1.0, 64: 8.0})
    >>> requests = [SizeRequest(job_id=job, profiles={"x": fast}, widths=range(1, 5)) for job in "ab"]
    >>> {job: each.gpus for job, each in decide(requests, {"x": 6}).jobs.items()}
    {'a': 4, 'b': 2}
    """
    table, admitted, sized = _once(order, devices, rules, mode)
    if len(devices) > 1 or _leaves(order, sized, admitted):
        for _ in range(ROUNDS):
            then = _once([_then(asking, sized, admitted) for asking in order], devices, rules, mode)
            if _same(then[2], sized) and then[1].fixed == admitted.fixed:
                break
            admitted, sized = then[1], then[2]
    requests = [asking for asking in order if isinstance(asking, SizeRequest)]
    sized = {request.job_id: _compared(request, sized[request.job_id]) for request in requests}
    return SizingDecision(
        jobs=explained(requests, sized, given(order, sized, admitted, devices), table, rules),
        fixed=admitted.fixed,
        dropped=tuple(w.job_id for w in requests if rules.drop and w.fresh and w.movable and not sized[w.job_id].gpus),
        scaling=sum(each.scaling for each in sized.values()),
    )


def _once(
    order: Sequence[Asking], devices: Mapping[str, int], rules: SizingRules, mode: DispatchMode
) -> tuple[Table, AdmittedJobs, dict[str, SizeGrant]]:
    requests = [asking for asking in order if isinstance(asking, SizeRequest)]
    table = {request.job_id: rows(request, devices, rules) for request in requests}
    admitted = admit(order, table, devices, mode)
    inside = [request.job_id for request in requests if request.job_id in admitted.elastic]
    comes = any(
        admitted.elastic[request.job_id] != request.kind for request in requests if request.job_id in admitted.elastic
    )
    admitted.elastic = kind_search.chosen(inside, table, admitted.elastic, admitted.capacity, comes=comes)
    widths = _shared(inside, table, admitted)
    return (
        table,
        admitted,
        {request.job_id: _sized(request, table[request.job_id], widths, admitted) for request in requests},
    )


def _then(asking: Asking, sized: Mapping[str, SizeGrant], admitted: AdmittedJobs) -> Asking:
    """Return a job as it will be once it has its decided size."""
    if isinstance(asking, FixedSizeJob):
        return msgspec.structs.replace(asking, kind=admitted.fixed.get(asking.job_id, ""))
    each = sized[asking.job_id]
    return msgspec.structs.replace(asking, now=each.size if each.gpus else None, kind=each.kind)


def _leaves(order: Sequence[Asking], sized: Mapping[str, SizeGrant], admitted: AdmittedJobs) -> bool:
    """Say whether a running job loses its devices."""
    inside = admitted.fixed.keys() | {job for job, each in sized.items() if each.gpus}
    return any(each.runs and each.job_id not in inside for each in order)


def _same(one: Mapping[str, SizeGrant], other: Mapping[str, SizeGrant]) -> bool:
    return all(each.size == other[job].size and each.kind == other[job].kind for job, each in one.items())


def _shared(inside: Sequence[str], table: Table, admitted: AdmittedJobs) -> dict[str, int]:
    """Return the width of each job, kind by kind: the exact programme."""
    found: dict[str, int] = {}
    for kind, gpus in admitted.capacity.items():
        if jobs := [job for job in inside if admitted.elastic[job] == kind]:
            widths = elastic.allocate(_stacked([table[job][kind].net for job in jobs]), gpus)
            found |= zip(jobs, widths.tolist(), strict=True)
    return found


def _stacked(each: Sequence[elastic.Floats]) -> elastic.Floats:
    """Return rows of several lengths as one array, filled up with widths that are not feasible."""
    found = np.full((len(each), max(map(len, each))), np.nan)
    for at, row in enumerate(each):
        found[at, : len(row)] = row
    return found


def _sized(
    request: SizeRequest, own: Mapping[str, SizeRow], widths: Mapping[str, int], admitted: AdmittedJobs
) -> SizeGrant:
    if request.job_id in admitted.keeps and request.now is not None:
        gpus, batch, kind = request.now.gpus, request.now.batch_size, request.kind
        there = kind in own and gpus <= len(own[kind].scaling)
        scaling = float(np.nan_to_num(own[kind].scaling[gpus - 1])) if there else 0.0
    elif gpus := widths.get(request.job_id, 0):
        kind = admitted.elastic[request.job_id]
        batch, scaling = int(own[kind].batch[gpus - 1]), float(own[kind].scaling[gpus - 1])
    else:
        return SizeGrant(job_id=request.job_id)
    return SizeGrant(job_id=request.job_id, gpus=gpus, batch_size=batch, kind=kind, scaling=scaling)


def _compared(request: SizeRequest, each: SizeGrant) -> SizeGrant:
    """Note whether the decided size differs from what the job has or asks for."""
    if not each.gpus:
        return msgspec.structs.replace(each, changed=request.now is not None)
    same = each.size == (request.now or request.asks) and request.kind in ("", each.kind) and not request.fresh
    return msgspec.structs.replace(each, changed=not same)


class AdmittedJobs(msgspec.Struct):
    """
    Attributes
    ----------
    elastic, fixed : dict of str to str
        Job → the kind on which there is room for it.
    keeps : set of str
        Elastic jobs that keep what they have: those that may not be moved, and those without a size known to be
        feasible.
    capacity : dict of str to int
        Kind → devices that the elastic jobs share: all but those of fixed ones and of those that keep what they have.
    """

    capacity: dict[str, int]
    elastic: dict[str, str] = {}
    fixed: dict[str, str] = {}
    keeps: set[str] = set()


def admit(
    order: Sequence[Asking],
    table: Mapping[str, Mapping[str, SizeRow]],
    devices: Mapping[str, int],
    mode: DispatchMode,
) -> AdmittedJobs:
    """
    Return the jobs that get devices, and the kind on which each has its smallest width.

    A running job stays on its kind where that has room. Other jobs go where they are fastest, or where most is free.
    """
    found = AdmittedJobs(capacity=dict(devices))
    for asking in order:
        if isinstance(asking, SizeRequest) and asking.now is not None and not (asking.movable and table[asking.job_id]):
            found.keeps.add(asking.job_id)
            found.capacity[asking.kind] = max(0, found.capacity.get(asking.kind, 0) - asking.now.gpus)
    left = dict(found.capacity)
    for asking in walked(order, mode):
        least = _least(asking, table)
        if asking.job_id in found.keeps or not any(gpus <= devices.get(kind, 0) for kind, gpus in least.items()):
            continue  # what can never run here holds up nobody
        kind = _kind(asking, least, left, table)
        if kind:
            left[kind] -= least[kind]
            if isinstance(asking, FixedSizeJob):
                found.fixed[asking.job_id] = kind
                found.capacity[kind] -= asking.gpus
            else:
                found.elastic[asking.job_id] = kind
        elif not mode.backfills:
            break
    return found


def walked(order: Sequence[Asking], mode: DispatchMode) -> list[Asking]:
    """
    Return jobs in the order in which they are admitted: running ones before those for whom they do not make way.

    Examples
    --------
    >>> waiting = FixedSizeJob(job_id="a", gpus=1, kinds=("x",))
    >>> jobs = [waiting, FixedSizeJob(job_id="b", gpus=1, kinds=("x",), kind="x")]
    >>> [job.job_id for job in walked(jobs, DispatchMode())]
    ['b', 'a']
    >>> [job.job_id for job in walked(jobs, DispatchMode(preempts="position"))]
    ['a', 'b']
    """
    match mode.preempts:
        case "position":
            return list(order)
        case "never":
            return sorted(order, key=lambda asking: not asking.runs)
        case "queue":
            return sorted(order, key=lambda asking: (asking.queue, not asking.runs))


def _least(asking: Asking, table: Mapping[str, Mapping[str, SizeRow]]) -> dict[str, int]:
    """Return the devices that a job needs at least, on each kind."""
    if isinstance(asking, FixedSizeJob):
        return dict.fromkeys(asking.kinds, asking.gpus)
    return {kind: row.least for kind, row in table[asking.job_id].items()} if asking.movable else {}


def _kind(
    asking: Asking, least: Mapping[str, int], left: Mapping[str, int], table: Mapping[str, Mapping[str, SizeRow]]
) -> str:
    """Return the kind on which a job is admitted; empty where no kind has room."""
    held = [kind for kind, gpus in least.items() if gpus <= left.get(kind, 0)]
    if asking.kind in held:
        return asking.kind
    if isinstance(asking, FixedSizeJob):
        return min(held, key=lambda kind: (-left[kind], kind), default="")
    own = table[asking.job_id]
    return min(held, key=lambda kind: (-float(own[kind].scaling[least[kind] - 1]), -left[kind], kind), default="")


def explained(
    requests: Sequence[SizeRequest],
    sized: Mapping[str, SizeGrant],
    gives: Mapping[str, dict[str, int]],
    table: Mapping[str, Mapping[str, SizeRow]],
    rules: SizingRules,
) -> dict[str, SizeGrant]:
    """Return the decided sizes with their reasons, and with the devices that each job gives to others."""
    found = {}
    for request in requests:
        each = msgspec.structs.replace(sized[request.job_id], gives=gives.get(request.job_id, {}))
        reason = _reason(request, each, table[request.job_id], rules)
        found[request.job_id] = msgspec.structs.replace(each, reason=reason)
    return found


def _reason(request: SizeRequest, each: SizeGrant, own: Mapping[str, SizeRow], rules: SizingRules) -> str:
    if not each.gpus:
        return _waiting(request, own)
    if request.now is None:
        return f"starts on {_size(each)}{_pace(each, own)}"
    if not request.movable:
        return f"keeps {_size(each)}: it is not to be resized now"
    if not own:
        return f"keeps {_size(each)}: no size of its is known to be feasible"
    if not each.changed:
        worth = f"is worth the {_seconds(request.cost_s)} that resizing it costs" if request.cost_s else "does better"
        return f"keeps {_size(each)}: no other size {worth}"
    pace = _gain(request, each, own) or _pace(each, own)
    return f"{_change(request, each)}{_given(each)}{pace}{_worth(request, each, rules)}"


def _waiting(request: SizeRequest, own: Mapping[str, SizeRow]) -> str:
    if not own:
        least, most = request.widths.start, request.widths.stop - 1
        widths = f"{least} to {most} devices" if most > least else _devices(least)
        return f"waits: no kind of device that is there holds it on {widths}"
    if not request.movable:
        return "waits: it is not to be started now"
    least = min(row.least for row in own.values())
    verb = "gives way" if request.now is not None else "waits"
    return f"{verb}: jobs before it leave fewer devices than the {least} that it needs at least"


def _change(request: SizeRequest, each: SizeGrant) -> str:
    before = request.now.gpus if request.now is not None else 0
    if each.kind != request.kind:
        return f"moves from {before} {request.kind} to {_size(each)}"
    if each.gpus == before:
        was = request.now.batch_size if request.now is not None else 0
        return f"keeps {_devices(before)} and takes a batch of {each.batch_size} instead of {was}"
    return f"{'grows' if each.gpus > before else 'shrinks'} from {before} to {_size(each)}"


def _given(each: SizeGrant) -> str:
    parts = [f"{number} to {job}" for job, number in each.gives.items()]
    return f", and gives {' and '.join(parts)}" if parts else ""


def _pace(each: SizeGrant, own: Mapping[str, SizeRow]) -> str:
    """Compare with the least width of the same kind: the scaling itself is relative to that of the fastest one."""
    if each.scaling <= 0 or each.kind not in own:
        return ""
    least = own[each.kind].least
    times = each.scaling / float(own[each.kind].scaling[least - 1])
    return f": {times:.3g} times its pace on {_devices(least)}"


def _gain(request: SizeRequest, each: SizeGrant, own: Mapping[str, SizeRow]) -> str:
    """Compare a size on another kind with the present one; empty where the kind stays, or the speed is not known."""
    if request.now is None or each.kind == request.kind or request.kind not in own or each.scaling <= 0:
        return ""
    at = request.now.gpus - 1
    before = float(own[request.kind].scaling[at]) if at < len(own[request.kind].scaling) else 0.0
    return f": {each.scaling / before:.3g} times its present pace" if before > 0 else ""


def _worth(request: SizeRequest, each: SizeGrant, rules: SizingRules) -> str:
    if not request.cost_s or request.now is None or each.gpus <= request.now.gpus or each.kind != request.kind:
        return ""
    return f", worth the {_seconds(request.cost_s)} that it costs within {_seconds(rules.horizon_s)}"


def _size(each: SizeGrant) -> str:
    return f"{_devices(each.gpus)} ({each.kind}) with a batch of {each.batch_size}"


def _devices(number: int) -> str:
    return f"{number} device{'' if number == 1 else 's'}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s"


def given(
    order: Sequence[Asking], sized: Mapping[str, SizeGrant], admitted: AdmittedJobs, devices: Mapping[str, int]
) -> dict[str, dict[str, int]]:
    """
    Return who gives how many devices to whom, kind by kind and in rank order.

    Idle devices go first. Devices that are given up beyond what others gain go to nobody.
    """
    found: dict[str, dict[str, int]] = {}
    for kind, count in devices.items():
        before = {asking.job_id: asking.held if asking.kind == kind else 0 for asking in order}
        gains = {asking.job_id: _gets(asking, kind, sized, admitted) - before[asking.job_id] for asking in order}
        idle = max(0, count - sum(before.values()))
        for giver, taker, number in handed(gains, idle):
            found.setdefault(giver, {})[taker] = number
    return found


def handed(gains: Mapping[str, int], idle: int) -> Iterable[tuple[str, str, int]]:
    """
    Yield who gives how many devices to whom, from the devices that each job gains or, below 0, gives up.

    Examples
    --------
    >>> list(handed({"a": -2, "b": 2, "c": -1, "d": 1}, idle=1))
    [('a', 'b', 1), ('a', 'd', 1)]
    """
    givers = [(job, -gain) for job, gain in gains.items() if gain < 0]
    for taker, wanted in gains.items():
        wanted -= (unheld := min(idle, max(0, wanted)))  # noqa: PLW2901
        idle -= unheld
        while wanted > 0 and givers:
            giver, left = givers.pop(0)
            number = min(wanted, left)
            yield giver, taker, number
            wanted -= number  # noqa: PLW2901
            if left > number:
                givers.insert(0, (giver, left - number))


def _gets(asking: Asking, kind: str, sized: Mapping[str, SizeGrant], admitted: AdmittedJobs) -> int:
    if isinstance(asking, FixedSizeJob):
        return asking.gpus if admitted.fixed.get(asking.job_id) == kind else 0
    each = sized[asking.job_id]
    return each.gpus if each.kind == kind else 0
