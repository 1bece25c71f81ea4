"""What people do to jobs, sweeps and nodes that are there: pure, and idempotent."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock_events import (
    ACTIVE,
    TERMINAL,
    AnyEvent,
    Job,
    JobCancelled,
    JobHeld,
    JobReleased,
    NodeDrained,
    NodeRemoved,
    NodeResumed,
    PolicySet,
    SweepCancelled,
    asks,
    lifecycle,
    subjects,
    workload,
)
from penstock_gateway import find
from penstock_gateway.find import NOT_FOUND, Refused
from penstock_gateway.machine import State
from penstock_gateway.sweeps import Sweep
from penstock_gateway.words import count, listed, pairs
from penstock_policies import pools
from penstock_policies.cluster import Node

BAD: Final = 400
CONFLICT: Final = 409
_SAID: Final = {
    lifecycle.State.COMPLETED: "has completed",
    lifecycle.State.FAILED: "has failed",
    lifecycle.State.CANCELLED: "was cancelled",
}


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """
    What is to be done, and what to say once it is.

    Attributes
    ----------
    subject, fact
        To be appended; ``fact`` is None where it was so before.
    state : str
        Of the thing afterwards.
    """

    id: str
    state: str
    message: str
    subject: str = ""
    fact: AnyEvent | None = None


def cancel(state: State, ask: asks.ActAsk, now_s: float) -> Act:
    """End a job; 409 where it ended by itself."""
    job = _job(state, ask.id)
    if job.state in {lifecycle.State.COMPLETING, lifecycle.State.CANCELLED}:
        said = "is being cancelled already" if job.state is lifecycle.State.COMPLETING else "was cancelled before"
        return Act(id=job.id, state=job.state, message=f"job {job.id} {said}")
    _not_over(job, "cancel")
    running = job.state in ACTIVE
    after = lifecycle.State.COMPLETING if running else lifecycle.State.CANCELLED
    message = f"job {job.id} " + ("is being stopped" if running else "is cancelled; it was not running")
    fact = JobCancelled(job_id=job.id, by=ask.by, reason=ask.reason, at_s=now_s)
    return Act(id=job.id, state=after, message=message, subject=subjects.job(job.id), fact=fact)


def hold(state: State, ask: asks.ActAsk, now_s: float) -> Act:
    """Keep a job from being started; 409 where it is over."""
    job = _job(state, ask.id)
    _not_over(job, "hold")
    if job.held:
        return Act(id=job.id, state=job.state, message=f"job {job.id} is held already")
    goes_on = "; it runs on, and will not be started again after a preemption" if job.state in ACTIVE else ""
    fact = JobHeld(job_id=job.id, by=ask.by, at_s=now_s)
    message = f"job {job.id} is held{goes_on}"
    return Act(id=job.id, state=job.state, message=message, subject=subjects.job(job.id), fact=fact)


def release(state: State, ask: asks.ActAsk, now_s: float) -> Act:
    """Let a held job be started; 409 where it is over."""
    job = _job(state, ask.id)
    _not_over(job, "release")
    if not job.held:
        return Act(id=job.id, state=job.state, message=f"job {job.id} is not held")
    fact = JobReleased(job_id=job.id, by=ask.by, at_s=now_s)
    message = f"job {job.id} may start again"
    return Act(id=job.id, state=job.state, message=message, subject=subjects.job(job.id), fact=fact)


def drain(state: State, ask: asks.DrainAsk, now_s: float) -> Act:
    """Give a node no new jobs; with ``preempt`` move its running ones too."""
    node = node_named(state, ask.id)
    running = sum(node.id in job.open_nodes for job in state.jobs)
    after = "draining" if running else "drained"
    if node.drained and (node.evicting or not ask.preempt):
        return Act(id=node.id, state=after, message=f"node {node.id} is drained already")
    fact = NodeDrained(node_id=node.id, by=ask.by, reason=ask.reason, preempt=ask.preempt, at_s=now_s)
    one = running == 1
    what = ("is moved" if one else "are moved") if ask.preempt else ("ends there" if one else "end there")
    said = f"{count(running, 'running job')} {what}" if running else "none runs there"
    message = f"node {node.id} takes no new jobs; {said}"
    return Act(id=node.id, state=after, message=message, subject=subjects.request(node.id), fact=fact)


def resume(state: State, ask: asks.ActAsk, now_s: float) -> Act:
    """Give a drained node jobs again."""
    node = node_named(state, ask.id)
    after = node.gone or "up"
    if not node.drained:
        return Act(id=node.id, state=after, message=f"node {node.id} is not drained")
    fact = NodeResumed(node_id=node.id, by=ask.by, at_s=now_s)
    message = f"node {node.id} takes jobs again"
    return Act(id=node.id, state=after, message=message, subject=subjects.request(node.id), fact=fact)


def remove(state: State, ask: asks.ActAsk, now_s: float) -> Act:
    """List a node no more that is gone for good; 409 where it is up, or where a run on it has not ended in the log."""
    node = node_named(state, ask.id)
    if node.present:
        raise Refused(
            CONFLICT,
            f"node {node.id} is up; stop its executor first, or keep jobs off it with `penstock node drain {node.id}`",
        )
    if open_ := sum(node.id in job.open_nodes for job in state.jobs):
        raise Refused(
            CONFLICT, f"{count(open_, 'run')} on node {node.id} may still go on; try again once the node is lost"
        )
    fact = NodeRemoved(node_id=node.id, by=ask.by, reason=ask.reason, at_s=now_s)
    message = f"node {node.id} is removed; if its executor starts again, it joins as a new node"
    return Act(id=node.id, state="removed", message=message, subject=subjects.request(node.id), fact=fact)


def cancel_sweep(state: State, ask: asks.ActAsk, now_s: float) -> Act:
    """End a sweep; its trials are cancelled one by one from here on. 409 where it ended by itself."""
    sweep = sweep_named(state, ask.id)
    if sweep.cancelled is not None:
        return Act(id=sweep.id, state=sweep.state, message=f"sweep {sweep.id} was cancelled before")
    if sweep.finished is not None:
        raise Refused(CONFLICT, f"sweep {sweep.id} has {sweep.finished.state} already; there is nothing to cancel")
    left = sum(state.jobs[job_id].state not in TERMINAL for job_id in state.children.get(sweep.id, ()))
    fact = SweepCancelled(sweep_id=sweep.id, by=ask.by, at_s=now_s)
    message = f"sweep {sweep.id} is being cancelled, and {count(left, 'trial')} with it"
    return Act(id=sweep.id, state="cancelling", message=message, subject=subjects.request(sweep.id), fact=fact)


def set_policy(state: State, ask: asks.PolicyAsk, now_s: float) -> Act:
    """Run a pool by other settings from now on, or by its services' own again. 404 where there is no such pool."""
    _check_pool(state, ask.pool)
    before = state.policies.get(ask.pool, {})
    known = pools.names()
    if unknown := [name for name in ask.unset if name not in known]:
        raise Refused(BAD, f"$.unset: no setting of a pool is called {listed(unknown)}; expected {listed(known)}")
    try:
        chosen = pools.checked(ask.set)
    except ValueError as error:
        raise Refused(BAD, f"$.set: {error}") from error
    kept = {} if ask.reset else {name: value for name, value in before.items() if name not in ask.unset}
    settings = {**kept, **chosen}
    if settings == before:
        return Act(id=ask.pool, state="unchanged", message=f"pool {ask.pool} is run so already")
    fact = PolicySet(pool=ask.pool, settings=settings, by=ask.by, reason=ask.reason, at_s=now_s)
    message = f"pool {ask.pool}: {pairs(settings) or 'nothing'} set live"
    return Act(id=ask.pool, state="set", message=message, subject=subjects.policy(ask.pool), fact=fact)


def job_named(state: State, wanted: str) -> Job:
    """Return the job that an id or its unique beginning names; samples only by their whole id."""
    if (job := state.jobs.get(wanted)) is not None:
        return job
    if wanted in state.sweeps:
        advice = f"`penstock sweep show {wanted}` lists its trials, `penstock sweep cancel {wanted}` ends them"
        raise Refused(NOT_FOUND, f"{wanted} is a sweep; expected a job: {advice}")
    jobs = {job.id: job for job in state.jobs if job.sample is None}
    return find.one(jobs, wanted, "job", names=((job.spec.name, job.id) for job in jobs.values()))


def workload_named(state: State, wanted: str) -> str:
    """Return the key of the workload that is meant: its own, or that of a job or a sweep by id or by name."""
    if (sweep := state.sweeps.get(wanted)) is not None:
        return workload.key(sweep.spec.job)
    if (job := state.jobs.get(wanted)) is not None:
        return _workload(job)
    named = [(job.spec.name, _workload(job)) for job in state.jobs if job.sample is None]
    named += [(sweep.spec.name, workload.key(sweep.spec.job)) for sweep in state.sweeps.values()]
    if len(found := {key for name, key in named if name == wanted}) == 1:
        return found.pop()
    known = (*state.profiles, *state.scaled, *state.measured, *(key for _, key in named))
    return find.one({key: key for key in known}, wanted, "workload", names=dict.fromkeys(named))


def sweep_named(state: State, wanted: str) -> Sweep:
    """Return the sweep that an id or its unique beginning names."""
    return find.one(state.sweeps, wanted, "sweep", names=((s.spec.name, s.id) for s in state.sweeps.values()))


def node_named(state: State, wanted: str) -> Node:
    """Return the node that an id or its unique beginning names."""
    return find.one(state.cluster.nodes, wanted, "node")


def _check_pool(state: State, wanted: str) -> None:
    known = sorted({*state.pools(), *state.policies})
    if wanted not in known:
        there = f"expected {listed(known)}" if known else "there is none yet"
        raise Refused(NOT_FOUND, f"no pool is called {wanted!r}: {there}; one is there once a node or a job is in it")


def _workload(job: Job) -> str:
    return job.profile_key or workload.key(job.spec)


def _job(state: State, wanted: str) -> Job:
    job = job_named(state, wanted)
    if job.sample is not None:
        raise Refused(CONFLICT, f"{job.id} is a sample of the profiler, which ends by itself; name a job")
    return job


def _not_over(job: Job, what: str) -> None:
    if job.state in TERMINAL:
        raise Refused(CONFLICT, f"job {job.id} {_SAID[job.state]} already; there is nothing to {what}")
