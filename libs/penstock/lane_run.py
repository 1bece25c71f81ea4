"""
Processes that take turns in a lane, with a keeper of their own: what the benches of lanes run.

Shell code: it forks. Call it from a process that has one thread.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from penstock.bare import shared
from penstock_lanes import Keeper, Rota

LANE: Final = "0/0"


def in_lane(
    jobs: Sequence[Callable[[Path, memoryview], None]], words: int, steps: int = 1, ends: Sequence[int] = ()
) -> list[list[int]]:
    """
    Run each job in a process of its own, all in one lane; return what each has noted.

    Parameters
    ----------
    jobs : sequence of callable
        ``job(path, notes)``: what a process does; the path is the keeper's.
    words : int
        That each may note.
    steps : int
        Iterations of a turn.
    ends : sequence of int
        The exit code of each, -15 for a signal 15; 0 if it is empty.

    Raises
    ------
    RuntimeError
        If a process ends in another way.
    """
    notes = [shared(words) for _ in jobs]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lanes.sock"
        keeper = Keeper(path)
        keeper.open(LANE)
        keeper.lease(LANE, steps)
        children = [_fork(keeper, partial(job, path, mine)) for job, mine in zip(jobs, notes, strict=True)]
        rota = Rota(keeper, lambda _: [LANE])
        rota.serve(lambda: rota.gone == len(jobs))
        statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        rota.close()
        keeper.close()
    if statuses != list(ends or [0] * len(jobs)):
        raise RuntimeError(f"a measured process ended with {statuses}; expected {list(ends) or 0}")
    return [mine.tolist() for mine in notes]


def _fork(keeper: Keeper, job: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            keeper.close()
            job()
            code = 0
        finally:
            os._exit(code)
    return child
