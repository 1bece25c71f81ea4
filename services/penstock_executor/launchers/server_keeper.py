"""
The keeper of one warm server of another user: starts it as that user, and has a program of it kept by a shim.

Where jobs run as other users than the executor's, their shims are root's, and no code of a user's may be in one. So the
server (:mod:`user_server`) runs as the user and forks programs alone, and this process, which is root's and has
run nobody's code, stands between it and the executor. To the executor it is a fork server (:mod:`fork_server`).

* **The server is stopped** but while it imports and while it forks, so that it does nothing between the runs of its
  user's jobs. Who lets it go on at another time has it ended. It is confined as its programs are, and its imports are
  bounded in time and in memory. Whatever it has started by itself is ended.
* **A program is the process that has become a child of the keeper** when the server has forked: the word of the server
  is not taken for it. The keeper puts it into the group of its shim and into its control group, and only then tells it
  what it is to be. There is one program at a time, so that all that descends from the keeper, but for the server and
  the shim, is the program's. It ends with it.
* **The shim** is forked from the keeper, as from the template. It asks the keeper for the program, hears the exit
  status from it, as the kernel tells it to a parent, and signals and stops what descends from it (:class:`KeptTree`).
* **The run's own** ``/tmp`` is mounted in the server's mount namespace before the program is forked.

Whatever goes wrong ends the server, and the program starts by exec. The keeper ends with the executor, or, if a program
is running then, with that. Like the shim it imports nothing of Penstock, and is run with ``-I -S``.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import marshal
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

ANSWER_S: Final = 0.3
"""For how long a server may think about a program; the executor waits for that."""
FORK_S: Final = 3.0
"""For how long it may take to fork one; only the program's shim waits for that."""
IDLE: Final = "it was not used for long"
_SHIM_S: Final = 4 * FORK_S
_STOP_S: Final = 1.0
_LOOK_S: Final = 0.5
_AGAIN_S: Final = 0.02
_LOOKS: Final = 250
"""Five seconds: how long those are waited for that cannot be ended, being stuck in the kernel."""
_MOST_SAID: Final = 4096
_SUBREAPER: Final = 36
_DUMPABLE: Final = 4
_DEATH_SIGNAL: Final = 1
_OOM_MORE: Final = 500
_OOM_MOST: Final = 1000
_HAS_ENDED: Final = "it has ended"
_BEGIN: Final = b"begin"
_ASK, _BEGAN, _NOT_BEGUN, _ENDED, _END, _CLEAR = "ask", "began", "not begun", "ended", "end", "clear"
_libc: Final = ctypes.CDLL(None, use_errno=True)


def _load(name: str) -> Any:
    """Load a module that lies beside this file, where ``-I`` keeps Python from looking."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type] # it lies there
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


shim: Any = _load("shim")
fork_server: Any = _load("fork_server")
confinement: Any = shim.load_beside("confinement")


class ServerOrder(NamedTuple):
    """
    What a keeper is told of its server.

    Attributes
    ----------
    executable : str
        The interpreter's file.
    argv : tuple of str
        The server's whole command line.
    env : dict of str to str
        Its environment.
    confinement : tuple
        What it gives up (:class:`confinement.Confinement`), with limits that no program can raise again. ``tmp``
        says only whether its programs have one of their own.
    import_s : float
        For so long it may import, in seconds.
    most_bytes : int
        So much memory it may hold, in bytes.
    idle_s : float
        It ends when no program was asked of it for so long, in seconds.
    """

    executable: str
    argv: tuple[str, ...]
    env: dict[str, str]
    confinement: tuple[Any, ...]
    import_s: float
    most_bytes: int
    idle_s: float


class ServerFault(Exception):
    """The server has ended, or does not do what a server does; the message says what."""


class KeptRun:
    """
    The program that runs now, as its keeper sees it.

    Attributes
    ----------
    shim, program : int
        Their processes; 0: the shim is gone, the program has not begun or has ended.
    order, question : Order, Question
        What the shim was told, and what the server is told of it.
    confined : Confinement
        What the program gives up.
    channel : socket
        To the shim.
    looks : int
        So often it was looked whether all of it has ended; 0: it is not to end yet.
    """

    def __init__(self, pid: int, order: Any, confined: Any, channel: socket.socket) -> None:
        self.shim, self.order, self.confined, self.channel = pid, order, confined, channel
        self.question = fork_server.Question.about(order)
        self.program = self.looks = 0

    def tell(self, kind: str, value: Any = None) -> None:
        """Tell the shim, if it is still there."""
        with contextlib.suppress(OSError):
            self.channel.send(marshal.dumps((kind, value)))


class Keeper:
    """
    The keeper at work.

    Parameters
    ----------
    control : socket
        The executor's.
    told : ServerOrder
        Of its server.
    """

    def __init__(self, control: socket.socket, told: ServerOrder) -> None:
        self._control: socket.socket | None = control
        self._told, self._confined = told, confinement.Confinement(*told.confinement)
        self._shown = fork_server.ShownMemory()
        self._oom_score = _read("/proc/self/oom_score_adj").strip()
        self._server, self._mounts, self._lost = 0, -1, ""
        self._run: KeptRun | None = None
        self._shims: set[int] = set()
        """Those for whose status the executor has not asked: until then, nobody else is to have their numbers."""
        self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake[1], warn_on_full_buffer=False)
        self._talk, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    # --- the executor's
    def begin(self) -> bool:
        """Start the server, have it import, and tell the executor whether it can serve; return that."""
        printed, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self._start_server(writer)
            said = self._answer(self._told.import_s, f"its imports have not ended within {self._told.import_s:g} s")
            if text := _printed(printed):
                raise ServerFault(f"its imports print: {text!r}")
            if said != "+":
                raise ServerFault(said[1:])
            self._stop()
            self._check_memory()
        except (ServerFault, OSError) as fault:
            text = f"; the end of what it printed: {_printed(printed)[-200:]!r}" if str(fault) == _HAS_ENDED else ""
            self._end_server(f"{fault}{text}")
            self._tell((False, self._lost))
            return False
        self._tell((True, self._server))
        return True

    def serve(self) -> None:
        """Do what the executor asks for, until it is gone, or the server is, and no program runs."""
        while self._look() and (self._run or (self._control and self._server)):
            events = self._wait()
            if not events and self._run is None:
                self._tell((0, IDLE))
                return
            for fd in events:
                self._turn_to(fd)

    def close(self) -> None:
        """End the server, and all that it has left."""
        self._end_server("its keeper ends")
        for _ in range(_LOOKS):
            if self._is_clear():
                return
            time.sleep(_AGAIN_S)

    def _wait(self) -> list[int]:
        poll, run = select.poll(), self._run
        for one in (self._control, self._talk, run.channel if run else None):
            if one is not None and one.fileno() >= 0:
                poll.register(one, select.POLLIN)
        poll.register(self._wake[0], select.POLLIN)
        wait_s = self._told.idle_s if run is None else _AGAIN_S if run.looks else None
        return [fd for fd, _ in poll.poll(None if wait_s is None else 1000 * wait_s)]

    def _turn_to(self, fd: int) -> None:
        if fd == self._wake[0]:
            _drain(fd)
        elif self._run is not None and fd == self._run.channel.fileno():
            self._hear_shim(self._run)
        elif self._control is not None and fd == self._control.fileno():
            self._hear_executor(self._control)
        elif self._server and fd == self._talk.fileno():
            self._end_server("it speaks without being asked, or has closed its socket")

    def _hear_executor(self, control: socket.socket) -> None:
        try:
            body, fds, _, _ = socket.recv_fds(control, fork_server.MOST_BYTES, 2)
        except OSError:
            body, fds = b"", []
        if not body:
            self._control = None
            self._shims.clear()
            self._end_server("the executor is gone")
            return
        message = marshal.loads(body)  # noqa: S302 - from the executor
        if isinstance(message, int):
            self._tell(fork_server.reaped(message))
            self._shims.discard(message)
            if self._run is not None and self._run.shim == message:
                self._shim_is_gone(self._run)
            return
        told, begins = fds
        order = shim.Order(*fork_server.read_order(told))
        confined = confinement.read(order.folder) or confinement.Confinement()
        if why := self._doubt(fork_server.Question(*message), confined):
            self._tell((0, f"{fork_server.COLD}{why}"))
        else:
            self._fork_shim(order, confined, begins)
        for fd in fds:
            os.close(fd)

    def _tell(self, message: Any) -> None:
        if self._control is not None:
            with contextlib.suppress(OSError):
                self._control.send(marshal.dumps(message))

    # --- the server
    def _start_server(self, writer: int) -> None:
        """Start the server; its mounts are looked at before any program of its user's begins."""
        self._server = os.fork()
        if not self._server:
            try:
                self._be_server(writer)
            except BaseException as error:  # whatever it is: this is a child of the keeper, and must not go on as one
                with contextlib.suppress(OSError):
                    self._theirs.send(f"-it could not be started: {error}".encode(errors="replace"))
            finally:
                os._exit(1)
        os.close(writer)
        self._theirs.close()
        said = self._answer(_SHIM_S, "it has not begun")
        if said.startswith("-"):
            raise ServerFault(said[1:])
        if said == "mounts":
            self._mounts = os.open(f"/proc/{self._server}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        self._talk.send(_BEGIN)

    def _be_server(self, writer: int) -> None:
        """Become the server, in a child."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setpgid(0, 0)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.set_blocking(writer, True)
        os.dup2(writer, 1), os.dup2(writer, 2)
        theirs = self._theirs.detach()
        if theirs != fork_server.CONTROL:
            os.dup2(theirs, fork_server.CONTROL)
        os.set_inheritable(fork_server.CONTROL, True)
        os.closerange(fork_server.CONTROL + 1, os.sysconf("SC_OPEN_MAX"))
        self._theirs = socket.socket(fileno=fork_server.CONTROL)
        has_mounts = bool(self._confined.tmp) and self._have_own_mounts()
        self._theirs.send(b"mounts" if has_mounts else b"no mounts")
        if self._theirs.recv(len(_BEGIN)) != _BEGIN:
            os._exit(1)
        late = min(int(self._oom_score or 0) + _OOM_MORE, _OOM_MOST)
        with contextlib.suppress(OSError):  # where memory runs out, it is ended before any job
            _write("/proc/self/oom_score_adj", b"%d" % late)
        env = {os.fsencode(name): os.fsencode(value) for name, value in self._told.env.items()}
        self._confined._replace(tmp="", namespace="").enter(env)
        _libc.prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        os.execve(self._told.executable, self._told.argv, env)  # noqa: S606 - what the keeper is for

    def _have_own_mounts(self) -> bool:
        there = tuple(filter(os.path.exists, self._confined.kept))  # some are a single run's
        trees = self._confined._replace(tmp="", kept=there).open_temporary()
        if not confinement.have_own_mounts():
            return False
        confinement.attach_temporary(trees, instead=False)
        return True

    def _answer(self, wait_s: float, late: str) -> str:
        """Return what the server says next."""
        end_s, poll = _now_s() + wait_s, select.poll()
        poll.register(self._talk, select.POLLIN)
        poll.register(self._wake[0], select.POLLIN)
        if self._control is not None:
            poll.register(self._control, 0)  # whether it is closed
        while (left_s := end_s - _now_s()) > 0:
            found = {fd for fd, _ in poll.poll(1000 * min(left_s, _LOOK_S))}
            if self._talk.fileno() in found:
                return self._said()
            if self._wake[0] in found:
                _drain(self._wake[0])
                if _has_exited(self._server):
                    return self._said()
            if self._control is not None and self._control.fileno() in found:
                raise ServerFault("the executor is gone")
            if not found:
                self._check_memory()
        raise ServerFault(late)

    def _said(self) -> str:
        with contextlib.suppress(OSError):
            if body := self._talk.recv(_MOST_SAID, socket.MSG_DONTWAIT):
                return body.decode(errors="replace")
        raise ServerFault(_HAS_ENDED)

    def _check_memory(self) -> None:
        held_bytes = sum(map(_held_bytes, (self._server, *shim.descendants(self._server))))
        if held_bytes > self._told.most_bytes:
            raise ServerFault(f"it holds {held_bytes >> 20} MiB, and may hold {self._told.most_bytes >> 20} MiB")

    def _let_go_on(self) -> None:
        os.kill(self._server, signal.SIGCONT)

    def _stop(self) -> None:
        """Stop the server, and see that it is alone."""
        os.kill(self._server, signal.SIGSTOP)
        end_s = _now_s() + _STOP_S
        while (state := shim.state(self._server)) not in b"Tt":
            if state in b"ZX" or _now_s() > end_s:
                raise ServerFault(_HAS_ENDED if state in b"ZX" else "it does not stop")
            time.sleep(0.0002)
        if below := _children(self._server):
            raise ServerFault(f"it has started {len(below)} processes of its own")

    def _end_server(self, why: str) -> None:
        if not self._server:
            return
        self._lost = why
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._server, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._server, 0)
        self._server = 0
        self._talk.close()

    # --- programs
    def _doubt(self, question: Any, confined: Any) -> str:
        """Return why a program cannot start warm now; empty where it can."""
        if self._run is not None:
            return "its server has another program, which runs"
        try:
            self._give_temporary(confined)
            self._let_go_on()
            self._talk.send(marshal.dumps((0, *question)), socket.MSG_DONTWAIT)
            said = self._answer(ANSWER_S, f"it did not answer within {ANSWER_S:g} s")
            self._stop()
        except (ServerFault, OSError) as fault:
            self._end_server(str(fault))
            return f"its server was ended: {fault}"
        return "" if said == "+" else said[1:]

    def _fork_shim(self, order: Any, confined: Any, pipe: int) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        keeper = os.getpid()
        pid = os.fork()
        if not pid:
            ours.detach()
            self._be_shim(order, pipe, KeptTree(theirs, keeper, self._server))
        theirs.close()
        with contextlib.suppress(OSError):  # it does so itself, if it is the first
            os.setpgid(pid, pid)
        self._run = KeptRun(pid, order, confined, ours)
        self._shims.add(pid)
        self._tell((pid, "warm"))

    def _be_shim(self, order: Any, pipe: int, tree: KeptTree) -> None:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            with contextlib.suppress(PermissionError):
                os.setpgid(0, 0)
            fork_server.redirect(order.folder, pipe, *tree.fds)
            self._shown.show([*map(os.fsencode, (*order[:5], *order.argv))], order.env)
            if os.read(pipe, 1):
                os.close(pipe)
                code = shim.run(order, tree.start, tree)
        except BaseException:  # whatever it is: this is a child of the keeper, and must not go on as one
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)

    def _hear_shim(self, run: KeptRun) -> None:
        try:
            body, fds, _, _ = socket.recv_fds(run.channel, fork_server.MOST_BYTES, 3)
        except OSError:
            body, fds = b"", []
        if not body:
            self._shim_is_gone(run)
            return
        kind, value = marshal.loads(body)  # noqa: S302 - from the shim
        if kind == _END:
            run.looks = run.looks or 1
            return
        try:
            run.program = self._fork_program(run, value, fds)
        except (ServerFault, OSError) as fault:
            self._end_server(str(fault))
            for pid in self._members():
                _kill(pid)
            run.tell(_NOT_BEGUN, f"its server was ended: {fault}")
        else:
            run.tell(_BEGAN, run.program)
        for fd in fds:
            os.close(fd)

    def _shim_is_gone(self, run: KeptRun) -> None:
        """End what is left of a run."""
        run.channel.close()
        run.shim, run.looks = 0, run.looks or 1
        self._end_run(run)

    def _fork_program(self, run: KeptRun, left_open: int, fds: Sequence[int]) -> int:
        """Have the server fork the program; return its process, once it is what it has to be."""
        if not self._server:
            raise ServerFault(self._lost)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            self._let_go_on()
            told = marshal.dumps((left_open, *run.question))
            socket.send_fds(self._talk, [told], [*fds, theirs.fileno()], socket.MSG_DONTWAIT)
            said = self._answer(FORK_S, f"it did not fork within {FORK_S:g} s")
            self._stop()
            children = [pid for pid in _children() if pid != self._server and pid not in self._shims]
            if said != "+" or len(children) != 1:
                raise ServerFault(f"it was to fork one program, and {len(children)} processes are there")
            program = children[0]
            os.setpgid(program, run.shim)
            if run.confined.cgroup:
                _write(os.path.join(run.confined.cgroup, "cgroup.procs"), b"%d" % program)
            with contextlib.suppress(OSError):
                _write(f"/proc/{program}/oom_score_adj", self._oom_score)
            env, report = {**run.order.env}, run.confined.tmp
            if self._mounts >= 0:
                report = confinement.TEMPORARY[0]
            elif report:
                env.setdefault(b"TMPDIR", os.fsencode(report))
            order = fork_server.write_order(run.order._replace(folder=report, env=env))
            try:
                socket.send_fds(ours, [_BEGIN], [order], socket.MSG_DONTWAIT)
            finally:
                os.close(order)
        return program

    def _give_temporary(self, confined: Any) -> None:
        """Mount the run's own temporary folder where the server's programs see it, in place of that of the last run."""
        if self._mounts < 0:
            return
        said, saying = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if not pid:
            try:
                trees = confined.open_temporary()
                confinement.enter_mounts(self._mounts)
                confinement.attach_temporary(trees, instead=True)
            except BaseException as error:  # whatever it is: this is a child of the keeper, and must not go on as one
                os.write(saying, repr(error).encode(errors="replace")[:_MOST_SAID])
            finally:
                os._exit(0)
        os.close(saying)
        why = os.read(said, _MOST_SAID).decode(errors="replace")
        os.close(said)
        os.waitpid(pid, 0)
        if why:
            raise ServerFault(f"the run's temporary folder could not be mounted: {why}")

    # --- what there is
    def _look(self) -> bool:
        """Take notice of what has ended, and end what has no business to be there; return True."""
        run = self._run
        if self._server and _has_exited(self._server):
            self._end_server(_HAS_ENDED)
        if self._server and shim.state(self._server) not in b"Tt":
            self._end_server("somebody has let it go on")
        if run is not None and run.program and (code := _status(run.program)) is not None:
            run.program, run.looks = 0, 1  # with it, all ends that it has started
            run.tell(_ENDED, code)
        for pid in _children():
            if pid not in (self._server, run and run.shim, run and run.program, *self._shims):
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
        if run is None:
            found = {*_children(), *(_children(self._server) if self._server else ())}
            if found - {self._server} - self._shims:
                self._is_clear()
        elif run.looks:
            self._end_run(run)
        return True

    def _end_run(self, run: KeptRun) -> None:
        run.looks += 1
        if not self._is_clear() and run.looks < _LOOKS:
            return
        run.looks = 0
        if run.shim:
            run.tell(_CLEAR)
            return
        self._run = None
        try:
            if self._server:
                self._check_memory()
        except ServerFault as fault:
            self._end_server(str(fault))

    def _is_clear(self) -> bool:
        """End all that is not the server or the shim; return whether there is nothing."""
        found = [pid for pid in self._members() if shim.state(pid) not in b"ZX"]
        for pid in found:
            _kill(pid)
        return not found

    def _members(self) -> list[int]:
        """Return what descends from the keeper, but for the server itself, and the shim with what is below it."""
        shims = [] if self._run is None else [self._run.shim]
        return [pid for pid in shim.descendants(os.getpid(), without=shims) if pid != self._server]


class KeptTree(shim.ProcessTree):  # type: ignore[misc] # loaded by its path
    """
    A program that is a child of a keeper, as its shim sees it.

    Parameters
    ----------
    channel : socket
        To the keeper.
    keeper, server : int
        Their processes. What descends from the keeper, but for the server and the shim themselves, is the program's.
    """

    def __init__(self, channel: socket.socket, keeper: int, server: int) -> None:
        super().__init__()
        self._channel, self._keeper, self._server = channel, keeper, server
        self._shim, self._is_clear = os.getpid(), False
        self.fds = (channel.fileno(),)

    def roots(self) -> list[int]:
        """Return the processes from which all of them descend."""
        others = [pid for pid in _children(self._keeper) if pid not in (self._server, self._shim)]
        return [self._shim, *others]

    def members(self) -> list[int]:
        """Return all of them, in no order."""
        return [pid for pid in shim.descendants(self._keeper) if pid not in (self._server, self._shim)]

    def start(self, order: Any, writers: Sequence[int], left_open: int) -> int:
        """Have the keeper start the program, or start it by exec, and say so; return its pid."""
        more = [left_open] if left_open > len(writers) else []
        why = "its keeper did not answer"
        with contextlib.suppress(OSError):
            socket.send_fds(self._channel, [marshal.dumps((_ASK, left_open))], [*writers, *more])
            if select.select([self._channel], [], [], _SHIM_S)[0] and (heard := next(self._heard(), None)):
                if heard[0] == _BEGAN:
                    return int(heard[1])
                why = str(heard[1])
        with contextlib.suppress(OSError):
            os.write(writers[1], f"penstock: the program starts cold: {why}\n".encode(errors="replace"))
        with contextlib.suppress(OSError):
            _write(os.path.join(order.folder, "how"), f"{fork_server.COLD}{why}".encode(errors="replace"))
        return int(shim.spawn(order, writers, left_open))

    def reap(self) -> bool:
        """Reap the shim's own children, and hear of the program; return whether no child is left."""
        none_left = bool(super().reap())
        for kind, value in self._heard():
            if kind == _ENDED:
                self.code = value if self.left is None else self.left
            self._is_clear = self._is_clear or kind == _CLEAR
        return none_left

    def end(self) -> None:
        """End all, and wait until they have ended."""
        if self.reap() and self._is_clear:
            return
        with contextlib.suppress(OSError):
            self._channel.send(marshal.dumps((_END, None)))
        for _ in range(_LOOKS):
            select.select([self._channel], [], [], _AGAIN_S)
            if self.reap() and self._is_clear:
                return
            self.kill()

    def _heard(self) -> Iterator[tuple[str, Any]]:
        """Yield what the keeper has said; where it is gone, nobody can hold the program any more, and all is ended."""
        while True:
            try:
                body = self._channel.recv(fork_server.MOST_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                body = b""
            if not body:
                os.killpg(0, signal.SIGKILL)
            yield marshal.loads(body)  # noqa: S302 - from the keeper


def _children(pid: int = 0) -> list[int]:
    """Return the children of a process, by default one's own, without a look at all processes of the host."""
    pid, found = pid or os.getpid(), list[int]()
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    except OSError:  # it has ended, or the kernel does not tell it so
        return [child for child in shim.descendants(pid) if shim.parent(child) == pid]
    return found


def _has_exited(pid: int) -> bool:
    """Return whether a child has ended; it is not reaped."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _status(pid: int) -> int | None:
    """Return the exit status of a child that has ended, which is reaped; None where it has not."""
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return int(shim.ENDED)
    if not ended:
        return None
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def _held_bytes(pid: int) -> int:
    """Return what a process holds of memory, with its part of what it shares; 0 if it is gone."""
    with contextlib.suppress(OSError, StopIteration):
        lines = _read(f"/proc/{pid}/smaps_rollup").splitlines()
        return int(next(line for line in lines if line.startswith(b"Pss:")).split()[1]) << 10
    return 0


def _printed(fd: int) -> str:
    with contextlib.suppress(BlockingIOError):
        return os.read(fd, _MOST_SAID).decode(errors="replace")
    return ""


def _drain(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(fd, 4096):
            pass


def _kill(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def _now_s() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def main() -> None:
    """Keep a server as the executor says, until nobody needs it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, fork_server.BLOCKED)
    os.closerange(fork_server.CONTROL + 1, os.sysconf("SC_OPEN_MAX"))
    os.set_inheritable(fork_server.CONTROL, False)
    _libc.prctl(_DUMPABLE, 0, 0, 0, 0)
    _libc.prctl(_SUBREAPER, 1, 0, 0, 0)
    control = socket.socket(fileno=fork_server.CONTROL)
    for part in ("fence_keeper", "session_keeper"):
        shim.load_beside(part)
    body = control.recv(fork_server.MOST_BYTES)
    if not body:
        return
    keeper = Keeper(control, ServerOrder(*marshal.loads(body)))  # noqa: S302 - from the executor
    try:
        if keeper.begin():
            keeper.serve()
    finally:
        keeper.close()


if __name__ == "__main__":
    main()
