"""What can be set about the ranker: table ``[ranker]`` or ``PENSTOCK_RANKER_…``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
from msgspec import UNSET, UnsetType

from penstock_policies.lengths import read_prior
from penstock_policies.orders import ORDERS, Name
from penstock_policies.ranking import Ladder


class PoolSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is otherwise in one pool, ``[ranker.pools.NAME]``; what is left out is as for all."""

    order: Name | UnsetType = UNSET
    thresholds_gpu_s: tuple[float, ...] | UnsetType = UNSET
    promote_knob: float | UnsetType | None = UNSET
    prior_file: str | UnsetType = UNSET


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """
    The order's parameters.

    Attributes
    ----------
    order : str
        One of :data:`penstock_policies.orders.ORDERS`.
    thresholds_gpu_s : tuple of float
        GPU-seconds at which a job leaves queue 0, 1, …; rising. Empty: one queue. For ``las``, seconds of execution.
    promote_knob : float or None
        A job that has waited this many times what it has executed goes back to queue 0; None: never.
    prior_file : str
        GPU-seconds that jobs are assumed to need while few have finished, one number a line, for ``2d-gittins``; each
        job that finishes takes the place of one of them. Empty: nothing is assumed.
    pools : dict of str to PoolSettings
        Pools in which some of this is otherwise.
    """

    order: Name = "2d-las"
    thresholds_gpu_s: tuple[float, ...] = (3_600.0, 36_000.0)
    promote_knob: float | None = None
    prior_file: str = ""
    pools: dict[str, PoolSettings] = {}

    def __post_init__(self) -> None:
        for rules in (self, *map(self.of, self.pools)):
            _check(rules.thresholds_gpu_s, rules.promote_knob)
        self.priors()  # a file that cannot be read is better known now

    def of(self, pool: str) -> Settings:
        """Return what holds in a pool."""
        own = self.pools.get(pool, PoolSettings())
        chosen = {name: value for name, value in msgspec.structs.asdict(own).items() if value is not UNSET}
        return msgspec.structs.replace(self, pools={}, **chosen) if self.pools else self

    def ladder(self) -> Ladder:
        """Return the part that the policies need."""
        return Ladder(ORDERS[self.order], self.thresholds_gpu_s, self.promote_knob)

    def priors(self) -> dict[str, Sequence[float]]:
        """
        Read all prior files; return what each says, rising, by its name.

        Raises
        ------
        ValueError
            If one cannot be read, or does not hold a number a line.
        """
        named = {self.prior_file, *(self.of(pool).prior_file for pool in self.pools)}
        return {name: _prior_gpu_s(name) for name in sorted(named) if name}


def _prior_gpu_s(name: str) -> Sequence[float]:
    try:
        return read_prior(Path(name).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"prior_file {name} cannot be read: {error}; make it readable") from error
    except ValueError as error:
        raise ValueError(f"prior_file {name}: {error}") from error


def _check(thresholds_gpu_s: Sequence[float], promote_knob: float | None) -> None:
    if any(low >= high for low, high in pairwise((0.0, *thresholds_gpu_s))):
        raise ValueError(
            f"thresholds_gpu_s is {list(thresholds_gpu_s)}; expected rising numbers of GPU-seconds above 0"
        )
    if promote_knob is not None and promote_knob <= 0:
        raise ValueError(f"promote_knob is {promote_knob}; expected a number above 0, or leave it out")
