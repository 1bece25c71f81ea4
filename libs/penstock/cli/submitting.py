"""What `penstock submit` and `penstock run` do once they know the job."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec
import typer

from penstock.cli import render, show
from penstock.cli.errors import Exit, tell
from penstock.cli.output import stream
from penstock.cli.session import call
from penstock.client import Client
from penstock_events import JobSpec, State, views
from penstock_events.workload import ARRAY_INDEX

_AT_ONCE: Final = 32
"""Submissions under way at a time: the gateway answers one request after the other anyway."""


def expand(spec: JobSpec, indices: Sequence[int]) -> list[JobSpec]:
    """Return the job, or one for each index with the index in its environment and behind its wished id."""
    if not indices:
        return [spec]
    return [
        msgspec.structs.replace(
            spec, id=f"{spec.id}-{index}" if spec.id else "", env={**spec.env, ARRAY_INDEX: str(index)}
        )
        for index in indices
    ]


def exit_code(job: views.JobView) -> int:
    """Return the exit code that stands for how a job ended; 128 + n for one ended by signal n, as shells do."""
    match State(job.state):
        case State.COMPLETED:
            return Exit.OK
        case State.CANCELLED:
            return Exit.INTERRUPTED
        case _ if job.exit_code is None:
            return Exit.FAILED
        case _:
            return job.exit_code or Exit.FAILED if job.exit_code >= 0 else 128 - job.exit_code


def dry_run(ctx: typer.Context, spec: JobSpec, output: str) -> None:
    """Say where the job would start, or why it would wait."""
    found = call(ctx, lambda client: client.dry_run(spec))
    if output == "json":
        render.show_json(found)
    else:
        render.say_lines(render.wrapped(show.dry_run_lines(found)))


def submit(ctx: typer.Context, specs: Sequence[JobSpec], *, strict: bool, wait: bool, output: str) -> None:
    """Submit all, print their ids, and with ``wait`` exit as they did: with the largest of their codes."""

    async def all_of_them(client: Client) -> list[views.JobView]:
        answers = []
        async for answer in _submit_all(client, specs, strict=strict):
            _announce(answer, output)
            answers.append(answer)
        return await _wait_all(client, answers) if wait else []

    ended = call(ctx, all_of_them)
    for job in ended:
        _tell_end(job)
    if code := max(map(exit_code, ended), default=0):
        raise typer.Exit(code)


async def _submit_all(client: Client, specs: Sequence[JobSpec], *, strict: bool) -> AsyncIterator[views.SubmitAnswer]:
    """Yield the answers in order; the first error is raised once all that were accepted beside it have been told."""
    for first in range(0, len(specs), _AT_ONCE):
        some = (client.submit(spec, strict=strict) for spec in specs[first : first + _AT_ONCE])
        found = await asyncio.gather(*some, return_exceptions=True)
        for answer in found:
            if isinstance(answer, views.SubmitAnswer):
                yield answer
        for error in found:
            if isinstance(error, BaseException):
                raise error


async def _wait_all(client: Client, answers: Sequence[views.SubmitAnswer]) -> list[views.JobView]:
    try:
        return list(await asyncio.gather(*(client.wait(answer.id) for answer in answers)))
    except asyncio.CancelledError:
        ids = " ".join(answer.id for answer in answers[:5])
        tell(f"no longer waiting; the job goes on (end it with `penstock cancel {ids}`)")
        raise


def _announce(answer: views.SubmitAnswer, output: str) -> None:
    for warning in answer.warnings:
        tell(warning)
    if not answer.created:
        tell(f"{answer.id} was submitted before, with equal content; it is the same job")
    if output == "json":
        render.show_json_line(answer)
    else:
        render.say(answer.id)


def _tell_end(job: views.JobView) -> None:
    words = {State.COMPLETED: "completed", State.FAILED: "failed", State.CANCELLED: "was cancelled"}
    reason = f": {job.reason}" if job.reason and job.state != State.COMPLETED else ""
    tell(f"{job.id} {words.get(State(job.state), job.state)}{reason}")


def run(ctx: typer.Context, spec: JobSpec, *, strict: bool) -> None:
    """Submit, show the output, and exit as the job did."""

    async def follow(client: Client) -> views.JobView:
        with _Interrupts(client) as interrupts:
            answer = await client.submit(spec, strict=strict)
            for warning in answer.warnings:
                tell(warning)
            tell(f"{answer.id} submitted")
            interrupts.submitted(answer.id)
            await stream(client, answer.id, follow=True)
            return await client.wait(answer.id)

    job = call(ctx, follow)
    if job.state != State.COMPLETED:
        _tell_end(job)
    if code := exit_code(job):
        raise typer.Exit(code)


class _Interrupts:
    """While open, the first Ctrl-C asks the gateway to cancel the job, and the second one leaves."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._job_id = ""
        self._count = 0
        self._asked: asyncio.Task[views.ActAnswer] | None = None
        self._loop, self._main = asyncio.get_running_loop(), asyncio.current_task()

    def __enter__(self) -> _Interrupts:
        self._loop.add_signal_handler(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.remove_signal_handler(signal.SIGINT)

    def submitted(self, job_id: str) -> None:
        """Say which job is meant; one that was interrupted while it was being submitted is cancelled now."""
        self._job_id = job_id
        if self._count:
            self._cancel()

    def _interrupt(self) -> None:
        self._count += 1
        if self._count > 1 and self._main is not None:
            self._main.cancel()
        elif self._job_id:
            self._cancel()

    def _cancel(self) -> None:
        tell(f"cancelling {self._job_id}; Ctrl-C again leaves at once")
        self._asked = self._loop.create_task(self._client.cancel(self._job_id, "interrupted"))
