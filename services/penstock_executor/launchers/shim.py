"""
The shim of one process of a job: runs the program, keeps what it prints, and ends all that it leaves behind.

It is a process of its own and imports nothing of Penstock: it outlives the executor, and the executor that comes next
finds it by pid and start time. It leads a session and a process group. The executor's Python runs it with ``-I -S``, or
a fork server (:mod:`fork_server`) forks it, which takes a tenth of the time.

* What the program prints comes through pipes and is appended to two files. A disk that has no room never reaches the
  program: what cannot be written is held in memory, up to :data:`HELD_BYTES`, and written when there is room again.
  Some room beyond each file's end is reserved for its last lines. A program that ends while there is no room, not even
  that, counts as running for some time until there is, or until :data:`KILL`.
* Processes that the program leaves behind become the shim's own children, also those that have left the session
  (``PR_SET_CHILD_SUBREAPER``). When the program ends, or on :data:`KILL`, the shim ends them all.
* It stays the executor's user. What the program is to give up, such as this user, is in :mod:`confinement`, and given
  up between fork and exec.
* In its folder it listens at ``enter``: there the executor asks for a command beside the program, or for a connection
  to one of its ports, and a child keeps that (:mod:`session_keeper`). What was entered ends with the program.
* At ``park`` in its folder the executor asks it to keep the program stopped, and to let it go on (:mod:`park_keeper`).
* It survives TERM, INT and HUP, which are the program's; a program to which they came before it began is not run.
* It stops the program and all of its children when the matcher has not heard the node for too long, and lets them go on
  when it is heard again (:mod:`fence_keeper`). Should the shim itself be stopped, the kernel ends it and the program.

It notes its ``/proc`` line in ``pid`` before the program begins, and the program's exit status in ``exit`` when all of
its output is in the files. ``kept`` says what became of the output. The room of both is taken before it is needed.
"""

from __future__ import annotations

import _socket
import contextlib
import ctypes
import errno
import fcntl
import importlib.util
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, Final, NamedTuple

KILL: Final = signal.SIGRTMIN + 7
"""To the shim alone: end the program and all of its children. Nobody else sends it, as people do USR1 to a group."""
HIDDEN: Final = "PENSTOCK_SHIM_"
"""Before the names of variables that would change how the shim itself runs; the program gets them without it."""
ENDED: Final = 128 + signal.SIGTERM
NOT_CONFINED: Final = 126
"""As of a program that is there and must not be run: it could not be confined as its node wants it."""
HELD_BYTES: Final = 1 << 20
LAST_BYTES: Final = 8 * 1024
"""Of what is over the limit, the end is kept: it holds the error message."""
KEPT_BYTES: Final = 512
_DATA_BYTES: Final = 256 << 20
"""The shim itself has far less."""
_RESERVE_BYTES: Final = 64 * 1024
_AHEAD_BYTES: Final = 256 * 1024
_READ_BYTES: Final = 256 * 1024
_AGAIN_S: Final = 0.2
_LOOKS: Final = 100
"""Five seconds: how long those are waited for that cannot be ended, being another user's or stuck in the kernel."""
_LOOK_S: Final = 0.05
_KEEP_SIZE: Final = 0x01
_SUBREAPER: Final = 36
_DUMPABLE: Final = 4
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG})
_OURS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_IGNORED: Final = (signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGTSTP, signal.SIGPIPE)
_NAMES: Final = ("stdout", "stderr")
ENTRANCE: Final = "enter"
PARKING: Final = "park"
_WAITING: Final = 64
"""Those who ask to enter at a time, at most."""
_NEWLINE: Final = 0x0A
_loaded: Final[dict[str, ModuleType]] = {}
_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class OutputSink:
    """
    One output file.

    Parameters
    ----------
    path : str
        Appended to; must exist.
    limit_bytes : int
        The file's most; of what is printed beyond, only the last :data:`LAST_BYTES` are kept.

    Attributes
    ----------
    over_bytes, lost_bytes : int
        Dropped for the limit, and for want of room.
    refused : int
        The error number with which the disk last refused something; 0 where it never did.
    """

    def __init__(self, path: str, limit_bytes: int) -> None:
        self.over_bytes = self.lost_bytes = self.refused = self._unnoticed_bytes = 0
        self._limit_bytes = limit_bytes
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._size = self._reserved = os.fstat(self._fd).st_size
        self._reserves = True
        self._inside = self._written_inside = False
        self._held = bytearray()
        self._last = bytearray()

    @property
    def holds(self) -> bool:
        """Whether something waits for room on the disk."""
        return bool(self._held)

    def put(self, data: bytes) -> None:
        """Take in what was printed."""
        free_bytes = max(self._limit_bytes - self._size - len(self._held), 0)
        if self.over_bytes or len(data) > free_bytes:
            if not self.over_bytes:
                self._keep(data[:free_bytes])
                self._keep(self._notice(f"the limit of {self._limit_bytes} bytes is reached; of more, the end is kept"))
                data = data[free_bytes:]
            self.over_bytes += len(data)
            self._last += data
            del self._last[:-LAST_BYTES]
        else:
            self._keep(data)

    def flush(self) -> None:
        """Try again to write what is held."""
        if self._held and self._reserve(len(self._held)):
            held, self._held = self._lost_notice() + bytes(self._held), bytearray()
            self._keep(held)

    def finish(self) -> None:
        """Take in the end of what was over the limit: nothing more is printed."""
        last, self._last = bytes(self._last), bytearray()
        if last:
            self.over_bytes -= len(last)
            text = f"{self.over_bytes} bytes dropped: over the limit of {self._limit_bytes} bytes"
            self._keep(self._notice(text) * (self.over_bytes > 0) + last)

    def fits(self) -> bool:
        """Write what is held, if there is room or it fits into the reserve; return whether nothing is held any more."""
        self.flush()
        if self._held and len(self._held) + KEPT_BYTES <= self._reserved - self._size:
            self._end_in_reserve()
        return not self._held

    def close(self) -> None:
        """Write what is left, into the reserve where there is no other room, and give the rest of the reserve back."""
        self.finish()
        if not self.fits():
            self._end_in_reserve()
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, os.fstat(self._fd).st_size)
        os.close(self._fd)

    def _end_in_reserve(self) -> None:
        """Write as much of the end as the disk takes, with a line on how much is missing."""
        held, self._held = bytes(self._held), bytearray()
        free_bytes = _RESERVE_BYTES
        while free_bytes >= KEPT_BYTES:
            kept = held[max(len(held) - free_bytes + KEPT_BYTES, 0) :]
            lost_bytes = len(held) - len(kept)
            if self._whole(self._lost_notice(lost_bytes) + kept):
                self.lost_bytes += lost_bytes
                return
            free_bytes //= 2
        self.lost_bytes += len(held)

    def _lost_notice(self, more_bytes: int = 0) -> bytes:
        """Return a line on what was lost before the bytes that come next."""
        lost_bytes = self._unnoticed_bytes + more_bytes
        if not lost_bytes:
            return b""
        self._unnoticed_bytes -= 0 if more_bytes else lost_bytes
        return self._line(f"{lost_bytes} bytes lost: {os.strerror(self.refused)}", inside=self._written_inside)

    def _whole(self, data: bytes) -> bool:
        """Write all or nothing: what was written in part is taken back."""
        before = self._size
        if self._write(data) == len(data):
            return True
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, before)
        self._size = before
        return False

    def _keep(self, data: bytes) -> None:
        if not data:
            return
        self._inside = not data.endswith(b"\n")
        if not self._held and self._reserve(len(data)):
            data = data[self._write(data) :]
        self._held += data
        excess = len(self._held) - HELD_BYTES
        if excess > 0:
            self.lost_bytes += excess
            self._unnoticed_bytes += excess
            del self._held[:excess]

    def _write(self, data: bytes) -> int:
        """Append to the file; return how much of it the disk took."""
        view, done = memoryview(data), 0
        while done < len(data):
            try:
                done += os.write(self._fd, view[done:])
            except OSError as error:
                self.refused = error.errno or errno.EIO
                break
        self._size += done
        if done:
            self._written_inside = data[done - 1] != _NEWLINE
        return done

    def _reserve(self, size: int) -> bool:
        """Keep some room behind the file's end; False where the disk has none to spare."""
        wanted = self._size + size + _RESERVE_BYTES
        if not self._reserves or wanted <= self._reserved:
            return True
        for more in (wanted + _AHEAD_BYTES, wanted):
            if _libc.fallocate(self._fd, _KEEP_SIZE, self._reserved, more - self._reserved) == 0:
                self._reserved = more
                return True
        number = ctypes.get_errno()
        if number in _NO_ROOM:
            self.refused = number
            return False
        self._reserves = False  # the file system knows no reserves
        return True

    def _notice(self, text: str) -> bytes:
        return self._line(text, inside=self._inside)

    def _line(self, text: str, *, inside: bool) -> bytes:
        return b"%s[penstock: %s]\n" % (b"\n" * inside, text.encode())


class ProcessTree:
    """
    The program and all that descends from it, which are the shim's children and theirs.

    Attributes
    ----------
    program : int
    code : int or None
        Its exit status, once it has ended.
    left : int or None
        The status that it gets in place of its own; None: its own.
    fds : tuple of int
        Descriptors that say that something has ended, besides the signal of a child.
    """

    fds: tuple[int, ...] = ()

    def __init__(self) -> None:
        self.program = 0
        self.code: int | None = None
        self.left: int | None = None
        self._held: set[int] = set()
        self._parked = False

    def roots(self) -> list[int]:
        """Return the processes from which all of them descend."""
        return [os.getpid()]

    def members(self) -> list[int]:
        """Return all of them, in no order."""
        return descendants(os.getpid())

    def reap(self) -> bool:
        """Reap the processes that have ended; return whether none is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if not pid:
                return False
            if pid == self.program:
                ended = os.waitstatus_to_exitcode(status)
                code = 128 - ended if ended < 0 else ended
                self.code = code if self.left is None else self.left

    def hold(self) -> bool:
        """Stop all of them that run, again until none does, as one that runs may start another; return whether so."""
        for _ in range(_LOOKS):
            running = [pid for pid in self.members() if state(pid) not in b"TtZX"]
            if not running:
                return True
            for pid in running:
                self._held.add(pid)
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGSTOP)
            time.sleep(0.001)  # some are deep in the kernel, and stop when they come back from there
        return False

    def park(self) -> bool:
        """Stop all of them, until :meth:`unpark`; return whether all have stopped."""
        self._parked = True  # before: whoever keeps the fence releases them meanwhile
        return self.hold()

    def unpark(self) -> None:
        """Let those go on that were stopped by :meth:`park`."""
        self._parked = False
        self.release()

    def release(self) -> None:
        """Let those go on that :meth:`hold` has stopped, unless they are parked; who was stopped before stays so."""
        if self._parked:
            return
        for pid in self._held.intersection(self.members() if self._held else ()):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGCONT)
        self._held.clear()

    def kill(self) -> None:
        """Send KILL to all; whose parent goes becomes a child of ours, and is met at the next call."""
        for pid in self.members():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        """End all, and wait until they have ended."""
        for look in range(_LOOKS):
            if self.reap():
                return
            self.kill()
            time.sleep(min(0.001 * 2**look, _LOOK_S))


def descendants(ancestor: int, without: Sequence[int] = ()) -> list[int]:
    """Return all processes below one, in no order, without some of them and what is below these."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                stat = file.read()
                children.setdefault(int(stat[stat.rindex(b")") + 2 :].split()[1]), []).append(int(name))
    found = [pid for pid in children.get(ancestor, ()) if pid not in without]
    for pid in found:
        found += [child for child in children.get(pid, ()) if child not in without]
    return found


def parent(pid: int) -> int:
    """Return the parent of a process; 0 where it is gone."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
        stat = file.read()
        return int(stat[stat.rindex(b")") + 2 :].split()[1])
    return 0


def state(pid: int) -> bytes:
    """Return the letter of a process's state; that of a dead one where it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except OSError:
        return b"X"
    return stat[stat.rindex(b")") + 2 :][:1] or b"X"


class Order(NamedTuple):
    """
    What a shim is to run, and what it does with it.

    Attributes
    ----------
    folder : str
        The process's own: ``pid``, ``exit``, ``kept`` and ``confinement`` are there.
    output : str
        Holds ``stdout`` and ``stderr``, which are appended to.
    limit : str
        ``BYTES:SECONDS``: the most of each of them, and how long an ended program waits for room on the disk.
    limits : str
        The fence, as :func:`fence_keeper.parse` reads it; empty: none.
    cwd : str
        The folder that the program runs in.
    argv : tuple of str
        The program's command line.
    env : dict of bytes to bytes
        The program's environment.
    warm : tuple
        What a warm server has to know of it (:class:`penstock_executor.launchers.warm_command.WarmCommand`); empty for
        programs that start by exec.
    limited : tuple of int
        Where ``argv`` begins with a shell that limits the program's data: how many words the shell has, and the limits,
        soft and hard, in bytes. Empty: it does not.
    """

    folder: str
    output: str
    limit: str
    limits: str
    cwd: str
    argv: tuple[str, ...]
    env: dict[bytes, bytes]
    warm: tuple[Any, ...] = ()
    limited: tuple[int, ...] = ()

    def shell(self) -> list[str]:
        """Return the command line that enters the program's folder and becomes the program."""
        return ["/bin/sh", "-c", 'cd "$1" && shift && exec "$@"', self.folder, self.cwd, *self.argv]


class _Ended(Exception):
    """TERM came before the program began."""


def run(
    order: Order,
    start: Callable[[Order, Sequence[int], int], int] | None = None,
    tree: ProcessTree | None = None,
) -> int:
    """
    Be the shim of a program; return its exit status.

    Parameters
    ----------
    start : callable, optional
        ``start(order, writers, left_open)``: what starts the program, with the writers as its output and one descriptor
        left open, and returns its pid. By default, :func:`spawn`.
    tree : ProcessTree, optional
        What the program will be in; by default, a tree of the shim's own children.
    """
    _libc.prctl(_SUBREAPER, 1, 0, 0, 0)
    _libc.prctl(_DUMPABLE, 0, 0, 0, 0)  # a job of the same user is not to write into its memory
    folder = order.folder
    tree = tree or ProcessTree()
    wake, kill_asked = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK), [False]
    limit_bytes, room_s = order.limit.split(":")
    sinks = [OutputSink(os.path.join(order.output, name), int(limit_bytes)) for name in _NAMES]
    fence = load_beside("fence_keeper").parse(order.limits) if order.limits else None
    pipes = [os.pipe2(os.O_CLOEXEC) for _ in _NAMES]
    kept, status = _Kept(os.path.join(folder, "kept"), sinks), _ShortFile(os.path.join(folder, "exit.new"), 8)
    if _note(os.path.join(folder, "pid")) and signal.sigpending().isdisjoint((*_OURS, KILL)):
        _begin(tree, fence, order, [writer for _, writer in pipes], start or spawn)
    else:
        tree.code = ENDED
    for signum in (*_OURS, signal.SIGCHLD):
        signal.signal(signum, lambda *_: None)
    signal.signal(KILL, lambda *_: kill_asked.append(True))
    signal.set_wakeup_fd(wake[1], warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*_OURS, KILL))
    for _, writer in pipes:
        os.close(writer)
    reading = {reader: sink for (reader, _), sink in zip(pipes, sinks, strict=True)}
    entrance, parking = _Entrance(order, tree), _Parking(order, tree, sinks, reading, kept)
    with contextlib.nullcontext() if fence is None else fence.kept(tree):
        for _ in _turns(tree, reading, wake[0], entrance, parking):
            if kill_asked[-1]:
                tree.kill()
            kept.note()
        entrance.close()
        tree.end()
        parking.close()
    for reader, sink in reading.items():
        for data in _read(reader):
            sink.put(data)
        sink.finish()
    _wait_for_room(kept, status, float(room_s), kill_asked)
    for sink in sinks:
        sink.close()
    kept.note()
    code = ENDED if tree.code is None else tree.code
    with contextlib.suppress(OSError):  # then the executor hears it as our own status, if it is still the same one
        if status.write(b"%-8d" % code):
            os.rename(status.path, os.path.join(folder, "exit"))
    return code


def _wait_for_room(kept: _Kept, status: _ShortFile, most_s: float, kill_asked: Sequence[bool]) -> None:
    """Wait until there is room for all that is still to be written: for a while, and not after KILL."""
    for _ in range(round(most_s / _AGAIN_S)):
        if (kept.fits() and status.fits()) or kill_asked[-1]:
            return
        kept.note()
        time.sleep(_AGAIN_S)


def _begin(
    tree: ProcessTree,
    fence: Any,
    order: Order,
    writers: Sequence[int],
    start: Callable[[Order, Sequence[int], int], int],
) -> None:
    """Start the program, once it may begin; it counts as ended where it never may."""
    for writer in writers:
        with contextlib.suppress(OSError):
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, _READ_BYTES)
    if fence is None:
        tree.program = start(order, writers, 2)
        return
    if fence.opens((*_OURS, KILL)):
        try:
            tree.program = start(order, writers, fence.tether.inherited)
        except BaseException:  # in the child that becomes the program
            fence.tether.leave()
            raise
    else:
        tree.code = ENDED
    fence.tether.hand_over()


def _turns(
    tree: ProcessTree, sinks: dict[int, OutputSink], wake: int, entrance: _Entrance, parking: _Parking
) -> Iterator[None]:
    """Take in output, and those who enter or park it, until the program has ended; yield after each turn."""
    poll = select.poll()
    for fd in (*sinks, wake, *entrance.fds, *tree.fds, *parking.fds):
        os.set_blocking(fd, False)
        poll.register(fd, select.POLLIN)
    open_fds = set(sinks)
    while True:
        tree.reap()
        yield
        if tree.code is not None:
            return
        waits = any(sink.holds for sink in sinks.values())
        for fd, _ in poll.poll(1000 * _AGAIN_S if waits else None):
            if fd == wake:
                _read_once(wake)
            elif fd in (*entrance.fds, *parking.fds):
                _let_in(fd, entrance, parking, poll)
            elif fd in open_fds and (data := _read_once(fd)) is not None:
                if data:
                    sinks[fd].put(data)
                else:  # nobody has it open any more
                    open_fds.discard(fd)
                    poll.unregister(fd)
        for sink in sinks.values():
            sink.flush()


def _let_in(fd: int, entrance: _Entrance, parking: _Parking, poll: select.poll) -> None:
    if fd in entrance.fds:
        entrance.let_in()
    else:
        parking.look(fd, poll)


def _read(fd: int) -> Iterator[bytes]:
    while data := _read_once(fd):
        yield data


def _read_once(fd: int) -> bytes | None:
    """Return what a pipe holds: nothing at its end, None where there is nothing now."""
    try:
        return os.read(fd, _READ_BYTES)
    except BlockingIOError:
        return None


def spawn(order: Order, writers: Sequence[int], left_open: int) -> int:
    """Start a program by exec; it inherits one descriptor more than its output."""
    is_confined = os.path.exists(os.path.join(order.folder, "confinement"))
    confined = load_beside("confinement").read(order.folder) if is_confined else None
    if (confined is None or confined.is_slight) and (pid := _spawn_directly(order, confined, writers)):
        return pid
    if is_confined:
        return _spawn_confined(order, writers, left_open)
    shell = order.shell()
    return _spawn(shell[0], shell, order.env, writers)


def _spawn(path: str, words: list[str] | tuple[str, ...], env: dict[bytes, bytes], writers: Sequence[int]) -> int:
    actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(writers, 1)]
    return os.posix_spawn(path, words, env, file_actions=actions, setsigmask=(), setsigdef=_catchable())


def _spawn_directly(order: Order, confined: Any, writers: Sequence[int]) -> int:
    """
    Start a program as a shell would, without a shell and without a fork of this interpreter; return its pid.

    What the program inherits, the shim itself takes on. Return 0, and leave the start to others, where something is in
    the way: they say what.
    """
    skipped, *data_bytes = order.limited or (0,)
    if data_bytes and min(data_bytes) < _DATA_BYTES:  # which may be too few for the shim
        return 0
    here = -1
    try:
        here = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        folders = {b"OLDPWD": os.fsencode(os.getcwd()), b"PWD": os.fsencode(order.cwd)}
        os.chdir(order.cwd)
        words = order.argv[skipped:]
        path = _found(words[0], os.fsdecode(order.env.get(b"PATH", os.fsencode(os.defpath))))
        if not path:
            return 0
        if confined is not None and not confined.enter_as_shim():
            return 0
        if data_bytes:
            resource.setrlimit(resource.RLIMIT_DATA, (data_bytes[0], data_bytes[1]))
        return _spawn(path, words, {**order.env, **folders}, writers)
    except (OSError, ValueError):
        return 0
    finally:
        if data_bytes:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_DATA, (resource.getrlimit(resource.RLIMIT_DATA)[1],) * 2)
        if here >= 0:
            with contextlib.suppress(OSError):  # the program has begun, and this process needs no folder
                os.fchdir(here)
            os.close(here)


def _found(name: str, where: str) -> str:
    """Return the file of a program, as a shell finds it; empty where it finds none that it could run."""
    paths = [name] if "/" in name else [os.path.join(folder, name) for folder in where.split(":")]
    return next((path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)), "")


class _Entrance:
    """
    Where the executor asks for what is to run beside the program: a socket in the process's folder.

    Attributes
    ----------
    fds : tuple of int
        The socket; none where it cannot be made, as on a full disk: the program runs all the same.
    """

    def __init__(self, order: Order, tree: ProcessTree) -> None:
        self._order, self._tree = order, tree
        self._socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        self.fds = _listen(self._socket, order.folder, ENTRANCE)

    def close(self) -> None:
        """Let nobody in any more: the program has ended."""
        self._socket.close()

    def let_in(self) -> None:
        """Have a child of ours keep what the executor asks for."""
        try:
            fd, _ = self._socket._accept()  # type: ignore[attr-defined] # what socket.socket is made of
        except OSError:  # it has gone again
            return
        try:
            pid = os.fork()
        except OSError as error:  # no process can be had: whoever asked hears the end, and the program goes on
            _say(f"a session did not begin: {error}")
            pid = -1
        if pid == 0:
            self._keep(fd)
        os.close(fd)

    def _keep(self, fd: int) -> None:
        """Be the keeper of a session, and exit."""
        try:
            signal.set_wakeup_fd(-1)
            os.closerange(3, fd)
            os.closerange(fd + 1, os.sysconf("SC_OPEN_MAX"))
            program = self._tree.program
            confinement, keeper, order = load_beside("confinement"), load_beside("session_keeper"), self._order
            place = keeper.SessionPlace(
                order.folder, order.cwd, order.env, confinement, ProcessTree(), program, lambda: descendants(program)
            )
            keeper.serve(fd, place)
        except BaseException as error:  # whatever it is: this is a child of the shim, and must not go on as one
            _say(f"a session ended: {error!r}")
        finally:
            os._exit(0)


class _Parking:
    """
    Where the executor asks for the program to be parked: a socket in the process's folder.

    Attributes
    ----------
    fds : tuple of int
        The socket, and the connection of who has asked last; none where the socket cannot be made.
    """

    def __init__(
        self,
        order: Order,
        tree: ProcessTree,
        sinks: list[OutputSink],
        reading: dict[int, OutputSink],
        kept: _Kept,
    ) -> None:
        self._tree, self._sinks, self._reading, self._kept = tree, sinks, reading, kept
        self._limit_bytes = int(order.limit.split(":")[0])
        self._socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        self._listening = self.fds = _listen(self._socket, order.folder, PARKING)
        self._keeper: Any = None

    def look(self, fd: int, poll: select.poll) -> None:
        """Let somebody in, unless there is one, or do what is asked."""
        if self._keeper is not None and fd == self._keeper.fd:
            if not self._keeper.read():
                poll.unregister(fd)
                self._keeper, self.fds = None, self._listening
            return
        try:
            made, _ = self._socket._accept()  # type: ignore[attr-defined] # what socket.socket is made of
        except OSError:  # it has gone again
            return
        if self._keeper is not None:
            os.close(made)
            return
        self._keeper = load_beside("park_keeper").ParkKeeper(made, self._tree, self._drain, self._redirect)
        self.fds = (*self._listening, made)
        poll.register(made, select.POLLIN)

    def close(self) -> None:
        """Let nobody in any more, and hang up: the program has ended."""
        if self._keeper is not None:
            self._keeper.close()
        self._socket.close()

    def _drain(self) -> bool:
        """Take in all that the program has printed; return whether it is in the files."""
        for reader, sink in self._reading.items():
            while data := _read_once(reader):
                sink.put(data)
            sink.flush()
        self._kept.note()
        return not any(sink.holds for sink in self._sinks)

    def _redirect(self, folder: str) -> None:
        """Have the output go to another folder from now on, each file of it with a limit of its own."""
        fresh = [OutputSink(os.path.join(folder, name), self._limit_bytes) for name in _NAMES]
        for sink in self._sinks:
            sink.close()
        for reader, sink in zip(list(self._reading), fresh, strict=True):
            self._reading[reader] = sink
        self._sinks[:] = fresh
        self._kept.note()


def _listen(listener: _socket.socket, folder: str, name: str) -> tuple[int, ...]:
    """Have a socket listen at a name in a folder; return its descriptor, or none where that cannot be."""
    at = -1
    try:
        at = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=at)
        listener.bind(f"/proc/self/fd/{at}/{name}")  # the folder's own name may be too long for a socket
        listener.listen(_WAITING)
    except OSError as error:
        _say(f"nobody is heard at {name}: {error}")
        return ()
    finally:
        if at >= 0:
            os.close(at)
    return (listener.fileno(),)


def _say(text: str) -> None:
    """Write a line into ``shim.log``."""
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode(errors="replace"))


def _spawn_confined(order: Order, writers: Sequence[int], left_open: int) -> int:
    confinement = load_beside("confinement")
    pid = os.fork()
    if pid:
        return pid
    status = NOT_CONFINED
    try:
        take_output(writers, left_open)
        for signum in _catchable():
            signal.signal(signum, signal.SIG_DFL)
        confined = confinement.read(order.folder)
        for signum in (*_OURS, *_IGNORED) if confined.wrapper else ():
            signal.signal(signum, signal.SIG_IGN)  # they are the program's; for it, the wrapper ends with a reset
        confined.enter(order.env)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if not confined.wrapper:
            confined.become(order.cwd, order.argv, order.env)
        command = [*confined.wrapper, *order.shell()]
        os.execve(command[0], command, order.env)  # noqa: S606 - what the shim is for
    except BaseException as error:  # whatever it is: this is a child of the shim, and must not go on as one
        status = getattr(error, "status", NOT_CONFINED)
        report_not_started(error)
    finally:
        os._exit(status)


def take_output(writers: Sequence[int], left_open: int) -> None:
    """Take the output's descriptors for one's own, in a child of the shim, and close all others but one."""
    for number, fd in enumerate(writers, 1):
        os.dup2(fd, number)
    os.closerange(3, left_open)
    os.closerange(left_open + 1, os.sysconf("SC_OPEN_MAX"))  # whoever started the executor may have left it some


def report_not_started(error: BaseException) -> None:
    """Write on the program's standard error why it does not run."""
    with contextlib.suppress(OSError):
        os.write(2, f"penstock: the job was not started: {error}\n".encode(errors="replace"))


def load_beside(name: str) -> ModuleType:
    """Load a module that lies beside this file, where ``-I`` keeps Python from looking; once in each process."""
    if name in _loaded:
        return _loaded[name]
    spec = importlib.util.spec_from_file_location(name, os.path.join(os.path.dirname(__file__), f"{name}.py"))
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    _loaded[name] = module
    return module


def _catchable() -> set[signal.Signals]:
    return signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}


class _ShortFile:
    """A file in whose room something short can be written later, though the disk be full by then."""

    def __init__(self, path: str, size: int) -> None:
        self.path, self._size, self._fd = path, size, -1
        self.fits()

    def fits(self) -> bool:
        """Take the room, if that has not been done and there is any; return whether the file has it."""
        if self._fd < 0:
            with contextlib.suppress(OSError):
                fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    os.pwrite(fd, b" " * self._size, 0)
                except OSError:
                    os.close(fd)
                else:
                    self._fd = fd
        return self._fd >= 0

    def write(self, text: bytes) -> bool:
        """Write into the room; return whether there is any."""
        if self.fits():
            os.pwrite(self._fd, text, 0)
        return self._fd >= 0


def _note(path: str) -> bool:
    """Note the shim's ``/proc`` line, so that it is found again; return False if a signal asks it to end meanwhile."""

    def end(*_: object) -> None:
        raise _Ended

    for ignored in _IGNORED:
        signal.signal(ignored, signal.SIG_IGN)
    try:
        for signum in (*_OURS, KILL):
            signal.signal(signum, end)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (*_OURS, KILL))
        if not (os.path.exists(path) and os.stat(path).st_size):  # the executor was ended before it could
            with contextlib.suppress(OSError), open("/proc/self/stat", "rb") as stat, open(path, "wb") as file:
                file.write(stat.read())
        signal.pthread_sigmask(signal.SIG_BLOCK, (*_OURS, KILL))
    except _Ended:
        return False
    return True


class _Kept:
    """What became of the output, in a file: three numbers for each stream, as :class:`OutputSink` has them."""

    def __init__(self, path: str, sinks: Sequence[OutputSink]) -> None:
        self._file, self._sinks, self._written = _ShortFile(path, KEPT_BYTES), sinks, b""

    def fits(self) -> bool:
        """Write what the output holds back, where there is room; return whether there is for all, and for this."""
        return all([*(sink.fits() for sink in self._sinks), self._file.fits()])

    def note(self) -> None:
        """Write it down where it has changed."""
        numbers = [n for sink in self._sinks for n in (sink.over_bytes, sink.lost_bytes, sink.refused)]
        text = " ".join(map(str, numbers)).encode().ljust(KEPT_BYTES)
        if text != self._written:
            with contextlib.suppress(OSError):
                self._written = text if self._file.write(text) else b""


def _program_environment() -> dict[bytes, bytes]:
    """Return the program's environment, which the shim has got as its own."""
    own = {name: value for name, value in os.environb.items() if name != b"LC_CTYPE"}  # Python's own doing
    return {name.removeprefix(HIDDEN.encode()): value for name, value in own.items()}


if __name__ == "__main__":
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # whoever started the executor may have left it some
    _, where, output, limit, limits, cwd, *argv = sys.argv
    sys.exit(run(Order(where, output, limit, limits, cwd, tuple(argv), _program_environment())))
