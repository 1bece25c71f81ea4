"""
The template of `penstock up`: a process that has imported the services, and forks one process for each.

An interpreter that imports what a service needs takes half a second of CPU, and another half to load the compiled
kernels. Here all of that happens once, and not seven times: a forked service has it at once and shares the memory. A
service that dies is forked again in the same way.

The supervisor talks to the template over a Unix socket: it asks for a fork and sends the files for its output; the
template answers with the process id and, when the process has ended, with its exit status. When the supervisor is gone
the template ends, and when the template is gone the kernel tells the services to end.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import runpy
import select
import signal
import socket
import sys
import traceback
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

import msgspec

from penstock_bus.child_processes import dies_with_parent, module_command
from penstock_bus.servers.server import end

_MOST_BYTES: Final = 1 << 17
_GRACE_S: Final = 2.0
_OF_ONE_SERVICE: Final = "PENSTOCK_REPLICA_ID"
_BLAS_THREADS: Final = "OPENBLAS_NUM_THREADS"
_ARGUMENTS: Final = slice(45, 47)
"""Fields 48 and 49 of /proc/PID/stat, counted after the command's closing parenthesis: where the arguments are."""


class ForkRequest(msgspec.Struct, frozen=True):
    """A service of which the supervisor wants a process, and the environment that it has besides the template's."""

    service: str
    environment: dict[str, str]


class ForkReport(msgspec.Struct, frozen=True):
    """The report of a process that has begun, or has ended with a status; process id 0 where none could be forked."""

    pid: int
    status: int | None = None
    error: str = ""


class ServiceProcess:
    """A forked service as the supervisor sees it, with what it uses of :class:`asyncio.subprocess.Process`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = asyncio.Event()

    async def wait(self) -> int:
        """Wait until the process has ended; return its exit status."""
        await self._ended.wait()
        assert self.returncode is not None  # noqa: S101 - set before the event
        return self.returncode

    def send_signal(self, signum: int) -> None:
        """Send the process a signal, unless it has ended."""
        if self.returncode is None:
            os.kill(self.pid, signum)

    def note_end(self, status: int) -> None:
        """Take the exit status, and wake those who wait for it."""
        self.returncode = status
        self._ended.set()


class ServiceTemplate:
    """
    The supervisor's side of the template, as an asynchronous context.

    Its process starts when the context is entered, and again with the next fork where it has died.

    Parameters
    ----------
    services : sequence of str
        What it imports.
    """

    def __init__(self, services: Sequence[str]) -> None:
        self._services = tuple(dict.fromkeys(services))
        self._process: asyncio.subprocess.Process | None = None
        self._link: socket.socket | None = None
        self._starting = asyncio.Lock()
        self._forking: deque[asyncio.Future[ServiceProcess]] = deque()
        self._heard = asyncio.Event()
        self._running: dict[int, ServiceProcess] = {}

    async def __aenter__(self) -> Self:
        """Start it, so that it imports the services while others begin; without any there is none."""
        if self._services:
            with suppress(OSError):  # it is tried again with the first fork
                await self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it, and before it what it has forked for a supervisor that did not wait for the answer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_S):
                await self._all_answered()
        await asyncio.gather(*(end(process, _GRACE_S) for process in [*self._running.values()]))
        self._disconnect()
        if self._process is not None:
            await end(self._process, _GRACE_S)

    async def fork(self, service: str, environment: Mapping[str, str], log: IO[bytes] | None) -> ServiceProcess:
        """
        Return a new process of a service.

        Parameters
        ----------
        environment : mapping
            What it has besides the supervisor's environment.
        log : file or None
            Where its output goes; None leaves it where the supervisor's goes.

        Raises
        ------
        OSError
            If it cannot be forked now.
        """
        request = msgspec.json.encode(ForkRequest(service, dict(environment)))
        async with self._starting:
            link = self._link or await self._start()
        socket.send_fds(link, [request], [] if log is None else [log.fileno()])
        forked: asyncio.Future[ServiceProcess] = asyncio.get_running_loop().create_future()
        self._forking.append(forked)
        return await forked

    async def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                *module_command(__name__, *self._services),
                env={name: value for name, value in os.environ.items() if name != _OF_ONE_SERVICE},
                stdin=theirs.fileno(),
                start_new_session=True,  # an interrupt at the terminal is for the supervisor alone
                preexec_fn=dies_with_parent(),
            )
        ours.setblocking(False)
        asyncio.get_running_loop().add_reader(ours, self._hear, ours)
        self._link = ours
        return ours

    async def _all_answered(self) -> None:
        """Wait until no process is being forked, also of those that nobody waits for."""
        while self._forking:
            self._heard.clear()
            await self._heard.wait()

    def _hear(self, link: socket.socket) -> None:
        self._heard.set()
        try:
            body = link.recv(_MOST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            body = b""
        if body:
            self._take(msgspec.json.decode(body, type=ForkReport))
        else:
            self._disconnect()

    def _take(self, report: ForkReport) -> None:
        if report.status is not None:
            self._running.pop(report.pid).note_end(report.status)
            return
        forked = self._forking.popleft()
        if report.pid:
            self._running[report.pid] = ServiceProcess(report.pid)
        if forked.cancelled():
            return
        if report.pid:
            forked.set_result(self._running[report.pid])
        else:
            forked.set_exception(OSError(report.error))

    def _disconnect(self) -> None:
        """Be without a template; what it forked is told to end by the kernel."""
        if self._link is None:
            return
        asyncio.get_running_loop().remove_reader(self._link)
        self._link.close()
        self._link = None
        for forked in self._forking:
            if not forked.cancelled():
                forked.set_exception(OSError("the process that forks the services has ended"))
        for process in self._running.values():
            _watch_orphan(process)
        self._forking.clear()
        self._running.clear()


def _watch_orphan(process: ServiceProcess) -> None:
    """Note when a process has ended whose exit status nobody will tell."""
    try:
        watched = os.pidfd_open(process.pid)
    except ProcessLookupError:
        process.note_end(-signal.SIGTERM)
        return
    loop = asyncio.get_running_loop()

    def ended() -> None:
        loop.remove_reader(watched)
        os.close(watched)
        process.note_end(-signal.SIGTERM)

    loop.add_reader(watched, ended)


def serve(control: socket.socket, services: Sequence[str]) -> None:
    """Import the services; fork processes and report their ends until the supervisor is gone."""
    preload(services)
    running: dict[int, int] = {}
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == control.fileno():
                body, logs, _, _ = socket.recv_fds(control, _MOST_BYTES, 1)
                if not body:
                    return
                report = _fork(msgspec.json.decode(body, type=ForkRequest), *logs)
                for log in logs:
                    os.close(log)
                if report.pid:
                    running[watched := os.pidfd_open(report.pid)] = report.pid
                    poll.register(watched, select.POLLIN)
            else:
                poll.unregister(descriptor)
                os.close(descriptor)
                pid, status = os.waitpid(running.pop(descriptor), 0)
                report = ForkReport(pid, os.waitstatus_to_exitcode(status))
            control.send(msgspec.json.encode(report))


def preload(services: Sequence[str]) -> None:
    """Import the programs of the services; one that cannot be imported fails in the service, whose log says so."""
    is_set = _BLAS_THREADS in os.environ
    os.environ.setdefault(_BLAS_THREADS, "1")  # nothing here multiplies large matrices, and idle threads spin at first
    import_module("penstock_bus.nats")  # which a service imports when it connects
    for service in services:
        program = f"penstock_{service}.__main__"
        with suppress(Exception):
            import_module(program)
            del sys.modules[program]  # it runs under another name
    if "matcher" in services:
        _load_kernels()
    if not is_set:
        del os.environ[_BLAS_THREADS]  # jobs of the executor may want threads
    gc.collect()
    gc.freeze()  # or the first collection of each service would copy all of the shared memory


def _load_kernels() -> None:
    """Load the matching's compiled kernels where they are kept; otherwise the matcher has them compiled."""
    matching = import_module("penstock_policies.matching")
    if matching.KERNELS.are_kept():
        matching.warm()


def _fork(request: ForkRequest, log: int | None = None) -> ForkReport:
    dies_with_template = dies_with_parent()
    sys.stdout.flush(), sys.stderr.flush()
    try:
        pid = os.fork()
    except OSError as error:
        return ForkReport(0, error=f"no process of the {request.service} can be forked: {error.strerror}")
    if pid:
        return ForkReport(pid)
    status = 1
    try:
        dies_with_template()
        os.setsid()
        _redirect(log)
        os.environ.update(request.environment)
        status = _run(f"penstock_{request.service}")
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(status)


def _redirect(log: int | None) -> None:
    """Take the log for one's output, and keep no other file of the template's."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if log is not None:
        os.dup2(log, 1), os.dup2(log, 2)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))


def _run(package: str) -> int:
    """Run a package as ``python -m`` does; return the exit status."""
    _set_command_line(sys.executable, "-m", package)
    sys.argv = [package]
    try:
        runpy.run_module(package, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


def _set_command_line(*words: str) -> None:
    """Show these words where tools look for a process's command line, so that ``ps`` names the service."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, past = map(int, fields[_ARGUMENTS])
    text = b"".join(os.fsencode(word) + b"\0" for word in words)
    if len(text) <= past - begin:
        ctypes.memset(begin, 0, past - begin)
        ctypes.memmove(begin, text, len(text))


if __name__ == "__main__":
    with suppress(BrokenPipeError, ConnectionResetError):
        serve(socket.socket(fileno=0), sys.argv[1:])
