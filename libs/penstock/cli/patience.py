"""Long computations: how far they are, on a terminal, and Ctrl-C that leaves the results so far."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Final, Self

from penstock.cli.render import count, seen
from penstock.cli.times import span

_EVERY_S: Final = 0.2


class Patience:
    """
    Within it, the first Ctrl-C only says that it is ``over``; the second interrupts.

    Examples
    --------
    >>> with Patience() as patience:
    ...     told = patience.watch("fifo", jobs=3)
    ...     told(1), patience.over
    (True, False)
    """

    def __init__(self) -> None:
        """Begin with all the patience in the world."""
        self.over = False
        self._before: Any = None
        self._shown_s = 0.0

    def __enter__(self) -> Self:
        """Take Ctrl-C."""
        self._before = signal.signal(signal.SIGINT, self._interrupted)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give Ctrl-C back, and clear the line."""
        signal.signal(signal.SIGINT, self._before)
        self._say("")

    def watch(self, what: str, jobs: int) -> Callable[[int], bool]:
        """Return a function that is told how many jobs have ended, and says whether to go on."""
        began_s = _now_s()

        def told(ended: int) -> bool:
            now_s = _now_s()
            if now_s - self._shown_s >= _EVERY_S:
                self._shown_s = now_s
                self._say(progress(what, ended, jobs, now_s - began_s))
            return not self.over

        return told

    def steps(self, what: str, of: int) -> Callable[[int], bool]:
        """Return a function that is told how many of several are done, and says whether to go on."""
        began_s = _now_s()

        def told(done: int) -> bool:
            left = f", {span((_now_s() - began_s) / done * (of - done))} left" if done else ""
            self._say(f"{what}: {done} of {of} done{left}")
            return not self.over

        return told

    @contextmanager
    def deaf(self) -> Iterator[None]:
        """Ignore Ctrl-C within, as processes that are started within will."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, self._interrupted)

    def _interrupted(self, _signal: int, _frame: FrameType | None) -> None:
        if self.over:
            raise KeyboardInterrupt
        self.over = True

    def _say(self, line: str) -> None:
        if sys.stderr is not None and sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{seen(line)}")
            sys.stderr.flush()


def progress(what: str, ended: int, jobs: int, elapsed_s: float) -> str:
    """
    Return how far it is, how fast, and how long it will take if it goes on like this.

    Examples
    --------
    >>> progress("2d-las", 2000, 8000, 4.0)
    '2d-las: 2,000 of 8,000 jobs, 25 %, 500 jobs/s, 12.0s left'
    """
    line = f"{what}: {ended:,} of {count(jobs, 'job')}, {100 * ended // max(jobs, 1)} %"
    if not (ended and elapsed_s > 0):
        return line
    rate = ended / elapsed_s
    return f"{line}, {rate:,.0f} jobs/s, {span((jobs - ended) / rate)} left"


def _now_s() -> float:
    return time.monotonic()  # noqa: TID251 - people are shown a rate; nothing is decided by it
