"""The port of providers: where pilots are submitted, listed and cancelled."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Collection, Mapping, Sequence
from typing import IO, Final, Literal, NamedTuple, Protocol

from penstock_allocator.pilot_script import PilotFolder
from penstock_log import AllocationSpec

LONGEST_S: Final = 60.0
"""A command of a provider that takes longer than this is ended."""
_OWN: Final = ("PENSTOCK_", "SLURM_", "SBATCH_")
"""Variables that speak of the allocator, or of a job of Slurm in which it runs, and not of its pilots."""
_OF_SLURM: Final = frozenset({"SLURM_CONF", "SLURM_JWT"})
"""Where Slurm is, and who asks."""


class ProviderError(Exception):
    """What a provider could not do."""


class SubmissionRefused(ProviderError):
    """A pilot that the provider does not take; another of the same kind would fare no better."""


class ProviderSilent(ProviderError):
    """The provider does not answer now; nothing is known of what was asked."""


class ProviderJob(NamedTuple):
    """
    A pilot as its provider has it.

    Attributes
    ----------
    id : str
        As the provider calls it.
    state : {"waiting", "running", "ended", "cancelled", "silent", "stuck"}
        ``silent``: where it is does not answer now, and nothing is known of it. ``stuck``: it is there and cannot
        start, and waiting does not help.
    hosts : tuple of str
        Where it runs.
    reason : str
        Why it waits or how it ended, in the provider's words.
    """

    id: str
    state: Literal["waiting", "running", "ended", "cancelled", "silent", "stuck"]
    hosts: tuple[str, ...] = ()
    reason: str = ""


class PilotProvider(Protocol):
    """
    Where pilots run.

    All methods may raise :class:`ProviderSilent`.
    """

    async def submit(self, spec: AllocationSpec, name: str, place: PilotFolder, others: Collection[str]) -> str:
        """
        Submit a pilot under a name, and return its id; ``others`` are those of its allocation's other pilots.

        Raises
        ------
        SubmissionRefused
            If it will not be taken.
        """

    async def list_jobs(self, spec: AllocationSpec, pilots: Mapping[str, PilotFolder]) -> Mapping[str, ProviderJob]:
        """
        Return, by name, what the provider knows of these pilots of one allocation.

        One that ended a while ago may be missing, as one that was never submitted is.
        """

    async def cancel(self, job: ProviderJob, place: PilotFolder, *, only_waiting: bool = False) -> None:
        """End a pilot, or with ``only_waiting`` one that has not started; others are passed over."""

    async def clear(self, spec: AllocationSpec, name: str, place: PilotFolder) -> None:
        """
        Remove what a pilot has left at its provider that has ended, or whose submission nobody answered.

        The log has its end after that, so it may be asked for more than once, and where nothing is left.
        """

    async def try_out(self, spec: AllocationSpec, place: PilotFolder) -> str:
        """
        Return what the provider says of a pilot that is not submitted.

        Raises
        ------
        SubmissionRefused
            If it would not be taken.
        """


class CommandResult(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    output: str
    error: str


async def run_command(command: Sequence[str], *, stdin: bytes = b"") -> CommandResult:
    """
    Run a command of a provider.

    Its input is a file and not a pipe: one that ends before it has read it leaves a pipe to which nobody can write. Its
    output goes to files as well: what it leaves running, such as a pilot, has a copy of its pipes under some event
    loops (uvloop), and they would not end before that does. It does not have the variables of the allocator's own
    settings: sbatch would hand them on to the pilot.

    Raises
    ------
    ProviderSilent
        If it is not installed here, or does not end within :data:`LONGEST_S`.
    """
    try:
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as problem:
            given.write(stdin)
            given.seek(0)
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=given,
                stdout=output,
                stderr=problem,
                env={name: value for name, value in os.environ.items() if _is_passed(name)},
            )
            await _ended(process, command[0])
            return CommandResult(process.returncode or 0, _text(output), _text(problem))
    except OSError as error:
        raise ProviderSilent(
            f"{command[0]} cannot be run on the allocator's machine: {error.strerror}; run `penstock service "
            "allocator` where it can"
        ) from error


async def _ended(process: asyncio.subprocess.Process, name: str) -> None:
    """Wait for a command's end, which is brought about where it takes too long, or nobody waits any more."""
    try:
        async with asyncio.timeout(LONGEST_S):
            await process.wait()
    except TimeoutError as error:
        process.kill()
        await process.wait()
        raise ProviderSilent(f"{name} did not end within {LONGEST_S:.0f} s") from error
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace").strip()


def _is_passed(name: str) -> bool:
    return name in _OF_SLURM or not name.startswith(_OWN)
