"""Jobs that take turns, and what they have noted of them; for tests."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from executor_cases import World

from penstock_log import MemoryNeed

JOB = Path(__file__).with_name("turning_job.py")
MIB = 2**20
NEED = MemoryNeed(40 * MIB, 0, 60 * MIB)


class Interval(NamedTuple):
    """One iteration, in nanoseconds; ``end`` is 0 for one that never ended."""

    begin: int
    end: int
    job_id: str
    rank: int
    pid: int
    step: int


class Notes:
    """What the jobs of a test have noted."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "notes"

    def command(self, iterations: int, *options: str) -> tuple[str, ...]:
        """Return the command of a job that takes turns."""
        return (sys.executable, str(JOB), str(self.path), str(iterations), *options)

    def intervals(self, *, ended: bool = True) -> list[Interval]:
        """Return all iterations that ended, or that began, in order."""
        text = self.path.read_text() if self.path.exists() else ""
        fields = (line.split() for line in whole_lines(text))
        each = [
            Interval(int(begin), int(end), job, int(rank), int(pid), int(step))
            for job, rank, pid, begin, end, step in fields
        ]
        return sorted(interval for interval in each if bool(interval.end) == ended)

    def done(self, job_id: str) -> int:
        """Return how many iterations a job has ended."""
        return sum(interval.job_id == job_id for interval in self.intervals())

    def steps(self, job_id: str, rank: int = 0) -> list[int]:
        """Return the steps that one process of a job has ended, over all of its runs."""
        return [each.step for each in self.intervals() if (each.job_id, each.rank) == (job_id, rank)]

    def overlaps(self) -> list[tuple[Interval, Interval]]:
        """Return iterations during which another one began."""
        return [(first, second) for first, second in pairwise(self.intervals()) if second.begin < first.end]

    def switches(self) -> int:
        """Return how often one job's iteration followed another's."""
        return sum(first.job_id != second.job_id for first, second in pairwise(self.intervals()))


def whole_lines(text: str) -> list[str]:
    """Return the lines of a file that others write to: the last one may be there by half."""
    return text[: text.rfind("\n") + 1].splitlines()


async def share(world: World, job_id: str, command: tuple[str, ...], *devices: int, **spec: Any) -> None:
    """Submit a job that takes turns, and place it."""
    given = {"sharing": "lane", "memory": NEED, "gpus": max(1, len(devices)), **spec}
    await world.submit(job_id, *command, **given)
    await world.place(job_id, *devices)
