"""Why a job has the size that is decided for it, in one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from penstock_policies.autoscale.rows import Row
from penstock_policies.autoscale.wish import Rules, Sized, Wish


def explained(
    wishes: Sequence[Wish],
    sized: Mapping[str, Sized],
    gives: Mapping[str, dict[str, int]],
    table: Mapping[str, Mapping[str, Row]],
    rules: Rules,
) -> dict[str, Sized]:
    """Return the decided sizes with their reasons, and with what each gives to whom."""
    found = {}
    for wish in wishes:
        each = msgspec.structs.replace(sized[wish.job_id], gives=gives.get(wish.job_id, {}))
        said = _reason(wish, each, table[wish.job_id], rules)
        found[wish.job_id] = msgspec.structs.replace(each, reason=said)
    return found


def _reason(wish: Wish, each: Sized, own: Mapping[str, Row], rules: Rules) -> str:
    if not each.gpus:
        return _waiting(wish, own)
    if wish.now is None:
        return f"starts on {_size(each)}{_pace(each, own)}"
    if not wish.movable:
        return f"keeps {_size(each)}: it is not to be resized now"
    if not own:
        return f"keeps {_size(each)}: no size of its is known to be feasible"
    if not each.changed:
        worth = f"is worth the {_seconds(wish.cost_s)} that resizing it costs" if wish.cost_s else "does better"
        return f"keeps {_size(each)}: no other size {worth}"
    pace = _gain(wish, each, own) or _pace(each, own)
    return f"{_change(wish, each)}{_given(each)}{pace}{_worth(wish, each, rules)}"


def _waiting(wish: Wish, own: Mapping[str, Row]) -> str:
    if not own:
        least, most = wish.widths.start, wish.widths.stop - 1
        widths = f"{least} to {most} devices" if most > least else _devices(least)
        return f"waits: no kind of device that is there holds it on {widths}"
    if not wish.movable:
        return "waits: it is not to be started now"
    least = min(row.least for row in own.values())
    verb = "gives way" if wish.now is not None else "waits"
    return f"{verb}: jobs before it leave fewer devices than the {least} that it needs at least"


def _change(wish: Wish, each: Sized) -> str:
    before = wish.now.gpus if wish.now is not None else 0
    if each.kind != wish.kind:
        return f"moves from {before} {wish.kind} to {_size(each)}"
    if each.gpus == before:
        was = wish.now.batch_size if wish.now is not None else 0
        return f"keeps {_devices(before)} and takes a batch of {each.batch_size} instead of {was}"
    return f"{'grows' if each.gpus > before else 'shrinks'} from {before} to {_size(each)}"


def _given(each: Sized) -> str:
    parts = [f"{number} to {job}" for job, number in each.gives.items()]
    return f", and gives {' and '.join(parts)}" if parts else ""


def _pace(each: Sized, own: Mapping[str, Row]) -> str:
    """Compare with the least width of the same kind: the scaling itself is relative to that of the fastest one."""
    if each.scaling <= 0 or each.kind not in own:
        return ""
    least = own[each.kind].least
    times = each.scaling / float(own[each.kind].scaling[least - 1])
    return f": {times:.3g} times its pace on {_devices(least)}"


def _gain(wish: Wish, each: Sized, own: Mapping[str, Row]) -> str:
    """Compare a size on another kind with the present one; empty where it stays on its kind, or that is not known."""
    if wish.now is None or each.kind == wish.kind or wish.kind not in own or each.scaling <= 0:
        return ""
    at = wish.now.gpus - 1
    before = float(own[wish.kind].scaling[at]) if at < len(own[wish.kind].scaling) else 0.0
    return f": {each.scaling / before:.3g} times its present pace" if before > 0 else ""


def _worth(wish: Wish, each: Sized, rules: Rules) -> str:
    if not wish.cost_s or wish.now is None or each.gpus <= wish.now.gpus or each.kind != wish.kind:
        return ""
    return f", worth the {_seconds(wish.cost_s)} that it costs within {_seconds(rules.horizon_s)}"


def _size(each: Sized) -> str:
    return f"{_devices(each.gpus)} ({each.kind}) with a batch of {each.batch_size}"


def _devices(number: int) -> str:
    return f"{number} device{'' if number == 1 else 's'}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s"
