"""
Settings by which a pool is run: those for all pools, those of one pool in the file, and those set live.

Each setting has the name and the values of the file: table ``[matcher]``, or a variable ``PENSTOCK_MATCHER_…``. What is
set live is a fact of the log (:class:`penstock_log.PolicySet`). So every replica goes by it from the same fact on, it
outlives restarts, and a replay sees it too. :func:`rules_of` says what holds in a pool's rounds: the live setting, else
the file's for the pool, else the file's for all. The matcher uses it, and so does everybody who asks what the matcher's
round would do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import pairwise
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from penstock_log import Setting
from penstock_log.spec import MOST_GPUS
from penstock_log.validation import problems
from penstock_policies.idleness import IdleRules
from penstock_policies.queue_policies import QUEUE_POLICIES, policy_named
from penstock_policies.queue_thresholds import DEFAULT_GPU_S, learnt_thresholds_gpu_s
from penstock_policies.ranking import QueueLadder
from penstock_scheduler.pool.scheduler_state import RulesInForce, SchedulerState
from penstock_scheduler.round_types import MOST_WEIGHT, PriorityClass, RoundRules, Seconds

S = TypeVar("S", bound=msgspec.Struct)

LEAST_PATIENCE_S: Final = 1.0
"""With less, a busy machine would be taken for a dead one, and its runs be stopped all the time."""


class OrderingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """
    The parameters of a pool's order.

    Attributes
    ----------
    order : str
        One of :data:`penstock_policies.queue_policies.QUEUE_POLICIES`.
    thresholds_gpu_s : tuple of float or "learnt"
        GPU-seconds at which a job leaves queue 0, 1, …; rising. Empty: one queue. For ``las``, seconds of execution.
        ``learnt``: worked out from the lengths of the pool's jobs that completed; for ``las``, and as long as fewer
        than eight have, an hour and ten hours.
    promote_knob : float or None
        A job that has waited this many times what it has executed goes back to queue 0; None: never.
    """

    order: str = "2d-las"
    thresholds_gpu_s: tuple[float, ...] | Literal["learnt"] = "learnt"
    promote_knob: float | None = None

    def __post_init__(self) -> None:
        policy_named(self.order)
        given = self.thresholds_gpu_s
        if not isinstance(given, str) and any(low >= high for low, high in pairwise((0.0, *given))):
            raise ValueError(
                f'thresholds_gpu_s is {list(given)}; expected rising numbers of GPU-seconds above 0, or "learnt"'
            )
        if self.promote_knob is not None and self.promote_knob <= 0:
            raise ValueError(f"promote_knob is {self.promote_knob}; expected a number above 0, or leave it out")

    def ladder(self, lengths_gpu_s: Sequence[float] = ()) -> QueueLadder:
        """
        Return the parameters as a ranking takes them.

        Parameters
        ----------
        lengths_gpu_s : (N,) floats, GPU-seconds, rising
            What the pool's completed jobs needed, as far as it is known.
        """
        policy, thresholds = policy_named(self.order), self.thresholds_gpu_s
        if isinstance(thresholds, str):
            by_devices = policy.demotes_by == "gpu-time"
            thresholds = learnt_thresholds_gpu_s(lengths_gpu_s) if by_devices else DEFAULT_GPU_S
        return QueueLadder(policy, thresholds, self.promote_knob, self.order)


_KNOWN: Final[dict[str, type[msgspec.Struct]]] = {
    name: owner
    for owner in (OrderingSettings, RoundRules, IdleRules)
    for name in owner.__struct_fields__
    if name not in {"quotas", "classes"}
}
"""What can be set live under its own name; quotas and classes are set one by one."""
QUOTA: Final = "quota."
"""Before a team's name: its quota, set live, in place of the one that the file gives it."""
CLASS: Final = "class."
"""Before a priority class' name and a parameter of it: ``class.urgent.weight``, set live as quotas are."""
_OF_CLASS: Final = re.compile(rf"([A-Za-z0-9][A-Za-z0-9_-]{{0,62}})\.({'|'.join(PriorityClass.__struct_fields__)})")
_TEAM: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


def names() -> list[str]:
    """Return the names of all settings of a pool that can be set live."""
    return sorted(_KNOWN)


def defaults() -> dict[str, Setting]:
    """Return the defaults of all settings of a pool, by name."""
    found: dict[str, Setting] = {**msgspec.to_builtins(OrderingSettings()), **msgspec.to_builtins(RoundRules())}
    found |= msgspec.to_builtins(IdleRules())
    return {name: found[name] for name in names()}


def checked(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """
    Return settings, checked, as the log holds them.

    Raises
    ------
    ValueError
        If a name is not known, or a value is not one of its type; the message names it.

    Examples
    --------
    >>> checked({"order": "fifo", "thresholds_gpu_s": [60, 600]})
    {'order': 'fifo', 'thresholds_gpu_s': [60, 600]}
    >>> checked({"quota.vision": 16})
    {'quota.vision': 16}
    >>> checked({"class.urgent.weight": 10, "class.urgent.preempts": True})
    {'class.urgent.weight': 10, 'class.urgent.preempts': True}
    >>> checked({"ordre": "fifo"})
    Traceback (most recent call last):
    ValueError: no setting of a pool is called 'ordre'; did you mean 'order'?
    """
    for name in settings:
        if name.startswith(CLASS) and not is_live(name):
            fields = ", ".join(PriorityClass.__struct_fields__)
            raise ValueError(
                f"{name!r} is no parameter of a class: expected {CLASS}NAME.FIELD, the name of letters, digits, - and "
                f"_, and the field one of {fields}"
            )
        if not is_live(name):
            raise ValueError(f"no setting of a pool is called {name!r}; {_nearest_name(name, _KNOWN)}")
    for name, value in settings.items():
        if name.startswith(QUOTA):
            _check_quota(name, value)
        elif name.startswith(CLASS):
            _check_of_class(name, value)
        else:
            try:
                msgspec.convert({name: value}, _KNOWN[name])
            except msgspec.ValidationError as error:
                raise ValueError(_message_of(name, value, error)) from error
    return dict(settings)


def _check_quota(name: str, value: Setting) -> None:
    """Refuse a value that a quota cannot have."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST_GPUS:
        wanted = f"expected a number of devices from 0 to {MOST_GPUS}"
        raise ValueError(f"{name}: {wanted}, got {value!r}; unset it to go back to what the file says")


def _check_of_class(name: str, value: Setting) -> None:
    """Refuse a value that a parameter of a class cannot have."""
    field = name.rpartition(".")[2]
    wanted = {
        "weight": f"expected a whole number from {-MOST_WEIGHT} to {MOST_WEIGHT}",
        "preempts": "expected true or false",
        "most_gpus": f"expected a number of devices from 0 (any) to {MOST_GPUS}",
        "teams": "expected a list of teams, empty for all",
    }
    try:
        found = msgspec.convert({field: value}, PriorityClass)
    except msgspec.ValidationError as error:
        raise ValueError(f"{name}: {wanted[field]}, got {value!r}") from error
    if odd := [team for team in found.teams if not _TEAM.fullmatch(team)]:
        raise ValueError(f"{name}: {wanted[field]}, and {odd[0]!r} is the name of none")


def is_live(name: str) -> bool:
    """
    Say whether a setting can be set live.

    Examples
    --------
    >>> is_live("order"), is_live("quota.vision"), is_live("quota."), is_live("quotas")
    (True, True, False, False)
    >>> is_live("class.urgent.weight"), is_live("class.urgent.colour"), is_live("class.urgent")
    (True, False, False)
    """
    if name.startswith(CLASS):
        return _OF_CLASS.fullmatch(name.removeprefix(CLASS)) is not None
    return name in _KNOWN or (name.startswith(QUOTA) and _TEAM.fullmatch(name.removeprefix(QUOTA)) is not None)


def class_settings(name: str, rules: PriorityClass) -> dict[str, Setting]:
    """
    Return a priority class as settings.

    Examples
    --------
    >>> list(class_settings("urgent", PriorityClass(weight=10)).items())[:2]
    [('class.urgent.weight', 10), ('class.urgent.preempts', False)]
    """
    return {f"{CLASS}{name}.{field}": value for field, value in msgspec.to_builtins(rules).items()}


def classes_named(settings: Iterable[str]) -> list[str]:
    """
    Return the classes of which some parameter is among the names of settings.

    Examples
    --------
    >>> classes_named(["order", "class.urgent.weight", "class.night.weight", "class.night.preempts"])
    ['night', 'urgent']
    """
    return sorted({name.split(".")[1] for name in settings if name.startswith(CLASS)})


def overlaid(base: S, settings: Mapping[str, Setting]) -> S:
    """
    Return settings in which live values replace their own; live settings of other names are left out.

    Raises
    ------
    ValueError
        If a value is not one of its type. :func:`checked` refuses such a value before it comes into the log, unless
        another version wrote it.
    """
    own: dict[str, Any] = {name: value for name, value in settings.items() if name in base.__struct_fields__}
    if isinstance(base, RoundRules) and (live := _live_quotas(settings)):
        own["quotas"] = {**base.quotas, **live}
    if isinstance(base, RoundRules) and (classes := _live_classes(settings)):
        before = {name: msgspec.to_builtins(rules) for name, rules in base.classes.items()}
        own["classes"] = {**before, **{name: before.get(name, {}) | fields for name, fields in classes.items()}}
    if not own:
        return base
    try:
        return msgspec.convert({**msgspec.to_builtins(base), **own}, type(base))
    except msgspec.ValidationError as error:
        raise ValueError(f"settings {own}, set live, are not known to this version: {error}; upgrade it") from error


def _live_quotas(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    return {name.removeprefix(QUOTA): value for name, value in settings.items() if name.startswith(QUOTA)}


def _live_classes(settings: Mapping[str, Setting]) -> dict[str, dict[str, Setting]]:
    found: dict[str, dict[str, Setting]] = {}
    for name, value in settings.items():
        if name.startswith(CLASS):
            _, of, field = name.split(".")
            found.setdefault(of, {})[field] = value
    return found


def _message_of(name: str, value: Setting, error: msgspec.ValidationError) -> str:
    """Return the error of a value, with the setting's name in its message."""
    if name == "order":
        return f"order is {value!r}: expected one of {', '.join(QUEUE_POLICIES)}"
    if name == "thresholds_gpu_s" and not isinstance(value, list):
        return f"{name} is {value!r}: expected rising GPU-seconds with commas between, such as 3600,36000, or learnt"
    found = next(problems({name: value}, _KNOWN[name]), "").removeprefix("$.")
    return found or str(error).split(" - at ")[0]


def _nearest_name(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(sorted(known))}"


class MatcherSettings(RoundRules, frozen=True, kw_only=True):
    """
    The matcher's settings: the rules of its rounds, and its own.

    Attributes
    ----------
    node_timeout_s : float
        A node whose heartbeats have stopped for this long is lost, and its jobs are placed again. Its runs are stopped
        there after three quarters of it.
    forget_node_s : float
        A node that left or was lost this long ago is no longer listed, unless it is drained; 0 keeps all.
    pools : dict of str to dict of str to object
        Pool → the parameters that differ in it, ``[matcher.pools.NAME]``.
    """

    node_timeout_s: Annotated[float, Meta(ge=LEAST_PATIENCE_S)] = 10.0
    forget_node_s: Seconds = 3600.0
    pools: dict[str, dict[str, Any]] = {}

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.pools:
            self.of(name)  # what cannot be is better known now

    def of(self, pool: str) -> RoundRules:
        """
        Return the settings that hold in a pool.

        Raises
        ------
        ValueError
            If a parameter of the pool is not known, or has a value that it cannot have.
        """
        own = self.pools.get(pool, {})
        unknown = sorted(own.keys() - set(RoundRules.__struct_fields__))
        if unknown:
            known = ", ".join(RoundRules.__struct_fields__)
            raise ValueError(f"pools.{pool} sets {', '.join(unknown)}, which it cannot; expected some of {known}")
        common = {name: getattr(self, name) for name in RoundRules.__struct_fields__}
        if not own:
            return RoundRules(**common)
        try:
            return msgspec.convert({**msgspec.to_builtins(common), **own}, RoundRules)
        except msgspec.ValidationError as error:
            raise ValueError(f"pools.{pool}: {error}") from error


def rules_of(known: SchedulerState, pool: str, settings: MatcherSettings) -> RoundRules:
    """Return the rules of a pool's rounds: what is set live for it, else what the file says of it, else of all."""
    live, in_force = known.policies.get(pool), known.cache.rules.get(pool)
    if in_force is None or in_force.settings is not settings or in_force.live is not live:
        in_force = RulesInForce(settings, live, overlaid(settings.of(pool), live or {}))
        known.cache.rules[pool] = in_force
    return in_force.rules
