"""
Parking of a process: what its script moves off the device before it is stopped in place, and back when it goes on.

A process that is preempted saves its checkpoint as always. Where the executor has room, it stays in memory then,
stopped, and goes on without a load as a later run of its job. :class:`ParkRule` says whether a script lets it.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Final, Optional

from penstock.sessions.setup import ProcessSetup
from penstock_log.agent_protocol import AgentEnv

HOST_BACKENDS: Final = ("cpu", "emulated")
"""Backends whose devices have no memory of their own: nothing has to be moved off them."""
Move = Callable[[], object]
_log = logging.getLogger("penstock.session")


class ParkRule:
    """
    Whether a script may be parked, and what it does around that.

    Parameters
    ----------
    backend : str
        Of its devices.

    Attributes
    ----------
    away, back : callable or None
        What moves its state off the device, and back.
    undo : callable or None
        What moves its state back where the process is not parked after all. Without it, what the script does at its end
        can do without the device.
    refused : bool
        Whether the script has said that it is never to be parked, or cannot be.
    """

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self.away: Optional[Move] = None
        self.back: Optional[Move] = None
        self.undo: Optional[Move] = None
        self.refused = False

    @property
    def allows(self) -> bool:
        """Whether the process may be parked."""
        return not self.refused and (self.away is not None or self._backend in HOST_BACKENDS)

    def leave_device(self) -> bool:
        """Free the device, and write out what was printed; return False where the script's function has failed."""
        try:
            if self.away is not None:
                self.away()
        except Exception as error:  # whatever the user's function raises, the checkpoint is there
            _log.warning("not_parked error=%r; it leaves, and goes on from its checkpoint", error)
            return False
        self.flush_output()
        return True

    def move_torch(self) -> None:
        """Have what PyTorch holds on the devices moved."""
        from penstock.sessions.torch_parking import TorchParking  # noqa: PLC0415 - for scripts that ask for it

        torch = TorchParking()
        self.away, self.back, self.undo = torch.leave, torch.come_back, torch.come_back

    def stay(self) -> None:
        """Undo what was moved: the process is not parked after all, and what its script does at its end may need it."""
        try:
            if self.undo is not None:
                self.undo()
        except Exception as error:  # it leaves in any case
            _log.warning("not_moved_back error=%r; the process leaves", error)

    def give_up(self, code: int) -> None:
        """
        End the process by ``os._exit(code)`` where its script at its end would need what was moved: others may have the
        device.

        With nothing in the place of its state, what the script writes at its end could be worse than nothing.
        """
        if self.undo is not None:
            self.flush_output()
            os._exit(code)

    @staticmethod
    def flush_output() -> None:
        """Write out what was printed."""
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (AttributeError, OSError, ValueError):
                continue  # closed by the script


def of_next_run(setup: ProcessSetup, epoch: int, step: int) -> ProcessSetup:
    """
    Return the setup of the run as which a parked process goes on, and have its environment say the same.

    Parameters
    ----------
    epoch, step : int
        Of that run, and the step after which it begins.
    """
    from msgspec.structs import replace  # noqa: PLC0415 - for those who are parked

    os.environ[AgentEnv.EPOCH], os.environ[AgentEnv.RESUME_STEP] = str(epoch), str(step)
    return replace(setup, epoch=epoch, resume_step=step)
