"""Why a job is where it is: one dominant cause, its evidence, what would change it, and what it is not."""

from __future__ import annotations

from functools import cache
from typing import Final

from penstock_events import ACTIVE, TERMINAL, Job, lifecycle, workload
from penstock_events.views import RankView, WhyView
from penstock_gateway import fit
from penstock_gateway.history import device_names
from penstock_gateway.machine import State
from penstock_gateway.words import count, duration, listed
from penstock_policies.waiting import Scene, impossible

UNDECIDED: Final = "undecided"
_ENDINGS: Final = {
    lifecycle.State.COMPLETED: "completed",
    lifecycle.State.FAILED: "failed",
    lifecycle.State.CANCELLED: "was cancelled",
}

_NEVER: Final = {"never_fits", "no_nodes"}
_NO_PLACE: Final = {*_NEVER, "held"}
"""Causes with which it does not matter who stands before the job."""

Said = tuple[str, str, str]
"""Cause, evidence and remedy."""


class Why:
    """
    Explains the jobs of one moment.

    Looks at each pool's nodes once, so it is not to be kept while the state changes.
    """

    def __init__(self, state: State, now_s: float) -> None:
        """Explain ``state`` as it is at ``now_s``."""
        self._state, self._now_s = state, now_s
        self._nodes = cache(lambda pool: fit.nodes_of(state.cluster, pool))

    def explain(self, job: Job) -> WhyView:
        """Return the explanation of a job's present state."""
        cause, evidence, remedy = self._said(job)
        waits = job.state is lifecycle.State.PENDING
        return WhyView(
            id=job.id,
            name=job.spec.name,
            state=job.state,
            cause=cause,
            evidence=evidence,
            remedy=remedy,
            not_causes=tuple(self._not_causes(job, cause)) if waits else (),
            since_s=self._state.histories[job.id].since_s,
            rank=self._rank(job) if waits and cause not in _NO_PLACE else None,
        )

    def cause(self, job: Job) -> str:
        """Return the one word for why a job waits; empty where it does not wait."""
        return self._waiting(job)[0] if job.state is lifecycle.State.PENDING else ""

    def _said(self, job: Job) -> Said:
        if job.state in TERMINAL:
            return "finished", _ending(job), ""
        if job.state is lifecycle.State.RUNNING:
            return "running", _running(job, self._now_s), ""
        return _stopping(job) if job.state in ACTIVE else self._waiting(job)

    def _waiting(self, job: Job) -> Said:
        """Return the job's own cause, else what the last round said, else what the gateway sees itself."""
        if (own := _own(job, self._now_s)) is not None:
            return own
        said = self._state.wait_of(job)
        if said is not None and said.cause not in {"held", "backoff"}:  # which was so then, and is no more
            return said.cause, said.evidence, said.remedy
        reason = impossible(job.spec, self._nodes(job.spec.pool))
        if reason is not None:
            return reason.cause, reason.evidence, reason.remedy
        return _without_a_round(self._state, job)

    def _rank(self, job: Job) -> RankView | None:
        """Return how many waiting jobs stand before this one, those left out that nothing there could start."""
        own = self._state.histories[job.id].rank
        if own is None:
            return None
        ahead = 0
        for other in self._state.jobs:
            waits = other.state is lifecycle.State.PENDING and other.spec.pool == job.spec.pool and not other.held
            rank = self._state.histories[other.id].rank if waits and other.id != job.id else None
            if rank is not None and rank.key < own.key:
                ahead += self.cause(other) not in _NEVER
        return RankView(queue=own.queue, ahead=ahead)

    def _not_causes(self, job: Job, cause: str) -> list[str]:
        found = [] if cause == "held" else ["it is not held"]
        scene: Scene = self._nodes(job.spec.pool)
        accepted = scene.whole.kinds(job.spec)
        most = max(accepted.values(), default=0)
        if cause not in {"never_fits", "no_nodes"} and most >= job.spec.gpus:
            asks = count(job.spec.gpus, "device")
            found.append(f"not its size: it asks for {asks}, and there are {most} of one kind that it accepts")
        profile = self._state.profiles.get(workload.key(job.spec))
        known = [speed.kind for speed in profile.speeds if speed.kind in accepted] if profile is not None else []
        if cause != "profiling" and known:
            found.append(f"not its profile: its speeds are known on {listed(known)}")
        if cause != "backoff" and job.failures:
            found.append("not its failures: the back-off is over")
        return found


def _own(job: Job, now_s: float) -> Said | None:
    """Return the causes that lie in the job itself, whatever the cluster is like."""
    if job.held:
        return "held", "it is on hold", f"penstock release {job.id}"
    if job.not_before_s > now_s:
        failed = f"{job.failures} of at most {count(job.spec.retries + 1, 'run')} failed"
        last = f" ({job.reason})" if job.reason else ""
        return "backoff", f"{failed}{last}; the next may start in {duration(job.not_before_s - now_s)}", ""
    return None


def _without_a_round(state: State, job: Job) -> Said:
    """Return the cause where the matcher has not said any."""
    key = workload.key(job.spec)
    samples = [state.jobs[sample_id] for sample_id in state.samples.get(key, ())]
    done = sum(sample.state in TERMINAL for sample in samples)
    if done < len(samples):
        evidence = f"{done} of {count(len(samples), 'sample')} of its workload {key} are done"
        return "profiling", evidence, "penstock submit --profile off skips the sampling"
    evidence = "no round of the matcher has spoken of it yet"
    return UNDECIDED, evidence, "wait a moment; if it stays so, see with `penstock doctor` whether the matcher runs"


def _running(job: Job, now_s: float) -> str:
    where = listed(device_names(job.placement)) if job.placement is not None else "unknown devices"
    if not job.started_s:
        return f"it is placed on {where}, and its processes are being started"
    return f"it has been running on {where} for {duration(now_s - job.started_s)}"


def _stopping(job: Job) -> Said:
    what = "being preempted" if job.state is lifecycle.State.PREEMPTING else "being cancelled"
    reason = f" ({job.reason})" if job.reason else ""
    return "stopping", f"it is {what}{reason}; its processes have not all ended yet", ""


def _ending(job: Job) -> str:
    after = f"after {duration(job.finished_s - job.submitted_s)}"
    ran = f"{duration(job.executed_s)} of them running" if job.first_started_s else "it never ran"
    reason = f": {job.reason}" if job.reason else ""
    return f"it {_ENDINGS[job.state]} {after} ({ran}){reason}"
