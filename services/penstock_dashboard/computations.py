"""
Computations that visitors ask for: ``penstock replay`` and the like, each as a process of its own.

A replay reads the whole log and computes for minutes, so it must not run in the process that answers everybody.
:class:`Computations` starts it as a process of low priority under the dashboard's own login, hears how far it is, and
keeps what it printed. Few run at a time, each for a bounded time, and its visitor may end it. Each has a process group
of its own, which is ended as a whole, and its process is always waited for.

The command line is run as a program and not imported: services stand below it and the simulator, and a process that
compiles kernels and folds a log gives its memory back when it ends.

Known shortcut: a computation is known to the replica of the dashboard that started it, and not after a restart. It can
be asked for again at any time; keeping results in the log's server would lift that.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import structlog

from penstock_dashboard.gateway_port import PageRefused, Visitor
from penstock_log.text import duration

PROGRAM: Final = (
    sys.executable,
    "-P",
    "-c",
    "import os, runpy; os.nice(15); runpy.run_module('penstock', run_name='__main__', alter_sys=True)",
)
"""The command line, at low priority: the services that run the cluster come first."""
_ONE_THREAD: Final = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
_KEPT: Final = 20
_LINE_BYTES: Final = 64 * 1024
_MOST_SAID: Final = 10
END_S: Final = 5.0
"""Between TERM and KILL of a computation that is to end, in seconds."""
_log = structlog.get_logger("penstock.dashboard")


class ComputationStep(msgspec.Struct, frozen=True):
    """
    How far a computation is, as it says itself: of which replay so many jobs have ended.

    ``further`` is how many replays are to follow this one.
    """

    replay: str
    ended: int
    jobs: int
    further: int = 0


class Computation(msgspec.Struct, kw_only=True):
    """
    One computation.

    Attributes
    ----------
    by : str
        Name of the visitor who asked for it, and who alone sees it.
    kind : {"replay", "shadow"}
    title : str
        What is asked, in words.
    words : tuple of str
        The arguments of the command line.
    state : {"running", "done", "failed", "cancelled", "late"}
    steps : list of ComputationStep
        The newest one of each replay, in the order in which they began.
    left_s : float or None
        Seconds until it ends at the pace of its present replay; None where that is not known yet.
    printed : bytes
        What it printed: the answer, as JSON.
    error : str
        Why there is no answer.
    """

    id: str
    by: str
    kind: str
    title: str
    words: tuple[str, ...]
    begun_s: float
    ended_s: float = 0.0
    state: str = "running"
    steps: list[ComputationStep] = []
    left_s: float | None = None
    printed: bytes = b""
    error: str = ""


class Computations:
    """
    The computations of one dashboard.

    Parameters
    ----------
    now_s : callable
        Seconds since the epoch.
    most : int
        Computations that run at a time; each visitor has one at most.
    most_s : float
        Longest time for one, in seconds.
    program : sequence of str
        What is run, before the arguments.
    end_s : float
        Time between TERM and KILL of one that is to end, in seconds.
    """

    def __init__(
        self,
        now_s: Callable[[], float],
        *,
        most: int,
        most_s: float,
        program: Sequence[str] = PROGRAM,
        end_s: float = END_S,
    ) -> None:
        self._now_s, self._most, self._most_s, self._program = now_s, most, most_s, tuple(program)
        self._end_s = end_s
        self._ends: set[asyncio.Task[None]] = set()
        self._known: dict[str, Computation] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, visitor: Visitor, kind: str, title: str, words: Sequence[str]) -> Computation:
        """
        Start a computation.

        Raises
        ------
        PageRefused
            409 where the visitor has one that still runs; 503 where too many of others do.
        """
        running = [self._known[one] for one in self._tasks]
        if any(one.by == visitor.name for one in running):
            raise PageRefused(409, "one of yours still runs; wait until it ends, or cancel it")
        if len(running) >= self._most:
            raise PageRefused(
                503, f"{len(running)} of other people run, which is the most; ask again when one has ended"
            )
        one = Computation(
            id=secrets.token_hex(6),
            by=visitor.name,
            kind=kind,
            title=title,
            words=tuple(words),
            begun_s=self._now_s(),
        )
        self._known[one.id] = one
        self._tasks[one.id] = task = asyncio.create_task(self._run(one))
        task.add_done_callback(lambda _: self._tasks.pop(one.id, None))
        self._forget_oldest()
        return one

    def of(self, visitor: Visitor) -> list[Computation]:
        """Return a visitor's computations, newest first."""
        return [one for one in reversed(self._known.values()) if visitor.signed_in and one.by == visitor.name]

    def find(self, visitor: Visitor, wanted: str) -> Computation:
        """
        Return one of a visitor's computations.

        Raises
        ------
        PageRefused
            404 where there is none.
        """
        for one in self.of(visitor):
            if one.id == wanted:
                return one
        raise PageRefused(404, "this computation is not known any more; start it again")

    def cancel(self, visitor: Visitor, wanted: str) -> None:
        """End one of a visitor's computations; one that has ended stays as it is."""
        one = self.find(visitor, wanted)
        if (task := self._tasks.get(one.id)) is not None and not task.cancelling():
            self._end(one, "cancelled", "it was cancelled")
            task.cancel()

    async def close(self) -> None:
        """End all."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*self._ends)

    def _forget_oldest(self) -> None:
        ended = [one for one in self._known if one not in self._tasks]
        for one in ended[: max(0, len(self._known) - _KEPT)]:
            del self._known[one]

    async def _run(self, one: Computation) -> None:
        try:
            async with asyncio.timeout(self._most_s):
                await self._compute(one)
        except TimeoutError:
            most = duration(self._most_s)
            self._end(one, "late", f"it took longer than {most} and was ended; ask about a shorter time")
        except OSError as error:
            self._end(one, "failed", f"it could not be started: {error}")
        except Exception:
            _log.exception("computation_failed", words=one.words)
            self._end(one, "failed", "it failed; the dashboard's log says why")

    async def _compute(self, one: Computation) -> None:
        process = await asyncio.create_subprocess_exec(
            *self._program,
            *one.words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES,
            env={**os.environ, **_ONE_THREAD, "NO_COLOR": "1"},
            start_new_session=True,
        )
        try:
            printed, said = await asyncio.gather(_read(process.stdout), _heard(one, process.stderr, self._now_s))
            code = await process.wait()
        finally:
            ending = asyncio.create_task(_ended(process, self._end_s))
            self._ends.add(ending)
            ending.add_done_callback(self._ends.discard)
            await asyncio.shield(ending)  # whoever is cancelled once more meanwhile, it goes on
        if code == 0:
            one.printed = printed
            self._end(one, "done")
        else:
            last = " ".join(said[-_MOST_SAID:]).removeprefix("penstock: ").removeprefix("error: ")
            self._end(one, "failed", last or f"it ended with code {code} and said nothing")

    def _end(self, one: Computation, state: str, error: str = "") -> None:
        if one.state == "running":
            one.state, one.error, one.ended_s = state, error, self._now_s()


async def _read(output: asyncio.StreamReader | None) -> bytes:
    return await output.read() if output is not None else b""


async def _heard(one: Computation, errors: asyncio.StreamReader | None, now_s: Callable[[], float]) -> list[str]:
    """Note how far a computation says it is; return what else it said."""
    said: list[str] = []
    ended, begun_s = 0, 0.0  # of the present replay when it was first heard of
    while errors is not None:
        try:
            line = await errors.readline()
        except ValueError:
            continue  # a line that is longer than any that counts
        if not line:
            return said
        try:
            step = msgspec.json.decode(line, type=ComputationStep)
        except msgspec.MsgspecError:
            said = [*said[-_MOST_SAID:], line.decode(errors="replace").strip()]
            continue
        if one.steps and one.steps[-1].replay == step.replay and one.steps[-1].ended <= step.ended:
            one.steps.pop()
        else:
            ended, begun_s = step.ended, now_s()
        one.steps.append(step)
        one.left_s = left_s(step, step.ended - ended, now_s() - begun_s)
    return said


def left_s(step: ComputationStep, ended: int, elapsed_s: float) -> float | None:
    """
    Return how long a computation still takes if all its jobs take as long as those that ended; None where none has.

    Examples
    --------
    >>> left_s(ComputationStep("fifo", 17, 354), ended=17, elapsed_s=20.0)
    396.47058823529414
    >>> left_s(ComputationStep("fifo", 50, 100, further=1), ended=50, elapsed_s=20.0)
    60.0
    >>> left_s(ComputationStep("fifo", 0, 354), ended=0, elapsed_s=20.0)
    """
    if ended <= 0:
        return None
    return (max(0, step.jobs - step.ended) + step.further * step.jobs) * elapsed_s / ended


async def _ended(process: asyncio.subprocess.Process, end_s: float) -> None:
    """End a computation that still runs, with all of its process group, and wait for it."""
    if process.returncode is not None:
        return
    _signal_group(process.pid, signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), end_s)
    _signal_group(process.pid, signal.SIGKILL)  # the process itself, or what it left
    await process.wait()


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)
