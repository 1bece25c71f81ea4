"""What can be set about the ranker: table ``[ranker]`` or ``PENSTOCK_RANKER_…``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import UNSET, UnsetType

from penstock_policies.lengths import read_prior
from penstock_policies.orders import Name
from penstock_policies.pools import Ordering


class PoolSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is otherwise in one pool, ``[ranker.pools.NAME]``; what is left out is as for all."""

    order: Name | UnsetType = UNSET
    thresholds_gpu_s: tuple[float, ...] | UnsetType = UNSET
    promote_knob: float | UnsetType | None = UNSET
    prior_file: str | UnsetType = UNSET


class Settings(Ordering, frozen=True, kw_only=True):
    """
    The order's parameters, as :class:`penstock_policies.pools.Ordering` has them, and the ranker's own.

    Attributes
    ----------
    prior_file : str
        GPU-seconds that jobs are assumed to need while few have finished, one number a line, for ``2d-gittins``; each
        job that finishes takes the place of one of them. Empty: nothing is assumed.
    pools : dict of str to PoolSettings
        Pools in which some of this is otherwise.
    """

    prior_file: str = ""
    pools: dict[str, PoolSettings] = {}

    def __post_init__(self) -> None:
        for rules in (self, *map(self.of, self.pools)):
            Ordering.__post_init__(rules)
        self.priors()  # a file that cannot be read is better known now

    def of(self, pool: str) -> Settings:
        """Return what holds in a pool."""
        own = self.pools.get(pool, PoolSettings())
        chosen = {name: value for name, value in msgspec.structs.asdict(own).items() if value is not UNSET}
        return msgspec.structs.replace(self, pools={}, **chosen) if self.pools else self

    @property
    def ordering(self) -> Ordering:
        """The part that can be set live."""
        return Ordering(**{name: getattr(self, name) for name in Ordering.__struct_fields__})

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
