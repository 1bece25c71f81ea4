"""
Submission of a script of sbatch: from the script and what was typed to a job, its folder uploaded first.

Jobs of scripts have numbers as ids, since scripts reckon with them: with a port as ``10000 + SLURM_JOB_ID % 1000``.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock import submission
from penstock_cli import spec_file, value_formats
from penstock_cli.invocation import bad_input
from penstock_cli.sbatch import job as jobs
from penstock_cli.sbatch import spool
from penstock_cli.sbatch.job import SbatchJob
from penstock_cli.sbatch.options import OPTIONS, GivenOption, SbatchError
from penstock_cli.sbatch.script import SbatchScript
from penstock_log import JobSpec
from penstock_log.spec import MOST_DEPENDENCIES

if TYPE_CHECKING:
    from penstock.gateway_client import GatewayClient
    from penstock_log import views

LOGIN_VARIABLE: Final = "SBATCH_PENSTOCK_LOGIN"
"""Names the secret that is the login of a job's user within the job; jobs that it submits have it too."""
_CREDENTIALS: Final = "PENSTOCK_CREDENTIALS"
_LEAST_ID: Final = 100_000_000
_IDS: Final = 900_000_000
"""So that a number and an index behind it are less than 2 ** 31, as seeds and ports are reckoned from them."""
_TRIES: Final = 3
_MOST_LINES: Final = 5
_OPEN: Final = ("PD", "R", "PR", "CG")
_MOST_OPEN: Final = 100_000
_CONFLICT: Final = 409
_CPU_KINDS: Final = ["cpu"]


class BatchSubmission(msgspec.Struct, frozen=True, kw_only=True):
    """
    A script that can be submitted.

    Attributes
    ----------
    spec : JobSpec
        Without the id and the code, which it has once its folder is uploaded.
    job : SbatchJob
    script : SbatchScript
    environment : dict of str to str
        What is exported.
    indices : ArrayText or None
        Of an array.
    """

    spec: JobSpec
    job: SbatchJob
    script: SbatchScript
    environment: dict[str, str]
    indices: value_formats.ArrayText | None = None


def prepare(
    script: SbatchScript,
    words: Sequence[str],
    given: Sequence[GivenOption],
    *,
    overrides: Mapping[str, Any],
    array: str = "",
    without: str = "",
    environ: Mapping[str, str] = os.environ,
) -> BatchSubmission:
    """
    Return a script as a job.

    Parameters
    ----------
    words : sequence of str
        The script's arguments.
    given : sequence of GivenOption
        Options that count more than those of its lines.
    overrides : mapping
        Fields of the specification that were typed of Penstock's own, which count most.
    without : str
        Names of options that are left out, with commas.

    Raises
    ------
    SbatchError, SpecError
        If it cannot be submitted so; the message says all that keeps it from it.
    """
    left_out = value_formats.words([without.replace("--", "")]) if without else ()
    if unknown := [name for name in left_out if name not in OPTIONS]:
        raise SbatchError(f"--without {unknown[0]!r}: it is no option of sbatch; `man sbatch` lists them")
    job = jobs.translate([*script.given, *given], left_out)
    fields = _laid_over(job, overrides)
    cwd = os.getcwd()
    fields.setdefault("name", submission.name_from([script.name]))
    fields["cwd"] = submission.absolute(str(overrides.get("cwd") or os.path.join(cwd, job.chdir)))
    fields["command"] = (*spool.COMMAND, script.name, *words)
    fields["digest"] = hashlib.sha256(script.body).hexdigest()
    login = dict(fields.get("secret_files") or {}).get(_CREDENTIALS) or environ.get(LOGIN_VARIABLE, "")
    if login:
        fields["secret_files"] = {**dict(fields.get("secret_files") or {}), _CREDENTIALS: login}
    spec = spec_file.job(spec_file.EMPTY, fields)
    whole, environment = spool.exported(job.export, job.export_file, environ)
    job.plan |= {
        **spool.submitter(cwd, submission.user_name()),
        "export": whole,
        "name": overrides.get("name") or job.plan.get("name") or script.name,
        "time_limit_s": spec.time_limit_s,
        "partition": spec.pool,
        "login": login,
    }
    if spec.kinds == tuple(_CPU_KINDS) and not job.plan["has_gpus"]:
        job.notes.append("it asks for no GPU, and runs on a device of kind `cpu`; --gres=gpu:1 asks for a GPU")
    if script.unread:
        lines = ", ".join(map(str, script.unread[:_MOST_LINES]))
        job.notes.append(
            f"{script.name}:{lines}: #SBATCH below the first command is a comment, to sbatch too; move it up"
        )
    text = array or job.array
    indices = value_formats.array(text) if text else None
    if job.singleton and indices is not None:
        indices = indices._replace(most=1)  # the jobs of an array have one name
    return BatchSubmission(spec=spec, job=job, script=script, environment=environment, indices=indices)


def _laid_over(job: SbatchJob, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with those laid over them that were typed; the shape of the job follows its devices."""
    if overrides.get("max_gpus") or overrides.get("workdir"):
        name = "--workdir" if overrides.get("workdir") else "--gpus MIN..MAX"
        bad_input(f"{name} does not go with a script of sbatch, which has one size and runs where all nodes see it")
    fields = {**job.fields, **{name: value for name, value in overrides.items() if name != "command"}}
    if "env" in overrides:
        fields["env"] = dict(overrides["env"])
    plan = job.plan
    if "gpus" in overrides:
        total, nodes = int(overrides["gpus"]), plan["nodes"]
        if not plan["has_gpus"]:
            fields["kinds"] = overrides.get("kinds", ())
        if nodes and total % nodes:
            bad_input(f"--gpus {total} are not equally many on each of the script's {nodes} nodes")
        plan |= {"has_gpus": True, "gpus_per_node": total // nodes if nodes else 0}
        fields["gpus_per_node"] = overrides.get("gpus_per_node") or (total // nodes if nodes else 0)
    return fields


async def submit(client: GatewayClient, found: BatchSubmission, *, strict: bool) -> Sequence[views.SubmitAnswer]:
    """
    Upload a script's folder and submit its job, or all jobs of its array.

    Raises
    ------
    ServiceError
        If the gateway refuses it.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-sbatch-") as folder:
        spool.write(Path(folder), found.script, found.job.plan, found.environment)
        code = (await client.upload(folder, user=found.spec.user)).digest
    spec = msgspec.structs.replace(found.spec, code=code)
    if found.job.singleton:
        spec = msgspec.structs.replace(spec, after=(*spec.after, *await _earlier(client, spec)))
    return await submit_coded(client, spec, found.indices, strict=strict)


async def _earlier(client: GatewayClient, spec: JobSpec) -> Sequence[str]:
    """
    Return what a job waits for that is a singleton: all jobs of its name and its user that are not over.

    Raises
    ------
    SbatchError
        If there are more than a job can wait for.
    """
    user = spec.user or client.user or submission.user_name()
    found = await client.jobs(name=spec.name, user=user, state=_OPEN, limit=_MOST_OPEN, rows=True)
    after = [f"afterany:{job.id}" for job in found.rows if job.name == spec.name]
    if len(after) > MOST_DEPENDENCIES:
        raise SbatchError(
            f"--dependency=singleton: {len(after):,} jobs are called {spec.name}, and a job waits for "
            f"{MOST_DEPENDENCIES:,} at most; submit an array of which one runs at a time: --array=0-9%1"
        )
    return after


async def submit_coded(
    client: GatewayClient, spec: JobSpec, indices: value_formats.ArrayText | None, *, strict: bool
) -> Sequence[views.SubmitAnswer]:
    """Submit a job whose folder is uploaded under a number that nobody has, if it was given no id."""
    from penstock_bus.errors import ServiceError
    from penstock_cli.commands.submit import expand, sorted_answers

    for attempt in range(_TRIES):
        one = spec if spec.id else _numbered(spec, str(_LEAST_ID + secrets.randbelow(_IDS)))
        try:
            if indices is None:
                return [await client.submit(one, strict=strict)]
            specs = expand(one, indices)
            answers, refused = sorted_answers(specs, await client.submit_all(specs, strict=strict))
            if refused is None:
                return answers
            raise refused
        except ServiceError as error:
            if error.code != _CONFLICT or spec.id or attempt == _TRIES - 1:
                raise
    raise AssertionError(_TRIES)


def _numbered(spec: JobSpec, number: str) -> JobSpec:
    """Return a job with a number; one of an array goes into a new one, with the counts of the old."""
    if spec.array is None:
        return msgspec.structs.replace(spec, id=number)
    array = msgspec.structs.replace(spec.array, id=number)
    return msgspec.structs.replace(spec, id=f"{number}-{array.index}", array=array)


def number_of(found: Sequence[views.SubmitAnswer], indices: value_formats.ArrayText | None) -> str:
    """Return what people call what was submitted: the job's id, or the array's."""
    return re.sub(r"-\d+$", "", found[0].id) if indices is not None else found[0].id


async def submit_anew(
    client: GatewayClient, job_id: str, *, is_singleton: bool = False
) -> Sequence[views.SubmitAnswer]:
    """
    Submit a job that asks to be requeued: the same job under a new number, which waits until that one has ended.

    One that is a singleton waits for all other jobs of its name too: those that were submitted behind the old number do
    not wait for the new one.
    """
    spec = (await client.job(job_id)).spec
    restarts = int(spec.env.get("SLURM_RESTART_COUNT") or 0) + 1
    after = [f"afterany:{job_id}", *(await _earlier(client, spec) if is_singleton else ())]
    again = msgspec.structs.replace(
        spec,
        id="",
        hold=False,
        retry_of="",
        refused_by=(),
        begin_s=0.0,
        after=tuple(dict.fromkeys(after)),
        env={**spec.env, "SLURM_RESTART_COUNT": str(restarts)},
    )
    return await submit_coded(client, again, None, strict=False)
