"""The samples that the profiler runs of a new job's workload: they come before the job, and take what is idle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from penstock_events import Job, Jobs, JobSpec, Sample, SamplesRequested, State, workload
from penstock_gateway import machine
from penstock_policies import sampling
from penstock_policies.cluster import fits
from penstock_policies.points import Point, Wanted, missing, samples


def coming(state: machine.State, spec: JobSpec, now_s: float) -> list[Job]:
    """
    Return the samples that are asked for when a job is submitted, waiting; none where its workload is known.

    Notes
    -----
    The search for what a device holds is left out: its samples come one by one, as others end.
    """
    key = workload.key(spec)
    tried = spec if sampling.is_sampled(spec) else _sampled_for(state, key)
    wanted = list(_wanted(state, spec, tried, key)) if tried is not None else []
    if tried is None or not wanted:
        return []
    asked = SamplesRequested(at_s=now_s, key=key, spec=tried, samples=samples(key, wanted))
    return list(Jobs().apply(asked))


def _wanted(state: machine.State, spec: JobSpec, tried: JobSpec, key: str) -> Iterator[Wanted]:
    before = [state.jobs[sample_id] for sample_id in state.samples.get(key, ())]
    measured = _measured(state, key)
    if not measured and any(job.state is State.FAILED for job in before):
        return
    told = [job.sample for job in before if job.sample is not None]
    devices = Counter(
        device.kind for node in state.cluster.usable(tried.pool) for device in node.devices if fits(tried, device)
    )
    for kind in sorted(devices):
        of_kind = [sample for sample in told if sample.kind == kind]
        sizes = _sizes(spec, devices[kind], of_kind)
        yield from ((kind, size) for size in sizes)
        if not (sizes or of_kind or len(devices) == 1 or (kind in measured and _ran_alone(state, key))):
            yield kind, None


def _sizes(spec: JobSpec, devices: int, asked: list[Sample]) -> list[Point]:
    before = [Point(sample.gpus, sample.batch_size) for sample in asked if sample.batch_size]
    return missing(spec, devices, before) if spec.elastic and sampling.is_sampled(spec) else []


def _sampled_for(state: machine.State, key: str) -> JobSpec | None:
    """Return the last other job for which a workload is sampled, on kinds of devices that are new to it as well."""
    same = (state.jobs[job_id] for ids in state.live.values() for job_id in ids if state.keys.get(job_id) == key)
    asking = [job for job in same if job.sample is None and sampling.is_sampled(job.spec)]
    return max(asking, key=lambda job: job.submitted_s).spec if asking else None


def _measured(state: machine.State, key: str) -> set[str]:
    """Return the kinds on which iterations of a workload were measured."""
    profile = state.profiles.get(key)
    return {speed.kind for speed in profile.speeds if speed.iteration_s and not speed.predicted} if profile else set()


def _ran_alone(state: machine.State, key: str) -> bool:
    """Say whether a workload was measured on one device: times of gangs are no comparison."""
    return any(job.profile_key == key and job.spec.gpus == 1 and job.executed_s for job in state.jobs)
