"""
Commands that carry data to and from a running job: ``port-forward`` and ``cp``.

A forwarded port listens here; each connection goes through the server to the job's host, and on as the job's user. A
copy is a stream of ``tar`` in a session of its own: what is read and written there has the rights of the job's user.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import posixpath
import re
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, cast

from penstock_cli import render
from penstock_cli.commands.interactive import Rank
from penstock_cli.invocation import Exit, Failure, JobId, bad_input, call, tell
from penstock_cli.parameters import Argument, Context, Option
from penstock_cli.tar_stream import BLOCK_BYTES, TarSource, TarTarget
from penstock_log.text import gibibytes

if TYPE_CHECKING:
    import typer

    from penstock.client import Client
    from penstock.job_session import JobSession

_PORTS: Final = re.compile(r"(?:(\d{0,5}):)?(\d{1,5})")
_HIGHEST: Final = 65_535
_PLACE: Final = re.compile(r"([A-Za-z0-9_-]+):(.*)", re.DOTALL)


def register(app: typer.Typer) -> None:
    """Add the commands, in the order of the help."""
    app.command("port-forward")(port_forward)
    app.command("cp")(cp)


# --- ports
class PortPair(NamedTuple):
    """A port here, 0 for any that is free, and one of the job."""

    local: int
    remote: int


def port_forward(
    ctx: Context,
    job: JobId,
    ports: Annotated[list[str], Argument(metavar="[LOCAL:]REMOTE...", help="Port here, and of the job; :80 any here.")],
    *,
    address: Annotated[str, Option("--address", help="Where to listen; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    rank: Rank = 0,
) -> None:
    """
    Forward ports of this machine to those of a running job.

    For example, a notebook: penstock port-forward JOB 8888, and then http://127.0.0.1:8888 in a browser. Ends with
    Ctrl-C, and with the job's run.
    """
    pairs = [port_pair(text) for text in ports]
    code = call(ctx, lambda client: _forward(client, job, pairs, address, rank))
    if code:
        raise SystemExit(code)


def port_pair(text: str) -> PortPair:
    """
    Return what ``REMOTE``, ``LOCAL:REMOTE`` or ``:REMOTE`` says.

    Examples
    --------
    >>> port_pair("8888"), port_pair("9000:8888"), port_pair(":80")
    (PortPair(local=8888, remote=8888), PortPair(local=9000, remote=8888), PortPair(local=0, remote=80))
    """
    found = _PORTS.fullmatch(text)
    local, remote = (found[1], int(found[2])) if found else (None, 0)
    pair = PortPair(remote if local is None else int(local or 0), remote)
    if not (0 < pair.remote <= _HIGHEST and pair.local <= _HIGHEST):
        bad_input(f"{text!r} names no ports; expected REMOTE or LOCAL:REMOTE, such as 8888 or 9000:8888")
    return pair


async def _forward(client: Client, job_id: str, pairs: list[PortPair], address: str, rank: int) -> int:
    from penstock.job_session import JobSession, SessionLost
    from penstock_cli import session_terminal

    try:
        with session_terminal.ended_in_order():
            opening = JobSession(client, job_id, rank=rank, purpose="forward")
            async with opening as session, contextlib.AsyncExitStack() as servers:
                listeners = [Listener(session, pair) for pair in pairs]
                for listener in listeners:
                    await servers.enter_async_context(await listener.listen(address))
                    servers.push_async_callback(listener.end_connections)
                await refuse_loops(session, listeners)
                for listener in listeners:
                    listener.open()
                return session_terminal.exit_code(await session.wait())
    except SessionLost as error:
        tell(str(error))
        return session_terminal.LOST


class Listener:
    """A port here, each of whose connections is carried to a port of the job, once it is open."""

    def __init__(self, session: JobSession, pair: PortPair) -> None:
        self.pair = pair
        self.port = 0
        self.held: list[asyncio.Future[bytes]] = []
        """The first bytes of connections that came before it was open."""
        self._session, self._shown = session, ""
        self._carriers: set[asyncio.Task[None]] = set()
        self._is_open = asyncio.Event()

    async def listen(self, address: str) -> asyncio.Server:
        """
        Begin to take connections.

        Raises
        ------
        Failure
            If the port cannot be had.
        """
        from penstock_log.session_messages import CHUNK_BYTES

        try:
            server = await asyncio.start_server(self._carry, address, self.pair.local, limit=CHUNK_BYTES)
        except OSError as error:
            why = error.strerror or str(error)
            raise Failure(
                f"cannot listen at {address}:{self.pair.local}: {why}; give another port: LOCAL:REMOTE"
            ) from error
        host, self.port = server.sockets[0].getsockname()[:2]
        self._shown = f"[{host}]" if ":" in host else host
        return server

    def open(self) -> None:
        """Carry what comes, and say where."""
        job_id = self._session.entry.id if self._session.entry is not None else ""
        where = f"http://{self._shown}:{self.port} is port {self.pair.remote}"
        render.say(f"{where} of job {job_id} on {self._session.node_id}; Ctrl-C ends it")
        self._is_open.set()

    async def end_connections(self) -> None:
        """End all connections, those too that wait until it is open: a server's end waits for all of its own."""
        carriers = list(self._carriers)
        for carrier in carriers:
            carrier.cancel()
        await asyncio.gather(*carriers, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._carriers.add(task)
        first = b""
        try:
            if not self._is_open.is_set():
                beginning = asyncio.ensure_future(reader.read(1))
                self.held.append(beginning)
                await self._is_open.wait()
                first = await beginning
            await carry_connection(self._session, self.pair.remote, reader, writer, first)
        except asyncio.CancelledError:
            _reset(writer)
            raise
        finally:
            self._carriers.discard(task)


async def refuse_loops(session: JobSession, listeners: Sequence[Listener]) -> None:
    """
    End with a message where a port of the job's host is one of these listeners: each connection would make another.

    The job is on this machine then. Each such port is connected to and hung up, and a listener here that hears of a
    connection which ends at once was the one. Nobody else knows of the listeners yet.
    """
    from penstock_bus.errors import BusError

    own = {listener.port for listener in listeners}
    for listener in listeners:
        remote = listener.pair.remote
        if remote not in own:
            continue
        try:
            await session.close_stream(await session.connect(remote))
        except BusError:  # nothing listens there yet, and not one of ours
            continue
        heard = [beginning for one in listeners if one.port == remote for beginning in one.held]
        if heard:
            await asyncio.wait(heard, timeout=_HANGS_UP_S, return_when=asyncio.FIRST_COMPLETED)
        if any(one.done() and not one.cancelled() and not one.result() for one in heard):
            other = remote + 10_000 if remote + 10_000 <= _HIGHEST else 0
            raise Failure(
                f"the job runs on this machine, where port {remote} is now this command's own: connections would go "
                f"round for ever. Give another port here: {other or ''}:{remote}"
            )


_HANGS_UP_S: Final = 2.0


async def carry_connection(
    session: JobSession, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: bytes = b""
) -> None:
    """Carry one connection that has come in here to a port of the job, both ways; ``first`` was read of it before."""
    from penstock_bus.errors import BusError

    try:
        stream = await session.connect(port)
    except BusError as error:
        tell(str(error))
        _reset(writer)
        return
    down = asyncio.ensure_future(_carry_down(session, stream, writer))
    up = asyncio.ensure_future(session.feed(stream, _coming(reader, first)))
    try:
        await asyncio.gather(down, up)
    except (BusError, OSError):
        _reset(writer)
    finally:
        for one in (down, up):
            one.cancel()
        await asyncio.gather(down, up, return_exceptions=True)
        writer.close()
        with contextlib.suppress(BusError):
            await session.close_stream(stream)


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection as one that did not come about, or broke: who has it hears of a reset."""
    made = writer.get_extra_info("socket")
    if made is not None:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _carry_down(session: JobSession, stream: int, writer: asyncio.StreamWriter) -> None:
    async for data in session.chunks(stream):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def _coming(reader: asyncio.StreamReader, first: bytes) -> AsyncIterator[bytes]:
    if first:
        yield first
    while data := await reader.read(BLOCK_BYTES):
        yield data


# --- files
_HAS_TAR: Final = """\
command -v tar > /dev/null || { echo "penstock: there is no tar where the job runs; cp needs it" >&2; exit 1; }
"""
PACK: Final = f"""\
{_HAS_TAR}t=$1
case $t in /*) ;; *) t=./$t ;; esac
[ -e "$t" ] || [ -L "$t" ] || {{ echo "penstock: the job has no $1; it was looked for in $(pwd)" >&2; exit 1; }}
cd -- "$(dirname -- "$t")" || exit 1
exec 3>&1
said=$(LC_ALL=C tar -cf - -- "$(basename -- "$t")" 2>&1 >&3 3>&-)
code=$?
grown=': file changed as we read it$'
gone=': File removed before we read it$'
[ -z "$said" ] || printf '%s\\n' "$said" | grep -v -e "$grown" >&2
[ $code = 1 ] && ! printf '%s\\n' "$said" | grep -q -v -e "$grown" -e "$gone" && exit 0
exit $code
"""
"""A file that is written meanwhile is copied as long as it was at first: GNU tar says so, and would return 1."""
_UNPACK: Final = f"""\
{_HAS_TAR}t=$1
case $t in /*) ;; *) t=./$t ;; esac
[ -d "$t" ] && cd -- "$t" && exec tar -xof -
d=$(dirname -- "$t")
case $1 in */) d=$t ;; esac
[ -d "$d" ] || {{ echo "penstock: the job has no folder $d to copy into; make it first" >&2; exit 1; }}
w=$(mktemp -d "$d/.penstock-cp-XXXXXX") || exit 1
trap 'rm -rf -- "$w"' EXIT
trap 'exit 1' HUP TERM INT
tar -xof - -C "$w" && mv -f -- "$w/$2" "$t"
"""
"""What is to have another name is unpacked beside it first, so that nobody finds half of a file there."""


def cp(
    ctx: Context,
    source: Annotated[str, Argument(metavar="FROM", help="A path here, or JOB:PATH.")],
    target: Annotated[str, Argument(metavar="TO", help="JOB:PATH, or a path here.")],
    *,
    rank: Rank = 0,
) -> None:
    """
    Copy a file or a folder from a running job, or into one.

    Paths of the job are relative to its working folder, and read and written as its user. As with cp, a TO that is a
    folder gets FROM into it, and any other TO is its new name. A path here with a colon: ./a:b. Of a file that is being
    written there comes what it held at the beginning. Exits with 1 where something was not copied, with 255 where the
    session was lost.
    """
    there, here = job_path(source), job_path(target)
    if (there is None) == (here is None):
        bad_input("expected one path of a job and one here: penstock cp JOB:PATH HERE, or penstock cp HERE JOB:PATH")
    if there is not None:
        job, path = there
        code = call(ctx, lambda client: _fetch(client, job, path, Path(target), rank))
    else:
        job, path = cast("tuple[str, str]", here)
        if not os.path.lexists(source):
            raise Failure(f"there is no {source}; check the path")
        code = call(ctx, lambda client: _send(client, job, Path(source), path, rank))
    if code:
        raise SystemExit(code)


def job_path(text: str) -> tuple[str, str] | None:
    """
    Return job and path of ``JOB:PATH``; None for a path here.

    Examples
    --------
    >>> job_path("j1:out/model.pt"), job_path("./a:b"), job_path("out"), job_path("j1:")
    (('j1', 'out/model.pt'), None, None, ('j1', '.'))
    """
    found = _PLACE.fullmatch(text)
    return (found[1], found[2] or ".") if found else None


async def _fetch(client: Client, job_id: str, path: str, target: Path, rank: int) -> int:
    """Copy from the job."""
    from penstock_log.session_messages import STDOUT

    name = posixpath.basename(path.rstrip("/"))
    unpacking = TarTarget(_within(target, name))

    async def take(session: JobSession) -> None:
        async for data in session.chunks(STDOUT):
            await unpacking.put(data)
        await unpacking.finish()

    argv = ("/bin/sh", "-c", PACK, "sh", path)
    try:
        code = await _copied(client, job_id, argv, rank, take)
    finally:
        unpacking.stop()
    return _told(unpacking, code) or int(unpacking.left_out > 0)


def _within(target: Path, name: str) -> Path:
    """Return where something of a name is to be: in a folder that is there, or else as that name."""
    into = target / name if target.is_dir() and name not in {"", ".", "..", "/"} else target
    if not into.parent.is_dir():
        raise Failure(f"there is no folder {into.parent}; make it first")
    return into


async def _send(client: Client, job_id: str, source: Path, path: str, rank: int) -> int:
    """Copy into the job."""
    from penstock_log.session_messages import STDIN

    packing = TarSource(source)

    async def give(session: JobSession) -> None:
        await session.feed(STDIN, packing.blocks())

    argv = ("/bin/sh", "-c", _UNPACK, "sh", path, packing.source.name)
    try:
        code = await _copied(client, job_id, argv, rank, give)
    finally:
        packing.stop()
    return _told(packing, code)


async def _copied(
    client: Client,
    job_id: str,
    argv: tuple[str, ...],
    rank: int,
    carry: Callable[[JobSession], Awaitable[None]],
) -> int:
    """Run the job's side of a copy in a session and ours beside it; return its exit code."""
    from penstock.job_session import JobSession, SessionLost
    from penstock_cli import session_terminal
    from penstock_log.session_messages import STDERR

    async def complain(session: JobSession) -> None:
        async for data in session.chunks(STDERR):
            await session_terminal.write(2, data)

    try:
        with session_terminal.ended_in_order():
            async with JobSession(client, job_id, argv, rank=rank, purpose="copy") as session:
                await asyncio.gather(complain(session), carry(session))
                code = session_terminal.exit_code(await session.wait())
                return code if code in {Exit.OK, session_terminal.LOST} else Exit.FAILED  # whatever tar makes of it
    except SessionLost as error:
        tell(str(error))
        return session_terminal.LOST


def _told(side: TarSource | TarTarget, code: int) -> int:
    """Say to a person how much was copied; return the exit code."""
    if not code and os.isatty(2):
        tell(f"{render.count(side.files, 'file')}, {gibibytes(side.size_bytes)} copied")
    return code
