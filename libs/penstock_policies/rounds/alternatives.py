"""
What a waiting job could do otherwise to start at once: single changes of it, each tried on the production round.

An alternative is named only if the job starts in the very next round when it is taken: both when it is cancelled and
submitted anew with the change, as its user would do it, and when it is changed in its place. Only what idle devices
could hold is tried, so where nothing is idle this costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock_events import Alternative, Job, JobSpec, Placement, RoundDecided, Wait
from penstock_events import State as JobState
from penstock_policies import sampling
from penstock_policies.cluster import fits
from penstock_policies.order import Rules
from penstock_policies.rounds import trial
from penstock_policies.rounds.pool import Pool
from penstock_policies.waiting import gibibytes, less_of_a_host

MOST: Final = 16
"""Changes of one job that are tried when somebody asks."""

TRIED_JOBS: Final = 200
"""Bounds what a round spends on it: the changes that it tries, times the jobs of its pool."""

Value = str | int | float | bool | tuple[str, ...]


@dataclass(frozen=True)
class Change:
    """
    A single change of a specification.

    Attributes
    ----------
    gain : float
        How fast the job is expected to be with it, relative to all of its devices of the fastest kind.
    """

    fields: dict[str, Value]
    say: str
    gain: float


class Alternatives:
    """
    Looks for what the jobs of one pool could do otherwise, at one moment.

    Parameters
    ----------
    pool : Pool
        As the next round will find it.
    tries : int
        How many changes are tried at most, over all jobs.
    """

    def __init__(self, pool: Pool, now_s: float, rules: Rules, tries: int = MOST) -> None:
        self._pool, self._now_s, self._rules, self._left = pool, now_s, rules, tries
        self._whole, self._idle = pool.roster.whole, pool.roster.free

    def best(self, job: Job) -> Alternative | None:
        """Return the change with which the job is fastest among those with which it starts at once."""
        if job.sample is not None or job.state is not JobState.PENDING or job.not_before_s > self._now_s:
            return None
        if self._left <= 0:
            return None
        if job.held:
            return self._released(job)
        for change in sorted(self._changes(job), key=lambda change: -change.gain):
            if self._left <= 0:
                break
            spec = msgspec.structs.replace(job.spec, **change.fields)
            if self._holds(spec) and (placement := self._tried(job, spec)) is not None:
                return self._alternative(job, change, placement)
        return None

    def _released(self, job: Job) -> Alternative | None:
        if not self._holds(job.spec):
            return None
        self._left -= 1
        with trial.changed(self._pool, msgspec.structs.replace(job, held=False)) as pool:
            placement = trial.start_of(pool, job.id, self._now_s, self._rules)
        change = Change({"hold": False}, f"penstock release {job.id}", 1.0)
        return self._alternative(job, change, placement) if placement is not None else None

    def _tried(self, job: Job, spec: JobSpec) -> Placement | None:
        self._left -= 1
        with trial.submitted(self._pool, spec, self._now_s, instead_of=job) as pool:
            placement = trial.start_of(pool, trial.TRIED, self._now_s, self._rules)
        if placement is None:
            return None
        with trial.changed(self._pool, msgspec.structs.replace(job, spec=spec)) as pool:
            return placement if trial.start_of(pool, job.id, self._now_s, self._rules) is not None else None

    def _holds(self, spec: JobSpec) -> bool:
        return any(count >= spec.gpus for count in self._idle.kinds(spec).values())

    def _changes(self, job: Job) -> Iterator[Change]:
        spec, accepted = job.spec, self._whole.kinds(job.spec)
        if job.accepts is None:  # else its kinds are not its user's, but those for which it has been sized
            yield from self._other_kinds(job, accepted)
        if len(accepted) > 1:
            for kind in self._idle.kinds(spec):
                yield Change({"kinds": (kind,)}, f"accept kind `{kind}` only", self._speed(job, kind) or 1.0)
        for kind, count in self._idle.kinds(spec).items():
            if count < spec.widths[0]:  # within its widths, whoever sizes an elastic job chooses
                gain = (self._speed(job, kind) or 1.0) * count / spec.gpus
                yield _narrower(spec, count, gain)
        if self._idle.is_tight(spec) and not self._idle.kinds(spec):
            for fields, say in less_of_a_host(spec, self._idle):
                yield Change({**fields}, say, 1.0)
        if spec.memory_bytes and not accepted.keys() & self._idle.kinds(spec).keys():
            yield from self._less_memory(spec)
        if sampling.awaits_speeds(job, accepted, known=self._pool.speeds.knows(self._pool.keys[job.id])):
            yield Change({"profile": "off"}, "submit it with `--profile off`", 0.9)

    def _other_kinds(self, job: Job, accepted: dict[str, int]) -> Iterator[Change]:
        spec = job.spec
        if spec.kinds:
            offered = self._idle.kinds(msgspec.structs.replace(spec, kinds=()))
            for kind in sorted(offered.keys() - set(spec.kinds)):
                gain = self._speed(job, kind) or 0.5
                yield Change({"kinds": (*spec.kinds, kind)}, f"accept kind `{kind}` too", gain)
                yield Change({"kinds": (kind,)}, f"accept kind `{kind}` instead", gain)
        elif not accepted:
            for kind in sorted({device.kind for _, device in self._idle if device.backend == "cpu"}):
                yield Change({"kinds": (kind,)}, f"ask for kind `{kind}` by name", self._speed(job, kind) or 0.1)

    def _less_memory(self, spec: JobSpec) -> Iterator[Change]:
        any_size = msgspec.structs.replace(spec, memory_bytes=0)
        sizes = {device.memory_bytes for _, device in self._idle if fits(any_size, device)}
        for size in sorted((size for size in sizes if size < spec.memory_bytes), reverse=True):
            yield Change({"memory_bytes": size}, f"ask for at most {gibibytes(size)} a device", 1.0)

    def _alternative(self, job: Job, change: Change, placement: Placement) -> Alternative:
        speed = self._speed(job, placement.kind)
        gpus = sum(len(slot.devices) for slot in placement.slots)
        where = f" on {gpus} `{placement.kind}`" if gpus > 1 else f" on `{placement.kind}`"
        guess = "a predicted " if placement.kind in self._pool.speeds.predicted(self._pool.keys[job.id]) else ""
        pace = f", at {guess}{speed:.2g}x speed" if speed and speed != 1.0 else ""
        text = f"{change.say}: it starts now{'' if placement.kind in change.say else where}{pace}"
        return Alternative(change=change.fields, kind=placement.kind, speed=speed, text=text)

    def _speed(self, job: Job, kind: str) -> float:
        """Return the job's speed on a kind relative to the fastest that it accepts, as told; 0 where nobody told."""
        measured = self._pool.speeds.by_key.get(self._pool.keys[job.id], {})
        accepted = [measured[kind] for kind in self._whole.kinds(job.spec) if kind in measured]
        return measured.get(kind, 0.0) / max(accepted, default=1.0)


def named(pool: Pool, found: RoundDecided, now_s: float, rules: Rules) -> RoundDecided:
    """
    Return a round with the best alternative of its first waiting jobs.

    Notes
    -----
    At most ``max_tries`` changes are tried, fewer in a large pool (:data:`TRIED_JOBS`), none in a very large one: who
    asks about one job has them tried then.
    """
    if not found.waits:
        return found
    tries = min(rules.max_tries, TRIED_JOBS // max(1, len(pool.roster)))
    if tries < 1:
        return found
    with trial.decided(pool, found) as then:
        looking = Alternatives(then, now_s, rules, tries)
        waits = [_with_best(wait, looking.best(then.roster.entries[wait.job_id].ranked.job)) for wait in found.waits]
    return msgspec.structs.replace(found, waits=tuple(waits))


def _with_best(wait: Wait, best: Alternative | None) -> Wait:
    if best is None:
        return wait
    return msgspec.structs.replace(wait, alternative=best, remedy=wait.remedy or best.text)


def _narrower(spec: JobSpec, count: int, gain: float) -> Change:
    devices = f"{count} device{'s' if count > 1 else ''}"
    if spec.max_gpus:
        return Change(
            {"gpus": count, "min_gpus": count}, f'accept {devices} too (gpus = "{count}..{spec.max_gpus}")', gain
        )
    return Change({"gpus": count}, f"ask for at most {devices}", gain)
