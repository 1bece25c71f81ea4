"""Submits the jobs of a schedule as a person would, and notes what was answered."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from chaos.cluster import Cluster
from chaos.schedule import STEP_S, PlannedJob
from penstock import Client
from penstock.submission import fill
from penstock_bus import BusError, ServiceError
from penstock_log import JobSpec, SweepSpec, subjects
from penstock_log.spec import MemoryNeed, Uniform

JOBS: Final = Path(__file__).parent / "jobs"
TRIALS: Final = 3
_AGAIN_S: Final = 0.2
_REFUSED: Final = range(400, 500)
_BUSY: Final = 429
_NOT_KNOWN: Final = 404
_OVER: Final = 409
"""The answer to who cancels what has ended."""


@dataclass
class Submitter:
    """
    Submits, and goes on asking until there is an answer.

    Attributes
    ----------
    accepted : dict of str to float
        Jobs and sweeps whose submission was answered, and when.
    cancelled : set of str
        Those whose cancellation was asked for, answered or not.
    refused : dict of str to str
        What was refused, and why: none of it should be.
    """

    cluster: Cluster
    began_s: float
    accepted: dict[str, float] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    tries: int = 0

    async def run(self, job: PlannedJob) -> None:
        """Submit one job at its time, and cancel it at its time."""
        await self._until(job.at_s)
        await self._answered(job.id, lambda client: self._submit(client, job))
        if job.id not in self.refused:
            self.accepted[job.id] = asyncio.get_running_loop().time()
        if job.cancel_at_s:
            await self._until(job.cancel_at_s)
            self.cancelled.add(job.id)
            cancels = (lambda client: client.cancel_sweep(job.id)) if job.kind == "sweep" else None
            cancels = cancels or (lambda client: client.cancel(job.id, "chaos"))
            await self._answered(f"cancel {job.id}", cancels, fine=(_OVER,))

    async def _submit(self, client: Client, job: PlannedJob) -> object:
        if job.inbox:
            return await client.bus.submit(subjects.INBOX_JOBS, msgspec.json.encode(fill(self._spec(job))))
        if job.kind != "sweep":
            return await client.submit(self._spec(job))
        space = {"lr": Uniform(low=0.1, high=1.0)}
        spec = self._spec(job)
        sweep = SweepSpec(
            id=job.id, name=job.id, job=spec, space=dict(space), metric="loss", mode="min", trials=TRIALS, intra=False
        )
        return await client.tune(sweep)

    def _spec(self, job: PlannedJob) -> JobSpec:
        return JobSpec(
            id="" if job.kind == "sweep" else job.id,
            name=job.id,
            command=_command(job),
            gpus=job.gpus,
            sharing="lane" if job.kind == "lane" else "exclusive",
            memory=MemoryNeed(persistent_bytes=1 << 26, ephemeral_bytes=1 << 26) if job.kind == "lane" else None,
            retries=job.retries,
            backoff_s=0.2,
            grace_s=1.0,
            checkpoint_s=job.checkpoint_s,
            profile="off",
            cwd=str(self.cluster.notes),
            env={"CHAOS_NOTES": str(self.cluster.notes)},
        )

    async def _answered(self, what: str, ask: Callable[[Client], Awaitable[object]], fine: Sequence[int] = ()) -> None:
        while True:
            self.tries += 1
            try:
                async with self.cluster.client() as bus, Client(bus=bus) as client:
                    await ask(client)
                    return
            except ServiceError as error:
                if error.code in fine:
                    return
                not_yet = error.code == _NOT_KNOWN and what.startswith("cancel")  # the inbox has it, the gateway will
                if error.code in _REFUSED and error.code != _BUSY and not not_yet:
                    self.refused[what] = str(error)
                    return
            except BusError:
                pass
            await asyncio.sleep(_AGAIN_S)

    async def _until(self, at_s: float) -> None:
        await asyncio.sleep(max(0.0, self.began_s + at_s - asyncio.get_running_loop().time()))


def _command(job: PlannedJob) -> tuple[str, ...]:
    if job.kind not in {"command", "retried"}:
        return (sys.executable, str(JOBS / "session_job.py"), str(job.steps), str(STEP_S))
    words = (str(JOBS / "command_job.py"), f"{job.length_s:.2f}", str(job.code), str(job.failures), *job.flags)
    return (sys.executable, "-I", "-S", *words)
