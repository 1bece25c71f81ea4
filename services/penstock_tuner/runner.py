"""The tuner on a bus: its decider, and the submission of the trials that it opened."""

from __future__ import annotations

import asyncio

import msgspec

from penstock_bus import BusError, Delivery
from penstock_bus.context import Shell
from penstock_bus.replica import Replica
from penstock_bus.tasks import background
from penstock_events import subjects
from penstock_tuner.machine import State, decider, outstanding, submission
from penstock_tuner.settings import Settings
from penstock_tuner.submissions import Submissions


async def run(shell: Shell, settings: Settings) -> None:
    """Run sweeps until the shell is stopping."""
    opened = asyncio.Event()

    def on_delivery(delivery: Delivery) -> None:
        if subjects.writer_of(delivery.subject) == "tuner":
            opened.set()

    replica = Replica(shell, decider(settings), on_delivery=on_delivery)
    async with background(_keep_submitting(shell, replica, opened, settings)):
        await replica.run()


async def _keep_submitting(shell: Shell, replica: Replica[State], opened: asyncio.Event, settings: Settings) -> None:
    submissions = Submissions(settings.resubmit_s)
    while True:
        try:
            async with asyncio.timeout(min(1.0, settings.resubmit_s)):
                await opened.wait()
        except TimeoutError:
            pass
        opened.clear()
        if replica.leading and shell.vitals.ready:
            await _submit(shell, replica, submissions)


async def _submit(shell: Shell, replica: Replica[State], submissions: Submissions) -> None:
    for job_id in submissions.due(outstanding(replica.live.state), shell.now_s()):
        spec = submission(replica.live.state, job_id)
        if spec is None:  # accepted or cancelled while others were being submitted
            continue
        try:
            await shell.bus.submit(subjects.INBOX_JOBS, msgspec.json.encode(spec))
        except BusError as error:
            shell.log.warning("trial_not_submitted", job_id=job_id, error=str(error))
            return
        times = submissions.sent(job_id, shell.now_s())
        if times > 1:
            advice = "is the gateway running? does `penstock doctor` list rejections?"
            shell.log.warning("trial_submitted_again", job_id=job_id, times=times, advice=advice)
