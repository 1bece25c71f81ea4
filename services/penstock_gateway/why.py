"""Why a job is where it is: one dominant cause, its evidence, what would change it, and what it is not."""

from __future__ import annotations

from penstock_events import ACTIVE, TERMINAL, Job, lifecycle, workload
from penstock_events.views import RankView, WhyView
from penstock_gateway import fit
from penstock_gateway.history import device_names
from penstock_gateway.machine import State
from penstock_gateway.words import count, duration, listed

UNDECIDED = "undecided"
_ENDINGS = {
    lifecycle.State.COMPLETED: "completed",
    lifecycle.State.FAILED: "failed",
    lifecycle.State.CANCELLED: "was cancelled",
}


def explain(state: State, job: Job, now_s: float) -> WhyView:
    """Return the explanation of a job's present state."""
    cause, evidence, remedy = _cause(state, job, now_s)
    waits = job.state is lifecycle.State.PENDING
    return WhyView(
        id=job.id,
        name=job.spec.name,
        state=job.state,
        cause=cause,
        evidence=evidence,
        remedy=remedy,
        not_causes=_not_causes(state, job, cause) if waits else (),
        since_s=state.histories[job.id].since_s,
        rank=_rank(state, job) if waits else None,
    )


def cause_of(state: State, job: Job, now_s: float) -> str:
    """Return the one word for why a job waits; empty where it does not wait."""
    return _waiting(state, job, now_s)[0] if job.state is lifecycle.State.PENDING else ""


def _cause(state: State, job: Job, now_s: float) -> tuple[str, str, str]:
    if job.state in TERMINAL:
        return "finished", _ending(job), ""
    if job.state is lifecycle.State.RUNNING:
        return "running", _running(job, now_s), ""
    return _stopping(job) if job.state in ACTIVE else _waiting(state, job, now_s)


def _waiting(state: State, job: Job, now_s: float) -> tuple[str, str, str]:
    """Return cause, evidence and remedy: the job's own, else the last round's, else what the gateway sees itself."""
    if (own := _own_cause(job, now_s)) is not None:
        return own
    wait = state.wait_of(job)
    if wait is None or wait.cause in {"held", "backoff"}:  # that was so at the last round, and is no more
        wait = fit.obstacle(state.cluster, job.spec, job.id)
    return (wait.cause, wait.evidence, wait.remedy) if wait is not None else _without_a_round(state, job)


def _own_cause(job: Job, now_s: float) -> tuple[str, str, str] | None:
    """Return the causes that lie in the job itself, whatever the cluster is like."""
    if job.held:
        return "held", "it is on hold", f"penstock release {job.id}"
    if job.not_before_s > now_s:
        tries = f"{job.failures} of at most {count(job.spec.retries + 1, 'run')} failed"
        last = f"; the last: {job.reason}" if job.reason else ""
        return "backoff", f"{tries}{last}; the next starts in {duration(job.not_before_s - now_s)}", ""
    return None


def _without_a_round(state: State, job: Job) -> tuple[str, str, str]:
    """Return the cause where the matcher has not said any."""
    key = workload.key(job.spec)
    samples = [state.jobs[sample_id] for sample_id in state.samples.get(key, ())]
    done = sum(sample.state in TERMINAL for sample in samples)
    if done < len(samples):
        evidence = f"{done} of {count(len(samples), 'sample')} of its workload {key} are done"
        return "profiling", evidence, "penstock submit --profile off skips the sampling"
    evidence = "no round of the matcher has spoken of it yet"
    return UNDECIDED, evidence, "wait a moment; if it stays so, see with `penstock doctor` whether the matcher runs"


def _not_causes(state: State, job: Job, cause: str) -> tuple[str, ...]:
    counts = fit.fitting(state.cluster, job.spec)
    found = []
    if cause != "held":
        found.append("it is not held")
    if cause not in {"never_fits", "no_nodes"} and (most := max(counts.values(), default=0)) >= job.spec.gpus:
        found.append(f"not its size: it asks for {count(job.spec.gpus, 'device')}, and up to {most} of a kind fit it")
    profile = state.profiles.get(workload.key(job.spec))
    if cause != "profiling" and profile is not None:
        found.append(f"not its profile: measured on {listed(speed.kind for speed in profile.speeds)}")
    if cause != "backoff" and job.failures:
        found.append("not its failures: the back-off is over")
    return tuple(found)


def _rank(state: State, job: Job) -> RankView | None:
    own = state.histories[job.id].rank
    if own is None:
        return None
    ahead = 0
    for other in state.jobs.by_id.values():
        waits = other.state is lifecycle.State.PENDING and other.spec.pool == job.spec.pool and not other.held
        rank = state.histories[other.id].rank if waits and other.id != job.id else None
        ahead += rank is not None and (rank.queue, rank.position) < (own.queue, own.position)
    return RankView(queue=own.queue, ahead=ahead)


def _running(job: Job, now_s: float) -> str:
    where = listed(device_names(job.placement)) if job.placement is not None else "unknown devices"
    if not job.started_s:
        return f"it is placed on {where}, and its processes are being started"
    return f"it has been running on {where} for {duration(now_s - job.started_s)}"


def _stopping(job: Job) -> tuple[str, str, str]:
    what = "being preempted" if job.state is lifecycle.State.PREEMPTING else "being cancelled"
    return (
        "stopping",
        f"it is {what}{f' ({job.reason})' if job.reason else ''}; its processes have not all ended yet",
        "",
    )


def _ending(job: Job) -> str:
    after = f"after {duration(job.finished_s - job.submitted_s)}"
    reason = f": {job.reason}" if job.reason else ""
    return f"it {_ENDINGS[job.state]} {after} ({duration(job.executed_s)} of them running){reason}"
