"""One decision: who is admitted, on which kind, with how many devices and which batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from penstock_policies import elastic
from penstock_policies.autoscale import kinds
from penstock_policies.autoscale.admit import Admitted, admit
from penstock_policies.autoscale.giving import given
from penstock_policies.autoscale.reasons import explained
from penstock_policies.autoscale.rows import Row, rows
from penstock_policies.autoscale.wish import DEFAULT, Asking, Fixed, Rules, Sized, Sizing, Wish
from penstock_policies.order import BY_QUEUE, Manner

ROUNDS: Final = 8
"""Kinds are chosen anew at most so often, each time as if what was decided last was there."""

Table = Mapping[str, Mapping[str, Row]]


def decide(
    order: Sequence[Asking], devices: Mapping[str, int], rules: Rules = DEFAULT, manner: Manner = BY_QUEUE
) -> Sizing:
    """
    Return what each elastic job of a pool is to have.

    Parameters
    ----------
    order : sequence of Wish or Fixed
        The jobs of a pool, elastic ones and others, in rank order.
    devices : mapping of str to int
        Kind → devices on nodes that take jobs, whoever holds them.
    manner : Manner
        Whom a running job makes way for, and whether others may pass one that does not fit.

    Notes
    -----
    With one kind the programme is exact, and changes nothing once what it decides is there. With several, kinds are
    chosen by a heuristic, which may see more from there; and where a running job has to leave, another may come before
    it then. So it is asked until it changes nothing. Each time that is better from the sizes at first, too.

    Examples
    --------
    >>> from penstock_policies.elastic import Profile
    >>> fast = Profile(b_min=64, b_max=64, per_gpu_cap=64, t_proc_s={8: 1.0, 64: 8.0})
    >>> wishes = [Wish(job_id=job, profiles={"x": fast}, widths=range(1, 5)) for job in "ab"]
    >>> {job: each.gpus for job, each in decide(wishes, {"x": 6}).jobs.items()}
    {'a': 4, 'b': 2}
    """
    table, admitted, sized = _once(order, devices, rules, manner)
    if len(devices) > 1 or _leaves(order, sized, admitted):
        for _ in range(ROUNDS):
            then = _once([_then(asking, sized, admitted) for asking in order], devices, rules, manner)
            if _same(then[2], sized) and then[1].fixed == admitted.fixed:
                break
            admitted, sized = then[1], then[2]
    wishes = [asking for asking in order if isinstance(asking, Wish)]
    sized = {wish.job_id: _compared(wish, sized[wish.job_id]) for wish in wishes}
    return Sizing(
        jobs=explained(wishes, sized, given(order, sized, admitted, devices), table, rules),
        fixed=admitted.fixed,
        dropped=tuple(w.job_id for w in wishes if rules.drop and w.fresh and w.movable and not sized[w.job_id].gpus),
        scaling=sum(each.scaling for each in sized.values()),
    )


def _once(
    order: Sequence[Asking], devices: Mapping[str, int], rules: Rules, manner: Manner
) -> tuple[Table, Admitted, dict[str, Sized]]:
    wishes = [asking for asking in order if isinstance(asking, Wish)]
    table = {wish.job_id: rows(wish, devices, rules) for wish in wishes}
    admitted = admit(order, table, devices, manner)
    inside = [wish.job_id for wish in wishes if wish.job_id in admitted.elastic]
    comes = any(admitted.elastic[wish.job_id] != wish.kind for wish in wishes if wish.job_id in admitted.elastic)
    admitted.elastic = kinds.chosen(inside, table, admitted.elastic, admitted.room, comes=comes)
    widths = _shared(inside, table, admitted)
    return table, admitted, {wish.job_id: _sized(wish, table[wish.job_id], widths, admitted) for wish in wishes}


def _then(asking: Asking, sized: Mapping[str, Sized], admitted: Admitted) -> Asking:
    """Return a job as it will be once it has what is decided for it."""
    if isinstance(asking, Fixed):
        return msgspec.structs.replace(asking, kind=admitted.fixed.get(asking.job_id, ""))
    each = sized[asking.job_id]
    return msgspec.structs.replace(asking, now=each.size if each.gpus else None, kind=each.kind)


def _leaves(order: Sequence[Asking], sized: Mapping[str, Sized], admitted: Admitted) -> bool:
    """Say whether a running job loses its devices."""
    inside = admitted.fixed.keys() | {job for job, each in sized.items() if each.gpus}
    return any(each.runs and each.job_id not in inside for each in order)


def _same(one: Mapping[str, Sized], other: Mapping[str, Sized]) -> bool:
    return all(each.size == other[job].size and each.kind == other[job].kind for job, each in one.items())


def _shared(inside: Sequence[str], table: Table, admitted: Admitted) -> dict[str, int]:
    """Return the width of each job, kind by kind: the exact programme."""
    found: dict[str, int] = {}
    for kind, gpus in admitted.room.items():
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


def _sized(wish: Wish, own: Mapping[str, Row], widths: Mapping[str, int], admitted: Admitted) -> Sized:
    if wish.job_id in admitted.keeps and wish.now is not None:
        gpus, batch, kind = wish.now.gpus, wish.now.batch_size, wish.kind
        there = kind in own and gpus <= len(own[kind].scaling)
        scaling = float(np.nan_to_num(own[kind].scaling[gpus - 1])) if there else 0.0
    elif gpus := widths.get(wish.job_id, 0):
        kind = admitted.elastic[wish.job_id]
        batch, scaling = int(own[kind].batch[gpus - 1]), float(own[kind].scaling[gpus - 1])
    else:
        return Sized(job_id=wish.job_id)
    return Sized(job_id=wish.job_id, gpus=gpus, batch_size=batch, kind=kind, scaling=scaling)


def _compared(wish: Wish, each: Sized) -> Sized:
    """Note whether it is another size than it has, or asks for."""
    if not each.gpus:
        return msgspec.structs.replace(each, changed=wish.now is not None)
    same = each.size == (wish.now or wish.asks) and wish.kind in ("", each.kind) and not wish.fresh
    return msgspec.structs.replace(each, changed=not same)
