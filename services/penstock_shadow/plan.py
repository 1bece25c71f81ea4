"""What a shadow is: a policy, and the moment from which it goes its own way."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from penstock_bus.port import Bus
from penstock_events import subjects

CONFIGURED: Final = "configured"
"""The policy that is the cluster's own: what people set live holds for the shadow as well."""
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """
    What decides all that a shadow does, beside the log.

    Attributes
    ----------
    name : str
    policy : str
        One of :data:`penstock_sim.virtual.policies.POLICIES`.
    settings : dict of str to value
        Of ranker and matcher, beside those of the policy.
    pool : str
        The only pool that it follows; empty for all.
    from_seq : int
        Up to this sequence its cluster is the real one; it has the real runs, and takes them from there.
    from_s : float
        The time of that.
    """

    name: str
    policy: str
    from_seq: int
    from_s: float
    settings: dict[str, Any] = {}
    pool: str = ""

    def same_rules(self, other: Plan) -> bool:
        """Say whether another plan of this name decides alike."""
        return (self.policy, self.settings, self.pool) == (other.policy, other.settings, other.pool)


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a shadow says of itself, again and again, on ``penstock.shadow.<name>``.

    Attributes
    ----------
    plan : Plan
    seq : int
        The log's last sequence that it has followed.
    at_s : float
        Its time.
    waiting, running : int
        Jobs of its own cluster.
    ahead : int
        Jobs that have held their devices after what turned out to be their end: nobody knew their length yet.
    ahead_gpu_s : float
        For how long, in GPU-seconds.
    """

    plan: Plan
    seq: int
    at_s: float
    waiting: int = 0
    running: int = 0
    ahead: int = 0
    ahead_gpu_s: float = 0.0


def name_of(policy: str) -> str:
    """
    Return the name of a policy's shadow where none is given.

    Examples
    --------
    >>> name_of("allox+2d-gittins")
    'allox-2d-gittins'
    """
    return policy.replace("+", "-")


def actor_of(plan: Plan) -> str:
    """Return who publishes for a plan: one of the same name that began at another time is somebody else."""
    return f"shadow/{plan.name}@{plan.from_seq}-{plan.from_s:.6f}"


def check_name(name: str) -> None:
    """
    Refuse a name that cannot be part of a subject.

    Raises
    ------
    ValueError
        If it is none.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"a shadow's name is {name!r}; expected lower-case letters, digits, - and _")


async def status_of(bus: Bus, name: str) -> Status | None:
    """Return what a shadow last said of itself; None where it said nothing in the time that is kept."""
    found = await bus.last_shadow(subjects.shadow(name))
    return msgspec.json.decode(found.body, type=Status) if found is not None else None


async def statuses(bus: Bus) -> list[Status]:
    """Return what each shadow last said of itself, by name."""
    last = {one.subject: one.body async for one in bus.read_shadow(subjects.SHADOWS)}
    return [msgspec.json.decode(body, type=Status) for _, body in sorted(last.items())]
