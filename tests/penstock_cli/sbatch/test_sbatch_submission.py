"""Jobs of scripts that ask to be requeued, as they are submitted anew."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from penstock_cli.sbatch import submission
from penstock_log import JobSpec
from penstock_log.spec import ArrayMember


class OneJobGateway:
    """A gateway that has one job, and keeps what is submitted."""

    def __init__(self, spec: JobSpec) -> None:
        self.spec, self.submitted = spec, list[JobSpec]()

    async def job(self, job_id: str) -> Any:
        """Return the job."""
        assert job_id == self.spec.id
        return SimpleNamespace(spec=self.spec)

    async def submit(self, spec: JobSpec, *, strict: bool) -> Any:
        """Accept a job."""
        assert not strict
        self.submitted.append(spec)
        return SimpleNamespace(id=spec.id)


def requeued(spec: JobSpec) -> JobSpec:
    """Return the job in the place of one that asks to be requeued."""
    gateway = OneJobGateway(spec)
    asyncio.run(submission.submit_anew(cast("Any", gateway), spec.id))
    (found,) = gateway.submitted
    return found


def test_a_requeued_job_of_an_array_knows_its_index_among_all_of_the_array() -> None:
    member = ArrayMember(id="1000", index=3, count=5, min=1, max=9, step=2, most=2)
    found = requeued(JobSpec(id="1000-3", name="fit", command=("true",), array=member))
    assert found.array is not None
    assert found.id == f"{found.array.id}-3"
    assert found.array.id != "1000"
    assert (found.array.index, found.array.count, found.array.min, found.array.max) == (3, 5, 1, 9)
    assert (found.array.step, found.array.most) == (2, 2)
    assert found.after == ("afterany:1000-3",)


def test_a_requeued_job_that_was_held_at_first_is_not_held_again() -> None:
    found = requeued(JobSpec(id="1001", name="fit", command=("true",), hold=True))
    assert not found.hold
    assert found.env["SLURM_RESTART_COUNT"] == "1"
