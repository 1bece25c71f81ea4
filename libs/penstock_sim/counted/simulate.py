"""The door to the counting simulators: a trace, a cluster and a policy in, an outcome out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, cast, get_args

from penstock_policies.orders import Name
from penstock_sim.cluster import Nodes
from penstock_sim.counted.compat import simulate_published
from penstock_sim.counted.engine import simulate_events
from penstock_sim.counted.settings import GoOn, Settings
from penstock_sim.counted.shapes import POLICIES as SIZED_POLICIES
from penstock_sim.counted.shapes import Policy, Profiles, shapes
from penstock_sim.counted.sized import simulate_sized
from penstock_sim.counted.sizing import Curves, Sizing
from penstock_sim.outcome import Outcome
from penstock_sim.parts import merged
from penstock_sim.quotas import Quotas, check, divide
from penstock_sim.trace import Floats, Ints, Trace
from penstock_sim.traces.selection import taken

POLICIES: Final[tuple[str, ...]] = get_args(Name)
"""Every policy that can be counted, by the name that the ranker's setting uses."""

SIZED: Final[tuple[str, ...]] = SIZED_POLICIES
"""The policies that may give jobs other numbers of devices than they ask for, and other batches."""

PLACEMENTS: Final = ("count", "yarn")
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
    scaling: Curves | None = None,
    profiles: Profiles | None = None,
    overhead_s: float = 0.0,
    timeline: bool = False,
    quotas: Quotas | None = None,
    go_on: GoOn = lambda _, __: True,
) -> Outcome:
    """
    Return what becomes of a trace on a cluster under one policy.

    A job that asks for more devices than there are never starts.

    Parameters
    ----------
    trace : Trace
    cluster : Nodes
        Devices are counted as equals, whatever their kind and speed.
    policy : one of POLICIES or SIZED
    settings : mapping or None
        As in :class:`penstock_sim.counted.settings.Settings`, for those of SIZED in
        :class:`penstock_sim.counted.sizing.Sizing`; a value may also be the text of a command line.
    placement : one of PLACEMENTS
    compat : one of COMPATS or None
    gpu_time_samples : (N,) float array or None, GPU-seconds
        What ``2d-gittins`` knows of lengths; None for those of the trace itself, which nobody knows beforehand.
    scaling : mapping or None
        What those of SIZED know of models whose batch stays: see :mod:`penstock_sim.counted.sizing`.
    profiles : mapping or None
        The same with batches, instead: see :mod:`penstock_sim.counted.shapes`.
    overhead_s : float
        Time for which a preempted job holds its devices on each resumption (or resize) before it goes on.
    timeline : bool
        Whether to record the cluster over time.
    quotas : Quotas or None
        Of virtual clusters that lend nothing: each is simulated as a cluster by itself.
    go_on : callable
        Told now and then how many jobs are over (with ``compat``: were submitted) and how many there are; where it
        says no, the outcome is that of the jobs so far.

    Raises
    ------
    ValueError
        If a name or a value is not among those expected; if a job asks for what its model's profile or curve does not
        know; or, with ``compat``, if a time is not in whole seconds.
    """
    _check("policy", policy, (*POLICIES, *SIZED))
    _check("placement", placement, PLACEMENTS)
    one = partial(
        _undivided,
        policy=policy,
        settings=settings or {},
        placement=placement,
        compat=compat,
        gpu_time_samples=gpu_time_samples,
        scaling=scaling,
        profiles=profiles,
        overhead_s=overhead_s,
        timeline=timeline,
    )
    if quotas is None:
        return one(trace, cluster, go_on)
    return merged(trace, policy, cluster.gpus, list(_by_parts(one, trace, cluster, quotas, go_on)))


def _undivided(
    trace: Trace,
    cluster: Nodes,
    go_on: GoOn,
    *,
    policy: str,
    settings: Mapping[str, object],
    placement: str,
    compat: str | None,
    gpu_time_samples: Floats | None,
    scaling: Curves | None,
    profiles: Profiles | None,
    overhead_s: float,
    timeline: bool,
) -> Outcome:
    """Return what becomes of a trace on a cluster that is nobody's in particular."""
    samples = trace.num_gpus * trace.duration_s if gpu_time_samples is None else gpu_time_samples
    if policy in SIZED:
        if compat is not None or placement != "count":
            raise ValueError(
                f"{policy} is no part of what was published and knows no nodes; leave compat, placement out"
            )
        sized, sizing = cast("Policy", policy), Sizing.of(settings)
        how = shapes(trace, sized, sizing, scaling, profiles)
        found = simulate_sized(trace, cluster.gpus, sized, sizing, how, overhead_s=overhead_s, go_on=go_on)
    elif compat is not None:
        _check("compat", compat, COMPATS)
        if overhead_s:
            raise ValueError(f"overhead_s is {overhead_s}; {compat} knows none: leave it out, or leave compat out")
        name, chosen = cast("Name", policy), Settings.of(settings)
        found = simulate_published(
            trace, cluster, name, chosen, placement=placement, samples_gpu_s=samples, go_on=go_on
        )
    else:
        if placement == "yarn":
            raise ValueError("placement yarn is part of what was published; add compat tiresias-2019, or count")
        name, chosen, samples = cast("Name", policy), Settings.of(settings), samples[samples > 0]
        found = simulate_events(
            trace,
            cluster.gpus,
            name,
            chosen,
            samples_gpu_s=samples,
            overhead_s=overhead_s,
            go_on=go_on,
            timeline=timeline,
        )
    return found if timeline else replace(found, timeline=None)


def _by_parts(
    one: Callable[[Trace, Nodes, GoOn], Outcome], trace: Trace, cluster: Nodes, given: Quotas, go_on: GoOn
) -> Iterator[tuple[Ints, Outcome]]:
    """Yield what becomes of each virtual cluster, one after the other, while it is to go on."""
    if given.borrow:
        raise ValueError("counting knows no borrowing; have the deciders simulate it, or set borrow = false")
    check(given, trace, cluster)
    before = 0

    def told(ended: int, _jobs: int) -> bool:
        return go_on(before + ended, len(trace))

    for part in divide(given, trace, cluster):
        if part.nodes.gpus and told(0, 0):
            yield part.rows, one(taken(trace, part.rows), part.nodes, told)
        before += len(part.rows)


def _check(what: str, value: str, expected: tuple[str, ...]) -> None:
    if value not in expected:
        raise ValueError(f"{what} is {value!r}; expected one of {', '.join(expected)}")
