"""
The conversation with the node's executor, and the process's vote on the stop step.

:class:`AgentClient` is the job's side of the conversation: a Unix socket, and a thread that listens to it. It is a
thread because a question must be answered even while the loop is inside a step, and because a boundary then costs one
look at an attribute. The thread sleeps in ``recv`` all the time. It looks for an executor that went away every
:data:`RECONNECT_S`; the job works on meanwhile.

:class:`StopVote` is one process's part in the stop barrier: the agreement on the step after which a gang stops. It is
pure: no clock, no socket, no thread. The promise behind :class:`~penstock_log.agent_protocol.StepReached` is that the
process does not go beyond its answer plus ``STOP_MARGIN`` before it has received
:class:`~penstock_log.agent_protocol.StopAtStep`. Every process keeps it, so the largest answer plus the margin is a
step that no process has passed.

An answer may be given in the middle of a step, and has to be. A process that waits for its peers inside a collective
operation reaches no boundary while one of those peers waits at its own limit. Between two steps of a loop that takes
turns, the answer may be that the process is held: then it begins no step before it has received the agreed one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
from collections.abc import Callable
from typing import Final, Literal, Protocol

import msgspec

from penstock_log.agent_protocol import (
    STOP_MARGIN,
    ConnectionRefused,
    FromJob,
    GoOn,
    Hello,
    HoldMemory,
    ReadyToPark,
    StepReached,
    StopAtStep,
    StopRequest,
    TimeLeft,
    ToJob,
)

RECONNECT_S: Final = 0.5
SEND_TIMEOUT_S: Final = 2
SEND_LAST_S: Final = 5.0
"""How long the end of a job waits for an executor that is just restarting, to tell it the result."""

_log = logging.getLogger("penstock.session")
_decoder: Final = msgspec.json.Decoder(ToJob)


class StopQuestion(Protocol):
    """A function that answers the executor's question for the step, if there is anything to answer."""

    def __call__(self, step: int, /, *, held: bool) -> int | None:
        """Return the answer after so many steps."""
        ...


class AgentClient:
    """
    The connection to the executor, which may come and go, and the stop step that was agreed over it.

    Parameters
    ----------
    path : str
        The executor's socket.
    hello : callable
        Returns the first line of a new connection.
    step : callable
        Returns the number of steps done, at any time and from any thread.
    held : callable
        Returns whether the loop is between two steps and begins none without looking at :attr:`attention`. It is called
        before ``step``, from any thread.
    on_message : callable
        Called by the listening thread when a message has come.
    on_limit : callable
        ``on_limit(fraction)``: called by the listening thread with the part of memory that it may hold now.
    on_time : callable
        ``on_time(left)``: called by the listening thread with how long the job may still run.

    Attributes
    ----------
    attention : bool
        Whether the next boundary has to ask for a :meth:`verdict`. It is set before the step is read for an answer, so
        that the loop can be one step beyond its answer at most when it comes to know of it.
    may_park : bool
        Whether the process may be parked where it was told to stop.
    """

    def __init__(
        self,
        path: str,
        hello: Callable[[], Hello],
        *,
        step: Callable[[], int],
        held: Callable[[], bool] = lambda: False,
        on_message: Callable[[], object] = lambda: None,
        on_limit: Callable[[float], object] = lambda fraction: None,  # noqa: ARG005 - named for who calls it
        on_time: Callable[[TimeLeft], object] = lambda left: None,  # noqa: ARG005 - named for who calls it
    ) -> None:
        self.attention = self.may_park = False
        self._park_answer: int | Literal["", "leave", "gone"] = ""
        self._path = path
        self._hello = hello
        self._step, self._held, self._on_message, self._on_limit = step, held, on_message, on_limit
        self._on_time = on_time
        self._vote = StopVote()
        self._refusal = ""
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._pid = os.getpid()
        self._socket: socket.socket | None = None
        if not self._connect():
            _log.warning("executor_not_there path=%s; working without it, looking again every %s s", path, RECONNECT_S)
        self._thread = threading.Thread(target=self._listen, name="penstock-agent", daemon=True)
        self._thread.start()

    def begin_loop(self) -> None:
        """Note that the loop begins; answer a question that came before."""
        with self._changed:
            self._answer(self._vote.begin_loop)

    @property
    def stop_at(self) -> int | None:
        """The step after which everyone stops, once agreed."""
        return self._vote.stop_at

    @property
    def asked(self) -> bool:
        """Whether the process is to stop, soon or at an agreed step."""
        with self._changed:
            return not self._vote.idle

    def verdict(self, step: int) -> Verdict:
        """Return whether to go on or to leave after this step, waiting for the others' answers where promised."""
        with self._changed:
            self._changed.wait_for(lambda: self._vote.verdict(step) != "wait")
            return self._vote.verdict(step)

    def forget_stop(self) -> None:
        """Note that the process goes on although it had agreed to leave."""
        with self._changed:
            self._vote.forget_stop()
            self.attention = False

    def park(self, step: int) -> int | None:
        """
        Wait to be parked after a step, and to go on; return the epoch of the run as which it goes on.

        None: it was not parked, still has its devices, and is to leave.

        Raises
        ------
        ConnectionResetError
            If the connection closed meanwhile: it is parked no more, and its devices may be others'.
        """
        with self._changed:
            self._park_answer = ""
            if not self._send(ReadyToPark(step=step)):
                return None
            answer = self._changed.wait_for(lambda: self._park_answer)
        if answer == "gone":
            raise ConnectionResetError("the executor has closed the connection of a process that may have been parked")
        return answer if isinstance(answer, int) else None

    def send(self, message: FromJob) -> None:
        """Send a line; without a connection it is dropped, because a new connection begins with the state of then."""
        if os.getpid() == self._pid:
            with self._changed:
                self._send(message)

    def send_last(self, message: FromJob) -> None:
        """Send the last line, which must not be lost: wait up to :data:`SEND_LAST_S` for an executor that restarts."""
        if os.getpid() != self._pid:
            return
        with self._changed:
            self._changed.wait_for(lambda: self._send(message), SEND_LAST_S)

    def close(self) -> None:
        """Hang up and end the thread; what was sent stays readable on the other side."""
        if os.getpid() != self._pid:
            return
        self._closing.set()
        with self._changed:
            self._hang_up()
        self._thread.join(SEND_TIMEOUT_S)

    def detach(self) -> None:
        """Let go of the parent's socket in a forked child, so that it closes when the parent dies."""
        self.attention = False
        self._changed = threading.Condition()
        self._vote = StopVote()
        if self._socket is not None:
            os.close(self._socket.detach())
            self._socket = None

    def _listen(self) -> None:
        while not self._closing.is_set():
            if self._socket is not None:
                self._read(self._socket)
                self._disconnected()
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
                    self._decode(line)

    def _decode(self, line: bytes) -> None:
        try:
            self._handle(_decoder.decode(line))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            _log.warning("executor_line_not_understood line=%r error=%s", line[:200], error)

    def _handle(self, message: ToJob) -> None:
        if isinstance(message, HoldMemory):
            self._on_limit(message.fraction)
            return
        if isinstance(message, TimeLeft):
            self._on_time(message)
            return
        if isinstance(message, ConnectionRefused):
            if message.reason != self._refusal:  # it asks again, in case the executor comes to know it
                _log.warning("executor_refused reason=%s; working without it", message.reason)
            self._refusal = message.reason
            return
        with self._changed:
            if isinstance(message, GoOn):
                self._park_answer = message.epoch
                self._changed.notify_all()
                return
            self.attention = True  # before the step is read
            if isinstance(message, StopAtStep):
                self._vote.agree(message.step)
                self.may_park = message.park
                self._park_answer = "leave"
            elif isinstance(message, StopRequest):
                self._answer(self._vote.ask)
            self._changed.notify_all()
        self._on_message()

    def _answer(self, question: StopQuestion) -> None:
        held = self._held()  # before the step: while it holds, the step stays
        answer = question(self._step(), held=held)
        if answer is not None:
            self._send(StepReached(step=answer, held=self._vote.held))

    def _disconnected(self) -> None:
        with self._changed:
            self._vote.void_question()
            self.attention = not self._vote.idle
            self.may_park = False
            self._park_answer = self._park_answer or "gone"  # what was said before holds
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


Verdict = Literal["go", "wait", "leave"]


class StopVote:
    """
    One process's vote on the step after which its gang stops: question, answer and agreement.

    Steps are counts of completed iterations since the job's very beginning.
    """

    def __init__(self) -> None:
        self._begun = False
        self._asked = False
        self._answer: int | None = None
        self._held = False
        self._stop_at: int | None = None

    @property
    def stop_at(self) -> int | None:
        """The agreed step, once there is one."""
        return self._stop_at

    @property
    def held(self) -> bool:
        """Whether the answer promises that no step is begun before the agreed one is received."""
        return self._held

    @property
    def idle(self) -> bool:
        """Whether no question and no agreed step is open."""
        return not self._asked and self._stop_at is None

    def begin_loop(self, step: int, *, held: bool = False) -> int | None:
        """Note that the loop begins after this step, which no checkpoint moves any more; return the answer now due."""
        self._begun = True
        return self.ask(step, held=held) if self._asked else None

    def ask(self, step: int, *, held: bool = False) -> int | None:
        """Return what to answer after so many steps; None while the loop has not begun. The first answer stands."""
        self._asked = True
        if not self._begun:
            return None
        if self._answer is None:
            self._answer, self._held = step, held
        return self._answer

    def agree(self, step: int) -> None:
        """Note the agreed step: all have answered, and every process stops after it."""
        self._stop_at = step

    def void_question(self) -> None:
        """Note that the executor is gone. An agreed step stays, as others may know it; a mere question is void."""
        self._asked = self._held = False
        self._answer = None

    def forget_stop(self) -> None:
        """Note that the process could not leave after all: a later question is a new one."""
        self.void_question()
        self._stop_at = None

    def verdict(self, step: int) -> Verdict:
        """Return what to do at the boundary after a step."""
        if self._stop_at is not None:
            return "leave" if step >= self._stop_at else "go"
        if self._answer is not None and step >= self._answer + (0 if self._held else STOP_MARGIN):
            return "wait"
        return "go"


_current: AgentClient | None = None


def make_current(agent: AgentClient | None) -> None:
    """Name the one agent of this process, which a forked child must let go of."""
    global _current  # noqa: PLW0603 - a fork hook can be registered only once and for the whole process
    _current = agent


def _after_fork_in_child() -> None:
    if _current is not None:
        _current.detach()


os.register_at_fork(after_in_child=_after_fork_in_child)
