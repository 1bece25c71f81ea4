"""From what a search wants to trials: how many devices each gets, and the job that each becomes."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Final

import msgspec
import numpy as np

from penstock_events import JobSpec, SweepSpec, Trial
from penstock_policies import waterfill
from penstock_policies.cluster import Cluster, fits
from penstock_policies.search import Wanted
from penstock_policies.search.drivers import GROUP
from penstock_tuner.sweep import Sweep

_LONGEST: Final = 51  # of the part of a job's id or name before "-t00000-r000"; 63 characters in all


class Devices(msgspec.Struct, frozen=True):
    """
    What a sweep could use.

    Attributes
    ----------
    all : int
        Devices on usable nodes that its trials fit.
    of_one_kind : int
        The most of one kind: a trial on several devices is a gang, and a gang sits on one kind.
    """

    all: int
    of_one_kind: int


def devices(spec: SweepSpec, cluster: Cluster) -> Devices:
    """Return what the sweep could use at present."""
    nodes = cluster.usable(spec.job.pool)
    by_kind = Counter(device.kind for node in nodes for device in node.devices if fits(spec.job, device))
    return Devices(by_kind.total(), max(by_kind.values(), default=0))


def group(sweep: Sweep, wanted: Sequence[Wanted], there: Devices) -> tuple[Trial, ...]:
    """Return the trials of a group, :data:`GROUP` at most, each as wide as the sweep's idle devices suggest."""
    some = wanted[:GROUP]
    widths = _widths(sweep, some, there)
    return tuple(_trial(sweep, one, width) for one, width in zip(some, widths, strict=True))


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
        name=f"{spec.name[:_LONGEST]}-{_label(trial.number, trial.rung)}",
        parent=sweep_id,
        gpus=trial.gpus,
        params={**spec.job.params, **trial.params, **budget},
        begins_from=trial.origin,
        keep_checkpoint=spec.job.keep_checkpoint or _may_go_on(spec, trial),
    )


def _widths(sweep: Sweep, wanted: Sequence[Wanted], there: Devices) -> list[int]:
    """
    Return how many devices each run gets: its share of the work, by what the trials have been seen to take.

    Before anything has run, all are expected to take equally long for a unit of budget. No run gets less than the
    template asks for.
    """
    spec = sweep.spec
    most = max(1, min(spec.max_gpus, there.of_one_kind, waterfill.widest(sweep.beta)))
    idle = max(0, there.all - sum(trial.gpus for trial in sweep.running.values()))
    match spec.filling:
        case "water":
            h1_s = np.array(_left(sweep, wanted))
            only_spread = waterfill.Mechanisms(intra=False, dynamic=False, leftover=spec.leftover)
            widths = waterfill.fill(h1_s, idle, 1, most, beta=sweep.beta, mechanisms=only_spread).tolist()
        case "fixed":
            widths = [min(most, max(1, idle // len(wanted)))] * len(wanted)
        case "one":
            widths = [1] * len(wanted)
    return [max(spec.job.gpus, int(width)) for width in widths]


def _left(sweep: Sweep, wanted: Sequence[Wanted]) -> list[float]:
    """Return the seconds that each would take on one device; where nothing was measured, in units of its budget."""
    seen = [work_s for job_id in sweep.unit_s if (work_s := sweep.work_s(job_id)) is not None]
    typical_s = median(seen) if seen else 1.0
    return [_left_of(sweep, one, typical_s) for one in wanted]


def _left_of(sweep: Sweep, wanted: Wanted, typical_s: float) -> float:
    if wanted.origin < 0:
        return max(1, wanted.budget) * typical_s
    left = wanted.budget - sweep.past.runs[wanted.origin].budget
    return max(1, left) * (sweep.work_s(sweep.job_ids[wanted.origin]) or typical_s)


def _trial(sweep: Sweep, wanted: Wanted, gpus: int) -> Trial:
    return Trial(
        job_id=trial_id(sweep.id, wanted.trial, wanted.rung),
        params=wanted.params,
        gpus=gpus,
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
