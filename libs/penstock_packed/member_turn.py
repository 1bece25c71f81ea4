"""
Turns of members: what a user writes, and how one turn of it is carried out.

A user writes trials (:class:`TrialProgram`), which train step by step, and models (:class:`Model`), which answer
requests. :func:`carry_out` runs the member's own code; nothing that this raises goes further.
"""

from __future__ import annotations

import gc
import logging
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, SupportsFloat, TypeVar

from penstock_packed.device import TurnDevice, TurnMemory
from penstock_packed.device_queue import PackedTurn
from penstock_packed.request_queue import Latency, ModelRequest

LOG: Final = logging.getLogger("penstock.packed")
LINES: Final = 12
"""Of a traceback, that are logged."""


class DeviceLost(Exception):
    """The device works no more, for nobody: the process has to end, and its members go on from their checkpoints."""


@dataclass(slots=True)
class MemberObject:
    """
    A member's own object, which is let go of when it has ended.

    Attributes
    ----------
    resume : Path or None
        The folder from which a trial goes on.
    begun : bool
        Whether its setup has been called, so that there is something to tidy up.
    """

    name: str
    body: TrialProgram | Model[Any, Any] | None
    latency: Latency | None = None
    resume: Path | None = None
    begun: bool = False

    def end(self, device: TurnDevice, lane: int) -> None:
        """
        Have it tidied up, and let go of all that it holds.

        Raises
        ------
        DeviceLost
            If the device works no more; all other errors are logged only.
        """
        try:
            with device.turn(lane, 0):
                if self.body is not None and self.begun:
                    self.body.teardown()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if device.lost(error):
                raise DeviceLost(f"{reason(error)} while {self.name} was tidied up") from error
            LOG.warning("teardown_failed member=%s error=%r", self.name, error)
        self.body = None
        gc.collect()
        device.reclaim()


@dataclass(slots=True)
class TurnResult:
    """
    What came of a turn.

    Attributes
    ----------
    error : str
        Empty where all went well.
    last : bool
        Whether a trial said that this was its last step.
    answers : list
        Of a model, in the order of the requests.
    """

    error: str = ""
    last: bool = False
    metrics: dict[str, float] = field(default_factory=dict)
    answers: list[Any] = field(default_factory=list)
    reading: TurnMemory = field(default_factory=TurnMemory)


def carry_out(
    go: PackedTurn[ModelRequest], job: MemberObject, device: TurnDevice, step: int, room_bytes: int
) -> TurnResult:
    """
    Take a turn.

    Raises
    ------
    DeviceLost
        If the device works no more. All other errors are the member's, and are in the result.
    """
    done = TurnResult()
    try:
        with device.turn(go.lane, room_bytes) as done.reading:
            _work(go, job, TrialTurn(step, go.lane, device.pool(go.lane)), done)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        done.error = reason(error)
        LOG.warning("member_failed member=%s in=%s\n%s", job.name, go.what, traceback.format_exc(limit=-LINES).rstrip())
        if device.lost(error):
            raise DeviceLost(f"{done.error} in the turn of {job.name}") from error
    return done


def _work(go: PackedTurn[ModelRequest], job: MemberObject, turn: TrialTurn, done: TurnResult) -> None:
    body: Any = job.body
    match go.what:
        case "setup":
            job.begun = True
            body.setup()
            if job.resume is not None:
                body.load(job.resume)
        case "step":
            body.step(turn)
            done.metrics, done.last = turn.metrics, turn.last
        case "answer":
            if go.requests:  # all may have been given up meanwhile
                done.answers = list(body.step([asked.request.content for asked in go.requests]))
            if len(done.answers) != len(go.requests):
                message = (
                    f"step() gave {len(done.answers)} answers to {len(go.requests)} requests; expected one for each"
                )
                raise ValueError(message)


def reason(error: BaseException) -> str:
    """Return in one line what went wrong."""
    match error:
        case SystemExit():
            return f"it called sys.exit({error.code!r})"
        case _:
            return f"{type(error).__name__}: {error}".splitlines()[0][:500]


Q_contra = TypeVar("Q_contra", contravariant=True)
A_co = TypeVar("A_co", covariant=True)


class TrialTurn:
    """
    One step of a trial, from the trial's side.

    Attributes
    ----------
    step : int
        Number of this step, from 0 at the trial's very beginning, whatever restarts there were.
    lane : int
        Whose stream and memory pool are current on this thread, where the device is a GPU.
    pool : tuple of int or None
        The lane's memory pool, for ``torch.cuda.graph(graph, pool=turn.pool)``; None where there is none.
    """

    def __init__(self, step: int, lane: int, pool: tuple[int, int] | None) -> None:
        self.step, self.lane, self.pool = step, lane, pool
        self.metrics: dict[str, float] = {}
        self.last = False

    def report(self, **metrics: SupportsFloat) -> None:
        """Keep the latest value of each metric; sent under the member's name."""
        self.metrics.update({name: float(value) for name, value in metrics.items()})

    def finish(self) -> None:
        """Say that this is the trial's last step."""
        self.last = True


class TrialProgram(Protocol):
    """A training, one step at a time. Its ``__init__`` should take no device memory: it may have to wait for room."""

    def setup(self) -> None:
        """Build the model; called once in a process, before ``load`` and the first step."""

    def step(self, turn: TrialTurn) -> None:
        """Do one step, and nothing that outlasts it but what belongs to the trial itself."""

    def teardown(self) -> None:
        """Called after the last step, and after an error; whatever it raises is logged only."""

    def save(self, folder: Path) -> None:
        """Write everything that the next step needs into an empty folder."""

    def load(self, folder: Path) -> None:
        """Read it back, after ``setup``."""


class Model(Protocol[Q_contra, A_co]):
    """A model that answers requests. It keeps nothing from one to the next that a restart may not lose."""

    def setup(self) -> None:
        """Load the weights; called once in a process, before the first request."""

    def step(self, requests: Sequence[Q_contra], /) -> Sequence[A_co | Exception]:
        """
        Answer up to ``batch`` requests, in order.

        An exception among the answers is the answer to that request alone; one that is raised ends the model.
        """
        ...

    def teardown(self) -> None:
        """Called after the last request, and after an error; whatever it raises is logged only."""
