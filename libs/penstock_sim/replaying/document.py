"""What ``penstock replay -o json`` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from penstock_events import Job
from penstock_sim.outcome import Summary
from penstock_sim.replay import Replay
from penstock_sim.replaying.measured import STATES
from penstock_sim.replaying.score import Check, Score


class Unknown(msgspec.Struct, frozen=True, kw_only=True):
    """
    What the log cannot tell.

    Attributes
    ----------
    cancelled, failed, running : tuple of str
        Jobs without a true length: they were killed, failed in the end, or had not ended when the log did. They run
        as long as they did, and figures leave them out.
    never_ran : tuple of str
        Jobs that held no device: nothing is known of their length. They wait in the replay as well.
    """

    cancelled: tuple[str, ...]
    failed: tuple[str, ...]
    running: tuple[str, ...]
    never_ran: tuple[str, ...]

    @property
    def censored(self) -> int:
        """Jobs that ran and have no true length."""
        return len(self.cancelled) + len(self.failed) + len(self.running)


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """
    What ``penstock replay -o json`` prints.

    Attributes
    ----------
    log : str
        The file's name; ``cluster`` for the live log.
    cluster : str
        The nodes that it was replayed on, in words.
    from_s, to_s : float or None
        The window of submissions, on the log's clock; None where it is open.
    jobs, completed : int
        Jobs of the window that ran, and those of them that completed.
    policies : dict of str to Summary
        ``as it was`` first; jobs without a true length count as not finished.
    changes : dict of str to Score
        Each policy against what really happened; without intervals where ``check`` does not hold.
    check : Check or None
        How far the replay of what was recorded is off; None where it was interrupted.
    """

    log: str
    cluster: str
    from_s: float | None
    to_s: float | None
    jobs: int
    completed: int
    unknown: Unknown
    seed: int
    policies: dict[str, Summary]
    changes: dict[str, Score]
    check: Check | None


def unknown(replay: Replay) -> Unknown:
    """Return what a replay cannot know."""
    trace = replay.measured.trace
    by_state: dict[str, list[str]] = {"completed": [], "failed": [], "cancelled": [], "running": []}
    for job_id, state in zip(trace.job_ids, trace.states, strict=True):
        by_state[state].append(job_id)
    return Unknown(
        cancelled=tuple(by_state["cancelled"]),
        failed=tuple(by_state["failed"]),
        running=tuple(by_state["running"]),
        never_ran=tuple(job.id for job in replay.never_ran),
    )


def fates(jobs: Sequence[Job]) -> dict[str, int]:
    """Return how many jobs that never ran became what."""
    words = {"running": "still waiting"}
    states = (STATES.get(job.state, "running") for job in jobs)
    return dict(Counter(words.get(state, state) for state in states))
