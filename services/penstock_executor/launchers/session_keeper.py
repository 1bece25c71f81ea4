"""
Keeper of a session: runs one command beside a job's program, or makes one connection to a port there.

A part of the shim, which forks a child for each session and has it load this file by its path. Like the shim it imports
nothing of Penstock. The executor is at the other end of a socket (``process_launcher.enter``):

* It sends what is asked for: a length, ``marshal``, and the descriptors of the command's standard streams.
* For a command, each byte that it sends later is the number of a signal. The keeper sends ``@`` and the command's pid,
  if that leads a session of the kernel's, as one with a terminal does, and the exit status when it has ended. If the
  executor closes the socket, or is gone, the command gets HUP, and then KILL.
* For a connection, the keeper sends the connected socket, or why there is none.
* For neither, it does nothing: that the socket closes tells the executor that the program has ended.

The command has what the program has: environment, working directory, user, confinement, control group. It descends
from the shim, so that the fence and the end of the run hold for it too. The keeper itself stays the executor's user,
and is the parent of whatever the command leaves behind; that ends with the command.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import marshal
import os
import select
import signal
import socket
import struct
import termios
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

NOT_CONFINED: Final = 126
HANG_UP_S: Final = 1.0
"""Between HUP and KILL, for a command whose session has ended."""
TELL_S: Final = 20.0
"""So long a program that is there for a session alone is waited for, until it listens to signals."""
CONNECT_S: Final = 10.0
OUTPUT_BYTES: Final = 256 * 1024
LENGTH: Final = struct.Struct("=I")
_HOSTS: Final = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
_SUBREAPER: Final = 36
_DEATH_SIGNAL: Final = 1
_IGNORED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_libc: Final = ctypes.CDLL(None, use_errno=True)


class SessionPlace(NamedTuple):
    """
    What a session is beside.

    Attributes
    ----------
    folder : str
        The process's own.
    confinement : module
        :mod:`confinement`, by which its processes give up what the program has given up.
    tree : ProcessTree
        Of the keeper; empty.
    program : int
        The job's program.
    below : callable
        Returns what descends from the program.
    """

    folder: str
    cwd: str
    env: dict[bytes, bytes]
    confinement: Any
    tree: Any
    program: int
    below: Callable[[], list[int]]


def serve(fd: int, session: SessionPlace) -> None:
    """Do what the executor asks for at the other end of a socket."""
    connection = socket.socket(fileno=fd)
    connection.setblocking(True)
    asked, fds = _receive(connection)
    env = {name: value for name, value in session.env.items() if name.decode(errors="replace") not in asked["drop"]}
    env |= {os.fsencode(name): os.fsencode(value) for name, value in asked["env"].items()}
    if asked["port"]:
        _connect(connection, asked["port"], session._replace(env=env))
    elif not asked["argv"]:
        while _heard(connection):
            pass  # until the executor hangs up, or the shim ends us with the program
    else:
        _run(connection, asked, fds, session._replace(env=env))


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    head, fds, _, _ = socket.recv_fds(connection, LENGTH.size, 3)
    (size,) = LENGTH.unpack(head)
    body = bytearray()
    while len(body) < size:
        part = connection.recv(size - len(body))
        if not part:
            raise ConnectionError("the executor is gone")
        body += part
    return marshal.loads(bytes(body)), fds  # noqa: S302 - the executor's own, in a folder that nobody else enters


# --- a command
def _run(connection: socket.socket, asked: dict[str, Any], fds: list[int], session: SessionPlace) -> None:
    """Run the command until it ends or the executor hangs up; nothing of it is left then."""
    _libc.prctl(_SUBREAPER, 1, 0, 0, 0)
    wake, tree = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK), session.tree
    for ignored in _IGNORED:
        signal.signal(ignored, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake[1], warn_on_full_buffer=False)
    begins, begun = os.pipe2(os.O_CLOEXEC)
    tree.program = os.fork()
    if not tree.program:
        _begin(asked, fds, session)
    for fd in (*fds, begun):
        os.close(fd)
    os.read(begins, 1)  # which ends when the command's process has closed it
    os.close(begins)
    try:
        if asked["terminal"]:
            connection.sendall(b"@%d\n" % tree.program)
        _wait(connection, wake[0], session, tells=asked["ends_run"])
    finally:
        tree.end()
        if tree.code is not None:  # told first: with the program, this process ends too
            with contextlib.suppress(OSError):
                connection.sendall(b"%d\n" % tree.code)
        if asked["ends_run"]:
            os.killpg(os.getpgrp(), signal.SIGTERM)


def _wait(connection: socket.socket, wake: int, session: SessionPlace, *, tells: bool) -> None:
    tree, poll, until_s = session.tree, select.poll(), _now_s() + TELL_S
    for fd in (connection.fileno(), wake):
        poll.register(fd, select.POLLIN)
    while True:
        tree.reap()
        if tree.code is not None:
            return
        tells = tells and not _told(session) and _now_s() < until_s
        for fd, _ in poll.poll(20 if tells else None):
            if fd == wake:
                os.read(wake, 4096)
            elif not (signals := _heard(connection)):
                _hang_up(tree, wake)
                return
            else:
                for signum in signals:
                    _signal(tree.program, signum)


def _heard(connection: socket.socket) -> bytes:
    try:
        return connection.recv(64)
    except OSError:
        return b""


def _hang_up(tree: Any, wake: int) -> None:
    """Send HUP, and CONT to what is stopped, and wait a little while for the command to end."""
    for signum in (signal.SIGHUP, signal.SIGCONT):
        _signal(tree.program, signum)
    end_s = _now_s() + HANG_UP_S
    while not (tree.reap() or tree.code is not None) and (left_s := end_s - _now_s()) > 0:
        select.select([wake], [], [], left_s)
        with contextlib.suppress(BlockingIOError):
            os.read(wake, 4096)
    tree.code = None  # the session had ended before it did


def _signal(leader: int, signum: int) -> None:
    with contextlib.suppress(OSError, ValueError):  # ValueError: no signal has this number
        os.killpg(leader, signum)


def _told(session: SessionPlace) -> bool:
    """Tell the program that its session has begun, once it listens; return whether it did."""
    listening = [pid for pid in (session.program, *session.below()) if _catches(pid, signal.SIGUSR1)]
    for pid in listening:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGUSR1)
    return bool(listening)


def _catches(pid: int, signum: int) -> bool:
    """Return whether a process has a handler for a signal."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            caught = next(line for line in file if line.startswith(b"SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(int(caught.split()[1], 16) >> (signum - 1) & 1)


def _begin(asked: dict[str, Any], fds: Sequence[int], session: SessionPlace) -> None:
    """Become the command, in a child of the keeper."""
    status = NOT_CONFINED
    try:
        streams = fds if len(fds) == 3 else [fds[0]] * 3
        if asked["terminal"]:
            os.setsid()
            fcntl.ioctl(fds[0], termios.TIOCSCTTY, 0)
        else:
            os.setpgid(0, 0)
            for fd in fds[1:]:
                with contextlib.suppress(OSError):
                    fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, OUTPUT_BYTES)
        for number, fd in enumerate(streams):
            os.dup2(fd, number)
        signal.set_wakeup_fd(-1)
        for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(signum, signal.SIG_DFL)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # from here on, it gets the signals that are sent to the command
        confined = session.confinement.read(session.folder)
        wrapper: Sequence[str] = () if confined is None or confined.namespace else confined.wrapper
        for signum in _IGNORED if wrapper else ():
            signal.signal(signum, signal.SIG_IGN)  # they are the command's; for it, the wrapper ends with a reset
        if confined is not None and confined.namespace:
            confined.enter_beside(session.program, session.env)
        elif confined is not None:
            confined.enter(session.env)
        _libc.prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)  # which a change of the user takes away
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if confined is not None and confined.namespace:
            confined.become(session.cwd, asked["argv"], session.env)
        command = [*wrapper, "/bin/sh", "-c", 'cd "$1" && shift && exec "$@"', "penstock", session.cwd, *asked["argv"]]
        os.execve(command[0], command, session.env)  # noqa: S606 - what the keeper is for
    except BaseException as error:  # whatever it is: this is a child of the keeper, and must not go on as one
        status = getattr(error, "status", NOT_CONFINED)
        with contextlib.suppress(OSError):
            os.write(2, f"penstock: {error}\n".encode(errors="replace"))
    finally:
        os._exit(status)


def _now_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


# --- a connection
def _connect(connection: socket.socket, port: int, session: SessionPlace) -> None:
    """Connect to a port as the job's user would, and hand the connection to the executor."""
    confined = session.confinement.read(session.folder)
    if confined is not None:  # ports are the host's, whatever files a job sees, also in a container
        confined._replace(tmp="", namespace="", attached=()).enter(session.env)
    why = ""
    for family, host in _HOSTS:
        with socket.socket(family, socket.SOCK_STREAM) as made:
            made.settimeout(CONNECT_S)
            try:
                made.connect((host, port))
            except OSError as error:
                why = why or error.strerror or str(error)
            else:
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                socket.send_fds(connection, [b"+"], [made.fileno()])
                return
    connection.sendall(b"-" + why.encode(errors="replace"))
