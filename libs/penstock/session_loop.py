"""
``penstock.session()``: the one line by which a training script can be measured, preempted and resumed.

No module of this package is called ``session``: importing it would put the module in the function's place.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Final, SupportsFloat, TypeVar

from penstock.session_agent import Agent, make_current
from penstock.session_checkpoint import Checkpoints
from penstock.session_pace import EmulatedPace, HostPace, Pace
from penstock.session_replay import History, skip
from penstock.session_setup import SessionError, Setup, read
from penstock_events.agent import EXIT_PREEMPTED, VERSION, Done, Hello, Progress, Saved, SaveFailed
from penstock_events.spec import Param

PROGRESS_S: Final = 0.25
"""Least seconds between two lines of progress."""
NEVER: Final = math.inf

T = TypeVar("T")
_log = logging.getLogger("penstock.session")
_active: Session | None = None


def session() -> Session:
    """
    Return the session of this process, to be used in a ``with`` statement.

    Without Penstock around it, it is a plain loop: no daemon, no variable and no file is needed.

    Raises
    ------
    BadEnvironment
        If a variable that the executor sets cannot be read.

    Examples
    --------
    >>> with session() as s:
    ...     for batch in s.iterations(["a", "b"]):
    ...         s.report(loss=0.5)
    ...     s.step
    2
    """
    return Session(read(os.environ))


class Session:
    """
    A training script's side of Penstock; made by :func:`session`.

    A step is one item of :meth:`iterations`. It counts as done when the loop comes back for the next item, or is
    left by ``break``.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._step = 0
        self._loop_steps = 0
        self._metrics: dict[str, SupportsFloat] = {}
        self._history = History()
        self._replay: Iterator[tuple[int, bool]] = iter(())
        self._replaying = False
        self._begun = False
        self._open = False
        self._loop_start = 0
        self._unattended = False
        self._leaving = False
        self._save: Callable[[Path], object] | None = None
        self._checkpoints = Checkpoints(setup.checkpoint_dir) if setup.checkpoint_dir else None
        self._agent: Agent | None = None
        self._pace: Pace = EmulatedPace(setup.emulated_speed) if setup.emulated_speed else HostPace()
        self._progress_due = NEVER
        self._checkpoint_due = NEVER
        self._due = NEVER
        self._pid = os.getpid()

    # --- what the job is
    @property
    def job_id(self) -> str:
        """The job's id; empty where the script is run by hand."""
        return self._setup.job_id

    @property
    def params(self) -> dict[str, Param]:
        """The job's hyper-parameters, to be read with defaults: ``float(session.params.get("lr", 0.1))``."""
        return dict(self._setup.params)

    @property
    def batch_size(self) -> int:
        """The batch size that Penstock wishes; 0 where it has no wish."""
        return self._setup.batch_size

    @property
    def rank(self) -> int:
        """This process's number in the gang, from 0."""
        return self._setup.rank

    @property
    def local_rank(self) -> int:
        """This process's number on its node, from 0."""
        return self._setup.local_rank

    @property
    def world_size(self) -> int:
        """The number of processes in the gang."""
        return self._setup.world_size

    @property
    def device_kind(self) -> str:
        """The kind of device, such as ``h100``; empty where the script is run by hand."""
        return self._setup.device_kind

    @property
    def sampling(self) -> bool:
        """Whether this is a short run for the profiler: it keeps no checkpoints and its result is thrown away."""
        return self._setup.sample_iterations > 0

    @property
    def checkpoint_dir(self) -> Path | None:
        """The folder of the job's checkpoints, the same for all attempts; None where none are kept."""
        return self._setup.checkpoint_dir

    # --- where it is
    @property
    def step(self) -> int:
        """Steps done since the job's very beginning, over all its runs."""
        return self._step

    @property
    def replaying(self) -> bool:
        """
        Whether the script, after a resume, is still on its way to where the checkpoint was taken.

        Loops that had ended give no items then. What stands between them (an evaluation, a scheduler's step) was done
        before the checkpoint, and can be left out by asking this.
        """
        return self._replaying

    @property
    def should_checkpoint(self) -> bool:
        """Whether a checkpoint is going to be saved at the end of the step in which this is asked."""
        if self._save is None or self._checkpoints is None or self.rank:
            return False
        stop_at = self._agent.stop_at if self._agent else None
        return (stop_at is not None and self._step + 1 >= stop_at) or perf_counter() >= self._checkpoint_due

    # --- what the script does
    def on_checkpoint(self, save: Callable[[Path], object], load: Callable[[Path], object]) -> None:
        """
        Say how the job's state is saved and loaded; loads the last checkpoint at once where there is one.

        Parameters
        ----------
        save : callable
            Called with an empty folder, on rank 0 only, between two steps. What it writes becomes a checkpoint as a
            whole or not at all; if it raises, the job goes on with the checkpoint from before.
        load : callable
            Called with such a folder, on every rank.

        Raises
        ------
        SessionError
            If a loop has begun, or if functions were given before.
        CheckpointDamaged
            If there are checkpoints and ``load`` failed on each of them.
        """
        if self._begun or self._save:
            message = "on_checkpoint() is called once, and before the first iterations(): a checkpoint moves the start"
            raise SessionError(message)
        self._save = save
        if self._checkpoints is None:
            return
        if self.rank == 0:
            self._checkpoints.sweep()
            self._put_off_checkpoint()
        manifest = self._checkpoints.load(load)
        if manifest is not None:
            self._step = manifest.step
            self._history = manifest.history
            self._replay = manifest.history.copy().replay()
            self._replaying = True
            self._tell_progress()

    def report(self, **metrics: SupportsFloat) -> None:
        """
        Keep the latest value of each metric; sent a few times a second, and at the end.

        A tensor is detached and only read when sent, so that a report does not wait for the device. Values that are not
        finite are not sent.
        """
        for name, value in metrics.items():
            detach = getattr(value, "detach", None)
            self._metrics[name] = detach() if detach else _number(name, value)

    def iterations(self, items: Iterable[T]) -> Iterator[T]:
        """
        Yield the items, one for each step; the executor's wishes are met between two of them.

        After a resume, the items that were done before are left out, over all loops of the script.

        Raises
        ------
        SessionError
            If another loop is open, or outside of the ``with`` statement.
        SystemExit
            Out of the loop, where the job has been asked to stop and its checkpoint is complete.
        """
        self._check_order()
        done, ended = next(self._replay, (0, False))
        rest = skip(items, done)
        if ended:
            return
        self._begin(done)
        try:
            if self._setup.plain:
                for item in rest:
                    yield item
                    self._step += 1
            else:
                for item in rest:
                    yield item
                    self._boundary()
        except GeneratorExit:  # a break: nothing can be raised from here, so the next loop's start attends
            self._step += 1
            self._loop_steps += 1
            self._pace.lap()
            self._unattended = True
            raise
        finally:
            self._open = False
            self._history.items = self._step - self._loop_start
            self._history.end()

    def __enter__(self) -> Session:
        """Connect to the executor, if there is one."""
        global _active  # noqa: PLW0603 - a process has one place in its job, hence one session
        if _active is not None:
            message = "this process has a session already; use that one, a process can be at one step only"
            raise SessionError(message)
        _active = self
        if self._setup.socket:
            self._agent = Agent(self._setup.socket, self._hello, lambda: self._step)
            make_current(self._agent)
            self._progress_due = self._due = 0.0
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Say how it ended, and hang up."""
        global _active  # noqa: PLW0603 - see above
        try:
            if self._agent is not None and not self._leaving:
                self._say_goodbye(error)
        finally:
            if self._agent is not None:
                self._agent.close()
                make_current(None)
            _active = None

    # --- within a loop
    def _check_order(self) -> None:
        if _active is not self:
            message = "iterations() needs an open session: with penstock.session() as session: ..."
            raise SessionError(message)
        if self._open:
            message = (
                "an iterations() loop is open already; put epochs around it: "
                "for epoch in range(n): for batch in session.iterations(loader): ..."
            )
            raise SessionError(message)
        self._begun = True

    def _begin(self, done: int) -> None:
        self._replaying = False
        if self._agent is not None:
            self._agent.begin()
        if self._unattended:
            self._unattended = False
            self._attend(perf_counter())
        self._open = True
        self._loop_start = self._step - done
        self._pace.resume()

    def _boundary(self) -> None:
        self._step += 1
        self._loop_steps += 1
        now = self._pace.lap()
        agent = self._agent
        if (
            now >= self._due
            or (agent is not None and agent.attention)
            or self._loop_steps == self._setup.sample_iterations
        ):
            self._attend(now)
            self._pace.resume()

    def _attend(self, now: float) -> None:
        """Do what is due at a boundary."""
        if os.getpid() != self._pid:
            return
        if self._loop_steps == self._setup.sample_iterations:
            self._end_sample()
        if now >= self._progress_due:
            self._tell_progress()
            self._progress_due = now + PROGRESS_S
        if self._agent is not None and self._agent.attention and self._agent.verdict(self._step) == "leave":
            self._leave()
        elif now >= self._checkpoint_due:
            self._checkpoint(leaving=False)
        self._due = min(self._progress_due, self._checkpoint_due)

    def _end_sample(self) -> None:
        self._pace.settle()
        if self._agent is not None:
            self._agent.tell_last(self._done())
        self._exit(0)

    def _leave(self) -> None:
        """Leave as agreed, with a checkpoint where this rank writes one; go on where that failed and nobody leaves."""
        self._pace.settle()
        if self._save is None or self._checkpoints is None or self.rank:
            self._tell_progress()
            self._exit(EXIT_PREEMPTED)
        if self._checkpoint(leaving=True) or self.world_size > 1:
            self._exit(EXIT_PREEMPTED)
        if self._agent is not None:
            self._agent.forget()

    def _exit(self, code: int) -> None:
        self._leaving = True
        raise SystemExit(code)

    def _checkpoint(self, *, leaving: bool) -> bool:
        """Save a checkpoint and say so; return whether it is complete."""
        if self._save is None or self._checkpoints is None:
            return False
        history = History(list(self._history.ended), self._step - self._loop_start if self._open else 0)
        try:
            self._checkpoints.save(self._step, history, self._save)
        except Exception as error:  # whatever the user's function raises, training goes on
            _log.warning("checkpoint_failed step=%s error=%r; the one before is untouched", self._step, error)
            self._tell(SaveFailed(step=self._step, error=f"{type(error).__name__}: {error}"))
            return False
        finally:
            self._put_off_checkpoint()
        self._tell(Saved(step=self._step, leaving=leaving))
        return True

    def _put_off_checkpoint(self) -> None:
        if self._setup.checkpoint_s:
            self._checkpoint_due = perf_counter() + self._setup.checkpoint_s
            self._due = min(self._progress_due, self._checkpoint_due)

    # --- what the executor hears
    def _say_goodbye(self, error: BaseException | None) -> None:
        if error is None or (isinstance(error, SystemExit) and not error.code):
            self._pace.settle()
            self._last(self._done())
            return
        if self._unattended:  # the step that raised was not done
            self._step -= 1
            self._loop_steps -= 1
        self._tell_progress()

    def _last(self, message: Done) -> None:
        if self._agent is not None:
            self._agent.tell_last(message)

    def _hello(self) -> Hello:
        setup = self._setup
        return Hello(
            version=VERSION, job_id=setup.job_id, epoch=setup.epoch, rank=setup.rank, pid=self._pid, step=self._step
        )

    def _tell(self, message: Progress | Saved | SaveFailed) -> None:
        if self._agent is not None:
            self._agent.tell(message)

    def _tell_progress(self) -> None:
        self._tell(
            Progress(step=self._step, loop_steps=self._loop_steps, loop_s=self._pace.loop_s, metrics=self._finite())
        )

    def _done(self) -> Done:
        return Done(step=self._step, loop_steps=self._loop_steps, loop_s=self._pace.loop_s, metrics=self._finite())

    def _finite(self) -> dict[str, float]:
        numbers = {name: float(value) for name, value in self._metrics.items()}
        return {name: value for name, value in numbers.items() if math.isfinite(value)}


def _number(name: str, value: SupportsFloat) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        message = f"report({name}={value!r}): a metric is a number or a tensor of one element"
        raise SessionError(message) from error
