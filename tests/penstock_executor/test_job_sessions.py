"""Sessions in jobs of a node: whom the log lets in, what they may do then, and when it ends."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from other_users import ALICE, as_root, let_through

from penstock_bus.memory import MemoryBus
from penstock_bus.port import Append, Request
from penstock_executor import job_sessions
from penstock_executor.job_sessions import LOST_S, JobSessions
from penstock_executor.launchers import process_launcher, sandbox
from penstock_executor.launchers.confinement import Confinement
from penstock_executor.run_state import LocalRun, RunProcess
from penstock_log import Commit, JobEntered, subjects
from penstock_log.session_messages import (
    CHUNK_BYTES,
    POLL_S,
    STDIN,
    STDOUT,
    ChunkRead,
    CloseSession,
    CloseStream,
    KeepSession,
    OpenConnection,
    OpenSession,
    ReadChunk,
    SessionStatus,
    TerminalSize,
    WriteChunk,
)

ID, OTHER = "5e" * 16, "6f" * 16
PLACE = (("j1", 1), 0)
SPEAKING = [
    f"PENSTOCK_{name}" for name in ("SOCKET", "LANES", "MEMORY_SOCKET", "AGGREGATION_SOCKET", "AGGREGATION_TOKEN")
]
"""By these a process speaks for its job."""


class HostOfOne:
    """A node with one process, as far as sessions ask for it."""

    def __init__(self, folder: Path, confined: Confinement | None = None, *command: str) -> None:
        self.site, self.launcher, self.switches = SimpleNamespace(node_id="n1"), process_launcher, confined is not None
        uid = None if confined is None else confined.uid
        self.runs = {("j1", 1): LocalRun(job_id="j1", epoch=1, uid=uid, ranks={0: RunProcess()})}
        self.folder = folder
        if confined is not None:
            process_launcher.confine(folder, confined)
        command = command or ("sleep", "600")
        cwd = "/" if confined is not None else str(folder)
        env = {"PATH": os.environ["PATH"], "SOCKET": "1", **dict.fromkeys(SPEAKING, "x")}
        self.process = process_launcher.start(folder, command, env, cwd)

        self.starts, self.looked = True, asyncio.Event()

    def leader(self, place: object) -> int:
        self.looked.set()
        return self.process.pid if place == PLACE and self.starts else 0

    def rank_dir(self, place: object) -> Path:
        assert place == PLACE
        return self.folder

    def limited(self, place: object, argv: Sequence[str]) -> Sequence[str]:
        assert place == PLACE
        return argv


class Node:
    def __init__(self, bus: MemoryBus, host: HostOfOne) -> None:
        self.bus, self.host, self.now_s = bus, host, 0.0
        self.sessions = JobSessions(bus, host, lambda: self.now_s)  # type: ignore[arg-type]

    async def lets_in(self, session_id: str = ID, *, by: str = "ada", node_id: str = "n1", rank: int = 0) -> int:
        fact = JobEntered(job_id="j1", session_id=session_id, epoch=1, rank=rank, node_id=node_id, by=by, at_s=0.0)
        commit = Commit(id=f"{session_id}{by}{node_id}{rank}", actor="gateway", facts=(fact,))
        return await self.bus.append(Append(subject=subjects.job("j1"), commit=commit, expected=None))

    async def asked(self, message: msgspec.Struct, kind: Any = SessionStatus, user: str = "ada") -> Any:
        """Return the answer, or the error's code and text."""
        reply = await self.sessions.answer(Request(body=msgspec.msgpack.encode(message), user=user))
        return (reply.code, reply.error) if reply.code else msgspec.msgpack.decode(reply.body, type=kind)

    async def opened(self, *argv: str, seq: int | None = None, user: str = "ada", **more: Any) -> Any:
        seq = await self.lets_in() if seq is None else seq
        return await self.asked(OpenSession(session_id=ID, seq=seq, job_id="j1", argv=argv, **more), user=user)

    async def printed(self) -> bytes:
        """Return all that the command prints."""
        data, number = b"", 0
        while True:
            chunk = await self.asked(ReadChunk(session_id=ID, stream=STDOUT, number=number, received=number), ChunkRead)
            data += chunk.data
            number += bool(chunk.data)
            if chunk.last:
                return data

    async def ended(self) -> SessionStatus:
        while not (status := await self.asked(KeepSession(session_id=ID))).ended:
            pass
        return status


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with at_work(HostOfOne(tmp_path)) as found:
        yield found


@asynccontextmanager
async def at_work(host: HostOfOne) -> AsyncIterator[Node]:
    async with MemoryBus() as bus:
        found = Node(bus, host)
        try:
            yield found
        finally:
            found.sessions.close()
            process_launcher.kill(host.process)
            await asyncio.to_thread(os.waitpid, host.process.pid, 0)


async def test_who_is_in_the_log_is_let_in_once(node: Node) -> None:
    seq = await node.lets_in()
    assert await node.opened("sh", "-c", "echo $PENSTOCK_SESSION; exit 4", seq=seq) == SessionStatus()
    assert (await node.opened("sh", seq=seq)) is not None  # asked again, which starts nothing
    assert (await node.printed(), (await node.ended()).exit_code) == (f"{ID}\n".encode(), 4)
    await node.asked(CloseSession(session_id=ID))
    code, said = await node.opened("true", seq=seq)
    assert (code, "was opened before" in said) == (403, True)


@pytest.mark.parametrize(
    ("entered", "user", "said"),
    [
        ({"by": "bob"}, "ada", "lets in 'bob', not 'ada'"),
        ({"node_id": "n2"}, "ada", f"lets no session {ID} into a job on node n1"),
        ({"session_id": OTHER}, "ada", "lets no session"),
        ({"rank": 3}, "ada", "rank 3 of job j1 has ended"),
    ],
)
async def test_who_is_not_in_the_log_is_refused(node: Node, entered: dict[str, Any], user: str, said: str) -> None:
    code, why = await node.opened("true", seq=await node.lets_in(**entered), user=user)
    assert (code in (403, 409), said in why) == (True, True)
    assert node.sessions.open == 0


async def test_another_fact_or_none_lets_nobody_in(node: Node) -> None:
    seq = await node.lets_in()
    for wrong in (seq + 1, 0):
        assert (await node.opened("true", seq=wrong))[0] == 403
    not_his = OpenSession(session_id=ID, seq=seq, job_id="j.*", argv=("true",))
    assert (await node.asked(not_his))[0] == 400


async def test_what_is_no_message_is_refused(node: Node) -> None:
    for body in (b"", b"{}", b"\xc1", msgspec.msgpack.encode({"type": "write", "session_id": "../x"})):
        assert (await node.sessions.answer(Request(body=body))).code == 400


async def test_a_session_cannot_speak_for_the_job(node: Node) -> None:
    await node.opened("env")
    names = {line.split(b"=")[0].decode() for line in (await node.printed()).splitlines()}
    assert "SOCKET" in names
    assert not names.intersection(SPEAKING)


async def test_a_session_is_its_users_alone(node: Node) -> None:
    await node.opened("sleep", "600")
    for message in (KeepSession(session_id=ID), CloseSession(session_id=ID)):
        code, said = await node.asked(message, user="bob")
        assert (code, "no such session" in said) == (404, True)
    assert node.sessions.open == 1


async def test_a_session_of_which_nothing_is_heard_is_ended(node: Node) -> None:
    await node.opened("sleep", "600")
    node.sessions.end_lost(LOST_S)
    assert node.sessions.open == 1
    node.sessions.end_lost(LOST_S + 0.1)
    assert node.sessions.open == 0
    assert (await node.asked(KeepSession(session_id=ID)))[0] == 404
    assert POLL_S < LOST_S / 2


async def test_sessions_leave_the_descriptors_that_runs_need(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    monkeypatch.setattr(job_sessions, "NODE_SHARE", most / 12)  # room for twelve, and six of one user's

    async def opened(number: int, user: str) -> Any:
        seq = await node.lets_in(f"{number:032x}", by=user)
        asked = OpenSession(session_id=f"{number:032x}", seq=seq, job_id="j1", argv=("sleep", "600"))
        return await node.asked(asked, user=user)

    assert isinstance(await opened(1, "ada"), SessionStatus)
    code, said = await opened(2, "ada")
    assert (code, said.partition(" have")[0]) == (429, "your sessions on node n1")
    code, said = await node.asked(OpenConnection(session_id=f"{1:032x}", stream=10, port=9))
    assert (code, said.partition(" have")[0]) == (429, "your sessions on node n1")
    assert isinstance(await opened(3, "bob"), SessionStatus)
    code, said = await opened(4, "carol")
    assert (code, said.partition(" have")[0]) == (429, "sessions on node n1")
    await node.asked(CloseSession(session_id=f"{1:032x}"))
    assert isinstance(await opened(5, "carol"), SessionStatus)


async def test_a_chunk_is_no_longer_than_clients_send(node: Node) -> None:
    await node.opened("cat")
    code, said = await node.asked(WriteChunk(session_id=ID, stream=STDIN, number=0, data=b"x" * (CHUNK_BYTES + 1)))
    assert (code, "may come at a time" in said) == (409, True)


async def test_without_descriptors_a_session_is_refused_and_leaks_none(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, made = os.pipe2, []

    def pipe(flags: int) -> tuple[int, int]:
        if len(made) % 3 == 2:
            made.append((-1, -1))
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        made.append(real(flags))
        return made[-1]

    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched:
        patched.setattr(job_sessions.os, "pipe2", pipe)
        code, said = await node.opened("cat")
    assert (code, "node n1 cannot do this now: Too many open files" in said) == (503, True)
    assert len(os.listdir("/proc/self/fd")) == before


async def test_what_ends_with_the_run_says_why(node: Node) -> None:
    await node.opened("sh", "-c", "sleep 600")
    node.host.runs["j1", 1].ending = "preempted"
    process_launcher.kill(node.host.process)
    status = await node.ended()
    assert (status.exit_code, status.reason) == (None, "rank 0 of job j1 was preempted")


async def test_a_session_for_connections_alone_ends_with_the_run_too(node: Node) -> None:
    assert await node.opened() == SessionStatus()
    process_launcher.kill(node.host.process)
    assert (await node.ended()).reason == "rank 0 of job j1 has ended"


async def test_a_terminal_has_one_stream_and_ends_what_is_typed_by_a_character(node: Node) -> None:
    await node.opened("cat", terminal=TerminalSize(rows=5, columns=70), term="vt100")
    await node.asked(WriteChunk(session_id=ID, stream=STDIN, number=0, data=b"typed\r"), dict)
    await node.asked(WriteChunk(session_id=ID, stream=STDIN, number=1, data=b"", last=True), dict)
    assert await node.printed() == b"typed\r\ntyped\r\n"
    assert (await node.ended()).exit_code == 0
    assert (await node.asked(ReadChunk(session_id=ID, stream=2, number=0, received=0)))[0] == 410


def own_folder(tmp_path: Path) -> Path:
    """Return a folder of Alice's, to which she comes."""
    folder = let_through(tmp_path) / "hers"
    folder.mkdir()
    os.chown(folder, *ALICE)
    return folder


@as_root
@pytest.mark.parametrize("kind", ["user", "tmp", "sandbox"])
async def test_a_session_is_confined_as_the_program_is(tmp_path: Path, kind: str) -> None:
    """It has the program's user, and sees what the program leaves in a /tmp of its own, and nobody else does."""
    hers = own_folder(tmp_path)
    of_alice = Confinement(user="alice", uid=ALICE[0], gid=ALICE[1])
    if kind == "tmp":
        of_alice = of_alice._replace(tmp=str(hers))
    if kind == "sandbox":
        if sandbox.problem(ALICE[0]):
            pytest.skip("bubblewrap does not work here")
        of_alice = of_alice._replace(
            wrapper=sandbox.bubblewrap(tmp=str(hers), passed=(), writable=(), devices=()), tmp=""
        )
    where = "/tmp" if kind != "user" else str(hers)
    script = f"echo ours > {where}/mark-of-session; sleep 600"
    async with at_work(HostOfOne(tmp_path, of_alice, "sh", "-c", script)) as node:
        asks = f"until cat {where}/mark-of-session; do sleep 0.02; done 2> /dev/null; id -u; id -g; pwd; echo $SOCKET"
        await node.opened("sh", "-c", asks)
        assert (await node.printed()).decode().split() == ["ours", str(ALICE[0]), str(ALICE[1]), "/", "1"]
        assert (await node.ended()).exit_code == 0
        assert (hers / "mark-of-session").read_text() == "ours\n"
        assert not Path("/tmp/mark-of-session").exists()


@as_root
async def test_a_terminal_and_a_connection_are_the_users_own(tmp_path: Path) -> None:
    own_folder(tmp_path)
    of_alice = Confinement(user="alice", uid=ALICE[0], gid=ALICE[1])
    async with at_work(HostOfOne(tmp_path, of_alice)) as node:
        await node.opened("sh", "-c", "stat -c %u $(tty); sleep 600", terminal=TerminalSize())
        said = await node.asked(ReadChunk(session_id=ID, stream=STDOUT, number=0, received=0), ChunkRead)
        assert said.data == b"%d\r\n" % ALICE[0]
        peers: asyncio.Queue[int] = asyncio.Queue()

        async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            port = writer.get_extra_info("peername")[1]
            rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
            await peers.put(next(int(row[7]) for row in rows if int(row[1].split(":")[1], 16) == port))
            writer.write(await reader.read())
            writer.close()

        async with await asyncio.start_server(meet, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            assert isinstance(await node.asked(OpenConnection(session_id=ID, stream=3, port=port)), SessionStatus)
            await node.asked(WriteChunk(session_id=ID, stream=3, number=0, data=b"hello", last=True), dict)
            read = ReadChunk(session_id=ID, stream=3, number=0, received=0)
            assert (await node.asked(read, ChunkRead)).data == b"hello"
            assert await peers.get() == ALICE[0]


async def test_a_port_where_nobody_listens_is_said(node: Node) -> None:
    await node.opened()
    code, said = await node.asked(OpenConnection(session_id=ID, stream=3, port=1))
    assert (code, said) == (502, "port 1 of the job on node n1: Connection refused")


async def test_a_command_line_that_is_too_long_is_refused(node: Node) -> None:
    code, said = await node.opened("echo", "x" * 200_000)
    assert (code, "put it into a script" in said) == (400, True)
    assert node.sessions.open == 0


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_who_asks_again_while_a_session_is_being_opened_waits_for_the_same(node: Node) -> None:
    node.host.starts, seq = False, await node.lets_in()
    first = asyncio.ensure_future(node.opened("echo", "once", seq=seq))
    await node.host.looked.wait()
    again = asyncio.ensure_future(node.opened("echo", "once", seq=seq))
    await asyncio.sleep(0)
    first.cancel()  # its client has given up, and the session is not its alone
    node.now_s = LOST_S + 0.1
    node.sessions.end_lost(node.now_s)  # no session of which nothing is heard: somebody waits for it
    node.now_s = 0.0
    node.host.starts = True
    assert await again == SessionStatus()
    assert await node.printed() == b"once\n"


async def test_a_session_that_is_closed_while_it_is_being_opened_does_not_begin(node: Node) -> None:
    node.host.starts, before = False, descriptors()
    opening = asyncio.ensure_future(node.opened("sleep", "600"))
    await node.host.looked.wait()
    await node.asked(CloseSession(session_id=ID))
    node.host.starts = True
    assert await opening == (409, "it was closed")
    assert (node.sessions.open, descriptors()) == (0, before)


async def test_a_connection_that_is_asked_for_again_is_made_once(node: Node) -> None:
    await node.opened()
    before, met = descriptors(), []

    async def meet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        met.append(writer)
        writer.close()

    async with await asyncio.start_server(meet, "127.0.0.1", 0) as server:
        asked = OpenConnection(session_id=ID, stream=3, port=server.sockets[0].getsockname()[1])
        answers = await asyncio.gather(*(node.asked(asked) for _ in range(2)))
        assert answers == [SessionStatus()] * 2
        read = ReadChunk(session_id=ID, stream=3, number=0, received=0)
        assert (await node.asked(read, ChunkRead)).last
    await node.asked(CloseStream(session_id=ID, stream=3))
    assert (len(met), descriptors()) == (1, before)


async def test_a_connection_under_way_ends_with_its_session(node: Node) -> None:
    await node.opened()
    node.host.starts, before = False, descriptors()
    node.host.looked.clear()
    making = asyncio.ensure_future(node.asked(OpenConnection(session_id=ID, stream=3, port=1)))
    await node.host.looked.wait()
    await node.asked(CloseSession(session_id=ID))
    node.host.starts = True
    assert await making == (409, "it was closed before it had begun")
    assert descriptors() < before  # neither the session's nor a connection's is left
