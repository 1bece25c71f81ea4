"""
The tuner on a bus: submissions until they are accepted.

:func:`run` runs the decider, submits the trials that it has opened, and reports those that the gateway refuses as
failed. :class:`TrialSubmissions` says when to submit each: once few others wait, and then again until it is accepted.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import Final

import msgspec

from penstock_bus import Append, BusError, Conflict, Delivery
from penstock_bus.follower import background
from penstock_bus.replica import Replica
from penstock_bus.shell import Shell
from penstock_log import Commit, JobSpec, TrialFinished, subjects
from penstock_tuner.machine import TunerSettings, TunerState, decider, submission


async def run(shell: Shell, settings: TunerSettings) -> None:
    """Run sweeps until the shell is stopping."""
    moved = asyncio.Event()

    def on_delivery(delivery: Delivery) -> None:
        if subjects.writer_of(delivery.subject) in {"tuner", "gateway"}:  # opened trials, or accepted some
            moved.set()

    replica = Replica(shell, decider(settings), on_delivery=on_delivery)
    async with background(_keep_submitting(shell, replica, moved, settings)):
        await replica.run()


async def _keep_submitting(
    shell: Shell, replica: Replica[TunerState], moved: asyncio.Event, settings: TunerSettings
) -> None:
    submissions = TrialSubmissions(settings.resubmit_s)
    while True:
        try:
            async with asyncio.timeout(min(1.0, settings.resubmit_s)):
                await moved.wait()
        except TimeoutError:
            pass
        moved.clear()
        if replica.leading and shell.vitals.ready:
            await _submit(shell, replica, submissions)


async def _submit(shell: Shell, replica: Replica[TunerState], submissions: TrialSubmissions) -> None:
    due = submissions.due(replica.live.state.unaccepted, shell.now_s())
    try:
        rejections = await shell.bus.rejections() if any(map(submissions.times, due)) else []
        refused = {rejection.body: rejection.reason for rejection in rejections}
        for job_id in due:
            await _submit_one(shell, replica, submissions, job_id, refused)
    except BusError as error:
        shell.log.warning("trials_not_submitted", error=str(error))


async def _submit_one(
    shell: Shell, replica: Replica[TunerState], submissions: TrialSubmissions, job_id: str, refused: dict[bytes, str]
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


async def _give_up(shell: Shell, replica: Replica[TunerState], spec: JobSpec, reason: str) -> None:
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


LONGEST_S: Final = 60.0
WINDOW: Final = 500
"""Submissions that wait for the gateway at once: a long sweep neither floods the queue nor is queued twice over."""


class TrialSubmissions:
    """
    The times at which trials were submitted.

    Parameters
    ----------
    resubmit_s : float
        Seconds to the first repetition; doubles with each further one, up to :data:`LONGEST_S`.

    Examples
    --------
    >>> submissions = TrialSubmissions(resubmit_s=5.0)
    >>> outstanding = {"t1": "sweep"}
    >>> submissions.due(outstanding, now_s=0.0)
    ['t1']
    >>> submissions.sent("t1", now_s=0.0)
    1
    >>> submissions.due(outstanding, now_s=4.0), submissions.due(outstanding, now_s=5.0)
    ([], ['t1'])
    """

    def __init__(self, resubmit_s: float) -> None:
        self._resubmit_s = resubmit_s
        self._sent: dict[str, tuple[int, float]] = {}

    def due(self, outstanding: Mapping[str, object], now_s: float) -> list[str]:
        """Return the job ids to be submitted now; ids that are no longer outstanding are forgotten."""
        self._sent = {job_id: sent for job_id, sent in self._sent.items() if job_id in outstanding}
        again = [job_id for job_id, (_, due_s) in self._sent.items() if due_s <= now_s]
        fresh = (job_id for job_id in outstanding if job_id not in self._sent)
        return again + list(islice(fresh, max(0, WINDOW - len(self._sent))))

    def times(self, job_id: str) -> int:
        """Return how often an outstanding job was submitted."""
        return self._sent.get(job_id, (0, 0.0))[0]

    def sent(self, job_id: str, now_s: float) -> int:
        """Note a submission; return how many there were."""
        times = self._sent.get(job_id, (0, 0.0))[0] + 1
        pause_s = min(self._resubmit_s * 2.0 ** (times - 1), max(LONGEST_S, self._resubmit_s))
        self._sent[job_id] = (times, now_s + pause_s)
        return times
