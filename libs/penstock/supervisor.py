"""``penstock up`` and ``penstock down``: NATS and all services on one machine, kept running."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import IO, Final

import msgspec
import structlog

from penstock.upkeep import folder as folders
from penstock.upkeep.child import Child, keep_running, private_log
from penstock.upkeep.options import Options, UpError, environment
from penstock.upkeep.readiness import Readiness
from penstock.upkeep.service_template import ServiceProcess, ServiceTemplate
from penstock_bus import credentials, health, logging, permissions
from penstock_bus.nats import Limits, connect
from penstock_bus.port import BusError
from penstock_bus.server import Server, ServerError, ServerSettings
from penstock_bus.settings import SettingsError, load
from penstock_bus.shell import handle_signals
from penstock_bus.storing import until_room_again, with_room
from penstock_bus.tasks import background

__all__ = ["Options", "UpError", "banner", "detach", "down", "noted", "up"]

KILL_AFTER_S: Final = 10.0
DOWN_S: Final = 120.0
PATIENT_S: Final = 3.0
_LOOK_S: Final = 0.05
_log = structlog.get_logger("penstock.up")
_detached: Final[list[subprocess.Popen[bytes]]] = []  # so that nobody waits for them when they are forgotten
Say = Callable[[str], None]


async def up(options: Options, say: Say, stopping: asyncio.Event | None = None) -> None:
    """
    Run everything until SIGTERM or SIGINT, or until ``stopping`` is set.

    Parameters
    ----------
    options : Options
    say : callable
        Takes the banner when all are ready, and what happens at the end.
    stopping : asyncio.Event, optional
        In place of signals.

    Raises
    ------
    UpError
        If it cannot start, with what to do.
    """
    if stopping is None:
        stopping = asyncio.Event()
        handle_signals(stopping)
    try:
        logging.configure(load(logging.Logging, "log"))
    except SettingsError as error:
        raise UpError(str(error)) from error
    with folders.locked(options.folder):
        for name in await folders.kill_stale(options.folder):
            _log.warning("stale_process_killed", name=name)
        folders.path(options.folder).unlink(missing_ok=True)
        await _Supervisor(options, say, stopping).run()


async def down(data_dir: str, most_s: float = DOWN_S) -> bool:
    """
    Stop what runs on a data folder and wait until it has ended; False if nothing ran.

    Raises
    ------
    UpError
        If it still runs after ``most_s`` seconds.
    """
    folder = Options(data_dir=data_dir).folder
    told = 0
    try:
        async with asyncio.timeout(most_s):
            while (pid := folders.holder(folder)) is not None and (not told or pid in (told, folders.UNKNOWN)):
                if not told and pid != folders.UNKNOWN:
                    told = pid
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGTERM)
                await asyncio.sleep(_LOOK_S)  # the kernel tells nobody when a lock is free
    except TimeoutError as error:
        who = f"process {told}" if told else "a process that does not say its id"
        advice = f"'kill -9 {told}' if it must end now" if told else "find it with 'fuser'"
        raise UpError(f"{who} still runs on {folder} after {most_s:.0f} s; {advice}") from error
    return bool(told)


async def detach(options: Options, say: Say = lambda _: None) -> folders.Record:
    """
    Run :func:`up` in a process of its own and return when all are ready; its log is ``penstock.log`` in the folder.

    Parameters
    ----------
    say : callable
        Told that it begins, and which processes it still waits for, as they become fewer, if that takes longer than
        :data:`PATIENT_S`.

    Raises
    ------
    UpError
        If it ends before that, with its last words.
    """
    options = msgspec.structs.replace(options, quiet=True)
    folder = options.folder
    with folders.locked(folder):  # or say at once who has it
        log_file = folder / "penstock.log"
        log = private_log(log_file)
    with log:
        process = subprocess.Popen(  # not asyncio's: it outlives this event loop  # noqa: ASYNC220
            [sys.executable, "-m", "penstock.supervisor", msgspec.json.encode(options).decode()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    say(beginning(options))
    told, tell_at_s = "", time.monotonic() + PATIENT_S  # noqa: TID251 - it only says how it goes
    while True:
        record = folders.read(folder)
        if record is not None and record.pid == process.pid and record.ready:
            _detached.append(process)
            return record
        waits = _waits(record if record is not None and record.pid == process.pid else None)
        if waits != told and time.monotonic() >= tell_at_s:  # noqa: TID251 - as above
            say(waits)
            told, tell_at_s = waits, time.monotonic() + PATIENT_S  # noqa: TID251
        if process.poll() is not None:
            lines = log_file.read_text(errors="replace").splitlines()
            raise UpError(lines[-1] if lines else f"it ended with status {process.returncode} without a word")
        await asyncio.sleep(_LOOK_S)


def beginning(options: Options) -> str:
    """Return what is said before anything runs."""
    return f"starting NATS and the services, data in {options.folder}"


def _waits(record: folders.Record | None) -> str:
    """
    Return for what it is waited.

    Examples
    --------
    >>> _waits(folders.Record(url="", pid=1, started_s=0.0, version="", waiting_for=("matcher-1", "tuner-1")))
    'waiting for matcher-1, tuner-1'
    """
    waiting_for = ", ".join(record.waiting_for) if record is not None else ""
    return f"waiting for {waiting_for or 'NATS'}"


def noted(notes: Mapping[str, str]) -> list[str]:
    """
    Return what services said of themselves when they became ready, a line each.

    Examples
    --------
    >>> noted({"matcher": "compiles its kernels"})
    ['the matcher compiles its kernels']
    """
    return [f"the {service} {note}" for service, note in sorted(notes.items())]


def banner(options: Options, url: str) -> str:
    """Return what is said when all are ready."""
    number = len(options.processes())
    count = f"{number} process{'' if number == 1 else 'es'}"
    return (
        f"Penstock {health.VERSION} is up at {url}: {count}, data in {options.folder}\n"
        "Single node, not HA: every commit is on this disk before it is acknowledged, and nowhere else.\n"
        f"{access(options, url)}"
    )


def access(options: Options, url: str) -> str:
    """Return who may use it, and how others get to."""
    login = options.folder / credentials.file_name("client")
    if credentials.is_kept("client", url, os.environ):
        found = f"{credentials.user_name()}'s commands find the password by themselves"
    else:
        found = f"commands need {credentials.VARIABLE}={login}, as this user has no home to keep it in"
    return f"{found}; other users and the nats command line need a copy of {login} (docs/cli.md)."


class _Supervisor:
    def __init__(self, options: Options, say: Say, stopping: asyncio.Event) -> None:
        self._options, self._say, self._stopping = options, say, stopping
        self._server = Server(
            ServerSettings(
                data_dir=options.folder,
                port=options.port,
                max_payload=options.max_payload,
                max_store_bytes=options.max_store_bytes,
            )
        )
        self._template = ServiceTemplate([service for service, _ in options.processes()])
        self._children: list[Child] = []
        self._store_note = ""
        self._logins: dict[credentials.Role, credentials.Login] = {}
        self._record = folders.Record(
            url="",
            pid=os.getpid(),
            started_s=time.time(),  # noqa: TID251 - for people who read the record
            version=health.VERSION,
        )

    async def run(self) -> None:
        async with self._template:
            await self._run(self._options.processes())

    async def _run(self, processes: Sequence[tuple[str, int]]) -> None:
        try:
            await self._server.start()
            self._store_note = await with_room(self._server)
        except ServerError as error:
            raise UpError(str(error)) from error
        try:
            self._record.url = self._server.url
            self._write_logins()
            self._children = [self._child(service, number) for service, number in processes]
            await self._supervise([service for service, _ in processes])
        except BaseExceptionGroup as group:
            raise _cause(group) from group
        finally:
            await self._end_all()

    def _child(self, service: str, number: int) -> Child:
        options, name = self._options, f"{service}-{number}"
        env = environment(options, service, number, url=self._server.url, password=self._server.passwords[service])
        log_file = options.folder / "logs" / f"{name}.log" if options.quiet else None
        if log_file is not None:
            log_file.parent.mkdir(mode=0o700, exist_ok=True)

        async def start(log: IO[bytes] | None) -> ServiceProcess:
            return await self._template.fork(service, env, log)

        return Child(name, start, log_file, self._started)

    async def _supervise(self, services: list[str]) -> None:
        password = self._server.passwords[permissions.ADMIN]
        limits = Limits.of_store(self._server.store_bytes)
        async with connect(
            self._server.url, user=permissions.ADMIN, password=password, name="supervisor", limits=limits
        ) as bus:
            readiness = Readiness()
            ready = readiness.all_of(bus, services, self._missing, self._options.ready_s)
            kept = [
                keep_running("nats", self._nats, self._stopping.is_set),
                *(child.keep() for child in self._children),
                self._renew_after_full_disk(),
            ]
            async with background(*kept):
                await self._first(ready)
                if not self._stopping.is_set():
                    notes = readiness.notes | ({"store": self._store_note} if self._store_note else {})
                    self._record.ready, self._record.notes = True, notes
                    self._save_record()
                    self._say("\n".join([banner(self._options, self._server.url), *noted(notes)]))
                await self._stopping.wait()

    def _write_logins(self) -> None:
        """Leave credentials for people and foreign services, and a copy of each where this user's programs look."""
        folder = self._options.folder
        for role in credentials.ROLES:
            login = credentials.Login(
                url=self._server.url,
                user=role,
                password=self._server.passwords[role],
                description=f"penstock up on {folder}",
            )
            try:
                credentials.write_login(folder / credentials.file_name(role), login)
            except OSError as error:
                raise UpError(
                    f"credentials cannot be written to {folder}: {error.strerror}; make room there"
                ) from error
            self._logins[role] = login
            if credentials.keep_login(role, login, os.environ) is None:
                advice = (
                    f"set {credentials.VARIABLE} to {folder / credentials.file_name(role)} in the shells that need it"
                )
                _log.warning(
                    "credentials_not_kept", role=role, reason="this user's home cannot be written to", advice=advice
                )

    def _remove_logins(self) -> None:
        for role, login in self._logins.items():
            credentials.forget_login(role, login, os.environ)
            (self._options.folder / credentials.file_name(role)).unlink(missing_ok=True)

    def _missing(self, ready: set[int]) -> list[str]:
        names = [child.name for child in self._children if child.pid not in ready]
        if self._record.waiting_for != tuple(names):
            self._record.waiting_for = tuple(names)
            self._save_record()
        return names

    async def _first(self, ready: Coroutine[object, object, None]) -> None:
        """Wait until all are ready, or until it is to stop."""
        waits = {asyncio.ensure_future(ready), asyncio.ensure_future(self._stopping.wait())}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
        finally:
            for one in waits:
                one.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _nats(self) -> int:
        process = self._server.process
        if process is None or process.returncode is not None:
            try:
                await self._server.start()
            except ServerError as error:
                _log.error("nats_not_started", error=str(error))
                return 1
        self._note("nats", self._server.process.pid if self._server.process else 0)
        return await self._server.wait()

    async def _renew_after_full_disk(self) -> None:
        while True:
            await until_room_again(self._options.folder)
            await self._server.stop()  # and it is started again, as after any other end

    def _started(self, child: Child) -> None:
        self._note(child.name, child.pid)

    def _note(self, name: str, pid: int) -> None:
        self._record.processes[name] = folders.process(pid)
        self._save_record()

    def _save_record(self) -> None:
        """Write down what runs; without room for that, all runs on: it only helps to clean up after a crash."""
        try:
            self._record.save(self._options.folder)
        except OSError as error:
            _log.error("record_not_saved", folder=str(self._options.folder), error=str(error))

    async def _end_all(self) -> None:
        """Stop those that decide, then the executors, which hand their jobs back to the log, then the log."""
        grace_s = self._options.drain_s + KILL_AFTER_S
        if self._children:
            self._say("Stopping: running jobs are checkpointed first")
        executors = [child for child in self._children if child.name.startswith("executor-")]
        others = [child for child in self._children if child not in executors]
        for group in (others, executors):
            await asyncio.gather(*(child.end(grace_s) for child in group))
        await self._server.stop()
        self._remove_logins()
        folders.path(self._options.folder).unlink(missing_ok=True)


def _cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error that people can do something about, if there is one."""
    found: BaseException = group.subgroup(UpError) or group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


def _main() -> int:
    options = msgspec.json.decode(sys.argv[1], type=Options)
    try:
        asyncio.run(up(options, lambda text: _log.info("up", text=text)))
    except (UpError, BusError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
