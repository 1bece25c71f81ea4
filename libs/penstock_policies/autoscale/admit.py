"""Who gets devices at all: each job in its order, at its smallest feasible width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from penstock_policies.autoscale.rows import Row
from penstock_policies.autoscale.wish import Asking, Fixed, Wish
from penstock_policies.order import Manner


class Admitted(msgspec.Struct):
    """
    Attributes
    ----------
    elastic, fixed : dict of str to str
        Job → the kind on which there is room for it.
    keeps : set of str
        Elastic jobs that keep what they have, whatever it is: those that may not be moved, or for which no size is
        known to be feasible.
    room : dict of str to int
        Kind → devices that the elastic jobs share: all but those of fixed ones and of those that keep what they have.
    """

    room: dict[str, int]
    elastic: dict[str, str] = {}
    fixed: dict[str, str] = {}
    keeps: set[str] = set()


def admit(
    order: Sequence[Asking], table: Mapping[str, Mapping[str, Row]], devices: Mapping[str, int], manner: Manner
) -> Admitted:
    """
    Return who gets devices, and on which kind each has its smallest width.

    A running job stays on its kind where that has room; others go where they are fastest, or where most is free.
    """
    found = Admitted(room=dict(devices))
    for asking in order:
        if isinstance(asking, Wish) and asking.now is not None and not (asking.movable and table[asking.job_id]):
            found.keeps.add(asking.job_id)
            found.room[asking.kind] = max(0, found.room.get(asking.kind, 0) - asking.now.gpus)
    left = dict(found.room)
    for asking in walked(order, manner):
        least = _least(asking, table)
        if asking.job_id in found.keeps or not any(gpus <= devices.get(kind, 0) for kind, gpus in least.items()):
            continue  # what can never run here holds up nobody
        kind = _kind(asking, least, left, table)
        if kind:
            left[kind] -= least[kind]
            _note(found, asking, kind)
        elif not manner.backfills:
            break
    return found


def walked(order: Sequence[Asking], manner: Manner) -> list[Asking]:
    """
    Return jobs in the order in which they are admitted: running ones before those for whom they do not make way.

    Examples
    --------
    >>> jobs = [Fixed(job_id="a", gpus=1, kinds=("x",)), Fixed(job_id="b", gpus=1, kinds=("x",), kind="x")]
    >>> [job.job_id for job in walked(jobs, Manner())]
    ['b', 'a']
    >>> [job.job_id for job in walked(jobs, Manner(preempts="position"))]
    ['a', 'b']
    """
    match manner.preempts:
        case "position":
            return list(order)
        case "never":
            return sorted(order, key=lambda asking: not asking.runs)
        case "queue":
            return sorted(order, key=lambda asking: (asking.queue, not asking.runs))


def _least(asking: Asking, table: Mapping[str, Mapping[str, Row]]) -> dict[str, int]:
    """Return the devices that a job needs at least, on each kind."""
    if isinstance(asking, Fixed):
        return dict.fromkeys(asking.kinds, asking.gpus)
    return {kind: row.least for kind, row in table[asking.job_id].items()} if asking.movable else {}


def _kind(
    asking: Asking, least: Mapping[str, int], left: Mapping[str, int], table: Mapping[str, Mapping[str, Row]]
) -> str:
    """Return the kind on which a job is admitted; empty where no kind has room."""
    held = [kind for kind, gpus in least.items() if gpus <= left.get(kind, 0)]
    if asking.kind in held:
        return asking.kind
    if isinstance(asking, Fixed):
        return min(held, key=lambda kind: (-left[kind], kind), default="")
    own = table[asking.job_id]
    return min(held, key=lambda kind: (-float(own[kind].scaling[least[kind] - 1]), -left[kind], kind), default="")


def _note(found: Admitted, asking: Asking, kind: str) -> None:
    if isinstance(asking, Fixed):
        found.fixed[asking.job_id] = kind
        found.room[kind] -= asking.gpus
    else:
        found.elastic[asking.job_id] = kind
