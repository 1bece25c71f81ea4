"""What a decision about sizes works on, and what it yields."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from penstock_events import Size
from penstock_policies.elastic import Profile

Seconds = Annotated[float, Meta(ge=0)]


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """
    An elastic job, in the order of its pool.

    Attributes
    ----------
    profiles : mapping of str to Profile
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
    profiles: Mapping[str, Profile]
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


class Fixed(msgspec.Struct, frozen=True, kw_only=True):
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


Asking = Wish | Fixed


class Rules(msgspec.Struct, frozen=True, kw_only=True):
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


DEFAULT: Final = Rules()


class Sized(msgspec.Struct, frozen=True, kw_only=True):
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


class Sizing(msgspec.Struct, frozen=True, kw_only=True):
    """
    What is decided about a pool.

    Attributes
    ----------
    jobs : dict of str to Sized
        All elastic jobs, in their order.
    fixed : dict of str to str
        The jobs that are not elastic and are admitted → the kind on which their devices are left alone.
    dropped : tuple of str
        Jobs that are over, for want of room.
    scaling : float
        Sum of the jobs' scaling.
    """

    jobs: dict[str, Sized]
    fixed: dict[str, str] = {}
    dropped: tuple[str, ...] = ()
    scaling: float = 0.0
