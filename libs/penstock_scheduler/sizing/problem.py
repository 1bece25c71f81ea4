"""
What a decision takes and gives.

What a decision about sizes works on, and what it yields.

What can be set about decisions on sizes.
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
        Device kind → how fast it is there: for the kinds that it accepts and that are there, measured or assumed.
    widths : range
        The numbers of devices that it may be given, feasible or not; of one whose devices are fixed, just one.
    now : Size or None
        What it runs with; None where it waits.
    kind : str
        What it runs on; empty where it waits.
    asks : Size or None
        Of one that waits: the size that it would start with if nothing was decided.
    cost_s : float
        Seconds in which its devices do not advance it when it is started or resized, as measured.
    movable : bool
        False: it keeps what it has. One that saves no checkpoint, is stopping, or has run too shortly; one that waits
        and is not to be started.
    unfit : collection of Size
        Sizes with which it has failed: not chosen, nor a larger batch on as many devices.
    fresh : bool
        It was never sized.
    queue : int
        In which queue its order has it.
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


class FixedSizeJob(msgspec.Struct, frozen=True, kw_only=True):
    """
    A job that is not elastic, in the same order.

    Attributes
    ----------
    kinds : tuple of str
        Those that it accepts and that are there.
    kind : str
        What it runs on; empty where it waits.
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


Asking = SizeRequest | FixedSizeJob


class SizingRules(msgspec.Struct, frozen=True, kw_only=True):
    """
    What bounds resizing.

    Attributes
    ----------
    horizon_s : float
        A job is resized for more throughput only if what that gains in this time exceeds what resizing costs.
    least_gain : float
        Nor for less than this share of its present throughput: measured throughputs are not exact.
    interval_s : float
        At least so often a pool is decided anew.
    min_run_s : float
        A run is not resized before it has lasted so long.
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
        Whether this is not what it has, or asks for; of one that was never sized, whether it gets anything.
    gives : dict of str to int
        Job → devices that this one gives up for it; what it gives up for nobody in particular is left out.
    scaling : float
        Its throughput then, relative to that at its smallest width; 0 where it waits.
    reason : str
        In one sentence.
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
    What is decided about a pool.

    Attributes
    ----------
    jobs : dict of str to SizeGrant
        All elastic jobs, in their order.
    fixed : dict of str to str
        The jobs that are not elastic and are admitted → the kind on which their devices are left alone.
    dropped : tuple of str
        Jobs that are over, for want of room.
    scaling : float
        Sum of the jobs' scaling.
    """

    jobs: dict[str, SizeGrant]
    fixed: dict[str, str] = {}
    dropped: tuple[str, ...] = ()
    scaling: float = 0.0


class SizingSettings(SizingRules, frozen=True, kw_only=True):
    """
    What bounds resizing, as :class:`penstock_scheduler.sizing.Rules` has it, and the autoscaler's own.

    Attributes
    ----------
    await_profile_s : float
        A new job of which it is not known yet how it goes with devices and batch sizes is sized by assumption once it
        has waited this long. Keep it below the matcher's setting of the same name: with the end of that one, the job
        starts at its smallest width, sized or not.
    unseen_cost_s : float
        What resizing a job is taken to cost at least, in seconds, until runs of its workload have shown it.
    """

    await_profile_s: Seconds = 8.0
    unseen_cost_s: Seconds = 10.0
