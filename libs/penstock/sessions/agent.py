"""
The job's side of the conversation with its node's executor: a Unix socket, and a thread that listens to it.

A thread, because a question must be answered even while the loop is inside a step (see
:mod:`penstock.sessions.agreement`), and because then a boundary costs one look at an attribute. It sleeps in ``recv``
all the time. An executor that went away is looked for every :data:`RECONNECT_S`; the job works on meanwhile.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
from collections.abc import Callable
from typing import Final, Protocol, assert_never

import msgspec

from penstock.sessions.agreement import Agreement, Verdict
from penstock_events.agent import At, FromJob, Hello, Hold, Stop, StopAt, ToJob

RECONNECT_S: Final = 0.5
SEND_TIMEOUT_S: Final = 2
LAST_WORD_S: Final = 5.0
"""How long the end of a job waits for an executor that is just restarting, to tell it the result."""

_log = logging.getLogger("penstock.session")
_decoder: Final = msgspec.json.Decoder(ToJob)


class Question(Protocol):
    """What the agreement makes of a question: what to answer, if anything."""

    def __call__(self, step: int, /, *, held: bool) -> int | None:
        """Return the answer after so many steps."""
        ...


class Agent:
    """
    A connection that comes and goes, and what was agreed over it.

    Parameters
    ----------
    path : str
        The executor's socket.
    hello : callable
        Returns the first line of a new connection.
    step : callable
        Returns the number of steps done, at any time and from any thread.
    held : callable
        Returns whether the loop is between two steps and begins none without looking at :attr:`attention`; asked before
        the step, from any thread too.
    heard : callable
        Called when something was heard, by the thread that listens.

    hold : callable
        ``hold(fraction)``: called when it is told what it may hold by now, by the thread that listens.

    Attributes
    ----------
    attention : bool
        Whether the next boundary has to ask for a :meth:`verdict`. It is set before the step is read for an answer, so
        that the loop can be one step beyond its answer at most when it comes to know of it.
    """

    def __init__(
        self,
        path: str,
        hello: Callable[[], Hello],
        *,
        step: Callable[[], int],
        held: Callable[[], bool] = lambda: False,
        heard: Callable[[], object] = lambda: None,
        hold: Callable[[float], object] = lambda fraction: None,  # noqa: ARG005 - named for who calls it
    ) -> None:
        self.attention = False
        self._path = path
        self._hello = hello
        self._step, self._held, self._heard, self._hold = step, held, heard, hold
        self._agreement = Agreement()
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._pid = os.getpid()
        self._socket: socket.socket | None = None
        if not self._connect():
            _log.warning("executor_not_there path=%s; working without it, looking again every %s s", path, RECONNECT_S)
        self._thread = threading.Thread(target=self._listen, name="penstock-agent", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """The loop begins: a question that came before is answered now."""
        with self._changed:
            self._answer(self._agreement.begin)

    @property
    def stop_at(self) -> int | None:
        """The step after which everyone stops, once agreed."""
        return self._agreement.stop_at

    @property
    def asked(self) -> bool:
        """Whether the process is to stop, soon or at an agreed step."""
        with self._changed:
            return not self._agreement.idle

    def verdict(self, step: int) -> Verdict:
        """Return whether to go on or to leave after this step, waiting for the others' answers where promised."""
        with self._changed:
            self._changed.wait_for(lambda: self._agreement.verdict(step) != "wait")
            return self._agreement.verdict(step)

    def forget(self) -> None:
        """The process goes on although it had agreed to leave."""
        with self._changed:
            self._agreement.forget()
            self.attention = False

    def tell(self, message: FromJob) -> None:
        """Send a line; without a connection it is dropped, since a new one begins with the state as it is then."""
        if os.getpid() == self._pid:
            with self._changed:
                self._send(message)

    def tell_last(self, message: FromJob) -> None:
        """Send the line that must not be lost, waiting up to :data:`LAST_WORD_S` for an executor that restarts."""
        if os.getpid() != self._pid:
            return
        with self._changed:
            self._changed.wait_for(lambda: self._send(message), LAST_WORD_S)

    def close(self) -> None:
        """Hang up and end the thread; what was sent stays readable on the other side."""
        if os.getpid() != self._pid:
            return
        self._closing.set()
        with self._changed:
            self._hang_up()
        self._thread.join(SEND_TIMEOUT_S)

    def detach(self) -> None:
        """In a forked child: let go of the parent's socket, so that it closes when the parent dies."""
        self.attention = False
        self._changed = threading.Condition()
        self._agreement = Agreement()
        if self._socket is not None:
            os.close(self._socket.detach())
            self._socket = None

    def _listen(self) -> None:
        while not self._closing.is_set():
            if self._socket is not None:
                self._read(self._socket)
                self._lost()
            self._closing.wait(RECONNECT_S)
            if not self._closing.is_set() and self._connect():
                with self._changed:
                    self._changed.notify_all()
        with self._changed:
            self._hang_up()

    def _read(self, connection: socket.socket) -> None:
        rest = b""
        with contextlib.suppress(OSError):
            while chunk := connection.recv(65_536):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._understand(line)

    def _understand(self, line: bytes) -> None:
        try:
            self._hear(_decoder.decode(line))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            _log.warning("executor_line_not_understood line=%r error=%s", line[:200], error)

    def _hear(self, message: ToJob) -> None:
        if isinstance(message, Hold):
            self._hold(message.fraction)
            return
        with self._changed:
            self.attention = True  # before the step is read
            match message:
                case Stop():
                    self._answer(self._agreement.ask)
                case StopAt(step=step):
                    self._agreement.agree(step)
                case _:
                    assert_never(message)
            self._changed.notify_all()
        self._heard()

    def _answer(self, question: Question) -> None:
        held = self._held()  # before the step: while it holds, the step stays
        answer = question(self._step(), held=held)
        if answer is not None:
            self._send(At(step=answer, held=self._agreement.held))

    def _lost(self) -> None:
        with self._changed:
            self._agreement.lost()
            self.attention = not self._agreement.idle
            self._hang_up()
            self._changed.notify_all()

    def _connect(self) -> bool:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_TIMEOUT_S, 0))
        try:
            connection.connect(self._path)
        except OSError:
            connection.close()
            return False
        with self._changed:
            self._socket = connection
            return self._send(self._hello())

    def _send(self, message: FromJob) -> bool:
        """Send with the condition held. A line that went out by half, or not at all, costs the connection."""
        if self._socket is None:
            return False
        try:
            self._socket.sendall(msgspec.json.encode(message) + b"\n")
        except OSError:
            self._hang_up()
            return False
        return True

    def _hang_up(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
            self._socket = None


_current: Agent | None = None


def make_current(agent: Agent | None) -> None:
    """Name the one agent of this process, which a forked child must let go of."""
    global _current  # noqa: PLW0603 - a fork hook can be registered only once and for the whole process
    _current = agent


def _after_fork_in_child() -> None:
    if _current is not None:
        _current.detach()


os.register_at_fork(after_in_child=_after_fork_in_child)
