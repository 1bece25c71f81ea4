"""When each outstanding trial is submitted: at once, then again at growing intervals until it is accepted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

LONGEST_S: Final = 60.0


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
    >>> submissions.due(["t1"], now_s=0.0)
    ['t1']
    >>> submissions.sent("t1", now_s=0.0)
    1
    >>> submissions.due(["t1"], now_s=4.0), submissions.due(["t1"], now_s=5.0)
    ([], ['t1'])
    """

    def __init__(self, resubmit_s: float) -> None:
        self._resubmit_s = resubmit_s
        self._sent: dict[str, tuple[int, float]] = {}

    def due(self, outstanding: Sequence[str], now_s: float) -> list[str]:
        """Return the job ids to be submitted now; ids that are no longer outstanding are forgotten."""
        self._sent = {job_id: self._sent[job_id] for job_id in outstanding if job_id in self._sent}
        return [job_id for job_id in outstanding if job_id not in self._sent or self._sent[job_id][1] <= now_s]

    def times(self, job_id: str) -> int:
        """Return how often an outstanding job was submitted."""
        return self._sent.get(job_id, (0, 0.0))[0]

    def sent(self, job_id: str, now_s: float) -> int:
        """Note a submission; return how many there were."""
        times = self._sent.get(job_id, (0, 0.0))[0] + 1
        pause_s = min(self._resubmit_s * 2.0 ** (times - 1), max(LONGEST_S, self._resubmit_s))
        self._sent[job_id] = (times, now_s + pause_s)
        return times
