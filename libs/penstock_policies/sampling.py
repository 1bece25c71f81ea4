"""
Whether a workload is sampled, and whether a job waits for what samples show.

One rule for all who go by it: the profiler, who samples; the matcher and the autoscaler, who wait for the answer; and
the gateway, who says whether a job would wait.
"""

from __future__ import annotations

from collections.abc import Collection

from penstock_events import Job, JobSpec


def is_sampled(spec: JobSpec) -> bool:
    """
    Return whether samples may be run of an unseen workload for such a job.

    Examples
    --------
    >>> is_sampled(JobSpec(name="a", command=("python", "train.py"), profile="on"))
    True
    """
    return bool(why_sampled(spec))


def why_sampled(spec: JobSpec) -> str:
    """
    Return why samples may be run of an unseen workload for such a job; empty where its real runs alone are measured.

    A sample runs the job's script once more than its user has asked for. So only those are sampled who name their
    workload, search over it, leave its size to the autoscaler, or ask for it; what is to be started once is started
    once.

    Examples
    --------
    >>> why_sampled(JobSpec(name="a", command=("python", "train.py")))
    ''
    >>> why_sampled(JobSpec(name="a", command=("python", "train.py"), model="mlp"))
    'its model is named'
    >>> why_sampled(JobSpec(name="a", command=("sleep", "1"), model="mlp", opaque=True))
    ''
    """
    if spec.profile == "off" or spec.opaque:
        return ""
    if spec.profile == "on":
        return "it asks for it"
    if spec.model:
        return "its model is named"
    if spec.parent:
        return "it is a sweep's"
    return "it is elastic" if spec.elastic else ""


def is_compared(spec: JobSpec, kinds: Collection[str]) -> bool:
    """Return whether samples compare the device kinds of a pool that such a job fits: one kind needs no comparison."""
    return len(kinds) > 1 and is_sampled(spec)


def awaits_speeds(job: Job, kinds: Collection[str], *, known: bool) -> bool:
    """
    Return whether a job waits for its speeds before it starts.

    Parameters
    ----------
    kinds : collection of str
        Device kinds of its pool that it fits.
    known : bool
        Whether the profiler has said anything about its workload.
    """
    return job.sample is None and not job.epoch and not known and is_compared(job.spec, kinds)


def awaits_scaling(job: Job, *, known: bool) -> bool:
    """
    Return whether an elastic job waits for its first size until it is known how its workload scales.

    Parameters
    ----------
    known : bool
        Whether the profiler has said how it does.
    """
    return job.spec.elastic and job.sample is None and not job.epoch and not known and is_sampled(job.spec)
