"""Why a job is where it is: one dominant cause, its evidence, what would change it, and what it is not."""

from __future__ import annotations

from functools import cache
from typing import Final

import msgspec

from penstock_events import ACTIVE, TERMINAL, Job, lifecycle, workload
from penstock_events.views import RankView, WhyView
from penstock_gateway import fit, holding, sizing, suspects
from penstock_gateway.history import device_names
from penstock_gateway.machine import State
from penstock_gateway.when import expected_start
from penstock_gateway.words import count, duration, listed
from penstock_policies.order import Rules
from penstock_policies.rounds import trial
from penstock_policies.rounds.alternatives import Alternatives
from penstock_policies.rounds.decide import borrowers_of
from penstock_policies.rounds.pool import Pool
from penstock_policies.rounds.settings import Settings, rules_of

UNDECIDED: Final = "undecided"
_ENDINGS: Final = {
    lifecycle.State.COMPLETED: "completed",
    lifecycle.State.FAILED: "failed",
    lifecycle.State.CANCELLED: "was cancelled",
}

_NEVER: Final = {"never_fits", "no_nodes"}
_NO_PLACE: Final = {*_NEVER, "held"}
"""Causes with which it does not matter who stands before the job."""
_FOR_DEVICES: Final = {"capacity", "gang", "host_cpus", "host_memory", "later_place", "order", "fairness"}

Said = tuple[str, str, str]
"""Cause, evidence and remedy."""


class Why:
    """
    Explains the jobs of one moment.

    Looks at each pool's nodes once, so it is not to be kept while the state changes.

    Parameters
    ----------
    state : State
        As it is at ``now_s``.
    settings : Settings, optional
        By which the matcher decides.
    """

    def __init__(self, state: State, now_s: float, settings: Settings | None = None) -> None:
        self._state, self._now_s, self._settings = state, now_s, settings or Settings()
        self._nodes = cache(lambda pool: fit.nodes_of(state.cluster, pool))

    def explain(self, job: Job) -> WhyView:
        """Return the explanation of a job's present state."""
        said, past = self._said(job), self._state.histories[job.id]
        view = WhyView(
            id=job.id,
            name=job.spec.name,
            state=job.state,
            cause=said[0],
            evidence=said[1],
            remedy=said[2],
            not_causes=(),
            since_s=past.since_s,
            rank=None,
            size=sizing.words(job.spec),
            resized=past.sizing.resizes[-1] if past.sizing is not None and past.sizing.resizes else None,
            freed=past.freed if job.state is lifecycle.State.PENDING else {},
        )
        return self._of_waiting(job, view) if job.state is lifecycle.State.PENDING else view

    def _of_waiting(self, job: Job, view: WhyView) -> WhyView:
        """Ask the matcher's round what would start the job, and what it does not wait for."""
        rules = rules_of(self._state, job.spec.pool, self._settings)
        pool = self._state.pool(job.spec.pool, self._state.jobs, rules.topology)
        decided = self._state.explained.get(job.spec.pool)
        unsaid = view.cause == UNDECIDED and decided is not None and decided.at_s >= job.pending_since_s
        aged = view.cause == "fairness" or (bool(rules.quotas) and view.cause in _FOR_DEVICES)
        if unsaid or aged:  # the round spoke of the first in the order alone; or others may be stopped by now
            view = self._asked(job, view, pool, rules)
        best = Alternatives(pool, self._now_s, rules).best(job)
        rank = self._rank(job) if view.cause not in _NO_PLACE else None
        borrowers = borrowers_of(pool, self._now_s, rules) if rules.quotas else ()
        start_in_s, basis = None, ""
        if best is None and view.cause in _FOR_DEVICES:
            start_in_s, basis = expected_start(self._state, pool, job.id, self._now_s)
        return msgspec.structs.replace(
            view,
            remedy=best.text if best is not None and view.cause in _FOR_DEVICES else view.remedy,
            not_causes=tuple(suspects.cleared(job, view.cause, suspects.Place(pool, rules, rank, borrowers))),
            rank=rank,
            alternative=best,
            start_in_s=start_in_s,
            basis=basis,
        )

    def _asked(self, job: Job, view: WhyView, pool: Pool, rules: Rules) -> WhyView:
        wait = trial.wait_of(pool, job.id, self._now_s, rules)
        if wait is None:
            return view
        return msgspec.structs.replace(view, cause=wait.cause, evidence=wait.evidence, remedy=wait.remedy)

    def cause(self, job: Job) -> str:
        """Return the one word for why a job waits; empty where it does not wait."""
        return self._waiting(job)[0] if job.state is lifecycle.State.PENDING else ""

    def _said(self, job: Job) -> Said:
        if job.state in TERMINAL:
            return "finished", _ending(job), ""
        if job.state is lifecycle.State.RUNNING:
            return "running", _running(job, self._now_s) + self._beside(job), ""
        return _stopping(job) if job.state in ACTIVE else self._waiting(job)

    def _beside(self, job: Job) -> str:
        """Say with whom a running job shares its devices."""
        if job.spec.sharing == "exclusive" or job.placement is None:
            return ""
        own = ((slot.node_id, index) for slot in job.placement.slots for index in slot.devices)
        others = holding.beside(self._state.jobs, job.id, own)
        what = f"beside {listed(others)}" if others else "beside nobody else"
        return f", {what}, with {job.share:.0%} of the time"

    def _waiting(self, job: Job) -> Said:
        """Return the job's own cause, else what the last round said, else what the gateway sees itself."""
        if (own := _own(job, self._now_s)) is not None:
            return own
        said = self._state.wait_of(job)
        if said is not None and said.cause not in {"held", "backoff"}:  # which was so then, and is no more
            return said.cause, said.evidence, said.remedy
        reason = fit.never(job, self._nodes(job.spec.pool))
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
        return "profiling", evidence, "submit it with `--profile off`, and it is not sampled"
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
