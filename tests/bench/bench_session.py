"""What a step's boundary costs: ``python tests/bench/bench_session.py [STEPS]``; nanoseconds, the least of five."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns

from penstock.sessions.session import Session
from penstock.sessions.setup import ProcessSetup

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from executor_stub import ExecutorStub, small_executor

ROUNDS = 5


def bare(steps: int) -> None:
    """Loop as a script does without a session."""
    for _ in range(steps):
        pass


def plain(steps: int) -> None:
    """Loop in a session without an executor."""
    with Session(ProcessSetup()) as session:
        for _ in session.iterations(range(steps)):
            pass


@contextmanager
def attended(executor: ExecutorStub) -> Iterator[Callable[[int], None]]:
    """Yield a loop in a session whose executor is there and asks nothing."""
    with Session(ProcessSetup(socket=str(executor.path))) as session:

        def loop(steps: int) -> None:
            for _ in session.iterations(range(steps)):
                pass

        yield loop


def least_ns(loop: Callable[[int], None], steps: int) -> float:
    """Return the least time of a step over some rounds."""
    times = []
    for _ in range(ROUNDS):
        before = perf_counter_ns()
        loop(steps)
        times.append(perf_counter_ns() - before)
    return min(times) / steps


def main() -> None:
    """Print the three costs."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    base = least_ns(bare, steps)
    alone = least_ns(plain, steps)
    with tempfile.TemporaryDirectory() as folder, small_executor(Path(folder)) as executor, attended(executor) as loop:
        watched = least_ns(loop, steps)
    print(f"bare loop                  {base:7.1f} ns a step")
    print(f"session, no executor       {alone:7.1f} ns a step, {alone - base:+7.1f} ns")
    print(f"session, executor is idle  {watched:7.1f} ns a step, {watched - base:+7.1f} ns (aim: 1,000)")


if __name__ == "__main__":
    main()
