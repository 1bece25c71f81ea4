"""
Sessions of those who have entered a job on this node: who may, what runs for them, and when it ends.

:class:`JobSessions` answers :mod:`penstock_log.session_messages`. It lets in whom the log names (``JobEntered``), under
the name by which the server knows them, once. The launcher runs what they ask for beside the job's process. A session
ends with its command, with the job's run, with this executor, and when nothing was heard of its client for a while;
whatever it has started ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import pty
import resource
import socket
import struct
import termios
from collections.abc import Callable
from typing import Final, TypeVar, assert_never

import msgspec
import structlog

from penstock_bus.port import BusError, LogReader, Reply, Request
from penstock_executor.launchers.launcher import EntryRequest
from penstock_executor.process_host import Place, ProcessHost
from penstock_executor.session_streams import ChunkRefused, IncomingStream, OutgoingStream
from penstock_log import JobEntered, subjects
from penstock_log.agent_protocol import AgentEnv
from penstock_log.session_messages import (
    LOST_S,
    POLL_S,
    STDERR,
    STDIN,
    STDOUT,
    CloseSession,
    CloseStream,
    KeepSession,
    OpenConnection,
    OpenSession,
    ReadChunk,
    ResizeTerminal,
    SessionStatus,
    SignalCommand,
    TerminalSize,
    ToExecutor,
    WriteChunk,
)

TICKET_S: Final = 60.0
"""How long after the fact that lets in somebody may come, by the server's clock."""
MOST_SESSIONS: Final = 64
"""Of one process of a job, at a time."""
MOST_CONNECTIONS: Final = 256
"""Of one session, at a time."""
NODE_SHARE: Final = 4
"""The part of the files that the executor may have open which all sessions together may take: a quarter."""
USER_SHARE: Final = 2
"""The part of those that one user's may take: a half."""
_OF_SESSION: Final = 2
"""Descriptors of a session beside its streams: what the launcher says, and a terminal."""
LOOK_S: Final = 1.0
STARTS_S: Final = 10.0
"""So long a run that was decided is waited for."""
ANSWER_S: Final = 15.0
"""So long the launcher may take to make a connection."""
_AGAIN_S: Final = 0.02
_IUTF8: Final = 0o40000
BAD, FORBIDDEN, NOT_FOUND, CONFLICT, GONE, TOO_MANY, BAD_GATEWAY = 400, 403, 404, 409, 410, 429, 502
_AGENTS: Final = (
    AgentEnv.SOCKET,
    AgentEnv.LANES,
    AgentEnv.MEMORY_SOCKET,
    AgentEnv.AGGREGATION_SOCKET,
    AgentEnv.AGGREGATION_TOKEN,
)
"""What a session does not get of a job's environment: there it would speak for the job."""
_decoder: Final = msgspec.msgpack.Decoder(ToExecutor)
_log = structlog.get_logger("penstock.executor")


S = TypeVar("S", OutgoingStream, IncomingStream)
T = TypeVar("T")


class SessionRefused(Exception):
    """What is asked of a session cannot be; the message says why, and ``code`` who is to do something."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class NodeSession:
    """
    One session.

    Attributes
    ----------
    user : str
        Who has opened it, as the server knows them.
    heard_s : float
        When the client was last heard.
    leader : int
        The command, where it leads a session of the kernel's; 0 otherwise.
    over : asyncio.Event
        Set when it has ended; then ``status`` says how.
    connecting : dict of int to task
        Connections that are being made, by their streams.
    """

    def __init__(self, asked: OpenSession, place: Place, user: str, now_s: float) -> None:
        self.id, self.place, self.user, self.heard_s = asked.session_id, place, user, now_s
        self.status, self.over = SessionStatus(), asyncio.Event()
        self.outgoing: dict[int, OutgoingStream] = {}
        self.incoming: dict[int, IncomingStream] = {}
        self.connecting: dict[int, asyncio.Task[None]] = {}
        self.leader = 0
        self._control: socket.socket | None = None
        self._master = -1
        self._said = b""

    @property
    def descriptors(self) -> int:
        """How many it has open, those of connections that are being made included."""
        return len(self.outgoing) + len(self.incoming) + 2 * len(self.connecting) + _OF_SESSION

    def begin(self, control: socket.socket, ended: Callable[[], str]) -> None:
        """Follow what the launcher says of the command; ``ended`` says why it has ended without an exit status."""
        self._control = control
        asyncio.get_running_loop().add_reader(control.fileno(), self._on_control, control, ended)

    async def over_within(self, wait_s: float) -> None:
        """Return once it has ended, or after so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self.over.wait()

    def has_terminal(self, master: int) -> None:
        """Keep a terminal, of which the session has the other end."""
        self._master = master

    def resize(self, size: TerminalSize) -> None:
        """Give the terminal another size."""
        if self._master >= 0:
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.columns, 0, 0))

    def signal(self, signum: int) -> None:
        """Send a signal to the command."""
        if self._control is not None:
            with contextlib.suppress(OSError):
                self._control.send(bytes([signum]))

    def close_stream(self, number: int) -> None:
        """End one of the connections, both ways, also one that is being made."""
        if (under_way := self.connecting.pop(number, None)) is not None:
            under_way.cancel()
        if (incoming := self.incoming.pop(number, None)) is not None:
            incoming.close()
        if (outgoing := self.outgoing.pop(number, None)) is not None:
            outgoing.close()

    def end(self, reason: str) -> None:
        """End the session, with all of its processes and connections."""
        self._conclude(SessionStatus(ended=True, reason=reason))
        for number in {*self.outgoing, *self.incoming, *self.connecting}:
            self.close_stream(number)
        if self._master >= 0:
            os.close(self._master)
            self._master = -1

    def _on_control(self, control: socket.socket, ended: Callable[[], str]) -> None:
        try:
            said = control.recv(64)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        *lines, self._said = (self._said + said).split(b"\n")
        for line in lines:
            if line.startswith(b"@"):
                self.leader = int(line[1:])
            else:
                self._conclude(SessionStatus(ended=True, exit_code=int(line)))
        if not said:
            self._conclude(SessionStatus(ended=True, reason=ended()))

    def _conclude(self, status: SessionStatus) -> None:
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control.fileno())
            self._control.close()  # by which the launcher ends what is left
            self._control = None
        if not self.over.is_set():
            self.status = status
            self.over.set()


class JobSessions:
    """
    All sessions of a node.

    Parameters
    ----------
    bus : LogReader
        The log, for the facts that let somebody in.
    ticks : callable
        Seconds of a clock that only goes on.
    """

    def __init__(self, bus: LogReader, host: ProcessHost, ticks: Callable[[], float]) -> None:
        self._bus, self._host, self._ticks = bus, host, ticks
        self._sessions: dict[str, NodeSession] = {}
        self._used: dict[str, float] = {}
        """Session → when it was opened: none is opened twice."""
        self._opening: dict[tuple[str, str], asyncio.Task[SessionStatus]] = {}
        """Session and user → its opening, which one who asks again waits for too."""

    def leaders(self) -> dict[Place, list[int]]:
        """Return the sessions, as the kernel knows them, of commands that lead one: those with a terminal."""
        found: dict[Place, list[int]] = {}
        for session in self._sessions.values():
            if session.leader and not session.over.is_set():
                found.setdefault(session.place, []).append(session.leader)
        return found

    def is_in(self, place: Place) -> bool:
        """Return whether somebody is in a process."""
        return any(session.place == place and not session.over.is_set() for session in self._sessions.values())

    @property
    def open(self) -> int:
        """How many sessions have not ended."""
        return sum(not session.over.is_set() for session in self._sessions.values())

    async def answer(self, request: Request) -> Reply:
        """Answer one of :data:`penstock_log.session_messages.ToExecutor`."""
        try:
            asked = _decoder.decode(request.body)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return Reply(code=BAD, error=f"not a message of a session: {error}")
        try:
            return Reply(body=msgspec.msgpack.encode(await self._answer(asked, request.user)))
        except SessionRefused as error:
            return Reply(code=error.code, error=str(error))
        except ChunkRefused as error:
            return Reply(code=CONFLICT, error=str(error))
        except OSError as error:
            why = error.strerror or str(error)
            return Reply(code=503, error=f"node {self._host.site.node_id} cannot do this now: {why}; try again")

    async def look(self) -> None:
        """End for ever the sessions whose clients are gone."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.end_lost(self._ticks())

    def end_lost(self, now_s: float) -> None:
        """End the sessions of which nothing was heard for a while, and forget which were opened long ago."""
        for session in [*self._sessions.values()]:
            is_opening = (session.id, session.user) in self._opening  # its client waits for the answer
            if not is_opening and now_s - session.heard_s > LOST_S:
                if not session.over.is_set():
                    _log.info("session_lost", session_id=session.id, job_id=session.place[0][0])
                self._forget(session, f"nothing was heard of the client for {LOST_S:.0f} s")
        for used in [one for one, at_s in self._used.items() if now_s - at_s > 2 * TICKET_S]:
            del self._used[used]

    def close(self) -> None:
        """End all sessions: this executor does."""
        for opening in self._opening.values():
            opening.cancel()
        for session in self._sessions.values():
            session.end(f"the executor of node {self._host.site.node_id} ends")

    # --- requests
    async def _answer(self, asked: ToExecutor, user: str) -> msgspec.Struct:
        if isinstance(asked, OpenSession):
            return await self._open(asked, user)
        session = self._session(asked.session_id, user)
        session.heard_s = self._ticks()
        match asked:
            case ReadChunk():
                return await _stream(session.outgoing, asked.stream).read(asked.number, asked.received)
            case WriteChunk():
                return await _stream(session.incoming, asked.stream).write(asked.number, asked.data, last=asked.last)
            case OpenConnection():
                await self._connect(session, asked)
            case CloseStream():
                session.close_stream(asked.stream)
            case ResizeTerminal():
                session.resize(asked.size)
            case SignalCommand():
                session.signal(asked.signum)
            case KeepSession():
                await session.over_within(POLL_S)
            case CloseSession():
                self._forget(session, "it was closed")
            case _:
                assert_never(asked)
        return session.status

    def _session(self, session_id: str, user: str) -> NodeSession:
        session = self._sessions.get(session_id)
        if session is None or session.user != user:  # whose it is, is nobody else's to know
            raise SessionRefused(
                NOT_FOUND,
                f"node {self._host.site.node_id} has no such session: it was lost, or the executor was started again",
            )
        return session

    def _forget(self, session: NodeSession, reason: str) -> None:
        session.end(reason)
        self._sessions.pop(session.id, None)

    # --- beginning
    async def _open(self, asked: OpenSession, user: str) -> SessionStatus:
        """Open a session, or join its opening where that is asked again."""
        key = (asked.session_id, user)
        opening = self._opening.get(key)
        if opening is None:
            if (known := self._sessions.get(asked.session_id)) is not None and known.user == user:
                known.heard_s = self._ticks()
                return known.status  # asked again
            opening = self._opening[key] = asyncio.ensure_future(self._begin(asked, user))
            opening.add_done_callback(lambda _: self._opening.pop(key, None))
        return await _joined(opening)

    async def _begin(self, asked: OpenSession, user: str) -> SessionStatus:
        entered = await self._ticket(asked, user)
        place = ((entered.job_id, entered.epoch), entered.rank)
        if asked.session_id in self._used:
            raise SessionRefused(FORBIDDEN, f"session {asked.session_id} was opened before; enter the job again")
        self._used[asked.session_id] = self._ticks()
        if sum(one.place == place and not one.over.is_set() for one in self._sessions.values()) >= MOST_SESSIONS:
            raise SessionRefused(TOO_MANY, f"{MOST_SESSIONS} sessions are open there already; end one first")
        self._check_room(user, 3 + _OF_SESSION)
        session = self._sessions[asked.session_id] = NodeSession(asked, place, user, self._ticks())
        try:
            await self._started(place)
            if asked.argv:
                await self._run(session, asked)
            else:
                self._follow(session, await self._enter(place, EntryRequest(), []))
        except BaseException as error:
            self._forget(session, str(error))
            raise
        job_id = entered.job_id
        _log.info("session_opened", session_id=session.id, job_id=job_id, by=entered.by, purpose=entered.purpose)
        return session.status

    async def _ticket(self, asked: OpenSession, user: str) -> JobEntered:
        """Return the fact by which somebody may come in here."""
        try:
            subject = subjects.job(asked.job_id)
            found = await self._bus.read(subject, after_seq=asked.seq - 1, until_seq=asked.seq)
            now_s = await self._bus.now_s()
        except ValueError as error:
            raise SessionRefused(BAD, str(error)) from error
        except BusError as error:
            raise SessionRefused(503, f"the log cannot be read now: {error}; try again") from error
        facts = (fact for delivery in found for fact in delivery.commit.facts if delivery.seq == asked.seq)
        entered = next((fact for fact in facts if isinstance(fact, JobEntered)), None)
        node_id = self._host.site.node_id
        if entered is None or entered.session_id != asked.session_id or entered.node_id != node_id:
            raise SessionRefused(FORBIDDEN, f"the log lets no session {asked.session_id} into a job on node {node_id}")
        if user and entered.by != user:
            raise SessionRefused(FORBIDDEN, f"the log lets in {entered.by!r}, not {user!r}")
        if now_s - max(delivery.stored_s for delivery in found) > TICKET_S:
            raise SessionRefused(FORBIDDEN, f"that was more than {TICKET_S:.0f} s ago; enter the job again")
        return entered

    def _check_room(self, user: str, more: int) -> None:
        """Refuse what would have sessions take the descriptors that runs need."""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // NODE_SHARE
        used, own = 0, 0
        for session in self._sessions.values():
            count = session.descriptors
            used += count
            own += count if session.user == user else 0
        if own + more > most // USER_SHARE or used + more > most:
            whose = "your sessions" if own + more > most // USER_SHARE else "sessions"
            raise SessionRefused(
                TOO_MANY,
                f"{whose} on node {self._host.site.node_id} have as much open as they may; end some, or have the "
                "operator raise the executor's limit of open files (LimitNOFILE)",
            )

    async def _started(self, place: Place) -> None:
        """Wait until a process of a run has started here."""
        key, rank = place
        end_s = self._ticks() + STARTS_S
        while self._ticks() < end_s:
            run = self._host.runs.get(key)
            if run is not None and (run.refused or not run.alive or rank not in run.ranks or not run.ranks[rank].alive):
                break
            if run is not None and self._host.leader(place):
                return
            await asyncio.sleep(_AGAIN_S)
        raise SessionRefused(CONFLICT, self._why_ended(place))

    def _why_ended(self, place: Place) -> str:
        (job_id, epoch), rank = place
        run = self._host.runs.get((job_id, epoch))
        if run is None:
            return f"run {epoch} of job {job_id} is over on node {self._host.site.node_id}"
        how = {"preempted": "was preempted", "cancelled": "was cancelled", "": "has ended"}.get(run.ending, "was ended")
        why = f": {run.why or run.refused}" if run.why or run.refused else ""
        return f"rank {rank} of job {job_id} {how}{why}"

    async def _run(self, session: NodeSession, asked: OpenSession) -> None:
        """Start the command of a session."""
        with contextlib.ExitStack() as theirs:
            size = asked.terminal
            fds = _make_pipes(session) if size is None else [self._make_terminal(session, size)]
            for fd in fds:
                theirs.callback(os.close, fd)
            env = {"TERM": asked.term} if asked.term else {}
            control = await self._enter(
                session.place,
                EntryRequest(
                    argv=tuple(self._host.limited(session.place, asked.argv)),
                    terminal=asked.terminal is not None,
                    env={**env, AgentEnv.SESSION: session.id},
                    drop=_AGENTS,
                    ends_run=asked.ends_run,
                ),
                fds,
            )
        self._follow(session, control)

    def _follow(self, session: NodeSession, control: socket.socket) -> None:
        """Have a session begin, unless it was ended meanwhile."""
        if session.over.is_set():
            control.close()  # by which the launcher ends the command
            raise SessionRefused(CONFLICT, session.status.reason)
        session.heard_s = self._ticks()
        session.begin(control, lambda: self._why_ended(session.place))

    async def _enter(self, place: Place, asked: EntryRequest, fds: list[int]) -> socket.socket:
        """Ask the launcher, again while the process has not begun to listen."""
        end_s = self._ticks() + STARTS_S
        while True:
            try:
                return self._host.launcher.enter(self._host.rank_dir(place), asked, fds)
            except ValueError as error:
                raise SessionRefused(BAD, str(error)) from error
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    raise
                starts = error.errno in (errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN)
                if not starts or self._ticks() > end_s or not self._host.leader(place):
                    why = f"{self._why_ended(place)}: it cannot be entered ({error.strerror or error})"
                    raise SessionRefused(CONFLICT, why) from error
            await asyncio.sleep(_AGAIN_S)

    def _make_terminal(self, session: NodeSession, size: TerminalSize) -> int:
        """Make the session's terminal; return the command's end of it."""
        master, slave = pty.openpty()
        session.has_terminal(master)
        try:
            modes = termios.tcgetattr(slave)
            modes[0] |= _IUTF8
            termios.tcsetattr(slave, termios.TCSANOW, modes)
            run = self._host.runs[session.place[0]]
            if self._host.switches and run.uid is not None:
                os.fchown(slave, run.uid, -1)
            session.resize(size)
            session.outgoing[STDOUT] = OutgoingStream(os.dup(master))
            session.incoming[STDIN] = IncomingStream(os.dup(master), "terminal")
        except BaseException:
            os.close(slave)
            raise
        return slave

    async def _connect(self, session: NodeSession, asked: OpenConnection) -> None:
        """Make one of a session's connections, or join its making where that is asked again."""
        if asked.stream in session.incoming:
            return  # asked again
        under_way = session.connecting.get(asked.stream)
        if under_way is None:
            if session.over.is_set():
                raise SessionRefused(CONFLICT, session.status.reason or "the session has ended")
            if len(session.outgoing) + len(session.connecting) >= MOST_CONNECTIONS:
                raise SessionRefused(TOO_MANY, f"{MOST_CONNECTIONS} connections are open there already")
            self._check_room(session.user, 2)
            under_way = session.connecting[asked.stream] = asyncio.ensure_future(self._make_connection(session, asked))
        try:
            await _joined(under_way)
        finally:
            if under_way.done() and session.connecting.get(asked.stream) is under_way:
                del session.connecting[asked.stream]

    async def _make_connection(self, session: NodeSession, asked: OpenConnection) -> None:
        await self._started(session.place)
        control = await self._enter(session.place, EntryRequest(port=asked.port), [])
        try:
            fd = await _connected(control)
        except (OSError, TimeoutError) as error:
            why = getattr(error, "strerror", None) or str(error) or "no answer"
            node = self._host.site.node_id
            raise SessionRefused(BAD_GATEWAY, f"port {asked.port} of the job on node {node}: {why}") from error
        finally:
            control.close()
        session.incoming[asked.stream] = IncomingStream(fd, "connection")
        session.outgoing[asked.stream] = OutgoingStream(os.dup(fd))


def _make_pipes(session: NodeSession) -> list[int]:
    """Make the three pipes of a command; return its ends of them."""
    with contextlib.ExitStack() as made:
        pipes = []
        for _ in range(3):
            pipe = os.pipe2(os.O_CLOEXEC)
            pipes.append(pipe)
            for fd in pipe:
                made.callback(os.close, fd)
        made.pop_all()  # all three could be had
    stdin, stdout, stderr = pipes
    session.incoming[STDIN] = IncomingStream(stdin[1], "pipe")
    session.outgoing[STDOUT] = OutgoingStream(stdout[0])
    session.outgoing[STDERR] = OutgoingStream(stderr[0])
    return [stdin[0], stdout[1], stderr[1]]


async def _joined(under_way: asyncio.Task[T]) -> T:
    """Return what a task returns that several may wait for; it goes on when one of them does not wait any more."""
    await asyncio.wait({under_way})
    if under_way.cancelled():
        raise SessionRefused(CONFLICT, "it was closed before it had begun")
    return under_way.result()


async def _connected(control: socket.socket) -> int:
    """Return the connection that the launcher has made."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(control.fileno(), ready.set)
    try:
        async with asyncio.timeout(ANSWER_S):
            await ready.wait()
    finally:
        loop.remove_reader(control.fileno())
    said, fds, _, _ = socket.recv_fds(control, 1024, 1)
    if not fds:
        raise OSError(0, said[1:].decode(errors="replace") or "the process has ended")
    return fds[0]


def _stream(streams: dict[int, S], number: int) -> S:
    found = streams.get(number)
    if found is None:
        raise SessionRefused(GONE, f"the session has no stream {number}, or it was closed")
    return found
