"""
Pilots as jobs of a Slurm cluster, by ``sbatch``, ``squeue`` and ``scancel``.

``squeue`` is asked for a format of its own and not for JSON, which needs a plugin that many clusters lack. It shows
jobs that have ended for some minutes (Slurm's ``MinJobAge``).
"""

from __future__ import annotations

import getpass
import math
import re
from collections.abc import Collection, Mapping
from typing import Final, Literal

from penstock_allocator.pilot_script import PilotFolder
from penstock_allocator.providers.provider import (
    CommandResult,
    ProviderJob,
    ProviderSilent,
    SubmissionRefused,
    run_command,
)
from penstock_log import AllocationSpec

_WAITING: Final = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED", "SPECIAL_EXIT"})
_RUNNING: Final = frozenset({"RUNNING", "COMPLETING", "STAGE_OUT", "RESIZING", "SIGNALING", "STOPPED"})
_AWAY: Final = re.compile(
    r"contact slurm controller|connection (refused|timed out|failure)|temporarily unable|socket timed out|"
    r"zero bytes were transmitted|slurm backup controller in standby|communication connection failure|"
    r"controller (is )?not respond",
    re.IGNORECASE,
)
"""What Slurm's commands say while slurmctld is away or busy."""
_FORMAT: Final = "%i|%T|%N|%r|%j"


class SlurmProvider:
    """Pilots as batch jobs."""

    async def submit(self, spec: AllocationSpec, name: str, place: PilotFolder, others: Collection[str]) -> str:  # noqa: ARG002 - the port's
        """Submit a pilot by ``sbatch``; see :meth:`PilotProvider.submit`."""
        done = await run_command(command(spec, name, place))
        _check_reached(done)
        number = done.output.splitlines()[-1].partition(";")[0] if done.output else ""
        if done.code or not number.isdecimal():
            raise SubmissionRefused(f"sbatch: {_said(done)}")
        return number

    async def list_jobs(
        self,
        spec: AllocationSpec,  # noqa: ARG002 - the port's
        pilots: Mapping[str, PilotFolder],
    ) -> Mapping[str, ProviderJob]:
        """Return what ``squeue`` shows of pilots; see :meth:`PilotProvider.list_jobs`."""
        found: dict[str, ProviderJob] = {}
        if not pilots:
            return found
        done = await run_command(
            ["squeue", "--noheader", "--states=all", f"--user={getpass.getuser()}", f"--format={_FORMAT}"]
        )
        if done.code:
            raise ProviderSilent(f"squeue: {_said(done)}")
        for line in done.output.splitlines():
            number, state, hosts, reason, name = (*line.split("|", 4), "", "", "", "")[:5]
            if name in pilots and not (name in found and found[name].state in {"waiting", "running"}):
                found[name] = ProviderJob(number, _state(state), (hosts,) if hosts else (), _reason(state, reason))
        return found

    async def cancel(self, job: ProviderJob, place: PilotFolder, *, only_waiting: bool = False) -> None:  # noqa: ARG002 - the port's
        """End a pilot by ``scancel``; see :meth:`PilotProvider.cancel`."""
        done = await run_command(["scancel", *(["--state=PENDING"] if only_waiting else []), job.id])
        if done.code and "invalid job id" not in done.error.lower():
            raise ProviderSilent(f"scancel: {_said(done)}")

    async def clear(self, spec: AllocationSpec, name: str, place: PilotFolder) -> None:
        """Do nothing: Slurm forgets by itself; see :meth:`PilotProvider.clear`."""

    async def try_out(self, spec: AllocationSpec, place: PilotFolder) -> str:
        """Return what ``sbatch --test-only`` says; see :meth:`PilotProvider.try_out`."""
        done = await run_command(["sbatch", "--test-only", *arguments(spec, "penstock-try", place), str(place.batch)])
        _check_reached(done)
        if done.code:
            raise SubmissionRefused(f"sbatch: {_said(done)}")
        return _said(done)


def command(spec: AllocationSpec, name: str, place: PilotFolder) -> list[str]:
    """Return the command that submits a pilot; of another provider's, nothing."""
    return ["sbatch", "--parsable", *arguments(spec, name, place), str(place.batch)] if spec.provider == "slurm" else []


def arguments(spec: AllocationSpec, name: str, place: PilotFolder) -> list[str]:
    """
    Return the arguments of ``sbatch`` for a pilot; the allocation's own come last, where they count.

    A pilot that is requeued after the loss of its machine would be a second one of the same name: it is not.

    Examples
    --------
    >>> from pathlib import Path
    >>> place = PilotFolder(Path("/shared/lab-1"), Path("/shared/checkpoints"))
    >>> spec = AllocationSpec(provider="slurm", walltime_s=90, options=("--partition=gpu",))
    >>> arguments(spec, "penstock-lab-1", place)[1:]
    ['--time=2', '--nodes=1', '--no-requeue', '--output=/shared/lab-1/output.txt', '--partition=gpu']
    """
    return [
        f"--job-name={name}",
        f"--time={math.ceil(spec.walltime_s / 60)}",
        f"--nodes={spec.nodes}",
        "--no-requeue",
        f"--output={place.output}",
        *spec.options,
    ]


def _state(state: str) -> Literal["waiting", "running", "ended", "cancelled"]:
    if state in _WAITING:
        return "waiting"
    if state in _RUNNING:
        return "running"
    return "cancelled" if state == "CANCELLED" else "ended"


def _reason(state: str, reason: str) -> str:
    if state == "PENDING":
        return "" if reason == "None" else reason
    return state if reason in {"None", ""} else f"{state}: {reason}"


def _check_reached(done: CommandResult) -> None:
    if done.code and _AWAY.search(done.error):
        raise ProviderSilent(_said(done))


def _said(done: CommandResult) -> str:
    return " / ".join((done.error or done.output or f"exit code {done.code}").splitlines())
