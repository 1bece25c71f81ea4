"""
Watch over runs that hold devices and do nothing.

:class:`IdleWatch` compares what each run has done between two looks. A script in a session is idle while it does no
iteration, and any other command while its processes take almost no processor time; neither while one of its devices is
used, as by a long evaluation. Jobs that take turns on a device are not watched: while they do nothing, others have it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from penstock_cluster.accounting import PROC
from penstock_executor.run_state import Key, LocalRun
from penstock_log import RunBusyAgain, RunIdle
from penstock_policies.idleness import IdleRules

BUSY_SHARE: Final = 0.01
"""Part of one processor beyond which a command does something: one that only waits takes less."""
LEAST_PAUSE_S: Final = 60.0
"""Between two facts that one run is idle."""


class RunActivity(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a run has done on this node so far.

    Attributes
    ----------
    steps : int or None
        Iterations that its processes have reported, all together; None where it has no session.
    processor_s : float
        Processor time of all of its processes, in seconds.
    used : bool
        Whether any of its devices has worked lately.
    """

    steps: int | None = None
    processor_s: float = 0.0
    used: bool = False


class _Seen(msgspec.Struct):
    activity: RunActivity
    looked_s: float
    since_s: float
    told_s: float = float("-inf")


class IdleWatch:
    """The idleness of one node's runs."""

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self._seen: dict[Key, _Seen] = {}

    def look(
        self,
        activities: Mapping[Key, RunActivity],
        rules: Mapping[Key, IdleRules],
        told: Mapping[Key, bool],
        now_s: float,
    ) -> Iterator[RunIdle | RunBusyAgain]:
        """
        Compare what runs have done with what they had at the last look, and yield what is to be said.

        Parameters
        ----------
        activities : mapping of (job id, epoch) to RunActivity
            All runs that are watched.
        told : mapping of (job id, epoch) to bool
            Whether the log says that they are idle.
        """
        self._seen = {key: seen for key, seen in self._seen.items() if key in activities}
        for key, activity in activities.items():
            seen = self._seen.get(key)
            if seen is None:
                seen = self._seen[key] = _Seen(activity, now_s, now_s)
                continue  # after a restart of the executor too: what the log says stays until there is a difference
            if _is_busy(seen, activity, now_s):
                seen.since_s = now_s
                if told[key]:
                    yield RunBusyAgain(at_s=now_s, job_id=key[0], epoch=key[1], node_id=self._node_id)
            elif self._is_due(seen, rules[key], now_s) and not told[key]:
                seen.told_s = now_s
                yield RunIdle(
                    at_s=now_s,
                    job_id=key[0],
                    epoch=key[1],
                    node_id=self._node_id,
                    since_s=seen.since_s,
                    measure="processor" if activity.steps is None else "iterations",
                )
            seen.activity, seen.looked_s = activity, now_s

    def forgive(self) -> None:
        """Begin anew: for a while runs could not do anything, or nobody looked."""
        self._seen.clear()

    @staticmethod
    def _is_due(seen: _Seen, rules: IdleRules, now_s: float) -> bool:
        idle_s = now_s - seen.since_s
        return 0 < rules.idle_after_s <= idle_s and now_s - seen.told_s >= LEAST_PAUSE_S


def _is_busy(seen: _Seen, now: RunActivity, now_s: float) -> bool:
    if now.used:
        return True
    if now.steps is not None:
        return now.steps != seen.activity.steps
    spent_s = max(0.0, now.processor_s - seen.activity.processor_s)
    return spent_s > BUSY_SHARE * (now_s - seen.looked_s)


def is_watched(run: LocalRun) -> bool:
    """Say whether a run is watched: it is started, is not to stop, and does not take turns."""
    return run.alive and not (run.asked_s or run.termed_s or run.killed_s) and run.sharing != "lane"


def steps_of(run: LocalRun) -> int | None:
    """Return the iterations that a run's processes have reported; None where none of them has a session."""
    return sum(rank.report.step for rank in run.ranks.values()) if run.greeted else None


def processor_s(pids: Iterable[int], ticks_per_s: float) -> float:
    """Return the processor time of processes and of those children that they have waited for, in seconds."""
    return sum(map(_ticks, pids)) / ticks_per_s


def _ticks(pid: int) -> int:
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return 0  # it has ended meanwhile
    fields = stat[stat.rfind(")") + 2 :].split()
    return sum(map(int, fields[11:15]))  # of the program and of the kernel for it, then of its children
