"""
What the killing of a process costs its neighbour in a lane: from the signal to the neighbour's iteration.

Shell code, as :mod:`penstock.measuring` is. The kernel frees what the process had in memory before anybody hears of its
end, so that is measured with little and with much.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from time import monotonic_ns, sleep
from typing import Final

from penstock.bare import shared
from penstock.lane_run import in_lane
from penstock_lanes import Member, Who

_SLEPT_S: Final = 0.02
"""In which the neighbour falls asleep, having asked."""
_LOOK_S: Final = 0.001
_MIB: Final = 1 << 20
_HOLDS, _ASKS, _KILLED, _RUNS = range(4)


def killed_ms(holding_mib: int) -> float:
    """
    Kill a process in its iteration; return after which time its neighbour is in one, in milliseconds.

    Parameters
    ----------
    holding_mib : int
        What it has in memory besides an interpreter.
    """
    words = shared(4)

    def holder(path: Path, _: memoryview) -> None:
        member = Member(str(path), Who("killed", 1, 0))
        member.enter()
        held = b"x" * (holding_mib * _MIB)
        words[_HOLDS] = len(held) + 1
        _wait_for(words, _ASKS)
        sleep(_SLEPT_S)
        words[_KILLED] = monotonic_ns()
        os.kill(os.getpid(), signal.SIGKILL)

    def neighbour(path: Path, _: memoryview) -> None:
        _wait_for(words, _HOLDS)
        member = Member(str(path), Who("neighbour", 1, 0))
        words[_ASKS] = 1
        member.enter()
        words[_RUNS] = monotonic_ns()
        member.close()

    in_lane([holder, neighbour], 1, ends=(-signal.SIGKILL, 0))
    return (words[_RUNS] - words[_KILLED]) / 1e6


def _wait_for(words: memoryview, index: int) -> None:
    while not words[index]:
        sleep(_LOOK_S)
