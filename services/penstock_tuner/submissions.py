"""When each outstanding trial is submitted: as soon as few others wait, then again until it is accepted."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Final

LONGEST_S: Final = 60.0
WINDOW: Final = 500
"""Submissions that wait for the gateway at once: a long sweep neither floods the queue nor is queued twice over."""


class Submissions:
    """
    What was submitted when.

    Parameters
    ----------
    resubmit_s : float
        Seconds to the first repetition; doubles with each further one, up to :data:`LONGEST_S`.

    Examples
    --------
    >>> submissions = Submissions(resubmit_s=5.0)
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
