"""
Types of a decision about sizes: what it takes, what it gives, and its settings.

A decision takes the jobs of a pool in their order, each a :class:`SizeRequest` or a :class:`FixedSizeJob`, and
:class:`SizingRules`. It gives a :class:`SizingDecision` with a :class:`SizeGrant` for each elastic job.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from penstock_log import Size
from penstock_policies.elastic import ThroughputProfile
from penstock_scheduler.round_types import Seconds


class SizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """
    An elastic job, in the order of its pool.

    Attributes
    ----------
    profiles : mapping of str to ThroughputProfile
        Device kind → its profile there, measured or assumed, for the kinds that it accepts and that are there.
    widths : range
        The numbers of devices that it may be given, feasible or not; a single one where the devices are fixed.
    now : Size or None
        What it runs with; None where it waits.
    kind : str
        What it runs on; empty where it waits.
    asks : Size or None
        The size with which a waiting job would start if nothing was decided.
    cost_s : float
        Seconds in which its devices do not advance it when it is started or resized, as measured.
    movable : bool
        False where the job keeps what it has: it saves no checkpoint, is stopping, or has run too shortly; or it waits
        and is not to be started.
    unfit : collection of Size
        Sizes with which it has failed. They are not chosen, nor is a larger batch on as many devices.
    fresh : bool
        Whether it was never sized.
    queue : int
        Its queue in the pool's order.
    """

    job_id: str
    profiles: Mapping[str, ThroughputProfile]
    widths: range
    now: Size | None = None
    kind: str = ""
    asks: Size | None = None
    cost_s: Seconds = 0.0
    movable: bool = True
    unfit: Collection[Size] = ()
    fresh: bool = False
    queue: int = 0

    @property
    def runs(self) -> bool:
        """Whether it has devices."""
        return self.now is not None

    @property
    def held(self) -> int:
        """The devices that it has."""
        return self.now.gpus if self.now is not None else 0


class FixedSizeJob(msgspec.Struct, frozen=True, kw_only=True):
    """
    A job that is not elastic, in the same order.

    Attributes
    ----------
    kinds : tuple of str
        The kinds that it accepts and that are there.
    kind : str
        The kind that it runs on; empty where it waits.
    """

    job_id: str
    gpus: int
    kinds: tuple[str, ...]
    kind: str = ""
    queue: int = 0

    @property
    def runs(self) -> bool:
        """Whether it has devices."""
        return bool(self.kind)

    @property
    def held(self) -> int:
        """The devices that it has."""
        return self.gpus if self.kind else 0


Asking = SizeRequest | FixedSizeJob


class SizingRules(msgspec.Struct, frozen=True, kw_only=True):
    """
    What bounds resizing.

    Attributes
    ----------
    horizon_s : float
        A job is resized for more throughput only if the gain within this time exceeds the cost of resizing.
    least_gain : float
        The least gain for which a job is resized, as a share of its throughput: measured throughputs are not exact.
    interval_s : float
        The longest time between two decisions about a pool.
    min_run_s : float
        A run is not resized before it has lasted this long.
    drop : bool
        A job that was never sized and finds no room at its arrival is over, instead of waiting.
    """

    horizon_s: Annotated[float, Meta(gt=0)] = 600.0
    least_gain: Annotated[float, Meta(ge=0, lt=1)] = 0.02
    interval_s: Annotated[float, Meta(gt=0)] = 60.0
    min_run_s: Seconds = 10.0
    drop: bool = False


DEFAULT: Final = SizingRules()


class SizeGrant(msgspec.Struct, frozen=True, kw_only=True):
    """
    What an elastic job is to have.

    Attributes
    ----------
    gpus : int
        0: it waits.
    batch_size : int
        Over all devices; 0 where it waits.
    kind : str
        The kind for which this is; empty where it waits.
    changed : bool
        Whether this differs from what it has or asks for; for a job that was never sized, whether it gets anything.
    gives : dict of str to int
        Job → devices that this one gives up for it; devices that no other job gains are left out.
    scaling : float
        Its throughput then, relative to that at its smallest width; 0 where it waits.
    reason : str
        Why, in one sentence.
    """

    job_id: str
    gpus: int = 0
    batch_size: int = 0
    kind: str = ""
    changed: bool = False
    gives: dict[str, int] = {}
    scaling: float = 0.0
    reason: str = ""

    @property
    def size(self) -> Size:
        """Devices and batch."""
        return Size(self.gpus, self.batch_size)


class SizingDecision(msgspec.Struct, frozen=True, kw_only=True):
    """
    The decision about a pool's sizes.

    Attributes
    ----------
    jobs : dict of str to SizeGrant
        All elastic jobs, in their order.
    fixed : dict of str to str
        Admitted job that is not elastic → the kind of the devices that are left for it.
    dropped : tuple of str
        Jobs that end for want of room.
    scaling : float
        Sum of the jobs' scaling.
    """

    jobs: dict[str, SizeGrant]
    fixed: dict[str, str] = {}
    dropped: tuple[str, ...] = ()
    scaling: float = 0.0


class SizingSettings(SizingRules, frozen=True, kw_only=True):
    """
    The autoscaler's settings: :class:`SizingRules` and its own.

    Attributes
    ----------
    await_profile_s : float
        A new job without a profile is sized by assumption once it has waited this long. Keep this below the matcher's
        setting of the same name: when that time is over, the job starts at its smallest width, sized or not.
    unseen_cost_s : float
        The least assumed cost of resizing a job, in seconds, until runs of its workload have shown it.
    """

    await_profile_s: Seconds = 8.0
    unseen_cost_s: Seconds = 10.0
