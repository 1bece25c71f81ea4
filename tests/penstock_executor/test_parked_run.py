"""Which runs may be parked, and where a parked one goes on."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock_executor.parked_run import ParkedRun, may_park, why_not_on
from penstock_log import Device, Job, JobSpec, JobState, Placement, ProfileSample, Slot
from penstock_log.job_state import Checkpoint

SPEC = JobSpec(name="j", command=("python", "train.py"))
FAST = [Device(index=i, kind="fast", memory_bytes=2**30, backend="emulated") for i in range(2)]
GPUS = [Device(index=i, kind="h100", memory_bytes=2**36, backend="cuda") for i in range(2)]
PARKED = ParkedRun(job_id="j1", epoch=1, step=9, home=1, spec=SPEC, kind="fast", devices=(FAST[0],), hold_s=7.5)


def job(spec: JobSpec = SPEC, *, nodes: tuple[str, ...] = ("n1",), kind: str = "fast", **about: Any) -> Job:
    """Return a job that was placed again, with the checkpoint of its parked run."""
    placement = Placement(job_id="j1", epoch=2, kind=kind, slots=tuple(Slot(node_id=n, devices=(0,)) for n in nodes))
    about.setdefault("checkpoint", Checkpoint(generation=1, step=9))
    return Job(id="j1", spec=spec, submitted_s=1.0, epoch=2, placement=placement, **about)


def test_it_goes_on_where_its_job_has_the_same() -> None:
    assert why_not_on(PARKED, job(), [FAST[0]], 7.5) == ""
    assert why_not_on(PARKED, job(), [FAST[1]], 7.5) == ""  # whose memory is the host's
    assert why_not_on(PARKED, job(msgspec.structs.replace(SPEC, kinds=("fast",))), [FAST[0]], 7.5) == ""


@pytest.mark.parametrize(
    ("again", "devices", "hold_s", "why"),
    [
        (job(nodes=("n1", "n2")), [FAST[0]], 7.5, "it was given other nodes"),
        (job(checkpoint=None), [FAST[0]], 7.5, "its job goes on from elsewhere"),
        (job(checkpoint=Checkpoint(generation=1, step=5)), [FAST[0]], 7.5, "its job has another checkpoint"),
        (job(checkpoint=Checkpoint(generation=2, step=9)), [FAST[0]], 7.5, "its job has another checkpoint"),
        (job(msgspec.structs.replace(SPEC, batch_size=64)), [FAST[0]], 7.5, "its job's specification has changed"),
        (job(kind="slow"), [FAST[0]], 7.5, "it was given other devices"),
        (job(), FAST, 7.5, "it was given other devices"),
        (job(), [FAST[0]], 15.0, "its node has another time without the matcher"),
    ],
)
def test_it_does_not_go_on_where_anything_is_another(
    again: Job, devices: list[Device], hold_s: float, why: str
) -> None:
    assert why_not_on(PARKED, again, devices, hold_s) == why


def test_on_gpus_it_goes_on_where_it_has_the_very_same() -> None:
    parked = msgspec.structs.replace(PARKED, kind="h100", devices=(GPUS[0],))
    assert why_not_on(parked, job(kind="h100"), [GPUS[0]], 7.5) == ""
    assert why_not_on(parked, job(kind="h100"), [GPUS[1]], 7.5) == "it was given other devices"


def test_one_that_makes_way_for_others_may_be_parked() -> None:
    assert may_park(job(state=JobState.PREEMPTING), 1)


@pytest.mark.parametrize(
    "other",
    [
        job(state=JobState.RUNNING),
        job(state=JobState.COMPLETING),
        job(state=JobState.PREEMPTING, timed_out=True),
        job(state=JobState.PREEMPTING, held=True),
        job(state=JobState.PREEMPTING, sample=ProfileSample(sample_id="s", kind="fast", iterations=5)),
        job(msgspec.structs.replace(SPEC, sharing="lane"), state=JobState.PREEMPTING),
        job(msgspec.structs.replace(SPEC, sharing="fraction", fraction=0.5), state=JobState.PREEMPTING),
        job(msgspec.structs.replace(SPEC, image="pytorch"), state=JobState.PREEMPTING),
        job(msgspec.structs.replace(SPEC, secret_files={"PENSTOCK_CREDENTIALS": "own"}), state=JobState.PREEMPTING),
    ],
)
def test_all_others_leave(other: Job) -> None:
    assert not may_park(other, 1)


def test_a_gang_leaves() -> None:
    assert not may_park(job(state=JobState.PREEMPTING), 2)
