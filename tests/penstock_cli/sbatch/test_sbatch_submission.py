"""Jobs of scripts that ask to be requeued, as they are submitted anew."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock_cli.sbatch import script as scripts
from penstock_cli.sbatch import spool, submission
from penstock_cli.sbatch.options import SbatchError
from penstock_log import JobSpec
from penstock_log.spec import ArrayMember
from penstock_log.views import SubmittedJob


class OneJobGateway:
    """A gateway that has one job, and keeps what is submitted."""

    user = "ada"

    def __init__(self, spec: JobSpec, open_jobs: Sequence[tuple[str, str]] = ()) -> None:
        self.spec, self.submitted, self.open_jobs = spec, list[JobSpec](), open_jobs

    async def upload(self, folder: str, *, user: str) -> Any:
        """Keep nothing of a folder."""
        assert (Path(folder) / "plan.json").exists(), user
        return SimpleNamespace(digest="d" * 64)

    async def jobs(self, *, name: str, user: str, state: Sequence[str], limit: int, rows: bool) -> Any:
        """Return the open jobs of which the names begin so, as the gateway does where a name ends in a star."""
        assert (user, "PD" in state, limit > 1000, rows) == ("ada", True, True, True)
        found = [SimpleNamespace(id=job_id, name=one) for job_id, one in self.open_jobs if one.startswith(name)]
        return SimpleNamespace(rows=found)

    async def job(self, job_id: str) -> Any:
        """Return the job."""
        assert job_id == self.spec.id
        return SimpleNamespace(spec=self.spec)

    async def submit(self, spec: JobSpec, *, strict: bool) -> Any:
        """Accept a job."""
        assert not strict
        self.submitted.append(spec)
        return SimpleNamespace(id=spec.id)

    async def submit_all(self, specs: Sequence[JobSpec], *, strict: bool) -> Any:
        """Accept jobs."""
        assert not strict
        self.submitted += specs
        return [SubmittedJob(id=spec.id, seq=1, created=True) for spec in specs]


def requeued(spec: JobSpec, *open_jobs: tuple[str, str], is_singleton: bool = False) -> JobSpec:
    """Return the job in the place of one that asks to be requeued."""
    gateway = OneJobGateway(spec, open_jobs)
    asyncio.run(submission.submit_anew(cast("Any", gateway), spec.id, is_singleton=is_singleton))
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


def singleton(*open_jobs: tuple[str, str], array: str = "") -> OneJobGateway:
    """Submit a script of the name `fit` that is a singleton, beside some jobs."""
    script = scripts.of_text("fit.sbatch", b"#!/bin/sh\n#SBATCH -G1 -J fit -d afterok:77,singleton\ntrue\n")
    found = submission.prepare(script, (), (), overrides={}, array=array, environ={})
    gateway = OneJobGateway(found.spec, open_jobs)
    asyncio.run(submission.submit(cast("Any", gateway), found, strict=False))
    return gateway


def test_a_singleton_waits_for_all_of_its_name_by_their_whole_ids() -> None:
    (spec,) = singleton(
        ("101", "fit"), ("200-3", "fit"), ("200-4", "fit"), ("300", "fitting"), ("train-2024-1", "fit")
    ).submitted
    waited_for = ("afterany:101", "afterany:200-3", "afterany:200-4", "afterany:train-2024-1")
    assert spec.after == ("afterok:77", *waited_for)
    (alone,) = singleton().submitted
    assert alone.after == ("afterok:77",)


def test_the_jobs_of_an_array_that_is_a_singleton_run_one_after_the_other() -> None:
    found = singleton(array="0-8%4").submitted
    assert [one.array.most for one in found if one.array is not None] == [1] * 9


def test_a_requeued_singleton_waits_for_those_that_were_submitted_behind_its_old_number() -> None:
    found = requeued(
        JobSpec(id="1001", name="fit", command=("true",)), ("1001", "fit"), ("1002", "fit"), is_singleton=True
    )
    assert found.after == ("afterany:1001", "afterany:1002")


def test_the_file_of_a_runs_own_login_is_not_exported_to_the_job_that_it_submits() -> None:
    secret = {"PENSTOCK_CREDENTIALS": "/data/secrets/a1-1/PENSTOCK_CREDENTIALS", "PENSTOCK_URL": "nats://n1"}
    assert spool.exported("ALL", "", secret) == ("ALL", {"PENSTOCK_URL": "nats://n1"})
    own = {"PENSTOCK_CREDENTIALS": "/home/ada/ada.json"}
    assert spool.exported("ALL", "", own) == ("ALL", own)


def test_a_singleton_behind_more_jobs_than_one_can_wait_for_is_told_what_to_do() -> None:
    with pytest.raises(SbatchError, match="submit an array of which one runs at a time"):
        singleton(*((str(number), "fit") for number in range(1000, 2001)))


def test_lines_below_the_first_command_are_told_and_not_read_but_for_texts_in_the_script() -> None:
    body = (
        b"#!/bin/sh\n#SBATCH -G1\n\n# a word\n#SBATCH -t 5\ndate\n#SBATCH --mem=4G\ncat > x << EOF\n#SBATCH -n9\nEOF\n"
    )
    script = scripts.of_text("a.sbatch", body)
    assert ([one.name for one in script.given], script.unread) == (["gpus", "time"], (7,))
    notes = submission.prepare(script, (), (), overrides={}, environ={}).job.notes
    assert notes == ["a.sbatch:7: #SBATCH below the first command is a comment, to sbatch too; move it up"]


@pytest.mark.parametrize("end", ["", "\n", "\n\n"])
@pytest.mark.parametrize("first", ["#!/bin/zsh", "#!/usr/bin/env python3", "#! /bin/bash -l"])
def test_a_script_of_any_interpreter_is_kept_as_it_is(first: str, end: str) -> None:
    body = f"{first}\n#SBATCH -G1\nprint(1){end}".encode()
    assert scripts.of_text("a.sbatch", body).body == body
    assert scripts.of_text("a.sbatch", f"{first}\n#SBATCH -G1".encode()).unread == ()


def test_a_requeued_job_that_was_held_at_first_is_not_held_again() -> None:
    found = requeued(JobSpec(id="1001", name="fit", command=("true",), hold=True))
    assert not found.hold
    assert found.env["SLURM_RESTART_COUNT"] == "1"
