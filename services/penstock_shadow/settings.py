"""What can be set about a shadow: table ``[shadow]`` or ``PENSTOCK_SHADOW_…``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from penstock_bus.settings import load
from penstock_matcher.settings import Settings as MatcherSettings
from penstock_ranker.settings import Settings as RankerSettings
from penstock_shadow.plan import check_name, name_of
from penstock_sim.virtual.policies import POLICIES, choose


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """
    Settings of one shadow.

    Attributes
    ----------
    policy : str
        One that ``penstock sim`` knows, or ``configured``: the cluster's own, with ``set``.
    set : dict of str to value
        Of ranker and matcher, as ``penstock sim --set``; the cluster's own file holds for the rest.
    pool : str
        The only pool to follow; empty for all.
    name : str
        Where not given, the policy's.
    anew : bool
        Go on from the cluster as it is now, and not from where a shadow of this name began.
    tick_s : float
        How often its clock is moved on while the log is quiet, in seconds.
    lag_s : float
        How far its clock stays behind, so that what the server's clock dates a little earlier is still in time.
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
        check_name(self.called)
        choose(self.policy, self.set)

    @property
    def called(self) -> str:
        """Its name."""
        return self.name or name_of(self.policy)

    def rules(self, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
        """
        Return the settings beside the policy's: what the cluster has in its file, changed as ``set`` says.

        Raises
        ------
        SettingsError
            If the file cannot be used.
        """
        own = _changed(load(RankerSettings, "ranker", environ=environ))
        own |= _changed(load(MatcherSettings, "matcher", environ=environ))
        policys = POLICIES[self.policy].settings
        found = {name: value for name, value in own.items() if name not in policys} | self.set
        as_kept: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(found))
        return as_kept


def _changed(settings: msgspec.Struct) -> dict[str, Any]:
    """Return what is otherwise than by default."""
    default = msgspec.to_builtins(type(settings)())
    found: dict[str, Any] = msgspec.to_builtins(settings)
    return {name: value for name, value in found.items() if value != default[name]}
