"""Who gets the devices that a job gives up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from penstock_policies.autoscale.admit import Admitted
from penstock_policies.autoscale.wish import Asking, Fixed, Sized


def given(
    order: Sequence[Asking], sized: Mapping[str, Sized], admitted: Admitted, devices: Mapping[str, int]
) -> dict[str, dict[str, int]]:
    """
    Return who gives how many devices to whom, kind by kind and in rank order.

    Idle devices go first; what is given up beyond what others gain goes to nobody.
    """
    found: dict[str, dict[str, int]] = {}
    for kind, count in devices.items():
        before = {asking.job_id: _held(asking, kind) for asking in order}
        gains = {asking.job_id: _gets(asking, kind, sized, admitted) - before[asking.job_id] for asking in order}
        idle = max(0, count - sum(before.values()))
        for giver, taker, number in handed(gains, idle):
            found.setdefault(giver, {})[taker] = number
    return found


def handed(gains: Mapping[str, int], idle: int) -> Iterable[tuple[str, str, int]]:
    """
    Yield who gives how many devices to whom, from what each gains or, below 0, gives up.

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


def _held(asking: Asking, kind: str) -> int:
    if asking.kind != kind:
        return 0
    if isinstance(asking, Fixed):
        return asking.gpus
    return asking.now.gpus if asking.now is not None else 0


def _gets(asking: Asking, kind: str, sized: Mapping[str, Sized], admitted: Admitted) -> int:
    if isinstance(asking, Fixed):
        return asking.gpus if admitted.fixed.get(asking.job_id) == kind else 0
    each = sized[asking.job_id]
    return each.gpus if each.kind == kind else 0
