"""
The plan of a shadow, and its settings.

A :class:`ShadowPlan` is a policy and the moment from which the shadow decides for itself. With the log it decides
everything that the shadow does. :class:`ShadowSettings` come from the table ``[shadow]`` or from ``PENSTOCK_SHADOW_…``.
A :class:`ShadowStatus` is what a shadow publishes of itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Protocol

import msgspec

from penstock_bus.port import LogReader, ShadowPort
from penstock_bus.settings import load
from penstock_log import subjects
from penstock_ranker.machine import RankerSettings
from penstock_scheduler.pool.pool_settings import MatcherSettings
from penstock_simulator.engine.policies import SIMULATED_POLICIES, choose

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


class ShadowedLog(LogReader, ShadowPort, Protocol):
    """The log, and what shadows of it publish."""


class ShadowPlan(msgspec.Struct, frozen=True, kw_only=True):
    """
    The plan of a shadow: with the log it decides everything that the shadow does.

    Attributes
    ----------
    name : str
    policy : str
        One of :data:`penstock_simulator.engine.policies.SIMULATED_POLICIES`.
    settings : dict of str to value
        Settings of ranker and matcher, beside those of the policy.
    pool : str
        The only pool that it follows; empty for all.
    from_seq : int
        The sequence up to which its cluster is the real one; the shadow goes on with the real runs from there.
    from_s : float
        The time of that sequence.
    """

    name: str
    policy: str
    from_seq: int
    from_s: float
    settings: dict[str, Any] = {}
    pool: str = ""

    def same_rules(self, other: ShadowPlan) -> bool:
        """Return whether another plan of this name has the same rules."""
        return (self.policy, self.settings, self.pool) == (other.policy, other.settings, other.pool)


class ShadowStatus(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a shadow says of itself; it publishes this regularly on ``penstock.shadow.<name>``.

    Attributes
    ----------
    plan : ShadowPlan
    seq : int
        The last sequence of the log that it has followed.
    at_s : float
        The shadow's time.
    waiting, running : int
        Jobs of its own cluster.
    ahead : int
        Jobs that held their devices beyond their end, because their length was not known yet.
    ahead_gpu_s : float
        Time for which they did, in GPU-seconds.
    """

    plan: ShadowPlan
    seq: int
    at_s: float
    waiting: int = 0
    running: int = 0
    ahead: int = 0
    ahead_gpu_s: float = 0.0


def actor_of(plan: ShadowPlan) -> str:
    """Return the name under which a plan publishes: a plan that began at another time has another name."""
    return f"shadow/{plan.name}@{plan.from_seq}-{plan.from_s:.6f}"


async def status_of(bus: ShadowPort, name: str) -> ShadowStatus | None:
    """Return what a shadow last said of itself; None if it said nothing in the time that is kept."""
    found = await bus.last_shadow(subjects.shadow(name))
    return msgspec.json.decode(found.body, type=ShadowStatus) if found is not None else None


async def statuses(bus: ShadowPort) -> list[ShadowStatus]:
    """Return what each shadow last said of itself, by name."""
    last = {one.subject: one.body async for one in bus.read_shadow(subjects.SHADOWS)}
    return [msgspec.json.decode(body, type=ShadowStatus) for _, body in sorted(last.items())]


class ShadowSettings(msgspec.Struct, frozen=True, kw_only=True):
    """
    Settings of one shadow.

    Attributes
    ----------
    policy : str
        One that ``penstock sim`` knows, or ``configured``: the cluster's own, with ``set``.
    set : dict of str to value
        Settings of ranker and matcher, as for ``penstock sim --set``; the rest comes from the cluster's own file.
    pool : str
        The only pool to follow; empty for all.
    name : str
        Name of the shadow; by default it is made from the policy's.
    anew : bool
        Whether to begin from the cluster as it is now, and not where a shadow of this name began.
    tick_s : float
        How often its clock is moved on while the log is quiet, in seconds.
    lag_s : float
        Time by which its clock stays behind, so that commits that the server's clock dates earlier are still in time.
    status_s : float
        How often it says how far it is, in seconds.
    """

    policy: str
    set: dict[str, Any] = {}
    pool: str = ""
    name: str = ""
    anew: bool = False
    tick_s: float = 0.5
    lag_s: float = 0.25
    status_s: float = 30.0

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.called):
            raise ValueError(f"a shadow's name is {self.called!r}; expected lower-case letters, digits, - and _")
        choose(self.policy, self.set)

    @property
    def called(self) -> str:
        """The shadow's name: the policy's where none is given, ``allox-2d-gittins`` of ``allox+2d-gittins``."""
        return self.name or self.policy.replace("+", "-")

    def rules(self, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
        """
        Return the settings beside the policy's: those of the cluster's file, changed as ``set`` says.

        Raises
        ------
        SettingsError
            If the file cannot be used.
        """
        own = _changed(load(RankerSettings, "ranker", environ=environ))
        own |= _changed(load(MatcherSettings, "matcher", environ=environ))
        policys = SIMULATED_POLICIES[self.policy].settings
        found = {name: value for name, value in own.items() if name not in policys} | self.set
        as_kept: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(found))
        return as_kept


def _changed(settings: msgspec.Struct) -> dict[str, Any]:
    """Return the settings that differ from their defaults."""
    default = msgspec.to_builtins(type(settings)())
    found: dict[str, Any] = msgspec.to_builtins(settings)
    return {name: value for name, value in found.items() if value != default[name]}
