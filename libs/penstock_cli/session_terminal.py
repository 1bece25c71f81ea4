"""
The person's side of a session: standard input and output, the terminal in raw mode, its size, and signals.

:func:`converse` connects them to a :class:`~penstock.job_session.JobSession` until its command ends. Whatever happens,
the terminal is given back as it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Final

from penstock.job_session import JobSession
from penstock_cli.invocation import tell
from penstock_log.session_messages import CHUNK_BYTES, STDERR, STDIN, STDOUT, SessionStatus, TerminalSize

LOST: Final = 255
"""The exit code of a session that ended before its command, as ssh has it."""
_AT_ONCE_BYTES: Final = 4096
_PASSED_ON: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_ESCAPE: Final = b"~"
_LEAVE: Final = b"."


class Left(Exception):
    """The person has left the session by ``~.`` at the beginning of a line."""


def terminal_size() -> TerminalSize:
    """Return the size of the terminal that standard input, output or error is."""
    for fd in (1, 0, 2):
        with contextlib.suppress(OSError):
            size = os.get_terminal_size(fd)
            return TerminalSize(rows=size.lines or 24, columns=size.columns or 80)
    size = shutil.get_terminal_size()
    return TerminalSize(rows=size.lines, columns=size.columns)


async def converse(session: JobSession, *, has_terminal: bool) -> SessionStatus:
    """
    Give a session what is typed, and show what it prints, until its command has ended.

    Parameters
    ----------
    has_terminal : bool
        Whether the command has a terminal. If standard input is one too, it is in raw mode meanwhile: every key is the
        command's, except ``~.`` at the beginning of a line, which leaves.
    """
    raw = has_terminal and sys.stdin is not None and os.isatty(0)
    signals = _resized(session) if has_terminal else _signals_passed_on(session)
    with raw_mode() if raw else contextlib.nullcontext(), signals:
        return await _carried(session, raw=raw, has_terminal=has_terminal)


async def _carried(session: JobSession, *, raw: bool, has_terminal: bool) -> SessionStatus:
    typed = left_by_escape(pieces(0)) if raw else pieces(0)
    feeding = asyncio.ensure_future(session.feed(STDIN, typed))
    streams = {STDOUT: 1} if has_terminal else {STDOUT: 1, STDERR: 2}
    showing = asyncio.ensure_future(_show_all(session, streams))
    try:
        await asyncio.wait({feeding, showing}, return_when=asyncio.FIRST_COMPLETED)
        if not showing.done():  # else nobody needs what would still be typed
            await feeding
        await showing
        return await session.wait()
    finally:
        for one in (feeding, showing):
            one.cancel()
        await asyncio.gather(feeding, showing, return_exceptions=True)


async def _show_all(session: JobSession, streams: dict[int, int]) -> None:
    await asyncio.gather(*(_show(session, stream, fd) for stream, fd in streams.items()))


async def _show(session: JobSession, stream: int, fd: int) -> None:
    async for data in session.chunks(stream):
        await write(fd, data)


async def write(fd: int, data: bytes) -> None:
    """Write all of some data to a descriptor that may block: then a thread waits."""
    if len(data) <= _AT_ONCE_BYTES and select.select([], [fd], [], 0)[1]:
        _write_all(fd, data)
    else:
        await asyncio.get_running_loop().run_in_executor(None, _write_all, fd, data)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # a terminal that somebody else has made so
            select.select([], [fd], [])


_OF_PEOPLE: Final = (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE)
"""What ends a command because somebody wants it, who needs not be told."""
_LIMITS: Final = {
    signal.SIGXCPU: ", as for its limit on processor time",
    signal.SIGXFSZ: ", as for its limit on the size of files",
    signal.SIGKILL: ", as by the kernel for want of memory, or where the job ends",
}


async def pieces(fd: int) -> AsyncIterator[bytes]:
    """Yield what a descriptor gives, as it comes, until its end; a file is read in a thread."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(fd, ready.set)
    except (PermissionError, OSError):  # a file, of which the kernel tells no readiness; or none, where it is closed
        while data := await loop.run_in_executor(None, _read, fd):
            yield data
        return
    try:
        while True:
            await ready.wait()
            ready.clear()
            if not select.select([fd], [], [], 0)[0]:  # it was told twice of the same
                continue
            try:
                data = os.read(fd, CHUNK_BYTES)
            except BlockingIOError:
                continue
            except OSError:  # a terminal that was hung up
                return
            if not data:
                return
            yield data
    finally:
        loop.remove_reader(fd)


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, CHUNK_BYTES)
    except OSError:
        return b""


async def left_by_escape(typed: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """
    Yield what is typed; raise :class:`Left` at ``~.`` behind a line's end. ``~~`` there is one ``~``.

    A ``~`` at a line's beginning waits for the key behind it.
    """
    escape = EscapeKeys()
    async for data in typed:
        if passed := escape.feed(data):
            yield passed
        if escape.has_left:
            raise Left


class EscapeKeys:
    """
    Finds ``~.`` in what is typed.

    Examples
    --------
    >>> keys = EscapeKeys()
    >>> keys.feed(b"ls ~.\\r"), keys.feed(b"~"), keys.feed(b"/x"), keys.has_left
    (b'ls ~.\\r', b'', b'~/x', False)
    >>> keys.feed(b"\\r~~\\r~."), keys.has_left
    (b'\\r~\\r', True)
    """

    def __init__(self) -> None:
        self.has_left = False
        self._at_beginning, self._is_waiting = True, False

    def feed(self, data: bytes) -> bytes:
        """Return what is to be passed on."""
        passed = bytearray()
        for key in (data[i : i + 1] for i in range(len(data))):
            if self._is_waiting:
                self._is_waiting, self._at_beginning = False, False
                if key == _LEAVE:
                    self.has_left = True
                    break
                passed += _ESCAPE if key == _ESCAPE else _ESCAPE + key
            elif self._at_beginning and key == _ESCAPE:
                self._is_waiting = True
                continue
            else:
                passed += key
            self._at_beginning = key in b"\r\n"
        return bytes(passed)


@contextlib.contextmanager
def raw_mode() -> Iterator[None]:
    """Have the terminal pass on every key as it is typed, while open; a TERM or HUP restores it too."""
    before = termios.tcgetattr(0)
    with ended_in_order():
        tty.setraw(0, termios.TCSADRAIN)  # what was typed ahead is the command's
        try:
            yield
        finally:
            with contextlib.suppress(termios.error):  # it was hung up
                termios.tcsetattr(0, termios.TCSADRAIN, before)


@contextlib.contextmanager
def ended_in_order() -> Iterator[None]:
    """Have a TERM or HUP end the present task as Ctrl-C does, while open, and leave with the signal's exit code."""
    main, ended = asyncio.current_task(), list[int]()

    def end(signum: int) -> None:
        ended.append(signum)
        if main is not None:
            main.cancel()

    with _handling([signal.SIGTERM, signal.SIGHUP], end):
        try:
            yield
        except asyncio.CancelledError:
            if not ended:
                raise
            raise SystemExit(128 + ended[0]) from None


@contextlib.contextmanager
def _resized(session: JobSession) -> Iterator[None]:
    """Give the session's terminal the size of this one whenever that changes."""
    with _handling([signal.SIGWINCH], lambda _: _beside(session.resize(terminal_size()))):
        yield


@contextlib.contextmanager
def _signals_passed_on(session: JobSession) -> Iterator[None]:
    """Pass signals on to the command, while open; a second Ctrl-C is ours, and ends the session."""
    main, counted = asyncio.current_task(), [0]

    def pass_on(signum: int) -> None:
        counted[0] += signum == signal.SIGINT
        if counted[0] > 1 and main is not None:
            main.cancel()
        else:
            _beside(session.signal(signum))

    with _handling(_PASSED_ON, pass_on):
        yield


@contextlib.contextmanager
def _handling(signums: tuple[signal.Signals, ...] | list[signal.Signals], act: Callable[[int], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for signum in signums:
        loop.add_signal_handler(signum, act, signum)
    try:
        yield
    finally:
        for signum in signums:
            loop.remove_signal_handler(signum)


_running: Final[set[asyncio.Future[None]]] = set()


def _beside(work: Coroutine[Any, Any, None]) -> None:
    """Run a request beside; whether it was answered matters to nobody."""
    task = asyncio.ensure_future(work)
    _running.add(task)
    task.add_done_callback(_forget)


def _forget(task: asyncio.Future[None]) -> None:
    _running.discard(task)
    if not task.cancelled():
        task.exception()  # else asyncio prints it


def exit_code(status: SessionStatus) -> int:
    """Return the command's exit code; say why there is none."""
    if status.exit_code is not None:
        return status.exit_code
    tell(f"the session has ended: {status.reason or 'its command ended without an exit code'}")
    return LOST


def signal_text(code: int) -> str:
    """
    Return which signal has ended a command, as its exit code says it; empty where it was none that needs a word.

    Examples
    --------
    >>> signal_text(152)
    'exit code 152: the command was ended by SIGXCPU, as for its limit on processor time'
    >>> signal_text(139), signal_text(130), signal_text(1)
    ('exit code 139: the command was ended by SIGSEGV', '', '')
    """
    try:
        ended = signal.Signals(code - 128)
    except ValueError:
        return ""
    if ended in _OF_PEOPLE:
        return ""
    return f"exit code {code}: the command was ended by {ended.name}{_LIMITS.get(ended, '')}"
