"""What a job that shares devices asks of one: whose it is, how it shares, and what it needs of the memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

import msgspec

from penstock_events import Job, JobSpec, MemoryNeed
from penstock_policies.waiting import gibibytes

Mode = Literal["lane", "fraction"]
Willing = Literal["user", "team", "anyone"]


class Party(NamedTuple):
    """
    Whose a job is, and with whose it may share a device.

    Examples
    --------
    >>> ann, bob = Party("ann", "vision", "team"), Party("bob", "vision", "anyone")
    >>> ann.shares_with(bob), ann.shares_with(Party("eve", "speech", "anyone"))
    (True, False)
    """

    user: str
    team: str
    share_with: Willing

    def shares_with(self, other: Party) -> bool:
        """Say whether both are willing."""
        return self._accepts(other) and other._accepts(self)

    def _accepts(self, other: Party) -> bool:
        """
        Say whether this one is willing.

        A user's jobs for one team are no business of another's, and those without a team have only their user's.
        """
        if self.share_with == "anyone":
            return True
        same_team, same_user = self.team == other.team, self.user == other.user
        return same_team and (same_user or (self.share_with == "team" and bool(self.team)))


class Tenant(NamedTuple):
    """
    A job that shares.

    Attributes
    ----------
    mode : {"lane", "fraction"}
        The two are never on one device.
    need : MemoryNeed or None
        Of each device, as it was measured or, before that, declared; None of a lane job: nobody knows yet, so it has
        its devices alone until somebody does.
    fraction : float
        Of one device, for ``fraction``; 1 for lanes.
    gpus : int
        A lane on each of so many devices of one node.
    most : int
        Jobs on each of its devices, itself among them; 0: as many as the pool allows.
    """

    mode: Mode
    party: Party
    need: MemoryNeed | None
    fraction: float = 1.0
    gpus: int = 1
    most: int = 0

    @property
    def alone(self) -> bool:
        """Whether nobody may be beside it."""
        return self.mode == "lane" and self.need is None

    def least_bytes(self, reserve_share: float) -> int:
        """Return how much memory a device must have so that the job fits it at all."""
        if self.need is None:
            return 0
        usable_share = self.fraction if self.mode == "fraction" else 1.0 - reserve_share
        return math.ceil(self.need.alone_bytes / usable_share)

    def needs(self) -> str:
        """Return what it needs, in words."""
        if self.mode == "fraction":
            return f"{self.fraction:g} of a device"
        return "a device of its own" if self.need is None else gibibytes(self.need.alone_bytes)


def tenant_of(job: Job, measured: Callable[[Job], MemoryNeed | None]) -> Tenant | None:
    """
    Return how a job shares; None for one that has its devices to itself, as samples do.

    Parameters
    ----------
    measured : callable
        What other runs of the job's workload have needed; asked only where nobody has said it of this job.
    """
    spec = job.spec
    if spec.sharing == "exclusive" or job.sample is not None:
        return None
    party = Party(spec.user, spec.team, spec.share_with)
    if spec.sharing == "fraction":
        return Tenant("fraction", party, spec.memory, spec.fraction)
    return Tenant("lane", party, job.need or spec.memory or measured(job), gpus=spec.gpus, most=spec.sharers)


def asking(spec: JobSpec, tenant: Tenant, reserve_share: float) -> JobSpec:
    """Return what the job asks of a device that it has to itself: enough memory for all that it needs."""
    least_bytes = tenant.least_bytes(reserve_share)
    return msgspec.structs.replace(spec, memory_bytes=least_bytes) if least_bytes > spec.memory_bytes else spec


def willing(party: Party, others: Iterable[Party]) -> bool:
    """Say whether a job may share with all of the others."""
    return all(party.shares_with(other) for other in others)
