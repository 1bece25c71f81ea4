"""
What each user has open: jobs that are not over, and the trials that open sweeps may still submit.

:class:`OpenJobs` is folded with the read model. A sweep counts, from its submission to its end, as many jobs as it may
have open at a time, so its trials are never refused for want of room.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from penstock_log import (
    TERMINAL,
    Event,
    Job,
    JobSpec,
    SweepCancelled,
    SweepFinished,
    SweepSpec,
    SweepSubmitted,
)
from penstock_policies import search


class OpenJobs(msgspec.Struct):
    """
    What each user has open.

    Attributes
    ----------
    jobs : dict of str to dict of str to bool
        User → ids of the jobs that no open sweep counts; the values say nothing.
    sweeps : dict of str to dict of str to int
        User → id of an open sweep → trials that it may have open at a time.
    trials : dict of str to dict of str to bool
        Open sweep → ids of its open trials.
    """

    jobs: dict[str, dict[str, bool]] = msgspec.field(default_factory=dict)
    sweeps: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    trials: dict[str, dict[str, bool]] = msgspec.field(default_factory=dict)

    def count(self, user: str) -> int:
        """Return how many jobs a user has open, with those that sweeps may still submit."""
        sweeps = self.sweeps.get(user, {})
        trials = sum(max(most, len(self.trials.get(sweep, ()))) for sweep, most in sweeps.items())
        return len(self.jobs.get(user, ())) + trials

    def of(self, user: str) -> Iterator[str]:
        """Yield the ids of a user's jobs that are not over, trials among them."""
        yield from self.jobs.get(user, ())
        for sweep_id in self.sweeps.get(user, ()):
            yield from self.trials.get(sweep_id, ())

    def covers(self, spec: JobSpec) -> bool:
        """Say whether a job is a trial that its open sweep counts already."""
        most = self.sweeps.get(spec.user, {}).get(spec.parent, 0)
        return len(self.trials.get(spec.parent, ())) < most

    def knows(self, user: str, id_: str) -> bool:
        """Say whether a job or a sweep of a user counts here."""
        return id_ in self.jobs.get(user, ()) or id_ in self.sweeps.get(user, ())

    def note(self, job: Job) -> None:
        """Note a job's state."""
        spec = job.spec
        if job.sample is not None:
            return
        if job.state in TERMINAL:
            _drop(self.jobs, spec.user, job.id)
            _drop(self.trials, spec.parent, job.id)
        elif spec.parent in self.sweeps.get(spec.user, ()):
            self.trials.setdefault(spec.parent, {})[job.id] = True
        else:
            self.jobs.setdefault(spec.user, {})[job.id] = True

    def apply(self, event: Event, user: str = "") -> None:
        """Fold a sweep's fact in; ``user`` is whose sweep it is."""
        match event:
            case SweepSubmitted():
                self.sweeps.setdefault(event.spec.job.user, {}).setdefault(event.sweep_id, most_trials(event.spec))
            case SweepFinished() | SweepCancelled():
                of_user = self.sweeps.get(user, {})
                of_user.pop(event.sweep_id, None)
                if not of_user:
                    self.sweeps.pop(user, None)
                for job_id in self.trials.pop(event.sweep_id, ()):
                    self.jobs.setdefault(user, {})[job_id] = True
            case _:
                pass


def most_trials(spec: SweepSpec) -> int:
    """
    Return how many trials a sweep may have open at a time.

    Examples
    --------
    >>> from penstock_log import Uniform
    >>> job = JobSpec(name="j", command=("x",))
    >>> space = {"a": Uniform(low=0.0, high=1.0)}
    >>> most_trials(SweepSpec(name="s", job=job, space=space, metric="m", trials=50, concurrency=8))
    8
    """
    try:
        plan = search.planned(spec)
        trials = plan.trials if plan is not None else search.limit(spec)
    except ValueError:  # a fold refuses nothing: an older version may have accepted what this one would not
        trials = spec.trials
    return min(trials, spec.concurrency) if spec.concurrency else trials


def _drop(groups: dict[str, dict[str, bool]], name: str, id_: str) -> None:
    group = groups.get(name)
    if group is not None and group.pop(id_, False) and not group:
        del groups[name]
