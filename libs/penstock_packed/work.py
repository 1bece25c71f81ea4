"""One turn, carried out: the member's own code runs here, and nothing that it raises goes further."""

from __future__ import annotations

import gc
import logging
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from penstock_packed.device import Device, Reading
from penstock_packed.endpoint import Request
from penstock_packed.floor import Go
from penstock_packed.latency import Latency
from penstock_packed.roles import Model, Trial, Turn

LOG: Final = logging.getLogger("penstock.packed")
LINES: Final = 12
"""Of a traceback, that are logged."""


class DeviceLost(Exception):
    """The device works no more, for nobody: the process has to end, and its members go on from their checkpoints."""


@dataclass(slots=True)
class Job:
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
    body: Trial | Model[Any, Any] | None
    latency: Latency | None = None
    resume: Path | None = None
    begun: bool = False

    def end(self, device: Device, lane: int) -> None:
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
class Done:
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
    reading: Reading = field(default_factory=Reading)


def carry_out(go: Go[Request], job: Job, device: Device, step: int, room_bytes: int) -> Done:
    """
    Take a turn.

    Raises
    ------
    DeviceLost
        If the device works no more. All other errors are the member's, and are in the result.
    """
    done = Done()
    try:
        with device.turn(go.lane, room_bytes) as done.reading:
            _work(go, job, Turn(step, go.lane, device.pool(go.lane)), done)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        done.error = reason(error)
        LOG.warning("member_failed member=%s in=%s\n%s", job.name, go.what, traceback.format_exc(limit=-LINES).rstrip())
        if device.lost(error):
            raise DeviceLost(f"{done.error} in the turn of {job.name}") from error
    return done


def _work(go: Go[Request], job: Job, turn: Turn, done: Done) -> None:
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
