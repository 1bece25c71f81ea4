"""
Policies as settings of the deciders.

A policy is nothing but settings of the production ranker and matcher: whatever can be set about a cluster can be
simulated, and whatever was simulated can be set. Those that know the future (``srtf``, ``srsf``, ``allox``) have jobs
declare their lengths.

Each queue policy of :data:`penstock_policies.queue_policies.QUEUE_POLICIES` is one: it matches one job at a time, in
rank order, each to the device on which it ends first, and its gangs have no patience with which they would keep devices
free. What bounds preemption (``min_run_s``, ``overhead_share``) is as in production. Beside them:

* ``allox``: one queue, matched by declared lengths, nobody is preempted;
* ``max-min``: one user enters a round at a time, the one who is least far by progress, which does not depend on kinds
  (:mod:`penstock_scheduler.fairness`); among his jobs as ``fifo-backfill``;
* ``allox+2d-gittins``: Penstock's defaults but for the order;
* ``configured``: the services' own settings, changed by nothing but what is set: what a cluster runs.

``elastic`` is not among them: :mod:`penstock_simulator.engine.elastic_sizing` sizes its jobs on counted devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec

from penstock_log import PolicySet, Setting
from penstock_policies.queue_policies import QUEUE_POLICIES
from penstock_ranker.machine import RankerSettings
from penstock_scheduler.pool.pool_settings import CLASS, QUOTA, MatcherSettings, checked, overlaid
from penstock_simulator import CONFIGURED
from penstock_simulator.fast.fast_settings import converted

T = TypeVar("T", bound=msgspec.Struct)

FOR_EVER_S: Final = 1e9


@dataclass(frozen=True)
class SimulatedPolicy:
    """
    One policy.

    Attributes
    ----------
    settings : mapping of str to value
        Settings of ranker and matcher that differ from their defaults.
    declares : bool
        Whether jobs say how long they will take.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    declares: bool = False


def _one_by_one(order: str, **more: Any) -> Mapping[str, Any]:
    return {"order": order, "window": 1, "patience_s": FOR_EVER_S, "alpha": 1.0, **more}


_ONE_QUEUE: Final = {"order": "2d-las", "thresholds_gpu_s": [], "window": 4096, "patience_s": FOR_EVER_S, "alpha": 1.0}

SIMULATED_POLICIES: Final[dict[str, SimulatedPolicy]] = {
    **{name: SimulatedPolicy(_one_by_one(name), declares=policy.declares) for name, policy in QUEUE_POLICIES.items()},
    "allox": SimulatedPolicy(_ONE_QUEUE, declares=True),
    "max-min": SimulatedPolicy(_one_by_one("fifo-backfill", alpha=0.001)),
    "allox+2d-gittins": SimulatedPolicy({"order": "2d-gittins"}),
    CONFIGURED: SimulatedPolicy(),
}
"""Every policy that the production deciders run, by name."""

ALIASES: Final = {"gpu_time_samples": "prior_file"}


@dataclass(frozen=True)
class PolicySettings:
    """A policy's settings, ready for the deciders."""

    ranker: RankerSettings
    matcher: MatcherSettings
    declares: bool


def choose(name: str, settings: Mapping[str, Any] | None = None) -> PolicySettings:
    """
    Return the settings of a policy, changed as ``settings`` say.

    Parameters
    ----------
    settings : mapping of str to value
        Any of the ranker's and the matcher's, as TOML or a command line has them.

    Raises
    ------
    ValueError
        If there is no such policy or setting, or a value is none for it.

    Examples
    --------
    >>> choose("2d-las", {"thresholds_gpu_s": "3250,7200"}).ranker.thresholds_gpu_s
    (3250.0, 7200.0)
    >>> choose("2d-las", {"class.urgent.weight": "5"}).matcher.classes["urgent"].weight
    5
    """
    policy = SIMULATED_POLICIES.get(name)
    if policy is None:
        raise ValueError(f"there is no policy {name!r}; expected one of {', '.join(SIMULATED_POLICIES)}")
    live = of_teams_and_classes(settings or {})
    others = {key: value for key, value in (settings or {}).items() if key not in live}
    wanted = {**policy.settings, **{ALIASES.get(key, key): value for key, value in others.items()}}
    known = {*RankerSettings.__struct_fields__, *MatcherSettings.__struct_fields__}
    for key in wanted:
        if key not in known:
            raise ValueError(f"there is no setting {key!r}; expected one of {', '.join(sorted(known))}")
    matcher = overlaid(_own(wanted, MatcherSettings), live)
    return PolicySettings(_own(wanted, RankerSettings), matcher, policy.declares)


def of_teams_and_classes(settings: Mapping[str, Any]) -> dict[str, Setting]:
    """
    Return the quotas of teams and the priority classes among settings, as they are set live.

    Raises
    ------
    ValueError
        If one has a value that it cannot have.

    Examples
    --------
    >>> of_teams_and_classes({"order": "fifo", "quota.vision": "4", "class.urgent.teams": "vision"})
    {'quota.vision': 4, 'class.urgent.teams': ['vision']}
    """
    found: dict[str, Setting] = {}
    for name, value in settings.items():
        field = name.rpartition(".")[2]
        if not name.startswith((QUOTA, CLASS)):
            continue
        form = int if name.startswith(QUOTA) else _OF_CLASS.get(field, str)
        given = value.split(",") if isinstance(value, str) and form is not int and field == "teams" else value
        try:
            found[name] = msgspec.convert(given, form, strict=False)
        except msgspec.ValidationError as error:
            raise ValueError(f"{name} is {value!r}: {error}") from error
    return checked(found)


def restated(fact: PolicySet, policy: str, settings: Mapping[str, Any] | None) -> PolicySet:
    """
    Return what somebody has set live as it counts in a what-if: other quotas and classes stand in place of those.

    Another policy than the configured one has its own order; who has how much, and what comes before it, stays.
    """
    ours = of_teams_and_classes(settings or {})
    kept = fact.settings if policy == CONFIGURED else of_teams_and_classes(fact.settings)
    return msgspec.structs.replace(fact, settings={**kept, **ours})


_OF_CLASS: Final[dict[str, Any]] = {"weight": int, "preempts": bool, "most_gpus": int, "teams": list[str]}


def _own(wanted: Mapping[str, Any], form: type[T]) -> T:
    return converted({key: value for key, value in wanted.items() if key in form.__struct_fields__}, form)
