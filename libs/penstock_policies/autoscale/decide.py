"""One decision: who is admitted, on which kind, with how many devices and which batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from penstock_events import Size
from penstock_policies import elastic
from penstock_policies.autoscale.admit import Admitted, admit
from penstock_policies.autoscale.giving import given
from penstock_policies.autoscale.reasons import explained
from penstock_policies.autoscale.rows import Row, rows
from penstock_policies.autoscale.wish import DEFAULT, Asking, Rules, Sized, Sizing, Wish
from penstock_policies.order import BY_QUEUE, Manner


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
    """
    wishes = [asking for asking in order if isinstance(asking, Wish)]
    table = {wish.job_id: rows(wish, dict(devices), rules) for wish in wishes}
    admitted = admit(order, table, devices, manner)
    widths = shared(wishes, table, admitted.elastic, admitted.room)
    sized = {wish.job_id: _sized(wish, table[wish.job_id], widths, admitted) for wish in wishes}
    dropped = tuple(wish.job_id for wish in wishes if rules.drop and wish.fresh and not sized[wish.job_id].gpus)
    return Sizing(
        jobs=explained(wishes, sized, given(order, sized, admitted, devices), table, rules),
        fixed=admitted.fixed,
        dropped=dropped,
        scaling=sum(each.scaling for each in sized.values()),
    )


def shared(
    wishes: Sequence[Wish], table: Mapping[str, Mapping[str, Row]], kinds: Mapping[str, str], room: Mapping[str, int]
) -> dict[str, int]:
    """Return the width of each job, kind by kind, once kinds are chosen: the exact programme."""
    found: dict[str, int] = {}
    for kind, gpus in room.items():
        inside = [wish.job_id for wish in wishes if kinds.get(wish.job_id) == kind]
        if inside:
            found |= zip(
                inside, elastic.allocate(_stacked([table[job][kind] for job in inside]), gpus).tolist(), strict=True
            )
    return found


def _stacked(each: Sequence[Row]) -> elastic.Floats:
    """Return rows of several lengths as one array, filled up with widths that are not feasible."""
    found = np.full((len(each), max(len(row.net) for row in each)), np.nan)
    for at, row in enumerate(each):
        found[at, : len(row.net)] = row.net
    return found


def _sized(wish: Wish, own: Mapping[str, Row], widths: Mapping[str, int], admitted: Admitted) -> Sized:
    if wish.job_id in admitted.keeps and wish.now is not None:
        known = own.get(wish.kind)
        there = known is not None and wish.now.gpus <= len(known.scaling)
        scaling = float(np.nan_to_num(known.scaling[wish.now.gpus - 1])) if known is not None and there else 0.0
        return Sized(
            job_id=wish.job_id, gpus=wish.now.gpus, batch_size=wish.now.batch_size, kind=wish.kind, scaling=scaling
        )
    gpus = widths.get(wish.job_id, 0)
    if not gpus:
        return Sized(job_id=wish.job_id, changed=wish.now is not None)
    kind = admitted.elastic[wish.job_id]
    batch = int(own[kind].batch[gpus - 1])
    same = (wish.now or wish.asks) == Size(gpus, batch) and wish.kind in ("", kind)
    return Sized(
        job_id=wish.job_id,
        gpus=gpus,
        batch_size=batch,
        kind=kind,
        changed=wish.fresh or not same,
        scaling=float(own[kind].scaling[gpus - 1]),
    )
