"""From what a search wants to trials: how many devices each gets, and the job that each becomes."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from penstock_events import JobSpec, SweepSpec, Trial
from penstock_policies import waterfill
from penstock_policies.cluster import Cluster, fits
from penstock_policies.search import Wanted
from penstock_policies.search.drivers import GROUP
from penstock_tuner.leases import Leases
from penstock_tuner.sweep import Sweep

ALONE: Final = "-a"
"""Ends the id of a job that runs a trial once more, alone."""
_ALONE: Final[dict[str, Any]] = {"sharing": "exclusive", "sharers": 0, "fraction": 1.0, "memory": None}
_LONGEST: Final = 49  # of the part of a job's id or name before "-t00000-r000-a"; 63 characters in all


class Devices(msgspec.Struct, frozen=True):
    """
    What a sweep could use.

    Attributes
    ----------
    all : int
        Devices on usable nodes that its trials fit.
    of_one_kind : int
        The most of one kind: a trial on several devices is a gang, and a gang sits on one kind.
    free : dict of str to int
        Kind → those of them that no job holds.
    """

    all: int
    of_one_kind: int
    free: dict[str, int]

    @property
    def idle(self) -> int:
        """How many of them no job holds."""
        return sum(self.free.values())


def devices(spec: SweepSpec, cluster: Cluster, leases: Leases) -> Devices:
    """Return what the sweep could use at present."""
    fitting = [
        (node.id, device) for node in cluster.usable(spec.job.pool) for device in node.devices if fits(spec.job, device)
    ]
    by_kind = Counter(device.kind for _, device in fitting)
    free = Counter(device.kind for node_id, device in fitting if not leases.sharers(node_id, device.index))
    return Devices(by_kind.total(), max(by_kind.values(), default=0), dict(free))


def group(sweep: Sweep, wanted: Sequence[Wanted], there: Devices, idle: int) -> tuple[Trial, ...]:
    """Return the trials of a group, :data:`GROUP` at most, each as wide as so many idle devices suggest."""
    some = wanted[:GROUP]
    widths = _widths(sweep, some, there, idle)
    return tuple(_trial(sweep, one, *width) for one, width in zip(some, widths, strict=True))


def alone(trial: Trial) -> Trial:
    """Return a trial as another job that has a device to itself."""
    return msgspec.structs.replace(trial, job_id=f"{trial.job_id}{ALONE}", packed=1)


def is_alone(trial: Trial) -> bool:
    """Say whether a job runs its trial once more, alone: it shares its device with nobody, however that was before."""
    return trial.job_id.endswith(ALONE)


def trial_id(sweep_id: str, number: int, rung: int = 0) -> str:
    """
    Return the id of a run of a sweep's trial; always the same, so that submitting it twice is submitting it once.

    Examples
    --------
    >>> trial_id("digits", 7), trial_id("digits", 7, rung=2)
    ('digits-t007', 'digits-t007-r2')
    """
    return f"{_shortened(sweep_id)}-{_label(number, rung)}"


def job_spec(sweep_id: str, spec: SweepSpec, trial: Trial) -> JobSpec:
    """Return the job that a trial runs as: the template, overlaid with the trial's point, budget and width."""
    budget = {spec.budget.param: trial.budget} if spec.budget is not None and trial.budget else {}
    return msgspec.structs.replace(
        spec.job,
        id=trial.job_id,
        name=f"{spec.name[:_LONGEST]}-{_label(trial.number, trial.rung)}{ALONE * is_alone(trial)}",
        parent=sweep_id,
        gpus=trial.gpus,
        **(_ALONE if is_alone(trial) else sharing(trial.packed)),
        params={**spec.job.params, **trial.params, **budget},
        begins_from=trial.origin,
        keep_checkpoint=spec.job.keep_checkpoint or _may_go_on(spec, trial),
    )


def sharing(packed: int) -> dict[str, Any]:
    """Return how a trial's job shares its device, where there may be others; as the template has it where not."""
    return {"sharing": "lane", "share_with": "user", "sharers": packed} if packed > 1 else {}


class Bounds(msgspec.Struct, frozen=True):
    """
    What bounds the widths of a sweep's trials at present.

    Attributes
    ----------
    packing : int
        Most trials on one device (c).
    most : int
        Most devices for one trial (d).
    """

    packing: int
    most: int
    mechanisms: waterfill.Mechanisms

    def form(self, spec: SweepSpec, width: float) -> tuple[int, int]:
        """Return a width as devices and trials on each of them; no run gets less than the template asks for."""
        return max(spec.job.gpus, int(width)), round(1.0 / width) if width < 1.0 else 1


def bounds(sweep: Sweep, there: Devices) -> Bounds:
    """Return what the sweep allows and its trials have shown to be worth it."""
    spec, measures = sweep.spec, sweep.measures
    plain = spec.job.sharing == "exclusive"
    return Bounds(
        packing=measures.packing(spec.packing),
        most=max(1, min(spec.max_gpus, there.of_one_kind, waterfill.widest(measures.beta))),
        mechanisms=waterfill.Mechanisms(
            intra=spec.intra and plain and spec.job.gpus == 1,
            inter=spec.inter,
            dynamic=spec.dynamic and plain and spec.filling == "water",
            leftover=spec.leftover,
        ),
    )


def _widths(sweep: Sweep, wanted: Sequence[Wanted], there: Devices, idle: int) -> list[tuple[int, int]]:
    """
    Return how many devices each run gets: its share of the work, by what the trials have been seen to take.

    Before anything has run, all are expected to take equally long for a unit of budget.
    """
    spec, bound = sweep.spec, bounds(sweep, there)
    match spec.filling:
        case "water" if there.all:
            widths = fill(sweep, bound, left_s(sweep, wanted), idle)
        case "fixed":
            widths = [float(min(bound.most, max(1, idle // len(wanted))))] * len(wanted)
        case _:
            widths = [1.0] * len(wanted)
    return [bound.form(spec, width) for width in widths]


def fill(sweep: Sweep, bound: Bounds, h1_s: Sequence[float], idle: int) -> list[float]:
    """Return the widths that water-filling gives to trials of so much work on idle devices."""
    measures = sweep.measures
    widths: list[float] = waterfill.fill(
        np.array(h1_s),
        idle,
        bound.packing,
        bound.most,
        alpha=measures.alpha,
        beta=measures.beta,
        mechanisms=bound.mechanisms,
    ).tolist()
    return widths


def left_s(sweep: Sweep, wanted: Sequence[Wanted]) -> list[float]:
    """Return the seconds that each would take on one device; where nothing was measured, in units of its budget."""
    typical_s = sweep.paces.typical_s or 1.0
    return [_left_of(sweep, one, typical_s) for one in wanted]


def _left_of(sweep: Sweep, wanted: Wanted, typical_s: float) -> float:
    if wanted.origin < 0:
        return max(1, wanted.budget) * typical_s
    left = wanted.budget - sweep.past.runs[wanted.origin].budget
    return max(1, left) * (sweep.paces.work_s(sweep.job_ids[wanted.origin]) or typical_s)


def _trial(sweep: Sweep, wanted: Wanted, gpus: int, packed: int) -> Trial:
    return Trial(
        job_id=trial_id(sweep.id, wanted.trial, wanted.rung),
        params=wanted.params,
        gpus=gpus,
        packed=packed,
        number=wanted.trial,
        bracket=wanted.bracket,
        rung=wanted.rung,
        budget=wanted.budget,
        origin=sweep.job_ids[wanted.origin] if wanted.origin >= 0 else "",
    )


def _may_go_on(spec: SweepSpec, trial: Trial) -> bool:
    return spec.budget is not None and trial.budget < spec.budget.most


def _label(number: int, rung: int) -> str:
    return f"t{number:03d}" + (f"-r{rung}" if rung else "")


def _shortened(sweep_id: str) -> str:
    if len(sweep_id) <= _LONGEST:
        return sweep_id
    digest = hashlib.blake2b(sweep_id.encode(), digest_size=4).hexdigest()
    return f"{sweep_id[: _LONGEST - 9]}-{digest}"
