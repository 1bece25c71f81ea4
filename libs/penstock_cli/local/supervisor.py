"""
Supervisor of ``penstock up``: NATS and all services as children, kept running until told to stop.

:func:`up` runs everything, :func:`down` stops it. What becomes of one process is in
:mod:`penstock_cli.local.child_process`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Final

import msgspec
import structlog

from penstock_bus import health, logs
from penstock_bus.addresses import is_loopback
from penstock_bus.child_processes import module_command
from penstock_bus.follower import background
from penstock_bus.identity import access, certificates, logins
from penstock_bus.identity.certificates import TlsFiles
from penstock_bus.nats import connect
from penstock_bus.port import BusError
from penstock_bus.servers.server import Server, ServerError, ServerSettings, wait_for_disk_space
from penstock_bus.servers.server_group import ServerGroup, count_of
from penstock_bus.settings import SettingsError, load
from penstock_bus.shell import handle_signals
from penstock_cli.local import data_folder
from penstock_cli.local.child_process import Child, Readiness, keep_running, private_log
from penstock_cli.local.data_folder import UpError, UpOptions, environment, jobs_run_as_users
from penstock_cli.local.service_template import ServiceProcess, ServiceTemplate
from penstock_log.text import escaped

__all__ = ["UpError", "UpOptions", "banner", "detach", "down", "noted", "up"]


KILL_AFTER_S: Final = 10.0
DOWN_S: Final = 120.0
PATIENT_S: Final = 3.0
_LOOK_S: Final = 0.05
_log = structlog.get_logger("penstock.up")
_detached: Final[list[subprocess.Popen[bytes]]] = []  # so that nobody waits for them when they are forgotten
Say = Callable[[str], None]


async def up(options: UpOptions, say: Say, stopping: asyncio.Event | None = None) -> None:
    """
    Run everything until SIGTERM or SIGINT, or until ``stopping`` is set.

    Parameters
    ----------
    options : UpOptions
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
        logs.configure(load(logs.Logging, "log"))
    except SettingsError as error:
        raise UpError(str(error)) from error
    with data_folder.locked(options.folder):
        data_folder.let_users_through(options)
        for name in await data_folder.kill_stale(options.folder):
            _log.warning("stale_process_killed", name=name)
        data_folder.path(options.folder).unlink(missing_ok=True)
        await _Supervisor(options, say, stopping).run()


async def down(data_dir: str, most_s: float = DOWN_S) -> bool:
    """
    Stop what runs on a data folder and wait until it has ended; False if nothing ran.

    Raises
    ------
    UpError
        If it still runs after ``most_s`` seconds.
    """
    folder = UpOptions(data_dir=data_dir).folder
    ending = 0
    try:
        async with asyncio.timeout(most_s):
            while (pid := data_folder.holder(folder)) is not None and (
                not ending or pid in (ending, data_folder.UNKNOWN)
            ):
                if not ending and pid != data_folder.UNKNOWN:
                    ending = pid
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGTERM)
                await asyncio.sleep(_LOOK_S)  # the kernel tells nobody when a lock is free
    except TimeoutError as error:
        who = f"process {ending}" if ending else "a process that does not say its id"
        advice = f"'kill -9 {ending}' if it must end now" if ending else "find it with 'fuser'"
        raise UpError(f"{who} still runs on {folder} after {most_s:.0f} s; {advice}") from error
    return bool(ending)


async def detach(options: UpOptions, say: Say = lambda _: None) -> data_folder.SupervisorRecord:
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
    with data_folder.locked(folder):  # or say at once who has it
        log_file = folder / "penstock.log"
        log = private_log(log_file)
    with log:
        process = subprocess.Popen(  # not asyncio's: it outlives this event loop  # noqa: ASYNC220
            module_command("penstock_cli.local.supervisor", msgspec.json.encode(options).decode()),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    say(beginning(options))
    said, say_at_s = "", time.monotonic() + PATIENT_S  # noqa: TID251 - it only says how it goes
    while True:
        record = data_folder.read(folder)
        if record is not None and record.pid == process.pid and record.ready:
            _detached.append(process)
            return record
        waits = _waits(record if record is not None and record.pid == process.pid else None)
        if waits != said and time.monotonic() >= say_at_s:  # noqa: TID251 - as above
            say(waits)
            said, say_at_s = waits, time.monotonic() + PATIENT_S  # noqa: TID251
        if process.poll() is not None:
            lines = log_file.read_text(errors="replace").splitlines()
            raise UpError(lines[-1] if lines else f"it ended with status {process.returncode} without a word")
        await asyncio.sleep(_LOOK_S)


def beginning(options: UpOptions) -> str:
    """Return the text for people before anything runs."""
    return f"starting NATS and the services, data in {options.folder}"


def _waits(record: data_folder.SupervisorRecord | None) -> str:
    """
    Return for what it is waited.

    Examples
    --------
    >>> waited = ("matcher-1", "tuner-1")
    >>> _waits(data_folder.SupervisorRecord(url="", pid=1, started_s=0.0, version="", waiting_for=waited))
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


def banner(options: UpOptions, url: str) -> str:
    """Return the text for people when all services are ready: address, processes, data folder, access."""
    number = len(options.processes())
    count = f"{number} process{'' if number == 1 else 'es'}"
    lines = [
        f"Penstock {health.VERSION} is up at {url}: {count}, data in {options.folder}",
        elsewhere_line(options, url),
        _kept(url),
        access_lines(options, url),
        jobs_line(options),
    ]
    return "\n".join(filter(None, lines))


def elsewhere_line(options: UpOptions, url: str) -> str:
    """Return at which addresses other machines reach the server; empty where it listens to this one only."""
    hosts = _advertised(options)
    if not hosts:
        return ""
    first, *others = [logins.at_host(url.replace("nats://", "tls://"), host) for host in hosts]
    also = f", or {' or '.join(others)}" if others else ""
    return f"Other machines reach it at {first}{also}; logins and tokens carry that (docs/machines.md)."


def _kept(url: str) -> str:
    """
    Return where commits are before they are acknowledged.

    Examples
    --------
    >>> _kept("nats://127.0.0.1:4222,nats://127.0.0.1:4223,nats://127.0.0.1:4224").partition(";")[0]
    '3 servers on this machine keep every commit, and go on while one of them is down'
    """
    servers = url.count(",") + 1
    if servers == 1:
        return "Single node, not HA: every commit is on this disk before it is acknowledged, and nowhere else."
    return (
        f"{servers} servers on this machine keep every commit, and go on while one of them is down; machine and disk "
        "are still one."
    )


def jobs_line(options: UpOptions) -> str:
    """Return as whom jobs run, and what follows for who adds people."""
    me = logins.user_name()
    if not jobs_run_as_users(options):
        return (
            f"Jobs run as {me}, whoever submits them: before you add people, set PENSTOCK_EXECUTOR_RUN_AS=user "
            "(docs/isolation.md)."
        )
    if os.geteuid() == 0:
        return "Jobs run as who submits them (docs/isolation.md)."
    return f"Only {me}'s jobs run here: this is not root, and cannot run those of others (docs/isolation.md)."


def access_lines(options: UpOptions, url: str) -> str:
    """Return which user's commands find the login, and how others get one."""
    if logins.is_kept("client", url, os.environ):
        found = f"{logins.user_name()}'s commands find the login by themselves"
    else:
        login = options.folder / logins.file_name("client")
        found = f"commands need {logins.VARIABLE}={login}, as this user has no home to keep it in"
    return f"{found}; other people get one of their own by `penstock user add NAME` (docs/access.md)."


def tls_of(options: UpOptions) -> TlsFiles | None:
    """
    Return the certificate of the server; None where it listens to this machine only.

    Raises
    ------
    UpError
        If what is given cannot be used.
    """
    if bool(options.tls_cert) != bool(options.tls_key):
        raise UpError("a certificate goes with its key; give both --tls-cert and --tls-key")
    try:
        if options.tls_cert:
            authority = Path(options.tls_ca) if options.tls_ca else None
            return certificates.given(Path(options.tls_cert), Path(options.tls_key), authority)
        if is_loopback(options.host):
            return None
        names = certificates.names_here(options.host, filter(None, [options.name]))
        return certificates.ensured(options.folder / "nats" / "tls", names)
    except certificates.BadCertificate as error:
        raise UpError(str(error)) from error


def _advertised(options: UpOptions) -> list[str]:
    """Return the names of this machine for people elsewhere, the likeliest first; none where they cannot reach it."""
    if is_loopback(options.host):
        return []
    if options.tls_cert:  # which may name nothing else
        return [options.name] if options.name else certificates.others_reach(options.host)[:1]
    return list(dict.fromkeys([*filter(None, [options.name]), *certificates.others_reach(options.host)]))


class _Supervisor:
    def __init__(self, options: UpOptions, say: Say, stopping: asyncio.Event) -> None:
        self._options, self._say, self._stopping = options, say, stopping
        settings = ServerSettings(
            data_dir=options.folder,
            port=options.port,
            max_payload=options.max_payload,
            max_store_bytes=options.max_store_bytes,
            extensions=options.extensions,
            oidc=options.oidc,
            owner=options.owner,
            host=options.host,
            tls=tls_of(options),
            name=options.name if options.tls_cert else "",
        )
        try:
            self._servers = ServerGroup(settings, options.servers or count_of(options.folder) or 1)
        except ServerError as error:
            raise UpError(str(error)) from error
        self._template = ServiceTemplate([service for service, _ in options.processes()])
        self._children: list[Child] = []
        self._store_note = ""
        self._logins: dict[logins.Role, logins.Login] = {}
        self._record = data_folder.SupervisorRecord(
            url="",
            pid=os.getpid(),
            started_s=time.time(),  # noqa: TID251 - for people who read the record
            version=health.VERSION,
            owner=options.owner_name,
        )

    async def run(self) -> None:
        async with self._template:
            await self._run(self._options.processes())

    async def _run(self, processes: Sequence[tuple[str, int]]) -> None:
        try:
            await self._servers.start()
            self._store_note = await self._servers.widen_if_full()
        except ServerError as error:
            raise UpError(str(error)) from error
        try:
            self._record.url = self._servers.url
            self._children = [self._child(service, number) for service, number in processes]
            await self._supervise([service for service, _ in processes])
        except BaseExceptionGroup as group:
            raise _cause(group) from group
        finally:
            await self._end_all()

    def _child(self, service: str, number: int) -> Child:
        options, name = self._options, f"{service}-{number}"
        env = environment(options, service, number, url=self._servers.url)
        log_file = options.folder / "logs" / f"{name}.log" if options.quiet else None
        if log_file is not None:
            log_file.parent.mkdir(mode=0o700, exist_ok=True)

        async def start(log: IO[bytes] | None) -> ServiceProcess:
            return await self._template.fork(service, env, log)

        return Child(name, start, log_file, lambda child: self._note(child.name, child.pid))

    async def _supervise(self, services: list[str]) -> None:
        admin = self._servers.logins[access.ADMIN]
        async with (
            connect(self._servers.url, login=admin, name="supervisor", limits=self._servers.limits) as bus,
            self._servers.issuing(hosts=_advertised(self._options)),
        ):
            self._write_logins()
            readiness = Readiness()
            ready = readiness.all_of(bus, services, self._missing, self._options.ready_s)
            kept = [
                *(
                    keep_running(server.name, partial(self._serve, server), self._stopping.is_set)
                    for server in self._servers.servers
                ),
                *(child.keep() for child in self._children),
                self._renew_after_full_disk(),
            ]
            async with background(*kept):
                await self._first(ready)
                if not self._stopping.is_set():
                    notes = readiness.notes | ({"store": self._store_note} if self._store_note else {})
                    self._record.ready, self._record.notes = True, notes
                    self._save_record()
                    self._say("\n".join([banner(self._options, self._servers.url), *noted(notes)]))
                await self._stopping.wait()

    def _write_logins(self) -> None:
        """Leave credentials for people and foreign services, and a copy of each where this user's programs look."""
        folder = self._options.folder
        for role, user in access.users_of_roles(self._options.extensions).items():
            login = msgspec.structs.replace(self._servers.logins[user], description=f"penstock up on {folder}")
            try:
                logins.write_login(folder / logins.file_name(role), login)
            except OSError as error:
                raise UpError(
                    f"credentials cannot be written to {folder}: {error.strerror}; make room there"
                ) from error
            self._logins[role] = login
            if logins.keep_login(role, login, os.environ) is None:
                advice = f"set {logins.VARIABLE} to {folder / logins.file_name(role)} in the shells that need it"
                _log.warning(
                    "credentials_not_kept", role=role, reason="this user's home cannot be written to", advice=advice
                )

        if self._options.oidc.issuer:
            hosts = _advertised(self._options)
            url = self._servers.advertised(hosts[0]) if hosts else self._servers.url
            data_folder.write_public_login(self._options, url, self._servers.logins[access.CLIENT].ca)
        else:
            data_folder.public_login_file(folder).unlink(missing_ok=True)

    def _remove_logins(self) -> None:
        for role, login in self._logins.items():
            logins.forget_login(role, login, os.environ)
            (self._options.folder / logins.file_name(role)).unlink(missing_ok=True)

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

    async def _serve(self, server: Server) -> int:
        if server.process is None or server.process.returncode is not None:
            try:
                await server.start()
            except ServerError as error:
                _log.error("nats_not_started", server=server.name, error=str(error))
                return 1
        self._note(server.settings.store, server.process.pid if server.process else 0)
        return await server.wait()

    async def _renew_after_full_disk(self) -> None:
        while True:
            await wait_for_disk_space(self._options.folder)
            await self._servers.stop()  # and they are started again, as after any other end

    def _note(self, name: str, pid: int) -> None:
        self._record.processes[name] = data_folder.process(pid)
        self._save_record()

    def _save_record(self) -> None:
        """Write down what runs; without room for that, all runs on: it only helps to clean up after a crash."""
        try:
            self._record.save(self._options.folder)
        except OSError as error:
            _log.error("record_not_saved", folder=str(self._options.folder), error=str(error))

    async def _end_all(self) -> None:
        """
        Stop those that decide, then the executors, which hand their jobs back to the log, then the log.

        The agents beside the executors end after these: until then jobs save checkpoints and finish their steps.
        """
        grace_s = self._options.drain_s + KILL_AFTER_S
        if self._children:
            self._say("Stopping: running jobs are checkpointed first")
        executors, agents = [
            [child for child in self._children if child.name.rpartition("-")[0] in services]
            for services in (("executor",), data_folder.AGENTS)
        ]
        others = [child for child in self._children if child not in (*executors, *agents)]
        for group in (others, executors, agents):
            await asyncio.gather(*(child.end(grace_s) for child in group))
        await self._servers.stop()
        self._remove_logins()
        data_folder.path(self._options.folder).unlink(missing_ok=True)


def _cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error that people can do something about, if there is one."""
    found: BaseException = group.subgroup(UpError) or group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


def _main() -> int:
    options = msgspec.json.decode(sys.argv[1], type=UpOptions)
    try:
        asyncio.run(up(options, lambda text: _log.info("up", text=text)))
    except (UpError, BusError) as error:
        sys.stderr.write(f"{escaped(str(error))}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
