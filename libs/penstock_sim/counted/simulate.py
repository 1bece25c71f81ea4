"""The door to the counting simulators: a trace, a cluster and a policy in, an outcome out."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final, cast, get_args

import numpy as np

from penstock_policies.orders import Name
from penstock_sim.cluster import Nodes
from penstock_sim.counted import published
from penstock_sim.counted.lines import Job, Rules
from penstock_sim.counted.rooms import Count, Room, Yarn
from penstock_sim.counted.settings import Settings
from penstock_sim.outcome import Outcome, Timeline
from penstock_sim.trace import Floats, Trace

POLICIES: Final[tuple[str, ...]] = get_args(Name)
"""Every policy that can be counted, by the name that the ranker's setting uses."""

PLACEMENTS: Final = ("count", "first-fit", "best-fit", "consolidate", "yarn")
"""How devices are chosen; ``yarn`` with ``tiresias-2019`` only."""

COMPATS: Final = ("tiresias-2019",)
"""Published simulators whose rules can be followed to the second."""


def simulate(
    trace: Trace,
    cluster: Nodes,
    policy: str,
    *,
    settings: Mapping[str, object] | None = None,
    placement: str = "count",
    compat: str | None = None,
    gpu_time_samples: Floats | None = None,
    overhead_s: float = 0.0,
    timeline: bool = False,
) -> Outcome:
    """
    Return what becomes of a trace on a cluster under one policy.

    Parameters
    ----------
    trace : Trace
    cluster : Nodes
        Devices are counted as equals, whatever their kind and speed.
    policy : one of POLICIES
    settings : mapping or None
        As in :class:`penstock_sim.counted.settings.Settings`; a value may also be the text of a command line.
    placement : one of PLACEMENTS
    compat : one of COMPATS or None
    gpu_time_samples : (N,) float array or None, GPU-seconds
        What ``2d-gittins`` knows of lengths; None for those of the trace itself, which nobody knows beforehand.
    overhead_s : float
        Time for which a preempted job holds its devices on each resumption before it goes on.
    timeline : bool
        Whether to record the cluster over time.

    Raises
    ------
    ValueError
        If a name or a value is not among those expected; or, with ``compat``, if a time is not in whole seconds.
    """
    _check("policy", policy, POLICIES)
    _check("placement", placement, PLACEMENTS)
    chosen = Settings.of(settings or {})
    if compat is not None:
        _check("compat", compat, COMPATS)
        if overhead_s:
            raise ValueError(f"overhead_s is {overhead_s}; {compat} knows none: leave it out, or leave compat out")
    return _published(
        trace,
        cluster,
        cast("Name", policy),
        settings=chosen,
        placement=placement,
        samples=gpu_time_samples,
        timeline=timeline,
    )


def _check(what: str, value: str, expected: tuple[str, ...]) -> None:
    if value not in expected:
        raise ValueError(f"{what} is {value!r}; expected one of {', '.join(expected)}")


def _published(
    trace: Trace,
    cluster: Nodes,
    policy: Name,
    *,
    settings: Settings,
    placement: str,
    samples: Floats | None,
    timeline: bool,
) -> Outcome:
    submit_s, duration_s = _whole("submission", trace.submit_s), _whole("duration", trace.duration_s)
    fits = trace.num_gpus <= cluster.gpus
    jobs = [
        Job(number, gpus, submitted, lasts)
        for number, (gpus, submitted, lasts) in enumerate(
            zip(trace.num_gpus.tolist(), submit_s, duration_s, strict=True)
        )
        if fits[number]
    ]
    own = trace.num_gpus * trace.duration_s
    rules = Rules(
        policy,
        _whole("threshold", np.asarray(settings.thresholds_gpu_s)),
        settings.promote_knob,
        _whole("GPU-time", own if samples is None else samples),
    )
    room: Room = Yarn(cluster) if placement == "yarn" else Count(cluster.gpus)
    before_s = time.process_time()
    found = published.run(jobs, room, rules)
    wall_s = time.process_time() - before_s
    at_s, busy, waiting = np.array(found.points, dtype=np.int64).reshape(-1, 3).T
    columns = np.full((5, len(trace)), np.nan)
    for job in jobs:
        columns[:, job.number] = (
            np.nan if job.start_s is None else job.start_s,
            np.nan if job.end_s is None else job.end_s,
            job.executed_s,
            job.preemptions,
            job.promotions,
        )
    counts = np.nan_to_num(columns[2:])
    return Outcome(
        policy=policy,
        trace=trace,
        gpus=cluster.gpus,
        start_s=columns[0],
        end_s=columns[1],
        executed_s=counts[0],
        preemptions=counts[1].astype(np.int64),
        promotions=counts[2].astype(np.int64),
        events=len(found.points),
        wall_s=wall_s,
        timeline=Timeline(at_s.astype(np.float64), busy, waiting) if timeline else None,
    )


def _whole(what: str, values: Floats) -> list[int]:
    rounded = np.rint(values).astype(np.int64)
    if np.any(rounded != values):
        odd = values[np.flatnonzero(rounded != values)[0]]
        raise ValueError(f"a {what} is {odd} s; tiresias-2019 knows whole seconds only: round it, or leave compat out")
    return cast("list[int]", rounded.tolist())
