"""The tuner on a bus: its decider, the submission of the trials that it opened, and giving up those refused."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress

import msgspec

from penstock_bus import Append, Bus, BusError, Conflict, Delivery
from penstock_bus.context import Shell
from penstock_bus.replica import Replica
from penstock_bus.tasks import background
from penstock_events import Commit, JobSpec, TrialFinished, subjects
from penstock_tuner.machine import decider, submission
from penstock_tuner.settings import Settings
from penstock_tuner.state import State
from penstock_tuner.submissions import Submissions


async def run(shell: Shell, settings: Settings) -> None:
    """Run sweeps until the shell is stopping."""
    moved = asyncio.Event()

    def on_delivery(delivery: Delivery) -> None:
        if subjects.writer_of(delivery.subject) in {"tuner", "gateway"}:  # opened trials, or accepted some
            moved.set()

    replica = Replica(shell, decider(settings), on_delivery=on_delivery)
    async with background(_keep_submitting(shell, replica, moved, settings)):
        await replica.run()


async def _keep_submitting(shell: Shell, replica: Replica[State], moved: asyncio.Event, settings: Settings) -> None:
    submissions = Submissions(settings.resubmit_s)
    while True:
        try:
            async with asyncio.timeout(min(1.0, settings.resubmit_s)):
                await moved.wait()
        except TimeoutError:
            pass
        moved.clear()
        if replica.leading and shell.vitals.ready:
            await _submit(shell, replica, submissions)


async def _submit(shell: Shell, replica: Replica[State], submissions: Submissions) -> None:
    due = submissions.due(replica.live.state.unaccepted, shell.now_s())
    try:
        refused = await _refusals(shell.bus) if any(map(submissions.times, due)) else {}
        for job_id in due:
            await _submit_one(shell, replica, submissions, job_id, refused)
    except BusError as error:
        shell.log.warning("trials_not_submitted", error=str(error))


async def _submit_one(
    shell: Shell, replica: Replica[State], submissions: Submissions, job_id: str, refused: dict[bytes, str]
) -> None:
    spec = submission(replica.live.state, job_id)
    if spec is None:  # accepted or cancelled while others were being submitted
        return
    body = msgspec.json.encode(spec)
    if body in refused:
        await _give_up(shell, replica, spec, refused[body])
    else:
        await shell.bus.submit(subjects.INBOX_JOBS, body)
        times = submissions.sent(job_id, shell.now_s())
        if times > 1:
            advice = "is the gateway running? does `penstock doctor` list rejections?"
            shell.log.warning("trial_submitted_again", job_id=job_id, times=times, advice=advice)


async def _refusals(bus: Bus) -> dict[bytes, str]:
    """Return what was refused of late: body → reason."""
    return {rejection.body: rejection.reason for rejection in await bus.rejections()}


async def _give_up(shell: Shell, replica: Replica[State], spec: JobSpec, reason: str) -> None:
    """Report a trial that the gateway refuses as failed: it would refuse the same body for ever."""
    shell.log.warning("trial_refused", job_id=spec.id, sweep_id=spec.parent, reason=reason)
    subject = subjects.sweep(spec.parent)
    fact = TrialFinished(
        at_s=shell.now_s(),
        sweep_id=spec.parent,
        job_id=spec.id,
        state="failed",
        problem="refused",
        reason=f"refused: {reason}",
    )
    commit = Commit(id=uuid.uuid4().hex, actor=f"{shell.service}/{shell.replica_id}", facts=(fact,))
    with suppress(Conflict):  # the decider was faster; the trial is still due then, and comes up again
        seq = await shell.bus.append(
            Append(subject=subject, commit=commit, expected=replica.live.heads.get(subject, 0))
        )
        await replica.live.reached(seq)
