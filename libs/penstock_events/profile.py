"""Facts about workloads. Written by the profiler on ``evt.profile.<key>``."""

from __future__ import annotations

import msgspec

from penstock_events.base import Event
from penstock_events.spec import JobSpec


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """
    One short run of a workload, placed by the matcher like a job and never retried.

    Attributes
    ----------
    batch_size : int
        Over all of its devices; 0: as the workload has it.
    """

    sample_id: str
    kind: str
    iterations: int
    gpus: int = 1
    batch_size: int = 0


class SamplesRequested(Event, frozen=True, kw_only=True, tag="profile.samples_requested.v1"):
    """
    An unseen workload is to be sampled; each sample becomes a job of its own, ahead of all others.

    Of a workload that its user neither names nor asks for, nor repeats, no sample is requested
    (:func:`penstock_policies.sampling.why_sampled`).
    """

    key: str
    spec: JobSpec
    samples: tuple[Sample, ...]


class KindSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """
    How fast a workload is on one kind of device.

    Attributes
    ----------
    kind : str
    iteration_s : float
        Seconds an iteration (the slope ``a`` of ``t = a·n + b``); 0 where it could not be measured.
    run_s : float
        Seconds of a whole run, of a workload whose runs have no iterations; 0 where none was measured.
    speed : float
        Relative to the fastest measured kind of this workload, in (0, 1]; larger is faster.
    memory_bytes : int
        Peak seen; 0 where unknown.
    predicted : bool
        True where it was not measured but predicted from other workloads.
    """

    kind: str
    iteration_s: float
    speed: float
    memory_bytes: int = 0
    predicted: bool = False
    run_s: float = 0.0


class WorkloadProfiled(Event, frozen=True, kw_only=True, tag="profile.measured.v1"):
    """
    The profiler's present knowledge of a workload; a later one replaces it.

    Attributes
    ----------
    skew : float
        Share of the model's largest tensor in all of its tensors, as its script described it last; 0 where it did not.
    """

    key: str
    speeds: tuple[KindSpeed, ...]
    note: str = ""
    skew: float = 0.0


class Timing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    How long an iteration takes on so many devices, with so many samples on each.

    Attributes
    ----------
    gpus, local_batch : int
    iteration_s : float
        Mean, in seconds.
    error_s : float
        Standard error of that mean; 0 where it is not known.
    runs : int
        Samples and real runs that have gone into it.
    """

    gpus: int = 1
    local_batch: int
    iteration_s: float
    error_s: float = 0.0
    runs: int = 1


class Scalability(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    How a workload goes with batch size and devices on one kind of device.

    Attributes
    ----------
    per_gpu_cap : int
        Most samples that one device holds, as far as is known; 0: no limit has been seen.
    note : str
        What could not be measured, and why.
    """

    kind: str
    timings: tuple[Timing, ...]
    per_gpu_cap: int = 0
    note: str = ""


class WorkloadScaled(Event, frozen=True, kw_only=True, tag="profile.scaled.v1"):
    """How an elastic workload goes with batch size and devices, on each kind; a later one replaces it."""

    key: str
    kinds: tuple[Scalability, ...]
