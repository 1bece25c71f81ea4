"""
Keeper of a parked program: stopped with all that it has started, until it goes on as another run, or is ended.

A part of the shim, which loads it by its path, like :mod:`fence_keeper`. The executor asks for it through a socket in
the process's folder, and keeps that connection open for as long as the program is to be kept. So a parked program never
outlives the executor that knows of it: once the connection has closed, however that came, the program goes on to leave,
as its session does then, and counts as one that was asked to. After :data:`LEAVE_S` it is ended.

A line is ``park PID``, with who has said that it may be stopped: it has to be the program itself, and nothing that the
program has started, such as a worker of a launcher that would go on without knowing. The answer is ``parked``, once all
have stopped and what they have printed is in the files. Or it is ``go FOLDER``, and the answer ``going``, once the
output goes to that folder and they run again. Any other answer says why not.
"""

from __future__ import annotations

import _socket
import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

LEFT: Final = 75
"""``EX_TEMPFAIL``, as a program exits that was asked to stop and has saved a checkpoint."""
LEAVE_S: Final = 5.0
"""How long a program that is parked no more may take for what it does at its end."""
_AGAIN_S: Final = 0.2
_LINE_BYTES: Final = 8192


class ParkableTree(Protocol):
    """The program and all that descends from it, as :class:`penstock_executor.launchers.shim.ProcessTree`."""

    program: int
    code: int | None
    left: int | None

    def park(self) -> bool:
        """Stop all of them until :meth:`unpark`; return whether all have stopped."""

    def unpark(self) -> None:
        """Let those go on that were stopped."""

    def kill(self) -> None:
        """End all of them."""


class ParkKeeper:
    """
    One connection by which a program is parked.

    Parameters
    ----------
    fd : int
        Of the connection; closed at its end.
    drain : callable
        Takes in what the program has printed; returns whether the disk has taken all of it.
    redirect : callable
        ``redirect(folder)``: has the output go there; raises OSError where it cannot.
    """

    def __init__(
        self, fd: int, tree: ParkableTree, drain: Callable[[], bool], redirect: Callable[[str], object]
    ) -> None:
        self.fd = fd
        self._socket = _socket.socket(fileno=fd)
        self._socket.setblocking(False)
        self._tree, self._drain, self._redirect = tree, drain, redirect
        self._rest = b""
        self._holds = False

    def read(self) -> bool:
        """Do what is asked; return False at the end of the connection, by which a parked program ends."""
        try:
            data = self._socket.recv(_LINE_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        if not data:
            self.close()
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._answer(self._obey(line.decode(errors="surrogateescape")))
        return True

    def close(self) -> None:
        """Close the connection, and have a program leave that is parked by it."""
        if self._holds:
            self._holds, self._tree.left = False, LEFT
            threading.Thread(target=self._end_later, daemon=True).start()
            self._tree.unpark()
        self._socket.close()

    def _end_later(self) -> None:
        time.sleep(LEAVE_S)
        while self._tree.code is None:
            self._tree.kill()
            time.sleep(_AGAIN_S)

    def _obey(self, line: str) -> str:
        what, _, whom = line.partition(" ")
        if self._tree.code is not None:
            return "the program has ended"
        if what == "park" and not self._holds:
            return self._park() if whom == str(self._tree.program) else "a process of its program asks, and not itself"
        if what == "go" and self._holds:
            return self._go_on(whom)
        return f"{what!r} is not to be done now"

    def _park(self) -> str:
        if not self._tree.park():
            self._tree.unpark()
            return "some of its processes have not stopped"
        if not self._drain():
            self._tree.unpark()
            return "the disk has no room for what it has printed"
        self._holds = True
        return "parked"

    def _go_on(self, folder: str) -> str:
        try:
            self._redirect(folder)
        except OSError as error:
            return f"its output cannot go to {folder}: {error}"
        self._holds = False
        self._tree.unpark()
        return "going"

    def _answer(self, text: str) -> None:
        with contextlib.suppress(OSError):  # who has gone is met at the next look
            self._socket.send(os.fsencode(f"{text}\n"))
