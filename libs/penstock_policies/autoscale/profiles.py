"""How fast a job is at each size, as far as anybody knows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import msgspec

from penstock_events import Batch, Job, JobSpec, Scalability
from penstock_policies import scaling
from penstock_policies.autoscale.knows import Knows, key_of
from penstock_policies.elastic import Profile


def profiles(state: Knows, job: Job, kinds: tuple[str, ...]) -> dict[str, Profile]:
    """
    Return what is known, or else assumed, of a job on each of some kinds; without what was seen not to fit there.

    One that uses a batch of its own, whatever it is given, has no other.
    """
    key, used = key_of(job), state.shown.stubborn.get(job.id, 0)
    batch, batch_size = (None, used) if used else (job.spec.batch, job.spec.batch_size)
    bounds = Bounds(job.spec.gpus, job.spec.min_gpus, job.spec.max_gpus, batch, batch_size)
    speeds = tuple(sorted(state.speeds.by_key.get(key, {}).items()))
    return _capped(_known(bounds, state.scaled.get(key, ()), kinds, speeds), state.shown.caps.get(key, {}))


class Bounds(NamedTuple):
    """What a job says of its sizes."""

    gpus: int
    min_gpus: int
    max_gpus: int
    batch: Batch | None
    batch_size: int


@lru_cache(maxsize=4096)
def _known(
    bounds: Bounds, known: tuple[Scalability, ...], kinds: tuple[str, ...], speeds: tuple[tuple[str, float], ...]
) -> Mapping[str, Profile]:
    spec = JobSpec(name="any", command=("any",), **bounds._asdict())
    return scaling.profiles(spec, known, kinds, dict(speeds))


def _capped(profiles: Mapping[str, Profile], caps: Mapping[str, int]) -> dict[str, Profile]:
    """Return profiles without what was seen not to fit on a device."""
    most = {kind: min(profile.per_gpu_cap, caps.get(kind, profile.per_gpu_cap)) for kind, profile in profiles.items()}
    return {
        kind: profile if most[kind] == profile.per_gpu_cap else msgspec.structs.replace(profile, per_gpu_cap=most[kind])
        for kind, profile in profiles.items()
        if most[kind]
    }
